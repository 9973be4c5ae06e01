"""The figure of the detectors: their scores over the steps of every run."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fp8lab_analysis.draw.style import INK, WIDTH, PlotContext, finish, group_handles, log_y_axis
from fp8lab_analysis.judge.compare import GroupSummary
from fp8lab_analysis.judge.early_warning import Warned, detector_summaries, detector_text, watched
from fp8lab_analysis.read.runs import Run

COLUMNS = 3
LARGEST = 1e3  # limit of drawn scores; an operand that is not finite has an infinite score


def warning_figure(context: PlotContext) -> Figure | None:
    """Draws a panel per detector: score by step, threshold, and steps where losses went wrong."""
    found = [(s, watched(context.study, s)) for s in context.summaries]
    found = [(summary, runs) for summary, runs in found if runs]
    detectors = list(
        dict.fromkeys(
            item.detector for s, _ in found for item in detector_summaries(context.study, s)
        )
    )
    scores = {
        d: [x for _, runs in found for r in runs for x in _scores(r.run, d)[1]] for d in detectors
    }
    detectors = [d for d in detectors if np.isfinite(scores[d]).any()]
    if not detectors:
        return None
    rows = -(-len(detectors) // COLUMNS)
    figure = Figure(figsize=(WIDTH, 0.9 + 2.2 * rows), layout="constrained")
    panels = figure.subplots(rows, COLUMNS, sharex=True, squeeze=False).ravel()
    for axes, detector in zip(panels, detectors):
        axes.set_title(detector_text(detector))
        for summary, runs in found:
            for number, item in enumerate(runs):
                _draw_run(axes, context, summary, item, detector, number == 0)
        axes.axhline(1.0, color=INK, linewidth=0.8, linestyle="--", label="threshold")
        log_y_axis(axes)
    for axes in panels[len(detectors) :]:
        axes.set_visible(False)
    for number, axes in enumerate(panels[: len(detectors)]):
        if number % COLUMNS == 0:
            axes.set_ylabel("score\n(value / threshold)")
        if number + COLUMNS >= len(detectors):
            axes.tick_params(labelbottom=True)
            axes.set_xlabel("optimizer step")
    handles = group_handles(context, [summary for summary, _ in found])
    return finish(figure, context, "Detectors of training that is about to break", handles)


def _scores(run: Run, detector: str) -> tuple[list[int], list[float]]:
    """Returns steps and scores, without nonpositive scores, which a log axis cannot show."""
    rows = [(w.step, w.score) for w in run.warnings if w.detector == detector]
    known = [(step, min(score, LARGEST)) for step, score in rows if not math.isnan(score)]
    return [step for step, _ in known], [s if s > 0.0 else math.nan for _, s in known]


def _draw_run(
    axes: Axes,
    context: PlotContext,
    summary: GroupSummary,
    item: Warned,
    detector: str,
    marked: bool,
) -> None:
    steps, scores = _scores(item.run, detector)
    if not np.isfinite(scores).any():
        return
    style = context.style(summary.group)
    markers = style.marker_kwargs(3.5) if marked else {}
    axes.plot(steps, scores, linewidth=1.1, alpha=0.9, **style.line_kwargs(), **markers)
    if item.trouble is not None:
        axes.axvline(item.trouble.step, color=style.colour, linewidth=0.8, linestyle=":")
