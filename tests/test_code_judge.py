"""The judge: what tests say, and that their command harms nothing, in the backends here."""

from __future__ import annotations

import math
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sandboxes
from code_folders import commit, contents, git, write
from threads import is_running, wait_until

from tgr_local.code.edits import Change
from tgr_local.code.folder.copies import Copies
from tgr_local.code.folder.project import Project
from tgr_local.code.judging.judge import Verdict, check, judge, patience, warning
from tgr_local.engine import Cancel
from tgr_local.system.errors import CancelledError, InstallError
from tgr_local.system.sandbox import backends, commands
from tgr_local.system.sandbox.backends import Backend
from tgr_local.system.sandbox.commands import CommandLimits
from tgr_local.system.sandbox.fetched import fetched

FILES: dict[str, str | bytes] = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "import calc\n\n\ndef test_add():\n    assert calc.add(2, 3) == 5\n\n\n"
    "def test_zero():\n    assert calc.add(0, 0) == 0\n",
}
FIXED = Change("calc.py", str(FILES["calc.py"]), "def add(a, b):\n    return a + b\n")
PYTEST = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -q test_calc.py"
SHORT = CommandLimits(seconds=60, memory=1 << 30, disk=8 << 20, processes=64, output=1 << 20)


@pytest.fixture(params=backends.CHOICES, scope="module")
def backend(request) -> Backend:
    """Every backend that works on this machine."""
    return sandboxes.needed(request.param, commands.obstacle)


@pytest.fixture
def best() -> Backend:
    """The strongest one."""
    return sandboxes.strongest(commands.obstacle)


@pytest.fixture
def closed() -> Backend:
    return sandboxes.needed("bwrap", commands.obstacle)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / "project", FILES)
    return tmp_path / "project"


@pytest.fixture
def copies(folder: Path) -> Iterator[Copies]:
    before = contents(folder)
    with Copies(Project(folder)) as copies:
        yield copies
    assert contents(folder) == before


def said(copies: Copies, command: str, backend: Backend, limits: CommandLimits = SHORT) -> Verdict:
    return judge(copies.make(), command, limits, backend=backend)


def test_the_tests_decide(copies: Copies, backend: Backend):
    before = judge(copies.make(), PYTEST, SHORT, backend=backend)
    assert (before.ran, before.passed, before.failed, before.ended) == (True, 1, 1, "failed")
    assert not before.passes and before.summary == "1 of 2 pass" and before.framework == "pytest"
    [failure] = before.failures
    assert (failure.name, failure.file, failure.line) == (
        "test_calc.py::test_add", "test_calc.py", 5,
    )  # fmt: skip
    assert "assert -1 == 5" in failure.message
    after = judge(copies.make([FIXED]), PYTEST, SHORT, backend=backend, baseline=before)
    assert after.passes and after.passed == 2 and after.summary == "2 of 2 pass"


@pytest.mark.parametrize("code", ["import os\nos._exit(0)\n", "def add(a, b):\n    return 0\n"])
def test_fewer_tests_do_not_pass(copies: Copies, best: Backend, code: str):
    before = Verdict(True, 1, 1, 0, 0, 0.0, "", "failed", (), "pytest")
    place = copies.make([replace(FIXED, after=code)])
    one = f"{PYTEST}::test_zero"
    verdict = judge(place, one, SHORT, backend=best, baseline=before)
    assert verdict.ended == "fewer tests" and verdict.ran and not verdict.passes
    assert "fewer tests ran" in verdict.summary


def test_what_is_no_longer_listed_passes(copies: Copies, best: Backend):
    """Checkers, and some frameworks, print failures alone."""
    mypy = "test -s errors || exit 0; cat errors; exit 1"
    errors = [f"a.py:{line}: error: wrong {line}\n" for line in range(4)]
    go = ["--- FAIL: TestA (0.00s)\n", "--- FAIL: TestB (0.00s)\n"]
    go_ends = "FAIL\tx\t0.002s\n"

    def verdict(text: str, baseline: Verdict | None = None) -> Verdict:
        place = copies.make([Change("errors", "", text)])
        return judge(place, mypy, SHORT, backend=best, baseline=baseline)

    before = verdict("".join(errors))
    assert (before.passed, before.errors, before.summary) == (0, 4, "4 errors")
    one = verdict(errors[2], before)
    assert (one.passed, one.errors, one.summary) == (3, 1, "1 error") and one.is_beyond(before)
    none = verdict("", before)
    assert none.passes and none.is_beyond(one) and none.summary == "4 of 4 pass"
    hidden = verdict("a.py:1: error: bad syntax\n", before)  # the others are not looked for
    assert not hidden.is_beyond(before)
    tests = verdict("===== 1 failed, 1 passed in 0.01s =====\n", before)  # once it compiles
    assert (tests.passed, tests.total) == (1, 2) and tests.is_beyond(before)
    before = verdict("".join(go) + go_ends)
    assert before.summary == "0 of 2 pass"
    one = verdict(go[1] + go_ends, before)
    assert one.summary == "1 of 2 pass" and one.is_beyond(before)


