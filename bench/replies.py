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
import contextlib
import hashlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from f32_weights import with_f32_weights

from tgr_local import (
    Cancel,
    ControlVector,
    EngineConfig,
    SearchConfig,
    TgrLlama,
    generate,
    generate_many,
    generate_steps,
    load,
    stream,
)
from tgr_local.methods import METHODS

Json = dict[str, Any]
Prompt = str | list[dict[str, str]]
EXACT: dict[str, Any] = {
    "type_k": "f32", "type_v": "f32", "flash_attn": "off", "n_threads": 1, "n_gpu_layers": 0,
}  # fmt: skip
BASE: dict[str, Any] = {
    "chunk_len": 20, "max_chunks": 5, "rollout_len": 6, "n_candidates": 4, "sigma": 0.3,
    "relative_strength": 0.15, "temperature": 0.9, "n_samples": 3, "power_blocks": 4,
    "power_steps": 2, "tree_proposals": 2,
}  # fmt: skip
LISTED = 64  # elements of an array up to which they are listed, not hashed

# options of tgr-latent, beside BASE
VARIANTS: dict[str, Json] = {
    "absolute": {"calibration": "absolute", "eta": 0.5},
    "unscaled": {"calibration": "unscaled", "eta": 0.05},
    "residual, strong": {"calibration": "residual", "relative_strength": 0.4, "eta": 1.5},
    "foresight alone": {"lambda_b": 0.0, "lambda_u": 0.0},
    "penalties alone": {"foresight_weight": 0.0, "delta": -0.5, "lambda_u": 2.0},
    "min_gap": {"min_gap": 0.2, "max_rollout": 17},
    "reevaluate": {"reevaluate": 2},
    "n_mc": {"n_mc": 2},
    "n_mc, reevaluate, min_gap": {
        "n_mc": 2, "reevaluate": 3, "min_gap": 0.3, "max_rollout": 12, "normalize_scores": True,
    },
    "lazy reset": {"max_cached_tokens": 110},
    "lazy reset, late": {"max_cached_tokens": 80, "suffix_tokens": 30},
    "shift_cells": {"shift_cells": True},
    "shift_cells, keep_head": {"shift_cells": True, "keep_head": 5, "suffix_tokens": 11},
    "suffix_tokens": {"suffix_tokens": 9},
    "keep_head": {"keep_head": 7},
    "keep_head, suffix_tokens": {"keep_head": 12, "suffix_tokens": 33, "chunk_len": 16},
    "forward tokens": {"max_forward_tokens": 260},
    "forward tokens, few": {"max_forward_tokens": 90, "reevaluate": 4},
    "forward tokens, min_gap": {"max_forward_tokens": 300, "min_gap": 5.0, "max_rollout": 48},
    "penalties": {"repeat_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.4},
    "truncation": {"top_k": 12, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
    "greedy": {"temperature": 0.0},
    "normalize_scores": {"normalize_scores": True},
    "rollout_states": {"rollout_states": "after"},
    "gain": {"foresight": "gain", "n_mc": 2},
    "gain, common_noise": {"foresight": "gain", "common_noise": True, "reevaluate": 2},
    "geometry": {"geometry_top": 3, "min_n_eff": 1.0, "raised_lambda_u": 4.0, "delta": -0.9},
    "geometry, apcs": {"max_apcs": -0.5, "raised_lambda_u": 3.0, "delta": 0.5},
    "reuse_winner": {"reuse_winner": True, "top_logprobs": 2},
    "reuse_winner, min_gap": {
        "reuse_winner": True, "min_gap": 0.3, "max_rollout": 15, "reevaluate": 2, "n_mc": 2,
    },
    "reuse_winner, long": {"reuse_winner": True, "rollout_len": 24, "max_tokens": 47},
    "search_entropy": {"search_entropy": 0.8, "entropy_window": 8},
    "narrow anchors": {"d_z": 16, "rank": 2, "injection_seed": 7},
    "wide anchors": {"d_z": 300, "rank": 16},
    "top_logprobs": {"top_logprobs": 5},
    "one candidate": {"n_candidates": 1},
    "max_tokens": {"max_tokens": 47},
    "chunk_len": {"chunk_len": 16, "rollout_len": 8, "max_chunks": 6},
    "loop_guard": {"loop_guard": 3, "temperature": 0.05, "max_chunks": 12},
    "share_repulsion alone": {"share_repulsion": True},
}  # fmt: skip

# options of one method, beside BASE
OF_METHODS: dict[str, list[Json]] = {
    "base": [{"max_chunks": 1}, {"chunk_len": 64, "max_tokens": 90}],
    "markov": [{"keep_head": 9, "suffix_tokens": 13}, {"shift_cells": True}],
    "random-anchor": [{"calibration": "absolute"}, {"sigma": 1.0, "max_cached_tokens": 100}],
    "tgr-latent": [{"sigma": 1.0, "delta": 0.9}],
    "tgr-token": [{"normalize_scores": True}, {"rollout_len": 20}, {"rollout_len": 30}],
    "hard-geometry": [
        {"kappa_max": 0.3, "max_proposals": 20}, {"step_min": 0.2, "step_max": 0.4}, {"d_z": 12},
    ],
    "best-of-n": [{"n_samples": 5, "max_tokens": 33}, {"n_samples": 1}],
    "self-consistency": [{"n_samples": 7, "temperature": 1.2}],
    "power": [
        {"power_alpha": 1.5, "power_steps": 4}, {"power_steps": 0},
        {"power_blocks": 15, "max_chunks": 3},
    ],
    "tot": [
        {"tree_value": "prompt", "tree_value_samples": 2}, {"tree_breadth": 3, "chunk_len": 16},
    ],
    "got": [
        {"graph_merges": 2, "graph_refines": 0}, {"graph_merges": 0, "graph_refines": 2},
        {"tree_value": "prompt", "tree_value_samples": 1, "max_chunks": 2},
        {"tree_breadth": 3, "max_chunks": 2},
    ],
    "vote": [{"vote_keep": 2}, {"vote_weight": "count", "vote_bar": 2.0}, {"vote_wave": 1}],
    "auto": [{"n_samples": 4}],
    "early-exit": [{"exit_threshold": 0.5}, {"exit_at": "chunk", "exit_threshold": 2.0}],
}  # fmt: skip

# options that every method knows, beside BASE
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


# ---- records ----


def exact(value: Any) -> Any:
    """A value as JSON that loses nothing: floats in hexadecimal, large arrays as their SHA-256."""
    if isinstance(value, np.ndarray):
        described: Json = {"shape": list(value.shape), "dtype": str(value.dtype)}
        if value.size <= LISTED:
            return described | {"values": exact(value.tolist())}
        data = np.ascontiguousarray(value).tobytes()
        return described | {"sha256": hashlib.sha256(data).hexdigest()}
    if isinstance(value, np.generic):
        return exact(value.item())
    if isinstance(value, float):
        return value.hex()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): exact(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [exact(one) for one in value]
    raise TypeError(f"cannot record a {type(value).__name__}")


def parts(value: Any, *names: str) -> Json:
    """These attributes of a record."""
    return {name: exact(getattr(value, name)) for name in names}


def of_counts(counts: Any) -> Json:
    return parts(counts, "query", "rebuild", "rollouts", "chunk", "delimiter", "discarded", "total")


def of_scores(scores: Any) -> Json:
    weights = parts(scores.weights, "foresight_weight", "lambda_b", "lambda_u")
    shown = parts(scores, "foresight", "bumpiness", "uniformity", "total", "chosen", "normalized")
    return {**shown, "gap": exact(scores.gap), "weights": weights}


def of_candidates(candidates: Any) -> Json | None:
    if candidates is None:
        return None
    return {
        **parts(candidates, "anchors", "tokens", "logprobs", "owners"),
        "scores": of_scores(candidates.scores),
    }


def of_step(step: Any) -> Json:
    return {
        **parts(step, "index", "tokens", "logprobs", "entropies", "finish", "cells", "figures"),
        **parts(step, "origin", "anchor", "state", "top_ids", "top_logprobs"),
        "counts": of_counts(step.counts),
        "candidates": of_candidates(step.candidates),
    }


def of_reply(reply: Any) -> Json:
    return {
        **parts(reply, "text", "thinking", "tokens", "n_tokens", "finish", "seed", "method"),
        "closed": reply.closed,
        "counts": of_counts(reply.counts),
        "runs": [parts(run, "first", "query") for run in reply.runs],
        "steps": [of_step(step) for step in reply.steps],
    }


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
            progress = [event.chunk, event.stage, of_candidates(event.candidates)]
            if [progress] != order[-1:]:
                order.append(progress)
        elif hasattr(event, "index"):
            order.append([event.index, "step", len(tokens), event.finish])
        else:
            order.append(["reply", of_reply(event)])
    return {"text": text, "tokens": tokens, "order": order}


def lasting(value: Any) -> Any:
    """A response without what is new each time: its id, when, and how long."""
    if isinstance(value, Mapping):
        kept = {k: lasting(one) for k, one in value.items() if k not in ("created", "seconds")}
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
        if event:
            events = progress.setdefault(str(event.get("index")), [])
            events += [event] if [event] != events[-1:] else []  # how often is a matter of speed
        others = {k: v for k, v in chunk.items() if k not in ("choices", "tgr") and v is not None}
        if chunk.get("tgr") and not event:
            others["tgr"] = chunk["tgr"]
        if isinstance(more := others.pop("content", None), str):  # llama.cpp's words
            rest["content"] = rest.get("content", "") + more
        rest |= others
    return {"choices": choices, "progress": progress, **rest}


def _extend(into: Json, more: Mapping[str, Any]) -> None:
    for key, part in more.items():
        into[key] = into.get(key, []) + part if isinstance(part, list) else part


# ---- models ----


def embedded_f32(folder: Path) -> Path:
    """The embedded model with F32 weights, written into a folder."""
    with load() as engine:
        return with_f32_weights(Path(engine.path), folder / "embedded-f32.gguf")


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


# ---- cases ----


def config(seed: int, **options: Any) -> SearchConfig:
    return SearchConfig(**(BASE | {"seed": seed} | options))


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


def write(
    model: Model, prompt: str, seed: int, method: str = "tgr-latent", **options: Any
) -> Callable[[], Any]:
    text, raw = model.prompts[prompt]

    def run() -> Any:
        made = config(seed, **options)
        return of_reply(generate(model.engine, text, made, method=method, raw=raw))

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
    resets = {"thinking_budget": 50, "suffix_tokens": 13, "keep_head": 4, "top_logprobs": 1}
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
            made = config(seed, **options)
            replies = generate_many(model.engine, prompt, made, k, method=method, raw=raw)
            return [of_reply(reply) for reply in replies]

        return run

    def streamed(seed: int, method: str) -> Callable[[], Any]:
        def run() -> Any:
            events: dict[int, list[Any]] = {i: [] for i in range(3)}

            def on_event(i: int, event: Any) -> None:
                events[i].append(event)

            made = config(seed, max_tokens=50)
            generate_many(model.engine, prompt, made, 3, method=method, raw=raw, on_event=on_event)
            return [of_events(found) for found in events.values()]

        return run

    for method in METHODS:
        shorter: Json = {"max_chunks": 2} if method == "got" else {}
        yield Case(f"crew/{method}", many(seeds[0], 3, method, **shorter))
    for method in ("base", "tgr-latent", "best-of-n"):
        yield Case(f"crew/{method}/heard", streamed(seeds[0], method))
        run = many(seeds[0], 4, method, thinking_budget=15, max_tokens=60)
        yield Case(f"crew/{method}/thinking_budget", run)
    for seed in seeds:
        share: Json = {"share_repulsion": True, "delta": -0.2, "lambda_u": 2.0}
        yield Case(f"crew/share_repulsion/{seed}", many(seed, 3, "tgr-latent", **share))
        share |= {"reevaluate": 2, "min_gap": 0.1, "max_rollout": 12}
        yield Case(f"crew/share_repulsion, deep/{seed}", many(seed, 3, "tgr-latent", **share))
    yield Case("crew/many", many(seeds[0], 12, "tgr-latent", max_tokens=45))
    yield Case("crew/one", many(seeds[0], 1, "tgr-latent"))


def event_cases(model: Model, seed: int) -> Iterator[Case]:
    """What listeners and streams tell, steps one by one, and answers that are asked for."""
    (prompt, raw), *_ = model.prompts.values()
    engine = model.engine

    def streamed(method: str, **options: Any) -> Callable[[], Any]:
        def run() -> Any:
            made = config(seed, **options)
            return of_events(list(stream(engine, prompt, made, method=method, raw=raw)))

        return run

    def listened(method: str, **options: Any) -> Any:
        events: list[Any] = []
        made = config(seed, **options)
        reply = generate(engine, prompt, made, method=method, raw=raw, on_event=events.append)
        return of_events([*events, reply])

    def verbatim() -> Any:
        return of_reply(generate(engine, prompt, config(seed), raw=raw, verbatim=True))

    def steps(n: int | None) -> Any:
        found = []
        with contextlib.closing(generate_steps(engine, prompt, config(seed), raw=raw)) as going:
            for step in going:
                found.append(of_step(step))
                if len(found) == n:
                    break
        return found

    def at_once() -> Any:
        cancel = Cancel()
        cancel.answer_now()
        return of_reply(generate(engine, prompt, config(seed), raw=raw, cancel=cancel))

    def tokens() -> Any:
        ids = engine.tokenize("Once upon a time 12 + 5 =", add_special=True)
        return of_reply(generate(engine, ids, config(seed), method="tgr-token"))

    def advised() -> Any:
        return of_reply(generate(engine, [5, 6, 7, 8], SearchConfig(max_tokens=70)))

    for method in METHODS:
        yield Case(f"events/stream/{method}", streamed(method, max_tokens=60))
    yield Case("events/stream/thinking_budget", streamed("tgr-latent", thinking_budget=24))
    yield Case("events/stream/stop", streamed("tgr-latent", stop=("3", "the")))
    yield Case(
        "events/stream/deep", streamed("tgr-latent", reevaluate=2, min_gap=0.2, max_rollout=12)
    )
    yield Case("events/listener", lambda: listened("tgr-latent", thinking_budget=30))
    yield Case("events/listener, got", lambda: listened("got", max_tokens=40))
    yield Case("events/verbatim", verbatim)
    yield Case("events/steps", lambda: steps(None))
    yield Case("events/two steps", lambda: steps(2))
    yield Case("events/answer at once", at_once)
    yield Case("events/token ids", tokens)
    yield Case("events/default options", advised)


def llama_cases(model: Model, seed: int) -> Iterator[Case]:
    """llama-cpp-python's methods, each with a model of its own."""
    options = {k: v for k, v in BASE.items() if k not in ("max_chunks", "temperature")}
    text = next(str(p) for p, raw in model.prompts.values() if raw)

    def with_llama(work: Callable[[TgrLlama], Any]) -> Callable[[], Any]:
        def run() -> Any:
            base = config(seed)
            with TgrLlama(model.path, config=base, seed=seed, method="tgr-latent", **EXACT) as it:
                made = work(it)
                return exact(lasting(made) if isinstance(made, dict | list) else made)

        return run

    def completion(**given: Any) -> Callable[[], Any]:
        def work(it: TgrLlama) -> Any:
            usual: Json = {"prompt": text, "model": "m", "max_tokens": 40}
            made = it.create_completion(**usual | given)
            return joined(list(made)) if given.get("stream") else made

        return with_llama(work)

    def chat(**given: Any) -> Callable[[], Any]:
        messages = [{"role": "user", "content": "What is 31 + 45?"}]

        def work(it: TgrLlama) -> Any:
            usual: Json = {"model": "m"}
            made = it.create_chat_completion(messages, **usual | given)
            return joined(list(made)) if given.get("stream") else made

        return with_llama(work)

    completions: dict[str, Json] = {
        "plain": {},
        "logprobs": {"logprobs": 3},
        "echo": {"logprobs": 2, "echo": True},
        "prompt alone": {"logprobs": 2, "echo": True, "prompt": [text, [7, 8, 9]]},
        "two prompts": {"prompt": [text, "1+1="], "n": 2, "logprobs": 1},
        "best_of": {"n": 2, "best_of": 4, "logprobs": 0},
        "stream": {"stream": True},
        "stream, logprobs": {"stream": True, "logprobs": 2, "echo": True, "n": 2},
        "stream, progress": {
            "stream": True, "tgr": {"progress": True}, "stream_options": {"include_usage": True},
        },
        "stop": {"stop": ["4", "a "], "logprobs": 1},
        "bias": {"logit_bias": {"300": 5.0, "301": -100}, "method": "base", "logprobs": 1},
        "sampling": {
            "temperature": 1.1, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "repeat_penalty": 1.2,
            "frequency_penalty": 0.3, "presence_penalty": 0.1, "seed": 99,
        },
        "grammar": {"grammar": 'root ::= "a" [b-z]+ " " [0-9]*', "logprobs": 1},
        "all tokens": {"max_tokens": None},
        "options": {"tgr": {"n_mc": 2, "reevaluate": 2, "keep_head": 3, "method": "tgr-latent"}},
    }  # fmt: skip
    for name, given in completions.items():
        yield Case(f"llama/completion/{name}", completion(**given))
    for method in METHODS:
        run = completion(method=method, logprobs=2, n=2, tgr=options)
        yield Case(f"llama/completion/{method}", run)
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    chats: dict[str, Json] = {
        "plain": {},
        "logprobs": {"logprobs": True, "top_logprobs": 4, "max_tokens": 60},
        "stream": {"stream": True, "logprobs": True, "top_logprobs": 2},
        "n": {"n": 3, "stream": True, "stream_options": {"include_usage": True}},
        "schema": {
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
            "logprobs": True, "tgr": {"thinking_budget": 20},
        },
        "json": {"response_format": {"type": "json_object"}, "max_tokens": 50},
        "no thinking": {"reasoning_effort": "none", "logprobs": True},
        "thinking_budget": {"tgr": {"thinking_budget": 12}, "logprobs": True, "n": 2},
    }  # fmt: skip
    if not model.engine.chat_template:
        chats = {"plain": {}}  # one refusal is enough
    for name, given in chats.items():
        yield Case(f"llama/chat/{name}", chat(**given))

    def states(it: TgrLlama) -> Any:
        return {
            "hidden_states": it.hidden_states(text),
            "of ids": it.hidden_states([3, 4, 5]),
            "embed": np.array(it.embed(text, pooling="mean", normalize=True)),
            "tokens": np.array(it.embed(text)),
            "last": np.array(it.embed([text, "abc"], pooling="last")),
            "embedding": lasting(it.create_embedding(["a b", "1+1"], model="m")),
            "ids": it.tokenize("Once <think> 1+1 é".encode()),
            "special": it.tokenize(b"<think>x<|im_end|>", add_bos=False, special=True),
            "bytes": it.detokenize([1, 2, 300, 301, 302], special=True),
            "numbers": [it.n_ctx(), it.n_embd(), it.n_vocab(), it.token_bos(), it.token_eos()],
        }

    yield Case("llama/states", with_llama(states))


def vector_cases(model: Model, seed: int) -> Iterator[Case]:
    """Control vectors."""
    engine = model.engine
    (prompt, raw), *_ = model.prompts.values()
    text = next(str(p) for p, raw in model.prompts.values() if raw)
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((engine.n_layer, engine.n_embd)) * 0.2

    def pushed(vector: Any, **given: Any) -> Callable[[], Any]:
        def run() -> Any:
            with TgrLlama(model.path, config=config(seed), seed=seed, **EXACT) as it:
                made = it.create_completion(
                    text, model="m", max_tokens=45, logprobs=1, **given, control_vector=vector
                )
            return {"pushes": exact(vector.added), "made": exact(lasting(made))}

        return run

    def of_anchor() -> Any:
        made = config(seed)
        reply = generate(engine, prompt, made, raw=raw)
        query = reply.runs[0].query
        one = ControlVector.of_anchor(engine, reply.steps[0].anchor, made, query)
        plain = config(seed, calibration="absolute")
        two = ControlVector.of_anchor(engine, reply.steps[-1].anchor, plain, query)
        return [exact(one.added), exact(two.added), exact((one - 0.5 * two).added)]

    def filed() -> Any:
        vector = ControlVector(vectors, 0.7)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "vector.gguf"
            vector.save(path, "llama")
            again = ControlVector.load(path, engine.n_layer)
            data = hashlib.sha256(path.read_bytes()).hexdigest()
        return {"pushes": exact(again.added), "sha256": data}

    yield Case("vector/base", pushed(ControlVector(vectors), method="base"))
    yield Case("vector/latent", pushed(ControlVector(vectors, 0.5), method="tgr-latent"))
    one_layer = ControlVector(vectors, -1.5, [1])
    yield Case("vector/one layer", pushed(one_layer, method="base", n=2))
    both = ControlVector(vectors) * 0.5 - ControlVector(vectors[::-1], 0.25)
    yield Case("vector/sum", pushed(both, method="random-anchor"))
    yield Case("vector/of_anchor", of_anchor)
    yield Case("vector/file", filed)


def engine_cases(model: Model) -> Iterator[Case]:
    """What the engine says of the model and of texts."""
    engine = model.engine
    texts = ["", " ", "Once upon a time", "12 + 5 = 17\n", "é 日本 👩", "<think>\n1</think>", "\0a"]

    def chat_prompt(thinking: bool) -> Any:
        messages = [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": "<think>\n1</think>\n2"},
            {"role": "user", "content": "2+2?"},
        ]
        return engine.chat_prompt(messages, thinking=thinking)

    def tokens() -> Any:
        found = [engine.tokenize(text) for text in texts]
        special = [engine.tokenize(text, add_special=True, parse_special=False) for text in texts]
        back = [engine.detokenize(ids, special=True) for ids in found]
        return exact([found, special, back, engine.detokenize(list(range(engine.n_vocab)))])

    def about() -> Any:
        shown = ("n_vocab", "n_embd", "n_layer", "n_ctx_train", "n_params", "size_bytes", "bos")
        names = (*shown, "eos", "description", "metadata", "chat_template")
        return parts(engine, *names) | {"eoc": engine.eoc_token()}

    yield Case("engine/tokens", tokens)
    yield Case("engine/about", about)
    yield Case("engine/chat_prompt", lambda: chat_prompt(True))
    yield Case("engine/chat_prompt, no thinking", lambda: chat_prompt(False))


def error_cases(model: Model) -> Iterator[Case]:
    """Bad arguments, each refused with a message of its own."""
    engine = model.engine
    (prompt, raw), *_ = model.prompts.values()

    def ask(prompt: Any = prompt, method: str = "tgr-latent", **options: Any) -> Any:
        is_raw = raw and isinstance(prompt, str)
        return of_reply(generate(engine, prompt, config(0, **options), method=method, raw=is_raw))

    def cancelled() -> Any:
        cancel = Cancel()
        cancel.cancel()
        return of_reply(generate(engine, [1, 2, 3], config(0), cancel=cancel))

    def many(k: int, **options: Any) -> Any:
        return [of_reply(one) for one in generate_many(engine, [1, 2, 3], config(0, **options), k)]

    def llama(**given: Any) -> Any:
        with TgrLlama(model.path, config=config(0), seed=0, **EXACT) as it:
            usual: Json = {"prompt": "1", "model": "m"}
            return exact(lasting(it.create_completion(**usual | given)))

    vectors = np.zeros((engine.n_layer, engine.n_embd))
    bad: dict[str, Callable[[], Any]] = {
        "n_candidates 0": lambda: ask(n_candidates=0),
        "n_candidates text": lambda: ask(n_candidates="4"),
        "n_candidates many": lambda: ask(n_candidates=255, n_mc=64),
        "chunk_len": lambda: ask(chunk_len=True),
        "temperature": lambda: ask(temperature=float("nan")),
        "calibration": lambda: ask(calibration="relative"),
        "max_rollout": lambda: ask(min_gap=0.1, max_rollout=2),
        "loop_guard": lambda: ask(loop_guard=1),
        "steps": lambda: ask(step_min=1.0, step_max=0.5),
        "stop": lambda: ask(stop="a"),
        "stop empty": lambda: ask(stop=("",)),
        "seed": lambda: SearchConfig(seed=-1),
        "unknown option": lambda: ask(chunk_length=5),
        "grammar": lambda: ask(grammar="root ::= ("),
        "eoc_token": lambda: ask(eoc_token="no single token at all"),
        "forward tokens": lambda: ask(max_forward_tokens=3),
        "method": lambda: ask(method="tgr-latnt"),
        "method unknown": lambda: ask(method="zzz"),
        "prompt empty": lambda: ask([]),
        "prompt number": lambda: ask(5),
        "prompt token": lambda: ask([1, 2, 10**6]),
        "prompt mixed": lambda: ask([1, "a"]),
        "prompt role": lambda: ask([{"role": "user"}]),
        "prompt long": lambda: ask([1] * (engine.n_ctx_train + 1), method="base"),
        "raw list": lambda: generate(engine, [{"role": "user", "content": "a"}], raw=True),
        "chat": lambda: ask([{"role": "user", "content": "hi"}], max_tokens=5),
        "cancelled": cancelled,
        "k 0": lambda: many(0),
        "k and candidates": lambda: many(2, n_candidates=200, n_mc=2),
        "n_ubatch": lambda: EngineConfig(n_batch=8, n_ubatch=16),
        "type_k": lambda: EngineConfig(type_k="f8"),
        "tensor_split": lambda: EngineConfig(**{"tensor_split": (1, "a")}),
        "no file": lambda: load("/nonexistent/model.gguf"),
        "no model": lambda: load("/dev/null"),
        "llama unknown": lambda: llama(tgr={"n_candidate": 4}),
        "llama method": lambda: llama(method="bas"),
        "llama suffix": lambda: llama(suffix="x"),
        "llama bias": lambda: llama(logit_bias={"100000": 1}),
        "llama best_of": lambda: llama(n=3, best_of=2),
        "llama logprobs": lambda: llama(logprobs=1000),
        "llama prompt": lambda: llama(prompt={"a": 1}),
        "llama option": lambda: llama(tgr={"sigma": "wide"}),
        "vector shape": lambda: ControlVector(np.zeros(5)),
        "vector layers": lambda: ControlVector(vectors, 1.0, [99]),
        "vector infinite": lambda: ControlVector(vectors + np.inf),
        "vector width": lambda: llama(control_vector=ControlVector(vectors[:, :-1])),
        "vector anchor": lambda: ControlVector.of_anchor(engine, np.ones(3), config(0), [1, 2]),
        "vector sum": lambda: ControlVector(vectors) + ControlVector(vectors[1:]),
        "closed": lambda: closed(),
    }

    def closed() -> Any:
        with load(model.path, EngineConfig(**EXACT)) as engine:
            pass
        return of_reply(generate(engine, [1, 2, 3], config(0)))

    for name, run in bad.items():
        yield Case(f"error/{name}", run)


def shipped_cases(seed: int) -> Iterator[Case]:
    """The embedded model as it is, with the default cache and what its file advises."""
    engine = load(None, EngineConfig(n_threads=1, n_gpu_layers=0))
    for method in METHODS:
        for given in ("defaults", "options"):
            made = None if given == "defaults" else config(seed)

            def run(method: str = method, made: SearchConfig | None = made) -> Any:
                return of_reply(generate(engine, "What is 48 * 7 - 5?", made, method=method))

            yield Case(f"{method}/{given}", run)
    engine.close()


# ---- record and compare ----


def outcome(case: Case, folder: Path) -> Any:
    """What a case gives, or the error that it ends with; the folder of its model does not count."""
    try:
        made = case.run()
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error).replace(f"{folder}/", "")}
    return made if isinstance(made, dict | list | str) else type(made).__name__


