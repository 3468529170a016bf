"""A server whose device hangs: an RPC server that is stopped while it computes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import pytest
from fixture_types import Model
from rpc_servers import server
from serving import httpx, long_text, served
from surroundings import HANG

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no signal stops a process there")
OPTIONS = {"n_gpu_layers": -1, "n_ctx": 8192, "device_seconds": 8.0}
LONG = long_text(messages=[{"role": "user", "content": "hi"}])
ERROR = "the model 'plain' has had no result from its device (RPC"


def test_requests_to_a_device_that_hangs_get_503_until_it_answers(model: Model, tmp_path):
    name = model().stem
    error = ERROR.replace("plain", name)
    with (
        server() as (address, device),
        served(model(), tmp_path, rpc=address, **OPTIONS) as running,
    ):
        before = running.cached_chat("hi")[0]
        whole: list[Any] = []

        def ask() -> None:
            with httpx.Client(base_url=running.url, timeout=HANG) as client:
                whole.append(client.post("/v1/chat/completions", json=LONG))

        asking = threading.Thread(target=ask)
        asking.start()
        with running.client.stream(
            "POST", "/v1/chat/completions", json=LONG | {"stream": True}
        ) as stream:
            lines = stream.iter_lines()
            next(line for line in lines if line.startswith("data: "))
            os.kill(device.pid, signal.SIGSTOP)
            rest = list(filter(None, lines))
        assert error in rest[-2] + rest[-1], rest[-3:]
        asking.join()
        assert whole[0].status_code == 503 and error in whole[0].json()["error"]["message"]
        for answer in (running.chat("hi"), running.client.get("/health")):
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "device_hangs"
            assert answer.headers["Retry-After"]

        os.kill(device.pid, signal.SIGCONT)
        running.until(lambda: running.client.get("/health").status_code == 200)
        assert running.cached_chat("hi")[0] == before
