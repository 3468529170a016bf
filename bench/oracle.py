"""Whether an anchor can help at all: how much success differs between anchors at one boundary.

A boundary is drawn at random in the middle of a `markov` text of each problem. K anchors are drawn
around its state as `tgr-latent` draws them; each steers the next chunk, from where the text goes on
to its end as in `markov`. Every anchor, and no injection, gets n such completions, which the task's
grader grades. So the anchors' chances of success are known, and with them

- the variance of success between anchors beyond binomial noise, and what the best anchor gains;
- how far the choice by V, by -P_bum, by S and by chance stays behind it: the first s tokens of a
  completion are a rollout of s tokens, judged by the other completions of its anchor;
- what the likeliest rollout gains if it goes on, also with a seed for each candidate, and what the
  likeliest of as many rollouts without injection gains;
- the share of each score that the anchor explains, and not the luck of the rollout.

With shared seeds, completion j has the same seeds under every anchor; then equal texts are written
once. --left leaves out boundaries where little is left to decide; --problems names the problems,
such as those that are sometimes right. With --begin the boundary is the beginning of the text. With
--swap the arms are instead the state's own anchor, that of the boundary before, which is another
problem's, none, and none with the whole text as context.

    python bench/oracle.py TASK [--data DATA] [--model FILE] [--out FILE.jsonl]
        [--boundaries 100] [--completions 32] [--kinds shared,independent] [--begin | --swap]
        [--setting divergence=0.01 ...] [--options chunk_len=22,max_chunks=6] [--problems 3,17]
        [--lengths 4,12,29] [--length 12] [--left 48] [--seeds 42,1234,3407] [--parallel 250]
        [--threads 0]
    python bench/oracle.py TASK --report [--out FILE.jsonl]

Prints an estimate of the forward tokens on stderr before it starts, the hours left after every
boundary, and Markdown tables at the end. Every boundary is kept in FILE; the same command goes on
where it was interrupted, and with more --boundaries or --kinds it adds what is missing. --report
prints the tables of a FILE, also an unfinished one or another machine's, without a model.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import oracle_tables as tables
from numpy.typing import NDArray
from oracle_checkpoint import Checkpoint, Record, other_kind, read_lines
from oracle_completions import N_BESIDE, Completions, Start

from tgr_local import Engine, EngineConfig, SearchConfig, load
from tgr_local.generation import TextSplitter, advised, query_tokens
from tgr_local.lab.eval import manifest, systems, tasks
from tgr_local.lab.eval.grader import Grader
from tgr_local.lab.eval.samples import seed_of
from tgr_local.lab.eval.task import Problem
from tgr_local.options.strength_files import Strength
from tgr_local.search import scoring, strength
from tgr_local.search.run import Run
from tgr_local.search.seeds import derived_seed
from tgr_local.search.steering import Steering
from tgr_local.system.errors import TgrError
from tgr_local.system.versions import versions

SETTINGS = {
    "divergence": ("divergence=0.01", "divergence=0.02", "divergence=0.05"),
    "residual": ("relative_strength=0.05", "relative_strength=0.1", "relative_strength=0.2"),
}
"""The settings by the calibration that the model is advised to use."""
KINDS = ("shared", "independent")
N_SWAPPED = 4  # arms with --swap
INJECTION = {"divergence", "relative_strength", "calibration", "eta", "rank", "injection_seed"}
WEIGHTS = ("foresight_weight", "lambda_b", "lambda_u")  # of the score, which the tables compute
REPORTED = {"model", "versions", "options", "settings", "lengths", "swap"}  # of the first line
MIDDLE = 1 << 32  # the purpose of the seed that draws a boundary


# --- one boundary ---


@dataclass
class Experiment:
    """What all boundaries share."""

    engine: Engine
    grader: Grader
    config: SearchConfig
    settings: Sequence[systems.System]
    options: argparse.Namespace

    def boundary(
        self, number: int, problem: Problem, kinds: Sequence[str], donor: Record | None
    ) -> Iterator[Record]:
        """The records of one boundary: one for each kind of seeds and each setting. One without a
        setting has the state; it is alone where the text has no boundary within."""
        options, seeds = self.options, self.options.seeds
        seed = seed_of(seeds[number % len(seeds)], problem.task, problem.id, 0)
        config = dataclasses.replace(self.config, seed=seed)
        raw = not self.engine.chat_template
        prompt = problem.raw if raw else problem.messages
        query = query_tokens(self.engine, prompt, config, raw=raw)
        run = Run(self.engine, query, config)
        c = Completions(run, options.parallel, options.lengths)
        with c:
            walk = c.walk(options.begin)
            if not options.begin:
                walk = [place for place in walk if len(c.generated) - place[0] >= options.left]
            where: Record = {"number": number, "problem": problem.id}
            if not walk:
                yield where | {"state": None}
                return
            rng = np.random.default_rng(derived_seed(seed, MIDDLE))
            drawn = int(rng.integers(len(walk)))
            n_tokens, z = walk[drawn]
            index = drawn + int(not options.begin)
            where |= {"chunk": index}
            c.return_to(index, n_tokens)
            if "state" in kinds:
                yield where | {"state": z.tolist()}
            for kind in kinds:
                if kind == "swap" and donor is not None:
                    yield from self._swapped(c, problem, z, np.array(donor["state"]), where)
                elif kind in KINDS:
                    yield from self._compared(c, problem, z, kind, where)

    def _compared(
        self, c: Completions, problem: Problem, z: NDArray[np.float64], kind: str, where: Record
    ) -> Iterator[Record]:
        n_before, begun = self.engine.stats().n_positions, time.monotonic()
        n, anchors = self.options.completions, Steering(c).propose(z, c.config.n_candidates)
        plain = c.config
        starts: list[Start] = []
        for number, setting in enumerate(self.settings):
            c.config = setting.resolve(plain, self.engine.n_embd)
            rows = [*Steering(c).injections(anchors), None]
            starts += c.steered(
                [
                    (injection, (j,) if kind == "shared" else (j, k + 1, number + 1))
                    for k, injection in enumerate(rows)
                    for j in range(n)
                ]
            )
        c.config = plain
        success = self._graded(c, problem, c.texts(starts))
        per = (len(anchors) + 1) * n
        cost = {
            "tokens": self.engine.stats().n_positions - n_before,
            "seconds": round(time.monotonic() - begun, 2),
        }
        for i, setting in enumerate(self.settings):
            mine = slice(i * per, (i + 1) * per)
            terms = np.stack([s.terms for s in starts[mine]]).reshape(-1, n, 2, len(c.lengths))
            yield where | {
                "kind": kind,
                "setting": setting.name,
                "success": _bits(success[mine], n),
                "same": _same(starts[mine], n),
                "V": _rounded(terms[:, :, 0].transpose(2, 0, 1)),
                "P_bum": _rounded(terms[:, :, 1].transpose(2, 0, 1)),
                "P_uni": _rounded(scoring.uniformity(anchors, z, plain.delta)),
                **(cost if i == 0 else {"tokens": 0, "seconds": 0.0}),
            }

    def _swapped(
        self, c: Completions, problem: Problem, z: NDArray[np.float64],
        foreign: NDArray[np.float64], where: Record,
    ) -> Iterator[Record]:  # fmt: skip
        n_before, begun = self.engine.stats().n_positions, time.monotonic()
        keys, plain = [(j,) for j in range(self.options.completions)], c.config
        plain_texts = c.texts(c.steered([(None, key) for key in keys])) + c.without_reset(keys)
        for setting in self.settings:
            c.config = setting.resolve(plain, self.engine.n_embd)
            injections = Steering(c).injections(np.stack([z, foreign]))
            starts = c.steered([(injection, key) for injection in injections for key in keys])
            c.config = plain
            success = self._graded(c, problem, c.texts(starts) + plain_texts)
            now = self.engine.stats().n_positions, time.monotonic()
            yield where | {
                "kind": "swap",
                "setting": setting.name,
                "success": _bits(success, len(keys)),
                "tokens": now[0] - n_before,
                "seconds": round(now[1] - begun, 2),
            }
            n_before, begun = now

    def _graded(self, c: Completions, problem: Problem, texts: list[list[int]]) -> list[bool]:
        """Whether the reply of each text is right. TgrError where the grader has no grade."""
        waiting = {}
        replies = []
        for tokens in texts:
            splitter = TextSplitter(self.engine, c.run.query, c.config.stop)
            splitter.feed(tokens)
            splitter.end()
            replies.append(splitter.text)
        for reply in set(replies):
            waiting[reply] = self.grader.submit(problem, reply)
        grades = {reply: future.result() for reply, future in waiting.items()}
        for grade in grades.values():
            if grade.correct is None:
                raise TgrError(f"{problem.task} {problem.id} cannot be graded: {grade.detail}")
        return [bool(grades[reply].correct) for reply in replies]


def _bits(success: Sequence[bool], n: int) -> list[str]:
    """A text of 0 and 1 for each arm."""
    rows = np.array(success).reshape(-1, n)
    return ["".join("01"[int(flag)] for flag in row) for row in rows]


def _same(starts: Sequence[Start], n: int) -> list[float]:
    """For each anchor the share of chunks that have the tokens of the one without injection."""
    rows = [[start.tokens for start in starts[i : i + n]] for i in range(0, len(starts), n)]
    equal = np.array([[a == b for a, b in zip(row, rows[-1], strict=True)] for row in rows[:-1]])
    return [float(share) for share in equal.mean(axis=1)]


def _rounded(values: NDArray[np.float64]) -> Any:
    if values.ndim:
        return [_rounded(value) for value in values]
    return None if np.isnan(values) else float(f"{values:.5g}")


# --- the run ---


def run(experiment: Experiment, problems: Sequence[Problem], checkpoint: Checkpoint) -> None:
    """Makes the records of as many boundaries as asked for, or as the problems have."""
    options, donor = experiment.options, None
    names = [setting.name for setting in experiment.settings]
    n_done = n_new = spent = 0
    begun = time.monotonic()
    for number, problem in enumerate(problems):
        if n_done == options.boundaries:
            return
        state = checkpoint.state(number)
        if state is not None and state["state"] is None:
            continue
        swaps = donor is not None or not options.swap
        kinds = checkpoint.missing(number, options.kinds if swaps else [], names)
        if kinds:
            n_before = experiment.engine.stats().n_positions
            checkpoint.add(list(experiment.boundary(number, problem, kinds, donor)))
            spent += experiment.engine.stats().n_positions - n_before
        donor = checkpoint.state(number)
        if donor is None or donor["state"] is None:
            donor = None
            continue
        n_done += int(swaps)
        if kinds:
            n_new += int(swaps)
            took = time.monotonic() - begun
            seconds_left = (options.boundaries - n_done) * took / max(1, n_new)
            print(
                f"boundary {n_done} of {options.boundaries}: {spent:,} tokens so far, "
                f"{spent / took:,.0f} a second, {seconds_left / 3600:.1f} hours left",
                file=sys.stderr, flush=True,
            )  # fmt: skip


def report(options: argparse.Namespace, head: Record, all_records: Sequence[Record]) -> None:
    """Prints the tables of the first `options.boundaries` boundaries."""
    config = SearchConfig(**{name: head["options"][name] for name in WEIGHTS})
    kinds = ["swap"] if head["swap"] else options.kinds
    numbers = [r["number"] for r in all_records if r.get("state")]
    used = set(numbers[: options.boundaries + int(head["swap"])])
    records = [r for r in all_records if r.get("kind") in kinds and r["number"] in used]
    n_empty = sum("state" in r and r["state"] is None for r in all_records)
    tokens, seconds = (sum(r[name] for r in records) for name in ("tokens", "seconds"))
    print(f"model sha256 {head['model']}; {head['versions']}")
    print(
        f"{len(used)} boundaries, {n_empty} texts without one; {tokens:,} forward tokens of "
        f"completions in {seconds:,.0f} s\n"
    )
    if head["swap"]:
        print(tables.swapped(records))
        return
    groups: dict[tuple[str, str], list[tables.Cell]] = {}
    for name in head["settings"]:
        for kind in kinds:
            mine = [r for r in records if (r["setting"], r["kind"]) == (name, kind)]
            if mine:
                cells = [tables.Cell.of(record, config) for record in mine]
                groups[name.partition(":")[2], kind] = cells
    print(tables.ceiling(groups))
    print(tables.regrets(groups, _place(head["lengths"], options.length)))
    print(tables.lookahead(groups, head["lengths"]))
    print(tables.signal(groups, head["lengths"]))


def _place(lengths: Sequence[int], length: int | None) -> int:
    """The number of the length that the regrets are of. ValueError for one that is not there."""
    if length is not None and length not in lengths:
        known = ", ".join(map(str, lengths))
        raise ValueError(f"length is {length}, but must be one of --lengths, {known}")
    return min(1, len(lengths) - 1) if length is None else lengths.index(length)


def _variant(text: str) -> systems.System:
    return systems.from_text(f"tgr-latent:{text}")


def _texts(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("task")
    parser.add_argument("--data", type=Path, help="the folder of the tasks' files")
    parser.add_argument("--model", type=Path, help="a GGUF file; the embedded model by default")
    parser.add_argument("--out", type=Path, help="the checkpoint; oracle-TASK.jsonl by default")
    parser.add_argument("--boundaries", type=int, default=100)
    parser.add_argument("--completions", type=int, default=32, help="of each anchor")
    parser.add_argument("--lengths", type=_numbers, default=[4, 12, 29], help="of rollouts, s")
    parser.add_argument("--length", type=int, help="that of the regrets; the second of them")
    parser.add_argument("--parallel", type=int, default=250, help="completions in a batch")
    parser.add_argument("--seeds", type=_numbers, default=[42, 1234, 3407])
    parser.add_argument("--kinds", type=_texts, default=list(KINDS))
    parser.add_argument("--problems", type=_texts, help="their ids, in this order; all by default")
    parser.add_argument("--options", default="", help="of all, as in chunk_len=22,max_chunks=6")
    parser.add_argument("--setting", action="append", help="options of the injection; repeatable")
    parser.add_argument("--left", type=int, default=0, help="tokens after a boundary at least")
    parser.add_argument("--begin", action="store_true", help="boundaries where texts begin")
    parser.add_argument("--swap", action="store_true")
    parser.add_argument("--threads", type=int, default=0, help="0 = as `tgr-local run` has it")
    parser.add_argument("--report", action="store_true", help="the tables of FILE, without a model")
    options = parser.parse_args()
    options.kinds = ["swap"] if options.swap else options.kinds
    parts = ["oracle", options.task, *(["begin"] * options.begin), *(["swap"] * options.swap)]
    options.out = options.out or Path("-".join(parts) + ".jsonl")
    if not options.swap and not set(options.kinds) <= set(KINDS):
        parser.error(f"--kinds is {','.join(options.kinds)}, but must be of {', '.join(KINDS)}")
    for text in options.setting or ():
        if not (names := set(_variant(text).options)) <= INJECTION:
            unknown = ", ".join(sorted(names - INJECTION))
            parser.error(f"--setting has {unknown}, but is of {', '.join(sorted(INJECTION))} alone")
    if not 1 <= options.parallel <= 256 - N_BESIDE:
        parser.error(f"--parallel is {options.parallel}, but must be 1 to {256 - N_BESIDE}")
    if options.completions < 4:
        parser.error(f"--completions is {options.completions}, but halves need at least 4")
    return options


def problems_of(options: argparse.Namespace) -> list[Problem]:
    """Those named, in their order, or all in a random order. ValueError for an unknown one."""
    problems = tasks.get(options.task).load(options.data)
    if options.problems is None:
        np.random.default_rng(options.seeds[0]).shuffle(problems)
        return problems
    known = {problem.id: problem for problem in problems}
    if unknown := [name for name in options.problems if name not in known]:
        raise ValueError(f"{options.task} has no problem {unknown[0]!r}; remove it from --problems")
    return [known[name] for name in options.problems]


def _strengths(
    engine: Engine, config: SearchConfig, settings: Sequence[systems.System]
) -> dict[str, Strength]:
    """The strengths of the settings that need one, measured now, so that no boundary pays for it.
    TgrError where one cannot be measured, ValueError for one that would have no effect."""
    strengths = {}
    for setting in settings:
        its = setting.resolve(config, engine.n_embd)
        for unit, calibration in (("divergence", "divergence"), ("relative_strength", "residual")):
            if unit in setting.options and its.calibration != calibration:
                raise ValueError(
                    f"{setting.name} has no effect with the calibration {its.calibration}; add "
                    f"calibration={calibration} to --options"
                )
        if strength.is_needed(its):
            measured = strength.prepare(engine, its)
            if measured is None:
                raise TgrError(
                    f"the strength of {setting.name} cannot be measured; raise its divergence"
                )
            strengths[setting.name] = measured
    return strengths


def measure(options: argparse.Namespace) -> None:
    _place(options.lengths, options.length)
    problems = problems_of(options)
    engine_config = EngineConfig(n_threads=options.threads, n_seq_max=options.parallel + N_BESIDE)
    with load(options.model, engine_config) as engine, Grader(1) as grader:
        config = _variant(options.options).resolve(advised(engine), engine.n_embd)
        if "shared" in options.kinds and options.completions < config.n_candidates:
            raise ValueError(
                f"--completions is {options.completions}, but shared seeds need one for each of "
                f"{config.n_candidates} candidates; raise it, or name --kinds independent"
            )
        texts = options.setting or SETTINGS.get(config.calibration, SETTINGS["residual"])
        settings = [_variant(text) for text in texts]
        head = {
            "task": options.task,
            "model": engine.model_hash,
            "versions": manifest.anywhere(versions()),
            "options": dataclasses.asdict(config),
            "settings": [setting.name for setting in settings],
            "completions": options.completions,
            "lengths": options.lengths,
            "seeds": options.seeds,
            "swap": options.swap,
            "begin": options.begin,
            "problems": options.problems,
            "left": options.left,
        }
        strengths = _strengths(engine, config, settings)
        checkpoint = Checkpoint(options.out, json.loads(json.dumps(head)))
        for name, known in strengths.items():
            print(
                f"{name}: zeta {known.zeta:.3g}, divergence {known.divergence:.3g}", file=sys.stderr
            )
        arms = N_SWAPPED if options.swap else len(options.kinds) * (config.n_candidates + 1)
        n_texts = options.boundaries * len(settings) * arms * options.completions
        print(
            f"{options.boundaries} boundaries, {n_texts:,} completions: about "
            f"{n_texts * config.token_limit * (1 + options.begin):,} forward tokens if texts run "
            f"to their limit of {config.token_limit} tokens and a half of them is after the "
            "boundary (all with --begin), each written and read again at a reset; in proportion "
            "less where they end earlier, and where shared seeds make equal texts",
            file=sys.stderr,
        )
        run(Experiment(engine, grader, config, settings, options), problems, checkpoint)
        print(engine.description)
    report(options, head, checkpoint.records)


def main() -> int:
    options = parsed()
    try:
        if options.report:
            lines = read_lines(options.out)
            if not lines:
                raise ValueError(f"{options.out} holds no boundary; name another file with --out")
            if not lines[0].keys() >= REPORTED:
                raise other_kind(options.out)
            report(options, lines[0], lines[1:])
        else:
            measure(options)
    except (TgrError, ValueError, OSError) as error:
        print(f"oracle: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
