"""Speed at equal quality: the cost of a run until its held-out loss reaches the baseline's final
one, exactly or within a margin.

Steps, tokens and seconds are counted from the point at which run and baseline first differ, since
their bit-identical start costs both the same. Seconds are wall time from the run file, including
evaluations, on the machine of the run. The baseline's cost is measured from the same point until it
first reaches the same loss. A run without a gap misses the baseline's exact final loss in half of
the seeds. With a margin it reaches the loss, and the ratio has the same meaning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fp8lab_analysis.judge import stats
from fp8lab_analysis.read.runs import Run


@dataclass(frozen=True)
class Cost:
    """The cost of a part of a run."""

    steps: float
    tokens: float
    seconds: float


@dataclass(frozen=True)
class EqualQuality:
    """Costs over the seeds of a group; NaN if a seed does not reach the loss."""

    above: float  # excess of the target loss over the baseline's final loss, a fraction
    seeds: int  # number of seeds with held-out losses of run and baseline
    reached: int  # number of seeds that reach the target
    steps: stats.Spread
    tokens: stats.Spread
    seconds: stats.Spread
    step_ratio: stats.Spread  # relative to the baseline's steps
    second_ratio: stats.Spread  # NaN if run and baseline used different devices
    devices: str  # devices on which the seconds were measured


def held_out_curve(run: Run, stage: str) -> stats.Curve:
    """Returns the held-out loss at every evaluation of a stage, nats/token."""
    if stage not in run.stage_names:
        return np.zeros(0), np.zeros(0)
    rows = run.evaluations.stage == run.stage_names.index(stage)
    return run.evaluations.step[rows].astype(np.float64), run.evaluations.loss[rows]


def throughput(run: Run, stage: str) -> float:
    """Returns the trained tokens per second in a stage (`stats.median_rate`)."""
    rows = run.stage_rows(stage)
    tokens = run.metrics.tokens[rows].astype(np.float64)
    return stats.median_rate(tokens, run.metrics.seconds[rows])


def shared_rows(run: Run, baseline: Run) -> int:
    """Returns the number of leading rows of /metrics with equal steps and bit-identical losses."""
    count = min(len(run.metrics), len(baseline.metrics))
    ours, theirs = run.metrics, baseline.metrics
    same = (ours.step[:count] == theirs.step[:count]) & (ours.loss[:count] == theirs.loss[:count])
    parted = np.flatnonzero(~same)
    return int(parted[0]) if parted.size else count


def cost_until(run: Run, step: float, rows: int) -> Cost:
    """Returns the cost of `run` after its first `rows` rows until `step`, interpolated."""
    steps = run.metrics.step.astype(np.float64)

    def until(values: stats.Array) -> float:
        return float(np.interp(step, steps, values)) - float(values[rows - 1] if rows else 0.0)

    return Cost(
        until(steps), until(run.metrics.tokens.astype(np.float64)), until(run.metrics.seconds)
    )


def costs(run: Run, baseline: Run, stage: str, above: float) -> tuple[Cost | None, Cost] | None:
    """Returns the costs of run and baseline until the held-out loss of the stage is the baseline's
    final one times 1 + `above`. The run's cost is None if it does not reach this loss. Returns None
    if the target is unknown or the baseline is still in progress."""
    theirs, ours = held_out_curve(baseline, stage), held_out_curve(run, stage)
    empty = not (theirs[1].size and ours[1].size and len(run.metrics) and len(baseline.metrics))
    if empty or not baseline.complete:
        return None
    target = float(theirs[1][-1]) * (1.0 + above)
    there = stats.first_reach(*theirs, target)
    if there is None:
        return None
    rows = shared_rows(run, baseline)
    reached = stats.first_reach(*ours, target)
    own = None if reached is None else cost_until(run, reached, rows)
    return own, cost_until(baseline, there, rows)


def device_text(run: Run) -> str:
    names = run.meta.get("backend", ""), run.meta.get("device", "")
    return ", ".join(name for name in names if name) or "unknown device"


def equal_quality(
    pairs: Sequence[tuple[Run, Run]], stage: str, above: float
) -> EqualQuality | None:
    """Returns the costs over the (run, baseline) pairs of a group; None if no pair has held-out
    losses."""
    known = [(pair, found) for pair in pairs if (found := costs(*pair, stage, above)) is not None]
    if not known:
        return None
    own = [cost or Cost(math.nan, math.nan, math.nan) for _, (cost, _) in known]
    theirs = [cost for _, (_, cost) in known]
    devices = {device_text(run) for pair, _ in known for run in pair}

    def ratio(ours: float, reference: float) -> float:
        return ours / reference if reference > 0.0 else math.nan

    seconds = [ratio(a.seconds, b.seconds) for a, b in zip(own, theirs)]
    return EqualQuality(
        above=above,
        seeds=len(known),
        reached=sum(cost is not None for _, (cost, _) in known),
        steps=stats.spread_over_seeds([cost.steps for cost in own]),
        tokens=stats.spread_over_seeds([cost.tokens for cost in own]),
        seconds=stats.spread_over_seeds([cost.seconds for cost in own]),
        step_ratio=stats.spread_over_seeds([ratio(a.steps, b.steps) for a, b in zip(own, theirs)]),
        second_ratio=stats.spread_over_seeds(seconds if len(devices) == 1 else [math.nan]),
        devices="; ".join(sorted(devices)),
    )
