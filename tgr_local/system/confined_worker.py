"""The process that `confined.py` starts: reads requests from stdin, writes answers to stdout.

Started as a script, without the package: ``python confined_worker.py PATH...``, where the PATHs
become sys.path. A message is its length in 4 bytes, then JSON. The process ends with its parent.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import math
import os
import signal
import struct
import sys
import time
from typing import Any

HEADER = struct.Struct("<I")
CPU_SECONDS = 2
"""CPU time of one request."""
MEMORY = 256 << 20
"""Address space of the process, bytes."""
RESULT_BYTES = 16 << 20
"""Maximum length of an answer."""

_templates: dict[str, Any] = {}
_modules: dict[str, Any] = {}


def answer(request: dict[str, Any]) -> dict[str, str]:
    """The result of a request as ``text``, or a message as ``error``; raises nothing."""
    try:
        text = _WORK[request["do"]](request)
        if len(text) > RESULT_BYTES:
            return {"error": f"produces a text of more than {RESULT_BYTES >> 20} MiB"}
        return {"text": text}
    except MemoryError:
        return {"error": f"takes more than {MEMORY >> 20} MiB of memory"}
    except RecursionError:
        return {"error": "is nested too deeply"}
    except BaseException as error:  # foreign code may raise anything
        return {"error": f"{str(error) or type(error).__name__:.500}"}


def _render(request: dict[str, Any]) -> str:
    text = request["template"]
    if text not in _templates:
        compiled = _environment().from_string(text)
        _templates.clear()
        _templates[text] = compiled
    rendered: str = _templates[text].render(**request["variables"])
    return rendered


def _environment() -> Any:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = time.strftime
    return environment


def _schema_grammar(request: dict[str, Any]) -> str:
    # loaded by path, because importing the package would load llama.cpp
    package = importlib.util.find_spec("llama_cpp")
    assert package is not None and package.submodule_search_locations
    module = _loaded(os.path.join(package.submodule_search_locations[0], "llama_grammar.py"))
    if request["schema"] is None:
        return str(module.JSON_GBNF)
    return str(module.json_schema_to_gbnf(json.dumps(request["schema"])))


def _called(request: dict[str, Any]) -> str:
    text: str = _loaded(request["module"]).render(**request["arguments"])
    return text


_WORK = {"render": _render, "schema_grammar": _schema_grammar, "call": _called}


def _loaded(path: str) -> Any:
    """The module of a file, loaded once."""
    if path not in _modules:
        name = os.path.splitext(os.path.basename(path))[0]
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _modules[path] = module
    return _modules[path]


def _prepare(request: dict[str, Any]) -> None:
    """Imports what a request needs, which is no part of its time: it is slow on a slow machine."""
    with contextlib.suppress(Exception):  # the answer says so
        if request["do"] == "render":
            importlib.import_module("jinja2.sandbox")
        elif request["do"] == "call":
            _loaded(request["module"])


def _limit_memory() -> None:
    import resource

    for kind, most in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (most, most))


def _limit_seconds() -> None:
    """Has the system end this process CPU_SECONDS from now, rounded up to a full second."""
    import resource

    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used) + CPU_SECONDS, most))


def main() -> None:
    sys.path[:] = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory()
    while header := sys.stdin.buffer.read(HEADER.size):
        request = json.loads(sys.stdin.buffer.read(HEADER.unpack(header)[0]))
        _prepare(request)
        _limit_seconds()
        data = json.dumps(answer(request)).encode()
        sys.stdout.buffer.write(HEADER.pack(len(data)) + data)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
