"""Runs inside the sandbox: parses files, and imports Python modules, one process for each.

``python _check.py FOLDER PATH…`` prints a line for each file: ``imported``, ``parsed``,
``unchecked`` where there is no parser for it, or ``parse`` or ``import`` with what failed, the
path, and the error, with tabs between. It needs no package, and any Python from 3.6 on.
"""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from typing import Tuple  # noqa: UP035

IMPORTED = 97  # exit code after an import that did not fail


def parse(path: str) -> bool:
    """Whether there is a parser for a file. Raises an error for one that does not parse."""
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith((".py", ".pyi")):
        compile(data, path, "exec", dont_inherit=True)
    elif path.endswith(".json"):
        json.loads(data.decode("utf-8-sig"))
    elif path.endswith(".ipynb"):
        if not isinstance(json.loads(data.decode("utf-8-sig"))["cells"], list):
            raise ValueError("its cells are no list")
    elif path.endswith(".toml"):
        try:
            import tomllib  # novermin
        except ImportError:  # before 3.11
            return False
        tomllib.loads(data.decode())
    else:
        return False
    return True


def load(folder: str, path: str) -> None:
    """Imports a file as the module that it is."""
    place, name = os.path.split(path)
    names = [name[:-3]]
    while place and os.path.exists(os.path.join(folder, place, "__init__.py")):
        place, name = os.path.split(place)
        names.insert(0, name)
    if names[-1] == "__init__":
        names.pop()
    sys.path[:1] = [os.path.join(folder, place), folder]  # instead of the folder of this file
    if all(name.isidentifier() for name in names):
        importlib.import_module(".".join(names))
    else:
        spec = importlib.util.spec_from_file_location("module", os.path.join(folder, path))
        assert spec and spec.loader
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def problem(folder: str, path: str) -> Tuple[str, str]:  # noqa: UP006
    """Returns the step done with a file, or the failed one, and its error."""
    try:
        if not parse(os.path.join(folder, path)):
            return "unchecked", ""
    except SyntaxError as error:
        return "parse", f"{error.msg} (line {error.lineno})"
    except Exception as error:
        return "parse", repr(error)
    name = os.path.basename(path)
    if not name.endswith(".py") or name in ("setup.py", "__main__.py"):
        return "parsed", ""
    completed = subprocess.run(
        [sys.executable, __file__, "--import", folder, path],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if completed.returncode == IMPORTED:
        return "imported", ""
    lines = completed.stderr.decode("utf-8", "replace").strip().splitlines()
    return "import", lines[-1] if lines else f"exit code {completed.returncode}"


if __name__ == "__main__":
    if sys.argv[1] == "--import":
        load(sys.argv[2], sys.argv[3])
        sys.stderr.flush()
        os._exit(IMPORTED)
    kinds = set()
    for each in sys.argv[2:]:
        kind, text = problem(sys.argv[1], each)
        kinds.add(kind)
        print(kind, each, " ".join(text.split()), sep="\t", flush=True)
    sys.exit(1 if kinds & {"parse", "import"} else 0)
