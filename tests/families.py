"""Small random GGUF files of every model family that the engine supports, and of some it refuses.

Each is written in about a tenth of a second and has less than 1 MiB. Windows of attention are 8 or
12 tokens, so that a test's prompt is longer than they are. What only some models of a family have
(scales, biases, experts, sinks) is there, and far from 0 or 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from engines import ROUNDING
from gguf_models import Draw, Tensors, decoder_metadata, finish, write_mamba, write_model

N_EMBD, N_HEAD, N_HEAD_KV, HEAD, N_FF = 64, 4, 2, 16, 96
N_EXPERT, N_FF_EXPERT = 4, 32
N_CTX_TRAIN = 4096
# of log-probabilities, by family: ggml has a table of F16 for GELU, and MXFP4 weights round what
# they multiply, so that another order of the sums in attention shows
ROUNDED = {"gemma2": 1e-2, "gemma3": 1e-2, "gpt-oss-mxfp4": 5e-2}
MAMBA2: dict[str, Any] = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 2 * N_EMBD,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 8,
    "ssm.group_count": 1,
}
DELTA_NET: dict[str, Any] = {  # two key heads, four value heads of 16 numbers
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 64,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
    "full_attention_interval": 2,
}
ATTENTION: dict[str, Any] = {
    "attention.head_count_kv": N_HEAD_KV,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "rope.dimension_count": HEAD,
    "rope.freq_base": 10000.0,
}
EXPERTS: dict[str, Any] = {
    "expert_count": N_EXPERT,
    "expert_used_count": 2,
    "expert_feed_forward_length": N_FF_EXPERT,
}


@dataclass(frozen=True)
class Family:
    """A family of models: how a small one is written, and what it keeps of a sequence."""

    name: str
    write: Callable[[Path], Path]
    n_layer: int
    attention: bool = True
    recurrent: bool = False
    rounding: float = ROUNDING
    """How much log-probabilities may move with what else is in a batch."""


def qwen2(path: Path) -> Path:
    draw = Draw(1)
    layers = [attention(draw, biases=True) | dense(draw) for _ in range(2)]
    return _write(path, "qwen2", draw, layers, ATTENTION)


def qwen3moe(path: Path) -> Path:
    draw = Draw(2)
    layers = [attention(draw, norms=True) | experts(draw) for _ in range(2)]
    return _write(path, "qwen3moe", draw, layers, ATTENTION | EXPERTS)


def mistral3(path: Path) -> Path:
    """With YaRN, and scores that are scaled by position, both from position 16 on."""
    draw = Draw(3)
    layers = [attention(draw) | dense(draw) for _ in range(2)]
    keys = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 16,
        "rope.scaling.yarn_log_multiplier": 1.0,
        "attention.temperature_scale": 0.1,
    }
    return _write(path, "mistral3", draw, layers, ATTENTION | keys)


def gemma2(path: Path, window: int = 8) -> Path:
    """Soft caps on scores and logits; every other layer sees a window."""
    draw = Draw(4)
    layers = [_gemma_block(draw, norms=False) for _ in range(2)]
    keys = {
        "attention.sliding_window": window,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 6.0,
    }
    return _write(path, "gemma2", draw, layers, ATTENTION | keys, tied=True)


def gemma3(path: Path, window: int = 8) -> Path:
    draw = Draw(5)
    layers = [_gemma_block(draw, norms=True) for _ in range(3)]
    keys = {
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": [True, False, True],
        "rope.freq_base_swa": 100.0,
    }
    return _write(path, "gemma3", draw, layers, ATTENTION | keys, tied=True)


def gpt_oss(path: Path, window: int = 12, *, mxfp4: bool = False) -> Path:
    """Sinks, biases everywhere, experts (in MXFP4, where wanted), a window in every other layer."""
    draw = Draw(6)
    layers = []
    for _ in range(2):
        block = attention(draw, biases=True) | experts(draw, biases=True)
        block["attn_sinks.weight"] = draw.norm(N_HEAD)
        block["attn_output.bias"] = draw.bias(N_EMBD)
        block["post_attention_norm.weight"] = block.pop("ffn_norm.weight")
        layers.append(block)
    keys = {"attention.sliding_window": window}
    types = {"_exps.weight": "MXFP4"} if mxfp4 else {}
    return _write(path, "gpt-oss", draw, layers, ATTENTION | EXPERTS | keys, types=types)


def deepseek2(path: Path) -> Path:
    """Multi-head latent attention: a cell holds one latent vector and no value. One dense layer,
    one with experts and a shared expert."""
    draw = Draw(7)
    layers = [latent_attention(draw) | dense(draw), latent_attention(draw) | shared_experts(draw)]
    return _write(path, "deepseek2", draw, layers, LATENT | EXPERTS | SHARED_EXPERT)


def deepseek32(path: Path) -> Path:
    """As deepseek2, with an index that chooses which tokens attention looks at."""
    draw, n_index, d_index = Draw(8), 2, 64
    layers = []
    for mlp in (dense, shared_experts):
        block = latent_attention(draw) | mlp(draw)
        block["indexer.k_norm.weight"] = draw.norm(d_index)
        block["indexer.k_norm.bias"] = draw.bias(d_index)
        block["indexer.proj.weight"] = draw.matrix(n_index, N_EMBD)
        block["indexer.attn_k.weight"] = draw.matrix(d_index, N_EMBD)
        block["indexer.attn_q_b.weight"] = draw.matrix(n_index * d_index, Q_RANK)
        layers.append(block)
    keys = {
        "attention.indexer.head_count": n_index,
        "attention.indexer.key_length": d_index,
        "attention.indexer.top_k": 8,
        "expert_gating_func": 2,
    }
    return _write(path, "deepseek32", draw, layers, LATENT | EXPERTS | SHARED_EXPERT | keys)


def qwen3next(path: Path) -> Path:
    draw = Draw(9)
    keys = EXPERTS | DELTA_NET | {"expert_shared_feed_forward_length": N_FF_EXPERT}
    layers = []
    for mixer in (delta_net, gated_attention, delta_net, gated_attention):
        block = mixer(draw) | experts(draw) | shared_expert(draw)
        block["ffn_gate_inp_shexp.weight"] = draw.matrix(1, N_EMBD)[0]
        block["post_attention_norm.weight"] = block.pop("ffn_norm.weight")
        if mixer is delta_net:
            beta, alpha = block.pop("ssm_beta.weight"), block.pop("ssm_alpha.weight")
            block["ssm_ba.weight"] = np.concatenate([beta, alpha])
        layers.append(block)
    return _write(path, "qwen3next", draw, layers, ATTENTION | keys)


def qwen35(path: Path) -> Path:
    draw = Draw(10)
    layers = []
    for mixer in (delta_net, gated_attention, delta_net, gated_attention):
        block = mixer(draw) | dense(draw)
        block["post_attention_norm.weight"] = block.pop("ffn_norm.weight")
        layers.append(block)
    keys = {"rope.dimension_sections": [4, 2, 2, 0]}
    return _write(path, "qwen35", draw, layers, ATTENTION | DELTA_NET | keys)


def lfm2(path: Path) -> Path:
    draw, n_cache = Draw(11), 3

    def convolution() -> Tensors:
        return {
            "attn_norm.weight": draw.norm(N_EMBD),
            "shortconv.conv.weight": draw.matrix(N_EMBD, n_cache),
            "shortconv.in_proj.weight": draw.matrix(3 * N_EMBD, N_EMBD),
            "shortconv.out_proj.weight": draw.matrix(N_EMBD, N_EMBD),
        }

    layers = [
        mixer | dense(draw) for mixer in (convolution(), attention(draw, norms=True), convolution())
    ]
    keys = {"shortconv.l_cache": n_cache, "attention.head_count_kv": [0, N_HEAD_KV, 0]}
    return _write(path, "lfm2", draw, layers, ATTENTION | keys, output_norm="token_embd_norm")


def granitehybrid(path: Path) -> Path:
    draw = Draw(12)
    layers = [mixer(draw) | dense(draw) for mixer in (mamba2_mixer, attention, mamba2_mixer)]
    keys = {
        "attention.head_count_kv": [0, N_HEAD_KV, 0],
        "attention.scale": 0.1,
        "embedding_scale": 3.0,
        "injection_scale": 0.5,
        "logit_scale": 2.0,
    }
    return _write(path, "granitehybrid", draw, layers, ATTENTION | MAMBA2 | keys)


def nemotron_h(path: Path) -> Path:
    """A layer is a recurrent one, attention, or a feed-forward network, never two of them."""
    draw = Draw(13)
    feed_forward = {"attn_norm.weight": draw.norm(N_EMBD)}
    feed_forward["ffn_up.weight"] = draw.matrix(N_FF, N_EMBD)
    feed_forward["ffn_down.weight"] = draw.matrix(N_EMBD, N_FF)
    layers = [mamba2_mixer(draw), attention(draw), feed_forward, mamba2_mixer(draw)]
    keys = {
        "attention.head_count_kv": [0, N_HEAD_KV, 0, 0],
        "attention.layer_norm_epsilon": 1e-5,
        "feed_forward_length": [0, 0, N_FF, 0],
    }
    return _write(path, "nemotron_h", draw, layers, ATTENTION | MAMBA2 | keys)


def falcon_h1(path: Path) -> Path:
    """Every layer is recurrent and has attention."""
    draw = Draw(14)
    layers = [mamba2_mixer(draw) | attention(draw) | dense(draw) for _ in range(2)]
    for block in layers:
        block["ffn_norm"] = block.pop("ffn_norm.weight")
    return _write(path, "falcon-h1", draw, layers, ATTENTION | MAMBA2)


def mamba2(path: Path) -> Path:
    draw = Draw(15)
    keys = MAMBA2 | {"attention.head_count": 0, "feed_forward_length": 0}
    return _write(path, "mamba2", draw, [mamba2_mixer(draw) for _ in range(2)], keys)


# ggml looks it up in a table of F16 numbers, in which close values become others: by 2.2e-3 at
# most in 160 texts with AVX2
GELU = 1e-2
FAMILIES = (
    Family("qwen3", write_model, 2),
    Family("qwen3moe", qwen3moe, 2),
    Family("qwen2", qwen2, 2),
    Family("llama", lambda path: write_model(path, "llama"), 2),
    Family("phi3", lambda path: write_model(path, "phi3"), 2),
    Family("mistral3", mistral3, 2),
    Family("gemma2", gemma2, 2, rounding=GELU),
    Family("gemma3", gemma3, 3, rounding=GELU),
    Family("gpt-oss", gpt_oss, 2),
    Family("gpt-oss-mxfp4", lambda path: gpt_oss(path, mxfp4=True), 2),
    Family("deepseek2", deepseek2, 2),
    Family("qwen3next", qwen3next, 4, rounding=5e-5, recurrent=True),  # its state grows
    Family("qwen35", qwen35, 4, recurrent=True),
    Family("lfm2", lfm2, 3, recurrent=True),
    Family("granitehybrid", granitehybrid, 3, recurrent=True),
    Family("nemotron_h", nemotron_h, 4, recurrent=True),
    Family("falcon-h1", falcon_h1, 2, recurrent=True),
    Family("mamba2", mamba2, 2, attention=False, recurrent=True),
    Family("mamba", write_mamba, 1, attention=False, recurrent=True),
)


# ---- parts of a layer: names without "blk.N." ----

Q_RANK, KV_RANK, ROPE, NOPE = 24, 32, 8, 16
LATENT: dict[str, Any] = {
    "attention.head_count_kv": 1,
    "attention.q_lora_rank": Q_RANK,
    "attention.kv_lora_rank": KV_RANK,
    "attention.key_length": KV_RANK + ROPE,
    "attention.value_length": KV_RANK,
    "attention.key_length_mla": NOPE + ROPE,
    "attention.value_length_mla": HEAD,
    "rope.dimension_count": ROPE,
    "leading_dense_block_count": 1,
}
SHARED_EXPERT: dict[str, Any] = {"expert_shared_count": 1, "expert_weights_scale": 1.5}


def attention(draw: Draw, *, norms: bool = False, biases: bool = False) -> Tensors:
    block = {"attn_norm.weight": draw.norm(N_EMBD)}
    for name, n in (("q", N_HEAD), ("k", N_HEAD_KV), ("v", N_HEAD_KV)):
        block[f"attn_{name}.weight"] = draw.matrix(n * HEAD, N_EMBD)
        if biases:
            block[f"attn_{name}.bias"] = draw.bias(n * HEAD)
    if norms:
        block |= {f"attn_{name}_norm.weight": draw.norm(HEAD) for name in "qk"}
    block["attn_output.weight"] = draw.matrix(N_EMBD, N_HEAD * HEAD)
    return block


def gated_attention(draw: Draw) -> Tensors:
    """Each head's query is followed by its gate."""
    block = attention(draw, norms=True)
    block["attn_q.weight"] = draw.matrix(2 * N_HEAD * HEAD, N_EMBD)
    return block


