"""Puts the source of llama.cpp, with our hooks in it, into a folder. Run by CMake.

The source is taken from ``--source`` (a llama.cpp tree of the pinned version) or else from the
source package of llama-cpp-python, which carries it and must have the hash in `SHA256`. Our change
is ``patches/llama.cpp.patch``, whose format is in ``hooks_patch.py``.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import hooks_patch

PARTS = (
    "LICENSE",
    "licenses/LICENSE-jsonhpp",
    "include/",
    "src/",
    "models/ggml-vocab-qwen2",
    # the backend for devices of other machines, part of the engine with any ggml
    "ggml/src/ggml-rpc/",
    "ggml/src/ggml-impl.h",
    "ggml/src/ggml-backend-impl.h",
    # chat templates: what reads them, and the ones that it is tested with
    "common/",
    "vendor/nlohmann/",
    "models/templates/",
    "tests/test-chat.cpp",
)
GGML = ("ggml/",)
SHA256 = {"0.3.36": "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"}
"""Of the source package of each version that is built; others are taken as the index has them."""


def unpack(version: str, parts: tuple[str, ...], out: Path) -> None:
    """Downloads the source package by name and unpacks the parts of llama.cpp that we build."""
    with tempfile.TemporaryDirectory() as folder:
        known = SHA256.get(version)
        wanted = Path(folder, "requirements.txt")  # pip compares the hash before it runs anything
        wanted.write_text(
            f"llama-cpp-python=={version}{f' --hash=sha256:{known}' if known else ''}\n"
        )
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", "llama-cpp-python", "--dest", folder, "-r", str(wanted)]
        if subprocess.run(command).returncode != 0:
            sys.exit(
                f"could not download the source of llama-cpp-python {version}"
                f"{f' with the sha256 {known}' if known else ''}; connect to a package index that "
                "has it, or name its llama.cpp source tree in TGR_LLAMA_CPP_SOURCE"
            )
        (archive,) = Path(folder).glob("*.tar.gz")
        root = archive.name.removesuffix(".tar.gz") + "/vendor/llama.cpp/"
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.removeprefix(root)
                if (
                    name != member.name
                    and name.startswith(parts)
                    and ".." not in name
                    and member.isfile()
                ):
                    target = out / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(tar.extractfile(member).read())


def copy(source: Path, parts: tuple[str, ...], out: Path) -> None:
    """Copies the same parts from a source tree."""
    if not (source / "src" / "llama-graph.cpp").is_file():
        sys.exit(
            f"TGR_LLAMA_CPP_SOURCE is {source}, where no llama.cpp source is; correct or unset it"
        )
    if GGML[0] in parts and not (source / "ggml" / "CMakeLists.txt").is_file():
        sys.exit(f"{source} has no ggml/, which TGR_GGML=bundled builds; take a whole source tree")
    for file in source.rglob("*"):
        name = file.relative_to(source).as_posix()
        if file.is_file() and name.startswith(parts):
            target = out / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def insert(patch: str, out: Path, version: str) -> None:
    """Inserts what has a place. Exits, naming it and the version, when something has none."""
    placed, missing = 0, []
    for file in hooks_patch.parse(patch).files:
        path = out / file.name
        if not path.is_file():
            missing += [f"{file.name}: {hunk.name}: there is no such file" for hunk in file.hunks]
            continue
        text, failed = hooks_patch.inserted(path.read_text(encoding="utf-8"), file.hunks)
        path.write_text(text, encoding="utf-8")
        placed += len(file.hunks) - len(failed)
        missing += [f"{file.name}: {why}" for why in failed]
    if missing:
        sys.exit(
            "\n".join(missing) + f"\n{placed} of {placed + len(missing)} insertions have their "
            f"place in the llama.cpp of llama-cpp-python {version} in {out}; use the source that "
            "it carries, or place the others by hand (csrc/README.md says how)"
        )


def keep_times(before: Path, out: Path) -> None:
    """Gives each file that is as it was its old time, so that nothing is compiled anew for it."""
    for file in out.rglob("*"):
        old = before / file.relative_to(out)
        if file.is_file() and old.is_file() and filecmp.cmp(file, old, shallow=False):
            os.utime(file, ns=(old.stat().st_atime_ns, old.stat().st_mtime_ns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True, help="of llama-cpp-python")
    parser.add_argument(
        "--source", type=Path, help="a llama.cpp source tree instead of the package"
    )
    parser.add_argument("--ggml", action="store_true", help="ggml too")
    parser.add_argument("--plain", action="store_true", help="without our hooks")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    patch = "" if args.plain else hooks_patch.PATCH.read_text(encoding="utf-8")
    parts = PARTS + GGML * args.ggml
    stamp = args.out / ".tgr-hooks"
    source = args.source
    if source and (source / stamp.name).is_file():  # this script made it
        source = (source / stamp.name).read_text()
    what = f"{args.version}{source}{patch}{parts}"
    state = hashlib.sha256(what.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == state:
        return
    before = args.out.with_name(args.out.name + ".before")
    shutil.rmtree(before, ignore_errors=True)
    if args.out.is_dir():
        args.out.rename(before)
    if args.source:
        copy(args.source, parts, args.out)
    else:
        unpack(args.version, parts, args.out)
    insert(patch, args.out, args.version)
    keep_times(before, args.out)
    shutil.rmtree(before, ignore_errors=True)
    stamp.write_text(state)


if __name__ == "__main__":
    main()
