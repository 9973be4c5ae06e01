"""Collects runs into a study: which runs are seeds of one recipe, and which is whose baseline.

Runs of one (recipe, variant) form a group; a variant names whatever else sets arms apart, such as
planted outliers or another learning rate. A run is paired with the baseline run that has the same
seed and the same configuration apart from the recipe.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fp8lab_analysis.hdf5 import Damage, InputError, read_dataset, reading, texts, to_text
from fp8lab_analysis.run_reader import load_run
from fp8lab_analysis.runs import Run

STUDY_SCHEMA = "fp8lab-study-1"
SHARED_FOLDERS = ("shared", "_shared")  # leading stages that all arms start from; not an arm
PLANTED = "planted outliers"

# Configuration keys that do not set two arms apart numerically.
_NEUTRAL = ("name", "init_from", "backend", "text", "hash")
_NEUTRAL_TABLES = ("logging",)


@dataclass(frozen=True)
class GroupKey:
    """What the seeds of one arm have in common."""

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

    @property
    def label(self) -> str:
        """Text for legends and tables."""
        return self.key.label


@dataclass(frozen=True)
class Pairing:
    """The baseline run of a run; `note` says in which respect the two differ, if they do."""

    baseline: Run
    note: str = ""


@dataclass(frozen=True)
class Study:
    """All runs of a report, grouped and paired."""

    title: str
    groups: list[Group]
    pairings: dict[Path, Pairing]
    stages: list[str]
    baseline_recipe: str
    notes: list[str] = field(default_factory=list)
    meta: dict[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> list[Run]:
        """Every run, in group order."""
        return [run for group in self.groups for run in group.runs]

    def baseline_group(self, group: Group) -> Group | None:
        """The group that holds the baselines of `group`'s runs; itself for a baseline."""
        if group.is_baseline:
            return group
        partners = {
            self.pairings[run.path].baseline.path for run in group.runs if run.path in self.pairings
        }
        for candidate in self.groups:
            if any(run.path in partners for run in candidate.runs):
                return candidate
        return None


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """A TOML document as {dotted key: value}; tables in an array go by their `name`."""
    if isinstance(value, Mapping):
        items: Iterable[tuple[str, Any]] = ((str(key), item) for key, item in value.items())
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        items = ((str(item.get("name", index)), item) for index, item in enumerate(value))
    else:
        return {prefix: str(value)}
    flat: dict[str, str] = {}
    for key, item in items:
        flat.update(flatten(item, f"{prefix}.{key}" if prefix else key))
    return flat


def configuration(run: Run) -> dict[str, str]:
    """The run's resolved configuration, flattened, without keys that do not change numbers."""
    try:
        flat = flatten(tomllib.loads(run.meta.get("config_text", "")))
    except tomllib.TOMLDecodeError:
        return {}
    return {
        key: value
        for key, value in flat.items()
        if key not in _NEUTRAL and key.split(".")[0] not in _NEUTRAL_TABLES
    }


def _is_recipe_key(key: str) -> bool:
    return key.split(".")[-1] == "recipe"


def _is_planting_key(key: str) -> bool:
    return "planted_outliers" in key.split(".")


def has_planted_outliers(config: Mapping[str, str]) -> bool:
    """True when some stage of the configuration plants outlier channels."""
    return any(
        key.endswith("planted_outliers.channels") and value not in ("", "0")
        for key, value in config.items()
    )


