"""A trace as text for people: the table of a run, and replies and scores in one line.

Records and replies in, lines of printable text out. Nothing here prints or asks for the size of a
terminal; the caller gives the width.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tgr_local.console.pace import per_second
from tgr_local.generation import Candidates, Counts, Scores, Seconds
from tgr_local.generation.trace_file import Boundary, Diagnostics, Trace
from tgr_local.system.sanitize import printable, printable_line

if TYPE_CHECKING:
    from tgr_local.generation import Reply

_HEADER_OPTIONS = (
    "chunk_len",
    "n_candidates",
    "rollout_len",
    "sigma",
    "calibration",
    "temperature",
)
_MEASURES = {
    "apcs": "APCS",
    "min_cosine": "least cosine",
    "n_eff": "N_eff",
    "n_measured": "of",
    "similarity": "move cosine",
    "angle": "angle",
    "curvature": "curvature",
}
_STAGES = {
    "rebuild": "the context was read",
    "calibration": "the strength of the injection was measured",
    "rollouts": "the candidates were tried",
    "texts": "texts were written to be compared",
}
_BARS = "▁▂▃▄▅▆▇█"


# ---- one line ----


def summary(replies: Sequence[Reply]) -> str:
    """Length, cost and end of one reply, or of several that were written together; the speed is
    that of writing."""
    counts = sum((reply.counts for reply in replies), Counts())
    seconds = max(reply.seconds for reply in replies)
    reading = max(reply.reading_seconds for reply in replies)
    tokens = sum(reply.n_tokens for reply in replies)
    finishes = collections.Counter(map(_finish, replies))
    several = len(replies) > 1
    parts = [
        f"{replies[0].method}{f' x {len(replies)}' if several else ''}: "
        + plural(sum(len(reply.steps) for reply in replies), "chunk"),
        plural(tokens, "token"),
        forward_tokens(counts),
        f"{seconds:.2f} s",
        f"{tokens / (seconds - reading or 1):.1f} tokens/s",
        *(f"{finish} x {n}" if several else finish for finish, n in finishes.items()),
        seeds(replies),
    ]
    if not any(reply.text.strip() for reply in replies):
        parts.append("no answer")
    if n_plain := sum(reply.n_plain for reply in replies):
        parts.append(f"{n_plain} of the boundaries written plainly")
    if not several:
        parts += _reasons(replies[0])
    return ", ".join(parts)


def _reasons(reply: Reply) -> list[str]:
    """Returns how a vote came to its answer."""
    figures = reply.figures
    if "share" not in figures:
        return []
    if not figures["answers"]:
        return [plural(int(figures["samples"]), "sample"), "no answers that can be compared"]
    dropped = f", {figures['dropped']:.0f} of them dropped early" if figures["dropped"] else ""
    return [
        f"{plural(int(figures['samples']), 'sample')}{dropped}",
        f"{100 * figures['share']:.0f}% of the votes",
        "likely enough" if figures["sure"] else "not likely enough",
    ]


def _finish(reply: Reply) -> str:
    """``length by max_tokens, thinking closed by max_tokens``."""
    by = f" by {reply.limit}" if reply.limit else ""
    closed = f", thinking closed by {reply.closed_by}" if reply.closed_by else ""
    return f"{reply.finish}{by}{closed}"


_ENDS = {"loop": "ended, since it repeated itself", "cancelled": "stopped"}
_AGAINST_LOOPS = "dry_multiplier 0.8 makes that rarer"
_FULL = "cut, since the context is full"


def cost_line(replies: Sequence[Reply], width: int = 10_000) -> str:
    """Returns tokens, times, speed and seed of replies in at most `width` characters: ``8 tokens,
    1.9 s (0.6 s reading), 12 tokens/s, seed 7``. `summary` has the rest."""
    seconds = max(reply.seconds for reply in replies)
    reading = max(reply.reading_seconds for reply in replies)
    tokens = sum(reply.n_tokens for reply in replies)
    ends = collections.Counter(end for end in map(_end, replies) if end)
    n = len(replies)
    read = f" ({reading:.1f} s reading)" if reading >= _LEAST_READING else ""
    facts = [
        *([(2, f"{n} replies")] if n > 1 else []),
        (1, plural(tokens, "token")),
        (0, f"{seconds:.1f} s{read}"),
        *([(2, f"{per_second(tokens, seconds - reading)} tokens/s")] if tokens > 1 else []),
        *((0, f"{times} {end}" if n > 1 else end) for end, times in ends.items()),
        *([(1, _AGAINST_LOOPS)] if _ENDS["loop"] in ends else []),
    ]
    if not any(reply.text.strip() for reply in replies):
        facts.append((0, "no answer"))
    facts.append((3, seeds(replies)))
    return fitted(facts, width, ", ")


_LEAST_READING = 0.05  # seconds that are worth a word


def _end(reply: Reply) -> str:
    """Returns the reason why a reply ended, in a few words; empty for one whose text came to its
    end."""
    if reply.finish == "stop":
        return ""
    if reply.filled_context:
        return _FULL
    return _ENDS.get(reply.finish, f"cut by {reply.limit}" if reply.limit else reply.finish)


def seeds(replies: Sequence[Reply]) -> str:
    """``seed 7``, or ``seeds from 7`` for replies that were written together."""
    return f"seed {replies[0].seed}" if len(replies) == 1 else f"seeds from {replies[0].seed}"


def fitted(facts: Sequence[tuple[int, str]], width: int, comma: str = " · ") -> str:
    """Facts in one line of `width` characters, without those of the highest ranks if there are too
    many; the fact of the lowest rank stays."""
    facts = list(facts)
    while len(line := comma.join(text for _, text in facts)) > width and len(facts) > 1:
        facts.remove(max(facts, key=lambda fact: fact[0]))
    return line


def forward_tokens(counts: Counts) -> str:
    """``131 forward tokens (query 20, chunk 111), 4000 reused, 7 refused``, where the last two are
    not part of the 131."""
    kinds = ", ".join(f"{kind} {n}" for kind, n in counts.decoded.items() if n)
    reused = f", {counts.reused} reused" if counts.reused else ""
    refused = f", {counts.refused} refused" if counts.refused else ""
    return f"{plural(counts.total, 'forward token')} ({kinds}){reused}{refused}"


def score_bars(scores: Iterable[float]) -> str:
    """``▃▅█▁``: a bar for each candidate, from the lowest score to the highest."""
    scores = list(map(float, scores))
    finite = [score for score in scores if math.isfinite(score)] or [0.0]
    low, height = min(finite), (len(_BARS) - 1) / ((max(finite) - min(finite)) or 1)
    return "".join(
        _BARS[round((score - low) * height)] if math.isfinite(score) else _BARS[0]
        for score in scores
    )


def winner(scores: Iterable[float], chosen: int) -> str:
    """``best 2: -1.2345, 0.0213 ahead``: the chosen candidate and its lead over the best other."""
    scores = list(map(float, scores))
    rest = scores[:chosen] + scores[chosen + 1 :]
    lead = f", {scores[chosen] - max(rest):.4f} ahead" if rest else ""
    return f"best {chosen}: {scores[chosen]:.4f}{lead}"


def plural(n: int, noun: str) -> str:
    """``1 token``, ``2 tokens``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


