"""Folders of a stranger: in each, git's settings name a program for one occasion to start one.

`make` makes one, the program of which makes a file. Whether git itself runs it depends on the
command: `bench/hostile_folders.py` shows for which ways it does.
"""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

_PROMISOR = """
[core]
	repositoryformatversion = 1
[extensions]
	partialClone = origin
[remote "origin"]
	promisor = true
	fetch = +refs/heads/*:refs/remotes/origin/*
"""
_FILTERED, _DIFFED = "*.py filter=x\n", "*.py diff=x\n"

WAYS: dict[str, str] = {
    "upload pack": _PROMISOR + "url = {folder}/.git\nuploadpack = {program}\n",
    "ssh command": _PROMISOR + "url = ssh://host/x\n[core]\nsshCommand = {program}\n",
    "ext remote": _PROMISOR + "url = ext::{program}\n[protocol \"ext\"]\nallow = always\n",
    "address that stands for another": _PROMISOR + "url = a:b\n[url \"ext::{program} \"]\n"
    "insteadOf = a:\n[protocol]\nallow = always\n",
    "proxy": _PROMISOR + "url = git://127.0.0.1:9/x\n[core]\ngitProxy = {program}\n",
    "credential helper": _PROMISOR + "url = http://u@127.0.0.1:9/x\n[credential]\n"
    "helper = {program}\n[core]\naskPass = {program}\n",
    "pack objects hook": _PROMISOR + "url = {folder}/.git\n[uploadpack]\n"
    "packObjectsHook = {program}\n",
    "monitor": "[core]\nfsmonitor = {program}\n",
    "monitor of version 1": "[core]\nfsmonitor = {program}\nfsmonitorHookVersion = 1\n",
    "hooks": "[core]\nhooksPath = {folder}/hooks\n",
    "clean filter": "[filter \"x\"]\nclean = {program}\nsmudge = {program}\nrequired = true\n",
    "filter process": "[filter \"x\"]\nprocess = {program}\nrequired = true\n",
    "text of a diff": "[diff \"x\"]\ntextconv = {program}\n",
    "external diff": "[diff]\nexternal = {program}\n[diff \"x\"]\ncommand = {program}\n",
    "merge driver": "[merge \"x\"]\ndriver = {program}\n",
    "pager": "[core]\npager = {program}\n[pager]\nls-files = {program}\nstatus = {program}\n",
    "editor": "[core]\neditor = {program}\n[sequence]\neditor = {program}\n",
    "signatures": "[gpg]\nprogram = {program}\n[gpg \"ssh\"]\nprogram = {program}\n"
    "defaultKeyCommand = {program}\n[commit]\ngpgSign = true\n[log]\nshowSignature = true\n",
    "alias": "[alias]\nls-files = !{program}\nrev-parse = !{program}\nstatus = !{program}\n",
    "included settings": "[include]\npath = {folder}/more\n",
    "settings included on a condition": "[includeIf \"gitdir:{folder}/\"]\npath = {folder}/more\n",
    "settings of a worktree": "[core]\nrepositoryformatversion = 1\n[extensions]\n"
    "worktreeConfig = true\n",
    "another worktree": "[core]\nworktree = {folder}/sub\nfsmonitor = {program}\n",
    "references of another": "[core]\nalternateRefsCommand = {program}\n",
    "submodule": "[submodule]\nrecurse = true\n[submodule \"nested\"]\nactive = true\n"
    "update = !{program}\nurl = ext::{program}\n",
    "sparse index": _PROMISOR + "url = {folder}/.git\nuploadpack = {program}\n[index]\n"
    "sparse = true\n[core]\nsparseCheckout = true\nsparseCheckoutCone = true\n",
    "split index": "[core]\nsplitIndex = true\nfsmonitor = {program}\n",
    "maintenance": "[core]\nfsmonitor = {program}\n[maintenance]\nauto = true\n[gc]\nauto = 1\n"
    "recentObjectsHook = {program}\n",
    "a file that names the repository": "[core]\nfsmonitor = {program}\n",
    "a bare repository as the folder": "[core]\nbare = false\nworktree = .\n"
    "fsmonitor = {program}\n",
}  # fmt: skip
"""By name, the settings; `make` adds the files that belong to them."""


def make(folder: Path, way: str, ran: Path) -> None:
    """Makes the folder; a program of its settings makes the file `ran`."""
    program = folder / "hook"
    folder.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho x >> {ran}\nexit 1\n")
    program.chmod(0o755)
    files = {
        "a.py": "x = 1\n", "sub/b.py": "y = 1\n", "sub/.gitignore": "*.log\n",
        ".gitattributes": _FILTERED + _DIFFED + "*.py merge=x\n", "nested/c.py": "z = 1\n",
        "in/d.py": "u = 1\n",
        "more": f"[core]\n\tfsmonitor = {program}\n",
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    _git(folder / "nested", "init", "-q")
    _commit(folder / "nested")
    if way == "submodule":
        _git(folder / "nested", "config", "core.fsmonitor", str(program))
    _git(folder, "init", "-q")
    _commit(folder)
    _lose(folder, way)
    settings = WAYS[way].format(folder=folder, program=program)
    dot = folder / ".git"
    with open(dot / "config", "a") as file:
        file.write(settings)
    (dot / "config.worktree").write_text(f"[core]\n\tfsmonitor = {program}\n")
    (dot / "objects/info/alternates").write_text(f"{folder}/nested/.git/objects\n")
    for place in (folder / "hooks", dot / "hooks") if way == "hooks" else ():
        place.mkdir(exist_ok=True)
        for name in ("post-index-change", "post-checkout", "pre-commit", "reference-transaction"):
            (place / name).write_bytes(program.read_bytes())
            (place / name).chmod(0o755)
    (folder / "a.py").write_text("x = 2\n")
    (folder / "sub" / "new.txt").write_text("")
    if way == "a file that names the repository":
        dot.rename(folder / "kept")
        dot.write_text("gitdir: kept\n")
    if way == "a bare repository as the folder":
        for path in dot.iterdir():
            if not (folder / path.name).exists():
                path.rename(folder / path.name)
        dot.rename(folder / "rest")


def _lose(folder: Path, way: str) -> None:
    """Removes the blob of a .gitignore that is not in the folder either: git has to fetch it; for a
    sparse index a tree."""
    if way == "sparse index":
        _git(folder, "sparse-checkout", "set", "--cone", "--sparse-index", "in")
        names = ("HEAD:sub",)
        (folder / "sub").mkdir(exist_ok=True)
    else:
        if way == "split index":
            _git(folder, "update-index", "--split-index")
        _git(folder, "update-index", "--skip-worktree", "sub/.gitignore")
        names = (":sub/.gitignore",)
        (folder / "sub" / ".gitignore").unlink()
    for name in names:
        digest = _git(folder, "rev-parse", name).strip()
        lost = folder / ".git/objects" / digest[:2] / digest[2:]
        lost.chmod(lost.stat().st_mode | stat.S_IWUSR)
        lost.unlink()


def _commit(folder: Path) -> None:
    _git(folder, "-c", "advice.addEmbeddedRepo=false", "add", "-A")
    _git(folder, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x")


def _git(folder: Path, *arguments: str) -> str:
    plain = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    completed = subprocess.run(
        ["git", *arguments], cwd=folder, env=plain, check=True, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return completed.stdout
