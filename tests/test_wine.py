"""A person's first day with tgr-local on Windows, under Wine.

It needs wine64, a wheel of csrc/wheel_windows.sh in dist/, and a Python for Windows that has pip
and the packages that tgr-local needs; TGR_WINDOWS_PYTHON names its folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from surroundings import HANG, PACKAGE, ROOT

from tgr_local.engine import vulkan

WINE = shutil.which("wine64") or shutil.which("/usr/lib/wine/wine64")  # Debian's place
PYTHON = Path(os.environ.get("TGR_WINDOWS_PYTHON", "nowhere"), "python.exe")
WHEELS = sorted((ROOT / "dist").glob("tgr_local-*-win_amd64.whl"), key=os.path.getmtime)
LACKING = [
    text
    for text, is_here in (
        ("there is no wine64", WINE),
        ("TGR_WINDOWS_PYTHON names no folder with python.exe", PYTHON.is_file()),
        ("dist/ has no wheel of csrc/wheel_windows.sh", WHEELS),
    )
    if not is_here
]
START_SECONDS = 300  # of a program under Wine, at most
pytestmark = [
    pytest.mark.skipif(bool(LACKING), reason="; ".join(LACKING) or "-"),
    pytest.mark.timeout(600),
]
START = """
import os, sys
os.environ["USERPROFILE"] = sys.argv.pop(1)  # Wine has its own
from tgr_local.__main__ import main
sys.exit(main())
"""
Run = Callable[..., SimpleNamespace]


def windows(path: Path) -> str:
    return "Z:" + str(path).replace("/", "\\")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A home folder, a working folder, and the wheel, installed by pip."""
    root = tmp_path_factory.mktemp("wine")
    home, site = root / "Jörg Möller", root / "site packages"
    (work := home / "Arbeit ü").mkdir(parents=True)
    quiet = {"WINEDEBUG": "-all", "WINEDLLOVERRIDES": "mscoree,mshtml,winedbg.exe="}
    env = {**os.environ, "WINEPREFIX": str(root / "prefix"), **quiet, "PYTHONPATH": windows(site)}
    server = Path(WINE or "").with_name("wineserver")
    try:
        for words in (
            ["wineboot", "-i"],
            ["reg", "add", r"HKCU\Software\Wine", "/v", "Version", "/d", "win10", "/f"],
            [PYTHON, "-m", "pip", "install", "--no-deps", "--no-index", "--target", windows(site),
             windows(WHEELS[-1])],
        ):  # fmt: skip
            done = subprocess.run(
                [str(WINE), *words], env=env, capture_output=True, timeout=START_SECONDS
            )
            assert done.returncode == 0, done.stdout + done.stderr
        yield SimpleNamespace(home=home, site=site, work=work, env=env)
    finally:
        subprocess.run([server, "-k"], env=env, check=False)


@pytest.fixture
def tgr(place: SimpleNamespace) -> Run:
    """Runs a command line, with no input unless `data` is given; with a code page, on a console,
    with Ctrl-C once it shows what fits the pattern `until`."""

    def run(*words: str, data: bytes = b"", page: int = 0, until: str = "") -> SimpleNamespace:
        command = [windows(PYTHON), "-c", START, windows(place.home), *words]
        if page:
            helper = windows(ROOT / "tests" / "wine_console.py")
            command = [command[0], helper, str(page), until, *command]
        done = subprocess.run(
            [str(WINE), *command], input=data, capture_output=True, timeout=START_SECONDS,
            cwd=place.work, env=place.env,
        )  # fmt: skip
        out, err = (text.decode().replace("\r\n", "\n") for text in (done.stdout, done.stderr))
        assert "Traceback" not in out + err, out + err
        return SimpleNamespace(code=done.returncode, out=out, err=err)

    return run


