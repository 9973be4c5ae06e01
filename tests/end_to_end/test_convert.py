"""fp8lab convert: every dialect, read back with NumPy; losses, codes that are kept, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import e4m3_codes, read_folder, stored, write_folder
from program import PROGRAM, refused, run
from quantized_files import (
    CONFIG,
    TARGETS,
    Floats,
    gaussian_model,
    numbers,
    read_weights,
    sqnr,
)

# Decibels that rounding to the format costs normal deviates, at least and at most.
EXPECTED = {"F8": (29.0, 34.0), "mxfp4": (16.0, 21.0), "nvfp4": (18.0, 23.0)}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("models") / "bf16", gaussian_model(CONFIG), CONFIG)


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("converted")
    out: dict[str, Path] = {}
    for target, options in TARGETS.items():
        out[target] = folder / target.replace(":", "_")
        convert(source, out[target], target, *options)
    return out


def convert(source: Path, out: Path, target: str, *options: object) -> dict[str, Any]:
    result = run("convert", source, out, "--to", target, "--json", *options)
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def values_of(folder: Path) -> dict[str, Floats]:
    return {name: numbers(tensor) for name, tensor in read_folder(folder).items()}


@pytest.mark.parametrize("target", TARGETS)
def test_an_independent_reader_finds_the_stated_loss(
    tmp_path: Path, source: Path, target: str
) -> None:
    document = convert(source, tmp_path / "out", target, *TARGETS[target])
    read = read_weights(tmp_path / "out", target)
    original = values_of(source)
    assert read.keys() == original.keys()
    losses = {one["tensor"]: one for one in document["tensors"]}
    assert len(losses) == 28 and document["copied"] + 28 == len(original)
    low, high = next((value for key, value in EXPECTED.items() if key in target), EXPECTED["F8"])
    for name, values in original.items():
        if name not in losses:
            assert np.array_equal(values, read[name]), name
            continue
        found = sqnr(values, read[name])
        assert low < found < high, (name, found)
        assert abs(found - losses[name]["sqnr_db"]) < 1e-3
        largest = float(np.max(np.abs(values - read[name])))
        assert largest == pytest.approx(losses[name]["max_error"], rel=1e-5)


def test_codes_and_scales_of_blocks_are_those_of_the_definition(
    source: Path, converted: dict[str, Path]
) -> None:
    """Scale RN(amax / 448), codes nearest to x / scale: NumPy's, for ragged blocks too."""
    name = "model.layers.1.mlp.down_proj.weight"
    weight = values_of(source)[name]
    tensors = read_folder(converted["fp8"])
    scales = numbers(tensors[name + "_scale_inv"])
    assert scales.shape == (2, 3)
    for row in range(2):
        for col in range(3):
            block = np.s_[128 * row : 128 * row + 128, 128 * col : 128 * col + 128]
            scale = np.max(np.abs(weight[block])) / np.float32(448)
            assert scales[row, col] == scale
            codes = np.frombuffer(tensors[name][2], np.uint8).reshape(weight.shape)[block]
            assert np.array_equal(codes, e4m3_codes(weight[block] / scale))


def test_what_a_dialect_keeps_has_the_same_codes(
    tmp_path: Path, converted: dict[str, Path]
) -> None:
    """Between layouts of one tile and format, only names and the type of the scales change."""
    for first, second, exact in [
        ("fp8", "compressed-tensors:128x128", True),
        ("compressed-tensors:128x128", "modelopt:128x128", True),
        ("compressed-tensors", "torchao", True),
        ("compressed-tensors:mxfp8", "torchao:mxfp8", True),
        ("compressed-tensors:tensor", "fp8:tensor", True),
        ("fp8:128x128:e8m0", "fp8:128x128:ue8m0", True),
        ("fp8", "fp8:fnuz", True),
        ("fp8:tensor", "fp8:tensor:fnuz", True),
        ("modelopt:nvfp4", "torchao:nvfp4", True),
        ("compressed-tensors:nvfp4", "modelopt:nvfp4", False),  # 1 / S is rounded
    ]:
        out = tmp_path / f"{first}-{second}".replace(":", "_")
        document = convert(converted[first], out, second)
        assert all(one["codes_kept"] for one in document["tensors"]), (first, second)
        assert not exact or all(one["exact"] for one in document["tensors"]), (first, second)
        assert exact or all(one["exact"] or one["sqnr_db"] > 120 for one in document["tensors"])
        there, back = read_weights(converted[first], first), read_weights(out, second)
        for name, values in there.items():
            assert sqnr(values, back[name]) > (1e6 if exact else 120), (first, second, name)


