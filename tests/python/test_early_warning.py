"""Leads, misses and false alarms of detectors, on runs whose scores are made up."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import h5py
import numpy as np
import pytest
from make_example_run import FIRST_SCHEMA, RECIPES, make_example, write_run

from fp8lab_analysis.draw import figures
from fp8lab_analysis.draw.figures import FIGURES, render_figures, save_figure
from fp8lab_analysis.draw.style import PlotContext
from fp8lab_analysis.draw.warning_plot import warning_figure
from fp8lab_analysis.judge.compare import GroupSummary, summarise
from fp8lab_analysis.judge.early_warning import (
    DETECTORS,
    alarm_text,
    detector_summaries,
    find_trouble,
    lead_text,
    warned,
    watched,
)
from fp8lab_analysis.page.findings import warning_findings
from fp8lab_analysis.page.tables import warning_table
from fp8lab_analysis.read.hdf5 import InputError
from fp8lab_analysis.read.run_reader import load_run
from fp8lab_analysis.read.runs import DetectorScore
from fp8lab_analysis.read.study import Study, load_study

BROKEN = "e5m2_tensor"  # not finite from step 130 on; its lag warns from 40 on


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, list[GroupSummary]]:
    study = load_study([make_example(tmp_path_factory.mktemp("example"))])
    return study, summarise(study)


def group(summaries: list[GroupSummary], label: str) -> GroupSummary:
    return next(s for s in summaries if s.group.label == label)


def with_scores(summary: GroupSummary, *scores: tuple[int, str, float]) -> GroupSummary:
    """The group with these scores in place of those of its first run, and none in the others."""
    rows = [
        DetectorScore(step, name, s, 8.0 * s, "layers.0.mlp.down/fprop.x", 3, 1)
        for step, name, s in scores
    ]
    runs = [
        dataclasses.replace(
            item, run=dataclasses.replace(item.run, warnings=rows if number == 0 else [])
        )
        for number, item in enumerate(summary.runs)
    ]
    return dataclasses.replace(summary, runs=runs)


def test_scores_are_read_with_the_place_that_they_name(tmp_path: Path) -> None:
    write_run(tmp_path / "run.h5", RECIPES[3], 1)
    run = load_run(tmp_path / "run.h5")
    assert [w.step for w in run.warnings if w.warns] == [40, 60, 80, 100, 120]
    warning = next(w for w in run.warnings if w.warns)
    assert warning.detector == "amax_lag" and warning.count == 1 and warning.channel == -1
    assert warning.place == f"{run.tensors.layer[2]}/{run.tensors.slot[2]}"
    assert {w.place for w in run.warnings if w.detector == "gradient_norm"} == {""}
    assert run.notes == []


def test_a_file_without_scores_is_read_as_before(tmp_path: Path) -> None:
    write_run(tmp_path / "first.h5", RECIPES[0], 1, FIRST_SCHEMA)
    assert load_run(tmp_path / "first.h5").warnings == []
    write_run(tmp_path / "second.h5", RECIPES[0], 1)
    with h5py.File(tmp_path / "second.h5", "r+") as file:
        del file["warnings"]
    assert load_run(tmp_path / "second.h5").warnings == []


def test_a_score_of_an_operand_that_there_is_not_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    write_run(path, RECIPES[0], 1)
    with h5py.File(path, "r+") as file:
        file["warnings/tensor"][0] = 10**6
    with pytest.raises(InputError, match="/warnings/tensor holds 1000000"):
        load_run(path)


def test_the_lead_is_from_the_first_warning_to_where_the_loss_breaks(
    example: tuple[Study, list[GroupSummary]],
) -> None:
    study, summaries = example
    broken = group(summaries, BROKEN)
    trouble = find_trouble(study, broken.runs[0])
    assert trouble is not None and trouble.step <= 130
    item = warned(
        study,
        with_scores(
            broken, (20, "kurtosis", 0.99), (40, "kurtosis", 1.0), (60, "kurtosis", 3.0)
        ).runs[0],
    )
    assert item.lead("kurtosis") == trouble.step - 40
    assert item.lead("amax_lag") is None
    assert item.earliest is not None and item.earliest.step == 40


def test_the_trouble_is_the_earlier_of_the_break_and_the_end_of_the_band(
    example: tuple[Study, list[GroupSummary]],
) -> None:
    study, summaries = example
    item = group(summaries, BROKEN).runs[0]
    stages = {
        name: dataclasses.replace(stage, first_departure=77 if name == "cpt" else None)
        for name, stage in item.stages.items()
    }
    early = find_trouble(study, dataclasses.replace(item, stages=stages))
    assert early is not None and early.step == 77 and "band" in early.how and early.stage == "cpt"
    stages = {n: dataclasses.replace(s, first_departure=None) for n, s in stages.items()}
    late = find_trouble(study, dataclasses.replace(item, stages=stages))
    assert late is not None and late.step == 130 and late.how == "stopped being finite"
    baseline = find_trouble(study, group(summaries, "bf16").runs[0])
    assert baseline is None


def test_the_sentence_names_the_detector_that_warned_first(
    example: tuple[Study, list[GroupSummary]],
) -> None:
    study, summaries = example
    broken = group(summaries, BROKEN)
    trouble = find_trouble(study, broken.runs[0])
    assert trouble is not None
    step = trouble.step
    runs = watched(
        study, with_scores(broken, (step - 12, "amax_lag", 2.0), (step - 5, "kurtosis", 9.0))
    )
    text = lead_text(BROKEN, runs)
    assert text.startswith(f"{BROKEN}: amax lag warned at step {step - 12}, ")
    assert f" 12 steps before it {trouble.how} (step {step};" in text
    assert "layers.0.mlp.down/fprop.x" in text
    late = watched(study, with_scores(broken, (step, "amax_lag", 2.0)))
    assert "nothing warned before" in lead_text(BROKEN, late)
    assert lead_text("bf16", watched(study, group(summaries, "bf16"))) == ""


def test_a_warning_in_a_good_run_is_a_false_alarm(
    example: tuple[Study, list[GroupSummary]],
) -> None:
    study, summaries = example
    good = group(summaries, "bf16")
    assert alarm_text("bf16", watched(study, good)) == ""
    runs = watched(study, with_scores(good, (60, "kurtosis", 1.2), (80, "kurtosis", 1.3)))
    assert alarm_text("bf16", runs) == "bf16: kurtosis in 1 of 1 runs (first at step 60)"


def test_detectors_are_counted_run_by_run(example: tuple[Study, list[GroupSummary]]) -> None:
    study, summaries = example
    broken = group(summaries, BROKEN)
    trouble = find_trouble(study, broken.runs[0])
    assert trouble is not None
    changed = with_scores(
        broken, (trouble.step - 30, "amax_lag", 1.0), (trouble.step, "kurtosis", 4.0)
    )
    found = {item.detector: item for item in detector_summaries(study, changed)}
    assert list(found) == ["kurtosis", "amax_lag"]  # in the order of DETECTORS
    assert DETECTORS.index("kurtosis") < DETECTORS.index("amax_lag")
    assert found["amax_lag"].leads == [30] and found["amax_lag"].late == 0
    assert found["kurtosis"].leads == [] and found["kurtosis"].late == 1
    assert found["amax_lag"].troubled == 1 and found["amax_lag"].quiet == 0
    quiet = {
        item.detector: item
        for item in detector_summaries(
            study, with_scores(group(summaries, "bf16"), (40, "kurtosis", 1.0), (40, "new", 0.2))
        )
    }
    assert quiet["kurtosis"].false_alarms == 1 and quiet["new"].false_alarms == 0


def test_findings_table_and_figure_of_a_study(
    example: tuple[Study, list[GroupSummary]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, summaries = example
    texts = {finding.topic: finding.text for finding in warning_findings(study, summaries)}
    assert f"{BROKEN}: amax lag warned" in texts["Early warning"]
    assert "te_current: nothing warned before the loss left the band" in texts["Early warning"]
    assert "No detector warned in the" in texts["False alarms"]
    table = warning_table(study, summaries)
    assert len(table.rows) == 4 * len(summaries)
    (spec,) = [spec for spec in FIGURES if spec.name == "warnings"]
    monkeypatch.setattr(figures, "FIGURES", (spec,))
    rendered, failed = render_figures(PlotContext.of(study, summaries), tmp_path)
    assert not failed and "warnings" in [figure.name for figure in rendered]
    for suffix in ("svg", "csv"):
        assert (tmp_path / f"warnings.{suffix}").stat().st_size > 0
    drawn = (tmp_path / "warnings.csv").read_text()
    assert "amax lag" in drawn and BROKEN in drawn


def test_infinite_scores_are_drawn(
    example: tuple[Study, list[GroupSummary]], tmp_path: Path
) -> None:
    study, summaries = example
    changed = [
        with_scores(s, (20, "amax_lag", 0.5), (40, "amax_lag", np.inf), (60, "amax_lag", -1.0))
        for s in summaries
    ]
    figure = warning_figure(PlotContext.of(study, changed))
    assert figure is not None
    save_figure(figure, next(spec for spec in FIGURES if spec.name == "warnings"), tmp_path)
    drawn = (tmp_path / "warnings.csv").read_text()
    assert ",40.0,1000.0," in drawn and ",inf," not in drawn and ",-1.0," not in drawn
