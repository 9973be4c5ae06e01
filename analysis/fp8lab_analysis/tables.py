"""Tables of a report: raw cells for CSV, formatted text for HTML."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from fp8lab_analysis import stats
from fp8lab_analysis.compare import (
    GroupSummary,
    MatchSummary,
    TensorSummary,
    held_out_loss,
    tensor_summaries,
)
from fp8lab_analysis.study import Study

Cell = Union[str, int, float, None]
MISSING = "–"
WORST_TENSORS = 6  # per group in the HTML table


@dataclass(frozen=True)
class Column:
    """One column: CSV header with unit, HTML header, and how a number is shown."""

    name: str
    unit: str = ""
    show: str = "{}"

    @property
    def header(self) -> str:
        """Header with its unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def text(self, cell: Cell) -> str:
        """Formatted cell; a dash for a missing or undefined one."""
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return MISSING
        if isinstance(cell, str):
            return cell
        return self.show.format(cell).replace("-", "−")


@dataclass(frozen=True)
class Table:
    """A named table; `keys` names the group of each row, for its colour."""

    name: str
    title: str
    note: str
    columns: list[Column]
    rows: list[list[Cell]]
    keys: list[str]

    def write_csv(self, folder: Path) -> Path:
        """Writes folder/<name>.csv at full precision; missing cells are empty."""
        path = folder / f"{self.name}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([column.header for column in self.columns])
            for row in self.rows:
                writer.writerow([_csv_cell(cell) for cell in row])
        return path

    def text_rows(self) -> list[list[str]]:
        """Every cell as HTML shows it."""
        return [[c.text(cell) for c, cell in zip(self.columns, row)] for row in self.rows]


