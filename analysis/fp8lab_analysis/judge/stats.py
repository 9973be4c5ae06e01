"""Pure functions from arrays to the numbers of a report. They define every statistic over runs.

Losses are in nats per unmasked token, gaps are run minus baseline (positive: the run is worse), and
every function accepts NaN and infinities, which mean that training broke. Conventions:

- A deviation is the sample standard deviation (n - 1): seeds are a sample, and the population
  formula would make the band of two seeds narrower by a factor of 1.41.
- Smoothing has a half-life of 2 % of the curve, so that runs of 200 and of 20000 steps are smoothed
  equally. It is corrected for its start, since a fixed weight would retain the first loss.
- A curve is a pair of arrays: ascending steps, and values. Two curves are compared on their common
  steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import integrate, signal

Array = npt.NDArray[np.float64]
Curve = tuple[Array, Array]  # steps, values

FINAL_FRACTION = 0.1  # fraction of a stage's rows in a "final" average
FINAL_ROWS = 10  # minimum number of rows in a "final" average
DIVERGENCE_MARGIN = 0.5  # nats/token above the best of the first third; larger for noisy curves
LARGEST_DIVERGENCE_MARGIN = 4.0  # nats/token, largest margin for noisy curves
DIVERGENCE_ROWS = 12  # a curve with fewer finite losses is too short to measure its noise
SHORT_DIVERGENCE_MARGIN = (
    10.0  # nats/token, for such a curve: more than the difference between texts
)
SPIKE_SIGMAS = 5.0
SPIKE_WINDOW = 100
BAND_SIGMAS = 2.0  # half width of the seed band in sample standard deviations


def half_life_for(rows: int) -> float:
    """Returns the smoothing half-life in rows of a curve of `rows` rows: 2 % of it, at least 1."""
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


def smoothed(values: Array) -> Array:
    """`ema` with the half-life of `half_life_for`."""
    data = np.asarray(values, dtype=np.float64)
    return ema(data, half_life_for(data.size))


def geometric_smoothed(values: Array) -> Array:
    """`smoothed` in log space; NaN for values that are not positive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.where(np.asarray(values) > 0.0, values, np.nan))
    return np.asarray(np.exp(smoothed(logs)), dtype=np.float64)


def sample_sd(values: Array) -> Array:
    """Sample standard deviation (n - 1) over the first axis; NaN for fewer than two."""
    data = np.asarray(values, dtype=np.float64)
    if data.shape[0] < 2:
        return np.full(data.shape[1:], np.nan)
    return np.asarray(np.std(data, axis=0, ddof=1), dtype=np.float64)


def tail(values: Array, fraction: float = FINAL_FRACTION) -> Array:
    """Returns the last `fraction` of the rows, at least ten (or all of a shorter array)."""
    data = np.asarray(values, dtype=np.float64)
    count = min(data.size, max(FINAL_ROWS, round(data.size * fraction)))
    return data[data.size - count :]


def final_mean(values: Array, fraction: float = FINAL_FRACTION) -> float:
    """Mean of the tail; NaN if the array is empty or the tail has a non-finite value."""
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
    return float(sample_sd(means)) / math.sqrt(batches)


@dataclass(frozen=True)
class GapCurve:
    """Loss gap on the common steps of run and baseline."""

    steps: Array
    raw: Array
    smooth: Array
    spread: Array  # root of the smoothed square of `raw - smooth`: noise visible in one seed


def paired_gap(steps: Array, loss: Array, baseline_steps: Array, baseline_loss: Array) -> GapCurve:
    """Returns the gap of one run to its paired baseline (same seed, data order, architecture)."""
    common, ours, theirs = np.intersect1d(
        np.asarray(steps), np.asarray(baseline_steps), return_indices=True
    )
    with np.errstate(invalid="ignore"):
        raw = np.asarray(loss, dtype=np.float64)[ours] - np.asarray(baseline_loss)[theirs]
        smooth = smoothed(raw)
        spread = np.sqrt(smoothed((raw - smooth) ** 2))
    return GapCurve(common.astype(np.float64), raw, smooth, spread)


