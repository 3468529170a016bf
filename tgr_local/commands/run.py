"""``tgr-local run``: one question, and its replies on stdout."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from tgr_local.console.wrap import terminal_width
from tgr_local.options.config import SearchConfig
from tgr_local.options.flags import Arguments, Parser
from tgr_local.options.resolve import resolve
from tgr_local.system import text_files
from tgr_local.system.progress import ProgressLine
from tgr_local.system.sanitize import printable, printable_json

if TYPE_CHECKING:
    from tgr_local.commands.checks import CommandCheck
    from tgr_local.engine import Engine
    from tgr_local.generation import Method, Reply
    from tgr_local.generation.trace_file import Header


REPLIES_MAX = 256
"""Replies of one command. Each takes a thread, and all stay in memory until the last is written."""
CHECKED = 8
"""Texts for --check, where -k names no other number."""
CHECK_SECONDS = 120.0
"""Time of one check, where --check-seconds names no other."""


def add_arguments(run: Parser) -> None:
    """Adds those that no other subcommand has."""
    add = run.add_argument
    text = (
        "the question; text on stdin is put before it, and is the question if this is missing or -"
    )
    add("question", nargs="?", help=text)
    text = "number of answers, generated together (default: 1); with --check at most"
    add("-k", "--replies", type=int, metavar="N", help=text)
    text = (
        "write texts, 8 at most, until one passes this command, such as 'python3 check.py', which "
        "gets the text on stdin; exit code 0 means that it passes"
    )
    add("--check", metavar="COMMAND", help=text)
    run.hide(
        add("--check-seconds", type=float, metavar="N",
            help=f"time of one check (default: {CHECK_SECONDS:g})")
    )  # fmt: skip
    text = "print the thinking too (default: on if stdout is a terminal)"
    add("--show-thinking", action=argparse.BooleanOptionalAction, help=text)
    text = "print what the method did too: chunks, forward tokens by kind, votes"
    add("--stats", action="store_true", help=text)
    add("--json", action="store_true", help="print JSON; with -k a list")
    add("--trace", metavar="FILE", help="record every step in FILE")
    run.hide(add("--trace-vectors", action="store_true", help="record anchors and states in full"))
    add("--raw", action="store_true", help="do not apply the chat template")
    text = "the answer is JSON of this schema: its text, or a file with it; {} = any object"
    add("--json-schema", metavar="SCHEMA", help=text)
    text = "the answer follows the GBNF in this file; --grammar takes it as a text"
    add("--grammar-file", metavar="FILE", help=text)


def run(args: Arguments) -> int:
    """Runs the subcommand; returns its exit code."""
    if args.replies is None:
        args.replies = 1 if args.check is None else CHECKED
    if not 1 <= args.replies <= REPLIES_MAX:
        more = "; run it again for more" if args.replies > 1 else ""
        bounds = f"between 1 and {REPLIES_MAX}"
        raise ValueError(f"replies is {args.replies}, but must be {bounds}{more}")
    _take_grammar(args)
    SearchConfig(**args.user_options)  # refuses a grammar that is too long
    check = None
    if args.check is not None:
        from tgr_local.commands.checks import CommandCheck

        seconds = CHECK_SECONDS if args.check_seconds is None else args.check_seconds
        check = CommandCheck(args.check, seconds)
    elif args.check_seconds is not None:
        raise ValueError("check_seconds needs a check; name it with --check COMMAND")
    if args.trace_vectors and args.trace is None:
        raise ValueError("trace_vectors needs a trace file; name it with --trace FILE")
    if args.model is not None:  # an unknown model is an error before the question is read
        from tgr_local.options import model_files

        model_files.find(args.model)
    prompt_text = _prompt(args)
    from tgr_local.console.endings import ended_by_signals
    from tgr_local.generation import trace_file

    with contextlib.ExitStack() as stack:
        stack.enter_context(ended_by_signals())
        file = None
        if args.trace is not None:
            file = stack.enter_context(trace_file.open_file(args.trace))
        engine, config, method = stack.enter_context(loaded(args))
        from tgr_local.generation import query_tokens

        prompt = query_tokens(engine, prompt_text, config, raw=args.raw)
        header = None
        if args.json or file:  # only here, because hashing the model file takes long
            header = trace_file.make_header(engine, prompt, config, method.name)
        replies = _generate(args, engine, prompt, config, method, header, file, check)
        if header and args.json:
            results = [trace_file.result(header, reply) for reply in replies]
            print(printable_json(results if len(results) > 1 else results[0]))
        else:
            _print_replies(args, replies)
    if check:
        return _print_verdict(check, replies[0], args.replies)
    return int(not any(reply.text.strip() for reply in replies))


def _take_grammar(args: Arguments) -> None:
    """Makes the grammar of --json-schema or --grammar-file the option `grammar`. Raises ValueError
    for two of them, and for a text that is neither a schema nor the name of a file."""
    flags = {
        "--json-schema": args.json_schema is not None,
        "--grammar-file": args.grammar_file is not None,
        "--grammar": args.sources.get("grammar") == "--grammar",
    }
    if len(used_flags := [flag for flag, is_given in flags.items() if is_given]) > 1:
        raise ValueError(f"{' and '.join(used_flags)} exclude each other; leave one out")
    if args.grammar_file is not None:
        args.user_options["grammar"] = text_files.read_file(args.grammar_file)
    if args.json_schema is None:
        return
    from tgr_local.generation.schemas import json_grammar

    text, place = args.json_schema.strip(), "the JSON schema"
    if text[:1] not in ("{", "[") and text not in ("true", "false"):
        text, place = text_files.read_file(args.json_schema), args.json_schema
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is not JSON: {error}") from None
    args.user_options["grammar"] = json_grammar(schema)


def _print_replies(args: Arguments, replies: list[Reply]) -> None:
    """Prints several replies, or the one that was checked, then the cost. Any other single reply
    is on the screen already."""
    from tgr_local.console import render

    for number, reply in enumerate(replies if args.replies > 1 or args.check else (), 1):
        thinking = f"{reply.thinking}\n\n" if _shows_thinking(args) and reply.thinking else ""
        text = f"{'' if args.check else f'[{number}] '}{thinking}{reply.text}"
        print(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()
    if args.stats:
        line = render.summary(replies)
    elif sys.stderr.isatty():
        line = render.cost_line(replies, terminal_width(sys.stderr))
    else:
        line = render.cost_line(replies)
    print(line, file=sys.stderr)
    for note in dict.fromkeys(reply.note for reply in replies if reply.note):
        print(f"tgr-local: {note}", file=sys.stderr)


def _print_verdict(check: CommandCheck, reply: Reply, most: int) -> int:
    """Prints the verdict of the check on stderr; returns the exit code."""
    assert reply.checked
    n, said = reply.checked.texts, ""
    line = f"text {n} of at most {most} passed the check"
    if not reply.checked.passed:
        line, said = check.failure(n), check.said(reply.text)
    cost = f"{reply.counts.total:,} forward tokens in all"
    said = said and f"; of the printed one it says: {said}"
    print(f"tgr-local: {line}, {cost}{said}", file=sys.stderr)
    return int(not reply.checked.passed)


def _generate(
    args: Arguments,
    engine: Engine,
    prompt: list[int],
    config: SearchConfig,
    method: Method,
    header: Header | None,
    file: TextIO | None,
    check: CommandCheck | None,
) -> list[Reply]:
    """Generates the replies, records them in `file`, and prints a single one while it grows."""
    from tgr_local import generation
    from tgr_local.console import live
    from tgr_local.console.pace import ReplyProgress
    from tgr_local.generation import trace_file

    k = args.replies
    unseen = args.json or k > 1 or check is not None
    shows_progress = unseen or not sys.stdout.isatty()
    with (progress := ReplyProgress(is_shown=shows_progress, until_answer=not unseen)):
        if check:
            replies = [
                generation.generate(
                    engine, prompt, config, method=method, raw=args.raw,
                    check=check, k=k, on_event=progress.update,
                )
            ]  # fmt: skip
        elif k == 1:
            events = generation.stream(engine, prompt, config, method=method, raw=args.raw)
            if header and file:
                events = trace_file.write_events(events, file, engine, header, args.trace_vectors)
            events = progress.watch(events)
            if args.json:
                return [live.final_reply(events)]
            return [live.show(events, _shows_thinking(args), args.chat.markdown)]
        else:
            replies = generation.generate_many(
                engine, prompt, config, k, method=method, raw=args.raw,
                on_event=lambda _, event: progress.update(event),
            )  # fmt: skip
    if header and file:
        trace_file.clear(file)
        for reply in replies:
            trace = trace_file.make_trace(engine, header, reply)
            trace_file.write(file, trace, args.trace_vectors)
    return replies


def _prompt(args: Arguments) -> str | list[dict[str, str]]:
    """The question, after the system prompt if there is one."""
    question = _question(args)
    if not args.system:
        return question
    if args.raw:
        raise ValueError("raw text has no system prompt; leave out --system, or --raw")
    return [{"role": "system", "content": args.system}, {"role": "user", "content": question}]


def _question(args: Arguments) -> str:
    """The files, stdin and the argument, in this order, with blank lines between them. The line
    ends after files and stdin are dropped, but not with --raw."""
    texts = [text_files.read_file(path) for path in args.files]
    typed = None if args.question in (None, "-") else args.question
    if args.question is None and not args.files and sys.stdin.isatty():
        raise ValueError("there is no question; give it as an argument or on stdin")
    reads = _is_piped(sys.stdin) if typed is not None else not sys.stdin.isatty()
    if reads or args.question == "-":
        texts.append(_stdin_text())
        if typed is not None and texts[-1]:
            n = f"{len(texts[-1]):,} character{'' if len(texts[-1]) == 1 else 's'}"
            print(
                f"tgr-local: {n} from stdin come before the question; < {os.devnull} leaves them "
                "out",
                file=sys.stderr,
            )
    if not args.raw:
        texts = [text.rstrip("\r\n") for text in texts]
    if typed is not None:
        texts.append(text_files.decode_utf8(os.fsencode(typed), "the question"))
    text = "\n\n".join(text for text in texts if text)
    if not text.strip() and not args.raw:
        raise ValueError("the question is empty; give it as an argument or on stdin")
    return text


def _stdin_text() -> str:
    end = "Ctrl-Z and Enter end" if os.name == "nt" else "Ctrl-D ends"
    with ProgressLine(f"reading stdin; {end} it, < {os.devnull} leaves it out"):
        data = sys.stdin.buffer.read(text_files.MAX_FILE_BYTES + 1)
    text_files.check_size("stdin", len(data))
    return text_files.decode_utf8(data, "stdin")


def _is_piped(file: TextIO) -> bool:
    """Whether it is a file, a pipe or a socket; a terminal and /dev/null are neither."""
    try:
        mode = os.fstat(file.fileno()).st_mode
    except (OSError, ValueError):  # closed, or not a real file
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _shows_thinking(args: Arguments) -> bool:
    return bool(sys.stdout.isatty() if args.show_thinking is None else args.show_thinking)


@contextlib.contextmanager
def loaded(args: Arguments) -> Iterator[tuple[Engine, SearchConfig, Method]]:
    """The loaded model, the options for it, and the method."""
    from tgr_local.engine.installation import load_with_progress
    from tgr_local.generation import check_writes, method_named
    from tgr_local.options import model_files

    method = method_named(args.method)
    chats = not getattr(args, "raw", False)
    path = model_files.model_file(args.model)
    with load_with_progress(path, args.engine, chats=chats) as engine:
        check_writes(engine)
        _warn_of_spare_cells(engine, getattr(args, "replies", 1))
        yield engine, resolve(engine.metadata, args.user_options, for_people=True).config, method


def _warn_of_spare_cells(engine: Engine, n_replies: int) -> None:
    """Warns if the user asked for more cells than `n_replies` texts of full length take."""
    n_ctx, trained = engine.config.n_ctx, engine.n_ctx_train
    if n_ctx > trained * n_replies:
        print(
            f"tgr-local: warning: n_ctx is {n_ctx}, but the model was trained for {trained} tokens "
            "and no text gets longer; only a search uses more cells, and fewer take less memory",
            file=sys.stderr,
        )
