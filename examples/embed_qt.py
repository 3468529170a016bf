"""A window in Qt: a reply is shown while it is written, Stop ends it, all windows share one engine.

python examples/embed_qt.py [model.gguf]
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from tgr_local import (
    Cancel,
    Engine,
    EngineConfig,
    Progress,
    SearchConfig,
    TextDelta,
    freeze_support,
    stream,
)
from tgr_local.options.model_files import embedded_model

try:
    from PySide6 import QtCore
    from PySide6 import QtWidgets as Qt
except ImportError as error:  # or it lacks a library of the system
    sys.exit(f"{error}; this program needs PySide6; run: pip install 'tgr-local[desktop]'")

windows, pool, leave = [], ThreadPoolExecutor(64), Cancel()
cache, config = EngineConfig(n_ctx=8192), SearchConfig(max_tokens=1800)  # four replies at a time


def write(engine, question, cancel, put):
    """Puts pieces of a reply and its progress; runs in a thread, so it knows no window."""
    n_tokens = 0
    try:
        for event in stream(engine.result(), question, config, cancel=cancel):
            if isinstance(event, TextDelta):  # of event.kind "thinking" or "answer"
                put((event.text, f"{n_tokens} tokens"))
            elif isinstance(event, Progress):
                n_tokens += len(event.tokens)
        put(("\n", f"{n_tokens} tokens in {event.seconds:.1f} s"))  # the last one is the Reply
    except Exception as error:  # CancelledError after Stop; of the model, that it cannot be loaded
        put(("\n", f"{n_tokens} tokens; {error}"))


class Window(Qt.QWidget):
    """`engine` is a future, so that the window is there before the model."""

    def __init__(self, engine):
        super().__init__(windowTitle="tgr-local in Qt")
        self.resize(520, 380)
        self.engine, self.reply, self.cancel, self.pieces = engine, None, Cancel(), SimpleQueue()
        self.text, self.status, self.input = (
            Qt.QPlainTextEdit(readOnly=True),
            Qt.QLabel(),
            Qt.QLineEdit(),
        )
        self.input.returnPressed.connect(self.ask)
        stop, more = Qt.QPushButton("Stop"), Qt.QPushButton("New window")
        stop.clicked.connect(self.stop)
        more.clicked.connect(lambda: open_window(engine))
        layout = Qt.QVBoxLayout(self)
        for part in (self.text, self.status, self.input, stop, more):
            layout.addWidget(part)
        QtCore.QTimer(self, interval=16, timeout=self.look).start()  # ms
        self.input.setFocus()

    def ask(self):
        question = self.input.text().strip()
        if question and (not self.reply or self.reply.done()):
            self.input.clear()
            self.pieces.put((f"> {question}\n", "…"))
            self.cancel = Cancel(leave)  # which ends when `leave` does
            self.reply = pool.submit(write, self.engine, question, self.cancel, self.pieces.put)

    def stop(self):
        self.cancel.cancel()

    def look(self):
        """Draws at once what has come: piece by piece, a fast model would keep the window busy."""
        if pieces := [self.pieces.get() for _ in range(self.pieces.qsize())]:
            self.text.moveCursor(self.text.textCursor().MoveOperation.End)
            self.text.insertPlainText("".join(text for text, _ in pieces))
            self.status.setText(pieces[-1][1])

    def closeEvent(self, event):
        self.stop()


def open_window(engine):
    windows[:] = [window for window in windows if window.isVisible()] + [Window(engine)]
    windows[-1].show()


def main():
    app = Qt.QApplication(sys.argv[:1])
    path = sys.argv[1] if sys.argv[1:] else embedded_model()
    open_window(pool.submit(Engine, path, cache, cancel=leave))
    app.exec()  # until the last window is closed
    leave.cancel()  # ends the replies, and the loading of the model
    pool.shutdown()


if __name__ == "__main__":
    freeze_support()
    main()
