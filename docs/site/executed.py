"""Runs the examples of a documentation page and compares their output with the page.

A block that begins with ```` ```console run ```` has commands, each after `$ `, and below each its
output. A block that begins with ```` ```python run ```` is a program; the ```` ```text ```` block
below it is its output. A file of examples/ is a program too; its output is the comment at its end.
All examples of a page run in one empty folder. In an output, `…` stands for
any text within a line, and alone on a line for any number of lines; a number with a decimal point
may differ by 0.1, because processors round differently.

    python docs/site/executed.py PAGE...            # compare
    python docs/site/executed.py --write PAGE...    # write the present output into the pages
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

CONSOLE = re.compile(r"(?<=^```console run\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(
    r"(?<=^```python run\n)(?P<program>.*?)^```\n\n```text\n(?P<output>.*?)(?=^```$)",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"(?<=^# With the embedded model this prints:\n)(?:#.*\n)+\Z", re.MULTILINE)
WILD = re.compile(r"(^…\n|…|[-+]?\b\d+\.\d+\b| +)", re.MULTILINE)
TOLERANCE = 0.1
SECONDS = 120.0  # after which an example is stopped

# The command line without its progress lines, which depend on how busy the machine is.
COMMAND = f"""#!{sys.executable}
import sys
from tgr_local.commands.cli import main
from tgr_local.system import progress
progress.DELAY = progress.LOG_INTERVAL = {SECONDS}
sys.exit(main())
"""


def checked(page: str) -> str:
    """The page with the present output in it: the same text where all output agrees."""
    with tempfile.TemporaryDirectory() as folder:
        environment = _environment(Path(folder))
        work = Path(folder) / "work"
        work.mkdir()

        def run(*command: str) -> str:
            done = subprocess.run(
                command, cwd=work, env=environment, timeout=SECONDS, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            return done.stdout

        def console(block: re.Match[str]) -> str:
            return "".join(
                f"$ {command}\n" + merged(output, run("bash", "-c", command))
                for command, output in _commands(block[0])
            )

        def python(block: re.Match[str]) -> str:
            output = merged(block["output"], run(sys.executable, "-c", block["program"]))
            return f"{block['program']}```\n\n```text\n{output}"

        def example(comment: re.Match[str]) -> str:
            return commented(merged(uncommented(comment[0]), run(sys.executable, "-c", page)))

        return COMMENT.sub(example, PYTHON.sub(python, CONSOLE.sub(console, page)))


def uncommented(comment: str) -> str:
    """The text of a comment."""
    return re.sub(r"^# ?", "", comment, flags=re.MULTILINE)


def commented(text: str) -> str:
    """A comment of a text; its lines have no spaces at their ends."""
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())


def difference(page: str) -> str:
    """What the examples print now against what the page shows; empty where both agree."""
    lines = difflib.unified_diff(
        page.splitlines(), checked(page).splitlines(), "the page", "this machine", lineterm="", n=1
    )
    return "\n".join(lines)


def merged(expected: str, got: str) -> str:
    """The expected output where it agrees, else the output that came."""
    if agrees(expected, got):
        return expected
    old, new = expected.splitlines(keepends=True), got.splitlines(keepends=True)
    if len(old) == len(new):
        new = [was if agrees(was, now) else now for was, now in zip(old, new, strict=True)]
    return "".join(new)


def agrees(expected: str, got: str) -> bool:
    """Whether an output is the expected one, but for `…`, spacing and small differences."""
    pattern, numbers = "", []
    for i, part in enumerate(WILD.split(expected)):
        if i % 2 == 0:
            pattern += re.escape(part)
        elif part == "…\n":
            pattern += r"(?:[^\n]*\n)*?"
        elif part == "…":
            pattern += r"[^\n]*?"
        elif part.isspace():
            pattern += " +"
        else:
            pattern += r"([-+]?\d+\.\d+)"
            numbers.append(float(part))
    found = re.fullmatch(pattern, got)
    return found is not None and all(
        abs(float(now) - was) <= TOLERANCE for was, now in zip(numbers, found.groups(), strict=True)
    )


def _commands(block: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def _environment(folder: Path) -> dict[str, str]:
    """No user's settings, no terminal, and the package of this interpreter."""
    command = folder / "bin" / "tgr-local"
    command.parent.mkdir()
    command.write_text(COMMAND, encoding="utf-8")
    command.chmod(0o755)
    path = os.pathsep.join([str(command.parent), str(Path(sys.executable).parent), os.defpath])
    return {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8", "TERM": "dumb"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    parser.add_argument("--write", action="store_true", help="write the present output")
    args = parser.parse_args()
    differs = False
    for path in args.pages:
        page = path.read_text(encoding="utf-8")
        if args.write:
            path.write_text(checked(page), encoding="utf-8")
        elif changes := difference(page):
            print(f"{path}:\n{changes}")
            differs = True
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
