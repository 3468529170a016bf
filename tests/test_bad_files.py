"""Files that are damaged, foreign or missing: each is refused in one line, and nothing crashes.

Most of these files end a process that gives them to llama.cpp unseen. So one child process loads
them all, one after another, and the tests read what it printed: a crash fails a test, not pytest.
`bench/fuzz_gguf.py` looks for more of their kind.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import load_files
import numpy as np
import pytest
from families import deepseek32, qwen35
from gguf_edit import ARRAY, BOOL, F32, I8, I32, STRING, U32, U64, Array, Gguf, Tensor
from gguf_models import write_bert, write_garbage, write_model, write_vocab_only
from load_files import CHEAP
from surroundings import HANG, environment

from tgr_local.engine import Engine, Task
from tgr_local.options import model_files
from tgr_local.system.errors import ModelError, TgrError

SMALL = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_head_kv": 1, "n_ff": 64}
N_CUTS = 24
BIG = 2**62

Change = Callable[[Gguf], object]


def sound(folder: Path, arch: str = "qwen3") -> Gguf:
    return Gguf.parse(write_model(folder / "sound.gguf", arch, **SMALL).read_bytes())


def items(file: Gguf, key: str) -> list[object]:
    array = file.metadata[key.encode()][1]
    assert isinstance(array, Array)
    return array.items


def drop(key: str) -> Change:
    return lambda file: file.metadata.pop(key.encode())


def put(key: str, value: object, kind: int | None = None) -> Change:
    return lambda file: file.set(key, value, kind)


def characters(n: int, to: int = 256, at: int = 0) -> Change:
    """A vocabulary with a map of characters of `n` entries that makes "b" of "a": the first entry
    leads to those from 0 on, "a" leads on by `to`, where its text begins `at` a byte."""
    nodes = [0] * 512
    nodes[ord("a")] = ord("a") | 1 << 8 | to << 10
    nodes[(ord("a") ^ to) % 512] = at
    blob = np.array(nodes[: 2 * n], "<u4").tobytes()
    data = np.frombuffer(np.array([len(blob)], "<u4").tobytes() + blob + b"b\0", np.int8)

    def change(file: Gguf) -> None:
        n_tokens = len(items(file, TOKENS))
        file.set("tokenizer.ggml.model", b"t5", STRING)
        file.set("tokenizer.ggml.scores", Array(F32, [-1.0] * n_tokens), ARRAY)
        file.set("tokenizer.ggml.precompiled_charsmap", Array(I8, data.tolist()), ARRAY)

    return change


def shape(name: str, *dims: int) -> Change:
    return lambda file: setattr(file.tensor(name), "shape", list(dims))


def kind(name: str, number: int) -> Change:
    return lambda file: setattr(file.tensor(name), "kind", number)


def offset(name: str, by: int) -> Change:
    return lambda file: setattr(file.tensor(name), "offset", file.tensor(name).offset + by)


def count(what: str, number: int) -> Change:
    return lambda file: setattr(file, what, number)


def lie(key: str, n: int) -> Change:
    return lambda file: setattr(file.metadata[key.encode()][1], "n", n)


def rename(key: str, text: bytes) -> Change:
    def change(file: Gguf) -> None:
        file.metadata = {text if k == key.encode() else k: v for k, v in file.metadata.items()}

    return change


def weights(value: float) -> Change:
    def change(file: Gguf) -> None:
        n = file.tensor("blk.0.ffn_up.weight").offset
        file.data = file.data[:n] + np.float32(value).tobytes() + file.data[n + 4 :]

    return change


def integers(name: str) -> Change:
    """The tensor's type says 32-bit integers, which have the size of the F32 data."""
    return kind(name, 26)


TOKENS = "tokenizer.ggml.tokens"
MERGES = "tokenizer.ggml.merges"
EPS = "qwen3.attention.layer_norm_rms_epsilon"

