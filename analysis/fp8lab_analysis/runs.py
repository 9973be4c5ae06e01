"""Loads run files (schema fp8lab-run-1, described in src/io/README.md) into dataclasses.

A file may be complete, still growing (SWMR) or left behind by a killed writer: every group is cut
at the first row that was not wholly written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

RUN_SCHEMA = "fp8lab-run-1"
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


class InputError(Exception):
    """Bad input: one line that says what is wrong, where, and what would be accepted."""


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
    """Rows of /tensors: statistics of N logged operands at L steps."""

    layer: list[str]
    slot: list[str]
    format: list[str]
    scale_bits_per_element: Floats  # (N,)
    step: Ints  # (L,)
    statistics: dict[str, Floats]  # (L, N), or (L, N, 8 | 64) for vector statistics

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

    def stage_rows(self, stage: str) -> npt.NDArray[np.bool_]:
        """Mask of the metric rows of one stage."""
        if stage not in self.stage_names:
            return np.zeros(len(self.metrics), dtype=bool)
        return np.asarray(self.metrics.stage == self.stage_names.index(stage))

    def stage_of_step(self, step: float) -> str:
        """Stage in which optimizer step `step` was taken; empty before the first."""
        row = int(np.searchsorted(self.metrics.step, step, side="right")) - 1
        return self.stage_name(int(self.metrics.stage[row])) if row >= 0 else ""

    def stage_name(self, index: int) -> str:
        """Name of stage `index`, or a made-up one when the file lists too few."""
        if 0 <= index < len(self.stage_names):
            return self.stage_names[index]
        return f"stage {index}"


def open_hdf5(path: Path) -> h5py.File:
    """Opens `path` for reading, as an SWMR reader where a writer has it open or died with it.
    Throws InputError. The plain way comes first because an SWMR reader waits minutes for a damaged
    block to become whole."""
    if not path.exists():
        raise InputError(f"{path}: no such file (expected an fp8lab run file, *.h5)")
    if path.is_dir():
        raise InputError(f"{path}: is a directory (expected an fp8lab run file, *.h5)")
    try:
        return h5py.File(path, "r", libver="latest")
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
    if "open for write" in reason or "consistency flags" in reason or "lock" in reason:
        try:
            return h5py.File(path, "r", libver="latest", swmr=True)
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
    raise InputError(f"{path}: not a readable HDF5 file ({reason})")


def to_text(value: Any) -> str:
    """Attribute or element of a string dataset as str."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, np.ndarray):
        return ", ".join(to_text(item) for item in value.tolist())
    return str(value)


def text_list(values: Any) -> list[str]:
    """A 1-D string attribute or dataset as a list of str."""
    return [to_text(item) for item in np.atleast_1d(np.asarray(values)).tolist()]


def _read_meta(file: h5py.File, path: Path) -> tuple[dict[str, str], list[str]]:
    if "meta" not in file:
        raise InputError(f"{path}: no group /meta (expected schema {RUN_SCHEMA})")
    attributes = file["meta"].attrs
    schema = to_text(attributes.get("schema", ""))
    if schema != RUN_SCHEMA:
        raise InputError(f"{path}: /meta schema is '{schema}' (expected {RUN_SCHEMA})")
    for key in ("recipe_name", "seed"):
        if key not in attributes:
            raise InputError(f"{path}: /meta has no attribute '{key}' (schema {RUN_SCHEMA})")
    meta = {key: to_text(value) for key, value in attributes.items() if key != "stage_names"}
    return meta, text_list(attributes.get("stage_names", []))


def _group_columns(file: h5py.File, group: str) -> dict[str, npt.NDArray[Any]]:
    """Every dataset of a group, whole; empty when the file lacks the group."""
    if group not in file:
        return {}
    datasets = {name: item for name, item in file[group].items() if isinstance(item, h5py.Dataset)}
    return {name: item[...] for name, item in datasets.items()}


def _written_rows(columns: Mapping[str, npt.NDArray[Any]], names: Sequence[str]) -> int:
    """Rows that every named column holds, up to the first whose step is still the fill value."""
    present = [columns[name] for name in names if name in columns]
    if "step" not in columns or not present:
        return 0
    rows = min(int(column.shape[0]) for column in [columns["step"], *present])
    unwritten = np.flatnonzero(columns["step"][:rows] < 0)
    return int(unwritten[0]) if unwritten.size else rows


def _column(
    columns: Mapping[str, npt.NDArray[Any]], name: str, rows: int, fill: float
) -> npt.NDArray[Any]:
    if name in columns:
        return columns[name][:rows]
    return np.full(rows, fill)


