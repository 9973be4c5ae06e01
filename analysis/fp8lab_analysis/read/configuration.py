"""The settings of a run that change numbers, as {dotted key: value}."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fp8lab_analysis.read.runs import Run

# Keys that change no bit of a run. The start of a run is identified by its initial weights' hash.
_NEUTRAL = ("name", "init_from", "text", "hash")
_NEUTRAL_TABLES = ("logging", "warnings", "memory")
_OTHER_SUM = "memory.loss_chunk"  # not neutral: adds the gradients of the head in chunks
_NO_STRESS = "planted_outliers.channels"  # in run files before [[stages.stress]]; 0: no stress
EXACT = "exact"  # the key of error sources replaced by exact arithmetic
_SAME_BITS = ("cpu", "cuda")  # backends with equal bits; `truth` has others


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Returns a TOML document as {dotted key: value}; tables in an array are keyed by `name`."""
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


def changes_numbers(key: str, value: str) -> bool:
    """Returns False if a setting changes no bit of a run."""
    return (
        key not in _NEUTRAL
        and (key == _OTHER_SUM or key.split(".")[0] not in _NEUTRAL_TABLES)
        and not (key == "backend" and value in _SAME_BITS)
        and not (key.endswith(_NO_STRESS) and value == "0")
    )


def _written(run: Run) -> dict[str, str]:
    try:
        flat = flatten(tomllib.loads(run.meta.get("config_text", "")))
    except tomllib.TOMLDecodeError:
        return {}
    return {key: value for key, value in flat.items() if changes_numbers(key, value)}


def _content(run: Run, key: str) -> str | None:
    """Returns the content hash of the files that a key names; None for other keys, or if the run
    file has no hash."""
    for name, content in run.identity.items():
        part, _, stage = name.partition(" of stage ")
        before = f"stages.{stage}."
        rest = key[len(before) :] if stage and key.startswith(before) else ""
        of_part = {
            "training data": rest.startswith("data.") and rest.endswith(".path"),
            "evaluation data": rest.startswith("eval.data.") and rest.endswith(".path"),
            "questions": rest == "eval.multiple_choice",
        }
        if of_part.get(part):
            return content
    return None


def configuration(run: Run) -> dict[str, str]:
    """Returns the run's resolved configuration, flattened, without settings that change no numbers.
    A key that names files has their content hash as its value, independent of their location."""
    return {key: _content(run, key) or value for key, value in _written(run).items()}


def file_names(runs: Sequence[Run], keys: Iterable[str]) -> dict[tuple[str, str], str]:
    """Returns display names of file contents, by (key, hash): the paths in the first run that read
    the contents, with the hash if other contents have the same paths."""
    names: dict[tuple[str, str], str] = {}
    for key in keys:
        for run in runs:
            content = _content(run, key)
            if content is None or key not in (written := _written(run)):
                continue
            names.setdefault((key, content), written[key])
    called = Counter((key, name) for (key, _), name in names.items())
    return {
        (key, content): name if called[key, name] == 1 else f"{name} ({content})"
        for (key, content), name in names.items()
    }


def exact_sources(run: Run) -> tuple[str, ...]:
    """Returns the error sources that the run replaces by exact arithmetic (`exact`)."""
    try:
        found = tomllib.loads(run.meta.get("config_text", "")).get(EXACT, [])
    except tomllib.TOMLDecodeError:
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()


def exact_text(sources: Sequence[str]) -> str:
    """Returns the sources as the name of a variant: "exact underflow"; empty for no sources."""
    return f"exact {', '.join(sources)}" if sources else ""


def is_recipe_key(key: str) -> bool:
    """Returns True for a key of the recipe of the run, a stage or an evaluation."""
    return key.split(".")[-1] == "recipe"


def is_change_key(key: str) -> bool:
    """Returns True for a key of a change of recipe within a stage."""
    parts = key.split(".")
    return parts[0] == "stages" and len(parts) > 2 and parts[2] in ("recipe_at", "fallback")


def recipe_changes(run: Run) -> str:
    """Describes the later recipes of stages: "then bf16 after 492 steps", "fallback bf16", with the
    stage's name if there are several stages; empty if there are none."""
    try:
        stages = tomllib.loads(run.meta.get("config_text", "")).get("stages", [])
    except tomllib.TOMLDecodeError:
        return ""
    found = []
    for stage in stages:
        place = f" of {stage['name']}" if len(stages) > 1 else ""
        for change in stage.get("recipe_at", []):
            found.append(f"then {change['recipe']} after {change['step']} steps{place}")
        if "fallback" in stage:
            found.append(f"fallback {stage['fallback']['recipe']}{place}")
    return ", ".join(found)


def is_stress_key(key: str) -> bool:
    """Returns True for a key of a stage's stresses."""
    return "stress" in key.split(".")


def stress_kinds(config: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the kinds of stress in a configuration, each once, in order."""
    kinds = (v for k, v in config.items() if is_stress_key(k) and k.endswith(".kind"))
    return tuple(dict.fromkeys(kinds))