def latent_attention(draw: Draw) -> Tensors:
    return {
        "attn_norm.weight": draw.norm(N_EMBD),
        "attn_q_a_norm.weight": draw.norm(Q_RANK),
        "attn_kv_a_norm.weight": draw.norm(KV_RANK),
        "attn_q_a.weight": draw.matrix(Q_RANK, N_EMBD),
        "attn_q_b.weight": draw.matrix(N_HEAD * (NOPE + ROPE), Q_RANK),
        "attn_kv_a_mqa.weight": draw.matrix(KV_RANK + ROPE, N_EMBD),
        "attn_k_b.weight": draw.matrix(N_HEAD * KV_RANK, NOPE).reshape(N_HEAD, KV_RANK, NOPE),
        "attn_v_b.weight": draw.matrix(N_HEAD * HEAD, KV_RANK).reshape(N_HEAD, HEAD, KV_RANK),
        "attn_output.weight": draw.matrix(N_EMBD, N_HEAD * HEAD),
    }


def delta_net(draw: Draw) -> Tensors:
    d, n_k, n_v = 16, 2, 4
    n_key, n_value = d * n_k, d * n_v
    return {
        "attn_norm.weight": draw.norm(N_EMBD),
        "attn_qkv.weight": draw.matrix(2 * n_key + n_value, N_EMBD),
        "attn_gate.weight": draw.matrix(n_value, N_EMBD),
        "ssm_conv1d.weight": draw.matrix(2 * n_key + n_value, 4),
        "ssm_dt.bias": draw.norm(n_v),
        "ssm_a": -draw.norm(n_v) / 4,
        "ssm_beta.weight": draw.matrix(n_v, N_EMBD),
        "ssm_alpha.weight": draw.matrix(n_v, N_EMBD),
        "ssm_norm.weight": draw.norm(d),
        "ssm_out.weight": draw.matrix(N_EMBD, n_value),
    }


