"""Finds tensors in which few channels are far above the rest, and the recipes that suffer from
them.

A tensor is the input of one linear layer (fprop.x). Its channel outlier ratio is the largest
channel amax divided by the median one, measured in the baseline if it logged tensors, else in the
first group that did, as the median over logged steps and seeds. A tensor with a ratio of at least
OUTLIER_RATIO is an outlier: a scale for the whole tensor then loses five octaves of range.

A recipe suffers in an outlier layer if its error in fprop.x or wgrad.x is far larger than in the
layers without outliers: its SQNR is SUFFERS_DB below their median, or its fraction of elements
flushed to zero is SUFFERS_TIMES their median and at least SUFFERS_FLUSHED. SQNR alone does not show
this, since it weights elements by their energy, which is mostly that of the outliers.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np

from fp8lab_analysis.judge import stats
from fp8lab_analysis.judge.compare import GroupSummary
from fp8lab_analysis.judge.operands import slot_mask, tensor_summaries
from fp8lab_analysis.read.runs import Floats, Run
from fp8lab_analysis.read.study import Group

OUTLIER_RATIO = 32.0
SUFFERS_DB = 3.0
SUFFERS_TIMES = 4.0
SUFFERS_FLUSHED = 0.01
SLOTS_OF_INPUT = ("fprop.x", "wgrad.x")


@dataclass(frozen=True)
class Outlier:
    """The input of a layer with a channel far above the others."""

    group: Group  # the group in which it was measured
    layer: str
    ratio: float
    other_ratio: float  # median of the layers without outliers
    kurtosis: float
    channel: int | None  # most frequent largest channel; None if not logged
    share: float  # fraction of the logged steps at which this channel is the largest


@dataclass(frozen=True)
class Damage:
    """The error of one recipe in the input of one layer, and in layers without outliers
    (medians)."""

    label: str
    slot: str
    sqnr_db: float
    other_sqnr_db: float
    flushed: float  # fraction
    other_flushed: float

    @property
    def suffers(self) -> bool:
        """True if the layer's error is far larger than the others'."""
        if self.sqnr_db < self.other_sqnr_db - SUFFERS_DB:
            return True
        most = max(SUFFERS_FLUSHED, SUFFERS_TIMES * self.other_flushed)
        return self.flushed >= most


def _medians(runs: Sequence[Run], statistic: str) -> dict[str, float]:
    """Returns by layer the median of a statistic of fprop.x over logged steps and seeds."""
    found: dict[str, list[Floats]] = {}
    for run in runs:
        values = run.tensors.get(statistic)
        for index in np.flatnonzero(slot_mask(run, "fprop.x")):
            found.setdefault(run.tensors.layer[index], []).append(values[:, index])
    result = {}
    for layer, columns in found.items():
        result[layer] = stats.finite_median(np.concatenate(columns))
    return result


def _largest_channel(runs: Sequence[Run], layer: str) -> tuple[int | None, float]:
    """Returns the most frequent largest channel and its fraction of the logged steps."""
    seen: list[int] = []
    for run in runs:
        if "top_channel" not in run.tensors.statistics:
            continue
        for index in np.flatnonzero(slot_mask(run, "fprop.x")):
            if run.tensors.layer[index] == layer:
                first = run.tensors.get("top_channel")[:, index, 0]
                seen += [int(channel) for channel in first[first >= 0]]
    if not seen:
        return None, math.nan
    channels, counts = np.unique(seen, return_counts=True)
    return int(channels[counts.argmax()]), float(counts.max() / len(seen))


def find_outliers(summaries: Sequence[GroupSummary]) -> list[Outlier]:
    """Returns the inputs with outlier channels, largest ratio first."""
    for summary in sorted(summaries, key=lambda s: not s.group.is_baseline):
        runs = summary.group.runs
        ratios = _medians(runs, "channel_outlier_ratio")
        if not any(map(math.isfinite, ratios.values())):
            continue
        kurtosis = _medians(runs, "kurtosis")
        others = stats.finite_median([r for r in ratios.values() if r < OUTLIER_RATIO])
        found = []
        for layer, ratio in ratios.items():
            if not ratio >= OUTLIER_RATIO:
                continue
            channel, share = _largest_channel(runs, layer)
            found.append(
                Outlier(summary.group, layer, ratio, others, kurtosis[layer], channel, share)
            )
        return sorted(found, key=lambda outlier: -outlier.ratio)
    return []


def damages(summary: GroupSummary, layer: str, outlying: Container[str]) -> list[Damage]:
    """Returns a recipe's errors in the quantized inputs of one layer, with those in layers that are
    not `outlying`; empty if no input is quantized."""
    tensors = tensor_summaries(summary.group)
    found = []
    for slot in SLOTS_OF_INPUT:
        there = [t for t in tensors if (t.layer, t.slot) == (layer, slot)]
        rest = [t for t in tensors if t.slot == slot and t.layer not in outlying]
        if there:
            found.append(
                Damage(
                    summary.group.label,
                    slot,
                    there[0].sqnr_db,
                    stats.finite_median([t.sqnr_db for t in rest]),
                    there[0].underflow,
                    stats.finite_median([t.underflow for t in rest]),
                )
            )
    return found


def worst_damage(summary: GroupSummary, layer: str, outlying: Container[str]) -> Damage | None:
    """Returns the entry of `damages` in which the recipe suffers, else that of fprop.x."""
    found = damages(summary, layer, outlying)
    return next((damage for damage in found if damage.suffers), found[0] if found else None)


def sqnr_there(group: Group, layer: str) -> float:
    """Mean SQNR of fprop.x of a layer, quantized or a plain cast; NaN if not logged."""
    seen = [
        stats.finite_mean(run.tensors.get("sqnr_db")[:, index])
        for run in group.runs
        for index in np.flatnonzero(slot_mask(run, "fprop.x"))
        if run.tensors.layer[index] == layer
    ]
    return stats.finite_mean(np.array(seen)) if seen else math.nan
