"""Where a run broke, and what its operands looked like before: the facts behind "why?"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fp8lab_analysis import stats
from fp8lab_analysis.operands import quantized_mask
from fp8lab_analysis.runs import Event, Floats, Run

SPIKE_ROWS = 10  # of /metrics before a break: a spike in them belongs to it


@dataclass(frozen=True)
class Suspect:
    """The operand of a logged step that is worst in one statistic."""

    layer: str
    slot: str
    value: float

    @property
    def name(self) -> str:
        """Layer and slot, as events name them."""
        return f"{self.layer}/{self.slot}"


@dataclass(frozen=True)
class Condition:
    """The quantized operands of one logged step, by the operand that is worst in each respect."""

    step: int
    weakest: Suspect | None  # lowest SQNR, dB
    flushed: Suspect | None  # highest underflow, fraction
    saturated: Suspect | None  # highest saturation, fraction
    outlying: Suspect | None  # highest channel outlier ratio


@dataclass(frozen=True)
class Break:
    """Where a run's loss diverged."""

    run: Run
    step: int
    stage: str
    finite: bool  # the loss grew, but was a number
    event: Event | None  # the first of kind nan, or a spike just before
    before: Condition | None  # the last logged step before it


def _worst(run: Run, values: Floats, sign: float) -> Suspect | None:
    """The quantized operand with the largest `sign` x value; None where none is known."""
    ranked = np.where(quantized_mask(run) & np.isfinite(values), sign * values, -math.inf)
    if ranked.size == 0 or not math.isfinite(ranked.max()):
        return None
    column = int(np.argmax(ranked))
    return Suspect(run.tensors.layer[column], run.tensors.slot[column], float(values[column]))


def condition(run: Run, row: int) -> Condition:
    """The worst operands of one logged step."""
    log = run.tensors

    def most(statistic: str, sign: float = 1.0) -> Suspect | None:
        return _worst(run, log.get(statistic)[row], sign)

    return Condition(
        step=int(log.step[row]),
        weakest=most("sqnr_db", -1.0),
        flushed=most("underflow_fraction"),
        saturated=most("saturation_fraction"),
        outlying=most("channel_outlier_ratio"),
    )


def find_break(run: Run, stages: Sequence[str]) -> Break | None:
    """The first stage of a run that diverged, and where; None for a run that did not."""
    for stage in stages:
        rows = run.stage_rows(stage)
        row = stats.divergence_row(run.metrics.loss[rows])
        if row is None:
            continue
        steps = run.metrics.step[rows]
        step = int(steps[row])
        # Smoothing may find the break a row early.
        first, last = steps[max(0, row - SPIKE_ROWS)], steps[min(row + 1, len(steps) - 1)]
        events = [
            event
            for event in run.events
            if event.kind == "nan" or (event.kind == "spike" and first <= event.step <= last)
        ]
        logged = np.flatnonzero(run.tensors.step < step)
        return Break(
            run=run,
            step=step,
            stage=stage,
            finite=bool(np.isfinite(run.metrics.loss[rows][row])),
            event=min(events, key=lambda event: event.step) if events else None,
            before=condition(run, int(logged[-1])) if logged.size else None,
        )
    return None
