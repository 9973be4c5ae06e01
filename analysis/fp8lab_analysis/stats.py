"""Pure functions from arrays to the numbers of a report: gaps, areas, bands, spikes, verdicts.

Losses are nats per unmasked token, gaps are run minus baseline (positive: the run is worse), and
every function accepts NaN and infinities, which mean that training broke there.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import signal
from scipy import stats as scipy_stats

Array = npt.NDArray[np.float64]

FINAL_FRACTION = 0.1  # of the rows of a stage: what "final" averages over,
FINAL_ROWS = 10  # but at least so many
DIVERGENCE_MARGIN = 0.5  # nats above the best of the first third (recipes.md section 8)
SPIKE_SIGMAS = 5.0
SPIKE_WINDOW = 100
BAND_SIGMAS = 2.0  # half width of the seed band in sample standard deviations
SQNR_EXACT = 199.0  # dB; the run file caps an error-free operand at 200


def half_life_for(rows: int) -> float:
    """Smoothing half-life in rows that suits a curve of `rows` rows: 2 % of it, at least one."""
    return max(1.0, rows / 50.0)


def ema(values: Array, half_life: float) -> Array:
    """Bias-corrected exponential moving average; non-finite entries are skipped and stay NaN."""
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        return data.copy()
    keep = 0.5 ** (1.0 / half_life)
    finite = np.isfinite(data)
    weight_in = finite.astype(np.float64)
    value_in = np.where(finite, data, 0.0)
    top = signal.lfilter([1.0 - keep], [1.0, -keep], value_in)
    bottom = signal.lfilter([1.0 - keep], [1.0, -keep], weight_in)
    smooth = np.full(data.shape, np.nan)
    np.divide(top, bottom, out=smooth, where=finite & (bottom > 0.0))
    return smooth


def tail(values: Array, fraction: float = FINAL_FRACTION) -> Array:
    """The last `fraction` of the rows, at least ten (or all of a shorter array)."""
    data = np.asarray(values, dtype=np.float64)
    count = min(data.size, max(FINAL_ROWS, round(data.size * fraction)))
    return data[data.size - count :]


def final_mean(values: Array, fraction: float = FINAL_FRACTION) -> float:
    """Mean of the tail; NaN when the array is empty or its tail holds a non-finite value."""
    last = tail(values, fraction)
    if last.size == 0 or not bool(np.all(np.isfinite(last))):
        return math.nan
    return float(np.mean(last))


def batch_means_error(values: Array, batches: int = 5) -> float:
    """Standard error of the mean of an autocorrelated series, from the means of equal batches."""
    data = np.asarray(values, dtype=np.float64)
    if data.size < 2 * batches or not bool(np.all(np.isfinite(data))):
        return math.nan
    size = data.size // batches
    means = data[data.size - size * batches :].reshape(batches, size).mean(axis=1)
    return float(np.std(means, ddof=1) / math.sqrt(batches))


@dataclass(frozen=True)
class GapCurve:
    """Loss gap on the steps that run and baseline share."""

    steps: Array
    raw: Array
    smooth: Array
    spread: Array  # smoothed standard deviation of `raw` around `smooth`


def paired_gap(steps: Array, loss: Array, baseline_steps: Array, baseline_loss: Array) -> GapCurve:
    """Gap of one run to its paired baseline (same seed, data order and architecture)."""
    common, ours, theirs = np.intersect1d(
        np.asarray(steps), np.asarray(baseline_steps), return_indices=True
    )
    with np.errstate(invalid="ignore"):
        raw = np.asarray(loss, dtype=np.float64)[ours] - np.asarray(baseline_loss)[theirs]
    half_life = half_life_for(raw.size)
    smooth = ema(raw, half_life)
    with np.errstate(invalid="ignore"):
        spread = np.sqrt(ema((raw - smooth) ** 2, half_life))
    return GapCurve(common.astype(np.float64), raw, smooth, spread)


def gap_area(steps: Array, gap: Array) -> float:
    """Signed area under the gap in nats x steps (trapezoids); NaN once the gap is not finite."""
    if steps.size < 2:
        return math.nan
    return float(np.trapz(gap, steps))


def seed_floor(curves: Sequence[Array]) -> Array | None:
    """Half width per row of the baseline's seed band: BAND_SIGMAS sample standard deviations of the
    smoothed losses over seeds, itself smoothed. None with fewer than two seeds."""
    if len(curves) < 2:
        return None
    rows = min(curve.size for curve in curves)
    half_life = half_life_for(rows)
    smooth = np.stack([ema(curve[:rows], half_life) for curve in curves])
    variance = ema(np.var(smooth, axis=0, ddof=1), half_life)
    return np.asarray(BAND_SIGMAS * np.sqrt(variance), dtype=np.float64)


def first_departure(steps: Array, gap: Array, floor: Array, hold: int = 0) -> int | None:
    """First step from which |gap| exceeds `floor` for `hold` rows in a row (default: 5 % of them,
    at least five); a non-finite gap counts as exceeding. None when that never happens."""
    rows = min(gap.size, floor.size)
    if rows == 0:
        return None
    needed = hold if hold > 0 else max(5, rows // 20)
    with np.errstate(invalid="ignore"):
        outside = (np.abs(gap[:rows]) > floor[:rows]) | ~np.isfinite(gap[:rows])
    streak = 0
    for row in range(rows):
        streak = streak + 1 if outside[row] else 0
        if streak == needed:
            return int(steps[row - needed + 1])
    return None


def spike_rows(
    loss: Array, sigmas: float = SPIKE_SIGMAS, window: int = SPIKE_WINDOW, warmup: int = 10
) -> list[int]:
    """Rows where a spike starts: loss above EMA + sigmas * standard deviation, both over the
    `window` rows before it (recipes.md section 8). Neighbouring rows above count as one spike."""
    data = np.asarray(loss, dtype=np.float64)
    starts: list[int] = []
    if data.size <= warmup:
        return starts
    average = ema(data, window / 2.0)
    above_before = False
    for row in range(warmup, data.size):
        past = data[max(0, row - window) : row]
        past = past[np.isfinite(past)]
        if past.size < warmup or not math.isfinite(data[row]):
            above_before = False
            continue
        reference = average[row - 1]
        if not math.isfinite(reference):
            reference = float(np.mean(past))
        above = bool(data[row] > reference + sigmas * float(np.std(past)))
        if above and not above_before:
            starts.append(row)
        above_before = above
    return starts


def has_diverged(loss: Array, margin: float = DIVERGENCE_MARGIN) -> bool:
    """True for a non-finite loss, or when the smoothed loss ends more than `margin` nats above its
    minimum over the first third."""
    data = np.asarray(loss, dtype=np.float64)
    if data.size == 0:
        return False
    if not bool(np.all(np.isfinite(data))):
        return True
    smooth = ema(data, half_life_for(data.size))
    third = max(1, data.size // 3)
    return bool(smooth[-1] > float(np.min(smooth[:third])) + margin)


def wilson_interval(successes: float, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """95 % Wilson score interval of a binomial fraction; (NaN, NaN) without trials."""
    if trials <= 0 or not math.isfinite(successes):
        return (math.nan, math.nan)
    fraction = successes / trials
    denominator = 1.0 + z * z / trials
    centre = (fraction + z * z / (2.0 * trials)) / denominator
    half = (
        z
        / denominator
        * math.sqrt(fraction * (1.0 - fraction) / trials + z * z / (4.0 * trials * trials))
    )
    return (max(0.0, centre - half), min(1.0, centre + half))


@dataclass(frozen=True)
class Spread:
    """Mean over seeds with its sample standard deviation (NaN for one seed)."""

    mean: float
    sd: float
    count: int


def spread_over_seeds(values: Sequence[float]) -> Spread:
    """Mean and standard deviation over seeds. A seed that broke makes both NaN: an average of the
    surviving seeds would flatter the recipe."""
    data = np.asarray(list(values), dtype=np.float64)
    if data.size == 0 or not bool(np.all(np.isfinite(data))):
        return Spread(math.nan, math.nan, int(data.size))
    sd = float(np.std(data, ddof=1)) if data.size > 1 else math.nan
    return Spread(float(np.mean(data)), sd, int(data.size))


def t_half_width(spread: Spread, level: float = 0.95) -> float:
    """Half width of Student's confidence interval of the mean; NaN for fewer than two seeds."""
    if spread.count < 2 or not math.isfinite(spread.sd):
        return math.nan
    quantile = float(scipy_stats.t.ppf(0.5 + level / 2.0, spread.count - 1))
    return quantile * spread.sd / math.sqrt(spread.count)


