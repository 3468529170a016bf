"""Models whose layers are on RPC servers: what they compute, and what happens when one is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import finished, run
from engines import ENDLESS, TOKENS, assert_same
from families import FAMILIES, Family
from fixture_types import Load, Model
from rpc_servers import Server, free_port, outputs, server
from surroundings import HANG, environment

from tgr_local.engine import Engine, FreeMemory, Task, memory_need, rpc
from tgr_local.options.config import EngineConfig
from tgr_local.system.errors import ModelError, TgrError


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    with server() as one, server() as two:
        yield [one, two]


def test_layers_on_two_servers_compute_what_they_compute_here(
    model: Model, load: Load, servers: list[Server]
):
    path = model()
    here = outputs(load(path))
    names = ",".join(name for name, _ in servers)
    engine = load(path, n_gpu_layers=-1, rpc=names, tensor_split=(1.0, 1.0))
    assert len(set(engine.devices())) == 2 and all(d.startswith("RPC") for d in engine.devices())
    for ours, theirs in zip(outputs(engine), here, strict=True):
        assert_same(ours, theirs)


@pytest.fixture(scope="module")
def lasting() -> Iterator[Server]:
    with server() as one:
        yield one


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_loads_onto_a_device(family: Family, lasting: Server, tmp_path):
    """Layers without keys are not asked whether the device has attention for them."""
    path = family.write(tmp_path / "model.gguf")
    with Engine(path, EngineConfig(n_gpu_layers=-1, rpc=lasting[0])) as engine:
        assert all(device.startswith("RPC") for device in engine.devices())
        engine.devices_without_attention()


def test_a_server_keeps_large_tensors_and_uses_no_damaged_ones(model: Model, load: Load, tmp_path):
    path, kept = model(n_ff=45056), tmp_path / "new" / "kept"
    here = outputs(load(path))
    with server("--cache", str(kept)) as (name, _):
        for _ in range(3):
            engine = load(path, n_gpu_layers=-1, rpc=name)
            for ours, theirs in zip(outputs(engine), here, strict=True):
                assert_same(ours, theirs)
            engine.close()
            files = sorted(kept.iterdir())  # gate, up and down of two layers
            assert [file.stat().st_size for file in files] == [4 * 64 * 45056] * 6
            os.truncate(files[0], 4 * 64 * 45056 - 4096)
            os.truncate(files[1], 0)


def test_a_server_that_dies_ends_the_work_and_not_the_process(
    model: Model, load: Load, servers: list[Server]
):
    names = ",".join(name for name, _ in servers)
    engine = load(model(), n_gpu_layers=-1, rpc=names, tensor_split=(1.0, 1.0))
    assert outputs(engine)
    name, dying = servers[1]
    os.kill(dying.pid, signal.SIGKILL)
    dying.wait()
    for _ in range(2):
        with pytest.raises(TgrError, match=f"the RPC server at {name} is lost, with its part"):
            outputs(engine)
    engine.close()
    with pytest.raises(ModelError, match=f"the RPC server at {name} cannot be used"):
        load(model(), n_gpu_layers=-1, rpc=names)


def test_a_server_that_dies_in_the_middle_of_a_text_ends_it(model: Model, load: Load):
    with server() as (name, dying):
        engine = load(model(), n_gpu_layers=-1, rpc=name, n_ctx=ENDLESS)
        with engine.session(ENDLESS - 64, 1) as session:
            task = Task(session.sequence(), TOKENS, n_generate=ENDLESS - 128, ignore_eog=True)
            threading.Timer(0.3, dying.kill).start()
            with pytest.raises(TgrError, match=f"the RPC server at {name} is lost"):
                session.run([task])


def test_a_server_that_hangs_counts_as_lost(model: Model, load: Load, monkeypatch):
    monkeypatch.setenv("TGR_RPC_SECONDS", "1")
    with server() as (name, hanging):
        engine = load(model(), n_gpu_layers=-1, rpc=name)
        assert outputs(engine)
        os.kill(hanging.pid, signal.SIGSTOP)
        for _ in range(2):
            with pytest.raises(TgrError, match=f"the RPC server at {name} is lost"):
                outputs(engine)
        os.kill(hanging.pid, signal.SIGCONT)  # what it answers now is not taken for another answer
        with pytest.raises(TgrError, match=f"the RPC server at {name} is lost"):
            outputs(engine)
        engine.close()


WRITES = """
import sys
from tgr_local import Engine, EngineConfig
from tgr_local.engine import Task
engine = Engine(sys.argv[1], EngineConfig(n_gpu_layers=-1, rpc=sys.argv[2]))
with engine.session(900, 3) as session:
    print("begins", flush=True)
    for _ in range(3):
        task = Task(session.sequence(), [1], n_generate=200, ignore_eog=True)
        print(len(session.run([task])[0].tokens), flush=True)
