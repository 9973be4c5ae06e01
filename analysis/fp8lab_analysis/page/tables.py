"""The tables of a report: their rows, columns and units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fp8lab_analysis.judge import stats
from fp8lab_analysis.judge.attribution import Attribution, Contribution, attribute_gaps
from fp8lab_analysis.judge.compare import (
    GroupSummary,
    MatchSummary,
    ScoreSummary,
    StageComparison,
    held_out_loss,
)
from fp8lab_analysis.judge.early_warning import DetectorSummary, detector_summaries
from fp8lab_analysis.judge.operands import OperandSummary, TensorSummary, tensor_summaries
from fp8lab_analysis.judge.speed import EqualQuality
from fp8lab_analysis.judge.verdicts import Kind, Verdict
from fp8lab_analysis.page.cells import (
    Cell,
    Column,
    Field,
    Table,
    equal_quality_text,
    gap_text,
    tabulate,
    target_text,
    verdict_text,
)
from fp8lab_analysis.read.runs import Event, Run
from fp8lab_analysis.read.study import Study, differing_settings

WORST_TENSORS = 6  # per group in the HTML table


def _group_label(summary: GroupSummary) -> str:
    return summary.group.label


def _stage_losses(study: Study, prefix: str) -> list[Field[GroupSummary]]:
    def cell(stage: str) -> Callable[[GroupSummary], Cell]:
        return lambda summary: summary.final_loss[stage].mean

    return [
        (Column(f"{prefix} {stage}", "nats/token", "{:.4f}"), cell(stage)) for stage in study.stages
    ]


def _held_out_losses(study: Study, summaries: Sequence[GroupSummary]) -> list[Field[GroupSummary]]:
    """Returns one column per evaluated stage."""

    def cell(stage: str) -> Callable[[GroupSummary], Cell]:
        return lambda summary: summary.held_out[stage].mean

    evaluated = [s for s in study.stages if any(x.held_out[s].count for x in summaries)]
    return [
        (Column(f"held-out loss {stage}", "nats/token", "{:.4f}"), cell(stage))
        for stage in evaluated
    ]


def _last_match(summary: GroupSummary) -> MatchSummary | None:
    return summary.matches[list(summary.matches)[-1]] if summary.matches else None


def _match_percentages(match: MatchSummary | None) -> tuple[float, float, float]:
    """Returns exact match and the ends of its interval, in percent."""
    if match is None:
        return math.nan, math.nan, math.nan
    low, high = match.interval
    return 100.0 * match.fraction, 100.0 * low, 100.0 * high


def _worst_underflow(summary: GroupSummary) -> float:
    """Returns the underflow of the worst operand in percent."""
    operand = summary.worst_underflow
    return 100.0 * operand.underflow.mean if operand else math.nan


def summary_table(study: Study, summaries: Sequence[GroupSummary]) -> Table:
    """One row per recipe and variant."""
    fields: list[Field[GroupSummary]] = [
        (Column("recipe"), _group_label),
        (Column("operands"), lambda s: s.format_text),
        (Column("seeds"), lambda s: len(s.runs)),
        *_stage_losses(study, "final training loss"),
        (Column("final gap", "nats/token", "{:+.4f}"), lambda s: s.final_gap.mean),
        (Column("gap sd over seeds", "nats/token", "{:.4f}"), lambda s: s.final_gap.sd),
        (Column("judged gap", "%", "{:+.3f}"), lambda s: 100.0 * s.verdict.gap.mean),
        (Column("gap area", "nats/token × step", "{:+.2f}"), lambda s: s.area.mean),
        (Column("exact match", "%", "{:.1f}"), lambda s: _match_percentages(_last_match(s))[0]),
        (Column("exact match low", "%", "{:.1f}"), lambda s: _match_percentages(_last_match(s))[1]),
        (
            Column("exact match high", "%", "{:.1f}"),
            lambda s: _match_percentages(_last_match(s))[2],
        ),
        (Column("SQNR x", "dB", "{:.1f}"), lambda s: s.mean_sqnr_of("x")),
        (Column("SQNR w", "dB", "{:.1f}"), lambda s: s.mean_sqnr_of("w")),
        (Column("SQNR dy", "dB", "{:.1f}"), lambda s: s.mean_sqnr_of("dy")),
        (Column("worst underflow", "%", "{:.3g}"), _worst_underflow),
        (Column("scale bits", "bit/element", "{:.3g}"), lambda s: s.scale_bits),
        (Column("verdict"), verdict_text),
    ]
    return tabulate("summary", "Summary", summaries, _group_label, fields)


def overview_table(study: Study, summaries: Sequence[GroupSummary]) -> Table:
    """Returns the summary for the page, with uncertainties next to their numbers."""
    fields: list[Field[GroupSummary]] = [
        (Column("recipe"), _group_label),
        (Column("verdict"), verdict_text),
        (Column("gap", "% of the baseline's loss", "{} "), _judged_gap),
        (Column("final training gap", "nats/token", "{} "), gap_text),
        *_held_out_losses(study, summaries),
        *_stage_losses(study, "training loss"),
        (Column("gap area", "nats/token × step", "{:+.2f}"), lambda s: s.area.mean),
        (Column("exact match", "% [95 % interval]", "{} "), match_text),
        (Column("SQNR x / w / dy", "dB", "{} "), sqnr_text),
        (Column("worst underflow", "% of elements", "{:.3g}"), _worst_underflow),
        (Column("scale bits", "bit/element", "{:.3g}"), lambda s: s.scale_bits),
    ]
    return tabulate("overview", "Summary", summaries, _group_label, fields)


def _judged_gap(summary: GroupSummary) -> str | None:
    """Returns the gap of the verdict, or the final gap of a diverged arm, if known."""
    if summary.verdict.kind is Kind.DIVERGED:
        return summary.verdict.gap_text
    return summary.verdict.gap_text if math.isfinite(summary.verdict.gap.mean) else None


def _departure_step(summary: GroupSummary) -> int | None:
    found = summary.first_departure
    return found[0] if found else None


def verdict_table(summaries: Sequence[GroupSummary], on_page: bool = False) -> Table:
    """One row per arm: its verdict in words and its numbers; on the page, only the first
    numbers."""
    rows = [s for s in summaries if not s.group.is_baseline]
    gap: Field[GroupSummary] = (
        Column("gap", "%", "{:+.3f}"),
        lambda s: 100.0 * s.verdict.gap.mean,
    )
    if on_page:
        gap = (Column("gap", "% of the baseline's loss", "{} "), _judged_gap)
    fields: list[Field[GroupSummary]] = [
        (Column("recipe"), _group_label),
        (Column("verdict"), verdict_text),
        (Column("in words"), lambda s: s.verdict.sentence),
        (Column("loss"), lambda s: f"{s.judged_on}, {s.gap_stage}"),
        (Column("seeds", "", "{:d}"), lambda s: s.seeds),
        gap,
        (Column("± over seeds", "%", "{:.3f}"), lambda s: 100.0 * s.verdict.half_width),
        (Column("p equivalence", "", "{:.2g}"), lambda s: s.verdict.equivalence_p),
        (Column("p difference", "", "{:.2g}"), lambda s: s.verdict.difference_p),
        (Column("detectable gap", "%", "{:.3f}"), lambda s: 100.0 * s.verdict.detectable),
        (Column("seeds to settle", "", "{:d}"), lambda s: s.verdict.seeds_to_settle),
    ]
    if not on_page or any(s.verdict.text.is_known for s in rows):
        over_seeds = [column.name for column, _ in fields].index("± over seeds")
        fields[over_seeds + 1 : over_seeds + 1] = [
            (Column("± over documents", "%", "{:.3f}"), lambda s: 100.0 * s.verdict.over_documents),
            (Column("± over both", "%", "{:.3f}"), lambda s: 100.0 * s.verdict.over_both),
        ]
    if not on_page:
        fields += [
            (Column("documents"), lambda s: s.verdict.text.documents or None),
            (Column("level of the intervals"), lambda s: s.verdict.level),
            (Column("sd over seeds", "%"), lambda s: 100.0 * s.verdict.gap.sd),
            (Column("sd of the tests", "%"), lambda s: 100.0 * s.verdict.noise.sd),
            (Column("degrees of freedom"), lambda s: s.verdict.noise.df),
            (Column("prior degrees of freedom"), lambda s: s.verdict.noise.prior_df),
            (Column("arms of the pool"), lambda s: s.verdict.noise.pool),
            (Column("p homogeneity of the arm"), lambda s: s.verdict.noise.arm_p),
            (Column("p homogeneity of the baseline"), lambda s: s.verdict.noise.baseline_p),
            (Column("p sign flips"), lambda s: s.verdict.sign_flip_p),
            (Column("arms of the correction"), lambda s: s.verdict.arms),
            (Column("diverged seeds"), lambda s: s.verdict.diverged),
            (Column("gap of diverged seeds", "%"), lambda s: 100.0 * s.verdict.gap_seen),
            (Column("rate of divergence low", "%"), lambda s: 100.0 * s.verdict.rate[0]),
            (Column("rate of divergence high", "%"), lambda s: 100.0 * s.verdict.rate[1]),
            (Column("leaves the seed band", "step"), _departure_step),
        ]
    return tabulate("verdicts", "Verdicts", rows, _group_label, fields)


def speed_table(summaries: Sequence[GroupSummary]) -> Table:
    """One row per arm: its cost until it reaches the baseline's final held-out loss."""
    rows = [(s.group.label, found) for s in summaries for found in s.equal_quality]
    fields: list[Field[tuple[str, EqualQuality]]] = [
        (Column("recipe"), lambda r: r[0]),
        (Column("until"), lambda r: target_text(r[1])),
        (Column("reached in", "seeds", "{}"), lambda r: r[1].reached),
        (Column("of", "seeds", "{}"), lambda r: r[1].seeds),
        (Column("steps", "", "{:.1f}"), lambda r: r[1].steps.mean),
        (Column("tokens", "", "{:.0f}"), lambda r: r[1].tokens.mean),
        (Column("seconds", "s", "{:.1f}"), lambda r: r[1].seconds.mean),
        (Column("steps beside the baseline", "", "{:.3f}"), lambda r: r[1].step_ratio.mean),
        (Column("sd over seeds", "", "{:.3f}"), lambda r: r[1].step_ratio.sd),
        (Column("seconds beside the baseline", "", "{:.3f}"), lambda r: r[1].second_ratio.mean),
        (Column("sd of that", "", "{:.3f}"), lambda r: r[1].second_ratio.sd),
        (Column("in words"), lambda r: equal_quality_text(r[1])),
        (Column("measured on"), lambda r: r[1].devices),
    ]
    return tabulate("equal_quality", "Speed at equal quality", rows, lambda r: r[0], fields)


