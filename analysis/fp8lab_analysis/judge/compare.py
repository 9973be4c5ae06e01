"""Numbers of a study: each run against its baseline, and each group over its seeds. This module
selects the rows of a run for a statistic; stats.py defines the statistics, operands.py those of
operands.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fp8lab_analysis.judge import stats
from fp8lab_analysis.judge.divergence import find_divergence
from fp8lab_analysis.judge.document_pairs import text_noise_after
from fp8lab_analysis.judge.inference import relative_gaps
from fp8lab_analysis.judge.operands import (
    OperandSummary,
    format_text,
    summarise_activations,
    summarise_operands,
)
from fp8lab_analysis.judge.short_runs import extent_of
from fp8lab_analysis.judge.speed import EqualQuality, equal_quality, held_out_curve, throughput
from fp8lab_analysis.judge.text_noise import TextNoise
from fp8lab_analysis.judge.verdicts import Evidence, Verdict, judge
from fp8lab_analysis.read.runs import Run, Score
from fp8lab_analysis.read.study import Group, Study


@dataclass(frozen=True)
class StageComparison:
    """One stage of one run, compared with the same stage of its baseline."""

    stage: str
    final_loss: float  # mean over the last tenth, nats/token
    gap: stats.GapCurve | None
    final_gap: float
    final_gap_error: float  # standard error over the last steps (batch means), not over seeds
    largest_gap: float  # smoothed, signed
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
    """Exact match at the end of one stage, over the answers of all seeds."""

    stage: str
    correct: float
    asked: int
    problems: int  # of the seed with the most problems; all seeds answer the same ones

    @property
    def fraction(self) -> float:
        """Fraction answered exactly."""
        return self.correct / self.asked if self.asked else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the fraction over problems such as these. A problem that several
        seeds answer counts once: their answers are not independent."""
        return stats.wilson_interval(self.fraction * self.problems, self.problems)


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
    gap_error: float  # standard error within the run, if there is only one seed
    area: stats.Spread
    gap_stage: str  # stage that the final gap belongs to
    verdict: Verdict
    verdicts_after: dict[str, Verdict | None]  # by stage, on held-out losses; None: not evaluated
    judged_on: str  # the losses of the verdict: "held-out" or "training"
    seed_gaps: list[float]  # relative gaps of the verdict
    equal_quality: list[EqualQuality]  # at the baseline's final held-out loss, and at the margin
    matches: dict[str, MatchSummary]
    operands: dict[str, OperandSummary]
    activations: dict[str, OperandSummary]  # that layers save quantized
    format_text: str
    scale_bits: float  # mean over quantized operands
    scores: list[ScoreSummary]
    tokens_per_second: dict[str, stats.Spread]  # by stage

    @property
    def seeds(self) -> int:
        """Number of seeds; no seed counts twice."""
        return len(self.runs)

    @property
    def complete(self) -> bool:
        """True if every run of the group finished."""
        return all(item.run.complete for item in self.runs)

    @property
    def first_departure(self) -> tuple[int, str, int] | None:
        """The first step at which the gap of any seed leaves the seed band
        (`stats.first_departure`), its stage, and the number of seeds that leave it; None if none
        does."""
        left = [
            next((s for s in item.stages.values() if s.first_departure is not None), None)
            for item in self.runs
        ]
        found = [(s.first_departure, s.stage) for s in left if s and s.first_departure is not None]
        return (*min(found), len(found)) if found else None

    def mean_sqnr_of(self, letter: str) -> float:
        """Returns the mean SQNR over the quantized slots of x, w or dy, dB."""
        slots = [o for o in self.operands.values() if o.slot.endswith(f".{letter}")]
        return stats.finite_mean([o.sqnr_db.mean for o in slots if o.quantized])

    @property
    def mean_sqnr_db(self) -> float:
        """Mean SQNR over the quantized operands, dB."""
        return stats.finite_mean([o.sqnr_db.mean for o in self.operands.values() if o.quantized])

    @property
    def unlike_others(self) -> tuple[int, int, int]:
        """Numbers of logged values of quantized operands: all-zero ones, exact ones, all."""
        found = [o for o in self.operands.values() if o.quantized]
        return (
            sum(o.all_zero for o in found),
            sum(o.exact for o in found),
            sum(o.logged for o in found),
        )

    @property
    def worst_operand(self) -> OperandSummary | None:
        """Quantized operand with the lowest mean SQNR."""
        usable = [
            o for o in self.operands.values() if o.quantized and math.isfinite(o.sqnr_db.mean)
        ]
        return min(usable, key=lambda o: o.sqnr_db.mean) if usable else None

    @property
    def worst_underflow(self) -> OperandSummary | None:
        """Quantized operand with the highest mean underflow fraction."""
        usable = [
            o for o in self.operands.values() if o.quantized and math.isfinite(o.underflow.mean)
        ]
        return max(usable, key=lambda o: o.underflow.mean) if usable else None


