"""What a report uses of a run file, as dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

SLOTS = ("fprop.x", "fprop.w", "dgrad.dy", "dgrad.w", "wgrad.dy", "wgrad.x")
STATISTICS = (
    "amax",
    "rms",
    "mse",
    "sqnr_db",
    "cosine",
    "bias",
    "underflow_fraction",
    "saturation_fraction",
    "nonfinite_count",
    "kurtosis",
    "crest_factor",
    "channel_outlier_ratio",
    "scale_min",
    "scale_max",
    "scale_log2_spread",
    "zero_tile_fraction",
)
# Those of a quantizer; the others are of the tensor alone.
QUANTIZER_STATISTICS = (
    "mse",
    "sqnr_db",
    "cosine",
    "bias",
    "underflow_fraction",
    "saturation_fraction",
    "scale_min",
    "scale_max",
    "scale_log2_spread",
    "zero_tile_fraction",
)
VECTOR_STATISTICS = ("top_channel", "top_channel_amax", "exponent_histogram")


@dataclass(frozen=True)
class Metrics:
    """Rows of /metrics; `step` counts optimizer steps of the whole run from 1."""

    step: Ints
    stage: Ints
    tokens: Ints
    loss: Floats  # nats per unmasked token
    grad_norm: Floats  # before clipping
    learning_rate: Floats
    seconds: Floats
    weight_hash: npt.NDArray[np.uint64]  # 0: not taken
    # What the objectives of the stages log, by name; NaN in stages of another objective.
    objective: dict[str, Floats] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.step.size)


@dataclass(frozen=True)
class Evaluations:
    """Rows of /eval: held-out loss and exact match of greedy answers."""

    step: Ints
    stage: Ints
    loss: Floats
    exact_match: Floats  # fraction, NaN when not measured
    exact_match_count: Ints  # problems asked

    def __len__(self) -> int:
        return int(self.step.size)


@dataclass(frozen=True)
class Score:
    """One row of /scores: a number of an evaluation, or of an update, under a name."""

    step: int
    stage: int
    name: str
    value: float
    count: int  # tokens, problems or questions


@dataclass(frozen=True)
class DocumentLosses:
    """Rows of /documents of one evaluation, whole, ordered by source and document."""

    step: int
    stage: int
    in_bf16: bool  # of the weights in bf16, whatever the numerics of the run
    text: int  # hash of the held-out text
    source: Ints
    document: Ints  # of its source
    tokens: Ints  # scored
    nats: Floats  # sums of their losses


@dataclass(frozen=True)
class TensorLog:
    """Rows of /tensors: statistics of N logged operands at L steps. What a delayed scale made
    before it knew any amax says nothing about the recipe: such entries are NaN. So are errors and
    scales of steps in another recipe than the one whose formats these are."""

    layer: list[str]
    slot: list[str]
    format: list[str]
    scale_bits_per_element: Floats  # (N,)
    step: Ints  # (L,)
    statistics: dict[str, Floats]  # (L, N), or (L, N, 8 | 64) for vector statistics
    without_history: Flags  # (L, N): a delayed scale that knew no amax; NaN in every statistic

    def __len__(self) -> int:
        return len(self.layer)

    def get(self, name: str) -> Floats:
        """Statistic (L, N); all NaN when the file lacks it."""
        if name in self.statistics:
            return self.statistics[name]
        return np.full((self.step.size, len(self.layer)), np.nan)


@dataclass(frozen=True)
class DetectorScore:
    """One row of /warnings: what a detector of training that is about to break found."""

    step: int
    detector: str  # src/train/early_warning.hpp
    score: float  # of the value by the detector's threshold: from 1 on it warns
    value: float
    place: str  # layer and slot; empty: the whole step
    channel: int  # -1: none
    count: int  # operands, channels or steps that warn

    @property
    def warns(self) -> bool:
        """Whether the value has reached the detector's threshold."""
        return self.score >= 1.0


