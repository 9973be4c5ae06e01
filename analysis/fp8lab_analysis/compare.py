"""Numbers of a study: each run against its baseline, each group over its seeds, each operand."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fp8lab_analysis import stats
from fp8lab_analysis.runs import SLOTS, Floats, Run
from fp8lab_analysis.study import Group, Study

HIGH_PRECISION_FORMATS = frozenset({"", "bf16", "fp16", "fp32", "f16", "f32", "f64", "none"})


@dataclass(frozen=True)
class StageComparison:
    """One stage of one run, beside the same stage of its baseline."""

    stage: str
    final_loss: float  # mean over the last tenth, nats/token
    gap: stats.GapCurve | None
    final_gap: float
    final_gap_error: float  # standard error over the last steps (batch means), not over seeds
    area: float  # nats/token x step
    first_departure: int | None  # step, needs a seed band
    spikes: int
    diverged: bool
    grad_norm_ratio: float


@dataclass(frozen=True)
class RunComparison:
    """All stages of one run."""

    run: Run
    stages: dict[str, StageComparison]

    @property
    def last(self) -> StageComparison | None:
        """The last stage that the run reached."""
        return list(self.stages.values())[-1] if self.stages else None

    @property
    def last_gap(self) -> StageComparison | None:
        """The last stage that both the run and its baseline reached."""
        paired = [stage for stage in self.stages.values() if stage.gap is not None]
        return paired[-1] if paired else None

    @property
    def diverged(self) -> bool:
        """True when any stage diverged."""
        return any(stage.diverged for stage in self.stages.values())


@dataclass(frozen=True)
class OperandSummary:
    """One slot of one group: means over tensors and logged steps, then over seeds."""

    slot: str
    formats: list[str]
    quantized: bool
    sqnr_db: stats.Spread
    worst_sqnr_db: float  # lowest time average of one tensor, lowest over seeds
    underflow: stats.Spread  # fraction
    saturation: stats.Spread  # fraction
    scale_bits: float  # bits per element
    log2_scale: tuple[float, float, float]  # lowest, median, highest


@dataclass(frozen=True)
class MatchSummary:
    """Exact match at the end of one stage, problems of all seeds pooled."""

    stage: str
    correct: float
    asked: int

    @property
    def fraction(self) -> float:
        """Fraction answered exactly."""
        return self.correct / self.asked if self.asked else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the fraction."""
        return stats.wilson_interval(self.correct, self.asked)


@dataclass(frozen=True)
class GroupSummary:
    """One recipe and variant over its seeds."""

    group: Group
    runs: list[RunComparison]
    final_loss: dict[str, stats.Spread]  # by stage
    held_out: dict[str, stats.Spread]  # by stage, last evaluation, nats/token
    held_out_gap: dict[str, stats.Spread]
    final_gap: stats.Spread
    gap_error: float  # standard error within the run, where seeds give none
    area: stats.Spread
    gap_stage: str  # stage that the final gap belongs to
    band: float  # half width of the baseline's seed band in that stage, NaN when unknown
    comparable: bool  # two or more seeds of it and of its baseline: the noise is known
    verdict: stats.Verdict
    diverged_seeds: int
    matches: dict[str, MatchSummary]
    operands: dict[str, OperandSummary]
    format_text: str
    scale_bits: float  # mean over quantized operands

    @property
    def seeds(self) -> int:
        """Seeds behind its numbers; no seed counts twice."""
        return len(self.runs)

    @property
    def complete(self) -> bool:
        """True when every run of the group finished."""
        return all(item.run.complete for item in self.runs)

    @property
    def mean_sqnr_db(self) -> float:
        """Mean over the quantized operands, dB."""
        return stats.finite_mean([o.sqnr_db.mean for o in self.operands.values() if o.quantized])

    @property
    def worst_operand(self) -> OperandSummary | None:
        """Quantized operand of lowest mean SQNR."""
        usable = [
            o for o in self.operands.values() if o.quantized and math.isfinite(o.sqnr_db.mean)
        ]
        return min(usable, key=lambda o: o.sqnr_db.mean) if usable else None

    @property
    def worst_underflow(self) -> OperandSummary | None:
        """Quantized operand of highest mean underflow fraction."""
        usable = [
            o for o in self.operands.values() if o.quantized and math.isfinite(o.underflow.mean)
        ]
        return max(usable, key=lambda o: o.underflow.mean) if usable else None


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
    """True unless a quantizer label names a format that passes values through."""
    return re.split(r"[/ ]", format_label.strip())[0].lower() not in HIGH_PRECISION_FORMATS


def quantized_mask(run: Run) -> npt.NDArray[np.bool_]:
    """Which logged tensors of a run are quantized."""
    return np.array([is_quantized(label) for label in run.tensors.format], dtype=bool)


def slot_mask(run: Run, slot: str) -> npt.NDArray[np.bool_]:
    """Which logged tensors of a run belong to `slot`."""
    return np.array([name == slot for name in run.tensors.slot], dtype=bool)


