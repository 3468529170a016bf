"""What the engine's tests share: small models, each written once, and engines that must end free.

An engine from here computes as exactly as llama.cpp can (F32 cache, no flash attention) on one
thread, unless a test asks for something else. After every test that had one, nothing may be left in
its cache.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sandboxes
from engines import DEVICE, EXACT, ROUNDING, held, is_free
from fake_engine import install
from gguf_models import write_model
from surroundings import HANG, ROOT, clear
from tool_models import write_tool_model
from trained_models import MODELS, VARIABLE, TrainedModel

from tgr_local.engine import Engine, backend_devices
from tgr_local.engine.native import native
from tgr_local.lab.bench.peers import library
from tgr_local.lab.eval import programs
from tgr_local.options.config import EngineConfig
from tgr_local.system import progress
from tgr_local.system.sandbox import backends

clear()

gc.disable()  # until the tests are collected, which makes no garbage

library()  # so that the llama_cpp that tests compare with computes as the engine does

NUMBERS = itertools.count()
"""Of the folders of tests."""
GPU = any(device.kind in ("gpu", "igpu") for device in backend_devices())


def pytest_configure() -> None:
    if DEVICE not in ("", "cpu", "gpu"):
        raise pytest.UsageError(
            f"TGR_TEST_DEVICE is {DEVICE!r}, but must be gpu or cpu; correct or unset it"
        )
    if DEVICE == "gpu" and not GPU:
        raise pytest.UsageError(
            "TGR_TEST_DEVICE is gpu, but the engine finds no GPU; build it with a GPU backend "
            "(bench/gpu.sh does), or unset it"
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if GPU:
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="ggml finds no GPU here"))


def pytest_collection_finish() -> None:
    """What is there before the first test need not be looked through for garbage after others."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def tmp_path(tmp_path_factory, request) -> Path:
    """An empty folder. pytest's own would look through those of all tests before."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    return tmp_path_factory.mktemp(f"{name}{next(NUMBERS)}", numbered=False)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, request) -> Path:
    """The user's folders, all below one that is empty; the cache folder of tests with trained
    models is the same for all of them, since making what it holds takes long."""
    monkeypatch.delenv("TGR_DATA", raising=False)  # public data are for tests that name them
    monkeypatch.setenv("HOME", str(tmp_path))
    for kind in ("config", "data", "state", "cache"):
        monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", str(tmp_path / kind))
    if request.node.get_closest_marker("trained"):
        cache = request.getfixturevalue("tmp_path_factory").getbasetemp() / "trained-cache"
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return tmp_path


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Ctrl-C does after every test what it did before: a later test sends it to this process."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    after = signal.signal(signal.SIGINT, handler)
    assert after is handler, "the test leaves another handler of SIGINT"


@pytest.fixture(autouse=True)
def quiet(monkeypatch) -> None:
    """No progress line on stderr, which a test on a busy machine would read there."""
    monkeypatch.setattr(progress, "DELAY", HANG)


@pytest.fixture(autouse=True)
def rounding(monkeypatch) -> None:
    """With TGR_TEST_DEVICE every bound is at least ROUNDING: those in the tests are of F32."""
    exact = np.testing.assert_allclose

    def within(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 0, **more: Any) -> None:
        exact(actual, desired, max(rtol, ROUNDING / 10), max(atol, ROUNDING), **more)

    if DEVICE:
        monkeypatch.setattr(np.testing, "assert_allclose", within)


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Callable[..., Path]:
    """`model("llama", tied=True)`: the path of a random model; see gguf_models.write_model."""
    folder = tmp_path_factory.mktemp("models")

    @functools.cache
    def path(arch: str = "qwen3", **shape: Any) -> Path:
        if DEVICE and arch != "phi3":
            shape = {"head_dim": 64} | shape  # the smallest that CUDA's flash attention has
        name = "-".join([arch, *(f"{key}{value}" for key, value in shape.items())])
        file = folder / f"{name}.gguf"  # model() and model("qwen3") are one file, written once
        return file if file.exists() else write_model(file, arch, **shape)

    return path


@pytest.fixture
def use_products() -> Iterator[Callable[[str], None]]:
    """`use_products("ggml")`: what multiplies quantized weights here, as TGR_PRODUCTS does."""
    yield native.use_products
    native.use_products(os.environ.get("TGR_PRODUCTS", "best"))


@pytest.fixture
def load() -> Iterator[Callable[..., Engine]]:
    """`load(path, n_ctx=256)`: an exact engine, closed after the test, when it must be free."""
    engines = []

    def open_engine(path: Path, **options: Any) -> Engine:
        engines.append(Engine(path, EngineConfig(**EXACT | options)))
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.close()


@pytest.fixture(scope="session")
def _shared_engine(model: Callable[..., Path]) -> Iterator[Engine]:
    with Engine(model(), EngineConfig(**EXACT)) as engine:
        yield engine


@pytest.fixture
def engine(_shared_engine: Engine) -> Iterator[Engine]:
    """The exact engine of the default random model, shared by all tests, free after each."""
    yield _shared_engine
    assert is_free(_shared_engine), held(_shared_engine.stats())


@pytest.fixture
def use_template(engine: Engine, monkeypatch) -> Callable[[str], Engine]:
    """`use_template(text)`: the shared engine, which has this chat template in the test."""

    def use(text: str) -> Engine:
        monkeypatch.setattr(engine, "chat_template", text)
        return engine

    return use


@pytest.fixture(scope="session")
def _shared_caller(tmp_path_factory) -> Iterator[Engine]:
    path = write_tool_model(tmp_path_factory.mktemp("tools") / "caller.gguf")
    with Engine(path, EngineConfig(**EXACT)) as engine:
        yield engine


@pytest.fixture
def caller(_shared_caller: Engine) -> Iterator[Engine]:
    """The same of a model whose template knows tools."""
    yield _shared_caller
    assert is_free(_shared_caller), held(_shared_caller.stats())


@pytest.fixture(scope="session")
def stories() -> Path:
    """A real model that this project did not make."""
    path = ROOT.parent / "shared" / "data" / "stories260K" / "stories260K.gguf"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    return path


@pytest.fixture
def double(monkeypatch) -> None:
    """The double of the engine in place of the engine."""
    install(monkeypatch.setattr)


@pytest.fixture
def solved(monkeypatch) -> Callable[..., Any]:
    """`solved(coder, "Repair it.")`: the outcome of a task of the code assistant on a double; see
    fake_coder.carry_out."""
    import fake_coder

    return functools.partial(fake_coder.carry_out, monkeypatch.setattr)


@pytest.fixture
def small(model: Callable[..., Path]) -> Path:
    """A small random model for the real engine."""
    return model()


@pytest.fixture(scope="module")
def sandboxed() -> Iterator[None]:
    """Programs run in the strongest sandbox of this machine."""
    programs.choose(sandboxes.strongest())
    yield
    programs.choose(backends.DEFAULT)


@pytest.fixture(scope="session", params=MODELS, ids=lambda model: model.name)
def trained(request) -> TrainedModel:
    """Each trained model whose file is there; checked once. Tests are ordered by it."""
    model: TrainedModel = request.param
    if not os.environ.get(VARIABLE):
        pytest.skip(f"{VARIABLE} names no folder of trained models; make test-real fetches them")
    if not model.in_folder().exists():
        pytest.skip(f"{model.in_folder()} is absent; make test-real MODELS={model.name} fetches it")
    if not model.is_right(model.in_folder()):
        pytest.fail(f"{model.in_folder()} is another file: its sha256 should be {model.sha256}")
    return model


@pytest.fixture(scope="session")
def _trained_engine(trained: TrainedModel) -> Iterator[Engine]:
    with Engine(trained.in_folder()) as engine:
        yield engine


@pytest.fixture
def trained_engine(_trained_engine: Engine) -> Iterator[Engine]:
    """The engine of a trained model as a person has it, free after each test."""
    yield _trained_engine
    assert is_free(_trained_engine), held(_trained_engine.stats())


@pytest.fixture(scope="session")
def qwen_vocabulary() -> Path:
    """llama.cpp's own vocabulary file of Qwen2, with its test vectors."""
    name = "ggml-vocab-qwen2.gguf"
    sources = [*ROOT.glob("build*/**/llama.cpp/models"), *_named_source()]
    for folder in sources:
        if all((folder / (name + end)).exists() for end in ("", ".inp", ".out")):
            return folder / name
    pytest.skip(f"no {name}: build here, or name llama.cpp's source in TGR_LLAMA_CPP_SOURCE")


def _named_source() -> list[Path]:
    source = os.environ.get("TGR_LLAMA_CPP_SOURCE")
    return [Path(source) / "models"] if source else []
