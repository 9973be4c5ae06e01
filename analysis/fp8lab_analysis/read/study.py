"""Collects runs into a study: groups the seeds of each arm and assigns baselines.

Runs with the same recipe and variant form a group. A variant names the other settings that
distinguish arms, such as stresses or another learning rate: the settings of the study's axes, else
the keys that differ. pairing.py assigns baselines.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fp8lab.errors import where_looked
from fp8lab_analysis.read.axes import (
    MOST_CHOICES,
    Settings,
    axis_keys,
    axis_settings,
    other_settings,
    read_axes,
)
from fp8lab_analysis.read.configuration import (
    EXACT,
    configuration,
    exact_sources,
    exact_text,
    file_names,
    is_change_key,
    is_recipe_key,
    is_stress_key,
    recipe_changes,
    stress_kinds,
)
from fp8lab_analysis.read.design import Design
from fp8lab_analysis.read.hdf5 import (
    Damage,
    InputError,
    NothingYet,
    numbers,
    read_dataset,
    reading,
    texts,
    to_text,
)
from fp8lab_analysis.read.pairing import Declared, Pairings, pair_runs
from fp8lab_analysis.read.run_reader import load_run
from fp8lab_analysis.read.runs import Run

STUDY_SCHEMA = "fp8lab-study-2"
FIRST_SCHEMA = "fp8lab-study-1"  # without a flag for baselines; its statistics are not read
STUDY_SCHEMAS = (FIRST_SCHEMA, STUDY_SCHEMA)
DESIGN = ("margin", "alpha", "power", "looks", "arms_begun", "stated")  # attributes of /design
SHARED = re.compile(r"_?shared(-.*)?")  # folders of shared leading stages, from which arms start
BASELINE_RECIPE = "bf16"  # for run files without a study file


@dataclass(frozen=True)
class GroupKey:
    """The common recipe and variant of an arm's seeds."""

    recipe: str
    variant: str

    @property
    def label(self) -> str:
        """Text for legends and tables."""
        return f"{self.recipe} ({self.variant})" if self.variant else self.recipe


@dataclass(frozen=True)
class Group:
    """The runs of one recipe and variant, one per seed."""

    key: GroupKey
    runs: list[Run]
    is_baseline: bool
    shared: str = ""  # the common variant of all groups of the study; shown once

    @property
    def label(self) -> str:
        """Text for legends and tables."""
        return self.key.label

    @property
    def full_label(self) -> str:
        """The label with the common variant of all groups, for use outside the study."""
        return GroupKey(self.key.recipe, self.shared or self.key.variant).label


@dataclass(frozen=True)
class Comparison:
    """An arm over its seeds, and its baselines, as listed in a study file."""

    recipe: str
    label: str
    arms: list[str]  # names, one per seed
    baselines: list[str]  # names, of the same seeds

    @property
    def seeds(self) -> int:
        """Number of pairs that share no run."""
        return len(set(self.baselines))


@dataclass(frozen=True)
class Planned:
    """The run files of a comparison over two or more seeds; they need not exist."""

    arms: frozenset[Path]
    baselines: frozenset[Path]


@dataclass(frozen=True)
class Study:
    """All runs of a report, grouped and paired."""

    title: str
    groups: list[Group]
    pairings: Pairings
    stages: list[str]
    baseline_recipe: str
    notes: list[str] = field(default_factory=list)
    meta: dict[str, str] = field(default_factory=dict)
    design: Design = Design()
    awaited: int = 0  # number of listed arms without a run file that are not marked complete
    missing: int = 0  # number of listed arms without a run file
    planned: frozenset[Planned] = frozenset()  # comparisons listed in a study file

    @property
    def runs(self) -> list[Run]:
        """Every run, in group order."""
        return [run for group in self.groups for run in group.runs]

    @property
    def complete(self) -> bool:
        """True if every run that the study lists exists and is complete."""
        return self.awaited == 0 and all(run.complete for run in self.runs)

    @property
    def progress(self) -> tuple[tuple[Path, int, int, bool], ...]:
        """For each run: file, rows of metrics, rows of evaluations, and completion. Changes
        whenever a run advances."""
        return tuple(
            (run.path, len(run.metrics), len(run.evaluations), run.complete) for run in self.runs
        )

    def baseline_group(self, group: Group) -> Group | None:
        """Returns the group of the baselines of `group`'s runs; `group` itself if it is one."""
        if group.is_baseline:
            return group
        partners = [self.pairings.of(run) for run in group.runs]
        paths = {partner.path for partner in partners if partner is not None}
        for candidate in self.groups:
            if any(run.path in paths for run in candidate.runs):
                return candidate
        return None