# name -> (the damage, a part of the message)
DAMAGES: dict[str, tuple[Change, str]] = {
    # the header
    "version 0": (count("version", 0), "bad GGUF version: 0"),
    "version 1": (count("version", 1), "GGUFv1 is no longer supported"),
    "version 99": (count("version", 99), "version 99"),
    "big-endian": (count("order", ">"), "endian"),
    "2^63 keys": (count("n_metadata", 2**63), "number of key value pairs is -9223372036854775808"),
    "2^40 keys": (count("n_metadata", 2**40), "damaged or cut off"),
    "2^62 tensors": (count("n_tensors", BIG), "number of tensors is 4611686018427387904"),
    "2^30 tensors": (count("n_tensors", 2**30), "damaged or cut off"),
    "one tensor too few": (lambda f: count("n_tensors", len(f.tensors) - 1)(f), "not found"),
    "array of 2^62": (lie(TOKENS, BIG), "damaged or cut off"),
    "array of 2^29": (lie("tokenizer.ggml.token_type", 2**29), "damaged or cut off"),
    "string of 2^62": (put("general.name", BIG.to_bytes(8, "little"), 99), "invalid GGUF type 99"),
    "alignment 0": (put("general.alignment", 0), "alignment 0 is not a power of 2"),
    "alignment 33": (put("general.alignment", 33), "alignment 33 is not a power of 2"),
    "alignment 2^31": (put("general.alignment", 2**31), "damaged or cut off"),
    "alignment as text": (put("general.alignment", b"32", STRING), "must be of type u32"),
    # what the file is
    "no architecture": (drop("general.architecture"), "no language model"),
    "empty architecture": (put("general.architecture", b""), "no language model"),
    "unknown architecture": (put("general.architecture", b"qw\xffn\n3"), r"'qw\?n\?3'"),
    "architecture as number": (put("general.architecture", 3, U32), "no language model"),
    "adapter": (put("general.type", b"adapter", STRING), r"no language model \(adapter\)"),
    "embedding": (put("qwen3.pooling_type", 77), "names the pooling type '77'"),
    "not causal": (put("qwen3.attention.causal", False, BOOL), "holds an encoder"),
    "second part": (put("split.count", 7, 2), "part 1 of 7, but its name does not"),
    # numbers
    **{
        f"no {key}": (drop(f"qwen3.{key}"), f"key not found in model: qwen3.{key}")
        for key in ("block_count", "context_length", "embedding_length")
    },
    "block_count as text": (put("qwen3.block_count", b"2", STRING), "has wrong type str"),
    **{
        f"{key} = {value}": (put(f"qwen3.{key}", value), rf"qwen3\.{key} = {value}, which must be")
        for key in ("block_count", "context_length", "embedding_length")
        for value in (0, 2**32 - 1)
    },
    "more blocks than tensors": (put("qwen3.block_count", 2), "blk.1.attn_norm.weight"),
    "head_count 0": (put("qwen3.attention.head_count", 0), "how many heads"),
    "head_count 2^31": (put("qwen3.attention.head_count", 2**31), "wrong shape"),
    "head_count_kv 0": (put("qwen3.attention.head_count_kv", 0), "wrong shape"),
    "heads as array": (
        put("qwen3.attention.head_count", Array(U32, [2, 2]), ARRAY),
        "wrong array length; expected 1, got 2",
    ),
    "key_length 0": (put("qwen3.attention.key_length", 0), "key_length = 0, which must be"),
    "key_length 8": (put("qwen3.attention.key_length", 8), "wrong shape"),
    "rotation 0": (put("qwen3.rope.dimension_count", 0), "dimension_count = 0, which must be"),
    "rotation 3": (put("qwen3.rope.dimension_count", 3), "GGML_ASSERT"),
    "rotation 64": (put("qwen3.rope.dimension_count", 64), "GGML_ASSERT"),
    "rotation unknown": (put("qwen3.rope.scaling.type", b"spiral", STRING), "GGML_ASSERT"),
    "base 0": (put("qwen3.rope.freq_base", 0.0), "freq_base = 0, which must be"),
    "epsilon -1": (put(EPS, -1.0), "epsilon = -1, which must be between 0 and 1"),
    "epsilon nan": (put(EPS, float("nan")), "epsilon = nan, which must be"),
    "2000 experts": (put("qwen3.expert_count", 2000), "GGML_ASSERT"),
    # tensors
    "dims 0": (shape("blk.0.attn_k.weight", 0, 0), "damaged|wrong shape"),
    "dims overflow": (shape("blk.0.attn_k.weight", 2**40, 2**40), "may cause overflow"),
    "dims negative": (shape("blk.0.attn_k.weight", 2**63, 1), "invalid number of elements"),
    "dims 5": (shape("blk.0.attn_k.weight", 2, 2, 2, 2, 2), "invalid number of dimensions: 5"),
    "wrong shape": (
        shape("blk.0.attn_k.weight", 16, 32),
        "wrong shape; expected 32, 16, got 16, 32",
    ),
    "offset beyond": (offset("blk.0.attn_k.weight", 2**40), "has offset"),
    "offset overlaps": (offset("blk.0.attn_k.weight", -32), "has offset"),
    "offset misaligned": (offset("blk.0.attn_k.weight", 1), "has offset"),
    "type 4": (kind("blk.0.attn_k.weight", 4), "not a multiple of block size"),
    "type 99": (kind("blk.0.attn_k.weight", 99), "invalid ggml type 99"),
    "integers": (integers("blk.0.ffn_down.weight"), "of type i32, which llama.cpp cannot"),
    "integer norm": (integers("blk.0.attn_norm.weight"), "of type i32, which llama.cpp cannot"),
    "missing": (lambda f: f.tensors.pop(), "not found|missing|expected"),
    "twice": (lambda f: f.tensors.append(f.tensors[0]), "duplicate tensor name"),
    "unknown tensor": (
        lambda f: f.tensors.append(Tensor(b"blk.9.x\n\xff", [1], 0, len(f.data) // 32 * 32)),
        "cut off|wrong number of tensors",
    ),
    "long name": (lambda f: setattr(f.tensors[0], "name", b"x" * 70), "too long: 70"),
    "no data": (count("data", b""), "is cut off: it has"),
    "nan": (weights(float("nan")), "not finite: its weights are damaged"),
    "inf": (weights(float("inf")), "not finite: its weights are damaged"),
    # the vocabulary
    "unknown tokenizer": (put("tokenizer.ggml.model", b"runes"), "unknown tokenizer: 'runes'"),
    "unknown splitter": (
        put("tokenizer.ggml.pre", b"runes"),
        "unknown pre-tokenizer type: 'runes'",
    ),
    "no vocabulary": (put("tokenizer.ggml.model", b"none"), "vocabulary|wrong shape"),
    "no tokens": (drop(TOKENS), "cannot find tokenizer vocab"),
    "tokens as numbers": (put(TOKENS, Array(I32, [1] * 264), ARRAY), "invalid gguf type for token"),
    "tokens as text": (put(TOKENS, b"abc", STRING), "invalid gguf type for tokenizer.ggml.tokens"),
    "too few tokens": (lambda f: items(f, TOKENS).pop(), "wrong shape; expected 32, 263"),
    "too many tokens": (
        lambda f: items(f, TOKENS).append(b"zz"),
        "out of array bounds for toktypes",
    ),
    "token twice": (
        lambda f: items(f, TOKENS).__setitem__(7, b"\xc3\xbf\n"[:2]),
        "twice, as 7 and as",
    ),
    "no merges": (drop(MERGES), "cannot find tokenizer merges"),
    "merges as numbers": (put(MERGES, Array(F32, [1.0]), ARRAY), "invalid gguf type for"),
    "token types as text": (
        put("tokenizer.ggml.token_type", b"x", STRING),
        "invalid gguf type for",
    ),
    "too few scores": (put("tokenizer.ggml.scores", Array(F32, [0.0]), ARRAY), "bounds for scores"),
    "map of characters cut off": (characters(1), "map of characters .* leads out of itself"),
    "map of characters leads out": (characters(256, to=999), "map of characters .* leads out of"),
    "map of characters without texts": (characters(256, at=9), "map of characters .* leads out of"),
    "id as 64 bits": (put("tokenizer.ggml.eos_token_id", 260, U64), "has wrong type u64"),
    "no begin": (
        lambda f: [
            put("tokenizer.ggml.pre", b"chatglm-bpe")(f),
            put("tokenizer.ggml.add_bos_token", True, BOOL)(f),
            drop("tokenizer.ggml.bos_token_id")(f),
        ],
        "wants a begin, end or separator token",
    ),
}

# what llama.cpp puts right by itself, or what does no harm
HARMLESS: dict[str, Change] = {
    "tokens that are no UTF-8": lambda f: items(f, TOKENS).__setitem__(257, b"\xff\xfe\xc3"),
    "empty tokens": lambda f: items(f, TOKENS).__setitem__(slice(250, 256), [b""] * 6),
    "merges of nothing": lambda f: items(f, MERGES).extend([b"", b" ", b"x", b"a b c"]),
    "ids out of range": put("tokenizer.ggml.eos_token_id", 2**31),
    "unknown keys": put("qwen3.swin_norm", b"\xff\n", STRING),
    "key of another program": rename("general.name", b"\xff\xfe"),
    "no name": drop("general.name"),
    "map of characters": characters(256),
    "template as number": put("tokenizer.chat_template", 3, U32),
}

PHI3: dict[str, tuple[Change, str]] = {
    "no attention": (
        lambda f: [rename_tensor(f, "blk.0.attn_qkv.weight", b"blk.0.attn_qkw.weight")],
        "wrong number of tensors",
    ),
    "no heads": (drop("phi3.attention.head_count"), "does not say how many heads its attention"),
    "more heads than width": (put("phi3.attention.head_count", 512), "GGML_ASSERT"),
    "key and value differ": (put("phi3.attention.key_length", 8), "GGML_ASSERT"),
    "rotation -1": (put("phi3.rope.dimension_count", 2**32 - 1), "which must be between 2"),
    "rotation 512": (put("phi3.rope.dimension_count", 512), "GGML_ASSERT"),
}


def rename_tensor(file: Gguf, old: str, new: bytes) -> None:
    file.tensor(old).name = new


def outcomes(files: Mapping[str, Path]) -> dict[str, str | None]:
    """The message that refuses each file, None for one that loads; missing after a crash."""
    done = subprocess.run(
        [sys.executable, load_files.__file__, *map(str, files.values())],
        capture_output=True,
        env=environment(GGML_NO_BACKTRACE="1"),
        timeout=HANG,
    )
    said = dict(json.loads(line) for line in done.stdout.decode().splitlines())
    return {name: said[str(path)] for name, path in files.items() if str(path) in said}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory) -> dict[str, str | None]:
    """What came of every damaged file of this module."""
    folder = tmp_path_factory.mktemp("damaged")
    files: dict[str, Path] = {}

    def add(name: str, raw: bytes) -> None:
        files[name] = folder / f"{len(files)}.gguf"
        files[name].write_bytes(raw)

    for arch, damages in (("qwen3", DAMAGES), ("phi3", PHI3)):
        for name, (change, _) in damages.items():
            file = sound(folder, arch)
            change(file)
            add(f"{arch}: {name}", file.to_bytes())
    for name, harmless in HARMLESS.items():
        file = sound(folder)
        harmless(file)
        add(f"harmless: {name}", file.to_bytes())
    raw = sound(folder).to_bytes()
    for i in range(1, N_CUTS):
        add(f"cut {i}", raw[: len(raw) * i // N_CUTS])
    for n in (3, 4, 7, 8, 23, 24, len(raw) - 1):
        add(f"cut at {n}", raw[:n])
    for seed in range(8):
        files[f"garbage {seed}"] = write_garbage(folder / f"garbage{seed}.gguf", 4096, seed)
    files["sound"] = folder / "sound.gguf"
    return outcomes(files)


def is_one_line(message: str) -> bool:
    return message.isprintable() and message.isascii() and " ()" not in message


@pytest.mark.parametrize(
    ("name", "part"),
    [(f"qwen3: {name}", part) for name, (_, part) in DAMAGES.items()]
    + [(f"phi3: {name}", part) for name, (_, part) in PHI3.items()],
)
def test_a_damaged_file_is_refused(refusals: dict[str, str | None], name: str, part: str):
    assert name in refusals, f"the process ended with {list(refusals)[-1:]} or the file after it"
    message = refusals[name]
    assert message is not None, "it was loaded"
    assert is_one_line(message) and re.search(part, message), message


def test_a_file_cut_off_anywhere_is_refused(refusals: dict[str, str | None]):
    cuts = {name: message for name, message in refusals.items() if name.startswith("cut")}
    assert len(cuts) == N_CUTS - 1 + 7
    for name, message in cuts.items():
        assert message and is_one_line(message), (name, message)
        assert re.search("cut off|not a GGUF file", message), (name, message)


def test_garbage_behind_a_header_is_refused(refusals: dict[str, str | None]):
    garbage = [message for name, message in refusals.items() if name.startswith("garbage")]
    assert len(garbage) == 8
    assert all(message and is_one_line(message) for message in garbage), garbage


@pytest.mark.parametrize("name", ["sound", *(f"harmless: {name}" for name in HARMLESS)])
def test_harmless_changes_load(refusals: dict[str, str | None], name: str):
    assert refusals[name] is None


@pytest.mark.parametrize(
    ("write", "part"),
    [
        (write_vocab_only, "a vocabulary without weights; name a file with the whole model"),
        (write_bert, r"holds an encoder, .* use a decoder, such as"),
        (deepseek32, "keeps more than keys, values and recurrent states"),
    ],
)
def test_foreign_models_are_refused(tmp_path, write: Callable[[Path], Path], part: str):
    with pytest.raises(ModelError, match=part):
        Engine(write(tmp_path / "m.gguf"), CHEAP)


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (qwen35, "blk.2.attn_gate.weight"),
        (lambda path: write_model(path, "phi3"), "blk.0.attn_qkv.weight"),
    ],
    ids=["qwen35", "phi3"],
)
def test_weights_that_llama_cpp_takes_as_optional_and_uses_are_missed(
    tmp_path, write: Callable[[Path], Path], name: str
):
    path = write(tmp_path / "m.gguf")
    file = Gguf.parse(path.read_bytes())
    gone = file.tensor(name)
    begin, n_bytes = gone.offset, 4 * math.prod(gone.shape)
    file.data = file.data[:begin] + file.data[begin + n_bytes :]
    file.tensors.remove(gone)
    for tensor in file.tensors:
        tensor.offset -= n_bytes if tensor.offset > begin else 0
    path.write_bytes(file.to_bytes())
    with pytest.raises(ModelError, match="lacks weights that its architecture multiplies with"):
        Engine(path, CHEAP)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("a poem\n")
    (tmp_path / "short").write_text("GGU")
    (tmp_path / "long").write_text("a poem\n" * 100)
    (tmp_path / "bytes").write_bytes(b"\x80\x00\xff")
    (tmp_path / "pointer").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4683074240\n"
    )
    (tmp_path / "page").write_text("\ufeff\n<!DOCTYPE html>\n<html><head></head></html>\n")
    (tmp_path / "error").write_text("Entry not found")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "ghost").symlink_to(tmp_path / "gone")
    for name, part in {
        "gone": "there is no file .*gone; correct the path, or download the model",
        "ghost": "there is no file",
        "text/x": "there is no file|cannot be read",
        ".": "is a directory; name the GGUF file in it",
        "empty": "is empty; download it again",
        "text": "is not a GGUF file but a short text, 'a poem'; download the file itself, as tgr",
        "short": "is not a GGUF file",
        "long": "is not a GGUF file; convert the model with llama.cpp's convert_hf_to_gguf.py",
        "bytes": "is not a GGUF file; convert the model",
        "pointer": "is a Git LFS pointer, not the model itself; type git lfs pull, or download",
        "page": "is a web page, not a model; download the file itself.*/resolve/",
        "error": "short text, 'Entry not found'",
        "pipe": "not a regular file",
    }.items():
        with pytest.raises(ModelError, match=part):
            Engine(tmp_path / name, CHEAP)
        if (tmp_path / name).is_file():
            with pytest.raises(ModelError, match=part):
                model_files.card(tmp_path / name)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path):
    path = write_model(tmp_path / "m.gguf", **SMALL)
    path.chmod(0)
    with pytest.raises(ModelError, match=r"cannot be read \(Permission denied\)"):
        Engine(path, CHEAP)


