"""Imports that an edit needs and lacks."""

from __future__ import annotations

import pytest

from tgr_local.code.edits import Change, FileText
from tgr_local.code.writing.imports import add_imports

STORE = '"""Notes."""\n\nimport itertools\n\n\ndef get(notes, number):\n    return notes[number]\n'
HTTP = "class HttpError(Exception):\n    pass\n"
APP = (
    "import json\n\nfrom app.http import HttpError, Request as R\nfrom . import near\n"
    "import os.path as p\n"
)
TEXTS = {"app/store.py": STORE, "app/http.py": HTTP, "app.py": APP}
DOCUMENTS = [FileText(path, text) for path, text in TEXTS.items()]


def after(new: str, before: str = STORE, path: str = "app/store.py") -> str:
    """The text of a changed file with its imports."""
    (change,) = add_imports([Change(path, before, new)], DOCUMENTS)
    assert (change.path, change.before) == (path, before)
    return change.after


@pytest.mark.parametrize(
    ("used", "line"),
    [
        ("HttpError(404)", "from app.http import HttpError"),  # as another file does
        ("R(1)", "from app.http import Request as R"),
        ("json.dumps(1)", "import json"),
        ("p.join('a')", "import os.path as p"),
        ("re.match('a', 'b')", "import re"),  # Python's own modules
        ("Counter('a')", "from collections import Counter"),
        ("sqrt(2)", "from math import sqrt"),
        ("cast(List, 1)", "from typing import List\nfrom typing import cast"),
        ("dataclass(1)", "from dataclasses import dataclass"),
        ("datetime.now()", "from datetime import datetime"),
        ("datetime.date(1, 1, 1)", "import datetime"),
        ("os.path.join('a')", "import os"),
    ],
)
def test_a_name_that_nothing_defines_is_imported(used: str, line: str):
    new = STORE.replace("notes[number]", used)
    assert after(new) == new.replace("import itertools\n", f"import itertools\n{line}\n")


@pytest.mark.parametrize(
    "used",
    [
        "notes[number] + unknown",
        "near.x",  # relative: means something else elsewhere
        "string + 1",  # a module's name without an attribute is some variable
        "re.no_such",
        "antigravity.fly",  # modules that do something
        "e",  # math's
        "log.info('x')",
        "product(notes)",
        "time() - number",
        "urllib.parse.quote('x')",
        "count",
        "itertools.count()",  # is there
        "[x for x in notes]",
        "print(number)",
        "(lambda a, *b, **c: (a, b, c))(1)",
        "(y := 1) + y",
    ],
)
def test_other_names_are_left(used: str):
    new = STORE.replace("notes[number]", used)
    assert after(new) == new


def test_names_of_any_scope_are_known():
    new = STORE + (
        "\n\ndef f(a):\n    global G\n    import re\n    try:\n        G = re\n"
        "    except ValueError as e:\n        print(e)\n    match a:\n"
        "        case {'k': v, **rest}:\n            return v, rest\n"
        "        case [first, *others] as whole:\n            return first, others, whole\n"
    )
    assert after(new) == new


def test_annotations_that_are_not_evaluated_need_no_import():
    old = "from __future__ import annotations\n\n\ndef f(a):\n    return a\n"
    new = old.replace("f(a)", "f(a: List[HttpError]) -> R")
    assert after(new, old) == new
    assert "HttpError\n" in after(new.replace("return a", "raise HttpError"), old)


def test_a_file_does_not_import_itself():
    documents = [FileText("main.py", "from stats import mean\n")]
    for path in ("stats.py", "src/stats.py", "stats/__init__.py"):
        change = Change(path, "x = 1\n", "x = mean([1])\n")
        assert add_imports([change], documents) == (change,)
    change = Change("other.py", "x = 1\n", "x = mean([1])\n")
    assert "from stats import mean" in add_imports([change], documents)[0].after


def test_what_was_undefined_before_stays():
    old = "def f():\n    return Counter()\n"
    assert after(old + "\n\nx = 1\n", old) == old + "\n\nx = 1\n"
    star = "from os import *\n\n\ndef f():\n    return 1\n"
    assert after(star.replace("1", "Counter()"), star) == star.replace("1", "Counter()")


def test_two_files_that_import_a_name_from_two_places_say_nothing():
    documents = [*DOCUMENTS, FileText("other.py", "from other.http import HttpError\n")]
    new = STORE.replace("notes[number]", "HttpError(404)")
    (change,) = add_imports([Change("app/store.py", STORE, new)], documents)
    assert change.after == new


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""Doc."""\n\nX = 1\n', '"""Doc."""\n\nimport re\n\nX = re.I\n'),
        ("X = 1\n", "import re\n\n\nX = re.I\n"),
        ("#!/usr/bin/env python3\n# A tool.\n\nX = 1\n",
         "#!/usr/bin/env python3\n# A tool.\nimport re\n\n\nX = re.I\n"),
        ("from __future__ import annotations\nX = 1\n",
         "from __future__ import annotations\nimport re\nX = re.I\n"),
        ("X = 1\nfrom app import routes\n", "import re\n\n\nX = re.I\nfrom app import routes\n"),
        ("if True:\n    import os\nX = 1\n", "import re\n\n\nif True:\n    import os\nX = re.I\n"),
    ],
)  # fmt: skip
def test_the_place_of_an_import(text: str, expected: str):
    assert after(text.replace("= 1", "= re.I"), text) == expected


def test_other_files_are_left():
    changes = (
        Change("a.js", "x = 1", "x = re.y"),
        Change("b.py", "x = (", "x = re.I"),  # was no Python before
        Change("b.py", "x = 1", "x = re.("),
        Change("gone.py", "x = 1", ""),
    )
    assert add_imports(changes, DOCUMENTS) == changes
