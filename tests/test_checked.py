"""Texts until one passes a check: of a program, and of a command."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import process, run
from surroundings import HANG, ROOT

from tgr_local import Cancel, CancelledError, Engine, EngineConfig, Progress, SearchConfig, generate

QUESTION = "What is 2+3?"
PUZZLE = "Use 3, 7, 25 to make 46"  # whose answers differ
CONFIG = SearchConfig(temperature=1.0, seed=1)
RUN = ("run", PUZZLE, "--seed", "1", "--temperature", "1", "--method", "base")


@pytest.fixture(scope="module")
def embedded() -> Iterator[Engine]:
    with Engine(ROOT / "models" / "tgr-mini-q8_0.gguf", EngineConfig(reproducible=True)) as engine:
        yield engine


# ---- a function ----


def test_a_text_that_passes_at_once_costs_one(embedded: Engine):
    plain = generate(embedded, PUZZLE, CONFIG)
    seen: list[str] = []
    reply = generate(embedded, PUZZLE, CONFIG, check=lambda text: not seen.append(text))
    assert seen == [reply.text] == [plain.text] and reply.tokens == plain.tokens
    assert plain.checked is None and reply.checked
    assert (reply.checked.passed, reply.checked.score, reply.checked.texts) == (True, 1.0, 1)
    assert reply.counts.discarded == 0


def test_texts_are_written_until_one_passes_and_all_are_counted(embedded: Engine):
    first = generate(embedded, PUZZLE, CONFIG)
    before = embedded.stats().n_positions
    other: list[Any] = []
    reply = generate(
        embedded, PUZZLE, CONFIG, check=lambda text: text != first.text, on_event=other.append, k=16
    )
    assert reply.checked and reply.checked.passed and 2 <= reply.checked.texts <= 16
    assert reply.text != first.text and reply.seed > first.seed
    assert reply.counts.total == embedded.stats().n_positions - before
    assert reply.counts.discarded and {type(event) for event in other} == {Progress}
    again = generate(embedded, PUZZLE, SearchConfig(temperature=1.0, seed=reply.seed))
    assert again.tokens == reply.tokens


def test_the_best_score_wins_where_none_passes(embedded: Engine):
    scores: dict[str, float] = {}

    def check(text: str) -> float:
        assert text not in scores  # equal texts are checked once
        return scores.setdefault(text, len(text) / 1000)

    reply = generate(embedded, PUZZLE, CONFIG, check=check, k=5)
    assert reply.checked and not reply.checked.passed and reply.checked.texts == 5
    assert scores[reply.text] == reply.checked.score == max(scores.values())
    high = generate(embedded, PUZZLE, CONFIG, check=lambda text: 1.5, k=5)
    assert high.checked and high.checked.passed and high.checked.score == 1.5


def test_equal_texts_are_not_written_twice(embedded: Engine):
    greedy = SearchConfig(temperature=0.0)
    reply = generate(embedded, QUESTION, greedy, check=lambda text: False)
    assert reply.checked and reply.checked.texts == 1


@pytest.mark.parametrize(
    ("check", "k", "says"),
    [
        (3, 8, "check is 3, but must be a function of the answer's text"),
        (lambda text: None, 8, "check returned None, but must return a bool or a number"),
        (lambda text: "1", 8, "check returned '1', but must return a bool or a number"),
        (lambda text: float("nan"), 8, "check returned nan, but must return a bool or a number"),
        (lambda text: True, 0, "k is 0, but must be a whole number of at least 1"),
        (lambda text: True, 2.5, "k is 2.5, but must be a whole number of at least 1"),
    ],
)
def test_a_bad_check_is_refused(embedded: Engine, check: Any, k: Any, says: str):
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        generate(embedded, QUESTION, CONFIG, check=check, k=k)


def test_an_exception_of_a_check_ends_the_work(embedded: Engine):
    def check(text: str) -> bool:
        seen.append(text)
        if len(seen) > 1:
            raise KeyError(text)
        return False

    seen: list[str] = []
    with pytest.raises(KeyError):
        generate(embedded, PUZZLE, CONFIG, check=check)
    assert len(seen) == 2 and embedded.stats().cells_reserved == 0


def test_a_cancelled_check_has_the_best_text_so_far(embedded: Engine):
    cancel = Cancel()

    def check(text: str) -> float:
        cancel.cancel()
        return 0.5

    with pytest.raises(CancelledError) as error:
        generate(embedded, PUZZLE, CONFIG, check=check, cancel=cancel)
    assert error.value.reply.checked.score == 0.5 and error.value.reply.finish == "stop"


# ---- a command ----

posix = pytest.mark.skipif(os.name == "nt", reason="a check needs a POSIX shell")


@posix
def test_a_command_gets_the_answer_on_stdin(tmp_path, capsys):
    seen = tmp_path / "seen"
    assert run(*RUN, "--check", f"cat > {seen}") == 0
    out, err = capsys.readouterr()
    assert seen.read_text() == out and out.endswith(".\n")
    assert re.search(r"^tgr-local: text 1 of at most 8 passed the check, \d+ forward", err, re.M)


@posix
@pytest.mark.parametrize(
    ("check", "more", "says"),
    [
        ("exit 3", (), "no text of 3 passed the check (exit code 3), "),
        ("kill -SEGV $$", (), "no text of 3 passed the check (ended by SIGSEGV), "),
        ("sh -c 'kill -9 $$'; exit $?", (), "no text of 3 passed the check (ended by SIGKILL), "),
        ("sleep 1000", ("--check-seconds", "0.1"), "(no end after 0.1 s), "),
        ("sleep 1000 & sleep 1000", ("--check-seconds", "0.1"), "(no end after 0.1 s), "),
        ("yes", (), "(it printed more than 64 MiB), "),
        (r"printf 'a\n\033[2J b \n'; false", (), "; of the printed one it says: \ufffd[2J b\n"),
    ],
)
def test_where_no_text_passes_the_best_one_is_printed(
    capsys, check: str, more: tuple[str, ...], says: str
):
    assert run(*RUN, "-k", "3", "--check", check, *more) == 1
    out, err = capsys.readouterr()
    assert out.strip() and says in err and "\x1b" not in err


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans to an ancestor")
@pytest.mark.parametrize(("more", "code"), [("true", 0), ("yes", 1)])
def test_a_check_leaves_no_process_behind(tmp_path, more: str, code: int):
    pid = tmp_path / "pid"
    left = f"(setsid sh -c 'echo $$ > {pid}; exec sleep 1000' >/dev/null 2>&1 &)"
    check = f"{left}; until [ -s {pid} ]; do sleep 0.01; done; {more}"
    assert run(*RUN, "-k", "1", "--check", check) == code
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@posix
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--check", ""), 2, "check is empty; name a command that reads the answer on stdin"),
        (("--check", "nosuch -q"), 2, "check begins with nosuch, but there is no such program"),
        (("--check", "./nosuch.sh"), 2, "check begins with ./nosuch.sh, but there is no such"),
        (("--check", "echo 'a"), 2, "check is no command of the shell: "),
        (("--check", "true", "--check-seconds", "0"), 2, "check_seconds is 0, but must be above 0"),
        (("--check", "true", "--check-seconds", "nan"), 2, "check_seconds is nan, but must be"),
        (("--check", "true", "-k", "0"), 2, "replies is 0, but must be between 1 and 256"),
        (("--check", "false || nosuch"), 1, "the check cannot be run: "),
    ],
)
def test_a_command_that_cannot_be_run_is_an_error(
    capsys, words: tuple[str, ...], code: int, says: str
):
    assert run(*RUN, *words) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"tgr-local: {says}") and err.count("\n") == 1


def test_no_settings_file_names_a_check(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("tgr-local.toml").write_text('check = "touch made"')
    monkeypatch.setenv("TGR_CHECK", "touch made")
    assert run(*RUN) == 2
    assert "tgr-local.toml: unknown option 'check'" in capsys.readouterr().err
    Path("tgr-local.toml").unlink()
    assert run(*RUN) == 0 and not Path("made").exists()


@posix
def test_words_of_the_shell_are_commands(capsys):
    for check in ("if true; then exit 0; fi # it's", "A=1 true", "! false", "{ true; }", "[ 1 ]"):
        assert run(*RUN, "--check", check) == 0
    capsys.readouterr()


@posix
def test_json_and_a_trace_have_the_checked_text(tmp_path, capsys):
    trace = str(tmp_path / "t.jsonl")
    assert run(*RUN, "--json", "-k", "3", "--check", "false", "--trace", trace) == 1
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["checked"] == {"passed": False, "score": 0.0, "texts": 3}
    assert f", {result['counts']['total']:,} forward tokens in all" in err
    assert run("trace", trace) == 0


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_check_ends_with_the_program(tmp_path, number: signal.Signals):
    pids = tmp_path / "pids"
    check = f"sleep 1000 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"
    started = process(*RUN, "--check", check, double=False)
    deadline = time.monotonic() + HANG
    while not pids.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    started.send_signal(number)
    started.communicate(timeout=HANG)
    assert started.returncode == (130 if number == signal.SIGINT else 143)
    for pid in map(int, pids.read_text().split()):
        while _runs(pid) and time.monotonic() < deadline:  # its parent reaps it
            time.sleep(0.01)
        assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
