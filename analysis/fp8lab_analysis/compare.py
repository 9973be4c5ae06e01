"""Numbers of a study: each run against its baseline, and each group over its seeds. Which rows of
a run a statistic takes is decided here, what the statistic is in stats.py; operands: operands.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fp8lab_analysis import stats
from fp8lab_analysis.operands import OperandSummary, format_text, summarise_operands
from fp8lab_analysis.runs import Run, Score
from fp8lab_analysis.study import Group, Study


@dataclass(frozen=True)
class StageComparison:
    """One stage of one run, beside the same stage of its baseline."""

    stage: str
    final_loss: float  # mean over the last tenth, nats/token
    gap: stats.GapCurve | None
    final_gap: float
    final_gap_error: float  # standard error over the last steps (batch means), not over seeds
    largest_gap: float  # smoothed, with its sign
    largest_gap_step: int | None
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
class ScoreSummary:
    """One score at the end of one stage, over seeds."""

    stage: str
    name: str
    spread: stats.Spread
    count: int  # tokens, problems or questions of the first seed


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
    scores: list[ScoreSummary]

    @property
    def seeds(self) -> int:
        """Seeds behind its numbers; no seed counts twice."""
        return len(self.runs)

    @property
    def complete(self) -> bool:
        """True when every run of the group finished."""
        return all(item.run.complete for item in self.runs)

    @property
    def relative_gap(self) -> float:
        """The final gap as a fraction of the baseline's final loss; NaN without either."""
        if not self.gap_stage:
            return math.nan
        reference = self.final_loss[self.gap_stage].mean - self.final_gap.mean
        return self.final_gap.mean / reference if reference > 0.0 else math.nan

    @property
    def diverged_interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the fraction of seeds that diverge."""
        return stats.wilson_interval(self.diverged_seeds, len(self.runs))

    def mean_sqnr_of(self, letter: str) -> float:
        """Mean over the quantized slots of x, w or dy, dB."""
        slots = [o for o in self.operands.values() if o.slot.endswith(f".{letter}")]
        return stats.finite_mean([o.sqnr_db.mean for o in slots if o.quantized])

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


def loss_curve(run: Run, stage: str) -> stats.Curve:
    """Training loss of one stage; empty where the run did not reach it."""
    rows = run.stage_rows(stage)
    return run.metrics.step[rows].astype(np.float64), run.metrics.loss[rows]


def grad_norm_curve(run: Run, stage: str) -> stats.Curve:
    """Gradient norm of one stage before clipping."""
    rows = run.stage_rows(stage)
    return run.metrics.step[rows].astype(np.float64), run.metrics.grad_norm[rows]


def smooth_loss(run: Run, stage: str) -> stats.Curve:
    """`loss_curve`, smoothed."""
    steps, loss = loss_curve(run, stage)
    return steps, stats.smoothed(loss)


def smooth_grad_norm(run: Run, stage: str) -> stats.Curve:
    """`grad_norm_curve`, smoothed on a log axis."""
    steps, norm = grad_norm_curve(run, stage)
    return steps, stats.geometric_smoothed(norm)


def seed_floor(baseline: Group, stage: str) -> stats.SeedFloor | None:
    """The seed band of a baseline's loss curves; None with fewer than two seeds in the stage."""
    curves = [loss_curve(run, stage) for run in baseline.runs]
    return stats.seed_floor([curve for curve in curves if curve[0].size])


def _seed_floors(study: Study, baseline: Group | None) -> dict[str, stats.SeedFloor | None]:
    if baseline is None:
        return {}
    return {stage: seed_floor(baseline, stage) for stage in study.stages}


def _compare_stage(
    run: Run, baseline: Run | None, stage: str, floor: stats.SeedFloor | None
) -> StageComparison:
    """One stage that the run reached; `baseline` may lack it."""
    steps, loss = loss_curve(run, stage)
    gap, ratio, departure = None, math.nan, None
    if baseline is not None:
        found = stats.paired_gap(steps, loss, *loss_curve(baseline, stage))
        gap = found if found.steps.size else None
        ratio = stats.median_ratio(grad_norm_curve(run, stage), grad_norm_curve(baseline, stage))
    if gap is not None and floor is not None:
        departure = stats.first_departure(gap.steps, gap.smooth, floor.at(gap.steps))
    largest, largest_step = stats.largest_gap(gap.steps, gap.smooth) if gap else (math.nan, None)
    return StageComparison(
        stage=stage,
        final_loss=stats.final_mean(loss),
        gap=gap,
        final_gap=stats.final_mean(gap.raw) if gap else math.nan,
        final_gap_error=stats.batch_means_error(stats.tail(gap.raw)) if gap else math.nan,
        largest_gap=largest,
        largest_gap_step=largest_step,
        area=stats.gap_area(gap.steps, gap.raw) if gap else math.nan,
        first_departure=departure,
        spikes=len(stats.spike_rows(loss)),
        diverged=stats.has_diverged(loss),
        grad_norm_ratio=ratio,
    )


def compare_run(study: Study, run: Run, floors: dict[str, stats.SeedFloor | None]) -> RunComparison:
    """Every stage of `run` against its paired baseline."""
    baseline = study.pairings.of(run)
    return RunComparison(
        run,
        {
            stage: _compare_stage(run, baseline, stage, floors.get(stage))
            for stage in study.stages
            if bool(run.stage_rows(stage).any())
        },
    )