def loss_curve(run: Run, stage: str) -> stats.Curve:
    """Training loss of one stage; empty if the run did not reach it."""
    rows = run.stage_rows(stage)
    return run.metrics.step[rows].astype(np.float64), run.metrics.loss[rows]


def grad_norm_curve(run: Run, stage: str) -> stats.Curve:
    """Gradient norm of one stage before clipping, where it was measured."""
    rows = run.stage_rows(stage) & ~run.without_norm
    return run.metrics.step[rows].astype(np.float64), run.metrics.grad_norm[rows]


def smooth_loss(run: Run, stage: str) -> stats.Curve:
    """Smoothed `loss_curve`."""
    steps, loss = loss_curve(run, stage)
    return steps, stats.smoothed(loss)


def smooth_grad_norm(run: Run, stage: str) -> stats.Curve:
    """`grad_norm_curve`, smoothed in log space."""
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
    """Compares one stage that the run reached; `baseline` may lack it."""
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
        diverged=find_divergence(run, stage) is not None,
        grad_norm_ratio=ratio,
    )


def compare_run(study: Study, run: Run, floors: dict[str, stats.SeedFloor | None]) -> RunComparison:
    """Compares every stage of `run` with its paired baseline."""
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
    """Held-out loss at the last evaluation of a stage; NaN if it is not finite, None without
    one."""
    losses = held_out_curve(run, stage)[1]
    return float(losses[-1]) if losses.size else None


def held_out_pair(run: Run, baseline: Run | None, stage: str) -> tuple[float, float] | None:
    """Held-out losses of run and baseline at the last common evaluation of a stage."""
    if baseline is None:
        return None
    ours, theirs = held_out_curve(run, stage), held_out_curve(baseline, stage)
    common, a, b = np.intersect1d(ours[0], theirs[0], return_indices=True)
    return (float(ours[1][a[-1]]), float(theirs[1][b[-1]])) if common.size else None


def held_out_gap(study: Study, run: Run, stage: str) -> float | None:
    """Difference of `held_out_pair`; None without a pair."""
    pair = held_out_pair(run, study.pairings.of(run), stage)
    return pair[0] - pair[1] if pair is not None else None


def training_pair(run: Run, baseline: Run | None, stage: str) -> tuple[float, float]:
    """Final training losses of run and baseline over the common steps of a stage; NaN if there are
    none."""
    if baseline is None:
        return math.nan, math.nan
    ours, theirs = loss_curve(run, stage), loss_curve(baseline, stage)
    _, a, b = np.intersect1d(ours[0], theirs[0], return_indices=True)
    return stats.final_mean(ours[1][a]), stats.final_mean(theirs[1][b])


def exact_match(run: Run, stage: str) -> tuple[float, int]:
    """(correct answers, problems) at the last measured evaluation of a stage."""
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
    """Spread over the measured seeds; NaN if the value of a measured seed is not finite."""
    return stats.spread_over_seeds([value for value in values if value is not None])


def _matches(study: Study, group: Group) -> dict[str, MatchSummary]:
    result = {}
    for stage in study.stages:
        counts = [exact_match(run, stage) for run in group.runs]
        asked = [count for _, count in counts]
        if any(asked):
            right = sum(number for number, _ in counts)
            result[stage] = MatchSummary(stage, right, sum(asked), max(asked))
    return result


def final_scores(run: Run, stage: str) -> dict[str, Score]:
    """The last value of each score in a stage, by name. Evaluations and update errors are logged at
    different steps."""
    if stage not in run.stage_names:
        return {}
    index = run.stage_names.index(stage)
    return {score.name: score for score in run.scores if score.stage == index}


