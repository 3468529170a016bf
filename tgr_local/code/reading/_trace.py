"""Records which lines of the project each test runs: inside the sandbox, in each Python that the
tests start, as its ``sitecustomize``.

The folder that holds this file gets a file for each process, with a JSON object in each line: a
test, whether it failed, and the lines that it ran, by file. Tests are those of pytest, unittest and
doctest; what runs outside of them has an empty name. It needs no package, and Python 3.6 or newer;
from 3.12 on Python's own monitoring makes a line cost once for each test.
"""

import atexit
import contextlib
import importlib
import json
import os
import sys
import threading
from types import CodeType
from typing import Any, Callable, Dict, Optional, Set, Tuple  # noqa: UP035

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(FOLDER)
MOST = 8 << 20  # characters of one process
TEST = "TGR_TRACED_TEST"  # which processes that a test starts belong to
Lines = Dict[str, Set[int]]  # noqa: UP006
Known = Tuple[CodeType, Optional[Set[int]], Optional[Callable[..., None]]]  # noqa: UP006, UP045

lines = {}  # type: Lines
state = {"test": os.environ.get(TEST, ""), "failed": False, "pytest": False, "written": 0}  # type: Dict[str, Any]
codes = {}  # type: Dict[int, Known]


def write() -> None:
    """Adds what the test ran so far to the file of this process."""
    ran = {path: sorted(some) for path, some in lines.items() if some}
    if not ran and not state["failed"]:
        return
    text = json.dumps({"test": state["test"], "failed": state["failed"], "lines": ran}) + "\n"
    for some in lines.values():
        some.clear()
    state["written"] += len(text)
    if state["written"] <= MOST:
        with open(os.path.join(FOLDER, f"{os.getpid()}.jsonl"), "a") as file:
            file.write(text)


def begin(test: str) -> None:
    """Counts what runs from now on as part of a test."""
    if test == state["test"]:
        return
    write()
    state["test"], state["failed"] = test, False
    os.environ[TEST] = test
    again()


def again() -> None:
    """Asks for the lines that another test ran before."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring:
        monitoring.restart_events()


# ---- what the frameworks do ----


def pytest_begins(item: Any, **_: Any) -> None:
    state["pytest"] = True
    begin(item.nodeid)


def pytest_reports(item: Any, call: Any, **_: Any) -> None:
    if call.excinfo is not None and call.excinfo.typename not in ("Skipped", "XFailed"):
        state["failed"] = state["failed"] or item.get_closest_marker("xfail") is None


def unittest_begins(self: Any, **_: Any) -> None:
    if not state["pytest"]:
        begin(self.id())


def unittest_fails(test: Any, err: Any = True, **_: Any) -> None:
    if err is not None and not state["pytest"]:
        begin(test.id().partition(" (")[0] if hasattr(test, "test_case") else test.id())
        state["failed"] = True


def doctest_begins(test: Any, **_: Any) -> None:
    if not state["pytest"]:
        begin(test.name)


def doctest_fails(**_: Any) -> None:
    if not state["pytest"]:
        state["failed"] = True


def ends(**_: Any) -> None:
    write()


HOOKS = {
    ("runner.py", "runtestprotocol"): pytest_begins,
    ("runner.py", "pytest_runtest_makereport"): pytest_reports,
    ("runner.py", "pytest_runtest_teardown"): ends,
    ("case.py", "run"): unittest_begins,
    ("result.py", "addFailure"): unittest_fails,
    ("result.py", "addError"): unittest_fails,
    ("result.py", "addSubTest"): unittest_fails,
    ("result.py", "addUnexpectedSuccess"): unittest_fails,
    ("result.py", "stopTest"): ends,
    ("doctest.py", "__run"): doctest_begins,
    ("doctest.py", "report_failure"): doctest_fails,
    ("doctest.py", "report_unexpected_exception"): doctest_fails,
}  # type: Dict[Tuple[str, str], Callable[..., None]]
HOMES = ("_pytest", "unittest", "")


def look(code: CodeType) -> Known:
    """Returns the set for the lines of a function, if it is the project's, and its hook."""
    path = code.co_filename
    folder, name = os.path.split(path)
    hook = HOOKS.get((name, code.co_name))
    if hook and name != "doctest.py" and os.path.basename(folder) not in HOMES:
        hook = None
    own = None  # type: Optional[Set[int]]
    path = "" if path.startswith("<") else os.path.abspath(path)
    if path.startswith(ROOT + os.sep) and not path.startswith(FOLDER + os.sep):
        relative = path[len(ROOT) + 1 :].replace(os.sep, "/")
        if not hook and "/site-packages/" not in relative:
            own = lines.setdefault(relative, set())
    return code, own, hook


def known(code: CodeType) -> Known:
    """Remembers what `look` returns."""
    entry = codes.get(id(code))
    if entry is None or entry[0] is not code:
        entry = codes[id(code)] = look(code)
    return entry


def call(hook: Callable[..., None], values: Dict[str, Any]) -> None:  # noqa: UP006
    with contextlib.suppress(Exception):  # the tests come first
        hook(**values)


# ---- Python's events ----


def trace(frame: Any, event: str, arg: Any) -> Any:
    """Receives the events of Python before 3.12."""
    _, own, hook = known(frame.f_code)
    if hook:
        call(hook, frame.f_locals)
    if own is None:
        return None
    add = own.add

    def line(frame: Any, event: str, arg: Any) -> Any:
        if event == "line":
            add(frame.f_lineno)
        return line

    return line


def monitor(monitoring: Any, tool: int) -> None:
    events = monitoring.events

    def starts(code: CodeType, offset: int) -> Any:
        _, own, hook = known(code)
        if own is not None:
            monitoring.set_local_events(tool, code, events.LINE)
        if not hook:
            return monitoring.DISABLE
        call(hook, sys._getframe(1).f_locals)
        return None

    def runs(code: CodeType, number: int) -> Any:
        own = known(code)[1]
        if own is not None:
            own.add(number)
        return monitoring.DISABLE

    monitoring.use_tool_id(tool, "tgr-local")
    monitoring.register_callback(tool, events.PY_START, starts)
    monitoring.register_callback(tool, events.LINE, runs)
    monitoring.set_events(tool, events.PY_START)


def main() -> None:
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != FOLDER]
    monitoring = getattr(sys, "monitoring", None)
    free = [n for n in (4, 3) if monitoring and not monitoring.get_tool(n)]
    if free:
        monitor(monitoring, free[0])
    else:
        threading.settrace(trace)
        sys.settrace(trace)
    atexit.register(finish)


def finish() -> None:
    """Writes the last test's lines, while Python still has its modules."""
    sys.settrace(None)
    write()


def following() -> None:
    """Runs the ``sitecustomize`` that this one stands before."""
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")


if __name__ == "sitecustomize":
    main()
    following()
