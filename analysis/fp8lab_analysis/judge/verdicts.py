"""The verdicts on the arms of a study, and their sentences.

A verdict compares an arm with the baseline over paired seeds, by the tests of inference.py:

1. An arm with a diverged seed is **diverged**. Such a seed has no loss; it is neither ignored nor
   given a loss. The arm gets no other verdict, whatever its other seeds show.
2. An arm with one pair is **not ordered**.
3. **Equivalent**: the gap is within the margin on both sides, by two one-sided tests.
4. **Worse** or **better**: otherwise, if the gap is not zero, by the moderated t test of pairs.
5. **Inconclusive**: otherwise; the sentence states the number of seeds that would settle it. If
   only the upper of the two tests of equivalence holds, the arm is not worse by the margin.

The variance of these tests is moderated over the arms that share baseline runs, or the arm's own if
a test of homogeneity requires it (pooling.py); the sentence states which. Arms that diverged or
have fewer than two pairs are not pooled.

No gap is both zero and beyond the margin, so the tests of one arm share no error rate. Over the
arms, each kind of claim is corrected separately. The probability is at most alpha, over all looks,
that any arm with a gap at or beyond the margin is called equivalent. It is also at most alpha that
any arm with a gap of zero is called worse or better. The number of arms includes diverged ones, and
listed ones whose runs do not exist yet."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fp8lab_analysis.judge import inference, pooling
from fp8lab_analysis.judge.stats import Array, Spread, spread_over_seeds
from fp8lab_analysis.judge.short_runs import Extent
from fp8lab_analysis.judge.text_noise import TextNoise, few_documents
from fp8lab_analysis.read.design import Design


class Kind(enum.Enum):
    """The kinds of verdicts."""

    BASELINE = "baseline"
    EQUIVALENT = "equivalent"
    WORSE = "worse"
    BETTER = "better"
    INCONCLUSIVE = "inconclusive"
    DIVERGED = "diverged"
    NOT_ORDERED = "not ordered"
    UNPAIRED = "no baseline"


@dataclass(frozen=True)
class Evidence:
    """The data for a verdict on one arm, with one entry per seed."""

    gaps: Sequence[float]  # relative and paired (inference.relative_gaps); NaN: no finite pair
    diverged: Sequence[bool]
    twins_diverged: Sequence[bool]
    twins: Sequence[Hashable]  # baseline runs of the pairs; equal if their losses are equal
    is_baseline: bool = False
    text: TextNoise = TextNoise()  # noise of the held-out text in the mean of `gaps`
    extent: Extent = Extent()  # of the arm's and the baseline's runs, in the stage of the gap

    @property
    def seeds(self) -> int:
        """Number of seeds of the arm."""
        return len(self.gaps)

    @property
    def kind(self) -> Kind | None:
        """The verdict of an arm without a test; None for an arm to test."""
        if any(self.diverged):
            return Kind.DIVERGED
        if self.is_baseline:
            return Kind.BASELINE
        if any(self.twins_diverged) or not self.gaps or not all(map(math.isfinite, self.gaps)):
            return Kind.UNPAIRED
        return None if self._independent else Kind.NOT_ORDERED

    @property
    def _independent(self) -> bool:
        """True if there are two or more pairs that share no run."""
        return self.seeds > 1 and len(set(self.twins)) == self.seeds

    @property
    def in_family(self) -> bool:
        """True for an arm that is tested, or would be if it had not diverged: the number of arms in
        the correction must not depend on their results."""
        would_be = self._independent and not self.is_baseline
        return self.kind is None or (self.kind is Kind.DIVERGED and would_be)


@dataclass(frozen=True)
class Noise:
    """The noise between seeds in a verdict: the deviation of one relative gap, a fraction, and its
    source. NaN if there was no test."""

    sd: float = math.nan
    df: float = math.nan
    pool: int = 0  # number of pooled arms; 0: the arm's own variance
    prior_df: float = 0.0  # d0; 0: the arm's own variance
    apart: str = ""  # the reason why the arm keeps its own variance although there are others
    arm_p: float = math.nan  # p-value of the arm's F test times the number of tested arms
    baseline_p: float = math.nan  # p-value of the baseline's F test

    def df_of(self, count: int) -> float:
        """Returns the degrees of freedom with `count` seeds and everything else unchanged."""
        return pooling.moderated_df(self.prior_df, self.pool, count) if self.pool else count - 1

    @property
    def assumption(self) -> str:
        """The assumption about the variance, in words; empty for a single arm."""
        if self.pool:
            return f"variance moderated over {self.pool} arms"
        return f"own variance: {self.apart}" if self.apart else ""


@dataclass(frozen=True)
class Verdict:
    """A verdict with its numbers. Gaps are relative fractions, NaN if there was no test."""

    kind: Kind
    design: Design
    seeds: int
    gap: Spread
    diverged: int  # number of diverged seeds
    rate: tuple[float, float]  # exact 1 - alpha interval of the rate of divergence
    twins_diverged: int = 0
    gap_seen: float = math.nan  # of a diverged arm: mean of the diverged seeds' finite gaps
    has_pairs: bool = True  # some seed has a baseline
    noise: Noise = Noise()
    text: TextNoise = TextNoise()  # in addition to the noise between seeds; used in no test
    extent: Extent = Extent()
    level: float = math.nan  # two-sided level of the intervals; alpha if there was no test
    arms: int = 0  # number of arms in the correction
    half_width: float = math.nan  # of the interval that agrees with the test of a difference
    # Of the interval that agrees with the two one-sided tests of equivalence, mostly narrower
    equivalence_half_width: float = math.nan
    equivalence_p: float = math.nan
    difference_p: float = math.nan
    sign_flip_p: float = math.nan  # for 6 to 24 seeds
    not_worse: bool = False  # not worse by the margin, even if not equivalent
    detectable: float = math.nan  # minimum detectable gap of these seeds
    seeds_needed: int | None = None  # to show equivalence if the true gap is zero
    seeds_to_differ: int | None = None  # to distinguish the gap from zero; None: above 10000

    @property
    def holds(self) -> bool:
        """True if the arm is shown to be not worse than the baseline by the margin."""
        return self.not_worse or self.kind in (Kind.EQUIVALENT, Kind.BETTER)

    @property
    def ordered(self) -> bool:
        """True if the arm may be put in an order."""
        tested = (Kind.EQUIVALENT, Kind.WORSE, Kind.BETTER, Kind.INCONCLUSIVE)
        return self.kind in tested

    @property
    def over_documents(self) -> float:
        """Half width of the interval of the gap over other held-out texts of such documents, with
        these seeds; a fraction, NaN if unknown."""
        return self.text.half_width(self.level)

    @property
    def over_both(self) -> float:
        """Half width of the interval over other texts and other seeds."""
        return self.text.half_width_of_both(self.half_width, self.level)

    @property
    def text_leaves_sign_open(self) -> bool:
        """True for a gap that differs significantly from zero over seeds but not over documents."""
        return self.kind in (Kind.WORSE, Kind.BETTER) and abs(self.gap.mean) <= self.over_documents

    @property
    def gap_text(self) -> str:
        """Signed gap with the half width of its interval, if known. For a diverged arm, its final
        gap, which was not tested, and the word "diverged"."""
        if self.kind is Kind.DIVERGED:
            known = math.isfinite(self.gap_seen)
            if known:
                return f"{_ended(self.gap_seen)}, diverged"
            return "loss not finite, diverged" if self.has_pairs else "diverged"
        return ("+" if self.gap.mean > 0.0 else "") + measured(self.gap.mean, self.half_width)

    @property
    def shows_one_sided(self) -> bool:
        """True for an arm that is equivalent although the interval of a difference reaches beyond
        the margin: the interval of the one-sided tests must stand beside it."""
        beyond = abs(self.gap.mean) + self.half_width > self.design.margin
        return self.kind is Kind.EQUIVALENT and beyond

    @property
    def few_documents(self) -> str:
        """The caveat of a gap over too few held-out documents; empty for enough, or if the gap is
        not of held-out losses by document."""
        return few_documents(self.text.documents)

    @property
    def shortness(self) -> str:
        """The caveat of a verdict of no harm after too short a training; empty for others."""
        return self.extent.caveat if self.holds else ""

    @property
    def _unstated(self) -> str:
        return "" if self.design.stated else "margin not stated beforehand"

    @property
    def sentence(self) -> str:
        """The verdict in words, with its numbers."""
        open_sign = "sign open over documents" if self.text_leaves_sign_open else ""
        remarks = [
            text
            for text in (
                self.shortness,
                self.few_documents,
                open_sign,
                self.noise.assumption,
                self._unstated,
            )
            if text
        ]
        remark = f" ({'; '.join(remarks)})" if remarks else ""
        if self.kind is Kind.EQUIVALENT:
            tested = self.design.confidence_text
            if self.shows_one_sided:
                size = measured(self.gap.mean, self.equivalence_half_width)
                tested += f", one-sided tests: {'+' if self.gap.mean > 0.0 else ''}{size}"
            level = "; ".join([tested, *remarks])
            return f"Equivalent within {self.design.margin_text} ({level})"
        if self.kind in (Kind.WORSE, Kind.BETTER):
            size = measured(abs(self.gap.mean), self.half_width)
            return f"{self.kind.value.capitalize()} by {size}{remark}"
        if self.kind is Kind.INCONCLUSIVE:
            if self.not_worse:  # only one of the two tests holds
                margin, level = self.design.margin_text, self.design.confidence_text
                return (
                    f"Not worse by {margin} ({level}, one-sided); whether it is equivalent or "
                    f"better is open: {self._need()}{remark}"
                )
            return f"Inconclusive: {self._need()}{remark}"
        if self.kind is Kind.DIVERGED:
            return self._divergence()
        if self.kind is Kind.NOT_ORDERED:
            why = "one seed" if self.seeds == 1 else "seeds that share a baseline run"
            return f"Not ordered: {why}, so that the noise between seeds is unknown" + (
                f" ({self.few_documents})" if self.few_documents else ""
            )
        if self.kind is Kind.UNPAIRED:
            return f"No verdict: {self._missing()}"
        return "Baseline"

    @property
    def _to_differ(self) -> bool:
        """True if more seeds are unlikely to show equivalence; then the gap must be distinguished
        from zero."""
        beyond = abs(self.gap.mean) >= self.design.margin
        return beyond or (self.seeds_needed is not None and self.seeds_needed <= self.seeds)

    @property
    def seeds_to_settle(self) -> int | None:
        """Total number of seeds that settle an open verdict; None for others and above 10000."""
        if self.kind is not Kind.INCONCLUSIVE:
            return None
        return self.seeds_to_differ if self._to_differ else self.seeds_needed

    def _need(self) -> str:
        """States the number of seeds that would settle an open verdict."""
        what, need = self.design.margin_text, self.seeds_to_settle
        if self._to_differ:
            what = f"to tell {self.gap_text} from no gap"
        number = f"about {need}" if need else f"more than {inference.MOST_SEEDS}"
        return f"{what} needs {number} seeds"

    def _missing(self) -> str:
        if self.twins_diverged:
            return f"the baseline itself diverged in {self.twins_diverged} of {self.seeds} seeds"
        return "not every seed has a baseline whose loss it can be compared with"

    def _divergence(self) -> str:
        if self.seeds == 1:
            return "Diverged in its only seed"
        low, high = (f"{100.0 * edge:.0f}" for edge in self.rate)
        text = (
            f"Diverged in {self.diverged} of {self.seeds} seeds ({self.design.confidence_text} "
            f"interval of the rate: {low} to {high} %)"
        )
        if self.twins_diverged:
            text += f", its baseline in {self.twins_diverged}"
        return text + ("; no gap is given for the others" if self.diverged < self.seeds else "")


def _ended(gap: float) -> str:
    """Formats a large gap without insignificant digits: +190 %; above a factor of 100, the
    factor."""
    if gap >= 99.0:
        return f"loss {gap + 1.0:.3g} times the baseline's"
    sign = "+" if gap > 0.0 else ""
    return sign + (f"{100.0 * gap:.0f} %" if abs(gap) >= 0.1 else measured(gap)).replace("-", "−")


def measured(value: float, error: float = math.nan) -> str:
    """Formats a fraction in percent, with its error if known. The decimals give the error one
    digit, two if it starts with 1, and one decimal below 10 %. Without an error, the value has two
    digits."""
    size = abs(error if math.isfinite(error) else value) * 100.0
    if size == 0.0 or not math.isfinite(size):
        decimals = 1
    else:
        exponent = math.floor(math.log10(size))
        leading = size / 10.0**exponent
        known = math.isfinite(error)
        least = 1 if size < 10.0 else 0
        decimals = min(9, max(least, -exponent + (1 if leading < 1.95 or not known else 0)))
    text = f"{100.0 * value:.{decimals}f} %"
    if math.isfinite(error):
        text += f" ± {100.0 * error:.{decimals}f} %"
    return text.replace("-", "−")


def judge(arms: Sequence[Evidence], design: Design, awaited: int = 0) -> list[Verdict]:
    """Returns the verdict on every arm of a study. The correction covers the arms of the family
    (`Evidence.in_family`), `awaited` further arms that cannot be tested yet, and the looks of the
    design."""
    plain = [_untested(arm, design) for arm in arms]
    family = [row for row, arm in enumerate(arms) if arm.in_family]
    tested = [row for row in family if arms[row].kind is None]
    noises = dict(zip(tested, noise_of([arms[row] for row in tested])))
    p_equivalent = np.ones(len(family) + awaited)  # a diverged arm allows no claim
    p_different = np.ones(p_equivalent.size)
    for place, row in enumerate(family):
        if row in tested:
            mean, count, noise = plain[row].gap.mean, plain[row].seeds, noises[row]
            p_equivalent[place] = inference.equivalence_p(
                mean, noise.sd, count, design.margin, noise.df
            )
            p_different[place] = inference.difference_p(mean, noise.sd, count, noise.df)
    levels = inference.step_levels(design.alpha, p_equivalent.size, design.looks)
    tests = _Tests(
        equivalent=inference.reject(p_equivalent, levels),
        different=inference.reject(p_different, levels),
        equivalence_p=p_equivalent,
        difference_p=p_different,
        equivalence_level=inference.decided_at(p_equivalent, levels),
        difference_level=inference.decided_at(p_different, levels),
    )
    results = list(plain)
    for place, row in enumerate(family):
        if row in tested:
            noted = dataclasses.replace(plain[row], noise=noises[row])
            results[row] = _tested(arms[row], noted, tests, place)
    return results


def _layouts(arms: Sequence[Evidence]) -> list[list[int]]:
    """Returns groups of indices of arms that share baseline runs, directly or through others."""
    layouts: list[tuple[set[Hashable], list[int]]] = []
    for place, arm in enumerate(arms):
        twins, members = set(arm.twins), [place]
        for other in [item for item in layouts if item[0] & twins]:
            layouts.remove(other)
            twins |= other[0]
            members += other[1]
        layouts.append((twins, sorted(members)))
    return [members for _, members in layouts]


def noise_of(arms: Sequence[Evidence]) -> list[Noise]:
    """Returns the noise of each of `arms`, pooled over layouts (arms x seeds) with common baseline
    runs. Precondition: all `arms` are tested."""
    noises = [Noise()] * len(arms)
    for members in _layouts(arms):
        twins = list(dict.fromkeys(twin for place in members for twin in arms[place].twins))
        gaps = np.full((len(members), len(twins)), np.nan)
        for row, place in enumerate(members):
            for twin, gap in zip(arms[place].twins, arms[place].gaps):
                gaps[row, twins.index(twin)] = gap
        found = pooling.pool(gaps)
        for row, place in enumerate(members):
            noises[place] = _noise(found, row)
    return noises


def _noise(found: pooling.Pooled, row: int) -> Noise:
    arm_p, tested = float(found.arm_p[row]), int(np.isfinite(found.arm_p).sum())
    noise = Noise(
        sd=math.sqrt(found.variance[row]),
        df=float(found.df[row]),
        arm_p=min(1.0, tested * arm_p) if math.isfinite(arm_p) else math.nan,
        baseline_p=float(found.baseline_p) if np.isfinite(found.baseline_p) else math.nan,
    )
    if found.borrows[row]:
        pool, prior_df = int(found.arms), float(found.prior_df)
        return dataclasses.replace(noise, pool=pool, prior_df=prior_df)
    if math.isnan(arm_p):  # a single arm, or an arm without spread
        return noise
    if noise.baseline_p < pooling.HOMOGENEITY:
        return dataclasses.replace(noise, apart="the baseline scatters more than the arms")
    return dataclasses.replace(noise, apart="homogeneity rejected")


@dataclass(frozen=True)
class _Tests:
    """The test results of a family, arm by arm."""

    equivalent: npt.NDArray[np.bool_]
    different: npt.NDArray[np.bool_]
    equivalence_p: Array
    difference_p: Array
    equivalence_level: Array
    difference_level: Array


def _untested(arm: Evidence, design: Design) -> Verdict:
    diverged = sum(arm.diverged)
    ended = [gap for gap, broke in zip(arm.gaps, arm.diverged) if broke and math.isfinite(gap)]
    return Verdict(
        kind=arm.kind or Kind.INCONCLUSIVE,
        gap_seen=sum(ended) / len(ended) if ended else math.nan,
        has_pairs=bool(arm.twins),
        design=design,
        seeds=arm.seeds,
        gap=spread_over_seeds(arm.gaps if not diverged else [math.nan] * arm.seeds),
        diverged=diverged,
        rate=inference.binomial_interval(diverged, arm.seeds, design.alpha),
        twins_diverged=sum(arm.twins_diverged),
        text=arm.text if not diverged and not arm.is_baseline else TextNoise(),
        extent=arm.extent,
        level=design.alpha,
    )


def _tested(arm: Evidence, plain: Verdict, tests: _Tests, place: int) -> Verdict:
    """Returns the verdict on the arm with index `place` in the family."""
    design, gap, count = plain.design, plain.gap, plain.seeds
    least, most = inference.SIGN_FLIP_SEEDS
    kind = Kind.INCONCLUSIVE
    if tests.equivalent[place]:
        kind = Kind.EQUIVALENT
    elif tests.different[place]:
        kind = Kind.WORSE if gap.mean > 0.0 else Kind.BETTER
    one, two = float(tests.equivalence_level[place]), float(tests.difference_level[place])
    sd, df, df_of = plain.noise.sd, plain.noise.df, plain.noise.df_of
    above = float(inference.one_sided_p(gap.mean, sd, count, design.margin, df))
    return dataclasses.replace(
        plain,
        kind=kind,
        arms=tests.equivalent.size,
        level=two,
        half_width=inference.half_width(sd, count, two, df),
        equivalence_half_width=inference.half_width(sd, count, 2.0 * one, df),
        equivalence_p=float(tests.equivalence_p[place]),
        difference_p=float(tests.difference_p[place]),
        sign_flip_p=inference.sign_flip_p(arm.gaps) if least <= count <= most else math.nan,
        not_worse=above <= one,
        detectable=inference.detectable_gap(count, sd, two, design.power, df),
        seeds_needed=inference.seeds_for_margin(design.margin, sd, one, design.power, df_of),
        seeds_to_differ=inference.seeds_for_gap(gap.mean, sd, two, design.power, df_of),
    )
