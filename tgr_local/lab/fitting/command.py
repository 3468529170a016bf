"""``tgr-local probe``: fit a probe, show it, or test it on other questions."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.options.flags import Arguments, Parser, add_config_flags
from tgr_local.system import paths
from tgr_local.system.sanitize import printable_json, printable_line

if TYPE_CHECKING:
    from tgr_local.engine import Engine
    from tgr_local.lab.fitting.samples import Samples

PROBLEMS, SAMPLES, TEST_PROBLEMS = 100, 16, 50


def add_arguments(group: Parser) -> None:
    """Adds the subcommands."""
    text = "draw samples of tasks, grade them, and fit a probe of success on them; it is resumed"
    fit = group.add_command("fit", _fit, text, " TASK...")
    text = "test a probe on questions that it was not fitted on"
    test = group.add_command("test", _test, text, " TASK...")
    for sub, n in ((fit, PROBLEMS), (test, TEST_PROBLEMS)):
        add = sub.add_argument
        text = "a task of tgr-local eval list, or a .jsonl file of question and answer; questions "
        add("tasks", nargs="+", metavar="TASK", help=text + "without answers go by the majority")
        add("--problems", type=int, default=n, metavar="N",
            help=f"questions of each task (default: {n})")  # fmt: skip
        add("--samples", type=int, default=SAMPLES, metavar="N",
            help=f"samples of each question (default: {SAMPLES})")  # fmt: skip
        add("--data", metavar="PATH", help="folder with the tasks' files, or the file of one task")
        add("--fetch", action="store_true", help="fetch missing data from the Hugging Face hub")
        text = "the probe's file (default: MODEL.probe.json next to the model file)"
        text += "; one that is there is not overwritten" if sub is fit else ""
        add("--out" if sub is fit else "--probe-file", dest="file", metavar="FILE", help=text)
        text = "a GGUF file, or a name that tgr-local models lists (default: the embedded model)"
        sub.add_option("model", None, metavar="MODEL", help=text)
        add_config_flags(sub, SearchConfig, "how samples are drawn")
        add_config_flags(sub, EngineConfig, "how the model is loaded")
    text = "tokens after which a text is judged early (default: 30%% of a median text)"
    fit.add_argument("--cut", type=int, default=0, metavar="N", help=text)
    show = group.add_command(
        "show", _show, "what a probe was fitted on, and how it does", " [FILE]"
    )
    text = "a probe's file, or a model (default: the embedded model)"
    show.add_argument("file", nargs="?", metavar="FILE", help=text)
    for sub in (test, show):
        sub.add_argument("--json", action="store_true", help="print JSON")


def _fit(args: Arguments) -> int:
    from tgr_local.lab.fitting import fit
    from tgr_local.lab.fitting.samples import joined
    from tgr_local.methods.probe import record
    from tgr_local.options import model_files
    from tgr_local.system.versions import versions

    if args.cut < 0:
        raise ValueError(f"cut is {args.cut}, but must be at least 0")
    place = _file(args.file) or record.place(model_files.model_file(args.model))
    if place.is_dir():
        raise ValueError(f"{place} is a folder, but --out needs the name of a file")
    if os.path.lexists(place):
        raise ValueError(
            f"there is a probe already, {place}; name another file with --out FILE, or remove it"
        )
    with _engine(args) as engine:
        folder = place.with_name(place.name + ".samples")
        config = _config(args, engine)
        cut, by_task = _draw_samples(
            args, engine, config, folder, args.tasks, args.cut, least=fit.FEWEST
        )
        samples = joined([part for parts in by_task.values() for part in parts])
        about = {
            "tasks": {label: len(by_task[name]) for name, label in _labels([*by_task]).items()},
            "samples": args.samples,
            "labels": "grades, and agreement with the majority where a question has no answer",
            "temperature": config.temperature,
            "seed": config.seed,
            "forward_tokens": samples.tokens,
            "versions": versions(),
        }
        probe = fit.fit(samples, engine.model_hash, cut, about)
        fit.save(probe, place)
    print("\n".join(_lines(probe)))
    print(f"written: {printable_line(str(place))}", file=sys.stderr)
    return 0


def _test(args: Arguments) -> int:
    from tgr_local.lab.fitting import fit
    from tgr_local.lab.fitting.samples import joined
    from tgr_local.methods.probe import record
    from tgr_local.system.errors import ModelError

    path = _file(args.file)
    with _engine(args) as engine:
        probe = record.of(engine, path or "")
        if probe is None:
            raise ModelError(
                f"{engine.path.name} has no probe ({record.place(engine.path)}); fit one with "
                "tgr-local probe fit"
            )
        _, by_task = _draw_samples(args, engine, _config(args, engine), None, args.tasks, probe.cut)
        results = {name: fit.judged(probe, joined(parts)) for name, parts in by_task.items()}
    if args.json:
        print(printable_json(results))
        return 0
    for name, result in results.items():
        print("\n".join(_measures(name, result)))
    return 0


def _show(args: Arguments) -> int:
    from tgr_local.methods.probe import record
    from tgr_local.options import model_files

    file = _file(args.file)
    if file is None or file.suffix != ".json":
        file = record.place(model_files.model_file(args.file))
    probe = record.load(file)
    if args.json:
        print(printable_json({"model": probe.model, "cut": probe.cut, **probe.about}))
    else:
        print("\n".join(_lines(probe)))
    return 0


def _file(name: str | None) -> Path | None:
    """The file that an argument names, None without it. ValueError for an empty name."""
    if name is not None and not name.strip():
        raise ValueError("the name of the probe's file is empty; name a file, or leave it out")
    return None if name is None else paths.expanded("file", name)


def _engine(args: Arguments) -> Engine:
    from tgr_local.engine import load_with_progress
    from tgr_local.options import model_files

    for name in ("problems", "samples"):
        if getattr(args, name) < 1:
            raise ValueError(f"{name} is {getattr(args, name)}, but must be at least 1")
    return load_with_progress(model_files.model_file(args.model), args.engine)


def _config(args: Arguments, engine: Engine) -> SearchConfig:
    from tgr_local.options.resolve import resolve

    return resolve(engine.metadata, args.user_options).config


def _draw_samples(
    args: Arguments,
    engine: Engine,
    config: SearchConfig,
    folder: Path | None,
    names: Sequence[str],
    cut: int,
    least: int = 1,
) -> tuple[int, dict[str, list[Samples]]]:
    """The samples of each task, and the cut; says on stderr how long it will take. They are kept in
    `folder`, or the cache folder. ValueError for fewer questions than `least`, TgrError where no
    text can be judged."""
    from tgr_local.lab.eval.grader import Grader
    from tgr_local.lab.fitting import questions
    from tgr_local.lab.fitting.samples import Drawer
    from tgr_local.system.errors import TgrError
    from tgr_local.system.progress import ProgressLine

    path = paths.expanded("data", args.data) if args.data else None
    raw = not engine.chat_template
    names = list(dict.fromkeys(names))
    how: dict[str, bool] = {"fetch": args.fetch, "alone": len(names) == 1}
    with Grader() as grader, ProgressLine("drawing samples") as progress:
        loaded = {
            name: questions.load(name, path, args.problems, config.seed, grader, **how)
            for name in names
        }
        everything = [question for some in loaded.values() for question in some]
        if len(everything) < least:
            raise ValueError(
                f"there are {len(everything)} questions, but a probe needs {least}; raise "
                "--problems, or name more tasks"
            )
        drawer = Drawer(engine, config, args.samples, folder, raw=raw)
        cut = cut or drawer.cut(everything)
        by_task: dict[str, list[Samples]] = {name: [] for name in loaded}
        start, n_done = time.monotonic(), 0
        for name, some in loaded.items():
            for part in drawer.each(some, cut):
                n_done += 1
                if part is not None:
                    by_task[name].append(part)
                seconds_left = (time.monotonic() - start) / n_done * (len(everything) - n_done)
                progress.line = (
                    f"drawing samples: question {n_done} of {len(everything)}, "
                    f"about {_duration(seconds_left)} left"
                )
    if not any(by_task.values()):
        raise TgrError(
            "no text ended with an answer that can be judged; raise max_tokens, or take questions "
            "with a final answer"
        )
    return cut, {name: parts for name, parts in by_task.items() if parts}


def _labels(names: Sequence[str]) -> dict[str, str]:
    """A short label of each task: a file's name without its folder, if no other has that name."""
    count = Counter(Path(name).name for name in names)
    return {name: short if count[short := Path(name).name] == 1 else name for name in names}


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _lines(probe: Any) -> list[str]:
    """A probe in lines for the user."""
    about = probe.about
    tasks = ", ".join(f"{name} ({n} questions)" for name, n in about.get("tasks", {}).items())
    lines = [
        f"model sha256   {probe.model}",
        f"fitted on      {tasks}, {about.get('samples')} samples each, T = "
        f"{about.get('temperature')}, seed {about.get('seed')}, "
        f"{about.get('forward_tokens', 0):,} forward tokens",
        f"labels         {about.get('labels')}",
        "On questions that the regression has not seen:",
    ]
    names = {"whole": "whole texts", "beginning": f"after {probe.cut} tokens",
             "answer": "leading answers of votes"}  # fmt: skip
    for key, name in names.items():
        if key in about:
            lines += _measures(name, about[key])
    return [printable_line(line) for line in lines]


def _measures(name: str, result: dict[str, Any]) -> list[str]:
    """AUROC and reliability in lines for the user."""
    facts = [f"{100 * result['right']:.0f}% of {result['n']:,} right"]
    if result["auroc"] is not None:
        auroc, low, high = result["auroc"]
        facts.insert(0, f"AUROC {auroc:.3f} ({low:.3f} to {high:.3f})")
    if result["within"] is not None:
        facts.append(f"within a question {result['within']:.3f}")
    if result.get("likelihood") is not None:
        facts.append(f"mean log-probability alone {result['likelihood']:.3f}")
    if "known" in result:
        facts.append(f"{100 * result['known']:.0f}% are like the texts of the fit")
    lines = [f"{name}: {'; '.join(facts)}"]
    lines += [
        f"  says {100 * mean:3.0f}%, right {100 * share:3.0f}%  {'█' * round(20 * share):20} {n:,}"
        for n, mean, share in result["reliability"]
    ]
    return lines
