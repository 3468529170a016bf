"""The window: conversations on the left, the one that is open, its search on the right."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QByteArray, Qt, Signal
from PySide6.QtGui import QCloseEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QApplication,
    QFrame,
    QHBoxLayout,
    QLabel,
    QListWidget,
    QListWidgetItem,
    QMainWindow,
    QProgressBar,
    QPushButton,
    QSplitter,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from desktop import look
from desktop.conversation import Conversation
from desktop.models import ModelDialog, size
from desktop.settings import Options, Settings, SettingsDialog
from desktop.worker import Loader, join_all
from tgr_local import Engine


class Banner(QFrame):
    """What happens to the model: it is being loaded, or could not be."""

    def __init__(self) -> None:
        super().__init__(objectName="banner", visible=False)
        self.text = QLabel(wordWrap=True, textFormat=Qt.TextFormat.PlainText)
        self._progress = QProgressBar(minimum=0, maximum=0, textVisible=False)
        self.button = QPushButton()
        row = QHBoxLayout()
        row.addWidget(self.text, 1)
        row.addWidget(self.button)
        layout = QVBoxLayout(self)
        layout.addLayout(row)
        layout.addWidget(self._progress)

    def show_text(self, text: str, button: str, *, is_working: bool) -> None:
        self.text.setText(text)
        self.button.setText(button)
        self._progress.setVisible(is_working)
        self.show()


class Window(QMainWindow):
    """The window and its engine. `load` a model, then `show`; `shut_down` after the event loop."""

    model_changed = Signal()
    """A model was loaded, or could not be."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings, self.options = settings, settings.options()
        self.engine: Engine | None = None
        self._loader: Loader | None = None
        self.setWindowTitle("TGR")
        self.resize(1180, 760)
        self.list = QListWidget()
        self.list.setAccessibleName("Conversations")
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.list.currentRowChanged.connect(self._open)
        self._stack, self._searches = QStackedWidget(), QStackedWidget()
        self.banner = Banner()
        self.banner.button.clicked.connect(self._press_banner)
        self.model_button = QPushButton("Choose a model …", objectName="model")
        self._splitter = QSplitter()
        for part, stretch in ((self._sidebar(), 0), (self._middle(), 1), (self._search(), 0)):
            self._splitter.addWidget(part)
            self._splitter.setStretchFactor(self._splitter.count() - 1, stretch)
        self._splitter.setSizes([220, 660, 300])
        self.setCentralWidget(self._splitter)
        for keys, call in (
            ("Ctrl+N", self.new_conversation),
            ("Ctrl+W", self.close_conversation),
            ("Esc", lambda: self.conversation.cancel()),
            ("Ctrl+O", self.choose_model),
            ("Ctrl+,", self.change_settings),
            ("Ctrl+B", lambda: self._panel.setVisible(self._panel.isHidden())),
            ("Ctrl+Q", self.close),
            ("Ctrl+PgUp", lambda: self._step(-1)),
            ("Ctrl+PgDown", lambda: self._step(1)),
        ):
            QShortcut(QKeySequence(keys), self, activated=call)
        for name, restore in (
            ("geometry", self.restoreGeometry), ("splitter", self._splitter.restoreState),
        ):  # fmt: skip
            if isinstance(state := settings.get(name), QByteArray):
                restore(state)
        self.new_conversation()

    # --- conversations ---

    @property
    def conversations(self) -> list[Conversation]:
        return [self._stack.widget(i) for i in range(self._stack.count())]

    @property
    def conversation(self) -> Conversation:
        return self._stack.currentWidget()

    def new_conversation(self) -> Conversation:
        conversation = Conversation(lambda: self.engine, lambda: self.options)
        self._stack.addWidget(conversation)
        self._searches.addWidget(conversation.search)
        self.list.addItem(QListWidgetItem())
        conversation.changed.connect(lambda: self._label(conversation))
        self._label(conversation)
        self.list.setCurrentRow(self.list.count() - 1)
        return conversation

    def close_conversation(self) -> None:
        """Closes the one that is open; the window always has one."""
        conversation, row = self.conversation, self.list.currentRow()
        if len(self.conversations) == 1:
            self.new_conversation()
        conversation.cancel()
        conversation.changed.disconnect()
        self._stack.removeWidget(conversation)
        self._searches.removeWidget(conversation.search)
        self.list.takeItem(row)
        conversation.search.deleteLater()
        conversation.deleteLater()
        self._open(self.list.currentRow())

    def _open(self, row: int) -> None:
        if 0 <= row < self._stack.count():
            self._stack.setCurrentIndex(row)
            self._searches.setCurrentIndex(row)
            self.conversation.input.editor.setFocus()

    def _step(self, by: int) -> None:
        self.list.setCurrentRow((self.list.currentRow() + by) % self.list.count())

    def _label(self, conversation: Conversation) -> None:
        item = self.list.item(self._stack.indexOf(conversation))
        item.setText(("●  " if conversation.is_busy else "") + conversation.title)
        item.setToolTip("A reply is being written" if conversation.is_busy else "")

    # --- the model ---

    def load(self, path: Path) -> None:
        """Loads a model; the one before stays if there is room for both and this one fails."""
        if self._loader:
            return
        path = path.absolute()
        self._loader = Loader(path, self.options.engine_config(), self.engine)
        self._loader.loaded.connect(self._loaded)
        self._loader.failed.connect(self._failed)
        self.banner.show_text(f"Loading {path.name} …", "Cancel", is_working=True)
        self._loader.start()

    def _loaded(self, engine: Engine) -> None:
        self._loader, self.engine = None, engine
        self._settings.put("model", str(engine.path))
        self._name_model(engine)
        if engine.template_warning:
            self.banner.show_text(engine.template_warning, "Close", is_working=False)
        else:
            self.banner.hide()
        self.model_changed.emit()

    def _failed(self, message: str, is_closed: bool) -> None:
        self._loader = None
        if is_closed:
            self.engine = None
        self._name_model(self.engine)
        if message:
            self.banner.show_text(message, "Choose another …", is_working=False)
        else:
            self.banner.hide()
        self.model_changed.emit()

    def _name_model(self, engine: Engine | None) -> None:
        if engine is None:
            self.model_button.setText("Choose a model …")
            return
        name = engine.metadata.get("general.name") or engine.path.stem
        self.model_button.setText(f"{' '.join(name.split())[:24]}  ·  {size(engine.size_bytes)}")
        self.model_button.setToolTip(f"{engine.path}\n{engine.description}")

    def _press_banner(self) -> None:
        if self._loader:
            self._loader.cancel()
        elif self.banner.button.text() == "Close":
            self.banner.hide()
        else:
            self.choose_model()

    def choose_model(self) -> None:
        now = self.engine.path if self.engine else None
        dialog = ModelDialog(self.options.engine_config(), now, self)
        dialog.accepted.connect(lambda: dialog.path and self.load(dialog.path))
        dialog.open()  # does not wait: replies go on

    # --- settings and the end ---

    def change_settings(self) -> None:
        dialog = SettingsDialog(self.options, self)
        dialog.accepted.connect(lambda: self.set_options(dialog.options()))
        dialog.open()

    def set_options(self, options: Options) -> None:
        """Changes how the next reply is written, and loads the model again if it must be."""
        is_moved = options.cpu_only != self.options.cpu_only
        self.options = options
        self._settings.save_options(options)
        look.apply(QApplication.instance(), options.theme)
        if is_moved and self.engine:
            self.load(self.engine.path)

    def closeEvent(self, event: QCloseEvent) -> None:
        self._settings.put("geometry", self.saveGeometry())
        self._settings.put("splitter", self._splitter.saveState())
        for conversation in self.conversations:
            conversation.cancel()
        if self._loader:
            self._loader.cancel()
        event.accept()

    def shut_down(self) -> None:
        """Ends all work and frees the model. The window is gone already, so this may wait."""
        if self.engine:
            self.engine.close()
        join_all()

    # --- parts ---

    def _sidebar(self) -> QWidget:
        side = QFrame(objectName="sidebar")
        new = QPushButton("New conversation")
        new.clicked.connect(self.new_conversation)
        self.model_button.clicked.connect(self.choose_model)
        settings = QPushButton("Settings …")
        settings.clicked.connect(self.change_settings)
        layout = QVBoxLayout(side)
        layout.setContentsMargins(12, 14, 12, 14)
        layout.addWidget(new)
        layout.addWidget(self.list, 1)
        layout.addWidget(self.model_button)
        layout.addWidget(settings)
        return side

    def _middle(self) -> QWidget:
        middle = QWidget()
        layout = QVBoxLayout(middle)
        layout.setContentsMargins(0, 8, 0, 0)
        layout.addWidget(self.banner)
        layout.addWidget(self._stack, 1)
        return middle

    def _search(self) -> QWidget:
        self._panel = QFrame(objectName="searchPanel")
        layout = QVBoxLayout(self._panel)
        layout.setContentsMargins(0, 14, 0, 0)
        heading = QLabel("Search", objectName="heading")
        heading.setContentsMargins(12, 0, 0, 0)
        layout.addWidget(heading)
        layout.addWidget(self._searches, 1)
        return self._panel
