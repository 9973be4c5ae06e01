"""Determines whether and where a run diverged, by the rule in src/train/README.md.

`fp8lab train` implements the same rule in src/train/run_ending.cpp for its exit status.
tests/end_to_end/test_divergence.py compares both on the same runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fp8lab_analysis.judge import stats
from fp8lab_analysis.judge.speed import held_out_curve
from fp8lab_analysis.read.runs import Run


@dataclass(frozen=True)
class Divergence:
    """The place where a stage diverged."""

    step: int
    row: int  # index among the stage's rows; if `held_out`, among its evaluations
    finite: bool  # True: the loss grew but remained finite
    held_out: bool  # True: only the held-out loss diverged
    gradient: bool = False  # True: the loss of the step is finite, its gradient norm is not


def find_divergence(run: Run, stage: str) -> Divergence | None:
    """Returns where a stage of a run diverged: by its training loss or gradient norm, unless
    held-out losses overrule that; else by its held-out loss, at the evaluation after the last good
    one. None if it did not diverge. Norms that were not measured do not count."""
    rows = run.stage_rows(stage)
    broken_norms = run.broken_norms[rows]
    loss = np.where(broken_norms, np.nan, run.metrics.loss[rows])
    steps, held_out = held_out_curve(run, stage)
    row = stats.divergence_row(loss)
    if row is not None:
        step = int(run.metrics.step[rows][row])
        finite = bool(np.isfinite(loss[row]))
        beyond = row if not finite else stats.first_row_beyond(loss)
        if not finite or not _overrules(steps, held_out, int(run.metrics.step[rows][beyond])):
            gradient = bool(np.isfinite(run.metrics.loss[rows][row]) and broken_norms[row])
            return Divergence(step, row, finite, held_out=False, gradient=gradient)
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
    """Returns whether held-out losses show that the training loss did not diverge at `step`: the
    last held-out loss is from `step` or later, and within the margin of the best earlier one."""
    before = held_out[(steps < step) & np.isfinite(held_out)]
    if before.size == 0 or steps[-1] < step or not np.isfinite(held_out[-1]):
        return False
    return bool(held_out[-1] <= np.min(before) + stats.DIVERGENCE_MARGIN)