def test_how_a_command_ended_is_said(copies: Copies, best: Backend):
    for command, ended in {
        "exit 3": "failed",
        "exit 0": "passed",
        "no-such-command": "not found",
        "kill -9 $$": "killed",
        f"{PYTEST} -k nothing": "no tests",
        f"{PYTEST} | tail -n 3": "failed",
        f"{PYTEST}; true": "failed",
        "sleep 600": "timed out",
        "while :; do :; done": "timed out",
        "trap '' TERM INT HUP; sleep 600 & wait": "timed out",
        "yes": "output",
    }.items():
        seconds = 0.5 if ended == "timed out" else 60.0
        verdict = said(copies, command, best, replace(SHORT, seconds=seconds))
        assert verdict.ended == ended, command
        assert verdict.ran == (ended in ("failed", "passed", "no tests"))
        assert len(verdict.output) < 200_000


def test_output_keeps_its_beginning_and_its_end(copies: Copies, best: Backend):
    output = said(copies, "echo first; seq 100000; echo last >&2; exit 1", best).output
    assert output.startswith("first\n1\n2\n") and output.endswith("99999\n100000\nlast\n")
    assert "bytes left out …" in output and len(output) < 140_000


FORK = "import os, time\nfor i in range(4):\n    if os.fork() == 0:\n        os.setsid()\n"


def test_memory_and_disk_are_bounded(copies: Copies, best: Backend):
    if not Path("/proc/self/status").exists():
        pytest.skip("memory is measured on Linux only")
    python = sys.executable
    hold = FORK + "        x = bytearray(400 << 20)\n        time.sleep(600)\ntime.sleep(600)"
    assert said(copies, f'{python} -c "{hold}"', best).ended == "memory"
    assert "MemoryError" in said(copies, f"{python} -c 'bytearray(3 << 30)'", best).output
    crowd = "for i in $(seq 300); do sleep 600 & done; wait"  # as root only we limit their number
    assert said(copies, crowd, best).ended in ("failed", "processes")
    many = "i=0; while :; do i=$((i+1)); head -c 1000000 /dev/zero > f$i; done"
    assert said(copies, many, best).ended == "disk"
    gone = "f = open('x', 'wb')\nos.remove('x')\nwhile True: f.write(bytes(1 << 20))"
    large = replace(SHORT, disk=40 << 20)
    verdict = said(copies, f'{python} -c "import os\n{gone}"', best, large)
    assert verdict.ended == "failed" and "File too large" in verdict.output


def test_what_it_leaves_behind_ends(copies: Copies, backend: Backend, tmp_path):
    mark = f"tgr-left-{os.getpid()}-{backend}"
    leave = f"{sys.executable} -c '{FORK}        time.sleep(600)' {mark} &"
    assert said(copies, f"{leave} sleep 0.3", backend).ended == "passed"
    wait_until(lambda: not is_running(mark))  # the system ends the sandbox's own processes, soon


def test_a_deleted_folder_harms_nothing(copies: Copies, backend: Backend):
    verdict = said(copies, 'rm -rf "$PWD"/* "$PWD"; ls; exit 1', backend)
    assert verdict.ended == "failed"
    assert copies.make().folder.joinpath("calc.py").exists()


def test_it_can_be_cancelled(copies: Copies, best: Backend):
    cancel = Cancel()
    cancel.cancel()
    with pytest.raises(CancelledError):
        judge(copies.make(), "sleep 600", SHORT, backend=best, cancel=cancel)


# ---- what only bubblewrap does ----


