"""The syntax tree of Python code that a model or the user wrote."""

from __future__ import annotations

import ast
import threading
import warnings
from typing import Literal, overload

_ONE_AT_A_TIME = threading.Lock()


@overload
def syntax_tree(text: str) -> ast.Module: ...
@overload
def syntax_tree(text: str, mode: Literal["eval"]) -> ast.Expression: ...
def syntax_tree(text: str, mode: Literal["exec", "eval"] = "exec") -> ast.mod:
    """The tree of a program, or of an expression. Raises SyntaxError for everything that Python
    cannot read: null bytes and nesting that is too deep too.

    One text at a time: in Python before 3.12 the parser counts its depth for all threads together,
    and ends with SystemError where two parse at once. Filters of
    warnings, here of those about escapes in the text, belong to the whole process too.
    """
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text, mode=mode)
        except SyntaxError as error:
            error.lineno = error.lineno or 1
            raise
        except (ValueError, RecursionError, MemoryError, SystemError) as error:
            raise SyntaxError(type(error).__name__, ("", 1, 1, "")) from None
