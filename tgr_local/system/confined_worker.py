"""The process that `confined.py` starts: reads requests from stdin, writes answers to stdout.

Started as a script, without the package: ``python confined_worker.py EXTENSION PATH...``, where
EXTENSION is the file of the module ``_chat`` and the PATHs become sys.path. A frozen program starts
itself instead, and calls `serve`. A message is a line with JSON. The process ends with its parent.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

CPU_SECONDS = 2
"""CPU time of one request."""
MEMORY = 256 << 20
"""Address space that the process may add to what it has at its start, bytes."""
RESULT_BYTES = 16 << 20
"""Maximum length of an answer."""
_TEMPLATES, _PARSERS = 2, 16  # that are kept

extension = ""
"""The file of the module ``_chat``."""
_parsers: dict[str, Any] = {}


def answer(request: dict[str, Any]) -> bytes:
    """JSON with the result of a request as ``value``, or a message as ``error``; raises nothing."""
    try:
        value = json.dumps({"value": _WORK[request["do"]](request)}).encode()
        if len(value) <= RESULT_BYTES:
            return value
        error = f"produces a text of more than {RESULT_BYTES >> 20} MiB"
    except MemoryError:
        error = f"takes more than {MEMORY >> 20} MiB of memory"
    except RecursionError:
        error = "is nested too deeply"
    except BaseException as raised:  # foreign code may raise anything
        text = " ".join(str(raised).split())
        error = f"{text or type(raised).__name__:.500}"
        if "bad_alloc" in text:
            error = f"takes more than {MEMORY >> 20} MiB of memory"
    return json.dumps({"error": error}).encode()


def _chat() -> Any:
    """The module, loaded by its path: importing the package would load llama.cpp."""
    return _loaded(extension)


@functools.cache
def _loaded(path: str) -> Any:
    """The module of a file."""
    name = os.path.basename(path).partition(".")[0]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _apply(request: dict[str, Any]) -> dict[str, Any]:
    template, ends = request["template"], (request["bos"], request["eos"])
    compiled = _template(template, *ends)
    if "generic_tools" in request and not compiled.abilities()["supports_tool_calls"]:
        compiled = _template(request["generic_tools"] + template, *ends)
    result: dict[str, Any] = compiled.apply(json.dumps(request["request"]))
    return result


def _abilities(request: dict[str, Any]) -> dict[str, bool]:
    result: dict[str, bool] = _template(request["template"], "", "").abilities()
    return result


@functools.lru_cache(maxsize=_TEMPLATES)
def _template(*key: str) -> Any:
    return _chat().Template(*key)


def _parse(request: dict[str, Any]) -> dict[str, Any] | None:
    """The message in a text; None for a parser that is not known yet and did not come along."""
    key = request["key"]
    if key not in _parsers:
        if "parser" not in request:
            return None
        while len(_parsers) >= _PARSERS:
            del _parsers[next(iter(_parsers))]
        _parsers[key] = _chat().Parser(*request["parser"])
    message: dict[str, Any] = _parsers[key].parse(request["text"], request["partial"])
    return message


def _called(request: dict[str, Any]) -> str:
    text: str = _loaded(request["module"]).render(**request["arguments"])
    return text


_WORK: dict[str, Callable[[dict[str, Any]], Any]] = {
    "apply": _apply,
    "abilities": _abilities,
    "parse": _parse,
    "call": _called,
}


def _prepare(request: dict[str, Any]) -> None:
    """Imports what a request needs, which is not part of its time: it is slow on a slow machine."""
    with contextlib.suppress(Exception):  # the answer says so
        _loaded(request["module"]) if request["do"] == "call" else _chat()


def _limit_on_windows(**limits: int) -> None:
    _loaded(os.path.join(os.path.dirname(__file__), "job_object.py")).limit(**limits)


def _limit_memory() -> None:
    if os.name == "nt":
        return _limit_on_windows(memory=MEMORY)
    import resource

    for kind, most in ((resource.RLIMIT_AS, _size() + MEMORY), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))


def _size() -> int:
    """Address space of this process, bytes; 0 where the system does not say."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _limit_seconds() -> None:
    """Has the system end this process CPU_SECONDS from now, rounded up to a full second."""
    if os.name == "nt":
        return _limit_on_windows(seconds=CPU_SECONDS)
    import resource

    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used) + CPU_SECONDS, most))


def serve(file: str) -> None:
    """Answers requests until the end of stdin; `file` is that of the module ``_chat``."""
    global extension
    extension = file
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    # a frozen program for Windows without a console has no sys.stdin
    with open(0, "rb", closefd=False) as requests, open(1, "wb", closefd=False) as answers:
        for line in requests:
            request = json.loads(line)
            _prepare(request)
            _limit_seconds()
            answers.write(answer(request) + b"\n")
            answers.flush()


if __name__ == "__main__":
    sys.path[:] = sys.argv[2:]
    serve(sys.argv[1])