"""


def test_a_process_that_is_stopped_goes_on_with_its_server(model: Model):
    """As by Ctrl-Z, while it waits for an answer."""
    with server() as (name, waited_for):
        client = subprocess.Popen(
            [sys.executable, "-c", WRITES, str(model()), name],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert client.stdout and client.stdout.readline() == b"begins\n"
            for _ in range(3):
                os.kill(waited_for.pid, signal.SIGSTOP)
                time.sleep(0.1)  # the client comes to wait
                os.kill(client.pid, signal.SIGSTOP)
                time.sleep(0.05)
                os.kill(client.pid, signal.SIGCONT)
                time.sleep(0.05)
                os.kill(waited_for.pid, signal.SIGCONT)
            out, error = client.communicate(timeout=HANG)
        finally:
            client.kill()
            client.wait()
    assert (client.returncode, out, error) == (0, b"200\n" * 3, b"")


def test_a_model_is_loaded_again_when_its_server_is_back(model: Model, load: Load):
    with server() as (name, first):
        engine = load(model(), n_gpu_layers=-1, rpc=name)
        here = outputs(engine)
        first.kill()
        first.wait()
        with pytest.raises(TgrError, match="is lost"):
            outputs(engine)
        engine.close()
        with server(port=int(name.rpartition(":")[2])):
            again = outputs(load(model(), n_gpu_layers=-1, rpc=name))
    for ours, theirs in zip(again, here, strict=True):
        assert_same(ours, theirs)


@contextlib.contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """A server that answers every question with these bytes, or with None not at all."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    kept.append(connection)
                    if answer is not None:
                        connection.sendall(answer)
                        connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_a_server_of_another_version_is_refused(small: Path):
    hello = struct.pack("<Q4B24x", 28, 3, 1, 4, 0)
    with answering(hello) as name, pytest.raises(ModelError) as refused:
        Engine(small, EngineConfig(rpc=name))
    assert f"the RPC server at {name} speaks version 3.1 of the protocol, but" in str(refused.value)


def test_a_server_that_says_nothing_is_not_awaited_for_ever(small: Path, monkeypatch):
    monkeypatch.setattr(rpc, "ANSWER_SECONDS", 0.2)
    with answering(None) as name, pytest.raises(ModelError, match="serves one program at a time"):
        Engine(small, EngineConfig(rpc=name))
    with answering(b"HTTP") as name, pytest.raises(ModelError, match=r"cannot be used .*--rpc"):
        Engine(small, EngineConfig(rpc=name))


def test_without_layers_for_it_no_server_is_asked(small: Path):
    name = f"127.0.0.1:{free_port()}"
    with Engine(small, EngineConfig(rpc=name, n_gpu_layers=0)) as engine:
        assert set(engine.devices()) == {"CPU"}
    with pytest.raises(ModelError, match=f"{name} cannot be used .*--rpc"):
        Engine(small, EngineConfig(rpc=name))


@pytest.mark.parametrize(
    "text", ["host", "host:0", "host:70000", "host:9999990", "a:1,,b:2", "a:1,a:1", ":1"]
)
def test_a_malformed_address_is_refused(text: str):
    why = "a port must be between 1 and 65535" if text[-1] == "0" else "must "
    with pytest.raises(ValueError, match=f"rpc is .*, but {why}"):
        rpc.endpoints(text)
    assert rpc.endpoints("a:1, b.c:50052") == ["a:1", "b.c:50052"] and not rpc.endpoints("")


def test_what_servers_hold_does_not_count_here(small: Path):
    need = memory_need(small, EngineConfig(rpc="a:1"), FreeMemory(None, 0))
    assert (need.ram, need.gpu) == (0, 0)


def test_a_server_says_why_it_cannot_start(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, said = finished("rpc-server", "--port", str(port), double=False)
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another" in said
    for wrong, why in (
        (["--cache", __file__, "--port", str(port)], f"{__file__}: it is not a folder; move it"),
        (["--host", "localhost"], "host is 'localhost', but must be an IPv4 address"),
        (["--port", "0"], "port is 0, but must be between 1 and 65535"),
        (["--port", "99999"], "port is 99999, but must be between 1 and 65535"),
        (["-t", "-1"], "n_threads is -1, but must be between 0 and 512"),
    ):
        assert run("rpc-server", *wrong) == (1 if wrong[0] == "--cache" else 2)
        assert why in capsys.readouterr().err