def test_it_runs_where_the_project_lies(folder: Path, closed: Backend):
    """So that packages which are installed in editable mode are those of the copy."""
    write(folder, {".venv/pyvenv.cfg": "", ".venv/lib/x.py": "old"})
    with Copies(Project(folder)) as copies:
        verdict = said(
            copies, f"pwd; cat {folder}/.venv/lib/x.py; echo x > .venv/lib/x.py; "
            f"cat {folder}/calc.py; echo new > calc.py; rm -rf .venv", closed,
        )  # fmt: skip
    assert verdict.output.startswith(".\nold") and "a - b" in verdict.output
    assert "Read-only file system" in verdict.output
    assert (folder / ".venv/lib/x.py").read_text() == "old"


def test_nothing_outside_can_be_changed_or_read(
    copies: Copies, closed: Backend, folder: Path, tmp_path
):
    (tmp_path / "secret").write_text("hidden")
    home = os.path.expanduser("~")
    command = f"""
        cat {tmp_path}/secret; ls {home}/.ssh {tmp_path}/cache; ls /run /var /root /home
        for f in {tmp_path} {folder}/.. /usr/lib /etc / {sys.prefix}; do touch $f/hostile; done
        kill -9 -1
    """
    output = said(copies, command, closed).output
    assert "hidden" not in output
    for place in (tmp_path, Path("/usr/lib"), Path("/etc"), Path("/"), Path(sys.prefix)):
        assert not (place / "hostile").exists()


@pytest.mark.parametrize("where", ["home", "python", "folder", "program"])
def test_an_environment_cannot_name_a_folder_to_read(
    folder: Path, closed: Backend, tmp_path, where: str
):
    """A virtual environment is part of the project, so it may be anybody's: what it names is not
    shown, unless it is a whole Python."""
    write(tmp_path, {"keys/secret": "hidden"})
    if where == "folder":
        write(tmp_path, {"keys/python/x": ""})
    if where == "program":
        write(tmp_path, {"keys/python": "", "lib/python3/x": ""})
        (tmp_path / "keys/python").chmod(0o755)
    home = f"home = {tmp_path}/keys\n" if where != "python" else ""
    write(folder, {"env/pyvenv.cfg": home, "env/bin/x": ""})
    os.symlink(tmp_path / "keys/secret", folder / "env/bin/python")
    with Copies(Project(folder)) as copies:
        output = said(copies, f"cat {tmp_path}/keys/secret; ls env", closed).output
    assert "hidden" not in output and "bin" in output


def test_an_environment_shows_its_python_alone(folder: Path, tmp_path):
    """The program and the standard library, not what lies beside them."""
    write(tmp_path, {"py/bin/python3": "", "py/lib/python3.12/os.py": "", "py/envs/secret": ""})
    (tmp_path / "py/bin/python3").chmod(0o755)
    os.symlink(tmp_path / "py", tmp_path / "newest")
    write(folder, {"env/pyvenv.cfg": f"home = {tmp_path}/newest/bin\n", "env/bin/x": ""})
    os.symlink(tmp_path / "newest/bin/python3", folder / "env/bin/python")
    before = backends.tools("pytest", [], folder)
    found = set(backends.tools("pytest", [folder / "env"], folder)) - set(before)
    assert found == {tmp_path / name for name in ("py/bin", "py/lib", "newest/bin", "newest/lib")}


def test_tools_are_where_their_variables_say(folder: Path, copies: Copies, tmp_path, monkeypatch):
    """In the images of Rust they are not in the home of the user."""
    write(tmp_path, {"rustup/x": "", "cargo/credentials.toml": "secret"})
    for name in ("RUSTUP_HOME", "CARGO_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.partition("_")[0].lower()))
    assert {tmp_path / "rustup", tmp_path / "cargo"} <= set(backends.tools("x", [], folder))
    backend = sandboxes.strongest(commands.obstacle)
    output = said(copies, "ls $RUSTUP_HOME; cat $CARGO_HOME/credentials.toml", backend).output
    assert output.startswith("x\n") and ("secret" not in output or backend != "bwrap")


def test_modules_of_go_are_read_where_they_are(folder: Path, copies: Copies, tmp_path, monkeypatch):
    """They cannot be fetched there. Nothing of them is shown to other projects."""
    write(tmp_path, {"home/go/pkg/mod/a@v1/a.go": "package a", "go/go.mod": "module a\n"})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("GOPATH", "GOMODCACHE"):
        monkeypatch.delenv(name, raising=False)
    backend = sandboxes.strongest(commands.obstacle)
    listed = "ls $GOMODCACHE; test -d /$GOMODCACHE || echo none"
    assert "a@v1" not in said(copies, listed, backend).output
    output = said(copies, f"{listed}; touch $GOMODCACHE/own; true || go test", backend).output
    modules = tmp_path / "home/go/pkg/mod"
    assert output.startswith("a@v1\n") and "none" not in output
    assert (modules / "own").exists() is (backend != "bwrap")
    assert [tool.folders for tool in fetched("make", tmp_path / "go")] == [(modules,)]
    assert not list(fetched("make", folder))
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "nowhere"))
    assert not list(fetched("go test", folder))


