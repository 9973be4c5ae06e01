"""Reads run files (HDF5): complete, in progress, or left by a killed writer.

Needs h5py, not the shared library. A plain `h5py.File(path, "r")` opens only complete files;
`h5py.File(path, "r", libver="latest", swmr=True)` opens all three kinds. src/io/README.md describes
every dataset.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp8lab.errors import Error, where_looked
from fp8lab.packages import how_to_install

SCHEMAS = ("fp8lab-run-1", "fp8lab-run-2")
NO_STEP = -1  # `step` of a row that was never written

# Columns of the groups of rows; a group has as many rows as its shortest column.
COLUMNS = {
    "metrics": ("stage", "tokens", "loss", "grad_norm", "learning_rate", "seconds"),
    "eval": ("stage", "loss", "exact_match", "exact_match_count"),
    "scores": ("stage", "name", "value", "count"),
    "documents": ("stage", "in_bf16", "text", "count", "source", "document", "tokens", "nats"),
    "events": ("kind", "message"),
    "samples": ("name", "offset", "length"),
}
# Groups that older files lack, with the types of their columns.
LATER = {
    "scores": {"step": "i8", "stage": "i4", "value": "f8", "count": "i8"},
    "documents": {
        "step": "i8", "stage": "i4", "in_bf16": "u1", "text": "u8", "count": "i8",
        "source": "i4", "document": "i8", "tokens": "i8", "nats": "f8",
    },
}  # fmt: skip
META_TEXTS = (
    "run_name", "recipe_name", "recipe_text", "recipe_resolved", "recipe_hash", "config_text",
    "config_hash", "data_hash", "initial_weights_hash", "code_version", "backend", "device",
    "math_profile", "simd_target", "optimizer_states",
)  # fmt: skip
STATISTICS = (
    "amax", "rms", "mse", "sqnr_db", "cosine", "bias", "underflow_fraction", "saturation_fraction",
    "nonfinite_count", "kurtosis", "crest_factor", "channel_outlier_ratio", "scale_min",
    "scale_max", "scale_log2_spread", "zero_tile_fraction", "top_channel", "top_channel_amax",
    "exponent_histogram",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run file, except tensor statistics and samples."""

    meta: dict[str, Any]
    """Names, hashes, seeds, device, configuration and recipe text."""
    metrics: dict[str, NDArray[Any]]
    """One row per optimizer step: step, stage, tokens, loss (nats/token), grad_norm, ...

    A run with objectives that log more has their columns too, NaN in stages of another objective.

    The loss of a step without trained tokens is NaN; /events has a row `no_targets` for it.
    """
    eval: dict[str, NDArray[Any]]
    """One row per evaluation: step, stage, loss, exact_match (-1: not measured), ..."""
    scores: dict[str, Any]
    """One row per other number: step, stage, name, value, count (of tokens, problems,
    questions)."""
    documents: dict[str, NDArray[Any]]
    """One row per document of the held-out text at the end of a stage: source, document, tokens and
    nats (the sum of their losses), under the numerics of the run or (in_bf16) in bf16.

    Runs with equal `text` were evaluated on the same tokens. Older files have no rows.
    """
    events: dict[str, Any]
    """step, kind and message."""
    tensors: dict[str, Any]
    """layer, slot, format, scale_bits_per_element of each logged operand; step: the logged steps;
    recipe: the recipe of each of these. format is that of one recipe; quantizers maps every recipe
    of the run to its format and scale_bits_per_element (older files: only that one).

    `read_statistic` returns their statistics, such as sqnr_db; `statistic_names` lists the names.
    """
    complete: bool
    final_weight_hash: int
    """XXH3-64 of the weights of a complete run, else 0."""

    def __repr__(self) -> str:
        """One line, since the fields hold thousands of numbers."""
        state = "complete" if self.complete else "not complete"
        steps = len(next(iter(self.metrics.values()), ()))
        return (
            f"<fp8lab run {self.meta.get('run_name', '')!r}: {steps} steps, {state}, recipe "
            f"{self.meta.get('recipe_name', '')!r}>"
        )


