"""The cores within an affinity, a number given to Python, and the CPU quota of control groups."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from command_line import run

from tgr_local.engine import physical_cores
from tgr_local.system import cores
from tgr_local.system.sandbox import commands

V2 = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
OTHER = "34 30 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
CPU = "sys/fs/cgroup/cpu,cpuacct"


def made(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("groups", "mounts", "files", "quota", "file"),
    [
        ("0::/a/b\n", V2, {"sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 1.5, "a/b/cpu.max"),
        ("0::/\n", V2, {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0, "cgroup/cpu.max"),
        (  # the least on the way up
            "0::/a/b/c\n", V2,
            {
                "sys/fs/cgroup/a/b/c/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
                "sys/fs/cgroup/cpu.max": "max 100000\n",
            },
            0.5, "cgroup/a/cpu.max",
        ),
        ("0::/a\n", V2, {"sys/fs/cgroup/a/cpu.max": "max 100000\n"}, None, ""),
        ("0::/a\n", V2, {"sys/fs/cgroup/other/cpu.max": "100000 100000\n"}, None, ""),
        # a group that a container does not see: its own is mounted
        ("0::/docker/x\n", V2, {"sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3.0, "cgroup/cpu.max"),
        ("0::/../../x\n", V2, {"sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3.0, "cgroup/cpu.max"),
        (
            "0::/docker/x/in\n", V2.replace(" / /sys", " /docker/x /sys"),
            {"sys/fs/cgroup/in/cpu.max": "100000 100000\n"}, 1.0, "cgroup/in/cpu.max",
        ),
        (  # version 1, beside the other one
            "4:memory:/m\n3:cpu,cpuacct:/u/v\n0::/\n", OTHER + V1,
            {
                f"{CPU}/u/cpu.cfs_quota_us": "250000\n",
                f"{CPU}/u/cpu.cfs_period_us": "100000\n",
                f"{CPU}/u/v/cpu.cfs_quota_us": "-1\n",
                f"{CPU}/u/v/cpu.cfs_period_us": "100000\n",
            },
            2.5, "u/cpu.cfs_quota_us",
        ),
        (  # without a list of mounts, at the usual places
            "3:cpu:/u\n", "",
            {
                "sys/fs/cgroup/cpu/u/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/u/cpu.cfs_period_us": "50000\n",
            },
            2.0, "u/cpu.cfs_quota_us",
        ),
        ("0::/a\n", "", {"sys/fs/cgroup/a/cpu.max": "100000 100000\n"}, 1.0, "a/cpu.max"),
        # nothing to understand
        *[
            ("0::/\n", V2, {"sys/fs/cgroup/cpu.max": text}, None, "")
            for text in ("", "x y\n", "100000\n", "100000 0\n", "-1 100000\n", "0 100000\n")
        ],
        ("nonsense\n:\n1:cpu\n", "nonsense\n - cgroup2\n", {}, None, ""),
        ("", "", {}, None, ""),
    ],
)  # fmt: skip
def test_the_quota_is_the_least_on_the_way_up(
    tmp_path, groups: str, mounts: str, files: dict[str, str], quota: float | None, file: str
):
    proc = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts}
    found = cores.quota(made(tmp_path, {**proc, **files}))
    assert (found and found.cores) == quota
    assert found is None or str(found.file).endswith(file)


def test_a_system_without_control_groups_has_no_quota(tmp_path):
    assert cores.quota(tmp_path) is None


@pytest.mark.parametrize(
    ("quota", "n"), [(None, 6), (64.0, 6), (6.0, 6), (2.5, 3), (2.0, 2), (0.5, 1), (0.001, 1)]
)
def test_the_threads_stay_within_the_quota(monkeypatch, quota: float | None, n: int):
    limit = None if quota is None else cores.Quota(quota, Path("cpu.max"))
    monkeypatch.setattr(cores, "quota", lambda: limit)
    monkeypatch.setattr(cores, "allowed", lambda: list(range(90_000, 90_006)))  # of no machine
    assert cores.usable() == physical_cores() == n


def test_the_quota_bounds_the_cpu_time_of_a_command(monkeypatch, tmp_path):
    monkeypatch.setattr(cores, "usable", lambda: 3)
    limits = commands.CommandLimits(seconds=60.0)
    outcome = commands.run("ulimit -t", commands.Place(tmp_path, tmp_path), limits, "none")
    assert outcome.output == "181\n"


def test_the_affinity_and_a_number_given_to_python_count(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 3, 5}, raising=False)
    monkeypatch.delattr(os, "process_cpu_count", raising=False)
    assert cores.allowed() == [3, 5, 7]
    for given, n in ((3, 3), (2, 2), (1, 1), (64, 3)):
        monkeypatch.setattr(os, "process_cpu_count", lambda given=given: given, raising=False)
        assert len(cores.allowed()) == n
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.setattr(os, "process_cpu_count", lambda: None, raising=False)
    assert cores.allowed() == [0]


@pytest.mark.parametrize(
    ("quota", "line"),
    [
        (None, "4 cores; "),
        (cores.Quota(4.0, Path("/g/cpu.max")), "4 cores; "),
        (
            cores.Quota(1.5, Path("/g/cpu.max")),
            "4 cores, of which a CPU quota gives the time of 1.5 (/g/cpu.max); ",
        ),
    ],
)
def test_doctor_names_the_quota(
    double: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    quota: cores.Quota | None, line: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(cores, "quota", lambda: quota)
    monkeypatch.setattr(cores, "allowed", lambda: [0, 1, 2, 3])
    assert run("doctor", "--model", "f.gguf") == 0
    (cpu, *_) = [one for one in capsys.readouterr().out.split("\n") if one[2:].startswith("cpu ")]
    assert line in cpu
