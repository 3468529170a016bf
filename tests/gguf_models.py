"""Small random GGUF files for tests: decoders that run, models to refuse, and damaged files. Other
families are in families.py.

Everything is seeded and written in hundredths of a second. The vocabulary is a token for every
byte, the specials that a Qwen model has, and two merges; llama.cpp loads every file that is not
damaged on purpose.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, NDArray[np.float32]]

_F32 = 0  # ggml type number
MERGES = ("h e", "Ġ t")
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_pad|>")
THINK = ("<think>", "</think>")
N_PLAIN = 256 + len(MERGES)
N_VOCAB = N_PLAIN + len(CONTROL) + len(THINK)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


RERANK_TEMPLATE = "<|im_start|>Query: {query}\nText: {document}<|im_end|>\n"


def token_id(special: str) -> int:
    """The id of a special token by its text."""
    return N_PLAIN + (*CONTROL, *THINK).index(special)


def write_model(
    path: Path,
    arch: str = "qwen3",
    *,
    n_layer: int = 2,
    n_embd: int = 64,
    n_head: int = 4,
    n_head_kv: int = 2,
    head_dim: int | None = None,
    n_ff: int = 128,
    n_ctx_train: int = 4096,
    tied: bool = False,
    dtype: str = "F32",
    n_extra: int = 0,
    pooling: str = "",
    n_classes: int = 0,
    n_ctx_original: int = 0,
    seed: int = 0,
) -> Path:
    """A random dense decoder of arch qwen3, llama or phi3; returns path.

    n_extra tokens make the vocabulary larger than N_VOCAB. head_dim is n_embd / n_head unless given
    (phi3 takes no other). dtype F32, F16 or Q8_0 is that of the matrices; Q8_0 needs rows of a
    multiple of 32. Logits have a standard deviation of about 2; those of special tokens are a
    quarter of it, so greedy text rarely ends. With pooling (a name of gguf.PoolingType) it is an
    embedding model, or with RANK and n_classes a reranker (qwen3). With n_ctx_original it has other
    rotation factors for texts that are longer than this (phi3).
    """
    head_dim = head_dim or n_embd // n_head
    n_q, n_kv = n_head * head_dim, n_head_kv * head_dim
    draw = Draw(seed)
    tensors = {
        "token_embd.weight": draw.vocabulary(n_embd, n_extra),
        "output_norm.weight": draw.norm(n_embd),
    }
    if not tied:
        tensors["output.weight"] = draw.vocabulary(n_embd, n_extra)
    for layer in range(n_layer):
        block = {"attn_norm": draw.norm(n_embd), "ffn_norm": draw.norm(n_embd)}
        if arch == "phi3":
            block["attn_qkv"] = draw.matrix(n_q + 2 * n_kv, n_embd)
            block["ffn_up"] = draw.matrix(2 * n_ff, n_embd)
        else:
            block["attn_q"] = draw.matrix(n_q, n_embd)
            block["attn_k"] = draw.matrix(n_kv, n_embd)
            block["attn_v"] = draw.matrix(n_kv, n_embd)
            block["ffn_gate"] = draw.matrix(n_ff, n_embd)
            block["ffn_up"] = draw.matrix(n_ff, n_embd)
        if arch == "qwen3":
            block["attn_q_norm"] = draw.norm(head_dim)
            block["attn_k_norm"] = draw.norm(head_dim)
        block["attn_output"] = draw.matrix(n_embd, n_q)
        block["ffn_down"] = draw.matrix(n_embd, n_ff)
        tensors |= {f"blk.{layer}.{name}.weight": tensor for name, tensor in block.items()}
    writer = decoder_metadata(path, arch, n_layer, n_embd, n_head, n_ff, n_ctx_train, n_extra)
    writer.add_head_count_kv(n_head_kv)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(10000.0)
    if pooling:
        writer.add_pooling_type(gguf.PoolingType[pooling])
    if n_ctx_original:
        writer.add_rope_scaling_orig_ctx_len(n_ctx_original)
        tensors["rope_factors_short.weight"] = np.ones(head_dim // 2, np.float32)
        tensors["rope_factors_long.weight"] = np.linspace(1, 8, head_dim // 2, dtype=np.float32)
    if n_classes:
        tensors["cls.output.weight"] = draw.matrix(n_classes, n_embd)
        writer.add_array(f"{arch}.classifier.output_labels", [str(i) for i in range(n_classes)])
        writer.add_string("tokenizer.chat_template.rerank", RERANK_TEMPLATE)
    return finish(writer, path, tensors, dtype)


def write_vocab_only(path: Path) -> Path:
    """The metadata and the tokenizer of a qwen3 model, without a single tensor."""
    return finish(decoder_metadata(path, "qwen3", 2, 64, 4, 128, 4096), path, {}, "F32")


def write_bert(path: Path, seed: int = 0) -> Path:
    """A complete embedding model of one layer: llama.cpp loads it, but it cannot generate."""
    n_embd, n_ff, n_ctx, draw = 32, 64, 128, Draw(seed)
    tensors = {
        "token_embd.weight": draw.vocabulary(n_embd),
        "token_types.weight": draw.matrix(2, n_embd),
        "position_embd.weight": draw.matrix(n_ctx, n_embd),
        "token_embd_norm.weight": draw.norm(n_embd),
        "token_embd_norm.bias": draw.norm(n_embd),
        "blk.0.ffn_up.weight": draw.matrix(n_ff, n_embd),
        "blk.0.ffn_down.weight": draw.matrix(n_embd, n_ff),
    }
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        tensors[f"blk.0.{name}.weight"] = draw.matrix(n_embd, n_embd)
        tensors[f"blk.0.{name}.bias"] = draw.norm(n_embd)
    for name in ("attn_output_norm", "layer_output_norm"):
        tensors[f"blk.0.{name}.weight"] = draw.norm(n_embd)
        tensors[f"blk.0.{name}.bias"] = draw.norm(n_embd)
    writer = decoder_metadata(path, "bert", 1, n_embd, 4, n_ff, n_ctx)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_token_type_count(2)
    return finish(writer, path, tensors, "F32")


def write_mamba(path: Path, seed: int = 0) -> Path:
    """A recurrent model of one layer: its state cannot be rolled back."""
    n_embd, d_conv, d_state, dt_rank, draw = 32, 4, 16, 2, Draw(seed)
    d_inner = 2 * n_embd
    tensors = {
        "token_embd.weight": draw.vocabulary(n_embd),
        "output_norm.weight": draw.norm(n_embd),
        "blk.0.attn_norm.weight": draw.norm(n_embd),
        "blk.0.ssm_in.weight": draw.matrix(2 * d_inner, n_embd),
        "blk.0.ssm_conv1d.weight": draw.matrix(d_inner, d_conv),
        "blk.0.ssm_conv1d.bias": draw.norm(d_inner),
        "blk.0.ssm_x.weight": draw.matrix(dt_rank + 2 * d_state, d_inner),
        "blk.0.ssm_dt.weight": draw.matrix(d_inner, dt_rank),
        "blk.0.ssm_dt.bias": draw.norm(d_inner),
        "blk.0.ssm_a": -np.abs(draw.matrix(d_inner, d_state)),
        "blk.0.ssm_d": draw.norm(d_inner),
        "blk.0.ssm_out.weight": draw.matrix(n_embd, d_inner),
    }
    writer = decoder_metadata(path, "mamba", 1, n_embd, 0, 0, 4096)
    writer.add_ssm_conv_kernel(d_conv)
    writer.add_ssm_inner_size(d_inner)
    writer.add_ssm_state_size(d_state)
    writer.add_ssm_time_step_rank(dt_rank)
    return finish(writer, path, tensors, "F32")


def write_truncated(source: Path, path: Path, n_bytes: int) -> Path:
    """The first n_bytes of source, a download that broke off."""
    path.write_bytes(source.read_bytes()[:n_bytes])
    return path


def write_garbage(path: Path, n_bytes: int = 4096, seed: int = 0) -> Path:
    """A GGUF magic and version with n_bytes random bytes behind them."""
    header = b"GGUF" + (3).to_bytes(4, "little")
    path.write_bytes(header + np.random.default_rng(seed).bytes(n_bytes))
    return path


class Draw:
    """Seeded random weights that keep every activation near unit variance."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def matrix(self, n_out: int, n_in: int) -> NDArray[np.float32]:
        return self._rng.standard_normal((n_out, n_in), dtype=np.float32) / np.float32(n_in**0.5)

    def norm(self, n: int) -> NDArray[np.float32]:
        return self._rng.uniform(0.8, 1.2, n).astype(np.float32)

    def bias(self, n: int) -> NDArray[np.float32]:
        return self._rng.standard_normal(n, dtype=np.float32) / 4

    def vocabulary(self, n_embd: int, n_extra: int = 0) -> NDArray[np.float32]:
        rows = 2 * self.matrix(N_VOCAB + n_extra, n_embd)
        rows[N_PLAIN:N_VOCAB] /= 4
        return rows