def time_average(values: Floats) -> Floats:
    """Mean over rows of the finite entries, NaN for a column without any."""
    finite = np.isfinite(values)
    count = finite.sum(axis=0)
    total = np.where(finite, values, 0.0).sum(axis=0)
    mean = np.full(values.shape[1:], np.nan)
    np.divide(total, count, out=mean, where=count > 0)
    return mean


def _seed_floors(study: Study, baseline: Group | None) -> dict[str, Floats | None]:
    if baseline is None:
        return {}
    return {
        stage: stats.seed_floor(
            [
                curve
                for run in baseline.runs
                if (curve := run.metrics.loss[run.stage_rows(stage)]).size
            ]
        )
        for stage in study.stages
    }


def compare_run(study: Study, run: Run, floors: dict[str, Floats | None]) -> RunComparison:
    """Every stage of `run` against its paired baseline."""
    baseline = study.pairings.of(run)
    result: dict[str, StageComparison] = {}
    for stage in study.stages:
        rows = run.stage_rows(stage)
        if not bool(rows.any()):
            continue
        steps, loss = run.metrics.step[rows].astype(np.float64), run.metrics.loss[rows]
        gap, ratio, departure = None, math.nan, None
        if baseline is not None and bool(baseline.stage_rows(stage).any()):
            other = baseline
            theirs = other.stage_rows(stage)
            gap = stats.paired_gap(
                steps,
                loss,
                other.metrics.step[theirs].astype(np.float64),
                other.metrics.loss[theirs],
            )
            _, a, b = np.intersect1d(steps, other.metrics.step[theirs], return_indices=True)
            ratio = stats.median_ratio(
                run.metrics.grad_norm[rows][a], other.metrics.grad_norm[theirs][b]
            )
            floor = floors.get(stage)
            if floor is not None:
                departure = stats.first_departure(gap.steps, gap.smooth, floor)
            if gap.steps.size == 0:
                gap = None
        result[stage] = StageComparison(
            stage=stage,
            final_loss=stats.final_mean(loss),
            gap=gap,
            final_gap=stats.final_mean(gap.raw) if gap else math.nan,
            final_gap_error=stats.batch_means_error(stats.tail(gap.raw)) if gap else math.nan,
            area=stats.gap_area(gap.steps, gap.raw) if gap else math.nan,
            first_departure=departure,
            spikes=len(stats.spike_rows(loss)),
            diverged=stats.has_diverged(loss),
            grad_norm_ratio=ratio,
        )
    return RunComparison(run, result)


def _last_evaluation(run: Run, stage: str) -> int | None:
    if stage not in run.stage_names:
        return None
    rows = np.flatnonzero(run.evaluations.stage == run.stage_names.index(stage))
    return int(rows[-1]) if rows.size else None


def held_out_loss(run: Run, stage: str) -> float:
    """Held-out loss at the last evaluation of a stage; NaN without one."""
    row = _last_evaluation(run, stage)
    return float(run.evaluations.loss[row]) if row is not None else math.nan


def exact_match(run: Run, stage: str) -> tuple[float, int]:
    """(answers right, problems asked) at the last measured evaluation of a stage."""
    if stage not in run.stage_names:
        return 0.0, 0
    e = run.evaluations
    rows = np.flatnonzero((e.stage == run.stage_names.index(stage)) & np.isfinite(e.exact_match))
    rows = rows[e.exact_match_count[rows] > 0]
    if rows.size == 0:
        return 0.0, 0
    asked = int(e.exact_match_count[rows[-1]])
    return float(round(float(e.exact_match[rows[-1]]) * asked)), asked


def summarise_operand(group: Group, slot: str) -> OperandSummary | None:
    """Statistics of one slot over tensors, logged steps and seeds; None when nobody logged it."""
    formats: list[str] = []
    sqnr, worst, underflow, saturation, bits = [], [], [], [], []
    scales: list[Floats] = []
    quantized = False
    for run in group.runs:
        log = run.tensors
        chosen = slot_mask(run, slot)
        if not bool(chosen.any()) or log.step.size == 0:
            continue
        if bool((chosen & quantized_mask(run)).any()):
            chosen = chosen & quantized_mask(run)
            quantized = True
        formats += [log.format[i] for i in np.flatnonzero(chosen)]
        per_tensor = time_average(log.get("sqnr_db")[:, chosen])
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
        worst_sqnr_db=min((v for v in worst if math.isfinite(v)), default=math.nan),
        underflow=stats.spread_over_seeds(underflow),
        saturation=stats.spread_over_seeds(saturation),
        scale_bits=stats.finite_mean(bits),
        log2_scale=extent,
    )


def format_text(operands: dict[str, OperandSummary]) -> str:
    """Formats and tiles by operand in one line, equal operands named once."""
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


