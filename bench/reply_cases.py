"""The replies that replies.py records: of every method, with every variant of the options, together
and as events. Each case is a name and a function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exact_records import Json, exact, of_events

from tgr_local import (
    EngineConfig,
    SearchConfig,
    generate,
    generate_many,
    generate_steps,
    load,
    stream,
)
from tgr_local.methods import METHODS

Prompt = str | list[dict[str, str]]

EXACT: dict[str, Any] = {
    "type_k": "f32", "type_v": "f32", "flash_attn": "off", "n_threads": 1, "n_gpu_layers": 0,
}  # fmt: skip
BASE: dict[str, Any] = {
    "chunk_len": 20, "max_chunks": 5, "rollout_len": 6, "n_candidates": 4, "sigma": 0.3,
    "relative_strength": 0.15, "temperature": 0.9, "n_samples": 3,
    "power_steps": 2, "tree_proposals": 2,
}  # fmt: skip

# options of tgr-latent, in addition to BASE
VARIANTS: dict[str, Json] = {
    "absolute": {"calibration": "absolute", "eta": 0.5},
    "residual, strong": {"calibration": "residual", "relative_strength": 0.4, "eta": 1.5},
    "foresight alone": {"lambda_b": 0.0, "lambda_u": 0.0},
    "penalties alone": {"foresight_weight": 0.0, "delta": -0.5, "lambda_u": 2.0},
    "reevaluate": {"reevaluate": 2},
    "n_mc": {"n_mc": 2},
    "n_mc, reevaluate": {"n_mc": 2, "reevaluate": 3},
    "shift_cells": {"shift_cells": True},
    "shift_cells, short chunks": {"shift_cells": True, "chunk_len": 16},
    "forward tokens": {"max_forward_tokens": 260},
    "forward tokens, few": {"max_forward_tokens": 90, "reevaluate": 4},
    "penalties": {"repeat_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.4},
    "truncation": {"top_k": 12, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
    "greedy": {"temperature": 0.0},
    "reuse_winner": {"reuse_winner": True, "top_logprobs": 2},
    "reuse_winner, long": {"reuse_winner": True, "rollout_len": 24, "max_tokens": 47},
    "narrow anchors": {"d_z": 16, "rank": 2, "injection_seed": 7},
    "wide anchors": {"d_z": 300, "rank": 16},
    "top_logprobs": {"top_logprobs": 5},
    "one candidate": {"n_candidates": 1},
    "max_tokens": {"max_tokens": 47},
    "chunk_len": {"chunk_len": 16, "rollout_len": 8, "max_chunks": 6},
    "loop_guard": {"loop_guard": 3, "temperature": 0.05, "max_chunks": 12},
}  # fmt: skip

# options of one method, in addition to BASE
OF_METHODS: dict[str, list[Json]] = {
    "base": [{"max_chunks": 1}, {"chunk_len": 64, "max_tokens": 90}],
    "markov": [{"chunk_len": 16}, {"shift_cells": True}],
    "random-anchor": [{"calibration": "absolute"}, {"sigma": 1.0}],
    "tgr-latent": [{"sigma": 1.0, "delta": 0.9}],
    "tgr-token": [{"rollout_len": 20}, {"rollout_len": 30}],
    "hard-geometry": [{"kappa_max": 0.3}, {"d_z": 12}],
    "best-of-n": [{"n_samples": 5, "max_tokens": 33}, {"n_samples": 1}],
    "self-consistency": [{"n_samples": 7, "temperature": 1.2}],
    "power": [
        {"power_alpha": 1.5, "power_steps": 4}, {"power_steps": 0}, {"max_chunks": 3},
    ],
    "tot": [
        {"tree_breadth": 3, "chunk_len": 16},
    ],
    "got": [{"tree_breadth": 3, "max_chunks": 2}],
    "vote": [{"vote_weight": "count", "vote_bar": 2.0}, {"vote_wave": 1}],
    "auto": [{"n_samples": 4}],
}  # fmt: skip

# options that every method knows, in addition to BASE
FOR_ALL: dict[str, Json] = {
    "top_logprobs": {"top_logprobs": 3},
    "stop": {"stop": ("4", " was a", "\n\n"), "temperature": 0.3},
    "forward tokens": {"max_forward_tokens": 700},
    "forward tokens, few": {"max_forward_tokens": 60},
    "truncation": {"top_k": 9, "top_p": 0.95, "repeat_penalty": 1.1},
    "grammar": {"grammar": 'root ::= [a-zA-Z0-9 ,.=+*]+ "\\n" [a-z ]*'},
    "thinking_budget": {"thinking_budget": 24},
    "no thinking": {"thinking": False},
    "one token": {"max_tokens": 1},
}


@dataclass(frozen=True)
class Model:
    """A model that replies are written with."""

    name: str
    path: Path
    engine: Any
    prompts: dict[str, tuple[Prompt, bool]]
    """By name: a prompt, and whether it is raw."""


@dataclass(frozen=True)
class Case:
    """Something that is recorded, under a name of its own."""

    name: str
    run: Callable[[], Any]


def config(seed: int, **options: Any) -> SearchConfig:
    return SearchConfig(**(BASE | {"seed": seed} | options))


def write(
    model: Model, prompt: str, seed: int, method: str = "tgr-latent", **options: Any
) -> Callable[[], Any]:
    text, raw = model.prompts[prompt]

    def run() -> Any:
        chosen = config(seed, **options)
        return exact(generate(model.engine, text, chosen, method=method, raw=raw))

    return run


def plain_cases(model: Model, seeds: Sequence[int]) -> Iterator[Case]:
    """Every method and seed, each with the first and the last prompt."""
    prompts = list(model.prompts)
    for method in METHODS:
        shorter: Json = {"max_chunks": 2} if method == "got" else {}  # it takes ten times as long
        for prompt in (prompts[0], prompts[-1]):
            for seed in seeds:
                run = write(model, prompt, seed, method, **shorter)
                yield Case(f"plain/{method}/{prompt}/{seed}", run)


def variant_cases(model: Model, seeds: Sequence[int]) -> Iterator[Case]:
    """Every variant with two seeds, each with another prompt."""
    prompts = list(model.prompts)
    for name, options in VARIANTS.items():
        for i, seed in enumerate(seeds[:2]):
            prompt = prompts[i % len(prompts)]
            run = write(model, prompt, seed, **options)
            yield Case(f"variant/{name}/{prompt}/{seed}", run)


def method_cases(model: Model, seed: int) -> Iterator[Case]:
    """What every method makes of its own options, and of those that all know."""
    prompts = list(model.prompts)
    for method in METHODS:
        chosen = {str(i): own for i, own in enumerate(OF_METHODS.get(method, []))} | FOR_ALL
        for i, (name, options) in enumerate(chosen.items()):
            prompt = prompts[i % len(prompts)]
            if name in ("grammar", "thinking_budget", "no thinking"):
                prompt = prompts[0]
            shorter: Json = {"max_chunks": 3} if method == "got" else {}
            run = write(model, prompt, seed, method, **shorter | options)
            yield Case(f"method/{method}/{name}/{prompt}", run)
    answers = {"thinking_budget": 24, "grammar": "root ::= [0-9]+", "stop": ("7",)}
    for method in ("base", "tgr-latent", "tgr-token"):
        run = write(model, prompts[0], seed, method, **answers)
        yield Case(f"method/{method}/budget, grammar and stop", run)
    resets = {"thinking_budget": 50, "top_logprobs": 1}
    for kind in ("residual", "absolute"):
        run = write(model, prompts[0], seed, **resets, calibration=kind)
        yield Case(f"method/tgr-latent/answer after resets/{kind}", run)
    for text in ("\n", "."):
        run = write(model, prompts[-1], seed, eoc_token=text)
        yield Case(f"method/tgr-latent/eoc_token {text!r}", run)


def crew_cases(model: Model, seeds: Sequence[int]) -> Iterator[Case]:
    """Replies that are written together."""
    (prompt, raw), *_ = model.prompts.values()

    def many(seed: int, k: int, method: str, **options: Any) -> Callable[[], Any]:
        def run() -> Any:
            chosen = config(seed, **options)
            replies = generate_many(model.engine, prompt, chosen, k, method=method, raw=raw)
            return [exact(reply) for reply in replies]

        return run

    def streamed(seed: int, method: str) -> Callable[[], Any]:
        def run() -> Any:
            events: dict[int, list[Any]] = {i: [] for i in range(3)}

            def on_event(i: int, event: Any) -> None:
                events[i].append(event)

            short = config(seed, max_tokens=50)
            generate_many(model.engine, prompt, short, 3, method=method, raw=raw, on_event=on_event)
            return [of_events(own) for own in events.values()]

        return run

    for method in METHODS:
        shorter: Json = {"max_chunks": 2} if method == "got" else {}
        yield Case(f"crew/{method}", many(seeds[0], 3, method, **shorter))
    for method in ("base", "tgr-latent", "best-of-n"):
        yield Case(f"crew/{method}/heard", streamed(seeds[0], method))
        run = many(seeds[0], 4, method, thinking_budget=15, max_tokens=60)
        yield Case(f"crew/{method}/thinking_budget", run)
    yield Case("crew/many", many(seeds[0], 12, "tgr-latent", max_tokens=45))
    yield Case("crew/one", many(seeds[0], 1, "tgr-latent"))


def event_cases(model: Model, seed: int) -> Iterator[Case]:
    """What listeners and streams tell; steps one by one."""
    (prompt, raw), *_ = model.prompts.values()
    engine = model.engine

    def streamed(method: str, **options: Any) -> Callable[[], Any]:
        def run() -> Any:
            chosen = config(seed, **options)
            return of_events(list(stream(engine, prompt, chosen, method=method, raw=raw)))

        return run

    def listened(method: str, **options: Any) -> Any:
        events: list[Any] = []
        chosen = config(seed, **options)
        reply = generate(engine, prompt, chosen, method=method, raw=raw, on_event=events.append)
        return of_events([*events, reply])

    def verbatim() -> Any:
        return exact(generate(engine, prompt, config(seed), raw=raw, verbatim=True))

    def steps(n: int | None) -> Any:
        written = []
        with contextlib.closing(generate_steps(engine, prompt, config(seed), raw=raw)) as going:
            for step in going:
                written.append(exact(step))
                if len(written) == n:
                    break
        return written

    def tokens() -> Any:
        ids = engine.tokenize("Once upon a time 12 + 5 =", add_special=True)
        return exact(generate(engine, ids, config(seed), method="tgr-token"))

    def advised() -> Any:
        return exact(generate(engine, [5, 6, 7, 8], SearchConfig(max_tokens=70)))

    for method in METHODS:
        yield Case(f"events/stream/{method}", streamed(method, max_tokens=60))
    yield Case("events/stream/thinking_budget", streamed("tgr-latent", thinking_budget=24))
    yield Case("events/stream/stop", streamed("tgr-latent", stop=("3", "the")))
    yield Case("events/listener", lambda: listened("tgr-latent", thinking_budget=30))
    yield Case("events/listener, got", lambda: listened("got", max_tokens=40))
    yield Case("events/verbatim", verbatim)
    yield Case("events/steps", lambda: steps(None))
    yield Case("events/two steps", lambda: steps(2))
    yield Case("events/token ids", tokens)
    yield Case("events/default options", advised)


def shipped_cases(seed: int) -> Iterator[Case]:
    """The embedded model as it is, with the default cache and what its file advises."""
    engine = load(None, EngineConfig(n_threads=1, n_gpu_layers=0))
    for method in METHODS:
        for kind in ("defaults", "options"):
            chosen = None if kind == "defaults" else config(seed)

            def run(method: str = method, chosen: SearchConfig | None = chosen) -> Any:
                return exact(generate(engine, "What is 48 * 7 - 5?", chosen, method=method))

            yield Case(f"{method}/{kind}", run)
    engine.close()
