"""Finds where a run broke, and the state of its operands before: the facts behind "why?"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fp8lab_analysis.judge.divergence import find_divergence
from fp8lab_analysis.judge.operands import quantized_mask
from fp8lab_analysis.read.runs import Event, Floats, Run

SPIKE_ROWS = 10  # a spike in this many rows of /metrics before a break belongs to it


@dataclass(frozen=True)
class Suspect:
    """The operand with the worst value of one statistic at a logged step."""

    layer: str
    slot: str
    value: float

    @property
    def name(self) -> str:
        """Layer and slot, as in event messages."""
        return f"{self.layer}/{self.slot}"


@dataclass(frozen=True)
class Condition:
    """The worst quantized operand of one logged step for each statistic."""

    step: int
    weakest: Suspect | None  # lowest SQNR, dB
    flushed: Suspect | None  # highest underflow, fraction
    saturated: Suspect | None  # highest saturation, fraction
    outlying: Suspect | None  # highest channel outlier ratio


@dataclass(frozen=True)
class Break:
    """The divergence of a run's loss."""

    run: Run
    step: int
    stage: str
    finite: bool  # True: the loss grew but remained finite
    held_out: bool  # True: the held-out loss diverged, at an evaluation
    gradient: bool  # True: the gradient norm stopped being finite before the loss
    event: Event | None  # the first event of kind nan, or a spike just before
    before: Condition | None  # operands at the last logged step before the break

    @property
    def how(self) -> str:
        """Describes the behaviour of the loss."""
        return "grew beyond recovery" if self.finite else "stopped being finite"

    @property
    def loss(self) -> str:
        """Names what diverged."""
        if self.gradient:
            return "gradient norm"
        return "held-out loss" if self.held_out else "loss"


def _worst(run: Run, values: Floats, sign: float) -> Suspect | None:
    """Returns the quantized operand with the largest `sign` x value; None if no value is known."""
    ranked = np.where(quantized_mask(run) & np.isfinite(values), sign * values, -math.inf)
    if ranked.size == 0 or not math.isfinite(ranked.max()):
        return None
    column = int(np.argmax(ranked))
    return Suspect(run.tensors.layer[column], run.tensors.slot[column], float(values[column]))


def condition(run: Run, row: int) -> Condition:
    """Returns the worst operands of one logged step."""
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
    """Returns the first break of a run; None if it did not diverge."""
    for stage in stages:
        found = find_divergence(run, stage)
        if found is None:
            continue
        step, steps = found.step, run.metrics.step[run.stage_rows(stage)]
        row = int(np.searchsorted(steps, step))
        # With smoothing, the break may be found one row early.
        near = steps[max(0, row - SPIKE_ROWS) : row + 2]
        left_out = set(run.metrics.step[run.left_out].tolist())
        events = [
            event
            for event in run.events
            if (event.kind == "nan" and event.step not in left_out)
            or (event.kind == "spike" and near.size and near[0] <= event.step <= near[-1])
        ]
        # Excludes the operands of the broken step. An evaluation comes after its step, so a break
        # of the held-out loss includes them.
        logged = np.flatnonzero(run.tensors.step < step + found.held_out)
        return Break(
            run=run,
            step=step,
            stage=stage,
            finite=found.finite,
            held_out=found.held_out,
            gradient=found.gradient,
            event=min(events, key=lambda event: event.step) if events else None,
            before=condition(run, int(logged[-1])) if logged.size else None,
        )
    return None
