"""Damages small valid GGUF files in random ways and counts what the engine makes of them.

Every damaged file is loaded and used in a process of its own, and must give a model that works, or
an error of tgr-local in one line; forks.py has the rest.

    python bench/fuzz_gguf.py --n 3000 --seed 0
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import random
import re
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no threads before the forks
os.environ["GGML_NO_BACKTRACE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import forks
import gguf
import numpy as np
from families import FAMILIES
from forks import Fuzzer
from gguf_edit import ARRAY, BOOL, F32, I8, I32, SCALARS, STRING, U32, U64, Array, Gguf
from gguf_models import write_model
from hostile_templates import template

from tgr_local import EngineConfig, TgrError
from tgr_local.engine import Engine, Task

TOKENIZERS = (
    b"gpt2", b"llama", b"bert", b"t5", b"rwkv", b"plamo2", b"gemma4", b"test", b"none",
    b"hybriddna", b"whitespace",
)  # fmt: skip
MIB = 1024  # more than this for a file of 150 kB is absurd
NUMBERS = [0, 1, 2, 3, 7, 255, 512, 4096, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, -1]
FLOATS = [0.0, -1.0, 1e-45, 1e38, -1e38, float("inf"), float("nan")]
TEXTS = [b"", b"\0", b"\xff\xfe", b"a b c", b"x" * 5000, "ü".encode(), b"{{", b"{% for %}"]
KEYS = sorted(
    {
        value
        for _, group in inspect.getmembers(gguf.constants.Keys, inspect.isclass)
        for name, value in vars(group).items()
        if isinstance(value, str) and not name.startswith("_")
    }
)

Mutation = Callable[[random.Random, Gguf], str]


def number(rng: random.Random, old: object = 0) -> int:
    near = [old + 1, old - 1, old * 2, old // 2, -old] if isinstance(old, int) else []
    return rng.choice([*near, *NUMBERS])


def any_value(rng: random.Random, kind: int) -> object:
    if kind == ARRAY:
        item = rng.choice([U32, I32, F32, STRING, BOOL, U64])
        return Array(item, [any_value(rng, item) for _ in range(rng.choice([0, 1, 2, 5, 264]))])
    if kind == STRING:
        return rng.choice(TEXTS)
    return rng.choice(FLOATS) if kind in (F32, 12) else number(rng)


def change_value(rng: random.Random, file: Gguf) -> str:
    key = rng.choice(list(file.metadata))
    kind, value = file.metadata[key]
    if isinstance(value, Array):
        return f"{key.decode('latin1')}: {change_array(rng, value)}"
    if kind == STRING:
        text = bytearray(value)
        at = rng.randrange(len(text) + 1)
        text[at : at + rng.choice([0, 1, 4])] = rng.choice([*TEXTS, rng.randbytes(1)])
        value = bytes(text)
    elif kind in (F32, 12):
        value = rng.choice(FLOATS)
    else:
        value = number(rng, value)
    file.metadata[key] = (kind, value)
    return f"{key.decode('latin1')} = {value!r:.60}"


def change_array(rng: random.Random, array: Array) -> str:
    way = rng.choice(["shorter", "longer", "empty", "item", "items", "lie", "retype", "swap"])
    if way == "shorter":
        del array.items[rng.randrange(len(array.items) + 1) :]
    elif way == "longer":
        array.items += array.items[: rng.choice([1, 7, 300])]
    elif way == "empty":
        array.items = []
    elif way in ("item", "items") and array.items:
        for _ in range(1 if way == "item" else 50):
            array.items[rng.randrange(len(array.items))] = any_value(rng, array.kind)
    elif way == "lie":
        array.n = abs(number(rng, len(array.items)))
    elif way == "retype":
        array.kind = rng.choice([U32, I32, F32, STRING, BOOL, U64])
        array.items = [any_value(rng, array.kind) for _ in array.items]
    elif array.items:
        i, j = rng.randrange(len(array.items)), rng.randrange(len(array.items))
        array.items[i], array.items[j] = array.items[j], array.items[i]
    return f"array {way}"


def change_type(rng: random.Random, file: Gguf) -> str:
    key = rng.choice(list(file.metadata))
    kind = rng.choice([*SCALARS, STRING, ARRAY])
    file.metadata[key] = (kind, any_value(rng, kind))
    return f"{key.decode('latin1')} becomes type {kind}"


def drop_key(rng: random.Random, file: Gguf) -> str:
    key = rng.choice(list(file.metadata))
    del file.metadata[key]
    return f"no {key.decode('latin1')}"


def add_key(rng: random.Random, file: Gguf) -> str:
    arch = file.metadata.get(b"general.architecture", (STRING, b"qwen3"))[1]
    name = rng.choice(KEYS).replace(
        "{arch}", arch.decode("latin1") if isinstance(arch, bytes) else "x"
    )
    kind = rng.choice([U32, U32, I32, F32, BOOL, STRING, ARRAY, U64])
    value = any_value(rng, kind)
    file.metadata[name.encode()] = (kind, value)
    return f"{name} = type {kind} {value!r:.60}"


def other_architecture(rng: random.Random, file: Gguf) -> str:
    old = file.metadata.get(b"general.architecture", (STRING, b"qwen3"))[1]
    new = rng.choice(list(gguf.MODEL_ARCH_NAMES.values())).encode()
    file.metadata[b"general.architecture"] = (STRING, new)
    if rng.random() < 0.7 and isinstance(old, bytes):
        file.metadata = {
            key.replace(old + b".", new + b".", 1): value for key, value in file.metadata.items()
        }
    return f"architecture {new.decode()}"


def other_tokenizer(rng: random.Random, file: Gguf) -> str:
    name = rng.choice(TOKENIZERS)
    file.set("tokenizer.ggml.model", name, STRING)
    if rng.random() < 0.3:
        file.metadata.pop(b"tokenizer.ggml.bos_token_id", None)
        file.set("tokenizer.ggml.add_bos_token", True, BOOL)
    return f"tokenizer {name.decode()}"


def map_of_characters(rng: random.Random, file: Gguf) -> str:
    """A map of characters that is small, and right or wrong in a few places: "a" becomes "b"."""
    nodes = [0] * rng.choice([0, 97, 256, 512])
    to = rng.choice([256, 256, 256, 511, 1 << 20])
    places = {97: 97 | 1 << 8 | to << 10, 97 ^ to: rng.choice([0, 0, 1, 2, 1 << 31])}
    places |= {rng.randrange(512): rng.getrandbits(32) for _ in range(rng.choice([0, 0, 1, 30]))}
    for place, node in places.items():
        if place < len(nodes):
            nodes[place] = node
    blob = struct.pack(f"<{len(nodes)}I", *nodes)
    data = struct.pack("<I", len(blob) + rng.choice([0, 0, 0, -4, 9])) + blob
    data += rng.choice([b"b\0", b"b\0", b"b", b""])
    n_tokens = len(file.metadata[b"tokenizer.ggml.tokens"][1].items)
    file.set("tokenizer.ggml.model", b"t5", STRING)
    file.set("tokenizer.ggml.scores", Array(F32, [-1.0] * n_tokens), ARRAY)
    items = list(struct.unpack(f"{len(data)}b", data))
    file.set("tokenizer.ggml.precompiled_charsmap", Array(I8, items), ARRAY)
    return f"map of {len(nodes)} characters, {len(data)} bytes"


def hostile_template(rng: random.Random, file: Gguf) -> str:
    text = template(rng)
    file.set("tokenizer.chat_template", text.encode("utf-8", "replace"), STRING)
    return f"template {text!r:.80}"


def swap_values(rng: random.Random, file: Gguf) -> str:
    """Two keys take each other's value, of the same type where there are such."""
    a = rng.choice(list(file.metadata))
    kind = file.metadata[a][0]
    alike = [key for key, (its, _) in file.metadata.items() if its == kind and key != a]
    b = rng.choice(alike if alike and rng.random() < 0.7 else list(file.metadata))
    file.metadata[a], file.metadata[b] = file.metadata[b], file.metadata[a]
    return f"{a.decode('latin1')} <-> {b.decode('latin1')}"


