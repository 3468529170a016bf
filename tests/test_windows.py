"""Windows, acted out on this system: modules and functions that it lacks are taken away."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from surroundings import HANG, PACKAGE, environment

from tgr_local.chat import terminal
from tgr_local.commands import cli, doctor
from tgr_local.console import endings, input_line, windows
from tgr_local.engine.native import set_variable
from tgr_local.lab.eval import programs
from tgr_local.options import settings
from tgr_local.options.config import EngineConfig
from tgr_local.server import log, serve
from tgr_local.system import confined, file_hash, files, job_object
from tgr_local.system.errors import TgrError
from tgr_local.system.sandbox import backends
from tgr_local.system.text_files import decode_utf8

MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.stem not in ("__main__", "_launch")  # which runs inside a sandbox
)
LACKING = """
import importlib, os, select, signal, sys
modules = sys.argv[1].split()
for name in modules:  # what they need of others stays loaded
    importlib.import_module(name)
for name in [name for name in sys.modules if name.partition(".")[0] == "tgr_local"]:
    if name not in ("tgr_local._engine", "tgr_local._chat"):
        del sys.modules[name]
for name in ("fcntl", "termios", "resource", "pwd", "grp", "pty", "tty"):
    sys.modules[name] = None
lacks = {
    os: "register_at_fork O_NOFOLLOW O_NONBLOCK O_DIRECTORY fchmod fork getuid killpg getloadavg "
    "sched_getaffinity statvfs pread setsid set_blocking",
    select: "poll epoll",
    signal: "SIGXCPU SIGVTALRM SIGALRM SIGHUP setitimer",
}
for module, names in lacks.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in modules:
    importlib.import_module(name)
