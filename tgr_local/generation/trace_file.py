"""One run of a method as records, and trace files: one record in a line of JSON.

A file holds one or more runs, one after another. A run is a `Header` line (all that it depends on),
a `Boundary` line for each step, written as soon as the step is finished, and a `Footer` line (the
reply and its cost); an interrupted run has no footer. The fields of a line are those of its record.
Replies and their events come in; nothing here renders text or knows a terminal.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from tgr_local.options.config import SearchConfig
from tgr_local.search.diagnostics import Diagnostics as Diagnostics
from tgr_local.search.diagnostics import Geometry, measure, summary
from tgr_local.search.steps import Counts, Step
from tgr_local.system.errors import TgrError
from tgr_local.system.files import naming
from tgr_local.system.json_checks import require_type
from tgr_local.system.json_values import from_json_value, to_json_value
from tgr_local.system.versions import versions

if TYPE_CHECKING:
    from tgr_local.engine import Engine
    from tgr_local.generation.reply import Event, Reply

FORMAT = "tgr-trace 1"
_FILE_START = b'{"kind": "header"'


@dataclass(frozen=True)
class Header:
    """All that a run depends on."""

    format: str
    method: str
    seed: int
    prompt: str
    """The prompt after the chat template, control tokens included."""
    prompt_tokens: int
    config: dict[str, Any]
    engine: dict[str, Any]
    model: dict[str, Any]
    """path, sha256, description."""
    versions: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Boundary:
    """A step with its texts, which need the engine's vocabulary, and its geometry."""

    step: Step
    text: str
    """The chunk; a character that the end of the chunk cuts in two is U+FFFD."""
    rollouts: tuple[str, ...]
    """The text of each rollout, in the order of ``step.candidates.tokens``."""
    cosines: NDArray[np.float64] | None
    """[K] aᵀz of each anchor with z_{t-1}; None without candidates."""
    geometry: Geometry


@dataclass(frozen=True)
class Footer:
    """The reply and its cost."""

    text: str
    thinking: str
    finish: str
    tokens: int
    counts: Counts
    seconds: float
    limit: str | None = None
    closed_by: str | None = None


@dataclass(frozen=True, eq=False)
class Trace:
    """One run; an interrupted one has no footer."""

    header: Header
    boundaries: list[Boundary]
    footer: Footer | None

    @property
    def geometry(self) -> Diagnostics:
        """The measures of the run."""
        return summary([boundary.geometry for boundary in self.boundaries])


# ---- records of a run ----


def make_header(engine: Engine, prompt: list[int], config: SearchConfig, method: str) -> Header:
    """The header of a run on `prompt`, token ids. The first call hashes the model file."""
    return Header(
        format=FORMAT,
        method=method,
        seed=config.seed,
        prompt=engine.detokenize(prompt, special=True).decode("utf-8", "replace"),
        prompt_tokens=len(prompt),
        config=to_json_value(config),
        engine=to_json_value(engine.config),
        model={
            "path": str(engine.path),
            "sha256": engine.model_hash,
            "description": engine.description,
        },
        versions=versions(),
    )


def make_boundaries(engine: Engine, steps: Sequence[Step]) -> list[Boundary]:
    """A boundary for each step of a run; see `make_boundary`."""
    pairs = zip(steps, [None, *steps], strict=False)
    return [make_boundary(engine, step, previous) for step, previous in pairs]


def make_boundary(engine: Engine, step: Step, previous: Step | None) -> Boundary:
    """A step with its texts, its cosines, and the geometry of its candidates and of the turn from
    `previous`, the step before."""

    def text(tokens: NDArray[np.int32]) -> str:
        return engine.detokenize(tokens.tolist()).decode("utf-8", "replace")

    drawn = step.candidates
    cosines = None if drawn is None or step.origin is None else drawn.anchors @ step.origin
    rollouts = tuple(text(tokens) for tokens in drawn.tokens) if drawn else ()
    return Boundary(step, text(step.tokens), rollouts, cosines, measure(step, previous))


def make_footer(reply: Reply) -> Footer:
    return Footer(
        text=reply.text,
        thinking=reply.thinking,
        finish=reply.finish,
        tokens=reply.n_tokens,
        counts=reply.counts,
        seconds=reply.seconds,
        limit=reply.limit,
        closed_by=reply.closed_by,
    )


def make_trace(engine: Engine, header: Header, reply: Reply) -> Trace:
    """A finished run. `header` may be that of another reply to the same prompt: the seed is taken
    from `reply`."""
    boundaries = make_boundaries(engine, reply.steps)
    return Trace(_with_seed(header, reply.seed), boundaries, make_footer(reply))


def result(header: Header, reply: Reply) -> dict[str, Any]:
    """A run without its steps as one JSON object: footer, totals, the numbers that the method
    reports (``figures``) and header."""
    fields = dataclasses.asdict(make_footer(reply)) | {
        "tokens_per_second": reply.tokens_per_second,
        "chunks": len(reply.steps),
        "plain_boundaries": reply.n_plain,
        "counts": dataclasses.asdict(reply.counts) | {"total": reply.counts.total},
        "figures": reply.figures,
    }
    if reply.checked:
        fields["checked"] = dataclasses.asdict(reply.checked)
    fields |= dataclasses.asdict(_with_seed(header, reply.seed))
    del fields["format"]
    return fields


