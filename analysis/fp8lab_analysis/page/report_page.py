"""The report: one self-contained HTML page, with every figure and table also in separate files."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import jinja2

from fp8lab_analysis.draw import figures as drawings
from fp8lab_analysis.draw.figures import RenderedFigure, render_figures
from fp8lab_analysis.draw.style import PlotContext, provenance_line
from fp8lab_analysis.judge.beside import lay_beside
from fp8lab_analysis.judge.compare import summarise
from fp8lab_analysis.judge.phrases import counted
from fp8lab_analysis.judge.stats import (
    BAND_SIGMAS,
    DIVERGENCE_MARGIN,
    FINAL_FRACTION,
    FINAL_ROWS,
    SPIKE_SIGMAS,
)
from fp8lab_analysis.page.answers import make_answers
from fp8lab_analysis.page.beside_table import beside_table
from fp8lab_analysis.page.cells import Table
from fp8lab_analysis.page.findings import make_findings
from fp8lab_analysis.page.tables import ReportTables, make_tables
from fp8lab_analysis.read.study import Study


def _run_details(study: Study) -> list[dict[str, Any]]:
    """Returns recipe and configuration texts, each once."""
    details = []
    for group in study.groups:
        run = group.runs[0]
        details.append(
            {
                "label": group.label,
                "recipe_hash": run.meta.get("recipe_hash", ""),
                "config_hash": run.meta.get("config_hash", ""),
                "identity": run.identity,
                "recipe": run.meta.get("recipe_resolved", "") or run.meta.get("recipe_text", ""),
                "config": run.meta.get("config_text", ""),
            }
        )
    return details


def _subtitle(study: Study) -> str:
    recipes = {group.key.recipe for group in study.groups}
    variants = {group.key.variant for group in study.groups}
    seeds = {run.seed for run in study.runs}
    shared = {group.shared for group in study.groups} - {""}
    parts = [
        counted(len(study.runs), "run"),
        counted(len(recipes), "recipe"),
        counted(len(seeds), "seed"),
    ]
    if len(variants) > 1:
        parts.append(counted(len(variants), "variant"))
    parts += [f"all with {text}" for text in shared]
    if study.stages:
        parts.append("stages " + " → ".join(study.stages))
    return " · ".join(parts)


def render_page(
    context: PlotContext,
    figures: list[RenderedFigure],
    failed: dict[str, str],
    tables: ReportTables,
    refresh: float,
) -> str:
    """Returns the self-contained HTML page; if `refresh` > 0, it reloads every `refresh`
    seconds."""
    study = context.study
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    colours = {group.label: context.style(group).colour for group in study.groups}
    hollow = {group.label: not context.style(group).filled for group in study.groups}
    drawn = {figure.name for figure in figures}
    return environment.get_template("report.html").render(
        study=study,
        subtitle=_subtitle(study),
        answers=make_answers(study, context.summaries),
        findings=make_findings(study, context.summaries),
        figures=figures,
        missing=[
            spec.title
            for spec in drawings.FIGURES
            if not (spec.on_request or spec.name in drawn or spec.title in failed)
        ],
        beside=context.beside,
        refresh=f"{refresh:g}" if refresh else "",
        failed=failed,
        tables=tables,
        colours=colours,
        hover={figure.name: figure.hover for figure in figures},
        hashes=provenance_line(study),
        on_cpu=any(run.meta.get("backend") == "cpu" for run in study.runs),
        hollow=hollow,
        forms=drawings.FORMS,
        details=_run_details(study),
        final_percent=round(100 * FINAL_FRACTION),
        final_rows=FINAL_ROWS,
        band_sigmas=f"{BAND_SIGMAS:g}",
        spike_sigmas=f"{SPIKE_SIGMAS:g}",
        divergence_margin=f"{DIVERGENCE_MARGIN:g}",
        margin=study.design.margin_text,
        power=f"{100.0 * study.design.power:g} %",
        alpha=f"{100.0 * study.design.alpha:g} %",
        looks=counted(study.design.looks, "look"),
        stated=study.design.stated,
    )


def write_report(study: Study, out: Path, other: Study | None = None, refresh: float = 0.0) -> str:
    """Writes OUT/index.html, OUT/figures/*.{png,pdf,svg,csv} and OUT/tables/*.csv; returns a line
    that describes it. The study is compared with `other`."""
    summaries = summarise(study)
    beside = lay_beside(study, summaries, other, summarise(other)) if other is not None else None
    context = PlotContext.of(study, summaries, beside)
    figure_folder, table_folder = out / "figures", out / "tables"
    figure_folder.mkdir(parents=True, exist_ok=True)
    table_folder.mkdir(parents=True, exist_ok=True)
    tables = make_tables(study, summaries)
    if beside is not None:
        both = beside_table(beside), beside_table(beside, on_page=True)
        tables = dataclasses.replace(tables, beside=both[0], beside_on_page=both[1])
    written: list[Table] = tables.all()
    for table in written:
        table.write_csv(table_folder)
    figures, failed = render_figures(context, figure_folder)
    page = out / "index.html"
    half = out / ".index.html.tmp"  # so that index.html is always complete
    try:
        half.write_text(render_page(context, figures, failed, tables, refresh), encoding="utf-8")
        os.replace(half, page)
    except OSError:
        half.unlink(missing_ok=True)
        raise
    counts = (len(study.runs), "run"), (len(figures), "figure"), (len(written), "table")
    return f"{page}: {', '.join(counted(number, noun) for number, noun in counts)}"
