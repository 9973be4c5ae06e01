"""The report of the example study: figures, page, tables."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import h5py
import make_example_run
import matplotlib.image
import numpy as np
import pytest
from loose_runs import write_run

from fp8lab_analysis import report
from fp8lab_analysis.draw import figures
from fp8lab_analysis.read.run_reader import load_run


def test_report_holds_every_figure_in_every_form(example_report: Path) -> None:
    text = (example_report / "index.html").read_text()
    drawn = [spec for spec in figures.FIGURES if not spec.on_request]
    assert text.count("<svg") == len(drawn)
    for spec in drawn:
        assert f'id="figure-{spec.name}"' in text
        picture = matplotlib.image.imread(example_report / "figures" / f"{spec.name}.png")
        colours = np.unique((picture[::3, ::3, :3] * 255).astype(int).reshape(-1, 3), axis=0)
        assert min(picture.shape[:2]) > 100 and len(colours) > 12, spec.name
        pdf = (example_report / "figures" / f"{spec.name}.pdf").read_bytes()
        assert pdf.startswith(b"%PDF")
        svg = (example_report / "figures" / f"{spec.name}.svg").read_text()
        assert "<svg" in svg and svg.rstrip().endswith("</svg>")
        with (example_report / "figures" / f"{spec.name}.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) > 3 and all(row["x"] and row["y"] for row in rows)
        for form in ("png", "pdf", "svg", "csv"):
            assert f'href="figures/{spec.name}.{form}"' in text


def test_page_refers_to_nothing_outside_itself(example_report: Path) -> None:
    page = (example_report / "index.html").read_text()
    assert "http:" not in page and "https:" not in page
    references = re.findall(r'(?:src|href|data)="([^"]*)"', page) + re.findall(
        r"url\(([^)]*)\)", page
    )
    assert references
    files = [item for item in references if not item.startswith(("#", "data:"))]
    assert all((example_report / item).is_file() for item in files)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    targets = {item[1:] for item in references if item.startswith("#")}
    assert targets <= set(ids)
    assert page.count("<script") == 1 and "<script>" in page  # hides series; loads nothing


def test_page_shows_provenance_of_every_run(example_report: Path, example: Path) -> None:
    page = (example_report / "index.html").read_text()
    for path in example.glob("*/run.h5"):
        with h5py.File(path) as file:
            for key in ("recipe_hash", "config_hash", "initial_weights_hash", "device"):
                assert file["meta"].attrs[key] in page


def test_tables_are_written_as_csv(example_report: Path) -> None:
    with (example_report / "tables" / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["recipe"] for row in rows] == ["bf16", "infir2", "te_current", "e5m2_tensor"]
    assert float(rows[1]["scale bits (bit/element)"]) == 0.25
    assert rows[3]["final gap (nats/token)"] == ""
    for name in ("stages", "operands", "tensors", "worst_tensors", "evaluation", "runs", "events"):
        assert (example_report / "tables" / f"{name}.csv").exists()


def test_scores_of_the_end_of_a_stage_are_averaged_over_seeds(
    example: Path, example_report: Path
) -> None:
    with (example_report / "tables" / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    row = next(r for r in rows if (r["recipe"], r["score"]) == ("bf16", "pass@4"))
    values = []
    for path in sorted(example.glob("bf16-seed*/run.h5")):
        run = load_run(path)
        stage = run.stage_names.index(row["stage"])
        values.append([s for s in run.scores if s.name == "pass@4" and s.stage == stage][-1].value)
    assert float(row["value"]) == pytest.approx(np.mean(values), rel=1e-4)
    assert row["count"] == "64"


@pytest.mark.usefixtures("few_figures")
def test_same_runs_give_the_same_bytes(example: Path, tmp_path: Path) -> None:
    inputs = [str(example / f"{name}-seed1" / "run.h5") for name in ("bf16", "infir2")]
    pages = []
    for name in ("a", "b"):
        assert report.main([*inputs, "--out", str(tmp_path / name), "--title", "T"]) == 0
        pages.append((tmp_path / name / "index.html").read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.usefixtures("few_figures")
def test_text_from_run_files_is_escaped(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    with h5py.File(path, "a") as file:
        file["meta"].attrs["recipe_name"] = "<b>&$x_"
        file["meta"].attrs["device"] = "<script>alert(1)</script>"
        make_example_run.seal_meta(file)
    assert report.main([str(path), "--out", str(tmp_path / "r")]) == 0
    page = (tmp_path / "r" / "index.html").read_text()
    assert page.count("<script") == 1 and "alert(1)</script" not in page and "&lt;b&gt;" in page