from tgr_local.commands import cli
sys.exit(cli.main(["run", "What is 2+3?"]))
"""


def test_everything_is_imported_and_answers_without_posix():
    done = subprocess.run(
        [sys.executable, "-c", LACKING, " ".join(MODULES)],
        env=environment(), capture_output=True, text=True, timeout=HANG,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert done.stdout.strip() == r"The answer is \boxed{5}."


def test_a_worker_that_cannot_be_waited_for_is_ended_in_time(monkeypatch):
    monkeypatch.delattr(select, "poll")
    monkeypatch.setattr(confined, "WALL_SECONDS", 0.05)
    forever = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    request = {"messages": [], "only_prompt": True}
    with pytest.raises(confined.ConfinedError, match=r"takes more than 0.05 s"):
        confined.apply_template(forever, "", "", request)
    monkeypatch.setattr(confined, "WALL_SECONDS", HANG)
    assert confined.apply_template("x", "", "", request)["prompt"] == "x"


def test_what_needs_a_sandbox_is_refused_in_a_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(backends, "EXISTS", False)
    monkeypatch.chdir(tmp_path)
    for command in ("code", "acp"):
        assert cli.main([command]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line == (
            f"tgr-local: tgr-local {command} needs a sandbox for programs, and Windows has none; "
            "install tgr-local in WSL"
        )
    with pytest.raises(programs.InstallError, match="eval --allow-exec needs a sandbox"):
        programs.check()
    found = {finding.name: finding for finding in doctor.examine(None, EngineConfig())}
    assert found["sandbox"].status == "warning" and "WSL" in found["sandbox"].detail


def test_the_limits_have_the_layout_of_windows():
    assert ctypes.sizeof(job_object.JobLimits) == 144
    assert job_object.JobLimits.process_memory.offset == 112


def test_the_reader_of_a_pipe_may_end(monkeypatch, capsys):
    """Windows calls that an invalid argument."""
    read, write = os.pipe()
    monkeypatch.setattr(sys, "stdout", windows.to_pipe(os.fdopen(write, "w")))
    print("Grüße, 你好", flush=True)
    assert os.read(read, 100).decode() == "Grüße, 你好\n"
    os.close(read)

    def write_to_nobody(descriptor, data):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_to_nobody)
        assert cli.main(["models"]) == 1
    assert not capsys.readouterr().err


def test_a_lock_is_closed_before_its_file_is_removed(monkeypatch, tmp_path):
    """Windows removes no open file."""
    monkeypatch.setattr(files, "fcntl", None)
    monkeypatch.setattr(files, "lock_far_byte", lambda descriptor: None)
    lock = files.Lock(path := tmp_path / "lock")
    assert lock.take()
    inode, unlink = path.stat().st_ino, Path.unlink

    def refuse_open(path):
        for descriptor in range(256):
            with contextlib.suppress(OSError):
                if os.fstat(descriptor).st_ino == inode:
                    raise PermissionError(errno.EACCES, "it is open", str(path))
        unlink(path)

    monkeypatch.setattr(Path, "unlink", refuse_open)
    lock.release()
    assert not path.exists()


def test_typed_lines_are_stored_with_the_line_ends_that_they_are_read_with(monkeypatch, tmp_path):
    """A file of `os.open` is one of text there, whose line ends become two characters."""
    flags, opened = [], os.open
    monkeypatch.setattr(input_line, "BINARY", os.O_SYNC)  # a flag that nothing else sets
    monkeypatch.setattr(os, "open", lambda *given: flags.append(given[1]) or opened(*given))
    history = input_line.HistoryFile(tmp_path / "history", input_line.Pastes())
    history.append_string("a\nb")
    assert flags and all(given & os.O_SYNC == os.O_SYNC for given in flags)
    assert history.load_history_strings() == ["a\nb"]


def test_paths_of_an_editor_keep_their_backslashes(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "name", "nt")
        words = terminal.command_words(r'"C:\Program Files\vim.exe" -f')
    assert words == [r"C:\Program Files\vim.exe", "-f"]
    assert terminal.command_words(r"a\ b '#c' #d") == ["a b", "#c", "#d"]


def test_the_server_asks_windows_neither_for_modes_nor_for_terminals(monkeypatch, tmp_path):
    path = tmp_path / "log"
    path.touch(0o666)
    written = log.Log(str(path))
    path.chmod(0o666)  # as every file of Windows seems
    assert written.is_shared
    monkeypatch.delattr(os, "tcgetpgrp")
    monkeypatch.setattr(os, "name", "nt")
    assert not written.is_shared
    with pytest.raises(OSError):
        serve.reads_more(-1)
    monkeypatch.undo()
    written.close()


def test_what_windows_writes_instead_of_utf_8_is_named(monkeypatch, tmp_path):
    path = tmp_path / "tgr-local" / "config.toml"
    path.parent.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for data, hint in (
        (rb'models_dir = "C:\Users\me"', "in single quotes: models_dir = 'C:\\models'"),
        (b"temperature = 0,6", "write one option to a line: sigma = 0.1"),
        ("models_dir = 'ü'".encode("utf-16"), "save it as UTF-8"),
    ):
        path.write_bytes(data)
        with pytest.raises(ValueError) as raised:
            settings.models_dir()
        assert str(raised.value).endswith(hint)
    with monkeypatch.context() as patch:
        patch.setattr(os, "name", "nt")
        with pytest.raises(TgrError, match=r"offset 2; a console sends UTF-8 after: chcp 65001"):
            decode_utf8("Grüße".encode("cp850"), "stdin")


def test_a_file_whose_path_cannot_be_resolved_is_known(monkeypatch, tmp_path):
    path = tmp_path / "model"
    path.write_bytes(b"x")

    def refuse(path, strict=False):
        raise OSError(errno.EINVAL, "More data available", str(path))

    monkeypatch.setattr(Path, "resolve", refuse)
    assert file_hash.identity(path) == file_hash.identity(path)
    with pytest.raises(FileNotFoundError):
        file_hash.identity(tmp_path / "none")


def test_a_console_that_is_closed_ends_what_was_begun(monkeypatch):
    monkeypatch.setattr(signal, "SIGBREAK", signal.SIGUSR1, raising=False)
    ended = []
    with pytest.raises(SystemExit) as raised, endings.ended_by_signals():
        try:
            signal.raise_signal(signal.SIGUSR1)
        finally:
            ended.append("saved")
    assert (raised.value.code, ended) == (128 + signal.SIGUSR1, ["saved"])


def test_a_variable_is_set_for_both_c_libraries(monkeypatch):
    """The extension's has its own copy of the environment there."""
    given = []
    libraries = {"msvcrt": type("msvcrt", (), {"_putenv": given.append})}
    monkeypatch.setattr(os, "name", "nt")
    monkeypatch.setattr(ctypes, "CDLL", libraries.__getitem__)
    set_variable("TGR_TEST_VARIABLE", "1")
    assert os.environ["TGR_TEST_VARIABLE"] == "1"
    set_variable("TGR_TEST_VARIABLE", "")
    assert "TGR_TEST_VARIABLE" not in os.environ
    assert given == [b"TGR_TEST_VARIABLE=1", b"TGR_TEST_VARIABLE="]
