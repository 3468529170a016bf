"""Fetching models from the hub, which a server right here plays, well and badly."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import http.server
import json
import os
import re
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import run
from surroundings import HANG
from threads import wait_until

from tgr_local.commands import download
from tgr_local.commands.hub import files
from tgr_local.options import model_files
from tgr_local.system.errors import TgrError


class Hub:
    """A repository with GGUF files, served as Hugging Face does: the listing, then each file by
    way of another host. `breaks` says after how many bytes each connection breaks; `answers`, one
    taken by each request for a file, do what they will in place of that."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.breaks: list[int] = []
        self.answers: list[Callable[[Any, bytes], None]] = []
        self.changes: dict[str, Any] = {}
        self.ranges: list[str | None] = []
        self.pauses: list[float] = []
        self.leaked = self.authorized = False
        self.honours_ranges = True
        self.wrong = b""
        self.over = threading.Event()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def do_GET(self) -> None:
                self.hub = hub
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def answer(self, request: Any) -> None:
        path = request.path.partition("?")[0]
        if path == "/api/models/someone/some-GGUF":
            self.authorized = request.headers.get("Authorization") == "Bearer secret"
            self.send(request, 200, json.dumps(self.listing()).encode())
        elif path.startswith("/someone/some-GGUF/resolve/abc123/"):
            name = path.rsplit("/", 1)[1]
            request.send_response(302)
            request.send_header("Location", f"http://localhost:{self.port}/cdn/{name}")
            request.end_headers()
        elif path.startswith("/cdn/"):
            self.leaked |= "Authorization" in request.headers
            self.send_file(request, self.files[path.rsplit("/", 1)[1]])
        else:
            self.send(
                request, 404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"}
            )

    def listing(self) -> dict[str, Any]:
        def sibling(name: str, data: bytes) -> dict[str, Any]:
            sha = hashlib.sha256(self.wrong or data).hexdigest()
            lfs = {"sha256": sha, "size": len(data), "pointerSize": 1}
            return {"rfilename": name, "size": len(data), "lfs": lfs, **self.changes}

        siblings = [sibling(name, data) for name, data in self.files.items()]
        return {"id": "someone/some-GGUF", "sha": "abc123", "siblings": siblings}

    def send_file(self, request: Any, data: bytes) -> None:
        wanted = request.headers.get("Range")
        self.ranges.append(wanted)
        if self.answers:
            (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])(request, data)
            return
        begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if wanted and self.honours_ranges:
            extra = {"Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"}
            code, body = 206, data[begin:]
        else:
            extra, code, body = {}, 200, data
        self.send(request, code, body, extra, self.breaks.pop(0) if self.breaks else None)

    @staticmethod
    def send(
        request: Any, code: int, body: bytes, extra: dict[str, str] | None = None,
        only: int | None = None,
    ) -> None:  # fmt: skip
        request.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **(extra or {})}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body[:only])

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


DATA = np.random.default_rng(1).bytes(3_000_000)


@pytest.fixture
def hub(monkeypatch) -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub")
    from huggingface_hub import constants

    played = Hub()
    played.files = {"some-Q4_K_M.gguf": b"GGUF four", "some-Q8_0.gguf": DATA, "README.md": b"x"}
    endpoint = f"http://127.0.0.1:{played.port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=played.pauses.append)
    monkeypatch.setattr(download, "time", clock)
    monkeypatch.setenv("HF_TOKEN", "secret")
    yield played
    played.close()


def pulled(home: Path) -> Path:
    return home / "data" / "tgr-local" / "models" / "someone" / "some-GGUF" / "some-Q8_0.gguf"


def part_of(home: Path) -> Path:
    """The file of an unfinished download, in a folder that is there."""
    pulled(home).parent.mkdir(parents=True, exist_ok=True)
    return pulled(home).with_name(f"some-Q8_0.gguf.{hashlib.sha256(DATA).hexdigest()[:12]}.part")


PULL = ("models", "pull", "someone/some-GGUF:q8_0")


def test_a_model_is_fetched_checked_and_found(hub: Hub, home: Path, capsys):
    assert run(*PULL) == 0
    assert capsys.readouterr().out == f"{pulled(home)}\n"
    assert pulled(home).read_bytes() == DATA
    assert os.listdir(pulled(home).parent) == ["some-Q8_0.gguf"]
    assert model_files.find("some-Q8_0") == pulled(home)
    assert hub.authorized and not hub.leaked  # the token is for the hub alone
    assert run(*PULL, "--json") == 0  # it is there: nothing is fetched again
    (one,) = json.loads(capsys.readouterr().out)
    assert one["sha256"] == hashlib.sha256(DATA).hexdigest() and hub.ranges == [None]