@pytest.mark.parametrize(
    ("command", "file", "shown", "variable", "secret"),
    [
        ("mvn -o test", "pom.xml", ".m2/repository", "MAVEN_OPTS", ".m2/settings.xml"),
        ("./mvnw test", "pom.xml", ".m2/repository", "MAVEN_OPTS", ".m2/settings-security.xml"),
        ("gradle test", "build.gradle.kts", ".gradle/caches/modules-2", "GRADLE_RO_DEP_CACHE",
         ".gradle/gradle.properties"),
        ("bundle exec rspec", "Gemfile", ".gem/ruby/3.1.0", "GEM_PATH", ".gem/credentials"),
        ("ruby t.rb", "Rakefile", ".local/share/gem/ruby/3.1.0", "GEM_PATH", ".gem/credentials"),
        ("rake", "Gemfile", ".bundle/ruby/3.1.0", "GEM_PATH", ".bundle/config"),
    ],
)  # fmt: skip
def test_fetched_packages_are_read_where_they_are(
    folder: Path, copies: Copies, tmp_path, monkeypatch,
    command: str, file: str, shown: str, variable: str, secret: str,
):  # fmt: skip
    """Maven, Gradle and RubyGems cannot fetch there. What may hold secrets is not shown."""
    home = tmp_path / "home"
    write(tmp_path, {f"home/{shown}/x": "in it", f"home/{secret}": "hidden", f"p/{file}": ""})
    monkeypatch.setenv("HOME", str(home))
    for name in ("GEM_HOME", "GEM_PATH", "GRADLE_USER_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert not list(fetched("make", folder))
    for found in (*fetched("make", tmp_path / "p"), *fetched(f"cd . && {command}", folder)):
        assert found.variable == variable and found.folders == (home / shown,)
    backend = sandboxes.strongest(commands.obstacle)
    reads = f"echo $%s; cat {home}/{shown}/x {home}/{secret}; touch {home}/{shown}/new"
    assert "in it" not in said(copies, reads % variable, backend).output or backend != "bwrap"
    output = said(copies, f"{reads % variable}; true || {command}", backend).output
    assert str(home / shown).removesuffix("/modules-2") in output.splitlines()[0]
    assert "in it" in output
    if backend == "bwrap":
        assert "hidden" not in output and not (home / shown / "new").exists()


def test_settings_with_secrets_are_hidden_in_a_folder_of_packages_too(
    folder: Path, copies: Copies, tmp_path, monkeypatch
):
    secrets = ("credentials", "settings.xml", "gradle.properties")
    write(tmp_path, {f"gems/{name}": "hidden" for name in secrets} | {"gems/x": "package"})
    monkeypatch.setenv("GEM_HOME", str(tmp_path / "gems"))
    backend = sandboxes.needed("bwrap", commands.obstacle)
    output = said(copies, f"cd {tmp_path}/gems; cat *; true || gem", backend).output
    assert "package" in output and "hidden" not in output


def test_settings_that_are_links_are_hidden_where_they_lead(
    folder: Path, copies: Copies, tmp_path, monkeypatch
):
    """As in a folder of settings under version control. bubblewrap did not start with them."""
    write(tmp_path, {"gems/x": "package", "more/dots/c": "hidden", "dots/p": "hidden too"})
    for name, to in (("credentials", "more/dots/c"), ("gradle.properties", "dots/p")):
        os.symlink(tmp_path / to, tmp_path / "gems" / name)
    os.symlink("../more/dots/c", tmp_path / "gems/settings.xml")
    os.symlink("nowhere", tmp_path / "more/credentials")
    monkeypatch.setenv("GEM_HOME", str(tmp_path / "gems"))
    monkeypatch.setenv("GEM_PATH", str(tmp_path / "more"))
    backend = sandboxes.needed("bwrap", commands.obstacle)
    output = said(
        copies, f"cd {tmp_path}; cat gems/*; cat more/dots/*; true || gem", backend
    ).output
    assert "package" in output and "hidden" not in output


def test_a_part_of_path_that_cannot_be_looked_into_stops_nothing(folder: Path, monkeypatch):
    monkeypatch.setenv("PATH", os.pathsep.join(["/" + "x" * 300, "bin", "", os.environ["PATH"]]))
    assert backends.tools("pytest", [], folder) is not None


def test_a_program_that_is_named_by_its_whole_path_is_found(
    copies: Copies, closed: Backend, tmp_path
):
    write(tmp_path, {"tools/bin/check": "#!/bin/sh\ncat $0.d/../../data\n", "tools/data": "shown",
                     "tools/bin/check.d/x": "", "other/data": "hidden"})  # fmt: skip
    tool = tmp_path / "tools/bin/check"
    tool.chmod(0o755)
    output = said(copies, f"cd . && {tool}; cat {tmp_path}/other/data", closed).output
    assert "shown" in output and "hidden" not in output


def test_there_is_no_network_but_a_local_one(copies: Copies, closed: Backend):
    script = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 1)"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        verdict = said(copies, f'{sys.executable} -c "{script}" {port}', closed)
    assert "ConnectionRefusedError" in verdict.output
    local = "import socket; s = socket.create_server(('127.0.0.1', 0)); "
    local += "socket.create_connection(s.getsockname(), 5)"
    assert said(copies, f'{sys.executable} -c "{local}"', closed).passes


