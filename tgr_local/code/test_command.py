"""Which command runs the tests of a project: a suggestion, with its reason.

In: a project. Out: a command for the shell, or None. Nothing is run to find it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tgr_local.code.project import Project, RefusedError

_TEST_FILE = re.compile(r"(?:.*/)?(?:test_[^/]*|[^/]*_test)\.py")
_PYTEST_SETTINGS = {
    "pytest.ini": r"^\[pytest\]", "pyproject.toml": r"^\[tool\.pytest",
    "tox.ini": r"^\[pytest\]", "setup.cfg": r"^\[tool:pytest\]",
}  # fmt: skip


@dataclass(frozen=True)
class Suggestion:
    """A command that may run the tests."""

    command: str
    reason: str
    """Such as "there is a [tool.pytest] in pyproject.toml"."""
    is_script: bool = False
    """Whether the command runs what a file of the folder says (a Makefile, package.json): show it
    to the person before it runs."""


def suggest(project: Project) -> Suggestion | None:
    """The first command that fits; None where the folder shows no sign of tests."""
    return next(_all(project), None)


def interpreter(project: Project) -> str:
    """The Python of a project for the shell: that of its virtual environment, else `python`."""
    for name in (".venv", "venv", "env"):
        if os.access(project.folder / name / "bin" / "python", os.X_OK):
            return f"{name}/bin/python"
    return "python" if shutil.which("python") else "python3"


def _all(project: Project) -> Iterator[Suggestion]:
    python = interpreter(project)
    settings = [name for name, heading in _PYTEST_SETTINGS.items()
                if re.search(heading, _text(project, name), re.MULTILINE)]  # fmt: skip
    settings += [path for path in project.listing.paths if path.split("/")[-1] == "conftest.py"]
    if settings:
        yield Suggestion(f"{python} -m pytest -q", f"there are settings of pytest in {settings[0]}")
    tests = [path for path in project.listing.paths if _TEST_FILE.fullmatch(path)]
    if tests:
        texts = [_text(project, path) for path in tests[:20]]
        plain = all("unittest" in text and "pytest" not in text for text in texts)
        if plain and not _has_pytest(project, python):
            start = os.path.commonpath([os.path.dirname(path) or "." for path in tests]) or "."
            yield Suggestion(f"{python} -m unittest discover -s {shlex.quote(start)}",
                             f"there are tests of unittest, such as {tests[0]}")  # fmt: skip
        yield Suggestion(f"{python} -m pytest -q", f"there are tests, such as {tests[0]}")
    if _text(project, "Cargo.toml"):
        yield Suggestion("cargo test", "there is a Cargo.toml")
    if _text(project, "go.mod"):
        yield Suggestion("go test ./...", "there is a go.mod")
    if script := _npm_script(_text(project, "package.json")):
        yield Suggestion("npm test", f"package.json has the script test: {script}", True)
    for name in ("Makefile", "makefile", "GNUmakefile"):
        if re.search(r"^test:", _text(project, name), re.MULTILINE):
            yield Suggestion("make test", f"there is a target test in {name}", True)


def _text(project: Project, path: str) -> str:
    """The text of a file; empty where there is none."""
    try:
        return project.read(path).document.text
    except RefusedError:
        return ""


def _has_pytest(project: Project, python: str) -> bool:
    environment = (project.folder / python).parents[1] if "/" in python else None
    if environment is None:
        return shutil.which("pytest") is not None
    return any(Path(environment).glob("lib/python*/site-packages/pytest"))


def _npm_script(text: str) -> str:
    try:
        script = json.loads(text)["scripts"]["test"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    known = isinstance(script, str) and "no test specified" not in script
    return " ".join(script.split())[:200] if known else ""