def test_the_parts_of_a_model_are_checked_like_one_file(tmp_path):
    whole = sound(tmp_path)
    half = len(whole.tensors) // 2
    middle = whole.tensors[half].offset
    second = Gguf(
        tensors=[Tensor(t.name, t.shape, t.kind, t.offset - middle) for t in whole.tensors[half:]],
        data=whole.data[middle:],
    )
    first = Gguf(dict(whole.metadata), whole.tensors[:half], whole.data[:middle])
    for number, part in enumerate((first, second)):
        part.set("split.no", number, 2)
        part.set("split.count", 2, 2)
        part.set("split.tensors.count", len(whole.tensors), I32)
    paths = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    paths[0].write_bytes(first.to_bytes())
    with pytest.raises(ModelError, match=r"there is no file .*m-00002-of-00002\.gguf"):
        Engine(paths[0], CHEAP)
    paths[1].write_bytes(second.to_bytes()[:-64])
    with pytest.raises(ModelError, match=r"m-00002-of-00002\.gguf is cut off"):
        Engine(paths[0], CHEAP)
    paths[1].write_bytes(second.to_bytes())
    Engine(paths[0], CHEAP).close()
    with pytest.raises(ModelError, match="is part 2 of 2; name the first part"):
        Engine(paths[1], CHEAP)


