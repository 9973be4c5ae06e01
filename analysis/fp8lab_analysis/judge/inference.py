"""The statistics of a verdict: pure functions from relative gaps to tests, intervals and sample
sizes.

A gap here is relative and paired: (run - twin) / twin, where run and twin are losses of one seed
and the twin is the baseline run of that seed. It is a fraction: 0.01 for a loss 1 % above the
baseline's. `sd` is its standard deviation over `count` seeds with `df` degrees of freedom: the
moderated one of pooling.py, or without `df` the sample's own with n - 1. Since each pair is divided
by its own baseline loss, a margin of 0.5 % is exact; it needs no estimate of the baseline's loss.
Gaps of different seeds are assumed independent and normal; `sign_flip_p` assumes only symmetry.

p-values, levels and sample sizes are computed from numbers. `one_sided_p`, `equivalence_p`,
`difference_p` and `reject` also accept arrays over many experiments, so that simulations use the
same functions as reports."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from fp8lab_analysis.judge.stats import Array

SIGN_FLIP_SEEDS = (6, 24)  # fewer: no p-value reaches 5 %; more: too many signs to enumerate
MOST_SEEDS = 10_000  # largest sample that is searched for
NODES: tuple[Array, Array] = special.roots_legendre(200)  # on [-1, 1], with their weights


def relative_gaps(losses: Sequence[float], twins: Sequence[float]) -> Array:
    """Returns (run - twin) / twin for each seed, a fraction; NaN if either loss is not finite or
    the twin's is not positive. Pairing removes the shared noise from the difference (Box, Hunter
    and Hunter, Statistics for Experimenters, 2nd ed., section 3.2)."""
    ours, theirs = np.asarray(losses, np.float64), np.asarray(twins, np.float64)
    known = np.isfinite(ours) & np.isfinite(theirs) & (theirs > 0.0)
    gaps = np.full(ours.shape, np.nan)
    np.divide(ours - theirs, theirs, out=gaps, where=known)
    return gaps


# --- the paired t test and its consequences -------------------------------------------------------


def _df(df: float | None, count: int) -> float:
    return count - 1 if df is None else df


def half_width(sd: float, count: int, alpha: float, df: float | None = None) -> float:
    """Half width of the two-sided 1 - alpha interval of the mean gap, in the unit of `sd`:
    t(1 - alpha/2; df) sd / sqrt(n). Student's interval of paired differences (Montgomery, Design
    and Analysis of Experiments, 8th ed., section 2.5); with a moderated `sd`, the interval of Smyth
    (pooling.py)."""
    return _t_quantile(alpha / 2.0, _df(df, count)) * sd / math.sqrt(count)


def one_sided_p(
    mean: npt.ArrayLike,
    sd: npt.ArrayLike,
    count: int,
    bound: float,
    df: npt.ArrayLike | None = None,
) -> Array:
    """p-value of "the true gap is `bound` or more", against less: P(T <= (mean - bound) sqrt(n) /
    sd) for Student's T with `df` degrees of freedom. A positive margin as the bound gives the test
    of non-inferiority, 0 the test of superiority (Blackwelder, Controlled Clinical Trials 3 (1982)
    345-353). Gaps with zero spread are decided by their mean."""
    shift = np.asarray(mean, np.float64) - bound
    error = np.asarray(sd, np.float64) / math.sqrt(count)
    exact = np.where(shift < 0.0, -np.inf, np.where(shift > 0.0, np.inf, 0.0))
    ratio = np.divide(shift, error, out=exact, where=error > 0.0)
    freedom = count - 1 if df is None else df
    return np.asarray(stats.t.cdf(ratio, freedom), dtype=np.float64)


def equivalence_p(
    mean: npt.ArrayLike,
    sd: npt.ArrayLike,
    count: int,
    margin: float,
    df: npt.ArrayLike | None = None,
) -> Array:
    """p-value of "the true gap is `margin` or more in either direction": the larger of two
    one-sided p-values. p <= alpha exactly if the 1 - 2 alpha interval is within the margins (TOST;
    Schuirmann, J. Pharmacokinetics and Biopharmaceutics 15 (1987) 657-680)."""
    above = one_sided_p(mean, sd, count, margin, df)
    below = one_sided_p(-np.asarray(mean, np.float64), sd, count, margin, df)
    return np.maximum(above, below)


def difference_p(
    mean: npt.ArrayLike, sd: npt.ArrayLike, count: int, df: npt.ArrayLike | None = None
) -> Array:
    """p-value of "the true gap is zero": the two-sided paired t test (Montgomery, section 2.5)."""
    size = np.abs(np.asarray(mean, np.float64))
    return np.minimum(1.0, 2.0 * one_sided_p(-size, sd, count, 0.0, df))


def sign_flip_p(gaps: Sequence[float]) -> float:
    """Exact two-sided p-value of "the gaps are symmetric around zero": the fraction of all 2^n sign
    choices whose sum is at least as large in magnitude as the observed one (Fisher, The Design of
    Experiments, section 21). Raises ValueError for fewer than 6 seeds, where the smallest p-value,
    2^(1-n), is above 5 %, and for more than 24."""
    data = np.asarray(gaps, dtype=np.float64)
    least, most = SIGN_FLIP_SEEDS
    if not least <= data.size <= most or not bool(np.all(np.isfinite(data))):
        raise ValueError(f"a sign-flip test takes {least} to {most} finite gaps, not {gaps}")
    sums = data[:1]  # opposite choices have equal magnitude: the first sign is fixed
    for gap in data[1:]:
        sums = np.concatenate([sums + gap, sums - gap])
    rounding = 8.0 * np.finfo(np.float64).eps * float(np.sum(np.abs(data)))
    return float(np.mean(np.abs(sums) >= abs(float(np.sum(data))) - rounding))


def jackknife_error(without: Array) -> Array:
    """Standard error of an estimate, from the estimates without each of the n units along the first
    axis, in their unit: sqrt((n - 1) / n sum (e_i - mean)^2) (Tukey, Annals of Mathematical
    Statistics 29 (1958) 614; Efron and Tibshirani, An Introduction to the Bootstrap, section 11.4).
    """
    count = without.shape[0]
    squares = np.sum((without - without.mean(axis=0)) ** 2, axis=0)
    return np.asarray(np.sqrt(squares * (count - 1) / count), dtype=np.float64)


def jackknife_half_width(without: Array, df: int, alpha: float) -> Array:
    """Half width of the two-sided 1 - alpha interval of an estimate, from the estimates without
    each of the n seeds along the first axis, in their unit: t(1 - alpha/2; df) times
    `jackknife_error`. For a mean with df = n - 1, this is Student's interval."""
    return _t_quantile(alpha / 2.0, df) * jackknife_error(without)


