"""The models that a server may load, by name: one file, those of a folder, or both.

A client's name is looked up among the files that a scan has found and among the owner's aliases; it
never becomes part of a path. The folder is scanned again when a name is unknown and when the models
are listed, so that files may come and go.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tgr_local.generation import METHODS, Method, method_named
from tgr_local.options.config import ServerConfig
from tgr_local.options.model_parts import PART, parts_of, plain_name, without_ending
from tgr_local.server.errors import ApiError, no_model
from tgr_local.system import paths
from tgr_local.system.errors import ModelError

NAME_LENGTH = 255
"""Characters of a model's name."""
_DEPTH = 3  # folders below the folder: `models pull` writes owner/repository/file
_MOST_ENTRIES, _MOST_MODELS = 20_000, 1000
_SHOWN = 20  # names in an error
_SCAN_SECONDS = 1.0  # a folder is not scanned again before
_LATEST = ":latest"  # which clients of Ollama add to names
_PROJECTOR = "mmproj"  # how the files of image encoders begin


class Catalog:
    """The models of one server. Any thread; `scan` reads the disk.

    ValueError for a path that is not a folder, an alias that cannot be, or no model at all.
    """

    def __init__(
        self, limits: ServerConfig, first: Path | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`first` is the model that is loaded at the start, in the folder or elsewhere."""
        named = limits.models_dir
        self.folder = paths.existing_folder("models_dir", named) if named else None
        names, self._aliases = _aliases(limits.alias, several=self.folder is not None)
        if first is None and (names or self.folder is None):
            raise ValueError(
                f"alias is {names[0]!r}, but without --model it must be NAME=MODEL"
                if names
                else "no model is named; give --model FILE or --models-dir FOLDER"
            )
        self.first = (names[0] if names else first.stem) if first else None
        self._first_path = first
        self._clock, self._scanned = clock, float("-inf")
        self._lock = threading.Lock()
        self.files: Mapping[str, Path] = {}
        """The models that the last scan found, by name."""
        self.n_outside = 0
        """Links that the last scan left out because they lead out of the folder."""
        self._names: dict[str, str] = {}  # of the files, by their folders and names
        self.scan()

    def scan(self) -> None:
        """Looks which files there are now, unless it did a moment ago."""
        with self._lock:
            if (now := self._clock()) - self._scanned < _SCAN_SECONDS:
                return
            self._scanned = now
            files: dict[str, Path] = {}
            if self.first and self._first_path:
                files[self.first] = self._first_path
            if self.folder:
                self.n_outside = _add_files(files, self.folder, self._first_path)
            self.files = files
            self._names = {
                _plain(path, self.folder): name
                for name, path in reversed(files.items())  # of two, the first
                if self.folder and path.is_relative_to(self.folder)
            }

    def choose(self, name: object) -> tuple[str, Method | None]:
        """The model that a request's `model` stands for, and the method that it names, if any.

        The owner's aliases come after the models; a name may end with ``:METHOD``. Without a folder
        every name stands for the one model. Raises ApiError for an unknown name.
        """
        if name is not None and not isinstance(name, str):
            raise ApiError(400, f"model is {name!r:.80}, but must be a text", param="model")
        name = name and name.removesuffix(_LATEST)
        if self.folder is None:
            assert self.first is not None
            return self.first, model_and_method(name, self.first)[1]
        if not name:
            if self.default:
                return self.default, None
            raise no_model(f"model is missing; name {self._shown()}", 400)
        if known_name := self._file(name):
            return known_name, None
        plain, colon, suffix = name.rpartition(":")
        if colon and (suffix in METHODS or self._file(plain)):
            if known_name := self._found(plain):
                return known_name, model_and_method(name, plain)[1]
        elif known_name := self._found(name):
            return known_name, None
        raise no_model(f"there is no model {name!r:.80} here; name {self._shown()}")

    def name_and_method(self, name: str | None) -> tuple[str | None, Method | None]:
        """Does `choose` for the reply, which has the client's own name where there is one model."""
        if self.folder is None:
            return model_and_method(name, self.first or "")
        return self.choose(name)

    def path(self, name: str) -> Path:
        """The file of a model. Raises ModelError for one that is gone, or that leads out of the
        folder now."""
        path = self.files.get(name)
        if path is not None and (path == self._first_path or _stays(path, self.folder)):
            return path
        raise ModelError(f"the file of {name!r} is gone; GET /v1/models lists what there is")

    @property
    def default(self) -> str | None:
        """The model of a request without a name: that of the start, else the one whose alias is
        ``*``, else the only one; None = a request must name one."""
        only = next(iter(self.files)) if len(self.files) == 1 else None
        return self.first or self._file(self._aliases.get("*", "")) or only

    def _found(self, name: str) -> str | None:
        return self._file(name) or self._alias(name)

    def _file(self, name: str) -> str | None:
        """A model's own name, also with .gguf or with its folders."""
        plain = without_ending(name)
        if name in self.files or plain in self.files:
            return name if name in self.files else plain
        return self._names.get(plain) if "/" in plain else None

    def _alias(self, name: str) -> str | None:
        if len(name) > NAME_LENGTH:
            return None
        fitting = (to for alias, to in self._aliases.items() if fnmatch.fnmatchcase(name, alias))
        return self._file(self._aliases.get(name) or next(fitting, ""))

    def _shown(self) -> str:
        """The models, for an error."""
        names = list(itertools.islice(self.files, _SHOWN))
        if not names:
            return "one when its file is in the folder, which has none now"
        more = f", … ({len(self.files)} in all)" if len(self.files) > _SHOWN else ""
        return f"one of {', '.join(names)}{more}"


def model_and_method(name: str | None, served: str) -> tuple[str | None, Method | None]:
    """A model's name without its method, and the method after the colon, if there is one.

    Another model's name is returned as it is: where there is one model, clients insist on their
    own. Raises ApiError for an unknown method of the served model.
    """
    name = name and name.removesuffix(_LATEST)
    plain, colon, suffix = (name or "").rpartition(":")
    if not colon or (suffix not in METHODS and plain != served):
        return name, None
    try:
        return plain, method_named(suffix)
    except ValueError as error:
        raise no_model(str(error)) from None


def _aliases(given: tuple[str, ...], *, several: bool) -> tuple[list[str], dict[str, str]]:
    """The name of the model of the start, and NAME=MODEL as a table. ValueError."""
    names = [alias for alias in given if "=" not in alias]
    table = dict(alias.split("=", 1) for alias in given if "=" in alias)
    if len(names) > 1:
        raise ValueError(f"alias names one model {names[0]!r} and {names[1]!r}; leave one out")
    for name, target in table.items():
        if not several or not name or not target:
            raise ValueError(
                f"alias is {name + '=' + target!r}, but must be "
                + ("NAME=MODEL" if several else "a name; NAME=MODEL needs --models-dir")
            )
    return names, table


def _add_files(files: dict[str, Path], folder: Path, first: Path | None) -> int:
    """Adds the models of a folder under the shortest names that are free: a file's own, or that
    with its folders. A model of several files is found under its first one if all are there.
    Returns how many links lead out of the folder."""
    outside: list[Path] = []
    paths = sorted(_files(folder, outside), key=lambda path: (len(path.parts), path))
    for path in paths[:_MOST_MODELS]:
        if first is not None and _same(path, first):
            continue
        plain = _plain(path, folder)
        choices = (plain.rpartition("/")[2], plain, str(path.relative_to(folder)))
        name = next((choice for choice in choices if choice not in files), None)
        if name is not None and len(name) <= NAME_LENGTH:
            files[name] = path
    return len(outside)


def _same(path: Path, second: Path) -> bool:
    try:
        return path.samefile(second)
    except OSError:
        return False


def _plain(path: Path, folder: Path) -> str:
    """A model file's folders and name, without its ending and the number of its part."""
    return plain_name(path.relative_to(folder).as_posix())


def _files(folder: Path, outside: list[Path]) -> Iterator[Path]:
    """The model files of a folder, without those that cannot be; links to files and folders that
    lead out of it are added to `outside`."""
    n_left = _MOST_ENTRIES
    folders = [(folder, 0)]
    while folders:
        at, depth = folders.pop()
        try:
            entries = list(itertools.islice(os.scandir(at), n_left))
        except OSError:  # gone meanwhile, or not ours
            continue
        n_left -= len(entries)
        names = {entry.name for entry in entries}
        for entry in entries:
            if entry.name.startswith(".") or not entry.name.isprintable():
                continue
            if entry.is_dir(follow_symlinks=False):
                if depth < _DEPTH:
                    folders.append((Path(entry.path), depth + 1))
            elif _is_model(entry.name, names) and _stays(Path(entry.path), folder):
                yield Path(entry.path)
            elif entry.is_symlink() and _leads_out(Path(entry.path), folder):
                outside.append(Path(entry.path))


def _is_model(name: str, beside: set[str]) -> bool:
    """Whether a file of this name is a model: not an image encoder, nor a part of several but the
    first one of all."""
    plain = without_ending(name)
    if plain in (name, "") or name.startswith(_PROJECTOR):
        return False
    if not (part := PART.search(plain)):
        return True
    if int(part[1]) != 1 or not 1 <= int(part[2]) <= len(beside):
        return False
    return all(path.name in beside for path in parts_of(Path(name)))


def _leads_out(link: Path, folder: Path) -> bool:
    """Whether a link leads to a model file or a folder that lies elsewhere."""
    try:
        real = link.resolve(strict=True)
        may_be_model = real.is_dir() or without_ending(link.name) != link.name
        return may_be_model and not real.is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False


def _stays(path: Path, folder: Path | None) -> bool:
    """Whether a path is a file that lies in the folder, wherever its links lead; the further parts
    of a model too."""
    if folder is None:
        return False
    root = folder.resolve()
    for part in parts_of(path):
        try:
            real = part.resolve(strict=True)
            if not (real.is_relative_to(root) and stat.S_ISREG(real.stat().st_mode)):
                return False
        except (OSError, RuntimeError):  # gone, or a circle of links
            return False
    return True