def test_it_gets_no_secret(copies: Copies, closed: Backend, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "hidden")
    output = said(copies, "env; echo $HOME", closed).output
    assert "MY_SECRET" not in output and output.endswith("/tmp\n")


def test_git_works_but_is_read_only(folder: Path, closed: Backend):
    commit(folder, "calc.py")
    before = contents(folder)
    with Copies(Project(folder)) as copies:
        place = copies.make([FIXED])
        verdict = judge(place, "git status -s; git commit -qam x", SHORT, backend=closed)
        assert verdict.output.startswith(" M calc.py\n?? test_calc.py\n") and not verdict.passes
        for sub in ("hooks/x", "x"):
            assert not said(copies, f"echo x > .git/{sub}", closed).passes
    assert contents(folder) == before


# ---- without tests ----


def test_without_tests_files_are_parsed_and_imported(folder: Path, best: Backend):
    write(folder, {"pkg/__init__.py": "", "pkg/m.py": "from pkg import n\n", "pkg/n.py": "x = 1\n",
                   "my-script.py": "print('x' * 10)\n", "d.json": "{}", "t.txt": "?"})  # fmt: skip
    good = [path for path in ("calc.py", "pkg/m.py", "my-script.py", "d.json", "t.txt")]
    with Copies(Project(folder)) as copies:
        verdict = check(copies.make(), good, SHORT, python=sys.executable, backend=best)
        assert (
            verdict.passes
            and verdict.ran
            and verdict.summary == "4 of 4 parse and import, 1 not checked"
        )
        changes = (
            Change("calc.py", str(FILES["calc.py"]), "def add(:\n"),
            Change("pkg/n.py", "x = 1\n", "import no_such_module\n"),
            Change("my-script.py", "print('x' * 10)\n", "import os\nos._exit(0)\n"),
            Change("d.json", "{}", "{"),
        )
        verdict = check(copies.make(changes), good, SHORT, python=sys.executable, backend=best)
    assert (verdict.passed, verdict.failed, verdict.errors, verdict.skipped) == (0, 2, 2, 1)
    assert verdict.ended == "failed" and not verdict.ran
    assert verdict.failures[0].line == 1 and verdict.failures[0].file == "calc.py"
    assert (
        "pkg/m.py: import: ModuleNotFoundError: No module named 'no_such_module'\n"
        in verdict.output
    )
    with Copies(Project(folder)) as copies:
        code = replace(FIXED, after="import ranking\n")  # a file beside the check itself
        for kind in (kind for kind in backends.CHOICES if not commands.obstacle(kind)):
            made = copies.make([code])
            assert not check(made, ["calc.py"], SHORT, python=sys.executable, backend=kind).passes
        code = replace(FIXED, after="import time\ntime.sleep(600)\n")
        slow = replace(SHORT, seconds=2.0)
        verdict = check(copies.make([code]), ["calc.py"], slow, python=sys.executable, backend=best)
        assert verdict.ended == "timed out" and not verdict.ran


