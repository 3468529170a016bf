"""Options: defaults, bounds, text from people and from model files."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from tgr_local.options.config import EngineConfig, SearchConfig
from tgr_local.options.fields import parse, types_of, updated
from tgr_local.options.resolve import DEFAULT, MODEL_FILE, USER, resolve
from tgr_local.system.errors import ModelError

Config = type[EngineConfig] | type[SearchConfig]
FIELDS: list[tuple[Config, dataclasses.Field[Any]]] = [
    (config, spec)
    for config in (EngineConfig, SearchConfig)
    for spec in dataclasses.fields(config)  # type: ignore[arg-type]
]
every_field = pytest.mark.parametrize(
    ("config", "spec"), FIELDS, ids=[f"{config.__name__}.{spec.name}" for config, spec in FIELDS]
)


def kind_of(config: Config, name: str) -> Any:
    return types_of(config)[name]


def bounds(spec: dataclasses.Field[Any]) -> tuple[float | None, float | None]:
    return spec.metadata["low"], spec.metadata["high"]


# --- the defaults of the method ---


def test_the_defaults_are_the_methods():
    wanted = {  # S, L, K, s, N_MC, r, η, σ, δ, λ_b, λ_u, T, d_z = d_h
        "chunk_len": 512, "max_chunks": 24, "n_candidates": 8, "rollout_len": 32, "n_mc": 1,
        "rank": 8, "eta": 1.0, "sigma": 0.05, "delta": 0.2, "lambda_b": 0.5, "lambda_u": 0.5,
        "temperature": 0.6, "d_z": 0, "calibration": "divergence", "seed": 42,
        "reuse_winner": False,
    }  # fmt: skip
    config = SearchConfig()
    assert {name: getattr(config, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, 512 * 24),
        ({"chunk_len": 10, "max_chunks": 3}, 30),
        ({"chunk_len": 10, "max_chunks": 3, "max_tokens": 7}, 7),
        ({"chunk_len": 10, "max_chunks": 3, "max_tokens": 31}, 30),
    ],
)
def test_new_tokens_are_limited_by_the_horizon_and_by_max_tokens(
    options: dict[str, int], limit: int
):
    assert SearchConfig(**options).token_limit == limit  # type: ignore[arg-type]


# --- every field ---


@every_field
def test_a_field_is_documented_frozen_and_has_a_valid_default(
    config: Config, spec: dataclasses.Field[Any]
):
    assert spec.metadata["doc"] and not spec.metadata["doc"].endswith(".")
    made = config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, spec.name, spec.default)
    assert config(**{spec.name: spec.default}) == made


@every_field
def test_a_field_refuses_other_types(config: Config, spec: dataclasses.Field[Any]):
    kind = kind_of(config, spec.name)
    wrong: list[Any] = [None, b"1", [1], {}, 1j, np.array([1.0, 2.0]), np.int64(1)]
    wrong += {
        int: [1.0, "1", True],
        float: ["1", True],
        bool: [1, 0, "on"],
        str: [1, True],
        tuple[float, ...]: [1.0, "1", ("1",), (True,), (None,)],
        tuple[str, ...]: ["a", (1,), (b"a",), (None,)],
    }[kind]
    for value in wrong:
        with pytest.raises(ValueError, match=rf"^{spec.name} is .* must be of type"):
            config(**{spec.name: value})


@every_field
def test_a_field_keeps_its_bounds(config: Config, spec: dataclasses.Field[Any]):
    kind, (low, high) = kind_of(config, spec.name), bounds(spec)
    if kind is int:
        assert low is not None  # the native engine takes no number without one
        high = 2**31 - 1 if high is None else high
    step = 1 if kind is int else 1e-3 if high is None or high < 1e9 else high
    few = {"n_ubatch": {"n_batch": 16384}, "n_batch": {"n_ubatch": 1}}.get(spec.name, {})
    for bound, beyond in ((low, -step), (high, step)):
        if bound is None:
            continue
        values = {spec.name: kind(bound)} if kind in (int, float) else {spec.name: (bound,)}
        config(**few | values)
        beyond_it = bound + beyond if kind in (int, float) else (bound + beyond,)
        with pytest.raises(ValueError, match=rf"^{spec.name} is .*, but must be"):
            config(**few | {spec.name: beyond_it})


@every_field
def test_a_number_must_be_finite(config: Config, spec: dataclasses.Field[Any]):
    kind = kind_of(config, spec.name)
    for value in (math.inf, -math.inf, math.nan):
        if kind in (float, tuple[float, ...]):
            with pytest.raises(ValueError, match=f"^{spec.name} is {value}, but must be"):
                config(**{spec.name: value if kind is float else (value,)})


@every_field
def test_a_choice_is_one_of_its_choices(config: Config, spec: dataclasses.Field[Any]):
    choices = spec.metadata["choices"]
    for choice in choices or ():
        config(**{spec.name: choice})
    if choices:
        with pytest.raises(ValueError, match=f"^{spec.name} is 'x', but must be one of"):
            config(**{spec.name: "x"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma": -0.1}, "sigma is -0.1, but must be at least 0"),
        ({"n_candidates": 0}, "n_candidates is 0, but must be between 1 and 255"),
        (
            {"calibration": "none"},
            "calibration is 'none', but must be one of divergence, residual, absolute",
        ),
        ({"stop": ("a", "")}, "stop holds an empty text; remove it"),
        ({"top_p": 1.5}, "top_p is 1.5, but must be between 0 and 1"),
        # what the engine can take
        ({"dry_base": 1e300}, "dry_base is 1e+300, but must be between 1 and 1e+30"),
        ({"dry_multiplier": 1e300}, "dry_multiplier is 1e+300, but must be between 0 and 1e+30"),
        ({"dry_sequence_breakers": ("",)}, "dry_sequence_breakers holds an empty text; remove it"),
    ],
)
def test_messages_name_the_field_the_value_and_the_bound(options: dict[str, Any], message: str):
    with pytest.raises(ValueError) as refusal:
        SearchConfig(**options)
    assert str(refusal.value) == message


@pytest.mark.parametrize("name", ["dry_sequence_breakers", "grammar", "eoc_token"])
def test_half_a_surrogate_pair_is_refused(name: str):
    values = [(":", "a\ud800")] if name == "dry_sequence_breakers" else ["a\ud800"]
    for value in values:
        with pytest.raises(ValueError, match=rf"^{name} is .*not at character 1; remove that"):
            SearchConfig(**{name: value})


def test_a_micro_batch_is_part_of_a_batch():
    with pytest.raises(ValueError, match=r"n_ubatch is 65, but cannot exceed n_batch.* 64"):
        EngineConfig(n_batch=64, n_ubatch=65)
    with pytest.raises(ValueError, match=r"type_v is q8_0, which needs .* set flash_attn"):
        EngineConfig(type_v="q8_0", flash_attn="off")


# --- by name and from text ---


def test_updated_replaces_and_refuses_unknown_keys():
    assert updated(SearchConfig(), {"sigma": 0.3, "seed": 7}) == SearchConfig(sigma=0.3, seed=7)
    assert updated(SearchConfig(), {}) == SearchConfig()
    with pytest.raises(ValueError, match="unknown option 'sigmar'; did you mean sigma"):
        updated(SearchConfig(), {"sigmar": 1})
    with pytest.raises(ValueError, match="unknown option 'n_ctx'"):
        updated(SearchConfig(), {"n_ctx": 1})
    with pytest.raises(ValueError, match=r"^min_gap has left the search; remove it$"):
        updated(SearchConfig(), {"min_gap": 0.0})
    with pytest.raises(ValueError, match="sigma is -1"):
        updated(SearchConfig(), {"sigma": -1})


@pytest.mark.parametrize(
    ("config", "name", "text", "value"),
    [
        (SearchConfig, "sigma", "0.25", 0.25),
        (SearchConfig, "sigma", "1e-3", 0.001),
        (SearchConfig, "n_candidates", "4", 4),
        (SearchConfig, "reuse_winner", "on", True),
        (SearchConfig, "reuse_winner", "True", True),
        (SearchConfig, "thinking", "off", False),
        (SearchConfig, "thinking", "no", False),
        (SearchConfig, "thinking", "0", False),
        (SearchConfig, "calibration", "absolute", "absolute"),
        (SearchConfig, "stop", "a, b", ("a, b",)),
        (EngineConfig, "tensor_split", "3,1", (3.0, 1.0)),
        (EngineConfig, "n_gpu_layers", "-1", -1),
    ],
)
def test_text_becomes_the_value_that_a_person_means(
    config: Config, name: str, text: str, value: Any
):
    parsed = parse(config, name, text)
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sigma", "wide", "sigma is 'wide', but must be a number"),
        ("n_candidates", "4.5", "n_candidates is '4.5', but must be a whole number"),
        ("thinking", "maybe", "thinking is 'maybe', but must be on or off"),
        ("sigmar", "1", "unknown option 'sigmar'"),
    ],
)
def test_text_that_means_nothing_is_refused(name: str, text: str, message: str):
    with pytest.raises(ValueError, match=message):
        parse(SearchConfig, name, text)


@every_field
def test_every_default_is_read_back_from_its_text(config: Config, spec: dataclasses.Field[Any]):
    value = getattr(config(), spec.name)
    if not isinstance(value, tuple):
        assert parse(config, spec.name, str(value)) == value


# --- what a model advises ---


def test_the_models_advice_replaces_defaults_and_a_wish_replaces_both():
    metadata = {"tgr.sigma": "0.3", "tgr.chunk_len": "64", "general.name": "x", "tgr.version": "2"}
    assert resolve({}).config == SearchConfig()
    assert resolve(metadata).config == SearchConfig(sigma=0.3, chunk_len=64)
    user_options = {"sigma": 0.05, "seed": 7, "rank": 4}
    config, sources, _ = resolve(metadata, user_options, {"seed": "--seed", "rank": "TGR_RANK"})
    assert config == SearchConfig(sigma=0.05, chunk_len=64, seed=7, rank=4)
    assert sources.keys() == {spec.name for spec in dataclasses.fields(SearchConfig)}
    assert [sources[name] for name in ("eta", "chunk_len", "sigma", "seed", "rank")] == [
        DEFAULT, MODEL_FILE, USER, "--seed", "TGR_RANK",
    ]  # fmt: skip


def test_the_makers_sampling_is_advice_below_our_own():
    metadata = {
        "general.sampling.temp": "1.5", "general.sampling.top_k": "20",
        "general.sampling.top_p": "0.800000011920929", "general.sampling.min_p": "0.05",
        "general.sampling.penalty_repeat": "1.100000", "general.sampling.mirostat": "2",
    }  # fmt: skip
    config, sources, _ = resolve(metadata)
    assert config == SearchConfig(
        temperature=1.5, top_k=20, top_p=0.8, min_p=0.05, repeat_penalty=1.1
    )
    assert sources["temperature"] == "general.sampling.temp of the model file"
    assert sources["repeat_penalty"] == "general.sampling.penalty_repeat of the model file"
    assert sources["seed"] == DEFAULT
    config, sources, _ = resolve(metadata | {"tgr.temperature": "0.3"}, {"top_p": 0.9})
    assert (config.temperature, config.top_p, config.top_k) == (0.3, 0.9, 20)
    assert (sources["temperature"], sources["top_p"]) == (MODEL_FILE, USER)


@pytest.mark.parametrize(
    ("key", "value", "name", "meant"),
    [
        ("top_k", "-1", "top_k", 0),
        ("top_k", "20.0", "top_k", 20),
        ("top_k", "1e30", "top_k", 2**31 - 1),
        ("temp", "-1", "temperature", 0.0),
        ("top_p", "1.5", "top_p", 1.0),
        ("min_p", "-0.1", "min_p", 0.0),
        *[(key, "nan", key, getattr(SearchConfig, key)) for key in ("top_k", "top_p", "min_p")],
        ("temp", "inf", "temperature", SearchConfig.temperature),
        ("temp", "warm", "temperature", SearchConfig.temperature),
        ("temp", "[3]", "temperature", SearchConfig.temperature),
        ("penalty_repeat", "0", "repeat_penalty", 1.0),
    ],
)
def test_a_maker_may_write_what_llama_cpp_takes(key: str, value: str, name: str, meant: float):
    assert getattr(resolve({f"general.sampling.{key}": value}).config, name) == meant


def test_a_bad_wish_is_the_users_fault():
    with pytest.raises(ValueError, match="unknown option 'sigmar'"):
        resolve({}, {"sigmar": 1})


@pytest.mark.parametrize("value", ["-1", "wide", "nan"])
def test_bad_advice_is_the_models_fault(value: str):
    with pytest.raises(ModelError, match="sigma is"):
        resolve({"tgr.sigma": value}, {"sigma": 0.1})


def test_a_whole_number_becomes_the_number_it_stands_for():
    assert SearchConfig(sigma=1, temperature=0).sigma == 1
    assert SearchConfig(temperature=np.float64(0.5)).temperature == 0.5  # which is a float
    config = SearchConfig(temperature=1, relative_strength=2**64)
    assert isinstance(config.temperature, float) and config.relative_strength == 2.0**64
    with pytest.raises(ValueError, match=r"lambda_u is 1000.*, but must be a finite number"):
        SearchConfig(lambda_u=10**400)
