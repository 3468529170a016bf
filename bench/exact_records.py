"""What replies.py writes down, bit for bit."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
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
        return {str(key): exact(item, without) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [exact(item, without) for item in value]
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
        lasts = {k: lasting(item) for k, item in value.items() if k not in new}
        if isinstance(name := lasts.get("id"), str):
            lasts["id"] = re.sub(r"^((?:chat)?cmpl-)[0-9a-f]{32}$", r"\1", name)
        return lasts
    return [lasting(item) for item in value] if isinstance(value, list) else value


def joined(chunks: Sequence[Any]) -> Json:
    """A streamed response as one: the text and log-probabilities of each choice joined, since a
    chunk has the text that was ready at that time."""
    choices: dict[str, Json] = {}
    others: Json = {}
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
        facts = {k: v for k, v in chunk.items() if k not in ("choices", "tgr") and v is not None}
        if chunk.get("tgr") and not event:
            facts["tgr"] = chunk["tgr"]
        others |= facts
    return {"choices": choices, "progress": progress, **others}


def _extend(into: Json, more: Mapping[str, Any]) -> None:
    for key, part in more.items():
        into[key] = into.get(key, []) + part if isinstance(part, list) else part
