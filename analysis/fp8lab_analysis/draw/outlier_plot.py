"""The outlier figure: channel outlier ratio and kurtosis by depth and over the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from fp8lab_analysis.draw.layer_axis import LayerAxis, name_peaks, peaks
from fp8lab_analysis.draw.style import MUTED, WIDTH, PlotContext, finish, group_handles, log_y_axis
from fp8lab_analysis.judge.compare import GroupSummary
from fp8lab_analysis.judge.operands import slot_mask
from fp8lab_analysis.read.runs import Run


OUTLIER_STATISTICS = (
    ("channel_outlier_ratio", "channel outlier ratio\n(largest over median amax)"),
    ("kurtosis", "kurtosis\n(3: Gaussian)"),
)


def outlier_figure(context: PlotContext) -> Figure | None:
    """Draws outlier statistics of layer inputs: by depth at each stage's end, and over steps."""
    logged = [
        s
        for s in context.summaries
        if any(bool(slot_mask(r, "fprop.x").any()) and r.tensors.step.size for r in s.group.runs)
    ]
    if not logged:
        return None
    shown = _depth_groups(logged)
    figure = Figure(figsize=(WIDTH, 6.0), layout="constrained")
    axes = figure.subplots(2, 2, squeeze=False, width_ratios=(1.15, 1.0))
    stage_handles = _draw_depth(axes, context, shown)
    for line, (statistic, label) in enumerate(OUTLIER_STATISTICS):
        axes[line][0].set_ylabel(label)
        _draw_over_steps(axes[line][1], context, logged, statistic)
        for item in axes[line]:
            log_y_axis(item)
    axes[0][0].set_title(
        "across depth, at the end of each stage (" + shown[0].group.key.recipe + ")"
    )
    axes[0][1].set_title("over the run, worst layer")
    axes[1][1].set_xlabel("optimizer step")
    handles = [*group_handles(context, logged), *stage_handles]
    return finish(figure, context, "Outliers in the inputs of the linear layers (fprop.x)", handles)


def _depth_groups(logged: Sequence[GroupSummary]) -> list[GroupSummary]:
    """Returns one group per variant: the baseline if it logged tensors, else the first."""
    chosen: dict[str, GroupSummary] = {}
    for summary in sorted(logged, key=lambda s: not s.group.is_baseline):
        chosen.setdefault(summary.group.key.variant, summary)
    return list(chosen.values())


def _last_row_of_stage(run: Run, stage: str) -> int | None:
    names = [run.stage_of_step(step) for step in run.tensors.step]
    rows = [row for row, name in enumerate(names) if name == stage]
    return rows[-1] if rows else None


STAGE_COLOURS = ("#b4bcc6", "#7b8794", "#3e4c59", "#1f2933")  # greys, unlike recipes


def _draw_depth(
    axes: Any, context: PlotContext, shown: Sequence[GroupSummary]
) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []
    axis = LayerAxis.of(
        list(
            dict.fromkeys(
                run.tensors.layer[i]
                for s in shown
                for run in s.group.runs
                for i in np.flatnonzero(slot_mask(run, "fprop.x"))
            )
        )
    )
    layers = axis.layers
    largest = np.full((len(OUTLIER_STATISTICS), len(layers)), np.nan)
    for number, stage in enumerate(context.study.stages):
        colour = STAGE_COLOURS[number % len(STAGE_COLOURS)]
        for summary in shown:
            run = summary.group.runs[0]
            row = _last_row_of_stage(run, stage)
            if row is None:
                continue
            chosen = np.flatnonzero(slot_mask(run, "fprop.x"))
            chosen = chosen[np.argsort([layers.index(run.tensors.layer[i]) for i in chosen])]
            place = [layers.index(run.tensors.layer[i]) for i in chosen]
            line = context.style(summary.group).line
            label = f"end of {stage}"
            if summary.group.key.variant:
                label += f", {summary.group.key.variant}"
            for panel, (statistic, _) in enumerate(OUTLIER_STATISTICS):
                values = run.tensors.get(statistic)[row, chosen]
                values = np.where(np.isfinite(values), values, np.nan)
                largest[panel, place] = np.fmax(largest[panel, place], values)
                axes[panel][0].plot(
                    place,
                    values,
                    color=colour,
                    linestyle=line,
                    marker="o",
                    markersize=1.8 if axis.starts else 3.5,
                    label=label,
                )
            handles.append(Line2D([], [], color=colour, linestyle=line, marker="o", label=label))
    for panel, values in enumerate(largest):
        axis.label_columns(axes[panel][0], named=panel == 1)
        name_peaks(axes[panel][0], axis, values, peaks(np.log2(np.maximum(values, 1.0)), 2.0))
    axes[1][0].set_xlabel(axis.caption)
    return handles


def _draw_over_steps(
    axes: Axes, context: PlotContext, logged: Sequence[GroupSummary], statistic: str
) -> None:
    for summary in logged:
        style = context.style(summary.group)
        for number, run in enumerate(summary.group.runs):
            values = run.tensors.get(statistic)[:, slot_mask(run, "fprop.x")]
            finite = np.where(np.isfinite(values), values, -np.inf)
            if finite.size == 0:
                continue
            worst = finite.max(axis=1)
            worst[~np.isfinite(worst)] = np.nan
            markers = style.marker_kwargs(3.5) if number == 0 else {}
            axes.plot(
                run.tensors.step, worst, alpha=0.9, linewidth=1.1, **style.line_kwargs(), **markers
            )
    run = max((r for s in logged for r in s.group.runs), key=lambda r: len(r.metrics))
    for number, (start, stage) in enumerate(run.first_steps()):
        if number:
            axes.axvline(float(start), color=MUTED, linewidth=0.9, linestyle="--")
        axes.annotate(
            stage,
            (max(start, axes.get_xlim()[0]), 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -1),
            textcoords="offset points",
            va="top",
            fontsize=7,
            color=MUTED,
        )
