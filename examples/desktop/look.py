"""Colours and style sheet, light and dark."""

from __future__ import annotations

from string import Template

from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QPalette
from PySide6.QtWidgets import QApplication

_LIGHT = {
    "window": "#f7f7f5", "base": "#ffffff", "text": "#1d1d1f", "muted": "#6e6e73",
    "line": "#e2e2de", "accent": "#2f6f5e", "on_accent": "#ffffff", "faint": "#c9d8d2",
    "bubble": "#e9efec", "error": "#b3261e", "good": "#2f7d4f", "warn": "#9a6700",
}  # fmt: skip
_DARK = {
    "window": "#161718", "base": "#1d1f20", "text": "#ececec", "muted": "#9a9da0",
    "line": "#2e3133", "accent": "#6cc3a6", "on_accent": "#10201a", "faint": "#35524a",
    "bubble": "#25302c", "error": "#f2a09a", "good": "#7fd3a0", "warn": "#e0b050",
}  # fmt: skip
_SHEET = Template("""
QWidget { font-size: 10.5pt; }
QFrame#sidebar { background: $window; border: 0; border-right: 1px solid $line; }
QFrame#searchPanel { background: $window; border: 0; border-left: 1px solid $line; }
QLabel#heading { font-weight: 600; padding: 4px 0; }
QLabel#muted, QLabel#cost { color: $muted; font-size: 9.5pt; }
QLabel#error { color: $error; }
QLabel#speaker { color: $muted; font-size: 9.5pt; font-weight: 600; }
QLabel#welcome { color: $muted; font-size: 12pt; }
QListWidget { background: transparent; border: 0; outline: 0; }
QListWidget::item { padding: 7px 10px; border-radius: 7px; color: $text; }
QListWidget::item:selected { background: $bubble; color: $text; }
QListWidget::item:hover:!selected { background: $line; }
QListWidget#models { background: $base; border: 1px solid $line; border-radius: 8px; padding: 4px; }
QScrollArea, QScrollArea > QWidget > QWidget, QAbstractScrollArea#search {
  background: transparent; border: 0; }
QFrame#bubble { background: $bubble; border-radius: 12px; }
QTextBrowser { background: transparent; border: 0; font-size: 11pt; }
QPlainTextEdit#thinking { background: $window; color: $muted; border: 1px solid $line;
  border-radius: 8px; padding: 6px; font-size: 10pt; }
QFrame#composer { background: $base; border: 1px solid $line; border-radius: 14px; }
QPlainTextEdit#input { background: transparent; border: 0; font-size: 11pt; }
QPushButton { background: $base; color: $text; border: 1px solid $line; border-radius: 8px;
  padding: 6px 12px; }
QPushButton:hover { border-color: $accent; }
QPushButton:disabled { color: $muted; }
QPushButton#primary { background: $accent; color: $on_accent; border-color: $accent;
  font-weight: 600; }
QPushButton#primary:disabled { background: $faint; border-color: $faint; color: $muted; }
QPushButton#model { text-align: left; }
QToolButton { border: 0; color: $muted; padding: 2px 4px 2px 0; font-size: 9.5pt; }
QToolButton:hover, QToolButton:checked { color: $text; }
QToolButton#chip { background: $bubble; border-radius: 8px; padding: 3px 8px; color: $text; }
QFrame#banner { background: $bubble; border-radius: 8px; }
QProgressBar { background: $line; border: 0; border-radius: 2px; max-height: 4px; }
QProgressBar::chunk { background: $accent; border-radius: 2px; }
QSplitter::handle { background: transparent; }
QScrollBar:vertical { background: transparent; width: 10px; margin: 2px; }
QScrollBar::handle:vertical { background: $line; border-radius: 3px; min-height: 30px; }
QScrollBar::add-line, QScrollBar::sub-line { height: 0; }
""")


def apply(app: QApplication, theme: str) -> None:
    """Sets colours: `theme` is "light", "dark" or "system"."""
    schemes = {"light": Qt.ColorScheme.Light, "dark": Qt.ColorScheme.Dark}
    hints = app.styleHints()
    hints.setColorScheme(schemes.get(theme, Qt.ColorScheme.Unknown))
    colors = _DARK if hints.colorScheme() == Qt.ColorScheme.Dark or theme == "dark" else _LIGHT
    palette, role = QPalette(), QPalette.ColorRole
    for roles, name in (
        ((role.Window, role.Button, role.AlternateBase, role.ToolTipBase), "window"),
        ((role.Base,), "base"),
        ((role.Text, role.WindowText, role.ButtonText, role.ToolTipText), "text"),
        ((role.PlaceholderText,), "muted"),
        ((role.Mid,), "faint"),
        ((role.Highlight, role.Link, role.Accent), "accent"),
        ((role.HighlightedText,), "on_accent"),
    ):
        for one in roles:
            palette.setColor(one, QColor(colors[name]))
    app.setPalette(palette)
    app.setStyleSheet(_SHEET.substitute(colors))


def color(name: str) -> QColor:
    """A colour of the palette in use, such as "good", "warn" or "error"."""
    base = QApplication.palette().color(QPalette.ColorRole.Base)
    return QColor((_DARK if base == QColor(_DARK["base"]) else _LIGHT)[name])
