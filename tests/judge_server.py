"""A judge of open answers behind a local URL."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def judge_server(name: str, answer: Callable[[dict[str, Any]], str]) -> Iterator[str]:
    """The URL of a judge with one model, `name`. `answer` gets the body of a question; "500" is
    answered with that status."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def reply(self, body: Any) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def do_GET(self) -> None:
            self.reply({"data": [{"id": name}]})

        def do_POST(self) -> None:
            content = answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if content == "500":
                self.send_error(500)
            else:
                self.reply({"choices": [{"message": {"content": content}}]})

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
