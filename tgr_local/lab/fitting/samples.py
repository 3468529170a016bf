"""Samples of questions, as a probe sees them: drawn side by side, graded, kept on the disk."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tgr_local.engine import Cancel, Engine, Workers
from tgr_local.generation import query_tokens
from tgr_local.lab.eval.making import fitting
from tgr_local.lab.fitting.questions import Question
from tgr_local.methods import best_of_n
from tgr_local.methods.vote import features_of
from tgr_local.options.config import SearchConfig
from tgr_local.search.branches import Branch, Branches, text_limit
from tgr_local.search.run import Request, Run
from tgr_local.search.seeds import derived_seed
from tgr_local.system import paths
from tgr_local.system.answers import answer_key
from tgr_local.system.errors import CancelledError, TgrError
from tgr_local.system.think_tags import CLOSE_THINK

Floats = NDArray[np.float64]

_PILOTS, _PILOT_SAMPLES = 4, 4
_CUT_SHARE = 0.3  # of the median length, after which a text is judged early


@dataclass(frozen=True, eq=False)
class Samples:
    """n texts that have ended."""

    whole: Floats
    """[n, n_features]"""
    beginning: Floats
    """[n, n_features] of their first tokens; NaN where a text is not longer than those."""
    right: NDArray[np.bool_]
    keys: list[str | None]
    """Their answers."""
    problems: NDArray[np.int64]
    """[n] the number of each one's question."""
    tokens: int
    """Positions that were decoded for them."""


def joined(parts: Sequence[Samples]) -> Samples:
    """The samples of several questions, which get the numbers of the parts."""
    return Samples(
        np.concatenate([part.whole for part in parts]),
        np.concatenate([part.beginning for part in parts]),
        np.concatenate([part.right for part in parts]),
        [key for part in parts for key in part.keys],
        np.concatenate([np.full(len(part.right), i) for i, part in enumerate(parts)]),
        sum(part.tokens for part in parts),
    )


