"""Notebooks are short, carry no outputs and run on the example study."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import make_example_run
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
TIME_LIMIT = 300  # seconds per cell
# Notebooks that compute instead of reading runs need the compiled package; what a notebook leaves.
COMPUTED = {
    "03_formats_and_accumulation": "errors",
    "04_rounding": "errors",
    "05_inside_a_tensor_core": "shifts",
}
COMMANDS = ("06_a_study_step_by_step",)  # notebooks that run the program


def need_packages(path: Path) -> None:
    if path.stem in COMPUTED:
        pytest.importorskip("fp8lab", reason="the package fp8lab is not built")
    if path.stem in COMMANDS and "FP8LAB_PROGRAM" not in os.environ:
        pytest.skip("FP8LAB_PROGRAM is not set")


def code_cells(path: Path) -> list[dict[str, Any]]:
    """Code cells of a notebook file."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_notebook_is_short_and_carries_no_outputs(path: Path) -> None:
    cells = code_cells(path)
    assert 0 < len(cells) <= 12
    assert any("fp8lab_analysis" in "".join(cell["source"]) for cell in cells)
    for cell in cells:
        assert cell["outputs"] == [] and cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_packages(path)
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    make_example_run.make_example(tmp_path / "study")
    monkeypatch.setenv("FP8LAB_RUNS", str(tmp_path / "study"))
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=TIME_LIMIT, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_cells_run_as_a_script(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same cells in a plain interpreter, so that they are checked without Jupyter too."""
    need_packages(path)
    make_example_run.make_example(tmp_path / "study")
    monkeypatch.setenv("FP8LAB_RUNS", str(tmp_path / "study"))
    monkeypatch.chdir(path.parent)
    shown: list[object] = []
    names: dict[str, Any] = {"display": shown.append}
    for cell in code_cells(path):
        source = "".join(cell["source"]).replace("from IPython.display import display\n", "")
        exec(compile(source, str(path), "exec"), names)  # noqa: S102
    assert COMPUTED.get(path.stem, "study") in names