def test_fnuz_and_back_is_exact_and_minus_zero_is_zero(
    tmp_path: Path, converted: dict[str, Path]
) -> None:
    convert(converted["fp8"], tmp_path / "fnuz", "fp8:fnuz")
    codes = b"".join(
        data for dtype, _, data in read_folder(tmp_path / "fnuz").values() if "FNUZ" in dtype
    )
    assert 0x80 not in codes and 0x7E in codes
    document = convert(tmp_path / "fnuz", tmp_path / "back", "fp8")
    assert all(one["exact"] and one["codes_kept"] for one in document["tensors"])


def test_codes_that_the_other_format_lacks_are_quantized_anew(
    tmp_path: Path, converted: dict[str, Path]
) -> None:
    """FNUZ quantized from BF16 reaches 0x7F, 240, which is NaN in E4M3."""
    document = convert(converted["fp8:fnuz"], tmp_path / "out", "fp8")
    assert not any(one["codes_kept"] for one in document["tensors"])
    assert all(30 < one["sqnr_db"] < 60 or one["exact"] for one in document["tensors"])


@pytest.mark.parametrize("target", ["fp8", "compressed-tensors:nvfp4", "torchao:mxfp8"])
@pytest.mark.parametrize("plain", ["bf16", "f32"])
def test_back_to_values(
    tmp_path: Path, converted: dict[str, Path], target: str, plain: str
) -> None:
    document = convert(converted[target], tmp_path / "out", plain)
    read, expected = values_of(tmp_path / "out"), read_weights(converted[target], target)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert "quantization_config" not in config
    assert config["torch_dtype"] == {"bf16": "bfloat16", "f32": "float32"}[plain]
    losses = {one["tensor"]: one for one in document["tensors"]}
    for name, values in expected.items():
        if plain == "f32":
            assert sqnr(values, read[name]) > 120
            assert name not in losses or losses[name]["exact"]
        else:
            assert (
                np.array_equal(read[name], numbers(stored(values))) or sqnr(values, read[name]) > 45
            ), name


def test_export_and_convert_write_the_same_bytes(tmp_path: Path, source: Path) -> None:
    """One writer: the recipe's quantizer of the weights gives the same tensors by both ways."""
    for recipe, target in [
        ("fp8_block128", "fp8"),
        ("mxfp8", "compressed-tensors:mxfp8"),
        ("nvfp4", "compressed-tensors:nvfp4"),
    ]:
        exported, out = tmp_path / f"export-{recipe}", tmp_path / f"convert-{recipe}"
        result = run("export", source, exported, "--recipe", recipe)
        assert result.returncode == 0, result.stderr
        convert(source, out, target, "--spec", f"{recipe}:fprop.w")
        left, right = read_folder(exported), read_folder(out)
        # A recipe may leave layers in BF16.
        quantized = [
            name for name in left if "_scale" in name or left[name][0] in ("U8", "F8_E4M3")
        ]
        assert len(quantized) >= 14
        for name in quantized:
            assert left[name] == right[name], (recipe, name)


def test_shards_companions_and_notes(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "source", gaussian_model(CONFIG), CONFIG, shards=3)
    (source / "tokenizer_config.json").write_text("{}")
    (source / "modeling_own.py").write_text("")
    result = run("convert", source, tmp_path / "out", "--to", "torchao", "--shard-bytes", 500_000)
    assert result.returncode == 0, result.stderr
    assert "not copied: modeling_own.py" in result.stderr
    assert (tmp_path / "out/tokenizer_config.json").exists()
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 3
    assert run("doctor", tmp_path / "out").returncode == 0
    for line in result.stdout.splitlines()[:-1]:
        assert "SQNR" in line and "largest error" in line
    assert "28 tensors converted" in result.stdout.splitlines()[-1]


