"""Loads run files (schemas fp8lab-run-1 and -2, src/io/README.md) into dataclasses.

A file may be complete, still growing (SWMR) or left behind by a killed writer: every group is cut
at the first row that was not wholly written. A plain `h5py.File(path, "r")` refuses the latter two;
`h5py.File(path, "r", libver="latest", swmr=True)` opens them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from fp8lab_analysis.hdf5 import (
    Damage,
    InputError,
    numbers,
    read_columns,
    read_dataset,
    reading,
    text_list,
    to_text,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

RUN_SCHEMA = "fp8lab-run-2"
FIRST_SCHEMA = "fp8lab-run-1"  # no identity, no checksums, no marks of missing amax history
RUN_SCHEMAS = (FIRST_SCHEMA, RUN_SCHEMA)
SLOTS = ("fprop.x", "fprop.w", "dgrad.dy", "dgrad.w", "wgrad.dy", "wgrad.x")
MADE_UP_STAGES = 64  # stages that a file without names may have
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
    """One row of /scores: a number of an evaluation under a name."""

    step: int
    stage: int
    name: str
    value: float
    count: int  # tokens, problems or questions


@dataclass(frozen=True)
class TensorLog:
    """Rows of /tensors: statistics of N logged operands at L steps. What a delayed scale made
    before it knew any amax says nothing about the recipe: such entries are NaN."""

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
class Event:
    """One row of /events."""

    step: int
    kind: str
    message: str


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
    events: list[Event] = field(default_factory=list)
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

    def stage_rows(self, stage: str) -> Flags:
        """Mask of the metric rows of one stage that have a loss, finite or not."""
        if stage not in self.stage_names:
            return np.zeros(len(self.metrics), dtype=bool)
        in_stage = self.metrics.stage == self.stage_names.index(stage)
        return np.asarray(in_stage & ~self.without_targets)

    def stage_of_step(self, step: float) -> str:
        """Stage in which optimizer step `step` was taken; empty before the first."""
        row = int(np.searchsorted(self.metrics.step, step, side="right")) - 1
        return self.stage_name(int(self.metrics.stage[row])) if row >= 0 else ""

    def stage_name(self, index: int) -> str:
        """Name of stage `index`, or a made-up one when the file lists too few."""
        if 0 <= index < len(self.stage_names):
            return self.stage_names[index]
        return f"stage {index}"


def meta_checksum(attributes: Mapping[str, Any]) -> str:
    """SHA-256 over the attributes of /meta as src/io/README.md defines it: netstrings, ordered by
    name, of every attribute but `checksum`."""

    def netstring(text: str) -> bytes:
        encoded = text.encode()
        return str(len(encoded)).encode() + b":" + encoded

    total = hashlib.sha256()
    for name in sorted(attributes, key=str.encode):
        if name == "checksum":
            continue
        value = attributes[name]
        if isinstance(value, (np.ndarray, h5py.Empty)):
            entries = [] if isinstance(value, h5py.Empty) else text_list(value)
            text = b"".join(netstring(entry) for entry in entries).decode()
        else:
            text = to_text(value)
        total.update(netstring(name) + netstring(text))
    return total.hexdigest()


@dataclass(frozen=True)
class _Meta:
    """/meta, read and checked."""

    schema: str
    texts: dict[str, str]
    stage_names: list[str]
    identity: dict[str, str]


LISTS = ("stage_names", "identity_names", "identity_hashes")


def _read_meta(file: h5py.File, path: Path) -> _Meta:
    expected = f"expected {' or '.join(RUN_SCHEMAS)}"
    if "meta" not in file:
        raise InputError(f"{path}: no group /meta: not a run file of fp8lab ({expected})")
    attributes = dict(file["meta"].attrs.items())
    schema = to_text(attributes.get("schema", ""))
    if schema not in RUN_SCHEMAS:
        raise InputError(
            f"{path}: /meta schema is '{schema}' ({expected}); a file of another version of fp8lab "
            "is reported by that version, a study by its study.h5 or folder"
        )
    if schema != FIRST_SCHEMA and to_text(attributes.get("checksum", "")) != meta_checksum(
        attributes
    ):
        raise Damage("the attributes of /meta do not have their checksum")
    for key in ("recipe_name", "seed"):
        if key not in attributes:
            raise Damage(f"/meta has no attribute '{key}'")
    lists = {key: text_list(attributes[key]) if key in attributes else [] for key in LISTS}
    if len(lists["identity_names"]) != len(lists["identity_hashes"]):
        raise Damage("identity_names and identity_hashes of /meta differ in length")
    texts = {key: to_text(value) for key, value in attributes.items() if key not in LISTS}
    identity = dict(zip(lists["identity_names"], lists["identity_hashes"]))
    return _Meta(schema, texts, lists["stage_names"], identity)


def _written_rows(columns: Mapping[str, npt.NDArray[Any]], names: Sequence[str]) -> int:
    """Rows that every named column holds, up to the first whose step is still the fill value."""
    present = [columns[name] for name in names if name in columns]
    if "step" not in columns or not present:
        return 0
    rows = min(int(column.shape[0]) for column in [columns["step"], *present])
    unwritten = np.flatnonzero(numbers(columns["step"], "step")[:rows] < 0)
    return int(unwritten[0]) if unwritten.size else rows


def _column(
    columns: Mapping[str, npt.NDArray[Any]], name: str, rows: int, fill: float
) -> npt.NDArray[Any]:
    """The first `rows` rows of a column of numbers, or `fill` where the file lacks it."""
    if name not in columns:
        return np.full(rows, fill)
    if columns[name].ndim != 1:
        raise Damage(f"{name} has {columns[name].ndim} dimensions, not one")
    return numbers(columns[name], name)[:rows]


def _texts(columns: Mapping[str, npt.NDArray[Any]], name: str, rows: int) -> list[str]:
    if columns[name].dtype.kind not in "SO":
        raise Damage(f"{name} holds {columns[name].dtype}, not text")
    return text_list(columns[name][:rows]) if rows else []


def _ascending(step: Ints, group: str, strictly: bool) -> Ints:
    """The steps, if they ascend as a run writes them. Throws Damage."""
    falls = np.flatnonzero(np.diff(step) < (1 if strictly else 0))
    if falls.size:
        row = int(falls[0])
        raise Damage(f"/{group}/step goes from {step[row]} to {step[row + 1]}")
    return step


def _steps(columns: Mapping[str, Any], rows: int, group: str, strictly: bool) -> Ints:
    return _ascending(_column(columns, "step", rows, 0).astype(np.int64), group, strictly)


def _stages(columns: Mapping[str, Any], rows: int, group: str, stages: int) -> Ints:
    """The column `stage`. Throws Damage for an index that no stage has."""
    stage = _column(columns, "stage", rows, 0).astype(np.int64)
    outside = stage[(stage < 0) | (stage >= (stages or MADE_UP_STAGES))]
    if outside.size:
        raise Damage(f"/{group}/stage holds {outside[0]}, but the run has {stages} stages")
    return stage


def _read_metrics(file: h5py.File, stages: int) -> Metrics:
    columns = read_columns(file, "metrics")
    hashes = read_columns(file, "hashes").get("weights", np.zeros(0, dtype=np.uint64))
    names = ("stage", "tokens", "loss", "grad_norm", "learning_rate", "seconds")
    rows = _written_rows(columns, names)
    weights = np.zeros(rows, dtype=np.uint64)
    weights[: min(rows, hashes.size)] = numbers(hashes, "/hashes/weights")[:rows]
    return Metrics(
        step=_steps(columns, rows, "metrics", True),
        stage=_stages(columns, rows, "metrics", stages),
        tokens=_column(columns, "tokens", rows, 0).astype(np.int64),
        loss=_column(columns, "loss", rows, np.nan).astype(np.float64),
        grad_norm=_column(columns, "grad_norm", rows, np.nan).astype(np.float64),
        learning_rate=_column(columns, "learning_rate", rows, np.nan).astype(np.float64),
        seconds=_column(columns, "seconds", rows, np.nan).astype(np.float64),
        weight_hash=weights,
    )


def _read_evaluations(file: h5py.File, stages: int) -> Evaluations:
    columns = read_columns(file, "eval")
    rows = _written_rows(columns, ("stage", "loss", "exact_match", "exact_match_count"))
    match = _column(columns, "exact_match", rows, -1).astype(np.float64)
    if bool((match > 1.0).any()):
        raise Damage(f"/eval/exact_match holds {match[match > 1.0][0]}, not a fraction")
    return Evaluations(
        step=_steps(columns, rows, "eval", False),
        stage=_stages(columns, rows, "eval", stages),
        loss=_column(columns, "loss", rows, np.nan).astype(np.float64),
        exact_match=np.where(match < 0, np.nan, match),
        exact_match_count=_column(columns, "exact_match_count", rows, 0).astype(np.int64),
    )


def _operand_names(columns: Mapping[str, npt.NDArray[Any]]) -> tuple[list[str], ...]:
    """layer, slot and format of every logged operand."""
    if "layer" not in columns or not columns["layer"].size:
        return [], [], []
    keys = ("layer", "slot", "format")
    if any(key not in columns for key in keys):
        raise Damage("/tensors names layers, but not their slots and formats")
    names = tuple(_texts(columns, key, int(columns[key].size)) for key in keys)
    if len({len(found) for found in names}) > 1:
        raise Damage("layer, slot and format of /tensors differ in length")
    unknown = [slot for slot in names[1] if slot not in SLOTS]
    if unknown:
        raise Damage(f"/tensors/slot names {ascii(unknown[0])}, which no GEMM has")
    return names


def _inferred_history(metrics: Metrics, formats: Sequence[str], step: Ints) -> Flags:
    """Files of the first schema do not mark what a delayed scale made before it knew an amax. What
    wrote them forgot every history between stages: it is the first step of each. Steps may be
    logged sparsely, but the last one of a stage always is."""
    changes = np.flatnonzero(np.diff(metrics.stage))
    first = np.concatenate([[1], metrics.step[:1], metrics.step[changes] + 1])
    delayed = np.array(["/delayed" in label for label in formats], dtype=bool)
    return np.asarray(np.isin(step, first)[:, None] & delayed[None, :])


def _read_tensors(file: h5py.File, metrics: Metrics, schema: str) -> TensorLog:
    columns = read_columns(file, "tensors")
    found = {name: columns[name] for name in STATISTICS + VECTOR_STATISTICS if name in columns}
    marks = ("without_history",) if "without_history" in columns else ()
    rows = _written_rows(columns, (*found, *marks) if found else ())
    layer, slot, formats = _operand_names(columns)
    count = len(layer)
    for name in (*found, *marks):
        shape = columns[name].shape
        if len(shape) != (3 if name in VECTOR_STATISTICS else 2) or shape[1] != count:
            raise Damage(f"/tensors/{name} has shape {shape}, but there are {count} operands")
    bits = columns.get("scale_bits_per_element", np.full(count, np.nan))
    if bits.size != count:
        raise Damage(f"/tensors/scale_bits_per_element has {bits.size} entries, not {count}")
    step = _steps(columns, rows, "tensors", True)
    if marks:
        without = numbers(columns["without_history"], "without_history")[:rows] != 0
    elif schema == FIRST_SCHEMA:
        without = _inferred_history(metrics, formats, step)
    elif rows and count:
        raise Damage("/tensors has no without_history")
    else:
        without = np.zeros((rows, count), dtype=bool)
    statistics = {
        name: numbers(values, f"/tensors/{name}")[:rows].astype(np.float64)
        for name, values in found.items()
    }
    for values in statistics.values():
        values[without] = np.nan
    return TensorLog(
        layer=layer,
        slot=slot,
        format=formats,
        scale_bits_per_element=numbers(bits, "scale_bits_per_element").astype(np.float64),
        step=step,
        statistics=statistics,
        without_history=without,
    )


def _read_scores(file: h5py.File, stages: int) -> list[Score]:
    columns = read_columns(file, "scores")
    names = ("stage", "name", "value", "count")
    rows = _written_rows(columns, names)
    if rows == 0 or any(name not in columns for name in names):
        return []
    table = zip(
        _steps(columns, rows, "scores", False),
        _stages(columns, rows, "scores", stages),
        _texts(columns, "name", rows),
        _column(columns, "value", rows, 0),
        _column(columns, "count", rows, 0),
    )
    return [
        Score(int(step), int(stage), name, float(value), int(count))
        for step, stage, name, value, count in table
    ]


def _read_events(file: h5py.File) -> list[Event]:
    columns = read_columns(file, "events")
    rows = _written_rows(columns, ("kind", "message"))
    if rows == 0 or "kind" not in columns or "message" not in columns:
        return []
    table = zip(
        _column(columns, "step", rows, 0),
        _texts(columns, "kind", rows),
        _texts(columns, "message", rows),
    )
    return [Event(int(step), kind, message) for step, kind, message in table]


def arm_name(path: Path, meta: Mapping[str, str]) -> str:
    """Name of the arm a run file belongs to."""
    if meta.get("extra.arm"):
        return meta["extra.arm"]
    if path.name == "run.h5":
        return path.resolve().parent.name
    return meta.get("run_name") or path.stem


def _read_completion(file: h5py.File) -> list[int]:
    """The hash of the final weights of a complete run, else nothing."""
    done = read_dataset(file["complete"]) if "complete" in file else np.zeros(0, dtype=np.uint64)
    if done.ndim != 1 or done.size > 1 or done.dtype.kind not in "iu":
        raise Damage(f"/complete holds {done.shape} of {done.dtype}, not one hash or none")
    return [int(value) for value in done]


def _lost_rows(file: h5py.File, metrics: Metrics, complete: bool) -> list[str]:
    """A run that is over and whose rows are not all there."""
    columns = file["metrics"].values() if "metrics" in file else ()
    there = max((int(item.shape[0]) for item in columns), default=0)
    if not complete or there == len(metrics):
        return []
    return [f"marked as complete, but only {len(metrics)} of {there} rows of /metrics are whole"]


def load_run(path: Path) -> Run:
    """Reads one run file, also of a run that goes on or was killed. Throws InputError when it is
    none or is damaged. (Not with a plain `h5py.File(path, "r")`, which refuses files that a run has
    open or left behind: `h5py.File(path, "r", libver="latest", swmr=True)`.)"""
    with reading(path) as file:
        meta = _read_meta(file, path)
        done = _read_completion(file)  # first: a run that is seen complete is seen whole
        metrics = _read_metrics(file, len(meta.stage_names))
        stages = meta.stage_names or [
            f"stage {i}" for i in range(int(metrics.stage.max(initial=-1)) + 1)
        ]
        return Run(
            path=path,
            name=arm_name(path, meta.texts),
            recipe=meta.texts["recipe_name"],
            seed=int(meta.texts["seed"]),
            meta=meta.texts,
            stage_names=stages,
            metrics=metrics,
            evaluations=_read_evaluations(file, len(stages)),
            tensors=_read_tensors(file, metrics, meta.schema),
            scores=_read_scores(file, len(stages)),
            events=_read_events(file),
            complete=bool(done),
            final_weight_hash=done[0] if done else 0,
            identity=meta.identity,
            notes=_lost_rows(file, metrics, bool(done)),
        )
