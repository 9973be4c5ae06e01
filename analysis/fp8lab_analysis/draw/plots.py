"""Figures about training: overview, loss and gap, gradient norm, held-out loss and exact match."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fp8lab_analysis.draw.style import (
    BAND,
    INK,
    MUTED,
    WIDTH,
    PlotContext,
    finish,
    group_handles,
    log_y_axis,
    recipe_rows,
    unbroken,
)
from fp8lab_analysis.judge import stats
from fp8lab_analysis.judge.compare import (
    GroupSummary,
    RunComparison,
    match_tells,
    seed_floor,
    smooth_grad_norm,
    smooth_loss,
)
from fp8lab_analysis.judge.speed import held_out_curve
from fp8lab_analysis.judge.verdicts import Kind
from fp8lab_analysis.read.runs import Floats

MAX_POINTS = 300  # per drawn line, to keep embedded figures small


def thin(*columns: Floats) -> list[Floats]:
    """Returns every n-th row of parallel columns, at most MAX_POINTS, including the last row."""
    rows = columns[0].size
    if rows <= MAX_POINTS:
        return list(columns)
    index = np.unique(np.linspace(0, rows - 1, MAX_POINTS).round().astype(int))
    return [column[index] for column in columns]


def stage_axes(
    figure: Figure, context: PlotContext, rows: int, ratios: Sequence[float]
) -> list[list[Axes]]:
    """Creates a grid of axes: one column per stage, wider for longer stages, one row per
    quantity."""
    lengths = []
    for stage in context.study.stages:
        longest = max(int(run.stage_rows(stage).sum()) for run in context.study.runs)
        lengths.append(math.sqrt(max(1, longest)))
    widest = max(lengths)
    widths = [max(length, 0.45 * widest) for length in lengths]
    grid = figure.add_gridspec(rows, len(lengths), width_ratios=widths, height_ratios=ratios)
    axes: list[list[Axes]] = []
    for row in range(rows):
        line: list[Axes] = []
        for column, stage in enumerate(context.study.stages):
            share = axes[0][column] if row else None
            item = figure.add_subplot(grid[row, column], sharex=share)
            if row == 0:
                item.set_title(f"stage {stage}")
            if row < rows - 1:
                item.tick_params(labelbottom=False)
            item.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            line.append(item)
        axes.append(line)
    for item in axes[-1]:
        item.set_xlabel("optimizer step")
    return axes


def robust_limits(curves: Sequence[Floats], pad: float = 0.08) -> tuple[float, float] | None:
    """Returns limits that show 99 % of the finite points of the curves."""
    finite = [curve[np.isfinite(curve)] for curve in curves]
    finite = [curve for curve in finite if curve.size]
    if not finite:
        return None
    points = np.concatenate(finite)
    low, high = np.percentile(points, [0.5, 99.5])
    room = pad * (high - low) or pad * abs(high) or 0.01
    return float(low - room), float(high + room)


Series = tuple[GroupSummary, list[stats.Curve]]  # a group with a curve per seed


def _unbroken_curves(drawn: Sequence[Series]) -> list[Floats]:
    """Returns the values that determine the limits of a panel."""
    alive = unbroken([summary for summary, _ in drawn])
    return [values for summary, lines in drawn if summary in alive for _, values in lines]


def say_what_leaves(
    axes: Axes,
    context: PlotContext,
    curves: Sequence[Series],
) -> None:
    """Notes at the edge of a panel which diverged arms leave it, where, and to which value;
    diverged arms do not determine its limits."""
    low, high = axes.get_ylim()
    left, right = axes.get_xlim()
    rows = 0
    for summary, lines in curves:
        points = np.concatenate([np.stack(line) for line in lines], axis=1) if lines else None
        if points is None or summary.verdict.kind is not Kind.DIVERGED:
            continue
        steps, values = points[:, np.isfinite(points[1])]
        for outside, extreme, sign in ((values > high, np.max, "▲"), (values < low, np.min, "▼")):
            if not outside.any():
                continue
            step = float(steps[outside].min())
            late = step > (left + right) / 2.0
            bound = "up" if sign == "▲" else "down"
            text = f"{context.name(summary)}: {bound} to {extreme(values):.3g}"
            axes.annotate(
                f"{text} {sign}" if late else f"{sign} {text}",
                (step, 0.98 if sign == "▲" else 0.02),
                xycoords=("data", "axes fraction"),
                xytext=(0, -9 * rows if sign == "▲" else 9 * rows),
                textcoords="offset points",
                ha="right" if late else "left",
                va="top" if sign == "▲" else "bottom",
                fontsize=6.5,
                color=context.style(summary.group).colour,
                bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "linewidth": 0},
                zorder=6,
            )
            rows += 1


def draw_series(
    axes: Axes, context: PlotContext, summary: GroupSummary, lines: list[tuple[Floats, Floats]]
) -> None:
    """Draws seeds as thin lines, and their mean as a thick line with the group's marker."""
    style = context.style(summary.group)
    lines = [(step, curve) for step, curve in lines if np.isfinite(curve).any()]
    if not lines:
        return
    if len(lines) > 1:
        for step, curve in lines:
            x, y = thin(step, curve)
            axes.plot(x, y, linewidth=0.6, alpha=0.45, **style.line_kwargs())
    seeds = stats.over_seeds(lines)
    x, y = thin(seeds.steps, seeds.mean)
    order = 4 if summary.group.is_baseline else 3
    # Eight markers per line, at other positions than those of other lines.
    every = max(1, round(0.13 * x.size))
    offset = round((0.02 + 0.11 * (context.study.groups.index(summary.group) % 9) / 9.0) * x.size)
    axes.plot(
        x,
        y,
        zorder=order,
        markevery=(min(offset, every - 1), every),
        **style.line_kwargs(),
        **style.marker_kwargs(4.0),
    )


