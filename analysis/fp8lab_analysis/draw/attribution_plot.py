"""The waterfall of a loss gap: source by source, from exact arithmetic to the unchanged recipe."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fp8lab_analysis.draw.style import (
    BAND,
    INK,
    MUTED,
    WIDTH,
    PlotContext,
    finish,
    recipe_rows,
    short_layer,
)
from fp8lab_analysis.judge.attribution import Attribution, Contribution, PartGroup

START = "all exact"
WHOLE = "as it is"
REST = "remainder"
UP, DOWN = "#D55E00", "#0072B2"


def _drawn(group: PartGroup) -> bool:
    found = [item for part in group.parts for item in (part.left_out, part.alone)]
    return any(item is not None and item.known for item in found)


def attribution_figure(context: PlotContext) -> Figure | None:
    """Draws a row of panels per recipe, with one panel per group of sources."""
    panels = [
        (found, group)
        for found in context.attributions
        if found.whole.known
        for group in found.groups
        if _drawn(group)
    ]
    if not panels:
        return None
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    rows = [len(group.parts) + 3 for _, group in panels]
    heights = [max(rows[i * columns : (i + 1) * columns]) for i in range(lines)]
    size = (WIDTH, 1.0 + sum(0.6 + 0.26 * height for height in heights))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(lines, columns, height_ratios=[height + 2 for height in heights])
    for place, (found, group) in enumerate(panels):
        axes = figure.add_subplot(grid[divmod(place, columns)])
        _draw(axes, found, group)
        axes.set_title(f"{found.label}, by {group.name}")
    seeds = {found.seeds for found, _ in panels}
    title = "Sources of the gap" + (", one seed: no order" if seeds == {1} else "")
    return finish(figure, context, title)


def _error(found: Contribution) -> float | None:
    return 100.0 * found.half_width if math.isfinite(found.half_width) else None


def _draw(axes: Axes, found: Attribution, group: PartGroup) -> None:
    base = 100.0 * found.floor.spread.mean if found.floor is not None else 0.0
    whole = 100.0 * found.whole.spread.mean
    start = START if found.floor is not None else "baseline"
    rest = group.remainder
    names = [start, *(short_layer(part.name) for part in group.parts)]
    names += [REST] if rest is not None else []
    recipe_rows(axes, [*names, WHOLE])
    _bar(axes, 0, 0.0, base, MUTED, "gap")
    axes.axvline(0.0, color=INK, linewidth=1.0)
    axes.axvline(base, color=BAND, linewidth=0.8, linestyle=":")
    at = base
    for row, part in enumerate(group.parts, 1):
        # In a group without a whole, the sources do not add up.
        begin = at if rest is not None else base
        if part.left_out is not None and part.left_out.known:
            at = _step(axes, row, begin, part.left_out)
        if part.alone is not None and part.alone.known:
            axes.errorbar(
                base + 100.0 * part.alone.spread.mean,
                row + 0.22,
                xerr=_error(part.alone),
                fmt="D",
                color=INK,
                markersize=3.5,
                elinewidth=0.8,
                capsize=1.5,
                label="alone",
            )
    if rest is not None and rest.known:
        _step(axes, len(names) - 1, at, rest, MUTED)
    _bar(axes, len(names), 0.0, whole, INK, "gap")
    axes.set_xlabel("gap (% of the baseline's loss)")


def _bar(axes: Axes, row: float, begin: float, length: float, colour: str, label: str) -> None:
    axes.barh(row, length, left=begin, height=0.5, color=colour, label=label)


def _step(
    axes: Axes, row: float, begin: float, found: Contribution, colour: str | None = None
) -> float:
    """Draws the bar of a contribution from `begin`; returns its end."""
    length = 100.0 * found.spread.mean
    _bar(axes, row, begin, length, colour or (UP if length > 0.0 else DOWN), "left out")
    error = _error(found)
    if error is not None:
        axes.hlines(row, begin + length - error, begin + length + error, color=INK, linewidth=1.0)
    return begin + length
