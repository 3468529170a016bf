"""The program: ``tgr-local``, and ``python -m tgr_local``."""

from __future__ import annotations

import signal


def main() -> int:
    """Runs the command line of the process and returns its exit code.

    While modules are imported and while the program ends, Ctrl-C ends it without a traceback.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_ours = handler is signal.default_int_handler  # not where the caller ignores Ctrl-C
    if is_ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tgr_local import cli

    if is_ours:
        signal.signal(signal.SIGINT, handler)
    try:
        return cli.main()
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    raise SystemExit(main())
