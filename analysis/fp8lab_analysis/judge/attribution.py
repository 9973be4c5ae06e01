"""Splits a loss gap by source of error, from arms of one recipe that replace some sources by exact
arithmetic (`exact` of a run file).

All gaps are those of the verdicts: relative, between a run and the baseline run of its seed. The
gap to split is that of the unchanged recipe, minus that of the arm `exact = ["all"]` if there is
one. These two arms differ only in the recipe's errors; both differ from the baseline in its errors.
A source is measured twice, as for a gradient (`fp8lab attribute`):

- **left out**: the gap of the unchanged recipe, minus the gap with that source exact;
- **alone**: the gap with everything else exact, minus that of `exact = ["all"]`, or minus zero.

Each contribution is a difference between runs of one seed. The contributions of one kind share one
run: that of the unchanged recipe, or that of `exact = ["all"]`. Like the arms of a study, they form
a layout arms x seeds with moderated variance (pooling.py). The study's error rate is divided among
all contributions of the recipe (Bonferroni). The gaps of the unchanged recipe and of the all-exact
arm have the deviations of their verdicts. The remainder of a group is the whole minus the
contributions, seed by seed; it has its own deviation. It consists of interactions of sources, and
of chance, since any change of the arithmetic changes a loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fp8lab_analysis.judge.compare import GroupSummary
from fp8lab_analysis.judge.inference import difference_p, half_width
from fp8lab_analysis.judge.pooling import pool
from fp8lab_analysis.judge.stats import Spread, spread_over_seeds
from fp8lab_analysis.judge.verdicts import Noise
from fp8lab_analysis.read.configuration import exact_sources, exact_text
from fp8lab_analysis.read.study import Study

ALL = "all"
ALL_BUT = "all but "
SCALES = "scale"  # the only group without a whole: a scale changes no value by itself
LAYER = "layer"
GROUPS = {
    "source": (
        "element cast",
        "underflow",
        "saturation",
        "accumulator",
        "storage",
        "estimator",
    ),
    SCALES: ("scale rounding", "amax history"),
    "slot": ("fprop.x", "fprop.w", "dgrad.dy", "dgrad.w", "wgrad.dy", "wgrad.x"),
    "GEMM": ("fprop", "dgrad", "wgrad"),
}


@dataclass(frozen=True)
class Contribution:
    """A relative difference of gaps over seeds; NaN if a seed is missing or broke."""

    spread: Spread
    half_width: float = math.nan  # known for two or more seeds
    p: float = math.nan  # of "the contribution is zero", uncorrected

    @property
    def known(self) -> bool:
        """True if the contribution has a value."""
        return math.isfinite(self.spread.mean)

    @property
    def told_from_zero(self) -> bool:
        """True if the interval excludes zero."""
        return math.isfinite(self.half_width) and abs(self.spread.mean) > self.half_width


@dataclass(frozen=True)
class Part:
    """One source of error."""

    name: str
    left_out: Contribution | None  # None: no arm has this source exact
    alone: Contribution | None  # None: no arm has everything else exact


@dataclass(frozen=True)
class PartGroup:
    """The parts of one group, in the order of GROUPS or of the study, and the remainder."""

    name: str
    parts: list[Part]
    remainder: Contribution | None  # of the parts left out; None for scales or without such parts
    remainder_alone: Contribution | None


@dataclass(frozen=True)
class Attribution:
    """The gap of one recipe and variant by source."""

    label: str
    seeds: int
    judged_on: str
    stage: str
    whole: Contribution  # gap of the unchanged recipe
    floor: Contribution | None  # gap with every source exact; None: no such arm, counts as zero
    groups: list[PartGroup]
    diverged: list[str]  # arms with a broken seed; they have no contribution
    lacking: list[str]  # arms without a run of every seed; they have no contribution

    @property
    def ordered(self) -> bool:
        """True if contributions may be put in an order: with two or more seeds."""
        return self.seeds > 1 and math.isfinite(self.whole.half_width)


def group_of(source: str) -> str:
    """Returns the group of a source of error; a name that no group lists is a layer."""
    return next((name for name, listed in GROUPS.items() if source in listed), LAYER)


Gaps = dict[int, float]  # by seed


def _gaps(summary: GroupSummary) -> Gaps:
    return {item.run.seed: gap for item, gap in zip(summary.runs, summary.seed_gaps)}


def _difference(one: Gaps, other: Gaps, seeds: Iterable[int]) -> Gaps:
    """Returns the difference seed by seed; NaN for a seed that `one` or `other` lacks."""
    return {seed: one.get(seed, math.nan) - other.get(seed, math.nan) for seed in seeds}


def _left(whole: Gaps, parts: Sequence[Gaps]) -> Gaps:
    return {
        seed: gap - sum(part.get(seed, math.nan) for part in parts) for seed, gap in whole.items()
    }


def _contribution(gaps: Gaps, level: float, noise: Noise | None = None) -> Contribution:
    """Returns a contribution with the pooled `noise`; without it, with its own deviation."""
    spread = spread_over_seeds(list(gaps.values()))
    if spread.count < 2 or not math.isfinite(spread.mean):
        return Contribution(spread)
    if noise is None or not math.isfinite(noise.df):
        noise = Noise(spread.sd, spread.count - 1.0)
    p = float(difference_p(spread.mean, noise.sd, spread.count, noise.df))
    return Contribution(spread, half_width(noise.sd, spread.count, level, noise.df), p)


def _noises(found: dict[str, Gaps]) -> dict[str, Noise]:
    """Returns the noise of contributions that share a run and have every seed."""
    whole = {
        name: list(gaps.values())
        for name, gaps in found.items()
        if len(gaps) > 1 and all(map(math.isfinite, gaps.values()))
    }
    if not whole:
        return {}
    pooled = pool(np.array(list(whole.values())))
    sizes = zip(whole, np.sqrt(pooled.variance), pooled.df)
    return {name: Noise(float(sd), float(df)) for name, sd, df in sizes}


@dataclass(frozen=True)
class _Arms:
    """The arms of one recipe and variant by their exact sources."""

    whole: GroupSummary
    exact: dict[str, GroupSummary]  # by the only exact source; also "all"
    alone: dict[str, GroupSummary]  # by the only source that is not exact

    @property
    def names(self) -> list[str]:
        """Names of the sources: in the order of GROUPS, then layers in the order of the study."""
        found = [name for name in dict.fromkeys([*self.exact, *self.alone]) if name != ALL]
        listed = [name for names in GROUPS.values() for name in names if name in found]
        return listed + [name for name in found if name not in listed]


def _families(summaries: Sequence[GroupSummary]) -> list[_Arms]:
    """Returns the recipes with an unchanged arm and arms with one source exact or kept."""
    families: dict[tuple[str, str], _Arms] = {}
    candidates = [s for s in summaries if not s.group.is_baseline]
    for summary in candidates:
        key = (summary.group.key.recipe, summary.group.key.variant)
        if not exact_sources(summary.group.runs[0]):
            families[key] = _Arms(summary, {}, {})
    for summary in candidates:
        sources = exact_sources(summary.group.runs[0])
        variant = summary.group.key.variant.removesuffix(exact_text(sources)).removesuffix(", ")
        arms = families.get((summary.group.key.recipe, variant))
        if arms is None or len(sources) != 1:
            continue
        name = sources[0]
        if name.startswith(ALL_BUT):
            arms.alone.setdefault(name.removeprefix(ALL_BUT), summary)
        else:
            arms.exact.setdefault(name, summary)
    return [arms for arms in families.values() if arms.names]


def _attribution(study: Study, arms: _Arms) -> Attribution:
    gaps = _gaps(arms.whole)
    floor = _gaps(arms.exact[ALL]) if ALL in arms.exact else None
    base = floor if floor is not None else {seed: 0.0 for seed in gaps}
    left_out = {name: _difference(gaps, _gaps(arm), gaps) for name, arm in arms.exact.items()}
    alone = {name: _difference(_gaps(arm), base, gaps) for name, arm in arms.alone.items()}
    names = arms.names
    level = study.design.alpha / sum(name in found for found in (left_out, alone) for name in names)

    parts_left = {name: gap for name, gap in left_out.items() if name != ALL}
    noises, noises_alone = _noises(parts_left), _noises(alone)

    def part(found: dict[str, Gaps], noise: dict[str, Noise], name: str) -> Contribution | None:
        return _contribution(found[name], level, noise.get(name)) if name in found else None

    def remainder(found: dict[str, Gaps], members: Sequence[str]) -> Contribution | None:
        if not all(name in found for name in members):
            return None
        parts = [found[name] for name in members]
        return _contribution(_left(_difference(gaps, base, gaps), parts), level)

    others = [*arms.exact.values(), *arms.alone.values()]
    groups = []
    for kind in (*GROUPS, LAYER):
        members = [name for name in names if group_of(name) == kind]
        if not members:
            continue
        parts = [
            Part(name, part(left_out, noises, name), part(alone, noises_alone, name))
            for name in members
        ]
        whole = kind != SCALES
        groups.append(
            PartGroup(
                kind,
                parts,
                remainder(left_out, members) if whole else None,
                remainder(alone, members) if whole else None,
            )
        )
    return Attribution(
        label=arms.whole.group.label,
        seeds=arms.whole.seeds,
        judged_on=arms.whole.judged_on,
        stage=arms.whole.gap_stage,
        whole=_contribution(gaps, study.design.alpha, arms.whole.verdict.noise),
        floor=(
            _contribution(floor, study.design.alpha, arms.exact[ALL].verdict.noise)
            if floor is not None
            else None
        ),
        groups=groups,
        diverged=[
            arm.group.label
            for arm in (arms.whole, *others)
            if not all(math.isfinite(gap) for gap in arm.seed_gaps)
        ],
        lacking=[arm.group.label for arm in others if not gaps.keys() <= _gaps(arm).keys()],
    )


def attribute_gaps(study: Study, summaries: Sequence[GroupSummary]) -> list[Attribution]:
    """Splits the gap of every recipe of a study with such arms, in the study's order."""
    return [_attribution(study, arms) for arms in _families(summaries)]
