"""Tensors without an SQNR: left out of every mean, counted, and the same from old and new files."""

from __future__ import annotations

import math
from pathlib import Path

import h5py
import make_example_run
import numpy as np
import pytest

from fp8lab_analysis.judge import compare
from fp8lab_analysis.judge.verdicts import Evidence, judge
from fp8lab_analysis.page import tables
from fp8lab_analysis.page.operand_findings import error_findings
from fp8lab_analysis.read import study
from fp8lab_analysis.read.design import Design
from fp8lab_analysis.read.run_reader import load_run

RECIPES = {item.name: item for item in make_example_run.RECIPES}
FROM = 6  # the logged row from which one column is zero


def plant(path: Path, zero: float, exact: float) -> tuple[int, int, float]:
    """Makes one quantized tensor all zero from a row on and another exact, as some version says it;
    returns their columns and the mean SQNR of the first before."""
    with h5py.File(path, "a") as file:
        group = file["tensors"]
        slots = [slot.decode() for slot in group["slot"][...]]
        column, other = slots.index("fprop.x"), slots.index("fprop.w")
        before = group["sqnr_db"][:FROM, column]
        group["sqnr_db"][FROM:, column] = zero
        group["amax"][FROM:, column] = 0.0
        group["kurtosis"][FROM:, column] = 0.0 if zero == 200.0 else math.nan
        group["sqnr_db"][FROM:, other] = exact
        return column, other, float(np.mean(before))


@pytest.mark.parametrize("zero, exact", [(200.0, 200.0), (math.nan, math.inf)])
def test_zero_and_exact_tensors_are_in_no_mean(tmp_path: Path, zero: float, exact: float) -> None:
    chosen = [RECIPES["bf16"], RECIPES["infir2"]]
    make_example_run.make_example(tmp_path, chosen, (1, 2))
    plain = {s.group.label: s for s in compare.summarise(study.load_study([tmp_path]))}
    for seed in (1, 2):
        path = tmp_path / f"infir2-seed{seed}" / "run.h5"
        column, other, mean = plant(path, zero, exact)
    run = load_run(path)
    assert np.isnan(run.tensors.get("sqnr_db")[FROM:, column]).all()
    assert np.isnan(run.tensors.get("kurtosis")[FROM:, column]).all()
    assert np.isposinf(run.tensors.get("sqnr_db")[FROM:, other]).all()
    summaries = {s.group.label: s for s in compare.summarise(study.load_study([tmp_path]))}
    found, old = summaries["infir2"], plain["infir2"]
    rows = 2 * (run.tensors.step.size - FROM)
    assert found.operands["fprop.x"].all_zero == rows and found.operands["fprop.x"].exact == 0
    assert found.operands["fprop.w"].exact == rows and found.operands["fprop.w"].all_zero == 0
    assert found.operands["fprop.x"].logged == old.operands["fprop.x"].logged
    # 200 dB in place of some 30 would raise either mean by tens of dB.
    assert found.mean_sqnr_db == pytest.approx(old.mean_sqnr_db, abs=1.0)
    (error,) = [f for f in error_findings(list(summaries.values())) if "error" in f.topic]
    logged = found.unlike_others[2]
    assert f"left out: {rows} all zero and {rows} exact of {logged} logged tensors" in error.text
    table = tables.operand_table([found])
    names = [column.name for column in table.columns]
    row = table.rows[[cells[1] for cells in table.rows].index("fprop.x")]
    assert row[names.index("of them all zero")] == rows


def test_an_operand_that_is_never_made_is_in_no_mean(tmp_path: Path) -> None:
    """Older versions wrote zeros for it, the hash too, which that of a zero tensor is not."""
    make_example_run.make_example(tmp_path, [RECIPES["infir2"]], (1,))
    path = tmp_path / "infir2-seed1" / "run.h5"
    with h5py.File(path, "a") as file:
        group = file["tensors"]
        slots = [slot.decode() for slot in group["slot"][...]]
        column, other = slots.index("wgrad.x"), slots.index("fprop.x")
        hashes = np.ones(group["amax"].shape, np.uint64)
        hashes[:, column] = 0
        if "hash" in group:
            del group["hash"]
        group["hash"] = hashes
        for name in ("amax", "underflow_fraction", "sqnr_db"):
            group[name][:, column] = 0.0
            group[name][:, other] = 0.0
    tensors = load_run(path).tensors
    for name in ("amax", "underflow_fraction", "sqnr_db"):
        assert np.isnan(tensors.get(name)[:, column]).all(), name
    assert (tensors.get("underflow_fraction")[:, other] == 0.0).all()
    summary = compare.summarise(study.load_study([tmp_path]))[0]
    kept = sum(1 for slot in slots if slot == "wgrad.x") - 1
    assert summary.operands["wgrad.x"].logged == kept * tensors.step.size


def verdict(gaps: list[float], diverged: list[bool]) -> str:
    """What is said of the gap of an arm."""
    arm = Evidence(gaps, diverged, [False] * len(gaps), range(len(gaps)))
    return judge([arm], Design())[0].gap_text


def test_the_gap_of_a_diverged_arm_is_a_labelled_number() -> None:
    assert verdict([1.87, 1.9, 1.93], [True] * 3) == "+190 %, diverged"
    assert verdict([1.9, 0.001], [True, False]) == "+190 %, diverged"  # of the seed that diverged
    assert verdict([math.nan, math.nan], [True] * 2) == "loss not finite, diverged"
    alone = Evidence([math.nan], [True], [False], [])  # its losses may well be finite
    assert judge([alone], Design())[0].gap_text == "diverged"
    assert verdict([1334.0], [True]) == "loss 1.34e+03 times the baseline's, diverged"
    assert verdict([0.0051], [True]) == "+0.51 %, diverged"
