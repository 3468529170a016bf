"""Replies on the whole screen, one at a time; the user chooses one of them."""

from __future__ import annotations

from collections.abc import Sequence

from prompt_toolkit import Application
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import HSplit, Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.widgets import TextArea

from tgr_local.generation import Reply
from tgr_local.system.sanitize import printable


def choose(replies: Sequence[Reply]) -> int | None:
    """The index of the chosen reply; None if the user chooses none."""
    shown = 0
    area = TextArea(read_only=True, scrollbar=True, wrap_lines=True)
    keys = KeyBindings()

    def turn_to(number: int) -> None:
        nonlocal shown
        shown = number % len(replies)
        area.text = _page(replies[shown])

    def head() -> str:
        reply = replies[shown]
        return (
            f"reply {shown + 1} of {len(replies)}, seed {reply.seed}, {reply.n_tokens} tokens, "
            f"{reply.finish}"
        )

    for names, go in {
        ("right", "n", "tab"): lambda event: turn_to(shown + 1),
        ("left", "p", "s-tab"): lambda event: turn_to(shown - 1),
        ("enter",): lambda event: event.app.exit(shown),
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
    foot = "← → other replies, ↑ ↓ scroll, Enter chooses this one, q chooses none"
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
