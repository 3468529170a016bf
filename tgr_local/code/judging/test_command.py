"""Finds commands that may run the tests of a project.

In: a project. Out: a command for the shell. Nothing is run to find it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

from tgr_local.code.folder.project import Project, RefusedError
from tgr_local.system.paths import program

_TEST_FILE = re.compile(r"(?:.*/)?(?:test_[^/]*|[^/]*_test)\.py")
_SCRIPT_TEST = re.compile(
    r"(?:.*/)?(?:[^/]*[._-]test|test-[^/]*|test)\.[cm]?js|(?:.*/)?test/.*\.[cm]?js"
)
_SHELLS = ("sh", "bash", "dash", "ksh", "zsh", "env", "exec", "time")
_WITH_VALUE = ("timeout", "-o")
_PYTEST_SETTINGS = {
    "pytest.ini": r"^\[pytest\]", "pyproject.toml": r"^\[tool\.pytest",
    "tox.ini": r"^\[pytest\]", "setup.cfg": r"^\[tool:pytest\]",
}  # fmt: skip


def suggest(project: Project) -> str:
    """The first command that fits; empty where the folder shows no sign of tests."""
    python = interpreter(project)
    has_settings = any(
        re.search(heading, _text(project, name), re.MULTILINE)
        for name, heading in _PYTEST_SETTINGS.items()
    )
    if has_settings or any(path.split("/")[-1] == "conftest.py" for path in project.listing.paths):
        return f"{python} -m pytest -q"
    tests = [path for path in project.listing.paths if _TEST_FILE.fullmatch(path)]
    if tests:
        texts = [_text(project, path) for path in tests[:20]]
        plain = all("unittest" in text and "pytest" not in text for text in texts)
        if plain and not _has_pytest(project, python):
            start = os.path.commonpath([os.path.dirname(path) or "." for path in tests]) or "."
            return f"{python} -m unittest discover -s {shlex.quote(start)}"
        return f"{python} -m pytest -q"
    if _text(project, "Cargo.toml"):
        return "cargo test"
    if _text(project, "go.mod"):
        return "go test ./..."
    if _has_npm_script(_text(project, "package.json")):
        return "npm test"
    scripts = [path for path in project.listing.paths if _SCRIPT_TEST.fullmatch(path)]
    if any("node:test" in _text(project, path) for path in scripts[:20]):
        return "node --test"
    for name in ("Makefile", "makefile", "GNUmakefile"):
        if re.search(r"^test:", _text(project, name), re.MULTILINE):
            return "make test"
    return ""


def script(command: str) -> str:
    """The path, relative to the folder, of the shell script that is all that the command runs. Such
    a script counts as a test, whatever its name. Empty for another command."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quote that does not end
        return ""
    if any(set(word) <= set(";&|()") for word in words):  # other commands too
        return ""
    while words and (words[0] in _SHELLS + _WITH_VALUE or words[0][0] == "-" or "=" in words[0]):
        words = words[2 if words[0] in _WITH_VALUE else 1 :]
    return os.path.normpath(words[0]) if words and words[0].endswith((".sh", ".bash")) else ""


def interpreter(project: Project) -> str:
    """The Python of a project for the shell: that of its virtual environment, else `python`."""
    for name in (".venv", "venv", "env"):
        if os.access(project.folder / name / "bin" / "python", os.X_OK):
            return f"{name}/bin/python"
    return "python" if program("python") else "python3"


def _text(project: Project, path: str) -> str:
    """The text of a file; empty where there is none."""
    try:
        return project.read(path).document.text
    except RefusedError:
        return ""


def _has_pytest(project: Project, python: str) -> bool:
    environment = (project.folder / python).parents[1] if "/" in python else None
    if environment is None:
        return program("pytest") is not None
    return any(Path(environment).glob("lib/python*/site-packages/pytest"))


def _has_npm_script(text: str) -> bool:
    try:
        script = json.loads(text)["scripts"]["test"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    return isinstance(script, str) and "no test specified" not in script and bool(script.split())