def mamba2_mixer(draw: Draw) -> Tensors:
    n_inner, n_state, n_head = 2 * N_EMBD, 16, 8
    n_conv = n_inner + 2 * n_state
    return {
        "attn_norm.weight": draw.norm(N_EMBD),
        "ssm_in.weight": draw.matrix(n_inner + n_conv + n_head, N_EMBD),
        "ssm_conv1d.weight": draw.matrix(n_conv, 4),
        "ssm_conv1d.bias": draw.bias(n_conv),
        "ssm_dt.bias": draw.bias(n_head),
        "ssm_a": -draw.norm(n_head)[:, None] / 4,
        "ssm_d": draw.norm(n_head)[:, None],
        "ssm_norm.weight": draw.norm(n_inner)[None],
        "ssm_out.weight": draw.matrix(N_EMBD, n_inner),
    }


def dense(draw: Draw) -> Tensors:
    return {
        "ffn_norm.weight": draw.norm(N_EMBD),
        "ffn_gate.weight": draw.matrix(N_FF, N_EMBD),
        "ffn_up.weight": draw.matrix(N_FF, N_EMBD),
        "ffn_down.weight": draw.matrix(N_EMBD, N_FF),
    }


def experts(draw: Draw, *, biases: bool = False) -> Tensors:
    def of_all(n_out: int, n_in: int) -> Any:
        return draw.matrix(N_EXPERT * n_out, n_in).reshape(N_EXPERT, n_out, n_in)

    sizes = {"gate": N_FF_EXPERT, "up": N_FF_EXPERT, "down": N_EMBD}
    block = {
        "ffn_norm.weight": draw.norm(N_EMBD),
        "ffn_gate_inp.weight": draw.matrix(N_EXPERT, N_EMBD),
        "ffn_gate_exps.weight": of_all(N_FF_EXPERT, N_EMBD),
        "ffn_up_exps.weight": of_all(N_FF_EXPERT, N_EMBD),
        "ffn_down_exps.weight": of_all(N_EMBD, N_FF_EXPERT),
    }
    if biases:
        block["ffn_gate_inp.bias"] = draw.bias(N_EXPERT)
        for name, n in sizes.items():
            block[f"ffn_{name}_exps.bias"] = draw.bias(N_EXPERT * n).reshape(N_EXPERT, n)
    return block


