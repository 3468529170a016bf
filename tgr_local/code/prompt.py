"""What the model reads: the instructions, and the task with the files that it may change.

In: texts. Out: messages of a chat. The parts of the user message are in the order in which they
change from round to round, the one that changes last first, so that rounds share its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tgr_local.code.edits import Document, Format, Markers, fence_for
from tgr_local.code.syntax import fence_name

Message = dict[str, str]
CountTokens = Callable[[str], int]
"""The number of tokens of a text."""

_RULES = """\
You change code. The user shows you files of a project and a task; answer with edits of these files.

- Change as little as the task needs. Keep names, style and indentation of the code around.
- Find the cause and correct it. Do not change tests, and write nothing for one special test input.
- Change only files that are shown whole or functions that are shown whole. New text is complete: no
  "..." and no "rest as before".
- Write the edits in exactly the form below, one after another, and nothing after them.
"""
_FILE = """\
The form: the path of a file, then the whole new text of the file between two fences:

{path}
{fence}{language}
(all lines of the new file)
{fence}
"""
_FUNCTION = """\
The form: the path of a file, "::", the name of a function in it (a method as Class.method), then
the whole new function between two fences, with its decorators, indented as in the file:

{path}::{function}
{fence}{language}
(all lines of the new function)
{fence}
"""
_REPLACE = """\
The form: the path of a file, the lines to replace, exactly as they are in the file, and the new
lines. Quote few lines; they must occur in the file, with their indentation. To insert, quote the
line before and repeat it in the new lines:

{path}
{search}
(lines of the file)
{separator}
(the new lines)
{replace}
"""
_FORMS: dict[Format, str] = {"file": _FILE, "function": _FUNCTION, "replace": _REPLACE}


def system_message(form: Format, documents: Sequence[Document], function: str = "") -> str:
    """The instructions, with the form of edits of these documents; the example names the first one
    and `function`."""
    markers, path = Markers.of(documents), documents[0].path
    example = _FORMS[form].format(
        path=path, function=function or "name", language=fence_name(path), fence=markers.fence,
        search=markers.search, separator=markers.separator, replace=markers.replace,
    )  # fmt: skip
    return f"{_RULES}\n{example}"


def file_block(path: str, text: str, fence: str, note: str = "") -> str:
    """A file of the user message. `note` says what is shown of it; empty = all."""
    about = f" ({note})" if note else ""
    return f"`{path}`{about}:\n{fence}{fence_name(path)}\n{ended(text)}{fence}\n"


def user_message(files: str, task: str, output: str = "") -> str:
    """The files as `context` shows them, the task, and the end of the output of failing tests."""
    parts = [files.rstrip("\n"), task.strip()]
    if output:
        fence = fence_for([output])
        parts.append(f"The tests fail:\n{fence}\n{ended(output)}{fence}")
    return "\n\n".join(part for part in parts if part) + "\n"


def follow_up(output: str) -> str:
    """The message after an answer whose edits did not pass the tests."""
    fence = fence_for([output])
    return (
        f"With these edits the tests still fail:\n{fence}\n{ended(output)}{fence}\n\n"
        "The files are again as I showed them first. Write all edits anew, corrected.\n"
    )


def conversation(
    system: str, user: str, attempt: str = "", attempt_output: str = ""
) -> list[Message]:
    """The messages of a round. `attempt` is the best answer of the round before, and
    `attempt_output` the output of the tests with its edits."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    if attempt:
        messages.append({"role": "assistant", "content": attempt})
        messages.append({"role": "user", "content": follow_up(attempt_output)})
    return messages


def without_system(messages: Sequence[Message]) -> list[Message]:
    """The messages for a chat template that has no place for instructions: they come first in
    the user's first message."""
    system, user, *rest = messages
    return [{"role": "user", "content": f"{system['content']}\n{user['content']}"}, *rest]


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
    low, high = 0, len(lines)  # the most lines that fit
    while low < high:
        middle = (low + high + 1) // 2
        if count("\n".join(lines[-middle:])) + 12 <= most:
            low = middle
        else:
            high = middle - 1
    n_before = len(text.split("\n")) - low
    if low == 0:
        return f"[... {n_before} lines before]\n{lines[-1][-most:]}\n"
    return f"[... {n_before} lines before]\n" + "\n".join(lines[-low:]) + "\n"
