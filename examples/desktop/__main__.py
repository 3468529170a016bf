"""The desktop program: ``cd examples && python -m desktop [MODEL.gguf]``."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tgr_local import freeze_support


def main() -> int:
    try:
        from PySide6.QtCore import QSettings
        from PySide6.QtWidgets import QApplication
    except ImportError as error:  # or it lacks a library of the system
        sys.exit(f"{error}; this program needs PySide6; run: pip install 'tgr-local[desktop]'")

    from desktop.window import Window
    from tgr_local.options.model_files import embedded_model

    parser = argparse.ArgumentParser(prog="desktop", description="Conversations with a model.")
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file; else the last one")
    arguments = parser.parse_args()
    sys.setswitchinterval(0.0002)  # s until a thread lets the window's one have Python's lock
    app = QApplication(sys.argv[:1])
    app.setStyle("Fusion")
    store = QSettings(QSettings.Format.IniFormat, QSettings.Scope.UserScope, "tgr-local", "desktop")
    window = Window(store)
    window.load(arguments.model or Path(str(store.value("model") or embedded_model())))
    window.show()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would wait for the next event
    code = app.exec()
    window.shut_down()
    return code


if __name__ == "__main__":
    freeze_support()  # before Qt: a frozen program starts itself for chat templates, with limits
    sys.exit(main())
