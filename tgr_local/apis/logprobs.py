"""The tokens of a response with their log-probabilities and their places in its text.

`TokenText` follows a reply token by token; `read_prompt` scores the tokens of a prompt;
`chat_logprobs` and `legacy_logprobs` make OpenAI's two formats of both.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from tgr_local.engine import Cancel, Engine, Sampling, Sequence, Session, Task
from tgr_local.generation import Step, TextSplitter
from tgr_local.generation.text import Kind
from tgr_local.system.errors import too_long
from tgr_local.system.think_tags import CLOSE_THINK

Top = Seq[tuple[int, float]]

_LOWEST = -9999.0  # JSON has no -inf; OpenAI writes this
_AT_ONCE = 32  # sequences that read a prompt's alternatives together


@dataclass(frozen=True)
class Token:
    """A token, its place in the text, and its log-probability."""

    id: int
    data: bytes
    """Bytes of the token; those of a control token are its name."""
    offset: int
    """Characters before the one that its first byte belongs to."""
    logprob: float | None
    """Nats, at temperature 1; None for the first token of a prompt."""
    top: Top
    """The likeliest tokens at its position with their log-probabilities, likeliest first."""


class TokenText:
    """Follows the tokens of one reply, in step with its `TextSplitter`."""

    def __init__(
        self,
        engine: Engine,
        prompt: Seq[int],
        stop: tuple[str, ...],
        *,
        verbatim: bool,
        counts_only: bool = False,
        continued: Kind | None = None,
        shown: Seq[int] = (),
    ) -> None:
        """`counts_only`: nobody asks for the tokens, so `ready` has none. `shown` = control tokens
        that belong to the text."""
        self.n_tokens = 0
        """Tokens so far without an end token."""
        self.n_thinking = 0
        """Tokens so far that belong to the thinking, tags included."""
        self._engine, self._shown = engine, shown
        self._splitter = TextSplitter(
            engine, prompt, stop, verbatim=verbatim, continued=continued, shown=shown
        )
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._said = 0  # characters of the answer that the splitter has emitted
        self._at = 0  # characters of the answer that the tokens decode to
        self._bare = self._splitter.kind == "thinking"  # only layout since the last tag
        self._waiting: list[Token] = []
        self._counts_only = counts_only

    def feed(self, step: Step) -> None:
        """The tokens of a step."""
        if self._counts_only and self._counted(step.tokens.tolist()):
            return
        for i, token in enumerate(step.tokens.tolist()):
            top: Top = ()
            if step.top_ids is not None and step.top_logprobs is not None:
                pairs = zip(step.top_ids[i].tolist(), step.top_logprobs[i].tolist(), strict=True)
                top = list(pairs)
            self._take(token, float(step.logprobs[i]), top)

    def close_thinking(self) -> None:
        """An answer begins: the run ended the thinking, or a text without an answer."""
        closing = CLOSE_THINK if self._splitter.kind == "thinking" else ""
        pieces = self._splitter.begin_answer(self._engine.tokenize(closing))
        self._said += sum(len(piece.text) for piece in pieces if piece.kind == "answer")
        self._waiting = [token for token in self._waiting if token.offset < self._said]
        self._at = self._said

    def ready(self, n_chars: int) -> list[Token]:
        """The tokens of the answer's first `n_chars` characters that were not returned yet."""
        given = [token for token in self._waiting if token.offset < n_chars]
        self._waiting = self._waiting[len(given) :]
        return given

    def _counted(self, tokens: list[int]) -> bool:
        """Counts all tokens at once, if none of them can end a tag."""
        text = self._engine.detokenize(tokens, shown=self._shown)
        if b">" in text:
            return False
        n_tokens = sum(token not in self._engine.end_tokens for token in tokens)
        self._splitter.feed(tokens, text)
        self.n_tokens += n_tokens
        self.n_thinking += n_tokens if self._splitter.kind == "thinking" else 0
        return True

    def _take(self, token: int, logprob: float, top: Top) -> None:
        if token in self._engine.end_tokens:
            return
        self.n_tokens += 1
        kind_before, dropped = self._splitter.kind, self._splitter.stopped
        data = self._engine.detokenize([token], shown=self._shown)
        offset = self._at
        text = self._decoder.decode(data)
        pieces = self._splitter.feed([token])
        self._said += sum(len(piece.text) for piece in pieces if piece.kind == "answer")
        after = self._splitter.kind
        self.n_thinking += "thinking" in (kind_before, after)
        if kind_before != after:
            self._waiting = [waiting for waiting in self._waiting if waiting.offset < self._said]
            self._at, self._bare = self._said, True
        elif after == "answer" and not dropped:
            is_pending = bool(self._decoder.getstate()[0])  # a part of a character
            layout = self._bare and not text.strip("\n") and not is_pending
            if not layout:
                self._at += len(text.lstrip("\n") if self._bare else text)
                self._bare = False
                if self._counts_only:
                    return
                data = data or self._engine.detokenize([token], special=True)
                self._waiting.append(Token(token, data, offset, logprob, top))