def _gap_to_baseline(study: Study, run: Run, stage: str) -> float:
    baseline = study.pairings.of(run)
    if baseline is None:
        return math.nan
    return held_out_loss(run, stage) - held_out_loss(baseline, stage)


def _spread_of_known(values: Sequence[float], dropped_ok: bool = True) -> stats.Spread:
    known = [value for value in values if not (dropped_ok and math.isnan(value))]
    return stats.spread_over_seeds(known)


def _matches(study: Study, group: Group) -> dict[str, MatchSummary]:
    result = {}
    for stage in study.stages:
        counts = [exact_match(run, stage) for run in group.runs]
        asked = sum(count for _, count in counts)
        if asked:
            result[stage] = MatchSummary(stage, sum(right for right, _ in counts), asked)
    return result


def _band(study: Study, baseline: Group | None, stage: str) -> float:
    if baseline is None or not stage:
        return math.nan
    finals = [
        stats.final_mean(run.metrics.loss[run.stage_rows(stage)])
        for run in baseline.runs
        if bool(run.stage_rows(stage).any())
    ]
    return stats.seed_band(finals)


def summarise_group(study: Study, group: Group) -> GroupSummary:
    """All numbers of one recipe and variant."""
    baseline = study.baseline_group(group)
    floors = _seed_floors(study, baseline)
    runs = [compare_run(study, run, floors) for run in group.runs]
    paired = [item.last_gap for item in runs if item.last_gap is not None]
    order = {stage: index for index, stage in enumerate(study.stages)}
    reached = [item.stage for item in paired] or study.stages[-1:]
    gap_stage = min(reached, key=lambda stage: order[stage]) if reached else ""
    gaps = [item.stages[gap_stage].final_gap for item in runs if gap_stage in item.stages]
    areas = [
        sum(stage.area for stage in item.stages.values() if stage.gap is not None)
        for item in runs
        if item.last_gap is not None
    ]
    diverged = [item.diverged for item in runs]
    band = _band(study, baseline, gap_stage)
    errors = [item.stages[gap_stage].final_gap_error for item in runs if gap_stage in item.stages]
    error = stats.finite_mean(errors) / math.sqrt(max(1, len(errors)))
    verdict = stats.judge(gaps, diverged, band)
    if group.is_baseline and verdict is not stats.Verdict.DIVERGED:
        verdict = stats.Verdict.BASELINE
    operands = {
        slot: found for slot in SLOTS if (found := summarise_operand(group, slot)) is not None
    }
    bits = [o.scale_bits for o in operands.values() if o.quantized]
    return GroupSummary(
        group=group,
        runs=runs,
        final_loss={
            stage: stats.spread_over_seeds(
                [item.stages[stage].final_loss for item in runs if stage in item.stages]
            )
            for stage in study.stages
        },
        held_out={
            stage: _spread_of_known([held_out_loss(run, stage) for run in group.runs])
            for stage in study.stages
        },
        held_out_gap={
            stage: _spread_of_known([_gap_to_baseline(study, run, stage) for run in group.runs])
            for stage in study.stages
        },
        final_gap=stats.spread_over_seeds(gaps),
        gap_error=error,
        area=stats.spread_over_seeds(areas),
        gap_stage=gap_stage,
        band=band,
        comparable=math.isfinite(band) and len(group.runs) > 1,
        verdict=verdict,
        diverged_seeds=sum(diverged),
        matches=_matches(study, group),
        operands=operands,
        format_text=format_text(operands) or _format_from_recipe(group),
        scale_bits=stats.finite_mean(bits),
    )


def _format_from_recipe(group: Group) -> str:
    """Formats named by the recipe text, for runs that logged no tensors."""
    text = group.runs[0].meta.get("recipe_text", "")
    found = re.findall(r'^\s*(?:format|tile)\s*=\s*"([^"]+)"', text, flags=re.MULTILINE)
    return ", ".join(dict.fromkeys(found))


def summarise(study: Study) -> list[GroupSummary]:
    """One summary per group, in the study's order."""
    return [summarise_group(study, group) for group in study.groups]


def tensor_summaries(group: Group) -> list[TensorSummary]:
    """Time averages of every quantized tensor of a group, worst SQNR first."""
    sums: dict[tuple[str, str], list[tuple[str, Floats]]] = {}
    for run in group.runs:
        log = run.tensors
        if log.step.size == 0:
            continue
        names = ("sqnr_db", "underflow_fraction", "kurtosis", "channel_outlier_ratio")
        columns = np.stack([time_average(log.get(name)) for name in names])
        for index in np.flatnonzero(quantized_mask(run)):
            key = (log.layer[index], log.slot[index])
            sums.setdefault(key, []).append((log.format[index], columns[:, index]))
    result = []
    for (layer, slot), entries in sums.items():
        mean = time_average(np.stack([values for _, values in entries]))
        result.append(TensorSummary(group, layer, slot, entries[0][0], *map(float, mean)))
    return sorted(result, key=lambda t: (math.isnan(t.sqnr_db), t.sqnr_db))
