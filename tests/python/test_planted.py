"""Planted truth: the error rates of verdicts on normal draws and on synthetic runs, and that wrong
statistics are noticed by them."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import make_example_run
import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from fp8lab_analysis import planted
from fp8lab_analysis.judge import compare, inference
from fp8lab_analysis.read import study
from fp8lab_analysis.read.design import Design

ROOT = Path(__file__).resolve().parents[2]
RESAMPLES = 10_000
RECIPES = make_example_run.RECIPES[:3]
PAIRS = 48


def normal() -> list[planted.Rate]:
    return planted.normal_rates(RESAMPLES, Design(), np.random.default_rng(1))


def outside(rates: list[planted.Rate], word: str = "") -> set[str]:
    """The claims outside what is allowed."""
    return {f"{r.seeds}: {r.claim}" for r in rates if not r.holds and word in r.claim}


# --- normal draws ---------------------------------------------------------------------------------


def test_error_rates_of_normal_draws() -> None:
    rates = normal()
    assert outside(rates) == set()
    assert {r.seeds for r in rates} == {4, 8, 16}
    assert {r.trials for r in rates} == {RESAMPLES}
    for count in (4, 8, 16):
        by_claim = {r.claim: r for r in rates if r.seeds == count}
        # 5 % and three standard errors; the planned 90 % with 5 % either side.
        at_margin = by_claim["false equivalent, gap at the margin"]
        assert at_margin.high == pytest.approx(0.05 + 3.0 * (0.05 * 0.95 / RESAMPLES) ** 0.5)
        assert 0.04 < at_margin.rate <= at_margin.high
        for claim in ("equivalent, no gap, planned margin", "worse, detectable gap"):
            assert (by_claim[claim].low, by_claim[claim].high) == pytest.approx((0.85, 0.95))
            assert by_claim[claim].holds


def test_other_levels_and_powers() -> None:
    rng = np.random.default_rng(2)
    design = Design(alpha=0.1, power=0.8)
    rates = planted.rates_of_one("", rng.normal(size=(RESAMPLES, 5)), design)
    assert outside(rates) == set()
    assert rates[0].high == pytest.approx(0.109) and rates[0].rate > 0.085


def test_looks_at_few_seeds() -> None:
    rng = np.random.default_rng(3)
    for looks, count in ((2, 4), (2, 8), (4, 8), (8, 16)):
        gaps = rng.normal(size=(RESAMPLES, count))
        rates = planted.rates_of_looks("", gaps, Design(looks=looks))
        assert outside(rates) == set(), (looks, count)


# Statistics that are wrong on purpose, and the claims that must notice: without them the rates
# above might hold for any test that says little.


def _normal_p(
    mean: npt.ArrayLike, sd: npt.ArrayLike, count: int, bound: float, df: npt.ArrayLike
) -> object:
    """The normal distribution in the place of Student's."""
    error = np.asarray(sd) / np.sqrt(count)
    return stats.norm.cdf((np.asarray(mean) - bound) / error)


def _population_p(
    mean: npt.ArrayLike, sd: npt.ArrayLike, count: int, bound: float, df: npt.ArrayLike
) -> object:
    """The deviation with n in the place of n - 1."""
    error = np.asarray(sd) * np.sqrt((count - 1) / count) / np.sqrt(count)
    return stats.t.cdf((np.asarray(mean) - bound) / error, df)


@pytest.mark.parametrize("wrong", [_normal_p, _population_p])
def test_a_wrong_distribution_is_noticed(monkeypatch: pytest.MonkeyPatch, wrong: object) -> None:
    monkeypatch.setattr(inference, "one_sided_p", wrong)
    assert "4: false equivalent, gap at the margin" in outside(normal())


def test_one_test_in_the_place_of_two_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_side(
        mean: npt.ArrayLike, sd: npt.ArrayLike, count: int, margin: float, df: npt.ArrayLike
    ) -> object:
        return inference.one_sided_p(mean, sd, count, margin, df)

    monkeypatch.setattr(inference, "equivalence_p", one_side)
    assert "8: false equivalent, gap at minus the margin" in outside(normal())


def test_arms_without_correction_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(alpha: float, arms: int, looks: int) -> object:
        return np.full(arms, inference.look_level(alpha, looks))

    monkeypatch.setattr(inference, "step_levels", same)
    assert "8: any of 7 false equivalent, all at the margin" in outside(normal())


def test_looks_without_correction_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "look_level", lambda alpha, looks: alpha)
    assert outside(normal(), "looks") == {
        "16: false equivalent, any of 4 looks",
        "16: false worse or better, any of 4 looks",
    }


