"""Figures about quantization error: SQNR, range losses, scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fp8lab_analysis.draw.drawn import name_columns, name_rows
from fp8lab_analysis.draw.layer_axis import LayerAxis, layer_module, peaks
from fp8lab_analysis.draw.style import (
    BAND,
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
    short_layer,
    unbroken,
)
from fp8lab_analysis.judge import stats
from fp8lab_analysis.judge.compare import GroupSummary
from fp8lab_analysis.judge.operands import OperandSummary, quantized_mask
from fp8lab_analysis.read.runs import SLOTS, Floats, Run
from fp8lab_analysis.read.study import Group

SLOT_MEANING = {
    "fprop.x": "activation, forward",
    "fprop.w": "weight, forward",
    "dgrad.dy": "gradient, to inputs",
    "dgrad.w": "weight, to inputs",
    "wgrad.dy": "gradient, to weights",
    "wgrad.x": "activation, to weights",
}


# --- SQNR -----------------------------------------------------------------------------------------


def slot_title(axes: Axes, slot: str) -> None:
    """Sets the title of a panel: the slot, and below it the slot's contents."""
    axes.set_title(f"{slot}\n")
    axes.annotate(
        SLOT_MEANING[slot],
        (0.0, 1.0),
        xycoords="axes fraction",
        xytext=(0, 4),
        textcoords="offset points",
        fontsize=6.8,
        color=MUTED,
    )


