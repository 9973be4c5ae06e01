"""The pure functions of fp8lab_analysis.judge.stats against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fp8lab_analysis.judge import stats

NAN = math.nan


def test_ema_is_bias_corrected_and_halves_after_its_half_life() -> None:
    assert stats.ema(np.full(7, 3.5), 2.0) == pytest.approx(np.full(7, 3.5))
    # keep = 1/2: weights 1/2, 1/4, 1/8 of the newest, divided by their sum.
    smooth = stats.ema(np.array([1.0, 0.0, 4.0]), 1.0)
    assert smooth == pytest.approx([1.0, 1.0 / 3.0, (2.0 + 0.0 + 0.125) / 0.875])


def test_ema_skips_what_is_not_finite() -> None:
    smooth = stats.ema(np.array([1.0, NAN, 4.0, math.inf]), 1.0)
    assert smooth[[0, 2]] == pytest.approx([1.0, (2.0 + 0.125) / 0.625])
    assert np.isnan(smooth[[1, 3]]).all()
    assert stats.ema(np.zeros(0), 1.0).size == 0


def test_final_mean_takes_the_last_tenth() -> None:
    assert stats.final_mean(np.arange(200.0)) == pytest.approx(189.5)
    assert stats.final_mean(np.arange(20.0)) == pytest.approx(14.5)  # at least ten rows
    assert stats.final_mean(np.array([1.0, 2.0])) == pytest.approx(1.5)
    assert math.isnan(stats.final_mean(np.zeros(0)))
    assert math.isnan(stats.final_mean(np.array([1.0, 1.0, NAN])))


def test_batch_means_error() -> None:
    # Batch means 0, 1, 2, 3, 4: sample variance 2.5, error sqrt(2.5 / 5).
    assert stats.batch_means_error(np.repeat(np.arange(5.0), 4)) == pytest.approx(math.sqrt(0.5))
    assert math.isnan(stats.batch_means_error(np.zeros(9)))
    assert math.isnan(stats.batch_means_error(np.full(20, NAN)))


def test_paired_gap_uses_the_common_steps_only() -> None:
    gap = stats.paired_gap(
        np.array([1.0, 2.0, 4.0]),
        np.array([5.0, 6.0, 8.0]),
        np.array([2.0, 3.0, 4.0]),
        np.array([5.5, 1.0, 7.0]),
    )
    assert gap.steps.tolist() == [2.0, 4.0]
    assert gap.raw == pytest.approx([0.5, 1.0])
    # keep = 1/2 at one row: (1.0 / 2 + 0.5 / 4) / (3 / 4)
    assert gap.smooth == pytest.approx([0.5, 0.625 / 0.75])


def test_divergence_row() -> None:
    assert stats.divergence_row(np.ones(9)) is None
    assert stats.divergence_row(np.array([1.0, 1.0, NAN, 1.0, math.inf])) == 2
    # Half-life of three rows: the last three of 23 losses have this share.
    loss = np.array([1.0] * 20 + [2.0] * 10)
    smooth = stats.divergence_limit(loss).smooth
    assert smooth[22] == pytest.approx(1.0 + (1 / 2) / (1 - 2 ** (-23 / 3)))  # 1.502 > 1 + 0.5
    assert stats.divergence_row(loss) == 22
    # What comes back below the margin has not diverged there: the second rise counts.
    back = np.array([1.0] * 20 + [3.0] * 3 + [1.0] * 6 + [3.0] * 7)
    assert stats.divergence_row(back) == 29


def test_a_few_rows_diverge_beyond_what_texts_differ_by_alone() -> None:
    assert stats.divergence_row(np.array([3.0635, 4.0182])) is None  # two texts, a run of 2 steps
    assert stats.divergence_row(np.array([1.0] * 9 + [3.0] * 3)) == 10
    assert stats.divergence_row(np.array([1.0] * 8 + [3.0] * 3)) is None
    assert stats.divergence_row(np.array([5.6, 5.6, 7488.0])) == 2


def test_noise_widens_the_margin_of_a_divergence() -> None:
    rows = np.tile([4.0, 5.0], 18)
    assert stats.divergence_limit(rows).margin == pytest.approx(
        6.0
        * (1.0 + 8.0 / 11.0)
        / math.sqrt(2.0)
        * math.sqrt((1 - 2 ** (-1 / 3)) / (1 + 2 ** (-1 / 3)))
    )
    rows[-12:] += 2.0
    assert stats.divergence_row(rows) is None
    rows[-12:] += 2.0
    assert stats.divergence_row(rows) is not None
    # Broken from its first third on: no noise explains so much.
    assert stats.divergence_limit(np.array([5.6, 18.0, 59.0, 61.0, 113.0] * 4)).margin == 4.0


# The losses of 20 rows of one sequence of 64 tokens, and their held-out loss fell (4.621 to 4.616).
STANDS_STILL = [
    4.81, 3.39, 3.99, 3.68, 3.78, 4.87, 5.17, 4.16, 4.57, 4.31,
    4.54, 4.21, 4.53, 3.82, 3.41, 4.2, 4.59, 4.21, 4.99, 4.27,
]  # fmt: skip


def test_healthy_short_runs_do_not_diverge() -> None:
    assert not stats.has_diverged(np.array(STANDS_STILL))
    random = np.random.default_rng(1)
    for _ in range(200):
        rows = int(random.integers(2, 60))
        slope = random.uniform(0.0, 0.02)
        noise = random.uniform(0.05, 0.7)
        loss = 4.6 - slope * np.arange(rows) + random.normal(0.0, noise, rows)
        assert not stats.has_diverged(loss), loss
        # The same run, broken: it goes up and stays there.
        loss[rows - rows // 3 :] += 60.0
        assert stats.has_diverged(loss) == (rows >= 3), loss


def test_aligned_mean_moves_every_histogram_by_its_shift() -> None:
    exponents = np.array([-1.0, 0.0, 1.0])
    fractions = np.array([[0.5, 0.5, 0.0], [0.0, 0.25, 0.75], [NAN, 1.0, 0.0], [1.0, 0.0, 0.0]])
    offsets, mean = stats.aligned_mean(exponents, fractions, np.array([0.0, 1.6, 0.0, NAN]))
    # The second moves down by two: its 0.25 at 0 is at -2, its 0.75 at 1 is at -1.
    assert offsets.tolist() == [-3.0, -2.0, -1.0, 0.0, 1.0]
    assert mean.tolist() == [0.0, 0.125, (0.5 + 0.75) / 2, 0.25, 0.0]
    assert stats.aligned_mean(exponents, fractions[:1], np.array([NAN]))[0].size == 0


def test_jaccard_of_channels() -> None:
    # {3, 5, 7} and {5, 7, 9, 11} share two of five; -1 and NaN are no channels.
    assert stats.jaccard(np.array([3, 5, 7, -1]), np.array([11, 9, 7, 5])) == pytest.approx(2 / 5)
    assert stats.jaccard(np.array([1.0, 2.0]), np.array([2.0, 1.0])) == 1.0
    assert stats.jaccard(np.array([1.0]), np.array([2.0])) == 0.0
    assert math.isnan(stats.jaccard(np.array([NAN, -1.0]), np.array([2.0])))
    rows = stats.jaccard_rows(np.array([[1, 2], [3, 4]]), np.array([[1, 2], [4, 5]]))
    assert rows.tolist() == [1.0, pytest.approx(1 / 3)]


def test_pareto_front() -> None:
    costs = np.array([3.0, 1.0, 2.0, 2.0, NAN, 1.0])
    errors = np.array([0.0, 5.0, 2.0, 3.0, -9.0, 5.0])
    # (2, 3) is beaten by (2, 2); of the two equal points neither beats the other.
    assert stats.pareto_front(costs, errors) == [1, 5, 2, 0]
    assert stats.pareto_front(np.zeros(0), np.zeros(0)) == []


def test_median_rate_passes_over_an_evaluation() -> None:
    # 10 in each of 2, 2, 9 (an evaluation between) and 2 seconds.
    seconds = np.array([1.0, 3.0, 5.0, 14.0, 16.0])
    assert stats.median_rate(np.arange(0.0, 50.0, 10.0), seconds) == 5.0
    assert math.isnan(stats.median_rate(np.array([4.0]), np.array([1.0])))
    assert math.isnan(stats.median_rate(np.array([4.0, 8.0]), np.array([1.0, 1.0])))


def test_largest_gap_is_one_of_the_smoothed_gap_after_its_start() -> None:
    steps = np.arange(10.0, 20.0)
    gap = np.array([9.0, 9.0, 0.1, -0.3, 0.2, 0.0, 0.0, 0.1, 0.1, 0.1])
    assert stats.largest_gap(steps, gap) == (-0.3, 13)  # the first two of ten rows do not count
    assert stats.largest_gap(steps, -gap) == (0.3, 13)
    gap[9] = NAN
    for value, step in (stats.largest_gap(steps, gap), stats.largest_gap(steps[:2], gap[:2])):
        assert math.isnan(value) and step is None


def test_gap_area_is_the_trapezoid_sum() -> None:
    assert stats.gap_area(np.array([0.0, 10.0, 20.0]), np.array([0.0, 1.0, 1.0])) == 15.0
    assert math.isnan(stats.gap_area(np.array([1.0]), np.array([1.0])))
    assert math.isnan(stats.gap_area(np.array([1.0, 2.0]), np.array([1.0, NAN])))


def test_sample_deviation_divides_by_one_less() -> None:
    assert float(stats.sample_sd(np.array([1.0, 3.0]))) == pytest.approx(math.sqrt(2.0))
    columns = stats.sample_sd(np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 6.0]]))
    assert columns == pytest.approx([1.0, math.sqrt(12.0)])
    assert np.isnan(stats.sample_sd(np.array([[1.0, 2.0]]))).tolist() == [True, True]


def test_curves_over_seeds_take_the_steps_that_all_have() -> None:
    seeds = stats.over_seeds(
        [
            (np.array([1.0, 2.0, 4.0]), np.array([9.0, 1.0, 5.0])),
            (np.array([2.0, 3.0, 4.0]), np.array([3.0, 9.0, NAN])),
        ]
    )
    assert seeds.steps.tolist() == [2.0, 4.0]
    assert seeds.mean[0] == 2.0 and seeds.sd[0] == pytest.approx(math.sqrt(2.0))
    assert np.isnan(seeds.mean[1]) and np.isnan(seeds.sd[1])
    alone = stats.over_seeds([(np.array([1.0]), np.array([2.0]))])
    assert alone.mean[0] == 2.0 and np.isnan(alone.sd[0])


def test_seed_floor_is_two_standard_deviations() -> None:
    steps = np.arange(10.0)
    floor = stats.seed_floor([(steps, np.full(10, 1.0)), (steps + 2.0, np.full(10, 1.2))])
    assert floor is not None
    assert floor.steps.tolist() == list(range(2, 10))
    assert floor.mean == pytest.approx(np.full(8, 1.1))
    assert floor.half_width == pytest.approx(np.full(8, 2.0 * 0.2 / math.sqrt(2.0)))
    at = floor.at(np.array([0.0, 3.0, 9.0, 11.0]))
    assert np.isnan(at).tolist() == [True, False, False, True]
    assert at[1] == pytest.approx(0.4 / math.sqrt(2.0))
    assert stats.seed_floor([(steps, np.zeros(10))]) is None
    apart = stats.seed_floor([(steps, np.zeros(10)), (steps + 20.0, np.zeros(10))])
    assert apart is not None and np.isnan(apart.at(steps)).all()


def test_first_departure_needs_a_streak() -> None:
    steps = np.arange(10.0, 20.0)
    gap = np.array([0.0, 2.0, 0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0])
    floor = np.ones(10)
    assert stats.first_departure(steps, gap, floor, hold=1) == 11
    assert stats.first_departure(steps, gap, floor, hold=3) == 14
    assert stats.first_departure(steps, -gap, floor, hold=4) == 14
    assert stats.first_departure(steps, gap, floor, hold=5) is None
    gap[8:] = NAN
    assert stats.first_departure(steps, gap, floor, hold=6) == 14
    assert stats.first_departure(np.zeros(0), np.zeros(0), floor) is None


def test_spikes_are_counted_once_each() -> None:
    loss = 2.0 + 0.01 * np.sin(np.arange(200.0))
    assert stats.spike_rows(loss) == []
    loss[60:63] += 1.0
    loss[190] += 2.0
    assert stats.spike_rows(loss)[0] == 60
    assert 190 in stats.spike_rows(loss)
    assert len(stats.spike_rows(loss)) == 2
    assert stats.spike_rows(np.array([1.0, 9.0])) == []


def test_spikes_are_measured_in_sample_deviations() -> None:
    # Ten rows of mean 2: their deviation is sqrt(10/9) * 0.1 with n - 1 and 0.1 with n, so that a
    # loss 5.1 deviations of n above the average is no spike.
    loss = np.append(np.tile([1.9, 2.1], 5), 0.0)
    centre = stats.ema(loss[:10], 50.0)[9]
    assert abs(centre - 2.0) < 1e-3
    loss[10] = centre + 0.51
    assert stats.spike_rows(loss) == []
    loss[10] = centre + 5.01 * 0.1 * math.sqrt(10.0 / 9.0)
    assert stats.spike_rows(loss) == [10]


def test_divergence() -> None:
    falling = np.linspace(3.0, 1.0, 100)
    assert not stats.has_diverged(falling)
    assert stats.has_diverged(np.append(falling, NAN))
    assert stats.has_diverged(np.append(falling, math.inf))
    rising = np.concatenate([falling, np.full(100, 3.5)])
    assert stats.has_diverged(rising)
    assert not stats.has_diverged(rising, margin=3.0)
    assert not stats.has_diverged(np.zeros(0))


def test_wilson_interval() -> None:
    # 8 of 10: centre (0.8 + 1.9208/10) / 1.38416, half 1.95996/1.38416 * sqrt(.016 + .0096037)
    low, high = stats.wilson_interval(8, 10)
    assert (low, high) == pytest.approx((0.49016, 0.94331), abs=1e-4)
    assert stats.wilson_interval(0, 10)[0] == 0.0
    assert stats.wilson_interval(10, 10)[1] == pytest.approx(1.0)
    assert math.isnan(stats.wilson_interval(0, 0)[0])


def test_spread_over_seeds() -> None:
    spread = stats.spread_over_seeds([1.0, 2.0, 3.0])
    assert (spread.mean, spread.sd, spread.count) == (2.0, 1.0, 3)
    assert math.isnan(stats.spread_over_seeds([1.0]).sd)
    assert math.isnan(stats.spread_over_seeds([1.0, NAN]).mean)
    assert stats.spread_over_seeds([]).count == 0


def test_first_reach_lies_on_the_line_between_points() -> None:
    steps, losses = np.array([10.0, 20.0, 30.0]), np.array([2.0, 1.0, 0.5])
    assert stats.first_reach(steps, losses, 1.25) == pytest.approx(17.5)
    assert stats.first_reach(steps, losses, 1.0) == 20.0
    assert stats.first_reach(steps, losses, 0.49) is None
    assert stats.first_reach(steps, losses, 2.5) == 10.0
    # A curve that rises again has been there; what is before a broken point is not known.
    assert stats.first_reach(steps, np.array([2.0, 1.0, 3.0]), 1.5) == 15.0
    assert stats.first_reach(steps, np.array([2.0, NAN, 0.5]), 1.0) == 30.0
    assert stats.first_reach(np.zeros(0), np.zeros(0), 1.0) is None


def test_ratios_are_taken_where_both_are_known() -> None:
    ours = (np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 3.0, NAN, 8.0]))
    theirs = (np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([1.0, 1.0, 1.0, 0.0, 1.0]))
    steps, ratio = stats.ratio_curve(ours, theirs)
    assert steps.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert ratio[:2].tolist() == [2.0, 3.0] and np.isnan(ratio[2:]).all()
    assert stats.median_ratio(ours, theirs) == 2.5
    later = (theirs[0] + 1.0, theirs[1])
    assert stats.ratio_curve(ours, later)[0].tolist() == [2.0, 3.0, 4.0]
    assert math.isnan(stats.median_ratio((np.zeros(0), np.zeros(0)), theirs))


def test_smoothing_follows_the_length_of_the_curve() -> None:
    step = np.repeat([0.0, 1.0], 500)
    assert stats.half_life_for(1000) == 20.0 and stats.half_life_for(10) == 1.0
    assert stats.smoothed(step)[519] == pytest.approx(0.5, abs=1e-6)  # 2 % of the rows later
    norm = stats.geometric_smoothed(np.array([4.0, 0.0, 1.0]))
    assert np.isnan(norm[1]) and norm[2] == pytest.approx(4.0**0.2)  # weights 1/2 and 1/8


def test_means_of_what_is_finite() -> None:
    values = np.array([[1.0, NAN], [3.0, NAN]])
    means = stats.finite_column_means(values)
    assert means[0] == 2.0 and np.isnan(means[1])
    assert stats.finite_mean(values) == 2.0
    assert math.isnan(stats.finite_mean([NAN])) and math.isnan(stats.finite_mean([]))


def test_error_of_a_mean_of_estimates() -> None:
    assert stats.error_of_mean([3.0, 4.0]) == 2.5
    assert stats.error_of_mean([0.2]) == 0.2
    assert math.isnan(stats.error_of_mean([0.2, NAN])) and math.isnan(stats.error_of_mean([]))
