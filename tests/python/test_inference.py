"""Tests, intervals and sample sizes of fp8lab_analysis.judge.inference: hand-worked numbers,
published tables, and scipy where it has the same thing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from fp8lab_analysis.judge import inference
from fp8lab_analysis.judge.stats import Array, sample_sd

NAN = math.nan


def test_relative_gaps_are_shares_of_the_twin() -> None:
    gaps = inference.relative_gaps([1.01, 1.98, NAN, 1.0, 1.0], [1.0, 2.0, 1.0, math.inf, 0.0])
    assert gaps[:2] == pytest.approx([0.01, -0.01])
    assert np.isnan(gaps[2:]).all()


def test_half_width_of_the_paired_interval() -> None:
    # Gaps 1, 2, 3: mean 2, deviation 1; t(0.975; 2) = 4.302653, over the root of 3.
    assert inference.half_width(1.0, 3, 0.05) == pytest.approx(4.302653 / math.sqrt(3.0))
    data = np.array([0.3, -0.1, 0.7, 0.4])
    low, high = stats.ttest_1samp(data, 0.0).confidence_interval(0.95)
    half = inference.half_width(float(sample_sd(data)), 4, 0.05)
    assert (data.mean() - half, data.mean() + half) == pytest.approx((low, high))


def test_p_values_are_those_of_t_tests() -> None:
    data = np.random.default_rng(3).normal(0.2, 1.0, (5, 6))
    mean, sd = data.mean(axis=1), sample_sd(data.T)
    less = stats.ttest_1samp(data, 0.7, axis=1, alternative="less").pvalue
    more = stats.ttest_1samp(data, -0.7, axis=1, alternative="greater").pvalue
    assert inference.one_sided_p(mean, sd, 6, 0.7) == pytest.approx(less)
    assert inference.equivalence_p(mean, sd, 6, 0.7) == pytest.approx(np.maximum(less, more))
    both = stats.ttest_1samp(data, 0.0, axis=1).pvalue
    assert inference.difference_p(mean, sd, 6) == pytest.approx(both)


def test_p_values_by_hand() -> None:
    # Two seeds: Student's T with one degree of freedom is Cauchy, P(T <= -1) = 1/4. The mean 0 lies
    # one standard error, sqrt(2)/sqrt(2) = 1, below the margin 1, and as far above -1.
    assert inference.one_sided_p(0.0, math.sqrt(2.0), 2, 1.0) == pytest.approx(0.25)
    assert inference.equivalence_p(0.0, math.sqrt(2.0), 2, 1.0) == pytest.approx(0.25)
    assert inference.equivalence_p(0.5, math.sqrt(2.0), 2, 1.0) > 0.25
    assert inference.difference_p(-1.0, math.sqrt(2.0), 2) == pytest.approx(0.5)


def test_gaps_without_spread_are_decided_by_their_mean() -> None:
    assert inference.equivalence_p(0.004, 0.0, 3, 0.005) == 0.0
    assert inference.equivalence_p(-0.006, 0.0, 3, 0.005) == 1.0
    assert inference.equivalence_p(0.005, 0.0, 3, 0.005) == 0.5  # at the margin
    assert inference.difference_p(0.004, 0.0, 3) == 0.0
    assert inference.difference_p(0.0, 0.0, 3) == 1.0


def test_equivalence_is_an_interval_within_the_margins() -> None:
    data = np.random.default_rng(4).normal(0.1, 0.5, (500, 4))
    mean, sd = data.mean(axis=1), sample_sd(data.T)
    half = np.array([inference.half_width(float(s), 4, 0.1) for s in sd])  # 1 - 2 alpha
    inside = (mean - half > -1.0) & (mean + half < 1.0)
    assert 50 < inside.sum() < 450
    assert ((inference.equivalence_p(mean, sd, 4, 1.0) <= 0.05) == inside).all()


def test_sign_flips_by_hand_and_against_scipy() -> None:
    assert inference.sign_flip_p([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == 2.0 / 64.0
    # The sum 19 of 21; as large: all signs the same, or 1 alone the other way, times two.
    assert inference.sign_flip_p([-1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) == 4.0 / 64.0
    assert inference.sign_flip_p([1.0, -1.0, 2.0, -2.0, 3.0, -3.0]) == 1.0
    data = np.random.default_rng(5).normal(0.4, 1.0, 9)
    expected = stats.permutation_test(
        (data,), np.sum, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
    ).pvalue
    assert inference.sign_flip_p(list(data)) == pytest.approx(expected)


def test_sign_flips_of_equal_gaps_count_rounding_as_equal() -> None:
    # 0.1 is no binary number: sums in another order differ in their last bit.
    gaps = [0.1, 0.2, 0.3, 0.1, 0.2, -0.3]
    tens = [10.0 * round(10.0 * gap) for gap in gaps]
    assert inference.sign_flip_p(gaps) == inference.sign_flip_p(tens)


@pytest.mark.parametrize("count", [2, 5, 25])
def test_sign_flips_are_refused_for_few_and_for_many_seeds(count: int) -> None:
    with pytest.raises(ValueError, match="6 to 24 finite gaps"):
        inference.sign_flip_p([1.0] * count)
    with pytest.raises(ValueError, match="finite"):
        inference.sign_flip_p([1.0] * 6 + [NAN])


def test_binomial_interval_is_exact() -> None:
    for successes, trials in ((0, 4), (1, 4), (4, 4), (7, 30)):
        expected = stats.binomtest(successes, trials).proportion_ci(0.95, method="exact")
        assert inference.binomial_interval(successes, trials, 0.05) == pytest.approx(
            (expected.low, expected.high)
        )
    # None of 4: (1 - p)^4 = 0.025.
    assert inference.binomial_interval(0, 4, 0.05) == pytest.approx((0.0, 1.0 - 0.025**0.25))
    assert np.isnan(inference.binomial_interval(0, 0, 0.05)).all()


def test_deviation_interval_from_the_table_of_chi_square() -> None:
    low, high = inference.deviation_interval(2.0, 9, 0.05)  # quantiles 19.023 and 2.700 of 9
    assert (low, high) == pytest.approx(
        (2 * math.sqrt(9 / 19.023), 2 * math.sqrt(9 / 2.7004)), 1e-4
    )


@pytest.mark.filterwarnings("ignore:.*encountered in _nct:RuntimeWarning")
@pytest.mark.parametrize("count", [2, 3, 4, 8, 16, 64, 400])
def test_detection_power_is_that_of_the_noncentral_t(count: int) -> None:
    for gap in (0.0, 0.4, -1.5):
        t, shift = stats.t.isf(0.025, count - 1), gap * math.sqrt(count)
        expected = stats.nct.sf(t, count - 1, shift) + stats.nct.cdf(-t, count - 1, shift)
        if math.isfinite(expected):  # scipy gives NaN for large noncentralities
            assert inference.detection_power(count, gap, 1.0, 0.05) == pytest.approx(
                expected, abs=1e-8
            )
    assert inference.detection_power(count, 0.8, 2.0, 0.05) == pytest.approx(
        inference.detection_power(count, 0.4, 1.0, 0.05)
    )


@pytest.mark.filterwarnings("ignore:.*encountered in _nct:RuntimeWarning")
def test_equivalence_power_far_from_one_margin_is_that_of_one_test() -> None:
    for count in (2, 4, 9, 40):
        t = stats.t.isf(0.05, count - 1)
        expected = stats.nct.sf(t, count - 1, 0.8 * math.sqrt(count))
        found = inference.equivalence_power(count, 1000.0 - 0.8, 1.0, 1000.0, 0.05)
        assert found == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize(("count", "gap", "margin"), [(2, 0.0, 6.0), (4, 0.0, 2.0), (7, 0.3, 1.0)])
def test_equivalence_power_is_the_share_of_draws(count: int, gap: float, margin: float) -> None:
    draws = np.random.default_rng(6).normal(gap, 1.0, (count, 200_000))
    p_values = inference.equivalence_p(draws.mean(axis=0), sample_sd(draws), count, margin)
    share = float(np.mean(p_values <= 0.05))
    expected = inference.equivalence_power(count, gap, 1.0, margin, 0.05)
    assert share == pytest.approx(expected, abs=4.0 * math.sqrt(expected / 200_000))


def test_equivalence_at_the_margin_has_at_most_the_level() -> None:
    for count in (2, 4, 8, 16, 100):
        for margin in (0.2, 1.0, 3.0, 10.0):
            assert inference.equivalence_power(count, margin, 1.0, margin, 0.05) <= 0.05 + 1e-9
    assert inference.equivalence_power(100, 3.0, 1.0, 3.0, 0.05) == pytest.approx(0.05)


def test_detectable_gap_and_provable_margin_have_the_power() -> None:
    for count in (2, 4, 8, 16):
        gap = inference.detectable_gap(count, 0.02, 0.05, 0.9)
        assert inference.detection_power(count, gap, 0.02, 0.05) == pytest.approx(0.9)
        margin = inference.provable_margin(count, 0.02, 0.05, 0.9)
        assert inference.equivalence_power(count, 0.0, 0.02, margin, 0.05) == pytest.approx(0.9)
    # Large samples: (1.960 + 1.2816) / sqrt(n), and twice 1.645 over it.
    assert inference.detectable_gap(9000, 1.0, 0.05, 0.9) == pytest.approx(
        3.2415 / 94.868, rel=1e-3
    )
    assert inference.provable_margin(9000, 1.0, 0.05, 0.9) == pytest.approx(
        3.2897 / 94.868, rel=1e-3
    )


def test_seeds_for_a_gap_are_those_of_published_tables() -> None:
    # The paired t test, two-sided 5 %, power 80 %, as in G*Power: 34 pairs for a gap of half a
    # deviation, 15 for 0.8, 199 for 0.2.
    seeds = [inference.seeds_for_gap(gap, 1.0, 0.05, 0.8) for gap in (0.5, 0.8, 0.2)]
    assert seeds == [34, 15, 199]
    assert inference.seeds_for_gap(-0.5, 1.0, 0.05, 0.8) == 34
    assert inference.seeds_for_gap(1e-4, 1.0, 0.05, 0.8) is None
    assert inference.seeds_for_gap(1.0, 0.0, 0.05, 0.8) == 2


def test_seeds_for_a_margin_are_the_fewest() -> None:
    for ratio in (5.0, 2.0, 1.0, 0.3, 0.1):
        seeds = inference.seeds_for_margin(ratio, 1.0, 0.05, 0.9)
        assert seeds is not None
        assert inference.equivalence_power(seeds, 0.0, 1.0, ratio, 0.05) >= 0.9
        assert seeds == 2 or inference.equivalence_power(seeds - 1, 0.0, 1.0, ratio, 0.05) < 0.9
    # A normal approximation, ((1.645 + 1.645) sd / margin)^2 = 2.7, would have said 3.
    assert inference.seeds_for_margin(2.0, 1.0, 0.05, 0.9) == 5
    assert inference.seeds_for_margin(1e-4, 1.0, 0.05, 0.9) is None
    assert inference.seeds_for_margin(0.005, 0.0, 0.05, 0.9) == 2


@pytest.mark.parametrize("counts", [(2, 4, 6, 8), (2, 3, 20), (8, 16, 24, 32), range(2, 21, 2)])
def test_looks_of_t_tests_hold_their_level(counts: Sequence[int]) -> None:
    """One- and two-sided tests of no gap at every look, Student's ratio written out."""
    trials = 100_000
    gaps: Array = np.random.default_rng(7).normal(size=(trials, max(counts)))
    level = inference.look_level(0.05, len(counts))
    above, either = np.zeros((2, trials), dtype=np.bool_)
    for count in counts:
        seen = gaps[:, :count]
        ratio = seen.mean(axis=1) * math.sqrt(count) / seen.std(axis=1, ddof=1)
        above |= ratio >= stats.t.isf(level, count - 1)
        either |= np.abs(ratio) >= stats.t.isf(level / 2.0, count - 1)
    room = 3.0 * math.sqrt(0.05 * 0.95 / trials)
    assert 0.02 < above.mean() <= 0.05 + room and 0.02 < either.mean() <= 0.05 + room


