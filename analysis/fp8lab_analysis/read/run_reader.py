"""Reads run files (schemas fp8lab-run-1 and -2, src/io/README.md).

A file may be complete, in progress (SWMR) or left behind by a killed writer. Every group is cut at
the first incomplete row. A plain `h5py.File(path, "r")` refuses the latter two kinds of files;
`h5py.File(path, "r", libver="latest", swmr=True)` opens them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from fp8lab_analysis.read.hdf5 import (
    Damage,
    InputError,
    numbers,
    read_columns,
    read_dataset,
    reading,
    text_list,
    texts,
    to_text,
)
from fp8lab_analysis.read.runs import (
    QUANTIZER_STATISTICS,
    SLOTS,
    is_whole_layer,
    STATISTICS,
    VECTOR_STATISTICS,
    DetectorScore,
    DocumentLosses,
    Evaluations,
    Event,
    Flags,
    Floats,
    Ints,
    Metrics,
    Run,
    Score,
    TensorLog,
    stage_starts,
)

RUN_SCHEMA = "fp8lab-run-2"
FIRST_SCHEMA = "fp8lab-run-1"  # no identity, no checksums, no marks of missing amax history
RUN_SCHEMAS = (FIRST_SCHEMA, RUN_SCHEMA)
METRICS = ("stage", "tokens", "loss", "grad_norm", "learning_rate", "seconds")
EVALUATIONS = ("stage", "loss", "exact_match", "exact_match_count")
SCORES = ("stage", "name", "value", "count")
DOCUMENTS = ("stage", "in_bf16", "text", "count", "source", "document", "tokens", "nats")
EVENTS = ("kind", "message")
WARNINGS = ("detector", "score", "value", "tensor", "channel", "count")  # absent from some files
OPERANDS = ("layer", "slot", "format", "scale_bits_per_element")
GROUPS = ("metrics", "hashes", "eval", "scores", "tensors", "events", "complete")
MADE_UP_STAGES = 64  # largest number of stages in a file without stage names
# Tolerance between the mean of document losses and the evaluation's mean, which is an FP32 sum.
OTHER_MEAN = 1e-3


def meta_checksum(attributes: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of the attributes of /meta as defined in src/io/README.md: netstrings,
    ordered by name, of every attribute except `checksum`."""

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
    """The checked contents of /meta."""

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
    """Returns the number of rows in every named column, up to the first with the fill value as its
    step."""
    present = [columns[name] for name in names if name in columns]
    if "step" not in columns or not present:
        return 0
    rows = min(int(column.shape[0]) for column in [columns["step"], *present])
    step = numbers(columns["step"], "step", "iu")[:rows]
    if bool((step < -1).any()):
        raise Damage(f"step holds {step.min()}")
    unwritten = np.flatnonzero(step == -1)
    return int(unwritten[0]) if unwritten.size else rows


def _column(
    columns: Mapping[str, npt.NDArray[Any]], name: str, rows: int, kinds: str = "iuf"
) -> npt.NDArray[Any]:
    """Returns the first `rows` rows of a column of numbers; empty if the file lacks the group."""
    if name not in columns:
        return np.zeros(0)
    if columns[name].ndim != 1:
        raise Damage(f"{name} has {columns[name].ndim} dimensions, not one")
    return numbers(columns[name], name, kinds)[:rows]


def _counts(columns: Mapping[str, npt.NDArray[Any]], name: str, rows: int) -> Ints:
    """Returns a column of nonnegative integers. Raises Damage for other values."""
    values = _column(columns, name, rows, "iu").astype(np.int64)
    if bool((values < 0).any()):
        raise Damage(f"{name} holds {values.min()}")
    return values


def _floats(columns: Mapping[str, npt.NDArray[Any]], name: str, rows: int) -> Floats:
    return _column(columns, name, rows).astype(np.float64)