def test_the_first_commands(place: SimpleNamespace, tgr: Run):
    launcher = [str(WINE), str(place.site / "bin" / "tgr-local.exe"), "--version"]
    done = subprocess.run(launcher, env=place.env, stdin=subprocess.DEVNULL, capture_output=True)
    assert done.stdout.startswith(b"tgr-local ")
    assert [*place.site.glob("*.dist-info/licenses/mingw-w64-common/copyright")]
    told = tgr("run", "What is 2+3?")
    assert (told.code, told.out) == (0, "The answer is \\boxed{5}.\n"), told.err
    told = tgr("doctor")
    assert told.code == 0 and "\nX " not in told.out and "install tgr-local in WSL" in told.out
    assert "tgr-mini  2" in tgr("models").out
    told = tgr("chat", data=b"What is 2+3?\r\nWhat is 4+3?\r\n/stats\r\n")
    assert told.code == 0 and "boxed{5}" in told.out and "boxed{7}" in told.out
    for words in (["run", "-m", "tgr-mimi", "x"], ["code"], ["acp"], ["run", "--check", "x", "x"]):
        told = tgr(*words)
        assert told.code in (1, 2) and told.err.count("\n") == 1, told.err


def test_vulkan_computes_on_a_device_that_is_named(tgr: Run):
    """Wine reaches the drivers of this system where it has a display."""
    said = next(line for line in tgr("doctor").out.splitlines() if "  vulkan  " in line)
    if "llvmpipe" not in said:
        pytest.skip(f"Mesa's software device is not there: {said.split(maxsplit=1)[1]}")
    for _ in range(vulkan.TRIES):  # the first times the driver may compile for too long
        told = tgr("run", "--device", "vulkan0", "What is 2+3?")
        if "did not answer" not in told.err:
            break
    assert (told.code, told.out) == (0, "The answer is \\boxed{5}.\n"), told.err


def test_names_with_umlauts_and_spaces(place: SimpleNamespace, tgr: Run):
    deep = place.work.joinpath(*["ein sehr langer Name ü"] * 12)
    for folder in (place.work / "Modelle 模型", deep):
        folder.mkdir(parents=True)
        model, trace = folder / "klein ü 你.gguf", folder / "Spur ü.jsonl"
        shutil.copy(PACKAGE.parent / "models" / "tgr-mini-q8_0.gguf", model)
        words = ["-m", windows(model), "--method", "tgr-latent", "--trace", windows(trace)]
        told = tgr("run", *words, "What is 2+3?")
        assert told.code == 0 and "boxed{5}" in told.out, told.err
        assert tgr("trace", windows(trace)).code == 0
    settings = place.home / ".config" / "tgr-local" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text("models_dir = 'Z:\\nicht da ü'\r\n", encoding="utf-8-sig")
    assert "no folder of models Z:\\nicht da ü" in tgr("models").err
    settings.unlink()


@pytest.mark.parametrize("page", [437, 1252])
def test_a_console_shows_every_script(tgr: Run, page: int):
    told = tgr("run", "-m", "grün 你好 😀", "x", page=page)
    assert told.code == 1 and "grün 你好 😀" in told.out
    told = tgr("run", "What is 2+3?", page=page)
    assert told.code == 0 and "boxed{5}" in told.out


def test_control_c_ends_a_reply_and_the_server(tgr: Run, small: Path):
    words = ["--method", "markov", "--chunk-len", "1000", "--max-chunks", "100000"]
    told = tgr("run", "-m", windows(small), *words, "hello", page=437, until=r"\S")
    assert told.code == 130 and told.out.endswith("tgr-local: interrupted\n")
    told = tgr("serve", "--port", "0", page=437, until="is ready")
    assert told.code == 130 and "Traceback" not in told.out


def test_a_server_answers_and_ends_with_its_input(place: SimpleNamespace):
    command = [str(WINE), str(PYTHON), "-c", START, windows(place.home)]
    with subprocess.Popen(
        [*command, "serve", "--port", "0", "--exit-on-eof"], cwd=place.work, env=place.env,
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as server:  # fmt: skip
        lines = iter(server.stderr or ())
        address = next(line for line in lines if b"listening" in line).decode().split()[-1]
        assert any(b"is ready" in line for line in lines)
        body = {"messages": [{"role": "user", "content": "What is 2+3?"}]}
        request = urllib.request.Request(
            f"{address}/v1/chat/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=HANG) as answer:
            assert "boxed{5}" in json.load(answer)["choices"][0]["message"]["content"]
        assert server.stdin is not None
        server.stdin.close()
        assert server.wait(HANG) == 0
