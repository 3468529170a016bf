"""The desktop program of examples/desktop, driven as a person does, without a screen."""

from __future__ import annotations

import ast
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from surroundings import HANG, ROOT

import tgr_local
from tgr_local import EngineConfig, SearchConfig, Step, TextDelta, generate, stream
from tgr_local.models.library import embedded_model

FOLDER = ROOT / "examples" / "desktop"
if not FOLDER.exists():
    pytest.skip("the examples are not beside the tests", allow_module_level=True)
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
pytest.importorskip(
    "PySide6.QtWidgets",
    reason="PySide6 is absent: pip install 'tgr-local[desktop]'",
    exc_type=ImportError,
)
sys.path.insert(0, str(FOLDER.parent))

from desktop import look, settings  # noqa: E402
from desktop.models import ModelDialog, inspect  # noqa: E402
from desktop.window import Window  # noqa: E402
from desktop.worker import ReplyWorker  # noqa: E402
from PySide6.QtCore import QEventLoop, QMimeData, Qt, QThreadPool, QTimer  # noqa: E402
from PySide6.QtTest import QTest  # noqa: E402
from PySide6.QtWidgets import QApplication, QPushButton  # noqa: E402

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
    look.apply(app, "light")
    return app


@pytest.fixture
def empty(app: QApplication, tmp_path: Path) -> Iterator[Window]:
    """A window without a model."""
    window = Window(settings.Settings(tmp_path / "settings.ini"))
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
    QTest.keyClicks(conversation.input.editor, text)
    QTest.keyClick(conversation.input.editor, Qt.Key.Key_Return)
    return conversation


def answered(window: Window, text: str) -> Any:
    conversation = ask(window, text)
    until(lambda: not conversation.is_busy)
    return conversation


# ---- replies ----


def test_a_reply_on_the_screen_is_the_one_that_generate_writes(window: Window) -> None:
    conversation = answered(window, PUZZLE)
    reply = generate(window.engine, PUZZLE)
    answer = conversation.last_answer
    assert answer.text.strip() == reply.text and answer.thinking.strip() == reply.thinking
    assert conversation.messages[-1] == {"role": "assistant", "content": reply.text}
    n_forward = reply.counts.total + reply.counts.reused  # the first time nothing was in the cache
    assert f"{reply.n_tokens:,} tokens · {n_forward:,} forward" in answer.cost
    searched = [step for step in reply.steps if step.candidates]
    shown = conversation.search.boundaries
    assert len(shown) == len(searched) > 3
    for boundary, step in zip(shown, searched, strict=True):
        assert boundary.chunk == step.index
        assert boundary.totals.tolist() == step.candidates.scores.total.tolist()
        assert boundary.heights().argmax() == boundary.chosen == step.candidates.scores.chosen


def test_thinking_is_folded_until_it_is_asked_for(window: Window) -> None:
    answer = answered(window, "What is 12 + 30?").last_answer
    assert not answer.thought.isVisible() and not answer.thought.toPlainText()
    answer.fold.click()
    assert answer.thought.isVisible() and answer.thought.toPlainText() == answer.thinking


def test_batches_have_every_event_in_its_order(window: Window) -> None:
    got: list[Any] = []
    ended: list[Any] = []
    worker = ReplyWorker(
        window.engine, [{"role": "user", "content": PUZZLE}], SearchConfig(), "tgr-latent"
    )
    worker.batch.connect(got.extend)
    worker.finished.connect(lambda reply, error: ended.append((reply, error)))
    worker.start()
    until(lambda: ended)
    plain = list(stream(window.engine, PUZZLE))
    reply, error = ended[0]
    assert error is None and reply.text == plain[-1].text
    for kind in ("thinking", "answer"):  # how many tokens an event has depends on time
        texts = [
            "".join(e.text for e in events if isinstance(e, TextDelta) and e.kind == kind)
            for events in (got, plain)
        ]
        assert texts[0] == texts[1] != ""
    steps = [[e.tokens.tolist() for e in events if isinstance(e, Step)] for events in (got, plain)]
    assert steps[0] == steps[1]


def test_escape_ends_a_reply_and_the_next_one_is_written(window: Window) -> None:
    conversation = ask(window, PUZZLE)
    until(lambda: len(conversation.search.boundaries) >= 2)
    assert conversation.is_busy and conversation.input.button.text() == "Stop"
    QTest.keyClick(conversation.input.editor, Qt.Key.Key_Escape)
    until(lambda: not conversation.is_busy)
    assert conversation.last_answer.cost.startswith("stopped")
    # there was no answer yet: the question is in the input again, not in the conversation
    assert conversation.messages == [] and conversation.input.text() == PUZZLE
    conversation.input.set_text("")
    assert "42" in answered(window, "What is 12 + 30?").messages[-1]["content"]