def _ascending(step: Ints, group: str, strictly: bool) -> Ints:
    """Returns the steps. Raises Damage if they do not ascend."""
    falls = np.flatnonzero(np.diff(step) < (1 if strictly else 0))
    if falls.size:
        row = int(falls[0])
        raise Damage(f"/{group}/step goes from {step[row]} to {step[row + 1]}")
    return step


def _steps(columns: Mapping[str, Any], rows: int, group: str, strictly: bool) -> Ints:
    return _ascending(_counts(columns, "step", rows), group, strictly)


def _stages(columns: Mapping[str, Any], rows: int, group: str, stages: int) -> Ints:
    """Returns the column `stage`. Raises Damage for an index without a stage."""
    stage = _counts(columns, "stage", rows)
    outside = stage[stage >= (stages or MADE_UP_STAGES)]
    if outside.size:
        raise Damage(f"/{group}/stage holds {outside[0]}, but the run has {stages} stages")
    return stage


def _read_metrics(file: h5py.File, stages: int) -> Metrics:
    columns = read_columns(file, "metrics", ("step", *METRICS))
    others = sorted(set(columns) - {"step", *METRICS})
    hashes = read_columns(file, "hashes", ("weights",)).get("weights", np.zeros(0, dtype=np.uint64))
    rows = _written_rows(columns, (*METRICS, *others))
    weights = np.zeros(rows, dtype=np.uint64)
    weights[: min(rows, hashes.size)] = numbers(hashes, "/hashes/weights")[:rows]
    return Metrics(
        step=_steps(columns, rows, "metrics", True),
        stage=_stages(columns, rows, "metrics", stages),
        tokens=_counts(columns, "tokens", rows),
        loss=_floats(columns, "loss", rows),
        grad_norm=_floats(columns, "grad_norm", rows),
        learning_rate=_floats(columns, "learning_rate", rows),
        seconds=_floats(columns, "seconds", rows),
        weight_hash=weights,
        objective={name: _floats(columns, name, rows) for name in others},
    )


def _read_evaluations(file: h5py.File, stages: int) -> Evaluations:
    columns = read_columns(file, "eval", ("step", *EVALUATIONS))
    rows = _written_rows(columns, EVALUATIONS)
    match = _floats(columns, "exact_match", rows)
    odd = match[(match > 1.0) | ((match < 0.0) & (match != -1.0))]
    if odd.size:
        raise Damage(f"/eval/exact_match holds {odd[0]}, not a fraction")
    return Evaluations(
        step=_steps(columns, rows, "eval", False),
        stage=_stages(columns, rows, "eval", stages),
        loss=_floats(columns, "loss", rows),
        exact_match=np.where(match < 0, np.nan, match),
        exact_match_count=_counts(columns, "exact_match_count", rows),
    )


def _operand_names(columns: Mapping[str, npt.NDArray[Any]]) -> tuple[list[str], ...]:
    """Returns layer, slot and format of every logged operand."""
    if "layer" not in columns or not columns["layer"].size:
        return [], [], []
    names = tuple(texts(columns[key], f"/tensors/{key}") for key in OPERANDS[:3])
    if len({len(found) for found in names}) > 1:
        raise Damage("layer, slot and format of /tensors differ in length")
    unknown = [
        slot
        for layer, slot in zip(names[0], names[1])
        if slot not in SLOTS and not is_whole_layer(layer)
    ]
    if unknown:
        raise Damage(f"/tensors/slot names {ascii(unknown[0])}, which no GEMM has")
    return names


def _inferred_history(starts: Ints, formats: Sequence[str], step: Ints) -> Flags:
    """Returns the mask of values that a delayed scale made without an amax history, for files of
    the first schema, which do not mark them. Their writer discarded every history between stages,
    so these are the values at the first step of each stage."""
    delayed = np.array(["/delayed" in label for label in formats], dtype=bool)
    return np.asarray(np.isin(step - 1, starts)[:, None] & delayed[None, :])


