"""What a check of replies writes down, bit for bit, and where two such files differ."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Json = dict[str, Any]
LISTED = 64  # elements of an array up to which they are listed, not hashed


def exact(value: Any, without: Sequence[str] = ("seconds",)) -> Any:
    """A value as JSON that loses nothing: floats in hexadecimal, large arrays as their SHA-256,
    records as their fields but for those `without`."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.name not in without]
        return {name: exact(getattr(value, name), without) for name in names}
    if isinstance(value, np.ndarray):
        described: Json = {"shape": list(value.shape), "dtype": str(value.dtype)}
        if value.size <= LISTED:
            return described | {"values": exact(value.tolist())}
        data = np.ascontiguousarray(value).tobytes()
        return described | {"sha256": hashlib.sha256(data).hexdigest()}
    if isinstance(value, np.generic):
        return exact(value.item())
    if isinstance(value, float | bytes):
        return value.hex()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): exact(one, without) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [exact(one, without) for one in value]
    raise TypeError(f"cannot record a {type(value).__name__}")


def of_events(events: Sequence[Any]) -> Json:
    """The events of a reply. How many tokens one event has is a matter of speed, so texts and
    tokens are joined, and an event that only repeats the one before it is left out."""
    text: dict[str, str] = {}
    tokens: list[int] = []
    order: list[Any] = []
    for event in events:
        if hasattr(event, "kind"):
            text[event.kind] = text.get(event.kind, "") + event.text
        elif hasattr(event, "stage") and event.stage == "tokens":
            tokens += event.tokens
        elif hasattr(event, "stage"):
            progress = [event.chunk, event.stage, exact(event.candidates)]
            if [progress] != order[-1:]:
                order.append(progress)
        elif hasattr(event, "index"):
            order.append([event.index, "step", len(tokens), event.finish])
        else:
            # how many tokens were decoded when a listener ends a text is a matter of speed
            order.append(["reply", exact(event, ("seconds", "counts", "cells"))])
    return {"text": text, "tokens": tokens, "order": order}


def lasting(value: Any) -> Any:
    """A response without what is new each time: its id, when, and how long."""
    if isinstance(value, Mapping):
        new = ("created", "seconds", "timings")
        kept = {k: lasting(one) for k, one in value.items() if k not in new}
        if isinstance(name := kept.get("id"), str):
            kept["id"] = re.sub(r"^((?:chat)?cmpl-)[0-9a-f]{32}$", r"\1", name)
        return kept
    return [lasting(one) for one in value] if isinstance(value, list) else value


def joined(chunks: Sequence[Any]) -> Json:
    """A streamed response as one: the text and log-probabilities of each choice joined, since a
    chunk has the text that was ready at that time."""
    choices: dict[str, Json] = {}
    rest: Json = {}
    progress: dict[str, list[Any]] = {}
    for chunk in lasting(list(chunks)):
        for choice in chunk.get("choices", []):
            into = choices.setdefault(str(choice.get("index")), {})
            for key, part in (choice | choice.get("delta", {})).items():
                if key in ("content", "reasoning_content", "text") and isinstance(part, str):
                    into[key] = into.get(key, "") + part
                elif key == "logprobs" and part is not None:
                    _extend(into.setdefault("logprobs", {}), part)
                elif key == "finish_reason" and part is not None:
                    into.setdefault(key, []).append(part)
                elif key not in ("delta", "logprobs", "finish_reason"):
                    into[key] = part
        event = (chunk.get("tgr") or {}).get("progress")
        if event and event["stage"] != "tokens":  # how many such there are is a matter of speed
            events = progress.setdefault(str(event.get("index")), [])
            events += [event] if [event] != events[-1:] else []
        others = {k: v for k, v in chunk.items() if k not in ("choices", "tgr") and v is not None}
        if chunk.get("tgr") and not event:
            others["tgr"] = chunk["tgr"]
        rest |= others
    return {"choices": choices, "progress": progress, **rest}


def _extend(into: Json, more: Mapping[str, Any]) -> None:
    for key, part in more.items():
        into[key] = into.get(key, []) + part if isinstance(part, list) else part


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
        for i, (one, other) in enumerate(zip(a, b, strict=False)):
            yield from differences(one, other, f"{path}[{i}]")
    elif type(a) is not type(b) or a != b:
        yield f"{path}: {json.dumps(a):.120} != {json.dumps(b):.120}"


def compare(a: Json, b: Json) -> int:
    """Prints every difference; the exit code."""
    found = list(differences(a["about"], b["about"], "about"))
    bad = set()
    for name in [*a["cases"], *(name for name in b["cases"] if name not in a["cases"])]:
        ones = [{name: r["cases"][name]} if name in r["cases"] else {} for r in (a, b)]
        more = list(differences(ones[0], ones[1]))
        bad |= {name} if more else set()
        found += more
    print("\n".join(found), end="\n" if found else "")
    n = len(a["cases"])
    if found:
        print(f"{len(found)} differences, in {len(bad)} of {n} cases")
    else:
        print(f"no difference in {n} cases")
    return int(bool(found))


def save(path: Path, recorded: Json) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    cases = recorded["cases"]
    refused = sum(isinstance(case, dict) and "error" in case for case in cases.values())
    print(f"{path}: {len(cases)} cases, {refused} of them errors")


def add_compare(commands: Any) -> None:
    """The subcommand that compares two files."""
    parser = commands.add_parser("compare", help="print where two records differ")
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)


def compare_files(arguments: argparse.Namespace) -> int:
    files = (arguments.first, arguments.second)
    first, second = (json.loads(path.read_text(encoding="utf-8")) for path in files)
    return compare(first, second)
