"""A run on paper: each step of a reply as one JSON line, the way back, and a table for people.

A trace file holds one or more runs, one after another. A run is a `Header` line (what was asked, of
which model, with which method and options), a `Boundary` line for each step, written when it is
finished, and a `Footer` line (what came out); a run that was interrupted has no footer. The fields
of a line are those of its record. It knows nothing of terminals.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from tgr_local.console.sanitize import printable, printable_line
from tgr_local.errors import TgrError
from tgr_local.options.config import SearchConfig
from tgr_local.search.diagnostics import CYCLING, Geometry, measure
from tgr_local.search.diagnostics import summary as geometry_summary
from tgr_local.search.scoring import Scores
from tgr_local.search.steps import Candidates, Counts, Seconds, Step
from tgr_local.system.versions import versions
from tgr_local.trace.json_values import parse, plain, typed

if TYPE_CHECKING:
    from tgr_local.engine import Engine
    from tgr_local.generation import Event, Reply

FORMAT = "tgr-trace 1"
_BEGIN = b'{"kind": "header"'


@dataclass(frozen=True)
class Header:
    """All that a run depends on."""

    format: str
    method: str
    seed: int
    prompt: str
    """After the chat template, control tokens included."""
    prompt_tokens: int
    config: dict[str, Any]
    engine: dict[str, Any]
    model: dict[str, Any]
    """path, sha256, description."""
    versions: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Boundary:
    """A step together with what only the engine could tell of it."""

    step: Step
    text: str
    """The chunk; a character cut by the end of the chunk reads U+FFFD."""
    rollouts: tuple[str, ...]
    """The text of each rollout, in the order of its tokens."""
    cosines: NDArray[np.float64] | None
    """aᵀz [K] to the anchor that the candidates were drawn around; None without candidates."""
    geometry: Geometry


@dataclass(frozen=True)
class Footer:
    """What came out."""

    text: str
    thinking: str
    finish: str
    tokens: int
    counts: Counts
    seconds: float


@dataclass(frozen=True, eq=False)
class Trace:
    """One run."""

    header: Header
    boundaries: list[Boundary]
    footer: Footer | None


def header(engine: Engine, prompt: list[int], config: SearchConfig, method: str) -> Header:
    """The first record of a run; `prompt` is its tokens. Hashes the model file the first time."""
    return Header(
        format=FORMAT,
        method=method,
        seed=config.seed,
        prompt=engine.detokenize(prompt, special=True).decode("utf-8", "replace"),
        prompt_tokens=len(prompt),
        config=plain(config),
        engine=plain(engine.config),
        model={
            "path": str(engine.path),
            "sha256": engine.model_hash,
            "description": engine.description,
        },
        versions=versions(),
    )


def boundaries(engine: Engine, steps: Sequence[Step], top: int = 0) -> list[Boundary]:
    """All steps of a run; see `boundary`."""
    pairs = zip(steps, [None, *steps], strict=False)
    return [boundary(engine, step, before, top) for step, before in pairs]


def boundary(engine: Engine, step: Step, before: Step | None, top: int = 0) -> Boundary:
    """A step with its texts, its cosines and the geometry of its `top` candidates, 0 = all, and of
    the turn from the step before it."""

    def text(tokens: NDArray[np.int32]) -> str:
        return engine.detokenize(tokens.tolist()).decode("utf-8", "replace")

    found = step.candidates
    cosines = None if found is None or step.origin is None else found.anchors @ step.origin
    rollouts = tuple(text(tokens) for tokens in found.tokens) if found else ()
    return Boundary(step, text(step.tokens), rollouts, cosines, measure(step, before, top))


def footer(reply: Reply) -> Footer:
    """The last record of a run."""
    return Footer(
        reply.text, reply.thinking, reply.finish, reply.n_tokens, reply.counts, reply.seconds
    )


def of_reply(engine: Engine, first: Header, reply: Reply) -> Trace:
    """A finished run; `first` is its header, or that of another trajectory of the same question."""
    own = dataclasses.replace(first, seed=reply.seed, config=first.config | {"seed": reply.seed})
    top = first.config["geometry_top"]
    return Trace(own, boundaries(engine, reply.steps, top), footer(reply))


def result(first: Header, reply: Reply) -> dict[str, Any]:
    """A run without its steps as one JSON object: what came out and all that it depends on."""
    about = {"tokens_per_second": reply.tokens_per_second, "chunks": len(reply.steps)}
    total = {"counts": dataclasses.asdict(reply.counts) | {"total": reply.counts.total}}
    own = dataclasses.asdict(first)
    own |= {"seed": reply.seed, "config": first.config | {"seed": reply.seed}}
    del own["format"]
    return dataclasses.asdict(footer(reply)) | about | total | own


def recorded(
    events: Iterable[Event], file: TextIO, engine: Engine, first: Header, vectors: bool = False
) -> Iterator[Event]:
    """The same events, each step written to `file` as it passes, so that an interrupt keeps it.
    What the file held goes with the first event: a run that is refused leaves it alone."""
    from tgr_local.generation import Reply

    before = None
    for number, event in enumerate(events):
        if number == 0:
            clear(file)
            _put(file, first, vectors)
        if isinstance(event, Step):
            _put(file, boundary(engine, event, before, first.config["geometry_top"]), vectors)
            before = event
        elif isinstance(event, Reply):
            _put(file, footer(event), vectors)
        yield event


@contextlib.contextmanager
def opened(path: str) -> Iterator[TextIO]:
    """A file for traces; what it holds stays there until `clear`. TgrError if that is something
    else, OSError as `open` raises it."""
    if os.path.isfile(path) and os.path.getsize(path):
        with open(path, "rb") as old:
            if old.read(len(_BEGIN)) != _BEGIN:
                raise TgrError(f"{path} is there and no trace; name another file")
    file = open(path, "a", encoding="utf-8")  # noqa: SIM115
    try:
        yield file
    except BaseException:
        with contextlib.suppress(OSError):  # what could not be written is told already
            file.close()
        raise
    file.close()


def clear(file: TextIO) -> None:
    """Empties an open file before the first run is written."""
    with contextlib.suppress(OSError):  # a pipe or a device, which holds nothing
        file.truncate(0)


def write(file: TextIO, trace: Trace, vectors: bool = False) -> None:
    """Appends a run to an open file; with `vectors`, its anchors and states in full."""
    for record in (trace.header, *trace.boundaries, trace.footer):
        if record is not None:
            _put(file, record, vectors)


def read(path: str | os.PathLike[str]) -> list[Trace]:
    """The runs in a file, at least one.

    TgrError names the line that is not what a trace has there; OSError as `open` raises it.
    """
    runs, damage = read_whole(path)
    if damage:
        raise damage
    return runs


def read_whole(path: str | os.PathLike[str]) -> tuple[list[Trace], TgrError | None]:
    """The runs in a file up to the first line that is not what a trace has there, such as the last
    one of a killed run, and what `read` says of it."""
    runs: list[Trace] = []
    with open(path, "rb") as file:
        if not file.peek(1).startswith(b"{"):
            return runs, TgrError(f"{path} is not a trace: line 1 is not a JSON object")
        for number, line in enumerate(file, 1):
            try:
                _add(runs, json.loads(line))
            except KeyError as error:
                return runs, TgrError(f"{path} line {number} is damaged: it has no {error}")
            except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
                return runs, TgrError(f"{path} line {number} is damaged: {error}")
    return runs, None


def _put(file: TextIO, record: Header | Boundary | Footer, vectors: bool) -> None:
    line = {"kind": type(record).__name__.lower(), **plain(record, vectors)}
    try:
        file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        file.flush()
    except OSError as error:
        error.filename = file.name
        raise


def _add(runs: list[Trace], line: Any) -> None:
    """Adds a line to the run that is being read."""
    kind = typed(dict, line)["kind"]
    if kind == "header":
        if line["format"] != FORMAT:
            raise ValueError(f"its format is {line['format']!r:.40}, but must be {FORMAT!r}")
        runs.append(Trace(parse(Header, line), [], None))
    elif not runs or runs[-1].footer is not None:
        raise ValueError(f"its kind is {kind!r:.40}, but a header must be here")
    elif kind == "boundary":
        boundary: Boundary = parse(Boundary, line)
        _check(boundary)
        runs[-1].boundaries.append(boundary)
    elif kind == "footer":
        runs[-1] = dataclasses.replace(runs[-1], footer=parse(Footer, line))
    else:
        raise ValueError(f"its kind is {kind!r:.40}, but must be header, boundary or footer")


def _check(boundary: Boundary) -> None:
    """What types cannot say: that the arrays of a boundary belong together."""
    found = boundary.step.candidates
    if found is None:
        return
    scores = found.scores
    terms = (scores.foresight, scores.bumpiness, scores.uniformity, scores.total)
    k, n_rollouts = len(scores.total), len(boundary.rollouts)
    same = all(term.shape == (k,) for term in terms) and len(found.tokens) == n_rollouts
    if not same or not 0 <= scores.chosen < k:
        raise ValueError("its scores and rollouts do not belong together")
    if len(found.owners) != n_rollouts or set(found.owners.tolist()) != set(range(k)):
        raise ValueError("its rollouts and their owners do not belong together")
    if boundary.cosines is not None and boundary.cosines.shape != (k,):
        raise ValueError(f"it has {boundary.cosines.size} cosines for {k} candidates")


# ---- for people ----


def forward_tokens(counts: Counts) -> str:
    """``131 forward tokens (query 20, chunk 111)``."""
    kinds = dataclasses.asdict(counts).items()
    return (
        f"{_some(counts.total, 'forward token')} ({', '.join(f'{k} {n}' for k, n in kinds if n)})"
    )


def summary(replies: Sequence[Reply]) -> str:
    """One line on what one reply, or several made together, came to and cost."""
    counts = sum((reply.counts for reply in replies), Counts())
    seconds = max(reply.seconds for reply in replies)
    tokens = sum(reply.n_tokens for reply in replies)
    ends = collections.Counter(reply.finish for reply in replies)
    many = f" x {len(replies)}" if len(replies) > 1 else ""
    return (
        f"{replies[0].method}{many}: {_some(sum(len(r.steps) for r in replies), 'chunk')}, "
        f"{_some(tokens, 'token')}, {forward_tokens(counts)}, {seconds:.2f} s, "
        f"{tokens / (seconds or 1):.1f} tokens/s, "
        + ", ".join(f"{end} x {n}" if many else end for end, n in ends.items())
        + (", no answer" if not any(reply.text.strip() for reply in replies) else "")
    )


def render(trace: Trace, width: int = 100) -> Iterator[str]:
    """Lines of text: every boundary, then the totals. Rollouts are cut to fit `width`."""
    return map(printable, _rendered(trace, width))


def _rendered(trace: Trace, width: int) -> Iterator[str]:
    about = trace.header
    used = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    yield f"{about.method}, seed {about.seed}, {about.model.get('path')}"
    yield f"sha256 {about.model.get('sha256')}; {used}"
    keys = ("chunk_len", "n_candidates", "rollout_len", "sigma", "relative_strength", "temperature")
    yield ", ".join(f"{key} {about.config.get(key)}" for key in keys)
    yield f"prompt: {about.prompt_tokens} tokens: {_snippet(about.prompt, width - 30)}"
    yield from render_boundaries(trace.boundaries, width)
    yield ""
    out = trace.footer
    if out is None:
        yield f"no end: the run was interrupted after {_some(len(trace.boundaries), 'chunk')}"
        return
    yield (
        f"{out.finish} after {_some(len(trace.boundaries), 'chunk')}: "
        f"{_some(out.tokens, 'token')}, {out.seconds:.2f} s, {forward_tokens(out.counts)}"
    )
    yield from _run_geometry(trace.boundaries)
    yield from printable(out.text).splitlines()


def render_boundaries(boundaries: Iterable[Boundary], width: int = 100) -> Iterator[str]:
    """Each candidate with the terms of its score, the winner marked; the chunk; what it cost."""
    for boundary in boundaries:
        step = boundary.step
        yield ""
        yield f"chunk {step.index + 1}"
        if step.candidates is not None:
            yield from _candidates(boundary, step.candidates, width)
        for line in printable(boundary.text).splitlines():
            yield f"  | {line}"
        ends = f", ends: {step.finish}" if step.finish else ""
        yield f"  {_some(len(step.tokens), 'token')}, {_seconds(step.seconds)}{ends}"
        yield f"  {forward_tokens(step.counts)}, {step.cells} cells"
        if step.figures:
            yield "  " + ", ".join(f"{name} {value:.4g}" for name, value in step.figures.items())
        if measures := _measures(dataclasses.asdict(boundary.geometry)):
            yield f"  {measures}"


def _candidates(boundary: Boundary, found: Candidates, width: int) -> Iterator[str]:
    scores, owners = found.scores, found.owners.tolist()
    yield "    candidate        V    P_bum    P_uni    total   cosine  rollout"
    for k, total in enumerate(scores.total):
        mark = ">" if k == scores.chosen else " "
        terms = (scores.foresight[k], scores.bumpiness[k], scores.uniformity[k], total)
        cosine = "       -" if boundary.cosines is None else f"{boundary.cosines[k]:8.4f}"
        rollout = _snippet(boundary.rollouts[owners.index(k)], width - 64)
        yield f"  {mark} {k:9d} {' '.join(f'{term:8.4f}' for term in terms)} {cosine}  {rollout}"
    if len(scores.total) > 1:
        spread = ", ".join(f"{term} {value:.4f}" for term, value in scores.spread().items())
        yield f"  spread over the candidates: {spread}"
        second = int(scores.best(2)[1])
        yield f"  candidate {scores.chosen} won by {_margin(scores, second)}"


_MEASURES = {
    "apcs": "APCS", "min_cosine": "least cosine", "n_eff": "N_eff", "n_measured": "of",
    "similarity": "step cosine", "angle": "angle", "curvature": "curvature",
}  # fmt: skip


def _measures(values: dict[str, float | None]) -> str:
    """``APCS 0.8123, least cosine 0.7900, N_eff 5.1000 of 8, step cosine 0.9312``."""
    known = {name: value for name, value in values.items() if value is not None}
    parts = [
        f"{_MEASURES[name]} {value:{'.4g' if name == 'n_measured' else '.4f'}}"
        for name, value in known.items()
    ]
    return ", ".join(parts).replace(", of ", " of ")


def _run_geometry(boundaries: list[Boundary]) -> Iterator[str]:
    run = geometry_summary([boundary.geometry for boundary in boundaries])
    if run.means:
        yield f"geometry, means over the run: {_measures(dict(run.means))}"
    if run.cycling is not None:
        yield f"  {run.cycling:.0%} of the steps hardly moved (cosine over {CYCLING})"


def _margin(scores: Scores, second: int) -> str:
    """The winner's lead over the second, and, of terms as they are, what each adds to it."""
    ahead = scores.total[scores.chosen] - scores.total[second]
    text = f"{ahead:.4f} over candidate {second}"
    if scores.normalized:
        return f"{text}; each term is z-scored"
    weights = scores.weights
    parts = (
        ("V", weights.foresight_weight, scores.foresight),
        ("P_bum", -weights.lambda_b, scores.bumpiness),
        ("P_uni", -weights.lambda_u, scores.uniformity),
    )
    adds = (f"{n} {w * (t[scores.chosen] - t[second]):+.4f}" for n, w, t in parts)
    return f"{text}: {', '.join(adds)}"


def _snippet(text: str, width: int) -> str:
    text = printable_line(text)
    return text if len(text) <= max(width, 10) else text[: max(width, 10) - 1] + "…"


def _some(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _seconds(seconds: Seconds) -> str:
    parts = ", ".join(f"{k} {v:.2f}" for k, v in dataclasses.asdict(seconds).items() if v >= 0.005)
    return f"{seconds.total:.2f} s" + (f" ({parts})" if parts else "")
