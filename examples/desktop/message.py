"""A question or a reply on the screen; a reply's thinking is folded until it is asked for."""

from __future__ import annotations

import re
from typing import Any

from PySide6.QtCore import QSizeF, Qt, QUrl
from PySide6.QtGui import QDesktopServices, QTextCursor, QTextDocument, QWheelEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QTextBrowser,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

_SHOWN = 4000  # characters of a question that are shown
_FORMATTED = 8000  # characters up to which an answer is formatted: a longer one takes too long
_THINKING_HEIGHT = 200
_MARKDOWN = (
    QTextDocument.MarkdownFeature.MarkdownDialectGitHub
    | QTextDocument.MarkdownFeature.MarkdownNoHTML
)


class Text(QTextBrowser):
    """Text as high as it is, which grows at its end. It opens web links, and loads nothing."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setOpenLinks(False)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.document().setDocumentMargin(0)
        self.document().documentLayout().documentSizeChanged.connect(self._fit)
        self.anchorClicked.connect(self._open)
        self._fit(self.document().size())

    def add(self, text: str) -> None:
        cursor = QTextCursor(self.document())
        cursor.movePosition(QTextCursor.MoveOperation.End)
        cursor.insertText(text)

    def set_markdown(self, text: str) -> None:
        """Formats Markdown without HTML; line breaks stay, and ``2*3*4`` stays as it is."""
        parts = re.split(r"(```.*?(?:```|\Z)|`[^`\n]*`)", text, flags=re.DOTALL)
        for i in range(0, len(parts), 2):  # what is not code
            parts[i] = re.sub(r"(?<=\w)([*_])(?=\w)", r"\\\1", parts[i])
            parts[i] = re.sub(r"(?<=\S)\n(?=\S)", "  \n", parts[i])
        self.document().setMarkdown("".join(parts), _MARKDOWN)

    def loadResource(self, kind: int, name: QUrl) -> Any:
        return None  # an image in an answer could be any file of the user

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # the conversation scrolls

    def _fit(self, size: QSizeF) -> None:
        self.setFixedHeight(max(int(size.height()) + 2, self.fontMetrics().lineSpacing()))

    def _open(self, url: QUrl) -> None:
        if url.scheme() in ("http", "https"):
            QDesktopServices.openUrl(url)


class Question(QWidget):
    """A question in a bubble; a long one is shown in part."""

    def __init__(self, text: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        bubble = QFrame(objectName="bubble")
        shown = Text()
        shown.setPlainText(text[:_SHOWN])
        inner = QVBoxLayout(bubble)
        inner.setContentsMargins(14, 10, 14, 10)
        inner.addWidget(shown)
        if len(text) > _SHOWN:
            more = f"… {len(text) - _SHOWN:,} more characters, which the model has read too"
            inner.addWidget(QLabel(more, objectName="muted"))
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.addStretch(1)
        layout.addWidget(bubble, 4)


class Answer(QWidget):
    """A reply: who wrote it, the thinking behind a button, the text, what it cost."""

    def __init__(self, speaker: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._thinking: list[str] = []
        self._n_thinking = 0
        self._text: list[str] = []
        self.fold = QToolButton(checkable=True, visible=False)
        self.fold.setAccessibleName("Show the thinking")
        self.fold.toggled.connect(self._toggle)
        self.thought = QPlainTextEdit(objectName="thinking", readOnly=True, visible=False)
        self.thought.setFixedHeight(_THINKING_HEIGHT)
        self.shown = Text()
        self._cost = QLabel("thinking …", objectName="cost")
        self._cost.setTextFormat(Qt.TextFormat.PlainText)
        self._cost.setWordWrap(True)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(4)
        name = QLabel(speaker, objectName="speaker")
        name.setTextFormat(Qt.TextFormat.PlainText)
        layout.addWidget(name)
        layout.addWidget(self.fold)
        layout.addWidget(self.thought)
        layout.addWidget(self.shown)
        layout.addWidget(self._cost)
        self.shown.hide()

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def thinking(self) -> str:
        return "".join(self._thinking)

    @property
    def cost(self) -> str:
        """The line below the text."""
        return self._cost.text()

    def add_text(self, text: str) -> None:
        self._text.append(text)
        self.shown.show()
        self.shown.add(text)

    def add_thinking(self, text: str) -> None:
        """Thinking that is folded is not laid out."""
        self._thinking.append(text)
        self._n_thinking += len(text)
        self._label()
        if self.fold.isChecked():
            cursor = QTextCursor(self.thought.document())
            cursor.movePosition(QTextCursor.MoveOperation.End)
            cursor.insertText(text)

    def set_status(self, text: str, is_error: bool = False) -> None:
        self._cost.setText(text)
        self._cost.setObjectName("error" if is_error else "cost")
        self._cost.style().polish(self._cost)

    def end(self) -> None:
        """The text is complete: it is formatted."""
        text = self.text
        if text and len(text) <= _FORMATTED:
            self.shown.set_markdown(text)

    def _toggle(self, is_open: bool) -> None:
        self.thought.setPlainText(self.thinking if is_open else "")
        self.thought.setVisible(is_open)
        self._label()

    def _label(self) -> None:
        arrow = "▾" if self.fold.isChecked() else "▸"
        self.fold.setText(f"{arrow} Thinking, {self._n_thinking:,} characters")
        self.fold.show()
