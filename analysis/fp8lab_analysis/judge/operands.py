"""Numbers of the logged operands and saved activations: a slot of a group over tensors, steps and
seeds, and a tensor over steps and seeds."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fp8lab_analysis.judge import stats
from fp8lab_analysis.read.runs import SLOTS, Flags, Floats, Run
from fp8lab_analysis.read.study import Group

HIGH_PRECISION_FORMATS = frozenset({"", "bf16", "fp16", "fp32", "f16", "f32", "f64", "none"})


@dataclass(frozen=True)
class OperandSummary:
    """One slot, or saved activation, of one group: means over tensors and logged steps, then over
    seeds."""

    slot: str
    formats: list[str]
    quantized: bool
    sqnr_db: stats.Spread  # over the logged tensors with a finite SQNR
    all_zero: int  # number of logged values without an SQNR: no nonzero finite element
    exact: int  # number of logged values with infinite SQNR
    logged: int  # number of logged values of SQNR, finite or not
    worst_sqnr_db: float  # lowest time average of one tensor, lowest over seeds
    underflow: stats.Spread  # fraction
    saturation: stats.Spread  # fraction
    scale_bits: float  # bits per element
    log2_scale: tuple[float, float, float]  # lowest, median, highest
    left_out: list[str]  # "bf16: FORMAT" of recipes of other steps, which no number includes

    @property
    def quantizer_text(self) -> str:
        """Formats of the numbers, then those of steps that the numbers leave out."""
        text = " + ".join(self.formats)
        return f"{text} (left out: {', '.join(self.left_out)})" if self.left_out else text


@dataclass(frozen=True)
class TensorSummary:
    """Time averages of one logged tensor of one group (mean over seeds)."""

    group: Group
    layer: str
    slot: str
    format: str
    sqnr_db: float
    underflow: float
    kurtosis: float
    channel_outlier_ratio: float


def is_quantized(format_label: str) -> bool:
    """Returns False if a quantizer label names a format that passes values through."""
    return re.split(r"[/ ]", format_label.strip())[0].lower() not in HIGH_PRECISION_FORMATS


def cast_mask(run: Run) -> npt.NDArray[np.bool_]:
    """Returns the mask of the quantized logged tensors of a run: operands and activations."""
    return np.array([is_quantized(label) for label in run.tensors.format], dtype=bool)


def quantized_mask(run: Run) -> npt.NDArray[np.bool_]:
    """Returns the mask of the quantized logged operands of GEMMs of a run."""
    of_gemms = np.array([slot in SLOTS for slot in run.tensors.slot], dtype=bool)
    return np.asarray(cast_mask(run) & of_gemms)


def slot_mask(run: Run, slot: str) -> npt.NDArray[np.bool_]:
    """Returns the mask of the logged tensors of a run in `slot`."""
    return np.array([name == slot for name in run.tensors.slot], dtype=bool)


def _all_zero(run: Run) -> Flags:
    """Returns the mask (L, N) of logged values of tensors without a nonzero finite element, which
    have no SQNR. Values that are excluded for another reason also lack the underflow."""
    log = run.tensors
    known = np.isfinite(log.get("underflow_fraction"))
    return np.asarray(np.isnan(log.get("sqnr_db")) & (log.get("amax") == 0.0) & known)


def _other_quantizers(run: Run, chosen: Flags) -> list[str]:
    """Returns "RECIPE: FORMAT" of some operands under the run's recipes other than that of
    `TensorLog.format`; none for files that do not record them."""
    recorded = json.loads(run.meta.get("extra.quantizers", "{}"))
    return [
        f"{recipe}: {entry['format']}"
        for recipe, entries in recorded.items()
        for entry in entries
        if any(chosen[operand] for operand in entry["operands"])
    ]


def summarise_operand(group: Group, slot: str) -> OperandSummary | None:
    """Returns statistics of one slot over tensors, logged steps and seeds; None if not logged."""
    formats: list[str] = []
    sqnr, worst, underflow, saturation, bits = [], [], [], [], []
    counts = np.zeros(3, dtype=np.int64)
    scales: list[Floats] = []
    quantized = False
    others: list[str] = []
    for run in group.runs:
        log = run.tensors
        chosen = slot_mask(run, slot)
        if not bool(chosen.any()) or log.step.size == 0:
            continue
        if bool((chosen & cast_mask(run)).any()):
            chosen = chosen & cast_mask(run)
            quantized = True
        formats += [log.format[i] for i in np.flatnonzero(chosen)]
        others += _other_quantizers(run, chosen)
        values = log.get("sqnr_db")[:, chosen]
        without = _all_zero(run)[:, chosen]
        exact = np.isposinf(values)
        counts += [without.sum(), exact.sum(), (np.isfinite(values) | exact | without).sum()]
        per_tensor = stats.finite_column_means(values)
        sqnr.append(stats.finite_mean(per_tensor))
        finite = per_tensor[np.isfinite(per_tensor)]
        worst.append(float(finite.min()) if finite.size else math.nan)
        underflow.append(stats.finite_mean(log.get("underflow_fraction")[:, chosen]))
        saturation.append(stats.finite_mean(log.get("saturation_fraction")[:, chosen]))
        bits.append(stats.finite_mean(log.scale_bits_per_element[chosen]))
        for name in ("scale_min", "scale_max"):
            values = log.get(name)[:, chosen]
            scales.append(values[np.isfinite(values) & (values > 0.0)])
    if not sqnr:
        return None
    pooled = np.log2(np.concatenate(scales)) if scales else np.zeros(0)
    extent = (math.nan, math.nan, math.nan)
    if pooled.size:
        extent = (float(pooled.min()), float(np.median(pooled)), float(pooled.max()))
    return OperandSummary(
        slot=slot,
        formats=list(dict.fromkeys(formats)),
        quantized=quantized,
        sqnr_db=stats.spread_over_seeds(sqnr),
        all_zero=int(counts[0]),
        exact=int(counts[1]),
        logged=int(counts[2]),
        worst_sqnr_db=min((v for v in worst if math.isfinite(v)), default=math.nan),
        underflow=stats.spread_over_seeds(underflow),
        saturation=stats.spread_over_seeds(saturation),
        scale_bits=stats.finite_mean(bits),
        log2_scale=extent,
        left_out=list(dict.fromkeys(others)),
    )


def summarise_operands(group: Group) -> dict[str, OperandSummary]:
    """Returns statistics of every slot that the runs of a group logged."""
    found = {slot: summarise_operand(group, slot) for slot in SLOTS}
    return {slot: operand for slot, operand in found.items() if operand is not None}


def activation_names(run: Run) -> list[str]:
    """Returns the names of the activations that a layer saves quantized, in the order of the
    file."""
    named = np.array([slot not in SLOTS for slot in run.tensors.slot], dtype=bool)
    chosen = np.flatnonzero(cast_mask(run) & named)
    return list(dict.fromkeys(run.tensors.slot[index] for index in chosen))


def summarise_activations(group: Group) -> dict[str, OperandSummary]:
    """Returns statistics of every activation that the runs of a group save quantized and log."""
    names = dict.fromkeys(name for run in group.runs for name in activation_names(run))
    found = {name: summarise_operand(group, name) for name in names}
    # A layer that keeps the codes of a linear layer's input does not save the input besides.
    return {n: operand for n, operand in found.items() if operand is not None and operand.logged}


HISTOGRAM_EXPONENTS = np.arange(64.0) - 40.0  # bins of /tensors/exponent_histogram


@dataclass(frozen=True)
class SlotHistogram:
    """Magnitudes of one quantized slot of a group in units of each tensor's largest scale."""

    slot: str
    format: str
    exponents: Floats  # bin e: magnitudes in [2^e, 2^(e+1)) times the scale
    fractions: Floats  # fractions of nonzero elements; mean over tensors, logged steps and seeds
    octaves: float  # from the smallest to the largest scale of a tensor; median


