"""Error against cost: scale bits and time of every recipe."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fp8lab_analysis.draw.style import (
    BAND,
    INK,
    MUTED,
    WIDTH,
    PlotContext,
    finish,
    group_handles,
    plain_numbers,
    unbroken,
)
from fp8lab_analysis.judge import stats
from fp8lab_analysis.judge.compare import GroupSummary, measured_stage
from fp8lab_analysis.judge.verdicts import Kind


@dataclass(frozen=True)
class _Measure:
    """A number of a group and the half width of its error bar; both NaN if unknown."""

    label: str
    of: Callable[[GroupSummary], tuple[float, float]]
    sign: float = 1.0  # -1: more is better


def _gap(summary: GroupSummary) -> tuple[float, float]:
    if summary.verdict.kind is Kind.DIVERGED or summary.group.is_baseline:
        return math.nan, math.nan
    return 100.0 * summary.verdict.gap.mean, 100.0 * summary.verdict.half_width


def _sqnr(summary: GroupSummary) -> tuple[float, float]:
    return summary.mean_sqnr_db, math.nan


def _bits(summary: GroupSummary) -> tuple[float, float]:
    return summary.scale_bits, math.nan


def _speed(stage: str) -> _Measure:
    def of(summary: GroupSummary) -> tuple[float, float]:
        spread = summary.tokens_per_second.get(stage)
        return (spread.mean, spread.sd) if spread else (math.nan, math.nan)

    return _Measure(f"tokens per second in {stage}, as measured", of, -1.0)


def _points(rows: Sequence[GroupSummary], x: _Measure, y: _Measure) -> list[GroupSummary]:
    return [s for s in rows if math.isfinite(x.of(s)[0]) and math.isfinite(y.of(s)[0])]


def pareto_figure(context: PlotContext) -> Figure | None:
    """Draws loss gap and SQNR against scale bits and measured speed, one point per group."""
    rows = context.summaries
    costs = [_Measure("scale bits per element (log axis)", _bits)]
    if not any(run.meta.get("backend") == "cpu" for run in context.study.runs):  # emulated
        costs.append(_speed(measured_stage(context.study)))
    errors = [
        _Measure("gap (% of the baseline's loss)", _gap),
        _Measure("mean SQNR (dB)", _sqnr, -1.0),
    ]
    costs = [x for x in costs if any(_points(rows, x, y) for y in errors)]
    errors = [y for y in errors if any(_points(rows, x, y) for x in costs)]
    if not costs or not errors:
        return None
    level = len(costs) == 1  # panels side by side
    lines, columns = (1, len(errors)) if level else (len(errors), len(costs))
    figure = Figure(figsize=(WIDTH, 1.0 + 2.5 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    for line, y in enumerate(errors):
        for column, x in enumerate(costs):
            item = axes[0][line] if level else axes[line][column]
            _draw(item, context, _points(rows, x, y), x, y)
            if y.of is _gap:
                _draw_margin(item, context)
            item.set_xlabel(x.label)
            item.set_ylabel(y.label)
            if x.of is _bits and min((x.of(s)[0] for s in _points(rows, x, y)), default=0.0) > 0.0:
                item.set_xscale("log")
                plain_numbers(item.xaxis)
                item.margins(x=0.15)
    shown = [s for s in rows if any(_points([s], x, y) for x in costs for y in errors)]
    return finish(figure, context, "Error against cost", group_handles(context, shown))


def _draw_margin(axes: Axes, context: PlotContext) -> None:
    margin = 100.0 * context.study.design.margin
    axes.axhspan(-margin, margin, color=BAND, alpha=0.4, linewidth=0, zorder=0)
    axes.axhline(0.0, color=INK, linewidth=0.8, zorder=1)


def _draw(
    axes: Axes, context: PlotContext, shown: Sequence[GroupSummary], x: _Measure, y: _Measure
) -> None:
    if not shown:
        axes.text(0.5, 0.5, "nothing logged", transform=axes.transAxes, ha="center", color=MUTED)
        return
    for summary in shown:
        style = context.style(summary.group)
        (across, wide), (up, high) = x.of(summary), y.of(summary)
        axes.errorbar(
            across,
            up,
            xerr=wide if math.isfinite(wide) else None,
            yerr=high if math.isfinite(high) else None,
            color=style.colour,
            label=style.name,
            capsize=2.0,
            elinewidth=0.9,
            zorder=3,
            **style.marker_kwargs(6.5),
        )
    # Groups with one seed give no order and diverged groups no result: neither is in the front.
    several = [s for s in unbroken(shown) if s.seeds > 1]
    for variant in dict.fromkeys(s.group.key.variant for s in several):
        members = [s for s in several if s.group.key.variant == variant]
        front = stats.pareto_front(
            np.array([x.sign * x.of(s)[0] for s in members]),
            np.array([y.sign * y.of(s)[0] for s in members]),
        )
        if len(front) > 1:
            axes.plot(
                [x.of(members[i])[0] for i in front],
                [y.of(members[i])[0] for i in front],
                color=MUTED,
                linewidth=0.9,
                linestyle=":",
                zorder=2,
                label=f"front{', ' + variant if variant else ''}",
            )
