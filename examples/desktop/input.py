"""The input of a conversation: Enter sends, Shift+Enter starts a line, a long paste is a chip."""

from __future__ import annotations

from PySide6.QtCore import QMimeData, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QPlainTextEdit,
    QPushButton,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

_LONG = 2000  # characters from which a paste is not shown: Qt would lay it out for seconds
_MOST_LINES = 8


class _Editor(QPlainTextEdit):
    sent = Signal()
    pasted = Signal(str)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if is_enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.sent.emit()
        else:
            super().keyPressEvent(event)

    def insertFromMimeData(self, source: QMimeData) -> None:
        text = source.text()
        if len(text) > _LONG:
            self.pasted.emit(text)
        else:
            self.insertPlainText(text)


class Input(QFrame):
    """`sent` says that the user wants to send `text`; `stopped` that the reply shall end."""

    sent = Signal()
    stopped = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("composer")
        self._pasted: list[str] = []
        self._is_busy = False
        self.editor = _Editor(objectName="input", placeholderText="Ask something")
        self.editor.setAccessibleName("Question")
        self.editor.setTabChangesFocus(True)
        self.editor.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        self.button = QPushButton("Send", objectName="primary")
        self._chip = QToolButton(objectName="chip", visible=False, toolTip="Remove it")
        row = QHBoxLayout()
        row.addWidget(self.editor, 1)
        row.addWidget(self.button, 0, Qt.AlignmentFlag.AlignBottom)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(12, 8, 8, 8)
        layout.addWidget(self._chip, 0, Qt.AlignmentFlag.AlignLeft)
        layout.addLayout(row)
        self.editor.sent.connect(self._send)
        self.editor.pasted.connect(self._add)
        self.editor.textChanged.connect(self._changed)
        self.button.clicked.connect(self._press)
        self._chip.clicked.connect(self._remove_pasted)
        self._changed()

    def text(self) -> str:
        """What was typed, and after it what was pasted."""
        return "\n\n".join(filter(None, [self.editor.toPlainText().strip(), *self._pasted]))

    def set_text(self, text: str) -> None:
        self._pasted.clear()
        self.editor.setPlainText(text if len(text) <= _LONG else "")
        if len(text) > _LONG:
            self._pasted.append(text)
        self._changed()

    def set_busy(self, is_busy: bool) -> None:
        """While a reply is written the button stops it, and Enter does nothing."""
        self._is_busy = is_busy
        self._changed()

    def _send(self) -> None:
        if not self._is_busy and self.text().strip():
            self.sent.emit()

    def _press(self) -> None:
        if self._is_busy:
            self.stopped.emit()
        else:
            self._send()

    def _add(self, text: str) -> None:
        self._pasted.append(text)
        self._changed()

    def _remove_pasted(self) -> None:
        self._pasted.clear()
        self._changed()

    def _changed(self) -> None:
        n_pasted = sum(map(len, self._pasted))
        self._chip.setVisible(n_pasted > 0)
        self._chip.setText(f"Pasted text, {n_pasted:,} characters  ✕")
        is_empty = self.editor.document().isEmpty() and not n_pasted
        self.button.setText("Stop" if self._is_busy else "Send")
        self.button.setEnabled(self._is_busy or not is_empty)
        lines = min(_MOST_LINES, max(1, int(self.editor.document().size().height())))
        self.editor.setFixedHeight(lines * self.editor.fontMetrics().lineSpacing() + 14)
