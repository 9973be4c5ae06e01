"""Kinds of broken files of a model of three shards: shards, index and config.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broken_models import UP


def break_index(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def apply(folder: Path) -> None:
        file = folder / "model.safetensors.index.json"
        index = json.loads(file.read_text())
        change(index["weight_map"])
        file.write_text(json.dumps(index))

    return apply


def move_to_another_shard(names: dict[str, Any]) -> None:
    shards = sorted(set(names.values()))
    names[UP + ".weight"] = shards[(shards.index(names[UP + ".weight"]) + 1) % 3]


def truncate(folder: Path) -> None:
    file = folder / "model-00002-of-00003.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


FILES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a shard is missing": (
        lambda folder: (folder / "model-00002-of-00003.safetensors").unlink(),
        "shard_missing",
        "model-00002-of-00003.safetensors",
    ),
    "a shard is cut off": (truncate, "file_unreadable", "model-00002-of-00003.safetensors"),
    "the index is no JSON": (
        lambda folder: (folder / "model.safetensors.index.json").write_text("{"),
        "index_malformed",
        "model.safetensors.index.json",
    ),
    "the index names a tensor that is nowhere": (
        break_index(lambda names: names.update({"x.weight": "model-00001-of-00003.safetensors"})),
        "index_mismatch",
        "x.weight",
    ),
    "the index lacks a tensor": (
        break_index(lambda names: names.pop(UP + ".weight")),
        "index_mismatch",
        UP + ".weight",
    ),
    "the index names another shard": (
        break_index(move_to_another_shard),
        "index_mismatch",
        UP + ".weight",
    ),
    "a tensor is in two shards": (
        lambda folder: shutil.copy(
            folder / "model-00001-of-00003.safetensors", folder / "model-00003-of-00003.safetensors"
        ),
        "tensor_twice",
        "model.",
    ),
    "a file is not in the index": (
        lambda folder: shutil.copy(
            folder / "model-00001-of-00003.safetensors", folder / "extra.safetensors"
        ),
        "file_not_listed",
        "extra.safetensors",
    ),
    "a whole file stands beside the index": (
        lambda folder: shutil.copy(
            folder / "model-00001-of-00003.safetensors", folder / "model.safetensors"
        ),
        "index_ignored",
        "model.safetensors.index.json",
    ),
    "shards without an index": (
        lambda folder: (folder / "model.safetensors.index.json").unlink(),
        "index_missing",
        "model-00001-of-00003.safetensors",
    ),
    "no config.json": (
        lambda folder: (folder / "config.json").unlink(),
        "config_missing",
        "config.json",
    ),
    "a config.json that is no JSON": (
        lambda folder: (folder / "config.json").write_text("{'a': 1}"),
        "config_malformed",
        "config.json",
    ),
}