def test_a_bad_weight_that_loading_does_not_meet_is_an_error_of_the_run(tmp_path):
    file = sound(tmp_path)
    row = file.tensor("token_embd.weight").offset + 5 * 32 * 4
    file.data = file.data[:row] + np.float32(np.nan).tobytes() + file.data[row + 4 :]
    path = tmp_path / "nan.gguf"
    path.write_bytes(file.to_bytes())
    with Engine(path, CHEAP) as engine, engine.session(16, 2) as session:
        with pytest.raises(TgrError, match="not finite"):
            session.run([Task(session.sequence(), [5], n_generate=2)])
        assert len(session.run([Task(session.sequence(), [6], n_generate=2)])[0].tokens) > 0


def test_a_special_token_out_of_range_is_not_taken(tmp_path):
    file = sound(tmp_path)
    file.set("tokenizer.ggml.bos_token_id", 2**31)
    file.set("tokenizer.ggml.eos_token_id", 2**32 - 1)
    path = tmp_path / "ids.gguf"
    path.write_bytes(file.to_bytes())
    with Engine(path, CHEAP) as engine:
        assert all(t is None or 0 <= t < engine.n_vocab for t in (engine.bos, engine.eos))
        assert all(0 <= token < engine.n_vocab for token in engine.end_tokens)


