"""Persistence of the largest channels, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import h5py
import make_example_run
import numpy as np
import pytest

from fp8lab_analysis.judge import channels, compare
from fp8lab_analysis.page.findings import make_findings
from fp8lab_analysis.read import study
from fp8lab_analysis.read.run_reader import load_run
from fp8lab_analysis.read.runs import Run

RECIPES = {item.name: item for item in make_example_run.RECIPES}
FIRST = [0, 1, 2, 3, 4, 5, 6, 7]
HALF = [0, 1, 2, 3, 14, 15, 16, 17]  # shares 4 of 12 with the first
OTHER = [20, 21, 22, 23, 24, 25, 26, 27]


def write(path: Path, rows: list[list[int]], recipe: str = "infir2") -> Run:
    """A run whose layers all have these channels at the logged steps 20, 40 .. 140."""
    make_example_run.write_run(path, RECIPES[recipe], 1)
    with h5py.File(path, "a") as file:
        top = file["tensors/top_channel"]
        top[...] = np.broadcast_to(np.array(rows)[:, None, :], top.shape)
    return load_run(path)


def test_persistence_over_steps(tmp_path: Path) -> None:
    run = write(tmp_path / "run.h5", [FIRST, FIRST[::-1], HALF, HALF, OTHER, FIRST, HALF])
    found = channels.persistence(run)
    assert found is not None and found.steps.tolist() == [40, 60, 80, 100, 120, 140]
    assert found.to_previous == pytest.approx([1.0, 4 / 12, 1.0, 0.0, 0.0, 4 / 12])
    assert found.to_first == pytest.approx([1.0, 4 / 12, 4 / 12, 0.0, 1.0, 4 / 12])


def test_persistence_of_layers_is_their_mean(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    write(path, [FIRST] * 7)
    layers = len(make_example_run.LAYERS)
    with h5py.File(path, "a") as file:
        column = [i for i, slot in enumerate(file["tensors/slot"][...]) if slot == b"fprop.x"][0]
        file["tensors/top_channel"][1, column] = OTHER  # one layer at one step
        other = [i for i, slot in enumerate(file["tensors/slot"][...]) if slot == b"fprop.w"][0]
        file["tensors/top_channel"][3, other] = OTHER  # weights do not count
    found = channels.persistence(load_run(path))
    assert found is not None
    less = (layers - 1) / layers
    assert found.to_previous == pytest.approx([less, less, 1.0, 1.0, 1.0, 1.0])


def test_a_step_at_which_some_layers_are_unknown_is_no_start(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    write(path, [OTHER] + [FIRST] * 6)
    with h5py.File(path, "a") as file:
        marks = file["tensors/without_history"][...]
        marks[0, 6:] = 1  # all layers but the first
        file["tensors/without_history"][...] = marks
    found = channels.persistence(load_run(path))
    assert found is not None and found.steps.tolist() == [60, 80, 100, 120, 140]
    assert found.to_first.tolist() == [1.0] * 5


def test_change_from_stage_to_stage(tmp_path: Path) -> None:
    # Stages end at steps 40, 100 and 140: logged rows 1, 4 and 6.
    turned = [1, 0, *FIRST[2:]]
    run = write(tmp_path / "run.h5", [OTHER, OTHER, OTHER, OTHER, FIRST, OTHER, turned])
    found = channels.stage_change(run, "cpt", "sft")
    assert found is not None and found.layers == list(make_example_run.LAYERS)
    assert found.shared.tolist() == [1.0] * len(found.layers)
    assert found.same_largest.tolist() == [0.0] * len(found.layers)
    first = channels.stage_change(run, "pretrain", "cpt")
    assert first is not None and first.shared.tolist() == [0.0] * len(found.layers)
    assert channels.stage_change(run, "cpt", "rl") is None


def test_the_sentence_and_what_was_not_logged(tmp_path: Path) -> None:
    write(tmp_path / "a" / "run.h5", [FIRST] * 6 + [HALF], "bf16")
    found = study.load_study([tmp_path])
    (text,) = [
        item.text
        for item in make_findings(found, compare.summarise(found))
        if item.topic == "Top channels"
    ]
    assert "the ends of cpt and sft share" in text and text.endswith(": bf16 0.33 (100 %).")
    assert "in no order" in text
    with h5py.File(tmp_path / "a" / "run.h5", "a") as file:
        file["tensors/top_channel"][...] = -1
    found = study.load_study([tmp_path])
    assert channels.persistence(found.runs[0]) is None
    change = channels.stage_change(found.runs[0], "cpt", "sft")
    assert change is not None and np.isnan(change.shared).all()
    assert channels.persistence_sentence(found, compare.summarise(found)) == ""
    with h5py.File(tmp_path / "a" / "run.h5", "a") as file:
        del file["tensors/top_channel"]
        file["meta"].attrs["schema"] = make_example_run.FIRST_SCHEMA
    found = study.load_study([tmp_path])
    assert channels.persistence_sentence(found, compare.summarise(found)) == ""
