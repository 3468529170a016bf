"""The desktop program of examples/desktop, driven as a person does, without a screen."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gguf_edit import Gguf
from surroundings import HANG, ROOT, environment

import tgr_local
from tgr_local import Cancel, CancelledError, Engine, EngineConfig, SearchConfig, generate
from tgr_local.options.model_files import embedded_model

FOLDER = ROOT / "examples" / "desktop"
if not FOLDER.exists():
    pytest.skip("the examples are not next to the tests", allow_module_level=True)
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
pytest.importorskip(
    "PySide6.QtWidgets",
    reason="PySide6 is absent: pip install 'tgr-local[desktop]'",
    exc_type=ImportError,
)
sys.path.insert(0, str(FOLDER.parent))

from desktop import settings  # noqa: E402
from desktop.conversation import METHOD  # noqa: E402
from desktop.models import ModelDialog, inspect  # noqa: E402
from desktop.search_view import SCORES, heights  # noqa: E402
from desktop.window import Window  # noqa: E402
from desktop.worker import Task, message_of  # noqa: E402
from PySide6.QtCore import QEventLoop, QSettings, Qt, QThreadPool, QTimer, QUrl  # noqa: E402
from PySide6.QtTest import QTest  # noqa: E402
from PySide6.QtWidgets import QApplication  # noqa: E402

PUZZLE = "Use 3, 7, 25, 50, 8, 4 to make 777"  # for which the embedded model thinks long


def until(done: Callable[[], Any]) -> None:
    """Runs the event loop until something holds."""
    end = time.monotonic() + HANG
    while not done():
        assert not time.monotonic() > end, "the program hangs"
        loop = QEventLoop()
        QTimer.singleShot(5, loop.quit)
        loop.exec()


@pytest.fixture(scope="module")
def app() -> QApplication:
    app = QApplication.instance() or QApplication(["desktop"])
    assert isinstance(app, QApplication)
    return app


@pytest.fixture
def store(app: QApplication, tmp_path) -> QSettings:
    return QSettings(str(tmp_path / "settings.ini"), QSettings.Format.IniFormat)


@pytest.fixture
def empty(store: QSettings) -> Iterator[Window]:
    """A window without a model."""
    window = Window(store)
    window.show()
    yield window
    window.close()
    window.shut_down()


@pytest.fixture
def window(empty: Window) -> Window:
    """A window with the embedded model."""
    load(empty, embedded_model())
    assert empty.engine
    return empty


def load(window: Window, path: Path) -> None:
    ended: list[bool] = []
    window.model_changed.connect(lambda: ended.append(True))
    window.load(path)
    until(lambda: ended)


def ask(window: Window, text: str) -> Any:
    """Types a question and Enter; the conversation."""
    conversation = window.conversation
    QTest.keyClicks(conversation.input, text)
    QTest.keyClick(conversation.input, Qt.Key.Key_Return)
    return conversation


def answered(window: Window, text: str) -> Any:
    conversation = ask(window, text)
    until(lambda: not conversation.is_busy)
    return conversation


def lines(conversation: Any) -> list[str]:
    """The paragraphs on the screen."""
    block, found = conversation.transcript.document().begin(), []
    while block.isValid():
        if block.isVisible():
            found.append(block.text())
        block = block.next()
    return found


# ---- replies ----


def test_a_reply_on_the_screen_is_the_one_that_generate_writes(window: Window):
    conversation = answered(window, PUZZLE)
    with Engine(embedded_model()) as other:  # which remembers nothing, as the first one did
        reply = generate(other, PUZZLE, method=METHOD)
    shown = conversation.transcript.toPlainText()
    assert PUZZLE in shown and reply.thinking in shown and reply.text in shown
    assert conversation.messages[-1] == {"role": "assistant", "content": reply.text}
    cost = f"{reply.n_tokens:,} tokens · {reply.counts.total:,} forward"
    assert cost in lines(conversation)[-1]
    searched = [step.candidates.scores for step in reply.steps if step.candidates]
    bars = [conversation.search.item(i).data(SCORES) for i in range(conversation.search.count())]
    assert len(bars) == len(searched) > 3
    for one, other in zip(bars, searched, strict=True):
        assert one.total.tolist() == other.total.tolist() and one.chosen == other.chosen
        assert heights(one).argmax() == one.chosen and heights(one).min() > 0


def test_a_reply_is_shown_while_it_is_written(window: Window):
    conversation = ask(window, PUZZLE)
    until(lambda: conversation.search.count() >= 2)
    assert conversation.is_busy and "tokens" in conversation.status.text()
    assert len(conversation.transcript.toPlainText()) > len(PUZZLE) + 20
    assert window.tabs.tabText(0).startswith("●")
    until(lambda: not conversation.is_busy)
    assert window.tabs.tabText(0) == PUZZLE[:30]


def test_thinking_is_folded_until_its_link_is_pressed(window: Window):
    conversation = answered(window, "What is 12 + 30?")
    thinking = generate(window.engine, "What is 12 + 30?", method=METHOD).thinking.splitlines()
    folded = lines(conversation)
    assert "▸ Thinking" in folded and not set(thinking) & set(folded)
    conversation.transcript.anchorClicked.emit(QUrl("reply:1"))
    assert set(thinking) <= set(lines(conversation))
    conversation.transcript.anchorClicked.emit(QUrl("reply:1"))
    assert lines(conversation) == folded


def test_the_end_stays_in_sight_until_the_user_scrolls(window: Window):
    transcript = window.conversation.transcript
    bar = transcript.verticalScrollBar()
    for i in range(60):
        transcript.add("answer", f"line {i}\n")
    until(lambda: bar.maximum() > 0 and bar.value() == bar.maximum())
    bar.setValue(0)
    transcript.add("answer", "more\n" * 60)
    until(lambda: bar.maximum() > 1000)
    assert bar.value() == 0


def test_a_task_posts_everything_in_its_order_before_it_ends(app: QApplication):
    def work(post: Callable[[int], None]) -> None:
        for i in range(10_000):
            post(i)
        raise ValueError("it failed")

    got: list[Any] = []
    task = Task(work)
    task.posted.connect(got.extend)
    task.finished.connect(lambda result, error: got.append(str(error)))
    task.start()
    until(lambda: len(got) > 10_000)
    assert got == [*range(10_000), "it failed"]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_lack_of_memory_is_no_bug(error: Exception):
    assert "no more memory" in message_of(error) and "a bug" not in message_of(error)


def test_escape_ends_a_reply_and_the_next_one_is_written(window: Window):
    conversation = ask(window, PUZZLE)
    until(lambda: conversation.search.count() >= 2)
    QTest.keyClick(conversation.input, Qt.Key.Key_Escape)
    until(lambda: not conversation.is_busy)
    assert lines(conversation)[-1].endswith("cancelled")
    # there was no answer yet: the question is in the input again, not in the conversation
    assert conversation.messages == [] and conversation.input.toPlainText() == PUZZLE
    conversation.input.clear()
    assert "42" in answered(window, "What is 12 + 30?").messages[-1]["content"]


def test_several_conversations_write_at_once(window: Window):
    written = [ask(window, "What is 10 + 30?")]
    for i in range(1, 4):
        QTest.keyClick(window, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
        written.append(ask(window, f"What is {i + 10} + 30?"))
    assert window.tabs.count() == 4 and len({id(one) for one in written}) == 4
    until(lambda: not any(one.is_busy for one in written))
    for i, conversation in enumerate(written):
        assert f"{i + 40}" in conversation.messages[-1]["content"]
        assert window.tabs.tabText(i) == f"What is {i + 10} + 30?"


def test_a_conversation_is_closed_while_it_writes(window: Window):
    ask(window, PUZZLE)
    QTest.keyClick(window, Qt.Key.Key_W, Qt.KeyboardModifier.ControlModifier)
    assert window.tabs.count() == 1 and not window.conversation.messages
    assert "42" in answered(window, "What is 12 + 30?").messages[-1]["content"]


def test_the_window_is_closed_while_it_writes(window: Window):
    conversation = ask(window, PUZZLE)
    until(lambda: conversation.search.count())
    window.close()
    window.shut_down()
    assert QThreadPool.globalInstance().activeThreadCount() == 0


# ---- what a person types ----


@pytest.mark.parametrize("text", ["", " ", "\n \n", "\t"])
def test_nothing_is_not_sent(window: Window, text: str):
    window.conversation.input.setPlainText(text)
    QTest.keyClick(window.conversation.input, Qt.Key.Key_Return)
    assert not window.conversation.is_busy and not window.conversation.messages


@pytest.mark.parametrize("text", ["\x00\x01", "<b>x</b><img src=/etc/passwd>", "🧮" * 99])
def test_odd_texts_are_shown_as_they_are(window: Window, text: str):
    conversation = window.conversation
    conversation.input.setPlainText(text)
    conversation.send()
    assert text.strip("\x00\x01") in conversation.transcript.toPlainText()
    until(lambda: not conversation.is_busy)
    assert "a bug" not in lines(conversation)[-1]


def test_an_ampersand_is_shown_in_the_title(window: Window):
    ask(window, "What is R&D?")
    assert window.tabs.tabText(0) == "● What is R&&D?"  # Qt shows && as &, and & not at all


def test_a_question_beyond_the_context_has_an_error_and_stays(window: Window):
    conversation, text = window.conversation, "x" * 100_000
    conversation.input.setPlainText(text)
    conversation.send()
    until(lambda: not conversation.is_busy)
    assert "trained for 2048" in lines(conversation)[-1]
    assert conversation.input.toPlainText() == text and not conversation.messages


def test_a_question_without_a_model_stays_in_the_input(empty: Window):
    conversation = ask(empty, "What is 12 + 30?")
    assert not conversation.is_busy and "Ctrl+O" in conversation.status.text()
    assert conversation.input.toPlainText() == "What is 12 + 30?"


# ---- models ----


def broken(kind: str, folder: Path) -> Path:
    path = folder / "broken.gguf"
    data = embedded_model().read_bytes()
    if kind == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif kind == "header cut":
        path.write_bytes(data[:1000])
    elif kind == "text":
        path.write_text("no model")
    elif kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    return path


@pytest.mark.parametrize("kind", ["missing", "truncated", "header cut", "text", "empty", "folder"])
def test_a_model_that_cannot_be_loaded_leaves_the_one_before(window: Window, tmp_path, kind: str):
    load(window, broken(kind, tmp_path))
    assert "broken.gguf was not loaded" in window.notice.text()
    assert "a bug" not in window.notice.text()
    assert "42" in answered(window, "What is 12 + 30?").messages[-1]["content"]


def test_a_model_that_memory_is_too_small_for_leaves_the_one_before(window: Window):
    window.options = {"n_ctx": 1 << 24}  # cells of the cache, for which no machine has memory
    load(window, embedded_model("tgr-mini-code"))
    assert "cells of the KV cache" in window.notice.text()
    assert "42" in answered(window, "What is 12 + 30?").messages[-1]["content"]


def test_a_model_makes_room_where_memory_is_too_small_for_two(window: Window, monkeypatch):
    first = window.engine
    monkeypatch.setattr("desktop.window.check_memory", lambda *_: SimpleNamespace(fits=False))
    load(window, embedded_model("tgr-mini-code"))
    assert window.engine is not first and "tgr-mini-code" in window.notice.text()
    window.options = {"n_ctx": 1 << 24}
    load(window, embedded_model())
    assert window.engine is None
    assert "Ctrl+O" in ask(window, "What is 12 + 30?").status.text()
    window.set_options({})  # tries the model again
    assert window.notice.text().startswith(f"Loading {embedded_model()}")
    until(lambda: window.engine)


def test_a_model_is_exchanged_while_a_reply_is_written(window: Window):
    conversation, first = ask(window, PUZZLE), window.engine
    load(window, embedded_model("tgr-mini-code"))
    until(lambda: not conversation.is_busy)
    assert window.engine is not first and "tgr-mini-code" in window.notice.text()


def test_the_newest_wish_is_loaded(window: Window):
    ended: list[bool] = []
    window.model_changed.connect(lambda: ended.append(True))
    window.load(embedded_model("tgr-mini-code"))
    window.load(embedded_model())
    window.set_options({**window.options, "n_ctx": 3000})
    until(lambda: ended)
    assert window.engine is not None and window.engine.path == embedded_model()
    assert window.engine.n_ctx >= 3000


def load_slowly(window: Window, path: Path, monkeypatch) -> None:
    """Begins to load a model, which takes until it is cancelled."""

    def wait(path: Path, config: EngineConfig, cancel: Cancel) -> Engine:
        monkeypatch.setattr("desktop.window.Engine", Engine)
        while not cancel.is_set():
            time.sleep(0.01)
        raise CancelledError("the model was not loaded")

    monkeypatch.setattr("desktop.window.Engine", wait)
    window.load(path)


def test_the_model_that_is_being_loaded_is_chosen_again(empty: Window, monkeypatch):
    load_slowly(empty, embedded_model(), monkeypatch)
    load(empty, embedded_model())
    assert empty.engine is not None


def test_stop_ends_the_newest_wish_too(empty: Window, monkeypatch):
    ended: list[bool] = []
    empty.model_changed.connect(lambda: ended.append(True))
    load_slowly(empty, embedded_model("tgr-mini-code"), monkeypatch)
    empty.load(embedded_model())
    assert empty.notice.text().startswith(f"Loading {embedded_model()}")
    empty.stop()
    until(lambda: ended)
    assert empty.engine is None and empty.notice.text() == "No model is loaded."


def test_loading_is_stopped(window: Window):
    first, ended = window.engine, []
    window.model_changed.connect(lambda: ended.append(True))
    window.load(embedded_model("tgr-mini-code"))
    window.stop()
    until(lambda: ended)
    assert "was not loaded" not in window.notice.text()
    assert window.engine is not None and window.engine.path in (  # it may be too late to stop
        first.path,
        embedded_model("tgr-mini-code"),
    )


def test_the_dialog_knows_what_fits_and_what_is_no_model(window: Window, tmp_path):
    huge = tmp_path / "huge.gguf"
    huge.write_bytes(embedded_model().read_bytes())
    os.truncate(huge, 1 << 42)  # a sparse file of 4 TiB: more memory than a machine has
    dialog = ModelDialog(EngineConfig())
    until(lambda: dialog.list.count() >= 2)
    assert dialog.path is not None and dialog.button.isEnabled()
    n_known, first = dialog.list.count(), dialog.path
    dialog.inspect(lambda: [huge])
    until(lambda: dialog.list.count() == n_known + 1)
    assert dialog.path == first  # what is added does not change the choice
    dialog.list.setCurrentRow(n_known)
    assert dialog.path == huge
    need, free = (
        int(number.replace(",", ""))
        for number in re.findall(r"([\d,]+) MB", dialog.list.currentItem().text())
    )
    assert need > 1 << 22 > free  # MB
    dialog.inspect(lambda: [tmp_path])
    until(lambda: dialog.list.count() == n_known + 2)
    dialog.list.setCurrentRow(n_known + 1)
    assert dialog.path is None and not dialog.button.isEnabled()


def test_a_text_of_a_model_file_is_a_part_of_a_line(empty: Window, tmp_path):
    text = b"Nice\n1 MB of memory is needed " + b"x" * 1_000_000
    for key in ("general.name", "general.architecture"):
        file, path = Gguf.parse(embedded_model().read_bytes()), tmp_path / f"{key}.gguf"
        file.set(key, text)
        path.write_bytes(file.to_bytes())
        _, about, _ = inspect(path, EngineConfig())
        assert len(about) < 300 and len(about.splitlines()) == 2 and "Nice 1 MB" in about
    load(empty, tmp_path / "general.name.gguf")
    shown = empty.notice.text()
    assert shown.startswith("Nice 1 MB") and len(shown) < 300 and len(shown.splitlines()) == 1


# ---- settings ----


def test_settings_are_kept(store: QSettings, tmp_path):
    options = {"n_candidates": 4, "max_tokens": 640, "temperature": 0.7, "thinking": False}
    window = Window(store)
    load(window, embedded_model("tgr-mini-code"))
    window.set_options({**options, "n_gpu_layers": 0})
    until(lambda: window.engine.config.n_gpu_layers == 0)  # it was loaded again
    window.close()
    window.shut_down()
    store.sync()
    again = QSettings(store.fileName(), QSettings.Format.IniFormat)
    assert again.value("model") == str(embedded_model("tgr-mini-code"))
    window = Window(again)
    assert window.options == {**options, "n_gpu_layers": 0}
    search, engine = settings.configs(window.options)
    assert search == SearchConfig(**options) and engine == EngineConfig(n_gpu_layers=0)
    window.close()


def test_the_dialog_refuses_what_a_config_refuses(app: QApplication):
    dialog = settings.SettingsDialog({"n_candidates": 4})
    assert dialog.edits["n_candidates"].text() == "4"
    for name, text, error in (
        ("n_candidates", "-4", "n_candidates is -4"),
        ("temperature", "NaN", "temperature is nan"),
        ("chunk_len", "many", "many is no number"),
        ("thinking", "perhaps", "perhaps is no number, true or false"),
        ("n_ctx", "[" * 30_000, ""),  # more than the parser may nest
    ):
        dialog.edits[name].setText(text)
        dialog.accept()
        assert error in dialog.error.text() and not dialog.result()
        dialog.edits[name].setText("")
    dialog.edits["thinking"].setText("false")
    dialog.accept()
    assert dialog.result() and dialog.options == {"thinking": False}


@pytest.mark.parametrize(
    "text", ['options={"n_candidates": -4}', "options={", "options=[1]", "options=5", "\x00[",
             'options={"thinking": "perhaps"}', "geometry=@ByteArray(x", "options=",
             pytest.param("options=" + "[" * 100_000, id="nested")]
)  # fmt: skip
def test_damaged_settings_are_the_defaults(app: QApplication, tmp_path, text: str):
    path = tmp_path / "settings.ini"
    path.write_text(f"[General]\n{text}\n", encoding="utf-8")
    window = Window(QSettings(str(path), QSettings.Format.IniFormat))
    assert settings.configs(window.options) == (SearchConfig(), EngineConfig())
    window.close()
    window.shut_down()


def test_options_change_the_next_reply(window: Window):
    window.set_options({"n_candidates": 3})
    search = answered(window, PUZZLE).search
    assert {len(search.item(i).data(SCORES).total) for i in range(search.count())} == {3}


# ---- the program ----


def test_a_screenshot_has_the_reply_and_its_bars(window: Window):
    before = window.grab().toImage()
    conversation = answered(window, PUZZLE)
    search = conversation.search
    picture = search.viewport().grab().toImage()
    pixels = {picture.pixelColor(x, y).name() for x in range(0, picture.width(), 3)
              for y in range(0, picture.height(), 3)}  # fmt: skip
    palette = search.palette()
    assert {palette.highlight().color().name(), palette.mid().color().name()} <= pixels
    assert window.grab().toImage() != before


def test_the_program_starts_answers_and_ends(tmp_path):
    """As a process of its own, which the user leaves in the middle of a reply."""
    script = (
        "import sys; sys.argv[1:] = []; from PySide6.QtCore import QTimer\n"
        "from desktop import __main__ as program, window\n"
        "class Driven(window.Window):\n"
        "    def _loaded(self, *end):\n"
        "        super()._loaded(*end)\n"
        f"        self.conversation.input.setPlainText({PUZZLE!r})\n"
        "        self.conversation.send()\n"
        "        QTimer.singleShot(300, self.close)\n"
        "window.Window = Driven; sys.exit(program.main())"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=FOLDER.parent, timeout=HANG, capture_output=True,
        env=environment(XDG_CONFIG_HOME=str(tmp_path), QT_QPA_PLATFORM="offscreen"),
    )  # fmt: skip
    assert run.returncode == 0 and not re.search(rb"Traceback|QObject|QThread", run.stderr)
    assert "geometry=" in (tmp_path / "tgr-local" / "desktop.ini").read_text(encoding="utf-8")


# ---- the source ----


def test_the_program_uses_public_names_alone():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    public = set(re.findall(r"^::: (tgr_local\.[\w.]+)$", page, re.MULTILINE))
    public |= {f"tgr_local.{name}" for name in tgr_local.__all__}
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tgr_local"):
                used = {f"{node.module}.{alias.name}" for alias in node.names}
                assert used <= public, (path, used - public)
            assert not isinstance(node, ast.Import) or "tgr_local" not in ast.unparse(node)


def test_the_list_of_files_is_complete():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\((\w+\.py)\)", text))
    assert listed == {path.name for path in FOLDER.glob("*.py")} - {"__init__.py"}