def read_prompt(
    engine: Engine, tokens: Seq[int], text: str, n_top: int, cancel: Cancel | None = None
) -> tuple[list[Token], int]:
    """The tokens of a prompt with their log-probabilities, and the number of decoded positions.

    `text` is the prompt of the client: a begin token that tokenizing added is left out. The
    alternatives of each position take a second pass, in which every position is a branch, or
    where the model cannot roll back one step.
    Raises ContextError for a prompt longer than the model was trained for.
    """
    if len(tokens) > engine.n_ctx_train:
        raise too_long("the prompt", len(tokens), engine.n_ctx_train)
    n_branches = max(1, min(_AT_ONCE, engine.n_seq_max - 2)) if n_top else 0
    n_cells = len(tokens) + n_branches + 8
    tops: list[Top] = [()]
    with engine.session(n_cells, 1 + n_branches, cancel=cancel) as session:
        main = session.sequence()
        (read,) = session.run([Task(main, tokens, feed_logprobs=True)], cancel=cancel)
        decoded = read.n_decoded
        if n_top and engine.rolls_back:
            for start in range(0, len(tokens) - 1, n_branches):
                places = range(start, min(start + n_branches, len(tokens) - 1))
                branches = [main.fork() for _ in places]
                for branch, at in zip(branches, places, strict=True):
                    branch.truncate(at)
                tops += _tops(session, branches, [tokens[at] for at in places], n_top, cancel)
                for branch in branches:
                    branch.drop()
        elif n_top:  # token after token
            main.drop()
            again = session.sequence()
            for token in tokens[:-1]:
                tops += _tops(session, [again], [token], n_top, cancel)
        decoded += len(tops) - 1
    known = [None, *read.feed_logprobs.tolist()]
    tops += [()] * (len(tokens) - len(tops))
    return _placed(engine, tokens, text, known, tops), decoded


def _tops(
    session: Session, sequences: Seq[Sequence], tokens: Seq[int], n_top: int, cancel: Cancel | None
) -> list[Top]:
    """Appends a token to each sequence; the likeliest tokens after it."""
    greedy = Sampling(temperature=0.0)
    tasks = [
        Task(sequence, [token], n_generate=1, n_top=n_top, sampling=greedy)
        for sequence, token in zip(sequences, tokens, strict=True)
    ]
    return [
        list(zip(output.top_ids[0].tolist(), output.top_logprobs[0].tolist(), strict=True))
        for output in session.run(tasks, cancel=cancel)
    ]


def _placed(
    engine: Engine, tokens: Seq[int], text: str, logprobs: Seq[float | None], tops: Seq[Top]
) -> list[Token]:
    pieces = [engine.detokenize([token], special=True) for token in tokens]
    first = 0
    if tokens[0] == engine.bos and not text.startswith(pieces[0].decode("utf-8", "replace")):
        first = 1  # added by tokenizing
    if b"".join(pieces[first:]) == b" " + text.encode():
        pieces[first] = pieces[first][1:]  # so was this space
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    placed, at = [], 0
    for i in range(first, len(tokens)):
        # the first token has no context that the client gave
        logprob = None if i == first else logprobs[i]
        placed.append(Token(tokens[i], pieces[i], at, logprob, tops[i] if i > first else ()))
        at += len(decoder.decode(pieces[i]))
    return placed


def chat_logprobs(engine: Engine, tokens: Iterable[Token]) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat completion."""

    def entry(token: int, data: bytes, logprob: float) -> dict[str, Any]:
        text = data.decode("utf-8", "replace")
        return {"token": text, "bytes": list(data), "logprob": _finite(logprob), "id": token}

    content = []
    for token in tokens:
        assert token.logprob is not None  # only the first token of a prompt has none
        top = [entry(other_id, _name(engine, other_id), logprob) for other_id, logprob in token.top]
        content.append(entry(token.id, token.data, token.logprob) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def legacy_logprobs(
    engine: Engine, tokens: Seq[Token], *, start: int, n_top: int
) -> dict[str, Any]:
    """``choices[].logprobs`` of a completion; `start` is added to the offset of each token.

    A token that is not valid UTF-8 reads ``bytes:\\xe2\\x98``, as in OpenAI's API. The token
    itself is always among its ``top_logprobs``.
    """
    tops: list[dict[str, float] | None] = []
    ids = {token_id for token in tokens for token_id, _ in token.top}
    names = {token_id: _text(_name(engine, token_id)) for token_id in ids}
    for token in tokens:
        if token.logprob is None:
            tops.append(None)
            continue
        top = {names[token_id]: _finite(logprob) for token_id, logprob in token.top}
        tops.append(top | {_text(token.data): _finite(token.logprob)} if n_top else {})
    return {
        "tokens": [_text(token.data) for token in tokens],
        "token_logprobs": [
            None if token.logprob is None else _finite(token.logprob) for token in tokens
        ],
        "top_logprobs": tops if n_top else None,
        "text_offset": [start + token.offset for token in tokens],
    }


def _name(engine: Engine, token: int) -> bytes:
    return engine.detokenize([token], special=True)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LOWEST
