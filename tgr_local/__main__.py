"""The program: ``tgr-local``, and ``python -m tgr_local``."""

from __future__ import annotations

import signal


def main() -> int:
    """Runs the command line of the process and returns its exit code.

    While its modules are imported and while it exits, Ctrl-C ends the process without a traceback:
    this leaves SIGINT as the system has it. A program that embeds the commands calls
    `commands.cli.main`.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_ours = handler is signal.default_int_handler  # not where the caller ignores Ctrl-C
    if is_ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tgr_local.commands import cli

    if is_ours:
        signal.signal(signal.SIGINT, handler)
    try:
        return cli.main()
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    raise SystemExit(main())
