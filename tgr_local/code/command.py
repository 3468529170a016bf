"""``tgr-local code``: one task from the command line, or without one a session of tasks.

Exit codes: 0 = an edit was accepted and passes the tests (without tests: it parses and can be
imported, where there is a parser for it), 1 = a failure, 2 = bad usage, 3 = no edit passes the
tests, 4 = an edit passes, but was not accepted, 130 = interrupted. Only with 0 the folder is
changed, and with 3 where the person accepted an edit that does not pass.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection
from pathlib import Path

from tgr_local.options.config import ChatConfig, CodeConfig, EngineConfig, SearchConfig
from tgr_local.options.flags import Arguments, Parser, add_config_flags
from tgr_local.system import text_files
from tgr_local.system.errors import TgrError
from tgr_local.system.sandbox import backends
from tgr_local.system.sanitize import printable_line

_METHOD = "base"
_CODE_MODEL = "tgr-mini-code"


def add_to(parser: Parser) -> None:
    """Adds the subcommand."""
    text = "change code: k edits in one batch, your tests choose, you accept"
    code = parser.add_command("code", run, text, ' [MODEL] ["what to do" [FILES...]]')
    add = code.add_argument
    add("task", nargs="?", help="what to do; - reads it from stdin; without it a session begins")
    text = "files that may be changed (default: those that the tests and the task point to)"
    add("files", nargs="*", metavar="FILES", help=text)
    code.text, code.rest = "task", "files"
    text = "accept the best edit without a question if it passes the tests"
    add("--yes", action="store_true", help=text)
    text = "restore the folder as it was before the last accepted edit, and exit"
    add("--undo", action="store_true", help=text)
    text = "with --undo: restore files too that were changed since, and keep copies of them"
    add("--force", action="store_true", help=text)
    add("--json", action="store_true", help="print one JSON object; everything else on stderr")
    add_options(code, ("keys", "save"))


def add_options(parser: Parser, of_chat: Collection[str]) -> None:
    """Adds the options of the assistant, and some of a conversation."""
    parser.add_help_all()
    parser.embedded, parser.takes_model = _CODE_MODEL, True
    text = f"a GGUF file, or a name that tgr-local models lists (default: {_CODE_MODEL})"
    parser.add_option("model", None, metavar="MODEL", help=text)
    text = f"method that writes each edit (default: {_METHOD})"
    parser.add_option("method", _METHOD, metavar="NAME", help=text)
    parser.add_show_config()
    add_config_flags(parser, CodeConfig, "the edits and their tests", folded=True)
    add_config_flags(parser, SearchConfig, "how an edit is generated", folded=True)
    if of_chat:
        add_config_flags(parser, ChatConfig, "the session", only=of_chat, folded=True)
    add_config_flags(parser, EngineConfig, "how the model is loaded", folded=True)


def run(args: Arguments) -> int:
    """Runs the subcommand; returns its exit code."""
    backends.check_system("tgr-local code")
    from tgr_local.code.interrupts import twice_ends
    from tgr_local.code.workplace import Workplace
    from tgr_local.console.endings import ended_by_signals

    _check(args)
    with twice_ends(), ended_by_signals():
        workplace = Workplace(_current_folder(), args.code)
        if recovered := workplace.recover():
            print(f"tgr-local: {printable_line(recovered)}", file=sys.stderr)
        if args.undo:
            print(printable_line(workplace.undo(args.force)))
            return 0
        task = _task(args)
        named_paths = workplace.named_paths(args.files)
        weakness = workplace.weakness()  # refuses before the model is loaded
        if sys.stdin.isatty() and sys.stderr.isatty() and not args.yes:
            _agree(weakness)
        from tgr_local.code.session import CodeSession
        from tgr_local.console.dialog import typed_ahead
        from tgr_local.engine.installation import load_with_progress
        from tgr_local.generation import method_named
        from tgr_local.options import model_files

        method = method_named(args.method)
        with contextlib.ExitStack() as stack:
            with typed_ahead() if task is None else contextlib.nullcontext():
                file = model_files.model_file(args.model, args.parser.embedded)
                loaded = load_with_progress(file, args.engine, chats=True)
                engine = stack.enter_context(loaded)
            session = CodeSession(
                engine, args.user_options, method, args.code, workplace, named_paths,
                on_stdout=False if args.json else None, has_commands=task is None,
            )  # fmt: skip
            if task is None:
                from tgr_local.code import repl

                return repl.run(session, args.chat)
            from tgr_local.code.one_task import one_task

            return one_task(session, task, accepts=args.yes, as_json=args.json)


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise TgrError("the current folder is not there any more; go to another one") from None


def _check(args: Arguments) -> None:
    """Raises ValueError for arguments that do not belong together."""
    if args.force and not args.undo:
        raise ValueError("--force belongs to --undo; name both")
    flags = [f"--{name}" for name in ("json", "yes") if getattr(args, name)]
    if args.undo and (args.task is not None or flags):
        extra = flags[0] if flags else "a task"
        raise ValueError(f"--undo restores the folder and ends, but {extra} is given too; drop one")
    if flags and args.task is None:
        raise ValueError(f"{flags[0]} needs a task; give it as an argument, or - for stdin")


def _agree(weakness: str) -> None:
    """Asks the person whether tests may run in a sandbox with this weakness, if it has one. Raises
    TgrError unless they agree."""
    if not weakness:
        return
    print(f"tgr-local: bubblewrap does not work here; {weakness}", file=sys.stderr)
    print("run them there? yes, no: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise TgrError(
            "nothing was run; install bubblewrap (apt install bubblewrap), or name a sandbox with "
            "--sandbox"
        )


def _task(args: Arguments) -> str | None:
    """The text of the task; None without one."""
    if args.task is None:
        return None
    if args.task == "-":
        data = sys.stdin.buffer.read(text_files.MAX_FILE_BYTES + 1)
        text_files.check_size("stdin", len(data))
        text = text_files.decode_utf8(data, "stdin")
    else:
        text = text_files.decode_utf8(os.fsencode(args.task), "the task")
    if not text.strip():
        raise ValueError("the task is empty; say what to do")
    return text.strip()
