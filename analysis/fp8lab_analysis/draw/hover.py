"""Data for the page's hover texts: the numbers that a figure draws, with their positions in its
SVG.

A figure is a list of panels. A panel has a box, axis names, series, and for each point [series, x,
y in SVG units, texts of x, y and further values]. An image is a matrix of its panel; the page
computes its rows and columns from the box.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fp8lab_analysis.draw.drawn import Drawn, drawn_rows

POINTS_PER_INCH = 72.0  # units of matplotlib's SVG
MOST_POINTS = 400  # per series and panel


def number_text(value: float | str) -> str:
    """Formats a number with four significant digits; names are unchanged."""
    return value if isinstance(value, str) else f"{value:.4g}"


def _evenly(rows: Sequence[Drawn]) -> list[Drawn]:
    """Returns at most MOST_POINTS evenly spaced points of a series, including first and last."""
    if len(rows) <= MOST_POINTS:
        return list(rows)
    return [rows[i] for i in np.linspace(0, len(rows) - 1, MOST_POINTS).round().astype(int)]


def _detail(row: Drawn) -> str:
    """Returns the interval of an error bar; empty for a bar, whose ends are visible."""
    if row.kind != "point" or isinstance(row.low, str) or isinstance(row.high, str):
        return ""
    return f"{number_text(row.low)} to {number_text(row.high)}"


def _panel(figure: Figure, axes: Axes, rows: Sequence[Drawn]) -> dict[str, Any]:
    scale = POINTS_PER_INCH / figure.dpi
    height = figure.bbox.height

    def place(x: float, y: float) -> tuple[float, float]:
        right, up = axes.transData.transform((x, y))
        return round(float(right) * scale, 1), round(float(height - up) * scale, 1)

    box = axes.bbox
    left, top = box.x0 * scale, (height - box.y1) * scale
    edges = [left, top, left + box.width * scale, top + box.height * scale]
    first = rows[0]
    panel: dict[str, Any] = {
        "box": [round(float(edge), 1) for edge in edges],
        "title": first.title,
        "x": first.x_axis,
        "y": first.y_axis,
    }
    cells = [row for row in rows if row.kind == "cell"]
    if cells:
        return panel | _image(cells)
    by_series: dict[str, list[Drawn]] = {}
    for row in rows:
        if row.kind in ("point", "bar") and row.series:
            by_series.setdefault(row.series, []).append(row)
    points = []
    for number, drawn in enumerate(by_series.values()):
        for row in _evenly(drawn):
            at = place(*row.at)
            inside = all(low - 2 <= p <= high + 2 for low, p, high in zip(edges, at, edges[2:]))
            if not all(map(math.isfinite, at)) or not inside:
                continue
            points.append([number, *at, number_text(row.x), number_text(row.y), _detail(row)])
    return panel | {"series": list(by_series), "points": points}


def _image(cells: Sequence[Drawn]) -> dict[str, Any]:
    """Returns the values of an image row by row, and the names of its rows and columns."""
    columns = int(max(cell.at[0] for cell in cells)) + 1
    return {
        "series": [cells[0].series],
        "rows": [number_text(cell.y) for cell in cells[::columns]],
        "columns": [number_text(cell.x) for cell in cells[:columns]],
        "values": ["" if math.isnan(float(c.value)) else number_text(c.value) for c in cells],
    }


def hover_data(figure: Figure) -> list[dict[str, Any]]:
    """Returns the panels of a figure. Precondition: the figure has been laid out."""
    by_axes: dict[Axes, list[Drawn]] = {}
    for row in drawn_rows(figure):
        assert row.axes is not None
        by_axes.setdefault(row.axes, []).append(row)
    panels = [_panel(figure, axes, rows) for axes, rows in by_axes.items()]
    return [panel for panel in panels if panel.get("points") or panel.get("values")]
