"""Measures whether the largest channels remain the same: over the steps of a run, and from one
stage to the next.

A run logs for every operand the eight channels with the largest amax, in descending order. The
input of every linear layer (fprop.x) is compared between two logged steps: by the Jaccard index of
the two sets of channels, and by whether the largest channel is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fp8lab_analysis.judge import stats
from fp8lab_analysis.judge.compare import GroupSummary
from fp8lab_analysis.judge.operands import slot_mask
from fp8lab_analysis.judge.phrases import plus_minus
from fp8lab_analysis.read.runs import Floats, Run
from fp8lab_analysis.read.study import Group, Study

SLOT = "fprop.x"


@dataclass(frozen=True)
class Persistence:
    """Means over layers at every logged step of a run except the first."""

    steps: Floats
    to_previous: Floats  # Jaccard index with the previous logged step: persistence
    to_first: Floats  # Jaccard index with the first logged step that has channels: drift


@dataclass(frozen=True)
class StageChange:
    """Compares the last logged steps of two stages, layer by layer."""

    layers: list[str]
    shared: Floats  # Jaccard index
    same_largest: Floats  # 1: the largest channel is the same; NaN: unknown


def _largest(run: Run) -> Floats:
    """Returns the largest channels, (logged steps, layers, 8); NaN or -1 for no channel."""
    if "top_channel" not in run.tensors.statistics:
        return np.zeros((0, 0, 0))
    return run.tensors.get("top_channel")[:, slot_mask(run, SLOT)]


def persistence(run: Run) -> Persistence | None:
    """Returns the persistence of one run over the logged steps at which the most layers have
    channels; at early steps a delayed scale may lack an amax history. None for fewer than two such
    steps."""
    channels = _largest(run)
    layers = (channels >= 0).any(axis=2).sum(axis=1)
    known = [int(row) for row in np.flatnonzero((layers > 0) & (layers == layers.max(initial=0)))]
    if len(known) < 2:
        return None

    def against(row: int, other: int) -> float:
        return stats.finite_mean(stats.jaccard_rows(channels[row], channels[other]))

    return Persistence(
        steps=run.tensors.step[known[1:]].astype(np.float64),
        to_previous=np.array([against(b, a) for a, b in zip(known, known[1:])]),
        to_first=np.array([against(row, known[0]) for row in known[1:]]),
    )


def _last_row(run: Run, stage: str) -> int | None:
    rows = [row for row, step in enumerate(run.tensors.step) if run.stage_of_step(step) == stage]
    return rows[-1] if rows else None


def stage_change(run: Run, before: str, after: str) -> StageChange | None:
    """Compares the ends of two stages; None if the run did not log both."""
    channels = _largest(run)
    rows = _last_row(run, before), _last_row(run, after)
    if channels.size == 0 or rows[0] is None or rows[1] is None:
        return None
    ours, theirs = channels[rows[1]], channels[rows[0]]
    known = (ours[:, 0] >= 0) & (theirs[:, 0] >= 0)
    layers = [run.tensors.layer[i] for i in np.flatnonzero(slot_mask(run, SLOT))]
    same = np.where(known, (ours[:, 0] == theirs[:, 0]).astype(np.float64), np.nan)
    return StageChange(layers, stats.jaccard_rows(ours, theirs), same)


def last_stages(study: Study) -> tuple[str, str] | None:
    """Returns the last two stages, such as CPT and SFT; None if there is only one."""
    return (study.stages[-2], study.stages[-1]) if len(study.stages) > 1 else None


def stage_changes(study: Study, group: Group) -> list[StageChange]:
    """Returns the changes of the runs of a group that logged the ends of both last stages."""
    stages = last_stages(study)
    found = [stage_change(run, *stages) for run in group.runs] if stages else []
    return [change for change in found if change is not None]


def persistence_sentence(study: Study, summaries: Sequence[GroupSummary]) -> str:
    """States how the largest channels change between the last stages; empty if not logged."""
    told = []
    for summary in summaries:
        changes = stage_changes(study, summary.group)
        shared = stats.spread_over_seeds([stats.finite_mean(c.shared) for c in changes])
        same = stats.spread_over_seeds([stats.finite_mean(c.same_largest) for c in changes])
        if np.isfinite(shared.mean):
            largest = f"({100.0 * same.mean:.0f} %)"
            told.append(f"{summary.group.label} {plus_minus(shared, '{:.2f}')} {largest}")
    stages = last_stages(study)
    if not told or stages is None:
        return ""
    single = ", one seed each and in no order" if all(s.seeds == 1 for s in summaries) else ""
    return (
        f"Of the top eight channels by amax of each layer's input, the ends of {stages[0]} and "
        f"{stages[1]} share, as Jaccard index (and the first is the same in so many layers"
        f"{single}): {'; '.join(told)}."
    )
