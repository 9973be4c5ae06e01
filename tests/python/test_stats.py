"""The pure functions of fp8lab_analysis.stats against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fp8lab_analysis import stats
from fp8lab_analysis.stats import Verdict

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


def test_gap_area_is_the_trapezoid_sum() -> None:
    assert stats.gap_area(np.array([0.0, 10.0, 20.0]), np.array([0.0, 1.0, 1.0])) == 15.0
    assert math.isnan(stats.gap_area(np.array([1.0]), np.array([1.0])))
    assert math.isnan(stats.gap_area(np.array([1.0, 2.0]), np.array([1.0, NAN])))


def test_seed_floor_is_two_standard_deviations() -> None:
    floor = stats.seed_floor([np.full(10, 1.0), np.full(10, 1.2)])
    assert floor is not None
    assert floor == pytest.approx(np.full(10, 2.0 * 0.2 / math.sqrt(2.0)))
    assert stats.seed_floor([np.zeros(10)]) is None


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


def test_seed_band() -> None:
    assert stats.seed_band([1.0, 2.0, 3.0]) == 2.0
    assert math.isnan(stats.seed_band([1.0]))


@pytest.mark.parametrize(
    ("gaps", "diverged", "band", "verdict"),
    [
        ([0.01, 0.03], [False, False], 0.025, Verdict.INSIDE),
        ([0.01, 0.03], [False, False], 0.015, Verdict.WORSE),
        ([-0.01, -0.03], [False, False], 0.015, Verdict.BETTER),
        ([0.01, NAN], [False, True], 0.5, Verdict.DIVERGED),
        ([NAN], [False], 0.5, Verdict.UNPAIRED),
        ([0.02], [False], NAN, Verdict.ONE_SEED),
        ([0.02], [False], 0.001, Verdict.ONE_SEED),
        ([-0.02, -0.02], [False, False], NAN, Verdict.ONE_SEED),
    ],
)
def test_verdict(gaps: list[float], diverged: list[bool], band: float, verdict: Verdict) -> None:
    assert stats.judge(gaps, diverged, band) is verdict


def test_median_ratio() -> None:
    ours, theirs = np.array([2.0, 3.0, NAN, 8.0]), np.array([1.0, 1.0, 1.0, 0.0])
    assert stats.median_ratio(ours, theirs) == 2.5
    assert math.isnan(stats.median_ratio(np.zeros(0), np.zeros(0)))
