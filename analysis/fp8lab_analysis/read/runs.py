"""The contents of a run file that a report uses, as dataclasses."""

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


def is_whole_layer(layer: str) -> bool:
    """Returns True for "layers.3", whose slots are activations that the layer saves for its
    backward pass ("mlp.inner"); the others are operands of a linear layer."""
    return layer.startswith("layers.") and layer.count(".") == 1


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
# Statistics of the quantizer; the others depend only on the tensor.
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
    weight_hash: npt.NDArray[np.uint64]  # 0: not logged
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
    exact_match: Floats  # fraction, NaN if not measured
    exact_match_count: Ints  # number of problems

    def __len__(self) -> int:
        return int(self.step.size)


@dataclass(frozen=True)
class Score:
    """One row of /scores: a named number of an evaluation or of an update."""

    step: int
    stage: int
    name: str
    value: float
    count: int  # number of tokens, problems or questions


@dataclass(frozen=True)
class DocumentLosses:
    """All rows of /documents of one evaluation, ordered by source and document."""

    step: int
    stage: int
    in_bf16: bool  # True: evaluated in bf16 instead of the run's numerics
    text: int  # hash of the held-out text
    source: Ints
    document: Ints  # index in its source
    tokens: Ints  # number of scored tokens
    nats: Floats  # sums of the tokens' losses


@dataclass(frozen=True)
class TensorLog:
    """Rows of /tensors: statistics of N logged operands at L steps. Values that a delayed scale
    made without an amax history say nothing about the recipe and are NaN. Errors and scales of
    steps under another recipe than that of `format` are NaN too."""

    layer: list[str]
    slot: list[str]
    format: list[str]
    scale_bits_per_element: Floats  # (N,)
    step: Ints  # (L,)
    statistics: dict[str, Floats]  # (L, N), or (L, N, 8 | 64) for vector statistics
    without_history: Flags  # (L, N): made without an amax history; NaN in every statistic

    def __len__(self) -> int:
        return len(self.layer)

    def get(self, name: str) -> Floats:
        """Returns a statistic (L, N); all NaN if the file lacks it."""
        if name in self.statistics:
            return self.statistics[name]
        return np.full((self.step.size, len(self.layer)), np.nan)


@dataclass(frozen=True)
class DetectorScore:
    """One row of /warnings: the result of a detector of imminent divergence."""

    step: int
    detector: str  # src/train/watch/early_warning.hpp
    score: float  # value / threshold of the detector; a score of at least 1 is a warning
    value: float
    place: str  # layer and slot; empty: the whole step
    channel: int  # -1: none
    count: int  # number of operands, channels or steps that warn

    @property
    def warns(self) -> bool:
        """True if the value reaches the detector's threshold."""
        return self.score >= 1.0


@dataclass(frozen=True)
class Event:
    """One row of /events."""

    step: int
    kind: str
    message: str


def stage_starts(meta: Mapping[str, str], stages: int, metrics: Metrics) -> Ints:
    """Returns the number of steps before each stage, from extra.stage_steps. In files without it,
    from the rows of /metrics: the last step of a stage is always logged, so a stage starts after
    the last row of the stages before it. A stage that has not begun starts beyond every step."""
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
    documents: list[DocumentLosses] = field(default_factory=list)  # empty for older files
    events: list[Event] = field(default_factory=list)
    warnings: list[DetectorScore] = field(default_factory=list)
    complete: bool = False
    final_weight_hash: int = 0
    identity: dict[str, str] = field(default_factory=dict)  # hashes of what determines the run
    notes: list[str] = field(default_factory=list)  # notes on the file for the reader

    @property
    def without_targets(self) -> Flags:
        """Mask of the metric rows of steps without trained tokens. They have no loss, unlike rows
        whose loss is not finite."""
        steps = [event.step for event in self.events if event.kind == "no_targets"]
        return np.isin(self.metrics.step, steps) & ~np.isfinite(self.metrics.loss)

    @property
    def left_out(self) -> Flags:
        """Mask of the metric rows of steps that a fallback skipped. Their non-finite loss or
        gradient norm does not count, since weights and moments were not updated."""
        steps = [event.step for event in self.events if event.kind == "fallback"]
        broken = ~np.isfinite(self.metrics.loss) | self.broken_norms
        return np.asarray(np.isin(self.metrics.step, steps) & broken)

    @property
    def without_norm(self) -> Flags:
        """Mask of the metric rows whose gradient norm was not measured: steps without trained
        tokens, and NaN in trainings of other programs, whose files list no identity."""
        if self.identity:
            return self.without_targets
        return np.asarray(self.without_targets | np.isnan(self.metrics.grad_norm))

    @property
    def broken_norms(self) -> Flags:
        """Mask of the metric rows whose gradient norm was measured and is not finite."""
        return np.asarray(~np.isfinite(self.metrics.grad_norm) & ~self.without_norm)

    @property
    def without_loss(self) -> Flags:
        """Mask of the metric rows that contribute no loss."""
        return np.asarray(self.without_targets | self.left_out)

    def stage_rows(self, stage: str) -> Flags:
        """Mask of the metric rows of one stage that have a loss, finite or not."""
        if stage not in self.stage_names:
            return np.zeros(len(self.metrics), dtype=bool)
        in_stage = self.metrics.stage == self.stage_names.index(stage)
        return np.asarray(in_stage & ~self.without_loss)

    @property
    def stage_starts(self) -> Ints:
        """Number of steps before each stage."""
        return stage_starts(self.meta, len(self.stage_names), self.metrics)

    def stage_of_step(self, step: float) -> str:
        """Returns the stage of optimizer step `step`; empty before the first stage."""
        stage = int(np.searchsorted(self.stage_starts, step, side="left")) - 1
        return self.stage_name(stage) if stage >= 0 else ""

    def first_steps(self) -> list[tuple[int, str]]:
        """Returns the first step and the name of every stage that the run reached."""
        reached = np.unique(self.metrics.stage)
        return [
            (int(self.stage_starts[stage]) + 1, self.stage_name(int(stage))) for stage in reached
        ]

    def stage_name(self, index: int) -> str:
        """Returns the name of stage `index`; a generated name if the file lists too few."""
        if 0 <= index < len(self.stage_names):
            return self.stage_names[index]
        return f"stage {index}"
