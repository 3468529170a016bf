"""Writes a checkpoint as a GGUF file that llama.cpp loads as architecture `qwen3`.

In: a checkpoint of `train.py`. Out: one file with the weights (F32, F16 or Q8_0; norms stay F32),
the vocabulary, the chat template, and the search settings that suit this model (`tgr.*`). Run as a
module it writes tgr-mini; `models.code.export` writes tgr-mini-code with the same functions.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from models.vocab import Vocabulary

TYPES = {
    "f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}  # fmt: skip
FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}  # fmt: skip
SEARCH = {
    "tgr.chunk_len": 32, "tgr.rollout_len": 12, "tgr.max_chunks": 24, "tgr.calibration": "residual",
}  # fmt: skip
"""Recommended tokens per chunk and per rollout, chunks in one answer, and the injection's unit: its
strength was tuned in that one, and is far weaker than what suits a model of many subjects."""
BLOCK_NAMES = {
    "attn_norm": "attn_norm", "attn.q": "attn_q", "attn.k": "attn_k", "attn.v": "attn_v",
    "attn.output": "attn_output", "attn.q_norm": "attn_q_norm", "attn.k_norm": "attn_k_norm",
    "ffn_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
}  # fmt: skip
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- set content = message.content %}"
    "{%- if message.role == 'assistant' and '</think>' in content %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}"
    "{%- endif %}"
    "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}"
    "{%- endif %}"
)
"""Qwen3's format: earlier reasoning is dropped; without thinking an empty block is put before."""


@dataclass(frozen=True)
class Identity:
    """What a file says about its model, apart from the weights."""

    name: str
    description: str
    vocabulary: Vocabulary
    chat_template: str
    search: Mapping[str, int | float | str]
    """`tgr.*`: recommended settings."""
    is_visible: tuple[str, ...] = ()
    """Specials that are part of the visible text."""


def tensors(weights: dict[str, torch.Tensor], n_layer: int) -> Iterator[tuple[str, np.ndarray]]:
    """GGUF names and F32 arrays."""
    yield "token_embd.weight", weights["embed.weight"].numpy()
    yield "output_norm.weight", weights["norm.weight"].numpy()
    for i in range(n_layer):
        for ours, theirs in BLOCK_NAMES.items():
            yield f"blk.{i}.{theirs}.weight", weights[f"blocks.{i}.{ours}.weight"].numpy()


def add_sizes(writer: gguf.GGUFWriter, shape: dict[str, Any]) -> None:
    """The metadata that describes the network."""
    writer.add_context_length(shape["n_ctx"])
    writer.add_embedding_length(shape["n_embd"])
    writer.add_block_count(shape["n_layer"])
    writer.add_feed_forward_length(shape["n_ff"])
    writer.add_head_count(shape["n_head"])
    writer.add_head_count_kv(shape["n_head_kv"])
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_rope_freq_base(shape["rope_base"])
    writer.add_layer_norm_rms_eps(shape["norm_eps"])
    writer.add_vocab_size(shape["n_vocab"])


def add_vocabulary(writer: gguf.GGUFWriter, identity: Identity) -> None:
    """Tokens, merges, specials and the chat template."""
    vocabulary = identity.vocabulary
    kinds = dict.fromkeys(vocabulary.tokens, gguf.TokenType.NORMAL)
    kinds |= dict.fromkeys(vocabulary.specials, gguf.TokenType.CONTROL)
    kinds |= dict.fromkeys(identity.is_visible, gguf.TokenType.USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(list(kinds.values()))
    writer.add_token_merges([f"{a} {b}" for a, b in vocabulary.merges])
    writer.add_eos_token_id(vocabulary.special("<|im_end|>"))
    writer.add_bos_token_id(vocabulary.special("<|endoftext|>"))
    writer.add_pad_token_id(vocabulary.special("<|endoftext|>"))
    writer.add_add_bos_token(False)
    writer.add_chat_template(identity.chat_template)


def write(file: Path, state: dict[str, Any], type_name: str, identity: Identity) -> None:
    """Write the file; an existing one is replaced only when the new one is complete."""
    part = file.with_suffix(".part")
    shape = state["shape"]
    writer = gguf.GGUFWriter(part, "qwen3")
    writer.add_name(identity.name)
    writer.add_description(identity.description)
    writer.add_license("mit")
    writer.add_file_type(FILE_TYPES[type_name])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_sizes(writer, shape)
    add_vocabulary(writer, identity)
    for key, value in identity.search.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    for name, array in tensors(state["model"], shape["n_layer"]):
        kind = TYPES[type_name] if array.ndim == 2 else TYPES["f32"]
        writer.add_tensor(
            name, gguf.quants.quantize(array.astype(np.float32), kind), raw_dtype=kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, file)


def run(doc: str | None, identity: Identity) -> None:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("checkpoint", type=Path, help="checkpoint.pt of a run")
    parser.add_argument("file", type=Path, help="GGUF file to write")
    parser.add_argument("--type", choices=TYPES, default="q8_0")
    options = parser.parse_args()
    state = torch.load(options.checkpoint, weights_only=True)
    write(options.file, state, options.type, identity)
    print(
        f"{options.file}: {options.file.stat().st_size} bytes, "
        f"step {state['step']}, {state['n_tokens']} tokens"
    )


def main() -> None:
    """Export tgr-mini."""
    run(
        __doc__,
        Identity(
            "tgr-mini",
            "A very small model for arithmetic, Countdown puzzles and linear equations.",
            Vocabulary.load(),
            CHAT_TEMPLATE,
            SEARCH,
            # As in Qwen3: the marks of reasoning are part of the visible text.
            is_visible=("<think>", "</think>"),
        ),
    )


if __name__ == "__main__":
    main()