def _with_seed(header: Header, seed: int) -> Header:
    return dataclasses.replace(header, seed=seed, config=header.config | {"seed": seed})


# ---- files ----


@contextlib.contextmanager
def open_file(path: str) -> Iterator[TextIO]:
    """Opens a file for traces. Its old content stays until `clear`.

    TgrError if the file holds something else than traces, OSError as `open` raises it.
    """
    if os.path.isfile(path) and os.path.getsize(path):
        with open(path, "rb") as old:
            if old.read(len(_FILE_START)) != _FILE_START:
                raise TgrError(f"{path} exists and is not a trace; name another file")
    file = open(path, "a", encoding="utf-8")  # noqa: SIM115
    try:
        yield file
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            file.close()
        raise
    file.close()


def clear(file: TextIO) -> None:
    """Empties an open file; call it before the first run is written."""
    with contextlib.suppress(OSError):  # a pipe or a device has no content
        file.truncate(0)


def write(file: TextIO, trace: Trace, vectors: bool = False) -> None:
    """Appends a run to an open file; with `vectors`, its anchors and states in full."""
    for record in (trace.header, *trace.boundaries, trace.footer):
        if record is not None:
            _write_line(file, record, vectors)


def write_events(
    events: Iterable[Event], file: TextIO, engine: Engine, header: Header, vectors: bool = False
) -> Iterator[Event]:
    """Passes the events of a reply on and writes each step to `file` as it passes, so that an
    interrupted run is in the file too. The first event clears the file: a run that fails before it
    leaves the old content."""
    from tgr_local.generation import Reply

    previous = None
    for number, event in enumerate(events):
        if number == 0:
            clear(file)
            _write_line(file, header, vectors)
        if isinstance(event, Step):
            boundary = make_boundary(engine, event, previous)
            _write_line(file, boundary, vectors)
            previous = event
        elif isinstance(event, Reply):
            _write_line(file, make_footer(event), vectors)
        yield event


def _write_line(file: TextIO, record: Header | Boundary | Footer, vectors: bool) -> None:
    line = {"kind": type(record).__name__.lower(), **to_json_value(record, vectors)}
    with naming(getattr(file, "name", "the trace")):
        file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        file.flush()


def read(path: str | os.PathLike[str]) -> tuple[list[Trace], TgrError | None]:
    """The runs in a file up to the first damaged line, such as the last line of a killed run, and
    the error that names this line. OSError as `open` raises it."""
    traces: list[Trace] = []
    with open(path, "rb") as file:
        if not file.peek(4).removeprefix(codecs.BOM_UTF8).startswith(b"{"):
            return traces, TgrError(f"{path} is not a trace: line 1 is not a JSON object")
        for number, line in enumerate(file, 1):
            try:
                _add_line(traces, json.loads(line))
            except KeyError as error:
                return traces, TgrError(f"{path} line {number} is damaged: it has no {error}")
            except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
                return traces, TgrError(f"{path} line {number} is damaged: {error}")
    return traces, None


def _add_line(traces: list[Trace], line: Any) -> None:
    """Adds a line to the last run, or begins a new one with a header."""
    kind = require_type(dict, line)["kind"]
    if kind == "header":
        if line["format"] != FORMAT:
            raise ValueError(f"its format is {line['format']!r:.40}, but must be {FORMAT!r}")
        traces.append(Trace(from_json_value(Header, line), [], None))
    elif not traces or traces[-1].footer is not None:
        raise ValueError(f"its kind is {kind!r:.40}, but must be header")
    elif kind == "boundary":
        boundary: Boundary = from_json_value(Boundary, line)
        _check_shapes(boundary)
        traces[-1].boundaries.append(boundary)
    elif kind == "footer":
        traces[-1] = dataclasses.replace(traces[-1], footer=from_json_value(Footer, line))
    else:
        raise ValueError(f"its kind is {kind!r:.40}, but must be header, boundary or footer")


def _check_shapes(boundary: Boundary) -> None:
    """ValueError if the numbers of candidates, rollouts, owners and cosines do not match."""
    candidates = boundary.step.candidates
    if candidates is None:
        return
    scores = candidates.scores
    terms = (scores.foresight, scores.bumpiness, scores.uniformity, scores.total)
    k, n_rollouts = len(scores.total), len(boundary.rollouts)
    same = all(term.shape == (k,) for term in terms) and len(candidates.tokens) == n_rollouts
    if not same or not 0 <= scores.chosen < k:
        raise ValueError("its scores and rollouts do not match")
    owners = candidates.owners.tolist()
    if len(owners) != n_rollouts or set(owners) != set(range(k)):
        raise ValueError("its rollouts and their owners do not match")
    if boundary.cosines is not None and boundary.cosines.shape != (k,):
        raise ValueError(f"it has {boundary.cosines.size} cosines for {k} candidates")