def held_out_loss(run: Run, stage: str) -> float | None:
    """Held-out loss at the last evaluation of a stage: NaN where that broke, None without one."""
    if stage not in run.stage_names:
        return None
    rows = np.flatnonzero(run.evaluations.stage == run.stage_names.index(stage))
    return float(run.evaluations.loss[rows[-1]]) if rows.size else None


def held_out_gap(study: Study, run: Run, stage: str) -> float | None:
    """`held_out_loss` minus that of the baseline; None without either."""
    baseline = study.pairings.of(run)
    ours = held_out_loss(run, stage)
    theirs = held_out_loss(baseline, stage) if baseline is not None else None
    return ours - theirs if ours is not None and theirs is not None else None


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


def _spread_of_measured(values: Sequence[float | None]) -> stats.Spread:
    """Over the seeds that were measured; one that was and broke makes it NaN."""
    return stats.spread_over_seeds([value for value in values if value is not None])


def _matches(study: Study, group: Group) -> dict[str, MatchSummary]:
    result = {}
    for stage in study.stages:
        counts = [exact_match(run, stage) for run in group.runs]
        asked = sum(count for _, count in counts)
        if asked:
            result[stage] = MatchSummary(stage, sum(right for right, _ in counts), asked)
    return result


def _final_scores(run: Run, stage: str) -> dict[str, Score]:
    """The scores of the last evaluation of a stage, by name."""
    if stage not in run.stage_names:
        return {}
    index = run.stage_names.index(stage)
    rows = [score for score in run.scores if score.stage == index]
    return {score.name: score for score in rows if score.step == rows[-1].step}


def _scores(study: Study, group: Group) -> list[ScoreSummary]:
    """What /eval has no column for, in the order of the first seed."""
    result = []
    for stage in study.stages:
        finals = [_final_scores(run, stage) for run in group.runs]
        finals = [scores for scores in finals if scores]
        for name, first in (finals[0] if finals else {}).items():
            values = [scores[name].value for scores in finals if name in scores]
            spread = stats.spread_over_seeds(values)
            result.append(ScoreSummary(stage, name, spread, first.count))
    return result


def _band(study: Study, baseline: Group | None, stage: str) -> float:
    if baseline is None or not stage:
        return math.nan
    losses = [loss_curve(run, stage)[1] for run in baseline.runs]
    return stats.seed_band([stats.final_mean(loss) for loss in losses if loss.size])


def _gap_stage(study: Study, runs: Sequence[RunComparison]) -> str:
    """The last stage that every paired run of a group reached together with its baseline."""
    reached = [item.last_gap.stage for item in runs if item.last_gap is not None]
    return min(reached or study.stages[-1:], key=study.stages.index, default="")


def _verdict(
    group: Group, gaps: Sequence[float], diverged: Sequence[bool], band: float
) -> stats.Verdict:
    verdict = stats.judge(gaps, diverged, band)
    if group.is_baseline and verdict is not stats.Verdict.DIVERGED:
        return stats.Verdict.BASELINE
    return verdict


def summarise_group(study: Study, group: Group) -> GroupSummary:
    """All numbers of one recipe and variant."""
    baseline = study.baseline_group(group)
    floors = _seed_floors(study, baseline)
    runs = [compare_run(study, run, floors) for run in group.runs]
    gap_stage = _gap_stage(study, runs)
    ends = [item.stages[gap_stage] for item in runs if gap_stage in item.stages]
    gaps = [end.final_gap for end in ends]
    areas = [
        sum(stage.area for stage in item.stages.values() if stage.gap is not None)
        for item in runs
        if item.last_gap is not None
    ]
    diverged = [item.diverged for item in runs]
    band = _band(study, baseline, gap_stage)
    operands = summarise_operands(group)
    by_stage = {
        stage: [item.stages[stage].final_loss for item in runs if stage in item.stages]
        for stage in study.stages
    }
    return GroupSummary(
        group=group,
        runs=runs,
        final_loss={stage: stats.spread_over_seeds(finals) for stage, finals in by_stage.items()},
        held_out={
            stage: _spread_of_measured([held_out_loss(run, stage) for run in group.runs])
            for stage in study.stages
        },
        held_out_gap={
            stage: _spread_of_measured([held_out_gap(study, run, stage) for run in group.runs])
            for stage in study.stages
        },
        final_gap=stats.spread_over_seeds(gaps),
        gap_error=stats.error_of_mean([end.final_gap_error for end in ends]),
        area=stats.spread_over_seeds(areas),
        gap_stage=gap_stage,
        band=band,
        comparable=math.isfinite(band) and len(group.runs) > 1,
        verdict=_verdict(group, gaps, diverged, band),
        diverged_seeds=sum(diverged),
        matches=_matches(study, group),
        operands=operands,
        format_text=format_text(operands) or _format_from_recipe(group),
        scale_bits=stats.finite_mean([o.scale_bits for o in operands.values() if o.quantized]),
        scores=_scores(study, group),
    )


def _format_from_recipe(group: Group) -> str:
    """Formats named by the recipe text, for runs that logged no tensors."""
    text = group.runs[0].meta.get("recipe_text", "")
    found = re.findall(r'^\s*(?:format|tile)\s*=\s*"([^"]+)"', text, flags=re.MULTILINE)
    return ", ".join(dict.fromkeys(found))


def summarise(study: Study) -> list[GroupSummary]:
    """One summary per group, in the study's order."""
    return [summarise_group(study, group) for group in study.groups]


def gap_change(summary: GroupSummary, plain: GroupSummary) -> float:
    """What a variant adds to the final gap of its recipe."""
    return summary.final_gap.mean - plain.final_gap.mean
