"""One conversation: its messages, the reply under way, and the input."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLabel,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from desktop.input import Input
from desktop.message import Answer, Question
from desktop.search_view import SearchView
from desktop.settings import Options
from desktop.worker import ReplyWorker, message_of
from tgr_local import CapacityError, Engine, Event, Progress, Reply, TextDelta

_WIDTH = 760  # pixels of a line that is easy to read
_SHOWN = 40  # messages: what is shown is laid out at every change
_STAGES = {"rebuild": "reading", "rollouts": "trying candidates", "answer due": "answering"}
_WELCOME = "Ask something.\n\nEnter sends, Esc stops, Ctrl+N starts another conversation."


class Conversation(QWidget):
    """`engine` and `options` give what the next reply is written with. `search` shows the
    candidates of the last one."""

    changed = Signal()
    """The title, or whether a reply is being written."""
    replied = Signal(object)
    """A reply has ended: the `Reply` or None."""

    def __init__(self, engine: Callable[[], Engine | None], options: Callable[[], Options]) -> None:
        super().__init__()
        self._engine, self._options = engine, options
        self._worker: ReplyWorker | None = None
        self._answer: Answer | None = None
        self._n_tokens = 0
        self._status = ""
        self.messages: list[dict[str, str]] = []
        self._shown: list[QWidget] = []
        self.search = SearchView()
        self.input = Input()
        self.input.sent.connect(self.send)
        self.input.stopped.connect(self.cancel)
        self._welcome = QLabel(_WELCOME, objectName="welcome")
        self._welcome.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._column = QVBoxLayout()
        self._column.setSpacing(18)
        self._earlier = QPushButton("Show earlier messages", visible=False)
        self._earlier.clicked.connect(self._show_earlier)
        self._column.addWidget(self._earlier, 0, Qt.AlignmentFlag.AlignHCenter)
        self._column.addWidget(self._welcome, 1)
        self._column.addStretch(1)
        self._scroll = QScrollArea(widgetResizable=True)
        self._scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._scroll.setWidget(_centred(self._column))
        bar = self._scroll.verticalScrollBar()
        self._follows = True
        bar.actionTriggered.connect(lambda: QTimer.singleShot(0, self._look_where))
        bar.rangeChanged.connect(lambda _, high: self._follows and bar.setValue(high))
        bottom = QVBoxLayout()
        bottom.addWidget(self.input)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(16, 12, 16, 16)
        layout.addWidget(self._scroll, 1)
        layout.addWidget(_centred(bottom))

    @property
    def title(self) -> str:
        text = self.messages[0]["content"][:200] if self.messages else ""
        return " ".join(text.split()) or "New conversation"

    @property
    def is_busy(self) -> bool:
        return self._worker is not None

    @property
    def last_answer(self) -> Answer | None:
        return self._answer

    def send(self) -> None:
        """Asks what is in the input; does nothing while a reply is written or without a text."""
        engine, text = self._engine(), self.input.text()
        if self.is_busy or not text.strip():
            return
        if engine is None:
            self._note("No model is loaded; choose one with Ctrl+O. Your question stays here.")
            return
        self.input.set_text("")
        self._ask(engine, text)

    def _ask(self, engine: Engine, text: str) -> None:
        self._add(Question(text))
        self.messages.append({"role": "user", "content": text})
        self._begin(engine)

    def cancel(self) -> None:
        """Ends the reply under way; its text so far stays."""
        if self._worker:
            self._worker.cancel()

    # --- a reply, from its begin to its end ---

    def _begin(self, engine: Engine) -> None:
        self._answer = Answer(engine.metadata.get("general.name") or engine.path.stem)
        self._add(self._answer)
        self._follows, self._n_tokens, self._status = True, 0, "reading"
        self.search.clear()
        self.input.set_busy(True)
        options = self._options()
        self._worker = ReplyWorker(engine, self.messages, options.search_config(), options.method)
        self._worker.batch.connect(self._show)
        self._worker.finished.connect(self._finish)
        self._worker.start()
        self.changed.emit()

    def _show(self, events: list[Event]) -> None:
        """Draws a batch: the text of all its events is inserted at once."""
        assert self._answer
        texts: dict[str, list[str]] = {"thinking": [], "answer": []}
        for event in events:
            if isinstance(event, TextDelta):
                texts[event.kind].append(event.text)
            elif isinstance(event, Progress):
                self._n_tokens += len(event.tokens)
                self._status = _STAGES.get(event.stage, "writing")
        self.search.show_progress(event for event in events if isinstance(event, Progress))
        if texts["thinking"]:
            self._answer.add_thinking("".join(texts["thinking"]))
        if texts["answer"]:
            self._answer.add_text("".join(texts["answer"]))
        self._answer.set_status(f"{self._status} … {self._n_tokens:,} tokens")

    def _finish(self, reply: Reply | None, error: Exception | None) -> None:
        assert self._answer
        self._worker = None
        self.search.end()
        self.input.set_busy(False)
        question = ""
        if reply and reply.text:
            self.messages.append({"role": "assistant", "content": reply.text})
            self._answer.end()
        else:  # a question without an answer is no part of what the model reads next
            question = self._take_back()
        if error:
            self._answer.set_status(message_of(error), is_error=True)
            if isinstance(error, CapacityError) and self.messages:
                self._offer_room(question)
        elif reply:
            self._answer.set_status(_cost(reply))
        else:
            self._answer.set_status("stopped before the first token")
        self.replied.emit(reply)
        self.changed.emit()

    def _take_back(self) -> str:
        """The last question goes back into the input, unless something is there already."""
        text = self.messages.pop()["content"]
        if not self.input.text():
            self.input.set_text(text)
        return text

    def _offer_room(self, question: str) -> None:
        """The conversation is too long: the user may drop its oldest turn and ask again."""
        button = QPushButton("Forget the oldest turn, and ask again")
        self._add(button)

        def ask_again() -> None:
            engine = self._engine()
            if engine and not self.is_busy:
                self._shown.remove(button)
                button.deleteLater()
                del self.messages[:2]
                if self.input.text() == question:
                    self.input.set_text("")
                self._ask(engine, question)

        button.clicked.connect(ask_again)

    # --- the screen ---

    def _add(self, widget: QWidget) -> None:
        self._welcome.hide()
        self._column.insertWidget(self._column.count() - 1, widget)
        self._shown.append(widget)
        if len(self._shown) > _SHOWN:
            self._shown.pop(0).hide()
            self._earlier.show()

    def _show_earlier(self) -> None:
        """Shows as many messages again as are shown."""
        hidden = [
            widget
            for i in range(1, self._column.count() - 1)
            if (widget := self._column.itemAt(i).widget()) is not self._welcome
            and widget not in self._shown
        ][-_SHOWN:]
        for widget in hidden:
            widget.show()
        self._shown[:0] = hidden
        self._follows = False
        self._earlier.setVisible(len(hidden) == _SHOWN)

    def _note(self, text: str) -> None:
        note = QLabel(text, objectName="error")
        note.setWordWrap(True)
        self._add(note)

    def _look_where(self) -> None:
        bar = self._scroll.verticalScrollBar()
        self._follows = bar.value() >= bar.maximum() - 8


def _centred(column: QVBoxLayout) -> QWidget:
    """A column in the middle, no wider than a line that is easy to read."""
    inner, outer = QWidget(), QWidget()
    inner.setLayout(column)
    inner.setMaximumWidth(_WIDTH)
    column.setContentsMargins(0, 8, 0, 8)
    row = QHBoxLayout(outer)
    row.setContentsMargins(0, 0, 0, 0)
    row.addStretch(1)
    row.addWidget(inner, 1000)
    row.addStretch(1)
    return outer


def _cost(reply: Reply) -> str:
    ends = {"cancelled": "stopped", "stop": ""}.get(reply.finish, f"cut off by {reply.limit}")
    facts = (
        ends,
        f"{reply.n_tokens:,} tokens",
        f"{reply.counts.total:,} forward tokens",
        f"{reply.seconds:.1f} s",
        reply.method,
    )
    return " · ".join(filter(None, facts))
