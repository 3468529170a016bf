"""The scores of the candidates at every boundary of a reply, as bars, while it is written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QEvent, QRectF, Qt
from PySide6.QtGui import QHelpEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QAbstractScrollArea, QToolTip, QWidget

from tgr_local import Progress

_MARGIN, _BARS, _GAP = 16, 56, 22  # pixels: at the sides, height of the bars, between two rows
_SHOWN = 200  # bytes of a chunk that a row may show
_TAGS = re.compile(r"</?think>?")
_EMPTY = "The scores of the candidates appear here,\nat every boundary of the reasoning."


@dataclass
class Boundary:
    """One boundary: its candidates, and the chunk that the winner wrote."""

    chunk: int
    totals: np.ndarray
    terms: list[tuple[float, float, float]]
    """V, P_bum, P_uni of each candidate."""
    chosen: int
    text: bytes = b""

    def heights(self) -> np.ndarray:
        """The bars, 0.12 to 1: the worst score of this boundary to the best."""
        spread = np.ptp(self.totals)
        if not spread > 0:
            return np.full(len(self.totals), 0.5)
        return 0.12 + 0.88 * (self.totals - self.totals.min()) / spread

    def lead(self) -> str:
        others = np.delete(self.totals, self.chosen)
        ahead = f", {self.totals[self.chosen] - others.max():.3f} ahead" if len(others) else ""
        return f"candidate {self.chosen}{ahead}"


class SearchView(QAbstractScrollArea):
    """Draws the rows that are visible, so that a long reply costs no more than a short one."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.boundaries: list[Boundary] = []
        self._stage = ""
        self.setObjectName("search")
        self.setAccessibleName("Scores of the candidates")
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setMinimumWidth(220)

    def clear(self) -> None:
        self.boundaries.clear()
        self._set_stage("")

    def show_progress(self, batch: Iterable[Progress]) -> None:
        """Takes what happened, and draws it once."""
        for progress in batch:
            self._take(progress)
        self._set_stage(self._stage)

    def _take(self, progress: Progress) -> None:
        if progress.stage == "rollouts":
            self._stage = "trying candidates …"
        elif progress.candidates is not None:
            scores = progress.candidates.scores
            terms = zip(scores.foresight, scores.bumpiness, scores.uniformity, strict=True)
            self.boundaries.append(
                Boundary(progress.chunk, scores.total, list(terms), scores.chosen)
            )
            self._stage = ""
        elif progress.stage == "tokens" and self.boundaries:
            last = self.boundaries[-1]
            if last.chunk == progress.chunk and len(last.text) < _SHOWN:
                last.text += progress.text

    def end(self) -> None:
        """The reply is complete."""
        self._set_stage("")

    def _set_stage(self, stage: str) -> None:
        self._stage = stage
        bar = self.verticalScrollBar()
        follows = bar.value() >= bar.maximum() - 4
        self._set_range()
        if follows:
            bar.setValue(bar.maximum())
        self.viewport().update()

    # --- geometry and drawing ---

    def _row_height(self) -> int:
        return 2 * self.fontMetrics().height() + _BARS + _GAP + 10

    def _set_range(self) -> None:
        rows = len(self.boundaries) * self._row_height() + (40 if self._stage else 0) + _MARGIN
        bar = self.verticalScrollBar()
        bar.setRange(0, max(0, rows - self.viewport().height()))
        bar.setPageStep(self.viewport().height())
        bar.setSingleStep(self._row_height() // 3)

    def resizeEvent(self, event: QEvent) -> None:
        self._set_stage(self._stage)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        muted = self.palette().placeholderText().color()
        if not self.boundaries and not self._stage:
            painter.setPen(muted)
            painter.drawText(self.viewport().rect(), Qt.AlignmentFlag.AlignCenter, _EMPTY)
            return
        height, top = self._row_height(), self.verticalScrollBar().value()
        first = max(0, (top - _MARGIN) // height)
        last = (top + self.viewport().height()) // height + 1
        for row in range(first, min(last, len(self.boundaries))):
            self._paint_row(painter, self.boundaries[row], _MARGIN + row * height - top)
        if self._stage:
            painter.setPen(muted)
            y = _MARGIN + len(self.boundaries) * height - top
            painter.drawText(_MARGIN, y + self.fontMetrics().ascent(), self._stage)

    def _paint_row(self, painter: QPainter, row: Boundary, y: int) -> None:
        palette, line = self.palette(), self.fontMetrics().height()
        width = self.viewport().width() - 2 * _MARGIN
        title = QRectF(_MARGIN, y, width, line)
        painter.setPen(palette.text().color())
        painter.drawText(title, Qt.AlignmentFlag.AlignLeft, f"Chunk {row.chunk + 1}")
        painter.setPen(palette.placeholderText().color())
        painter.drawText(title, Qt.AlignmentFlag.AlignRight, row.lead())
        accent = palette.highlight().color()
        faint = palette.mid().color()
        painter.setPen(Qt.PenStyle.NoPen)
        for i, (height, bar) in enumerate(zip(row.heights(), self._bars(row, y), strict=True)):
            painter.setBrush(accent if i == row.chosen else faint)
            bar.setTop(bar.bottom() - height * _BARS)
            painter.drawRoundedRect(bar, 2, 2)
        painter.setPen(palette.placeholderText().color())
        text = _TAGS.sub("", row.text.decode("utf-8", "replace"))
        elided = self.fontMetrics().elidedText(
            " ".join(text.split()), Qt.TextElideMode.ElideRight, width
        )
        painter.drawText(_MARGIN, y + line + _BARS + 12 + self.fontMetrics().ascent(), elided)

    def _bars(self, row: Boundary, y: int) -> list[QRectF]:
        """The place of each bar, as if all were as high as the best."""
        width = (self.viewport().width() - 2 * _MARGIN) / len(row.totals)
        top, gap = y + self.fontMetrics().height() + 6, min(4.0, width / 4)
        return [
            QRectF(_MARGIN + i * width, top, width - gap, _BARS) for i in range(len(row.totals))
        ]

    def viewportEvent(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent):
            QToolTip.showText(event.globalPos(), self._tip(event.pos().x(), event.pos().y()))
            return True
        return super().viewportEvent(event)

    def _tip(self, x: int, y: int) -> str:
        """The terms of the score of the candidate at a place; empty beside the bars."""
        top, height = self.verticalScrollBar().value(), self._row_height()
        index = (y + top - _MARGIN) // height
        if not 0 <= index < len(self.boundaries):
            return ""
        row = self.boundaries[index]
        for i, bar in enumerate(self._bars(row, _MARGIN + index * height - top)):
            if bar.contains(x, y):
                foresight, bumpiness, uniformity = row.terms[i]
                return (
                    f"candidate {i}: J = {row.totals[i]:.4f}\nforesight V = {foresight:.4f}\n"
                    f"bumpiness P_bum = {bumpiness:.4f}\nuniformity P_uni = {uniformity:.4f}"
                )
        return ""
