"""The variance of arms in one layout, arms x seeds: moderated, after a test that they agree.

A gap of an arm is its run minus the baseline run of its seed, so that all arms of a layout share
the noise of the baseline. Where every run scatters alike, two arms' gaps correlate by 1/2
(`SHARED`). That correlation is kept: it leaves every mean as it is and takes degrees of freedom
from the pool.

1. **Pooled variance.** The mean of the arms' own variances, weighted by their degrees of freedom.
   `pool_df` are the degrees of freedom of Student's t that has, at 95 %, the very interval of a
   mean studentized by it: two components, between seeds and arms x seeds, make its distribution.
   Satterthwaite's (Biometrics Bulletin 2 (1946) 110-114) come out too few where a component has
   one degree of freedom.
2. **Homogeneity.** An arm whose own variance is too large beside the pooled one of the others, by
   an F test at 5 % over all arms (Cochran's C test, Annals of Eugenics 11 (1941) 47-52, in the form
   for unequal numbers of seeds: 't Lam, Analytica Chimica Acta 659 (2010) 68-84), keeps its own
   and is in no pool. Levene's test says nothing here: two seeds lie equally far from their mean.
   Where the mean squares between seeds and arms x seeds tell at 5 % that the baseline scatters
   more than arms do, by an F test, every arm keeps its own.
3. **Moderation.** The others get (d0 s0^2 + d s^2) / (d0 + d): s^2 and d = n - 1 are their own,
   s0^2 the pooled variance, d0 the prior degrees of freedom from the spread of the arms' log
   variances (Smyth, Statistical Applications in Genetics and Molecular Biology 3 (2004) article 3:
   the moderated t of limma). It has min(d0 + d, `pool_df`) degrees of freedom.

Few arms and seeds tell d0 badly, and often not from infinity. So it is at most half of one for
each other arm, and at most 5: a prior of 5 is that of arms whose deviations lie within a factor of
2.4 of each other, eight times of ten. How often intervals then hold, and where they do not, is
simulated by coverage.py.

Arms without any spread, or that of rounding, are no estimate of noise: they stay alone. Functions
take arrays over many experiments at once."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from fp8lab_analysis.stats import Array

SHARED = 0.5  # correlation of the gaps of two arms to one baseline, all runs scattering alike
HOMOGENEITY = 0.05  # level of each of the two tests
PRIOR_OF_AN_ARM = 0.5  # prior degrees of freedom that every other arm may add
MOST_PRIOR = 5.0
MATCHED = 0.05  # two-sided level at which `pool_df` is exact
NO_SPREAD = 1e-18  # of the largest variance: rounding of losses, no noise
ANGLES, WEIGHTS = (np.asarray(part) for part in special.roots_legendre(128))  # on [-1, 1]

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Pooled:
    """The variance behind the mean gap of each arm, over experiments (..., arms)."""

    variance: Array  # of one gap, in its unit squared
    df: Array  # degrees of freedom of `variance`
    borrows: Flags  # False: the arm's own
    arms: npt.NDArray[np.int_]  # (...,) arms in the pool
    prior_df: Array  # (...,) d0 of the pool
    arm_p: Array  # of the F test of each arm, for one arm alone; NaN: not tested
    baseline_p: Array  # (...,) of the F test of the baseline; NaN: not tested


def most_prior_df(arms: npt.ArrayLike) -> Array:
    """The largest prior degrees of freedom that a pool of so many arms is given."""
    return np.minimum(PRIOR_OF_AN_ARM * (np.asarray(arms, np.float64) - 1.0), MOST_PRIOR)


@functools.lru_cache(maxsize=4096)
def pool_df(arms: int, df: float) -> float:
    """Degrees of freedom of the variance pooled over `arms` arms of `df` each whose gaps correlate
    by `SHARED`. The pooled variance is the true one times (1 + (A - 1) r) / A chi2(df) / df + (1 -
    r) / A chi2((A - 1) df) / df. With Craig's form of the normal tail (IEEE MILCOM (1991) 571-575)
    the tail of a mean studentized by it is one integral of the moment generating functions; the
    result is that of the t distribution with the same 95 % interval. One arm has `df`."""
    if arms < 2:
        return df
    scales = ((1.0 + (arms - 1) * SHARED) / (arms * df), (1.0 - SHARED) / (arms * df))
    powers = (df, (arms - 1) * df)
    sines = np.sin((ANGLES + 1.0) * math.pi / 4.0) ** 2

    def tail(edge: float) -> float:
        logs = sum(
            -power / 2.0 * np.log1p(scale * edge**2 / sines)
            for scale, power in zip(scales, powers)
        )
        return float(np.sum(WEIGHTS * np.exp(logs))) / 2.0

    edge = optimize.brentq(lambda x: tail(x) - MATCHED, 1.0, 1e4)
    return float(
        optimize.brentq(lambda n: 2.0 * stats.t.sf(edge, n) - MATCHED, 0.9 * df, 2.0 * arms * df)
    )


def moderated_df(prior_df: float, arms: int, count: int) -> float:
    """Degrees of freedom of a moderated variance of `count` seeds in a pool of `arms` arms."""
    return max(min(prior_df + count - 1, pool_df(arms, count - 1)), count - 1)


def _log_covariance(df: float) -> float:
    """Covariance of the logs of two variances of `df` degrees of freedom whose samples correlate by
    r: sum over k of r^2k (k - 1)! / (k (df/2)_k). With r = 1 it is trigamma(df/2)."""
    k = np.arange(1.0, 40.0)
    logs = 2.0 * k * math.log(SHARED) + special.gammaln(k) - np.log(k)
    return float(np.sum(np.exp(logs - special.gammaln(df / 2.0 + k) + special.gammaln(df / 2.0))))


def _inverse_trigamma(values: Array) -> Array:
    """Where trigamma is `values` > 0, by Newton's steps on its reciprocal (Smyth, appendix)."""
    y = 0.5 + 1.0 / values
    for _ in range(50):
        trigamma = special.polygamma(1, y)
        y = y + trigamma * (1.0 - trigamma / values) / special.polygamma(2, y)
    return np.asarray(
        np.where(values > 1e7, values**-0.5, np.where(values < 1e-6, 1 / values, y))
    )


