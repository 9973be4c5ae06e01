"""Whether runs are long enough for a verdict of no harm to mean something."""

from __future__ import annotations

from collections.abc import Sequence

from fp8lab_analysis.judge.phrases import counted
from fp8lab_analysis.read.runs import Run

FEWEST_STEPS = 30
"""Steps of a stage, by choice. A gap that grows with training, such as that of a scale that lags
behind, leaves the noise between steps only after some tens of them: the outliers of the default
study alone take 18 steps to grow."""


def stage_length(run: Run, stage: str) -> tuple[int, int]:
    """Returns the steps and the trained tokens of a stage, as far as it is logged."""
    index = run.stage_names.index(stage)
    rows = run.metrics.stage == index
    if not rows.any():
        return 0, 0
    start = int(run.stage_starts[index])
    earlier = run.metrics.tokens[run.metrics.step <= start]
    before = int(earlier[-1]) if earlier.size else 0
    return int(run.metrics.step[rows][-1]) - start, int(run.metrics.tokens[rows][-1]) - before


def shortness_text(runs: Sequence[Run], stage: str) -> str:
    """States that `stage` is too short for a verdict on its losses; empty if it is not."""
    lengths = [stage_length(run, stage) for run in runs if stage in run.stage_names]
    steps, tokens = min(lengths, default=(0, 0))
    if not 0 < steps < FEWEST_STEPS:
        return ""
    size = f"{tokens:,}".replace(",", " ")
    return (
        f"Too short to say much: {stage} has {counted(steps, 'step')} with {size} tokens in all; "
        f"a gap that grows with training may not show in fewer than {FEWEST_STEPS}"
    )