def mark_divergence(axes: Axes, context: PlotContext, item: RunComparison, stage: str) -> None:
    """Draws a vertical line at the step where a run's loss stopped being finite."""
    rows = item.run.stage_rows(stage)
    loss = item.run.metrics.loss[rows]
    broken = np.flatnonzero(~np.isfinite(loss))
    if broken.size == 0:
        return
    step = float(item.run.metrics.step[rows][broken[0]])
    group = next(g for g in context.study.groups if item.run in g.runs)
    colour = context.style(group).colour
    axes.axvline(step, color=colour, linewidth=0.8, linestyle=":")
    axes.annotate(
        f"not finite\nat step {step:.0f}",
        (step, 0.98),
        xycoords=("data", "axes fraction"),
        xytext=(-3, 0),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=6.5,
        color=colour,
    )


def _draw_seed_band(axes: Axes, context: PlotContext, stage: str, around_zero: bool) -> bool:
    """Shades the baseline's seed band; returns False for fewer than two baseline seeds."""
    drawn = False
    for group in context.study.groups:
        if not group.is_baseline or (group.key.variant and drawn):
            continue
        floor = seed_floor(group, stage)
        if floor is None:
            continue
        centre = np.zeros(floor.steps.size) if around_zero else floor.mean
        x, low, high = thin(floor.steps, centre - floor.half_width, centre + floor.half_width)
        axes.fill_between(
            x, low, high, color=BAND, alpha=0.6, linewidth=0, zorder=1, label="seed band"
        )
        drawn = True
    return drawn