class Sample(NamedTuple):
    """A captured tensor."""

    step: int
    name: str
    values: NDArray[np.float32]


class _Damage(Exception):
    """Damaged contents of a file; becomes an Error that names the file."""


def _damaged(path: Path, reason: str) -> Error:
    return Error(
        f"{path}: damaged run file ({reason}); 'fp8lab doctor {path.parent}' tells what can be "
        "saved"
    )


def _open(path: Path) -> Any:
    """Opens the file. Tries the plain way first, which does not wait for a damaged block."""
    try:
        import h5py
    except ModuleNotFoundError:
        install = how_to_install(["h5py"])
        raise ImportError(f"h5py is not installed; run files need it: {install}") from None
    if not path.is_file():
        reason = "is no regular file" if path.exists() else f"no such file{where_looked(path)}"
        raise Error(f"{path}: {reason}; expected a run file of fp8lab")
    from fp8lab.hdf5 import open_unclosed, truncation

    if reason := truncation(path):
        raise _damaged(path, reason)
    try:
        return h5py.File(path, "r", libver="latest")
    except OSError as error:
        reason = str(error)
    if not re.search(r"open for write|consistency flags|\block", reason):
        raise Error(f"{path}: not a readable HDF5 file ({' '.join(reason.split())})")
    return open_unclosed(path)


