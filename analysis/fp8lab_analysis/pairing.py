"""Which run is compared with which.

For the runs of a study, study.h5 says it (`/arms/is_baseline`, `/arms/baseline_arm`): `fp8lab
ablate` decided it, and nothing here does so again. Run files that no study file lists are paired by
one rule:

- a baseline is a run of the baseline recipe in all its stages, with all its errors;
- any other run is compared with the first baseline of the same seed, configuration, training data
  and initial weights. Of the configuration, the recipes do not count, nor the sources of error that
  a run replaces, nor what changes no bit of a run (configuration.py). Data and questions are the
  same by their content, whatever their files are called. Without such a baseline it has none, and
  no gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fp8lab_analysis.configuration import (
    EXACT,
    configuration,
    exact_sources,
    is_change_key,
    is_recipe_key,
)
from fp8lab_analysis.runs import Run


@dataclass(frozen=True)
class Pairings:
    """The baselines among the runs of a report, and the baseline of each run that has one."""

    baselines: frozenset[Path] = frozenset()
    partners: Mapping[Path, Run] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """True when some run has a baseline to be compared with."""
        return bool(self.partners)

    def is_baseline(self, run: Run) -> bool:
        """True for a run that others are compared with."""
        return run.path in self.baselines

    def of(self, run: Run) -> Run | None:
        """The baseline of a run; None without one, and for a baseline."""
        return self.partners.get(run.path)


@dataclass(frozen=True)
class Declared:
    """What a study file says of one arm."""

    is_baseline: bool
    partner: Path | None  # run file of its baseline


def _runs_everywhere(run: Run, recipe: str) -> bool:
    """True for a run of `recipe`, with all its errors, none of whose stages trains in another."""
    config = configuration(run)
    if exact_sources(run):
        return False
    same = ("", recipe, config.get("recipe"))
    of_stages = [k for k in config if k.startswith("stages.") and is_recipe_key(k)]
    return run.recipe == recipe and all(config[k] in same for k in of_stages if ".eval." not in k)


def _identity(run: Run) -> tuple[object, ...]:
    """What a run and its baseline share."""
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
    """Takes the pairings that study files declare, by run file, and pairs the other runs by the
    rule above."""
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