def models(paths: Sequence[Path], folder: Path) -> Iterator[Model]:
    """Each model, open for the time that it is used."""
    found = list(paths) or [embedded_f32(folder), *filter(None, [stories()])]
    for path in found:
        with load(path, EngineConfig(**EXACT)) as engine:
            yield Model(path.stem, path, engine, prompts_of(engine))


def record(paths: Sequence[Path], seeds: Sequence[int]) -> Json:
    """All cases of all models."""
    about: Json = {"seeds": list(seeds), "methods": list(METHODS), "models": {}}
    cases: Json = {}

    def add(model: str, found: Iterator[Case], folder: Path) -> None:
        begun = time.monotonic()
        for case in found:
            name = f"{model}/{case.name}"
            assert name not in cases, name
            cases[name] = outcome(case, folder)
        print(f"{model}: {len(cases)} cases so far, {time.monotonic() - begun:.0f} s", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        for model in models(paths, Path(folder)):
            digest = hashlib.sha256(model.path.read_bytes()).hexdigest()
            about["models"][model.name] = digest
            add(model.name, cases_of(model, seeds), model.path.parent)
    if not paths:
        add("shipped", shipped_cases(seeds[0]), Path("/"))
    return {"about": about, "cases": cases}


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="write down what the library answers")
    recorder.add_argument("out", type=Path)
    recorder.add_argument("--model", type=Path, nargs="+", default=[], help="GGUF files")
    recorder.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add_compare(commands)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        return compare_files(arguments)
    save(arguments.out, record(arguments.model, arguments.seeds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
