"""Measures the strength ζ at which an injection changes the model's text by a wanted amount.

`calibration="divergence"` has one strength ζ for all layers. It is no multiple of a norm: models
with similar norms differ fifty-fold in the injection that they tolerate. So ζ is measured. The
model writes three texts of different kinds plainly, at temperature 1, and reads them again under
random anchors. The tokens were drawn from the plain distribution p. Let q be the distribution under
an anchor, and d = ln q − ln p at each token. Then the mean of e^d − 1 − d estimates KL(p ‖ q) in
nats a token, without bias and with little variance (Schulman, "Approximating KL divergence", 2020).
ζ is where the divergence of the most sensitive text is D, the option ``divergence``. A text of
which the model is sure tolerates far more.

A strength is measured once for a model file, its maps and the types of its cache, and kept in the
user's cache folder.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Cancel, Engine, Injection, Output, Sampling, Session, Task
from tgr_local.engine import Sequence as EngineSequence
from tgr_local.options import strength_files
from tgr_local.options.config import SearchConfig
from tgr_local.options.strength_files import Strength
from tgr_local.search import geometry, maps
from tgr_local.search.run import Measurement
from tgr_local.system.errors import CapacityError, ModelError

PROMPTS = (
    "Explain step by step how a bicycle works, and why it does not fall over.",
    "What is 12 + 23 - 4 + 7?",
    "Write a Python function that sorts the words of a text by their length.",
)
N_ANCHORS = 4
N_TOKENS = 40
"""Tokens of each text that is read again."""
N_SEQUENCES = len(PROMPTS) + 1 + N_ANCHORS
"""One for each prompt, one for a text read plainly, one for it under each anchor."""
_PROMPT_MOST = 64
N_CELLS = len(PROMPTS) * _PROMPT_MOST + (1 + N_ANCHORS) * (1 + N_TOKENS)
MEASUREMENT = Measurement(N_CELLS, N_SEQUENCES, positions=7500)
"""Most measurements take less than half of these positions."""
_LEAST_TOKENS = 8
_SEED = 20201
_WIDEST = 30.0  # largest factor between the ζ of two tries
_NEAR, _NEARER = 2.5, 1.2  # factors of D that end the tries on parts of the texts, on whole texts
_TRIES, _MORE_TRIES = 12, 8
Decode = Callable[[Sequence[Task]], list[Output] | None]
"""Runs tasks to their ends; None where the time is up."""


def is_needed(config: SearchConfig) -> bool:
    """Whether injections with these options need a measured strength."""
    return config.calibration == "divergence" and config.eta > 0


# ---- measured strengths ----

_known: dict[tuple[Any, ...], Strength] = {}
_out_of_reach: set[tuple[Any, ...]] = set()


def known(engine: Engine, config: SearchConfig) -> Strength | None:
    """The strength that was measured for this model and these options; None = there is none."""
    key = _key(engine, config)
    if key not in _known and engine.is_unchanged and (model := engine.known_hash) is not None:
        saved = strength_files.read(_settings(engine, config, model))
        _known.update({key: saved} if saved else {})
    return _known.get(key)


def pending(engine: Engine, config: SearchConfig) -> Measurement | None:
    """The measurement that must come before the first injection with these options; None = none."""
    return MEASUREMENT if is_needed(config) and known(engine, config) is None else None


def keep(engine: Engine, config: SearchConfig, strength: Strength) -> Strength:
    """Stores a strength for this process and in the cache folder. Returns the strength that this
    process stored first."""
    strength = _known.setdefault(_key(engine, config), strength)
    if engine.is_unchanged:
        strength_files.write(_settings(engine, config, engine.model_hash), strength)
    return strength


def _key(engine: Engine, config: SearchConfig) -> tuple[Any, ...]:
    return tuple(_settings(engine, config, engine.file_identity).values())


def _settings(engine: Engine, config: SearchConfig, model: str) -> dict[str, Any]:
    """All that a strength depends on."""
    return {
        "model": model,
        "divergence": config.divergence,
        "rank": config.rank,
        "d_z": config.d_z or engine.n_embd,
        "injection_seed": config.injection_seed,
        "type_k": engine.config.type_k,
        "type_v": engine.config.type_v,
        "control_vector": engine.digest.hex(),
    }


# ---- the measurement ----


def prepare(
    engine: Engine, config: SearchConfig, cancel: Cancel | None = None, seconds: float = 0.0
) -> Strength | None:
    """The strength for these options, measured now where it is not known. None where none is
    needed, where the cache has no room for the measurement, or where it takes longer than `seconds`
    (0 = no limit). Raises CancelledError by `cancel`."""
    if not is_needed(config):
        return None
    if (measured := known(engine, config)) is not None:
        return measured
    deadline = time.monotonic() + seconds if seconds else None
    try:
        with engine.session(N_CELLS, N_SEQUENCES, cancel=cancel) as session:

            def decode(tasks: Sequence[Task]) -> list[Output] | None:
                outputs = session.run(tasks, cancel=cancel, deadline=deadline)
                return None if deadline and time.monotonic() >= deadline else outputs

            return measure(engine, session, config, N_CELLS, decode)
    except CapacityError:
        return None


def measure(
    engine: Engine, session: Session, config: SearchConfig, n_cells: int, decode: Decode
) -> Strength | None:
    """Measures and stores the strength for these options, in a session that has `N_SEQUENCES`
    sequences and n_cells cells left. None where the cells are not enough, where the time is up, or
    where no ζ comes near the wanted divergence, because rounding alone diverges more. In the last
    case this process does not try again."""
    start, prompts = time.monotonic(), [_tokens(engine, prompt) for prompt in PROMPTS]
    n_tokens = min(N_TOKENS, (n_cells - sum(map(len, prompts))) // (1 + N_ANCHORS) - 1)
    n_tokens = min(n_tokens, engine.n_ctx_train - max(map(len, prompts)))
    if n_tokens < _LEAST_TOKENS or _key(engine, config) in _out_of_reach:
        return None
    n_positions = 0

    def counted(tasks: Sequence[Task]) -> list[Output]:
        nonlocal n_positions
        outputs = decode(tasks)
        if outputs is None:
            raise _Late
        n_positions += sum(output.n_decoded for output in outputs)
        return outputs

    with contextlib.suppress(_Late):
        with contextlib.closing(Reading(engine, session, config, counted)) as reading:
            reading.write(prompts, n_tokens)
            zeta, reached = find(reading.divergence, config.divergence, n_tokens)
        if not config.divergence / _NEAR <= reached <= config.divergence * _NEAR:
            _out_of_reach.add(_key(engine, config))
            return None
        seconds = round(time.monotonic() - start, 3)
        return keep(engine, config, Strength(zeta, reached, n_positions, seconds))
    return None


def find(
    divergence: Callable[[float, int], float], wanted: float, n_tokens: int
) -> tuple[float, float]:
    """Solves divergence(ζ, n_tokens) = wanted. Returns ζ and its divergence.

    The search begins on a quarter of each text and ends on all of its n_tokens. It takes the
    divergence as a power of ζ, at first the second, and computes the next ζ from that. If this ζ
    lies outside the interval that encloses the solution, the geometric mean of its ends is tried.
    """
    part = min(n_tokens, max(_LEAST_TOKENS, n_tokens // 4))
    zeta, _ = _closest(divergence, wanted, 1.0, part, _NEAR, _TRIES)
    return _closest(divergence, wanted, zeta, n_tokens, _NEARER, _MORE_TRIES)


def _closest(
    divergence: Callable[[float, int], float],
    wanted: float,
    zeta: float,
    n: int,
    factor: float,
    n_tries: int,
) -> tuple[float, float]:
    """Returns ζ and its divergence on n tokens: the first try within `factor` of `wanted`, or
    the closest of `n_tries`. The first try is `zeta`."""
    low, high, slope = 0.0, math.inf, 2.0
    nearest = math.inf, zeta, math.nan
    last_point: tuple[float, float] | None = None
    for _ in range(n_tries):
        reached = divergence(zeta, n)
        reached = reached if math.isfinite(reached) else math.inf
        log = math.log(min(max(reached, 1e-300), 1e300)) - math.log(wanted)
        nearest = min(nearest, (abs(log), zeta, reached))
        if abs(log) <= math.log(factor) or (zeta >= strength_files.HIGHEST and log < 0):
            break
        low, high = (zeta, high) if log < 0 else (low, zeta)
        if last_point and zeta != last_point[0]:
            slope = (log - last_point[1]) / (math.log(zeta) - math.log(last_point[0]))
        last_point = zeta, log
        step = math.exp(-log / min(max(slope, 1.0), 12.0))
        zeta = min(strength_files.HIGHEST, zeta * min(max(step, 1 / _WIDEST), _WIDEST))
        if not low < zeta < high:
            zeta = math.sqrt(low * high)
    _, zeta, reached = nearest
    return zeta, reached


class _Late(Exception):
    """The time is up."""


class Reading:
    """Texts that the model wrote plainly, one after each prompt, and their reading under random
    anchors. `close` frees its sequences."""

    def __init__(
        self,
        engine: Engine,
        session: Session,
        config: SearchConfig,
        decode: Callable[[Sequence[Task]], list[Output]],
    ) -> None:
        self._engine, self._session, self._decode = engine, session, decode
        self._vectors = vectors(engine, config)
        self._roots: list[EngineSequence] = []
        self.texts: list[list[int]] = []
        """Tokens of each: the pending token of its prompt, then what the model wrote."""

    def write(self, prompts: Sequence[list[int]], n_tokens: int) -> None:
        """Writes the texts, of n_tokens each."""
        self._roots = [self._session.sequence() for _ in prompts]
        starts = zip(self._roots, prompts, strict=True)
        self._decode([Task(root, prompt[:-1]) for root, prompt in starts])
        writers = [root.fork() for root in self._roots]
        # a model that ends at once still writes a text: what follows its end token
        written = self._decode(
            [
                Task(writer, prompt[-1:], n_generate=n_tokens, sampling=Sampling(),
                     seed=_SEED + i, ignore_eog=True)
                for i, (writer, prompt) in enumerate(zip(writers, prompts, strict=True))
            ]
        )  # fmt: skip
        for writer in writers:
            writer.drop()
        for prompt, output in zip(prompts, written, strict=True):
            tokens = output.tokens.tolist()
            ends = [i for i, token in enumerate(tokens) if token in self._engine.end_tokens]
            if ends and ends[0] >= n_tokens // 4:
                tokens = tokens[: ends[0] + 1]
            self.texts.append([prompt[-1], *tokens])

    def divergence(self, zeta: float, n_tokens: int) -> float:
        """The largest of the texts' mean KL divergences over their first n_tokens, under all
        anchors, nats a token."""
        injections = [
            self._session.injection(vectors)
            for vectors in (zeta * self._vectors).astype(np.float32)
        ]
        try:
            return max(
                self._divergence(root, text[: 1 + n_tokens], injections)
                for root, text in zip(self._roots, self.texts, strict=True)
            )
        finally:
            for injection in injections:
                injection.drop()

    def _divergence(
        self, root: EngineSequence, feed: list[int], injections: list[Injection]
    ) -> float:
        rows = [root.fork() for _ in range(1 + N_ANCHORS)]
        try:
            outputs = self._decode(
                [
                    Task(row, feed, injection=injection, feed_logprobs=True)
                    for row, injection in zip(rows, [None, *injections], strict=True)
                ]
            )
        finally:
            for row in rows:
                row.drop()
        logprobs = np.stack([output.feed_logprobs for output in outputs]).astype(np.float64)
        d = logprobs[1:] - logprobs[0]
        with np.errstate(over="ignore", invalid="ignore"):
            divergence = float(np.mean(np.expm1(d) - d))
        return divergence if math.isfinite(divergence) else math.inf

    def close(self) -> None:
        for root in self._roots:
            root.drop()


def vectors(engine: Engine, config: SearchConfig) -> NDArray[np.float64]:
    """The injections of random anchors for ζ = 1: [N_ANCHORS, n_layer, d_h]."""
    drawn = maps.of(engine, config)
    rng = np.random.default_rng(_SEED)
    anchors = geometry.unit(rng.standard_normal((N_ANCHORS, config.d_z or engine.n_embd)))
    return np.asarray(drawn.injection.vectors(anchors), np.float64)


def _tokens(engine: Engine, prompt: str) -> list[int]:
    """The tokens of a prompt, in the model's chat template if it has one: at least two, at most a
    quarter of the context that the model was trained with."""
    tokens: list[int] = []
    if engine.chat_template:
        with contextlib.suppress(ModelError):  # a template that fails
            messages = [{"role": "user", "content": prompt}]
            tokens = engine.tokenize(engine.chat_prompt(messages))
    tokens = tokens or engine.tokenize(f"{prompt}\n", add_special=True)
    tokens = tokens[-max(2, min(_PROMPT_MOST, engine.n_ctx_train // 4)) :]
    return tokens if len(tokens) > 1 else [*(tokens or [0]), *(tokens or [0])]
