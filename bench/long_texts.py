"""Long texts of a model, or of whoever speaks to it, for every function that reads such texts:
parts that repeat, of twice the length each time. The time must grow with the length.

    python bench/long_texts.py
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from tgr_local.apis.bare_calls import bare_calls
from tgr_local.code.edits import FileText, Format, read_edits
from tgr_local.code.writing import natural
from tgr_local.console import markdown
from tgr_local.lab.eval.tasks import code, gsm8k, maths
from tgr_local.system import answers
from tgr_local.system.errors import TgrError

PARTS = [
    " ", "\n", "\t", "a", "1", "1.", "1,", "1,000", "1,000 ", ".", "-", "−", "_", "a_", "*",
    "**", "**a", "`", "``", "```", "```\n", "```python\n", "~~~\n", "$", "$$", "$a$", "\\",
    "\\\\", "{", "}", "{}", "[", "]", "[]", "[a](", "![", "(", ")", "<", ">", "<a", "<a>",
    "<!--", "&", "&a", "|", "|a", "| a |\n", "# ", "#\n", "> ", "- ", "- a\n", "1. a\n",
    "  - a\n", "\\boxed{", "\\boxed{1}", "\\boxed", "\\fbox {", "\\frac", "\\frac{",
    "\\frac{1}{", "\\frac12", "\\frac{1}{2}", "\\text{", "\\text{a}", "\\mathrm", "\\left", "^",
    "^ ", "^{", "^\\circ", "answer is ", "answer is . ", "answer:\n", "the answer is 1. ",
    "<think>", "</think>", "<think>a</think>", "<tool_call>", "<tool_call>\n{", "</tool_call>",
    '{"name": "f", "arguments": {', '{"name": "f"}\n', '{"a": ', '"', "'", '"""', "'''",
    "def f():\n", "class A:\n ", "@a\n", "import a\n", "if a:\n ", "x = (\n", "#", "//",
    "<<<<<<< SEARCH\n", "=======\n", ">>>>>>> REPLACE\n", "a.py\n", "a/", "./", "http://",
    "www.", "@a.", "\r\n", "é",
]  # fmt: skip
DOCUMENT = FileText("a.py", "def f():\n    return 1\n")

Reader = Callable[[str], object]


def _edits(format: Format, text: str) -> object:
    try:
        return read_edits(text, [DOCUMENT], format)
    except (TgrError, ValueError):
        return None


def _natural(text: str) -> object:
    try:
        return natural.read_answer(text, [DOCUMENT])
    except (TgrError, ValueError):
        return None


def readers() -> dict[str, Reader]:
    """Functions of a text. What a grader gives to other packages has its own limit of time."""
    return {
        "answers.answer_key": answers.answer_key,
        "answers.is_comparable": answers.is_comparable,
        "answers.normalised": answers.normalised,
        "gsm8k.compare": partial(gsm8k.compare, 1),  # type: ignore[arg-type]
        "maths.unlike": partial(maths.unlike, "1"),
        "code.program": lambda text: code.program(text, "f"),
        "natural.codes": natural.codes,
        "edits: file": partial(_edits, "file"),
        "edits: function": partial(_edits, "function"),
        "natural.read_answer": _natural,
        "bare_calls": lambda text: bare_calls(text, ["f"]),
        "markdown.parse": lambda text: markdown.blocks(markdown.parse(text)),
    }


def texts(length: int) -> Iterator[tuple[str, str]]:
    """The texts of a length, and what they are made of."""
    for part in PARTS:
        for head in ("", "\\boxed{", "```python\n", '{"name": "f", "arguments": '):
            for tail in ("", "}", "\nb", "```", "\x01"):
                name = f"{head!r} + {part!r} * n + {tail!r}"
                yield name, head + part * (length // len(part)) + tail


def seconds(read: Reader, text: str, most: int) -> float:
    """The CPU time that reading takes in a process of its own, which ends at a bound."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        start, word = time.process_time(), b""
        try:
            read(text)
        except RecursionError:
            word = b"1e3"
        os.write(theirs, word or str(time.process_time() - start).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return float(said or most)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--length", type=int, default=20_000, help="characters (20000), and twice")
    parser.add_argument("--only", default="", help="readers whose names contain this")
    options = parser.parse_args()
    n_bad = 0
    for name, read in readers().items():
        if options.only not in name:
            continue
        slowest = 0.0
        for (made_of, short), (_, long) in zip(
            texts(options.length), texts(2 * options.length), strict=True
        ):
            took = seconds(read, short, 20)
            slowest = max(slowest, took)
            if took > 0.15 and (twice := seconds(read, long, 20)) > 2.8 * took:
                n_bad += 1
                print(
                    f"{name}: {made_of}: {took:.2f} s, {twice:.2f} s for twice as much", flush=True
                )
        print(f"{name}: at most {slowest:.2f} s for {options.length:,} characters", flush=True)
    print(f"{n_bad} grow faster than their texts")
    return min(n_bad, 1)


if __name__ == "__main__":
    sys.exit(main())