def _scores(study: Study, group: Group) -> list[ScoreSummary]:
    """Scores that are no columns of /eval, in the order of the first seed."""
    result = []
    for stage in study.stages:
        finals = [final_scores(run, stage) for run in group.runs]
        finals = [scores for scores in finals if scores]
        for name, first in (finals[0] if finals else {}).items():
            values = [scores[name].value for scores in finals if name in scores]
            spread = stats.spread_over_seeds(values)
            result.append(ScoreSummary(stage, name, spread, first.count))
    return result


def _gap_stage(study: Study, runs: Sequence[RunComparison]) -> str:
    """The last stage that every paired run of a group and its baseline reached."""
    reached = [item.last_gap.stage for item in runs if item.last_gap is not None]
    return min(reached or study.stages[-1:], key=study.stages.index, default="")


@dataclass(frozen=True)
class _Compared:
    """A group with compared runs, without a verdict."""

    group: Group
    runs: list[RunComparison]
    gap_stage: str
    judged_on: str
    pairs: list[tuple[float, float]]  # losses of run and baseline for the verdict; NaN: none
    text: TextNoise = TextNoise(unknown="a verdict on training losses")

    @property
    def gaps(self) -> list[float]:
        """Relative gaps of the pairs."""
        gaps = relative_gaps([ours for ours, _ in self.pairs], [theirs for _, theirs in self.pairs])
        return [float(gap) for gap in gaps]


def _held_out_pairs(study: Study, group: Group, stage: str) -> list[tuple[float, float]] | None:
    """One pair per seed; None if a seed was not evaluated."""
    pairs = [held_out_pair(run, study.pairings.of(run), stage) for run in group.runs]
    found = [pair for pair in pairs if pair is not None]
    return found if len(found) == len(pairs) else None


def _text_noise(study: Study, group: Group, stage: str) -> TextNoise:
    """The noise of the held-out text in the gap of `_held_out_pairs`."""
    partners = [(run, study.pairings.of(run)) for run in group.runs]
    return text_noise_after([(run, twin) for run, twin in partners if twin is not None], stage)


def _compare_group(study: Study, group: Group) -> _Compared:
    floors = _seed_floors(study, study.baseline_group(group))
    runs = [compare_run(study, run, floors) for run in group.runs]
    stage = _gap_stage(study, runs)
    pairs = _held_out_pairs(study, group, stage)
    if pairs is not None:
        noise = _text_noise(study, group, stage)
        return _Compared(group, runs, stage, "held-out", pairs, noise)
    pairs = [training_pair(run, study.pairings.of(run), stage) for run in group.runs]
    return _Compared(group, runs, stage, "training", pairs)


def match_tells(summaries: Sequence[GroupSummary], stage: str) -> bool:
    """Returns whether exact match after a stage can distinguish groups: not if all or no answers
    are correct."""
    fractions = {s.matches[stage].fraction for s in summaries if stage in s.matches}
    return bool(fractions) and fractions not in ({0.0}, {1.0})


def _verdicts_after(
    study: Study, groups: Sequence[_Compared], broken: Mapping[Path, bool], stage: str
) -> list[Verdict | None]:
    """Returns the verdict on each group by the held-out loss after `stage`. All groups are one
    family, as in the verdict on the study. None if a seed has no such loss."""
    pairs = [_held_out_pairs(study, item.group, stage) for item in groups]
    judged = [
        dataclasses.replace(
            item,
            gap_stage=stage,
            judged_on="held-out",
            pairs=found,
            text=_text_noise(study, item.group, stage),
        )
        for item, found in zip(groups, pairs)
        if found is not None
    ]
    verdicts = iter(_judge(study, judged, broken))
    return [None if found is None else next(verdicts) for found in pairs]


def _broken(groups: Sequence[_Compared]) -> dict[Path, bool]:
    """Returns by run file whether the run diverged."""
    return {item.run.path: item.diverged for compared in groups for item in compared.runs}


def _ended_without_loss(run: Run) -> bool:
    """True if the last loss is not finite: an earlier evaluation is then not the run's final
    one."""
    losses = run.metrics.loss[~run.without_loss]
    return losses.size > 0 and not math.isfinite(losses[-1])