def test_normal_sample_sizes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def multiplier(
        count: int, sd: float, alpha: float, power: float, tails: tuple[float, float]
    ) -> float:
        return float(sd * sum(map(stats.norm.isf, tails)) / np.sqrt(count))

    def detectable(count: int, sd: float, alpha: float, power: float) -> float:
        return multiplier(count, sd, alpha, power, (alpha / 2.0, 1.0 - power))

    def provable(count: int, sd: float, alpha: float, power: float) -> float:
        return multiplier(count, sd, alpha, power, (alpha, (1.0 - power) / 2.0))

    monkeypatch.setattr(inference, "detectable_gap", detectable)
    monkeypatch.setattr(inference, "provable_margin", provable)
    found = outside(normal())
    assert "4: worse, detectable gap" in found
    assert "4: equivalent, no gap, planned margin" in found


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms and their baseline over 48 seeds; tests must not write into it."""
    folder = tmp_path_factory.mktemp("pairs")
    make_example_run.make_example(folder, RECIPES, range(1, PAIRS + 1))
    return folder


@functools.lru_cache(maxsize=1)
def summaries_of(folder: Path) -> list[compare.GroupSummary]:
    return compare.summarise(study.load_study([folder]))


def test_gaps_of_runs_are_populations_of_known_truth(pairs: Path) -> None:
    pools, refused = planted.pools_of(summaries_of(pairs))
    assert [pool.label for pool in pools] == ["infir2", "te_current"] and refused == []
    for pool in pools:
        assert pool.seeds == tuple(range(1, PAIRS + 1))
        assert pool.gaps.mean() == pytest.approx(0.0, abs=1e-12)
        assert np.std(pool.gaps) == pytest.approx(1.0)


def test_samples_of_runs_are_symmetric_and_keep_arms_together() -> None:
    gaps = np.array([[0.0, 1.0, 2.0, 3.0], [0.0, 10.0, 20.0, 30.0]])
    drawn = planted.drawn_from(gaps, 20_000, 3, np.random.default_rng(1))
    assert drawn.shape == (20_000, 2, 3)
    assert (drawn[:, 1] == 10.0 * drawn[:, 0]).all()
    values, counts = np.unique(drawn[:, 0], return_counts=True)
    assert values.tolist() == [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]
    expected = np.array([1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0]) / 8.0
    assert counts / 60_000 == pytest.approx(expected, abs=0.01)
    assert planted.drawn_from(gaps[0], 10, 3, np.random.default_rng(1)).shape == (10, 3)


def test_error_rates_of_resampled_runs(pairs: Path) -> None:
    pools, _ = planted.pools_of(summaries_of(pairs))
    rates = planted.run_rates(pools, RESAMPLES, Design(), np.random.default_rng(1))
    assert {(r.source, r.seeds) for r in rates} == {
        *((name, count) for name in ("infir2", "te_current") for count in (8, 16)),
        ("2 arms together", 8),
    }
    assert outside(rates) == set()


def test_what_cannot_be_drawn_from_is_named(tmp_path: Path) -> None:
    make_example_run.make_example(tmp_path)
    pools, refused = planted.pools_of(compare.summarise(study.load_study([tmp_path])))
    assert pools == []
    assert refused[0] == "infir2: 2 pairs (expected 16 or more)"
    assert refused[2].startswith("e5m2_tensor: Diverged in 2 of 2 seeds")
    found = summaries_like(tmp_path)
    assert found == ["infir2: its gaps do not differ"]


def summaries_like(folder: Path) -> list[str]:
    """Why an arm of sixteen equal gaps is refused."""
    summary = next(
        s for s in compare.summarise(study.load_study([folder])) if s.group.label == "infir2"
    )
    return planted.pools_of([dataclasses.replace(summary, seed_gaps=[0.001] * 16)])[1]


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'analysis'}:{ROOT / 'src/python'}"}
    command = [sys.executable, "-m", "fp8lab_analysis.planted", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_program_prints_rates_and_writes_them(pairs: Path, tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    result = run_program(str(pairs), "--json", str(path))
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert re.match(rf"infir2: {PAIRS} pairs, skewness [+-]0\.\d\d, 10000 resamples", lines[0])
    rows = json.loads(path.read_text())
    assert lines[-1] == f"{len(rows)} rates, 0 outside what is allowed"
    assert all(row["holds"] and row["rate"] == row["made"] / row["trials"] for row in rows)
    assert {row["source"] for row in rows} >= {"infir2", "normal draws", "2 arms together"}


def test_program_exits_with_3_for_rates_outside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inference, "look_level", lambda alpha, looks: alpha)
    assert planted.main(["--resamples", "2000"]) == 3
    text = capsys.readouterr().out
    assert "OUTSIDE" in text and "2 outside what is allowed" in text


def test_refusals_are_one_line(tmp_path: Path) -> None:
    make_example_run.make_example(tmp_path / "few", RECIPES[:2])
    for arguments, status, expected in (
        ([str(tmp_path / "missing")], 2, "no such file"),
        ([str(tmp_path / "few")], 2, "no arm to draw from; infir2: 2 pairs"),
        (["--resamples", "10"], 2, "expected 1000 or more"),
        (["--seed", "-1"], 2, "expected 0 or more"),
        (["--resamples", "1000", "--json", str(tmp_path / "no" / "x")], 1, "No such file"),
    ):
        result = run_program(*arguments)
        assert result.returncode == status, arguments
        assert result.stderr.count("\n") == 1 and expected in result.stderr
