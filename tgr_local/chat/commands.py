"""Actions of a line of input: nothing, a slash command, or a question.

A command is a function of the session and the rest of its line; it yields lines to print. Those
about options and reports are here, those about turns in `turn_commands`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from tgr_local import generation
from tgr_local.chat import turn_commands
from tgr_local.chat.conversation import Unfinished
from tgr_local.chat.session import ChatSession
from tgr_local.console import render
from tgr_local.console.command_table import (
    LEAVING,
    Command,
    help_lines,
    is_command,
    leave,
    on_terminal,
    run_command,
    whole_number,
)
from tgr_local.console.text_input import BLOCK, read_block
from tgr_local.console.wrap import terminal_width
from tgr_local.generation import METHODS, Counts, Seconds, Step, trace_file
from tgr_local.options import model_files, settings
from tgr_local.options.config import ChatConfig, SearchConfig
from tgr_local.options.resolve import FOR_PEOPLE
from tgr_local.system.progress import ProgressLine
from tgr_local.system.sanitize import printable_line

_LIMITS = ("max_forward_tokens", "max_seconds", "thinking_budget")
_THINK = {
    "on": ("thinking", "on"),
    "off": ("thinking", "off"),
    "show": ("show_thinking", "on"),
    "hide": ("show_thinking", "off"),
}


def model(session: ChatSession, argument: str) -> Iterator[str]:
    conversation = session.conversation
    if argument:
        path = model_files.find(argument)
        model_files.card(path)  # a file that is not a model is refused before the old one is closed
        session.leave()
        with ProgressLine(f"loading {path}"):
            conversation.load_model(path)
        if file := session.path or next(iter(session.saved.copies), None):
            session.arrive(file, other_model=True)
    engine = conversation.engine
    devices = ", ".join(dict.fromkeys(engine.devices()))
    yield f"{engine.description} ({engine.path}) on {devices}"
    if engine.template_warning:
        yield engine.template_warning
    if not argument:
        yield f"models here: {', '.join(path.stem for path in model_files.local())}"


def method(session: ChatSession, name: str) -> Iterable[str]:
    if name:
        session.conversation.set_method(name)
    chosen = session.conversation.method
    if name:
        return [f"method {chosen.name}: {chosen.about}"]
    marks = {name: "*" if name == chosen.name else " " for name in METHODS}
    return [f"{marks[name]} {name:16}  {known.about}" for name, known in METHODS.items()]


def set_option(session: ChatSession, argument: str) -> Iterable[str]:
    if argument in ("", "changed", "all"):
        return _list_options(session, argument)
    name, _, text = argument.replace("=", " ", 1).partition(" ")
    if name and (text.strip() or name not in _values(session)):
        session.conversation.set_option(name, text.strip())
    return [_option(name, *_values(session)[name])]


def _list_options(session: ChatSession, selection: str) -> Iterator[str]:
    """The options that the method uses, those that are not the default, or all."""
    conversation, values = session.conversation, _values(session)
    default = dataclasses.asdict(SearchConfig()) | dataclasses.asdict(ChatConfig())
    default |= FOR_PEOPLE
    of_search = {spec.name for spec in dataclasses.fields(SearchConfig)}
    n_hidden = n_shown = 0
    for name, (value, doc) in values.items():
        if selection == "changed" and value == default[name]:
            continue
        if not selection and name in of_search and not conversation.method.uses(name):
            n_hidden += 1
            continue
        n_shown += 1
        yield _option(name, value, doc)
    if n_hidden:
        used_by = conversation.method.name
        yield f"/set all shows {n_hidden} more, which {used_by} does not use; /set changed fewer"
    if not n_shown:
        yield "nothing differs from the defaults"


def _values(session: ChatSession) -> dict[str, tuple[Any, str]]:
    """The value and the meaning of every option that can be set here."""
    conversation = session.conversation
    of_chat = dataclasses.asdict(conversation.chat_config)
    values = conversation.resolved.shown() | of_chat
    specs = (*dataclasses.fields(SearchConfig), *dataclasses.fields(ChatConfig))
    return {spec.name: (values[spec.name], spec.metadata["doc"]) for spec in specs}


def _option(name: str, value: Any, doc: str) -> str:
    return f"{name:18}  {printable_line(settings.as_text(value)):10}  {doc}"


def think(session: ChatSession, argument: str) -> Iterable[str]:
    conversation = session.conversation
    if argument:
        if argument not in _THINK:
            raise ValueError(f"/think is {argument!r}, but must be on, off, show or hide")
        conversation.set_option(*_THINK[argument])
    state = "shown" if conversation.chat_config.show_thinking else "not shown"
    if conversation.config.thinking:
        return [f"a model that can think does so before its answer; the thinking is {state}"]
    return [f"the model answers without thinking first; thinking, if there is any, is {state}"]


def markdown(session: ChatSession, argument: str) -> Iterable[str]:
    conversation = session.conversation
    if argument:
        conversation.set_option("markdown", argument)
    return [f"Markdown is {'formatted' if conversation.chat_config.markdown else 'shown as it is'}"]


def budget(session: ChatSession, argument: str) -> Iterable[str]:
    conversation = session.conversation
    if argument in ("off", "none"):
        for name in _LIMITS:
            conversation.set_option(name, "0")
    elif argument.partition(" ")[0] == "thinking":
        conversation.set_option("thinking_budget", argument.removeprefix("thinking").strip())
    elif argument.endswith("s"):
        conversation.set_option("max_seconds", argument[:-1])
    elif argument:
        conversation.set_option("max_forward_tokens", argument)
    config = conversation.config
    limits = [f"{name} {value}" for name in _LIMITS if (value := getattr(config, name))]
    return [f"limits of one reply: {', '.join(limits) or 'none'}"]


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
    yield from model(session, "")
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


def handle_line(session: ChatSession, line: str, next_line: Callable[[], str]) -> None:
    """Answers a question or runs a command; `next_line` reads the other lines of a block.

    ValueError for a bad command, EOFError for one that leaves, and all errors of a reply.
    """
    if line.strip() in LEAVING:
        raise EOFError
    if is_command(line):
        for text in run_command(session, line, COMMANDS, ALIASES):
            print(on_terminal(text) if sys.stdout.isatty() else text)
    elif line.strip():
        session.ask(read_block(line, next_line))


def _help(_: ChatSession, __: str) -> Iterator[str]:
    yield from help_lines(COMMANDS)
    yield f"{BLOCK:18}  begin and end a question of several lines"
    keys = (
        "Ctrl-C stops a reply and keeps its text, Ctrl-D leaves, Ctrl-R searches the history, "
        "Alt-Enter breaks the line, Ctrl-X Ctrl-E opens the editor"
    )
    yield f"{'keys':18}  {keys}"


ALIASES = {
    "/quit": "/exit",
    "/bye": "/exit",
    "/new": "/clear",
    "/summarize": "/summarise",
    "/?": "/help",
}
COMMANDS: dict[str, Command[ChatSession]] = {
    name: Command(run, argument, about)
    for name, run, argument, about in (
        ("/help", _help, "", "list the commands"),
        ("/exit", leave, "", "leave; so do /quit, /bye, exit and quit"),
        ("/clear", turn_commands.clear, "", "begin a new conversation"),
        ("/regen", turn_commands.regenerate, "",
         "reply to the last question again, with another seed"),
        ("/retry", turn_commands.retry, "N",
         "write N more replies together and choose one of them"),
        ("/undo", turn_commands.undo, "", "remove the last question and its answer"),
        ("/drop", turn_commands.drop, "N",
         "remove the oldest N turns, to make room in the context"),
        ("/summarise", turn_commands.summarise, "N",
         "replace the oldest N turns by a summary; without N: all turns"),
        ("/model", model, "MODEL", "switch to another model; without MODEL: show the current"),
        ("/method", method, "NAME", "switch to another method; without NAME: list them"),
        ("/set", set_option, "KEY VALUE",
         "change an option; /set lists them, /set all, /set changed"),
        ("/think", think, "WORD", "on, off: think or not; show, hide: display the thinking"),
        ("/markdown", markdown, "WORD",
         "on, off: format Markdown in answers, or show it as it is"),
        ("/budget", budget, "N", "limit a reply: N forward tokens; Ns seconds; thinking N; off"),
        ("/system", turn_commands.system, "TEXT", "set the system prompt; none removes it"),
        ("/show", show, "WHAT", "show the options, the prompt or the conversation"),
        ("/trace", trace, "CHUNK", "candidates and scores in the last reply; one chunk or all"),
        ("/stats", stats, "", "tokens and seconds of the last reply and of all replies"),
        ("/save", turn_commands.save, "NAME", "save the conversation under a name or in a file"),
        ("/load", turn_commands.load, "NAME", "continue a copy of a saved conversation"),
        ("/resume", turn_commands.resume, "N",
         "continue a saved conversation; without N: list the latest; all: list all"),
        ("/read", turn_commands.read, "FILE", "put a text file before the next question"),
        ("/copy", turn_commands.copy, "", "copy the last answer to the clipboard"),
        ("/editor", turn_commands.edit, "TEXT", "write the question in $EDITOR"),
    )
}  # fmt: skip