def match_text(summary: GroupSummary) -> str | None:
    """Returns the percentage after the last evaluated stage with its 95 % interval."""
    match = _last_match(summary)
    if match is None:
        return None
    fraction, low, high = _match_percentages(match)
    return f"{fraction:.1f} [{low:.0f}, {high:.0f}]"


def sqnr_text(summary: GroupSummary) -> str | None:
    """Returns the mean SQNR of x, w and dy; None if no operand is quantized."""
    means = [summary.mean_sqnr_of(letter) for letter in ("x", "w", "dy")]
    return " / ".join(f"{v:.1f}" for v in means) if math.isfinite(max(means)) else None


@dataclass(frozen=True)
class _RunStage:
    """One stage of one run of a group."""

    label: str
    run: Run
    stage: StageComparison


def stage_table(summaries: Sequence[GroupSummary]) -> Table:
    """One row per run and stage."""
    rows = [
        _RunStage(summary.group.label, item.run, stage)
        for summary in summaries
        for item in summary.runs
        for stage in item.stages.values()
    ]
    fields: list[Field[_RunStage]] = [
        (Column("recipe"), lambda r: r.label),
        (Column("seed"), lambda r: r.run.seed),
        (Column("stage"), lambda r: r.stage.stage),
        (Column("final loss", "nats/token", "{:.4f}"), lambda r: r.stage.final_loss),
        (
            Column("held-out loss", "nats/token", "{:.4f}"),
            lambda r: held_out_loss(r.run, r.stage.stage),
        ),
        (Column("final gap", "nats/token", "{:+.4f}"), lambda r: r.stage.final_gap),
        (
            Column("standard error in the run", "nats/token", "{:.4f}"),
            lambda r: r.stage.final_gap_error,
        ),
        (Column("largest gap", "nats/token", "{:+.4f}"), lambda r: r.stage.largest_gap),
        (Column("largest gap at", "step", "{}"), lambda r: r.stage.largest_gap_step),
        (Column("gap area", "nats/token × step", "{:+.2f}"), lambda r: r.stage.area),
        (Column("leaves the seed band", "step", "{}"), lambda r: r.stage.first_departure),
        (Column("spikes", "", "{}"), lambda r: r.stage.spikes),
        (Column("gradient norm ratio", "", "{:.3f}"), lambda r: r.stage.grad_norm_ratio),
        (Column("diverged"), lambda r: "yes" if r.stage.diverged else "no"),
    ]
    return tabulate("stages", "Every run, stage by stage", rows, lambda r: r.label, fields)


