"""Pictures of `tgr-local chat` with a trained model, in terminals of two sizes.

    python tests/chat_pictures.py qwen2.5-coder-0.5b-instruct-q4_k_m.gguf [--images docs/images]

Out: chat-80x24.svg, a plain reply, and chat-140x40.svg, a searched one and why its second chunk was
chosen. Both are what tmux has on its screen.
"""

from __future__ import annotations

import argparse
import io
import re
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text
from screens import Screen

FIRST = ["Write a Python function that doubles a number. No explanation.", "And its test?"]
SECOND = [
    "A shop sells pens at 3 dollars and books at 12 dollars. Ann buys 4 pens and 2 books. "
    "How much does she pay?",
    "/trace 2",
]
WHOLE = re.compile(r" s.*, seed \d+\n>>>$")  # below a finished reply


def svg(screen: Screen, width: int, title: str) -> str:
    """What is on the screen, without fonts from the network."""
    console = Console(
        record=True, width=width, highlight=False, force_terminal=True, file=io.StringIO()
    )
    for line in screen.shown().removesuffix("\n").split("\n"):
        console.print(Text.from_ansi(line), no_wrap=True, overflow="crop")
    drawn = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title=title), flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--images", type=Path, default=Path("docs/images"))
    args = parser.parse_args()
    searched = ["--method", "tgr-latent", "--chunk-len", "32", "--search-from", "0"]

    picture(args, (80, 24), ["--method", "base"], FIRST)
    picture(args, (140, 40), searched, SECOND)


def _is_over(text: str, line: str) -> bool:
    """Whether what was typed has its whole reply, and the prompt waits."""
    _, _, reply = text.partition(f">>> {line}\n")
    return reply.endswith("\n>>>") and (line.startswith("/") or WHOLE.search(reply) is not None)


def picture(
    args: argparse.Namespace, size: tuple[int, int], options: list[str], typed: list[str]
) -> None:
    """Types the lines, each at the prompt, and draws the screen."""
    width, height = size
    command = ["chat", "--model", str(args.model.resolve()), "--seed", "7", "--no-save", *options]
    with tempfile.TemporaryDirectory() as folder:
        screen = Screen(Path(folder), command, width=width, height=height)
        try:
            screen.until("\n>>>")
            for line in typed:
                screen.type(line)
                screen.press("Enter")
                screen.until(lambda text, line=line: _is_over(text, line), 180)
            drawn = svg(screen, width, f"tgr-local chat -m {args.model.name} {' '.join(options)}")
        finally:
            screen.close()
    path = args.images / f"chat-{width}x{height}.svg"
    path.write_text(drawn, encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
