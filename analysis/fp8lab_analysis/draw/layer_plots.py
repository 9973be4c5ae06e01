"""Small multiples of the operands: error by layer, and magnitudes in the format's range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MultipleLocator

from fp8lab_analysis.draw.formats import format_range
from fp8lab_analysis.draw.layer_axis import LayerAxis, name_peaks, peaks
from fp8lab_analysis.draw.operand_plots import slot_title
from fp8lab_analysis.draw.style import (
    BROKEN,
    MUTED,
    WIDTH,
    PlotContext,
    finish,
    group_handles,
    plain_numbers,
    quantized_summaries,
    unbroken,
)
from fp8lab_analysis.judge.compare import GroupSummary
from fp8lab_analysis.judge.operands import (
    SlotHistogram,
    quantized_mask,
    slot_histogram,
    tensor_summaries,
)
from fp8lab_analysis.read.runs import SLOTS

MOST_ROWS = 9  # largest number of recipes in the histograms
LEAST_FRACTION = 1e-6  # smallest fraction in a histogram
NORMAL, SUBNORMAL, OTHER_TILES = "#d9ead3", "#fff2cc", "#eef3fa"


def _layers(summaries: Sequence[GroupSummary]) -> list[str]:
    """Returns every layer with a quantized operand, from input to output."""
    runs = [run for summary in summaries for run in summary.group.runs]
    return list(
        dict.fromkeys(
            run.tensors.layer[i] for run in runs for i in np.flatnonzero(quantized_mask(run))
        )
    )


def layers_figure(context: PlotContext) -> Figure | None:
    """Draws SQNR and underflow of every slot by layer, one line per recipe."""
    chosen = quantized_summaries(context)
    axis = LayerAxis.of(_layers(chosen))
    layers = axis.layers
    if not chosen or len(layers) < 2:
        return None
    figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
    axes = figure.subplots(2, len(SLOTS), squeeze=False, sharex=True, sharey="row")
    worst = np.full((2, len(SLOTS), len(layers)), np.nan)  # over all recipes that did not diverge
    alive = unbroken(chosen)
    for summary in chosen:
        style = context.style(summary.group)
        found = {(t.slot, t.layer): t for t in tensor_summaries(summary.group)}
        for column, slot in enumerate(SLOTS):
            there = [
                (i, found[slot, layer]) for i, layer in enumerate(layers) if (slot, layer) in found
            ]
            places = [place for place, _ in there]
            curves = [t.sqnr_db for _, t in there], [100.0 * t.underflow for _, t in there]
            markers = style.marker_kwargs(1.5 if axis.starts else 3.0)
            for line, values in enumerate(curves):
                axes[line][column].plot(
                    places, values, linewidth=1.0, **style.line_kwargs(), **markers
                )
                if summary not in alive:
                    continue
                so_far = worst[line, column, places]
                pair = (so_far, np.asarray(values, dtype=np.float64))
                worst[line, column, places] = np.fmax(*pair) if line else np.fmin(*pair)
    for column, slot in enumerate(SLOTS):
        slot_title(axes[0][column], slot)
        for line in range(2):
            axis.label_columns(axes[line][column], named=line == 1)
        low, lost = worst[0, column], worst[1, column]
        name_peaks(axes[0][column], axis, low, peaks(-low, 2.0))
        flushed = peaks(np.log2(np.maximum(lost, 0.01)), 2.0)
        name_peaks(axes[1][column], axis, lost, flushed)
        axes[1][column].set_yscale("symlog", linthresh=1e-2)
        plain_numbers(axes[1][column].yaxis)
    axes[0][0].set_ylabel("SQNR (dB)")
    axes[1][0].set_ylabel("underflow (%, log\nabove 0.01)")
    axes[1][0].set_ylim(0.0, 2.0 * max(axes[1][0].get_ylim()[1], 1e-2))
    return finish(figure, context, "Error by layer", group_handles(context, chosen))


# --- exponent histograms --------------------------------------------------------------------------


def histogram_figure(context: PlotContext) -> Figure | None:
    """Draws magnitudes of every slot in units of the scale, with the format's range; one row per
    recipe."""
    rows: list[tuple[GroupSummary, list[SlotHistogram | None]]] = []
    for summary in quantized_summaries(context):
        found = [slot_histogram(summary.group, slot) for slot in SLOTS]
        if any(found):
            rows.append((summary, found))
    rows = rows[:MOST_ROWS]
    if not rows:
        return None
    figure = Figure(figsize=(WIDTH, 1.2 + 0.95 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(SLOTS), squeeze=False, sharex=True, sharey=True)
    low, high = _extent([h for _, found in rows for h in found if h is not None])
    for line, (summary, found) in enumerate(rows):
        for column, histogram in enumerate(found):
            item = axes[line][column]
            item.grid(False)
            if line == 0:
                slot_title(item, SLOTS[column])
            if histogram is None:
                item.text(
                    0.5,
                    0.5,
                    "not quantized",
                    transform=item.transAxes,
                    ha="center",
                    va="center",
                    fontsize=7,
                    color=MUTED,
                )
                continue
            _draw_histogram(item, context, summary, histogram)
        axes[line][0].set_yscale("log")
        axes[line][0].set_ylim(LEAST_FRACTION, 1.0)
        axes[line][0].set_xlim(low, high)
        axes[line][0].xaxis.set_major_locator(MultipleLocator(10))
        axes[line][0].set_ylabel(
            context.name(summary).replace(" (", "\n(").replace(f", {BROKEN}", f"\n{BROKEN}"),
            color=context.style(summary.group).colour,
            fontsize=7.5,
            weight="bold",
            rotation=0,
            ha="right",
            va="center",
        )
        axes[line][0].set_yticks([1e-6, 1e-4, 1e-2, 1.0])
        plain_numbers(axes[line][0].yaxis)
    for item in axes[-1]:
        item.set_xlabel("exponent / scale")
    handles: list[Any] = [
        Patch(color=NORMAL, label="normal numbers"),
        Patch(color=SUBNORMAL, label="subnormal numbers"),
        Patch(color=OTHER_TILES, label="reached by smaller scales of other tiles"),
    ]
    return finish(figure, context, "Magnitudes against the range of the format", handles)


def _extent(found: Sequence[SlotHistogram]) -> tuple[float, float]:
    """Returns the range of exponents that contains the drawn values and the formats' ranges."""
    places = [h.exponents[h.fractions >= LEAST_FRACTION] for h in found]
    ranges = [known for h in found if (known := format_range(h.format)) is not None]
    lows = [float(p.min()) for p in places if p.size] + [float(r.lowest) for r in ranges]
    highs = [float(p.max()) for p in places if p.size] + [float(r.top) for r in ranges]
    return min(lows, default=-1.0) - 1.0, max(highs, default=1.0) + 2.0


def _draw_histogram(
    axes: Axes, context: PlotContext, summary: GroupSummary, histogram: SlotHistogram
) -> None:
    known = format_range(histogram.format)
    if known is not None:
        if math.isfinite(histogram.octaves) and histogram.octaves > 0.0:
            axes.axvspan(
                known.lowest - histogram.octaves, known.lowest, color=OTHER_TILES, zorder=0
            )
        axes.axvspan(known.lowest, known.normal, color=SUBNORMAL, linewidth=0, zorder=0)
        axes.axvspan(known.normal, known.top + 1.0, color=NORMAL, linewidth=0, zorder=0)
    shown = histogram.fractions >= LEAST_FRACTION
    if not shown.any():
        return
    first, last = np.flatnonzero(shown)[[0, -1]]
    exponents = histogram.exponents[first : last + 1]
    axes.step(
        [*exponents, exponents[-1] + 1.0],
        [*np.maximum(histogram.fractions[first : last + 1], LEAST_FRACTION), LEAST_FRACTION],
        where="post",
        linewidth=1.3,
        color=context.style(summary.group).colour,
        label=context.name(summary),
    )
