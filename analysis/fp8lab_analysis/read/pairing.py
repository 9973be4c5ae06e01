"""Pairs runs with their baselines.

For the runs of a study, study.h5 states the pairs (`/arms/is_baseline`, `/arms/baseline_arm`), as
decided by `fp8lab ablate`. Run files that no study file lists are paired by one rule:

- a baseline is a run of the baseline recipe in all its stages, without replaced error sources;
- any other run is compared with the first baseline of the same seed, configuration, training data
  and initial weights. The comparison of configurations ignores the recipes, the replaced error
  sources, and settings that change no bit of a run (configuration.py). Data and questions are
  compared by content, not by file name. A run without such a baseline has no gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fp8lab_analysis.read.configuration import (
    EXACT,
    configuration,
    exact_sources,
    is_change_key,
    is_recipe_key,
)
from fp8lab_analysis.read.runs import Run


@dataclass(frozen=True)
class Pairings:
    """The baselines among the runs of a report, and the baseline of each run that has one."""

    baselines: frozenset[Path] = frozenset()
    partners: Mapping[Path, Run] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """True if any run has a baseline."""
        return bool(self.partners)

    def is_baseline(self, run: Run) -> bool:
        """Returns True if the run is a baseline."""
        return run.path in self.baselines

    def of(self, run: Run) -> Run | None:
        """Returns the baseline of a run; None if it has none or is a baseline itself."""
        return self.partners.get(run.path)


@dataclass(frozen=True)
class Declared:
    """The pairing of one arm in a study file."""

    is_baseline: bool
    partner: Path | None  # run file of its baseline


def _runs_everywhere(run: Run, recipe: str) -> bool:
    """Returns True if all stages of a run train in `recipe`, without replaced error sources."""
    config = configuration(run)
    if exact_sources(run):
        return False
    same = ("", recipe, config.get("recipe"))
    of_stages = [k for k in config if k.startswith("stages.") and is_recipe_key(k)]
    return run.recipe == recipe and all(config[k] in same for k in of_stages if ".eval." not in k)


def _identity(run: Run) -> tuple[object, ...]:
    """Returns the properties in which a run and its baseline must agree."""
    shared = {
        key: value
        for key, value in configuration(run).items()
        if not is_recipe_key(key) and not is_change_key(key) and key != EXACT
    }
    contents = [run.meta.get(key, "") for key in ("data_hash", "initial_weights_hash")]
    contents.append(run.identity.get("arithmetic", ""))
    return (run.seed, *contents, *sorted(shared.items()))


def pair_runs(
    runs: Sequence[Run], declared: Mapping[Path, Declared], baseline_recipe: str
) -> Pairings:
    """Uses the pairings that study files declare, by run file, and pairs the other runs by the rule
    above."""
    by_path = {run.path: run for run in runs}
    baselines = {path for path, arm in declared.items() if arm.is_baseline and path in by_path}
    partners = {
        path: by_path[arm.partner]
        for path, arm in declared.items()
        if arm.partner in by_path and path in by_path
    }
    loose = [run for run in runs if run.path not in declared]
    baselines |= {run.path for run in loose if _runs_everywhere(run, baseline_recipe)}
    known: dict[tuple[object, ...], Run] = {}
    for run in runs if loose else []:
        if run.path in baselines:
            known.setdefault(_identity(run), run)
    for run in loose:
        match = known.get(_identity(run))
        if match is not None and run.path not in baselines:
            partners[run.path] = match
    return Pairings(frozenset(baselines), partners)
