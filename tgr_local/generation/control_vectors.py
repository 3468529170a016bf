"""Control vectors: their arithmetic, their files, and the states that they are made of.

A `ControlVector` has a vector for every layer; `steered` gives an engine that adds them to the
states of everything it decodes.
Files are those of llama.cpp and repeng: GGUF of architecture ``controlvector`` with a tensor
``direction.N`` for the vector added after layer N, counted from 0. Layer 0 has no tensor there, so
its vector is stored in the metadata, which llama.cpp does not read.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Engine, SteeredEngine, Task
from tgr_local.generation.prompt import advised
from tgr_local.generation.reply import Reply
from tgr_local.options import gguf_header
from tgr_local.options.config import SearchConfig
from tgr_local.options.gguf_header import GgufHeader
from tgr_local.search import geometry, maps, strength
from tgr_local.search.steering import injected
from tgr_local.search.steps import Step
from tgr_local.system.errors import CapacityError, InstallError, ModelError

_ARCHITECTURE = "controlvector"
_LAYER_0 = "controlvector.tgr.layer_0"
_TENSOR = "direction."


@dataclass(frozen=True, eq=False)
class ControlVector:
    """A vector for every layer of a model; ``a + b``, ``a - b``, ``-a`` and ``2 * a`` combine them.

    Raises ValueError for vectors that are no finite matrix and for layers that do not exist.
    """

    vectors: NDArray[np.floating[Any]]
    """[n_layer, n_embd], added to the residual stream after layer 0, 1, …"""
    scale: float = 1.0
    """Factor of the vectors."""
    layers: Collection[int] | None = None
    """Layers that are injected; None = all."""

    def __post_init__(self) -> None:
        shape = np.shape(self.vectors)
        if len(shape) != 2 or 0 in shape:
            raise ValueError(f"vectors have shape {shape}, but must have (n_layer, n_embd)")
        if not (np.isfinite(self.vectors).all() and np.isfinite(self.scale)):
            raise ValueError("vectors or scale are not finite; check their source")
        for layer in self.layers or ():
            if not 0 <= layer < shape[0]:
                raise ValueError(
                    f"layers holds {layer}, but the vectors are for layers 0 to {shape[0] - 1}"
                )

    @property
    def added(self) -> NDArray[np.float32]:
        """[n_layer, n_embd] the scaled vectors; zero in the layers that are not injected."""
        with np.errstate(over="ignore"):  # an overflow is refused where the vectors are used
            added = np.asarray(self.vectors, np.float32) * np.float32(self.scale)
        if self.layers is not None:
            others = [i for i in range(len(added)) if i not in set(self.layers)]
            added[others] = 0
        return added

    def __add__(self, other: ControlVector) -> ControlVector:
        a, b = self.added, other.added
        if a.shape != b.shape:
            raise ValueError(f"the vectors have shapes {a.shape} and {b.shape}; take equal ones")
        return ControlVector(a + b)

    def __neg__(self) -> ControlVector:
        return ControlVector(-self.added)

    def __sub__(self, other: ControlVector) -> ControlVector:
        return self + -other

    def __mul__(self, factor: float) -> ControlVector:
        return ControlVector(self.added * np.float32(factor))

    __rmul__ = __mul__

    @classmethod
    def of_anchor(
        cls, engine: Engine, anchor: NDArray[Any], config: SearchConfig, context: Seq[int]
    ) -> ControlVector:
        """The vectors that a search injects for an anchor [d_z]: η ρ_l B_l A_l a (docs/method.md).

        With ``calibration="residual"`` the residual norms are measured over `context`, the tokens
        that the search had before it when it tried the anchor. Raises ValueError for an anchor of
        another width than the config's.
        """
        d_z = config.d_z or engine.n_embd
        if np.shape(anchor) != (d_z,):
            raise ValueError(f"the anchor has shape {np.shape(anchor)}, but must have ({d_z},)")
        norms, measured = np.ones(engine.n_layer), None
        if config.calibration == "residual":
            norms = _residual_norms(engine, context)
        elif strength.is_needed(config) and (measured := strength.prepare(engine, config)) is None:
            raise CapacityError(
                "the strength of the injection is not known, and the cache has no room to measure "
                "it; raise n_ctx"
            )
        drawn, zeta = maps.of(engine, config).injection, measured.zeta if measured else 0.0
        anchors = np.asarray(anchor, np.float64)[None]
        (vectors,) = injected(config, drawn, anchors, norms, zeta)
        return cls(vectors)

    @classmethod
    def load(cls, path: str | os.PathLike[str], n_layer: int) -> ControlVector:
        """Reads a control vector of llama.cpp or repeng for a model of `n_layer` layers.

        Raises ModelError for a file that is not a control vector, or has other layers than the
        model.
        """
        try:
            header = gguf_header.read(Path(path))
            with open(path, "rb") as file:
                return cls(_read_vectors(file, header, n_layer))
        except OSError as error:
            raise ModelError(f"{path}: {error.strerror or error}") from None

    def save(self, path: str | os.PathLike[str], model_hint: str = "") -> None:
        """Writes the `added` vectors as a control vector for llama.cpp, repeng and `load`.

        `model_hint` is the architecture of the model, such as "qwen3". The vector of layer 0 is
        lost on programs other than this one.
        """
        try:
            import gguf
        except ImportError:
            raise InstallError("control vector files need gguf; run: pip install gguf") from None
        added = self.added
        writer = gguf.GGUFWriter(os.fspath(path), _ARCHITECTURE)
        writer.add_string(f"{_ARCHITECTURE}.model_hint", model_hint)
        writer.add_uint32(f"{_ARCHITECTURE}.layer_count", len(added) - 1)
        if added[0].any():
            writer.add_array(_LAYER_0, added[0].tolist())
        for layer, vector in enumerate(added[1:], start=1):
            writer.add_tensor(f"{_TENSOR}{layer}", np.ascontiguousarray(vector))
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()


def steered(engine: Engine, vector: ControlVector) -> SteeredEngine:
    """The engine with `vector` added to everything that it decodes; it is used as any engine.

    The injections of a search are added to it. Raises ValueError for vectors of another model.
    """
    return SteeredEngine(engine, vector.added)


def winning_control_vector(
    engine: Engine, reply: Reply, config: SearchConfig | None = None, *, step: int = -1
) -> ControlVector:
    """The vector of the anchor that won one of a reply's searches; `step` -1 = the last.

    `engine` and `config` are those that the reply was generated with. Raises ValueError for a step
    that has no anchor, and for one whose vector was scaled by norms that are no longer known: those
    from before a shift (`shift_cells`).
    """
    config = advised(engine, config)
    try:
        chosen: Step = reply.steps[step]
    except IndexError:
        raise ValueError(
            f"step is {step}, but the reply has steps 0 to {len(reply.steps) - 1}"
        ) from None
    if chosen.anchor is None:
        raise ValueError(f"step {step} of method {reply.method} has no anchor; use tgr-latent")
    run = next(run for run in reversed(reply.runs) if run.first <= chosen.index)
    steps = reply.steps[run.first : chosen.index]
    if steps and config.calibration == "residual" and config.shift_cells:
        raise ValueError(
            f"step {step} was injected by norms from before shift_cells moved the cells; take the "
            "first step, or generate without it"
        )
    text = [int(token) for earlier_step in steps for token in earlier_step.tokens]
    context = [*run.query, *text[-config.chunk_len :]]
    return ControlVector.of_anchor(engine, chosen.anchor, config, context[:-1] or context)


def hidden_states(engine: Engine, text: str | Seq[int]) -> NDArray[np.float32]:
    """The state after the final norm at every token of a text or of token ids; [n_tokens, n_embd].

    A text is tokenized as a raw prompt is, with a begin token where the model wants one. Raises
    ValueError for a text without tokens or longer than the model was trained for.
    """
    tokens = engine.tokenize(text, add_special=True) if isinstance(text, str) else list(text)
    if not 0 < len(tokens) <= engine.n_ctx_train:
        raise ValueError(
            f"the text has {len(tokens)} tokens, but must have between 1 and {engine.n_ctx_train}"
        )
    with engine.session(len(tokens) + 1, 1) as session:
        (output,) = session.run([Task(session.sequence(), tokens, feed_states="all")])
    return output.feed_states


def _residual_norms(engine: Engine, context: Seq[int]) -> NDArray[np.float64]:
    """[n_layer] median‖h‖₂ over the tokens after each layer."""
    if not len(context):
        raise ValueError("the context has no tokens; give the ones that the search had before it")
    with engine.session(len(context) + 1, 1) as session:
        (output,) = session.run([Task(session.sequence(), context, norms=True)])
    return geometry.median_norms([output.norms])


def _read_vectors(file: BinaryIO, header: GgufHeader, n_layer: int) -> NDArray[np.float32]:
    """The tensors of a file as [n_layer, n_embd], zeros for layers without one."""
    path, tensors = file.name, header.tensors
    widths = {tensor.shape[-1:] for tensor in tensors.values()}
    plain = all(len(t.shape) == 1 and t.ggml_type == gguf_header.F32 for t in tensors.values())
    if len(widths) != 1 or not plain or widths == {(0,)}:
        raise ModelError(f"{path} is not a control vector: it needs float32 vectors of one width")
    ((width,),) = widths
    vectors = np.zeros((n_layer, min(width, header.n_bytes)), np.float32)

    def add(layer: int, offset: int) -> None:
        if offset + 4 * width > header.n_bytes:
            raise ModelError(f"{path} is cut off: the vector of layer {layer} ends after the file")
        file.seek(offset)
        vectors[layer] += np.frombuffer(file.read(4 * width), "<f4")

    if array := header.arrays.get(_LAYER_0):
        if array.length != width or array.value_type != gguf_header.FLOAT32_VALUE:
            raise ModelError(f"{path} has a layer 0 of another width than the rest")
        add(0, array.offset)
    for name, tensor in tensors.items():
        number = name.removeprefix(_TENSOR)
        if not name.startswith(_TENSOR) or not number.isdecimal():
            raise ModelError(f"{path} is not a control vector: it holds {name!r:.80}")
        if not 0 < int(number[:9]) < n_layer:
            raise ModelError(
                f"{path} has a vector for layer {number:.9}, but this model has the layers 1 to "
                f"{n_layer - 1}; use a control vector made for this model"
            )
        add(int(number[:9]), header.data_offset + tensor.offset)
    if not np.isfinite(vectors).all():
        raise ModelError(f"{path} holds a value that is not finite")
    return vectors
