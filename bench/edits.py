"""Edits by a model of random weights, which writes noise: every one must apply.

The answers are edits of the files of Python's own standard library, in all formats, some of several
files at once, some with new files, each under a limit that leaves room for a little or for more. An
answer is read as the assistant reads it: one that has no edit, that does not apply, or that is not
whole within its limit is a failure. Prints counts for each format.

With --cost also what the constraint costs compared with a step of a model in the shape of
Qwen3-0.6B: the time of sampling with it and without, for the same number of tokens.

    python bench/edits.py [--edits 10000] [--files 200] [--seed 0] [--model FILE] [--cost]

The exit code is 1 after a failure.
"""

from __future__ import annotations

import argparse
import random
import sys
import sysconfig
import time
from collections import Counter
from pathlib import Path

from tgr_local import Engine, EngineConfig
from tgr_local.code.edits import (
    FORMATS,
    Document,
    EditError,
    Format,
    constraint,
    functions_of,
    read_edits,
)
from tgr_local.engine import EditConstraint, Sampling, Task
from tgr_local.lab.bench import shapes

TOGETHER = 32  # answers that are written in the same batches
MOST_FILES = 3
ROOM = (8, 96)  # tokens more than the shortest edit, fewest and most


def library(n: int, rng: random.Random) -> list[Document]:
    """Files of the standard library, in a random order."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    names = sorted(
        path
        for path in folder.rglob("*.py")
        if not {"site-packages", "test", "tests", "idle_test"} & set(path.parts)
    )
    documents = []
    for path in rng.sample(names, len(names)):
        try:
            text = path.read_bytes().decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
        documents.append(Document(path.relative_to(folder).as_posix(), text))
        if len(documents) == n:
            break
    return documents


def subject(documents: list[Document], format: Format, rng: random.Random) -> list[Document]:
    """Some of the documents, with at least one that can be changed."""
    while True:
        some = rng.sample(documents, rng.randint(1, MOST_FILES))
        if format != "function" or any(functions_of(one) for one in some):
            return some


def written(
    engine: Engine, edits: EditConstraint, limits: list[int], seed: int, temperature: float = 1.0
) -> list[tuple[str, str]]:
    """An answer for each limit, with the reason of its end."""
    n_cells = sum(limits) + 2 * len(limits) + 8
    with engine.session(n_cells, len(limits)) as session:
        tasks = [
            Task(
                session.sequence(),
                [(seed + i) % engine.n_vocab],
                n_generate=limit,
                sampling=Sampling(temperature, edits=edits, edit_tokens=limit),
                seed=seed + i,
            )
            for i, limit in enumerate(limits)
        ]
        outputs = session.run(tasks)
    return [
        (engine.detokenize(output.tokens).decode("utf-8", "replace"), output.finish)
        for output in outputs
    ]


def run(engine: Engine, documents: list[Document], n: int, rng: random.Random) -> int:
    """Writes and reads n answers; returns how many failed."""
    counts: dict[Format, Counter[str]] = {format: Counter() for format in FORMATS}
    done, began, shown = 0, time.monotonic(), 0
    while done < n:
        format = FORMATS[rng.randrange(len(FORMATS))]
        some = subject(documents, format, rng)
        new = ["new/made.py"] if rng.random() < 0.2 and format != "function" else []
        edits = constraint(some, format, new_paths=new)
        least = engine.edit_tokens(edits)
        limits = [least + rng.randint(*ROOM) for _ in range(min(TOGETHER, n - done))]
        for answer, finish in written(engine, edits, limits, rng.randrange(1 << 30)):
            count = counts[format]
            count["answers"] += 1
            try:
                if finish != "stop":
                    raise EditError("the answer is not whole within its limit")
                changes = read_edits(answer, some, format, new_paths=new)
                count["applied"] += 1
                count["changed files"] += len(changes)
            except EditError as error:
                count["failed"] += 1
                if (shown := shown + 1) <= 10:
                    print(f"{format}: {error}\n{answer!r}\n", file=sys.stderr)
        done += len(limits)
        if sys.stderr.isatty() or done // 1000 > (done - len(limits)) // 1000:
            print(f"\r{done} of {n}, {time.monotonic() - began:.0f} s", end="", file=sys.stderr)
    for format, count in counts.items():
        print(f"{format:9}", ", ".join(f"{value} {name}" for name, value in count.items()))
    n_applied = sum(count["applied"] for count in counts.values())
    print(f"{n_applied} of {n} apply ({n_applied / n:.2%}), {time.monotonic() - began:.0f} s")
    return n - n_applied


def cost(engine: Engine, documents: list[Document], n_tokens: int, rng: random.Random) -> None:
    """Prints what the constraint adds to the time of a step, for each format."""
    for format in FORMATS:
        some = subject(documents, format, rng)
        edits = constraint(some, format)
        began = time.perf_counter()
        engine.edit_tokens(edits)
        made = time.perf_counter() - began
        figures = {}
        for name, one in (("without", None), ("with", edits)):
            before = engine.stats()
            with engine.session(n_tokens + 16, 1) as session:
                task = Task(
                    session.sequence(), [1], n_generate=n_tokens, seed=1, ignore_eog=True,
                    sampling=Sampling(1.0, edits=one, edit_tokens=n_tokens),
                )  # fmt: skip
                session.run([task])
            after = engine.stats()
            sampling = (after.sample_seconds - before.sample_seconds) / n_tokens
            step = (after.decode_seconds - before.decode_seconds) / n_tokens + sampling
            figures[name] = (sampling, step)
        (plain, step), (with_edits, _) = figures["without"], figures["with"]
        n_bytes = sum(len(one.text.encode()) for one in some)
        print(
            f"{format:9} sampling {plain * 1e3:.2f} ms without, {with_edits * 1e3:.2f} ms with the "
            f"constraint; a step {step * 1e3:.1f} ms: {(with_edits - plain) / step:+.1%}; rules "
            f"for {n_bytes >> 10} KB once {made * 1e3:.0f} ms"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--edits", type=int, default=10_000)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="default: random weights in a tiny shape")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--cost-model", default="q4_k", help="the type of the 0.6B shape")
    parser.add_argument("--tokens", type=int, default=256)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    documents = library(args.files, rng)
    failed = 0
    if args.edits:
        model = args.model or shapes.model_file("tiny", "q8_0")
        # one thread: the model is so small that several would wait for each other
        with Engine(model, EngineConfig(prefix_cells=0, n_threads=1)) as engine:
            print(f"{len(documents)} files, {model.name}")
            failed = run(engine, documents, args.edits, rng)
    if args.cost:
        model = shapes.model_file("0.6b", args.cost_model)
        with Engine(model, EngineConfig(prefix_cells=0)) as engine:
            print(f"{model.name}, {engine.n_threads} threads, {args.tokens} tokens")
            cost(engine, documents, args.tokens, rng)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
