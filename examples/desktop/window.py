"""The window: the conversations, and the model that all of them share."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QByteArray, QSettings, Qt, QThreadPool, Signal
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QLabel, QMainWindow, QTabWidget, QVBoxLayout, QWidget

from desktop import settings
from desktop.conversation import Conversation
from desktop.models import ModelDialog, short
from desktop.worker import Task, message_of
from tgr_local import Cancel, CancelledError, Engine
from tgr_local.engine import check_memory
from tgr_local.options.model_files import embedded_model

_END_MS = 5000  # that the threads may take to end with the program


class Window(QMainWindow):
    """`load` a model, then `show`; `shut_down` after the event loop."""

    model_changed = Signal()
    """A model was loaded, or could not be."""

    def __init__(self, store: QSettings) -> None:
        super().__init__(windowTitle="TGR")
        self.resize(1000, 700)
        self._store, self.options = store, settings.read(store)
        self.engine: Engine | None = None
        self._loading: Cancel | None = None
        self._wanted: Path | None = None  # loaded again when the options change
        self._next: Path | None = None  # chosen while another one is loaded
        self.notice = QLabel(wordWrap=True, textFormat=Qt.TextFormat.PlainText)
        """Which model there is, is being loaded, or could not be."""
        self.tabs = QTabWidget(documentMode=True, tabsClosable=True)
        self.tabs.tabCloseRequested.connect(self.close_conversation)
        bar = self.addToolBar("Actions")
        for text, keys, call in (
            ("New conversation", "Ctrl+N", self.new_conversation),
            ("Close", "Ctrl+W", lambda: self.close_conversation(self.tabs.currentIndex())),
            ("Stop", "Esc", self.stop),
            ("Model …", "Ctrl+O", self.choose_model),
            ("Settings …", "Ctrl+,", self.change_settings),
            ("Quit", "Ctrl+Q", self.close),
        ):
            bar.addAction(text, keys, call)
        middle = QWidget()
        layout = QVBoxLayout(middle)
        layout.addWidget(self.notice)
        layout.addWidget(self.tabs)
        self.setCentralWidget(middle)
        if isinstance(geometry := store.value("geometry"), QByteArray):
            self.restoreGeometry(geometry)
        self.new_conversation()

    @property
    def conversation(self) -> Conversation:
        """The one in sight."""
        return self.tabs.currentWidget()

    def new_conversation(self) -> None:
        conversation = Conversation(lambda: (self.engine, settings.configs(self.options)[0]))
        self.tabs.setCurrentIndex(self.tabs.addTab(conversation, conversation.title))
        conversation.changed.connect(
            lambda: self.tabs.setTabText(self.tabs.indexOf(conversation), conversation.title)
        )
        conversation.input.setFocus()

    def close_conversation(self, index: int) -> None:
        """The window always has one."""
        conversation = self.tabs.widget(index)
        conversation.changed.disconnect()
        conversation.cancel()
        self.tabs.removeTab(index)
        conversation.deleteLater()
        if not self.tabs.count():
            self.new_conversation()

    def stop(self) -> None:
        """Ends the reply in sight, and the loading of a model."""
        self.conversation.cancel()
        self._next = None
        if self._loading:
            self._loading.cancel()

    def load(self, path: Path) -> None:
        """If that fails, the model before stays, unless memory is too small for both. What is being
        loaded gives way."""
        self._wanted = path
        self.notice.setText(f"Loading {path} … Esc stops it.")
        if self._loading:
            self._next = path
            self._loading.cancel()
            return
        old, config, cancel = self.engine, settings.configs(self.options)[1], Cancel()

        def work(post: Callable[[str], None]) -> Engine:
            if old and not check_memory(path, config).fits:
                old.close()
                post("closed")
            engine = Engine(path, config, cancel=cancel)
            if old:
                old.close()  # which ends its replies
            gc.freeze()  # else a full collection, which may come in any thread, takes 25 ms
            return engine

        self._loading, self._task = cancel, Task(work)
        self._task.posted.connect(self._closed)
        self._task.finished.connect(lambda engine, error: self._loaded(path, engine, error))
        self._task.start()

    def _closed(self) -> None:
        self.engine = None

    def _loaded(self, path: Path, engine: Engine | None, error: Exception | None) -> None:
        self._loading = None
        if engine:
            self.engine = engine
            is_embedded = path == embedded_model()  # which lies elsewhere in another installation
            self._store.setValue("model", "" if is_embedded else str(path.absolute()))
        text = "No model is loaded."
        if self.engine:
            name = self.engine.metadata.get("general.name", self.engine.path.name)
            text = f"{short(name)}: {self.engine.description}"
        if error and not isinstance(error, CancelledError):
            text = f"{path} was not loaded: {message_of(error)}"
        elif engine and engine.template_warning:
            text = engine.template_warning
        self.notice.setText(text)
        if self._next:
            path, self._next = self._next, None
            self.load(path)
        else:
            self._wanted = self.engine.path if self.engine else path
            self.model_changed.emit()

    def choose_model(self) -> None:
        dialog = ModelDialog(settings.configs(self.options)[1], self)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.accepted.connect(lambda: self.load(dialog.path))
        dialog.open()  # does not wait: replies go on

    def change_settings(self) -> None:
        dialog = settings.SettingsDialog(self.options, self)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.accepted.connect(lambda: self.set_options(dialog.options))
        dialog.open()

    def set_options(self, options: settings.Options) -> None:
        """Changes how the next reply is written, and loads the model again if it must be."""
        before, self.options = self.options, options
        self._store.setValue("options", json.dumps(options))
        if self._wanted and settings.configs(before)[1] != settings.configs(options)[1]:
            self.load(self._wanted)

    def closeEvent(self, event: QCloseEvent) -> None:
        self._store.setValue("geometry", self.saveGeometry())
        for conversation in self.findChildren(Conversation):
            conversation.cancel()
        self.stop()
        super().closeEvent(event)

    def shut_down(self) -> None:
        """Ends all work and frees the model. The window is gone already, so this may wait."""
        if self.engine:
            self.engine.close()
        if not QThreadPool.globalInstance().waitForDone(_END_MS):
            self._store.sync()
            os._exit(1)  # Qt would wait for a thread that a disk keeps waiting