def _gap_scale(summaries: Sequence[GroupSummary]) -> float | None:
    """Returns the linear threshold of a symmetric log axis if gaps differ too much for a linear
    axis, else None."""
    gaps = [abs(s.final_gap.mean) for s in unbroken(summaries) if not s.group.is_baseline]
    gaps = sorted(gap for gap in gaps if math.isfinite(gap) and gap > 0.0)
    if len(gaps) < 2 or gaps[-1] < 12.0 * gaps[len(gaps) // 2]:
        return None
    return float(10.0 ** round(math.log10(gaps[len(gaps) // 2])))


def loss_figure(context: PlotContext) -> Figure | None:
    """Draws the training loss per stage, and below it the gap to the paired baseline."""
    study, summaries = context.study, context.summaries
    if not study.stages:
        return None
    paired = any(item.last_gap for s in summaries for item in s.runs)
    figure = Figure(figsize=(WIDTH, 6.4 if paired else 4.2), layout="constrained")
    axes = stage_axes(figure, context, 2 if paired else 1, (1.25, 1.0) if paired else (1.0,))
    band = False
    threshold = _gap_scale(summaries)
    for column, stage in enumerate(study.stages):
        top = axes[0][column]
        band = _draw_seed_band(top, context, stage, False) or band
        drawn: list[Series] = []
        for summary in summaries:
            drawn.append((summary, [smooth_loss(run, stage) for run in summary.group.runs]))
            draw_series(top, context, *drawn[-1])
            for item in summary.runs:
                mark_divergence(top, context, item, stage)
        limits = robust_limits(_unbroken_curves(drawn))
        if limits:
            top.set_ylim(*limits)
        say_what_leaves(top, context, drawn)
        if paired:
            _draw_gaps(axes[1][column], context, stage, threshold)
    axes[0][0].set_ylabel("training loss, smoothed\n(nats per token)")
    if paired:
        name = study.baseline_recipe
        note = ", symmetric log axis" if threshold else ""
        axes[1][0].set_ylabel(f"loss gap to paired {name}\n(nats per token{note})")
    handles: list[Any] = list(group_handles(context, summaries))
    if band:
        handles.append(Patch(color=BAND, alpha=0.6, label=f"{study.baseline_recipe} seed band"))
    return finish(figure, context, "Training loss and gap to the baseline", handles)


def _draw_gaps(axes: Axes, context: PlotContext, stage: str, threshold: float | None) -> None:
    _draw_seed_band(axes, context, stage, True)
    axes.axhline(0.0, color=INK, linewidth=1.0, zorder=2)
    drawn: list[Series] = []
    for summary in context.summaries:
        curves = [item.stages[stage].gap for item in summary.runs if stage in item.stages]
        gaps = [curve for curve in curves if curve is not None]
        if not gaps:
            continue
        drawn.append((summary, [(gap.steps, gap.smooth) for gap in gaps]))
        draw_series(axes, context, *drawn[-1])
        if len(gaps) == 1:
            x, low, high = thin(
                gaps[0].steps, gaps[0].smooth - gaps[0].spread, gaps[0].smooth + gaps[0].spread
            )
            style = context.style(summary.group)
            axes.fill_between(
                x, low, high, color=style.colour, alpha=0.10, linewidth=0, label=style.name
            )
    if threshold:
        axes.set_yscale("symlog", linthresh=threshold)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        return
    limits = robust_limits(_unbroken_curves(drawn) + [np.zeros(1)], 0.15)
    if limits:
        axes.set_ylim(*limits)
    say_what_leaves(axes, context, drawn)


def gradient_norm_figure(context: PlotContext) -> Figure | None:
    """Draws the gradient norm before clipping, and its ratio to the paired baseline's."""
    study, summaries = context.study, context.summaries
    if not any(bool(np.isfinite(run.metrics.grad_norm).any()) for run in study.runs):
        return None
    paired = bool(study.pairings)
    figure = Figure(figsize=(WIDTH, 5.0 if paired else 3.4), layout="constrained")
    axes = stage_axes(figure, context, 2 if paired else 1, (1.2, 1.0) if paired else (1.0,))
    for column, stage in enumerate(study.stages):
        drawn: list[Series] = []
        for summary in summaries:
            norms, ratios = [], []
            for run in summary.group.runs:
                norms.append(smooth_grad_norm(run, stage))
                baseline = study.pairings.of(run)
                if baseline is not None:
                    ratios.append(stats.ratio_curve(norms[-1], smooth_grad_norm(baseline, stage)))
            draw_series(axes[0][column], context, summary, norms)
            if paired:
                draw_series(axes[1][column], context, summary, ratios)
                drawn.append((summary, ratios))
        log_y_axis(axes[0][column])
        if paired:
            axes[1][column].axhline(1.0, color=INK, linewidth=1.0)
            limits = robust_limits(_unbroken_curves(drawn) + [np.ones(1)], 0.15)
            axes[1][column].set_ylim(*(limits or (0.9, 1.1)))
            say_what_leaves(axes[1][column], context, drawn)
    axes[0][0].set_ylabel("gradient norm, smoothed\n(before clipping, log axis)")
    if paired:
        axes[1][0].set_ylabel(f"ratio to paired\n{study.baseline_recipe}")
    return finish(figure, context, "Gradient norm", group_handles(context, summaries))


def held_out_figure(context: PlotContext) -> Figure | None:
    """Draws the held-out loss over steps, and exact match at the end of each stage."""
    study, summaries = context.study, context.summaries
    if not any(len(run.evaluations) for run in study.runs):
        return None
    stages = [stage for stage in study.stages if match_tells(summaries, stage)]
    match_height = 0.6 + 0.26 * len(summaries) if stages else 0.0
    figure = Figure(figsize=(WIDTH, 3.3 + match_height), layout="constrained")
    if stages:
        upper, lower = figure.subfigures(2, 1, height_ratios=(2.5, match_height))
    else:
        upper, lower = figure, None
    axes = stage_axes(upper, context, 1, (1.0,))[0]
    for column, stage in enumerate(study.stages):
        drawn: list[Series] = []
        for summary in summaries:
            drawn.append((summary, [held_out_curve(run, stage) for run in summary.group.runs]))
            _draw_points(axes[column], context, *drawn[-1])
        limits = robust_limits(_unbroken_curves(drawn), 0.12)
        if limits:
            axes[column].set_ylim(*limits)
        say_what_leaves(axes[column], context, drawn)
    axes[0].set_ylabel("held-out loss\n(nats per token)")
    if lower is not None:
        columns = lower.subplots(1, len(stages), sharey=True, squeeze=False)[0]
        for item, stage in zip(columns, stages):
            _draw_matches(item, context, stage)
    title = "Held-out loss and exact match" if stages else "Held-out loss"
    return finish(figure, context, title, group_handles(context, summaries))


def _draw_points(
    axes: Axes, context: PlotContext, summary: GroupSummary, lines: list[tuple[Floats, Floats]]
) -> None:
    style = context.style(summary.group)
    lines = [line for line in lines if np.isfinite(line[1]).any()]
    if not lines:
        return
    seeds = stats.over_seeds(lines)
    axes.errorbar(
        seeds.steps,
        seeds.mean,
        yerr=seeds.sd if len(lines) > 1 else None,
        capsize=2.0,
        elinewidth=0.8,
        **style.line_kwargs(),
        **style.marker_kwargs(4.0),
    )


def _draw_matches(axes: Axes, context: PlotContext, stage: str) -> None:
    labels = [context.name(summary) for summary in context.summaries]
    recipe_rows(axes, labels)
    for row, summary in enumerate(context.summaries):
        match = summary.matches.get(stage)
        if match is None:
            axes.text(0.0, row, " not measured", va="center", fontsize=7, color=MUTED)
            continue
        low, high = match.interval
        value = 100.0 * match.fraction
        style = context.style(summary.group)
        axes.errorbar(
            value,
            row,
            xerr=[[value - 100.0 * low], [100.0 * high - value]],
            color=style.colour,
            label=style.name,
            capsize=2.5,
            elinewidth=1.2,
            **style.marker_kwargs(6.0),
        )
    axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
    axes.set_title(f"end of stage {stage}")
    axes.set_xlabel("exact match (% of problems, 95 % interval)")
