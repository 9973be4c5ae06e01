"""Whether and where a run diverged: the rule of src/train/README.md, which `fp8lab train` ends by.

`fp8lab train` has it in src/train/run_ending.cpp for its exit status. The test
tests/end_to_end/test_divergence.py asks both of the same runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fp8lab_analysis import stats
from fp8lab_analysis.runs import Run
from fp8lab_analysis.speed import held_out_curve


@dataclass(frozen=True)
class Divergence:
    """Where a stage diverged."""

    step: int
    row: int  # of the stage's rows; of its evaluations where `held_out`
    finite: bool  # the loss grew, but was a number
    held_out: bool  # the training loss did not


def find_divergence(run: Run, stage: str) -> Divergence | None:
    """Where a stage of a run diverged: by its training loss, unless held-out losses overrule that;
    else by its held-out loss, at the first evaluation after the last one that was fine. None where
    it did not."""
    rows = run.stage_rows(stage)
    loss = run.metrics.loss[rows]
    steps, held_out = held_out_curve(run, stage)
    row = stats.divergence_row(loss)
    if row is not None:
        step = int(run.metrics.step[rows][row])
        finite = bool(np.isfinite(loss[row]))
        beyond = row if not finite else stats.first_row_beyond(loss)
        if not finite or not _overrules(steps, held_out, int(run.metrics.step[rows][beyond])):
            return Divergence(step, row, finite, held_out=False)
    if held_out.size == 0:
        return None
    fine = np.isfinite(held_out)
    if loss.size < stats.DIVERGENCE_ROWS and fine.any():
        fine &= held_out <= np.nanmin(np.where(fine, held_out, np.nan)) + stats.DIVERGENCE_MARGIN
    if fine[-1]:
        return None
    row = int(np.flatnonzero(fine)[-1]) + 1 if fine.any() else 0
    return Divergence(int(steps[row]), row, bool(np.isfinite(held_out[-1])), held_out=True)


def _overrules(steps: stats.Array, held_out: stats.Array, step: int) -> bool:
    """Whether held-out losses say that what a training loss does from `step` on is no divergence:
    one was taken before, and the last, taken since, is within the margin of the best of those."""
    before = held_out[(steps < step) & np.isfinite(held_out)]
    if before.size == 0 or steps[-1] < step or not np.isfinite(held_out[-1]):
        return False
    return bool(held_out[-1] <= np.min(before) + stats.DIVERGENCE_MARGIN)