def test_a_broken_connection_goes_on_where_it_stopped(hub: Hub, home: Path):
    hub.breaks = [1_500_000, 900_000]
    assert run(*PULL) == 0
    assert pulled(home).read_bytes() == DATA
    assert hub.ranges == [None, "bytes=1500000-", "bytes=2400000-"]


def test_a_server_without_ranges_begins_anew(hub: Hub, home: Path):
    hub.breaks, hub.honours_ranges = [1_500_000], False
    assert run(*PULL) == 0
    assert pulled(home).read_bytes() == DATA


def test_a_download_that_fails_is_resumed_by_the_same_command(hub: Hub, home: Path, capsys):
    hub.breaks = [1_000_000, 0, 0, 0, 0, 0]
    assert run(*PULL) == 1
    err = capsys.readouterr().err
    assert "broke at 1000000 of 3000000 bytes" in err and "resumes from there" in err
    assert not pulled(home).exists() and not any(".part" in p.name for p in model_files.local())
    assert run(*PULL) == 0
    assert pulled(home).read_bytes() == DATA and hub.ranges[-1] == "bytes=1000000-"


def test_a_file_with_a_wrong_sha256_is_deleted(hub: Hub, home: Path, capsys):
    hub.wrong = b"something else"
    assert run(*PULL) == 1
    assert "has a wrong sha256 and was deleted; try again" in capsys.readouterr().err
    assert os.listdir(pulled(home).parent) == []


def test_two_downloads_of_one_file_do_not_mix(hub: Hub, home: Path):
    (remote,) = files("someone/some-GGUF:Q8_0")

    def also(have: int, fresh: int) -> None:
        with pytest.raises(TgrError, match="is being downloaded by another process"):
            download.fetch(remote, pulled(home))

    assert download.fetch(remote, pulled(home), also)


def test_a_split_model_comes_with_all_its_parts(hub: Hub, tmp_path):
    names = [f"big-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2)]
    hub.files = {name: name.encode() for name in names} | {"mmproj-Q8_0.gguf": b"x"}
    assert run(*PULL, "--to", str(tmp_path)) == 0
    assert sorted(path.name for path in tmp_path.glob("*.gguf")) == names


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        (
            "someone/some-GGUF",
            2,
            "has several models; name one of its files as someone/some-GGUF/F",
        ),
        ("someone/some-GGUF:Q5_0", 2, "has no Q5_0; name one of its files .*some-Q4_K_M.gguf"),
        ("someone/nothing", 1, "does not exist, or is private; for a private one set HF_TOKEN"),
    ],
)
def test_an_ambiguous_or_unknown_name_is_refused(
    hub: Hub, capsys, name: str, code: int, message: str
):
    assert run("models", "pull", name) == code
    err = capsys.readouterr().err
    assert re.search(message, err) and err.count("\n") == 1


