"""Reports from runs that are growing, killed, poor or broken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import make_example_run
import numpy as np
import pytest
from loose_runs import truncate, write_run

from fp8lab_analysis import report
from fp8lab_analysis.read.run_reader import load_run


def make_poor(path: Path, without: tuple[str, ...]) -> None:
    """Removes groups from a run file."""
    with h5py.File(path, "a") as file:
        for name in without:
            del file[name]


@pytest.mark.parametrize(
    "without",
    [
        ("eval",),
        ("tensors",),
        ("eval", "scores", "tensors", "events", "hashes", "samples", "complete"),
    ],
)
def test_single_run_without_baseline(tmp_path: Path, without: tuple[str, ...]) -> None:
    path = write_run(tmp_path / "alone", schema=make_example_run.FIRST_SCHEMA)
    make_poor(path, without)
    assert report.main([str(path), "--out", str(tmp_path / "r")]) == 0
    page = (tmp_path / "r" / "index.html").read_text()
    assert 'id="figure-loss"' in page
    assert ('id="figure-sqnr"' in page) == ("tensors" not in without)
    assert ('id="figure-held_out"' in page) == ("eval" not in without)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_run_with_hardly_any_rows(tmp_path: Path, rows: int) -> None:
    for recipe in ("bf16", "infir2"):
        path = write_run(tmp_path / recipe, recipe)
        with h5py.File(path, "a") as file:
            truncate(file, "metrics", rows)
            truncate(file, "tensors", 0)
            truncate(file, "eval", 0)
            file["complete"].resize(0, axis=0)
    assert report.main([str(tmp_path), "--out", str(tmp_path / "r")]) == 0
    assert "not complete" in (tmp_path / "r" / "index.html").read_text()


def test_everything_not_finite(tmp_path: Path) -> None:
    for recipe in ("bf16", "infir2"):
        path = write_run(tmp_path / recipe, recipe)
        with h5py.File(path, "a") as file:
            for group in ("metrics", "tensors", "eval"):
                for item in file[group].values():
                    if item.dtype.kind == "f" and item.ndim and item.name[-8:] != "_element":
                        item[...] = np.nan
            file["tensors/channel_outlier_ratio"][...] = np.inf
    assert report.main([str(tmp_path), "--out", str(tmp_path / "r")]) == 0
    assert "diverged" in (tmp_path / "r" / "index.html").read_text()


@pytest.mark.parametrize("value", [1e30, 1e308])
@pytest.mark.usefixtures("few_figures")
def test_numbers_too_large_to_draw(tmp_path: Path, value: float) -> None:
    for recipe in ("bf16", "infir2"):
        path = write_run(tmp_path / recipe, recipe)
        with h5py.File(path, "a") as file:
            file["metrics/loss"][70] = value
            file["metrics/loss"][71:90] = -value
    assert report.main([str(tmp_path), "--out", str(tmp_path / "r")]) == 0
    text = (tmp_path / "r" / "index.html").read_text()
    drawn = 'id="figure-loss"' in text
    assert drawn or "Could not be drawn" in text
    assert drawn == (tmp_path / "r" / "figures" / "loss.svg").exists()
    assert drawn or value > 1e300


def test_run_that_logs_no_tensor_names(tmp_path: Path) -> None:
    path = write_run(tmp_path / "none")
    with h5py.File(path, "a") as file:
        file["warnings/tensor"][...] = -1
        file["warnings/channel"][...] = -1
        for name in list(file["tensors"]):
            if name != "step":
                shape = file["tensors"][name].shape
                del file["tensors"][name]
                if name in ("layer", "slot", "format", "scale_bits_per_element"):
                    file["tensors"][name] = np.zeros(0)
                else:
                    file["tensors"][name] = np.zeros((shape[0], 0, *shape[2:]))
    assert report.main([str(path), "--out", str(tmp_path / "r")]) == 0


def test_unequal_lengths_and_unwritten_rows_are_cut(tmp_path: Path) -> None:
    path = write_run(tmp_path / "cut")
    with h5py.File(path, "a") as file:
        file["metrics/loss"].resize(100, axis=0)
        file["metrics/step"][90:] = -1
        file["tensors/step"].resize(3, axis=0)
    run = load_run(path)
    assert len(run.metrics) == 90 and run.metrics.loss.size == 90
    assert run.tensors.get("sqnr_db").shape[0] == 3


WRITER = """
import sys, time, h5py
file = h5py.File(sys.argv[1], "a", libver="latest")
file.swmr_mode = True
metrics = file["metrics"]
rows = metrics["step"].shape[0]
for name in metrics:
    metrics[name].resize(rows + 5, axis=0)
metrics["step"][rows:] = range(rows + 1, rows + 6)
metrics["stage"][rows:] = 2
metrics["loss"][rows:] = 0.25
file.flush()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.usefixtures("few_figures")
def test_growing_and_killed_files(tmp_path: Path, killed: bool) -> None:
    path = write_run(tmp_path / "live")
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        try:
            assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
            if killed:
                os.kill(writer.pid, signal.SIGKILL)
                writer.wait()
            run = load_run(path)
            assert len(run.metrics) == make_example_run.STEPS + 5
            assert run.metrics.loss[-1] == 0.25
            assert report.main([str(path), "--out", str(tmp_path / "r")]) == 0
        finally:
            writer.kill()