def foreign_values(rng: random.Random, file: Gguf) -> str:
    """Part of the metadata of another model, under this architecture's name."""
    donor = Gguf.parse(rng.choice(sources()))
    names = [f.metadata[b"general.architecture"][1] for f in (file, donor)
             if b"general.architecture" in f.metadata]  # fmt: skip
    keys = [key for key in donor.metadata if rng.random() < 0.3]
    for key in keys:
        mine = key
        if len(names) == 2 and isinstance(names[0], bytes) and isinstance(names[1], bytes):
            mine = key.replace(names[1] + b".", names[0] + b".", 1)
        file.metadata[mine] = donor.metadata[key]
    return f"{len(keys)} values of {names[-1:]!r:.40}"


def change_tensor(rng: random.Random, file: Gguf) -> str:
    if not file.tensors:
        return "nothing"
    i = rng.randrange(len(file.tensors))
    tensor = file.tensors[i]
    name = tensor.name.decode("latin1")
    way = rng.choice(["dim", "dims", "kind", "offset", "name", "drop", "twice", "permute"])
    if way == "dim" and tensor.shape:
        at = rng.randrange(len(tensor.shape))
        tensor.shape[at] = abs(number(rng, tensor.shape[at]))
    elif way == "dims":
        tensor.shape = [
            rng.choice([1, 2, 16, 32, 64, 264]) for _ in range(rng.choice([0, 1, 2, 3, 4, 5]))
        ]
    elif way == "kind":
        tensor.kind = rng.choice([*range(45), 2**31])
    elif way == "offset":
        tensor.offset = abs(rng.choice([tensor.offset + 1, tensor.offset + 32, *NUMBERS]))
    elif way == "name":
        tensor.name = rng.choice([*TEXTS, rng.choice(file.tensors).name, tensor.name + b"x"])
    elif way == "drop":
        del file.tensors[i]
    elif way == "twice":
        file.tensors.insert(i, tensor)
    else:
        tensor.shape.reverse()
    if way in ("dim", "dims", "kind", "drop", "permute") and rng.random() < 0.7:
        lay_out(file)
        way += " laid out"
    return f"{name}: {way} {tensor.shape} type {tensor.kind} at {tensor.offset}"