def variant_labels(runs: Sequence[Run]) -> list[str]:
    """One label per run for what sets it apart besides recipe and seed; mostly empty."""
    configs = [configuration(run) for run in runs]
    # Runs that carry a label of their own do not make the others explain the difference.
    unlabelled = [
        config for run, config in zip(runs, configs) if config and not run.meta.get("extra.variant")
    ]
    keys = sorted({key for config in unlabelled for key in config})
    varying = [
        key
        for key in keys
        if key not in ("seed", "recipe")
        and not _is_planting_key(key)
        and len({config.get(key, "") for config in unlabelled}) > 1
    ]
    labels = []
    for run, config in zip(runs, configs):
        if run.meta.get("extra.variant"):
            labels.append(run.meta["extra.variant"])
            continue
        parts = [PLANTED] if has_planted_outliers(config) else []
        for key in varying:
            value = config.get(key, "")
            if _is_recipe_key(key) and value in ("", run.recipe):
                continue
            parts.append(f"{'.'.join(key.split('.')[-2:])} = {value or 'unset'}")
        labels.append(_shortened(parts))
    return labels


def _shortened(parts: Sequence[str]) -> str:
    """The first differences and how many more there are: a label has to fit beside a figure."""
    shown = list(parts[:2])
    if len(parts) > len(shown):
        shown.append(f"{len(parts) - len(shown)} more")
    return ", ".join(shown)


def _identity(run: Run, with_planting: bool) -> tuple[int, tuple[tuple[str, str], ...]]:
    """What a run and its baseline must share."""
    items = tuple(
        sorted(
            (key, value)
            for key, value in configuration(run).items()
            if not _is_recipe_key(key) and (with_planting or not _is_planting_key(key))
        )
    )
    return run.seed, items


def pair_with_baselines(
    runs: Sequence[Run], baseline_recipe: str, named: Mapping[str, str]
) -> dict[Path, Pairing]:
    """Finds each run's baseline: the arm that `named` gives for it, else the baseline run of equal
    seed and configuration, else one that differs only in the planting of outliers (and says so)."""
    by_name = {run.name: run for run in runs}
    baselines = [run for run in runs if run.recipe == baseline_recipe]
    pairings: dict[Path, Pairing] = {}
    for run in runs:
        wanted = named.get(run.name, "") or run.meta.get("extra.baseline", "")
        if wanted in by_name and by_name[wanted] is not run:
            pairings[run.path] = Pairing(by_name[wanted])
            continue
        if run.recipe == baseline_recipe:
            continue
        for with_planting, note in ((True, ""), (False, "baseline without planted outliers")):
            wanted_identity = _identity(run, with_planting)
            match = [b for b in baselines if _identity(b, with_planting) == wanted_identity]
            if match:
                pairings[run.path] = Pairing(match[0], note)
                break
    return pairings


@dataclass(frozen=True)
class _Source:
    """What one command-line input stands for."""

    run_files: list[Path]
    title: str = ""
    baseline_recipe: str = ""
    baseline_arm: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    meta: dict[str, str] = field(default_factory=dict)


Opening = Callable[[Path], None]  # told of each file before it is opened


def _no_one(path: Path) -> None:
    """Nobody wants to be told."""


def _arm_lists(file: Any, names: Sequence[str]) -> list[list[str]]:
    """Columns of /arms, each with an entry for every arm. Throws Damage."""
    for name in names:
        if f"arms/{name}" not in file:
            raise Damage(f"no /arms/{name}")
    columns = [texts(read_dataset(file[f"arms/{name}"]), f"/arms/{name}") for name in names]
    if len({len(column) for column in columns}) > 1:
        raise Damage(f"{', '.join(names)} of /arms differ in length")
    return columns


def _read_study_file(path: Path, opening: Opening) -> _Source:
    opening(path)
    with reading(path, "study") as file:
        schema = to_text(file["meta"].attrs.get("schema", "")) if "meta" in file else ""
        if schema != STUDY_SCHEMA:
            raise InputError(
                f"{path}: schema is '{schema}' (expected {STUDY_SCHEMA}); without study.h5 a "
                "report takes the run.h5 of its arms as arguments"
            )
        names, run_files, baselines = _arm_lists(file, ("name", "run_file", "baseline_arm"))
        complete = list(read_dataset(file["arms/complete"])) if "arms/complete" in file else []
        meta = {key: to_text(value) for key, value in file["meta"].attrs.items()}
        files = [path.parent / item for item in run_files]
        there = [item.exists() for item in files]
    missing = [name for name, found in zip(names, there) if not found]
    done = {name for name, flag in zip(names, complete) if flag}
    notes = []
    for said, those in (
        ("No run file yet for", [name for name in missing if name not in done]),
        ("Complete by study.h5, but without a run file", [n for n in missing if n in done]),
    ):
        if those:
            notes.append(f"{said}: {', '.join(those)}.")
    return _Source(
        run_files=[item for item, found in zip(files, there) if found],
        title=meta.get("title", "") or meta.get("name", ""),
        baseline_recipe=meta.get("baseline", ""),
        baseline_arm=dict(zip(names, baselines)),
        notes=notes,
        meta=meta,
    )


