"""The law that points are made of is found again, and what a recipe loses of N and D."""

from __future__ import annotations

from pathlib import Path

import h5py
import make_example_run
import numpy as np
import pytest
from fp8lab_analysis import laws
from fp8lab_analysis.hdf5 import InputError
from fp8lab_analysis.laws import Law, Point

TRUTH = Law(a=400.0, b=2000.0, e=1.7, alpha=0.34, beta=0.37)
SIZES = (1e6, 4e6, 2e7)
LENGTHS = (2e7, 1e8, 6e8)
WORTH = {"bf16": (1.0, 1.0), "mxfp4": (0.64, 0.94), "infir2": (0.98, 0.99)}


def grid(seeds: tuple[int, ...], noise: float = 0.0) -> list[Point]:
    """Runs of every recipe, size and seed; a seed's noise is common to its recipes."""
    rng = np.random.default_rng(7)
    points = []
    for seed in seeds:
        for n in SIZES:
            for d in LENGTHS:
                factor = 1.0 + noise * rng.normal()
                for recipe, (eff_n, eff_d) in WORTH.items():
                    loss = TRUTH.loss(np.array(n * eff_n), np.array(d * eff_d))
                    points.append(Point(recipe, seed, n, d, float(loss) * factor))
    return points


def test_constants_and_worths_without_noise() -> None:
    law, found = laws.worths(grid((1,)), "bf16", 50, np.random.default_rng(1))
    assert (law.alpha, law.beta) == pytest.approx((TRUTH.alpha, TRUTH.beta), rel=1e-3)
    assert (law.a, law.b, law.e) == pytest.approx((TRUTH.a, TRUTH.b, TRUTH.e), rel=1e-2)
    assert [worth.recipe for worth in found] == ["mxfp4", "infir2"]
    for worth in found:
        assert (worth.eff_n, worth.eff_d) == pytest.approx(WORTH[worth.recipe], rel=1e-3)
        assert worth.eff_n_interval is None and "no interval" in worth.line()
        assert worth.rms < 1e-6


def test_intervals_of_seeds_hold_the_truth() -> None:
    _, found = laws.worths(grid((1, 2, 3, 4), 0.002), "bf16", 40, np.random.default_rng(1))
    for worth in found:
        for interval, truth in zip(
            (worth.eff_n_interval, worth.eff_d_interval), WORTH[worth.recipe]
        ):
            assert interval is not None and interval[0] < interval[1] < interval[0] + 0.2
            assert interval[0] - 0.02 < truth < interval[1] + 0.02


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
    _, (worth,) = laws.worths(points, "bf16", 40, np.random.default_rng(1))
    assert worth.eff_n is None and worth.eff_n_interval is None
    assert worth.eff_d == pytest.approx(0.9, rel=0.02) and worth.eff_d_interval is not None
    assert "eff_N not told  eff_D 0.9" in worth.line()


def test_too_few_sizes_are_refused() -> None:
    one_size = [p for p in grid((1, 2)) if p.parameters == SIZES[0]]
    with pytest.raises(InputError, match="bf16: 3 pairs of 1 model sizes"):
        laws.worths(one_size, "bf16", 50, np.random.default_rng(1))
    few = [p for p in grid((1,)) if p.recipe == "bf16" or p.tokens == LENGTHS[0]]
    with pytest.raises(InputError, match="mxfp4: 3 pairs of 3 model sizes and 1 numbers"):
        laws.worths(few, "bf16", 50, np.random.default_rng(1))


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
