"""A server in a process of its own, for tests: started on a small model, asked over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from engines import EXACT
from surroundings import HANG
from threads import wait_until

pytest.importorskip("fastapi", reason="the server's packages are absent")
httpx = pytest.importorskip("httpx")
from starlette.testclient import TestClient  # noqa: E402

from tgr_local.server import serve  # noqa: E402
from tgr_local.server.app import create_app  # noqa: E402
from tgr_local.server.service import Service  # noqa: E402

SMALL = {"chunk_len": 16, "max_chunks": 3, "n_candidates": 2, "rollout_len": 4}
START = "import sys; from tgr_local.commands.cli import main; sys.exit(main(sys.argv[1:]))"
HELD = f"""if True:
    import time
    from pathlib import Path
    from tgr_local.generation import TextDelta
    from tgr_local.apis import writing
    plain = writing.write
    def write(engine, request, on_event=None, *, on_reply_event=None, cancel, **more):
        def hold(i, event):
            if on_reply_event:
                on_reply_event(i, event)
            is_text = isinstance(event, TextDelta)
            while is_text and Path("hold").exists() and not cancel.is_set():
                Path("held").touch()
                time.sleep(0.005)
        return plain(engine, request, on_event, on_reply_event=hold, cancel=cancel, **more)
    writing.write = write
    {START}
"""
"""A server whose replies stand still after a piece of text while its folder has a file `hold`."""


def flags(model: Path | None, **options: Any) -> list[str]:
    """The arguments of ``tgr-local serve``; its replies are the same in every run unless `seed` is
    -1."""
    found = ["--model", str(model)] if model else []
    for name, value in (EXACT | SMALL | {"port": 0, "seed": 42} | options).items():
        found += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return found


class Asked:
    """A server that is asked over HTTP."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def until(self, condition: Callable[[], object]) -> None:
        """Waits for a condition, and fails when it does not come."""
        wait_until(condition)

    def gauge(self, name: str) -> float:
        """A value of /metrics, summed over its labels."""
        text = self.client.get("/metrics").text
        assert name.removesuffix("_total") in text, name
        lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.split()[-1]) for line in lines)

    def is_free(self) -> bool:
        """Whether nothing runs and nothing is held in the cache."""
        used = ("cells_used", "cells_reserved", "n_sequences", "n_sessions", "n_waiting", "n_jobs")
        names = ["tgr_running", "tgr_waiting", *(f"tgr_engine_{name}" for name in used)]
        return not any(self.gauge(name) for name in names)

    def chat(self, text: str, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": text}]
        return self.client.post("/v1/chat/completions", json={"messages": messages} | body)

    def cached_chat(self, text: str, **body: Any) -> tuple[str, int]:
        """A short plain reply, and how many tokens of its prompt were in the cache."""
        plain = {"tgr": {"method": "base"}, "temperature": 0, "max_tokens": 6}
        answer = self.chat(text, **plain | body).json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["message"]["content"], cached


class Served(Asked):
    """A running server; `lines` is what it has written to stderr so far."""

    def __init__(
        self, model: Path | None, folder: Path, *, start: str = START, **options: Any
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", start, "serve", *flags(model, **options)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(folder)},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.folder = folder
        self.lines: list[str] = []
        self._ready: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.url = self._ready.get(timeout=HANG)
        super().__init__(httpx.Client(base_url=self.url, timeout=HANG))

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if "listening on " in line:
                self._ready.put(line.split()[-1])
        self._ready.put("http://ended.invalid")

    def wait_until_ready(self) -> None:
        self.until(lambda: any("is ready" in line for line in self.lines))

    def until(self, condition: Callable[[], object], seconds: float = HANG) -> None:
        """Waits for a condition, and fails when it does not come."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.lines
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.01)

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    def hold(self) -> contextlib.ExitStack:
        """From now to the end of its ``with`` block, no text of a server that was started with
        `HELD` ends, unless it is cancelled."""
        (self.folder / "held").unlink(missing_ok=True)
        path, release = self.folder / "hold", contextlib.ExitStack()
        path.touch()
        release.callback(path.unlink)
        return release

    def is_held(self) -> bool:
        """Whether a text has begun since `hold`, and stands still."""
        return (self.folder / "held").exists()

    def stop(self) -> int:
        """Ends it as a service manager would; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """The exit code of the process, when it has ended and `lines` has all that it wrote."""
        code = self.process.wait(timeout=HANG)
        self._listener.join(HANG)
        return code


@contextlib.contextmanager
def served(model: Path | None, folder: Path, **options: Any) -> Iterator[Served]:
    """A server that is ready, ended after the block; without a model it is one of a models_dir.
    The options are those of the command, and `start`."""
    server = Served(model, folder, **options)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.client.close()
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()


@contextlib.contextmanager
def served_here(model: Path | None, **options: Any) -> Iterator[Asked]:
    """The same server without a socket, in this process: it starts in a fraction of the time."""
    made: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve, "run", lambda *setup: made.extend(setup) or 0)
        assert run("serve", *flags(model, **options)) == 0
    service = Service(*made)
    keys = serve.api_keys(service.limits)
    with TestClient(create_app(service, keys), "http://localhost") as client:
        wait_until(lambda: client.get("/health").status_code == 200)
        yield Asked(client)


def long_text(**more: Any) -> dict[str, Any]:
    """The body of a chat of many chunks, for a test that holds it, or ends it."""
    options = {"method": "base", "chunk_len": 64, "max_chunks": 60}
    return {"max_tokens": 3800, "temperature": 0, "tgr": options} | more


def events(response: httpx.Response) -> list[Any]:
    """The events of a stream: comments as texts, the rest parsed."""
    parsed = []
    for block in response.text.split("\n\n")[:-1]:
        kind, _, text = block.partition(": ")
        parsed.append(json.loads(text) if kind == "data" and text != "[DONE]" else text)
    return parsed
