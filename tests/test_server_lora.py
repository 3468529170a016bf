"""LoRA adapters in the server: their scales for all requests and for one, as llama-server has them,
exact beside requests with others."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engines import EXACT
from lora_files import pairs_for, write_adapter
from serving import HELD, Served, long_text, served
from surroundings import HANG
from threads import in_threads
from visitors import Visitor

from tgr_local import TgrLlama
from tgr_local.engine import Adapter, Cancel
from tgr_local.server.errors import ApiError
from tgr_local.server.lora import ScaleTurns
from tgr_local.system.errors import CancelledError, CapacityError
from tgr_local.system.turnstile import Turnstile

BODY: dict[str, Any] = {"prompt": "he said", "max_tokens": 12, "temperature": 0}
SCALES = (0.5, 0.0, -0.7, 1.0)
LIMITED = f"""import sys
from tgr_local.apis import writing
def told(engine, request, *args, write=writing.write, **more):
    sys.stderr.write(f"max_seconds: {{request.config.max_seconds}}\\n")  # one write: a whole line
    return write(engine, request, *args, **more)
writing.write = told
{HELD}"""
"""As `HELD`, and tells how long each reply may take when it begins."""


@pytest.fixture(scope="module")
def adapter(model: Any, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("lora") / "adapter.gguf"
    return write_adapter(path, pairs_for(model()), metadata={"adapter.lora.task_name": "tales"})


@pytest.fixture(scope="module")
def alone(model: Any, adapter: Path) -> dict[float, str]:
    """What the model writes with each scale, in an engine that was loaded with it."""
    names = ("type_k", "type_v", "flash_attn", "n_gpu_layers", "n_threads")
    options: dict[str, Any] = {name: EXACT[name] for name in names}
    made = {}
    for scale in SCALES:
        with TgrLlama(model(), lora_path=adapter, lora_scale=scale, **options) as llm:
            made[scale] = str(llm.create_completion(method="base", **BODY)["choices"][0]["text"])
    assert len(set(made.values())) == len(SCALES)
    return made


@contextmanager
def adapted(model: Any, adapter: Path, folder: Path, **options: Any) -> Iterator[Served]:
    with served(model(), folder, lora=f"{adapter}:0.5", method="base", **options) as server:
        yield server
        server.until(server.is_free)
        assert not any("Traceback" in line for line in server.lines)


def wrote(server: Served, **more: Any) -> str:
    answer = server.client.post("/v1/completions", json=BODY | more)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def one(scale: float) -> list[dict[str, Any]]:
    return [{"id": 0, "scale": scale}]


def test_the_scales_of_all_requests_are_shown_and_set(
    model: Any, adapter: Path, alone: dict[float, str], tmp_path
):
    shown = {"id": 0, "path": "adapter.gguf", "task_name": "tales", "prompt_prefix": ""}
    with adapted(model, adapter, tmp_path) as server:
        get, post = server.client.get, server.client.post
        assert get("/lora-adapters").json() == [shown | {"scale": 0.5}]
        assert wrote(server) == alone[0.5]
        for sent, scale in (
            (one(-0.7), -0.7), ([shown | {"scale": 1}], 1.0), ([], 0.0), (one(9) + one(0.5), 0.5),
        ):  # fmt: skip
            assert post("/lora-adapters", json=sent).json() == {"success": True}
            assert get("/lora-adapters").json() == [shown | {"scale": scale}]
            assert get("/props").json()["lora"] == [shown | {"scale": scale}]
            assert wrote(server) == alone[scale]
        vector = post("/v1/embeddings", json={"input": "he"}).json()["data"][0]["embedding"]
        for sent, why in (
            ({"id": 0, "scale": 1}, "the body is a JSON object, but must be a list"),
            ([{"id": 1, "scale": 1}], "names the adapter 1, but the server has those from 0 to 0"),
            ([{"id": -1, "scale": 1}], "names the adapter -1, but"),
            ([{"id": 10**400, "scale": 1}], "names the adapter 1000"),
            ([{"id": 0, "scale": 1e9}], "must be a number between -1000000 and 1000000"),
            ([{"id": 0}], "adapters[0].scale is missing; add it"),
            ([{"id": "0", "scale": 1}], "must be a whole number"),
            ([{"id": 0, "scale": 1}] * 300, "holds 300 values, but may hold 256"),
        ):  # fmt: skip
            refused = post("/lora-adapters", json=sent)
            assert refused.status_code == 400 and why in refused.json()["error"]["message"]
        assert post("/lora-adapters", content=b"[" + b" " * 70_000 + b"]").status_code == 413
        assert wrote(server) == alone[0.5]
        post("/lora-adapters", json=[])
        other = post("/v1/embeddings", json={"input": "he"}).json()["data"][0]["embedding"]
        assert other != vector


def test_a_request_may_have_its_own(model: Any, adapter: Path, alone: dict[float, str], tmp_path):
    """In every API, beside others with other scales, and whatever was remembered before."""
    with adapted(model, adapter, tmp_path, prefix_cells=4096) as server:
        post = server.client.post
        scales = [*SCALES, *reversed(SCALES)]
        made = in_threads(*(lambda one_=one_: wrote(server, lora=one(one_)) for one_ in scales))
        assert made == [alone[scale] for scale in scales]
        for scale in SCALES:
            assert wrote(server, lora=one(scale)) == alone[scale]
            assert wrote(server) == wrote(server, lora=[]) == alone[0.5]
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, **_GREEDY}
        asked = {"input": "hello", "max_output_tokens": 8, **_GREEDY}
        for path, body in (
            ("/v1/chat/completions", chat), ("/v1/messages", chat), ("/v1/responses", asked),
            ("/completion", {"prompt": "he said", "n_predict": 8, **_GREEDY}),
        ):  # fmt: skip
            said = set()
            for scale in (0.5, 0.0):
                answer = post(path, json=body | {"lora": one(scale)})
                assert answer.status_code == 200, answer.text
                said.add(_text(answer.json()))
            assert len(said) == 2, path
        refused = post("/v1/completions", json=BODY | {"lora": [{"id": 3, "scale": 1}]})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "lora"
        assert server.client.get("/lora-adapters").json()[0]["scale"] == 0.5


_GREEDY: dict[str, Any] = {"temperature": 0, "tgr": {"method": "base"}}


def _text(answer: Any) -> str:
    if "choices" in answer:
        return str(answer["choices"][0]["message"]["content"])
    if "output" in answer:
        return str(answer["output"][0]["content"][0]["text"])
    return str(answer["content"] if isinstance(answer["content"], str) else answer["content"][0])


def test_kept_prompts_are_those_of_their_scales(model: Any, adapter: Path, tmp_path):
    (kept := tmp_path / "kept").mkdir()
    prompt = "tell me of the fox and the dog, " * 20

    def cached(server: Served, **more: Any) -> int:
        body = BODY | {"prompt": prompt} | more
        usage = server.client.post("/v1/completions", json=body).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    with adapted(model, adapter, tmp_path, prefix_cells=4096, prompt_cache=kept) as server:
        assert cached(server) == 0 and cached(server) > 256
        server.until(lambda: len(list(kept.glob("*.prompt"))) == 1)
        server.client.post("/lora-adapters", json=one(1.0))
        assert cached(server) == 0 and cached(server) > 256
        server.until(lambda: len(list(kept.glob("*.prompt"))) == 2)
        assert cached(server, lora=one(0.5)) > 256  # from its file
        assert cached(server) > 256
        assert not any("is not used" in line for line in server.lines)


def test_a_server_without_adapters_says_so(model: Any, tmp_path):
    with served(model(), tmp_path, method="base") as server:
        assert server.client.get("/lora-adapters").json() == []
        assert server.client.post("/lora-adapters", json=[]).json() == {"success": True}
        for path, body in (
            ("/lora-adapters", one(1)),
            ("/v1/completions", BODY | {"lora": one(1)}),
        ):
            refused = server.client.post(path, json=body)
            assert refused.status_code == 400
            assert "the server has none; --lora FILE" in refused.json()["error"]["message"]
        assert server.client.post("/v1/completions", json=BODY | {"lora": []}).status_code == 200


def test_who_waits_for_scales_delays_nobody_and_gets_the_time_that_is_left(
    model: Any, adapter: Path, tmp_path
):
    options = {"start": LIMITED, "request_seconds": 1000}
    with adapted(model, adapter, tmp_path, **options) as server:
        post, times, held = server.client.post, list[float](), server.hold()

        def watched() -> None:
            with held:
                server.until(server.is_held)
                server.until(lambda: server.gauge("tgr_running") == 4)
                refused = post("/v1/embeddings", json={"input": "he", "dimensions": 3})
                assert refused.status_code == 400 and "dimensions is 3" in refused.text
                for _ in range(3):
                    assert post("/tokenize", json={"content": "he"}).status_code == 200
                    times.append(time.monotonic())

        def embedded() -> int:
            server.until(server.is_held)
            return post("/v1/embeddings", json={"input": "he"}).status_code

        def late() -> None:
            server.until(server.is_held)
            wrote(server)

        body = long_text(max_tokens=8, lora=one(1.0), stream=True)
        made = in_threads(watched, lambda: server.chat("he", **body), embedded, embedded, late)
        assert made[0] is None and made[2:] == [200, 200, None], made
        said = [line for line in server.lines if line.startswith("max_seconds:")]
        first, second = (float(line.split()[1]) for line in said)
        assert first <= 1000 and 0 < second <= 1000 - (times[-1] - times[0])


# --- whose turn it is ---


class Turns:
    """Users of `ScaleTurns` in threads, and the scales that an engine had."""

    def __init__(self) -> None:
        self.engine: Any = SimpleNamespace(adapters=(Adapter(Path("a"), 0.5),))
        self.engine.set_adapter_scales = self._set
        self.turns = ScaleTurns(self.engine)
        self.n_set = 0
        self.is_setting, self.may_set = threading.Event(), threading.Event()
        self.may_set.set()

    def _set(self, scales: Any) -> None:
        self.is_setting.set()
        assert self.may_set.wait(HANG)
        if 9 in scales:
            raise CapacityError("12 MiB of RAM are too few")
        if 8 in scales:
            raise MemoryError
        self.n_set += 1
        self.engine.adapters = (Adapter(Path("a"), *scales),)

    def use(self, scale: float, memory: Turnstile | None = None) -> Visitor:
        """A user that has begun, or waits: for 4 units of `memory` too."""

        @contextmanager
        def held(cancel: Cancel) -> Iterator[None]:
            with self.turns.held((scale,), cancel):
                assert self.engine.adapters[0].scale == scale
                with memory.taken(cancel, 4) if memory else nullcontext():
                    yield
                assert self.engine.adapters[0].scale == scale

        return Visitor(held)


def test_other_scales_wait_and_nobody_overtakes_them():
    turns = Turns()
    first, second = turns.use(0.5), turns.use(0.5)
    assert first.begins() and second.begins() and turns.n_set == 0
    other, late = turns.use(1.0), turns.use(0.5)
    first.leave()
    assert not other.has_begun and not late.has_begun
    with turns.turns.held_as_they_are():  # which waits for nobody, and keeps them
        second.leave()
        assert not other.begins(0.05) and turns.engine.adapters[0].scale == 0.5
    assert other.begins() and not late.has_begun
    other.leave()
    assert late.begins() and turns.n_set == 2
    late.leave()


def test_who_stops_waiting_lets_others_begin():
    turns = Turns()
    first, other, late = turns.use(0.5), turns.use(1.0), turns.use(0.5)
    assert not late.begins(0.05)
    other.cancel()
    assert late.begins()
    assert isinstance(other.error, CancelledError) and turns.n_set == 0
    for user in (first, late):
        user.leave()
    with pytest.raises(ApiError, match="12 MiB of RAM are too few") as failed:
        turns.use(9).leave()  # no memory for it
    assert (failed.value.status, failed.value.code) == (503, "out_of_memory")
    with pytest.raises(MemoryError):
        turns.use(8).leave()
    last = turns.use(1.0)
    assert last.begins()
    last.leave()


def test_a_change_under_way_delays_no_cancel():
    """The event loop cancels, and does nothing else meanwhile."""
    turns = Turns()
    turns.may_set.clear()
    changing = turns.use(1.0)
    assert turns.is_setting.wait(HANG)
    waiting, late = turns.use(0.5), turns.use(1.0)
    waiting.cancel()
    assert isinstance(waiting.error, CancelledError)
    scales = []

    def look() -> None:
        with turns.turns.held_as_they_are():
            scales.append(turns.engine.adapters[0].scale)

    looking = threading.Thread(target=look)
    looking.start()
    looking.join(0.05)
    assert looking.is_alive() and not changing.has_begun and not late.has_begun
    turns.may_set.set()
    looking.join(HANG)
    assert scales == [1.0] and late.begins() and turns.n_set == 1
    for user in (changing, late):
        user.leave()


def test_scales_and_memory_never_wait_for_each_other():
    """Memory is taken inside the scales: whoever has it has the scales too, and ends."""
    turns, memory = Turns(), Turnstile(4)
    first, waits_for_memory = turns.use(0.5, memory), turns.use(0.5, memory)
    waits_for_scales, late = turns.use(1.0, memory), turns.use(0.5, memory)
    assert first.begins()
    first.leave()
    for user in (waits_for_memory, waits_for_scales, late):
        assert user.begins()
        user.leave()
    assert turns.n_set == 2
    first, waits_for_memory, waits_for_scales = (turns.use(s, memory) for s in (0.5, 0.5, 1.0))
    assert first.begins()
    waits_for_memory.cancel()
    assert not waits_for_scales.has_begun
    first.leave()
    assert waits_for_scales.begins()
    waits_for_scales.leave()


def test_users_come_and_go_in_any_order():
    turns, memory = Turns(), Turnstile(8)

    def users(seed: int) -> int:
        draw = random.Random(seed)
        for _ in range(50):
            cancel = Cancel()
            canceller = threading.Thread(target=cancel.cancel)
            if draw.random() < 0.3:
                canceller.start()
            scale, weight = draw.choice((0.5, 1.0)), draw.randint(0, 8)
            with (
                suppress(CancelledError),
                turns.turns.held((scale,), cancel),
                memory.taken(cancel, weight),
            ):
                assert turns.engine.adapters[0].scale == scale
            with turns.turns.held_as_they_are():
                adapters = turns.engine.adapters
                time.sleep(0)
                assert turns.engine.adapters is adapters
        return seed

    assert in_threads(*[lambda i=i: users(i) for i in range(6)]) == list(range(6))