# ---- which backend ----


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
@pytest.mark.parametrize("kind", ["unshare", "limits"])
def test_weaker_backends_refuse_to_run_tests_as_root(copies: Copies, kind: Backend, monkeypatch):
    monkeypatch.setattr(commands, "defect", lambda kind: "")
    says = f"sandbox {kind} does not work here: .*another user.*--sandbox none .*accept the risk"
    with pytest.raises(InstallError, match=says):
        said(copies, "true", kind)


def test_none_keeps_the_user_and_is_taken_by_name_only(copies: Copies, monkeypatch):
    assert said(copies, "id -u", "none").output == f"{os.getuid()}\n"
    assert "rights of this user, on this machine's files and network" in warning("none")
    monkeypatch.setattr(commands, "defect", lambda kind: "" if kind == "none" else f"no {kind}")
    with pytest.raises(InstallError) as raised:
        commands.strongest()
    assert str(raised.value) == (
        "no sandbox works here (bwrap: no bwrap; unshare: no unshare; limits: no limits); install "
        "bubblewrap (apt install bubblewrap), or name --sandbox none (TGR_SANDBOX=none) and accept "
        "the risk: the tests, with code of the model, then have the rights of this user, on this "
        "machine's files and network"
    )
    monkeypatch.setattr(commands, "defect", lambda kind: "" if kind == "none" else "all gone")
    with pytest.raises(InstallError, match=r"\(bwrap, unshare, limits: all gone\); install"):
        commands.strongest()


def test_without_a_sandbox_the_environment_of_the_project_is_a_link(folder: Path):
    write(folder, {".venv/pyvenv.cfg": "", ".venv/lib/x.py": "x = 1\n"})
    git(folder, "init", "-q")
    before = contents(folder)
    with Copies(Project(folder)) as copies:
        assert [note.partition(":")[0] for note in copies.notes("none")] == [".git"]
        assert {note.partition(":")[0] for note in copies.notes("limits")} == {".git", ".venv"}
        command = "cat .venv/lib/x.py; rm .venv; rm -rf .git; ls -A"
        output = said(copies, command, "none").output
        assert output == "x = 1\ncalc.py\ntest_calc.py\n"
    assert contents(folder) == before


def test_a_missing_backend_is_an_error(copies: Copies, monkeypatch):
    monkeypatch.setattr(commands, "defect", lambda kind: "it is gone" if kind == "bwrap" else "")
    with pytest.raises(InstallError, match=r"it is gone; install bubblewrap.*--sandbox"):
        judge(copies.make(), "exit 0")
    assert warning("bwrap") == ""
    assert "can read and change your files" in warning("unshare")


def test_the_first_run_says_how_long_an_edit_may_take():
    def before(**more: Any) -> Verdict:
        made: dict[str, Any] = {
            "ran": True, "passed": 3, "failed": 1, "errors": 0, "skipped": 0, "seconds": 2.0,
            "output": "", "ended": "failed", "framework": "pytest",
        }  # fmt: skip
        return Verdict(**made | more)

    assert patience("pytest", before()) == 40.0
    assert patience("pytest", before(seconds=0.1)) == 15.0
    assert [patience("pytest", before(seconds=0.1), n) for n in (3, 4, 9)] == [15.0, 5.0, 5.0]
    assert patience("pytest", before(), 9) == 40.0
    unknown = [
        ("pytest", before(errors=1)),  # files that could not be imported
        ("pytest", before(ended="timed out")),
        ("./check", before(framework="")),
        ("pytest -x", before()),
        ("python3 -m unittest --failfast", before()),
        ("python3 -m unittest -vf", before()),
        ("go test -failfast ./...", before()),
        ("pytest tests/unit && pytest tests/slow", before()),
        ("make test", before(output="!!!! stopping after 1 failures !!!!")),
    ]
    for command, verdict in unknown:
        assert patience(command, verdict) == math.inf
    assert patience("pytest test-f.py test-xyz", before()) == 40.0