def operand_table(summaries: Sequence[GroupSummary]) -> Table:
    """One row per recipe and quantized slot, and per activation that is saved quantized."""
    rows = [
        (summary.group.label, operand)
        for summary in summaries
        for operand in [*summary.operands.values(), *summary.activations.values()]
        if operand.quantized
    ]
    fields: list[Field[tuple[str, OperandSummary]]] = [
        (Column("recipe"), lambda r: r[0]),
        (Column("slot"), lambda r: r[1].slot),
        (Column("quantizer"), lambda r: r[1].quantizer_text),
        (Column("mean SQNR", "dB", "{:.2f}"), lambda r: r[1].sqnr_db.mean),
        (Column("SQNR sd over seeds", "dB", "{:.2f}"), lambda r: r[1].sqnr_db.sd),
        (Column("SQNR of the worst tensor", "dB", "{:.2f}"), lambda r: r[1].worst_sqnr_db),
        (Column("logged tensors"), lambda r: r[1].logged),
        (Column("of them all zero"), lambda r: r[1].all_zero),
        (Column("of them exact"), lambda r: r[1].exact),
        (Column("underflow", "%", "{:.3g}"), lambda r: 100.0 * r[1].underflow.mean),
        (Column("saturation", "%", "{:.3g}"), lambda r: 100.0 * r[1].saturation.mean),
        (Column("scale bits", "bit/element", "{:.3g}"), lambda r: r[1].scale_bits),
        (Column("smallest scale", "log2", "{:.1f}"), lambda r: r[1].log2_scale[0]),
        (Column("largest scale", "log2", "{:.1f}"), lambda r: r[1].log2_scale[2]),
    ]
    return tabulate("operands", "Operands", rows, lambda r: r[0], fields)


