"""Records that go into the engine and come out of it, apart from handles."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

from tgr_local.engine.native import native
from tgr_local.options.config import SearchConfig

Output = native.Output


@dataclass(frozen=True)
class GrammarTrigger:
    """Trigger of a lazy grammar: the grammar holds from the first of these texts on that occurs
    outside of the thinking. Each has at most 2048 bytes."""

    words: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    """ECMAScript patterns. The grammar begins where the first group that matched begins."""
    think_tag: str = ""
    """Begins thinking; empty = there is none."""
    think_ends: tuple[str, ...] = ()
    """Each ends the thinking. A text that is also a trigger triggers the grammar."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn; the meaning of each field is that of `SearchConfig`."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_n_sigma: float = 0.0
    typical_p: float = 1.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = SearchConfig.repeat_last_n
    dry_multiplier: float = 0.0
    dry_base: float = SearchConfig.dry_base
    dry_allowed_length: int = SearchConfig.dry_allowed_length
    dry_penalty_last_n: int = SearchConfig.dry_penalty_last_n
    dry_sequence_breakers: tuple[str, ...] = SearchConfig.dry_sequence_breakers
    xtc_probability: float = 0.0
    xtc_threshold: float = SearchConfig.xtc_threshold
    grammar: str = ""
    """GBNF; empty = none."""
    grammar_prefix: str = ""
    """Text before the reply: the grammar reads it first, or with a trigger it may open the
    thinking."""
    trigger: GrammarTrigger | None = None
    """Trigger of the grammar; None = it holds from the beginning of the reply."""
    logit_bias: tuple[tuple[int, float], ...] = ()

    @classmethod
    def of(cls, config: SearchConfig, logit_bias: tuple[tuple[int, float], ...] = ()) -> Sampling:
        return cls(**{name: getattr(config, name) for name in _shared()}, logit_bias=logit_bias)


@functools.cache
def _shared() -> list[str]:
    """The names that `Sampling` has in common with `SearchConfig`."""
    names = {spec.name for spec in dataclasses.fields(SearchConfig)}
    return [spec.name for spec in dataclasses.fields(Sampling) if spec.name in names]


@dataclass(frozen=True)
class EngineStats:
    """The engine's counts since its start, and its state. During a decode that takes longer than a
    second, they are those from before it."""

    n_positions: int
    """Token positions that passed through the model, without drafts that were not accepted."""
    n_decodes: int
    n_graphs: int
    """Compute graphs that were built. A decode reuses the last graph where it can."""
    n_whole_graphs: int
    """… in which attention looks at the whole cache instead of each sequence's own cells."""
    n_splits: int
    """Splits of the last graph, each on one device; tensors are copied between them."""
    n_drafted: int
    """Positions that were guesses at the next tokens of a text (`Task.drafts`)."""
    n_accepted: int
    """… and accepted: these belong to the texts; the others passed through the model in vain."""
    n_preemptions: int
    """Times that a text of a `preemptible` session lost its cells to an older one."""
    n_read_again: int
    """… and positions that were read again for that; they are in `n_positions` too."""
    decode_seconds: float
    sample_seconds: float
    n_threads: int
    """Threads now, for a step of few tokens: fewer than the engine's while other programs want
    the cores."""
    n_ctx: int
    """Cells of the KV cache now."""
    n_seq_max: int
    cells_used: int
    cells_peak: int
    cells_reserved: int
    cells_remembered: int
    """Cells that hold remembered prefixes."""
    n_prefixes: int
    n_sequences: int
    n_sessions: int
    n_waiting: int
    n_jobs: int
    interleaved_bytes: int
    """Bytes of weights that are in memory with interleaved rows, instead of in the mapped file."""


@dataclass(frozen=True)
class LayerFit:
    """How much of a model the engine put on GPUs, where the options leave it open."""

    n_on_gpu: int
    """Layers; the output layer is one, and the last of them."""
    n_layers: int
    n_cpu_moe: int
    """Layers, from the first one on, whose experts stay in RAM."""
    n_cells: int
    """Cells of the cache that there is memory for beside it."""
    lowered: bool
    """Whether a GPU's memory ran out while more was loaded."""


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that a model takes in addition to its weights."""

    cache: int
    """The KV cache, the logits and states of a batch, and the table of injections."""
    buffers: int
    """Size of the compute buffers of decoding, bytes."""
