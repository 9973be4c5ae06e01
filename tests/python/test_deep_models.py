"""A report of a model of 30 blocks in which one tensor has a massive activation: found, named, and
readable in the figures."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

import h5py
import make_example_run
import numpy as np
import pytest
from make_example_run import RECIPES, SyntheticRecipe

from fp8lab_analysis import report
from fp8lab_analysis.draw import figures, layer_axis
from fp8lab_analysis.judge import compare, outliers
from fp8lab_analysis.page.operand_findings import outlier_findings
from fp8lab_analysis.read import study

BLOCKS = 30
PLACE = "layers.11.mlp.down"  # where SmolLM2-135M has one
RATIO, KURTOSIS, CHANNEL = 4119.0, 3.18e5, 17
TENSORS = make_example_run.tensors_of(BLOCKS)
INPUTS = [i for i, (layer, slot) in enumerate(TENSORS) if layer == PLACE and slot.endswith(".x")]


def plant(path: Path, flushed: float = 0.0, lost_db: float = 0.0, ratio: float = RATIO) -> None:
    """The massive activation, and what a recipe loses by it."""
    with h5py.File(path, "a") as file:
        for column in INPUTS:
            file["tensors/channel_outlier_ratio"][:, column] = ratio
            file["tensors/kurtosis"][:, column] = KURTOSIS
            file["tensors/top_channel"][:, column, 0] = CHANNEL
            file["tensors/sqnr_db"][:, column] -= lost_db
            if flushed:
                file["tensors/underflow_fraction"][:, column] = flushed


def write_study(folder: Path, recipes: Sequence[SyntheticRecipe] = RECIPES[:3]) -> Path:
    """bf16, infir2 that does not notice, te_current that flushes 41 % there."""
    for recipe in recipes:
        path = folder / recipe.name / "run.h5"
        make_example_run.write_run(path, recipe, 1, blocks=BLOCKS)
        plant(path, 0.41 if recipe.name == "te_current" else 0.0)
    return folder


def told(folder: Path) -> list[str]:
    summaries = compare.summarise(study.load_study([folder]))
    return [finding.text for finding in outlier_findings(summaries)]


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("deep"))


@pytest.fixture(scope="module")
def deep_report(deep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report with the figures that name layers."""
    out = tmp_path_factory.mktemp("report")
    names = ("layers", "outliers", "sqnr_heat_map")
    chosen = tuple(spec for spec in figures.FIGURES if spec.name in names)
    assert len(chosen) == len(names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "FIGURES", chosen)
        assert report.main([str(deep), "--out", str(out)]) == 0
    return out


def test_the_outlier_is_a_finding_with_who_suffers(deep: Path) -> None:
    (text,) = told(deep)
    assert text.startswith(
        f"{PLACE}/fprop.x: channel 17 is 4119 × the median one (layers without outliers 2."
    )
    assert "kurtosis 3.18e+05" in text
    assert re.search(r"Suffers there: te_current 41 % of fprop\.x flushed to zero \(1 %\)", text)
    assert re.search(r"Does not: infir2 0\.0\d+ % of fprop\.x flushed", text)
    assert "Not quantized: bf16 5" in text


def test_what_is_no_outlier_is_not_told(tmp_path: Path) -> None:
    make_example_run.make_example(tmp_path)
    assert told(tmp_path) == []
    folder = write_study(tmp_path / "deep", RECIPES[:2])
    for name, ratio, count in (("bf16", 31.9, 0), ("infir2", 1e6, 0), ("bf16", 32.0, 1)):
        plant(folder / name / "run.h5", ratio=ratio)  # the baseline's is told of
        assert len(told(folder)) == count, (name, ratio)


@pytest.mark.parametrize(
    "flushed, lost_db, suffers",
    [
        (0.0, 0.0, False),
        (0.009, 0.0, False),
        (0.011, 0.0, True),
        (0.0, 2.0, False),
        (0.0, 5.0, True),
    ],
)
def test_who_suffers(flushed: float, lost_db: float, suffers: bool, tmp_path: Path) -> None:
    folder = write_study(tmp_path, RECIPES[:2])
    plant(folder / "infir2" / "run.h5", flushed, lost_db)
    (summary,) = compare.summarise(study.load_study([folder / "infir2" / "run.h5"]))
    for slot, damage in zip(("fprop.x", "wgrad.x"), outliers.damages(summary, PLACE, {PLACE})):
        assert (damage.slot, damage.suffers) == (slot, suffers)


