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
    """Where a stage of a run diverged: by its training loss, else by the last held-out one, which
    stopped being finite at the first evaluation after the last finite one. None where it did not.
    """
    rows = run.stage_rows(stage)
    loss = run.metrics.loss[rows]
    row = stats.divergence_row(loss)
    if row is not None:
        step = int(run.metrics.step[rows][row])
        return Divergence(step, row, bool(np.isfinite(loss[row])), held_out=False)
    steps, losses = held_out_curve(run, stage)
    if losses.size == 0 or np.isfinite(losses[-1]):
        return None
    fine = np.flatnonzero(np.isfinite(losses))
    row = int(fine[-1]) + 1 if fine.size else 0
    return Divergence(int(steps[row]), row, finite=False, held_out=True)