@dataclass(frozen=True)
class ArmSettings:
    """The settings of one arm in a study file with axes."""

    by_axes: Settings  # settings of the axes that labels need, in the order of the axes
    others: Settings


_OWN_PART = ("seed", "recipe", EXACT)  # keys with a separate place in a label


def variant_labels(
    runs: Sequence[Run], settings: Mapping[Path, ArmSettings] | None = None
) -> list[str]:
    """Returns one label per run for its distinguishing settings besides recipe and seed; often
    empty. Labels of runs under stress contain the kinds of stress. They are distinguished only
    among each other, so that the labels of other runs do not mention stresses. Run files in
    `settings` (studies with axes) are distinguished by these settings, others by the keys that
    differ."""
    settings = settings or {}
    configs = [configuration(run) for run in runs]
    kinds = [stress_kinds(config) for config in configs]
    varying = {
        those: _varying_keys(
            [
                config
                for run, config, own in zip(runs, configs, kinds)
                if own == those and config and not run.meta.get("extra.variant")
            ]
        )
        for those in set(kinds)
    }
    names = file_names(runs, {key for keys in varying.values() for key in keys})
    parts: list[Parts] = []
    for run, config, own in zip(runs, configs, kinds):
        if run.meta.get("extra.variant"):
            parts.append({"": run.meta["extra.variant"]})
            continue
        parts.append({kind: kind.replace("_", " ") for kind in own})
        if any(map(is_change_key, varying[own])) and (changes := recipe_changes(run)):
            parts[-1]["recipe_at"] = changes
        found = {key: config.get(key, "") for key in varying[own]}
        found = {key: names.get((key, value), value) for key, value in found.items()}
        if run.path in settings:
            found = {key: value for key, value in found.items() if is_stress_key(key)}
            others = settings[run.path].others.items()
            found.update({key: value for key, value in others if not is_stress_key(key)})
        parts[-1].update(_words(run, found))
    return [
        ", ".join(filter(None, (text, _axes_text(run, settings), exact_text(exact_sources(run)))))
        for run, text in zip(runs, _shortened(parts))
    ]


def _words(run: Run, settings: Mapping[str, str]) -> Parts:
    """Returns "learning_rate.peak = 0.001" by key, without keys that have a separate place."""
    found = {}
    for key, value in settings.items():
        if key in _OWN_PART or is_change_key(key):
            continue
        if is_recipe_key(key) and value in ("", run.recipe):
            continue
        words = key.split(".")[-1:] if is_stress_key(key) else key.split(".")[-2:]
        found[key] = f"{'.'.join(words)} = {value or 'unset'}"
    return found


def _axes_text(run: Run, settings: Mapping[Path, ArmSettings]) -> str:
    if run.path not in settings or run.meta.get("extra.variant"):
        return ""
    by_axes = settings[run.path].by_axes.items()
    return ", ".join(_words(run, {k: v for k, v in by_axes if not is_stress_key(k)}).values())


def _varying_keys(configs: Sequence[Mapping[str, str]]) -> list[str]:
    """Returns the keys, except seed, recipe and exact, in which the configurations differ."""
    keys = sorted({key for config in configs for key in config} - set(_OWN_PART))
    return [key for key in keys if len({config.get(key, "") for config in configs}) > 1]


def differing_settings(groups: Sequence[Group]) -> list[tuple[str, str, list[str]]]:
    """The keys of the configuration, except seed and recipe, in which the groups differ: key, value
    ("" where it is not set) and the labels of the groups that have it."""
    configs = [configuration(group.runs[0]) for group in groups]
    rows = []
    for key in _varying_keys(configs):
        values = [config.get(key, "") for config in configs]
        for value in dict.fromkeys(values):
            labels = [group.label for group, own in zip(groups, values) if own == value]
            rows.append((key, value, labels))
    return rows


Parts = dict[str, str]  # distinguishing settings of a run: text by key


