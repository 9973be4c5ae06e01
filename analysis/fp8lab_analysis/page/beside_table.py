"""The table of two studies side by side."""

from __future__ import annotations

import math

from fp8lab_analysis.judge.beside import ArmPair, Beside
from fp8lab_analysis.judge.compare import GroupSummary
from fp8lab_analysis.judge.verdicts import Kind
from fp8lab_analysis.page.cells import Column, Field, Table, tabulate, verdict_text


def _gap(summary: GroupSummary | None) -> str | None:
    if summary is not None and summary.verdict.kind is Kind.DIVERGED:
        return summary.verdict.gap_text
    if summary is None or not math.isfinite(summary.verdict.gap.mean):
        return None
    return summary.verdict.gap_text


def _percent(summary: GroupSummary | None, error: bool = False) -> float:
    if summary is None:
        return math.nan
    return 100.0 * (summary.verdict.half_width if error else summary.verdict.gap.mean)


def _verdict(summary: GroupSummary | None) -> str:
    return verdict_text(summary) if summary is not None else "not there"


def beside_table(beside: Beside, on_page: bool = False) -> Table:
    """One row per arm of either study."""
    fields: list[Field[ArmPair]] = [
        (Column("recipe"), lambda p: p.label),
        (Column("verdict here"), lambda p: _verdict(p.ours)),
        (Column("verdict there"), lambda p: _verdict(p.theirs)),
        (Column("changed"), _changed_cell),
        (Column("seeds here", "", "{}"), lambda p: p.ours.seeds if p.ours else None),
        (Column("seeds there", "", "{}"), lambda p: p.theirs.seeds if p.theirs else None),
    ]
    if on_page:
        fields += [
            (Column("gap here", "%", "{} "), lambda p: _gap(p.ours)),
            (Column("gap there", "%", "{} "), lambda p: _gap(p.theirs)),
            (Column("run differently in", "", "{} "), lambda p: str(len(p.differences))),
        ]
    else:
        fields += [
            (Column("gap here", "%"), lambda p: _percent(p.ours)),
            (Column("half width here", "%"), lambda p: _percent(p.ours, True)),
            (Column("gap there", "%"), lambda p: _percent(p.theirs)),
            (Column("half width there", "%"), lambda p: _percent(p.theirs, True)),
            (Column("run differently in"), lambda p: "; ".join(p.differences)),
        ]
    return tabulate(
        "beside", f"Beside {beside.study.title}", beside.pairs, lambda p: p.label, fields
    )


def _changed_cell(pair: ArmPair) -> str:
    if pair.ours is None or pair.theirs is None or pair.ours.verdict.kind is Kind.BASELINE:
        return ""
    return "changed" if pair.changed else "same"