def tensor_table(tensors: Sequence[TensorSummary], name: str, title: str, note: str) -> Table:
    """One row per tensor of a recipe."""
    fields: list[Field[TensorSummary]] = [
        (Column("recipe"), lambda t: t.group.label),
        (Column("layer"), lambda t: t.layer),
        (Column("slot"), lambda t: t.slot),
        (Column("quantizer"), lambda t: t.format),
        (Column("mean SQNR", "dB", "{:.2f}"), lambda t: t.sqnr_db),
        (Column("underflow", "%", "{:.3g}"), lambda t: 100.0 * t.underflow),
        (Column("kurtosis", "", "{:.1f}"), lambda t: t.kurtosis),
        (Column("channel outlier ratio", "", "{:.1f}"), lambda t: t.channel_outlier_ratio),
    ]
    return tabulate(name, title, tensors, lambda t: t.group.label, fields, note)


@dataclass(frozen=True)
class _Source:
    """One row of the attribution: a source, or the remainder of its group."""

    label: str
    group: str
    name: str
    left_out: Contribution | None
    alone: Contribution | None

    def of(self, found: Contribution | None) -> tuple[float | None, float | None, float | None]:
        """Returns mean and half width in percent, and p."""
        if found is None:
            return None, None, None
        return 100.0 * found.spread.mean, 100.0 * found.half_width, found.p


