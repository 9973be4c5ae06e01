"""Exports run files to event files of TensorBoard and databases of trackio.

Both are written by their public formats, without those programs. Names are those of the run file:
metrics/loss, eval/loss, scores/NAME. A run file has no date. The times of an export are therefore
seconds since the start of the run, counted from 1970, and only a relative time axis is meaningful.
`live.py` writes the same data during training, with the time of day.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import struct
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from fp8lab_analysis.judge import stats
from fp8lab_analysis.judge.operands import activation_names, cast_mask, slot_mask
from fp8lab_analysis.judge.phrases import counted
from fp8lab_analysis.read.runs import SLOTS, Run
from fp8lab_analysis.read.study import Study

METRICS = ("loss", "grad_norm", "learning_rate", "tokens")
OPERAND_STATISTICS = ("sqnr_db", "underflow_fraction", "saturation_fraction")


class Scalar(tuple[int, float, str, float]):
    """(step, seconds since the start, name, value): a logged number, or a mean of logged
    numbers."""


def _seconds(run: Run, steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[float]:
    """Returns the seconds at each step: those of the last row of /metrics up to the step, else
    0."""
    rows = np.searchsorted(run.metrics.step, steps, side="right")
    return [float(run.metrics.seconds[row - 1]) if row else 0.0 for row in rows]


def scalars(run: Run) -> Iterator[Scalar]:
    """Yields every number of a run over its steps: metrics, evaluations, scores, and for each slot
    or saved activation the mean over its quantized tensors. Skips what was not measured. Not in the
    order of steps."""
    metrics, held_out = run.metrics, run.evaluations
    columns = {name: getattr(metrics, name) for name in METRICS} | metrics.objective
    there = {name: ~np.isnan(values) for name, values in columns.items()}
    there["loss"] = ~run.without_targets  # a NaN of these two may have been measured
    there["grad_norm"] = ~run.without_norm
    for name, values in columns.items():
        for row in np.flatnonzero(there[name]):
            at = int(metrics.step[row]), float(metrics.seconds[row])
            yield Scalar((*at, f"metrics/{name}", float(values[row])))
    for step, seconds, loss, match in zip(
        held_out.step, _seconds(run, held_out.step), held_out.loss, held_out.exact_match
    ):
        yield Scalar((int(step), seconds, "eval/loss", float(loss)))
        if math.isfinite(match):
            yield Scalar((int(step), seconds, "eval/exact_match", float(match)))
    steps = np.array([score.step for score in run.scores], dtype=np.int64)
    for score, seconds in zip(run.scores, _seconds(run, steps)):
        yield Scalar((score.step, seconds, f"scores/{score.name}", score.value))
    times = _seconds(run, run.tensors.step)
    for slot in [*SLOTS, *activation_names(run)]:
        chosen = slot_mask(run, slot) & cast_mask(run)
        if not chosen.any():
            continue
        for statistic in OPERAND_STATISTICS:
            means = stats.finite_column_means(run.tensors.get(statistic)[:, chosen].T)
            for step, seconds, value in zip(run.tensors.step, times, means):
                if math.isfinite(value):
                    name = f"tensors/{slot}/{statistic}"
                    yield Scalar((int(step), seconds, name, float(value)))


# --- TensorBoard: records of length, checksum, message, checksum ----------------------------------


def _crc_table() -> list[int]:
    """Returns the reflected CRC-32C (Castagnoli) of every byte value."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC = _crc_table()


def crc32c(data: bytes) -> int:
    """Returns the CRC-32C of `data`."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked_crc(data: bytes) -> bytes:
    """Returns the checksum of a record: the CRC rotated by 15 bits, plus a constant."""
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _record(message: bytes) -> bytes:
    length = struct.pack("<Q", len(message))
    return length + _masked_crc(length) + message + _masked_crc(message)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _field(number: int, content: bytes) -> bytes:
    """Returns a field that contains text or a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _float32(value: float) -> bytes:
    """Returns the nearest FP32 number; an infinity if out of range."""
    with np.errstate(over="ignore"):
        return struct.pack("<f", np.float32(value))


def _event(item: Scalar, clock: float = 0.0) -> bytes:
    """Event{wall_time = 1, step = 2, summary = 5 {value = 1 {tag = 1, simple_value = 2}}}."""
    step, seconds, name, value = item
    entry = _field(1, name.encode()) + b"\x15" + _float32(value)
    wall_time = b"\x09" + struct.pack("<d", clock + seconds)
    return wall_time + b"\x10" + _varint(step) + _field(5, _field(1, entry))


