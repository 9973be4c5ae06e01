"""Computes the number of seeds that the margin of a study needs, before the study starts.

A plan needs one number that only runs can provide, the **seed floor**: the standard deviation over
seeds of the relative gap between an arm and the baseline of its seed (inference.py). It comes from
earlier runs: from the verdict of the same recipe if they have one (pooling.py), else pooled over
all their arms. The plan uses the rules of verdicts. The level of a comparison is the first level of
Holm's procedure, for an arm before any other has passed, at each look. The degrees of freedom are
those of the arms that will share its baseline runs."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fp8lab_analysis.judge import inference, pooling
from fp8lab_analysis.judge.compare import GroupSummary, summarise
from fp8lab_analysis.judge.phrases import counted
from fp8lab_analysis.judge.verdicts import Kind, Verdict, measured
from fp8lab_analysis.read.design import Design
from fp8lab_analysis.read.hdf5 import reading
from fp8lab_analysis.read.study import Arms, Comparison, Study, read_comparisons, read_design

PILOT_SEEDS = 4
SAFE = 0.8  # confidence that the true floor is at most the planned one (Browne)


@dataclass(frozen=True)
class PlannedStudy:
    """The comparisons and the design in a study file without runs."""

    comparisons: list[Comparison]
    design: Design  # `stated` is empty if the file states no design

    @property
    def family(self) -> int:
        """Number of comparisons for the correction: those with two or more seeds, or all if there
        are none."""
        return sum(item.seeds > 1 for item in self.comparisons) or len(self.comparisons)

    @property
    def level(self) -> float:
        """The planned level of every comparison."""
        return float(inference.step_levels(self.design.alpha, self.family, self.design.looks)[0])

    def arms_beside(self, comparison: Comparison) -> int:
        """Returns the number of arms with two or more seeds in the layout of a comparison: the arms
        that share baseline runs with it, directly or through others."""
        shared, found = set(comparison.baselines), 0
        others = [set(item.baselines) for item in self.comparisons if item.seeds > 1]
        while (reached := sum(bool(runs & shared) for runs in others)) > found:
            found = reached
            shared |= set().union(*(runs for runs in others if runs & shared))
        return max(found, 1)


@dataclass(frozen=True)
class Floor:
    """The deviation of relative gaps over seeds, a fraction, and its source."""

    sd: float
    df: float  # degrees of freedom
    source: str
    prior_df: float | None = None  # d0 of its pool; None: not pooled

    def df_of(self, count: int, arms: int) -> float:
        """Returns the degrees of freedom of a verdict over `count` seeds in a layout of `arms`
        arms. The plan assumes that the tests of homogeneity pass and that d0 is that of earlier
        runs."""
        prior = float(pooling.most_prior_df(arms))
        if self.prior_df is not None:
            prior = min(prior, self.prior_df)
        return pooling.moderated_df(prior, arms, count)

    @property
    def safe(self) -> float:
        """Upper limit of the true deviation."""
        return inference.deviation_limit(self.sd, self.df, SAFE)


@dataclass(frozen=True)
class Need:
    """The seeds and margin of one comparison for a floor."""

    comparison: Comparison
    floor: Floor
    provable: float  # margin that its seeds can show with the design's power; NaN for one seed
    seeds: int | None  # number of seeds for the design's margin; None for more than 10000
    safe_seeds: int | None  # `seeds` for the upper limit of the floor


def read_plan(path: Path) -> PlannedStudy:
    """Returns the plan in a study.h5, whose runs need not exist. Raises InputError."""
    with reading(path, "study") as file:
        comparisons = read_comparisons(file, Arms(file))
        return PlannedStudy(comparisons, read_design(file) or Design())


def floors(earlier: Sequence[GroupSummary]) -> dict[str, Floor]:
    """Returns the floor of every recipe that earlier runs compare over two or more seeds, and under
    "" the floor of all: the root of their mean variance, weighted by degrees of freedom. Diverged
    arms have no floor."""
    known: dict[str, list[Verdict]] = {}
    for summary in earlier:
        if summary.verdict.ordered:
            known.setdefault(summary.group.key.recipe, []).append(summary.verdict)
    found = {
        recipe: _behind(verdicts[0])
        for recipe, verdicts in known.items()
        if len(verdicts) == 1  # with several variants, the planned one is unknown
    }
    everything = [(v.gap.sd, v.seeds - 1) for verdicts in known.values() for v in verdicts]
    if everything:
        found[""] = _pooled(everything, f"all {counted(len(everything), 'arm')}")
    return found


def _behind(verdict: Verdict) -> Floor:
    """Returns the floor from the deviation of a verdict."""
    noise, seeds = verdict.noise, counted(verdict.seeds, "seed")
    if noise.pool:
        return Floor(noise.sd, noise.df, f"{seeds} of {noise.pool} arms", noise.prior_df)
    return Floor(noise.sd, noise.df, seeds)


def _pooled(pairs: Sequence[tuple[float, int]], source: str) -> Floor:
    """Returns the floor from the own deviations of arms and their degrees of freedom; the arms
    share their baselines (`pooling.pool_df`)."""
    total = sum(n for _, n in pairs)
    variance = sum(sd**2 * n for sd, n in pairs) / total
    return Floor(math.sqrt(variance), pooling.pool_df(len(pairs), total / len(pairs)), source)


def needs(plan: PlannedStudy, known: dict[str, Floor]) -> list[Need]:
    """Returns the needs of every comparison of the plan. Precondition: `known` has their floors."""
    design, level, found = plan.design, plan.level, []
    for comparison in plan.comparisons:
        floor = known.get(comparison.recipe, known[""])
        count = comparison.seeds
        df_of = functools.partial(floor.df_of, arms=plan.arms_beside(comparison))
        shown = math.nan
        if count > 1:
            shown = inference.provable_margin(count, floor.sd, level, design.power, df_of(count))
        seeds, safe = (
            inference.seeds_for_margin(design.margin, sd, level, design.power, df_of)
            for sd in (floor.sd, floor.safe)
        )
        found.append(Need(comparison, floor, shown, seeds, safe))
    return found


# --- in words -------------------------------------------------------------------------------------


def describe(plan: PlannedStudy, study_file: str, earlier: Study | None, source: str) -> list[str]:
    """Returns the plan as lines of text; `source` names the earlier runs, empty if none are
    given."""
    design = plan.design
    if not plan.comparisons:
        return ["no arm of this study has a baseline: there is nothing to show of its margin"]
    stated = "" if design.stated else " (the study states no [design]; a report takes this one)"
    lines = [
        f"margin {design.margin_text}, error rate {100.0 * design.alpha:g} % over "
        f"{counted(plan.family, 'comparison')} and {counted(design.looks, 'look')}, "
        f"power {100.0 * design.power:g} %{stated}"
    ]
    summaries = summarise(earlier) if earlier is not None else []
    known = floors(summaries)
    diverged = [s.group.label for s in summaries if s.verdict.kind is Kind.DIVERGED]
    if diverged:
        lines.append(f"diverged in {source}, which tells no floor: {', '.join(diverged)}")
    if not known:
        return lines + _without_floor(plan, study_file, source)
    assert earlier is not None
    lines.append(
        "floor: deviation over seeds of the gap to the baseline of the same seed, in "
        f"{source} (after {earlier.stages[-1]})"
    )
    return lines + _table(plan, needs(plan, known))


def _number(seeds: int | None) -> str:
    return f"> {inference.MOST_SEEDS}" if seeds is None else str(seeds)


def _table(plan: PlannedStudy, found: Sequence[Need]) -> list[str]:
    margin = plan.design.margin_text
    rows = [("comparison", "floor", "known from", "seeds", "they show", f"{margin} needs", "safe")]
    for need in found:
        rows.append(
            (
                need.comparison.label,
                measured(need.floor.sd),
                need.floor.source,
                str(need.comparison.seeds),
                measured(need.provable) if need.comparison.seeds > 1 else "nothing",
                f"{_number(need.seeds)} seeds",
                _number(need.safe_seeds),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]
    lines.append(
        f"safe: seeds where the floor is at the upper end of what so few seeds tell of it "
        f"({100.0 * SAFE:g} %)"
    )
    short = [n.comparison.label for n in found if n.seeds is None or n.seeds > n.comparison.seeds]
    if short:
        lines.append(f"too few seeds for {margin}: {', '.join(short)}")
    else:
        lines.append(f"the seeds are enough for {margin}, if the floors are as they were")
    return lines


def _without_floor(plan: PlannedStudy, study_file: str, source: str) -> list[str]:
    design = plan.design
    where = f"{source} compares no arm over two or more seeds" if source else "no earlier runs"
    lines = [f"the floor, the noise between seeds, is unknown: {where}"]
    layouts = {(item.seeds, plan.arms_beside(item)) for item in plan.comparisons}
    for count, arms in sorted({(n, min(a for m, a in layouts if m == n)) for n, _ in layouts}):
        if count < 2:
            lines.append("1 seed shows nothing, whatever the floor: give the study more")
            continue
        df = pooling.moderated_df(float(pooling.most_prior_df(arms)), arms, count)
        provable = inference.provable_margin(count, 1.0, plan.level, design.power, df)
        largest = design.margin / provable
        lines.append(
            f"{count} seeds show {design.margin_text} where the floor is at most "
            f"{measured(largest)}"
        )
    first = max(plan.comparisons, key=lambda item: item.seeds)
    pilot = dict.fromkeys([*first.baselines[:PILOT_SEEDS], *first.arms[:PILOT_SEEDS]])
    lines.append(
        f"a pilot of one arm and its baseline over {PILOT_SEEDS} seeds gives it, and stays part of "
        f"the study: fp8lab ablate --study {study_file} --run NAME for {', '.join(pilot)}"
        + ("" if first.seeds >= PILOT_SEEDS else f", and more seeds of these, {PILOT_SEEDS} in all")
    )
    lines.append("then: fp8lab report --plan " + study_file + " --from ITS_FOLDER")
    return lines