def attribution_table(attributions: Sequence[Attribution]) -> Table:
    """One row per recipe and source of error, and a remainder for each group."""
    rows = []
    for found in attributions:
        for group in found.groups:
            for part in group.parts:
                rows.append(_Source(found.label, group.name, part.name, part.left_out, part.alone))
            if group.remainder is not None or group.remainder_alone is not None:
                rest = (group.remainder, group.remainder_alone)
                rows.append(_Source(found.label, group.name, "remainder", *rest))
    fields: list[Field[_Source]] = [
        (Column("recipe"), lambda r: r.label),
        (Column("group"), lambda r: r.group),
        (Column("source"), lambda r: r.name),
        (Column("left out", "%", "{:+.3f}"), lambda r: r.of(r.left_out)[0]),
        (Column("half width", "%", "{:.3f}"), lambda r: r.of(r.left_out)[1]),
        (Column("p", "", "{:.2g}"), lambda r: r.of(r.left_out)[2]),
        (Column("alone", "%", "{:+.3f}"), lambda r: r.of(r.alone)[0]),
        (Column("half width alone", "%", "{:.3f}"), lambda r: r.of(r.alone)[1]),
        (Column("p alone", "", "{:.2g}"), lambda r: r.of(r.alone)[2]),
    ]
    return tabulate("attribution", "Sources of the gap", rows, lambda r: r.label, fields)


@dataclass(frozen=True)
class _Evaluation:
    """One evaluated stage of a group."""

    label: str
    stage: str
    held_out: stats.Spread
    gap: stats.Spread
    verdict: Verdict | None
    match: MatchSummary | None

    def percent(self, of: Callable[[Verdict], float]) -> float | None:
        """Returns a number of the verdict in percent; None if the arm was not tested."""
        tested = self.verdict is not None and math.isfinite(self.verdict.gap.mean)
        return 100.0 * of(self.verdict) if tested and self.verdict is not None else None


def evaluation_table(study: Study, summaries: Sequence[GroupSummary]) -> Table:
    """One row per recipe and evaluated stage."""
    rows = [
        _Evaluation(
            s.group.label,
            stage,
            s.held_out[stage],
            s.held_out_gap[stage],
            s.verdicts_after[stage],
            match,
        )
        for s in summaries
        for stage in study.stages
        for match in [s.matches.get(stage)]
        if s.held_out[stage].count > 0 or match is not None
    ]
    fields: list[Field[_Evaluation]] = [
        (Column("recipe"), lambda r: r.label),
        (Column("stage"), lambda r: r.stage),
        (Column("held-out loss", "nats/token", "{:.4f}"), lambda r: r.held_out.mean),
        (Column("held-out sd over seeds", "nats/token", "{:.4f}"), lambda r: r.held_out.sd),
        (Column("held-out gap", "nats/token", "{:+.4f}"), lambda r: r.gap.mean),
        (Column("held-out gap sd", "nats/token", "{:.4f}"), lambda r: r.gap.sd),
        (Column("relative gap", "%", "{:+.3f}"), lambda r: r.percent(lambda v: v.gap.mean)),
        (Column("± over seeds", "%", "{:.3f}"), lambda r: r.percent(lambda v: v.half_width)),
        (
            Column("± over documents", "%", "{:.3f}"),
            lambda r: r.percent(lambda v: v.over_documents),
        ),
        (Column("± over both", "%", "{:.3f}"), lambda r: r.percent(lambda v: v.over_both)),
        (Column("verdict after the stage"), lambda r: r.verdict.kind.value if r.verdict else None),
        (Column("answers right", "", "{:.0f}"), lambda r: r.match.correct if r.match else None),
        (Column("problems asked", "", "{}"), lambda r: r.match.asked if r.match else None),
        (Column("exact match", "%", "{:.1f}"), lambda r: _match_percentages(r.match)[0]),
        (Column("95 % low", "%", "{:.1f}"), lambda r: _match_percentages(r.match)[1]),
        (Column("95 % high", "%", "{:.1f}"), lambda r: _match_percentages(r.match)[2]),
    ]
    title = "Held-out loss and exact match"
    return tabulate("evaluation", title, rows, lambda r: r.label, fields)