def shared_expert(draw: Draw) -> Tensors:
    return {
        "ffn_gate_shexp.weight": draw.matrix(N_FF_EXPERT, N_EMBD),
        "ffn_up_shexp.weight": draw.matrix(N_FF_EXPERT, N_EMBD),
        "ffn_down_shexp.weight": draw.matrix(N_EMBD, N_FF_EXPERT),
    }


def shared_experts(draw: Draw) -> Tensors:
    return experts(draw) | shared_expert(draw)


def _gemma_block(draw: Draw, norms: bool) -> Tensors:
    block = attention(draw, norms=norms) | dense(draw)
    block["post_attention_norm.weight"] = draw.norm(N_EMBD)
    block["post_ffw_norm.weight"] = draw.norm(N_EMBD)
    return block


# ---- a file ----


def _write(
    path: Path,
    arch: str,
    draw: Draw,
    layers: list[Tensors],
    keys: dict[str, Any],
    *,
    tied: bool = False,
    output_norm: str = "output_norm",
    types: dict[str, str] | None = None,
) -> Path:
    """Writes a model of these layers. `types`: those of tensors, by how their names end."""
    tensors = {"token_embd.weight": draw.vocabulary(N_EMBD)}
    tensors[f"{output_norm}.weight"] = draw.norm(N_EMBD)
    if not tied:
        tensors["output.weight"] = draw.vocabulary(N_EMBD)
    for i, block in enumerate(layers):
        tensors |= {f"blk.{i}.{name}": tensor for name, tensor in block.items()}
    writer = decoder_metadata(path, arch, len(layers), N_EMBD, N_HEAD, N_FF, N_CTX_TRAIN)
    for key, value in keys.items():
        _set(writer, f"{arch}.{key}", value)
    return finish(writer, path, tensors, "F32", types)


def _set(writer: Any, key: str, value: Any) -> None:
    """Sets a key, also one that has a value."""
    for shard in writer.kv_data:
        shard.pop(key, None)
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)
