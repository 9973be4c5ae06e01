"""An arm that diverged is marked in every figure, and is in no front, order or limit of an axis."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import h5py
import make_example_run
import numpy as np
import pytest
from matplotlib.figure import Figure

from fp8lab_analysis.draw import figures, style
from fp8lab_analysis.draw.drawn import Drawn, drawn_rows
from fp8lab_analysis.draw.overview_plot import overview_order
from fp8lab_analysis.judge import compare
from fp8lab_analysis.judge.verdicts import Kind
from fp8lab_analysis.page import answers, findings
from fp8lab_analysis.read import study

BROKEN, MARKED = "e5m2_tensor", "e5m2_tensor, diverged"
# Its loss ends as a number.
RECIPES = [
    *make_example_run.RECIPES[:3],
    dataclasses.replace(make_example_run.RECIPES[3], nan_step=0, gap=0.03),
]


def set_all(folder: Path, dataset: str, value: float, start: int = 0) -> None:
    """One number in all runs of the arm that breaks, from a row on."""
    for path in folder.glob(f"{BROKEN}-*/run.h5"):
        with h5py.File(path, "a") as file:
            file[dataset][start:] = value


def context_of(folder: Path) -> style.PlotContext:
    found = study.load_study([folder])
    return style.PlotContext.of(found, compare.summarise(found))


@pytest.fixture(scope="module", name="context")
def _context(tmp_path_factory: pytest.TempPathFactory) -> style.PlotContext:
    """A study whose broken arm looks best: the loss grows to 9 and stays a number, the SQNR is 60
    dB and no other arm has as many tokens per second."""
    folder = tmp_path_factory.mktemp("study")
    make_example_run.make_example(folder, RECIPES)
    set_all(folder, "metrics/loss", 9.0, 129)
    set_all(folder, "tensors/sqnr_db", 60.0)
    set_all(folder, "metrics/grad_norm", 900.0, 129)
    for path in folder.glob("*/run.h5"):
        with h5py.File(path, "a") as file:
            file["meta"].attrs["backend"] = "cuda"
            make_example_run.seal_meta(file)
            if BROKEN in str(path):
                file["eval/loss"][-1] = 7.5
    return context_of(folder)


def drawn(context: style.PlotContext, name: str) -> Figure:
    spec = next(spec for spec in figures.FIGURES if spec.name == name)
    figure = spec.draw(context)
    assert figure is not None
    return figure


def names(figure: Figure) -> list[str]:
    """Everything in a figure that names an arm."""
    said = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    for axes in figure.axes:
        said += [axes.get_title(), axes.get_title(loc="left"), axes.get_ylabel()]
        said += [text.get_text() for text in axes.get_yticklabels()]
    said += [row.series for row in drawn_rows(figure)]
    return [text for text in said if BROKEN in text]


def test_it_is_marked_in_every_figure(context: style.PlotContext) -> None:
    broken = next(s for s in context.summaries if s.group.label == BROKEN)
    assert broken.verdict.kind is Kind.DIVERGED
    seen = 0
    for spec in figures.FIGURES:
        figure = spec.draw(context)
        if figure is None:
            continue
        told = names(figure)
        seen += bool(told)
        for text in told:
            assert f"{BROKEN}, diverged" in text or f"{BROKEN}\ndiverged" in text, spec.name
        for axes in figure.axes:
            for line in axes.lines:
                crossed = line.get_marker() == style.BROKEN_MARKER
                series = str(line.get_label())
                if crossed:
                    assert BROKEN in series or series.startswith("_"), spec.name
                elif series == MARKED:
                    assert line.get_marker() in ("None", "", None), spec.name
    assert seen >= 12


def front(axes_rows: list[Drawn]) -> list[tuple[float | str, float | str]]:
    return [(row.x, row.y) for row in axes_rows if row.series == "front"]


def test_it_is_in_no_front(context: style.PlotContext) -> None:
    rows = drawn_rows(drawn(context, "pareto"))
    best = [row for row in rows if row.series == MARKED]
    assert len(best) == 2 and {row.y for row in best} == {60.0}  # no gap, two costs
    for panel in {row.panel for row in best}:
        points = front([row for row in rows if row.panel == panel])
        assert all(y != 60.0 for _, y in points)
    shown = [row for row in rows if row.panel == best[0].panel]
    alive = {(r.x, r.y) for r in shown if r.series in ("infir2", "te_current")}
    assert set(front(shown)) == alive  # more bits, more dB: neither beats the other


def test_it_sets_no_limit_and_the_edge_says_where_it_goes(context: style.PlotContext) -> None:
    for name, most, peak in (("loss", 3.0, 9.0), ("held_out", 3.0, 7.5)):
        figure = drawn(context, name)
        (axes,) = [a for a in figure.axes if a.get_title() == "stage sft"]
        assert axes.get_ylim()[1] < most
        notes = [text for text in axes.texts if MARKED in text.get_text()]
        (note,) = notes
        assert f"up to {peak:.3g}" in note.get_text() and "▲" in note.get_text()
        step, height = note.xy
        assert 129 <= step <= 140 and height > 0.9
        (before,) = [a for a in figure.axes if a.get_title() == "stage cpt"]
        assert not any("▲" in text.get_text() for text in before.texts)
        assert "a triangle at the edge" in figures.caption_of(
            next(spec for spec in figures.FIGURES if spec.name == name), figure
        )


def test_what_falls_below_a_panel_is_said_too(tmp_path: Path) -> None:
    make_example_run.make_example(tmp_path, RECIPES)
    set_all(tmp_path, "metrics/loss", 9.0, 129)
    set_all(tmp_path, "eval/loss", 7.5, -1)
    set_all(tmp_path, "metrics/grad_norm", 1e-6, 129)
    figure = drawn(context_of(tmp_path), "gradient_norm")
    notes = [t.get_text() for axes in figure.axes for t in axes.texts if "▼" in t.get_text()]
    assert len(notes) == 1 and MARKED in notes[0] and "down to" in notes[0]


def test_it_does_not_stretch_the_colours_of_the_heat_map(context: style.PlotContext) -> None:
    figure = drawn(context, "sqnr_heat_map")
    tops = {axes.images[0].get_clim()[1] for axes in figure.axes if axes.images}
    assert len(tops) == 1 and tops.pop() < 45.0


def test_it_stands_last_and_in_no_sentence_that_orders(context: style.PlotContext) -> None:
    assert overview_order(context.summaries)[-1].group.label == BROKEN
    told = findings.make_findings(context.study, context.summaries)
    for finding in told:
        for word in ("Smallest: ", "largest: ", "at best (", "all in "):
            assert f"{word}{BROKEN}" not in finding.text
    (lowest,) = [f.text for f in told if f.topic == "Tensors that suffer"]
    assert f"Lowest SQNR within each recipe that diverged: {BROKEN}" in lowest
    (cost,) = [
        a for a in answers.make_answers(context.study, context.summaries) if "cost" in str(a)
    ]
    bits, speeds = (text for _, text in cost.sentences)
    assert bits.endswith(f"; of what diverged 0.0001 {BROKEN}.") and BROKEN not in speeds


def test_highest_exact_match_is_none_of_it(tmp_path: Path) -> None:
    make_example_run.make_example(tmp_path, RECIPES)
    set_all(tmp_path, "metrics/loss", 9.0, 129)
    set_all(tmp_path, "eval/loss", 7.5, -1)
    set_all(tmp_path, "eval/exact_match", 1.0, -1)
    context = context_of(tmp_path)
    (text,) = [
        finding.text
        for finding in findings.match_findings(context.study, context.summaries)
        if finding.topic == "Exact match"
    ]
    assert f"highest {BROKEN}" not in text and f"of what diverged: {BROKEN} 100 %" in text


def test_an_arm_that_holds_is_neither_crossed_nor_named_so(tmp_path: Path) -> None:
    make_example_run.make_example(tmp_path, make_example_run.RECIPES[:3])
    context = context_of(tmp_path)
    markers = {style.legend_handle(context.style(s.group)).get_marker() for s in context.summaries}
    assert style.BROKEN_MARKER not in markers and len(markers) == 3
    figure = drawn(context, "loss")
    spec = next(spec for spec in figures.FIGURES if spec.name == "loss")
    assert "diverged" not in figures.caption_of(spec, figure)
    assert not any("▲" in text.get_text() for axes in figure.axes for text in axes.texts)


def test_gaps_that_broke_make_no_axis_logarithmic(context: style.PlotContext) -> None:
    figure = drawn(context, "loss")
    (below,) = [a for a in figure.axes if a.get_ylabel().startswith("loss gap")]
    assert below.get_yscale() == "linear"
    gaps = [s.final_gap.mean for s in context.summaries if s.group.label == BROKEN]
    assert gaps[0] > 5.0 and np.isfinite(gaps[0]) and not math.isnan(below.get_ylim()[1])


def test_the_tensors_that_suffer_are_those_of_arms_that_did_not_break(tmp_path: Path) -> None:
    make_example_run.make_example(tmp_path, RECIPES)
    set_all(tmp_path, "metrics/loss", 9.0, 129)
    set_all(tmp_path, "eval/loss", 7.5, -1)
    set_all(tmp_path, "tensors/sqnr_db", 3.0)
    context = context_of(tmp_path)
    told = findings.make_findings(context.study, context.summaries)
    (text,) = [finding.text for finding in told if finding.topic == "Tensors that suffer"]
    assert "that did not diverge, means over seeds, all in te_current: " in text
    assert f"Lowest SQNR within each recipe that diverged: {BROKEN} layers." in text
