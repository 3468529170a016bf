"""The products of quantized weights (csrc/quantized) compared with plain numpy in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from tgr_local.engine import Engine, Sampling, Task

testing = pytest.importorskip("tgr_testing", reason="make test builds it")

pytestmark = pytest.mark.skipif(
    not testing.has_products(Type.Q8_0), reason="the processor has no AVX2, or TGR_PRODUCTS is set"
)
BLOCK = 32
KINDS = ["best", "avx2"]
# the byte where the F16 factors of a block begin, and how many there are
FACTORS = {
    Type.Q4_0: (0, 1), Type.Q4_1: (0, 2), Type.Q5_0: (0, 1), Type.Q5_1: (0, 2), Type.Q8_0: (0, 1),
    Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208, 1),
}  # fmt: skip
TYPES = pytest.mark.parametrize("kind_of_weights", FACTORS, ids=lambda kind: kind.name)


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


def drawn(kind: Type, n_rows: int, n: int, n_tokens: int) -> tuple[bytes, NDArray, NDArray]:
    """Weights of any bytes, with factors of many sizes, as bytes and numbers; tokens."""
    rng = np.random.default_rng([kind, n_rows, n, n_tokens])
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (n_rows, n // numbers, size), np.uint8)
    at, n_factors = FACTORS[kind]
    factors = 10.0 ** rng.uniform(-4, 0, (n_rows, n // numbers, n_factors))
    blocks[..., at : at + 2 * n_factors] = factors.astype(np.float16).view(np.uint8)
    tokens = rng.standard_normal((n_tokens, n), np.float32)
    tokens[:, :BLOCK] = 0  # a block without a number
    weights = gguf.quants.dequantize(blocks.reshape(n_rows, -1), kind).astype(np.float64)
    return blocks.tobytes(), weights, tokens


SHAPES = [(1, 1), (16, 2), (37, 32), (50, 33), (9, 129)]  # rows, blocks of 32


@TYPES
@pytest.mark.parametrize("n_tokens", [1, 2, 7, 8, 9, 33, 70])
@pytest.mark.parametrize(("n_rows", "n_blocks"), SHAPES)
def test_products_are_those_of_the_numbers(
    kind: None, kind_of_weights: Type, n_rows: int, n_blocks: int, n_tokens: int
) -> None:
    together = gguf.GGML_QUANT_SIZES[kind_of_weights][0]
    n = -(-n_blocks * BLOCK // together) * together
    weights, numbers, tokens = drawn(kind_of_weights, n_rows, n, n_tokens)
    found = testing.products(kind_of_weights, weights, n_rows, tokens)
    whole = rounded(tokens)
    right, size = whole @ numbers.T, np.abs(whole) @ np.abs(numbers).T
    assert np.abs(found - right).max() <= 1e-6 * size.max()


@TYPES
def test_a_product_has_the_same_bits_whatever_is_beside_it(
    use_products: Callable[[str], None], kind_of_weights: Type
) -> None:
    weights, _, tokens = drawn(kind_of_weights, 53, 2304, 70)
    all_of_them = testing.products(kind_of_weights, weights, 53, tokens)
    for kind in KINDS:
        use_products(kind)
        for n_tokens in (1, 2, 3, 8, 31, 33, 70):
            some = testing.products(kind_of_weights, weights, 53, tokens[:n_tokens])
            np.testing.assert_array_equal(some, all_of_them[:n_tokens])
        part = testing.products(kind_of_weights, weights, 53, tokens[:5], first=16)
        np.testing.assert_array_equal(part[:, 16:], all_of_them[:5, 16:])
        assert not part[:, :16].any()


@TYPES
def test_numbers_that_are_not_finite_end_nothing(kind: None, kind_of_weights: Type) -> None:
    weights, _, tokens = drawn(kind_of_weights, 17, 256, 3)
    tokens[0, 40], tokens[1, 40], tokens[2] = np.nan, np.inf, 3e38
    assert testing.products(kind_of_weights, weights, 17, tokens).shape == (3, 17)


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
