"""The numbers that a figure draws, as rows. They are read back from the figure itself, so that its
CSV contains what the figure shows."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter


@dataclass(frozen=True)
class Drawn:
    """One drawn point, bar, edge of a band or cell of an image. Empty fields do not apply."""

    panel: int  # from 1, in reading order
    title: str
    x_axis: str
    y_axis: str
    series: str
    kind: str  # point, bar, band, cell
    x: float | str
    y: float | str
    low: float | str = ""  # lower end of an error bar, a band or a bar that does not start at zero
    high: float | str = ""
    value: float | str = ""  # value of a cell
    at: tuple[float, float] = (math.nan, math.nan)  # position in the panel; not in the CSV
    axes: Axes | None = None


def _line(text: str) -> str:
    return " ".join(text.split())


def _named(label: Any) -> str:
    """Returns the label of a series; empty if matplotlib generated it (a leading _)."""
    text = str(label)
    return "" if text.startswith("_") else text


Names = WeakKeyDictionary[Axes, dict[float, str]]
_ROW_NAMES: Names = WeakKeyDictionary()
_COLUMN_NAMES: Names = WeakKeyDictionary()


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Names the rows of a panel that has too many rows for complete tick labels."""
    _ROW_NAMES[axes] = {float(row): name for row, name in enumerate(names)}


def name_columns(axes: Axes, names: Sequence[str]) -> None:
    """`name_rows` along the other axis."""
    _COLUMN_NAMES[axes] = {float(column): name for column, name in enumerate(names)}


class _Panel:
    """One panel: the common fields of its rows, and the names of its positions."""

    def __init__(self, axes: Axes, number: int) -> None:
        self.axes, self.number = axes, number
        self._rows = _ROW_NAMES.get(axes) or self._places(axes.yaxis)
        self._columns = _COLUMN_NAMES.get(axes) or self._places(axes.xaxis)

    @staticmethod
    def _places(axis: Any) -> dict[float, str]:
        """Returns the names at the ticks of a category axis; empty for a numeric axis."""
        names, places = axis.get_major_formatter(), axis.get_major_locator()
        if not isinstance(names, FuncFormatter) or not isinstance(places, FixedLocator):
            return {}
        return {float(place): names(place, row) for row, place in enumerate(places.locs)}

    def row(self, kind: str, series: Any, x: float, y: float, **more: float) -> Drawn:
        """Returns one row; a position with a name is given as this name."""
        return Drawn(
            self.number,
            _line(self.axes.get_title(loc="left") or self.axes.get_title()),
            _line(self.axes.get_xlabel()),
            _line(self.axes.get_ylabel()),
            _named(series),
            kind,
            self._columns.get(float(x)) or float(x),
            self._rows.get(float(y)) or float(y),
            **{name: float(value) for name, value in more.items()},
            at=(float(x), float(y)),
            axes=self.axes,
        )

    def rows(self) -> Iterator[Drawn]:
        """Yields everything drawn in the panel's data coordinates."""
        seen: set[int] = set()
        for container in self.axes.containers:
            if isinstance(container, ErrorbarContainer):
                yield from self._error_bars(container, seen)
            elif isinstance(container, BarContainer):
                yield from self._bars(container, seen)
        for line in self.axes.lines:
            # Lines across the whole panel have a coordinate that is no data value.
            if id(line) not in seen and line.get_transform() == self.axes.transData:
                yield from self._points(line)
        for collection in self.axes.collections:
            if id(collection) in seen:
                continue
            if isinstance(collection, PolyCollection):
                yield from self._band(collection)
            elif isinstance(collection, PathCollection):
                for x, y in np.asarray(collection.get_offsets()):
                    yield self.row("point", collection.get_label(), x, y)
        for image in self.axes.images:
            masked = image.get_array()
            values = np.where(masked.mask, np.nan, masked.data)
            for (y, x), value in np.ndenumerate(values):
                yield self.row("cell", image.get_label(), x, y, value=value)

    def _points(self, line: Line2D, label: Any = None) -> Iterator[Drawn]:
        name = line.get_label() if label is None else label
        for x, y in zip(line.get_xdata(orig=False), line.get_ydata(orig=False)):
            yield self.row("point", name, x, y)

    def _error_bars(self, container: ErrorbarContainer, seen: set[int]) -> Iterator[Drawn]:
        data, caps, bars = container.lines
        seen.update(id(item) for item in (data, *caps, *bars))
        if data is None:  # error bars of bars
            return
        ends = [
            (float(segment[0][axis]), float(segment[-1][axis]))
            for bar in bars
            for axis in (0 if container.has_xerr else 1,)
            for segment in bar.get_segments()
        ]
        points = list(zip(data.get_xdata(orig=False), data.get_ydata(orig=False)))
        for number, (x, y) in enumerate(points):
            more = {}
            if len(ends) == len(points):
                more = {"low": min(ends[number]), "high": max(ends[number])}
            yield self.row("point", container.get_label(), x, y, **more)

    def _bars(self, container: BarContainer, seen: set[int]) -> Iterator[Drawn]:
        level = container.orientation == "horizontal"
        if container.errorbar is not None:
            _, caps, bars = container.errorbar.lines
            seen.update(id(item) for item in (*caps, *bars))
        for bar in container.patches:
            x, y = bar.get_x(), bar.get_y()
            wide, high = bar.get_width(), bar.get_height()
            if level:
                ends = {"low": x, "high": x + wide}
                yield self.row("bar", container.get_label(), x + wide, y + high / 2, **ends)
            else:
                ends = {"low": y, "high": y + high}
                yield self.row("bar", container.get_label(), x + wide / 2, y + high, **ends)

    def _band(self, band: PolyCollection) -> Iterator[Drawn]:
        """Yields both edges of a fill_between band, whose path runs along one edge and back along
        the other."""
        for path in band.get_paths():
            corners = path.vertices
            count = (len(corners) - 3) // 2
            there, back = corners[1 : count + 1], corners[count + 2 : 2 * count + 2][::-1]
            for (x, one), (_, other) in zip(there, back):
                ends = {"low": min(one, other), "high": max(one, other)}
                yield self.row("band", band.get_label(), x, (one + other) / 2.0, **ends)


def drawn_rows(figure: Figure) -> list[Drawn]:
    """Returns every number that the panels of a figure show, without colour bars."""
    panels = [
        axes for axes in figure.axes if axes.get_visible() and axes.get_label() != "<colorbar>"
    ]
    return [row for number, axes in enumerate(panels, 1) for row in _Panel(axes, number).rows()]


def write_drawn(figure: Figure, path: Path) -> None:
    """Writes `drawn_rows` as CSV, at full precision."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = [field.name for field in fields(Drawn) if field.name not in ("at", "axes")]
        writer.writerow(names)
        for row in drawn_rows(figure):
            cells = [getattr(row, name) for name in names]
            writer.writerow([repr(c) if isinstance(c, float) else c for c in cells])
