"""The moderated variance of arms in one layout (arms x seeds), after tests of homogeneity.

The gap of an arm is its run minus the baseline run of its seed, so all arms of a layout share the
noise of the baseline. If all runs scatter equally, the gaps of two arms have correlation 1/2
(`SHARED`). The correlation changes no mean, but reduces the degrees of freedom of the pool.

1. **Pooled variance.** The mean of the arms' own variances, weighted by their degrees of freedom. A
   mean divided by it has a distribution with two components, between seeds and arms x seeds.
   `pool_df` are the degrees of freedom of the Student's t with the same 95 % interval.
   Satterthwaite's degrees of freedom (Biometrics Bulletin 2 (1946) 110-114) are too few if a
   component has one degree of freedom.
2. **Homogeneity.** An arm keeps its own variance and leaves the pool if its variance is too large
   compared with the pooled variance of the others, by an F test at 5 % over all arms (Cochran's C
   test, Annals of Eugenics 11 (1941) 47-52, in the form for unequal numbers of seeds: 't Lam,
   Analytica Chimica Acta 659 (2010) 68-84). Levene's test is useless here, since two seeds are
   equally far from their mean. If an F test at 5 % of the mean squares between seeds and arms x
   seeds shows that the baseline scatters more than the arms, every arm keeps its own variance.
3. **Moderation.** The other arms have the variance (d0 s0^2 + d s^2) / (d0 + d). s^2 and d = n - 1
   are their own, s0^2 is the pooled variance, and d0 are the prior degrees of freedom from the
   spread of the arms' log variances (Smyth, Statistical Applications in Genetics and Molecular
   Biology 3 (2004) article 3: the moderated t of limma). It has min(d0 + d, `pool_df`) degrees of
   freedom.

Few arms and seeds determine d0 badly, and often cannot exclude infinity. Therefore d0 is at most
half the number of the other arms, and at most 5. A prior of 5 corresponds to arms whose deviations
are within a factor of 2.4 of each other eight times out of ten. coverage.py simulates how often the
intervals then contain the truth.

Arms without spread, or only with that of rounding, give no estimate of noise and are not pooled.
Functions accept arrays over many experiments."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from fp8lab_analysis.judge.stats import Array

SHARED = 0.5  # correlation of two arms' gaps to one baseline if all runs scatter equally
HOMOGENEITY = 0.05  # level of each of the two tests
PRIOR_OF_AN_ARM = 0.5  # prior degrees of freedom per other arm
MOST_PRIOR = 5.0
MATCHED = 0.05  # two-sided level at which `pool_df` is exact
NO_SPREAD = 1e-18  # fraction of the largest variance, up to which a variance is rounding
ANGLES, WEIGHTS = (np.asarray(part) for part in special.roots_legendre(128))  # on [-1, 1]

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Pooled:
    """The variance for the mean gap of each arm, over experiments (..., arms)."""

    variance: Array  # variance of one gap, in its squared unit
    df: Array  # degrees of freedom of `variance`
    borrows: Flags  # True: moderated; False: the arm's own
    arms: npt.NDArray[np.int_]  # (...,) number of arms in the pool
    prior_df: Array  # (...,) d0 of the pool
    arm_p: Array  # p-value of each arm's F test, without correction; NaN: not tested
    baseline_p: Array  # (...,) p-value of the baseline's F test; NaN: not tested


def most_prior_df(arms: npt.ArrayLike) -> Array:
    """Returns the largest prior degrees of freedom of a pool of `arms` arms."""
    return np.minimum(PRIOR_OF_AN_ARM * (np.asarray(arms, np.float64) - 1.0), MOST_PRIOR)


@functools.lru_cache(maxsize=4096)
def pool_df(arms: int, df: float) -> float:
    """Returns the degrees of freedom of the variance pooled over `arms` arms of `df` each, whose
    gaps have correlation `SHARED`. The pooled variance is the true one times (1 + (A - 1) r) / A
    chi2(df) / df + (1 - r) / A chi2((A - 1) df) / df. With Craig's form of the normal tail (IEEE
    MILCOM (1991) 571-575), the tail of a mean divided by its pooled deviation is one integral of
    the moment generating functions. The result belongs to the t distribution with the same 95 %
    interval. For one arm it is `df`."""
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
    """Returns the degrees of freedom of a moderated variance of `count` seeds in a pool of `arms`
    arms."""
    return max(min(prior_df + count - 1, pool_df(arms, count - 1)), count - 1)


def _log_covariance(df: float) -> float:
    """Returns the covariance of the logs of two variances with `df` degrees of freedom whose
    samples have correlation r: sum over k of r^2k (k - 1)! / (k (df/2)_k). For r = 1 it is
    trigamma(df/2)."""
    k = np.arange(1.0, 40.0)
    logs = 2.0 * k * math.log(SHARED) + special.gammaln(k) - np.log(k)
    return float(np.sum(np.exp(logs - special.gammaln(df / 2.0 + k) + special.gammaln(df / 2.0))))


def _inverse_trigamma(values: Array) -> Array:
    """Returns the arguments at which trigamma is `values` > 0, by Newton steps on its reciprocal
    (Smyth, appendix)."""
    y = 0.5 + 1.0 / values
    for _ in range(50):
        trigamma = special.polygamma(1, y)
        y = y + trigamma * (1.0 - trigamma / values) / special.polygamma(2, y)
    return np.asarray(
        np.where(values > 1e7, values**-0.5, np.where(values < 1e-6, 1 / values, y))
    )


def _prior_df(variances: Array, df: Array, members: Flags) -> Array:
    """Returns d0 of the pool of `members`, capped. It follows from the spread of log variances in
    excess of that of arms with equal variances."""
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
    """Returns for each arm the pooled variance of the other members, and its degrees of freedom."""
    weights = np.where(members, df, 0.0)
    total = np.sum(weights * variances, axis=-1, keepdims=True) - weights * variances
    rest = np.sum(weights, axis=-1, keepdims=True) - weights
    arms = np.sum(members, axis=-1, keepdims=True) - members
    known = arms > 0
    pooled = np.divide(total, rest, out=np.full(total.shape, np.nan), where=known)
    # Satterthwaite's number is suitable for a test of variances: it matches their second moment.
    return pooled, rest / (1.0 + (np.maximum(arms, 1) - 1.0) * SHARED**2)


def _baseline_p(gaps: Array, members: Flags) -> Array:
    """Returns the p-value of "the baseline scatters no more than the arms", from `members` over the
    common seeds of all arms. F test of the mean square between seeds, which is (A + 1) times that
    of arms x seeds if all runs scatter equally."""
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
    """Returns the variances for the mean gaps of one layout. `gaps` (..., arms, seeds) has a column
    for each baseline run, and NaN if an arm has no run of that seed, equally in all experiments.
    Precondition: every arm has two or more seeds."""
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
