"""The law that points are made of is found again, and what a recipe loses of N and D."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import h5py
import make_example_run
import numpy as np
import pytest
from fp8lab_analysis import laws
from fp8lab_analysis.laws import Law, Point
from fp8lab_analysis.read.hdf5 import InputError
from scipy import optimize

TRUTH = Law(a=400.0, b=2000.0, e=1.7, alpha=0.34, beta=0.37)
SIZES = (1e6, 4e6, 2e7)
LENGTHS = (2e7, 1e8, 6e8)
WORTH = {"bf16": (1.0, 1.0), "mxfp4": (0.64, 0.94), "infir2": (0.98, 0.99)}


def grid(
    seeds: Sequence[int],
    common: float = 0.0,
    own: float = 0.0,
    rng: np.random.Generator | None = None,
) -> list[Point]:
    """Runs of every recipe, size and seed. Relative noise: `common` to the recipes of a size and
    seed, and each run's `own`."""
    rng = rng or np.random.default_rng(7)
    points = []
    for seed in seeds:
        for n in SIZES:
            for d in LENGTHS:
                factor = 1.0 + common * rng.normal()
                for recipe, (eff_n, eff_d) in WORTH.items():
                    loss = TRUTH.loss(np.array(n * eff_n), np.array(d * eff_d))
                    noise = factor * (1.0 + own * rng.normal())
                    points.append(Point(recipe, seed, n, d, float(loss) * noise))
    return points


def test_constants_and_worths_without_noise() -> None:
    law, found = laws.worths(grid((1,)), "bf16")
    assert (law.alpha, law.beta) == pytest.approx((TRUTH.alpha, TRUTH.beta), rel=1e-3)
    assert (law.a, law.b, law.e) == pytest.approx((TRUTH.a, TRUTH.b, TRUTH.e), rel=1e-2)
    assert [worth.recipe for worth in found] == ["mxfp4", "infir2"]
    for worth in found:
        assert (worth.eff_n, worth.eff_d) == pytest.approx(WORTH[worth.recipe], rel=1e-3)
        assert worth.eff_n_interval is None and "no interval" in worth.line()
        assert worth.rms < 1e-6


def near(points: Sequence[Point]) -> Law:
    """`fit_law` from one start, the truth: a fit in a thirtieth of the time."""
    n, d, log_loss = laws.columns(points)
    fit = optimize.least_squares(
        lambda free: np.log(Law(*np.exp(free)).loss(n, d)) - log_loss,
        np.log([TRUTH.a, TRUTH.b, TRUTH.e, TRUTH.alpha, TRUTH.beta]),
    )
    return Law(*np.exp(fit.x))


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_hold_the_truth_as_often_as_they_say(
    seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laws, "fit_law", near)
    rng, held, trials = np.random.default_rng(seeds), [], 150
    for _ in range(trials):
        _, found = laws.worths(grid(range(seeds), 0.002, 0.001, rng), "bf16")
        for worth in found:
            told = (worth.eff_n_interval, worth.eff_d_interval)
            for interval, truth in zip(told, WORTH[worth.recipe]):
                assert interval is not None
                held.append(interval[0] <= truth <= interval[1])
    # Of the four factors no two are independent for sure: three errors of `trials` draws.
    assert np.mean(held) == pytest.approx(0.95, abs=3.0 * math.sqrt(0.95 * 0.05 / trials))


def test_an_interval_is_that_of_student_where_every_seed_has_one_estimate() -> None:
    # Two seeds without noise of their own: the estimate without one is that of the other.
    points = [
        Point(recipe, seed, n, d, float(TRUTH.loss(np.array(n), np.array(d * eff))))
        for seed, worth in ((1, 0.90), (2, 0.92))
        for n in SIZES
        for d in LENGTHS
        for recipe, eff in (("bf16", 1.0), ("mxfp4", worth))
    ]
    _, (found,) = laws.worths(points, "bf16")
    half = 12.7062 * math.log(0.92 / 0.90) / 2.0  # t of one degree of freedom
    assert found.eff_d is not None and found.eff_d_interval is not None
    told = np.log(np.array(found.eff_d_interval) / found.eff_d)
    assert told == pytest.approx([-half, half], rel=1e-3)


