"""The extensions' functions and their stubs have the same arguments, all of them with names. Which
names there are is stubtest's business (`make lint`)."""

from __future__ import annotations

import ast
import importlib
import operator
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tgr_local.engine  # loads what the extension needs

PACKAGE = Path(tgr_local.__file__).parent


def declared(module: str) -> Iterator[tuple[str, list[str]]]:
    """Every function of a stub, "open" or "Engine.open", with its arguments."""
    tree = ast.parse((PACKAGE / f"{module}.pyi").read_text(encoding="utf-8"))
    for outer in tree.body:
        for node in outer.body if isinstance(outer, ast.ClassDef) else [outer]:
            if isinstance(node, ast.FunctionDef) and not node.decorator_list:
                path = f"{outer.name}.{node.name}" if node is not outer else node.name
                yield path, [arg.arg for arg in node.args.args]


def arguments(docstring: str) -> list[str]:
    """The arguments in a signature of pybind11: ``f(a: list[tuple[int, str]], b: int = 0)``."""
    inside, depth, names = "", 0, []
    for char in docstring.partition("(")[2]:
        depth += (char in "([") - (char in ")]")
        if depth < 0:
            break
        inside += "" if depth else char
    for part in filter(None, inside.split(",")):
        names.append(re.split(r"[:=]", part.strip())[0].strip())
    return names


def test_the_arguments_of_a_signature_by_hand():
    assert arguments("f() -> None") == []
    assert arguments("f(a: list[tuple[int, str]], b: int = 0) -> x\n\nIts (doc).") == ["a", "b"]


@pytest.mark.parametrize("module", ["_engine", "_chat"])
def test_functions_have_the_arguments_of_their_stubs(module: str):
    extension = importlib.import_module(f"tgr_local.{module}")
    for path, names in declared(module):
        function = operator.attrgetter(path)(extension)
        assert arguments(function.__doc__) == names, path