def event_head(clock: float = 0.0) -> bytes:
    """Returns the first record of an event file, at time `clock`."""
    return _record(b"\x09" + struct.pack("<d", clock) + _field(3, b"brain.Event:2"))


def event_records(items: Iterable[Scalar], clock: float = 0.0) -> bytes:
    """Returns the records of scalars; `clock` is the time of second 0."""
    return b"".join(_record(_event(item, clock)) for item in items)


def event_file(run: Run) -> bytes:
    """Returns a TensorBoard event file with all scalars of a run, in the order of steps."""
    return event_head() + event_records(sorted(scalars(run), key=lambda item: item[0]))


def _replace(path: Path, content: bytes) -> None:
    half = path.with_name(path.name + ".tmp")
    half.write_bytes(content)
    os.replace(half, path)


def run_names(study: Study) -> list[tuple[str, Run]]:
    """Returns a unique name for every run, usable as a folder name."""
    names: dict[str, Run] = {}
    for run in study.runs:
        plain = run.name.replace("/", "_").strip(". ") or "run"
        name, number = plain, 2
        while name in names:
            name, number = f"{plain}_{number}", number + 1
        names[name] = run
    return list(names.items())


def export_tensorboard(study: Study, out: Path) -> str:
    """Writes OUT/<run>/events.out.tfevents.fp8lab for every run."""
    for name, run in run_names(study):
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        _replace(folder / "events.out.tfevents.fp8lab", event_file(run))
    return f"{out}: event files of {counted(len(study.runs), 'run')}"


# --- trackio: one database per project ------------------------------------------------------------

_TRACKIO = """
CREATE TABLE IF NOT EXISTS metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL,
  timestamp TEXT NOT NULL, run_name TEXT NOT NULL, step INTEGER NOT NULL, metrics TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS configs (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL,
  run_name TEXT NOT NULL, config TEXT NOT NULL, created_at TEXT NOT NULL, UNIQUE(run_id));
"""


def _time(seconds: float) -> str:
    finite = seconds if math.isfinite(seconds) else 0.0
    return datetime.fromtimestamp(finite, timezone.utc).isoformat()


def _json_number(value: float) -> float | str:
    """Returns a number for JSON; NaN and infinities as text."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0.0 else "-Infinity"
    return value


def project_name(study: Study) -> str:
    """Returns the study's name, restricted to the characters of project names."""
    name = study.meta.get("name", "") or study.title
    return "".join(c for c in name if c.isascii() and (c.isalnum() or c in "-_")) or "fp8lab"


def export_trackio(study: Study, out: Path) -> str:
    """Writes OUT/<project>.db: one row per step with all its scalars, and all configurations."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{project_name(study)}.db"
    half = path.with_name(path.name + ".tmp")
    half.unlink(missing_ok=True)
    try:
        with closing(open_trackio(half)) as base, base:
            for name, run in run_names(study):
                insert_scalars(base, name, scalars(run))
                insert_config(base, name, run)
    except sqlite3.Error as error:
        half.unlink(missing_ok=True)
        raise OSError(0, str(error), str(path)) from None
    os.replace(half, path)
    return f"{path}: {counted(len(study.runs), 'run')}; read with TRACKIO_DIR={out}"


def open_trackio(path: Path) -> sqlite3.Connection:
    """Opens the database and creates its tables if needed."""
    base = sqlite3.connect(path, timeout=60.0)
    base.executescript(_TRACKIO)
    return base


def insert_scalars(
    base: sqlite3.Connection, name: str, items: Iterable[Scalar], clock: float = 0.0
) -> None:
    """Inserts one row per step; `clock` is the time of second 0."""
    rows: dict[int, tuple[float, dict[str, float | str]]] = {}
    for step, seconds, tag, value in items:
        rows.setdefault(step, (seconds, {}))[1][tag] = _json_number(value)
    base.executemany(
        "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?, ?)",
        [
            (name, _time(clock + seconds), name, step, json.dumps(values))
            for step, (seconds, values) in sorted(rows.items())
        ],
    )


def insert_config(base: sqlite3.Connection, name: str, run: Run, clock: float = 0.0) -> None:
    """Inserts the configuration of a run, unless it exists."""
    config = {"recipe": run.recipe, "seed": run.seed, **dict(sorted(run.meta.items()))}
    base.execute(
        "INSERT OR IGNORE INTO configs (run_id, run_name, config, created_at) VALUES (?, ?, ?, ?)",
        (name, name, json.dumps(config), _time(clock)),
    )


def export_runs(study: Study, kind: str, out: Path) -> str:
    """Writes the runs of a study in a format of report.EXPORTS; returns a line that describes
    it."""
    return export_tensorboard(study, out) if kind == "tensorboard" else export_trackio(study, out)
