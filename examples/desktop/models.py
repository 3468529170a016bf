"""The dialog that chooses a model: the files on this machine, and whether each fits into memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject, QSize, Qt, Signal
from PySide6.QtGui import QColor, QIcon, QPainter, QPixmap
from PySide6.QtWidgets import (
    QDialog,
    QFileDialog,
    QHBoxLayout,
    QLabel,
    QListWidget,
    QListWidgetItem,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from desktop import look
from desktop.worker import message_of, start
from tgr_local import EngineConfig, TgrError
from tgr_local.engine import check_memory
from tgr_local.models.library import card, folder, local


@dataclass(frozen=True)
class ModelFile:
    """A file, and what is known of it without loading it."""

    path: Path
    name: str
    about: str
    verdict: str
    """"good" fits, "warn" does not fit, "error" is no model that can be loaded."""


def inspect(path: Path, config: EngineConfig) -> ModelFile:
    """Reads the header of a file; an error is part of the result."""
    try:
        header, check = card(path), check_memory(path, config)
    except (TgrError, OSError) as error:
        return ModelFile(path, path.name, message_of(error), "error")
    facts = f"{size(path.stat().st_size)} · {header.architecture}"
    need, free = check.need.ram + check.need.gpu, check.free.gpu or check.free.ram
    verdict = "fits into memory" if check.fits else f"needs {size(need)}"
    room = f", {size(free)} free" if free is not None else ""
    name = header.metadata.get("general.name") or path.stem
    return ModelFile(path, name, f"{facts} · {verdict}{room}", "good" if check.fits else "warn")


def size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"


class Inspector(QObject):
    """Inspects files in a thread: a header on a slow disk takes a while."""

    found = Signal(object)
    ended = Signal()

    def __init__(self, config: EngineConfig) -> None:
        super().__init__()
        self._config = config

    def start(self, paths: list[Path] | None = None) -> None:
        """None = the models that are known by name."""

        def run() -> None:
            for path in local() if paths is None else paths:
                self.found.emit(inspect(path, self._config))
            self.ended.emit()

        start(run)


class ModelDialog(QDialog):
    """`path` is the model to load after the dialog was accepted."""

    def __init__(
        self, config: EngineConfig, now: Path | None, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle("Choose a model")
        self.resize(560, 380)
        self._now = now
        self.list = QListWidget(objectName="models", iconSize=QSize(12, 12))
        self.list.setWordWrap(True)
        self._hint = QLabel("Looking …", objectName="muted")
        self._hint.setWordWrap(True)
        self.open_button = QPushButton("Open a file …")
        self.load_button = QPushButton("Load", objectName="primary", default=True, enabled=False)
        row = QHBoxLayout()
        row.addWidget(self.open_button)
        row.addStretch(1)
        row.addWidget(self.load_button)
        layout = QVBoxLayout(self)
        layout.addWidget(self.list, 1)
        layout.addWidget(self._hint)
        layout.addLayout(row)
        self.open_button.clicked.connect(self._open)
        self.load_button.clicked.connect(self.accept)
        self.list.currentItemChanged.connect(self._select)
        self.list.itemDoubleClicked.connect(lambda: self.path and self.accept())
        self._inspector = Inspector(config)
        self._inspector.found.connect(self._add)
        self._inspector.ended.connect(self._show_hint)
        self._inspector.start()

    @property
    def chosen(self) -> ModelFile | None:
        item = self.list.currentItem()
        return item.data(Qt.ItemDataRole.UserRole) if item else None

    @property
    def path(self) -> Path | None:
        """None for a file that cannot be loaded."""
        return self.chosen.path if self.chosen and self.chosen.verdict != "error" else None

    def inspect(self, path: Path) -> None:
        """Adds a file, and selects it."""
        self._now = path
        self._inspector.start([path])

    def _open(self) -> None:
        name, _ = QFileDialog.getOpenFileName(self, "Open a model", "", "GGUF (*.gguf);;All (*)")
        if name:
            self.inspect(Path(name))

    def _add(self, file: ModelFile) -> None:
        item = QListWidgetItem(_dot(look.color(file.verdict)), f"{file.name}\n{file.about}")
        item.setData(Qt.ItemDataRole.UserRole, file)
        item.setToolTip(str(file.path))
        self.list.addItem(item)
        if self._now in (None, file.path):
            self.list.setCurrentItem(item)
            self._now = file.path

    def _select(self) -> None:
        file = self.chosen
        self.load_button.setEnabled(self.path is not None)
        self.load_button.setText("Load anyway" if file and file.verdict == "warn" else "Load")

    def _show_hint(self) -> None:
        self._hint.setText(
            f"Models in {folder()} are listed here. "
            "In a terminal, tgr-local models pull OWNER/NAME downloads one."
        )


def _dot(color: QColor) -> QIcon:
    pixmap = QPixmap(24, 24)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(color)
    painter.drawEllipse(3, 3, 18, 18)
    painter.end()
    return QIcon(pixmap)