@dataclass(frozen=True)
class Event:
    """One row of /events."""

    step: int
    kind: str
    message: str


def stage_starts(meta: Mapping[str, str], stages: int, metrics: Metrics) -> Ints:
    """Steps that were taken before each stage: as extra.stage_steps has it, else, in files without
    it, by the rows of /metrics. Steps may be logged sparsely, but the last one of a stage always
    is: a stage starts after the last row of those before. One that has not begun starts never."""
    counts = [int(count) for count in filter(None, meta.get("extra.stage_steps", "").split(","))]
    if len(counts) == stages:
        return np.cumsum([0, *counts[:-1]], dtype=np.int64)
    never = np.iinfo(np.int64).max
    rows = [metrics.step[metrics.stage < stage] for stage in range(stages)]
    begun = [bool((metrics.stage >= stage).any()) for stage in range(stages)]
    starts = [int(r[-1]) if r.size else 0 for r in rows]
    return np.array([s if known else never for s, known in zip(starts, begun)], dtype=np.int64)


@dataclass(frozen=True)
class Run:
    """Everything a report uses of one run file."""

    path: Path
    name: str  # arm: extra.arm, else the folder of run.h5, else the file name
    recipe: str
    seed: int
    meta: dict[str, str]
    stage_names: list[str]
    metrics: Metrics
    evaluations: Evaluations
    tensors: TensorLog
    scores: list[Score] = field(default_factory=list)
    documents: list[DocumentLosses] = field(default_factory=list)  # none in files of before
    events: list[Event] = field(default_factory=list)
    warnings: list[DetectorScore] = field(default_factory=list)
    complete: bool = False
    final_weight_hash: int = 0
    identity: dict[str, str] = field(default_factory=dict)  # what determines the run: its hash
    notes: list[str] = field(default_factory=list)  # what a reader should know of the file

    @property
    def without_targets(self) -> Flags:
        """Mask of the metric rows whose step had no token to learn: they have no loss, which is not
        the same as a loss that stopped being finite."""
        steps = [event.step for event in self.events if event.kind == "no_targets"]
        return np.isin(self.metrics.step, steps) & ~np.isfinite(self.metrics.loss)

    @property
    def left_out(self) -> Flags:
        """Mask of the metric rows whose step a fallback left out: what was not finite is no loss of
        the run, for weights and moments stayed as they were."""
        steps = [event.step for event in self.events if event.kind == "fallback"]
        return np.isin(self.metrics.step, steps) & ~np.isfinite(self.metrics.loss)

    @property
    def without_loss(self) -> Flags:
        """Mask of the metric rows whose step is none of the run's losses."""
        return np.asarray(self.without_targets | self.left_out)

    def stage_rows(self, stage: str) -> Flags:
        """Mask of the metric rows of one stage that have a loss, finite or not."""
        if stage not in self.stage_names:
            return np.zeros(len(self.metrics), dtype=bool)
        in_stage = self.metrics.stage == self.stage_names.index(stage)
        return np.asarray(in_stage & ~self.without_loss)

    @property
    def stage_starts(self) -> Ints:
        """Steps that were taken before each stage."""
        return stage_starts(self.meta, len(self.stage_names), self.metrics)

    def stage_of_step(self, step: float) -> str:
        """Stage in which optimizer step `step` was taken; empty before the first."""
        stage = int(np.searchsorted(self.stage_starts, step, side="left")) - 1
        return self.stage_name(stage) if stage >= 0 else ""

    def first_steps(self) -> list[tuple[int, str]]:
        """The first step of every stage that the run reached, with its name."""
        reached = np.unique(self.metrics.stage)
        return [
            (int(self.stage_starts[stage]) + 1, self.stage_name(int(stage))) for stage in reached
        ]

    def stage_name(self, index: int) -> str:
        """Name of stage `index`, or a made-up one when the file lists too few."""
        if 0 <= index < len(self.stage_names):
            return self.stage_names[index]
        return f"stage {index}"
