"""The noise of a held-out text in a gap: the variation of the gap over other texts of such
documents.

Losses are sums over the tokens of each document, in nats, of two models on the same tokens. Tokens
of one document depend on each other, so the jackknife leaves out whole documents: intervals are
those of the jackknife over clusters, t with D - 1 degrees of freedom for D documents (Cameron and
Miller, Journal of Human Resources 50 (2015) 317-372, section II and VI, CR3). They cover the choice
of documents. They do not cover a difference in kind between the held-out text and the texts in a
model's later use.

All seeds of an arm are evaluated on one text. The gap of seed s on document d has three parts: of
the seed, of the document, and of both (documents x seeds, a crossed layout). The noise between
seeds on this text contains the first and third part; the noise of the text in the mean over seeds
contains the second and third. The third part V is known separately: the mean over seeds of the
variance of each seed's gap over documents, minus the variance of their mean, divided by S - 1. An
interval for another text and other seeds adds the squares of the two half widths and subtracts the
third part once:

    both^2 = seeds^2 + max(documents^2 - t^2 V, 0), at least documents^2

The quantiles have their own degrees of freedom before the sum (Howe, Journal of the American
Statistical Association 69 (1974) 789-794). This interval contains the truth in 95 to 99 % of cases.
A sum of variances with Satterthwaite's degrees of freedom contains it in as few as 89 % of cases
with two seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats as distributions

from fp8lab_analysis.judge.inference import jackknife_error
from fp8lab_analysis.judge.stats import Array

ALPHA = 0.05
LEAST_DOCUMENTS = 5  # with fewer, a t interval over clusters is meaningless


def few_documents(count: int) -> str:
    """Returns the caveat of a number over `count` documents, to stand in the sentence with the
    number: empty if they are enough for an interval, or if none are known."""
    if not 0 < count < LEAST_DOCUMENTS:
        return ""
    documents = "document" if count == 1 else "documents"
    return f"on {count} {documents} only, without an interval over documents"


@dataclass(frozen=True)
class Estimate:
    """A number with the half width of its 1 - ALPHA interval (NaN: too few documents)."""

    value: float
    half: float = math.nan
    p: float = math.nan  # of "the number is zero", two-sided

    @property
    def is_known(self) -> bool:
        """True if there is an interval."""
        return math.isfinite(self.half)

    @property
    def excludes_zero(self) -> bool:
        """True if zero is not in the interval."""
        return self.is_known and abs(self.value) > self.half


def left_out(numerators: Array, denominators: Array) -> Array:
    """Returns sum(numerators) / sum(denominators) over the last axis (documents) without each
    document, in the shape of the arguments; NaN where the other denominators are 0."""
    above = np.sum(numerators, axis=-1, keepdims=True) - numerators
    below = np.sum(denominators, axis=-1, keepdims=True) - denominators
    ratios: Array = np.divide(above, below, out=np.full_like(below, np.nan), where=below != 0.0)
    return ratios


def clustered_ratio(numerators: Array, denominators: Array) -> Estimate:
    """Estimates sum(numerators) / sum(denominators) over documents, with the jackknife error and
    the t test of zero. NaN if the denominators add up to 0 or anything is not finite."""
    with np.errstate(over="ignore"):  # a sum beyond FP64 is one that is not finite
        above, below = float(np.sum(numerators)), float(np.sum(denominators))
    if below == 0.0 or not (math.isfinite(above) and math.isfinite(below)):
        return Estimate(math.nan)
    value, count = above / below, numerators.size
    if count < LEAST_DOCUMENTS:
        return Estimate(value)
    error = float(jackknife_error(left_out(numerators, denominators)))
    if not math.isfinite(error):
        return Estimate(value)
    half = float(distributions.t.isf(ALPHA / 2.0, count - 1)) * error
    if error == 0.0:
        return Estimate(value, 0.0, 0.0 if value != 0.0 else 1.0)
    p = 2.0 * float(distributions.t.sf(abs(value) / error, count - 1))
    return Estimate(value, half, p)


@dataclass(frozen=True)
class TextNoise:
    """The noise of the held-out text in the mean relative gap of an arm over its seeds. Variances
    are squared fractions, NaN if unknown."""

    documents: int = 0
    variance: float = math.nan  # variance of the mean gap over documents
    of_both: float = math.nan  # V: its part that differs between seeds; NaN for one seed
    unknown: str = ""  # the reason if it is unknown

    @property
    def is_known(self) -> bool:
        """True if there is an interval."""
        return math.isfinite(self.variance)

    def half_width(self, alpha: float) -> float:
        """Half width of the 1 - alpha interval of the mean gap over other texts of such documents,
        with these seeds."""
        return self._quantile(alpha) * math.sqrt(self.variance) if self.is_known else math.nan

    def half_width_of_both(self, over_seeds: float, alpha: float) -> float:
        """Half width of the 1 - alpha interval over other texts and other seeds; `over_seeds` is
        the half width over seeds only, at the same level."""
        if not math.isfinite(self.of_both) or not math.isfinite(over_seeds):
            return math.nan
        square = self._quantile(alpha) ** 2
        whole = over_seeds**2 + square * max(self.variance - self.of_both, 0.0)
        return math.sqrt(max(whole, square * self.variance))

    def _quantile(self, alpha: float) -> float:
        return float(distributions.t.isf(alpha / 2.0, self.documents - 1))


def text_noise(numerators: Array, denominators: Array) -> TextNoise:
    """Returns the noise in the mean over seeds of sum(numerators) / sum(denominators), arrays
    (seeds, documents). A document is left out of all seeds at once."""
    seeds, documents = numerators.shape
    if documents < LEAST_DOCUMENTS:
        return TextNoise(documents, unknown=f"fewer than {LEAST_DOCUMENTS} documents")
    if not bool(np.isfinite(numerators).all() and np.isfinite(denominators).all()):
        return TextNoise(documents, unknown="a loss that is not finite")
    without = left_out(numerators, denominators)
    if not bool(np.isfinite(without).all()):
        return TextNoise(documents, unknown="one document with all of the loss")
    variance = float(jackknife_error(without.mean(axis=0)) ** 2)
    of_each = float(np.mean(jackknife_error(without.T) ** 2))
    of_both = max(of_each - variance, 0.0) / (seeds - 1) if seeds > 1 else math.nan
    return TextNoise(documents, variance, of_both)
