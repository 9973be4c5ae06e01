"""A loss gap split by source of error: from the arms of one recipe that replace some sources by
exact arithmetic (`exact` of a run file).

All gaps are those behind the verdicts: relative, of a run to the baseline run of its seed. What is
split is the gap of the recipe as it is, less that of the arm `exact = ["all"]` where there is one:
the two differ in the recipe's errors alone, while both differ from the baseline in its own. A
source counts twice, as for a gradient (`fp8lab attribute`):

- **left out**: the gap as it is, less the gap with that source exact;
- **alone**: the gap with everything else exact, less that of `exact = ["all"]`, or less zero.

Each is a difference of runs of one seed, and the contributions of either kind share one run: the
recipe as it is, or that of `exact = ["all"]`. They are a layout, arms x seeds, as the arms of a
study are, and have its moderated variance (pooling.py), at the study's error rate shared out over
all contributions of the recipe (Bonferroni). The gap as it is and that with all exact have the
deviations of their verdicts. The remainder of a group, what its contributions leave of the
whole, seed by seed, is alone and has its own: it is sources that work on each other, and chance,
for a loss answers any change of its arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fp8lab_analysis.compare import GroupSummary
from fp8lab_analysis.configuration import exact_sources, exact_text
from fp8lab_analysis.inference import difference_p, half_width
from fp8lab_analysis.pooling import pool
from fp8lab_analysis.stats import Spread, spread_over_seeds
from fp8lab_analysis.study import Study
from fp8lab_analysis.verdicts import Noise

ALL = "all"
ALL_BUT = "all but "
SCALES = "scale"  # the one group without a whole: a scale changes no value by itself
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
    """A difference of gaps over seeds, relative; NaN where a seed is missing or broke."""

    spread: Spread
    half_width: float = math.nan  # two or more seeds
    p: float = math.nan  # of "there is none", uncorrected

    @property
    def known(self) -> bool:
        """True for one that has a number."""
        return math.isfinite(self.spread.mean)

    @property
    def told_from_zero(self) -> bool:
        """True where the interval leaves out zero."""
        return math.isfinite(self.half_width) and abs(self.spread.mean) > self.half_width


@dataclass(frozen=True)
class Part:
    """One source of error."""

    name: str
    left_out: Contribution | None  # None: no arm has it exact
    alone: Contribution | None  # None: no arm has everything else exact


@dataclass(frozen=True)
class PartGroup:
    """The parts of one group, in the order of GROUPS or of the study, and what they leave."""

    name: str
    parts: list[Part]
    remainder: Contribution | None  # of those left out; None for scales and where none was
    remainder_alone: Contribution | None


@dataclass(frozen=True)
class Attribution:
    """The gap of one recipe and variant, split."""

    label: str
    seeds: int
    judged_on: str
    stage: str
    whole: Contribution  # gap of the recipe as it is
    floor: Contribution | None  # gap with every source exact; None: no such arm, zero stands for it
    groups: list[PartGroup]
    diverged: list[str]  # arms whose seeds broke, and that have no contribution
    lacking: list[str]  # arms without a run of every seed, which have none either

    @property
    def ordered(self) -> bool:
        """True where words of order may be used: two or more seeds."""
        return self.seeds > 1 and math.isfinite(self.whole.half_width)


def group_of(source: str) -> str:
    """The group that a source of error belongs to; what no group lists is a layer."""
    return next((name for name, listed in GROUPS.items() if source in listed), LAYER)


Gaps = dict[int, float]  # by seed


def _gaps(summary: GroupSummary) -> Gaps:
    return {item.run.seed: gap for item, gap in zip(summary.runs, summary.seed_gaps)}


def _difference(one: Gaps, other: Gaps, seeds: Iterable[int]) -> Gaps:
    """Seed by seed; NaN where one of the two lacks it."""
    return {seed: one.get(seed, math.nan) - other.get(seed, math.nan) for seed in seeds}


def _left(whole: Gaps, parts: Sequence[Gaps]) -> Gaps:
    return {
        seed: gap - sum(part.get(seed, math.nan) for part in parts) for seed, gap in whole.items()
    }


def _contribution(gaps: Gaps, level: float, noise: Noise | None = None) -> Contribution:
    """`noise` is that of a pool; without one the deviation is its own."""
    spread = spread_over_seeds(list(gaps.values()))
    if spread.count < 2 or not math.isfinite(spread.mean):
        return Contribution(spread)
    if noise is None or not math.isfinite(noise.df):
        noise = Noise(spread.sd, spread.count - 1.0)
    p = float(difference_p(spread.mean, noise.sd, spread.count, noise.df))
    return Contribution(spread, half_width(noise.sd, spread.count, level, noise.df), p)


def _noises(found: dict[str, Gaps]) -> dict[str, Noise]:
    """The noise of contributions that share a run: of those that every seed has."""
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
    """The arms of one recipe and variant by what they replace."""

    whole: GroupSummary
    exact: dict[str, GroupSummary]  # by the one source that is exact, "all" too
    alone: dict[str, GroupSummary]  # by the one source that is not

    @property
    def names(self) -> list[str]:
        """Sources, those of GROUPS in its order, then layers as they come."""
        found = [name for name in dict.fromkeys([*self.exact, *self.alone]) if name != ALL]
        listed = [name for names in GROUPS.values() for name in names if name in found]
        return listed + [name for name in found if name not in listed]


def _families(summaries: Sequence[GroupSummary]) -> list[_Arms]:
    """Recipes that have an arm as it is, and arms with one source exact or kept."""
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
    """Every recipe of a study that has arms with exact sources, in the study's order."""
    return [_attribution(study, arms) for arms in _families(summaries)]
