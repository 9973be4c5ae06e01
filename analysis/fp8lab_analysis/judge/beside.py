"""Compares two studies: arms matched by name and configuration, and changed verdicts.

No test compares the two studies: each verdict belongs to its own study, with its own margin,
correction and seeds. Differences of configuration are listed with the verdicts, since they can
explain a change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fp8lab_analysis.judge.compare import GroupSummary
from fp8lab_analysis.judge.phrases import counted
from fp8lab_analysis.read.configuration import configuration
from fp8lab_analysis.read.runs import Run
from fp8lab_analysis.read.study import Group, Study

MOST_NAMED = 4  # differences that a sentence lists
FACTS = ("data_hash", "initial_weights_hash", "code_version", "backend", "device", "math_profile")


@dataclass(frozen=True)
class ArmPair:
    """An arm of this study and its match in the other; None if a study lacks it."""

    ours: GroupSummary | None
    theirs: GroupSummary | None
    differences: list[str]  # of configuration and origin, "name (here / there)"

    @property
    def label(self) -> str:
        """Name of the arm, in this study if it has the arm."""
        found = self.ours or self.theirs
        assert found is not None
        return found.group.label

    @property
    def changed(self) -> bool:
        """True if both studies have a verdict on the arm and the verdicts differ."""
        kinds = {s.verdict.kind for s in (self.ours, self.theirs) if s is not None}
        return len(kinds) > 1


@dataclass(frozen=True)
class Beside:
    """The comparison of a report's study with another study."""

    study: Study
    pairs: list[ArmPair]
    sentences: list[tuple[str, str]]  # kind and text


def _plain(group: Group) -> dict[str, str]:
    """Returns the configuration of an arm without its seed."""
    found = configuration(group.runs[0])
    return {key: value for key, value in found.items() if key != "seed"}


def _origin(run: Run) -> dict[str, str]:
    facts = {key: run.meta.get(key, "") for key in FACTS}
    facts["recipe_hash"] = run.meta.get("recipe_hash", "")
    return facts


def _listed(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Lists the differences of two tables of text."""
    keys = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key)]
    return [f"{key} ({ours.get(key, '–')} / {theirs.get(key, '–')})" for key in keys]


def _same_seed(ours: Group, theirs: Group) -> tuple[Run, Run]:
    """Returns a run of each arm, with a common seed if possible: initial weights depend on it."""
    for run in ours.runs:
        for other in theirs.runs:
            if run.seed == other.seed:
                return run, other
    return ours.runs[0], theirs.runs[0]


def _differences(ours: Group, theirs: Group) -> list[str]:
    """Lists the differences of two arms in configuration and origin."""
    run, other = _same_seed(ours, theirs)
    found = _listed(_plain(ours), _plain(theirs)) + _listed(_origin(run), _origin(other))
    seeds = [", ".join(str(r.seed) for r in group.runs) for group in (ours, theirs)]
    return found + ([f"seeds ({seeds[0]} / {seeds[1]})"] if seeds[0] != seeds[1] else [])


def match_arms(
    ours: Sequence[GroupSummary], theirs: Sequence[GroupSummary]
) -> list[tuple[GroupSummary | None, GroupSummary | None]]:
    """Matches arms with equal names, then arms with equal recipe and configuration, since a name
    distinguishes arms only within its own study. In the order of `ours`, then the others."""
    left = {s.group.full_label: s for s in theirs}
    found: dict[str, GroupSummary | None] = {
        s.group.full_label: left.pop(s.group.full_label, None) for s in ours
    }
    for summary in ours:
        if found[summary.group.full_label] is not None:
            continue
        for label, other in left.items():
            same_recipe = other.group.key.recipe == summary.group.key.recipe
            if same_recipe and _plain(other.group) == _plain(summary.group):
                found[summary.group.full_label] = left.pop(label)
                break
    return [*((s, found[s.group.full_label]) for s in ours), *((None, s) for s in left.values())]


def lay_beside(
    study: Study, summaries: Sequence[GroupSummary], other: Study, theirs: Sequence[GroupSummary]
) -> Beside:
    """Compares `study` with `other`."""
    pairs = [
        ArmPair(a, b, _differences(a.group, b.group) if a and b else [])
        for a, b in match_arms(summaries, theirs)
    ]
    return Beside(other, pairs, _sentences(study, other, pairs))


def _sentences(study: Study, other: Study, pairs: Sequence[ArmPair]) -> list[tuple[str, str]]:
    """States the changed verdicts, and the differences that can explain them."""
    both = [p for p in pairs if p.ours and p.theirs and not p.ours.group.is_baseline]
    changed = [p for p in both if p.changed]
    said = [("fact", _changed_text(both, changed))]
    lone = [p.label for p in pairs if p.theirs is None], [p.label for p in pairs if p.ours is None]
    for labels, where in zip(lone, ("this study", "the other")):
        if labels:
            said.append(("fact", f"Only in {where}: {', '.join(labels)}."))
    design = _listed(_design(study), _design(other))
    if design:
        said.append(
            (
                "caution",
                f"The studies are judged differently, {'; '.join(design)}: verdicts of the same "
                "name do not say the same.",
            )
        )
    differing: dict[str, list[str]] = {}
    for pair in pairs:
        for text in pair.differences:
            differing.setdefault(text, []).append(pair.label)
    matched = sum(1 for p in pairs if p.ours and p.theirs)
    told = [
        text if len(labels) == matched else f"{text} of {', '.join(labels)}"
        for text, labels in differing.items()
    ]
    if told:
        more = f"; and {len(told) - MOST_NAMED} more in tables/beside.csv"
        text = "; ".join(told[:MOST_NAMED]) + (more if len(told) > MOST_NAMED else "")
        said.append(("caution", f"Arms of one name were not run alike: {text}."))
    elif matched:
        said.append(("good", "Configuration, recipes, data, first weights, seeds and code agree."))
    return said


def _design(study: Study) -> dict[str, str]:
    design = study.design
    return {
        "margin": design.margin_text,
        "error rate": f"{100.0 * design.alpha:g} %",
        "looks": str(design.looks),
        "stated beforehand": "yes" if design.stated else "no",
        "baseline": study.baseline_recipe,
    }


def _changed_text(both: Sequence[ArmPair], changed: Sequence[ArmPair]) -> str:
    if not both:
        return "No arm but baselines is in both studies."
    if not changed:
        return f"The verdict on {counted(len(both), 'arm')} is the same in both studies."
    told = [
        f"{p.label} from {p.theirs.verdict.kind.value} to {p.ours.verdict.kind.value}"
        for p in changed
        if p.ours and p.theirs
    ]
    return (
        f"The verdict changed for {len(changed)} of {counted(len(both), 'arm')}, from the other "
        f"study to this one: {'; '.join(told)}."
    )