def test_layers_with_outliers_are_not_compared_with_one_another(tmp_path: Path) -> None:
    folder = write_study(tmp_path, RECIPES[:2])
    everywhere = [i for i, (layer, slot) in enumerate(TENSORS) if slot == "fprop.x"]
    most = [i for i in everywhere if not TENSORS[i][0].endswith("attention.o")]
    for name in ("bf16", "infir2"):
        with h5py.File(folder / name / "run.h5", "a") as file:
            for column in most:
                file["tensors/channel_outlier_ratio"][:, column] = 64.0
                file["tensors/underflow_fraction"][:, column] = 0.3
    plant(folder / "infir2" / "run.h5", 0.3)
    plant(folder / "bf16" / "run.h5")
    (text,) = told(folder)
    assert re.search(r"Suffers there: infir2 30 % of fprop\.x flushed to zero \(0\.05\d? %\)", text)
    named = r"Also layers\.\d+\.[\w.]+ \(64 ×, suffers: infir2\), .*, and 84 more\.$"
    assert re.search(named, text), text
    with h5py.File(folder / "bf16" / "run.h5", "a") as file:  # no layer is left to compare with
        for column in everywhere:
            file["tensors/channel_outlier_ratio"][:, column] = 64.0
    (text,) = told(folder)
    assert "Suffers there: infir2 30 % of fprop.x flushed to zero, " in text


def test_the_largest_channel_is_the_most_frequent_one(tmp_path: Path) -> None:
    folder = write_study(tmp_path, RECIPES[:1])
    with h5py.File(folder / "bf16" / "run.h5", "a") as file:
        file["tensors/top_channel"][:2, INPUTS[0], 0] = 5
    (text,) = told(folder)
    assert "channel 17 (the largest at 71 % of the logged steps) is 4119 ×" in text


def test_peaks() -> None:
    values = [1.0, 1.0, 9.0, 8.0, 1.0, 5.0, np.nan, 1.0, 1.5]
    assert layer_axis.peaks(values, 2.0) == [2, 5]  # 3 is beside 2
    assert layer_axis.peaks(values, 2.0, apart=0) == [2, 3, 5]
    assert layer_axis.peaks(values, 5.0) == [2]
    assert layer_axis.peaks(values, 2.0, most=1) == [2]
    assert layer_axis.peaks([1.0] * 9, 0.5) == []
    assert layer_axis.peaks([np.nan] * 9, 0.5) == []


def test_many_layers_stand_by_module() -> None:
    layers = list(dict.fromkeys(layer for layer, _ in TENSORS))
    axis = layer_axis.LayerAxis.of(layers)
    assert sorted(axis.layers) == sorted(layers)
    assert axis.section_names() == ["attention.qkv", "attention.o", "mlp.gate_up", "mlp.down"]
    assert axis.starts == [0, 30, 60, 90]
    assert axis.layers.index(PLACE) == 90 + 11
    few = layer_axis.LayerAxis.of(layers[:16])
    assert few.layers == layers[:16] and few.starts == []
    odd = layer_axis.LayerAxis.of([*layers, "lm_head"])
    assert odd.section_names()[-1] == "lm_head" and odd.section_middles()[-1] == 120.0


def texts(svg: Path) -> list[str]:
    """The words of a figure: matplotlib leaves each as a comment before its outlines."""
    return re.findall(r"<!-- (.*?) -->", svg.read_text())


def test_figures_name_the_layer(deep_report: Path) -> None:
    for name in ("layers", "outliers", "sqnr_heat_map"):
        said = texts(deep_report / "figures" / f"{name}.svg")
        assert "mlp.gate_up" in said, name
        if name != "sqnr_heat_map":
            assert "11 mlp.down" in said, name
            assert not any(re.match(r"\d+ attention", text) for text in said), name
    with (deep_report / "figures" / "layers.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["x"] == PLACE]
    assert {row["series"] for row in rows} == {"infir2", "te_current"} and len(rows) == 24


@pytest.mark.usefixtures("few_figures")
def test_the_heat_map_names_weak_rows(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "runs")
    plant(folder / "te_current" / "run.h5", 0.41, 12.0)
    assert report.main([str(folder), "--out", str(tmp_path / "out")]) == 0
    said = texts(tmp_path / "out" / "figures" / "sqnr_heat_map.svg")
    assert said.count("11 mlp.down ▸") == 2  # fprop.x and wgrad.x of te_current
    assert not any(re.match(r"\d+ (?!mlp.down)", text) and "▸" in text for text in said)
    with (tmp_path / "out" / "figures" / "sqnr_heat_map.csv").open() as file:
        cells = list(csv.DictReader(file))
    assert {cell["x"] for cell in cells} == {str(step) for step in range(20, 141, 20)}
    assert len(cells) == 2 * 7 * len(TENSORS)


def test_the_outlier_is_on_the_page(deep_report: Path) -> None:
    page = (deep_report / "index.html").read_text()
    assert "Outlier channels</dt>" in page and "channel 17 is 4119 ×" in page