def test_several_conversations_write_at_once(window: Window) -> None:
    written = [ask(window, f"What is {i + 10} + 30?") for i in range(1)]
    for i in range(1, 4):
        QTest.keyClick(window, Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
        written.append(ask(window, f"What is {i + 10} + 30?"))
    assert window.list.count() == 4 and len({id(one) for one in written}) == 4
    until(lambda: not any(one.is_busy for one in written))
    for i, conversation in enumerate(written):
        assert f"{i + 40}" in conversation.messages[-1]["content"]
        assert conversation.title == f"What is {i + 10} + 30?"


def test_a_conversation_is_closed_while_it_writes(window: Window) -> None:
    ask(window, PUZZLE)
    QTest.keyClick(window, Qt.Key.Key_W, Qt.KeyboardModifier.ControlModifier)
    assert window.list.count() == 1 and not window.conversation.messages
    assert "42" in answered(window, "What is 12 + 30?").messages[-1]["content"]


def test_the_window_is_closed_while_it_writes(window: Window) -> None:
    conversation = ask(window, PUZZLE)
    until(lambda: conversation.search.boundaries)
    window.close()
    window.shut_down()
    assert QThreadPool.globalInstance().activeThreadCount() == 0


# ---- what a person types ----


@pytest.mark.parametrize("text", ["", " ", "\n \n", "\t"])
def test_nothing_is_not_sent(window: Window, text: str) -> None:
    window.conversation.input.set_text(text)
    QTest.keyClick(window.conversation.input.editor, Qt.Key.Key_Return)
    assert not window.conversation.is_busy and not window.conversation.messages


@pytest.mark.parametrize("text", ["\x00\x01", "<b>x</b><img src=/etc/passwd>", "🧮" * 99])
def test_odd_texts_have_an_answer_or_an_error(window: Window, text: str) -> None:
    conversation = window.conversation
    conversation.input.set_text(text)
    conversation.send()
    until(lambda: not conversation.is_busy)
    assert conversation.last_answer.cost
    assert "this is a bug" not in conversation.last_answer.cost


def test_a_long_paste_is_a_chip_and_is_sent_in_full(window: Window) -> None:
    conversation, data = window.conversation, QMimeData()
    data.setText("x" * 100_000)
    conversation.input.editor.insertFromMimeData(data)
    assert conversation.input.editor.toPlainText() == ""
    conversation = answered(window, "What is this?")
    # it does not fit into the context of the model: the error says so, and nothing is lost
    assert "trained for 2048" in conversation.last_answer.cost
    assert conversation.input.text() == "What is this?\n\n" + "x" * 100_000


def test_the_oldest_turn_is_forgotten_when_the_conversation_is_too_long(window: Window) -> None:
    conversation = window.conversation
    many = " ".join(f"{i}" for i in range(1000))
    conversation.messages += [
        {"role": "user", "content": many},
        {"role": "assistant", "content": "So many."},
    ]
    answered(window, "What is 12 + 30?")
    assert "2048" in conversation.last_answer.cost
    offers = [b for b in conversation.findChildren(QPushButton) if "Forget" in b.text()]
    assert len(offers) == 1
    offers[0].click()
    until(lambda: not conversation.is_busy)
    assert "42" in conversation.messages[-1]["content"] and len(conversation.messages) == 2


def test_markdown_is_formatted_and_loads_nothing(app: QApplication) -> None:
    from desktop.message import Text

    text = Text()
    text.set_markdown("2*3*4 and a_b_c\n**bold** `x*y*z` ![i](/etc/passwd) <i>no</i>")
    shown = text.toPlainText()
    assert "2*3*4 and a_b_c" in shown and "bold `" not in shown and "x*y*z" in shown
    assert "<i>no</i>" in shown and "**" not in shown


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
def test_a_model_that_cannot_be_loaded_leaves_the_one_before(
    window: Window, tmp_path: Path, kind: str
) -> None:
    load(window, broken(kind, tmp_path))
    assert window.banner.isVisible() and "broken.gguf" in window.banner.text.text()
    assert "this is a bug" not in window.banner.text.text()
    assert "42" in answered(window, "What is 12 + 30?").messages[-1]["content"]


def test_a_model_that_memory_is_too_small_for_leaves_the_one_before(
    window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    too_large = EngineConfig(n_ctx=1 << 24)  # cells of the cache, for which no machine has memory
    monkeypatch.setattr(settings.Options, "engine_config", lambda options: too_large)
    load(window, embedded_model("tgr-mini-code"))
    assert "cells of the KV cache" in window.banner.text.text()
    assert "42" in answered(window, "What is 12 + 30?").messages[-1]["content"]


def test_a_question_without_a_model_stays_in_the_input(empty: Window) -> None:
    conversation = ask(empty, "What is 12 + 30?")
    assert not conversation.is_busy and conversation.input.text() == "What is 12 + 30?"


def test_a_model_is_exchanged_while_a_reply_is_written(window: Window) -> None:
    conversation, first = ask(window, PUZZLE), window.engine
    load(window, embedded_model("tgr-mini-code"))
    until(lambda: not conversation.is_busy)
    assert window.engine is not first and "tgr-mini-code" in window.model_button.text()


def test_the_dialog_knows_what_fits_and_what_is_no_model(window: Window, tmp_path: Path) -> None:
    huge = tmp_path / "huge.gguf"
    huge.write_bytes(embedded_model().read_bytes())
    os.truncate(huge, 1 << 42)  # a sparse file of 4 TiB: more memory than a machine has
    assert inspect(huge, window.options.engine_config()).verdict == "warn"
    assert inspect(tmp_path, window.options.engine_config()).verdict == "error"
    dialog = ModelDialog(window.options.engine_config(), window.engine.path)
    until(lambda: dialog.list.count() >= 2)
    until(lambda: dialog.path)
    assert dialog.load_button.isEnabled() and dialog.load_button.text() == "Load"
    dialog.inspect(huge)
    until(lambda: dialog.path == huge)
    assert dialog.load_button.text() == "Load anyway"
    dialog.inspect(tmp_path)
    until(lambda: dialog.chosen and dialog.chosen.path == tmp_path)
    assert dialog.path is None and not dialog.load_button.isEnabled()


# ---- settings ----


def test_settings_are_kept(app: QApplication, tmp_path: Path) -> None:
    path = tmp_path / "settings.ini"
    changed = settings.Options(
        method="base", n_candidates=4, max_tokens=640, temperature=0.7, thinking=False,
        cpu_only=True, theme="dark",
    )  # fmt: skip
    store = settings.Settings(path)
    store.save_options(changed)
    store.put("model", "/m.gguf")
    del store
    again = settings.Settings(path)
    assert again.options() == changed and again.get("model") == "/m.gguf"
    dialog = settings.SettingsDialog(changed)
    assert dialog.options() == changed
    config = changed.search_config()
    assert (config.n_candidates, config.max_tokens, config.temperature) == (4, 640, 0.7)
    assert not config.thinking and changed.engine_config().n_gpu_layers == 0


@pytest.mark.parametrize(
    "text", ["n_candidates=many", "n_candidates=-4", "temperature=nan", "method=magic", "\x00[",
             "thinking=perhaps", "geometry=@ByteArray(x", "theme="]
)  # fmt: skip
def test_damaged_settings_are_the_defaults(app: QApplication, tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.ini"
    path.write_text(f"[General]\n{text}\n", encoding="utf-8")
    window = Window(settings.Settings(path))
    assert window.options == settings.Options()
    window.close()
    window.shut_down()


def test_options_change_the_next_reply(window: Window) -> None:
    window.set_options(settings.Options(n_candidates=3))
    conversation = answered(window, "What is 12 + 30?")
    assert {len(boundary.totals) for boundary in conversation.search.boundaries} == {3}
    window.set_options(settings.Options(method="base"))
    assert "base" in answered(window, "What is 12 + 31?").last_answer.cost
    assert not conversation.search.boundaries


# ---- the source ----


def test_the_program_uses_public_names_alone() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    public = set(re.findall(r"^::: (tgr_local\.[\w.]+)$", page, re.MULTILINE))
    public |= {f"tgr_local.{name}" for name in tgr_local.__all__}
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tgr_local"):
                used = {f"{node.module}.{alias.name}" for alias in node.names}
                assert used <= public, (path, used - public)
            assert not isinstance(node, ast.Import) or "tgr_local" not in ast.unparse(node)


def test_the_list_of_files_is_complete() -> None:
    text = (FOLDER / "__init__.py").read_text(encoding="utf-8")
    listed = set(re.findall(r"^(\w+\.py) ", text, re.MULTILINE))
    assert listed == {path.name for path in FOLDER.glob("*.py")} - {"__init__.py"}