def deviation_interval(sd: float, df: float, alpha: float) -> tuple[float, float]:
    """1 - alpha interval of the true deviation, in the unit of `sd`: sd sqrt(df / chi2), with the
    quantiles 1 - alpha/2 and alpha/2 of chi-square (Montgomery, section 2.6)."""
    edges = stats.chi2.ppf([1.0 - alpha / 2.0, alpha / 2.0], df)
    low, high = sd * np.sqrt(df / edges)
    return float(low), float(high)


def deviation_limit(sd: float, df: float, confidence: float) -> float:
    """Upper `confidence` limit of the true deviation, in the unit of `sd`, which has `df` degrees
    of freedom: sd sqrt(df / chi2), with the quantile 1 - confidence of chi-square. A sample planned
    with this limit has its power with that confidence (Browne, Statistics in Medicine 14 (1995)
    1933-1940)."""
    return sd * math.sqrt(df / float(stats.chi2.ppf(1.0 - confidence, df)))


def binomial_interval(successes: int, trials: int, alpha: float) -> tuple[float, float]:
    """Exact 1 - alpha interval of a rate, as fractions, from beta quantiles (Clopper and Pearson,
    Biometrika 26 (1934) 404-413); (NaN, NaN) without trials."""
    if trials == 0:
        return math.nan, math.nan
    failures = trials - successes
    low = stats.beta.ppf(alpha / 2.0, successes, failures + 1) if successes else 0.0
    high = stats.beta.isf(alpha / 2.0, successes + 1, failures) if failures else 1.0
    return float(low), float(high)


