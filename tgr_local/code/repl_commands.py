"""Actions of the slash commands of a session."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from tgr_local.code import table
from tgr_local.code.session import CodeSession, print_diff
from tgr_local.console.command_table import Command, help_lines, leave, whole_number
from tgr_local.console.text_input import BLOCK
from tgr_local.generation import METHODS, method_named
from tgr_local.options.settings import as_text
from tgr_local.system.near_names import did_you_mean
from tgr_local.system.sanitize import printable_line


def _help(_: CodeSession, __: str) -> Iterator[str]:
    yield from help_lines(COMMANDS)
    yield f"{BLOCK:18}  begin and end a task of several lines"


def _add(session: CodeSession, argument: str) -> Iterable[str]:
    session.add(session.workplace.named_paths(_names(argument)))
    return _files(session, "")


def _drop(session: CodeSession, argument: str) -> Iterable[str]:
    paths = session.workplace.named_paths(_names(argument)) if argument else session.named_paths
    session.drop(paths)
    return _files(session, "")


def _names(argument: str) -> list[str]:
    try:
        names = shlex.split(argument)
    except ValueError as error:
        raise ValueError(f"the names cannot be read: {error}; put quotes around a name") from None
    if not names:
        raise ValueError("name a file: /add FILE")
    return names


def _files(session: CodeSession, _: str) -> Iterable[str]:
    if session.named_paths:
        folder = session.workplace.project.folder
        names = (p if (folder / p).exists() else f"{p} (new)" for p in session.named_paths)
        return [f"may be changed: {', '.join(names)}"]
    return ["the files that the tests and the task point to may be changed; /add FILE names some"]


def _test(session: CodeSession, argument: str) -> Iterable[str]:
    if argument:
        session.set_option("test", "none" if argument == "off" else argument)
        session.does_without_tests = argument == "off"
    return [f"tests: {session.code.test or 'none; edits are parsed and imported'}"]


def _run(session: CodeSession, _: str) -> Iterator[str]:
    verdict = session.run_tests()
    yield verdict.output.rstrip("\n")
    yield f"{session.code.test}: {verdict.summary} in {verdict.seconds:.1f} s"


def _table(session: CodeSession, _: str) -> Iterable[str]:
    if session.outcome is None:
        raise ValueError("there are no candidates yet: say what to do")
    return table.table(session.outcome.ranked)


def _diff(session: CodeSession, argument: str) -> Iterable[str]:
    print_diff(session.candidate(candidate_number(argument)))
    return []


def _show(session: CodeSession, argument: str) -> Iterator[str]:
    candidate = session.candidate(candidate_number(argument))
    if candidate.thinking:
        yield f"{candidate.thinking}\n"
    yield candidate.answer or table.note(candidate)
    if candidate.verdict is not None:
        yield f"\n{candidate.verdict.output.rstrip()}"


def _accept(session: CodeSession, argument: str) -> Iterable[str]:
    return [f"{session.accept(candidate_number(argument))}; /undo restores it"]


def _undo(session: CodeSession, argument: str) -> Iterable[str]:
    if argument not in ("", "force"):
        raise ValueError(f"/undo is followed by force or nothing, but not by {argument!r:.40}")
    return [session.undo(force=bool(argument))]


def _again(_: CodeSession, argument: str) -> Iterable[str]:
    raise ValueError(f"/again has no argument, but {argument!r:.40} follows it")


def _method(session: CodeSession, argument: str) -> Iterable[str]:
    if argument:
        session.method = method_named(argument)
        return [f"method {session.method.name}"]
    return [f"{'>' if name == session.method.name else ' '} {name}" for name in METHODS]


def _set(session: CodeSession, argument: str) -> Iterator[str]:
    name, _, value = argument.replace("=", " ", 1).partition(" ")
    values = session.options()
    if not name:
        for key, current in values.items():
            yield f"{key:20} {printable_line(as_text(current))}"
        return
    if name not in values:
        hint = did_you_mean(name, values, "/set lists all")
        raise ValueError(f"unknown option {name!r:.80}; {hint}")
    if value.strip():
        session.set_option(name, value.strip())
    yield f"{name:20} {printable_line(as_text(session.options()[name]))}"


def candidate_number(argument: str) -> int | None:
    """The candidate that an argument names; None = the best. ValueError for what is no number."""
    return whole_number(argument, "the number of a candidate", 1, 9999) if argument else None


ALIASES = {"/quit": "/exit", "/bye": "/exit", "/?": "/help"}
COMMANDS: dict[str, Command[CodeSession]] = {
    "/help": Command(_help, "", "list the commands"),
    "/exit": Command(leave, "", "leave; so do /quit, /bye, exit and quit"),
    "/add": Command(_add, "FILE", "name files that may be changed, and no others"),
    "/drop": Command(_drop, "FILE", "take files from these; without FILE all of them"),
    "/files": Command(_files, "", "show which files may be changed"),
    "/test": Command(_test, "COMMAND", "set the command that runs the tests; off: none"),
    "/run": Command(_run, "", "run the tests on a copy of the folder as it is"),
    "/table": Command(_table, "", "show the candidates of the last task"),
    "/diff": Command(_diff, "N", "show the edit of candidate N, or of the best"),
    "/show": Command(_show, "N", "show what the model wrote, and what its tests printed"),
    "/accept": Command(_accept, "N", "change the folder as candidate N does, or the best"),
    "/undo": Command(
        _undo, "force", "take the last accepted edit back; with force also of files changed since"
    ),
    "/again": Command(_again, "", "carry out the last task again, with other seeds"),
    "/method": Command(_method, "NAME", "switch to another method; without NAME: list them"),
    "/set": Command(_set, "KEY VALUE", "change an option; without KEY: list them all"),
}