def _tensor_order(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Returns (slot, layer) of every quantized tensor, by slot, then in the order of
    `LayerAxis`."""
    seen: dict[tuple[str, str], None] = {}
    for group in groups:
        for run in group.runs:
            for index in np.flatnonzero(quantized_mask(run)):
                seen[(run.tensors.slot[index], run.tensors.layer[index])] = None
    ranks = {slot: rank for rank, slot in enumerate(SLOTS)}
    axis = LayerAxis.of(list(dict.fromkeys(layer for _, layer in seen)))
    places = {layer: place for place, layer in enumerate(axis.layers)}
    return sorted(seen, key=lambda key: (ranks.get(key[0], len(ranks)), places[key[1]]))


def heat_matrix(
    group: Group, order: Sequence[tuple[str, str]], statistic: str
) -> tuple[Floats, Floats]:
    """Returns steps and the (tensor x step) matrix of one statistic, as the mean over seeds."""
    steps = np.unique(np.concatenate([run.tensors.step for run in group.runs]))
    rows = {key: row for row, key in enumerate(order)}
    stack = np.full((len(group.runs), len(order), steps.size), np.nan)
    for layer, run in enumerate(group.runs):
        columns = np.searchsorted(steps, run.tensors.step)
        values = run.tensors.get(statistic)
        for index in np.flatnonzero(quantized_mask(run)):
            key = (run.tensors.slot[index], run.tensors.layer[index])
            stack[layer, rows[key], columns] = values[:, index]
    return steps.astype(np.float64), stats.finite_column_means(stack)


def sqnr_heat_map_figure(context: PlotContext) -> Figure | None:
    """Draws the SQNR of every tensor (rows) at every logged step (columns), one panel per
    recipe."""
    chosen = quantized_summaries(context)
    if not chosen:
        return None
    order = _tensor_order([s.group for s in chosen])
    maps = [heat_matrix(s.group, order, "sqnr_db") for s in chosen]
    alive = unbroken(chosen) or chosen  # diverged recipes do not affect the colour scale
    shown = [values for s, (_, values) in zip(chosen, maps) if s in alive]
    finite = np.concatenate([values[np.isfinite(values)] for values in shown])
    if finite.size == 0:
        return None
    low, high = np.percentile(finite, [1.0, 99.0])
    named = not _axis_of(order).starts
    columns = 2 if len(chosen) == 4 else min(len(chosen), 3 if named else 4)
    lines = -(-len(chosen) // columns)
    height = 1.1 + lines * min(6.2, max(2.4, 0.098 * len(order) + 0.55))
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False)
    image = None
    for panel, (summary, (steps, values)) in enumerate(zip(chosen, maps)):
        item = axes[panel // columns][panel % columns]
        image = item.imshow(
            values, aspect="auto", cmap="viridis", vmin=low, vmax=high, interpolation="none"
        )
        image.set_label(context.name(summary))
        item.set_facecolor(BAND)  # cells without an SQNR
        name_rows(item, [f"{slot} {layer}" for slot, layer in order])
        item.set_title(context.name(summary), color=context.style(summary.group).colour)
        _label_heat_map(item, summary.group.runs[0], order, steps, panel % columns == 0)
        if not named:
            _name_weak_rows(item, order, stats.finite_column_means(values.T))
    for panel in range(len(chosen), lines * columns):
        axes[panel // columns][panel % columns].set_visible(False)
    bar = figure.colorbar(image, ax=axes, fraction=0.025, pad=0.01, extend="both")
    bar.set_label("SQNR (dB), higher is better")
    return finish(figure, context, "SQNR of every tensor over the run")


def _axis_of(order: Sequence[tuple[str, str]]) -> LayerAxis:
    return LayerAxis.of(list(dict.fromkeys(layer for _, layer in order)))


def _modules(order: Sequence[tuple[str, str]]) -> list[tuple[int, int, str]]:
    """Returns first row, end and name of every module in a slot; empty if each row is named."""
    if not _axis_of(order).starts:
        return []
    keys = [(slot, layer_module(layer)) for slot, layer in order]
    starts = [row for row, key in enumerate(keys) if row == 0 or keys[row - 1] != key]
    return [(a, b, keys[a][1]) for a, b in zip(starts, [*starts[1:], len(keys)])]


def _name_weak_rows(axes: Axes, order: Sequence[tuple[str, str]], sqnr: Floats) -> None:
    """Names, at the right edge, the rows that are furthest below the others of their slot."""
    slots = np.array([slot for slot, _ in order])
    below = np.array([stats.finite_median(sqnr[slots == slot]) for slot in slots]) - sqnr
    for row in peaks(below, 2.0, apart=max(1, len(order) // 40), most=4):
        axes.annotate(
            f"{short_layer(order[row][1])} ▸",
            (0.995, row),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="center",
            fontsize=6,
            color="white",
            bbox={"boxstyle": "square,pad=0.1", "facecolor": INK, "alpha": 0.65, "linewidth": 0},
        )


def _label_heat_map(
    axes: Axes,
    run: Run,
    order: Sequence[tuple[str, str]],
    steps: Floats,
    leftmost: bool,
) -> None:
    axes.grid(False)
    modules = _modules(order)
    named = not modules
    slots = [slot for slot, _ in order]
    starts = [i for i, slot in enumerate(slots) if i == 0 or slots[i - 1] != slot]
    for start in starts[1:]:
        axes.axhline(start - 0.5, color="white", linewidth=2.0)
    if named:
        axes.set_yticks(range(len(order)), [short_layer(layer) for _, layer in order], fontsize=5)
    else:
        for start, _, _ in modules:
            axes.axhline(start - 0.5, color="white", linewidth=0.4)
        middles = [(start + end - 1) / 2.0 for start, end, _ in modules]
        axes.set_yticks(middles, [name for _, _, name in modules], fontsize=5.5)
        axes.tick_params(axis="y", length=0)
    if not leftmost:
        axes.tick_params(axis="y", labelleft=False)
    else:
        ends = [*starts[1:], len(order)]
        for start, end in zip(starts, ends):
            axes.annotate(
                slots[start],
                (-0.42, (start + end - 1) / 2.0),
                xycoords=("axes fraction", "data"),
                rotation=90,
                va="center",
                ha="right",
                fontsize=7.5,
                weight="bold",
            )
    count = steps.size
    ticks = np.unique(np.linspace(0, count - 1, min(count, 6)).round().astype(int))
    axes.set_xticks(ticks, [f"{steps[i]:.0f}" for i in ticks])
    name_columns(axes, [f"{step:.0f}" for step in steps])
    axes.set_xlabel("optimizer step")
    names = [run.stage_of_step(step) for step in steps]
    for i in range(1, count):
        if names[i] != names[i - 1] and names[i]:
            axes.axvline(i - 0.5, color="white", linewidth=1.2, linestyle="--")
            axes.annotate(
                names[i],
                (i - 0.4, 0.995),
                xycoords=("data", "axes fraction"),
                fontsize=6.5,
                va="top",
                color="white",
                weight="bold",
            )


# --- one panel per slot, one row per recipe -------------------------------------------------------


def slot_panels(
    context: PlotContext, chosen: Sequence[GroupSummary], lines: int
) -> tuple[Figure, Any]:
    """Creates a grid of panels, one column per slot, with recipes as rows."""
    height = 1.25 + lines * (0.5 + 0.27 * len(chosen))
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(lines, len(SLOTS), squeeze=False)
    for line in range(lines):
        for column, slot in enumerate(SLOTS):
            item = axes[line][column]
            recipe_rows(item, [context.name(s) for s in chosen])
            if column:
                item.tick_params(labelleft=False)
            else:
                colour_labels(item, context, chosen)
            if line == 0:
                slot_title(item, slot)
    return figure, axes


def _draw_bars(
    axes: Axes,
    context: PlotContext,
    chosen: Sequence[GroupSummary],
    slot: str,
    pick: Callable[[OperandSummary], stats.Spread],
    text: str,
) -> list[float]:
    values = []
    for row, summary in enumerate(chosen):
        operand = summary.operands.get(slot)
        if operand is None or not operand.quantized:
            note(axes, row, "not quantized")
            continue
        spread = pick(operand)
        if not math.isfinite(spread.mean):
            note(axes, row, "exact" if operand.exact else "undefined")
            continue
        values.append(spread.mean)
        error = spread.sd if math.isfinite(spread.sd) else None
        axes.barh(
            row,
            spread.mean,
            xerr=error,
            height=0.62,
            error_kw={"elinewidth": 0.8, "capsize": 2},
            **context.style(summary.group).bar_kwargs(),
        )
        end = spread.mean + (error or 0.0)
        axes.annotate(
            text.format(spread.mean),
            (end, row),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=6.5,
        )
    return values


def sqnr_bars_figure(context: PlotContext) -> Figure | None:
    """Draws the mean SQNR by slot and recipe."""
    chosen = quantized_summaries(context)
    if not chosen:
        return None
    figure, axes = slot_panels(context, chosen, 1)
    top = 0.0
    for item, slot in zip(axes[0], SLOTS):
        top = max([top, *_draw_bars(item, context, chosen, slot, lambda o: o.sqnr_db, "{:.1f}")])
        item.set_xlabel("SQNR (dB)")
    for item in axes[0]:
        item.set_xlim(0.0, 1.35 * top if top > 0.0 else 1.0)
    return finish(figure, context, "Mean SQNR by operand")


def _percent(spread: stats.Spread) -> stats.Spread:
    return stats.Spread(100.0 * spread.mean, 100.0 * spread.sd, spread.count)


def range_loss_figure(context: PlotContext) -> Figure | None:
    """Draws underflow (upper row) and saturation (lower row) by slot and recipe."""
    chosen = quantized_summaries(context)
    if not chosen:
        return None
    kinds: list[tuple[str, Callable[[OperandSummary], stats.Spread]]] = [
        ("underflow", lambda o: _percent(o.underflow)),
        ("saturation", lambda o: _percent(o.saturation)),
    ]
    operands = [o for s in chosen for o in s.operands.values() if o.quantized]
    lost = [(kind, pick) for kind, pick in kinds if any(pick(o).mean > 0.0 for o in operands)]
    none = [kind for kind, _ in kinds if kind not in dict(lost)]
    if not lost:
        return None
    kinds = lost
    figure, axes = slot_panels(context, chosen, len(kinds))
    for line, (kind, pick) in enumerate(kinds):
        values: list[float] = []
        for item, slot in zip(axes[line], SLOTS):
            values += _draw_bars(item, context, chosen, slot, pick, "{:.2g}")
            item.set_xlabel("% of elements")
        axes[line][0].set_ylabel(kind, fontsize=10, weight="bold")
        for item in axes[line]:
            log_axis(item, values)
    title = "Values lost at the ends of the range"
    return finish(figure, context, title + "".join(f" (no {kind} in any operand)" for kind in none))


def scale_range_figure(context: PlotContext) -> Figure | None:
    """Draws the range of the decode scales by slot and recipe, as powers of two."""
    chosen = [
        s
        for s in quantized_summaries(context)
        if any(math.isfinite(o.log2_scale[0]) for o in s.operands.values())
    ]
    if not chosen:
        return None
    figure, axes = slot_panels(context, chosen, 1)
    for item, slot in zip(axes[0], SLOTS):
        for row, summary in enumerate(chosen):
            operand = summary.operands.get(slot)
            if operand is None or not math.isfinite(operand.log2_scale[0]):
                note(item, row, "no scale")
                continue
            low, middle, high = operand.log2_scale
            bars = context.style(summary.group).bar_kwargs()
            item.barh(row, max(high - low, 0.05), left=low, height=0.5, **bars)
            item.plot(
                middle,
                row,
                "|",
                label=f"{context.name(summary)}, median",
                color="white" if "hatch" not in bars else INK,
                markersize=9,
                markeredgewidth=2.0,
            )
            item.annotate(
                f"{high - low:.{0 if high - low >= 10.0 else 1}f}",
                (high, row),
                xytext=(3, 0),
                va="center",
                textcoords="offset points",
                fontsize=6.5,
            )
        item.set_xlabel("log2 of scale")
        item.use_sticky_edges = False
        item.margins(x=0.14)
    return finish(
        figure, context, "Range of the decode scales (number: octaves spanned, tick: median)"
    )
