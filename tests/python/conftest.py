"""The example study and its report, made once for all tests that read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import make_example_run
import pytest

from fp8lab_analysis import report
from fp8lab_analysis.draw import figures

ALL_FORMS = figures.FORMS


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example study; tests must not write into it."""
    folder = tmp_path_factory.mktemp("example")
    make_example_run.make_example(folder)
    return folder


@pytest.fixture(scope="session")
def example_report(example: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the report of the example study, with every form of the figures."""
    out = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "FORMS", ALL_FORMS)
        assert report.main([str(example), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module", autouse=True)
def forms_of_the_page() -> Iterator[None]:
    """Other reports have the forms that their pages show: PNG and PDF take a third of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "FORMS", ("svg", "csv"))
        yield


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three figures instead of all, for tests that are not about figures."""
    names = ("loss", "sqnr_heat_map", "scales")
    chosen = tuple(spec for spec in figures.FIGURES if spec.name in names)
    assert len(chosen) == len(names)
    monkeypatch.setattr(figures, "FIGURES", chosen)