def score_table(summaries: Sequence[GroupSummary]) -> Table:
    """One row per recipe, stage and score, for scores that are no columns of /eval."""
    rows = [(s.group.label, score) for s in summaries for score in s.scores]
    fields: list[Field[tuple[str, ScoreSummary]]] = [
        (Column("recipe"), lambda r: r[0]),
        (Column("stage"), lambda r: r[1].stage),
        (Column("score"), lambda r: r[1].name),
        (Column("value", "", "{:.5g}"), lambda r: r[1].spread.mean),
        (Column("sd over seeds", "", "{:.2g}"), lambda r: r[1].spread.sd),
        (Column("count", "", "{}"), lambda r: r[1].count),
    ]
    title = "Scores by source, samples, choices and rollouts"
    return tabulate("scores", title, rows, lambda r: r[0], fields)


def warning_table(study: Study, summaries: Sequence[GroupSummary]) -> Table:
    """One row per group and detector: leads, misses and false alarms."""
    rows = [
        (summary.group.label, found)
        for summary in summaries
        for found in detector_summaries(study, summary)
    ]
    fields: list[Field[tuple[str, DetectorSummary]]] = [
        (Column("recipe"), lambda r: r[0]),
        (Column("detector"), lambda r: r[1].detector),
        (Column("runs that went wrong"), lambda r: r[1].troubled),
        (Column("warned before"), lambda r: len(r[1].leads)),
        (Column("mean lead", "step", "{:.0f}"), lambda r: r[1].lead.mean),
        (Column("shortest lead", "step", "{}"), lambda r: min(r[1].leads, default="")),
        (Column("warned late"), lambda r: r[1].late),
        (Column("other runs"), lambda r: r[1].quiet),
        (Column("false alarms"), lambda r: r[1].false_alarms),
    ]
    return tabulate("warnings", "Early warnings", rows, lambda r: r[0], fields)


def event_table(summaries: Sequence[GroupSummary]) -> Table:
    """One row per event of every run."""
    rows = [
        (summary.group.label, run.seed, event)
        for summary in summaries
        for run in summary.group.runs
        for event in run.events
    ]
    fields: list[Field[tuple[str, int, Event]]] = [
        (Column("recipe"), lambda r: r[0]),
        (Column("seed"), lambda r: r[1]),
        (Column("step"), lambda r: r[2].step),
        (Column("event"), lambda r: r[2].kind),
        (Column("message"), lambda r: r[2].message),
    ]
    return tabulate("events", "Events", rows, lambda r: r[0], fields)


PROVENANCE = (
    "recipe_hash",
    "config_hash",
    "data_hash",
    "initial_weights_hash",
    "code_version",
    "backend",
    "device",
    "math_profile",
    "simd_target",
    "optimizer_states",
    "parameter_count",
)


ON_PAGE = (
    "recipe_hash",
    "config_hash",
    "initial_weights_hash",
    "code_version",
    "backend",
    "device",
)


def _extra_text(run: Run) -> str:
    return "; ".join(
        f"{key.removeprefix('extra.')} = {value}"
        for key, value in sorted(run.meta.items())
        if key.startswith("extra.")
    )


