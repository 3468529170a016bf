"""`tgr_local.system.python_source`: hostile texts, and many at once."""

from __future__ import annotations

import ast
import gc
import threading
import time
import warnings

import pytest

from tgr_local.system.python_source import syntax_tree


def test_the_tree_is_pythons_own():
    text = "def f(x):\n    return x + 1\n"
    assert ast.dump(syntax_tree(text)) == ast.dump(ast.parse(text))
    assert ast.dump(syntax_tree("1 + 2", "eval")) == ast.dump(ast.parse("1 + 2", mode="eval"))


@pytest.mark.parametrize("text", ["def f(:", "a\0b", "(" * 5000 + ")" * 5000, "-" * 100_000 + "1"])
def test_what_python_cannot_read_is_a_syntax_error(text: str):
    with pytest.raises(SyntaxError) as error:
        syntax_tree(text)
    assert error.value.lineno


def test_an_escape_in_the_text_warns_nobody():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        syntax_tree("'\\d'")


def let_others_run(*_: object) -> None:
    time.sleep(0)


def test_threads_do_not_disturb_each_other():
    """In Python 3.11 `ast.parse` ends with SystemError here: garbage is collected while it makes
    the tree, and what runs then lets other threads run."""
    text = "def f(x):\n" + "    x = [[(x + 1) * 2, {'a': [x, x]}], lambda y: y]\n" * 100
    right, failures = ast.dump(ast.parse(text)), []

    def parse() -> None:
        try:
            for _ in range(2):
                if ast.dump(syntax_tree(text)) != right:
                    failures.append("another tree")
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=parse) for _ in range(4)]
    before = gc.get_threshold()
    gc.callbacks.append(let_others_run)
    gc.set_threshold(50)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(let_others_run)
    assert not failures