def test_ignored_modules_stay_and_are_listed(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    convert(source, out, "fp8", "--ignore", "re:.*layers\\.0\\.", "--ignore", "*o_proj")
    tensors = read_folder(out)
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    kept = config["modules_to_not_convert"]
    for name in ("model.layers.0.mlp.up_proj", "model.layers.3.self_attn.o_proj", "lm_head"):
        assert tensors[name + ".weight"][0] == "BF16" and name in kept
    assert tensors["model.layers.1.mlp.up_proj.weight"][0] == "F8_E4M3"
    assert run("doctor", out).returncode == 0


def test_a_killed_conversion_leaves_no_folder(tmp_path: Path) -> None:
    sizes = CONFIG | {"hidden_size": 1024, "intermediate_size": 4096}
    source = write_folder(tmp_path / "source", gaussian_model(sizes), sizes)
    out = tmp_path / "out"
    words = [PROGRAM, "convert", str(source), str(out), "--to", "compressed-tensors:nvfp4"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while time.monotonic() < end and not list(tmp_path.glob(f".out.tmp-{process.pid}-*/*")):
        assert process.poll() is None, "ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not out.exists()
    assert run("doctor", tmp_path).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def negated(tensors: dict[str, Any], config: dict[str, Any]) -> None:
    tensors[SCALE] = stored(-numbers(tensors[SCALE]), "F32")


def infinite(tensors: dict[str, Any], config: dict[str, Any]) -> None:
    tensors[SCALE] = stored(numbers(tensors[SCALE]) * np.float32(np.inf), "F32")


def with_zero_point(tensors: dict[str, Any], config: dict[str, Any]) -> None:
    tensors[WEIGHT + "_zero_point"] = stored(np.full(1, 16.0, np.float32), "F32")


def with_zero_point_codes(tensors: dict[str, Any], config: dict[str, Any]) -> None:
    tensors[WEIGHT + "_zero_point"] = ("F8_E4M3", (1,), bytes([0x38]))


def of_other_targets(tensors: dict[str, Any], config: dict[str, Any]) -> None:
    (group,) = config["quantization_config"]["config_groups"].values()
    group["targets"] = ["re:.*(q|k|v|o|gate|up)_proj$"]


def asymmetric(tensors: dict[str, Any], config: dict[str, Any]) -> None:
    (group,) = config["quantization_config"]["config_groups"].values()
    group["weights"]["symmetric"] = False


def smoothed(tensors: dict[str, Any], config: dict[str, Any]) -> None:
    columns = tensors[WEIGHT][1][1]
    tensors[MODULE + ".pre_quant_scale"] = stored(np.full(columns, 2.0, np.float32), "BF16")


def rotated(tensors: dict[str, Any], config: dict[str, Any]) -> None:
    config["quantization_config"]["transform_config"] = {"config_groups": {"R4": {}}}


def of_another_strategy(tensors: dict[str, Any], config: dict[str, Any]) -> None:
    (group,) = config["quantization_config"]["config_groups"].values()
    group["weights"]["strategy"] = "tensor"


def listed_as_plain(tensors: dict[str, Any], config: dict[str, Any]) -> None:
    config["quantization_config"]["ignore"].append(MODULE)


MODULE = "model.layers.2.mlp.down_proj"
WEIGHT, SCALE = MODULE + ".weight", MODULE + ".weight_scale"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (negated, SCALE),
        (infinite, SCALE),
        (with_zero_point, WEIGHT + "_zero_point"),
        (with_zero_point_codes, WEIGHT + "_zero_point"),
        (of_other_targets, ".mlp.down_proj.weight"),
        (asymmetric, "symmetric is false"),
        (smoothed, MODULE + ".pre_quant_scale"),
        (rotated, "transform_config"),
        (of_another_strategy, ".weight_scale"),
        (listed_as_plain, WEIGHT),
    ],
)
def test_what_spoils_or_changes_weights_is_an_error_everywhere(
    tmp_path: Path,
    converted: dict[str, Path],
    change: Callable[[dict[str, Any], dict[str, Any]], None],
    named: str,
) -> None:
    """The converted folder would be a clean one, with other weights."""
    whole = converted["compressed-tensors"]
    tensors = read_folder(whole)
    config = json.loads((whole / "config.json").read_text())
    change(tensors, config)
    folder = write_folder(tmp_path / "changed", tensors, config)
    examined = run("doctor", folder)
    assert examined.returncode == 3 and named in examined.stdout
    for target in ("bf16", "fp8"):
        assert named in refused("convert", folder, tmp_path / "out", "--to", target)
        assert not (tmp_path / "out").exists()
    # The reader of eval, train and generate: the whole folder is read, the changed one is not.
    (tmp_path / "p.jsonl").write_text('{"prompt": [5, 6]}\n')
    words = ("--prompts", tmp_path / "p.jsonl", "--max-new-tokens", 1)
    assert run("generate", whole, *words).returncode == 0
    assert named.removesuffix(" is false") in refused("generate", folder, *words)