@contextmanager
def _reading(path: str | PathLike[str]) -> Iterator[Any]:
    """Yields the open file. Converts every exception while reading to an Error that names the file,
    since HDF5 raises nearly every type of exception on a damaged file."""
    if not isinstance(path, (str, PathLike)):
        raise TypeError(f"path: {type(path).__name__}; accepted: a text or a path")
    path = Path(path)
    if path.is_dir():
        path /= "run.h5"
    try:
        with _open(path) as file:
            yield file
    except (Error, ImportError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise _damaged(path, reason) from None


def _dataset(file: Any, path: str) -> Any:
    """Returns a dataset whose data are in this file. Raises _Damage if its stored bytes cannot fill
    its extent: reading it would fill the memory."""
    import h5py

    from fp8lab.hdf5 import lack_of_bytes

    group, _, name = path.rpartition("/")
    link = file[group].get(name, getlink=True) if group else file.get(name, getlink=True)
    item = file.get(path) if isinstance(link, h5py.HardLink) else None
    if not isinstance(item, h5py.Dataset):
        raise _Damage(f"there is no dataset /{path}")
    if item.id.get_create_plist().get_external_count() != 0:
        raise _Damage(f"/{path} lies in another file")
    if reason := lack_of_bytes(item):
        raise _Damage(f"/{path} {reason}")
    return item


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _values(file: Any, path: str) -> NDArray[Any]:
    return np.asarray(_dataset(file, path)[...])


def _texts(file: Any, path: str) -> list[str]:
    return [_text(value) for value in _values(file, path).tolist()]


def _list(value: Any) -> list[str]:
    """Returns a list attribute; an empty one is not stored as an array."""
    return [_text(item) for item in value.tolist()] if isinstance(value, np.ndarray) else []


def _checksum(attributes: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of all attributes of /meta except `checksum`, as netstrings by name."""
    import h5py

    def netstring(data: bytes) -> bytes:
        return str(len(data)).encode() + b":" + data

    total = hashlib.sha256()
    for name in sorted(attributes, key=str.encode):
        if name == "checksum":
            continue
        value = attributes[name]
        if isinstance(value, (np.ndarray, h5py.Empty)):
            data = b"".join(netstring(entry.encode()) for entry in _list(value))
        else:
            data = _text(value).encode()
        total.update(netstring(name.encode()) + netstring(data))
    return total.hexdigest()


def _meta(file: Any, path: str | PathLike[str]) -> dict[str, Any]:
    attributes = dict(file["meta"].attrs.items()) if "meta" in file else {}
    schema = _text(attributes.get("schema", ""))
    if schema not in SCHEMAS:
        raise Error(f"{path}: schema '{schema}' of /meta; accepted: {' and '.join(SCHEMAS)}")
    if schema != SCHEMAS[0] and _text(attributes.get("checksum", "")) != _checksum(attributes):
        raise _Damage("the attributes of /meta do not have their checksum")
    missing = [key for key in (*META_TEXTS, "seed", "parameter_count") if key not in attributes]
    if missing:
        raise _Damage(f"/meta has no attribute '{missing[0]}'")
    meta: dict[str, Any] = {key: _text(attributes[key]) for key in META_TEXTS}
    meta["seed"] = int(attributes["seed"])
    meta["parameter_count"] = int(attributes["parameter_count"])
    meta["stage_names"] = _list(attributes.get("stage_names"))
    meta["extra"] = {
        key.removeprefix("extra."): _text(value)
        for key, value in attributes.items()
        if key.startswith("extra.")
    }
    return meta


def _row_count(file: Any, group: str, names: list[str]) -> int:
    """Returns the number of rows that all datasets of a group have, up to the first unwritten one.
    After a killed writer, the datasets can differ in length."""
    step = _values(file, f"{group}/step")
    rows = min(len(step), *(len(_dataset(file, name)) for name in names))
    unwritten = np.flatnonzero(step[:rows] == NO_STEP)
    return int(unwritten[0]) if unwritten.size else rows


def _rows(file: Any, group: str) -> dict[str, Any]:
    """Returns the columns of a group, texts as lists; empty columns if an older file lacks it."""
    datasets = {name: f"{group}/{name}" for name in COLUMNS[group]}
    if group == "metrics":
        own = sorted(set(file[group]) - {"step", *datasets})  # what the objectives of stages log
        datasets.update({name: f"{group}/{name}" for name in own})
        datasets["weight_hash"] = "hashes/weights"
    if group in LATER and group not in file:
        columns: dict[str, Any] = {name: [] for name in COLUMNS[group]}
        return {**columns, **{name: np.zeros(0, kind) for name, kind in LATER[group].items()}}
    count = _row_count(file, group, list(datasets.values()))
    read: dict[str, Any] = {"step": _values(file, f"{group}/step")[:count]}
    for name, path in datasets.items():
        column = _values(file, path)[:count]
        is_text = column.dtype.kind in "SO"
        read[name] = [_text(value) for value in column.tolist()] if is_text else column
    return read


def _tensor_steps(file: Any, statistics: list[str]) -> NDArray[Any]:
    rows = _row_count(file, "tensors", [f"tensors/{name}" for name in statistics])
    return _values(file, "tensors/step")[:rows]


def _recipe_of_step(stage: str, step: int, falls: list[int]) -> str:
    """Returns the recipe of step `step` of a stage, counted from 1, by its entry in
    extra.stage_recipes; `falls` are its steps with an event "fallback"."""
    recipe = ""
    for part in stage.partition("=")[2].split("+"):
        name, _, when = part.partition("@")
        if when == "fallback":
            holds = any(0 < fall < step for fall in falls)
        else:
            holds = step > int(when or 0)
        recipe = name if holds else recipe
    return recipe


def _recipes_of_steps(meta: Mapping[str, Any], events: dict[str, Any], steps: Any) -> list[str]:
    """Returns the recipe of each logged step; that of the run in files that do not tell more."""
    extra = meta["extra"]
    stages = [name for name in str(extra.get("stage_recipes", "")).split(",") if name]
    lengths = [int(n) for n in str(extra.get("stage_steps", "")).split(",") if n]
    if not stages or len(stages) != len(lengths):
        return [meta["recipe_name"]] * len(steps)
    ends = np.cumsum(lengths)
    falls = [int(s) for s, kind in zip(events["step"], events["kind"]) if kind == "fallback"]
    recipes = []
    for step in map(int, steps):
        stage = min(int(np.searchsorted(ends, step)), len(stages) - 1)
        start = int(ends[stage]) - lengths[stage]
        recipes.append(_recipe_of_step(stages[stage], step - start, [f - start for f in falls]))
    return recipes


def _quantizers(meta: Mapping[str, Any], tensors: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns format and scale_bits_per_element of every operand under every recipe of the run."""
    extra, count = meta["extra"], len(tensors["layer"])
    columns = ("format", "scale_bits_per_element")
    found = {
        extra.get("tensors_recipe", meta["recipe_name"]): {name: tensors[name] for name in columns}
    }
    for recipe, entries in json.loads(extra.get("quantizers", "{}")).items():
        formats, bits = [""] * count, np.full(count, np.nan)
        for entry in entries:
            for operand in entry["operands"]:
                formats[operand] = entry["format"]
                bits[operand] = entry["scale_bits_per_element"]
        found[recipe] = {"format": formats, "scale_bits_per_element": bits}
    return found


def _all_statistics(file: Any) -> list[str]:
    """Returns the columns of /tensors; files of the first schema lack `without_history`."""
    later = [name for name in ("without_history",) if name in file["tensors"]]
    return [*STATISTICS, "hash", *later]


def read_run(path: str | PathLike[str]) -> Run:
    """Reads a run file, or the run file of a run's folder, also if the run is in progress or
    killed.

    Raises Error if `path` is neither.

    To open the file of such a run with h5py itself, use
    `h5py.File(path, "r", libver="latest", swmr=True)`; a plain `h5py.File(path, "r")` refuses it.
    """
    with _reading(path) as file:
        meta = _meta(file, path)
        done = _values(file, "complete")  # read first: if the run is complete, so is all read later
        tensors: dict[str, Any] = {
            name: _texts(file, f"tensors/{name}") for name in ("layer", "slot", "format")
        }
        tensors["scale_bits_per_element"] = _values(file, "tensors/scale_bits_per_element")
        if len({len(column) for column in tensors.values()}) > 1:
            raise _Damage("the names of /tensors differ in number")
        tensors["quantizers"] = _quantizers(meta, tensors)
        tensors["step"] = _tensor_steps(file, _all_statistics(file))
        events = _rows(file, "events")
        tensors["recipe"] = _recipes_of_steps(meta, events, tensors["step"])
        return Run(
            meta=meta,
            metrics=_rows(file, "metrics"),
            eval=_rows(file, "eval"),
            scores=_rows(file, "scores"),
            documents=_rows(file, "documents"),
            events=events,
            tensors=tensors,
            complete=bool(done.size),
            final_weight_hash=int(done[0]) if done.size else 0,
        )


def read_statistic(path: str | PathLike[str], name: str) -> NDArray[np.float64]:
    """Returns one statistic, (logged steps, tensors) or (logged steps, tensors, width).

    Steps and tensors are those of `Run.tensors`. Raises Error if `name` is not one of
    `statistic_names()`.
    """
    if not isinstance(name, str):
        raise TypeError(f"name: {type(name).__name__}; accepted: one of statistic_names()")
    if name not in STATISTICS:
        raise Error(f"unknown statistic '{name}'; known are {', '.join(STATISTICS)}")
    with _reading(path) as file:
        _meta(file, path)
        steps = _tensor_steps(file, _all_statistics(file))
        return _values(file, f"tensors/{name}")[: len(steps)].astype(np.float64)


def read_samples(path: str | PathLike[str]) -> list[Sample]:
    """Returns the captured tensors of a run file."""
    with _reading(path) as file:
        _meta(file, path)
        rows = _rows(file, "samples")
        values = _values(file, "samples/values")
        samples = []
        for step, name, offset, length in zip(
            rows["step"].tolist(), rows["name"], rows["offset"].tolist(), rows["length"].tolist()
        ):
            # A writer can be killed between writing a row and its values.
            if not (0 <= offset and 0 <= length and offset + length <= len(values)):
                break
            samples.append(Sample(step, name, values[offset : offset + length]))
        return samples


def statistic_names() -> list[str]:
    """Returns the names of the statistics in a run file for each logged operand."""
    return list(STATISTICS)
