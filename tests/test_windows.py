"""Windows, acted out on this system: modules and functions that it lacks are taken away."""

from __future__ import annotations

import ctypes
import select
import subprocess
import sys

import pytest
from surroundings import HANG, PACKAGE, environment

from tgr_local.commands import cli, doctor
from tgr_local.lab.eval import programs
from tgr_local.options.config import EngineConfig
from tgr_local.system import confined, job_object
from tgr_local.system.sandbox import backends

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