def test_a_text_without_tokens_of_its_own_is_refused(tmp_path):
    file = sound(tmp_path, "llama")
    texts = items(file, TOKENS)
    texts[:256] = [f"<0x{byte:02X}>".encode() for byte in range(256)]
    texts[0x7A] = b"no-z"
    file.set("tokenizer.ggml.model", b"llama")
    file.set("tokenizer.ggml.scores", Array(F32, [0.0] * len(texts)), ARRAY)
    path = tmp_path / "spm.gguf"
    path.write_bytes(file.to_bytes())
    with Engine(path, CHEAP) as engine:
        assert len(engine.tokenize("abc")) >= 3
        with pytest.raises(ModelError, match="has no token for a part of this text"):
            engine.tokenize("abz")


@pytest.mark.parametrize("template", ["{{", "{% for %}", "{{ nothing() }}", "\xff"])
def test_a_bad_chat_template_is_an_error_of_its_use(tmp_path, template: str):
    file = sound(tmp_path)
    file.set("tokenizer.chat_template", template.encode("latin-1"))
    path = tmp_path / "chat.gguf"
    path.write_bytes(file.to_bytes())
    with Engine(path, CHEAP) as engine:
        if template == "\xff":
            assert engine.chat_prompt([{"role": "user", "content": "hi"}]) == "\ufffd"
            return
        with pytest.raises(ModelError, match=r"chat template of .* fails"):
            engine.chat_prompt([{"role": "user", "content": "hi"}])


def test_an_edited_file_is_the_file_itself_until_it_is_damaged(tmp_path):
    path = write_model(tmp_path / "m.gguf", **SMALL)
    assert Gguf.parse(path.read_bytes()).to_bytes() == path.read_bytes()
