"""A double of the engine: a model of 256 tokens whose replies are made by rule, and its steps.

`install` puts it in place of the engine and of the functions of `generation` that use one.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from surroundings import HANG, sleep_until_signal

from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.system.errors import TgrError

INSTALLED = "import fake_engine; fake_engine.install(setattr); "
"""Code that begins a process with the double installed."""


class FakeEngine:
    """A model of 256 tokens, one for each byte, that computes nothing."""

    description, n_vocab, n_embd, n_layer, n_ctx_train = "fake 1B", 256, 4, 2, 128
    rolls_back, repeats, cell_bytes, state_bytes = True, True, 1, 0
    chat_template, template_warning = "fake", ""
    digest, known_hash, file_identity, adapters = b"", None, "f", ()
    n_ctx, n_seq_max, size_bytes, n_threads, model_hash = 64, 8, 1000, 1, "ab" * 32
    is_unchanged, pooling = False, ""

    def __init__(self, path: Any, config: EngineConfig | None = None, **_: Any) -> None:
        self.path, self.config = Path(path), config or EngineConfig()
        self.metadata = {"tgr.temperature": "0.25", "tgr.chunk_len": "100"}

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def tokenize(self, text: str, **_: bool) -> list[int]:
        return list(text.encode())

    def detokenize(self, tokens: Any, *, special: bool = False, **_: Any) -> bytes:
        return bytes(tokens)

    def most_cells(self) -> int:
        return 10_000

    layer_fit: Any = None
    session: Any = None  # which the server's table of waits names

    def devices_without_attention(self) -> list[str]:
        return []

    def devices(self) -> list[str]:
        return ["CPU"] * (self.n_layer + 1)

    def stats(self) -> Any:
        class Stats:
            cells_used, cells_peak, cells_remembered, n_ctx = 0, 40, 20, 64

        return Stats


def fake_step(index: int, text: str, finish: str | None, search: bool = True) -> Any:
    """A step with the chunk `text`; with search, two candidates, the second chosen."""
    from tgr_local.search.scoring import Weights, combine
    from tgr_local.search.steps import Candidates, Counts, Seconds, Step

    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    anchors, origin = np.array([[1.0, 0, 0, 0], [0.6, 0.8, 0, 0]]), np.array([0.8, 0.6, 0, 0])
    terms = (np.array([-1.5, -1.0]), np.array([0.5, 0.25]), np.array([0.0, 0.1]))
    candidates = Candidates(
        anchors=anchors,
        tokens=[tokens[:3], tokens[:2]],
        logprobs=[np.full(n, -1.5, np.float32) for n in (3, 2)],
        scores=combine(*terms, Weights(1.0, 0.5, 0.5)),
        owners=np.array([0, 1]),
    )
    return Step(
        index=index,
        tokens=tokens,
        logprobs=np.linspace(-1, -0.1, len(tokens), dtype=np.float32),
        entropies=np.linspace(0.1, 1, len(tokens), dtype=np.float32),
        finish=finish,
        counts=Counts(
            query=0 if index else 7, rebuild=5, rollouts=5, chunk=len(tokens), delimiter=1
        ),
        seconds=Seconds(rebuild=0.01, rollouts=0.02, scoring=0.0, chunk=0.03, delimiter=0.0),
        cells=20,
        origin=origin if search else None,
        candidates=candidates if search else None,
        anchor=anchors[1] if search else None,
        state=anchors[0] if search and finish is None else None,
    )


def fake_prompt(
    engine: Any, prompt: Any, config: SearchConfig, *, raw: bool = False, **_: Any
) -> list[int]:
    text = prompt if isinstance(prompt, str) else "|".join(m["content"] for m in prompt)
    return list((text if raw else f"<user>{text}").encode())


def fake_stream(
    engine: Any, prompt: Any, config: SearchConfig, *, method: Any = "", **_: Any
) -> Iterator[Any]:
    """The events of a reply with one chunk of thinking and one of answer.

    The answer is the number of messages and the last of them. Some questions have an effect:
    "fail" raises before the first event, "break" in the middle of the answer; there "wait" blocks,
    "slow" adds sixty words with pauses, and "flood" never ends. "mute" blocks before the first
    event; "silent" has no answer.
    """
    from tgr_local.generation import Reply
    from tgr_local.generation.text import TextDelta
    from tgr_local.search.steps import Progress

    name = getattr(method, "name", method)
    if isinstance(prompt[0], int):  # tokens of `fake_prompt`
        prompt = bytes(prompt).decode().removeprefix("<user>")
    if isinstance(prompt, str):
        n_messages, question = 1, prompt
    else:
        n_messages, question = len(prompt), prompt[-1]["content"]
    if question == "fail":
        raise TgrError("the prompt has 999 tokens,\nbut the context has 64")
    if question == "mute":
        sleep_until_signal()
    thinking, answer = f"hm, {question}", f"#{n_messages} {question}"
    if question == "silent":
        answer = ""
    steps = [fake_step(0, thinking, None, name != "base")]
    yield Progress(chunk=0, stage="rollouts")
    yield Progress(chunk=0, stage="scored", candidates=steps[0].candidates)
    yield TextDelta(thinking, "thinking")
    yield steps[0]
    yield TextDelta(answer[:2], "answer")
    if question == "break":
        raise TgrError("it broke")
    if question == "wait":
        sleep_until_signal()
    for word in range(60 if question == "slow" else 0):
        time.sleep(0.02)
        yield TextDelta(f" word{word}", "answer")
    while question == "flood":
        yield TextDelta("more", "answer")
    yield TextDelta(answer[2:], "answer")
    steps.append(fake_step(1, answer, "stop", name != "base"))
    yield steps[1]
    counts = steps[0].counts + steps[1].counts
    tokens = list((thinking + answer).encode())
    yield Reply(answer, thinking, tokens, "stop", steps, counts, 0.5, config.seed, name)


def fake_many(engine: Any, prompt: Any, config: SearchConfig, k: int, **how: Any) -> list[Any]:
    how.pop("on_event", None)
    configs = [dataclasses.replace(config, seed=config.seed + i) for i in range(k)]
    return [list(fake_stream(engine, prompt, own, **how))[-1] for own in configs]


def install(put: Callable[[Any, str, Any], None]) -> None:
    """Replaces the engine with the double; `put` is setattr, or monkeypatch.setattr."""
    from tgr_local import engine, generation
    from tgr_local.chat import prefixes
    from tgr_local.engine import installation
    from tgr_local.options import model_files
    from tgr_local.system import progress

    put(progress, "DELAY", HANG)
    put(model_files, "find", Path)
    put(engine, "Engine", FakeEngine)
    put(installation, "Engine", FakeEngine)
    put(engine, "backend_devices", lambda: [])
    put(generation, "stream", fake_stream)
    put(generation, "generate_many", fake_many)
    put(generation, "generate", lambda *a, **how: list(fake_stream(*a, **how))[-1])
    put(generation, "query_tokens", fake_prompt)
    put(prefixes, "save_prefix", lambda *_, **__: None)  # it remembers nothing
    put(installation, "gpu_present", lambda: None)