def test_noise_that_the_baseline_shares_is_in_no_interval() -> None:
    runs = [p for p in grid((1, 2, 3), 0.01) if p.recipe == "bf16"]
    copies = [dataclasses.replace(point, recipe="copy") for point in runs]
    _, (found,) = laws.worths([*runs, *copies], "bf16")
    assert found.eff_d_interval == pytest.approx((1.0, 1.0), abs=1e-4)


def test_no_interval_without_a_second_seed_of_every_size() -> None:
    points = [p for p in grid((1, 2)) if p.seed == 1 or p.parameters == SIZES[0]]
    _, found = laws.worths(points, "bf16")
    assert all(worth.seeds == 2 and worth.eff_d_interval is None for worth in found)
    points = [p for p in grid((1, 2, 3)) if p.seed == 1 or p.recipe == "bf16"]
    _, found = laws.worths(points, "bf16")
    assert all(worth.seeds == 1 and worth.eff_d_interval is None for worth in found)


def test_a_term_without_effect_tells_nothing() -> None:
    wide = Law(a=1e-6, b=TRUTH.b, e=TRUTH.e, alpha=TRUTH.alpha, beta=TRUTH.beta)
    rng = np.random.default_rng(3)
    points = [
        Point(recipe, seed, n, d, float(wide.loss(np.array(n), np.array(d * eff_d))) * factor)
        for seed in (1, 2)
        for n in SIZES
        for d in LENGTHS
        for factor in (1.0 + 0.002 * rng.normal(),)
        for recipe, eff_d in (("bf16", 1.0), ("quartet", 0.9))
    ]
    _, (worth,) = laws.worths(points, "bf16")
    assert worth.eff_n is None and worth.eff_n_interval is None
    assert worth.eff_d == pytest.approx(0.9, rel=0.02) and worth.eff_d_interval is not None
    assert "eff_N not told  eff_D 0.9" in worth.line()


def test_too_few_sizes_are_refused() -> None:
    one_size = [p for p in grid((1, 2)) if p.parameters == SIZES[0]]
    with pytest.raises(InputError, match="bf16: 3 pairs of 1 model sizes"):
        laws.worths(one_size, "bf16")
    few = [p for p in grid((1,)) if p.recipe == "bf16" or p.tokens == LENGTHS[0]]
    with pytest.raises(InputError, match="mxfp4: 3 pairs of 3 model sizes and 1 numbers"):
        laws.worths(few, "bf16")


def test_the_program_reads_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipes = {item.name: item for item in make_example_run.RECIPES}
    for i, point in enumerate(p for p in grid((1,)) if p.recipe != "mxfp4"):
        path = tmp_path / f"{i}-{point.recipe}" / "run.h5"
        make_example_run.write_run(path, recipes[point.recipe], point.seed)
        with h5py.File(path, "a") as file:
            text = f'recipe = "{point.recipe}"\nmodel.hidden_size = {point.parameters:.0f}\n'
            file["meta"].attrs["config_text"] = text + f"stages.steps = {point.tokens:.0f}\n"
            file["meta"].attrs["parameter_count"] = f"{point.parameters:.0f}"
            make_example_run.seal_meta(file)
            tokens = file["metrics/tokens"][...]
            file["metrics/tokens"][...] = tokens * point.tokens / tokens[-1]
            file["eval/loss"][...] = point.loss
    assert laws.main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "infir2                 9 runs  1 seeds  eff_N 0.980 (no interval)  eff_D 0.990" in said
    assert "without an interval nothing is ordered" in said
    assert laws.main([str(tmp_path / "none")]) == 2
