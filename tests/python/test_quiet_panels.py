"""Panels that could say nothing are left out, and the page says so in words."""

from __future__ import annotations

from pathlib import Path

import h5py
import make_example_run
import pytest

from fp8lab_analysis import report
from fp8lab_analysis.draw import figures, style
from fp8lab_analysis.judge import compare
from fp8lab_analysis.page import findings
from fp8lab_analysis.read import study

RECIPES = make_example_run.RECIPES[:3]


@pytest.fixture
def example_study(tmp_path: Path) -> Path:
    make_example_run.make_example(tmp_path, RECIPES)
    return tmp_path


def set_all(folder: Path, name: str, value: float) -> None:
    for path in folder.glob("*/run.h5"):
        with h5py.File(path, "a") as file:
            values = file[name][:]
            values[values >= 0.0] = value
            file[name][...] = values


def titles(folder: Path, name: str) -> list[str]:
    """Of the panels of a figure; nothing where it is not drawn."""
    found = study.load_study([folder])
    context = style.PlotContext.of(found, compare.summarise(found))
    spec = next(spec for spec in figures.FIGURES if spec.name == name)
    figure = spec.draw(context)
    if figure is None:
        return []
    title = next(text.get_text() for text in figure.texts)
    return [title, *(axes.get_title() for axes in figure.axes if axes.get_visible())]


def said(folder: Path, topic: str) -> str:
    found = study.load_study([folder])
    told = findings.make_findings(found, compare.summarise(found))
    return " ".join(finding.text for finding in told if finding.topic == topic)


@pytest.mark.parametrize("match, word", [(0.0, "none"), (1.0, "all")])
def test_exact_match_that_is_the_same_for_all(match: float, word: str, example_study: Path) -> None:
    assert "exact match, sft" in titles(example_study, "overview")
    assert titles(example_study, "held_out")[0] == "Held-out loss and exact match"
    assert "highest" in said(example_study, "Exact match")
    set_all(example_study, "eval/exact_match", match)
    assert not any("exact match" in title for title in titles(example_study, "overview"))
    assert titles(example_study, "held_out")[0] == "Held-out loss"
    text = said(example_study, "Exact match")
    assert text == f"After sft: {word} of 384 answers right in any recipe: it tells nothing."
    with h5py.File(example_study / "infir2-seed2" / "run.h5", "a") as file:  # one answer of one run
        file["eval/exact_match"][-1] = 63.0 / 64.0 if match else 1.0 / 64.0
    assert "exact match, sft" in titles(example_study, "overview")
    assert "highest" in said(example_study, "Exact match")


def test_losses_of_range_that_are_zero(example_study: Path) -> None:
    title, *panels = titles(example_study, "range_losses")
    assert title == "Values lost at the ends of the range (no saturation in any operand)"
    assert len(panels) == 6
    assert "worst underflow" in titles(example_study, "overview")
    with h5py.File(example_study / "infir2-seed2" / "run.h5", "a") as file:
        file["tensors/saturation_fraction"][0, 0] = 1e-9
    title, *panels = titles(example_study, "range_losses")
    assert title == "Values lost at the ends of the range" and len(panels) == 12
    set_all(example_study, "tensors/underflow_fraction", 0.0)
    set_all(example_study, "tensors/saturation_fraction", 0.0)
    assert titles(example_study, "range_losses") == []
    assert "worst underflow" not in titles(example_study, "overview")


def test_detectors_without_a_score(example_study: Path) -> None:
    assert "kurtosis" in titles(example_study, "warnings")
    for path in example_study.glob("*/run.h5"):
        with h5py.File(path, "a") as file:
            rows = file["warnings/detector"].asstr()[:] == "kurtosis"
            scores = file["warnings/score"][:]
            scores[rows] = -1.0
            file["warnings/score"][...] = scores
    panels = titles(example_study, "warnings")
    assert "kurtosis" not in panels and "amax lag" in panels


def test_what_is_left_out_is_said_on_the_page(
    example_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tuple(spec for spec in figures.FIGURES if spec.name in ("loss", "range_losses"))
    monkeypatch.setattr(figures, "FIGURES", chosen)
    set_all(example_study, "tensors/underflow_fraction", 0.0)
    out = tmp_path / "out"
    assert report.main([str(example_study), "--out", str(out)]) == 0
    page = (out / "index.html").read_text()
    assert "or nothing but zeros: underflow and saturation" in page
