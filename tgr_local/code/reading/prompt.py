"""The prompt for the model: the files that it may change, the task, what fails.

In: texts. Out: messages of a chat, and the code as an answer would repeat it. Later rounds add
messages, so that all share the beginning.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tgr_local.code.edits import FileText, Function, fence_for
from tgr_local.code.edits.function import in_place
from tgr_local.code.edits.syntax import fence_name
from tgr_local.code.reading.evidence import Lines

Form = Literal["file", "function"]
"""Form of an answer, by its room or by the form that the model has learnt: whole files or whole
functions."""
Message = dict[str, str]
CountTokens = Callable[[str], int]
"""The number of tokens of a text."""


@dataclass(frozen=True, eq=False)
class Copy:
    """Code as an answer would repeat it."""

    document: FileText
    """File that the code belongs to."""
    opening: str
    """Text before the code in the answer: the path, the fence."""
    code: str
    """Code with a line end."""
    tokens: Sequence[int] = ()
    """Tokens of the request and the answer up to the end of the code, or shortly before it."""
    n_head: int = 0
    """First characters of the code that say which code it is: up to the name of a function."""
    function: Function | None = None
    """The function, without its indentation; None = the code is the whole file."""
    unreached: Sequence[Lines] = ()
    """Lines of the document that no failing test reaches: departures in them come last."""

    @property
    def is_python(self) -> bool:
        return self.document.path.endswith((".py", ".pyi"))


def copies(
    documents: Sequence[FileText], functions: Sequence[Function], fence: str
) -> Iterator[Copy]:
    """The code as answers would repeat it: each of these functions, and each document without one
    of them. Tokens are left empty."""
    in_part = {f.path for f in functions}
    by_path = {d.path: d for d in documents}
    parts: list[tuple[str, str, int, Function | None]] = [
        (d.path, d.text, 0, None) for d in documents if d.path not in in_part
    ]
    parts += [(f.path, *_source(by_path[f.path], f), f) for f in functions]
    for path, code, n_head, function in parts:
        path_line = f"{path}\n" if len(documents) > 1 else ""
        opening = f"{path_line}{fence}{fence_name(path)}\n"
        if code.strip():
            yield Copy(by_path[path], opening, ended(code), (), n_head, function)


def _source(document: FileText, function: Function) -> tuple[str, int]:
    """The code of a function at the margin, and the length of it up to its name."""
    lines = document.text.split("\n")[function.first - 1 : function.last]
    code = "\n".join(in_place("\n".join(lines), [""]))
    name = re.escape(re.sub(r"#\d+$", "", function.name).rpartition(".")[2])
    match = re.search(rf"\bdef\s+{name}\b|\b{name}\s*\(", code)
    return code, match.end() if match else 0


def file_block(path: str, text: str, fence: str, note: str = "") -> str:
    """A file of the user message. `note` says what is shown of it; empty = all."""
    about = f" ({note})" if note else ""
    return f"`{path}`{about}:\n{fence}{fence_name(path)}\n{ended(text)}{fence}\n"


def user_message(files: str, task: str, output: str = "", lacking: str = "") -> str:
    """The files as `context` shows them, the task, the end of the output of failing tests, and the
    names that the tests lack. It does not ask for a form of the answer: small models that are asked
    for the whole changed file copy the file, and they copy an example of a form word by word."""
    said = _quote("The tests fail", output) if output else ""
    parts = [files.rstrip("\n"), task.strip(), said, lacking.rstrip("\n")]
    return "\n\n".join(part for part in parts if part) + "\n"


def conversation(
    user: str, attempt: str = "", output: str = "", problem: str = ""
) -> list[Message]:
    """The messages of a round. `attempt` is the best answer of the round before, `output` that of
    the tests with its edits, and `problem` why it has none. The system message of the model's
    template, if it has one, stays as it is."""
    messages = [{"role": "user", "content": user}]
    if attempt:
        said = f"That answer cannot be used: {problem}."
        if output:
            said = _quote("With these edits the tests still fail", output)
        said += "\n\nThe files are again as I showed them first. Write all edits anew, corrected.\n"
        messages.append({"role": "assistant", "content": attempt})
        messages.append({"role": "user", "content": said})
    return messages


def _quote(label: str, output: str) -> str:
    fence = fence_for([output])
    return f"{label}:\n{fence}\n{ended(output)}{fence}"


def ended(text: str) -> str:
    """The text with a line end, unless it is empty."""
    return text if not text or text.endswith("\n") else text + "\n"


def tail(output: str, most: int, count: CountTokens) -> str:
    """The last lines of an output that have at most `most` tokens together, after a line that says
    how many there were before; the end of its last line if that alone is longer."""
    text = output.replace("\r\n", "\n").strip("\n")
    if not text:
        return ""
    lines = text[-8 * most - 4096 :].split("\n") if len(text) > 64 * most else text.split("\n")
    if len(lines) == len(text.split("\n")) and count(text) <= most:
        return text + "\n"
    numbers = range(1, len(lines) + 1)
    n_fit = bisect.bisect(numbers, most - 12, key=lambda n: count("\n".join(lines[-n:])))
    last_lines = "\n".join(lines[-n_fit:]) if n_fit else lines[-1][-most:]
    n_before = len(text.split("\n")) - n_fit
    return f"[... {n_before} lines before]\n{last_lines}\n"