def _prior_df(variances: Array, df: Array, members: Flags) -> Array:
    """d0 of the pool of `members`, from what the spread of log variances has beyond that of arms of
    one variance, capped."""
    arms = np.sum(members, axis=-1)
    safe = np.where(members, variances, 1.0)
    logs = np.log(safe) - special.digamma(df / 2.0) + np.log(df / 2.0)
    mean = np.sum(np.where(members, logs, 0.0), axis=-1, keepdims=True)
    mean = mean / np.maximum(arms, 1)[..., None]
    spread = np.sum(np.where(members, (logs - mean) ** 2, 0.0), axis=-1) / np.maximum(arms - 1, 1)
    of_one = np.array([float(special.polygamma(1, n / 2.0)) - _log_covariance(n) for n in df])
    expected = np.sum(np.where(members, of_one, 0.0), axis=-1) / np.maximum(arms, 1)
    excess = spread - expected
    found = np.where(excess > 0.0, 2.0 * _inverse_trigamma(np.maximum(excess, 1e-9)), np.inf)
    return np.asarray(np.where(arms > 1, np.minimum(found, most_prior_df(arms)), 0.0))


def _others(variances: Array, df: Array, members: Flags) -> tuple[Array, Array]:
    """Pooled variance of the other members for each arm, and its degrees of freedom."""
    weights = np.where(members, df, 0.0)
    total = np.sum(weights * variances, axis=-1, keepdims=True) - weights * variances
    rest = np.sum(weights, axis=-1, keepdims=True) - weights
    arms = np.sum(members, axis=-1, keepdims=True) - members
    known = arms > 0
    pooled = np.divide(total, rest, out=np.full(total.shape, np.nan), where=known)
    # Satterthwaite's number serves a test of variances: it matches their second moment.
    return pooled, rest / (1.0 + (np.maximum(arms, 1) - 1.0) * SHARED**2)


