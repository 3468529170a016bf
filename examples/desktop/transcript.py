"""A conversation on the screen: a document that grows at its end, where Qt lays out what is new."""

from __future__ import annotations

from PySide6.QtGui import QTextBlockFormat, QTextCharFormat, QTextCursor
from PySide6.QtWidgets import QTextBrowser

_SHOWN = 4000  # characters of a question: Qt takes long to lay out more at once
_PLAIN = QTextBlockFormat()


class Transcript(QTextBrowser):
    """The thinking of a reply is folded until its link is pressed: its blocks are invisible, which
    Qt does not lay out. The user state of such a block is the number of its reply."""

    def __init__(self) -> None:
        super().__init__(openLinks=False)
        self._n_replies = 0
        self._kind = ""  # of the text at the end
        self._unfolded: set[int] = set()
        self._follows = True  # the end stays in sight
        self.anchorClicked.connect(lambda url: self.fold(int(url.path())))
        self.verticalScrollBar().valueChanged.connect(self._look)
        self.verticalScrollBar().rangeChanged.connect(self._follow)

    def ask(self, question: str) -> None:
        """Adds a question. What is added next belongs to its reply."""
        shade = self.palette().highlight().color()
        shade.setAlpha(48)
        paragraph = QTextBlockFormat()
        paragraph.setTopMargin(16)
        paragraph.setBackground(shade)
        cut = f" … {len(question) - _SHOWN:,} more characters" if len(question) > _SHOWN else ""
        self._begin("question", paragraph).insertText(question[:_SHOWN] + cut)
        self._n_replies += 1
        self._follows = True

    def add(self, kind: str, text: str) -> None:
        """Adds to the "thinking" or the "answer" of a reply."""
        if kind != self._kind:
            if kind == "thinking":
                link = QTextCharFormat()
                link.setAnchor(True)
                link.setAnchorHref(f"reply:{self._n_replies}")
                link.setForeground(self.palette().link())
                self._begin("fold").insertText("▸ Thinking", link)
            self._begin(kind)
            text = text.lstrip()
        cursor = self._end()
        block = cursor.block()
        cursor.insertText(text, self._grey() if kind == "thinking" else QTextCharFormat())
        while kind == "thinking" and block.isValid():
            block.setUserState(self._n_replies)
            block.setVisible(self._n_replies in self._unfolded)
            block = block.next()

    def add_status(self, text: str) -> None:
        self._begin("status").insertText(text, self._grey())

    def fold(self, reply: int) -> None:
        """Shows the thinking of a reply, counted from 1, or hides it again."""
        self._unfolded ^= {reply}
        block = self.document().begin()
        while block.isValid():
            if block.userState() == reply:
                block.setVisible(reply in self._unfolded)
                self.document().markContentsDirty(block.position(), block.length())
            block = block.next()

    def _grey(self) -> QTextCharFormat:
        grey = QTextCharFormat()
        grey.setForeground(self.palette().placeholderText())
        return grey

    def _end(self) -> QTextCursor:
        cursor = QTextCursor(self.document())
        cursor.movePosition(cursor.MoveOperation.End)
        return cursor

    def _begin(self, kind: str, paragraph: QTextBlockFormat | None = None) -> QTextCursor:
        cursor = self._end()
        cursor.insertBlock(paragraph or QTextBlockFormat(), QTextCharFormat())
        self._kind = kind
        return cursor

    def _look(self, value: int) -> None:
        self._follows = value >= self.verticalScrollBar().maximum() - 8

    def _follow(self, low: int, high: int) -> None:
        if self._follows:
            self.verticalScrollBar().setValue(high)
