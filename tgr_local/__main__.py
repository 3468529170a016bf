"""The program: ``tgr-local``, and ``python -m tgr_local``."""

from __future__ import annotations

import os
import signal
import sys


def main() -> object:
    """Runs the command line of the process and returns its exit code, as `sys.exit` takes it.

    While its modules are imported and while it exits, Ctrl-C ends the process without a traceback:
    this leaves SIGINT as the system has it. A program that embeds the commands calls
    `commands.cli.main`. Where a device hangs, the process ends without waiting for it.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_ours = handler is signal.default_int_handler  # not where the caller ignores Ctrl-C
    if is_ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tgr_local.commands import cli

    if is_ours:
        signal.signal(signal.SIGINT, handler)
    code: object
    try:
        code = cli.main()
    except SystemExit as end:
        code = end.code
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
    threads = sys.modules.get("tgr_local.engine.threads")
    if threads and threads.HUNG:
        os._exit(code if isinstance(code, int) else 1)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