class Verdict(enum.Enum):
    """What the loss says about a recipe, compared with the seed-to-seed noise of the baseline."""

    BASELINE = "baseline"
    DIVERGED = "diverged"
    WORSE = "worse than seed band"
    BETTER = "better than seed band"
    INSIDE = "inside seed band"
    ONE_SEED = "one seed, no order"
    UNPAIRED = "no baseline"


def seed_band(baseline_finals: Sequence[float]) -> float:
    """BAND_SIGMAS sample standard deviations of the baseline's final loss; NaN below two seeds."""
    return BAND_SIGMAS * spread_over_seeds(baseline_finals).sd


def judge(gaps: Sequence[float], diverged: Sequence[bool], band: float) -> Verdict:
    """Verdict over the seeds of one recipe from its final gaps and the band of `seed_band`. Without
    a band, or with a single gap, the noise between seeds is unknown and nothing is judged: that
    within a run is smaller, and no substitute."""
    if any(diverged):
        return Verdict.DIVERGED
    mean = spread_over_seeds(gaps).mean
    if not math.isfinite(mean):
        return Verdict.UNPAIRED
    if len(gaps) < 2 or not math.isfinite(band):
        return Verdict.ONE_SEED
    if abs(mean) <= band:
        return Verdict.INSIDE
    return Verdict.WORSE if mean > 0.0 else Verdict.BETTER


def median_ratio(values: Array, reference: Array) -> float:
    """Median of values / reference over rows where both are finite and the reference positive."""
    rows = min(values.size, reference.size)
    ours, theirs = values[:rows], reference[:rows]
    usable = np.isfinite(ours) & np.isfinite(theirs) & (theirs > 0.0)
    if not bool(np.any(usable)):
        return math.nan
    return float(np.median(ours[usable] / theirs[usable]))


def finite_mean(values: npt.ArrayLike) -> float:
    """Mean of the finite entries, NaN when there is none."""
    data = np.asarray(values, dtype=np.float64)
    data = data[np.isfinite(data)]
    return float(np.mean(data)) if data.size else math.nan
