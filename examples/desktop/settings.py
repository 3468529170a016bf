"""The options that are kept between two runs, and the dialog that changes them. Their names, bounds
and explanations are those of tgr_local's configs."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from PySide6.QtCore import QSettings
from PySide6.QtWidgets import QDialog, QDialogButtonBox, QFormLayout, QLabel, QLineEdit, QWidget

from tgr_local import EngineConfig, SearchConfig

SEARCH = ("n_candidates", "rollout_len", "chunk_len", "max_tokens", "temperature", "thinking")
ENGINE = ("n_gpu_layers", "n_threads", "n_ctx")
FIELDS = {field.name: field for kind in (SearchConfig, EngineConfig) for field in fields(kind)}
Options = dict[str, Any]
"""Values by name. An option that is absent is as the model file advises."""


def configs(options: Options) -> tuple[SearchConfig, EngineConfig]:
    """How replies are written, and how models are loaded. Raises ValueError for a bad value."""
    search = {name: options[name] for name in SEARCH if name in options}
    engine = {name: options[name] for name in ENGINE if name in options}
    return SearchConfig(**search), EngineConfig(**engine)


def read(store: QSettings) -> Options:
    """The options of a file; none if they are damaged."""
    try:
        options = dict(json.loads(str(store.value("options", "{}"))))
        configs(options)
    except (ValueError, TypeError, RecursionError):  # deeply nested
        return {}
    return options


class SettingsDialog(QDialog):
    """`options` are those that the user wants, once the dialog was accepted."""

    def __init__(self, options: Options, parent: QWidget | None = None) -> None:
        super().__init__(parent, windowTitle="Settings")
        self.resize(420, 0)
        self.options, self.edits = options, {}
        form = QFormLayout(self)
        for name in SEARCH + ENGINE:
            text = json.dumps(options[name]) if name in options else ""
            self.edits[name] = QLineEdit(text, toolTip=FIELDS[name].metadata["doc"])
            default = json.dumps(FIELDS[name].default)
            self.edits[name].setPlaceholderText(f"as the model advises, or {default}")
            form.addRow(name, self.edits[name])
        self.error = QLabel(wordWrap=True)
        box = QDialogButtonBox(
            QDialogButtonBox.StandardButton.Ok | QDialogButtonBox.StandardButton.Cancel
        )
        box.accepted.connect(self.accept)
        box.rejected.connect(self.reject)
        form.addRow(self.error)
        form.addRow(box)

    def accept(self) -> None:
        texts = {name: edit.text().strip() for name, edit in self.edits.items()}
        try:
            self.options = {name: json.loads(text) for name, text in texts.items() if text}
            configs(self.options)
        except json.JSONDecodeError as error:
            self.error.setText(f"{error.doc} is no number, true or false")
        except (ValueError, RecursionError) as error:
            self.error.setText(str(error))
        else:
            super().accept()
