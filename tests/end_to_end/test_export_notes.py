"""What `export` says of tiles that differ from those of training, held against NumPy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import CONFIG, Stored, decode, random_tensors, read_folder, write_folder
from program import run

Array = np.ndarray[Any, np.dtype[Any]]

PARTS = [
    ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    ["mlp.gate_proj", "mlp.up_proj"],
]
NOTE = re.compile(
    r"fp8lab: note: (\d+) of (\d+) quantized weights, (\S+) the first, have other tiles \((\S+)\)"
)
# 9 heads and 3 key-value heads of 64 make 576, 192 and 192 rows: q ends within a block of 128.
SHARED: dict[str, Any] = {
    "hidden_size": 576,
    "intermediate_size": 256,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 2,
}
# Queries and keys of whole blocks; the gate ends within one.
GATE: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 200,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
WHOLE: dict[str, Any] = GATE | {"intermediate_size": 384}


def of_tiles(values: Array, tile: int, reduce: Callable[[Array], Any]) -> Array:
    """`reduce` of the square tile that each element is in; 0: of all."""
    found = np.empty_like(values)
    rows, cols = tile or values.shape[0], tile or values.shape[1]
    for row in range(0, values.shape[0], rows):
        for col in range(0, values.shape[1], cols):
            place = np.s_[row : row + rows, col : col + cols]
            found[place] = reduce(values[place])
    return found


def regrouped(tensors: dict[str, Stored], layers: int, tile: int) -> list[str]:
    """The weights of which some element has another tile within the matrix of training."""
    names = []
    for layer in range(layers):
        for parts in PARTS:
            own = [f"model.layers.{layer}.{part}.weight" for part in parts]
            rows = [tensors[name][1][0] for name in own]
            shape = (sum(rows), tensors[own[0]][1][1])
            # Other elements in a tile, another sum.
            numbers = np.random.default_rng(layer).integers(0, 2**40, shape)
            together, first = of_tiles(numbers, tile, np.sum), 0
            for name, count in zip(own, rows, strict=True):
                place = np.s_[first : first + count]
                if not np.array_equal(together[place], of_tiles(numbers[place], tile, np.sum)):
                    names.append(name)
                first += count
    return names


@pytest.mark.parametrize(
    ("sizes", "recipe", "tile", "name"),
    [
        (SHARED, "infir2", 128, "128x128"),
        (SHARED, "fp8_block128", 128, "128x128"),
        (GATE, "infir2", 128, "128x128"),
        (WHOLE, "e4m3_tensor", 0, "tensor"),
    ],
)
def test_tiles_that_differ_from_those_of_training_are_counted(
    tmp_path: Path, sizes: dict[str, Any], recipe: str, tile: int, name: str
) -> None:
    config = CONFIG | sizes
    tensors = random_tensors(config)
    folder = write_folder(tmp_path / "model", tensors, config)
    expected = regrouped(tensors, config["num_hidden_layers"], tile)
    assert expected
    for number, command in enumerate((("export", folder), ("quantize", folder, "--out"))):
        out = tmp_path / f"out{number}"
        options = ["--recipe", recipe]
        result = run(*command, out, *options)
        assert result.returncode == 0, result.stderr
        notes = NOTE.findall(result.stderr)
        linear = 7 * config["num_hidden_layers"]
        assert notes == [(str(len(expected)), str(linear), expected[0], name)], result.stderr


@pytest.mark.parametrize(
    ("sizes", "recipe"),
    [(WHOLE, "infir2"), (WHOLE, "fp8_block128"), (SHARED, "torchao_rowwise"), (GATE, None)],
)
def test_nothing_is_said_where_tiles_are_those_of_training(
    tmp_path: Path, sizes: dict[str, Any], recipe: str | None
) -> None:
    config = CONFIG | sizes
    tensors = random_tensors(config)
    folder = write_folder(tmp_path / "model", tensors, config)
    if recipe == "torchao_rowwise":
        assert regrouped(tensors, config["num_hidden_layers"], 128)
    elif recipe is not None:
        assert regrouped(tensors, config["num_hidden_layers"], 128) == []
    options = [] if recipe is None else ["--recipe", recipe]
    result = run("export", folder, tmp_path / "out", *options)
    assert result.returncode == 0 and "note" not in result.stderr, result.stderr


def test_the_weights_that_the_note_counts_are_those_whose_values_differ(tmp_path: Path) -> None:
    """Scales in FP32 tell tiles apart; k is ten times as large as q."""
    config = CONFIG | SHARED | {"num_hidden_layers": 1}
    tensors = random_tensors(config)
    key = "model.layers.0.self_attn.k_proj.weight"
    values = decode(tensors[key]) * np.float32(16)
    tensors[key] = (
        "BF16",
        values.shape,
        (values.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
    )
    folder = write_folder(tmp_path / "model", tensors, config)
    result = run("export", folder, tmp_path / "out", "--recipe", "fp8_block128")
    assert result.returncode == 0, result.stderr
    written = read_folder(tmp_path / "out")
    names = [f"model.layers.0.{part}.weight" for part in PARTS[0]]
    largest = of_tiles(np.abs(np.vstack([decode(tensors[n]) for n in names])), 128, np.max)
    scales = np.float32(1) / (np.float32(448) / largest)
    different, first = [], 0
    for name in names:
        rows, cols = tensors[name][1]
        own = np.repeat(np.repeat(decode(written[name + "_scale_inv"]), 128, 0), 128, 1)[
            :rows, :cols
        ]
        if not np.array_equal(own, scales[first : first + rows]):
            different.append(name)
        first += rows
    assert different == names[:2]
    assert [match[0] for match in NOTE.findall(result.stderr)] == ["2"]