def _read_metrics(file: h5py.File) -> Metrics:
    columns = _group_columns(file, "metrics")
    hashes = _group_columns(file, "hashes").get("weights", np.zeros(0, dtype=np.uint64))
    names = ("stage", "tokens", "loss", "grad_norm", "learning_rate", "seconds")
    rows = _written_rows(columns, names)
    weights = np.zeros(rows, dtype=np.uint64)
    weights[: min(rows, hashes.size)] = hashes[:rows]
    return Metrics(
        step=_column(columns, "step", rows, 0).astype(np.int64),
        stage=_column(columns, "stage", rows, 0).astype(np.int64),
        tokens=_column(columns, "tokens", rows, 0).astype(np.int64),
        loss=_column(columns, "loss", rows, np.nan).astype(np.float64),
        grad_norm=_column(columns, "grad_norm", rows, np.nan).astype(np.float64),
        learning_rate=_column(columns, "learning_rate", rows, np.nan).astype(np.float64),
        seconds=_column(columns, "seconds", rows, np.nan).astype(np.float64),
        weight_hash=weights,
    )


def _read_evaluations(file: h5py.File) -> Evaluations:
    columns = _group_columns(file, "eval")
    rows = _written_rows(columns, ("stage", "loss", "exact_match", "exact_match_count"))
    match = _column(columns, "exact_match", rows, -1).astype(np.float64)
    return Evaluations(
        step=_column(columns, "step", rows, 0).astype(np.int64),
        stage=_column(columns, "stage", rows, 0).astype(np.int64),
        loss=_column(columns, "loss", rows, np.nan).astype(np.float64),
        exact_match=np.where(match < 0, np.nan, match),
        exact_match_count=_column(columns, "exact_match_count", rows, 0).astype(np.int64),
    )


def _read_tensors(file: h5py.File) -> TensorLog:
    columns = _group_columns(file, "tensors")
    statistics = {name: columns[name] for name in STATISTICS + VECTOR_STATISTICS if name in columns}
    rows = _written_rows(columns, tuple(statistics))
    layer = text_list(columns["layer"]) if "layer" in columns and columns["layer"].size else []
    count = len(layer)

    def names(key: str) -> list[str]:
        listed = text_list(columns[key]) if key in columns and columns[key].size else []
        return (listed + [""] * count)[:count]

    bits = columns.get("scale_bits_per_element", np.zeros(0))
    return TensorLog(
        layer=layer,
        slot=names("slot"),
        format=names("format"),
        scale_bits_per_element=(
            bits.astype(np.float64) if bits.size == count else np.full(count, np.nan)
        ),
        step=_column(columns, "step", rows, 0).astype(np.int64),
        statistics={
            name: values[:rows].astype(np.float64)
            for name, values in statistics.items()
            if values.ndim >= 2 and values.shape[1] == count
        },
    )


def _read_scores(file: h5py.File) -> list[Score]:
    columns = _group_columns(file, "scores")
    names = ("stage", "name", "value", "count")
    rows = _written_rows(columns, names)
    if rows == 0 or any(name not in columns for name in names):
        return []
    table = zip(*(columns[name][:rows] for name in ("step", *names)))
    return [
        Score(int(step), int(stage), to_text(name), float(value), int(count))
        for step, stage, name, value, count in table
    ]


def _read_events(file: h5py.File) -> list[Event]:
    columns = _group_columns(file, "events")
    rows = _written_rows(columns, ("kind", "message"))
    if rows == 0 or "kind" not in columns or "message" not in columns:
        return []
    return [
        Event(int(step), to_text(kind), to_text(message))
        for step, kind, message in zip(
            columns["step"][:rows], columns["kind"][:rows], columns["message"][:rows]
        )
    ]


def arm_name(path: Path, meta: Mapping[str, str]) -> str:
    """Name of the arm a run file belongs to."""
    if meta.get("extra.arm"):
        return meta["extra.arm"]
    if path.name == "run.h5":
        return path.resolve().parent.name
    return meta.get("run_name") or path.stem


def load_run(path: Path) -> Run:
    """Reads one run file. Throws InputError when it is not one."""
    with open_hdf5(path) as file:
        try:
            meta, stage_names = _read_meta(file, path)
            done = file["complete"][...] if "complete" in file else np.zeros(0, dtype=np.uint64)
            metrics = _read_metrics(file)
            highest = int(metrics.stage.max()) if len(metrics) else -1
            while len(stage_names) <= highest:
                stage_names.append(f"stage {len(stage_names)}")
            return Run(
                path=path,
                name=arm_name(path, meta),
                recipe=meta["recipe_name"],
                seed=int(meta["seed"]),
                meta=meta,
                stage_names=stage_names,
                metrics=metrics,
                evaluations=_read_evaluations(file),
                tensors=_read_tensors(file),
                scores=_read_scores(file),
                events=_read_events(file),
                complete=bool(done.size),
                final_weight_hash=int(done[0]) if done.size else 0,
            )
        except (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"{path}: damaged run file, or not of schema {RUN_SCHEMA} ({reason})"
            ) from None
