"""Commands that show the conversation, its prompt and options, and what the replies took."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from tgr_local import generation
from tgr_local.chat import option_commands, turn_commands
from tgr_local.chat.conversation import Unfinished
from tgr_local.chat.session import ChatSession
from tgr_local.console import render
from tgr_local.console.command_table import whole_number
from tgr_local.console.wrap import terminal_width
from tgr_local.generation import Counts, Seconds, Step, trace_file
from tgr_local.options import settings
from tgr_local.options.config import SearchConfig
from tgr_local.options.resolve import FOR_PEOPLE
from tgr_local.system.sanitize import printable_line


def show(session: ChatSession, argument: str) -> Iterator[str]:
    conversation, subject = session.conversation, argument or "options"
    if subject == "options":
        yield from _options(session)
    elif subject == "prompt":
        if not conversation.messages:
            raise ValueError("there is no prompt yet: ask something first")
        prompt = generation.query_tokens(
            conversation.engine, conversation.messages, conversation.config, anew=True
        )
        yield conversation.engine.detokenize(prompt, special=True).decode("utf-8", "replace")
    elif subject == "conversation":
        if not conversation.turns:
            yield "the conversation is empty: ask something first"
        for turn in conversation.turns:
            yield f">>> {turn.question}"
            yield turn.answer or "(no answer)"
    else:
        raise ValueError(f"/show is {subject!r}, but must be options, prompt or conversation")


def _options(session: ChatSession) -> Iterator[str]:
    """The model, the method, each option that is not the default, and the file."""
    conversation = session.conversation
    yield from option_commands.model(session, "")
    yield f"method {conversation.method.name}"
    resolved = conversation.resolved
    default = {**dataclasses.asdict(SearchConfig()), **FOR_PEOPLE}
    for name, value in resolved.shown().items():
        if value != default[name]:
            text = printable_line(settings.as_text(value))
            yield f"{name} {text} ({resolved.sources[name]})"
    yield from turn_commands.system(session, "")
    saved = f"saved in {session.path}" if session.path else "not saved"
    yield f"{render.plural(len(conversation.turns), 'turn')}, {saved}"


def trace(session: ChatSession, argument: str) -> Iterator[str]:
    conversation, steps = session.conversation, session.conversation.steps
    unfinished = conversation.unfinished
    n_chunks = len(steps) + (unfinished is not None)
    if not n_chunks:
        if conversation.turns and not conversation.last.answer:
            raise ValueError("the reply was stopped before its first chunk; /regen asks again")
        raise ValueError("there is nothing to show yet: ask something first")
    width = terminal_width(default=120)
    shows_all = argument in ("", "all")
    number = 0 if shows_all else whole_number(argument, "the chunk", 1, n_chunks)
    shown_steps = steps[number - 1 : number] if number else steps
    yield from render.boundary_table(
        trace_file.make_boundaries(conversation.engine, shown_steps), width
    )
    if unfinished is not None and number in (0, n_chunks):
        yield from render.unfinished_table(
            trace_file.make_boundary(conversation.engine, _as_step(unfinished), None),
            unfinished.stage,
            width,
        )


def _as_step(unfinished: Unfinished) -> Step:
    """Returns the text and tokens of an unfinished chunk as a step."""
    none = np.zeros(0, np.float32)
    return Step(
        index=unfinished.chunk,
        tokens=np.array(unfinished.tokens, np.int32),
        logprobs=none,
        entropies=none,
        finish=None,
        counts=Counts(),
        seconds=Seconds(),
        cells=0,
        candidates=unfinished.candidates,
    )


def stats(session: ChatSession, _: str) -> Iterator[str]:
    replies = session.conversation.replies
    if not replies:
        raise ValueError("there is no finished reply yet: ask something first")
    yield f"last reply: {render.summary(replies[-1:])}"
    counts = sum((reply.counts for reply in replies), Counts())
    seconds = sum(reply.seconds for reply in replies)
    n_replies = f"all {len(replies)} replies" if len(replies) > 1 else "1 reply"
    yield f"{n_replies}: {render.forward_tokens(counts)}, {seconds:.2f} s"
    cache = session.conversation.engine.stats()
    yield (
        f"cache: {cache.cells_used} of {cache.n_ctx} cells in use, {cache.cells_peak} at the peak, "
        f"{cache.cells_remembered} remembered"
    )
