"""``tgr-local acp``: the assistant for editors, which start it and speak the Agent Client Protocol
with it on stdin and stdout. Its options are those of `tgr-local code`.

Exit codes: 0 = the client ended, 1 = a failure, 2 = bad usage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tgr_local.code import command as code_command
from tgr_local.options.flags import Arguments, Parser
from tgr_local.system.errors import InstallError
from tgr_local.system.sandbox import backends

if TYPE_CHECKING:
    from tgr_local.engine import Cancel, Engine


def add_to(parser: Parser) -> None:
    """Adds the subcommand."""
    text = "the code assistant for editors: an agent of the Agent Client Protocol on stdin"
    acp = parser.add_command("acp", run, text, " [MODEL]")
    text = "accept an edit that passes the tests without a question, until the editor says else"
    acp.add_argument("--yes", action="store_true", help=text)
    code_command.add_options(acp, ())


def run(args: Arguments) -> int:
    """Runs the subcommand; returns its exit code."""
    backends.check_system("tgr-local acp")
    try:
        from tgr_local.code.acp import agent, server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "acp":
            raise
        raise InstallError(
            "editors need agent-client-protocol; run: pip install 'tgr-local[code]'"
        ) from None
    from tgr_local.generation import method_named
    from tgr_local.options import model_files

    model = model_files.model_file(args.model, args.parser.embedded)

    def load(cancel: Cancel) -> Engine:
        from tgr_local.engine.installation import load_with_progress

        return load_with_progress(model, args.engine, chats=True, cancel=cancel)

    settings = agent.AgentSettings(
        load=load,
        user_options=args.user_options,
        method=method_named(args.method),
        code=args.code,
        mode=agent.ACCEPT if args.yes else agent.ASK,
    )
    return server.run(settings)
