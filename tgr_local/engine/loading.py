"""Loads a model with a progress line and warnings, for the command line."""

from __future__ import annotations

import sys
from pathlib import Path

from tgr_local.console.progress import ProgressLine
from tgr_local.console.sanitize import printable_line
from tgr_local.engine.cancel import Cancel
from tgr_local.engine.engine import Engine
from tgr_local.engine.installation import layers_in_ram, slow_cache, unused_gpu
from tgr_local.options.config import EngineConfig


def load_with_progress(
    path: Path, config: EngineConfig, *, chats: bool = True, cancel: Cancel | None = None
) -> Engine:
    """Loads a model, with a progress line on stderr, and a line there if the engine left a part of
    it in RAM; and a warning if the model has no chat template, where one is needed (`chats`), does
    not use the GPU of this machine, or its cache is slow there. Raises ModelError, and
    CancelledError by `cancel`."""
    with ProgressLine(f"loading {path}"):
        engine = Engine(path, config, cancel=cancel)
    if note := layers_in_ram(engine):
        print(f"tgr-local: {note}", file=sys.stderr)
    found = (engine.template_warning if chats else "", unused_gpu(engine), slow_cache(engine))
    for warning in filter(None, found):
        print(f"tgr-local: warning: {printable_line(warning)}", file=sys.stderr)
    return engine