OLD_EXACT_DB = 200.0  # SQNR in older files of an exact and of an all-zero tensor
UNDEFINED_OF_ZEROS = (
    "sqnr_db",
    "cosine",
    "bias",
    "kurtosis",
    "crest_factor",
    "channel_outlier_ratio",
    "scale_min",
    "scale_max",
    "scale_log2_spread",
)


def _undefine(statistics: dict[str, Floats], hashes: Ints | None) -> None:
    """Replaces the numbers that older versions wrote for undefined statistics: by NaN for an
    all-zero tensor and for an operand that no GEMM reads, by an infinite SQNR for an exact one."""
    if "sqnr_db" in statistics:
        sqnr = statistics["sqnr_db"]
        for limit in (OLD_EXACT_DB, -OLD_EXACT_DB):
            sqnr[sqnr == limit] = np.copysign(np.inf, limit)
    if "amax" not in statistics:
        return
    zero = statistics["amax"] == 0.0
    if hashes is not None:
        for values in statistics.values():
            values[zero & (hashes == 0)] = np.nan
    for name in UNDEFINED_OF_ZEROS:
        if name in statistics:
            values = statistics[name]
            values[zero & ~np.isneginf(values)] = np.nan


def _read_tensors(file: h5py.File, starts: Ints, schema: str) -> TensorLog:
    later = () if schema == FIRST_SCHEMA else (*STATISTICS, *VECTOR_STATISTICS, "without_history")
    columns = read_columns(file, "tensors", ("step", *OPERANDS, *later))
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
        without = _inferred_history(starts, formats, step)
    else:
        without = np.zeros((rows, count), dtype=bool)
    statistics = {
        name: numbers(values, f"/tensors/{name}")[:rows].astype(np.float64)
        for name, values in found.items()
    }
    hashes = columns["hash"][:rows] if "hash" in columns else None
    _undefine(statistics, hashes if hashes is not None and hashes.shape == (rows, count) else None)
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


def _recipe_of_step(step: int, stage: str, start: int, falls: list[int]) -> str:
    """Returns the recipe of a step by the entry of its stage in extra.stage_recipes. In
    "cpt=infir2+bf16@492+mxfp8@fallback", bf16 follows after 492 steps, and mxfp8 after an event
    "fallback" of the stage."""
    recipe = ""
    for part in stage.partition("=")[2].split("+"):
        name, _, when = part.partition("@")
        if when == "fallback":
            holds = any(start < fall < step for fall in falls)
        else:
            holds = step > start + int(when or 0)
        recipe = name if holds else recipe
    return recipe


def _keep_one_recipe(
    tensors: TensorLog, meta: dict[str, str], starts: Ints, events: list[Event]
) -> None:
    """Invalidates the values of steps under another recipe than that of the formats in /tensors."""
    entries = list(filter(None, meta.get("extra.stage_recipes", "").split(",")))
    if len(entries) != len(starts):
        return
    named = meta.get("extra.tensors_recipe", meta["recipe_name"])
    falls = [event.step for event in events if event.kind == "fallback"]
    other = np.zeros(tensors.step.size, dtype=bool)
    for row, step in enumerate(map(int, tensors.step)):
        stage = max(int(np.searchsorted(starts, step)) - 1, 0)
        other[row] = _recipe_of_step(step, entries[stage], int(starts[stage]), falls) != named
    for name in QUANTIZER_STATISTICS:
        if name in tensors.statistics:
            tensors.statistics[name][other] = np.nan


def _read_scores(file: h5py.File, stages: int) -> list[Score]:
    columns = read_columns(file, "scores", ("step", *SCORES))
    rows = _written_rows(columns, SCORES)
    if rows == 0:
        return []
    table = zip(
        _steps(columns, rows, "scores", False),
        _stages(columns, rows, "scores", stages),
        texts(columns["name"][:rows], "/scores/name"),
        _floats(columns, "value", rows),
        _counts(columns, "count", rows),
    )
    return [
        Score(int(step), int(stage), name, float(value), int(count))
        for step, stage, name, value, count in table
    ]