def decoder_metadata(
    path: Path,
    arch: str,
    n_layer: int,
    n_embd: int,
    n_head: int,
    n_ff: int,
    n_ctx_train: int,
    n_extra: int = 0,
) -> Any:  # GGUFWriter's own annotations are not strict
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_name("random")  # llama.cpp gives tokens by the names of known models
    writer.add_block_count(n_layer)
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(N_VOCAB + n_extra)

    plain = [_byte_text(byte) for byte in range(256)] + [m.replace(" ", "") for m in MERGES]
    kinds = [gguf.TokenType.NORMAL] * N_PLAIN + [gguf.TokenType.CONTROL] * len(CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    extra = [f"<extra {i}>" for i in range(n_extra)]
    writer.add_token_list([*plain, *CONTROL, *THINK, *extra])
    kinds += [gguf.TokenType.USER_DEFINED] * len(THINK) + [gguf.TokenType.NORMAL] * n_extra
    writer.add_token_types(kinds)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(token_id("<|endoftext|>"))
    writer.add_eos_token_id(token_id("<|im_end|>"))
    writer.add_pad_token_id(token_id("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    return writer


def finish(
    writer: Any, path: Path, tensors: Tensors, dtype: str, types: dict[str, str] | None = None
) -> Path:
    """Writes the file. Matrices get dtype; `types` are those of tensors by how their names end."""
    for name, tensor in tensors.items():
        chosen = [kind for end, kind in (types or {}).items() if name.endswith(end)]
        kind = gguf.GGMLQuantizationType[(*chosen, dtype if tensor.ndim == 2 else "F32")[0]]
        writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _byte_text(byte: int) -> str:
    """GPT-2's printable stand-in for a byte: itself where it is one, else the next from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    return chr(0x100 + sum(b not in printable for b in range(byte)))


def write_smallest_model(vocabulary: Path, path: Path, n_embd: int = 8) -> Path:
    """Makes a model of one layer from a file that holds a qwen2 vocabulary and no weights. Reading
    and writing its 300,000 texts one by one would take seconds, so its bytes are edited."""
    raw = bytearray(vocabulary.read_bytes())
    shapes = {"token_embd": (n_embd, 151_936), "output_norm": (n_embd,)}
    for part in ("q", "k", "v", "output"):
        shapes[f"blk.0.attn_{part}"] = (n_embd, n_embd)
    for part in ("gate", "up", "down"):
        shapes[f"blk.0.ffn_{part}"] = (n_embd, n_embd)
    for part in ("attn_norm", "ffn_norm"):
        shapes[f"blk.0.{part}"] = (n_embd,)
    tensors = {f"{name}.weight": shape for name, shape in shapes.items()}
    tensors |= {f"blk.0.attn_{part}.bias": (n_embd,) for part in "qkv"}

    raw[8:16] = struct.pack("<Q", len(tensors))
    sizes = {"block_count": 1, "embedding_length": n_embd, "feed_forward_length": n_embd}
    for key, value in (sizes | {"attention.head_count": 1, "attention.head_count_kv": 1}).items():
        at = raw.index(struct.pack("<Q", len("qwen2." + key)) + b"qwen2." + key.encode())
        at += 8 + len("qwen2." + key) + 4  # behind the key and its type
        raw[at : at + 4] = struct.pack("<I", value)
    offset = 0
    for name, shape in tensors.items():
        raw += struct.pack("<Q", len(name)) + name.encode()
        raw += struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, _F32, offset)
        offset += -(-4 * math.prod(shape) // 32) * 32
    raw += bytes(-len(raw) % 32)
    raw += np.random.default_rng(0).standard_normal(offset // 4, dtype=np.float32).tobytes()
    path.write_bytes(raw)
    return path
