"""The command line in tests: in this process or in one of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from fake_engine import INSTALLED
from surroundings import HANG, environment

from tgr_local.commands import cli

QUIET = f"from tgr_local.system import progress; progress.DELAY = {HANG}; "


def run(*arguments: str) -> int:
    """The exit code of main() in this process; argparse ends with SystemExit on usage errors."""
    try:
        return cli.main(list(arguments))
    except SystemExit as exit:
        return int(exit.code or 0)


def shown_config(capsys, *arguments: str) -> dict[str, Any]:
    """What --show-config prints for the embedded model: (value, source) by name."""
    assert run("run", "--show-config", "--json", *arguments) == 0
    table = json.loads(capsys.readouterr().out)
    return {name: (row["value"], row["source"]) for name, row in table.items()}


def process(*arguments: str, double: bool = True, **options: Any) -> subprocess.Popen[bytes]:
    """tgr-local in a process of its own, on the double of the engine or on the real one."""
    start = (
        f"import sys; {INSTALLED if double else QUIET} from tgr_local.commands.cli import main; "
    )
    return subprocess.Popen(
        [sys.executable, "-c", f"{start} sys.exit(main({list(arguments)!r}))"],
        env=environment(),
        stdin=options.get("stdin", subprocess.DEVNULL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )


def finished(*arguments: str, data: bytes | None = None, **options: Any) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of such a process with `data` on stdin."""
    started = process(*arguments, stdin=subprocess.PIPE, **options)
    out, err = started.communicate(data, timeout=HANG)
    return started.returncode, out.decode(), err.decode()


def loaded(statement: str, data: bytes = b"") -> set[str]:
    """The modules in memory after a statement, in a process of its own."""
    code = f"import sys\n{statement}\nprint(*sys.modules, file=sys.stderr)"
    completed = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        input=data,
        capture_output=True,
        timeout=HANG,
    )
    assert completed.returncode == 0, completed.stderr.decode()
    return set(completed.stderr.decode().splitlines()[-1].split())
