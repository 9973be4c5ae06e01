"""The moderated variance of arms: degrees of freedom against draws, the tests of homogeneity, the
prior by hand, layouts, and what a real study says with it."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import special, stats

from fp8lab_analysis import coverage
from fp8lab_analysis.judge import inference, pooling
from fp8lab_analysis.judge.stats import Array
from fp8lab_analysis.judge.verdicts import Evidence, Kind, Verdict, judge
from fp8lab_analysis.read.design import Design

ROOT = Path(__file__).resolve().parents[2]
TWO_SEEDS = ROOT / "experiments" / "results" / "smollm2" / "two_seeds.csv"
STATED = Design(stated="2026-01-02T03:04:05Z")

# Six arms of three seeds whose gaps were drawn once; none is apart.
ALIKE = np.array(
    [
        [0.3, -0.2, 0.1],
        [0.1, -0.5, 0.4],
        [-0.1, -0.2, 0.5],
        [0.6, 0.1, 0.2],
        [0.2, -0.4, -0.1],
        [0.0, 0.3, 0.5],
    ]
)


# --- degrees of freedom ---------------------------------------------------------------------------


@pytest.mark.parametrize(("arms", "seeds"), [(3, 2), (6, 2), (12, 2), (6, 4)])
def test_pooled_variances_of_arms_that_share_a_baseline_have_these_degrees(
    arms: int, seeds: int
) -> None:
    rng, studies = np.random.default_rng(1), 40_000
    runs = rng.normal(size=(studies, arms + 1, seeds))
    gaps = runs[:, 1:] - runs[:, :1]
    error = np.sqrt(gaps.var(axis=-1, ddof=1).mean(axis=-1) / seeds)
    t = stats.t.isf(0.025, pooling.pool_df(arms, seeds - 1.0))
    holds = np.abs(gaps.mean(axis=-1)) <= t * error[:, None]
    assert holds.mean() == pytest.approx(0.95, abs=0.004)
    # Arms that shared nothing would have more.
    assert seeds - 1 < pooling.pool_df(arms, seeds - 1.0) < arms * (seeds - 1)


def test_one_arm_has_its_own_degrees() -> None:
    assert pooling.pool_df(1, 3.0) == 3.0
    assert pooling.moderated_df(0.0, 1, 4) == 3.0
    assert pooling.moderated_df(2.5, 6, 2) == 3.5  # below the pool's 3.96
    assert pooling.moderated_df(9.0, 6, 2) == pooling.pool_df(6, 1.0)


def test_logs_of_correlated_variances() -> None:
    # One degree of freedom: 2 arcsin(r)^2; pairs drawn for three.
    assert pooling._log_covariance(1.0) == pytest.approx(2.0 * math.asin(pooling.SHARED) ** 2)
    rng = np.random.default_rng(2)
    common, own = rng.normal(size=(1, 100_000, 4)), rng.normal(size=(2, 100_000, 4))
    logs = np.log((own - common).var(axis=-1, ddof=1))
    assert pooling._log_covariance(3.0) == pytest.approx(np.cov(logs)[0, 1], abs=0.01)


def test_the_inverse_of_trigamma() -> None:
    y = np.array([1e-4, 0.3, 1.0, 7.0, 1e4])
    assert pooling._inverse_trigamma(special.polygamma(1, y)) == pytest.approx(y, rel=1e-6)


# --- moderation and homogeneity -------------------------------------------------------------------


def test_moderated_variances_by_hand() -> None:
    found = pooling.pool(ALIKE)
    own = ALIKE.var(axis=-1, ddof=1)
    assert found.borrows.all() and found.arms == 6
    # Their variances differ by less than chance, so that the prior is the largest: 5 / 2.
    assert found.prior_df == 2.5
    assert found.variance == pytest.approx((2.5 * own.mean() + 2.0 * own) / 4.5)
    assert found.df == pytest.approx(np.full(6, 4.5))
    first = own[0] / own[1:].mean()
    assert found.arm_p[0] == pytest.approx(stats.f.sf(first, 2, 10.0 / (1.0 + 4.0 * 0.25)))


def test_arms_unlike_each_other_trust_the_pool_less() -> None:
    scales = np.array([1.0, 1.5, 2.0, 3.0, 4.0, 5.0])[:, None]
    runs = np.random.default_rng(7).normal(size=(7, 8))
    found = pooling.pool(runs[1:] * scales - runs[:1])
    assert found.borrows.any() and 0.0 < found.prior_df < 2.5


def test_a_loud_arm_keeps_its_own_and_is_in_no_pool() -> None:
    gaps = np.concatenate([ALIKE, [[9.0, -4.0, -6.0]]])
    found, before = pooling.pool(gaps), pooling.pool(ALIKE)
    assert not found.borrows[6] and found.arm_p[6] < 0.05 / 7
    assert found.variance[6] == pytest.approx(gaps[6].var(ddof=1)) and found.df[6] == 2.0
    assert found.arms == 6
    assert found.variance[:6] == pytest.approx(before.variance) and found.borrows[:6].all()


def test_where_the_baseline_is_loud_every_arm_keeps_its_own() -> None:
    gaps = ALIKE + np.array([5.0, -4.0, 1.0])
    found = pooling.pool(gaps)
    assert found.baseline_p < 0.05 and not found.borrows.any()
    assert found.variance == pytest.approx(gaps.var(axis=-1, ddof=1))
    assert found.df == pytest.approx(np.full(6, 2.0))
    # Mean squares between seeds and arms x seeds of a two-way layout, by hand.
    centred = gaps - gaps.mean(axis=-1, keepdims=True)
    between = 6.0 * np.sum(centred.mean(axis=0) ** 2) / 2.0
    within = np.sum((centred - centred.mean(axis=0)) ** 2) / 10.0
    assert found.baseline_p == pytest.approx(stats.f.sf(between / (7.0 * within), 2, 10))


def test_arms_without_spread_lend_nothing() -> None:
    found = pooling.pool(np.concatenate([ALIKE, [[0.0, 0.0, 0.0]]]))
    assert found.arms == 6 and not found.borrows[6] and found.variance[6] == 0.0
    assert found.variance[:6] == pytest.approx(pooling.pool(ALIKE).variance)
    rounded = pooling.pool(np.concatenate([ALIKE, [[0.0, 1e-16, 0.0]]]))
    assert rounded.arms == 6 and not rounded.borrows[6]


def test_arms_of_unequal_seeds() -> None:
    gaps = ALIKE.copy()
    gaps[0, 2] = math.nan
    found = pooling.pool(gaps)
    own = np.array([gaps[0, :2].var(ddof=1), *gaps[1:].var(axis=-1, ddof=1)])
    df = np.array([1.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    pooled = np.sum(own * df) / 11.0
    assert found.variance == pytest.approx((2.5 * pooled + df * own) / (2.5 + df))
    assert found.df[0] == 3.5 and found.df[1] == 4.5


# --- verdicts -------------------------------------------------------------------------------------


def arm(gaps: Array, of: str = "bf16", diverged: bool = False) -> Evidence:
    """An arm of relative gaps to the runs of `of`."""
    count = len(gaps)
    return Evidence(
        [float(gap) for gap in gaps],
        [diverged and row == 0 for row in range(count)],
        [False] * count,
        [f"{of} {row}" for row in range(count)],
    )


def test_a_verdict_names_what_it_assumes() -> None:
    gaps = 0.012 + 0.001 * np.concatenate([ALIKE, [[9.0, -4.0, -6.0]]])
    verdicts = judge([arm(row) for row in gaps], STATED)
    assert verdicts[0].sentence.endswith("(variance moderated over 6 arms)")
    assert verdicts[6].noise.apart == "homogeneity rejected" and verdicts[6].noise.pool == 0
    assert verdicts[6].noise.arm_p == pytest.approx(7.0 * pooling.pool(gaps).arm_p[6])
    assert verdicts[6].noise.arm_p < 0.05 < verdicts[0].noise.arm_p
    assert "own variance: homogeneity rejected" in verdicts[6].sentence
    loud = 0.02 + 0.001 * (ALIKE + np.array([5.0, -4.0, 1.0]))
    told = judge([arm(row) for row in loud], STATED)[0].sentence
    assert "own variance: the baseline scatters more than the arms" in told
    alone = judge([arm(gaps[0])], STATED)[0]
    assert alone.noise.assumption == "" and alone.noise.df == 2.0


def test_pools_are_of_arms_that_share_baseline_runs() -> None:
    both = [arm(row, of) for of in ("bf16", "another") for row in 0.001 * ALIKE[:3]]
    assert [verdict.noise.pool for verdict in judge(both, STATED)] == [3] * 6


def test_diverged_arms_are_in_no_pool() -> None:
    gaps = 0.001 * ALIKE
    verdicts = judge([*(arm(row) for row in gaps[:5]), arm(gaps[5], diverged=True)], STATED)
    assert verdicts[5].kind is Kind.DIVERGED and math.isnan(verdicts[5].noise.sd)
    assert verdicts[0].noise.pool == 5 and verdicts[0].arms == 6
    assert verdicts[0].noise.sd == judge([arm(row) for row in gaps[:5]], STATED)[0].noise.sd


def real_study(column: str) -> dict[str, Verdict]:
    """Verdicts on the arms of SmolLM2 that were trained with two seeds."""
    losses: dict[str, list[float]] = {}
    with TWO_SEEDS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            losses.setdefault(row["recipe"], []).append(float(row[column]))
    twins = losses.pop("bf16")
    arms = [arm(inference.relative_gaps(ours, twins)) for ours in losses.values()]
    return dict(zip(losses, judge(arms, STATED)))


@pytest.mark.parametrize("column", ["held_out_after_cpt", "held_out_after_sft"])
def test_two_seeds_of_a_real_model_tell_gaps_from_zero(column: str) -> None:
    verdicts = real_study(column)
    assert len(verdicts) == 6
    page = (ROOT / "experiments" / "results" / "smollm2.md").read_text(encoding="utf-8")
    for name, verdict in verdicts.items():
        assert verdict.kind is Kind.WORSE, (name, verdict.sentence)
        assert verdict.half_width < 0.0045 or name == "nvfp4"
        assert f"| {verdict.sentence} |" in page, (name, verdict.sentence)


# --- coverage -------------------------------------------------------------------------------------


def problems() -> list[str]:
    """What a small grid finds outside the promise."""
    rng = np.random.default_rng(1)
    cells = [
        coverage.simulate(scenario, 1500, arms, seeds, rng)
        for scenario in coverage.SCENARIOS
        for seeds, arms in ((2, 3), (2, 12), (3, 3), (8, 12))
    ]
    return [f"{cell.scenario}: {text}" for cell in cells for text in cell.problems()]


def test_coverage_and_false_claims_on_planted_truths() -> None:
    assert problems() == []


def test_arms_taken_for_independent_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "pool_df", lambda arms, df: arms * df)
    monkeypatch.setattr(pooling, "most_prior_df", lambda arms: np.full(np.shape(arms), 1e6))
    assert any("false worse or better" in text for text in problems())


def test_the_smaller_of_two_variances_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = pooling.pool

    def smaller(gaps: Array) -> pooling.Pooled:
        found = right(gaps)
        found.variance[...] = np.minimum(found.variance, gaps.var(axis=-1, ddof=1))
        return found

    monkeypatch.setattr(pooling, "pool", smaller)
    assert any(text.startswith("equal: coverage") for text in problems())


def test_the_program_writes_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coverage, "SEEDS", (2,))
    monkeypatch.setattr(coverage, "ARMS", (3,))
    path = tmp_path / "coverage.csv"
    assert coverage.main(["--studies", "400", "--csv", str(path)]) == 0
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["scenario"] for row in rows] == [item.name for item in coverage.SCENARIOS]
    assert float(rows[0]["half_width"]) < 0.6 * float(rows[0]["half_width_alone"])
    assert "11 cells of 400 studies, 0 numbers outside" in capsys.readouterr().out
    assert coverage.main(["--studies", "100", "--csv", str(tmp_path / "no" / "x")]) == 1
    monkeypatch.setattr(inference, "half_width", lambda sd, count, alpha, df: 1.96 / count**0.5)
    assert coverage.main(["--studies", "400"]) == 3
    assert "OUTSIDE: equal, 2 seeds, 3 arms: coverage" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--studies", "9"], ["--seed", "-1"]])
def test_numbers_that_say_nothing_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        coverage.main(words)
    assert ended.value.code == 2