def _baseline_p(gaps: Array, members: Flags) -> Array:
    """p-value of "the baseline scatters no more than arms do" over the seeds that all arms have:
    the mean square between seeds, (A + 1) times that of arms x seeds where all runs scatter alike,
    in an F test. `members` alone are taken."""
    whole = ~np.isnan(gaps).any(axis=tuple(range(gaps.ndim - 1)))
    found, arms = gaps[..., whole], np.sum(members, axis=-1)
    seeds = found.shape[-1]
    if seeds < 2:
        return np.full(arms.shape, np.nan)
    counted = members[..., None]
    centred = np.where(counted, found - found.mean(axis=-1, keepdims=True), 0.0)
    safe = np.maximum(arms, 2)
    between = np.sum(np.sum(centred, axis=-2) ** 2, axis=-1) / safe
    within = np.sum(centred**2, axis=(-2, -1)) - between
    ratio = np.divide(
        between * (safe - 1.0), within * (safe + 1.0), out=np.zeros(arms.shape), where=within > 0.0
    )
    p = stats.f.sf(ratio, seeds - 1, (safe - 1) * (seeds - 1))
    return np.asarray(np.where((arms > 1) & (within > 0.0), p, np.nan), dtype=np.float64)


def pool(gaps: Array) -> Pooled:
    """The variances behind the mean gaps of one layout: `gaps` (..., arms, seeds), a column for
    each baseline run, NaN where an arm has no run of that seed, in all experiments alike. Every arm
    has two or more seeds."""
    there = ~np.isnan(gaps)
    counts = np.sum(there.reshape(-1, *gaps.shape[-2:])[0], axis=-1)
    df = counts.astype(np.float64) - 1.0
    mean = np.where(there, gaps, 0.0).sum(axis=-1, keepdims=True) / counts[:, None]
    own = np.sum(np.where(there, gaps - mean, 0.0) ** 2, axis=-1) / df
    spread = own > NO_SPREAD * own.max(axis=-1, keepdims=True)
    others, others_df = _others(own, df, spread)
    tested = spread & (np.sum(spread, axis=-1, keepdims=True) > 1)
    ratio = np.divide(own, others, out=np.full(own.shape, np.nan), where=tested)
    arm_p = np.where(tested, stats.f.sf(ratio, df, np.maximum(others_df, 1.0)), np.nan)
    apart = tested & (arm_p < HOMOGENEITY / np.maximum(spread.sum(axis=-1, keepdims=True), 1))
    baseline_p = _baseline_p(gaps, spread)
    members = spread & ~apart
    arms = np.sum(members, axis=-1)
    borrows = members & ((arms > 1) & ~(baseline_p < HOMOGENEITY))[..., None]
    weights = np.where(members, df, 0.0)
    shares = np.maximum(weights.sum(axis=-1), 1.0)
    pooled = np.sum(weights * own, axis=-1) / shares
    prior_df = _prior_df(own, df, members)
    d0 = prior_df[..., None]
    shared_df = np.vectorize(pool_df, otypes=[np.float64])(
        np.maximum(arms, 1), np.round(shares / np.maximum(arms, 1), 9)
    )
    moderated = (d0 * pooled[..., None] + df * own) / (d0 + df)
    known = np.maximum(np.minimum(d0 + df, shared_df[..., None]), df)
    return Pooled(
        variance=np.where(borrows, moderated, own),
        df=np.where(borrows, known, df),
        borrows=borrows,
        arms=arms,
        prior_df=prior_df,
        arm_p=arm_p,
        baseline_p=baseline_p,
    )