def lay_out(file: Gguf) -> None:
    """Gives every tensor its place in order, so that a wrong shape is not noticed by its offset."""
    at = 0
    for tensor in file.tensors:
        try:
            block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.kind)]
        except ValueError:
            continue
        tensor.offset = at
        n = int(np.prod([int(d) for d in tensor.shape], dtype=object)) // block * size
        at += n + -n % file.alignment
    if at < 2**24:
        file.data = (file.data * (at // max(1, len(file.data)) + 1))[:at]


def change_counts(rng: random.Random, file: Gguf) -> str:
    field = rng.choice(["version", "n_metadata", "n_tensors", "order"])
    if field == "order":
        file.order = ">"
    else:
        setattr(file, field, abs(number(rng)) % (2**32 if field == "version" else 2**64))
    return f"{field} {getattr(file, field)}"


def change_weights(rng: random.Random, file: Gguf) -> str:
    data = bytearray(file.data)
    if not data:
        return "nothing"
    pattern = rng.choice(
        [b"\xff\xff\xff\xff", b"\0\0\x80\x7f", b"\0\0\xc0\x7f", b"\xff\xff\x7f\x7f", b""]
    )
    n = min(len(data), rng.choice([4, 64, 4096]))
    at = rng.randrange(0, len(data) - n + 1, 4)
    data[at : at + n] = (pattern * (n // 4)) or rng.randbytes(n)
    file.data = bytes(data)
    return f"{n} bytes of weights at {at}"


STRUCTURED: list[Mutation] = [
    change_value, change_value, change_value, change_type, drop_key, add_key, add_key,
    other_architecture, other_tokenizer, map_of_characters, change_tensor, change_tensor,
    change_tensor, change_counts,
    change_weights, hostile_template, swap_values, swap_values, foreign_values,
]  # fmt: skip


def change_bytes(rng: random.Random, raw: bytes, n_header: int) -> tuple[bytes, str]:
    """Damage that knows nothing of the format: flipped bits, wrong bytes and numbers, cuts."""
    out = bytearray(raw)
    at = rng.randrange(n_header)
    way = rng.choice(["bit", "bit", "byte", "u32", "u64", "cut out", "put in", "cut off"])
    if way == "bit":
        out[at] ^= 1 << rng.randrange(8)
    elif way == "byte":
        out[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
    elif way in ("u32", "u64"):
        n = 4 if way == "u32" else 8
        out[at : at + n] = (number(rng) % 2 ** (8 * n)).to_bytes(n, "little")
    elif way == "cut out":
        del out[at : at + rng.choice([1, 4, 8, 100])]
    elif way == "put in":
        out[at:at] = rng.randbytes(rng.choice([1, 4, 8, 100]))
    else:
        at = rng.randrange(len(raw))
        del out[at:]
    return bytes(out), f"{way} at {at} ({field_at(raw, at)})"


def field_at(raw: bytes, at: int) -> str:
    names = list(re.finditer(rb"[a-z_0-9]+(?:\.[a-z_0-9]+)+", raw[: at + 1]))
    return names[-1].group().decode() if names else "header"


@functools.cache
def sources() -> list[bytes]:
    """Valid files: every family, rows that fit every quantised type, two tokenizers."""
    small = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_head_kv": 1, "n_ff": 64}
    wide = {"n_layer": 1, "n_embd": 256, "n_head": 2, "n_head_kv": 2, "n_ff": 256, "tied": True}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        files = [
            write_model(path, arch, **small).read_bytes() for arch in ("qwen3", "llama", "phi3")
        ]
        files.append(write_model(path, "qwen3", **wide).read_bytes())
        files += [family.write(path).read_bytes() for family in FAMILIES]
    file = Gguf.parse(files[1])
    tokens = file.metadata[b"tokenizer.ggml.tokens"][1].items
    tokens[:256] = [f"<0x{byte:02X}>".encode() for byte in range(256)]
    file.set("tokenizer.ggml.model", b"llama")
    file.set("tokenizer.ggml.scores", Array(F32, [-float(i) for i in range(len(tokens))]), ARRAY)
    file.set("tokenizer.ggml.token_type", Array(I32, [6] * 256 + [1] * (len(tokens) - 256)))
    return [*files, file.to_bytes()]


def damage(seed: int, i: int, folder: Path) -> str:
    rng = random.Random(seed * 1_000_003 + i)
    raw = rng.choice(sources())
    file = Gguf.parse(raw)
    note = "nothing"
    if rng.random() < 0.4:
        raw, note = change_bytes(rng, raw, len(file.header()))
    else:
        with contextlib.suppress(struct.error):  # a number that the format cannot hold
            notes = [rng.choice(STRUCTURED)(rng, file) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
            raw, note = file.to_bytes(), "; ".join(notes)
    (folder / "model.gguf").write_bytes(raw)
    return note


def use(_: int, folder: Path) -> str:
    """Loads the file and uses all that a front end uses."""
    config = EngineConfig(n_threads=1, n_seq_max=4, n_batch=64, n_ubatch=64)
    engine = Engine(folder / "model.gguf", config)
    try:
        with engine, engine.session(256, 2) as session:
            tokens = engine.tokenize("a hello <think>\n ünï 12", add_special=True)[:64]
            injection = np.full((engine.n_layer, engine.n_embd), 0.01, np.float32)
            task = Task(
                session.sequence(),
                tokens or [0],
                n_generate=3,
                injection=session.injection(injection),
                states=True,
            )
            (output,) = session.run([task])
            engine.detokenize(output.tokens)
            engine.detokenize(range(min(engine.n_vocab, 500)), special=True)
            engine.chat_prompt([{"role": "user", "content": "hi"}])
            engine.eoc_token()
            if np.isfinite(output.logprobs).all() and np.isfinite(output.states).all():
                return "works"
            return "LOADS, but gives numbers that are not finite"
    except TgrError as error:
        return f"works, then: {error}"


def main() -> int:
    options = forks.parser(__doc__).parse_args()
    sources()  # made once, before the forks
    fuzzer = Fuzzer(damage, use, lambda i: "model", (TgrError,), mib=MIB)
    numbers = list(range(options.n)) if options.only is None else [options.only]
    return forks.run(fuzzer, options, numbers)


if __name__ == "__main__":
    sys.exit(main())