class Drawer:
    """Draws the samples of questions, each once: those that are in `folder` are read from there.
    Without a folder they are in the cache folder, in a place for each model and its options.

    Raises TgrError where the folder has samples of another model or with other options.
    """

    def __init__(
        self,
        engine: Engine,
        config: SearchConfig,
        n_samples: int,
        folder: Path | None,
        *,
        raw: bool = False,
        cancel: Cancel | None = None,
    ) -> None:
        most = engine.n_seq_max - 1
        if n_samples > most:
            raise ValueError(f"samples is {n_samples}, but the engine holds {most}; lower it")
        self._engine, self._config, self._raw = engine, config, raw
        settings = json.dumps([engine.model_hash, repr(config), n_samples, raw])
        folder = folder or paths.folder("cache") / "probe" / _short_hash(settings)
        self._n, self._folder, self._cancel = n_samples, folder, cancel
        paths.made(folder)
        about = folder / "settings.json"
        if not about.exists():
            paths.write_whole(about, settings.encode())
        elif about.read_text(encoding="utf-8") != settings:
            raise TgrError(
                f"{folder} has samples of another model, or with other options; remove it, or name "
                "another file with --out"
            )

    def cut(self, questions: Sequence[Question]) -> int:
        """Tokens after which a text is judged early: 30% of the median length of some texts."""
        lengths: list[int] = []
        apart = max(1, len(questions) // _PILOTS)
        for i, question in enumerate(questions[::apart][:_PILOTS]):
            texts, _ = self._texts(i, question, _PILOT_SAMPLES, 0, self._cancel)
            lengths += [len(text.tokens) for text, _ in texts]
        return max(1, round(_CUT_SHARE * float(np.median(lengths))))

    def each(self, questions: Sequence[Question], cut: int) -> Iterator[Samples | None]:
        """Yields the samples of each question in turn; None for a question whose texts cannot be
        judged. As many questions are drawn at a time as fit, so that the last texts of one do not
        wait alone. Raises CancelledError when the drawer's cancel is set."""
        todo, lock = iter(enumerate(questions)), threading.Lock()
        results: dict[int, Samples | None] = {}
        failures: list[BaseException] = []
        news: queue.SimpleQueue[None] = queue.SimpleQueue()  # Ctrl-C cannot leave it locked
        cancel, workers = Cancel(self._cancel), Workers()

        def work() -> None:
            while not cancel.is_set():
                with lock:
                    index, question = next(todo, (-1, None))
                if question is None:
                    return
                try:
                    results[index] = self._one(index, question, cut, cancel)
                except BaseException as error:
                    failures.append(error)
                    cancel.cancel()
                news.put(None)
            # a worker that ends between questions is news too
            failures.append(CancelledError("cancelled while samples were drawn"))
            news.put(None)

        try:
            for _ in range(self._at_once(questions, cut)):
                workers.start(work)
            for i in range(len(questions)):
                while i not in results and not failures:
                    news.get()
                if failures:
                    raise failures[0]
                yield results.pop(i)
        finally:
            cancel.cancel()
            workers.wait()

    def _at_once(self, questions: Sequence[Question], cut: int) -> int:
        """Number of questions that fit; the cache then has room for them, if any is undrawn."""
        config, engine = dataclasses.replace(self._config, n_samples=self._n), self._engine
        cells = 0
        for i, question in enumerate(questions):
            if self._file(i, question, cut).exists():
                continue
            with contextlib.suppress(TgrError, ValueError):  # which its drawing raises
                n_query = len(self._query(question, config, None))
                cells = max(cells, best_of_n.METHOD.cells(engine, n_query, config))
        at_once = min(len(questions), fitting(engine, self._n, cells)) if cells else 1
        engine.grow_cache(cells, at_once)
        return at_once

    def _query(self, question: Question, config: SearchConfig, cancel: Cancel | None) -> list[int]:
        prompt = question.raw if self._raw else question.messages
        return query_tokens(self._engine, prompt, config, raw=self._raw, cancel=cancel)

    def _one(self, index: int, question: Question, cut: int, cancel: Cancel) -> Samples | None:
        file = self._file(index, question, cut)
        if file.exists():
            return read(file)
        texts, n_decoded = self._texts(index, question, self._n, cut, cancel)
        ended = [(text, early) for text, early in texts if text.ended]
        strings = [
            self._engine.detokenize(text.tokens)
            .decode("utf-8", "replace")
            .rpartition(CLOSE_THINK)[2]
            for text, _ in ended
        ]
        right = question.judge(strings) if ended else None
        if right is None:
            return None
        empty = np.full(len(features_of(ended[0][0])), np.nan)
        samples = Samples(
            np.array([features_of(text) for text, _ in ended]),
            np.array([empty if early is None else early for _, early in ended]),
            np.array(right, bool),
            [answer_key(string) for string in strings],
            np.zeros(len(ended), np.int64),
            n_decoded,
        )
        write(file, samples)
        return samples

    def _file(self, index: int, question: Question, cut: int) -> Path:
        messages = list(map(dict, question.messages))
        name = json.dumps([messages, question.judged_by, index, cut])
        return self._folder / f"{_short_hash(name)}.npz"

    def _texts(
        self, index: int, question: Question, n: int, cut: int, cancel: Cancel | None
    ) -> tuple[list[tuple[Branch, Floats | None]], int]:
        """n texts, each with the features of its beginning; and the positions decoded."""
        engine = self._engine
        seed = derived_seed(self._config.seed, index) >> 1
        config = dataclasses.replace(self._config, seed=seed, n_samples=n)
        query = self._query(question, config, cancel)
        run = Run(engine, Request(query, config), cancel=cancel)
        limit = text_limit(engine, len(query), config)
        with Branches(run, best_of_n.METHOD, limit=limit, least=n, states=True) as branches:
            root = branches.read_query()
            texts = [root, *(branches.fork(root) for _ in range(n - 1))]
            for _ in branches.rounds(texts, cut) if cut else ():
                pass
            early = [
                features_of(text) if cut and text.tokens and not text.ended else None
                for text in texts
            ]
            for _ in branches.rounds(texts):
                pass
            n_decoded = run.spent
        return list(zip(texts, early, strict=True)), n_decoded


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def write(file: Path, samples: Samples) -> None:
    out = io.BytesIO()
    np.savez_compressed(
        out,
        whole=samples.whole.astype(np.float32),
        beginning=samples.beginning.astype(np.float32),
        right=samples.right,
        keys=np.array([json.dumps(key) for key in samples.keys]),
        tokens=np.array(samples.tokens),
    )
    paths.write_whole(file, out.getvalue())  # others may fit the same probe


def read(file: Path) -> Samples:
    try:
        with np.load(file, allow_pickle=False) as data:
            right = data["right"].astype(bool)
            return Samples(
                data["whole"].astype(np.float64),
                data["beginning"].astype(np.float64),
                right,
                [json.loads(str(key)) for key in data["keys"]],
                np.zeros(len(right), np.int64),
                int(data["tokens"]),
            )
    except MemoryError:
        raise
    except Exception as error:  # of numpy, zipfile and the decompressors, in all kinds
        if isinstance(error, OSError) and error.filename:  # it cannot be opened
            raise
        raise TgrError(f"{file} is damaged: {error}; remove it") from None
