"""Where a run broke, and what its operands looked like before: the facts behind "why?"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fp8lab_analysis.divergence import find_divergence
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
    held_out: bool  # the held-out loss, at an evaluation
    event: Event | None  # the first of kind nan, or a spike just before
    before: Condition | None  # the last logged step before it

    @property
    def how(self) -> str:
        """What the loss did."""
        return "grew beyond recovery" if self.finite else "stopped being finite"

    @property
    def loss(self) -> str:
        """Which loss did."""
        return "held-out loss" if self.held_out else "loss"


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
        found = find_divergence(run, stage)
        if found is None:
            continue
        step, steps = found.step, run.metrics.step[run.stage_rows(stage)]
        row = int(np.searchsorted(steps, step))
        # Smoothing may find the break a row early.
        near = steps[max(0, row - SPIKE_ROWS) : row + 2]
        left_out = set(run.metrics.step[run.left_out].tolist())
        events = [
            event
            for event in run.events
            if (event.kind == "nan" and event.step not in left_out)
            or (event.kind == "spike" and near.size and near[0] <= event.step <= near[-1])
        ]
        # A step is taken before its evaluation, but what a broken step logs may be of the break.
        logged = np.flatnonzero(run.tensors.step < step + found.held_out)
        return Break(
            run=run,
            step=step,
            stage=stage,
            finite=found.finite,
            held_out=found.held_out,
            event=min(events, key=lambda event: event.step) if events else None,
            before=condition(run, int(logged[-1])) if logged.size else None,
        )
    return None