def test_plain_weights_under_a_quantized_configuration_are_not_read(
    tmp_path: Path, source: Path, converted: dict[str, Path]
) -> None:
    config = json.loads((converted["fp8"] / "config.json").read_text())
    folder = write_folder(tmp_path / "plain", read_folder(source), config)
    assert run("doctor", folder).returncode == 3
    (tmp_path / "p.jsonl").write_text('{"prompt": [5, 6]}\n')
    words = ("--prompts", tmp_path / "p.jsonl", "--max-new-tokens", 1)
    assert run("generate", source, *words).returncode == 0
    assert "no tensor is quantized" in refused("generate", folder, *words)


@pytest.mark.parametrize("zero", [("F32", (1,), bytes(4)), ("F8_E4M3", (1,), bytes(1))])
def test_neutral_zero_points_and_factors_change_nothing(
    tmp_path: Path, converted: dict[str, Path], zero: tuple[str, tuple[int, ...], bytes]
) -> None:
    whole = converted["compressed-tensors"]
    tensors = read_folder(whole)
    columns = tensors[WEIGHT][1][1]
    tensors[WEIGHT + "_zero_point"] = zero
    tensors[MODULE + ".pre_quant_scale"] = stored(np.ones(columns, np.float32), "BF16")
    folder = write_folder(
        tmp_path / "neutral", tensors, json.loads((whole / "config.json").read_text())
    )
    examined = run("doctor", folder)
    assert examined.returncode == 0, examined.stdout
    convert(folder, tmp_path / "a", "bf16")
    convert(whole, tmp_path / "b", "bf16")
    assert (
        values_of(tmp_path / "a")[WEIGHT].tobytes() == values_of(tmp_path / "b")[WEIGHT].tobytes()
    )


def test_refusals(tmp_path: Path, source: Path, converted: dict[str, Path]) -> None:
    out = tmp_path / "out"

    def message(*words: object) -> str:
        text = refused("convert", *words)
        assert not out.exists()
        return text

    assert "--to" in message(source, out)
    assert "unknown word 'fp9'; accepted: bf16" in message(source, out, "--to", "fp9")
    assert "unknown word 'nvfp4'" in message(source, out, "--to", "fp8:nvfp4")
    assert "did you mean 'compressed-tensors:nvfp4' or" in message(source, out, "--to", "nvfp4")
    assert "--ignore o_prj (did you mean 'o_proj'?) names no module" in message(
        source, out, "--to", "fp8", "--ignore", "o_prj"
    )
    assert "given twice" in message(source, out, "--to", "fp8:ue8m0:e8m0")
    assert "is for quantized targets" in message(
        source, out, "--to", "bf16", "--ignore", "model.norm"
    )
    assert "its tile is 1x128, not 128x128" in message(
        source, out, "--to", "fp8", "--spec", "e4m3fn/1x128"
    )
    assert "its scales are no powers of two" in message(
        source, out, "--to", "compressed-tensors:mxfp8", "--spec", "e4m3fn/1x32"
    )
    assert "--input-scale NUMBER" in message(source, out, "--to", "modelopt")
    assert "--input-scale is for" in message(source, out, "--to", "fp8", "--input-scale", "1")
    assert "exists" in message(source, converted["fp8"], "--to", "fp8")
    assert "holds no model" in message(tmp_path, out, "--to", "fp8")
    narrow = CONFIG | {"hidden_size": 248, "num_hidden_layers": 1}
    ragged = write_folder(tmp_path / "ragged", gaussian_model(narrow), narrow)
    assert "K = 248 is no multiple of 32" in message(
        ragged, out, "--to", "compressed-tensors:mxfp8"
    )
    tensors = gaussian_model(CONFIG)
    name = "model.layers.2.self_attn.v_proj.weight"
    bad = numbers(tensors[name]).copy()
    bad[3, 5] = np.inf
    broken = write_folder(tmp_path / "infinite", tensors | {name: stored(bad, "F32")}, CONFIG)
    assert f"tensor '{name}' is infinite at (3, 5)" in message(broken, out, "--to", "fp8")
    tensors = read_folder(converted["fp8"])
    del tensors[name + "_scale_inv"]
    config = json.loads((converted["fp8"] / "config.json").read_text())
    broken = write_folder(tmp_path / "no-scale", tensors, config)
    assert f"there is no '{name}_scale_inv'" in message(broken, out, "--to", "bf16")
