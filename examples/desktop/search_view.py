"""The scores of the candidates at every boundary of a reply, as bars, while it is written."""

from __future__ import annotations

from typing import Any

import numpy as np
from PySide6.QtCore import QModelIndex, QRectF, QSize, Qt
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QListWidget, QListWidgetItem, QStyledItemDelegate

from tgr_local.search.scoring import Scores

_BARS, _GAP = 56, 10  # pixels: height of the bars, space around a row
SCORES = Qt.ItemDataRole.UserRole


def heights(scores: Scores) -> np.ndarray:
    """[K] float64: 0.1 for the worst score of the boundary, 1 for the best."""
    spread = np.ptp(scores.total)
    return 0.1 + 0.9 * (scores.total - scores.total.min()) / (spread if spread > 0 else 1.0)


class SearchView(QListWidget):
    """One item for each boundary. Qt draws those that are visible."""

    def __init__(self) -> None:
        super().__init__(uniformItemSizes=True)
        self.setItemDelegate(_Bars(self))

    def add(self, chunk: int, scores: Scores) -> None:
        bar = self.verticalScrollBar()
        follows = bar.value() == bar.maximum()
        item = QListWidgetItem(f"Chunk {chunk + 1}: candidate {scores.chosen}", self)
        item.setData(SCORES, scores)
        if follows:
            self.scrollToBottom()


class _Bars(QStyledItemDelegate):
    """A line of text, and a bar for each candidate; that of the chosen one is highlighted."""

    def sizeHint(self, option: Any, index: QModelIndex) -> QSize:
        return QSize(0, option.fontMetrics.height() + _BARS + 3 * _GAP)

    def paint(self, painter: QPainter, option: Any, index: QModelIndex) -> None:
        scores, palette = index.data(SCORES), option.palette
        area = QRectF(option.rect).adjusted(_GAP, _GAP, -_GAP, -_GAP)
        painter.setPen(palette.text().color())
        painter.drawText(area, Qt.AlignmentFlag.AlignTop, index.data())
        width = area.width() / len(scores.total)
        for i, height in enumerate(_BARS * heights(scores)):
            bar = QRectF(area.left() + i * width, area.bottom() - height, 0.85 * width, height)
            painter.fillRect(bar, palette.highlight() if i == scores.chosen else palette.mid())
