"""The subcommands run, chat, serve, trace and doctor, and ``--show-config``.

The others are in ``command.py`` of their folders, and in ``rpc_server.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tgr_local.console.progress import ProgressLine
from tgr_local.console.sanitize import printable, printable_json
from tgr_local.console.wrap import terminal_width
from tgr_local.errors import InstallError
from tgr_local.options.config import (
    DEFAULT_METHOD,
    ChatConfig,
    CodeConfig,
    EngineConfig,
    SearchConfig,
    ServerConfig,
)
from tgr_local.options.flags import Parser, add_config_flags, configured, given
from tgr_local.options.resolve import FOR_PEOPLE, resolve

if TYPE_CHECKING:
    from tgr_local.engine import Engine
    from tgr_local.generation import Reply
    from tgr_local.methods import Method
    from tgr_local.trace.record import Header


def add_to(parser: Parser) -> None:
    """Adds the subcommands."""
    run = parser.add_command("run", _run, "answer one question", " [MODEL] [question]")
    text = "chat with a model; lines from a pipe are answered one by one"
    chat = parser.add_command("chat", _chat, text, " [MODEL]")
    text = "serve a model over HTTP, with OpenAI's API"
    serve = parser.add_command("serve", _serve, text, " [MODEL]")
    trace = parser.add_command("trace", _trace, "show every step of a recorded run", " FILE")
    trace.add_argument("file", metavar="FILE", help="written by run --trace")
    text = "check the installation, the machine and the model"
    doctor = parser.add_command("doctor", _doctor, text, " [MODEL]")
    run.text = "question"
    for sub in (run, chat, serve, doctor):
        sub.takes_model, sub.word_hint = True, "name a model with -m"
        sub.add_help_all()
        text = "a GGUF file, or a name that tgr-local models lists (default: the embedded model)"
        sub.add_option("model", None, metavar="MODEL", help=text)
    for sub in (run, chat):
        sub.add_option("system", "", metavar="TEXT", help="system prompt (default: none)")
        text = "text file to put before the question; may be given several times"
        sub.add_argument(
            "-f", "--file", action="append", default=[], dest="files", metavar="FILE", help=text
        )
    run.word_hint = "put a text of several words in quotes, and name a model with -m"
    chat.word_hint = "name a model with -m; tgr-local run asks one question"
    _add_run_arguments(run)
    text = "continue the latest saved conversation"
    chat.add_argument("--resume", action="store_true", help=text)
    doctor.add_argument("--json", action="store_true", help="print JSON")
    for sub in (run, chat, serve):
        text = f"method of reasoning (default: {DEFAULT_METHOD}, which searches from the second "
        text += "chunk on; see --search-from)"
        sub.add_option("method", DEFAULT_METHOD, metavar="NAME", help=text)
    for sub in (run, chat, serve, doctor):
        text = "print the options with their values and sources, and exit; --changed, --all"
        sub.add_argument("--show-config", action="store_true", help=text)
        text = "with --show-config: only what is not the default; or those of other methods too"
        which = sub.add_mutually_exclusive_group()
        sub.hide(which.add_argument("--changed", action="store_true", help=text))
        sub.hide(which.add_argument("--all", action="store_true", help=text))
    for sub in (run, chat, serve):
        title = "how a reply is generated"
        add_config_flags(sub, SearchConfig, title, folded=True, defaults=FOR_PEOPLE)
    add_config_flags(run, ChatConfig, "how it is shown", only=("markdown",), folded=True)
    add_config_flags(chat, ChatConfig, "the conversation", folded=True)
    add_config_flags(serve, ServerConfig, "the server and its limits", folded=True)
    for sub in (run, chat, serve, doctor):
        add_config_flags(sub, EngineConfig, "how the model is loaded", folded=True)


def _add_run_arguments(run: Parser) -> None:
    add = run.add_argument
    text = (
        "the question; the text on stdin comes before it, and is the question without it or for -"
    )
    add("question", nargs="?", help=text)
    text = "number of answers, generated together (default: 1)"
    add("-k", "--replies", type=int, default=1, metavar="N", help=text)
    text = "print the thinking too (default: on if stdout is a terminal)"
    add("--show-thinking", action=argparse.BooleanOptionalAction, help=text)
    text = "print what the method did too: chunks, forward tokens by kind, votes"
    add("--stats", action="store_true", help=text)
    add("--json", action="store_true", help="print JSON; with -k a list")
    add("--trace", metavar="FILE", help="record every step in FILE")
    run.hide(add("--trace-vectors", action="store_true", help="record anchors and states in full"))
    add("--raw", action="store_true", help="do not apply the chat template")


@contextlib.contextmanager
def _loaded(args: argparse.Namespace) -> Iterator[tuple[Engine, SearchConfig, Method]]:
    """The loaded model, the options for it, and the method."""
    engine_config = configured(args, EngineConfig)
    configured(args, SearchConfig)  # refuses a bad value before the model is loaded
    from tgr_local import methods
    from tgr_local.engine import load_with_progress
    from tgr_local.generation import check_writes
    from tgr_local.models import library

    method = methods.get(args.method)
    chats = not getattr(args, "raw", False)
    path = library.model_file(args.model)
    with load_with_progress(path, engine_config, chats=chats) as engine:
        check_writes(engine)
        _warn_of_spare_cells(engine, getattr(args, "replies", 1))
        user_options = given(args, SearchConfig)
        yield engine, resolve(engine.metadata, user_options, for_people=True).config, method


def _warn_of_spare_cells(engine: Engine, n_replies: int) -> None:
    """Says that the user asked for more cells than `n_replies` texts of full length have."""
    n_ctx, trained = engine.config.n_ctx, engine.n_ctx_train
    if n_ctx > trained * n_replies:
        print(
            f"tgr-local: warning: n_ctx is {n_ctx}, but the model was trained for {trained} tokens "
            "and no text gets longer; only a search uses more cells, and fewer take less memory",
            file=sys.stderr,
        )


def show_config(args: argparse.Namespace) -> int:
    """Prints every option of the subcommand with its value and where the value comes from."""
    from tgr_local.models import library
    from tgr_local.options import settings

    known = args.parser.options
    path = library.model_file(args.model) if _names_model(args) else None
    values: dict[str, Any] = {"model": str(path or "")}
    sources: dict[str, str] = dict(args.sources)
    if "method" in known:
        metadata = library.card(path).metadata if path else {}
        configured(args, SearchConfig)
        user_options, for_people = given(args, SearchConfig), args.command in (_run, _chat, _serve)
        resolved = resolve(metadata, user_options, args.sources, for_people=for_people)
        values |= {"method": args.method, **resolved.shown()}
        sources |= resolved.sources
        values["strength"], sources["strength"] = _strength(path, resolved.config, args)
    if "system" in known:
        values["system"] = args.system
    configs = (
        configured(args, ChatConfig), configured(args, CodeConfig), configured(args, ServerConfig),
        configured(args, EngineConfig),
    )  # fmt: skip
    for config in configs:
        fields = dataclasses.asdict(config)
        values |= {name: value for name, value in fields.items() if name in known}
    if values.get("api_key"):
        values["api_key"] = "(hidden)"
    as_json, note = getattr(args, "json", False), ""
    if getattr(args, "changed", False):
        values = {name: one for name, one in values.items() if sources.get(name) not in _DEFAULTS}
        note = "" if values else "nothing differs from the defaults"
    elif "method" in known and not (as_json or getattr(args, "all", False)):
        values, note = _of_method(values, args.method)
    if values or as_json:
        print(settings.shown(values, sources, as_json))
    if note and not as_json:
        print(f"tgr-local: {note}", file=sys.stderr)
    return 0


_DEFAULTS = (None, "default")


def _of_method(values: dict[str, Any], method: str) -> tuple[dict[str, Any], str]:
    """The options without those that the method does not use, and how many these are."""
    from tgr_local import methods

    chosen, fields = methods.get(method), {spec.name for spec in dataclasses.fields(SearchConfig)}
    kept = {name: one for name, one in values.items() if name not in fields or chosen.uses(name)}
    n = len(values) - len(kept)
    hint = f"{n} options that {chosen.name} does not use are hidden; --all shows them"
    return kept, hint if n else ""


def _strength(path: Path | None, config: SearchConfig, args: argparse.Namespace) -> tuple[str, str]:
    """The injection's strength that was measured for a model and these options, and where it comes
    from, as a line of `show_config`."""
    from tgr_local import methods
    from tgr_local.models import library, strengths

    if not methods.get(args.method).steers or config.eta == 0:
        return "", "nothing is injected"
    if config.calibration != "divergence":
        return "", f"calibration {config.calibration}"
    facts = library.card(path).facts() if path else {}
    engine = configured(args, EngineConfig)
    found = path and strengths.of_model(
        path,
        divergence=config.divergence,
        rank=config.rank,
        injection_seed=config.injection_seed,
        d_z=config.d_z or facts.get("width"),
        type_k=engine.type_k,
        type_v=engine.type_v,
        control_vector="",
    )
    if not found:
        return "", "not measured yet; the first search does it, once"
    return str(found[0][1]), "measured for this model"


def _run(args: argparse.Namespace) -> int:
    if args.replies < 1:
        raise ValueError(f"replies is {args.replies}, but must be at least 1")
    if args.trace_vectors and args.trace is None:
        raise ValueError("trace_vectors needs a trace file; name it with --trace FILE")
    prompt_text = _prompt(args)
    from tgr_local.trace import record

    with contextlib.ExitStack() as stack:
        file = stack.enter_context(record.open_file(args.trace)) if args.trace is not None else None
        engine, config, method = stack.enter_context(_loaded(args))
        from tgr_local.generation import query_tokens

        prompt = query_tokens(engine, prompt_text, config, raw=args.raw)
        header = None
        if args.json or file:  # only here, because hashing the model file takes long
            header = record.make_header(engine, prompt, config, method.name)
        replies = _generate(args, engine, prompt, config, method, header, file)
        if header and args.json:
            results = [record.result(header, reply) for reply in replies]
            print(printable_json(results if args.replies > 1 else results[0]))
        else:
            _print_replies(args, replies)
    return int(not any(reply.text.strip() for reply in replies))


def _print_replies(args: argparse.Namespace, replies: list[Reply]) -> None:
    """Prints several replies, and the cost of any number; a single reply is on the screen."""
    from tgr_local.trace import render

    for number, reply in enumerate(replies if args.replies > 1 else (), 1):
        thinking = f"{reply.thinking}\n\n" if _shows_thinking(args) and reply.thinking else ""
        text = f"[{number}] {thinking}{reply.text}"
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


def _generate(
    args: argparse.Namespace,
    engine: Engine,
    prompt: list[int],
    config: SearchConfig,
    method: Method,
    header: Header | None,
    file: TextIO | None,
) -> list[Reply]:
    """Generates the replies, records them in `file`, and prints a single one while it grows."""
    from tgr_local import generation
    from tgr_local.trace import live, record
    from tgr_local.trace.pace import ReplyProgress

    k = args.replies
    unseen = args.json or k > 1
    shown = unseen or not sys.stdout.isatty()
    with (progress := ReplyProgress(shown=shown, until_answer=not unseen)):
        if k == 1:
            events = generation.stream(engine, prompt, config, method=method, raw=args.raw)
            if header and file:
                events = record.write_events(events, file, engine, header, args.trace_vectors)
            events = progress.watch(events)
            if args.json:
                return [live.final_reply(events)]
            markdown = configured(args, ChatConfig).markdown
            return [live.show(events, _shows_thinking(args), markdown)]
        replies = generation.generate_many(
            engine,
            prompt,
            config,
            k,
            method=method,
            raw=args.raw,
            on_event=lambda _, event: progress.update(event),
        )
    if header and file:
        record.clear(file)
        for reply in replies:
            trace = record.make_trace(engine, header, reply)
            record.write(file, trace, args.trace_vectors)
    return replies


def _prompt(args: argparse.Namespace) -> str | list[dict[str, str]]:
    """The question, after the system prompt if there is one."""
    question = _question(args)
    if not args.system:
        return question
    if args.raw:
        raise ValueError("raw text has no system prompt; leave out --system, or --raw")
    return [{"role": "system", "content": args.system}, {"role": "user", "content": question}]


def _question(args: argparse.Namespace) -> str:
    """The files, stdin and the argument, in this order, with blank lines between them. The line
    ends after files and stdin are dropped, but not with --raw."""
    from tgr_local.chat import text_input

    texts = [text_input.read_file(path) for path in args.files]
    typed = None if args.question in (None, "-") else args.question
    if args.question is None and not args.files and sys.stdin.isatty():
        raise ValueError("there is no question; give it as an argument or on stdin")
    reads = _is_piped(sys.stdin) if typed is not None else not sys.stdin.isatty()
    if reads or args.question == "-":
        texts.append(_stdin_text())
    if not args.raw:
        texts = [text.rstrip("\r\n") for text in texts]
    if typed is not None:
        texts.append(text_input.decode_utf8(os.fsencode(typed), "the question"))
    text = "\n\n".join(text for text in texts if text)
    if not text.strip() and not args.raw:
        raise ValueError("the question is empty; give it as an argument or on stdin")
    return text


def _stdin_text() -> str:
    from tgr_local.chat import text_input

    with ProgressLine("reading stdin; Ctrl-D ends it, < /dev/null leaves it out"):
        data = sys.stdin.buffer.read(text_input.MAX_FILE_BYTES + 1)
    text_input.check_size("stdin", len(data))
    return text_input.decode_utf8(data, "stdin")


def _is_piped(file: TextIO) -> bool:
    """Whether it is a file, a pipe or a socket; a terminal and /dev/null are neither."""
    try:
        mode = os.fstat(file.fileno()).st_mode
    except (OSError, ValueError):  # closed, or not a real file
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _shows_thinking(args: argparse.Namespace) -> bool:
    return bool(sys.stdout.isatty() if args.show_thinking is None else args.show_thinking)


def _chat(args: argparse.Namespace) -> int:
    from tgr_local import chat

    options = configured(args, ChatConfig)
    with contextlib.ExitStack() as stack:
        with chat.typed_ahead():
            engine, _, method = stack.enter_context(_loaded(args))
        return chat.run(
            engine,
            given(args, SearchConfig),
            method,
            options,
            resume=args.resume,
            system=args.system,
            files=args.files,
        )


def _names_model(args: argparse.Namespace) -> bool:
    """Whether one model is used from the start: not if a server loads those of a folder."""
    return args.model is not None or not given(args, ServerConfig).get("models_dir")


def _serve(args: argparse.Namespace) -> int:
    limits, engine_config = configured(args, ServerConfig), configured(args, EngineConfig)
    configured(args, SearchConfig)
    from tgr_local import methods
    from tgr_local.models import library

    method = methods.get(args.method)
    try:
        from tgr_local.server import serve
    except ModuleNotFoundError as error:
        raise InstallError(
            f"the server needs {error.name}; run: pip install 'tgr-local[server]'"
        ) from None
    return serve.run(
        library.model_file(args.model) if _names_model(args) else None,
        limits,
        method=method,
        engine_config=engine_config,
        options=given(args, SearchConfig),
    )


def _trace(args: argparse.Namespace) -> int:
    from tgr_local.trace import record, render

    width = terminal_width(default=120)
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
