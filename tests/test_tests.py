"""The tests themselves: what they import, what they touch of the package, that none measures time,
and that none waits for long."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sandboxes
from surroundings import HANG, ROOT, environment

FILES = sorted(Path(__file__).parent.glob("*.py"))
TESTS = {path.stem for path in FILES if path.stem.startswith("test_")} | {"conftest"}
CLOCKS = {"monotonic", "perf_counter", "process_time", "time"}
DURATIONS = ("seconds", "elapsed")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def imported(nodes: list[ast.AST]) -> set[str]:
    """The modules that a file imports."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def is_duration(side: ast.expr) -> bool:
    """A difference that reads a clock, or a value that is named a duration."""
    if isinstance(side, ast.Subscript):
        return isinstance(side.slice, ast.Constant) and side.slice.value in DURATIONS
    if isinstance(side, ast.BinOp):
        return any(isinstance(n, ast.Attribute) and n.attr in CLOCKS for n in ast.walk(side))
    return isinstance(side, ast.Attribute | ast.Name) and ast.unparse(side).endswith(DURATIONS)


def limited(nodes: list[ast.AST]) -> Iterator[str]:
    """Assertions that limit a duration."""
    for node in nodes:
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare):
            sides = [node.test.left, *node.test.comparators]
            for smaller, op, larger in zip(sides, node.test.ops, sides[1:], strict=False):
                long = smaller if isinstance(op, ast.Lt | ast.LtE) else larger
                if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) and is_duration(long):
                    yield f"line {node.lineno}: {ast.unparse(node)}"


def long_waits(nodes: list[ast.AST]) -> Iterator[int]:
    """The lines with a timeout of more than a minute."""
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg == "timeout":
            value = node.value.value if isinstance(node.value, ast.Constant) else None
            if isinstance(value, int | float) and value > 60:
                yield node.lineno


PRIVATE = {
    # processes of a pool, which the tests end to see that new ones replace them
    "test_confined": {"_idle", "_process"},
    # jobs that no public function makes: nobody waits for them, or they are dropped at once
    "test_engine_threads": {"_native", "_submit"},
    "test_strength": {"_known", "_out_of_reach"},
    "wine_console": {"_COORD"},  # a structure of Windows, which ctypes has by this name alone
}
"""Private names that a test file may use, since no public way exists."""


def private(nodes: list[ast.AST]) -> set[str]:
    """The private names that a file uses of others."""
    used: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "os")
            used |= set() if own else {node.attr}
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and "setattr" in ast.unparse(node.func):
            strings = (one.value for one in node.args[1:2] if isinstance(one, ast.Constant))
            used |= {str(one) for one in strings}
    return {name for name in used if is_private(name)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_keeps_the_rules(path: Path):
    """Helpers that tests share have modules of their own. Timings belong to `bench`; a timeout may
    guard against a hang. Private names are used where no public way exists."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    assert not imported(nodes) & TESTS
    assert [*limited(nodes)] == []
    assert [*long_waits(nodes)] == []
    assert private(nodes) == PRIVATE.get(path.stem, set())


HANGING = """\
import ctypes, threading

def test_that_passes(): pass

def test_that_waits(): threading.Event().wait(600)

def test_in_native_code():  # which no signal ends
    mutex = ctypes.create_string_buffer(256)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


def test_a_test_that_hangs_fails_by_its_name(tmp_path, request):
    limits = [float(request.config.getini(f"{kind}timeout")) for kind in ("", "faulthandler_")]
    assert HANG < limits[0] <= 60 < limits[1] <= 80
    assert request.config.getini("faulthandler_exit_on_timeout")
    (tmp_path / "test_hanging.py").write_text(HANGING)
    ours = [
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(tmp_path),
        "-p",
        "no:cacheprovider",
    ]
    short = ["--timeout", "0.5", "-o", "faulthandler_timeout=1.5"]
    plugins = ["-p", "xdist.plugin", "-p", "pytest_timeout"]  # others take seconds to load
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *ours, *plugins, *short, "-n", "1", "test_hanging.py"],
        env=environment(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"), cwd=tmp_path, capture_output=True,
        text=True, timeout=HANG,
    )  # fmt: skip
    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "test_that_waits - Failed: Timeout" in done.stdout
    assert "crashed while running 'test_hanging.py::test_in_native_code'" in done.stdout


def test_a_sandbox_that_does_not_work_is_a_skip_with_its_reason():
    def obstacle(kind: str) -> str:
        return "" if kind in working else f"no {kind}"

    working = {"limits", "none"}
    with pytest.raises(pytest.skip.Exception, match=r"the sandbox bwrap does not .*: no bwrap"):
        sandboxes.needed("bwrap", obstacle)
    assert sandboxes.needed("limits", obstacle) == sandboxes.strongest(obstacle) == "limits"
    working = {"none"}
    assert sandboxes.strongest(obstacle) == "none"
    working = {"bwrap", "unshare", "limits", "none"}
    assert sandboxes.strongest(obstacle) == "bwrap"
