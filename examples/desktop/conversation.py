"""One conversation: its transcript, the input, the reply under way and its search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QLabel, QPlainTextEdit, QSplitter, QVBoxLayout, QWidget

from desktop.search_view import SearchView
from desktop.transcript import Transcript
from desktop.worker import Task, message_of
from tgr_local import Cancel, CancelledError, Engine, Progress, SearchConfig, TextDelta, generate

METHOD = "tgr-think"  # as in `tgr-local chat`: the thinking is searched, the answer plain
_STAGES = {"rebuild": "reading", "rollouts": "trying candidates", "answer due": "answering"}


class Input(QPlainTextEdit):
    """Enter sends, Shift+Enter starts a line."""

    sent = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if is_enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.sent.emit()
        else:
            super().keyPressEvent(event)


class Conversation(QSplitter):
    """`model` gives what the next reply is written with; its engine may be None."""

    changed = Signal()
    """The title, or whether a reply is being written."""

    def __init__(self, model: Callable[[], tuple[Engine | None, SearchConfig]]) -> None:
        super().__init__()
        self._model = model
        self._cancel: Cancel | None = None  # of the reply under way
        self._n_tokens = 0
        self.messages: list[dict[str, str]] = []
        self.transcript = Transcript()
        self.status = QLabel(wordWrap=True, textFormat=Qt.TextFormat.PlainText)
        self.input = Input(placeholderText="Ask something; Enter sends", tabChangesFocus=True)
        self.input.setMaximumHeight(80)
        self.input.sent.connect(self.send)
        self.search = SearchView()
        left = QWidget()
        layout = QVBoxLayout(left)
        for part in (self.transcript, self.status, self.input):
            layout.addWidget(part)
        self.addWidget(left)
        self.addWidget(self.search)
        self.setSizes([700, 300])

    @property
    def title(self) -> str:
        """The text of its tab, where Qt shows && as &."""
        words = self.messages[0]["content"][:200].split() if self.messages else ["New conversation"]
        return ("● " if self.is_busy else "") + " ".join(words)[:30].replace("&", "&&")

    @property
    def is_busy(self) -> bool:
        return self._cancel is not None

    def send(self) -> None:
        """Asks what is in the input; does nothing while a reply is written or without a text."""
        (engine, config), text = self._model(), self.input.toPlainText().strip()
        if self.is_busy or not text:
            return
        if engine is None:
            self.status.setText("No model is loaded. Choose one with Ctrl+O.")
            return
        self.input.clear()
        self.search.clear()
        self.transcript.ask(text)
        self.messages.append({"role": "user", "content": text})
        messages, cancel = list(self.messages), Cancel()
        self._cancel, self._n_tokens = cancel, 0
        self._task = Task(
            lambda post: generate(
                engine, messages, config, method=METHOD, on_event=post, cancel=cancel
            )
        )
        self._task.posted.connect(self._show)
        self._task.finished.connect(self._finish)
        self._task.start()
        self.changed.emit()

    def cancel(self) -> None:
        """Ends the reply under way at its next token; its text so far stays."""
        if self._cancel:
            self._cancel.cancel()

    def _show(self, events: list[Any]) -> None:
        """Draws a batch of `tgr_local.Event`: text of one kind is inserted at once."""
        texts, stage = {"thinking": "", "answer": ""}, "writing"
        for event in events:
            if isinstance(event, TextDelta):
                texts[event.kind] += event.text
            elif isinstance(event, Progress):
                self._n_tokens += len(event.tokens)
                stage = _STAGES.get(event.stage, "writing")
                if event.candidates is not None:
                    self.search.add(event.chunk, event.candidates.scores)
        for kind in filter(texts.get, texts):
            self.transcript.add(kind, texts[kind])
        self.status.setText(f"{stage} … {self._n_tokens:,} tokens")

    def _finish(self, reply: Any, error: Exception | None) -> None:
        """Takes a `tgr_local.Reply`, or None and why there is none."""
        self._cancel = None
        if isinstance(error, CancelledError):  # by `cancel`, or because the engine was closed
            reply = error.reply
        if reply and reply.text:
            self.messages.append({"role": "assistant", "content": reply.text})
        else:  # the model shall not read a question without an answer: it goes back into the input
            text = self.messages.pop()["content"]
            if not self.input.toPlainText():
                self.input.setPlainText(text)
        cost = message_of(error) if error else ""
        if reply:
            cost = (
                f"{reply.n_tokens:,} tokens · {reply.counts.total:,} forward tokens · "
                f"{reply.seconds:.1f} s · {reply.limit or reply.finish}"
            )
        self.transcript.add_status(cost)
        self.status.clear()
        self.changed.emit()
