"""Opens folders whose git settings name a program, one folder for each way in which git starts one,
and checks that no program runs.

    python bench/hostile_folders.py [--git FOLDER_OF_A_GIT]

Each folder is opened as `tgr-local code` and `acp` do: its files are listed, and it is copied for
tests. As a check of the folders themselves, git is used in another one as a person would use it,
and the last column says which command ran the program. As root all of this runs as another user.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hostile_folders import WAYS, make

from tgr_local.code.folder import repository
from tgr_local.code.folder.copies import Copies
from tgr_local.code.folder.project import Project

_NOBODY = 65534
_AS_A_PERSON = (
    ("ls-files", "-o", "--exclude-standard"), ("status",), ("diff",), ("log", "-p"), ("add", "-A"),
    ("commit", "-m", "x"), ("fetch", "origin"), ("submodule", "update", "--init"), ("gc", "--auto"),
    ("-p", "ls-files"), ("checkout", "-b", "y"), ("merge", "HEAD"),
)  # fmt: skip


def opened(folder: Path) -> str:
    """What opening a folder shows of it."""
    project = Project(folder)
    listed = "git" if project.repository else "walk"
    with Copies(project) as copies:
        place = copies.make()
        for path in place.mounted_read_only:
            if not path.is_relative_to(folder):
                return f"shows {path}"
        copies.remove(place)
    return f"{len(project.listing.paths)} files by {listed}"


def bites(folder: Path, ran: Path) -> str:
    """The first command of git that runs the folder's program."""
    for command in _AS_A_PERSON:
        quiet = subprocess.DEVNULL
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["git", *command], cwd=folder, stdin=quiet, stdout=quiet, stderr=quiet, timeout=20,
                env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "DISPLAY": ""},
            )  # fmt: skip
        if ran.exists():
            return f"git {' '.join(command)}"
    return "no command"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--git", metavar="FOLDER", help="the folder of the git to use")
    args = parser.parse_args()
    if args.git:
        os.environ["PATH"] = os.pathsep.join([os.path.abspath(args.git), os.environ["PATH"]])
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        if os.getuid() == 0:
            os.chown(base, _NOBODY, _NOBODY)
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
        os.environ |= {"HOME": name, "XDG_CACHE_HOME": f"{name}/cache"}
        version = subprocess.run(["git", "--version"], capture_output=True, text=True).stdout
        print(f"user {os.getuid()}, {version.strip()}, {repository.program('git')}", flush=True)
        n_ran = 0
        for number, way in enumerate(WAYS):
            ran, bitten = base / f"{number}-ran", base / f"{number}-bitten"
            make(base / f"{number}", way, ran)
            make(base / f"{number}-plain", way, bitten)
            said = opened(base / f"{number}")
            n_ran += ran.exists()
            said = "THE PROGRAM RAN" if ran.exists() else said
            print(f"{way:34} {said:20} {bites(base / f'{number}-plain', bitten)}", flush=True)
        print(f"{len(WAYS) - n_ran} of {len(WAYS)} folders started no program")
    return int(n_ran > 0)


if __name__ == "__main__":
    sys.exit(main())