def test_a_full_disk_is_reported_before_the_download(hub: Hub, capsys, monkeypatch):
    import collections
    import shutil

    usage = collections.namedtuple("usage", "total used free")(1, 1, 1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert run(*PULL) == 1
    assert "needs 3.0 MB more, but" in capsys.readouterr().err and hub.ranges == []


# ---- files that exist already ----


@pytest.mark.parametrize(
    ("there", "message"),
    [
        (b"mine", "it has 4 bytes, not 3000000 as someone/some-GGUF says; move it away, or name"),
        (bytes(len(DATA)), f"its sha256 is {hashlib.sha256(bytes(len(DATA))).hexdigest()}, not "),
    ],
)
def test_another_file_at_the_destination_is_neither_used_nor_overwritten(
    hub: Hub, home: Path, capsys, there: bytes, message: str
):
    pulled(home).parent.mkdir(parents=True)
    pulled(home).write_bytes(there)
    err = failure(capsys, f"{pulled(home)} exists, but ")
    assert message in err and pulled(home).read_bytes() == there and hub.ranges == []


def test_a_folder_or_a_broken_link_at_the_destination_stays(hub: Hub, home: Path, capsys):
    pulled(home).mkdir(parents=True)
    failure(capsys, "exists, but it is not a file")
    pulled(home).rmdir()
    pulled(home).symlink_to("nowhere")
    failure(capsys, "exists, but it is not a file")
    assert pulled(home).is_symlink() and hub.ranges == []


@pytest.mark.parametrize(
    "make",
    [
        Path.symlink_to,
        Path.hardlink_to,
        lambda part, victim: os.mkfifo(part),
        lambda part, victim: part.mkdir(),
    ],
    ids=["link", "hard link", "pipe", "folder"],
)
def test_a_partial_file_that_is_a_link_or_a_pipe_is_not_written_to(
    hub: Hub, home: Path, capsys, make: Callable[[Path, Path], None]
):
    victim = home / "victim"
    victim.write_bytes(b"precious")
    make(part_of(home), victim)
    assert f"{part_of(home).name} is not a plain file; remove it" in failure(capsys)
    assert victim.read_bytes() == b"precious" and hub.ranges == []


# ---- bad connections and servers ----


def failure(capsys, message: str = "") -> str:
    """The only line that a pull which fails says."""
    assert run(*PULL) == 1
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("tgr-local: ")]
    assert out == "" and len(lines) == 1 and "bug" not in err and message in err
    return err


def one_byte(request: Any, data: bytes) -> None:
    begin = int((request.headers.get("Range") or "bytes=0-")[6:-1])
    Hub.send(request, 206, data[begin : begin + 1], {"Content-Range": f"bytes {begin}-/*"})


@pytest.mark.parametrize(
    "answer",
    [
        lambda request, data: Hub.send(request, 200, b""),
        lambda request, data: Hub.send(request, 206, b"", {"Content-Range": "bytes 0-2/3"}),
        one_byte,
        lambda request, data: Hub.send(request, 503, b""),
    ],
    ids=["empty", "nothing more", "one byte", "overloaded"],
)
def test_requests_that_bring_nothing_are_few_and_have_pauses(
    hub: Hub, capsys, answer: Callable[[Any, bytes], None]
):
    hub.answers = [answer]
    err = failure(capsys, "the same command resumes from there")
    assert f"of {len(DATA)} bytes" in err and len(hub.ranges) == download.TRIES
    assert hub.pauses == sorted(set(hub.pauses)) and len(hub.pauses) == download.TRIES - 1


def silent(request: Any, data: bytes) -> None:
    request.send_response(200)
    request.end_headers()
    request.hub.over.wait()


def dripping(request: Any, data: bytes) -> None:
    request.send_response(200)
    request.end_headers()
    with contextlib.suppress(OSError):
        while not request.hub.over.wait(0.01):
            request.wfile.write(b"G")


@pytest.mark.parametrize("answer", [silent, dripping])
def test_a_connection_that_stalls_or_is_too_slow_is_ended(
    hub: Hub, tmp_path, monkeypatch, answer: Callable[[Any, bytes], None]
):
    """A try is over when its time is, whether or not the server has begun to answer by then."""
    (remote,) = files("someone/some-GGUF:Q8_0")
    direct = dataclasses.replace(remote, url=f"http://localhost:{hub.port}/cdn/{remote.name}")
    monkeypatch.setattr("tgr_local.commands.hub.TIMEOUT", 0.1 if answer is silent else HANG)
    monkeypatch.setattr(download, "WINDOW", 0.05)
    hub.answers = [answer]
    with pytest.raises(TgrError, match=r"the connection to .* broke at"):
        download.fetch(direct, tmp_path / "model.gguf")
    assert len(hub.pauses) == download.TRIES - 1
    wait_until(lambda: len(hub.ranges) == download.TRIES)  # the server's threads may be late