def _provenance_field(key: str) -> Field[tuple[str, Run]]:
    return Column(key.replace("_", " ")), lambda r: r[1].meta.get(key, "")


def provenance_table(summaries: Sequence[GroupSummary], on_page: bool = False) -> Table:
    """One row per run: the origin of its numbers; on the page without long texts."""
    rows = [(summary.group.label, run) for summary in summaries for run in summary.group.runs]
    fields: list[Field[tuple[str, Run]]] = [
        (Column("run"), lambda r: r[1].name),
        (Column("recipe"), lambda r: r[0]),
        (Column("seed"), lambda r: r[1].seed),
        (Column("state"), lambda r: "complete" if r[1].complete else "not complete"),
        (Column("last step"), lambda r: int(r[1].metrics.step[-1]) if len(r[1].metrics) else 0),
        *[_provenance_field(key) for key in (ON_PAGE if on_page else PROVENANCE)],
        (
            Column("final weights hash"),
            lambda r: f"{r[1].final_weight_hash:016x}" if r[1].complete else "",
        ),
    ]
    if not on_page:
        fields.append((Column("other"), lambda r: _extra_text(r[1])))
    return tabulate("runs", "Runs", rows, lambda r: r[0], fields)


def settings_table(study: Study) -> Table:
    """One row per value of a setting in which the recipes of the page differ."""
    rows = differing_settings(study.groups)
    fields: list[Field[tuple[str, str, list[str]]]] = [
        (Column("setting"), lambda r: r[0]),
        (Column("value"), lambda r: r[1] or "not set"),
        (Column("of"), lambda r: ", ".join(r[2]) if len(r[2]) <= 6 else f"{len(r[2])} of them"),
    ]
    return tabulate("settings", "Settings that differ", rows, lambda r: "", fields)


@dataclass(frozen=True)
class ReportTables:
    """All tables of a report."""

    overview: Table  # on the page only
    judged: Table  # on the page only
    provenance: Table  # on the page only
    summary: Table
    verdicts: Table
    speed: Table
    stages: Table
    operands: Table
    worst_tensors: Table
    tensors: Table
    evaluation: Table
    scores: Table
    warnings: Table
    events: Table
    runs: Table
    settings: Table
    attribution: Table
    beside: Table | None = None
    beside_on_page: Table | None = None

    def all(self) -> list[Table]:
        """Returns the nonempty tables that are written as CSV files."""
        tables = [
            self.summary,
            self.verdicts,
            self.speed,
            self.stages,
            self.operands,
            self.worst_tensors,
            self.tensors,
            self.evaluation,
            self.scores,
            self.warnings,
            self.events,
            self.runs,
            self.settings,
            self.attribution,
            self.beside,
        ]
        return [table for table in tables if table is not None and table.rows]


def make_tables(study: Study, summaries: Sequence[GroupSummary]) -> ReportTables:
    """Returns every table of the report."""
    ranked = [tensor_summaries(summary.group) for summary in summaries]
    return ReportTables(
        overview=overview_table(study, summaries),
        summary=summary_table(study, summaries),
        judged=verdict_table(summaries, on_page=True),
        provenance=provenance_table(summaries, on_page=True),
        verdicts=verdict_table(summaries),
        speed=speed_table(summaries),
        stages=stage_table(summaries),
        operands=operand_table(summaries),
        worst_tensors=tensor_table(
            [tensor for tensors in ranked for tensor in tensors[:WORST_TENSORS]],
            "worst_tensors",
            "The tensors that suffer most",
            f"The {WORST_TENSORS} tensors of lowest mean SQNR of every recipe.",
        ),
        tensors=tensor_table(
            [tensor for tensors in ranked for tensor in tensors], "tensors", "All tensors", ""
        ),
        evaluation=evaluation_table(study, summaries),
        scores=score_table(summaries),
        warnings=warning_table(study, summaries),
        events=event_table(summaries),
        runs=provenance_table(summaries),
        settings=settings_table(study),
        attribution=attribution_table(attribute_gaps(study, summaries)),
    )
