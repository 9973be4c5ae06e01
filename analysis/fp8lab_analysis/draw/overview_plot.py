"""The overview figure: cost and error of every recipe, one row each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fp8lab_analysis.draw.style import (
    BAND,
    BROKEN,
    INK,
    MUTED,
    WIDTH,
    PlotContext,
    colour_labels,
    finish,
    log_axis,
    note,
    quantized_summaries,
    recipe_rows,
)
from fp8lab_analysis.judge.compare import GroupSummary, match_tells
from fp8lab_analysis.judge.verdicts import Kind, Verdict


def overview_order(summaries: Sequence[GroupSummary]) -> list[GroupSummary]:
    """Orders groups by variant. Within a variant: baselines, then groups with enough seeds by gap,
    then other groups in the given order, then diverged and unpaired groups."""

    def key(summary: GroupSummary) -> tuple[str, int, float]:
        variant = summary.group.key.variant
        if summary.group.is_baseline:
            return variant, 0, 0.0
        if summary.verdict.kind is Kind.DIVERGED:
            return variant, 4, 0.0
        gap = summary.verdict.gap.mean
        if not math.isfinite(gap):
            return variant, 3, 0.0
        return (variant, 1, gap) if summary.verdict.ordered else (variant, 2, 0.0)

    return sorted(summaries, key=key)


def overview_figure(context: PlotContext) -> Figure | None:
    """Draws cost and benefit of every recipe, one row each."""
    rows = overview_order(context.summaries)
    panels: list[tuple[Callable[[Axes, PlotContext, list[GroupSummary]], None], float]] = []
    if any(math.isfinite(s.verdict.gap.mean) for s in rows):
        panels.append((_overview_gap, 1.5))
    if _match_stage(context, rows):
        panels.append((_overview_match, 1.0))
    if quantized_summaries(context):
        panels.append((_overview_sqnr, 1.1))
        if any(o.underflow.mean > 0.0 for s in rows if (o := s.worst_underflow) is not None):
            panels.append((_overview_underflow, 1.0))
        panels.append((_overview_bits, 0.8))
    if not panels:
        return None
    figure = Figure(figsize=(WIDTH, 1.5 + 0.36 * len(rows)), layout="constrained")
    grid = figure.add_gridspec(1, len(panels), width_ratios=[width for _, width in panels])
    for column, (draw, _) in enumerate(panels):
        axes = figure.add_subplot(grid[0, column])
        recipe_rows(axes, [context.name(s) for s in rows])
        if column:
            axes.tick_params(labelleft=False)
        else:
            colour_labels(axes, context, rows)
        draw(axes, context, rows)
        for row in range(1, len(rows)):
            if rows[row].group.key.variant != rows[row - 1].group.key.variant:
                axes.axhline(row - 0.5, color=MUTED, linewidth=0.8)
    return finish(figure, context, "At a glance: what each recipe costs and what it loses")


def _point(
    axes: Axes, context: PlotContext, summary: GroupSummary, row: float, value: float, error: Any
) -> None:
    style = context.style(summary.group)
    axes.errorbar(
        value,
        row,
        xerr=error,
        color=style.colour,
        label=style.name,
        capsize=2.5,
        elinewidth=1.3,
        **style.marker_kwargs(6.5),
    )


def _overview_gap(axes: Axes, context: PlotContext, rows: list[GroupSummary]) -> None:
    margin = 100.0 * context.study.design.margin
    if any(s.verdict.ordered for s in rows):
        axes.axvspan(-margin, margin, color=BAND, alpha=0.6, linewidth=0)
    axes.axvline(0.0, color=INK, linewidth=1.0)
    for row, summary in enumerate(rows):
        verdict = summary.verdict
        if verdict.kind is Kind.DIVERGED:
            note(
                axes, row, f"{verdict.gap_text} ({verdict.diverged} of {verdict.seeds} seeds)", True
            )
        elif summary.group.is_baseline:
            style = context.style(summary.group)
            axes.plot(0.0, row, label=style.name, **style.marker_kwargs(6.5))
        elif math.isfinite(verdict.gap.mean):
            if len(summary.seed_gaps) > 1:
                look = context.style(summary.group)
                for gap in summary.seed_gaps:
                    axes.plot(
                        100.0 * gap,
                        row,
                        "|",
                        color=look.colour,
                        alpha=0.8,
                        markersize=7,
                        label=f"{look.name}, a seed",
                    )
            error = 100.0 * verdict.half_width if math.isfinite(verdict.half_width) else None
            _point(axes, context, summary, row, 100.0 * verdict.gap.mean, error)
            draw_one_sided(axes, verdict, row, context.style(summary.group).colour)
            if verdict.kind is Kind.NOT_ORDERED:
                _say_unordered(axes, verdict, row)
        else:
            note(axes, row, "no baseline")
    axes.set_xlabel("gap (% of the baseline's loss)")
    ordered = any(s.verdict.ordered for s in rows)
    single = any(s.verdict.kind is Kind.NOT_ORDERED for s in rows)
    axes.set_title("gap, one seed: no order" if single and not ordered else "gap (grey: margin)")


def draw_one_sided(axes: Axes, verdict: Verdict, row: float, colour: str) -> None:
    """A thick bar over the interval of the tests of equivalence, where the other one would
    contradict the verdict."""
    if not verdict.shows_one_sided:
        return
    middle, half = 100.0 * verdict.gap.mean, 100.0 * verdict.equivalence_half_width
    ends = (middle - half, middle + half)
    label = "interval of the one-sided tests"
    axes.plot(ends, (row, row), color=colour, linewidth=3.5, solid_capstyle="butt", label=label)


def _say_unordered(axes: Axes, verdict: Verdict, row: float) -> None:
    """Marks a point that gives no order."""
    axes.annotate(
        "one seed" if verdict.seeds == 1 else "one baseline run",
        (100.0 * verdict.gap.mean, row),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        fontsize=6.5,
        color=MUTED,
    )


def _match_stage(context: PlotContext, rows: Sequence[GroupSummary]) -> str:
    """Returns the last stage with answers if they distinguish recipes, else empty text."""
    asked = [stage for stage in context.study.stages if any(stage in s.matches for s in rows)]
    return asked[-1] if asked and match_tells(rows, asked[-1]) else ""


def _overview_match(axes: Axes, context: PlotContext, rows: list[GroupSummary]) -> None:
    stage = _match_stage(context, rows)
    for row, summary in enumerate(rows):
        match = summary.matches.get(stage)
        if match is None:
            note(axes, row, "not measured")
            continue
        low, high = (100.0 * edge for edge in match.interval)
        value = 100.0 * match.fraction
        _point(axes, context, summary, row, value, [[value - low], [high - value]])
    axes.set_xlabel("right answers (%)")
    axes.set_title(f"exact match, {stage}")


def _overview_sqnr(axes: Axes, context: PlotContext, rows: list[GroupSummary]) -> None:
    for row, summary in enumerate(rows):
        worst = summary.worst_operand
        if worst is None:
            note(axes, row, "not quantized")
            continue
        style = context.style(summary.group)
        if not math.isfinite(worst.sqnr_db.mean):
            continue
        mean = summary.mean_sqnr_db
        axes.hlines(row, worst.sqnr_db.mean, mean, color=style.colour, linewidth=1.2)
        axes.plot(
            worst.sqnr_db.mean,
            row,
            marker=4,
            color=style.colour,
            markersize=6,
            label=f"{style.name}, {worst.slot}",
        )
        axes.plot(mean, row, label=style.name, **style.marker_kwargs(6.5))
        broken = summary.verdict.kind is Kind.DIVERGED
        axes.annotate(
            f"{worst.slot}, {BROKEN}" if broken else worst.slot,
            (worst.sqnr_db.mean, row),
            xytext=(0, 5),
            textcoords="offset points",
            fontsize=6,
            ha="right" if broken else "left",
            color=MUTED,
        )
    axes.set_xlabel("SQNR (dB)")
    axes.set_title("SQNR: mean, worst")
    axes.margins(x=0.12)


def _overview_underflow(axes: Axes, context: PlotContext, rows: list[GroupSummary]) -> None:
    worst = [summary.worst_underflow for summary in rows]
    values = [100.0 * o.underflow.mean if o is not None else math.nan for o in worst]
    low = log_axis(axes, values)
    for row, (summary, operand, value) in enumerate(zip(rows, worst, values)):
        if operand is None:
            note(axes, row, "not quantized")
            continue
        style = context.style(summary.group)
        axes.plot(max(value, low), row, label=style.name, **style.marker_kwargs(6.5))
        axes.annotate(
            f"{value:.2g} % {operand.slot}",
            (max(value, low), row),
            xytext=(6, 0),
            fontsize=6.5,
            textcoords="offset points",
            va="center",
            color=MUTED,
        )
    axes.set_xlabel("% of elements")
    axes.set_title("worst underflow")


def _overview_bits(axes: Axes, context: PlotContext, rows: list[GroupSummary]) -> None:
    for row, summary in enumerate(rows):
        if not math.isfinite(summary.scale_bits):
            note(axes, row, "no scales")
            continue
        axes.barh(row, summary.scale_bits, height=0.5, **context.style(summary.group).bar_kwargs())
        axes.annotate(
            f" {summary.scale_bits:.2g}", (summary.scale_bits, row), va="center", fontsize=7
        )
    axes.set_xlabel("bits per element")
    axes.set_title("cost of scales")
    axes.margins(x=0.2)