def _find_source(path: Path, opening: Opening) -> _Source:
    try:
        if not path.exists():
            raise InputError(
                f"{path}: no such file or directory (expected a study directory or a run file, "
                "*.h5)"
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
            item for item in sorted(path.glob("*/run.h5")) if item.parent.name not in SHARED_FOLDERS
        ]
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not found:
        raise InputError(
            f"{path}: holds neither study.h5 nor run.h5, and none of its folders holds run.h5"
        )
    return _Source(run_files=found, title=path.resolve().name)


def _stage_order(runs: Sequence[Run]) -> list[str]:
    """Union of the stages that have metric rows, in order of first appearance."""
    order: list[str] = []
    for run in runs:
        for name in run.stage_names:
            if name not in order and bool(run.stage_rows(name).any()):
                order.append(name)
    return order


def group_runs(runs: Sequence[Run], baseline_recipe: str) -> list[Group]:
    """Groups by (recipe, variant); baselines first, then planted arms after plain ones. A seed
    counts once: a second run of it (a copy, another backend) is a group of its own, for the two
    know nothing of the noise between seeds."""
    members: dict[GroupKey, list[Run]] = {}
    for run, variant in zip(runs, variant_labels(runs)):
        key = GroupKey(run.recipe, variant)
        if run.seed in [other.seed for other in members.get(key, [])]:
            again = f"seed {run.seed} again, {run.name}"
            key = GroupKey(run.recipe, f"{variant}, {again}" if variant else again)
        members.setdefault(key, []).append(run)
    groups = [
        Group(key, sorted(found, key=lambda run: run.seed), key.recipe == baseline_recipe)
        for key, found in members.items()
    ]
    order = {key: index for index, key in enumerate(members)}
    return sorted(
        groups, key=lambda g: (g.key.variant != "", g.key.variant, not g.is_baseline, order[g.key])
    )


def _load(path: Path, opening: Opening) -> Run:
    opening(path)
    return load_run(path)


def load_study(inputs: Sequence[Path], title: str = "", opening: Opening = _no_one) -> Study:
    """Reads every run that `inputs` (study directories, study.h5 or run files) stand for. Throws
    InputError when there is none or one is not readable. `opening` is told of each file first."""
    if not inputs:
        raise InputError("no input given (expected a study directory or run files, *.h5)")
    sources = [_find_source(path, opening) for path in inputs]
    files = list(dict.fromkeys(item.resolve() for source in sources for item in source.run_files))
    notes = [note for source in sources for note in source.notes]
    if not files:
        raise InputError(f"{inputs[0]}: lists no run that has a run file yet")
    runs = [_load(path, opening) for path in files]
    named = {name: arm for source in sources for name, arm in source.baseline_arm.items()}
    baseline_recipe = next((s.baseline_recipe for s in sources if s.baseline_recipe), "bf16")
    meta: dict[str, str] = next((source.meta for source in sources if source.meta), {})
    fallback = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    return Study(
        title=title or next((s.title for s in sources if s.title), fallback),
        groups=group_runs(runs, baseline_recipe),
        pairings=pair_with_baselines(runs, baseline_recipe, named),
        stages=_stage_order(runs),
        baseline_recipe=baseline_recipe,
        notes=notes,
        meta=meta,
    )
