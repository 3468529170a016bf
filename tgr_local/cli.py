"""The command line: arguments in, one subcommand run, an exit code out.

0 is success, 1 a failure, 2 bad usage (a bad value included), 130 an interrupt. Every error is one
line on stderr; TGR_DEBUG=1 shows the traceback. Flags derive from the fields of the configs. What a
subcommand needs is imported when it runs, so that help is instant.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tgr_local import __version__
from tgr_local.console.sanitize import printable, printable_json, printable_line
from tgr_local.errors import InstallError, describe
from tgr_local.options import flags
from tgr_local.options.config import (
    DEFAULT_METHOD,
    ChatConfig,
    EngineConfig,
    SearchConfig,
    ServerConfig,
    for_model,
    updated,
)
from tgr_local.options.flags import Parser, add_config_flags, configured, given

if TYPE_CHECKING:
    from pathlib import Path

    from tgr_local.engine import Engine
    from tgr_local.generation import Reply
    from tgr_local.trace.live import Events


def main(argv: list[str] | None = None) -> int:
    """Runs a command line, that of the process by default, and returns its exit code."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r+"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        args = _arguments(argv)
        command = _show_config if getattr(args, "show_config", False) else args.command
        code: int = command(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # the reader has gone; Python would complain once more when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return _failed("interrupted", 130)
    except Exception as error:
        if os.environ.get("TGR_DEBUG"):
            raise
        return _failed(describe(error), 2 if isinstance(error, ValueError) else 1)


def _failed(message: str, code: int) -> int:
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    print(f"tgr-local: {message}", file=sys.stderr)
    return code


# ---- arguments ----


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = build_parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        raise flags.unknown_argument(parser, args.name, unknown[0])
    if flags.subparsers(parser)[args.name].options:
        from tgr_local.options import settings

        options = flags.options(parser)
        if read := settings.fill(args, options):
            names = " and ".join(printable_line(str(path)) for path in read)
            print(f"tgr-local: options from {names}", file=sys.stderr)
        for line in settings.misspelt(options):
            _warn(line)
    return args


def _warn(text: str) -> None:
    print(f"tgr-local: warning: {printable_line(text)}", file=sys.stderr)


def build_parser() -> Parser:
    """The parser of all subcommands; `command` in its result is the function to call."""
    parser = Parser(
        prog="tgr-local",
        description="Test-time reasoning on your own machine, with any GGUF model.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tgr-local {__version__}")
    commands = parser.add_subparsers(dest="name", metavar="COMMAND", required=True)

    def add(name: str, command: Any, text: str, arguments: str = "") -> Parser:
        usage = f"tgr-local {name} [options]{arguments}"
        sub: Parser = commands.add_parser(
            name, usage=usage, help=text, description=text, allow_abbrev=False
        )
        sub.set_defaults(command=command)
        return sub

    run = add("run", _run, "answer one question", " [question]")
    run.add_argument("question", nargs="?", help="the question; - or nothing reads it from stdin")
    run.add_argument(
        "-k",
        "--trajectories",
        type=int,
        default=1,
        metavar="N",
        help="how many answers, all at once",
    )
    run.add_argument("--raw", action="store_true", help="use no chat template")
    run.add_argument("--json", action="store_true", help="print JSON, a list with -k")
    run.add_argument(
        "--show-thinking",
        action=argparse.BooleanOptionalAction,
        help="print the thinking too; on when stdout is a terminal",
    )
    run.add_argument("--trace", metavar="FILE", help="write every step to FILE")
    run.add_argument(
        "--trace-vectors", action="store_true", help="write anchors and states in full"
    )
    chat = add("chat", _chat, "talk with a model; answers one by one the lines piped in")
    serve = add("serve", _serve, "answer programs over HTTP, as OpenAI's API does")
    for sub in (run, chat, serve):
        text = f"how to reason (default: {DEFAULT_METHOD})"
        sub.add_option("method", DEFAULT_METHOD, metavar="NAME", help=text)
        add_config_flags(sub, SearchConfig, "how a reply is written")
    add_config_flags(chat, ChatConfig, "how the conversation looks")
    add_config_flags(serve, ServerConfig, "where it listens and what it grants")
    trace = add("trace", _trace, "show what happened at every step of a run", " FILE")
    trace.add_argument("file", metavar="FILE", help="written by run --trace")
    doctor = add("doctor", _doctor, "say what is used, and why, and what is broken")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    models = add(
        "models",
        _models,
        "list the models here, show what a file says of itself, or pull one from Hugging Face",
        " [list | show MODEL | pull OWNER/REPO:QUANTIZATION]",
    )
    models.add_argument("action", nargs="?", default="list", choices=("list", "show", "pull"))
    models.add_argument("which", nargs="?", metavar="MODEL", help="what to show or to pull")
    models.add_argument("--to", metavar="FOLDER", help="where to put what is pulled")
    models.add_argument("--json", action="store_true", help="print JSON")
    from tgr_local.eval import command as evaluation

    text = "run benchmarks and compare methods, or report on runs"
    evaluate = add("eval", evaluation.run, text, " [TASK... | list | report RUN...]")
    evaluation.add_flags(evaluate)
    evaluate.add_option("model", None, metavar="MODEL", help="a GGUF file, or a model's name")
    add_config_flags(evaluate, SearchConfig, "how a reply is written, by every method")
    add_config_flags(evaluate, EngineConfig, "how the model is loaded")
    from tgr_local.bench import command as benchmark

    bench = add("bench", benchmark.run, "measure speed, compared with llama.cpp in the same run")
    benchmark.add_flags(bench)
    add_config_flags(bench, EngineConfig, "how tgr-local and the peers load the model")
    for sub in (run, chat, serve, doctor):
        text = "a GGUF file, or the name of a model that was pulled (default: the embedded one)"
        sub.add_option("model", None, metavar="MODEL", help=text)
        add_config_flags(sub, EngineConfig, "how the model is loaded")
        text = "say what each option is and where that comes from, and do nothing else"
        sub.add_argument("--show-config", action="store_true", help=text)
    return parser


# ---- subcommands ----


@contextlib.contextmanager
def _loaded(args: argparse.Namespace) -> Iterator[tuple[Engine, SearchConfig]]:
    """The model, and the options for it: defaults, then the model's own advice, then what the user
    set."""
    engine_config = configured(args, EngineConfig)
    configured(args, SearchConfig)  # a bad value is refused before a large model is loaded
    from tgr_local import methods
    from tgr_local.console.progress import ProgressLine
    from tgr_local.engine import Engine, unused_gpu

    methods.get(args.method)
    path = _model_file(args)
    with ProgressLine(f"loading {path}"):
        engine = Engine(path, engine_config)
    with engine:
        if warning := unused_gpu(engine):
            _warn(warning)
        advised = for_model(SearchConfig(), engine.metadata)
        yield engine, updated(advised, given(args, SearchConfig))


def _model_file(args: argparse.Namespace) -> Path:
    from tgr_local.models import library

    return library.embedded_model() if args.model is None else library.find(args.model)


def _show_config(args: argparse.Namespace) -> int:
    from tgr_local.models import library
    from tgr_local.options import settings

    known = flags.subparsers(build_parser())[args.name].options
    path = _model_file(args)
    values: dict[str, Any] = {"model": str(path)}
    advised: dict[str, str] = {}
    if "method" in known:
        card = library.card(path)
        configured(args, SearchConfig)
        search = updated(for_model(SearchConfig(), card.metadata), given(args, SearchConfig))
        values |= {"method": args.method, **dataclasses.asdict(search)}
        advised = dict.fromkeys(card.advice, "the model file")
    if "keys" in known:
        values |= dataclasses.asdict(configured(args, ChatConfig))
    if "port" in known:
        values |= dataclasses.asdict(configured(args, ServerConfig))
        values["api_key"] = "(hidden)" if values["api_key"] else ""
    values |= dataclasses.asdict(configured(args, EngineConfig))
    print(settings.shown(values, advised | args.sources, getattr(args, "json", False)))
    return 0


def _run(args: argparse.Namespace) -> int:
    if args.trajectories < 1:
        raise ValueError(f"trajectories is {args.trajectories}, but must be at least 1")
    if args.trace_vectors and args.trace is None:
        raise ValueError("trace_vectors needs a file to write to: name it with --trace FILE")
    question = _question(args.question, args.raw)
    from tgr_local.trace import record, render

    with contextlib.ExitStack() as stack:
        file = stack.enter_context(record.open_file(args.trace)) if args.trace is not None else None
        engine, config = stack.enter_context(_loaded(args))
        from tgr_local import generation
        from tgr_local.trace.progress import ReplyProgress

        k, how = args.trajectories, {"method": args.method, "raw": args.raw}
        header = None
        if args.json or file:  # what only these need takes long: the hash of the model file
            prompt = generation.prompt_tokens(engine, question, config, raw=args.raw)
            header = record.make_header(engine, prompt, config, args.method)
        unseen = args.json or k > 1
        live = sys.stdout.isatty() and not unseen
        with (progress := ReplyProgress(shown=not live, until_answer=not unseen)):
            if k > 1:
                replies = generation.generate_many(
                    engine,
                    question,
                    config,
                    k,
                    on_event=lambda _, event: progress.update(event),
                    **how,
                )
            else:
                events = generation.stream(engine, question, config, **how)
                if header and file:
                    events = record.write_events(events, file, engine, header, args.trace_vectors)
                replies = [_show(args, progress.watch(events))]
        if header and file and k > 1:
            record.clear(file)
            for reply in replies:
                trace = record.make_trace(engine, header, reply)
                record.write(file, trace, args.trace_vectors)
        if header and args.json:
            results = [record.result(header, reply) for reply in replies]
            print(printable_json(results if k > 1 else results[0]))
            return 0
        for number, reply in enumerate(replies if k > 1 else (), 1):
            thinking = f"{reply.thinking}\n\n" if _thinking(args) and reply.thinking else ""
            text = f"[{number}] {thinking}{reply.text}"
            print(printable(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
        print(render.summary(replies), file=sys.stderr)
    return 0


def _question(argument: str | None, raw: bool) -> str:
    """The question as given, or from stdin without its last line end (with --raw: untouched)."""
    from tgr_local.chat import decoded

    if argument in (None, "-"):
        if argument is None and sys.stdin.isatty():
            raise ValueError("there is no question: give it as an argument or on stdin")
        text = decoded(sys.stdin.buffer.read(), "stdin")
        text = text if raw else text.rstrip("\r\n")
    else:
        text = decoded(os.fsencode(argument or ""), "the question")
    if not text.strip() and not raw:
        raise ValueError("the question is empty: give it as an argument or on stdin")
    return text


def _show(args: argparse.Namespace, events: Events) -> Reply:
    """Prints what the options ask for as it comes, and returns the reply."""
    from tgr_local.trace import live

    return live.final_reply(events) if args.json else live.show(events, _thinking(args))


def _thinking(args: argparse.Namespace) -> bool:
    return bool(sys.stdout.isatty() if args.show_thinking is None else args.show_thinking)


def _chat(args: argparse.Namespace) -> int:
    from tgr_local import chat

    options = configured(args, ChatConfig)
    with _loaded(args) as (engine, _):
        return chat.run(engine, given(args, SearchConfig), args.method, options)


def _serve(args: argparse.Namespace) -> int:
    limits, engine_config = configured(args, ServerConfig), configured(args, EngineConfig)
    configured(args, SearchConfig)
    from tgr_local import methods

    methods.get(args.method)
    try:
        from tgr_local.server import serve
    except ModuleNotFoundError as error:
        raise InstallError(
            f"the server needs {error.name}; run: pip install 'tgr-local[server]'"
        ) from None
    return serve.run(
        _model_file(args),
        limits,
        method=args.method,
        engine_config=engine_config,
        options=given(args, SearchConfig),
    )


def _trace(args: argparse.Namespace) -> int:
    import shutil

    from tgr_local.trace import record, render

    width = shutil.get_terminal_size((120, 24)).columns
    traces, damage = record.read_intact(args.file)
    for number, trace in enumerate(traces):
        if number:
            print()
        for line in render.table(trace, width):
            print(line)
    if damage:
        raise damage
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from tgr_local import doctor

    config = configured(args, EngineConfig)
    findings = []
    for finding in doctor.examine(args.model, config):
        findings.append(finding)
        if not args.json:
            print(doctor.as_text(finding), flush=True)
    if args.json:
        print(doctor.as_json(findings))
    return 1 if doctor.broken(findings) else 0


def _models(args: argparse.Namespace) -> int:
    from tgr_local.models import library

    found: Any
    if args.action == "list":
        if args.which is not None:
            raise ValueError(f"list takes no name, but got {args.which!r}; to see it, show it")
        found = library.listed()
        lines = [library.as_line(one) for one in found]
    elif args.which is None:
        raise ValueError(f"there is no model to {args.action}: name it after {args.action}")
    elif args.action == "show":
        found = library.card(library.find(args.which)).facts()
        lines = library.as_table(found)
    else:
        from tgr_local.models import hub

        found = hub.pull(args.which, args.to)
        shown = printable_line if sys.stdout.isatty() else str  # a program needs the path as it is
        lines = [shown(one["path"]) for one in found]
    print(printable_json(found) if args.json else "\n".join(lines))
    return 0