# --- power and sample size ------------------------------------------------------------------------
#
# Let s = sd / sigma be the ratio of the observed to the true deviation; s^2 is chi-square / df. For
# given s the mean is normal, so every power is an integral over s. The noncentral t distribution is
# defined in this way; nothing here approximates it by a normal distribution.


@lru_cache(maxsize=4096)
def _t_quantile(level: float, df: float) -> float:
    """What Student's t exceeds with probability `level`."""
    return float(stats.t.isf(level, df))


@lru_cache(maxsize=4096)
def _deviations(df: float) -> tuple[float, float]:
    """The range of s = chi / sqrt(df), but for 1e-15 on either side."""
    low = math.sqrt(stats.chi2.ppf(1e-15, df) / df)
    return low, math.sqrt(stats.chi2.isf(1e-15, df) / df)


@lru_cache(maxsize=4096)
def _nodes(df: float, low: float, high: float) -> tuple[Array, Array]:
    """Values of s from `low` to `high`, and their weights times the density of s."""
    s = low + (high - low) * (NODES[0] + 1.0) / 2.0
    return s, NODES[1] * (2.0 * df * s * stats.chi2.pdf(df * s**2, df))


def _over_deviations(
    probability: Callable[[Array], Array], df: float, largest: float = math.inf
) -> float:
    """Mean of `probability` over s below `largest`, by Gauss-Legendre quadrature; s has the density
    of chi / sqrt(df)."""
    low, high = _deviations(df)
    high = min(high, largest)
    if high <= low:
        return 0.0
    s, weights = _nodes(df, low, high)
    return float(np.sum(weights * probability(s)) * (high - low) / 2.0)


def equivalence_power(
    count: int, gap: float, sd: float, margin: float, alpha: float, df: float | None = None
) -> float:
    """Probability that `equivalence_p` of `count` seeds is at most alpha for a true gap `gap` and
    true deviation `sd`: the mean over s of Phi((m - gap) r - t s) - Phi(t s - (m + gap) r), where
    positive, with r = sqrt(n) / sd and t = t(1 - alpha; df). Owen's Q, exact also for few seeds
    (Phillips, J. Pharmacokinetics and Biopharmaceutics 18 (1990) 137-144)."""
    ratio = math.sqrt(count) / sd
    freedom = _df(df, count)
    t = _t_quantile(alpha, freedom)

    def probability(s: Array) -> Array:
        upper = special.ndtr((margin - gap) * ratio - t * s)
        return np.asarray(upper - special.ndtr(t * s - (margin + gap) * ratio))

    return _over_deviations(probability, freedom, margin * ratio / t)


def detection_power(
    count: int, gap: float, sd: float, alpha: float, df: float | None = None
) -> float:
    """Probability that `difference_p` of `count` seeds is at most alpha for a true gap `gap` and
    true deviation `sd`: both tails of the noncentral t with `df` degrees of freedom and
    noncentrality gap sqrt(n) / sd (Johnson, Kotz and Balakrishnan, Continuous Univariate
    Distributions 2, chapter 31)."""
    shift = gap * math.sqrt(count) / sd
    freedom = _df(df, count)
    t = _t_quantile(alpha / 2.0, freedom)
    return _over_deviations(
        lambda s: np.asarray(special.ndtr(shift - t * s) + special.ndtr(-shift - t * s)),
        freedom,
    )


def _where_reached(power_at: Callable[[float], float], power: float) -> float:
    """Returns the positive argument at which an increasing function reaches `power`."""
    high = 1.0
    while power_at(high) < power:
        high *= 2.0
    return float(optimize.brentq(lambda x: power_at(x) - power, 0.0, high, xtol=1e-12))


def detectable_gap(
    count: int, sd: float, alpha: float, power: float, df: float | None = None
) -> float:
    """Minimum detectable gap, a fraction: the true gap that `count` seeds distinguish from zero
    with probability `power`, from `detection_power` (Bloom, Evaluation Review 19 (1995) 547-556,
    with the noncentral t instead of his multiplier)."""
    return sd * _where_reached(lambda x: detection_power(count, x, 1.0, alpha, df), power)


