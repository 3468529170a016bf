"""Records replies of the library bit for bit, and compares two records: the check for a change of
the code that must not change behaviour.

Every method writes replies with several seeds on each model, then come variants of the options, one
for each part of the code, replies written together, streams, llama-cpp-python's methods, control
vectors and bad arguments. A record holds texts, tokens, log-probabilities, scores, anchors, states,
counts and cells, numbers as hexadecimal floats and large arrays as their SHA-256, but no times. The
models are a copy of the embedded one with F32 weights and, where it lies in ../shared/data or a
folder above, stories260K; --model takes others. All is computed on one thread with an F32 cache.

    python bench/replies.py record before.json
    python bench/replies.py record after.json              # with the changed code
    python bench/replies.py compare before.json after.json # exit code 1 where anything differs
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from api_cases import engine_cases, error_cases, llama_cases, vector_cases
from exact_records import Json
from f32_weights import with_f32_weights
from reply_cases import (
    EXACT,
    Case,
    Model,
    Prompt,
    crew_cases,
    event_cases,
    method_cases,
    plain_cases,
    shipped_cases,
    variant_cases,
)

from tgr_local import EngineConfig, load
from tgr_local.methods import METHODS
from tgr_local.options.model_files import embedded_model


def stories() -> Path | None:
    """stories260K, where a folder above has the public data."""
    for above in Path(__file__).resolve().parents:
        path = above / "shared" / "data" / "stories260K" / "stories260K.gguf"
        if path.is_file():
            return path
    print("stories260K is not in ../shared/data of any folder above; it is left out")
    return None


def prompts_of(engine: Any) -> dict[str, tuple[Prompt, bool]]:
    """What fits the model."""
    if not engine.chat_template:
        return {
            "story": ("Once upon a time", True),
            "dog": ("Tom had a big red dog. One day the dog", True),
        }
    messages = [
        {"role": "system", "content": "Answer with a number."},
        {"role": "user", "content": "Solve for x: 3x + 17 = 101"},
    ]
    return {
        "chat": ("What is 17 * 23 + 4 * 35?", False),
        "messages": (messages, False),
        "raw": ("Using the numbers 3, 7, 11, 25 make 100: <think>", True),
    }


def cases_of(model: Model, seeds: Sequence[int]) -> Iterator[Case]:
    """All cases of a model."""
    yield from plain_cases(model, seeds)
    yield from variant_cases(model, seeds)
    yield from method_cases(model, seeds[0])
    yield from crew_cases(model, seeds)
    yield from event_cases(model, seeds[0])
    yield from llama_cases(model, seeds[0])
    yield from vector_cases(model, seeds[0])
    yield from engine_cases(model)
    yield from error_cases(model)


def outcome(case: Case, folder: Path) -> Any:
    """What a case gives, or the error that it ends with; the folder of its model does not count."""
    try:
        value = case.run()
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error).replace(f"{folder}/", "")}
    return value if isinstance(value, dict | list | str) else type(value).__name__


def models(paths: Sequence[Path], folder: Path) -> Iterator[Model]:
    """Each model, open for the time that it is used."""
    files = list(paths)
    if not files:
        files = [with_f32_weights(embedded_model(), folder / "embedded-f32.gguf")]
        files += filter(None, [stories()])
    for path in files:
        with load(path, EngineConfig(**EXACT)) as engine:
            yield Model(path.stem, path, engine, prompts_of(engine))


def record(paths: Sequence[Path], seeds: Sequence[int]) -> Json:
    """All cases of all models."""
    about: Json = {"seeds": list(seeds), "methods": list(METHODS), "models": {}}
    cases: Json = {}

    def add(model: str, new_cases: Iterator[Case], folder: Path) -> None:
        begun = time.monotonic()
        for case in new_cases:
            name = f"{model}/{case.name}"
            assert name not in cases, name
            cases[name] = outcome(case, folder)
        print(f"{model}: {len(cases)} cases so far, {time.monotonic() - begun:.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        for kind in ("CACHE", "STATE", "CONFIG"):  # what an earlier record measured is not there
            os.environ[f"XDG_{kind}_HOME"] = folder
        for model in models(paths, Path(folder)):
            digest = hashlib.sha256(model.path.read_bytes()).hexdigest()
            about["models"][model.name] = digest
            add(model.name, cases_of(model, seeds), model.path.parent)
    if not paths:
        add("shipped", shipped_cases(seeds[0]), Path("/"))
    return {"about": about, "cases": cases}


# ---- files ----


def differences(a: Any, b: Any, path: str = "") -> Iterator[str]:
    """Where two JSON values differ, and how, deepest places first named."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            place = f"{path} > {key}" if path else str(key)
            if key not in a or key not in b:
                yield f"{place}: only in the {'first' if key in a else 'second'}"
            else:
                yield from differences(a[key], b[key], place)
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            yield f"{path}: {len(a)} items != {len(b)}"
        for i, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from differences(x, y, f"{path}[{i}]")
    elif type(a) is not type(b) or a != b:
        yield f"{path}: {json.dumps(a):.120} != {json.dumps(b):.120}"


def compare(a: Json, b: Json) -> int:
    """Prints every difference; the exit code."""
    lines = list(differences(a, b))
    for line in lines:
        print(line)
    ours, theirs = a["cases"], b["cases"]
    n_bad = sum(ours.get(name) != theirs.get(name) for name in ours.keys() | theirs.keys())
    print(f"{len(lines)} differences, in {n_bad} of {len(ours)} cases")
    return int(bool(lines))


def save(path: Path, recorded: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    cases = recorded["cases"]
    refused = sum(isinstance(case, dict) and "error" in case for case in cases.values())
    print(f"{path}: {len(cases)} cases, {refused} of them errors")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="write down what the library answers")
    recorder.add_argument("out", type=Path)
    recorder.add_argument("--model", type=Path, nargs="+", default=[], help="GGUF files")
    recorder.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    comparer = commands.add_parser("compare", help="print where two records differ")
    comparer.add_argument("files", type=Path, nargs=2)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        return compare(*(json.loads(path.read_text(encoding="utf-8")) for path in arguments.files))
    save(arguments.out, record(arguments.model, arguments.seeds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
