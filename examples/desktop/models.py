"""The dialog that chooses a model: the files, and whether each fits into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from PySide6 import QtWidgets
from PySide6.QtCore import Qt

from desktop.worker import Task, message_of
from tgr_local import EngineConfig, TgrError
from tgr_local.engine import check_memory
from tgr_local.options.model_files import card, folder, local

Icon = QtWidgets.QStyle.StandardPixmap


def short(text: str) -> str:
    """A text of a model file, which may be long, as a part of a line."""
    return " ".join(text.split())[:80]


def inspect(path: Path, config: EngineConfig) -> tuple[Icon, str, Path | None]:
    """What the header of a file says; the path is None for one that is no model."""
    try:
        facts, check = card(path).facts(), check_memory(path, config)
    except (TgrError, OSError) as error:
        return Icon.SP_MessageBoxCritical, f"{path}\n{message_of(error)}", None
    need, free = check.need.ram + check.need.gpu, check.free.gpu or check.free.ram or 0
    name = facts["general.name"] or facts["name"]
    about = (
        f"{short(name)}, {short(facts['architecture'])}, {facts['quantization']}\n"
        f"{need / 1e6:,.0f} MB of memory are needed, {free / 1e6:,.0f} MB are free"
    )
    return Icon.SP_DialogApplyButton if check.fits else Icon.SP_MessageBoxWarning, about, path


class ModelDialog(QtWidgets.QDialog):
    """`path` is the model to load, once the dialog was accepted."""

    def __init__(self, config: EngineConfig, parent: QtWidgets.QWidget | None = None) -> None:
        super().__init__(parent, windowTitle="Choose a model")
        self.resize(560, 360)
        self._config = config
        self._tasks: list[Task] = []
        self.list = QtWidgets.QListWidget()
        self.list.currentItemChanged.connect(lambda: self.button.setEnabled(bool(self.path)))
        box = QtWidgets.QDialogButtonBox(QtWidgets.QDialogButtonBox.StandardButton.Cancel)
        self.button = box.addButton("Load", box.ButtonRole.AcceptRole)
        self.button.setEnabled(False)
        box.addButton("Another file …", box.ButtonRole.ActionRole).clicked.connect(self._browse)
        box.accepted.connect(self.accept)
        box.rejected.connect(self.reject)
        layout = QtWidgets.QVBoxLayout(self)
        for part in (QtWidgets.QLabel(f"Models in {folder()}"), self.list, box):
            layout.addWidget(part)
        self.inspect(local)

    @property
    def path(self) -> Path | None:
        item = self.list.currentItem()
        return item.data(Qt.ItemDataRole.UserRole) if item else None

    def inspect(self, paths: Callable[[], Iterable[Path]]) -> None:
        """Adds files. A thread reads their headers, since a slow disk takes a while."""
        config = self._config
        task = Task(lambda post: [post(inspect(path, config)) for path in paths()])
        task.posted.connect(self._add)
        task.finished.connect(self._end)
        task.start()
        self._tasks.append(task)

    def _add(self, files: list[tuple[Icon, str, Path | None]]) -> None:
        for icon, about, path in files:
            item = QtWidgets.QListWidgetItem(self.style().standardIcon(icon), about, self.list)
            item.setData(Qt.ItemDataRole.UserRole, path)
        if not self.list.currentItem():
            self.list.setCurrentRow(self.list.count() - 1)

    def _end(self, _: object, error: Exception | None) -> None:
        if error:
            self._add([(Icon.SP_MessageBoxCritical, message_of(error), None)])

    def _browse(self) -> None:
        name, _ = QtWidgets.QFileDialog.getOpenFileName(
            self, "Open a model", "", "GGUF (*.gguf);;All (*)"
        )
        if name:
            self.list.setCurrentRow(-1)
            self.inspect(lambda: [Path(name)])
