"""The products of Q8_0 weights (csrc/q8_0.cpp) compared with plain numpy in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from tgr_local.engine import Engine, Sampling, Task
from tgr_local.engine.native import native

pytestmark = pytest.mark.skipif(
    not native.has_q8_0_products(), reason="the processor has no AVX2, or TGR_PRODUCTS is set"
)
BLOCK = 32
KINDS = ["best", "avx2"]
Q8_0 = gguf.GGMLQuantizationType.Q8_0


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, use_products: Callable[[str], None]) -> None:
    use_products(request.param)


def rounded(tokens: NDArray[np.float32]) -> NDArray[np.float64]:
    """Tokens [n_tokens, n] as Q8_0 has them: scales in F16, numbers to the nearest or even."""
    blocks = tokens.reshape(len(tokens), -1, BLOCK)
    most = np.abs(blocks).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(most > 0, np.float32(127) / most, np.float32(0)).astype(np.float32)
    numbers = np.rint(blocks * inverse)
    scales = (most / np.float32(127)).astype(np.float16).astype(np.float64)
    return (numbers * scales).reshape(tokens.shape)


def drawn(n_rows: int, n: int, n_tokens: int) -> tuple[bytes, NDArray, NDArray]:
    """Weights of many scales, with all numbers from -128 to 127, as bytes and numbers; tokens."""
    rng = np.random.default_rng([n_rows, n, n_tokens])
    blocks = np.zeros((n_rows, n // BLOCK, BLOCK + 2), np.uint8)
    scales = (10.0 ** rng.uniform(-4, 0, (n_rows, n // BLOCK, 1))).astype(np.float16)
    blocks[..., :2] = scales.view(np.uint8)
    blocks[..., 2:] = rng.integers(0, 256, (n_rows, n // BLOCK, BLOCK))
    numbers = blocks[..., 2:].view(np.int8) * scales.astype(np.float64)
    tokens = rng.standard_normal((n_tokens, n), np.float32)
    tokens[:, :BLOCK] = 0  # a block without a number
    return blocks.tobytes(), numbers.reshape(n_rows, n), tokens


@pytest.mark.parametrize("n_tokens", [1, 2, 7, 8, 9, 33, 70])
@pytest.mark.parametrize(("n_rows", "n"), [(1, 32), (16, 64), (37, 1024), (50, 1056), (9, 4128)])
def test_products_are_those_of_the_numbers(kind: None, n_rows: int, n: int, n_tokens: int) -> None:
    weights, numbers, tokens = drawn(n_rows, n, n_tokens)
    found = native.q8_0_products(weights, n_rows, tokens)
    whole = rounded(tokens)
    right, size = whole @ numbers.T, np.abs(whole) @ np.abs(numbers).T
    assert np.abs(found - right).max() <= 1e-6 * size.max()


def test_a_product_has_the_same_bits_whatever_is_beside_it(
    use_products: Callable[[str], None],
) -> None:
    weights, _, tokens = drawn(53, 2080, 70)
    all_of_them = native.q8_0_products(weights, 53, tokens)
    for kind in KINDS:
        use_products(kind)
        for n_tokens in (1, 2, 3, 8, 31, 33, 70):
            some = native.q8_0_products(weights, 53, tokens[:n_tokens])
            np.testing.assert_array_equal(some, all_of_them[:n_tokens])
        part = native.q8_0_products(weights, 53, tokens[:5], first=16)
        np.testing.assert_array_equal(part[:, 16:], all_of_them[:5, 16:])
        assert not part[:, :16].any()


def test_numbers_that_are_not_finite_end_nothing(kind: None) -> None:
    weights, _, tokens = drawn(17, 64, 3)
    tokens[0, 40], tokens[1, 40], tokens[2] = np.nan, np.inf, 3e38
    assert native.q8_0_products(weights, 17, tokens).shape == (3, 17)


def test_the_engine_uses_them_and_agrees_with_ggmls(
    model: Callable[..., Path], load: Callable[..., Engine], use_products: Callable[[str], None]
) -> None:
    path, found = model(dtype="Q8_0"), {}
    for kind in ("ggml", "avx2", "best"):
        use_products(kind)
        engine = load(path)
        with engine.session(64, 1) as session:
            task = Task(
                session.sequence(), list(range(5, 40)), n_generate=12, ignore_eog=True,
                sampling=Sampling(temperature=0),
            )  # fmt: skip
            found[kind] = session.run([task])[0].logprobs
    np.testing.assert_array_equal(found["best"], found["avx2"])
    assert 0 < np.abs(found["best"] - found["ggml"]).max() < 0.2