# ---- the table ----


def table(trace: Trace, width: int = 100) -> Iterator[str]:
    """Lines of a whole run: its header, every boundary, the totals and the answer.

    Rollouts are shortened to fit `width` characters.
    """
    return map(printable, _table(trace, width))


def _table(trace: Trace, width: int) -> Iterator[str]:
    header, footer = trace.header, trace.footer
    versions = ", ".join(f"{name} {version}" for name, version in header.versions.items())
    n_chunks = plural(len(trace.boundaries), "chunk")
    yield f"{header.method}, seed {header.seed}, {header.model.get('path')}"
    yield f"sha256 {header.model.get('sha256')}; {versions}"
    yield ", ".join(f"{name} {header.config.get(name)}" for name in _HEADER_OPTIONS)
    yield f"prompt: {header.prompt_tokens} tokens: {_shortened(header.prompt, width - 30)}"
    yield from boundary_table(trace.boundaries, width)
    yield ""
    if footer is None:
        yield f"incomplete: the run was interrupted after {n_chunks}"
        return
    yield (
        f"{footer.finish} after {n_chunks}: {plural(footer.tokens, 'token')}, "
        f"{footer.seconds:.2f} s, {forward_tokens(footer.counts)}"
    )
    yield from _geometry(trace.geometry)
    yield from printable(footer.text).splitlines()