def gap_area(steps: Array, gap: Array) -> float:
    """Signed area under the unsmoothed gap in nats x steps (trapezoids); NaN if any gap is not
    finite."""
    if steps.size < 2:
        return math.nan
    return float(integrate.trapezoid(gap, steps))


def largest_gap(steps: Array, smooth: Array) -> tuple[float, int | None]:
    """Returns the signed smoothed gap of largest magnitude, and its step. It shows a gap from which
    a run recovered. Excludes the first two half-lives, in which the average covers few rows. NaN
    and None if no row remains or one is not finite."""
    first = math.ceil(2.0 * half_life_for(smooth.size))
    rest = smooth[first:]
    if rest.size == 0 or not bool(np.all(np.isfinite(rest))):
        return math.nan, None
    row = int(np.argmax(np.abs(rest)))
    return float(rest[row]), int(steps[first + row])


@dataclass(frozen=True)
class SeedCurve:
    """Curves of several seeds on their common steps."""

    steps: Array
    mean: Array
    sd: Array  # sample standard deviation, NaN for one seed


def over_seeds(curves: Sequence[Curve]) -> SeedCurve:
    """Returns mean and deviation over seeds for each step; NaN if a seed is not finite."""
    common = curves[0][0]
    for steps, _ in curves[1:]:
        common = np.intersect1d(common, steps)
    values = np.stack([curve[np.isin(steps, common)] for steps, curve in curves])
    with np.errstate(invalid="ignore"):
        return SeedCurve(np.asarray(common, np.float64), values.mean(axis=0), sample_sd(values))


@dataclass(frozen=True)
class SeedFloor:
    """The baseline's own noise: its mean smoothed loss, and the half width of the seed band."""

    steps: Array
    mean: Array
    half_width: Array

    def at(self, steps: Array) -> Array:
        """Returns the half width at each of `steps`; NaN at a step that the baselines lack."""
        place = np.searchsorted(self.steps, steps).clip(0, max(0, self.steps.size - 1))
        if self.steps.size == 0:
            return np.full(np.shape(steps), np.nan)
        return np.where(self.steps[place] == steps, self.half_width[place], np.nan)


def seed_floor(curves: Sequence[Curve]) -> SeedFloor | None:
    """Returns the baseline's seed band. Its half width per step is BAND_SIGMAS deviations of the
    smoothed losses over seeds, itself smoothed. None for fewer than two seeds."""
    if len(curves) < 2:
        return None
    seeds = over_seeds([(steps, smoothed(loss)) for steps, loss in curves])
    with np.errstate(invalid="ignore"):
        width = BAND_SIGMAS * np.sqrt(smoothed(seeds.sd**2))
    return SeedFloor(seeds.steps, seeds.mean, np.asarray(width, dtype=np.float64))


def first_departure(steps: Array, gap: Array, floor: Array, hold: int = 0) -> int | None:
    """Returns the first step from which |gap| exceeds `floor` for `hold` consecutive rows (default:
    5 % of the rows, at least five). A non-finite gap counts as exceeding. None if there is none."""
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
    """Returns the rows at which spikes start: loss above EMA + sigmas * deviation, both over the
    `window` rows before. Neighbouring rows above this limit are one spike, since one bad optimizer
    step affects several losses."""
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
        above = bool(data[row] > reference + sigmas * float(sample_sd(past)))
        if above and not above_before:
            starts.append(row)
        above_before = above
    return starts


@dataclass(frozen=True)
class Limit:
    """Limit of a curve's final loss, by "When a run has diverged" in src/train/README.md."""

    smooth: Array  # exponential average with a half-life of 4 % of the rows, at least 3
    best: float  # minimum of `smooth` in the first third, without the first half-life
    margin: float  # `margin`, or more for noisy rows, up to LARGEST_DIVERGENCE_MARGIN


