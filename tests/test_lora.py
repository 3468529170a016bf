"""LoRA adapters: as weights merged by numpy, kept apart in every cache, refused with a reason."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import EXACT, KEEPING, TOKENS, assert_same, distributions, generated, greedy_task
from fixture_types import Load, Model
from lora_files import EMBEDDING, NAMES, Pairs, merged, pairs_for, write_adapter

from tgr_local import SearchConfig, TgrLlama, load
from tgr_local.commands import doctor
from tgr_local.engine import Engine, EngineStats, adapters
from tgr_local.engine.memory_check import check_memory
from tgr_local.engine.prefix_files import load_prefix, remembered, save_prefix
from tgr_local.options.config import EngineConfig
from tgr_local.search import strength
from tgr_local.system import file_hash
from tgr_local.system.errors import ModelError, PrefixError, TgrError


@pytest.fixture
def adapter(small: Path, tmp_path) -> Path:
    return write_adapter(tmp_path / "adapter.gguf", pairs_for(small))


def output(engine: Engine) -> Any:
    with engine.session(64, 1) as session:
        return session.run([greedy_task(engine, session.sequence(), TOKENS)])[0]


@pytest.mark.parametrize("scales", [(1.0,), (0.5,), (-0.7,), (0.4, 0.9)], ids=str)
def test_an_adapter_is_the_model_with_merged_weights(
    small: Path, tmp_path, scales: tuple[float, ...], load: Load
):
    added = [(pairs_for(small, seed=i), scale) for i, scale in enumerate(scales)]
    files = [write_adapter(tmp_path / f"{i}.gguf", pairs) for i, (pairs, _) in enumerate(added)]
    lora = tuple(f"{file}:{scale}" for file, scale in zip(files, scales, strict=True))
    ours = load(small, lora=lora)
    theirs = load(merged(small, tmp_path / "merged.gguf", *added))
    plain = load(small)
    mine, wanted, without = output(ours), output(theirs), output(plain)
    assert mine.tokens.tolist() == wanted.tokens.tolist() != without.tokens.tolist()
    np.testing.assert_allclose(distributions(mine), distributions(wanted), atol=2e-4, rtol=0)
    np.testing.assert_allclose(mine.states, wanted.states, atol=2e-4, rtol=0)


def test_every_weight_of_an_adapter_is_added(small: Path, tmp_path, load: Load):
    """One weight at a time changes what the model says, as merging it does."""
    base = distributions(output(load(small)))[0]
    for i, name in enumerate((*NAMES[:7], "output.weight", EMBEDDING)):
        pairs = pairs_for(small, (name,))
        file = write_adapter(tmp_path / f"{i}.gguf", pairs)
        ours = distributions(output(load(small, lora=(str(file),))))[0]
        theirs = distributions(output(load(merged(small, tmp_path / f"m{i}.gguf", (pairs, 1)))))[0]
        np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)
        assert abs(ours - base).max() > 1e-2, name


def test_a_cache_that_grows_keeps_the_adapter(small: Path, adapter: Path, load: Load):
    engine = load(small, lora=(str(adapter),))
    first = generated(engine)
    before: EngineStats = engine.stats()
    with engine.session(4000, 2):
        assert engine.stats().n_ctx > before.n_ctx
        assert generated(engine) == first != generated(load(small))


def test_quantized_weights_take_an_adapter(model: Model, small: Path, tmp_path, load: Load):
    quantized = model(dtype="Q8_0")
    added = pairs_for(small), 1.0
    file = write_adapter(tmp_path / "adapter.gguf", added[0])
    ours = output(load(quantized, lora=(str(file),)))
    theirs = output(load(merged(small, tmp_path / "merged.gguf", added)))
    np.testing.assert_allclose(distributions(ours)[0], distributions(theirs)[0], atol=0.5, rtol=0)
    assert abs(distributions(ours)[0] - distributions(output(load(quantized)))[0]).max() > 1


# --- other scales while it is loaded ---


def test_scales_can_be_changed(small: Path, tmp_path, load: Load):
    files = [write_adapter(tmp_path / f"{i}.gguf", pairs_for(small, seed=i)) for i in range(2)]

    def with_scales(*scales: float) -> Engine:
        pairs = zip(files, scales, strict=True)
        return load(small, lora=tuple(f"{one}:{scale}" for one, scale in pairs))

    engine, first = with_scales(0.4, 0.9), with_scales(0.4, 0.9)
    identities = {engine.file_identity}
    for scales in ((0.5, -0.7), (0, 0), (1, 0)):
        engine.set_adapter_scales((0.1, 0.1))  # nothing is decoded with these
        engine.set_adapter_scales(scales)
        other = with_scales(*scales)
        assert engine.adapters == other.adapters and engine.model_hash == other.model_hash
        assert engine.known_hash == other.model_hash
        assert_same(output(engine), output(other))
        identities.add(engine.file_identity)
    assert len(identities) == 4
    with engine.session(4000, 2):  # a cache that grew has them too
        assert generated(engine) == generated(other)
    engine.set_adapter_scales((0, 0))
    assert_same(output(engine), output(load(small)))
    engine.set_adapter_scales((0.4, 0.9))
    assert engine.file_identity in identities
    assert_same(output(engine), output(first))


def test_scales_are_not_changed_under_a_session(small: Path, adapter: Path, load: Load):
    engine = load(small, lora=(f"{adapter}:0.5",))
    before = output(engine)
    with engine.session(64, 1) as session:
        with pytest.raises(TgrError, match="while 1 sessions are open; close them first"):
            engine.set_adapter_scales((1.0,))
        made = session.run([greedy_task(engine, session.sequence(), TOKENS)])[0]
    for scales, message in (
        ((), "there are 1 adapters, but 0 scales"), ((1.0, 2.0), "but 2 scales; name each"),
        ((float("nan"),), "the scale nan of an adapter must be a number between"),
        ((1e7,), "the scale 10000000.0 of an adapter must be"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            engine.set_adapter_scales(scales)
    assert engine.adapters[0].scale == 0.5
    assert_same(made, before)
    assert_same(output(engine), before)


def test_what_is_remembered_has_one_set_of_scales(small: Path, adapter: Path, tmp_path):
    saved, options = tmp_path / "saved", KEEPING | {"lora": (str(adapter),)}

    def read(engine: Engine) -> Any:
        with engine.session(64, 1, prompt=TOKENS) as session:
            sequence = session.sequence()
            made = session.run([greedy_task(engine, sequence, TOKENS, reuse=True)])[0]
            session.remember(sequence)
            return made

    with Engine(small, EngineConfig(**options)) as engine:
        whole = read(engine)
        assert save_prefix(engine, TOKENS, saved)
        assert read(engine).n_reused > 0
        engine.set_adapter_scales((1.0,))  # as it is
        assert read(engine).n_reused > 0
        engine.set_adapter_scales((0.5,))
        assert not remembered(engine) and save_prefix(engine, TOKENS, tmp_path / "more") is None
        with pytest.raises(PrefixError, match="was saved with another model"):
            load_prefix(engine, saved)
        half = read(engine)
        assert half.n_reused == 0 and half.tokens.tolist() != whole.tokens.tolist()
        engine.set_adapter_scales((1.0,))
        assert load_prefix(engine, saved).tokens[: len(TOKENS)] == TOKENS
        again = read(engine)
        assert again.n_reused > 0
        assert_same(again, whole)


# --- what is kept of one is not used with another ---


def remember(engine: Engine) -> None:
    """Reads TOKENS, which the engine remembers."""
    with engine.session(64, 1, prompt=TOKENS) as session:
        sequence = session.sequence()
        session.run([greedy_task(engine, sequence, TOKENS, n_generate=1)])
        session.remember(sequence)


def test_a_saved_prefix_belongs_to_its_adapters(small: Path, adapter: Path, tmp_path):
    saved = tmp_path / "saved"
    with_one = EngineConfig(**KEEPING | {"lora": (str(adapter),)})
    with Engine(small, with_one) as engine:
        remember(engine)
        assert save_prefix(engine, TOKENS, saved)
    with Engine(small, with_one) as engine:
        assert load_prefix(engine, saved).tokens == TOKENS and remembered(engine)
    for lora in ((), (f"{adapter}:0.5",)):
        with (
            Engine(small, EngineConfig(**KEEPING | {"lora": lora})) as engine,
            pytest.raises(PrefixError, match="was saved with another model"),
        ):
            load_prefix(engine, saved)


def test_hashes_and_measured_strengths_are_of_model_and_adapters(
    small: Path, adapter: Path, load: Load
):
    plain, whole, half = (
        load(small, lora=lora) for lora in ((), (str(adapter),), (f"{adapter}:0.5",))
    )
    assert len({one.model_hash for one in (plain, whole, half)}) == 3
    assert whole.model_hash == load(small, lora=(f"{adapter}:1.0",)).model_hash
    assert whole.known_hash == whole.model_hash and whole.is_unchanged
    config = SearchConfig(d_z=8, n_candidates=2)
    strength.keep(whole, config, strength.Strength(0.5, 0.01, 3, 0.1))
    assert strength.known(whole, config) and not strength.known(plain, config)
    adapter.touch()
    assert not whole.is_unchanged and plain.is_unchanged


@pytest.mark.parametrize("which", ["model", "adapter"])
def test_states_are_not_kept_under_the_hash_of_a_file_that_came_later(
    small: Path, tmp_path, which: str
):
    model = tmp_path / "model.gguf"
    shutil.copy(small, model)
    lora = write_adapter(tmp_path / "adapter.gguf", pairs_for(small))
    saved = tmp_path / "saved"
    with Engine(model, EngineConfig(**KEEPING | {"lora": (str(lora),)})) as engine:
        remember(engine)
        file = {"model": model, "adapter": lora}[which]
        shutil.copy(file, tmp_path / "new.gguf").replace(file)
        assert engine.known_hash is None
        message = f"{file} was replaced after it was loaded; load the model again"
        with pytest.raises(ModelError, match=re.escape(message)):
            save_prefix(engine, TOKENS, saved)
        file.unlink()
        assert engine.known_hash is None
    assert not saved.exists()


def test_a_file_that_is_replaced_while_its_hash_is_made_is_noticed(
    small: Path, tmp_path, monkeypatch
):
    model = tmp_path / "model.gguf"
    shutil.copy(small, model)
    with Engine(model, EngineConfig(**EXACT)) as engine:
        digest = file_hash.of(model)

        def replacing(path: Path) -> str:
            path.touch()
            return digest

        monkeypatch.setattr(file_hash, "of", replacing)
        with pytest.raises(ModelError, match="was replaced after it was loaded"):
            assert engine.model_hash
        monkeypatch.undo()
        assert engine.known_hash is None


# --- the front ends ---


def test_front_ends_name_the_adapter(small: Path, adapter: Path):
    config = EngineConfig(**EXACT | {"lora": (f"{adapter}:0.5",)})
    found = {one.name: one.detail for one in doctor.examine(str(small), config)}
    assert found["adapter"].startswith(f"{adapter}: scale 0.5, ")
    assert check_memory(small, config).need.ram > check_memory(small).need.ram
    scale: Any = np.float64(0.5)
    with TgrLlama(small, lora_path=adapter, lora_scale=scale, n_gpu_layers=0) as llm:
        assert llm.engine.adapters == (adapters.Adapter(adapter, 0.5),)
    with load(small, config) as engine:
        assert engine.adapters[0].path == adapter


def test_files_and_scales_are_read_from_one_text():
    made = adapters.named_adapters(("a.gguf", "b:c.gguf:0.25", "~/d.gguf:-1", "C:\\x.gguf"))
    assert [(str(one.path), one.scale) for one in made] == [
        ("a.gguf", 1.0), ("b:c.gguf", 0.25), (str(Path.home() / "d.gguf"), -1.0),
        ("C:\\x.gguf", 1.0),
    ]  # fmt: skip
    for bad in ("a.gguf:nan", "a.gguf:inf", "a.gguf:-1e7", "a.gguf:1e300"):
        with pytest.raises(ValueError, match="must be a number between -1000000 and 1000000"):
            adapters.named_adapters((bad,))
    with pytest.raises(ValueError, match=r"lora is '~nobody-here/a.gguf', but .*whole path"):
        adapters.named_adapters(("~nobody-here/a.gguf:0.5",))
    with pytest.raises(ValueError, match="twice"):
        adapters.named_adapters(("a.gguf", "a.gguf:2"))


def test_files_that_are_no_adapter_of_the_model_are_refused(
    small: Path, model: Model, tmp_path, capfd
):
    one = {NAMES[0]: pairs_for(small, NAMES[:1])[NAMES[0]]}
    a, b = one[NAMES[0]]
    text = tmp_path / "text.gguf"
    text.write_text("hello")

    def made(pairs: Pairs = one, **changes: Any) -> Path:
        return write_adapter(tmp_path / "bad.gguf", pairs, **changes)

    cut = made()
    whole = cut.read_bytes()
    short = tmp_path / "short.gguf"
    short.write_bytes(whole[:-100])
    nan = {NAMES[0]: (a * np.float32(np.nan), b)}
    for file, message in (
        (lambda: tmp_path / "absent.gguf", "cannot read the adapter .*absent.gguf: No such file"),
        (lambda: text, "is not a GGUF file but a short text, 'hello'"),
        (lambda: small, "holds no adapter but is of the type 'model'"),
        (lambda: made(metadata={"adapter.type": "control"}), "of the type 'control', but must be"),
        (lambda: made(alora=[1, 2]), "an activated LoRA"),
        (lambda: made(**{"blk.0.attn_norm.weight": a[0]}), "changes blk.0.attn_norm.weight"),
        (lambda: made(**{"x.lora_a": a[0]}), "holds x.lora_a as 1 dimensions"),
        (lambda: made(**{"x.lora_a": a.astype(np.int32)}), "of ggml's type 26"),
        (lambda: made(**{"blk.1.attn_q.weight.lora_a": a}), "missing one component"),
        (lambda: made({"blk.9.attn_q.weight": (a, b)}), "does not exist in base model"),
        (lambda: made({NAMES[0]: (a[:, :32], b)}), "incorrect shape"),
        (lambda: made({NAMES[0]: (a, b[:, :2])}), "has the rank 4 and 2, but both matrices must"),
        (lambda: made({NAMES[0]: (a[:0], b[:, :0])}), "has the rank 0 and 0, but .* at least 1"),
        (lambda: made({EMBEDDING: (a, b[:, :2])}), "embd.weight has the rank 2 and 4, but both"),
        (lambda: made({"blk.0.attn_norm.weight": (a, b)}), "changes blk.0.attn_norm.weight"),
        (lambda: made({"cls.output.weight": (a, b)}), "changes cls.output.weight"),
        (lambda: made(**{"x.lora_a": a[None, :, :]}), "a LoRA of experts; merge it into its"),
        (lambda: made(alpha=np.nan), "has the alpha nan, but it must be a finite number"),
        (lambda: made(alpha=np.inf), "has the alpha inf, but"),
        (lambda: made(arch="llama"), "model arch and LoRA arch mismatch.*made for this model"),
        (lambda: short, "cannot be added|damaged|ends|beyond"),
        (lambda: made(nan), "not finite"),
    ):  # fmt: skip
        with pytest.raises(ModelError, match=message) as error:
            Engine(small, EngineConfig(**EXACT | {"lora": (str(file()),)}))
        assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")
