"""The scores of the candidates at every boundary of a reply, as bars, while it is written."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QPainter, QPixmap
from PySide6.QtWidgets import QListWidget, QListWidgetItem

from tgr_local.search.scoring import Scores

_WIDTH, _HEIGHT, _BARS, _GAP = 240, 80, 56, 6  # pixels: a picture, its bars, the space around it
SCORES = Qt.ItemDataRole.UserRole


def heights(scores: Scores) -> np.ndarray:
    """[K] float64: 0.1 for the worst score of the boundary, 1 for the best."""
    spread = np.ptp(scores.total)
    return 0.1 + 0.9 * (scores.total - scores.total.min()) / (spread if spread > 0 else 1.0)


class SearchView(QListWidget):
    """One item for each boundary, with a picture that is drawn once: Qt repaints it without Python,
    whose lock the threads of the replies hold most of the time."""

    def __init__(self) -> None:
        super().__init__(uniformItemSizes=True, spacing=_GAP)

    def add(self, chunk: int, scores: Scores) -> None:
        bar = self.verticalScrollBar()
        follows = bar.value() == bar.maximum()
        item = QListWidgetItem(self)
        item.setData(SCORES, scores)
        item.setData(Qt.ItemDataRole.DecorationRole, self._picture(chunk, scores))
        if follows:
            self.scrollToBottom()

    def _picture(self, chunk: int, scores: Scores) -> QPixmap:
        """A line of text, and a bar for each candidate; that of the chosen one is highlighted."""
        picture, palette = QPixmap(_WIDTH, _HEIGHT), self.palette()
        picture.fill(palette.base().color())
        painter = QPainter(picture)
        painter.setPen(palette.text().color())
        painter.drawText(
            0, self.fontMetrics().ascent(), f"Chunk {chunk + 1}: candidate {scores.chosen}"
        )
        width = _WIDTH / len(scores.total)
        for i, height in enumerate(_BARS * heights(scores)):
            bar = QRectF(i * width, _HEIGHT - height, 0.85 * width, height)
            painter.fillRect(bar, palette.highlight() if i == scores.chosen else palette.mid())
        painter.end()
        return picture
