"""The settings of a study's arms by its axes: /axes of study.h5, in the order of the study file."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import h5py

from fp8lab_analysis.read.configuration import changes_numbers, flatten
from fp8lab_analysis.read.hdf5 import Damage, read_dataset, texts, to_text

MOST_CHOICES = 5000  # combinations of keys that are tried as labels
Settings = dict[str, str]  # value by dotted key


def read_axes(file: h5py.File, arms: int) -> dict[str, list[str]]:
    """Returns by key its TOML value in every arm; empty text for an arm that does not set the key.
    Empty for a study file without /axes. Raises Damage."""
    columns = {}
    for name, item in file["axes"].items() if "axes" in file else ():
        column = texts(read_dataset(item), f"/axes/{name}")
        if "key" not in item.attrs or len(column) != arms:
            raise Damage(f"/axes/{name} has no key, or another length than /arms/name")
        columns[to_text(item.attrs["key"])] = column
    return columns


def axis_keys(config_text: str) -> list[str]:
    """Returns the keys of the [[axis]] tables of a study file, in its order."""
    try:
        tables = tomllib.loads(config_text).get("axis", [])
    except tomllib.TOMLDecodeError:
        return []
    return [str(table.get("key", "")) for table in tables if isinstance(table, Mapping)]


def _leaves(key: str, value: str) -> Settings:
    """Returns the settings in the value of an axis; a table contains several."""
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    return flatten(parsed, key) or {key: value}


def _telling_keys(values: Sequence[Settings]) -> list[str]:
    """Returns one to three keys that all values of an axis have and that distinguish the values; if
    there are none, all keys that vary."""
    known = dict.fromkeys(key for value in values for key in value)
    varying = [key for key in known if len({value.get(key) for value in values}) > 1]
    few = (keys for size in (1, 2, 3) for keys in itertools.combinations(varying, size))
    for keys in itertools.islice(few, MOST_CHOICES):
        told = {tuple(value.get(key) for key in keys) for value in values}
        if len(told) == len(values) and (None,) * len(keys) not in told:
            return list(keys)
    return varying


def axis_settings(columns: Mapping[str, Sequence[str]], keys: Sequence[str]) -> list[Settings]:
    """Returns for every arm the settings of the axes `keys`, in their order. For an axis whose
    values are tables, only the keys that distinguish them; nothing for an axis with one value."""
    arms = len(next(iter(columns.values()), ()))
    found: list[Settings] = [{} for _ in range(arms)]
    for key in keys:
        column = columns.get(key, [""] * arms)
        leaves = {value: _leaves(key, value) for value in dict.fromkeys(column) if value}
        told = _telling_keys(list(leaves.values()))
        for settings, value in zip(found, column):
            own = leaves.get(value, {})
            settings.update({k: own[k] for k in told if k in own and changes_numbers(k, own[k])})
    return found


def other_settings(columns: Mapping[str, Sequence[str]], keys: Sequence[str]) -> list[Settings]:
    """Returns for every arm its settings outside the axes `keys`."""
    arms = len(next(iter(columns.values()), ()))
    found: list[Settings] = [{} for _ in range(arms)]
    for key in sorted(set(columns) - set(keys)):
        for settings, value in zip(found, columns[key]):
            own = _leaves(key, value) if value else {}
            settings.update({k: v for k, v in own.items() if changes_numbers(k, v)})
    return found
