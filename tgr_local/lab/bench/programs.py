"""Other programs as contenders, where the person names them: ``--peer NAME=PROGRAM``.

They have as many threads as the engine, and else their own defaults.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE

from tgr_local.system.errors import TgrError

Seconds = Callable[[int, int], float]
"""Seconds of a prompt of that many tokens, or of a text of that many: the other number is 0."""


@contextmanager
def _llama_bench(program: str, path: Path, n_threads: int) -> Iterator[Seconds]:
    """The program llama-bench of ik_llama.cpp, with rows repacked at load time. Each measurement is
    a process, which loads the model anew."""
    command = [program, "-m", str(path), "-t", str(n_threads), "-rtr", "1", "-r", "1", "-o", "json"]

    def seconds(n_read: int, n_written: int) -> float:
        counts = ["-p", str(n_read), "-n", str(n_written)]
        ended = subprocess.run([*command, *counts], capture_output=True, check=False)
        try:
            return float(json.loads(ended.stdout)[0]["avg_ns"]) / 1e9
        except (ValueError, LookupError, TypeError):
            raise _broken(program, ended.stderr) from None

    yield seconds


@contextmanager
def _openvino(program: str, path: Path, n_threads: int) -> Iterator[Seconds]:
    """OpenVINO GenAI, in a process of the Python that has it, which loads the model once."""
    loop = Path(__file__).with_name("openvino_loop.py")
    command = [program, "-I", str(loop), str(path), str(n_threads)]
    with (
        tempfile.TemporaryFile() as messages,
        subprocess.Popen(command, bufsize=0, stdin=PIPE, stdout=PIPE, stderr=messages) as process,
    ):

        def seconds(n_read: int, n_written: int) -> float:
            assert process.stdin and process.stdout
            try:
                process.stdin.write(f"{n_read} {n_written}\n".encode())
                return float(process.stdout.readline())
            except (OSError, ValueError):
                process.kill()
                process.wait()
                messages.seek(0)
                raise _broken(program, messages.read()) from None

        try:
            yield seconds
        finally:
            process.kill()


def _broken(program: str, messages: bytes) -> TgrError:
    lines = messages.decode(errors="replace").strip().splitlines()
    said = f"its last line is: {lines[-1].strip()}" if lines else "it said nothing"
    return TgrError(f"the peer {program} gives no measurement; {said}")


KINDS: Mapping[str, Callable[[str, Path, int], AbstractContextManager[Seconds]]] = {
    "ik": _llama_bench,
    "openvino": _openvino,
}


def parse(texts: Sequence[str]) -> dict[str, str]:
    """The programs by kind. ValueError for an unknown kind, or a program that is not there."""
    programs = {}
    for text in texts:
        kind, _, program = text.partition("=")
        if kind not in KINDS:
            kinds = " or ".join(f"{name}=PROGRAM" for name in KINDS)
            raise ValueError(f"--peer is {text!r}, but must be {kinds}")
        if shutil.which(program) is None:
            raise ValueError(f"--peer is {text!r}, but {program!r} is not a program; give its path")
        programs[kind] = program
    return programs


@contextmanager
def opened(programs: Mapping[str, str], path: Path, n_threads: int) -> Iterator[dict[str, Seconds]]:
    """The programs as contenders on a model."""
    with ExitStack() as stack:
        yield {
            kind: stack.enter_context(KINDS[kind](program, path, n_threads))
            for kind, program in programs.items()
        }