def test_the_jackknife_of_a_mean_is_the_interval_of_student() -> None:
    values = np.random.default_rng(4).normal(size=(5, 2))
    without = np.array([np.delete(values, row, axis=0).mean(axis=0) for row in range(5)])
    half = inference.jackknife_half_width(without, 4, 0.05)
    own = [inference.half_width(sd, 5, 0.05) for sd in values.std(axis=0, ddof=1)]
    assert half == pytest.approx(own)


def test_holm_by_hand() -> None:
    levels = inference.step_levels(0.05, 4, 1)
    assert levels == pytest.approx([0.0125, 0.05 / 3.0, 0.025, 0.05])
    p_values = [0.01, 0.04, 0.03, 0.005]  # 0.005 and 0.01 pass; 0.03 is above 0.025 and stops
    assert inference.reject(p_values, levels).tolist() == [True, False, False, True]
    decided = inference.decided_at(p_values, levels)
    assert decided == pytest.approx([0.05 / 3.0, 0.025, 0.025, 0.0125])
    # The smallest one fails: nothing passes, though 0.02 would at its own level.
    assert not inference.reject([0.013, 0.02, 0.014, 0.013], levels).any()
    assert inference.reject([0.0125, 0.01, 0.04, 0.02], levels).all()
    batch = np.array([p_values, [0.013, 0.02, 0.014, 0.013]])
    assert inference.reject(batch, levels).sum(axis=1).tolist() == [2, 0]
    assert inference.step_levels(0.05, 2, 2)[1] == 0.05 / 2


def test_the_level_of_a_decision_agrees_with_it() -> None:
    p_values = np.random.default_rng(8).beta(0.3, 3.0, (300, 6))
    levels = inference.step_levels(0.05, 6, 3)
    rejected = inference.reject(p_values, levels)
    assert 0.2 < rejected.mean() < 0.8
    assert ((p_values <= inference.decided_at(p_values, levels)) == rejected).all()


def test_family_wise_error_of_the_difference() -> None:
    """Seven arms of eight seeds that share their twins, none with a gap: the bare t tests, without
    the equivalence that goes first in a verdict."""
    rng = np.random.default_rng(9)
    trials = 10_000
    gaps: Array = rng.normal(size=(8, trials, 7)) - rng.normal(size=(8, trials, 1))
    p_values = inference.difference_p(gaps.mean(axis=0), sample_sd(gaps), 8)
    bound = 0.05 + 3.0 * math.sqrt(0.05 * 0.95 / trials)
    corrected = inference.reject(p_values, inference.step_levels(0.05, 7, 1)).any(axis=1)
    assert 0.02 < corrected.mean() <= bound
    assert (p_values <= 0.05).any(axis=1).mean() > 0.15  # what the correction is for
