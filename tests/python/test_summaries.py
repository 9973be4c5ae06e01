"""The numbers of a comparison: means over seeds and tensors, stages, runs that broke."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import make_example_run
import numpy as np
import pytest
from loose_runs import summaries_of, truncate, write_run

from fp8lab_analysis.judge import compare, stats
from fp8lab_analysis.judge.verdicts import Kind
from fp8lab_analysis.page.findings import make_findings
from fp8lab_analysis.read import study


def test_summary_matches_the_numbers_behind_the_example(example: Path) -> None:
    found = summaries_of(example)
    curve, recipes = make_example_run.loss_curve, {r.name: r for r in make_example_run.RECIPES}
    gaps = [
        float(np.mean((curve(recipes["te_current"], s) - curve(recipes["bf16"], s))[-10:]))
        for s in (1, 2)
    ]
    te_current = found["te_current"]
    assert te_current.gap_stage == "sft"
    assert te_current.final_gap.mean == pytest.approx(np.mean(gaps))
    assert te_current.final_gap.sd == pytest.approx(np.std(gaps, ddof=1))
    stage = te_current.runs[0].stages["sft"]
    smooth = stats.smoothed((curve(recipes["te_current"], 1) - curve(recipes["bf16"], 1))[100:])[2:]
    assert stage.largest_gap == pytest.approx(max(smooth, key=abs))
    assert stage.largest_gap_step == 103 + int(np.argmax(np.abs(smooth)))
    assert found["bf16"].verdict.kind is Kind.BASELINE
    assert found["e5m2_tensor"].verdict.kind is Kind.DIVERGED
    assert found["e5m2_tensor"].verdict.diverged == 2
    assert found["infir2"].matches["sft"].asked == 128
    assert found["infir2"].matches["sft"].correct == 2 * round(0.616 * 64)
    # Two seeds answer the same 64 problems: the interval is that of 39 of 64.
    assert found["infir2"].matches["sft"].interval == pytest.approx(stats.wilson_interval(39, 64))


def test_operand_means_are_taken_over_tensors_steps_and_seeds(example: Path) -> None:
    operand = summaries_of(example)["infir2"].operands["wgrad.dy"]
    per_seed = []
    for seed in (1, 2):
        with h5py.File(example / f"infir2-seed{seed}" / "run.h5") as file:
            chosen = np.array([slot == "wgrad.dy" for _, slot in make_example_run.TENSORS])
            per_seed.append(float(file["tensors/sqnr_db"][...][:, chosen].mean()))
    assert operand.sqnr_db.mean == pytest.approx(np.mean(per_seed))
    assert operand.sqnr_db.sd == pytest.approx(np.std(per_seed, ddof=1))
    assert operand.quantized
    assert not summaries_of(example)["bf16"].operands["fprop.x"].quantized


def test_a_baseline_that_diverged_is_none_after_any_stage(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        for recipe in ("bf16", "infir2"):
            path = write_run(tmp_path / f"{recipe}-{seed}", recipe, seed)
            if recipe == "bf16" and seed == 2:
                with h5py.File(path, "a") as file:
                    file["metrics/loss"][-15:] = 9.0  # ran away, and every number is finite
                    file["eval/loss"][-1] = 9.0
    found = summaries_of(tmp_path)["infir2"]
    kinds = {item.kind.value for item in (found.verdict, *found.verdicts_after.values()) if item}
    assert kinds == {"no baseline"} and len(found.verdicts_after) == 3


def test_seeds_that_change_nothing_are_no_pairs(tmp_path: Path) -> None:
    """One run of each recipe, executed for three seeds that nothing depends on."""
    for seed in (1, 2, 3):
        for recipe in ("bf16", "infir2"):
            path = write_run(tmp_path / f"{recipe}-{seed}", recipe, seed)
            if seed > 1:
                with (
                    h5py.File(path, "a") as file,
                    h5py.File(tmp_path / f"{recipe}-1" / "run.h5") as first,
                ):
                    for name in ("metrics/loss", "eval/loss"):
                        file[name][...] = first[name][...]
    found = summaries_of(tmp_path)["infir2"]
    assert found.verdict.kind.value == "not ordered"
    assert "share a baseline run" in found.verdict.sentence


def test_each_evaluated_stage_is_judged(tmp_path: Path) -> None:
    factors = [1.0, 1.001, 1.03]  # pretrain, cpt, sft
    for seed in (1, 2, 3, 4):
        for recipe in ("bf16", "infir2"):
            path = write_run(tmp_path / f"{recipe}-{seed}", recipe, seed)
            with h5py.File(path, "a") as file:
                for row, stage in enumerate(file["eval/stage"][:]):
                    worse = factors[int(stage)] + 0.0001 * seed if recipe == "infir2" else 1.0
                    file["eval/loss"][row] = (2.0 + 0.1 * seed) * worse
    found = summaries_of(tmp_path)["infir2"]
    kinds = {stage: item.kind.value for stage, item in found.verdicts_after.items() if item}
    assert kinds == {"pretrain": "equivalent", "cpt": "equivalent", "sft": "worse"}
    after = found.verdicts_after["cpt"]
    assert after is not None and after.gap.mean == pytest.approx(0.00125)
    assert repr(found.verdicts_after["sft"]) == repr(found.verdict)  # which hold NaN
    with h5py.File(tmp_path / "infir2-3" / "run.h5", "a") as file:
        truncate(file, "eval", 0)
    assert summaries_of(tmp_path)["infir2"].verdicts_after["cpt"] is None


def test_a_seed_that_broke_is_not_left_out_of_a_mean(tmp_path: Path) -> None:
    for recipe in ("bf16", "infir2", "te_current"):
        for seed in (1, 2):
            write_run(tmp_path / f"{recipe}-{seed}", recipe, seed)
    with h5py.File(tmp_path / "infir2-2" / "run.h5", "a") as file:
        file["eval/loss"][-1] = np.nan
    with h5py.File(tmp_path / "te_current-2" / "run.h5", "a") as file:
        truncate(file, "eval", 0)
    found = summaries_of(tmp_path)
    assert np.isnan(found["infir2"].held_out["sft"].mean)
    assert np.isnan(found["infir2"].held_out_gap["sft"].mean)
    measured = found["te_current"].held_out_gap["sft"]
    assert np.isfinite(measured.mean) and measured.count == 1
    assert found["bf16"].held_out["sft"].count == 2
    assert found["bf16"].held_out_gap["sft"].count == 0


def test_the_seed_band_of_curves_leaves_out_a_seed_without_the_stage(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_run(tmp_path / f"bf16-{seed}", "bf16", seed)
    with h5py.File(tmp_path / "bf16-3" / "run.h5", "a") as file:
        truncate(file, "metrics", 100)  # pretrain and cpt alone
    baseline = study.load_study([tmp_path]).groups[0]
    floor = compare.seed_floor(baseline, "sft")
    assert floor is not None and floor.steps.tolist() == list(range(101, 141))
    curves = [compare.loss_curve(run, "sft") for run in baseline.runs[:2]]
    expected = stats.seed_floor(curves)
    assert expected is not None and (floor.half_width == expected.half_width).all()


def test_findings_follow_the_data(example: Path, tmp_path: Path) -> None:
    found = study.load_study([example])
    text = "\n".join(f.text for f in make_findings(found, compare.summarise(found)))
    assert "e5m2_tensor diverged in 2 of 2 seeds" in text
    assert "layers.1.mlp.down/dgrad.dy" in text
    assert re.search(r"smallest after sft: infir2 .*largest: te_current", text)
    swapped = tmp_path / "swapped"
    for recipe in ("bf16", "infir2", "te_current"):
        for seed in (1, 2):
            write_run(swapped / f"{recipe}-{seed}", recipe, seed)
    for seed in (1, 2):
        with h5py.File(swapped / f"infir2-{seed}" / "run.h5", "a") as file:
            file["metrics/loss"][...] += 0.3
    found = study.load_study([swapped])
    text = "\n".join(f.text for f in make_findings(found, compare.summarise(found)))
    assert re.search(r"smallest after sft: te_current .*largest: infir2", text)
    assert "diverged" not in text
