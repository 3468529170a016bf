"""The server as the child of another program: its address, its key, and its end with the parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from engines import EXACT
from serving import START, httpx
from surroundings import HANG

SERVE = [sys.executable, "-c", START, "serve", "--port", "0", "--exit-on-eof"]
PARENT = f"""
import os, subprocess, sys
pipes = dict(stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
child = subprocess.Popen({SERVE!r} + sys.argv[1:], **pipes)
for line in child.stderr:
    if "listening on" in line:
        print(child.pid, line.split()[-1], flush=True)
    if "is ready" in line:
        print("ready", flush=True)
        break
input()
"""


@pytest.fixture
def flags(model: Callable[..., Path]) -> list[str]:
    options = {"n_ctx": 512, "n_threads": EXACT["n_threads"]}
    named = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return ["--model", str(model()), *named]


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(folder),
        "TGR_API_KEY": "a-secret",
    }  # fmt: skip


def is_alive(pid: int) -> bool:
    """Whether a process that is no child of this one still runs."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return status != "Z"


def test_the_end_of_stdin_ends_the_server(flags: list[str], tmp_path):
    with subprocess.Popen(
        [*SERVE, *flags], env=environment(tmp_path), cwd=tmp_path,
        stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stderr and server.stdin
        url = next(line.split()[-1] for line in server.stderr if "listening on" in line)
        assert any("is ready" in line for line in server.stderr)
        server.stdin.write("what is written there is dropped\n")
        server.stdin.flush()
        with httpx.Client(base_url=url, timeout=HANG) as client:
            assert client.get("/v1/models").status_code == 401
            client.headers["Authorization"] = "Bearer a-secret"
            assert client.get("/v1/models").status_code == 200
        server.stdin.close()
        assert server.wait(HANG) == 0


@pytest.mark.skipif(not hasattr(socket, "socketpair"), reason="needs a pair of sockets")
def test_a_stdin_that_does_not_block_has_not_ended(flags: list[str], tmp_path):
    theirs, ours = socket.socketpair()
    theirs.setblocking(False)
    with theirs, ours, subprocess.Popen(
        [*SERVE, *flags], env=environment(tmp_path), cwd=tmp_path,
        stdin=theirs.fileno(), stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        theirs.close()
        assert server.stderr
        url = next(line.split()[-1] for line in server.stderr if "listening on" in line)
        assert any("is ready" in line for line in server.stderr)
        ours.sendall(b"what is written there is dropped\n")
        with httpx.Client(base_url=url, timeout=HANG) as client:
            client.headers["Authorization"] = "Bearer a-secret"
            assert client.get("/v1/models").status_code == 200
        ours.close()
        assert "stdin has ended" in server.stderr.read()
        assert server.wait(HANG) == 0


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_server_ends_with_a_parent_that_is_killed(flags: list[str], tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *flags], env=environment(tmp_path), cwd=tmp_path,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert parent.stdout
    pid = int(parent.stdout.readline().split()[0])
    assert parent.stdout.readline() == "ready\n"
    assert is_alive(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait(HANG)
    # the test's own timeout ends a server that stays
    while is_alive(pid):
        time.sleep(0.05)