def test_a_machine_without_a_network_says_so(hub: Hub, capsys, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    err = failure(capsys, "http://127.0.0.1:1/someone/some-GGUF cannot be reached: ")
    assert err.endswith("; check the network, or try again later\n") and "[Errno" not in err


def test_a_hub_that_does_not_answer_times_out(hub: Hub, capsys, monkeypatch):
    monkeypatch.setattr("tgr_local.commands.hub.TIMEOUT", 0.1)
    monkeypatch.setattr(hub, "listing", lambda: hub.over.wait() and {})
    assert failure(capsys, "someone/some-GGUF cannot be read: ").endswith("; try again later\n")
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror")
    failure(capsys, "; try again later, or correct HF_ENDPOINT\n")


@pytest.mark.parametrize("place", ["", "file:///etc/passwd"], ids=["itself", "a file"])
def test_redirections_that_lead_nowhere_are_one_line(hub: Hub, capsys, place: str):
    hub.answers = [lambda r, data: Hub.send(r, 302, b"", {"Location": place or r.path})]
    failure(capsys, "/some-Q8_0.gguf ")


def too_much(request: Any, data: bytes) -> None:
    request.send_response(200)
    request.end_headers()
    with contextlib.suppress(OSError):
        while not request.hub.over.is_set():
            request.wfile.write(bytes(1 << 20))


def test_a_server_that_sends_without_end_does_not_fill_the_disk(hub: Hub, home: Path, capsys):
    hub.answers = [too_much]
    failure(capsys, "sent more than its 3000000 bytes; try again")
    (part,) = pulled(home).parent.iterdir()
    assert part.stat().st_size == 0


def test_other_bytes_than_requested_are_refused(hub: Hub, capsys):
    hub.answers = [lambda r, d: Hub.send(r, 206, d[9:], {"Content-Range": "bytes 9-/*"})]
    failure(capsys, "sent other bytes than requested")


def test_a_part_that_the_server_has_no_rest_of_begins_anew(hub: Hub, home: Path):
    part_of(home).write_bytes(b"junk")
    hub.answers = [
        lambda r, d: Hub.send(r, 416, b"", {"Content-Range": "bytes */3000000"}),
        lambda r, d: Hub.send(r, 200, d),
    ]
    assert run(*PULL) == 0 and pulled(home).read_bytes() == DATA
    assert hub.ranges == ["bytes=4-", None]


def test_a_part_that_is_too_long_begins_anew(hub: Hub, home: Path):
    part_of(home).write_bytes(bytes(len(DATA) + 1))
    assert run(*PULL) == 0 and pulled(home).read_bytes() == DATA


def test_a_disk_that_fills_up_meanwhile_names_the_file(hub: Hub, home: Path, capsys):
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, old[1]))
    try:
        err = failure(capsys, ".part cannot be written at 1000000 bytes: ")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert str(pulled(home)) in err
    assert run(*PULL) == 0 and hub.ranges == [None, "bytes=1000000-"]


# ---- a listing that is no good ----


@pytest.mark.parametrize(
    "changes",
    [
        {"size": None},
        {"size": "3"},
        {"size": 0},
        {"size": -1},
        {"lfs": None},
        {"lfs": {"sha256": None, "size": 1, "pointerSize": 1}},
        {"lfs": {"sha256": "../../x", "size": 1, "pointerSize": 1}},
        {"lfs": {"size": 1, "pointerSize": 1}},
        {"rfilename": 7},
    ],
)
def test_a_listing_that_lacks_what_must_be_known_is_one_line(
    hub: Hub, capsys, changes: dict[str, Any]
):
    hub.changes = changes
    err = failure(capsys, "someone/some-GGUF ")
    assert "does not give size and sha256" in err or " cannot be read: " in err
    assert hub.ranges == []


@pytest.mark.parametrize(
    "name", ["../x-Q8_0.gguf", "a/../Q8_0.gguf", "\x1b[2J-Q8_0.gguf", ".Q8_0.gguf"]
)
def test_file_names_outside_the_folder_or_with_control_characters_are_ignored(
    hub: Hub, home: Path, capsys, name: str
):
    hub.files = {name: DATA}
    failure(capsys, "has no GGUF file")
    assert not (home / "data").exists()


def test_a_thousand_files_are_not_all_named(hub: Hub, capsys):
    hub.files = {f"{number}.gguf": b"x" for number in range(1000)}
    assert run("models", "pull", "someone/some-GGUF") == 2
    err = capsys.readouterr().err
    assert err.endswith(" and 980 more\n") and len(err) < 500


def test_a_split_model_without_all_its_parts_is_refused(hub: Hub, capsys):
    hub.files = {f"big-Q8_0-0000{number}-of-00003.gguf": b"x" for number in (1, 3)}
    failure(capsys, "has 2 parts of big-Q8_0.gguf, but some are missing")


def test_without_huggingface_hub_the_way_out_is_named(capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    assert run(*PULL) == 1
    assert "run: pip install 'tgr-local[hub]'" in capsys.readouterr().err
