"""What is kept between two runs, and the dialog that changes it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import QSettings
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDialog,
    QDialogButtonBox,
    QDoubleSpinBox,
    QFormLayout,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from tgr_local import EngineConfig, SearchConfig

METHODS = {
    "tgr-latent": "TGR: candidates at every boundary",
    "markov": "Resets alone, no search",
    "base": "Plain sampling",
}
THEMES = {"system": "As the system", "light": "Light", "dark": "Dark"}
ADVISED = "as the model advises"


@dataclass(frozen=True)
class Options:
    """How replies are written, models loaded and windows drawn."""

    method: str = "tgr-latent"
    n_candidates: int = 0
    """0 = as the model file advises."""
    max_tokens: int = 0
    """0 = as the model file advises."""
    temperature: float = -0.1
    """Negative = as the model file advises."""
    thinking: bool = True
    cpu_only: bool = False
    theme: str = "system"

    def search_config(self) -> SearchConfig:
        """Only the options that are set, so that the model file advises the others."""
        given: dict[str, Any] = {}
        if self.n_candidates:
            given["n_candidates"] = self.n_candidates
        if self.max_tokens:
            given["max_tokens"] = self.max_tokens
        if self.temperature >= 0:
            given["temperature"] = round(self.temperature, 2)
        if not self.thinking:
            given["thinking"] = False
        return SearchConfig(**given)

    def engine_config(self) -> EngineConfig:
        return EngineConfig(n_gpu_layers=0) if self.cpu_only else EngineConfig()


BOUNDS = {"n_candidates": (0, 64), "max_tokens": (0, 1_000_000), "temperature": (-0.1, 2.0)}
CHOICES = {"method": METHODS, "theme": THEMES}


class Settings:
    """The options and the rest, in a file of QSettings. A damaged value is the default."""

    def __init__(self, path: Path | None = None) -> None:
        self._store = (
            QSettings(str(path), QSettings.Format.IniFormat)
            if path
            else QSettings(
                QSettings.Format.IniFormat, QSettings.Scope.UserScope, "tgr-local", "desktop"
            )
        )

    def options(self) -> Options:
        default = Options()
        found = {f.name: self._value(f.name, getattr(default, f.name)) for f in fields(Options)}
        return replace(default, **found)

    def _value(self, name: str, default: Any) -> Any:
        text = str(self._store.value(name, default))
        if isinstance(default, bool):
            return {"true": True, "false": False}.get(text.lower(), default)
        if name in CHOICES:
            return text if text in CHOICES[name] else default
        try:
            value = type(default)(text)
        except ValueError:
            return default
        low, high = BOUNDS[name]
        return value if low <= value <= high else default

    def save_options(self, options: Options) -> None:
        for field in fields(Options):
            self._store.setValue(field.name, getattr(options, field.name))

    def get(self, name: str) -> Any:
        """Something else that is kept, such as the window's geometry; None if it is not."""
        return self._store.value(name)

    def put(self, name: str, value: Any) -> None:
        self._store.setValue(name, value)


class SettingsDialog(QDialog):
    """Shows options; `options` has them as they are changed."""

    def __init__(self, options: Options, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Settings")
        self._method = self._choice(METHODS, options.method)
        self._theme = self._choice(THEMES, options.theme)
        self._n_candidates = QSpinBox(specialValueText=ADVISED)
        self._max_tokens = QSpinBox(specialValueText=ADVISED, singleStep=64)
        self._temperature = QDoubleSpinBox(specialValueText=ADVISED, singleStep=0.1)
        for name in BOUNDS:
            box = getattr(self, f"_{name}")
            box.setRange(*BOUNDS[name])
            box.setValue(getattr(options, name))
        self._thinking = QCheckBox("The model thinks before it answers")
        self._thinking.setChecked(options.thinking)
        self._cpu_only = QCheckBox("Load models on the CPU only")
        self._cpu_only.setChecked(options.cpu_only)
        form = QFormLayout()
        form.addRow("Method", self._method)
        form.addRow("Candidates", self._n_candidates)
        form.addRow("Longest reply, tokens", self._max_tokens)
        form.addRow("Temperature", self._temperature)
        form.addRow("", self._thinking)
        form.addRow("", self._cpu_only)
        form.addRow("Colours", self._theme)
        buttons = QDialogButtonBox(
            QDialogButtonBox.StandardButton.Ok | QDialogButtonBox.StandardButton.Cancel
        )
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        layout = QVBoxLayout(self)
        layout.addLayout(form)
        layout.addSpacing(8)
        layout.addWidget(buttons)

    def options(self) -> Options:
        return Options(
            method=self._method.currentData(),
            n_candidates=self._n_candidates.value(),
            max_tokens=self._max_tokens.value(),
            temperature=self._temperature.value(),
            thinking=self._thinking.isChecked(),
            cpu_only=self._cpu_only.isChecked(),
            theme=self._theme.currentData(),
        )

    @staticmethod
    def _choice(texts: dict[str, str], now: str) -> QComboBox:
        box = QComboBox()
        for name, text in texts.items():
            box.addItem(text, name)
        box.setCurrentIndex(box.findData(now))
        return box
