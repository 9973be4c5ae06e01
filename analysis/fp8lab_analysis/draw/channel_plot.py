"""The figure of the largest channels: whether they remain the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fp8lab_analysis.draw.layer_axis import LayerAxis
from fp8lab_analysis.draw.style import MUTED, WIDTH, PlotContext, finish, group_handles
from fp8lab_analysis.judge import stats
from fp8lab_analysis.judge.channels import Persistence, last_stages, persistence, stage_changes
from fp8lab_analysis.judge.compare import GroupSummary

Found = list[tuple[GroupSummary, list[Persistence]]]


def channel_figure(context: PlotContext) -> Figure | None:
    """Draws the Jaccard index of the largest channels: with the previous logged step, with the
    first one, and between stages."""
    found: Found = []
    for summary in context.summaries:
        curves = [curve for run in summary.group.runs if (curve := persistence(run)) is not None]
        if curves:
            found.append((summary, curves))
    if not found:
        return None
    stages = last_stages(context.study)
    across = [s for s in context.summaries if stage_changes(context.study, s.group)]
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    panels = figure.subplots(1, 3 if across else 2, sharey=True)
    for axes, pick, title in (
        (panels[0], "to_previous", "with the logged step before"),
        (panels[1], "to_first", "with the first logged step"),
    ):
        _draw_steps(axes, context, found, pick)
        axes.set_title(title)
    panels[0].set_ylabel("Jaccard index\n(mean over layers)")
    panels[0].set_ylim(-0.03, 1.03)
    if across and stages is not None:
        _draw_layers(panels[2], context, across)
        panels[2].set_title(f"end of {stages[0]} with end of {stages[1]}")
    shown = [s for s in context.summaries if s in across or s in [item for item, _ in found]]
    title = "Do the largest channels of the layers' inputs (fprop.x) stay the same?"
    return finish(figure, context, title, group_handles(context, shown))


def _draw_steps(axes: Axes, context: PlotContext, found: Found, pick: str) -> None:
    for summary, curves in found:
        style = context.style(summary.group)
        seeds = stats.over_seeds([(curve.steps, getattr(curve, pick)) for curve in curves])
        axes.plot(
            seeds.steps,
            seeds.mean,
            linewidth=1.1,
            **style.line_kwargs(),
            **style.marker_kwargs(3.5),
        )
    axes.set_xlabel("optimizer step")
    run = max((r for s, _ in found for r in s.group.runs), key=lambda r: len(r.metrics))
    for step, _ in run.first_steps()[1:]:
        axes.axvline(float(step), color=MUTED, linewidth=0.9, linestyle="--")


def _draw_layers(axes: Axes, context: PlotContext, shown: Sequence[GroupSummary]) -> None:
    layers: list[str] = []
    axis = LayerAxis([], [])
    for summary in shown:
        changes = stage_changes(context.study, summary.group)
        layers = layers or changes[0].layers
        axis = LayerAxis.of(layers)
        order = [layers.index(layer) for layer in axis.layers]
        same = [change.shared[order] for change in changes if change.layers == layers]
        if not same:
            continue
        style = context.style(summary.group)
        axes.plot(
            range(len(layers)),
            stats.finite_column_means(np.stack(same)),
            linewidth=1.0,
            **style.line_kwargs(),
            **style.marker_kwargs(3.5),
        )
    axis.label_columns(axes, named=True)
    axes.set_xlabel(axis.caption)
