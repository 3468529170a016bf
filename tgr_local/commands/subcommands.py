"""The subcommands run, chat, serve, trace and doctor: their arguments, and how each begins.

Also ``--show-config``, which prints the options of a subcommand.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Any

from tgr_local.commands import run as running
from tgr_local.console.wrap import terminal_width
from tgr_local.options.config import (
    DEFAULT_METHOD,
    TERMINAL_METHOD,
    ChatConfig,
    EngineConfig,
    SearchConfig,
    ServerConfig,
)
from tgr_local.options.flags import Arguments, Parser, add_config_flags
from tgr_local.options.resolve import FOR_PEOPLE, resolve
from tgr_local.system.errors import InstallError

_WRITES = {
    DEFAULT_METHOD: "plain sampling with the whole context",
    TERMINAL_METHOD: "samples the answer plainly, and searches the thinking of a model that thinks",
}


def add_to(parser: Parser) -> None:
    """Adds the subcommands."""
    run = parser.add_command("run", running.run, "answer one question", " [MODEL] [question]")
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
    running.add_arguments(run)
    text = "continue the latest saved conversation"
    chat.add_argument("--resume", action="store_true", help=text)
    doctor.add_argument("--json", action="store_true", help="print JSON")
    for sub in (run, chat, serve):
        method = DEFAULT_METHOD if sub is serve else TERMINAL_METHOD
        text = f"method of reasoning (default: {method}: {_WRITES[method]}); tgr-latent searches "
        text += "the whole reply from its second chunk on"
        sub.add_option("method", method, metavar="NAME", help=text)
    for sub in (run, chat, serve, doctor):
        sub.add_show_config()
    for sub in (run, chat, serve):
        title = "how a reply is generated"
        add_config_flags(sub, SearchConfig, title, folded=True, defaults=FOR_PEOPLE)
    add_config_flags(run, ChatConfig, "how it is shown", only=("markdown",), folded=True)
    add_config_flags(chat, ChatConfig, "the conversation", folded=True)
    add_config_flags(serve, ServerConfig, "the server and its limits", folded=True)
    for sub in (run, chat, serve, doctor):
        add_config_flags(sub, EngineConfig, "how the model is loaded", folded=True)


def show_config(args: Arguments) -> int:
    """Prints every option of the subcommand with its value and where the value comes from."""
    from tgr_local.options import model_files, settings

    known = args.parser.options
    path = model_files.model_file(args.model, args.parser.embedded) if _names_model(args) else None
    values: dict[str, Any] = {"model": str(path or "")}
    sources: dict[str, str] = dict(args.sources)
    if "method" in known:
        metadata = model_files.card(path).metadata if path else {}
        for_people = args.command in (running.run, _chat, _serve)
        resolved = resolve(metadata, args.user_options, args.sources, for_people=for_people)
        values |= {"method": args.method, **resolved.shown()}
        sources |= resolved.sources
        values["strength"], sources["strength"] = _strength(path, resolved.config, args)
    if "system" in known:
        values["system"] = args.system
    for config in (args.chat, args.code, args.server, args.engine):
        fields = dataclasses.asdict(config)
        values |= {name: value for name, value in fields.items() if name in known}
    if values.get("api_key"):
        values["api_key"] = "(hidden)"
    as_json, note = getattr(args, "json", False), ""
    if args.changed:
        values = {name: v for name, v in values.items() if sources.get(name) not in _DEFAULTS}
        note = "" if values else "nothing differs from the defaults"
    elif "method" in known and not (as_json or args.all):
        values, note = _of_method(values, args.method)
    if values or as_json:
        print(settings.shown(values, sources, as_json))
    if note and not as_json:
        print(f"tgr-local: {note}", file=sys.stderr)
    return 0


_DEFAULTS = (None, "default")


def _of_method(values: dict[str, Any], method: str) -> tuple[dict[str, Any], str]:
    """The options without those that the method does not use, and how many these are."""
    from tgr_local.generation import method_named

    chosen, fields = method_named(method), {spec.name for spec in dataclasses.fields(SearchConfig)}
    used = {name: v for name, v in values.items() if name not in fields or chosen.uses(name)}
    n = len(values) - len(used)
    hint = f"{n} options that {chosen.name} does not use are hidden; --all shows them"
    return used, hint if n else ""


def _strength(path: Path | None, config: SearchConfig, args: Arguments) -> tuple[str, str]:
    """The injection's strength that was measured for a model and these options, and where it comes
    from, as a line of `show_config`."""
    from tgr_local.generation import method_named
    from tgr_local.options import model_files, strength_files

    if not method_named(args.method).of_thinking.steers or config.eta == 0:
        return "", "nothing is injected"
    if config.calibration != "divergence":
        return "", f"calibration {config.calibration}"
    facts = model_files.card(path).facts() if path else {}
    wanted = dict(
        divergence=config.divergence,
        rank=config.rank,
        injection_seed=config.injection_seed,
        d_z=config.d_z or facts.get("width"),
        type_k=args.engine.type_k,
        type_v=args.engine.type_v,
        control_vector="",
    )
    for _, strength in strength_files.of_model(path, **wanted).values() if path else ():
        return str(strength), "measured for this model"
    return "", "not measured yet; the first search does it, once"


def _chat(args: Arguments) -> int:
    from tgr_local import chat
    from tgr_local.chat.session import Start
    from tgr_local.console.dialog import typed_ahead
    from tgr_local.console.endings import ended_by_signals

    by_flag = {name for name, place in args.sources.items() if place.startswith("--")}
    start = Start(system=args.system, files=args.files)
    if args.resume:
        flags = {name: v for name, v in args.user_options.items() if name in by_flag}
        method = args.method if "method" in by_flag else ""
        file = chat.latest()
        start = start._replace(resume=file, options=flags, method=method)
        if "model" not in by_flag:
            args.model = str(chat.model_of(file))
    with contextlib.ExitStack() as stack:
        stack.enter_context(ended_by_signals())
        with typed_ahead():
            engine, _, method = stack.enter_context(running.loaded(args))
        return chat.run(engine, args.user_options, method, args.chat, start)


def _names_model(args: Arguments) -> bool:
    """Whether one model is used from the start: not if a server loads those of a folder."""
    return args.model is not None or not args.server.models_dir


def _serve(args: Arguments) -> int:
    from tgr_local.generation import method_named
    from tgr_local.options import model_files

    method = method_named(args.method)
    try:
        from tgr_local.server import serve
    except ModuleNotFoundError as error:
        raise InstallError(
            f"the server needs {error.name}; run: pip install 'tgr-local[server]'"
        ) from None
    path = model_files.model_file(args.model) if _names_model(args) else None
    return serve.run(path, serve.Setup(args.server, method, args.engine, args.user_options))


def _trace(args: Arguments) -> int:
    from tgr_local.console import render
    from tgr_local.generation import trace_file

    width = terminal_width(default=120)
    traces, damage = trace_file.read(args.file)
    for number, trace in enumerate(traces):
        if number:
            print()
        for line in render.table(trace, width):
            print(line)
    if damage:
        raise damage
    return 0


def _doctor(args: Arguments) -> int:
    from tgr_local.commands import doctor

    return doctor.run(args.model, args.engine, args.json)
