"""What replies.py records in addition to replies: llama-cpp-python's methods, control vectors, what
the engine says, and bad arguments."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from exact_records import Json, exact, joined, lasting
from reply_cases import BASE, EXACT, Case, Model, config

from tgr_local import (
    Cancel,
    ControlVector,
    EngineConfig,
    SearchConfig,
    TgrLlama,
    generate,
    generate_many,
    load,
)
from tgr_local.methods import METHODS


def llama_cases(model: Model, seed: int) -> Iterator[Case]:
    """llama-cpp-python's methods, each with a model of its own."""
    options = {k: v for k, v in BASE.items() if k not in ("max_chunks", "temperature")}
    text = next(str(p) for p, raw in model.prompts.values() if raw)

    def with_llama(work: Callable[[TgrLlama], Any]) -> Callable[[], Any]:
        def run() -> Any:
            base = config(seed)
            with TgrLlama(model.path, config=base, seed=seed, method="tgr-latent", **EXACT) as llm:
                reply = work(llm)
                return exact(lasting(reply) if isinstance(reply, dict | list) else reply)

        return run

    def completion(**changes: Any) -> Callable[[], Any]:
        def work(llm: TgrLlama) -> Any:
            usual: Json = {"prompt": text, "model": "m", "max_tokens": 40}
            reply = llm.create_completion(**usual | changes)
            return joined(list(reply)) if changes.get("stream") else reply

        return with_llama(work)

    def chat(**changes: Any) -> Callable[[], Any]:
        messages = [{"role": "user", "content": "What is 31 + 45?"}]

        def work(llm: TgrLlama) -> Any:
            usual: Json = {"model": "m"}
            reply = llm.create_chat_completion(messages, **usual | changes)
            return joined(list(reply)) if changes.get("stream") else reply

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
        "options": {"tgr": {"n_mc": 2, "reevaluate": 2, "method": "tgr-latent"}},
    }  # fmt: skip
    for name, changes in completions.items():
        yield Case(f"llama/completion/{name}", completion(**changes))
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
    for name, changes in chats.items():
        yield Case(f"llama/chat/{name}", chat(**changes))

    def states(llm: TgrLlama) -> Any:
        return {
            "hidden_states": llm.hidden_states(text),
            "of ids": llm.hidden_states([3, 4, 5]),
            "embed": np.array(llm.embed(text, pooling="mean", normalize=True)),
            "tokens": np.array(llm.embed(text)),
            "last": np.array(llm.embed([text, "abc"], pooling="last")),
            "embedding": lasting(llm.create_embedding(["a b", "1+1"], model="m")),
            "ids": llm.tokenize("Once <think> 1+1 é".encode()),
            "special": llm.tokenize(b"<think>x<|im_end|>", add_bos=False, special=True),
            "bytes": llm.detokenize([1, 2, 300, 301, 302], special=True),
            "numbers": [llm.n_ctx(), llm.n_embd(), llm.n_vocab(), llm.token_bos(), llm.token_eos()],
        }

    yield Case("llama/states", with_llama(states))


def vector_cases(model: Model, seed: int) -> Iterator[Case]:
    """Control vectors."""
    engine = model.engine
    (prompt, raw), *_ = model.prompts.values()
    text = next(str(p) for p, raw in model.prompts.values() if raw)
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((engine.n_layer, engine.n_embd)) * 0.2

    def pushed(vector: Any, **options: Any) -> Callable[[], Any]:
        def run() -> Any:
            with TgrLlama(model.path, config=config(seed), seed=seed, **EXACT) as llm:
                response = llm.create_completion(
                    text, model="m", max_tokens=45, logprobs=1, **options, control_vector=vector
                )
            return {"pushes": exact(vector.added), "made": exact(lasting(response))}

        return run

    def of_anchor() -> Any:
        search = config(seed)
        reply = generate(engine, prompt, search, raw=raw)
        query = reply.runs[0].query
        first = ControlVector.of_anchor(engine, reply.steps[0].anchor, search, query)
        plain = config(seed, calibration="absolute")
        last = ControlVector.of_anchor(engine, reply.steps[-1].anchor, plain, query)
        return [exact(first.added), exact(last.added), exact((first - 0.5 * last).added)]

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
    total = ControlVector(vectors) * 0.5 - ControlVector(vectors[::-1], 0.25)
    yield Case("vector/sum", pushed(total, method="random-anchor"))
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
        ids_of_texts = [engine.tokenize(text) for text in texts]
        special = [engine.tokenize(text, add_special=True, parse_special=False) for text in texts]
        back = [engine.detokenize(ids, special=True) for ids in ids_of_texts]
        return exact([ids_of_texts, special, back, engine.detokenize(list(range(engine.n_vocab)))])

    def about() -> Any:
        numbers = ("n_vocab", "n_embd", "n_layer", "n_ctx_train", "n_params", "size_bytes", "bos")
        names = (*numbers, "eos", "description", "metadata", "chat_template")
        facts = {name: exact(getattr(engine, name)) for name in names}
        return facts | {"eoc": engine.eoc_token()}

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
        return exact(generate(engine, prompt, config(0, **options), method=method, raw=is_raw))

    def cancelled() -> Any:
        cancel = Cancel()
        cancel.cancel()
        return exact(generate(engine, [1, 2, 3], config(0), cancel=cancel))

    def many(k: int, **options: Any) -> Any:
        return [exact(reply) for reply in generate_many(engine, [1, 2, 3], config(0, **options), k)]

    def llama(**changes: Any) -> Any:
        with TgrLlama(model.path, config=config(0), seed=0, **EXACT) as llm:
            usual: Json = {"prompt": "1", "model": "m"}
            return exact(lasting(llm.create_completion(**usual | changes)))

    vectors = np.zeros((engine.n_layer, engine.n_embd))
    bad: dict[str, Callable[[], Any]] = {
        "n_candidates 0": lambda: ask(n_candidates=0),
        "n_candidates text": lambda: ask(n_candidates="4"),
        "n_candidates many": lambda: ask(n_candidates=255, n_mc=64),
        "chunk_len": lambda: ask(chunk_len=True),
        "temperature": lambda: ask(temperature=float("nan")),
        "calibration": lambda: ask(calibration="relative"),
        "loop_guard": lambda: ask(loop_guard=1),
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
        return exact(generate(engine, [1, 2, 3], config(0)))

    for name, run in bad.items():
        yield Case(f"error/{name}", run)