def divergence_limit(loss: Array, margin: float = DIVERGENCE_MARGIN) -> Limit:
    """Returns the limit of a curve. Precondition: all losses are finite, and there is at least one.
    The noise of the smoothed loss is estimated from differences of neighbouring rows in the first
    third. The limit allows six times this noise, and more if there are few differences. A curve too
    short for that has SHORT_DIVERGENCE_MARGIN."""
    data = np.asarray(loss, dtype=np.float64)
    third = max(1, data.size // 3)
    half_life = max(3.0, data.size / 25.0)
    smooth = ema(data, half_life)
    if data.size < DIVERGENCE_ROWS:
        return Limit(smooth, float(np.min(smooth[:third])), max(margin, SHORT_DIVERGENCE_MARGIN))
    settled = min(math.ceil(half_life), third - 1)
    keep = 0.5 ** (1.0 / half_life)
    differences = np.diff(data[:third])
    row_noise = math.sqrt(float(np.mean(differences**2)) / 2.0)
    noise = row_noise * math.sqrt((1.0 - keep) / (1.0 + keep))
    sigmas = 6.0 * (1.0 + 8.0 / differences.size)
    allowed = min(sigmas * noise, LARGEST_DIVERGENCE_MARGIN)
    limit = Limit(smooth, float(np.min(smooth[settled:third])), max(margin, allowed))
    # In the first rows a single low loss can determine the minimum: allow the largest margin.
    early = Limit(smooth, float(np.min(smooth[:settled])), max(margin, LARGEST_DIVERGENCE_MARGIN))
    return min(limit, early, key=lambda one: one.best + one.margin)


def has_diverged(loss: Array, margin: float = DIVERGENCE_MARGIN) -> bool:
    """Returns True for a non-finite loss, or if the final smoothed loss exceeds its
    `divergence_limit`."""
    return divergence_row(loss, margin) is not None


def divergence_row(loss: Array, margin: float = DIVERGENCE_MARGIN) -> int | None:
    """Returns the row at which a curve that `has_diverged` starts to diverge: the first non-finite
    row, else the row after the last smoothed loss within its limit. None if it has not diverged."""
    data = np.asarray(loss, dtype=np.float64)
    broken = np.flatnonzero(~np.isfinite(data))
    if broken.size:
        return int(broken[0])
    if data.size == 0:
        return None
    limit = divergence_limit(data, margin)
    if not limit.smooth[-1] > limit.best + limit.margin:
        return None
    return int(np.flatnonzero(limit.smooth <= limit.best + limit.margin)[-1]) + 1


def first_row_beyond(loss: Array, margin: float = DIVERGENCE_MARGIN) -> int:
    """Returns the first row at which the smoothed loss exceeds its limit, even if it returns below.
    Precondition: the curve `has_diverged` with finite losses."""
    limit = divergence_limit(loss, margin)
    return int(np.flatnonzero(limit.smooth > limit.best + limit.margin)[0])


def median_rate(counts: Array, seconds: Array) -> float:
    """Returns the median rate per second between neighbouring rows; NaN for fewer than two rows.
    The median ignores occasional work between steps, such as an evaluation."""
    counted, elapsed = np.diff(np.asarray(counts)), np.diff(np.asarray(seconds))
    usable = np.isfinite(elapsed) & (elapsed > 0.0)
    return float(np.median(counted[usable] / elapsed[usable])) if usable.any() else math.nan


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
    """Returns mean and standard deviation over seeds. Both are NaN if a seed broke: an average of
    the surviving seeds would flatter the recipe."""
    data = np.asarray(list(values), dtype=np.float64)
    if data.size == 0 or not bool(np.all(np.isfinite(data))):
        return Spread(math.nan, math.nan, int(data.size))
    return Spread(float(np.mean(data)), float(sample_sd(data)), int(data.size))


def error_of_mean(errors: Sequence[float]) -> float:
    """Standard error of the mean of independent estimates with these standard errors; NaN if one is
    unknown."""
    data = np.asarray(list(errors), dtype=np.float64)
    return float(np.sqrt(np.sum(data**2)) / data.size) if data.size else math.nan


def first_reach(steps: Array, values: Array, target: float) -> float | None:
    """Returns the step at which a falling curve first reaches `target`, linearly interpolated; the
    first step if the curve starts there. None if it never reaches the target."""
    reached = np.flatnonzero(np.asarray(values) <= target)
    if reached.size == 0:
        return None
    row = int(reached[0])
    if row == 0 or not math.isfinite(values[row - 1]):
        return float(steps[row])
    share = (values[row - 1] - target) / (values[row - 1] - values[row])
    return float(steps[row - 1] + share * (steps[row] - steps[row - 1]))


def ratio_curve(ours: Curve, theirs: Curve) -> Curve:
    """Returns ours / theirs on their common steps; NaN if either is not finite or `theirs` is not
    positive."""
    common, a, b = np.intersect1d(ours[0], theirs[0], return_indices=True)
    value, reference = np.asarray(ours[1])[a], np.asarray(theirs[1])[b]
    usable = np.isfinite(value) & np.isfinite(reference) & (reference > 0.0)
    ratio = np.full(common.shape, np.nan)
    np.divide(value, reference, out=ratio, where=usable)
    return common.astype(np.float64), ratio


def median_ratio(ours: Curve, theirs: Curve) -> float:
    """Median of the finite values of `ratio_curve`; NaN if there are none. A mean could be
    dominated by one step with a gradient a thousand times larger."""
    ratio = ratio_curve(ours, theirs)[1]
    ratio = ratio[np.isfinite(ratio)]
    return float(np.median(ratio)) if ratio.size else math.nan


def aligned_mean(exponents: Array, fractions: Array, shifts: Array) -> Curve:
    """Returns the mean of histograms over exponents, each moved down by its own shift, rounded to
    whole bins: the value of a row of `fractions` at exponent e counts at e - shift. Excludes rows
    with non-finite fractions or shifts. Bins outside a row's range count as zero."""
    rows = np.flatnonzero(np.isfinite(shifts) & np.isfinite(fractions).all(axis=1))
    if rows.size == 0:
        return np.zeros(0), np.zeros(0)
    moves = np.round(shifts[rows]).astype(int)
    first = int(exponents[0]) - int(moves.max())
    offsets = np.arange(first, int(exponents[-1]) - int(moves.min()) + 1)
    total = np.zeros(offsets.size)
    for row, move in zip(rows, moves):
        start = int(exponents[0]) - int(move) - first
        total[start : start + exponents.size] += fractions[row]
    return offsets.astype(np.float64), total / rows.size


def jaccard(ours: Array, theirs: Array) -> float:
    """Returns the Jaccard index of two lists of identities: the number in both divided by the
    number in either. Ignores entries that are negative or not finite; NaN if a list has no
    others."""
    one = {int(item) for item in ours if math.isfinite(item) and item >= 0}
    other = {int(item) for item in theirs if math.isfinite(item) and item >= 0}
    return len(one & other) / len(one | other) if one and other else math.nan


def jaccard_rows(ours: Array, theirs: Array) -> Array:
    """Returns `jaccard` of the corresponding rows of two tables."""
    return np.array([jaccard(a, b) for a, b in zip(ours, theirs)], dtype=np.float64)


def pareto_front(costs: Array, errors: Array) -> list[int]:
    """Returns the points that no other point beats, by ascending cost. A point beats another if
    neither its cost nor its error is higher and one of them is lower. Excludes non-finite
    points."""
    finite = [i for i in range(len(costs)) if math.isfinite(costs[i]) and math.isfinite(errors[i])]

    def beaten(mine: int) -> bool:
        return any(
            costs[other] <= costs[mine]
            and errors[other] <= errors[mine]
            and (costs[other] < costs[mine] or errors[other] < errors[mine])
            for other in finite
        )

    front = [i for i in finite if not beaten(i)]
    return sorted(front, key=lambda i: (float(costs[i]), float(errors[i])))


def finite_column_means(values: Array) -> Array:
    """Mean of the finite entries over the first axis; NaN for a column without any."""
    data = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(data)
    count = finite.sum(axis=0)
    mean = np.full(data.shape[1:], np.nan)
    np.divide(np.where(finite, data, 0.0).sum(axis=0), count, out=mean, where=count > 0)
    return mean


def finite_median(values: npt.ArrayLike) -> float:
    """Median of the finite entries; NaN if there are none."""
    data = np.ravel(np.asarray(values, dtype=np.float64))
    known = data[np.isfinite(data)]
    return float(np.median(known)) if known.size else math.nan


def finite_mean(values: npt.ArrayLike) -> float:
    """Mean of the finite entries; NaN if there are none."""
    return float(finite_column_means(np.ravel(np.asarray(values, dtype=np.float64))))
