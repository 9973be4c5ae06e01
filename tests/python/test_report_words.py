"""What a report says of its numbers: which loss, which step, which panel, which variant."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import make_example_run
import pytest
from loose_runs import stress, truncate, write_run

from fp8lab_analysis import report, study_page
from fp8lab_analysis.draw import figures, style
from fp8lab_analysis.draw.overview_plot import overview_figure
from fp8lab_analysis.judge import compare
from fp8lab_analysis.judge.beside import match_arms
from fp8lab_analysis.judge.early_warning import find_trouble, lead_text, watched
from fp8lab_analysis.page import report_page, tables
from fp8lab_analysis.page.answers import make_answers
from fp8lab_analysis.page.findings import one_seed_findings
from fp8lab_analysis.read import study

RECIPES = {item.name: item for item in make_example_run.RECIPES}
TEMPLATES = Path(report_page.__file__).parent / "templates"


def make(folder: Path, *arms: tuple[str, int], backend: str = "cpu") -> style.PlotContext:
    """A context of runs without a study file, one for each (recipe, seed)."""
    for number, (recipe, seed) in enumerate(arms):
        path = folder / f"{number}-{recipe}" / "run.h5"
        make_example_run.write_run(path, RECIPES[recipe], seed)
        with h5py.File(path, "a") as file:
            file["meta"].attrs["config_text"] = f'recipe = "{recipe}"\nseed = {seed}\n'
            file["meta"].attrs["backend"] = backend
            make_example_run.seal_meta(file)
    found = study.load_study([folder])
    return style.PlotContext.of(found, compare.summarise(found))


def caption(context: style.PlotContext, name: str) -> str:
    spec = next(spec for spec in figures.FIGURES if spec.name == name)
    figure = spec.draw(context)
    assert figure is not None
    return figures.caption_of(spec, figure)


SEVERAL = [("bf16", 1), ("bf16", 2), ("infir2", 1), ("infir2", 2), ("te_current", 1)]


# --- figures --------------------------------------------------------------------------------------


def test_captions_describe_what_is_drawn(tmp_path: Path) -> None:
    context = make(tmp_path / "paired", *SEVERAL)
    assert "Lower row: share of greedy answers" in caption(context, "held_out")
    assert "Lower row: the gap to the baseline" in caption(context, "loss")
    assert "Exact match:" in caption(context, "overview")
    losses = caption(context, "range_losses")
    assert "Underflow:" in losses and "Saturation:" not in losses  # of which there is none
    for run in (tmp_path / "paired").glob("*/run.h5"):
        with h5py.File(run, "a") as file:
            file["eval/exact_match"][:] = -1.0
            file["tensors/saturation_fraction"][:] = 0.25
            file["tensors/underflow_fraction"][:] = 0.0
    found = study.load_study([tmp_path / "paired"])
    context = style.PlotContext.of(found, compare.summarise(found))
    assert "row" not in caption(context, "held_out")
    overview = caption(context, "overview")
    assert "Exact match:" not in overview and "Underflow:" not in overview
    losses = caption(context, "range_losses")
    assert "Underflow:" not in losses and "Saturation:" in losses
    alone = make(tmp_path / "alone", ("infir2", 1))
    assert "row" not in caption(alone, "loss") and "band" not in caption(alone, "loss")
    assert "ratio" not in caption(alone, "gradient_norm")


def test_speed_of_a_cpu_is_in_no_figure(tmp_path: Path) -> None:
    for backend, panels in (("cpu", 2), ("cuda", 4)):
        context = make(tmp_path / backend, *SEVERAL, backend=backend)
        spec = next(spec for spec in figures.FIGURES if spec.name == "pareto")
        figure = spec.draw(context)
        assert figure is not None and len(figure.axes) == panels
        shown = " ".join(axes.get_xlabel() for axes in figure.axes)
        assert ("tokens per second" in shown) == (backend == "cuda")
        assert ("tokens per second" in figures.caption_of(spec, figure)) == (backend == "cuda")


def test_one_seed_is_said_of_the_arm_that_has_one(tmp_path: Path) -> None:
    def gap_panel(context: style.PlotContext) -> tuple[str, list[str]]:
        figure = overview_figure(context)
        assert figure is not None
        axes = figure.axes[0]
        return axes.get_title(loc="left") or axes.get_title(), [t.get_text() for t in axes.texts]

    title, notes = gap_panel(make(tmp_path / "some", *SEVERAL))
    assert title == "gap (grey: margin)" and notes == ["one seed"]
    title, notes = gap_panel(make(tmp_path / "one", ("bf16", 1), ("infir2", 1)))
    assert title == "gap, one seed: no order" and notes == ["one seed"]


def test_no_two_recipes_of_a_report_share_a_colour() -> None:
    recipes = ["bf16", "infir2", "te_current", *(f"recipe_{number}" for number in range(60))]
    groups = [study.Group(study.GroupKey(name, ""), [], False) for name in recipes]
    styles = style.assign_styles(groups)
    assert len({item.colour.lower() for item in styles.values()}) == len(recipes)
    assert style.assign_styles(groups[::-1]) == styles


# --- numbers --------------------------------------------------------------------------------------


def test_the_lead_to_the_break_is_the_same_on_the_whole_page(tmp_path: Path) -> None:
    """The loss leaves the band of the seeds before it breaks: both leads are said, each with its
    step."""
    make_example_run.make_example(tmp_path, [RECIPES["bf16"], RECIPES["e5m2_tensor"]])
    found = study.load_study([tmp_path])
    summaries = compare.summarise(found)
    broken = summaries[1]
    trouble = find_trouble(found, broken.runs[0])
    assert trouble is not None and trouble.broke == 130 and trouble.step < 130
    text = lead_text("e5m2_tensor", watched(found, broken))
    (first,) = re.findall(r"warned at step (\d+), ", text)
    lead = 130 - int(first)
    assert f"{lead} steps before the loss broke (step 130) and " in text
    assert f"{trouble.step - int(first)} steps before it left the band" in text
    screen = str(make_answers(found, summaries))
    assert f"warned at step {first}, {lead} steps before the loss broke" in screen


def test_gaps_say_of_which_loss_they_are(tmp_path: Path) -> None:
    context = make(tmp_path, ("bf16", 1), ("infir2", 1))
    summary = next(s for s in context.summaries if s.group.label == "infir2")
    assert summary.judged_on == "held-out"
    (finding,) = one_seed_findings(context.study, context.summaries)
    assert "nats/token of the training loss, " in finding.text
    assert f"{summary.verdict.gap_text} of the held-out loss" in finding.text
    headers = [column.header for column in tables.overview_table(*args(context)).columns]
    for stage in context.study.stages:
        assert f"training loss {stage} (nats/token)" in headers
        assert f"held-out loss {stage} (nats/token)" in headers
        assert f"loss {stage} (nats/token)" not in headers
    table = tables.overview_table(*args(context))
    at = headers.index("held-out loss sft (nats/token)")
    assert table.rows[1][at] == pytest.approx(summary.held_out["sft"].mean)
    for path in tmp_path.glob("*/run.h5"):
        with h5py.File(path, "a", libver="latest") as file:
            truncate(file, "eval", 0)
    found = study.load_study([tmp_path])
    summaries = compare.summarise(found)
    (finding,) = one_seed_findings(found, summaries)
    assert "of the training loss" in finding.text and "held-out" not in finding.text
    headers = [column.header for column in tables.overview_table(found, summaries).columns]
    assert not any("held-out" in header for header in headers)


def args(context: style.PlotContext) -> tuple[study.Study, list[compare.GroupSummary]]:
    return context.study, context.summaries


def seen(context: style.PlotContext) -> str:
    """The sentence on arms of one seed of the first screen."""
    (answer,) = [a for a in make_answers(*args(context)) if a.question == "May I use it?"]
    (text,) = [text for _, text in answer.sentences if "Seen: " in text]
    return text.split("Seen: ")[1]


def test_one_gap_is_no_span_of_gaps(tmp_path: Path) -> None:
    context = make(tmp_path / "one", ("bf16", 1), ("infir2", 1))
    gap = context.summaries[1].verdict.gap_text
    where = "inside" if abs(context.summaries[1].verdict.gap.mean) <= 0.005 else "beyond"
    assert (
        seen(context)
        == f"a gap of {gap} of the held-out loss of bf16, {where} the margin of 0.5 %."
    )
    context = make(tmp_path / "two", ("bf16", 1), ("infir2", 1), ("te_current", 1))
    assert re.match(
        r"gaps of \+\S+ % to \+\S+ % of the held-out loss of bf16, \d of 2 ", seen(context)
    )
    for path in (tmp_path / "two").glob("*/run.h5"):
        with h5py.File(path, "a") as file:
            file["eval/loss"][:] = 2.0 if "bf16" in str(path) else 2.002
    found = study.load_study([tmp_path / "two"])
    context = style.PlotContext.of(found, compare.summarise(found))
    assert seen(context).startswith("gaps of +0.100 % of the held-out loss of bf16, 2 of 2 inside")


# --- one variant ----------------------------------------------------------------------------------


def test_a_variant_of_all_arms_is_said_once(tmp_path: Path) -> None:
    outliers = stress("outlier_channels", channels=4, gain=64.0)
    for recipe in ("bf16", "infir2"):
        write_run(tmp_path / recipe, recipe, stress=outliers)
    found = study.load_study([tmp_path])
    assert [group.label for group in found.groups] == ["bf16", "infir2"]
    assert {group.shared for group in found.groups} == {"outlier channels"}
    assert [g.full_label for g in found.groups] == [
        "bf16 (outlier channels)",
        "infir2 (outlier channels)",
    ]
    assert "all with outlier channels" in report_page._subtitle(found)
    assert "2 runs, all with outlier channels, seeds" in " ".join(study_page._made(found).split())
    looks = style.assign_styles(found.groups).values()
    assert all(look.filled and look.line == "-" for look in looks)
    write_run(tmp_path / "plain", "infir2", seed=1)
    found = study.load_study([tmp_path])
    assert "infir2 (outlier channels)" in [group.label for group in found.groups]
    assert not any(group.shared for group in found.groups)
    assert "all with" not in report_page._subtitle(found)


def test_studies_of_different_variants_are_not_matched_by_short_names(tmp_path: Path) -> None:
    outliers = stress("outlier_channels", channels=4, gain=64.0)
    for folder, planted in (("with", outliers), ("without", "")):
        for recipe in ("bf16", "infir2"):
            write_run(tmp_path / folder / recipe, recipe, stress=planted)
    ours, theirs = (
        compare.summarise(study.load_study([tmp_path / name])) for name in ("with", "without")
    )
    assert [s.group.label for s in ours] == [s.group.label for s in theirs]
    assert all(one is None or other is None for one, other in match_arms(ours, theirs))
    weaker = stress("outlier_channels", channels=4, gain=32.0)
    for recipe in ("bf16", "infir2"):
        write_run(tmp_path / "weaker" / recipe, recipe, stress=weaker)
    third = compare.summarise(study.load_study([tmp_path / "weaker"]))
    assert all(one and other for one, other in match_arms(ours, third))  # by their whole names


# --- narrow screens -------------------------------------------------------------------------------


def test_the_page_says_which_losses_its_columns_hold(tmp_path: Path, few_figures: None) -> None:
    make(tmp_path / "runs", ("bf16", 1), ("infir2", 1))
    assert report.main([str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "<th>training loss sft<small>nats/token</small></th>" in text
    assert "Training losses are means over the last 10 % of a stage" in text


def test_what_scrolls_shows_it() -> None:
    style_sheet = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    narrow = re.search(
        r"@media screen and \(max-width: 820px\) \{(.*?)\n\}", style_sheet, re.DOTALL
    )
    assert narrow and ".drawing::before" in narrow[1] and "drag sideways" in narrow[1]
    (tables_rule,) = re.findall(r"^\.scroll \{(.*)\}$", style_sheet, re.MULTILINE)
    assert "local" in tables_rule and "gradient" in tables_rule
