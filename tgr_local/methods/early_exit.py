"""``early-exit``: the thinking ends as soon as the model is sure of its answer.

Yang et al., "Dynamic Early Exit in Reasoning Models" (2025). At the end of every line a fork of the
text closes the thinking, begins the answer and writes it greedily. Where the geometric mean of the
probabilities of this trial answer reaches the threshold, the fork is the reply, which goes on from
there; else it is dropped, and the thinking goes on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from tgr_local.engine import Engine, New, Task
from tgr_local.options.config import SearchConfig
from tgr_local.options.groups import ExitOptions
from tgr_local.search.branches import Branch, Branches, cells_for, text_limit
from tgr_local.search.run import Method, Run, penalty_history
from tgr_local.search.seeds import CHUNK, derived_seed
from tgr_local.search.steps import Finish, Step
from tgr_local.system.think_tags import CLOSE_THINK, CLOSING

BEGINNING = "The answer is \\boxed{"
"""How a trial answer begins, as the embedded model writes it."""
MOST_TOKENS = 20
"""Tokens that a trial answer is given after its beginning at most."""


def run(run: Run) -> Iterator[Step]:
    """Writes chunk after chunk, with a trial answer after every line while it thinks."""
    limit = text_limit(run.engine, len(run.query), run.config)
    with Branches(run, METHOD, limit=limit, least=1) as branches:
        text = TriedText(branches)
        try:
            finish: Finish | None = None
            while finish is None:
                finish = text.write_chunk()
                yield from text.steps(finish)
        finally:
            run.remember(text.branch.sequence)


def cells(engine: Engine, n_query: int, config: SearchConfig) -> int:
    n_texts = text_limit(engine, n_query, config)  # a trial that does not fit is left out
    return cells_for(engine, n_query, n_texts, sequences(engine, config))


def sequences(engine: Engine, config: SearchConfig) -> int:
    return 2  # the text and a trial


def positions(engine: Engine, n_query: int, config: SearchConfig) -> int:
    limit = text_limit(engine, n_query, config)
    trial = len(engine.tokenize(CLOSING + BEGINNING)) + MOST_TOKENS + 1
    return n_query + limit + limit * trial  # every token may end a line


class TriedText:
    """The text so far, in `branch`."""

    def __init__(self, branches: Branches) -> None:
        self._branches, self._run, self._config = branches, branches.run, branches.config
        self._engine = branches.engine
        self.branch = branches.read_query()
        self._query = self._engine.detokenize(self._run.query, special=True)
        self._text = b""
        self._n_yielded = 0  # tokens
        self._trials, self._confidence, self._exited, self._is_cut = 0, 0.0, False, False
        # what must follow a rule is not to be tried with a text of ours
        self._may_try = not (self._run.request.has_format or branches.sampling.grammar)

    def write_chunk(self) -> Finish | None:
        """Writes to the end of a chunk, with its trials; returns why the text ends there."""
        while True:
            is_line = self._write()
            if is_line and self._finish() is None:
                self._try()
            if (finish := self._finish()) or self._n_new >= self._config.chunk_len:
                return finish

    def steps(self, finish: Finish | None) -> Iterator[Step]:
        """The whole chunks that were not yielded so far; where the text ends, all that is left, as
        one step at least."""
        run, branch, size = self._run, self.branch, self._config.chunk_len
        figures = {"trials": self._trials, "confidence": self._confidence}
        figures["exited"] = int(self._exited)
        is_last = False
        while not is_last and (finish or self._n_new >= size):
            part = slice(self._n_yielded, min(self._n_yielded + size, len(branch.tokens)))
            is_last = finish is not None and part.stop == len(branch.tokens)
            self._n_yielded = part.stop
            yield run.step(
                finish if is_last else None,
                **branch.fields(part, has_top=run.n_top > 0),
                cells=run.session.peak_cells(reset=True),
                figures=figures if is_last else {},
            )

    @property
    def _n_new(self) -> int:
        """Tokens that are in no step."""
        return len(self.branch.tokens) - self._n_yielded

    def _finish(self) -> Finish | None:
        """Why the text ends where it is; None when it goes on."""
        if self.branch.ended:
            return "stop"
        if len(self.branch.tokens) >= self._branches.limit:
            return "length"
        if self._is_cut or self._branches.late or not self._run.affords(1):
            return "budget"
        return None

    # --- the text ---

    def _write(self) -> bool:
        """Writes to the end of the line, if an answer may be tried there, or of the chunk; returns
        whether it is that of a line."""
        run, branch, config = self._run, self.branch, self._config
        ends = ("\n",) if self._closing is not None else ()
        begun = self._n_new
        wanted = min(config.chunk_len - begun, self._branches.limit - len(branch.tokens))
        task = run.continuation(
            branch.sequence,
            branch.tokens,
            max(1, self._branches.allowance(1, wanted)),
            derived_seed(config.seed, run.index, CHUNK, begun),
        )
        task = dataclasses.replace(task, stop=(*task.stop, *ends))
        with run.timed("chunk"):
            on_tokens = self._report if run.on_event else None
            (output,) = run.generate([task], on_tokens=on_tokens, stop_early=True)
            run.count(chunk=output.n_decoded)
        branch.add(output)
        new = run.text(output.tokens)
        branch.ended = run.has_ended(task, output)
        self._text += new
        self._is_cut = output.finish == "cancelled"
        return output.finish == "stop"

    def _report(self, new: list[New]) -> None:
        ((tokens, text),) = new
        self._run.report("tokens", tokens=tuple(tokens), text=text)

    # --- trials ---

    @property
    def _closing(self) -> str | None:
        """Returns the text that ends the thinking before an answer, or the line of a text without
        thinking; None where no answer is to be tried: there is one, or the text must follow a
        rule."""
        whole = self._query + self._text
        _, opened, inside = whole.rpartition(b"<think>")
        thought, closed, _ = inside.partition(CLOSE_THINK.encode())
        if not self._may_try or (closed and thought.strip()):
            return None
        closing = CLOSING if opened and not closed else "\n"
        return closing.removeprefix("\n") if self._text.endswith(b"\n") else closing

    def _try(self) -> None:
        """Writes a trial answer, where the limits allow it, and goes on from it if it is sure."""
        run, config, branch, closing = self._run, self._config, self.branch, self._closing
        if closing is None:
            return
        end = closing.rstrip("\n")
        closed, beginning = self._engine.tokenize(end), closing[len(end) :] + BEGINNING
        if any(stop in beginning for stop in config.stop):  # it would end before its answer
            return
        given = closed + self._engine.tokenize(beginning)
        most = len(given) + MOST_TOKENS
        if len(branch.tokens) + most > self._branches.limit or not run.affords(most + 1):
            return
        n_given = len(branch.tokens) + len(given)
        run.report("rollouts")
        trial = self._branches.fork(branch)
        with run.timed("rollouts"):
            n_decoded, is_whole = self._answer(trial, given)
        if not self._is_cut:
            self._trials += 1
            self._confidence = confidence(trial.logprobs[n_given:]) if is_whole else 0.0
            self._exited = self._confidence >= config.exit_threshold
        if not self._exited:
            run.count(discarded=n_decoded)
            trial.sequence.drop()
            return
        if CLOSE_THINK in config.stop:  # the run ends with the thinking
            _cut(trial, len(branch.tokens) + len(closed))
            trial.ended = True
        n_new = len(trial.tokens) - len(branch.tokens)
        run.count(chunk=min(n_new, n_decoded), discarded=max(0, n_decoded - n_new))
        branch.sequence.drop()
        self._may_try = False
        self.branch, new = trial, trial.tokens[len(branch.tokens) :]
        text = run.text(new)
        self._text += text
        run.report("tokens", tokens=tuple(new), text=text)

    def _answer(self, trial: Branch, given: list[int]) -> tuple[int, bool]:
        """Appends the `given` tokens to a trial and writes its answer greedily, at most
        `MOST_TOKENS`, until the braces that they open are closed or the line ends. Returns the
        positions that were decoded, and whether the answer came to such an end."""
        run, config = self._run, self._config
        text = beginning = run.text(given)
        ends = ("}", "\n") if depth(text) > 0 else ("\n",)
        n_decoded, left, context = 0, MOST_TOKENS, [*run.query, *trial.tokens]
        feed = [context.pop(), *given]
        answer = b""
        longest = min(len(text) + 1, max((len(stop.encode()) for stop in config.stop), default=1))
        sampling = dataclasses.replace(
            run.sampling, temperature=0.0, dynatemp_range=0.0, typical_p=1.0, xtc_probability=0.0
        )
        while True:
            task = Task(
                trial.sequence,
                feed,
                n_generate=left,
                sampling=sampling,
                history=penalty_history([*context, feed[0]], sampling),
                feed_logprobs=len(feed) > 1,
                stop=(*config.stop, *ends),
                shown=run.request.shown,
                tail=text[len(text) - longest + 1 :],
                n_top=run.n_top,
            )
            (output,) = run.generate([task], stop_early=True)
            n_decoded += output.n_decoded
            if len(feed) > 1:
                _give(trial, given, output.feed_logprobs.tolist())
            trial.add(output)
            new = run.text(output.tokens)
            text, answer, left = text + new, answer + new, left - len(output.tokens)
            self._is_cut = output.finish == "cancelled"
            trial.ended = run.has_ended(task, output)
            whole = is_whole(beginning, answer, trial.ended)
            if output.finish != "stop" or trial.ended or whole or b"\n" in answer or not left:
                return n_decoded, whole
            context, feed = [*run.query, *trial.tokens[:-1]], trial.tokens[-1:]


def confidence(logprobs: Sequence[float]) -> float:
    """C = (Π p)^(1/n), the geometric mean of the probabilities of n tokens, from their logarithms
    [n], nats; 0 of no tokens."""
    return math.exp(math.fsum(logprobs) / len(logprobs)) if logprobs else 0.0


def depth(text: bytes) -> int:
    """How many braces are open at the end of a text."""
    return text.count(b"{") - text.count(b"}")


def is_whole(beginning: bytes, answer: bytes, ended: bool) -> bool:
    """Whether a trial answer came to its end: it closed the braces that its beginning opens, or
    where there are none its line or the text ended."""
    if depth(beginning) > 0:
        return depth(beginning + answer) <= 0
    return ended or b"\n" in answer


def _give(branch: Branch, tokens: list[int], logprobs: list[float]) -> None:
    """Appends tokens that were not drawn: they have no entropy and no alternatives."""
    branch.tokens += tokens
    branch.logprobs += logprobs
    branch.entropies += [0.0] * len(tokens)
    branch.top += [(np.empty(0, np.int32), np.empty(0, np.float32))] * len(tokens)


def _cut(branch: Branch, n: int) -> None:
    """Leaves the first n tokens."""
    for part in (branch.tokens, branch.logprobs, branch.entropies, branch.top):
        del part[n:]


METHOD = Method(
    "early-exit",
    run,
    cells,
    sequences,
    positions=positions,
    about="ends the thinking as soon as a trial answer is sure",
    options=(ExitOptions,),
)