def _read_documents(file: h5py.File, stages: int) -> tuple[list[DocumentLosses], int]:
    """Returns the losses by document of every complete evaluation, and the number of rows read. A
    killed writer can leave a partial one, which a resumed run repeats; the last rows are used."""
    columns = read_columns(file, "documents", ("step", *DOCUMENTS))
    rows = _written_rows(columns, DOCUMENTS)
    if rows == 0:
        return [], 0
    step = _steps(columns, rows, "documents", False)
    stage = _stages(columns, rows, "documents", stages)
    in_bf16 = _counts(columns, "in_bf16", rows) != 0
    counts = _counts(columns, "count", rows)
    text = _column(columns, "text", rows, "iu").astype(np.uint64)
    names = {name: _counts(columns, name, rows) for name in ("source", "document", "tokens")}
    nats = _floats(columns, "nats", rows)
    keys = list(dict.fromkeys(zip(step.tolist(), stage.tolist(), in_bf16.tolist())))
    found = []
    for key in keys:
        own = np.flatnonzero((step == key[0]) & (stage == key[1]) & (in_bf16 == key[2]))
        count = int(counts[own[-1]])
        own = own[own.size - count :] if 0 < count <= own.size else own[:0]
        own = own[np.lexsort((names["document"][own], names["source"][own]))]
        places = set(zip(names["source"][own].tolist(), names["document"][own].tolist()))
        if own.size == 0 or len(places) != count or not bool((names["tokens"][own] > 0).all()):
            continue
        if np.unique(text[own]).size > 1:
            raise Damage(f"/documents/text holds two texts of one evaluation, at step {key[0]}")
        chosen = {name: column[own] for name, column in names.items()}
        found.append(
            DocumentLosses(
                *key,
                text=int(text[own[0]]),
                source=chosen["source"],
                document=chosen["document"],
                tokens=chosen["tokens"],
                nats=nats[own],
            )
        )
    return found, rows


def _of_their_means(
    documents: list[DocumentLosses], evaluations: Evaluations
) -> tuple[list[DocumentLosses], list[str]]:
    """Returns the evaluations whose documents reproduce the held-out loss, and a note on each
    other one."""
    kept, notes = [], []
    for losses in documents:
        here = (evaluations.step == losses.step) & (evaluations.stage == losses.stage)
        mean = float(losses.nats.sum()) / float(losses.tokens.sum())
        said = float(evaluations.loss[here][-1]) if here.any() else math.nan
        if losses.in_bf16 or not abs(mean - said) > OTHER_MEAN * abs(said):
            kept.append(losses)
            continue
        notes.append(
            f"the losses by document of step {losses.step} are left out: their mean is {mean:.6g}, "
            f"the held-out loss {said:.6g}"
        )
    return kept, notes


def _read_warnings(file: h5py.File, tensors: TensorLog) -> list[DetectorScore]:
    columns = read_columns(file, "warnings", ("step", *WARNINGS))
    rows = _written_rows(columns, WARNINGS)
    if rows == 0:
        return []
    places = [f"{layer}/{slot}" for layer, slot in zip(tensors.layer, tensors.slot)]
    index = _column(columns, "tensor", rows, "iu").astype(np.int64)
    outside = index[(index < -1) | (index >= len(places))]
    if outside.size:
        raise Damage(f"/warnings/tensor holds {outside[0]}, but there are {len(places)} operands")
    table = zip(
        _steps(columns, rows, "warnings", False),
        texts(columns["detector"][:rows], "/warnings/detector"),
        _floats(columns, "score", rows),
        _floats(columns, "value", rows),
        index,
        _column(columns, "channel", rows, "iu"),
        _counts(columns, "count", rows),
    )
    return [
        DetectorScore(
            int(step),
            detector,
            float(score),
            float(value),
            places[operand] if operand >= 0 else "",
            int(channel),
            int(count),
        )
        for step, detector, score, value, operand, channel, count in table
    ]


