"""Refusals and the command line of the report."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import make_example_run
import pytest
from loose_runs import write_run

from fp8lab_analysis import report
from fp8lab_analysis.read import study

ROOT = Path(__file__).resolve().parents[2]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a refused command prints; the exit code must be 2."""
    assert report.main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


def test_refusals_are_one_line_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (tmp_path / "empty").mkdir()
    text = tmp_path / "text.h5"
    text.write_text("this is not HDF5")
    bare = tmp_path / "bare.h5"
    with h5py.File(bare, "w") as file:
        file["x"] = 1
    newer = write_run(tmp_path / "newer")
    with h5py.File(newer, "a") as file:
        file["meta"].attrs["schema"] = "fp8lab-run-9"
    nameless = write_run(tmp_path / "nameless")
    with h5py.File(nameless, "a") as file:
        del file["meta"].attrs["recipe_name"]
        make_example_run.seal_meta(file)
    cases = {
        "missing.h5": "no such file",
        "empty": "holds neither study.h5 nor run.h5",
        "text.h5": "not a readable HDF5 file",
        "bare.h5": "no group /meta",
        "newer/run.h5": "schema is 'fp8lab-run-9' (expected fp8lab-run-1 or fp8lab-run-2)",
        "nameless/run.h5": "no attribute 'recipe_name'",
    }
    for name, expected in cases.items():
        line = refusal(capsys, str(tmp_path / name), "--out", str(out))
        assert expected in line and name in line
    assert not out.exists()


def test_study_with_runs_still_to_come(example: Path, tmp_path: Path) -> None:
    (tmp_path / "study.h5").write_bytes((example / "study.h5").read_bytes())
    for name in ("bf16-seed1", "infir2-seed1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.h5").write_bytes((example / name / "run.h5").read_bytes())
    found = study.load_study([tmp_path])
    assert len(found.runs) == 2
    assert found.notes[0] == "No run file yet for: e5m2_tensor-seed1, e5m2_tensor-seed2."
    assert "te_current-seed2" in found.notes[1] and "without a run file" in found.notes[1]


def test_command_line_of_the_module(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'analysis'}:{ROOT / 'src/python'}"}
    command = [sys.executable, "-m", "fp8lab_analysis.report"]
    usage = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert usage.returncode == 2 and "give a study directory" in usage.stderr
    path = write_run(tmp_path / "run")
    result = subprocess.run(
        [*command, str(path.parent)], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert (path.parent / "report" / "index.html").exists()