def slot_histogram(group: Group, slot: str) -> SlotHistogram | None:
    """Returns the histogram of one slot; None if no quantized operand of it was logged."""
    fractions, shifts, octaves, labels = [], [], [], []
    for run in group.runs:
        log = run.tensors
        chosen = np.flatnonzero(slot_mask(run, slot) & quantized_mask(run))
        if "exponent_histogram" not in log.statistics or chosen.size == 0 or log.step.size == 0:
            continue
        bins = log.get("exponent_histogram")[:, chosen]
        if bins.shape[2] != HISTOGRAM_EXPONENTS.size:
            continue
        fractions.append(bins.reshape(-1, bins.shape[2]))
        top, bottom = log.get("scale_max")[:, chosen], log.get("scale_min")[:, chosen]
        with np.errstate(divide="ignore", invalid="ignore"):
            shifts.append(np.log2(top).ravel())
            octaves.append(np.log2(top / bottom).ravel())
        labels += [log.format[i] for i in chosen]
    if not fractions:
        return None
    exponents, mean = stats.aligned_mean(
        HISTOGRAM_EXPONENTS, np.concatenate(fractions), np.concatenate(shifts)
    )
    if exponents.size == 0:
        return None
    spans = np.concatenate(octaves)
    spans = spans[np.isfinite(spans)]
    span = float(np.median(spans)) if spans.size else math.nan
    return SlotHistogram(slot, labels[0], exponents, mean, span)


def format_text(operands: dict[str, OperandSummary]) -> str:
    """Returns formats and tiles by operand in one line; equal operands are named once."""
    by_format: dict[str, list[str]] = {}
    for slot, operand in operands.items():
        by_format.setdefault(" + ".join(operand.formats), []).append(slot)
    if len(by_format) == 1:
        return next(iter(by_format))
    parts = []
    for text, slots in by_format.items():
        letters = sorted({slot.split(".")[-1] for slot in slots}, key=("x", "w", "dy").index)
        whole = all(slot in slots for slot in operands if slot.split(".")[-1] in letters)
        parts.append(f"{', '.join(letters if whole else slots)}: {text}")
    return "; ".join(parts)


def tensor_summaries(group: Group) -> list[TensorSummary]:
    """Returns time averages of every quantized tensor of a group, lowest SQNR first."""
    sums: dict[tuple[str, str], list[tuple[str, Floats]]] = {}
    for run in group.runs:
        log = run.tensors
        if log.step.size == 0:
            continue
        names = ("sqnr_db", "underflow_fraction", "kurtosis", "channel_outlier_ratio")
        columns = np.stack([stats.finite_column_means(log.get(name)) for name in names])
        for index in np.flatnonzero(quantized_mask(run)):
            key = (log.layer[index], log.slot[index])
            sums.setdefault(key, []).append((log.format[index], columns[:, index]))
    result = []
    for (layer, slot), entries in sums.items():
        mean = stats.finite_column_means(np.stack([values for _, values in entries]))
        result.append(TensorSummary(group, layer, slot, entries[0][0], *map(float, mean)))
    return sorted(result, key=lambda t: (math.isnan(t.sqnr_db), t.sqnr_db))
