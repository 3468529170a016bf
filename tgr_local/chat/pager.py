"""Replies on the whole screen, one at a time, to choose one of."""

from __future__ import annotations

from collections.abc import Sequence

from prompt_toolkit import Application
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import HSplit, Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.widgets import TextArea

from tgr_local.console.sanitize import printable
from tgr_local.generation import Reply


def choose(replies: Sequence[Reply]) -> int | None:
    """The reply that a person takes; None if none of them."""
    at = 0
    area = TextArea(read_only=True, scrollbar=True, wrap_lines=True)
    keys = KeyBindings()

    def turn_to(number: int) -> None:
        nonlocal at
        at = number % len(replies)
        area.text = _page(replies[at])

    def head() -> str:
        reply = replies[at]
        return (
            f"reply {at + 1} of {len(replies)}, seed {reply.seed}, {reply.n_tokens} tokens, "
            f"{reply.finish}"
        )

    for names, go in {
        ("right", "n", "tab"): lambda event: turn_to(at + 1),
        ("left", "p", "s-tab"): lambda event: turn_to(at - 1),
        ("enter",): lambda event: event.app.exit(at),
        ("q", "escape", "c-c", "c-d"): lambda event: event.app.exit(None),
    }.items():
        for name in names:
            keys.add(name, eager=True)(go)

    @keys.add("<any>")
    def _(event: KeyPressEvent) -> None:
        digit = event.key_sequence[0].data
        if digit.isdecimal() and 0 < int(digit) <= len(replies):
            turn_to(int(digit) - 1)

    turn_to(0)
    foot = "← → another one, ↑ ↓ scroll, Enter keeps it, q keeps none"
    screen = HSplit([_bar(head), area, _bar(lambda: foot)])
    application: Application[int | None] = Application(
        Layout(screen, focused_element=area), key_bindings=keys, full_screen=True
    )
    return application.run()


def _bar(text: object) -> Window:
    return Window(FormattedTextControl(text), height=1, style="reverse")  # type: ignore[arg-type]


def _page(reply: Reply) -> str:
    thinking = f"\n\n--- thinking ---\n{reply.thinking}" if reply.thinking else ""
    return printable(f"{reply.text or '(no answer)'}{thinking}")
