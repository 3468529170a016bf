"""The format ``file``: the whole text of a file.

calc.py
```python
all of it
```
"""

from __future__ import annotations

from collections.abc import Sequence

from tgr_local.code.edits.document import Document
from tgr_local.code.edits.markers import Markers
from tgr_local.code.syntax import fence_name
from tgr_local.engine import Opening


def openings(documents: Sequence[Document], markers: Markers) -> list[Opening]:
    return [
        Opening(f"{document.path}\n{markers.fence}{fence_name(document.path)}\n", i)
        for i, document in enumerate(documents)
    ]
