"""The example study and its report, made once for all tests that read them."""

from __future__ import annotations

from pathlib import Path

import make_example_run
import pytest

from fp8lab_analysis import report
from fp8lab_analysis.draw import figures


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example study; tests must not write into it."""
    folder = tmp_path_factory.mktemp("example")
    make_example_run.make_example(folder)
    return folder


@pytest.fixture(scope="session")
def example_report(example: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the report of the example study."""
    out = tmp_path_factory.mktemp("report")
    assert report.main([str(example), "--out", str(out)]) == 0
    return out


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three figures instead of all, for tests that are not about figures."""
    names = ("loss", "sqnr_heat_map", "scales")
    chosen = tuple(spec for spec in figures.FIGURES if spec.name in names)
    assert len(chosen) == len(names)
    monkeypatch.setattr(figures, "FIGURES", chosen)