def boundary_table(boundaries: Iterable[Boundary], width: int = 100) -> Iterator[str]:
    """Lines of each boundary: the candidates with the terms of their scores, the chosen one marked
    with ">"; then the chunk with its cost and its geometry."""
    for boundary in boundaries:
        step = boundary.step
        yield ""
        yield f"chunk {step.index + 1}"
        yield from _chunk(boundary, width)
        finish = f", ends: {step.finish}" if step.finish else ""
        yield f"  {plural(len(step.tokens), 'token')}, {_seconds(step.seconds)}{finish}"
        yield f"  {forward_tokens(step.counts)}, {step.cells} cells"
        if step.figures:
            yield "  " + ", ".join(f"{name} {value:.4g}" for name, value in step.figures.items())
        if measures := _measures(dataclasses.asdict(boundary.geometry)):
            yield f"  {measures}"


def unfinished_table(boundary: Boundary, stage: str, width: int = 100) -> Iterator[str]:
    """Lines of a chunk that was stopped in a stage of `Progress`."""
    step = boundary.step
    yield ""
    yield f"chunk {step.index + 1}, stopped while {_STAGES.get(stage, 'it was written')}"
    yield from _chunk(boundary, width)
    yield f"  {plural(len(step.tokens), 'token')}"


def _chunk(boundary: Boundary, width: int) -> Iterator[str]:
    """Lines of the candidates, and of the text of the chunk."""
    if boundary.step.candidates is not None:
        yield from _candidates(boundary, boundary.step.candidates, width)
    for line in printable(boundary.text).splitlines():
        yield f"  | {line}"


def _candidates(boundary: Boundary, candidates: Candidates, width: int) -> Iterator[str]:
    scores, owners = candidates.scores, candidates.owners.tolist()
    yield "    candidate        V    P_bum    P_uni    total   cosine  rollout"
    for k, total in enumerate(scores.total):
        mark = ">" if k == scores.chosen else " "
        terms = (scores.foresight[k], scores.bumpiness[k], scores.uniformity[k], total)
        cosine = "       -" if boundary.cosines is None else f"{boundary.cosines[k]:8.4f}"
        rollout = _shortened(boundary.rollouts[owners.index(k)], width - 64)
        yield f"  {mark} {k:9d} {' '.join(f'{term:8.4f}' for term in terms)} {cosine}  {rollout}"
    if len(scores.total) > 1:
        spread = ", ".join(f"{term} {value:.4f}" for term, value in scores.spread().items())
        yield f"  spread over the candidates: {spread}"
        second = int(scores.best(2)[1])
        yield f"  candidate {scores.chosen} won by {_margin(scores, second)}"


def _margin(scores: Scores, second: int) -> str:
    """The winner's lead over the second, and what each term adds to it."""
    lead = scores.total[scores.chosen] - scores.total[second]
    text = f"{lead:.4f} over candidate {second}"
    weights = scores.weights
    terms = (
        ("V", weights.foresight_weight, scores.foresight),
        ("P_bum", -weights.lambda_b, scores.bumpiness),
        ("P_uni", -weights.lambda_u, scores.uniformity),
    )
    parts = (f"{n} {w * (t[scores.chosen] - t[second]):+.4f}" for n, w, t in terms)
    return f"{text}: {', '.join(parts)}"


def _geometry(run: Diagnostics) -> Iterator[str]:
    if run.means:
        yield f"geometry, means over the run: {_measures(dict(run.means))}"
    if run.cycling is not None:
        yield f"  {run.cycling:.0%} of the anchors hardly moved (cosine over {run.CYCLING})"


def _measures(values: dict[str, float | None]) -> str:
    """``APCS 0.8123, least cosine 0.7900, N_eff 5.1000 of 8, move cosine 0.9312``."""
    parts = [
        f"{_MEASURES[name]} {value:{'.4g' if name == 'n_measured' else '.4f'}}"
        for name, value in values.items()
        if value is not None
    ]
    return ", ".join(parts).replace(", of ", " of ")


def _seconds(seconds: Seconds) -> str:
    """``0.06 s (rebuild 0.01, chunk 0.03)``; parts under 5 ms are left out."""
    parts = ", ".join(f"{k} {v:.2f}" for k, v in dataclasses.asdict(seconds).items() if v >= 0.005)
    return f"{seconds.total:.2f} s" + (f" ({parts})" if parts else "")


def _shortened(text: str, width: int) -> str:
    text, width = printable_line(text), max(width, 10)
    return text if len(text) <= width else text[: width - 1] + "…"