def _evidence(
    study: Study, groups: Sequence[_Compared], broken: Mapping[Path, bool]
) -> list[Evidence]:
    """Returns the evidence for the verdict on each group."""
    result = []
    for compared in groups:
        partners = [study.pairings.of(run) for run in compared.group.runs]
        twins = [partner for partner in partners if partner is not None]
        result.append(
            Evidence(
                gaps=[
                    math.nan if _ended_without_loss(item.run) else gap
                    for item, gap in zip(compared.runs, compared.gaps)
                ],
                diverged=[broken[item.run.path] for item in compared.runs],
                twins_diverged=[broken[twin.path] for twin in twins],
                # Baselines with equal losses are one run: their seeds changed nothing.
                twins=[twin.metrics.loss.tobytes() for twin in twins],
                is_baseline=compared.group.is_baseline,
                text=compared.text,
                extent=extent_of([*compared.group.runs, *twins], compared.gap_stage),
            )
        )
    return result


def _judge(study: Study, groups: Sequence[_Compared], broken: Mapping[Path, bool]) -> list[Verdict]:
    """Returns the verdict on each of `groups`. Their family also contains the listed comparisons of
    the study that no group tests yet because a run is missing or in progress."""
    evidence = _evidence(study, groups, broken)
    family = [compared for compared, arm in zip(groups, evidence) if arm.in_family]
    tested = {run.path for compared in family for run in compared.group.runs}
    ended = {run.path for run in study.runs if run.complete or broken[run.path]}
    awaited = sum(
        not item.arms & tested and not item.arms | item.baselines <= ended for item in study.planned
    )
    return judge(evidence, study.design, awaited)


def _summarise_group(
    study: Study, compared: _Compared, verdict: Verdict, verdicts_after: dict[str, Verdict | None]
) -> GroupSummary:
    """Returns all numbers of one recipe and variant."""
    group, runs, gap_stage = compared.group, compared.runs, compared.gap_stage
    ends = [item.stages[gap_stage] for item in runs if gap_stage in item.stages]
    areas = [
        sum(stage.area for stage in item.stages.values() if stage.gap is not None)
        for item in runs
        if item.last_gap is not None
    ]
    partners = [(run, study.pairings.of(run)) for run in group.runs]
    pairs = [(run, partner) for run, partner in partners if partner is not None]
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
        final_gap=stats.spread_over_seeds([end.final_gap for end in ends]),
        gap_error=stats.error_of_mean([end.final_gap_error for end in ends]),
        area=stats.spread_over_seeds(areas),
        gap_stage=gap_stage,
        verdict=verdict,
        verdicts_after=verdicts_after,
        judged_on=compared.judged_on,
        seed_gaps=compared.gaps,
        equal_quality=[
            found
            for above in (0.0, study.design.margin)
            if (found := equal_quality(pairs, gap_stage, above)) is not None
        ],
        matches=_matches(study, group),
        operands=operands,
        activations=summarise_activations(group),
        format_text=format_text(operands) or _format_from_recipe(group),
        scale_bits=stats.finite_mean([o.scale_bits for o in operands.values() if o.quantized]),
        scores=_scores(study, group),
        tokens_per_second={
            stage: stats.spread_over_seeds([throughput(run, stage) for run in group.runs])
            for stage in study.stages
        },
    )


def _format_from_recipe(group: Group) -> str:
    """Returns the formats in the recipe text, for runs that logged no tensors."""
    text = group.runs[0].meta.get("recipe_text", "")
    found = re.findall(r'^\s*(?:format|tile)\s*=\s*"([^"]+)"', text, flags=re.MULTILINE)
    return ", ".join(dict.fromkeys(found))


def summarise(study: Study) -> list[GroupSummary]:
    """Returns one summary per group, in the study's order. All groups are judged together."""
    groups = [_compare_group(study, group) for group in study.groups]
    broken = _broken(groups)
    verdicts = _judge(study, groups, broken)
    after = {stage: _verdicts_after(study, groups, broken, stage) for stage in study.stages}
    return [
        _summarise_group(study, group, verdict, {stage: after[stage][row] for stage in after})
        for row, (group, verdict) in enumerate(zip(groups, verdicts))
    ]


def measured_stage(study: Study) -> str:
    """Returns the stage for speed comparisons: the one with the most steps."""
    longest = {
        stage: max(int(run.stage_rows(stage).sum()) for run in study.runs) for stage in study.stages
    }
    return max(longest, key=lambda stage: longest[stage], default="")


def gap_change(summary: GroupSummary, plain: GroupSummary) -> float:
    """Returns the change of a recipe's final gap by a variant."""
    return summary.final_gap.mean - plain.final_gap.mean
