"""The desktop program: ``cd examples && python -m desktop [MODEL.gguf]``."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

from desktop import look
from desktop.settings import Settings
from desktop.window import Window
from tgr_local.models.library import embedded_model


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="desktop", description="Conversations with a model.")
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file; else the last one")
    parser.add_argument("--settings", type=Path, help="another file of settings")
    options = parser.parse_args(arguments)
    # Python threads that write replies let this one have the interpreter after 1 ms, not 5
    sys.setswitchinterval(0.001)
    app = QApplication(sys.argv[:1])
    app.setStyle("Fusion")
    settings = Settings(options.settings)
    look.apply(app, settings.options().theme)
    window = Window(settings)
    app.styleHints().colorSchemeChanged.connect(lambda: look.apply(app, window.options.theme))
    last = settings.get("model")
    window.load(options.model or (Path(str(last)) if last else embedded_model()))
    window.show()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: window.close())
    ticks = QTimer(interval=200, timeout=lambda: None)  # Python looks for signals in Python code
    ticks.start()
    code = app.exec()
    window.shut_down()
    return code


if __name__ == "__main__":
    sys.exit(main())
