"""A probe and its file: JSON next to the model file, bound to the model by its sha256."""

from __future__ import annotations

import functools
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tgr_local.engine import Engine
from tgr_local.methods.probe import answer, features
from tgr_local.methods.probe.classifiers import WIDTH, Likeness, Logistic, sigmoid
from tgr_local.system import json_checks
from tgr_local.system.errors import ModelError
from tgr_local.system.json_checks import Count

FORMAT = 1
SUFFIX = ".probe.json"
_MOST_BYTES = 64 << 20
_REGRESSION: dict[str, Any] = {"bias": float, "weights": list[float]}
_LIKENESS: dict[str, Any] = {
    "mean": list[float], "scale": list[float], "root": list[list[float]], "limit": float,
}  # fmt: skip
_JUDGEMENT: dict[str, Any] = {**_REGRESSION, "known": _LIKENESS}
_MEASURES: dict[str, Any] = {
    "n": Count, "right": float, "auroc": tuple[float, ...] | None, "within": float | None,
    "reliability": list[tuple[float, ...]],
}  # fmt: skip
_ABOUT: dict[str, Any] = {
    "tasks?": dict[str, Count], "forward_tokens?": Count,
    "whole?": _MEASURES, "beginning?": _MEASURES, "answer?": _MEASURES,
}  # fmt: skip
_SHAPE: dict[str, Any] = {
    "format": Count, "model": str, "cut": Count, "about": _ABOUT,
    "whole": _JUDGEMENT, "beginning": _JUDGEMENT, "answer": _REGRESSION,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Judgement:
    """How likely texts are right, and which texts that holds for."""

    right: Logistic
    known: Likeness


@dataclass(frozen=True, eq=False)
class Probe:
    """The chance that a text, its beginning or a vote of several texts leads to a right answer."""

    model: str
    """sha256 of the model file."""
    whole: Judgement
    """Judgement of a whole text, by `features.features`."""
    beginning: Judgement
    """Judgement of the first `cut` tokens of a text, by the same."""
    cut: int
    answer: Logistic
    """Classifier of the leading answer of several texts, by `answer.features`."""
    about: dict[str, Any]
    """Description of its training data, and its results on unseen problems."""

    def chance(self, keys: list[str | None], log_odds: list[float]) -> float:
        """The chance that the leading answer is right, 0 … 1; 0 where there is no answer."""
        features = answer.features(keys, log_odds)
        return 0.0 if features is None else float(sigmoid(self.answer.log_odds(features[None]))[0])


def _unreadable(path: Path, error: OSError) -> ModelError:
    missing = isinstance(error, FileNotFoundError)
    hint = "; correct its path, or fit one with tgr-local probe fit" if missing else ""
    return ModelError(f"cannot read the probe {path}: {error.strerror}{hint}")


def load(path: Path) -> Probe:
    """The probe of a file. ModelError, with the reason, for another kind of file."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for its other end
            raise ModelError(f"cannot read the probe {path}: it is not a regular file")
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES >> 20} MiB")
        data = json_checks.loads(text)
        json_checks.check(_SHAPE, data)
        if data["format"] != FORMAT:
            raise ValueError(f"format is {data['format']}, but must be {FORMAT}")
        if data["cut"] < 1:
            raise ValueError(f"cut is {data['cut']}, but must be at least 1")
        whole, beginning = (_as_judgement(data[name], name) for name in ("whole", "beginning"))
        if len(whole.known.mean) != len(beginning.known.mean):
            raise ValueError("whole and beginning have different numbers of weights")
        leading = _as_regression(data["answer"])
        if len(leading.weights) != len(answer.FEATURES):
            raise ValueError(
                f"answer has {len(leading.weights)} weights, but must have {len(answer.FEATURES)}"
            )
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:
        raise ModelError(f"{path} is not a probe: {error}; fit it again") from None
    return Probe(data["model"], whole, beginning, data["cut"], leading, data["about"])


def _as_regression(data: dict[str, Any]) -> Logistic:
    return Logistic(float(data["bias"]), np.array(data["weights"], np.float64))


def _as_judgement(data: dict[str, Any], name: str) -> Judgement:
    right, known = _as_regression(data), data["known"]
    n, width = len(right.weights), len(known["root"])
    if n <= len(features.CONFIDENCES):
        raise ValueError(f"{name} has {n} weights, which leave none for a state")
    if not len(known["mean"]) == len(known["scale"]) == n:
        raise ValueError(f"{name} has {n} weights, but not as many means and scales")
    if not 0 < width <= WIDTH or any(len(row) != width for row in known["root"]):
        raise ValueError(f"{name}.known.root is not square, with at most {WIDTH} rows")
    if min(known["scale"]) <= 0:
        raise ValueError(f"{name}.known.scale has {min(known['scale'])}, but must be above 0")
    mean, scale, root = (np.array(known[key], np.float64) for key in ("mean", "scale", "root"))
    return Judgement(right, Likeness(mean, scale, root, float(known["limit"])))


def place(model: Path) -> Path:
    """The file of a model's probe."""
    return model.with_name(model.name.removesuffix(".gguf") + SUFFIX)


def of(engine: Engine, path: str | os.PathLike[str] = "") -> Probe | None:
    """The probe of a loaded model: the file `path`, or the one next to the model file; None if that
    one does not exist, or the engine adds adapters to the model.

    Raises ModelError for another kind of file, or a probe that was fitted on another model.
    """
    file = Path(path) if path else place(engine.path)
    if not path and (engine.adapters or not file.is_file()):  # it knows the model without them
        return None
    try:
        about = file.stat()
    except OSError as error:
        raise _unreadable(file, error) from None
    probe = _loaded(file.resolve(), about.st_size, about.st_mtime_ns)
    if probe.model != engine.model_hash:
        raise ModelError(
            f"the probe {file} was fitted on another model (sha256 {probe.model[:12]}…, but this "
            f"one has {engine.model_hash[:12]}…); fit one with tgr-local probe fit"
        )
    width = features.width(engine.n_embd)
    if len(probe.whole.known.mean) != width:
        raise ModelError(
            f"the probe {file} has {len(probe.whole.known.mean)} weights, but this model needs "
            f"{width}; fit it again"
        )
    return probe


@functools.lru_cache(maxsize=8)
def _loaded(path: Path, size: int, changed: int) -> Probe:
    return load(path)
