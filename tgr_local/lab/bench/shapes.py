"""Random-weight GGUF files in the shapes of Qwen3, to measure speed without a download.

They are as fast as real weights, and their text is noise. F16 and Q8_0 are written here, block by
block, so that a large file needs little memory; llama.cpp's own quantizer makes every other type
from Q8_0. A file is made once, in the user's cache folder, and stays there; `kept` lists
them. The vocabulary has the size of Qwen's, with artificial merges: pairs of bytes, then such pairs
with one more byte.
"""

from __future__ import annotations

import itertools
import os
import shutil
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tgr_local.lab.bench.peers import library
from tgr_local.options.model_files import size
from tgr_local.system import paths as places
from tgr_local.system.errors import ModelError, TgrError
from tgr_local.system.progress import ProgressLine

VERSION = 3  # raise it when the content changes
HEAD_DIM = 128
SPECIALS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_pad|>",
    "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
)  # fmt: skip
_PREFIX = "random-qwen3-"  # of the files' names
_ALIGNMENT = 32
_INT = struct.Struct("<i").pack
_BLOCK_ROWS = 4096  # rows of a matrix made at a time


@dataclass(frozen=True)
class Shape:
    """Dimensions of one size of Qwen3. `tied`: the output layer is the embedding."""

    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    n_ff: int
    tied: bool = True
    n_vocab: int = 151_936

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape [rows, columns] of each."""
        n_q, n_kv, n = self.n_head * HEAD_DIM, self.n_head_kv * HEAD_DIM, self.n_embd
        yield "token_embd", (self.n_vocab, n)
        if not self.tied:
            yield "output", (self.n_vocab, n)
        yield "output_norm", (n,)
        for layer in range(self.n_layer):
            for name, shape in {
                "attn_norm": (n,), "attn_q": (n_q, n), "attn_k": (n_kv, n), "attn_v": (n_kv, n),
                "attn_q_norm": (HEAD_DIM,), "attn_k_norm": (HEAD_DIM,), "attn_output": (n, n_q),
                "ffn_norm": (n,), "ffn_gate": (self.n_ff, n), "ffn_up": (self.n_ff, n),
                "ffn_down": (n, self.n_ff),
            }.items():  # fmt: skip
                yield f"blk.{layer}.{name}", shape


SHAPES = {
    "tiny": Shape(2, 256, 4, 2, 768, n_vocab=4096),
    "0.6b": Shape(28, 1024, 16, 8, 3072),
    "1.7b": Shape(28, 2048, 16, 8, 6144),
    "4b": Shape(36, 2560, 32, 8, 9728),
    "8b": Shape(36, 4096, 32, 8, 12288, tied=False),
}


@dataclass(frozen=True)
class _Kind:
    """A type that this module writes: its numbers in GGUF and its bytes per 32 values."""

    tensor_type: int
    file_type: int
    block_bytes: int


_F32 = 0
_DIRECT = {"f16": _Kind(1, 1, 64), "q8_0": _Kind(8, 7, 34)}
_QUANTIZED = {
    "q6_k": "Q6_K", "q5_k": "Q5_K_M", "q4_k": "Q4_K_M", "q3_k": "Q3_K_M", "q2_k": "Q2_K",
    "q4_0": "Q4_0",
}  # fmt: skip
TYPES = (*_DIRECT, *_QUANTIZED)


def cache_folder() -> Path:
    return places.folder("cache")


def kept(shape: str | None = None, kind: str | None = None) -> list[Path]:
    """The files of random weights in the cache folder, sorted: all, or those of a shape or type,
    with those of other versions and unfinished ones. ValueError as `model_file`."""
    shape = "*" if shape is None else _check("shape", shape, SHAPES)
    kind = "*" if kind is None else _kind(kind)
    files = cache_folder().glob(f"{_PREFIX}{shape}-{kind}-v*")
    return sorted(path for path in files if path.suffix == ".gguf" or _is_left_over(path))


def _is_left_over(path: Path) -> bool:
    """Whether a file is unfinished and the process in its name has ended."""
    pid = path.stem.rpartition(".")[2]
    if path.suffix != ".part" or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:  # it is another user's
        pass
    return False


def _check(option: str, name: str, known: Collection[str]) -> str:
    if name not in known:
        raise ValueError(f"{option} is {name!r}, but must be one of {', '.join(known)}")
    return name


def _kind(name: str) -> str:
    return _check("type", name.lower().removesuffix("_m"), TYPES)


def model_file(shape: str, kind: str) -> Path:
    """The file of that shape and type, made if it is missing. ValueError for a name that is not in
    SHAPES or TYPES, TgrError when the disk has too little space."""
    shape, kind = _check("shape", shape, SHAPES), _kind(kind)
    folder = cache_folder()
    path = folder / f"{_PREFIX}{shape}-{kind}-v{VERSION}.gguf"
    if path.exists():
        return path
    source = model_file(shape, "q8_0") if kind in _QUANTIZED else None
    folder.mkdir(parents=True, exist_ok=True)
    # a quantized file is no larger than its source
    needed = source.stat().st_size if source else file_bytes(SHAPES[shape], kind)
    if (free := shutil.disk_usage(folder).free) < needed:
        raise TgrError(
            f"{path} needs {size(needed)}, but {folder} has {size(free)} free; free space, or set "
            "XDG_CACHE_HOME to a folder elsewhere"
        )
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        with ProgressLine(f"making {path}"):
            if source:
                _quantize(source, part, _QUANTIZED[kind])
            else:
                write(part, SHAPES[shape], kind)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def write(path: Path, shape: Shape, kind: str) -> None:
    """Writes a model of type f16 or q8_0; seeded, so that the file is the same everywhere."""
    rng, how = np.random.default_rng(0), _DIRECT[kind]
    with open(path, "wb") as file:
        _header(file, shape, how)
        for _, dims in shape.tensors():
            if len(dims) == 1:
                file.write(np.ones(dims, np.float32).tobytes())
            else:
                vocabulary = dims[0] == shape.n_vocab
                # special tokens get small logits, so that no reply ends by chance
                faint = len(SPECIALS) if vocabulary else 0
                deviation = (2 if vocabulary else 1) / dims[1] ** 0.5
                for start in range(0, dims[0] - faint, _BLOCK_ROWS):
                    n_rows = min(_BLOCK_ROWS, dims[0] - faint - start)
                    file.write(_random(rng, n_rows * dims[1], deviation, kind).tobytes())
                file.write(_random(rng, faint * dims[1], deviation / 8, kind).tobytes())
            file.write(bytes(-file.tell() % _ALIGNMENT))


def _random(rng: np.random.Generator, n: int, deviation: float, kind: str) -> NDArray[Any]:
    if kind == "f16":
        values = rng.random(n, np.float32) - np.float32(0.5)
        return (values * np.float32(deviation * 12**0.5)).astype(np.float16)
    blocks = np.empty((n // 32, 34), np.uint8)
    scale = np.float16(deviation / 74)  # 74: deviation of a random byte
    blocks[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    blocks[:, 2:] = np.frombuffer(rng.bytes(n), np.uint8).reshape(-1, 32)
    return blocks


def _tensor_bytes(dims: tuple[int, ...], kind: _Kind) -> int:
    return dims[0] * 4 if len(dims) == 1 else dims[0] * dims[1] // 32 * kind.block_bytes


def file_bytes(shape: Shape, kind: str) -> int:
    """About the size of a file of type f16 or q8_0."""
    how = _DIRECT[kind]
    return sum(_tensor_bytes(dims, how) for _, dims in shape.tensors()) + (16 << 20)


def _quantize(source: Path, path: Path, name: str) -> None:
    llama_cpp = library()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
    params.allow_requantize = True
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(path), params) != 0:
        raise ModelError(f"llama.cpp could not quantize {source} to {name} as {path}")


# ---- the header ----


def _header(file: BinaryIO, shape: Shape, kind: _Kind) -> None:
    tensors = list(shape.tensors())
    values = metadata(shape, kind.file_type)
    file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)))
    for key, value in values.items():
        file.write(_text(key) + _value(value))
    offset = 0
    for name, dims in tensors:
        tensor_type = _F32 if len(dims) == 1 else kind.tensor_type
        file.write(_text(f"{name}.weight") + struct.pack("<I", len(dims)))
        file.write(struct.pack(f"<{len(dims)}Q", *reversed(dims)))
        file.write(struct.pack("<IQ", tensor_type, offset))
        offset += -(-_tensor_bytes(dims, kind) // _ALIGNMENT) * _ALIGNMENT
    file.write(bytes(-file.tell() % _ALIGNMENT))


def metadata(shape: Shape, file_type: int) -> dict[str, Any]:
    """The header's keys and values, the vocabulary included."""
    plain = shape.n_vocab - len(SPECIALS)
    merges = list(itertools.islice(_merges(), plain - 256))
    special = dict(zip(SPECIALS, range(plain, shape.n_vocab), strict=True))
    return {
        "general.architecture": "qwen3",
        "general.name": "random weights in the shape of Qwen3",
        "general.file_type": file_type,
        "qwen3.context_length": 40960,
        "qwen3.embedding_length": shape.n_embd,
        "qwen3.block_count": shape.n_layer,
        "qwen3.feed_forward_length": shape.n_ff,
        "qwen3.attention.head_count": shape.n_head,
        "qwen3.attention.head_count_kv": shape.n_head_kv,
        "qwen3.attention.key_length": HEAD_DIM,
        "qwen3.attention.value_length": HEAD_DIM,
        "qwen3.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen3.rope.freq_base": 1e6,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [*_BYTES, *(m.replace(" ", "") for m in merges), *SPECIALS],
        "tokenizer.ggml.token_type": [1] * plain + [3] * len(SPECIALS),  # normal, control
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": special["<|endoftext|>"],
        "tokenizer.ggml.eos_token_id": special["<|im_end|>"],
        "tokenizer.ggml.padding_token_id": special["<|endoftext|>"],
        "tokenizer.ggml.add_bos_token": False,
    }


def _byte_texts() -> list[str]:
    """GPT-2's printable stand-in for each byte: the byte's own character where it is printable,
    else the next one from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    stand_ins = [chr(0x100 + i) for i in range(256 - len(printable))]
    return [chr(byte) for byte in printable] + stand_ins


_BYTES = _byte_texts()


def _merges() -> Iterator[str]:
    """Pairs of bytes, then pairs and a byte: more than any vocabulary here has."""
    for a, b in itertools.product(_BYTES, repeat=2):
        yield f"{a} {b}"
    for a, b, c in itertools.product(_BYTES, repeat=3):
        yield f"{a}{b} {c}"


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """A value with its type: bool, int, float, text, or a list of ints or texts."""
    if isinstance(value, list):
        kind, items = (8, map(_text, value)) if isinstance(value[0], str) else (5, map(_INT, value))
        return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(items)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<II", 4, value)
