"""Held-out losses in the run files of PyTorch: what the C interface writes, and readers find.

The files are written as fp8lab.torch writes them, without layers, so that no torch is needed.
"""

from __future__ import annotations

import csv
import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

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

    def __init__(
        self,
        path: Path,
        recipe: str = "bf16",
        seed: int = 1,
        config: str = "",
        stage: str = "train",
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        name = text(path.parent.name)
        description = RunDescription(
            text(str(path)), name, text(stage), text(config), b"CPU", seed, STEPS, 1000
        )
        self.recipe = Handle("recipe_new", text(recipe))
        self.run = Handle(
            "run_new", ctypes.byref(description), self.recipe, (ctypes.c_void_p * 0)(), 0
        )

    def step(self, step: int, loss: float) -> None:
        row = RunStep(step, 10 * step, loss, float("nan"), 1e-3, 0.1 * step)
        call("run_add_step", self.run, ctypes.byref(row))

    def evaluate(
        self,
        step: int,
        loss: float,
        documents: list[tuple[int, float]] | None = None,
        held_out: int = 7,
    ) -> None:
        rows = (RunDocument * len(documents or []))(*(documents or []))
        call("run_add_evaluation", self.run, step, loss, held_out, rows, len(rows))

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
    for loss in (1.0, float("nan")):
        with pytest.raises(fp8lab.Error, match="document 0: 'nats' is -10; accepted: 0 or above"):
            file.evaluate(1, loss, [(10, -10.0), (10, 30.0)])
    file.evaluate(1, float("nan"))
    with pytest.raises(fp8lab.Error, match="'step' is 1 and has an evaluation; accepted: one"):
        file.evaluate(1, 3.0)
    call("run_complete", file.run)
    nothing = (ctypes.c_void_p * 0)()
    for after in (
        lambda: file.evaluate(1, 3.0),
        lambda: file.step(2, 3.0),
        lambda: call("run_add_statistics", file.run, 1, nothing, 0, 0),
        file.complete,
    ):
        with pytest.raises(fp8lab.Error, match="is complete; accepted: before fp8lab_run_comp"):
            after()
    del file.run
    assert len(fp8lab.read_run(tmp_path / "mine").eval["loss"]) == 1


def test_a_configuration_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    for config in ("not toml [", "lr 1", "a = 1\na = 2"):
        with pytest.raises(fp8lab.Error, match="^config:.*not TOML.*; accepted: TOML, such as"):
            Writer(tmp_path / "mine/run.h5", config=config)
        assert not (tmp_path / "mine/run.h5").exists()
    Writer(tmp_path / "mine/run.h5", config="lr = 1\n[a]\nb = 'c'").complete()


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


def short_run(folder: Path, held_out: float, **options: Any) -> Path:
    """Two steps, always of the same losses, and an evaluation after the second."""
    text_of = options.pop("held_out_text", 7)
    file = Writer(folder / "run.h5", **options)
    for step in (1, 2):
        file.step(step, 1.0)
    file.evaluate(2, held_out, [(10, 10 * held_out)], text_of)
    file.complete()
    return folder


@needs_program
def test_compare_sees_held_out_losses_and_configurations(tmp_path: Path) -> None:
    def compared(a: Path, b: Path) -> tuple[int, str]:
        done = program("compare", "--files-only", a, b)
        assert done.stderr == ""
        return done.returncode, done.stdout

    one = short_run(tmp_path / "one", 0.5, config="lr=1")
    same = short_run(tmp_path / "same", 0.5, config="lr = 1")
    status, said = compared(one, same)
    assert status == 0 and "must be equal" not in said and "same bits" not in said
    assert said.startswith("A and B differ in nothing that their files name\n")
    assert "2 steps that both have: same losses and gradient norms" in said

    status, said = compared(one, short_run(tmp_path / "held", 0.6, config="lr=1"))
    assert status == 3 and "files: held-out loss differs first at step 2\n" in said

    status, said = compared(one, short_run(tmp_path / "rate", 0.5, config="lr=2"))
    assert "differs in lr: 1 -> 2\n" in said and "A and B differ in lr" in said
    a = short_run(tmp_path / "a", 0.5, config='[a]\nb=1\nc="x"')
    b = short_run(tmp_path / "b", 0.5, config='[a]\nb=2\nc="x"')
    assert "differs in a.b: 1 -> 2\n" in compared(a, b)[1]
    assert "differs in a.c" not in compared(a, b)[1]

    # Another text has other losses, which say nothing of the runs.
    other = short_run(tmp_path / "text", 0.6, config="lr=1", held_out_text=8)
    status, said = compared(one, other)
    assert status == 3 and "differ in evaluation" in said and "evaluation data of stage" in said


@needs_program
def test_names_of_other_programs_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    odd = {"stage": "\x1b[31mx\n0 cases", "config": '"a\\u001b" = 1'}
    one, two = (short_run(tmp_path / name, 0.5, **odd) for name in ("one", "two"))
    said = program("compare", "--files-only", one, two).stdout
    assert "\x1b" not in said and "held-out \\x1b[31mx 0 cases" in said
    other = short_run(tmp_path / "three", 0.5, config='"a\\u001b" = 2')
    assert "\x1b" not in program("compare", "--files-only", one, other).stdout
