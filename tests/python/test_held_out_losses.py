"""Held-out losses in the run files of PyTorch: what the C interface writes, and readers find.

The files are written as fp8lab.torch writes them, without layers, so that no torch is needed.
"""

from __future__ import annotations

import csv
import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

fp8lab = pytest.importorskip("fp8lab", reason="the package fp8lab is not built")
pytest.importorskip("h5py", reason="h5py is not installed")

from fp8lab._library import (  # noqa: E402
    Handle,
    RunDescription,
    RunDocument,
    RunStep,
    call,
    text,
)

needs_program = pytest.mark.skipif(
    "FP8LAB_PROGRAM" not in os.environ, reason="FP8LAB_PROGRAM names no program"
)
STEPS, SEEDS = 24, (1, 2, 3)


def program(*words: object) -> subprocess.CompletedProcess[str]:
    command = [os.environ["FP8LAB_PROGRAM"], *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Writer:
    """A run file, as fp8lab.torch.RunFile writes it."""

    def __init__(self, path: Path, recipe: str = "bf16", seed: int = 1) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        name, stage, config = text(path.parent.name), b"train", b""
        description = RunDescription(
            text(str(path)), name, stage, config, b"CPU", seed, STEPS, 1000
        )
        self.recipe = Handle("recipe_new", text(recipe))
        self.run = Handle(
            "run_new", ctypes.byref(description), self.recipe, (ctypes.c_void_p * 0)(), 0
        )

    def step(self, step: int, loss: float) -> None:
        row = RunStep(step, 10 * step, loss, float("nan"), 1e-3, 0.1 * step)
        call("run_add_step", self.run, ctypes.byref(row))

    def evaluate(
        self, step: int, loss: float, documents: list[tuple[int, float]] | None = None
    ) -> None:
        rows = (RunDocument * len(documents or []))(*(documents or []))
        call("run_add_evaluation", self.run, step, loss, 7, rows, len(rows))

    def complete(self) -> None:
        call("run_complete", self.run)
        del self.run  # closes the file


def test_evaluations_are_rows_of_the_file(tmp_path: Path) -> None:
    file = Writer(tmp_path / "mine/run.h5")
    for step in (1, 2, 3):
        file.step(step, 5.0 - step)
        if step != 2:
            file.evaluate(step, 3.5, [(4, 12.0), (6, 23.0)] if step == 3 else None)
    file.complete()
    run = fp8lab.read_run(tmp_path / "mine")
    assert run.eval["step"].tolist() == [1, 3] and run.eval["loss"].tolist() == [3.5, 3.5]
    assert run.eval["exact_match"].tolist() == [-1, -1]


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    file = Writer(tmp_path / "mine/run.h5")
    with pytest.raises(fp8lab.Error, match="after the first step"):
        file.evaluate(0, 3.0)
    file.step(1, 4.0)
    for step in (0, 2):
        with pytest.raises(fp8lab.Error, match="1, the last step added"):
            file.evaluate(step, 3.0)
    with pytest.raises(fp8lab.Error, match="nats per token"):
        file.evaluate(1, -1.0)
    with pytest.raises(fp8lab.Error, match="document 1: .*tokens.*at least 1"):
        file.evaluate(1, 3.0, [(1, 3.0), (0, 0.0)])
    with pytest.raises(fp8lab.Error, match="documents.*4 nats per token.*those of the loss, 3"):
        file.evaluate(1, 3.0, [(2, 8.0)])
    file.evaluate(1, float("nan"))
    file.complete()
    assert len(fp8lab.read_run(tmp_path / "mine").eval["loss"]) == 1


def losses(recipe: str, seed: int) -> tuple[float, float]:
    """Training and held-out loss at the end: the recipe costs 2 % held out, gains in training."""
    noise = float(np.random.default_rng(seed).normal()) / 1000
    return (2.0, 3.0 + noise) if recipe == "bf16" else (1.9, 3.06 + noise)


@pytest.fixture(name="runs", scope="module")
def fixture_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for recipe in ("bf16", "infir2"):
        for seed in SEEDS:
            file = Writer(folder / f"{recipe}-seed{seed}/run.h5", recipe, seed)
            training, held_out = losses(recipe, seed)
            for step in range(1, STEPS + 1):
                file.step(step, training + 1 / step)
                if step in (12, STEPS):
                    file.evaluate(step, held_out + (STEPS - step) / 10, None)
            file.complete()
    return folder


@needs_program
def test_a_report_judges_the_held_out_loss(runs: Path, tmp_path: Path) -> None:
    done = program("report", runs, "--out", tmp_path / "page")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    with (tmp_path / "page/tables/verdicts.csv").open(newline="") as file:
        (verdict,) = list(csv.DictReader(file))
    assert (verdict["recipe"], verdict["loss"]) == ("infir2", "held-out, train")
    gaps = [100 * (losses("infir2", s)[1] / losses("bf16", s)[1] - 1) for s in SEEDS]
    assert float(verdict["gap (%)"]) == pytest.approx(np.mean(gaps), abs=0.01)


@needs_program
def test_compare_prints_both_losses(runs: Path) -> None:
    a, b = runs / "bf16-seed1", runs / "infir2-seed1"
    done = program("compare", "--files-only", a, b)
    assert done.returncode == 3, done.stderr
    assert "differ in recipe" in done.stdout and "say nothing" in done.stdout
    rows = {line.split("  ")[0]: line.split() for line in done.stdout.splitlines()}
    held_out = rows["held-out train"]
    assert held_out[2] == str(STEPS)
    wanted = losses("bf16", 1)[1], losses("infir2", 1)[1]
    assert [float(word) for word in held_out[3:5]] == pytest.approx(wanted, rel=1e-4)
    seeds = program("compare", "--files-only", a, runs / "bf16-seed2")
    assert "differ in seed" in seeds.stdout
    again = program("compare", "--files-only", a, a)
    assert again.returncode == 0
    executed = program("compare", a, b)
    assert executed.returncode == 2 and "another program wrote it" in executed.stderr
