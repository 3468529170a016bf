"""Writes samples to their file from any thread: a sample counts as made once it is on the disk."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import threading
from collections.abc import Iterator, Set
from pathlib import Path

from tgr_local.console.dialog import print_note
from tgr_local.lab.eval.samples import Key, Sample, read_lines
from tgr_local.system import files
from tgr_local.system.errors import TgrError
from tgr_local.system.json_values import to_json_value
from tgr_local.system.owned_file import WITHOUT_LOCKS


class Store:
    """Appends samples to a file from any thread. Use it in a ``with`` block.

    `known` holds the samples on the disk, without their boundaries, which need most of the memory.
    Lines that arrive together are synced together. One process at a time may have a file open:
    TgrError for the second. After an error nothing more is written.
    """

    def __init__(self, path: Path) -> None:
        self.known: dict[Key, Sample] = {}
        self._path = path
        self._file = path.open("ab")
        try:
            # a second process would make every sample twice
            files.lock(self._file.fileno())
        except BlockingIOError:
            self._file.close()
            raise TgrError(f"{path} is being written by another process; wait for it") from None
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                self._file.close()
                raise
            print_note(
                f"warning: the file system of {path} has no locks; run this command once at a time"
            )
        n_bytes = 0
        for end, sample in read_lines(path):
            self.known[sample.key] = _light(sample)
            n_bytes = end
        if n_bytes < self._path.stat().st_size:
            self._file.truncate(n_bytes)  # an incomplete last line
        # of samples, of queues that get an answer (`flush`), and None at the end; Ctrl-C cannot
        # leave a SimpleQueue locked
        self._queue: queue.SimpleQueue[Sample | queue.SimpleQueue[None] | None]
        self._queue = queue.SimpleQueue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def add(self, sample: Sample) -> None:
        """Queues a sample for writing; returns at once. Raises the error of an earlier write."""
        self._check()
        self._queue.put(sample)

    def flush(self) -> None:
        """Waits until every added sample is on the disk. Raises the error of a failed write."""
        answer: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._queue.put(answer)
        answer.get()
        self._check()

    def whole(self, keys: Set[Key]) -> Iterator[Sample]:
        """These samples as they are on the disk, with their boundaries; each once, also while
        others are added."""
        wanted = {key: self.known[key] for key in keys}
        for _, sample in read_lines(self._path):
            if wanted.get(sample.key) == _light(sample):
                del wanted[sample.key]
                yield sample

    def _check(self) -> None:
        if isinstance(self._error, OSError):
            raise TgrError(
                f"{self._path} cannot be written ({self._error.strerror}); free space, then the "
                "same command resumes the run"
            ) from self._error
        if self._error:
            raise self._error

    def __enter__(self) -> Store:
        return self

    def __exit__(self, _: object, error: BaseException | None, *trace: object) -> None:
        self._queue.put(None)
        self._thread.join()
        try:
            self._file.close()
        except OSError as failure:
            self._error = self._error or failure
        if error is None:
            self._check()

    def _write(self) -> None:
        closing = False
        while not closing:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get())
            new = [item for item in batch if isinstance(item, Sample)]
            try:
                if new and not self._error:
                    self._file.write(b"".join(map(_line, new)))
                    self._file.flush()
                    os.fsync(self._file.fileno())
                    self.known |= {sample.key: _light(sample) for sample in new}
            except Exception as error:  # `flush` and `add` raise it
                self._error = error
            for item in batch:
                if isinstance(item, queue.SimpleQueue):
                    item.put(None)
            closing = None in batch


def _light(sample: Sample) -> Sample:
    return dataclasses.replace(sample, boundaries=[])


def _line(sample: Sample) -> bytes:
    return json.dumps(to_json_value(sample), ensure_ascii=False, allow_nan=False).encode() + b"\n"
