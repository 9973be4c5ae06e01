"""The gaps of two studies, arm by arm."""

from __future__ import annotations

import math

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fp8lab_analysis.draw.overview_plot import draw_one_sided
from fp8lab_analysis.draw.style import (
    BAND,
    INK,
    MUTED,
    WIDTH,
    PlotContext,
    finish,
    note,
    recipe_rows,
)


def beside_figure(context: PlotContext) -> Figure | None:
    """Draws the gap of every arm that both studies have: this study filled, the other hollow."""
    if context.beside is None:
        return None
    pairs = [
        p for p in context.beside.pairs if p.ours and p.theirs and not p.ours.group.is_baseline
    ]
    if not pairs:
        return None
    figure = Figure(figsize=(WIDTH, 1.6 + 0.42 * len(pairs)), layout="constrained")
    axes = figure.subplots()
    recipe_rows(axes, [p.label for p in pairs])
    margins = {100.0 * s.design.margin for s in (context.study, context.beside.study)}
    for margin in margins:
        axes.axvspan(-margin, margin, color=BAND, alpha=0.6 / len(margins), linewidth=0)
    axes.axvline(0.0, color=INK, linewidth=1.0)
    for row, pair in enumerate(pairs):
        assert pair.ours is not None and pair.theirs is not None
        style = context.style(pair.ours.group)
        sides = ((pair.ours, -0.16, "this study"), (pair.theirs, 0.16, "the other"))
        for summary, shift, name in sides:
            verdict = summary.verdict
            if not math.isfinite(verdict.gap.mean):
                note(axes, row + shift, f"{name}: {verdict.kind.value}")
                continue
            width = 100.0 * verdict.half_width
            axes.errorbar(
                100.0 * verdict.gap.mean,
                row + shift,
                xerr=width if math.isfinite(width) else None,
                color=style.colour,
                label=f"{pair.label}, {name}",
                capsize=2.5,
                elinewidth=1.2,
                marker="o",
                markersize=6.0,
                markerfacecolor=style.colour if name == "this study" else "white",
            )
            draw_one_sided(axes, verdict, row + shift, style.colour)
    axes.set_xlabel("gap (% of the baseline's loss)")
    looks = {"marker": "o", "color": MUTED, "linestyle": "none"}
    handles = [
        Line2D([], [], label=f"this study: {context.study.title}", **looks),
        Line2D([], [], label=f"the other: {context.beside.study.title}", mfc="white", **looks),
    ]
    return finish(figure, context, "Gaps of two studies", handles)
