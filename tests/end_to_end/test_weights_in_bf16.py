"""The weights that a quantized stage leaves, evaluated in bf16 as well: arithmetic or weights?

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import pytest
from program import succeeded

RUN = """
name = "r"
model = "tiny"
recipe = "infir2"
[logging]
statistics_every_steps = 0
checkpoint_every_steps = 2
[[stages]]
name = "cpt"
kind = "cpt"
steps = 3
batch_sequences = 2
sequence_length = 128
learning_rate.warmup_steps = 0
data.kind = "text"
data.path = "train.txt"
[stages.eval]
sequences = 2
data.path = "held_out.txt"
[[stages]]
name = "more"
kind = "cpt"
steps = 2
batch_sequences = 2
sequence_length = 128
learning_rate.warmup_steps = 0
data.kind = "text"
data.path = "train.txt"
[stages.eval]
sequences = 2
data.path = "held_out.txt"
"""


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in_bf16")
    (folder / "run.toml").write_text(RUN)
    (folder / "train.txt").write_text("\n\n".join(f"{i} and {i + 1}." * 4 for i in range(300)))
    (folder / "held_out.txt").write_text("\n\n".join(f"What is {i}?" * 4 for i in range(60)))
    for recipe in ("infir2", "bf16"):
        train(folder, recipe, f"recipe={recipe}")
    return folder


def train(folder: Path, name: str, *settings: str) -> str:
    words = [word for setting in settings for word in ("--set", setting)]
    return succeeded("train", "--config", "run.toml", *words, "--out", name, cwd=folder)


def in_bf16(folder: Path, name: str) -> list[tuple[int, int, float]]:
    """(step, stage, loss) of every row."""
    with h5py.File(folder / name / "run.h5") as file:
        scores = file["scores"]
        return [
            (int(step), int(stage), float(value))
            for step, stage, name, value in zip(
                scores["step"], scores["stage"], scores["name"].asstr(), scores["value"]
            )
            if name == "loss_in_bf16"
        ]


def loss_under(folder: Path, name: str, recipe: str) -> float:
    text = succeeded("eval", name, "--recipe", recipe, "--json", cwd=folder)
    return float(json.loads(text)["loss"])


def test_the_loss_is_that_of_eval_in_bf16(folder: Path) -> None:
    rows = in_bf16(folder, "infir2")
    assert [(step, stage) for step, stage, _ in rows] == [(3, 0), (5, 1)]
    assert rows[-1][2] == loss_under(folder, "infir2", "bf16")
    assert rows[-1][2] != loss_under(folder, "infir2", "infir2")


def test_it_is_not_taken_where_nothing_is_quantized_or_nobody_asks(folder: Path) -> None:
    assert in_bf16(folder, "bf16") == []
    train(folder, "without", "stages.*.eval.weights_in_bf16=false")
    assert in_bf16(folder, "without") == []
    with h5py.File(folder / "without" / "run.h5") as a, h5py.File(
        folder / "infir2" / "run.h5"
    ) as b:
        assert list(a["hashes/weights"]) == list(b["hashes/weights"])


def test_a_run_that_was_killed_behind_its_last_checkpoint_has_it_once(folder: Path) -> None:
    """The run file of a complete run, taken back to where its checkpoint stands."""
    shutil.copytree(folder / "infir2", folder / "again")
    with h5py.File(folder / "again" / "run.h5", "a") as file:
        file["complete"].resize(0, axis=0)
    succeeded("train", "--config", "run.toml", "--out", "again", "--resume", cwd=folder)
    assert in_bf16(folder, "again") == in_bf16(folder, "infir2")


def test_the_report_splits_the_gap(folder: Path) -> None:
    succeeded("report", "infir2/run.h5", "bf16/run.h5", "--out", "page", cwd=folder)
    page = (folder / "page" / "index.html").read_text()
    assert "Arithmetic or weights" in page
