"""Pure functions from arrays to the numbers of a report: the one definition of every statistic
over runs.

Losses are nats per unmasked token, gaps are run minus baseline (positive: the run is worse), and
every function accepts NaN and infinities, which mean that training broke there. Throughout:

- A deviation is the sample standard deviation (n - 1): seeds are a sample, and the formula of a
  population makes the band of two seeds narrower by a factor of 1.41.
- Smoothing has a half-life of 2 % of the curve, so that runs of 200 and of 20000 steps are smoothed
  alike, and is corrected for its start: a fixed weight would hold on to the first loss.
- A curve is a pair of arrays, ascending steps and values; two curves are compared on the steps that
  both have.
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

FINAL_FRACTION = 0.1  # of the rows of a stage: what "final" averages over,
FINAL_ROWS = 10  # but at least so many
DIVERGENCE_MARGIN = 0.5  # nats above the best of the first third, where the noise allows that
LARGEST_DIVERGENCE_MARGIN = 4.0  # what noise explains of a loss in nats/token at most
DIVERGENCE_ROWS = 12  # of finite losses, below which a curve is too short to measure its noise
SHORT_DIVERGENCE_MARGIN = (
    10.0  # nats/token, of such a curve: more than one text differs from another
)
SPIKE_SIGMAS = 5.0
SPIKE_WINDOW = 100
BAND_SIGMAS = 2.0  # half width of the seed band in sample standard deviations


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


def smoothed(values: Array) -> Array:
    """`ema` with the half-life that suits the length of the curve."""
    data = np.asarray(values, dtype=np.float64)
    return ema(data, half_life_for(data.size))


def geometric_smoothed(values: Array) -> Array:
    """`smoothed` on a log axis; NaN where a value is not positive."""
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
    return float(sample_sd(means)) / math.sqrt(batches)


@dataclass(frozen=True)
class GapCurve:
    """Loss gap on the steps that run and baseline share."""

    steps: Array
    raw: Array
    smooth: Array
    spread: Array  # root of the smoothed square of `raw - smooth`: what one seed shows of its noise


def paired_gap(steps: Array, loss: Array, baseline_steps: Array, baseline_loss: Array) -> GapCurve:
    """Gap of one run to its paired baseline (same seed, data order and architecture)."""
    common, ours, theirs = np.intersect1d(
        np.asarray(steps), np.asarray(baseline_steps), return_indices=True
    )
    with np.errstate(invalid="ignore"):
        raw = np.asarray(loss, dtype=np.float64)[ours] - np.asarray(baseline_loss)[theirs]
        smooth = smoothed(raw)
        spread = np.sqrt(smoothed((raw - smooth) ** 2))
    return GapCurve(common.astype(np.float64), raw, smooth, spread)


def gap_area(steps: Array, gap: Array) -> float:
    """Signed area under the unsmoothed gap in nats x steps (trapezoids); NaN once the gap is not
    finite."""
    if steps.size < 2:
        return math.nan
    return float(integrate.trapezoid(gap, steps))


def largest_gap(steps: Array, smooth: Array) -> tuple[float, int | None]:
    """The smoothed gap of largest magnitude, with its sign, and its step: what a run that recovered
    went through. The first two half-lives are left out, in which the average is over few rows. NaN
    and None when no row is left, or one is not finite."""
    first = math.ceil(2.0 * half_life_for(smooth.size))
    rest = smooth[first:]
    if rest.size == 0 or not bool(np.all(np.isfinite(rest))):
        return math.nan, None
    row = int(np.argmax(np.abs(rest)))
    return float(rest[row]), int(steps[first + row])


@dataclass(frozen=True)
class SeedCurve:
    """Curves of several seeds on the steps that all of them have."""

    steps: Array
    mean: Array
    sd: Array  # sample standard deviation, NaN for one seed


def over_seeds(curves: Sequence[Curve]) -> SeedCurve:
    """Mean and deviation over seeds, step by step; NaN where a seed is not finite."""
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
        """The half width at each of `steps`; NaN at a step that the baselines do not have."""
        place = np.searchsorted(self.steps, steps).clip(0, max(0, self.steps.size - 1))
        if self.steps.size == 0:
            return np.full(np.shape(steps), np.nan)
        return np.where(self.steps[place] == steps, self.half_width[place], np.nan)


def seed_floor(curves: Sequence[Curve]) -> SeedFloor | None:
    """Half width per step of the baseline's seed band: BAND_SIGMAS deviations of the smoothed
    losses over seeds, itself smoothed. None with fewer than two seeds."""
    if len(curves) < 2:
        return None
    seeds = over_seeds([(steps, smoothed(loss)) for steps, loss in curves])
    with np.errstate(invalid="ignore"):
        width = BAND_SIGMAS * np.sqrt(smoothed(seeds.sd**2))
    return SeedFloor(seeds.steps, seeds.mean, np.asarray(width, dtype=np.float64))


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
    """Rows where a spike starts: loss above EMA + sigmas * deviation, both over the `window` rows
    before it. Neighbouring rows above are one spike, for one bad step of the
    optimizer shows in several losses."""
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
    """How far up a curve of losses may end, by "When a run has diverged" of src/train/README.md."""

    smooth: Array  # an exponential average, of a half-life of 4 % of the rows, at least 3
    best: float  # its minimum in the first third, less the half-life in which it is of few rows
    margin: float  # `margin`, or more where the rows are noisy, up to LARGEST_DIVERGENCE_MARGIN


def divergence_limit(loss: Array, margin: float = DIVERGENCE_MARGIN) -> Limit:
    """Of a curve of at least one loss, all finite. The noise of a smoothed loss is that of the
    differences between neighbouring rows of the first third; six times that, and more where there
    are few differences, is no divergence. A curve too short for that ends beyond any text's loss.
    """
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
    # The first rows, of which a lucky one counts for much, where no luck goes so far.
    early = Limit(smooth, float(np.min(smooth[:settled])), max(margin, LARGEST_DIVERGENCE_MARGIN))
    return min(limit, early, key=lambda one: one.best + one.margin)


def has_diverged(loss: Array, margin: float = DIVERGENCE_MARGIN) -> bool:
    """True for a non-finite loss, or when the smoothed loss ends beyond its `divergence_limit`."""
    return divergence_row(loss, margin) is not None


def divergence_row(loss: Array, margin: float = DIVERGENCE_MARGIN) -> int | None:
    """Row where a curve that `has_diverged` starts to: the first that is not finite, else the one
    after the last at which the smoothed loss was within its limit. None for a curve that has not.
    """
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
    """The first row of a curve that `has_diverged` with finite losses at which the smoothed loss
    is beyond its limit, whether or not it comes back."""
    limit = divergence_limit(loss, margin)
    return int(np.flatnonzero(limit.smooth > limit.best + limit.margin)[0])


def median_rate(counts: Array, seconds: Array) -> float:
    """Median over neighbouring rows of what was counted in a second between them; NaN without two
    rows. A median, because what is now and then done between steps, such as an evaluation, is
    counted to no step."""
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
    """Mean and standard deviation over seeds. A seed that broke makes both NaN: an average of the
    surviving seeds would flatter the recipe."""
    data = np.asarray(list(values), dtype=np.float64)
    if data.size == 0 or not bool(np.all(np.isfinite(data))):
        return Spread(math.nan, math.nan, int(data.size))
    return Spread(float(np.mean(data)), float(sample_sd(data)), int(data.size))


def error_of_mean(errors: Sequence[float]) -> float:
    """Standard error of the mean of independent estimates with these standard errors; NaN where one
    is unknown."""
    data = np.asarray(list(errors), dtype=np.float64)
    return float(np.sqrt(np.sum(data**2)) / data.size) if data.size else math.nan


def first_reach(steps: Array, values: Array, target: float) -> float | None:
    """The step at which a falling curve first reaches `target`, on the line between the points
    before and at it; the first step of a curve that starts there. None when it never does."""
    reached = np.flatnonzero(np.asarray(values) <= target)
    if reached.size == 0:
        return None
    row = int(reached[0])
    if row == 0 or not math.isfinite(values[row - 1]):
        return float(steps[row])
    share = (values[row - 1] - target) / (values[row - 1] - values[row])
    return float(steps[row - 1] + share * (steps[row] - steps[row - 1]))


def ratio_curve(ours: Curve, theirs: Curve) -> Curve:
    """ours / theirs on the steps that both have; NaN where either is not finite or the reference is
    not positive."""
    common, a, b = np.intersect1d(ours[0], theirs[0], return_indices=True)
    value, reference = np.asarray(ours[1])[a], np.asarray(theirs[1])[b]
    usable = np.isfinite(value) & np.isfinite(reference) & (reference > 0.0)
    ratio = np.full(common.shape, np.nan)
    np.divide(value, reference, out=ratio, where=usable)
    return common.astype(np.float64), ratio


def median_ratio(ours: Curve, theirs: Curve) -> float:
    """Median of `ratio_curve` where it is known, NaN where it never is. A median, because one step
    with a gradient a thousand times larger would decide a mean."""
    ratio = ratio_curve(ours, theirs)[1]
    ratio = ratio[np.isfinite(ratio)]
    return float(np.median(ratio)) if ratio.size else math.nan


def aligned_mean(exponents: Array, fractions: Array, shifts: Array) -> Curve:
    """Mean of histograms over exponents, each moved down by its own shift, rounded to whole bins:
    a row of `fractions` is over `exponents`, and what it has at e counts at e - shift. Rows that
    are not finite, and shifts, are left out; a bin that a row does not reach is zero there."""
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
    """What two lists of identities share: how many are in both over how many are in either. Entries
    below zero, or not finite, are none; NaN where a list has none at all."""
    one = {int(item) for item in ours if math.isfinite(item) and item >= 0}
    other = {int(item) for item in theirs if math.isfinite(item) and item >= 0}
    return len(one & other) / len(one | other) if one and other else math.nan


def jaccard_rows(ours: Array, theirs: Array) -> Array:
    """`jaccard` of every row of two tables with itself."""
    return np.array([jaccard(a, b) for a, b in zip(ours, theirs)], dtype=np.float64)


def pareto_front(costs: Array, errors: Array) -> list[int]:
    """Which points no other one beats: none has a cost and an error that are both as low, and one
    of them lower. By cost; points that are not finite are never in it."""
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
    """Mean over the first axis of the finite entries, NaN for a column without any."""
    data = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(data)
    count = finite.sum(axis=0)
    mean = np.full(data.shape[1:], np.nan)
    np.divide(np.where(finite, data, 0.0).sum(axis=0), count, out=mean, where=count > 0)
    return mean


def finite_median(values: npt.ArrayLike) -> float:
    """Median of the finite entries, NaN when there is none."""
    data = np.ravel(np.asarray(values, dtype=np.float64))
    known = data[np.isfinite(data)]
    return float(np.median(known)) if known.size else math.nan


def finite_mean(values: npt.ArrayLike) -> float:
    """Mean of the finite entries, NaN when there is none."""
    return float(finite_column_means(np.ravel(np.asarray(values, dtype=np.float64))))