def _csv_cell(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    return repr(cell) if isinstance(cell, float) else str(cell)


def plus_minus(spread: stats.Spread, form: str = "{:.4f}", sign: bool = False) -> str:
    """ "mean ± sd" for text, the mean alone for one seed, a dash when undefined."""
    if not math.isfinite(spread.mean):
        return MISSING
    shown = (form.replace(":", ":+") if sign else form).format(spread.mean)
    if math.isfinite(spread.sd):
        shown += f" ± {form.format(spread.sd)}"
    return shown.replace("-", "−")


def gap_text(summary: GroupSummary) -> str:
    """Final gap ± its standard deviation over seeds, or its standard error within a single run."""
    shown = plus_minus(summary.final_gap, sign=True)
    if math.isfinite(summary.final_gap.mean) and summary.final_gap.count == 1:
        if math.isfinite(summary.gap_error):
            shown += f" ± {summary.gap_error:.4f}"
    return shown


def operand_mean(summary: GroupSummary, letter: str) -> float:
    """Mean SQNR in dB of the quantized slots of x, w or dy."""
    return stats.finite_mean(
        [
            operand.sqnr_db.mean
            for slot, operand in summary.operands.items()
            if slot.endswith(f".{letter}") and operand.quantized
        ]
    )


def verdict_text(summary: GroupSummary) -> str:
    """Verdict in words, with the number of diverged seeds and whether runs are unfinished."""
    text = summary.verdict.value
    if summary.verdict is stats.Verdict.DIVERGED:
        text += f" ({summary.diverged_seeds} of {len(summary.runs)})"
    return text if summary.complete else f"{text}, unfinished"


def summary_table(study: Study, summaries: Sequence[GroupSummary]) -> Table:
    """One row per recipe and variant."""
    columns = [Column("recipe"), Column("operands"), Column("seeds")]
    columns += [Column(f"final loss {stage}", "nats/token", "{:.4f}") for stage in study.stages]
    columns += [
        Column("final gap", "nats/token", "{:+.4f}"),
        Column("gap sd over seeds", "nats/token", "{:.4f}"),
        Column("seed band half width", "nats/token", "{:.4f}"),
        Column("gap area", "nats/token × step", "{:+.2f}"),
        Column("exact match", "%", "{:.1f}"),
        Column("exact match low", "%", "{:.1f}"),
        Column("exact match high", "%", "{:.1f}"),
        Column("SQNR x", "dB", "{:.1f}"),
        Column("SQNR w", "dB", "{:.1f}"),
        Column("SQNR dy", "dB", "{:.1f}"),
        Column("worst underflow", "%", "{:.3g}"),
        Column("scale bits", "bit/element", "{:.3g}"),
        Column("verdict"),
    ]
    rows: list[list[Cell]] = []
    for summary in summaries:
        match = summary.matches[list(summary.matches)[-1]] if summary.matches else None
        low, high = match.interval if match else (math.nan, math.nan)
        underflow = summary.worst_underflow
        rows.append(
            [
                summary.group.label,
                summary.format_text,
                len(summary.runs),
                *[summary.final_loss[stage].mean for stage in study.stages],
                summary.final_gap.mean,
                summary.final_gap.sd,
                summary.band,
                summary.area.mean,
                100.0 * match.fraction if match else math.nan,
                100.0 * low,
                100.0 * high,
                operand_mean(summary, "x"),
                operand_mean(summary, "w"),
                operand_mean(summary, "dy"),
                100.0 * underflow.underflow.mean if underflow else math.nan,
                summary.scale_bits,
                verdict_text(summary),
            ]
        )
    return Table(
        "summary",
        "Summary",
        "",
        columns,
        rows,
        [summary.group.label for summary in summaries],
    )


def overview_table(study: Study, summaries: Sequence[GroupSummary]) -> Table:
    """The summary as the page shows it: uncertainties beside their numbers."""
    columns = [Column("recipe"), Column("verdict"), Column("final gap", "nats/token", "{} ")]
    columns += [Column(f"loss {stage}", "nats/token", "{:.4f}") for stage in study.stages]
    columns += [
        Column("gap area", "nats/token × step", "{:+.2f}"),
        Column("exact match", "% [95 % interval]", "{} "),
        Column("SQNR x / w / dy", "dB", "{} "),
        Column("worst underflow", "% of elements", "{:.3g}"),
        Column("scale bits", "bit/element", "{:.3g}"),
        Column("operands"),
    ]
    rows: list[list[Cell]] = []
    for summary in summaries:
        match = summary.matches[list(summary.matches)[-1]] if summary.matches else None
        underflow = summary.worst_underflow
        sqnr = [operand_mean(summary, letter) for letter in ("x", "w", "dy")]
        rows.append(
            [
                summary.group.label,
                verdict_text(summary),
                gap_text(summary),
                *[summary.final_loss[stage].mean for stage in study.stages],
                summary.area.mean,
                match_text(match) if match else None,
                " / ".join(f"{v:.1f}" for v in sqnr) if math.isfinite(max(sqnr)) else None,
                100.0 * underflow.underflow.mean if underflow else math.nan,
                summary.scale_bits,
                summary.format_text,
            ]
        )
    keys = [summary.group.label for summary in summaries]
    return Table("overview", "Summary", "", columns, rows, keys)


def match_text(match: MatchSummary) -> str:
    """Percentage with its 95 % interval."""
    low, high = match.interval
    return f"{100 * match.fraction:.1f} [{100 * low:.0f}, {100 * high:.0f}]"


def stage_table(summaries: Sequence[GroupSummary]) -> Table:
    """One row per run and stage."""
    columns = [
        Column("recipe"),
        Column("seed"),
        Column("stage"),
        Column("final loss", "nats/token", "{:.4f}"),
        Column("held-out loss", "nats/token", "{:.4f}"),
        Column("final gap", "nats/token", "{:+.4f}"),
        Column("standard error in the run", "nats/token", "{:.4f}"),
        Column("gap area", "nats/token × step", "{:+.2f}"),
        Column("leaves the seed band", "step", "{}"),
        Column("spikes", "", "{}"),
        Column("gradient norm ratio", "", "{:.3f}"),
        Column("diverged"),
    ]
    rows: list[list[Cell]] = []
    keys = []
    for summary in summaries:
        for item in summary.runs:
            for stage in item.stages.values():
                keys.append(summary.group.label)
                rows.append(
                    [
                        summary.group.label,
                        item.run.seed,
                        stage.stage,
                        stage.final_loss,
                        held_out_loss(item.run, stage.stage),
                        stage.final_gap,
                        stage.final_gap_error,
                        stage.area,
                        stage.first_departure,
                        stage.spikes,
                        stage.grad_norm_ratio,
                        "yes" if stage.diverged else "no",
                    ]
                )
    return Table("stages", "Every run, stage by stage", "", columns, rows, keys)


def operand_table(summaries: Sequence[GroupSummary]) -> Table:
    """One row per recipe and quantized slot."""
    columns = [
        Column("recipe"),
        Column("slot"),
        Column("quantizer"),
        Column("mean SQNR", "dB", "{:.2f}"),
        Column("SQNR sd over seeds", "dB", "{:.2f}"),
        Column("SQNR of the worst tensor", "dB", "{:.2f}"),
        Column("underflow", "%", "{:.3g}"),
        Column("saturation", "%", "{:.3g}"),
        Column("scale bits", "bit/element", "{:.3g}"),
        Column("smallest scale", "log2", "{:.1f}"),
        Column("largest scale", "log2", "{:.1f}"),
    ]
    rows: list[list[Cell]] = []
    keys = []
    for summary in summaries:
        for operand in summary.operands.values():
            if not operand.quantized:
                continue
            keys.append(summary.group.label)
            rows.append(
                [
                    summary.group.label,
                    operand.slot,
                    " + ".join(operand.formats),
                    operand.sqnr_db.mean,
                    operand.sqnr_db.sd,
                    operand.worst_sqnr_db,
                    100.0 * operand.underflow.mean,
                    100.0 * operand.saturation.mean,
                    operand.scale_bits,
                    operand.log2_scale[0],
                    operand.log2_scale[2],
                ]
            )
    return Table("operands", "Operands", "", columns, rows, keys)


def tensor_table(tensors: Sequence[TensorSummary], name: str, title: str, note: str) -> Table:
    """One row per tensor of a recipe."""
    columns = [
        Column("recipe"),
        Column("layer"),
        Column("slot"),
        Column("quantizer"),
        Column("mean SQNR", "dB", "{:.2f}"),
        Column("underflow", "%", "{:.3g}"),
        Column("kurtosis", "", "{:.1f}"),
        Column("channel outlier ratio", "", "{:.1f}"),
    ]
    rows: list[list[Cell]] = [
        [
            tensor.group.label,
            tensor.layer,
            tensor.slot,
            tensor.format,
            tensor.sqnr_db,
            100.0 * tensor.underflow,
            tensor.kurtosis,
            tensor.channel_outlier_ratio,
        ]
        for tensor in tensors
    ]
    return Table(name, title, note, columns, rows, [tensor.group.label for tensor in tensors])


def evaluation_table(study: Study, summaries: Sequence[GroupSummary]) -> Table:
    """One row per recipe and evaluated stage."""
    columns = [
        Column("recipe"),
        Column("stage"),
        Column("held-out loss", "nats/token", "{:.4f}"),
        Column("held-out sd over seeds", "nats/token", "{:.4f}"),
        Column("held-out gap", "nats/token", "{:+.4f}"),
        Column("held-out gap sd", "nats/token", "{:.4f}"),
        Column("answers right", "", "{:.0f}"),
        Column("problems asked", "", "{}"),
        Column("exact match", "%", "{:.1f}"),
        Column("95 % low", "%", "{:.1f}"),
        Column("95 % high", "%", "{:.1f}"),
    ]
    rows: list[list[Cell]] = []
    keys = []
    for summary in summaries:
        for stage in study.stages:
            held_out, gap = summary.held_out[stage], summary.held_out_gap[stage]
            match = summary.matches.get(stage)
            if held_out.count == 0 and match is None:
                continue
            low, high = match.interval if match else (math.nan, math.nan)
            keys.append(summary.group.label)
            rows.append(
                [
                    summary.group.label,
                    stage,
                    held_out.mean,
                    held_out.sd,
                    gap.mean,
                    gap.sd,
                    match.correct if match else None,
                    match.asked if match else None,
                    100.0 * match.fraction if match else math.nan,
                    100.0 * low,
                    100.0 * high,
                ]
            )
    return Table("evaluation", "Held-out loss and exact match", "", columns, rows, keys)


def event_table(summaries: Sequence[GroupSummary]) -> Table:
    """Every event of every run."""
    columns = [Column("recipe"), Column("seed"), Column("step"), Column("event"), Column("message")]
    rows: list[list[Cell]] = []
    keys = []
    for summary in summaries:
        for run in summary.group.runs:
            for event in run.events:
                keys.append(summary.group.label)
                rows.append([summary.group.label, run.seed, event.step, event.kind, event.message])
    return Table("events", "Events", "", columns, rows, keys)


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


def provenance_table(summaries: Sequence[GroupSummary]) -> Table:
    """Where each run's numbers come from."""
    columns = [
        Column("run"),
        Column("recipe"),
        Column("seed"),
        Column("state"),
        Column("last step"),
    ]
    columns += [Column(key.replace("_", " ")) for key in PROVENANCE]
    columns += [Column("final weights hash"), Column("other")]
    rows: list[list[Cell]] = []
    keys = []
    for summary in summaries:
        for run in summary.group.runs:
            extra = [
                f"{key.removeprefix('extra.')} = {value}"
                for key, value in sorted(run.meta.items())
                if key.startswith("extra.")
            ]
            keys.append(summary.group.label)
            rows.append(
                [
                    run.name,
                    summary.group.label,
                    run.seed,
                    "complete" if run.complete else "not complete",
                    int(run.metrics.step[-1]) if len(run.metrics) else 0,
                    *[run.meta.get(key, "") for key in PROVENANCE],
                    f"{run.final_weight_hash:016x}" if run.complete else "",
                    "; ".join(extra),
                ]
            )
    return Table("runs", "Runs", "", columns, rows, keys)


@dataclass(frozen=True)
class ReportTables:
    """All tables of a report."""

    overview: Table  # on the page only
    summary: Table
    stages: Table
    operands: Table
    worst_tensors: Table
    tensors: Table
    evaluation: Table
    events: Table
    runs: Table

    def all(self) -> list[Table]:
        """Tables that have rows and become CSV files."""
        tables = [
            self.summary,
            self.stages,
            self.operands,
            self.worst_tensors,
            self.tensors,
            self.evaluation,
            self.events,
            self.runs,
        ]
        return [table for table in tables if table.rows]


def make_tables(study: Study, summaries: Sequence[GroupSummary]) -> ReportTables:
    """Every table of the report."""
    ranked = [tensor_summaries(summary.group) for summary in summaries]
    return ReportTables(
        overview=overview_table(study, summaries),
        summary=summary_table(study, summaries),
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
        events=event_table(summaries),
        runs=provenance_table(summaries),
    )