def provable_margin(
    count: int, sd: float, alpha: float, power: float, df: float | None = None
) -> float:
    """The smallest margin, a fraction, at which `count` seeds show arms without a true gap to be
    equivalent with probability `power`: `equivalence_power` solved for the margin."""
    return sd * _where_reached(
        lambda x: equivalence_power(count, 0.0, 1.0, x, alpha, df) if x > 0.0 else 0.0, power
    )


def _fewest(power_of: Callable[[int], float], power: float) -> int | None:
    """Returns the smallest sample size, at least two, that has the power; None above MOST_SEEDS."""
    if power_of(MOST_SEEDS) < power:
        return None
    low, high = 1, 2
    while power_of(high) < power:
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= power else (middle, high)
    return high


DegreesOf = Callable[[int], float]  # from the number of seeds to its deviation's degrees of freedom


def _of_itself(count: int) -> float:
    """Degrees of freedom of a sample's own deviation."""
    return count - 1


def seeds_for_margin(
    margin: float, sd: float, alpha: float, power: float, df_of: DegreesOf = _of_itself
) -> int | None:
    """Number of seeds that show arms without a true gap to be equivalent within `margin` with
    probability `power`, by `equivalence_power`; None for more than 10000 (Julious, Statistics in
    Medicine 23 (2004) 1921-1986, with the exact power)."""
    if sd == 0.0:
        return 2
    return _fewest(lambda n: equivalence_power(n, 0.0, sd, margin, alpha, df_of(n)), power)


def seeds_for_gap(
    gap: float, sd: float, alpha: float, power: float, df_of: DegreesOf = _of_itself
) -> int | None:
    """Number of seeds that distinguish a true gap of `gap` from zero with probability `power`, by
    `detection_power`; None for more than 10000."""
    if sd == 0.0:
        return 2
    return _fewest(lambda n: detection_power(n, gap, sd, alpha, df_of(n)), power)


# --- many arms, several looks ---------------------------------------------------------------------


def look_level(alpha: float, looks: int) -> float:
    """The level of each of `looks` looks at a growing sample: alpha / looks (Bonferroni). The
    probability of a false rejection at any look is then at most alpha. The level is constant, so
    that a verdict need not know the number of its look. It is valid for t tests with any numbers of
    seeds. Pocock's boundary (Biometrika 64 (1977) 191-199) assumes normal statistics; with it, four
    looks after two seeds each have 1.15 alpha."""
    return alpha / looks


def step_levels(alpha: float, arms: int, looks: int) -> Array:
    """The levels for the ascending p-values of `arms` arms: alpha / arms, alpha / (arms - 1), ...,
    alpha (Holm, Scandinavian J. Statistics 6 (1979) 65-70), each divided among the looks
    (`look_level`; Maurer and Bretz, Statistics in Biopharmaceutical Research 5 (2013) 311-320).
    Holm's procedure is valid for any dependence between arms, which share their twins; Hochberg's
    and Dunnett's assume a particular one."""
    return np.array([look_level(alpha / left, looks) for left in range(arms, 0, -1)])


def reject(p_values: npt.ArrayLike, levels: Array) -> npt.NDArray[np.bool_]:
    """Returns for each hypothesis whether it is rejected: along the last axis, in ascending order
    of p-values, up to the first p-value above its level (`step_levels`)."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, axis=-1, kind="stable")
    passed = np.logical_and.accumulate(np.take_along_axis(p, order, axis=-1) <= levels, axis=-1)
    rejected = np.empty(p.shape, dtype=np.bool_)
    np.put_along_axis(rejected, order, passed, axis=-1)
    return rejected


def decided_at(p_values: npt.ArrayLike, levels: Array) -> Array:
    """The level at which `reject` decides each hypothesis: its own level if rejected, else the
    level at which the procedure stops. An interval of that level agrees with the decision."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, axis=-1, kind="stable")
    ranks = np.argsort(order, axis=-1, kind="stable")
    stopped = np.sum(reject(p, levels), axis=-1, keepdims=True)
    return np.asarray(levels[np.minimum(np.minimum(ranks, stopped), levels.size - 1)])