def _shortened(parts: Sequence[Parts]) -> list[str]:
    """Returns for each run the first two differences and the number of others, since a label must
    fit next to a figure. If these do not distinguish the variants, uses two or three keys that do,
    else all keys."""
    known = dict.fromkeys(key for part in parts for key in part)
    every = sorted(known, key=lambda key: not key.endswith("kind"))  # first kinds, then amounts
    apart = len({tuple(part.items()) for part in parts})

    def texts(keys: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        return [tuple(p[key] for key in those if key in p) for p, those in zip(parts, keys)]

    first = [tuple(part)[:2] for part in parts]
    few = (keys for size in (2, 3) for keys in itertools.combinations(every, size))
    tried = itertools.islice(few, MOST_CHOICES)
    choices = itertools.chain([first], ([keys] * len(parts) for keys in tried))
    told = (texts(keys) for keys in choices)
    shown = next((t for t in told if len(set(t)) == apart), texts([tuple(every)] * len(parts)))
    labels = []
    for part, words in zip(parts, shown):
        more = len(part) - len(words)
        labels.append(", ".join([*words, f"{more} more"] if more else words))
    return labels


@dataclass(frozen=True)
class _Source:
    """The runs and settings of one command-line input."""

    run_files: list[Path]
    title: str = ""
    baseline_recipe: str = ""
    declared: dict[Path, Declared] = field(default_factory=dict)  # by run file
    settings: dict[Path, ArmSettings] = field(
        default_factory=dict
    )  # by run file, for a study with axes
    notes: list[str] = field(default_factory=list)
    meta: dict[str, str] = field(default_factory=dict)
    design: Design | None = None  # stated in the study file
    awaited: int = 0  # number of arms without a run file that are not marked complete
    missing: int = 0  # number of arms without a run file
    planned: list[Planned] = field(default_factory=list)


Opening = Callable[[Path], None]  # called with each file before it is opened


def _no_one(path: Path) -> None:
    """Ignores the file name."""


class Arms:
    """Columns of /arms, all of one length. Raises Damage."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        self.names = self.texts("name")

    def texts(self, name: str) -> list[str]:
        """Returns a column of text."""
        return self._whole(name, texts(self._column(name), f"/arms/{name}"))

    def flags(self, name: str) -> list[bool]:
        """Returns a column of zeros and ones."""
        column = numbers(self._column(name), f"/arms/{name}", "iu")
        if column.ndim != 1 or bool((column > 1).any()):
            raise Damage(f"/arms/{name} does not hold flags")
        return self._whole(name, [bool(item) for item in column])

    def _column(self, name: str) -> np.ndarray[Any, Any]:
        if f"arms/{name}" not in self._file:
            raise Damage(f"no /arms/{name}")
        return read_dataset(self._file[f"arms/{name}"])

    def _whole(self, name: str, column: list[Any]) -> list[Any]:
        if name != "name" and len(column) != len(self.names):
            raise Damage(f"/arms/{name} has another length than /arms/name")
        return column


def _declared(
    arms: Arms, files: Sequence[Path], schema: str, baseline_recipe: str
) -> dict[Path, Declared]:
    """Returns the pairing of each run file in the study file."""
    partners = arms.texts("baseline_arm")
    if schema == FIRST_SCHEMA:
        flags = [recipe == baseline_recipe for recipe in arms.texts("recipe")]
    else:
        flags = arms.flags("is_baseline")
    by_name = dict(zip(arms.names, files))
    unknown = [name for name in partners if name and name not in by_name]
    if unknown:
        raise Damage(f"/arms/baseline_arm names '{unknown[0]}', which is no arm")
    return {
        file.resolve(): Declared(flag, by_name[name].resolve() if name else None)
        for file, flag, name in zip(files, flags, partners)
    }


def read_comparisons(file: h5py.File, arms: Arms) -> list[Comparison]:
    """Returns the comparisons of a study file: arms of one recipe whose settings differ only in the
    seed. Raises Damage."""
    recipes, partners = arms.texts("recipe"), arms.texts("baseline_arm")
    axes = read_axes(file, len(arms.names))
    rows: dict[tuple[str, ...], list[int]] = {}
    settings = [key for key in axes if key not in ("seed", "recipe")]
    for row, partner in enumerate(partners):
        if partner:
            key = (recipes[row], *(axes[name][row] for name in settings))
            rows.setdefault(key, []).append(row)
    alone = [recipe for recipe, *_ in rows]
    comparisons = []
    for (recipe, *values), members in rows.items():
        others = [f"{k.split('.')[-1]} = {v}" for k, v in zip(settings, values) if v]
        varied = alone.count(recipe) > 1 and others
        comparisons.append(
            Comparison(
                recipe,
                f"{recipe} ({', '.join(others)})" if varied else recipe,
                [arms.names[row] for row in members],
                [partners[row] for row in members],
            )
        )
    return comparisons


def _settings(file: h5py.File, files: Sequence[Path], config_text: str) -> dict[Path, ArmSettings]:
    """Returns the settings of each run file's arm in a study file with axes; empty without axes."""
    keys = axis_keys(config_text)
    columns = read_axes(file, len(files)) if keys else {}
    arms = zip(axis_settings(columns, keys), other_settings(columns, keys))
    return {path.resolve(): ArmSettings(*arm) for path, arm in zip(files, arms)}


def read_design(file: h5py.File) -> Design | None:
    """Returns the design that /design states; None if it states none. Raises Damage."""
    if "design" not in file:
        return None
    found = dict(file["design"].attrs.items())
    missing = [name for name in DESIGN if name not in found]
    if missing:
        raise Damage(f"/design has no attribute '{missing[0]}'")
    for name in DESIGN[:-1]:
        if np.shape(found[name]) or np.asarray(found[name]).dtype.kind not in "iuf":
            raise Damage(f"/design {name} is no number: {ascii(found[name])}")
    margin, alpha, power = (float(found[name]) for name in DESIGN[:3])
    looks = float(found["looks"])
    design = Design(
        margin, alpha, power, int(looks) if looks.is_integer() else 0, to_text(found["stated"])
    )
    if design.problem():
        raise Damage(f"/design: {design.problem()}")
    if not design.stated:
        raise Damage("/design does not say when it was stated")
    if found["arms_begun"] > 0:  # stated after results existed
        return dataclasses.replace(design, stated="")
    return design


def _agreed_design(sources: Sequence[_Source]) -> tuple[Design, list[str]]:
    """Returns the design that the study files state, with a note if they state different ones."""
    stated = list(dict.fromkeys(s.design for s in sources if s.design is not None))
    if len({dataclasses.replace(design, stated="") for design in stated}) > 1:
        return Design(), ["The studies state different margins or levels; none of them is used."]
    return (stated[-1] if stated else Design()), []


def _inside(run_file: str, path: Path) -> str:
    """Returns the run file. Raises InputError if it is not in the folder of the study."""
    if not Path(run_file).is_absolute() and ".." not in Path(run_file).parts:
        return run_file
    raise InputError(
        f"{path}: names the run file '{run_file}' (expected one in the folder of the study)"
    )


def _read_study_file(path: Path, opening: Opening) -> _Source:
    opening(path)
    with reading(path, "study") as file:
        schema = to_text(file["meta"].attrs.get("schema", "")) if "meta" in file else ""
        if schema not in STUDY_SCHEMAS:
            raise InputError(
                f"{path}: schema is '{schema}' (expected {' or '.join(STUDY_SCHEMAS)}); without "
                "study.h5 a report takes the run.h5 of its arms as arguments"
            )
        meta = {key: to_text(value) for key, value in file["meta"].attrs.items()}
        arms = Arms(file)
        files = [path.parent / _inside(item, path) for item in arms.texts("run_file")]
        complete = dict(zip(arms.names, arms.flags("complete")))
        declared = _declared(arms, files, schema, meta.get("baseline", ""))
        file_of = {name: item.resolve() for name, item in zip(arms.names, files)}
        planned = [
            Planned(
                frozenset(file_of[name] for name in comparison.arms),
                frozenset(file_of[name] for name in comparison.baselines),
            )
            for comparison in read_comparisons(file, arms)
            if comparison.seeds > 1
        ]
        settings = _settings(file, files, meta.get("config_text", ""))
        design = read_design(file)
        there = [item.exists() for item in files]
    missing = [name for name, found in zip(arms.names, there) if not found]
    notes = []
    for said, those in (
        ("No run file yet for", [name for name in missing if not complete[name]]),
        ("Complete by study.h5, but without a run file", [n for n in missing if complete[n]]),
    ):
        if those:
            notes.append(f"{said}: {', '.join(those)}.")
    return _Source(
        run_files=[item for item, found in zip(files, there) if found],
        title=meta.get("title", "") or meta.get("name", ""),
        baseline_recipe=meta.get("baseline", ""),
        declared=declared,
        settings=settings,
        notes=notes,
        meta=meta,
        design=design,
        awaited=sum(1 for name in missing if not complete[name]),
        missing=len(missing),
        planned=planned,
    )


def _find_source(path: Path, opening: Opening) -> _Source:
    try:
        if not path.exists():
            raise InputError(
                f"{path}: no such file or directory{where_looked(path)} (expected a study "
                "directory or a run file, *.h5)"
            )
        if not path.is_dir():
            if path.name == "study.h5":
                return _read_study_file(path, opening)
            return _Source(run_files=[path])
        if (path / "study.h5").exists():
            return _read_study_file(path / "study.h5", opening)
        if (path / "run.h5").exists():
            return _Source(run_files=[path / "run.h5"])
        found = [
            item for item in sorted(path.glob("*/run.h5")) if not SHARED.fullmatch(item.parent.name)
        ]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not found:
        raise InputError(
            f"{path}: holds neither study.h5 nor run.h5, and none of its folders holds run.h5"
        )
    return _Source(run_files=found, title=path.resolve().name)


def _stage_order(runs: Sequence[Run]) -> list[str]:
    """Returns all stages that have metric rows, in order of first appearance."""
    order: list[str] = []
    for run in runs:
        for name in run.stage_names:
            if name not in order and bool(run.stage_rows(name).any()):
                order.append(name)
    return order


def group_runs(
    runs: Sequence[Run],
    pairings: Pairings,
    settings: Mapping[Path, ArmSettings] | None = None,
) -> list[Group]:
    """Returns groups by (recipe, variant): baselines first, then plain arms, then stressed arms. A
    group has one run per seed. A second run of a seed (a copy, another backend) is a separate
    group, since it contains no noise between seeds. A common variant of all groups is in
    `Group.shared`."""
    members: dict[GroupKey, list[Run]] = {}
    for run, variant in zip(runs, variant_labels(runs, settings)):
        key = GroupKey(run.recipe, variant)
        if run.seed in [other.seed for other in members.get(key, [])]:
            again = f"seed {run.seed} again, {run.name}"
            key = GroupKey(run.recipe, f"{variant}, {again}" if variant else again)
        members.setdefault(key, []).append(run)
    groups = [
        Group(key, sorted(found, key=lambda run: run.seed), all(map(pairings.is_baseline, found)))
        for key, found in members.items()
    ]
    order = {key: index for index, key in enumerate(members)}
    groups.sort(key=lambda g: (g.key.variant != "", g.key.variant, not g.is_baseline, order[g.key]))
    return _shared_once(groups)


def _shared_once(groups: list[Group]) -> list[Group]:
    """Moves a variant that all groups have from their labels to `shared`."""
    variants = {group.key.variant for group in groups}
    if len(variants) != 1 or "" in variants:
        return groups
    (shared,) = variants
    return [
        dataclasses.replace(group, key=GroupKey(group.key.recipe, ""), shared=shared)
        for group in groups
    ]


def _load(path: Path, opening: Opening) -> Run:
    opening(path)
    return load_run(path)


def load_study(inputs: Sequence[Path], title: str = "", opening: Opening = _no_one) -> Study:
    """Reads every run of `inputs` (study directories, study.h5 or run files). Raises InputError if
    there is none or one is not readable. Calls `opening` before it opens a file."""
    if not inputs:
        raise InputError("no input given (expected a study directory or run files, *.h5)")
    sources = [_find_source(path, opening) for path in inputs]
    files = list(dict.fromkeys(item.resolve() for source in sources for item in source.run_files))
    design, notes = _agreed_design(sources)
    notes = [note for source in sources for note in source.notes] + notes
    if not files:
        raise NothingYet(f"{inputs[0]}: lists no run that has a run file yet")
    runs = [_load(path, opening) for path in files]
    declared = {path: arm for source in sources for path, arm in source.declared.items()}
    # Several inputs can differ in settings that are on no axis.
    settings = sources[0].settings if len(sources) == 1 else {}
    named = next((s.baseline_recipe for s in sources if s.baseline_recipe), BASELINE_RECIPE)
    pairings = pair_runs(runs, declared, named)
    baseline_recipe = next((run.recipe for run in runs if pairings.is_baseline(run)), named)
    meta: dict[str, str] = next((source.meta for source in sources if source.meta), {})
    fallback = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    return Study(
        title=title or next((s.title for s in sources if s.title), fallback),
        groups=group_runs(runs, pairings, settings),
        pairings=pairings,
        stages=_stage_order(runs),
        baseline_recipe=baseline_recipe,
        notes=notes,
        meta=meta,
        design=design,
        awaited=sum(source.awaited for source in sources),
        missing=sum(source.missing for source in sources),
        planned=frozenset(item for source in sources for item in source.planned),
    )