def _read_events(file: h5py.File) -> list[Event]:
    columns = read_columns(file, "events", ("step", *EVENTS))
    rows = _written_rows(columns, EVENTS)
    if rows == 0:
        return []
    table = zip(
        _counts(columns, "step", rows),
        texts(columns["kind"][:rows], "/events/kind"),
        texts(columns["message"][:rows], "/events/message"),
    )
    return [Event(int(step), kind, message) for step, kind, message in table]


def arm_name(path: Path, meta: Mapping[str, str]) -> str:
    """Returns the name of the arm of a run file."""
    if meta.get("extra.arm"):
        return meta["extra.arm"]
    if path.name == "run.h5":
        return path.resolve().parent.name
    return meta.get("run_name") or path.stem


def _read_completion(file: h5py.File) -> list[int]:
    """Returns the hash of the final weights of a complete run; empty for an incomplete run."""
    done = read_dataset(file["complete"]) if "complete" in file else np.zeros(0, dtype=np.uint64)
    if done.ndim != 1 or done.size > 1 or done.dtype.kind not in "iu":
        raise Damage(f"/complete holds {done.shape} of {done.dtype}, not one hash or none")
    return [int(value) for value in done]


def _lost_rows(file: h5py.File, used: Mapping[str, int]) -> list[str]:
    """Returns the groups of a complete run that have incomplete rows."""
    notes = []
    for group, rows in used.items():
        columns = dict(file[group].items()) if group in file else {}
        there = [int(item.shape[0]) for name, item in columns.items() if name not in OPERANDS]
        if max(there, default=0) != rows:
            notes.append(f"complete, but only {rows} of {max(there)} rows of /{group} are whole")
    return notes


def load_run(path: Path) -> Run:
    """Reads one run file, also of a run in progress or a killed run. Raises InputError if it is no
    run file or is damaged. (A plain `h5py.File(path, "r")` refuses the file of such a run;
    `h5py.File(path, "r", libver="latest", swmr=True)` opens it.)"""
    with reading(path) as file:
        meta = _read_meta(file, path)
        missing = [name for name in GROUPS if name not in file]
        if missing and meta.schema != FIRST_SCHEMA:
            raise Damage(f"there is no /{missing[0]}")
        done = _read_completion(file)  # first: then all later reads of a complete run are complete
        metrics = _read_metrics(file, len(meta.stage_names))
        stages = meta.stage_names or [
            f"stage {i}" for i in range(int(metrics.stage.max(initial=-1)) + 1)
        ]
        evaluations = _read_evaluations(file, len(stages))
        starts = stage_starts(meta.texts, len(stages), metrics)
        tensors = _read_tensors(file, starts, meta.schema)
        scores = _read_scores(file, len(stages))
        documents, document_rows = _read_documents(file, len(stages))
        documents, notes = _of_their_means(documents, evaluations)
        events = _read_events(file)
        _keep_one_recipe(tensors, meta.texts, starts, events)
        warnings = _read_warnings(file, tensors)
        used = {
            "metrics": len(metrics),
            "eval": len(evaluations),
            "tensors": int(tensors.step.size),
            "scores": len(scores),
            "documents": document_rows,
            "events": len(events),
            "warnings": len(warnings),
        }
        return Run(
            path=path,
            name=arm_name(path, meta.texts),
            recipe=meta.texts["recipe_name"],
            seed=int(meta.texts["seed"]),
            meta=meta.texts,
            stage_names=stages,
            metrics=metrics,
            evaluations=evaluations,
            tensors=tensors,
            scores=scores,
            documents=documents,
            events=events,
            warnings=warnings,
            complete=bool(done),
            final_weight_hash=done[0] if done else 0,
            identity=meta.identity,
            notes=[*notes, *(_lost_rows(file, used) if done else [])],
        )
