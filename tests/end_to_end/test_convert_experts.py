"""fp8lab convert of mixtures of experts: converted tensor by tensor, or refused by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from model_files import Stored, read_folder, stored, write_folder
from program import refused, run
from quantized_files import TABLES, numbers, read_metadata, read_weights, sqnr

CONFIG: dict[str, Any] = {"model_type": "mixture", "num_hidden_layers": 1, "dtype": "bfloat16"}
LAYER = "model.layers.0."


def weights(**shapes: tuple[int, ...]) -> dict[str, Stored]:
    """BF16 values by name, in which __ stands for a dot."""
    random = np.random.default_rng(5)
    return {
        LAYER + name.replace("__", "."): stored(random.normal(size=shape).astype(np.float32))
        for name, shape in shapes.items()
    }


def convert(source: Path, out: Path, *words: object) -> dict[str, Any]:
    done = run("convert", source, out, "--json", *words)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


ATTENTION = {"self_attn__o_proj__weight": (64, 64)}
# Names of experts with a tensor each, and what stays in high precision beside them.
FAMILIES: dict[str, tuple[dict[str, tuple[int, ...]], list[str]]] = {
    "mixtral": (
        {f"block_sparse_moe__experts__{e}__w1__weight": (64, 64) for e in range(2)}
        | {f"block_sparse_moe__experts__{e}__w2__weight": (64, 64) for e in range(2)}
        | {"block_sparse_moe__gate__weight": (2, 64)},
        ["block_sparse_moe.gate"],
    ),
    "qwen_moe": (
        {f"mlp__experts__{e}__up_proj__weight": (96, 64) for e in range(3)}
        | {
            "mlp__gate__weight": (3, 64),
            "mlp__shared_expert__up_proj__weight": (96, 64),
            "mlp__shared_expert_gate__weight": (1, 64),
        },
        ["mlp.gate", "mlp.shared_expert_gate"],
    ),
    "deepseek_v3": (
        {f"mlp__experts__{e}__down_proj__weight": (64, 96) for e in range(2)}
        | {
            "mlp__gate__weight": (2, 64),
            "mlp__gate__e_score_correction_bias": (2,),
            "mlp__shared_experts__down_proj__weight": (64, 96),
        },
        ["mlp.gate"],
    ),
    "granite_router": (
        {"block_sparse_moe__router__layer__weight": (4, 64)},
        ["block_sparse_moe.router.layer"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("target", ["fp8", "compressed-tensors:mxfp4"])
def test_experts_with_a_tensor_each_are_quantized(family: str, target: str, tmp_path: Path) -> None:
    shapes, kept = FAMILIES[family]
    tensors = weights(**ATTENTION, **shapes)
    source = write_folder(tmp_path / "bf16", tensors, CONFIG)
    document = convert(source, tmp_path / "out", "--to", target)
    quantized = {one["tensor"] for one in document["tensors"]}
    plain = {f"{LAYER}{name}.weight" for name in kept}
    assert quantized == {n for n in tensors if n.endswith(".weight")} - plain
    read = read_weights(tmp_path / "out", target)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        found = sqnr(numbers(tensor), read[name])
        assert found == float("inf") if name not in quantized else 15 < found < 40, name
    said = json.dumps(json.loads((tmp_path / "out/config.json").read_text())["quantization_config"])
    for name in kept:
        assert f"{LAYER}{name}" in said


# --- experts in one tensor ------------------------------------------------------------------------

HIDDEN = {"hidden_size": 64}
# Stacks (experts, rows, columns) whose rows are no multiple of a block.
STACKS: dict[str, dict[str, tuple[int, ...]]] = {
    "mixtral_v5": {
        "mlp__experts__gate_up_proj": (3, 80, 64),
        "mlp__experts__down_proj": (3, 64, 40),
    },
    "llama4": {
        "mlp__experts__gate_up_proj": (3, 64, 80),
        "mlp__experts__down_proj": (3, 40, 64),
    },
    "granite": {
        "block_sparse_moe__input_linear__weight": (3, 80, 64),
        "block_sparse_moe__output_linear__weight": (3, 64, 40),
    },
}


def matrices(stack: Stored, flat: bool) -> list[Stored]:
    """The experts of a stack, or all of them below each other, as weights of two extents."""
    kind, (experts, rows, cols), data = stack
    if flat:
        return [(kind, (experts * rows, cols), data)]
    size = len(data) // experts
    return [(kind, (rows, cols), data[e * size : (e + 1) * size]) for e in range(experts)]


def converted_alone(
    stack: Stored, target: str, folder: Path, flat: bool
) -> list[dict[str, Stored]]:
    """What convert makes of the matrices of a stack, by the part of the name behind them."""
    parts = matrices(stack, flat)
    names = [f"model.layers.{e}.mlp.up_proj.weight" for e in range(len(parts))]
    source = write_folder(folder / "alone", dict(zip(names, parts)), CONFIG)
    convert(source, folder / "alone_out", "--to", target)
    read = read_folder(folder / "alone_out")
    results = []
    for e in range(len(parts)):
        own = {name: one for name, one in read.items() if name.startswith(f"model.layers.{e}.")}
        results.append({name.partition("mlp.")[2]: one for name, one in own.items()})
    return results


@pytest.mark.parametrize("family", STACKS)
@pytest.mark.parametrize("target", ["fp8:32x32", "fp8:32x32:e8m0"])
def test_stacks_have_the_blocks_of_each_expert(family: str, target: str, tmp_path: Path) -> None:
    tensors = weights(**ATTENTION, mlp__router__weight=(3, 64), **STACKS[family])
    source = write_folder(tmp_path / "bf16", tensors, CONFIG | HIDDEN)
    document = convert(source, tmp_path / "out", "--to", target)
    stacks = [LAYER + name.replace("__", ".") for name in STACKS[family]]
    losses = {one["tensor"]: one for one in document["tensors"]}
    assert losses.keys() == {*stacks, f"{LAYER}self_attn.o_proj.weight"}
    read = read_folder(tmp_path / "out")
    for name in stacks:
        experts, rows, cols = tensors[name][1]
        alone = converted_alone(tensors[name], target, tmp_path / name, flat=False)
        kind, shape, codes = read[name]
        assert (kind, shape) == ("F8_E4M3", tensors[name][1])
        assert codes == b"".join(one["up_proj.weight"][2] for one in alone)
        kind, shape, scales = read[name + "_scale_inv"]
        assert shape == (experts, -(-rows // 32), -(-cols // 32))
        assert scales == b"".join(one["up_proj.weight_scale_inv"][2] for one in alone)
        grid = numbers(read[name + "_scale_inv"]).repeat(32, axis=1).repeat(32, axis=2)
        values = numbers(read[name]) * grid[:, :rows, :cols]
        assert abs(sqnr(numbers(tensors[name]), values) - losses[name]["sqnr_db"]) < 0.01
        assert 25 < losses[name]["sqnr_db"] < 40
    assert read[f"{LAYER}mlp.router.weight"] == tensors[f"{LAYER}mlp.router.weight"]
    checked = run("doctor", tmp_path / "out", "--reference", source)
    assert checked.returncode == 0, checked.stdout
    convert(tmp_path / "out", tmp_path / "back", "--to", "f32")
    again = convert(tmp_path / "out", tmp_path / "same", "--to", target)
    assert all(one["codes_kept"] for one in again["tensors"])
    assert read_folder(tmp_path / "same") == read
    for name in stacks:
        assert np.array_equal(numbers(read_folder(tmp_path / "back")[name]).shape, tensors[name][1])


@pytest.mark.parametrize("target", ["torchao:channel", "torchao:mxfp8", "torchao:nvfp4"])
def test_stacks_have_rows_and_groups_of_torchao(target: str, tmp_path: Path) -> None:
    """(experts, out, in) is a matrix of all rows; of two levels all experts share the second."""
    shapes = {"mlp__experts__gate_up_proj": (3, 64, 64), "mlp__experts__down_proj": (3, 64, 32)}
    tensors = weights(**ATTENTION, **shapes)  # down_proj tells the order of the square gate_up_proj
    source = write_folder(tmp_path / "bf16", tensors, CONFIG | {"text_config": HIDDEN})
    convert(source, tmp_path / "out", "--to", target)
    read = read_folder(tmp_path / "out")
    for name in shapes:
        stack = LAYER + name.replace("__", ".")
        (alone,) = converted_alone(tensors[stack], target, tmp_path / name, flat=True)
        prefix, leaf = stack.rsplit(".", 1)
        for suffix in ("qdata", "scale", *(["per_tensor_scale"] if "nvfp4" in target else [])):
            kind, shape, data = read[f"{prefix}._{leaf}_{suffix}"]
            flat = alone[f"up_proj._weight_{suffix}"]
            assert (kind, data) == (flat[0], flat[2]), suffix
            assert shape == ((3, 64, *flat[1][1:]) if suffix != "per_tensor_scale" else flat[1])
        table = json.loads(read_metadata(tmp_path / "out/model.safetensors")[stack])["_data"]
        if target == "torchao:channel":
            assert table["block_size"] == [1, 1, tensors[stack][1][2]]
    said = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    names = said["quant_type"]["default"]["_data"]["fqn_to_config"].keys()
    assert names == {LAYER + name.replace("__", ".") for name in shapes} | {"_default"}
    checked = run("doctor", tmp_path / "out", "--reference", source)
    assert checked.returncode == 0, checked.stdout


def test_stacks_of_in_out_have_a_scale_of_each_column(tmp_path: Path) -> None:
    """The transpose of what convert makes of the experts as (out, in)."""
    tensors = weights(**ATTENTION, **STACKS["llama4"])
    source = write_folder(tmp_path / "bf16", tensors, CONFIG | HIDDEN)
    losses = {
        one["tensor"]: one["sqnr_db"]
        for one in convert(source, tmp_path / "out", "--to", "torchao:channel")["tensors"]
    }
    read = read_folder(tmp_path / "out")
    metadata = read_metadata(tmp_path / "out/model.safetensors")
    said = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    for leaf in ("gate_up_proj", "down_proj"):
        stack = f"{LAYER}mlp.experts.{leaf}"
        turned = np.ascontiguousarray(numbers(tensors[stack]).transpose(0, 2, 1))
        experts, outputs, inputs = turned.shape
        flat = converted_alone(stored(turned), "torchao:channel", tmp_path / leaf, flat=True)[0]
        codes = np.frombuffer(flat["up_proj._weight_qdata"][2], np.uint8).reshape(turned.shape)
        kind, shape, data = read[f"{LAYER}mlp.experts._{leaf}_qdata"]
        assert (kind, shape) == ("F8_E4M3", tensors[stack][1])
        assert np.array_equal(
            np.frombuffer(data, np.uint8).reshape(shape), codes.transpose(0, 2, 1)
        )
        kind, shape, data = read[f"{LAYER}mlp.experts._{leaf}_scale"]
        assert (kind, shape) == ("F32", (experts, 1, outputs))
        assert data == flat["up_proj._weight_scale"][2]
        values = numbers(read[f"{LAYER}mlp.experts._{leaf}_qdata"]) * numbers((kind, shape, data))
        assert abs(sqnr(numbers(tensors[stack]), values) - losses[stack]) < 0.01
        assert json.loads(metadata[stack])["_data"]["block_size"] == [1, inputs, 1]
        rule = said["quant_type"]["default"]["_data"]["fqn_to_config"][stack]
        assert rule["_data"]["granularity"]["_data"]["dim"] == 1
    checked = run("doctor", tmp_path / "out", "--reference", source)
    assert checked.returncode == 0, checked.stdout
    again = convert(tmp_path / "out", tmp_path / "same", "--to", "torchao:channel")
    assert all(one["codes_kept"] for one in again["tensors"])
    assert read_folder(tmp_path / "same") == read


GATE_UP = "mlp__experts__gate_up_proj"
# Shapes, fields of config.json, a target, and what the message says.
REFUSED: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, Any], str, str]] = {
    "in_out": (STACKS["llama4"], HIDDEN, "torchao:mxfp8", "as (experts, in, out)"),
    "not_square": (STACKS["llama4"], HIDDEN, "fp8:32x64", "as (experts, in, out)"),
    "no_hidden_size": (STACKS["mixtral_v5"], {}, "torchao:channel", "along which extent"),
    "all_square": ({GATE_UP: (3, 64, 64)}, HIDDEN, "torchao:mxfp8", "along which extent"),
    "not_hidden": ({GATE_UP: (3, 96, 32)}, HIDDEN, "torchao:channel", "along which extent"),
    "unknown_name": ({"mlp__experts__core": (3, 96, 64)}, HIDDEN, "fp8:16x32", "which extent"),
    "compressed": (STACKS["mixtral_v5"], HIDDEN, "compressed-tensors", "a tensor for each expert"),
    "modelopt": (STACKS["mixtral_v5"], HIDDEN, "modelopt:nvfp4", "a tensor for each expert"),
    "tensor": (STACKS["mixtral_v5"], HIDDEN, "fp8:tensor", "one scale would be that of all"),
    "dbrx": ({"ffn__experts__mlp__w1": (256, 64)}, HIDDEN, "fp8", "as rows of one matrix"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_stacks_without_a_layout_are_refused_by_name(case: str, tmp_path: Path) -> None:
    shapes, fields, target, words = REFUSED[case]
    tensors = weights(**ATTENTION, **shapes)
    source = write_folder(tmp_path / "bf16", tensors, CONFIG | fields)
    message = refused("convert", source, tmp_path / "out", "--to", target)
    stack = LAYER + next(iter(shapes)).replace("__", ".")
    assert f"'{stack}'" in message and words in message and "--ignore" in message
    assert not (tmp_path / "out").exists()
    if target.startswith("modelopt") or case != "dbrx":
        return
    module = stack.rpartition(".")[0]
    document = convert(source, tmp_path / "out", "--to", target, "--ignore", module)
    assert [one["tensor"] for one in document["tensors"]] == [f"{LAYER}self_attn.o_proj.weight"]
    assert read_folder(tmp_path / "out")[stack] == tensors[stack]
    table = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert module in table["modules_to_not_convert"]
    assert convert(source, tmp_path / "values", "--to", "f32")["tensors"]


def test_biases_of_experts_stay_values(tmp_path: Path) -> None:
    tensors = weights(
        mlp__experts__gate_up_proj=(3, 64, 80), mlp__experts__gate_up_proj_bias=(3, 80)
    )
    source = write_folder(tmp_path / "bf16", tensors, CONFIG | HIDDEN)
    done = run("convert", source, tmp_path / "out", "--to", "fp8")
    assert done.returncode == 0 and "have biases" in done.stdout + done.stderr
    bias = f"{LAYER}mlp.experts.gate_up_proj_bias"
    assert read_folder(tmp_path / "out")[bias] == tensors[bias]


def test_stacked_experts_that_were_quantized_are_refused_too(tmp_path: Path) -> None:
    codes = np.random.default_rng(1).integers(0, 120, (2, 128, 128)).astype(np.uint8)
    experts = LAYER + "mlp.experts.down_proj.weight"
    tensors = weights(**ATTENTION) | {
        experts: ("F8_E4M3", codes.shape, codes.tobytes()),
        experts + "_scale_inv": stored(np.ones((2, 1, 1), np.float32), "F32"),
    }
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = CONFIG | {"quantization_config": quantization}
    source = write_folder(tmp_path / "fp8", tensors, config)
    message = refused("convert", source, tmp_path / "out", "--to", "compressed-tensors:channel")
    assert experts in message


# --- gpt-oss --------------------------------------------------------------------------------------


def mxfp4_model(experts: int = 3, rows: int = 40, k: int = 64) -> dict[str, Stored]:
    random = np.random.default_rng(2)
    blocks = random.integers(0, 256, (experts, rows, k // 32, 16)).astype(np.uint8)
    scales = random.integers(118, 136, (experts, rows, k // 32)).astype(np.uint8)
    name = LAYER + "mlp.experts.gate_up_proj"
    return weights(mlp__router__weight=(experts, k), **ATTENTION) | {
        name + "_blocks": ("U8", blocks.shape, blocks.tobytes()),
        name + "_scales": ("U8", scales.shape, scales.tobytes()),
        name + "_bias": stored(random.normal(size=(experts, rows)).astype(np.float32)),
    }


def mxfp4_values(tensors: dict[str, Stored]) -> npt.NDArray[np.float32]:
    """The experts as transformers dequantizes them: (experts, K, rows)."""
    name = LAYER + "mlp.experts.gate_up_proj"
    _, shape, data = tensors[name + "_blocks"]
    codes = np.frombuffer(data, np.uint8).reshape(shape)
    values = TABLES["E2M1"][np.stack([codes & 15, codes >> 4], axis=-1)]
    values = values.reshape(*shape[:3], 32) * numbers(tensors[name + "_scales"])[..., None]
    return np.ascontiguousarray(values.reshape(shape[0], shape[1], -1).transpose(0, 2, 1))


GPT_OSS = CONFIG | {
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.mlp.router"],
    }
}


@pytest.mark.parametrize("target", ["bf16", "f32", "f16"])
def test_experts_in_mxfp4_become_values(target: str, tmp_path: Path) -> None:
    tensors = mxfp4_model()
    source = write_folder(tmp_path / "mxfp4", tensors, GPT_OSS, shards=2)
    document = convert(source, tmp_path / "out", "--to", target)
    name = LAYER + "mlp.experts.gate_up_proj"
    (experts,) = [one for one in document["tensors"] if one["tensor"] == name]
    assert experts["exact"] and experts["from"] == "mxfp4 experts"
    read = read_folder(tmp_path / "out")
    assert not [tensor for tensor in read if tensor.endswith(("_blocks", "_scales"))]
    assert read[name][1] == (3, 64, 40)
    assert np.array_equal(numbers(read[name]), mxfp4_values(tensors))
    assert name + "_bias" in read and f"{LAYER}mlp.router.weight" in read
    assert "quantization_config" not in json.loads((tmp_path / "out/config.json").read_text())


def test_experts_in_mxfp4_are_refused_by_name(tmp_path: Path) -> None:
    tensors = mxfp4_model()
    name = LAYER + "mlp.experts.gate_up_proj"
    source = write_folder(tmp_path / "mxfp4", tensors, GPT_OSS)
    message = refused("convert", source, tmp_path / "out", "--to", "fp8")
    assert f"'{name}_blocks'" in message and "--to bf16" in message
    damaged: list[tuple[dict[str, Stored], str]] = []
    for lost in ("_scales", "_blocks"):
        damaged.append(({n: t for n, t in tensors.items() if not n.endswith(lost)}, name))
    kind, shape, data = tensors[name + "_scales"]
    damaged.append((tensors | {name + "_scales": (kind, (3, 40, 1), data[:120])}, name))
    nan = np.frombuffer(data, np.uint8).copy()
    nan[7] = 255
    damaged.append((tensors | {name + "_scales": (kind, shape, nan.tobytes())}, name))
    for number, (model, word) in enumerate(damaged):
        folder = write_folder(tmp_path / f"damaged{number}", model, GPT_OSS)
        assert word in refused("convert", folder, tmp_path / "out", "--to", "bf16")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes"])
def test_other_methods_are_refused_by_name(method: str, tmp_path: Path) -> None:
    config = CONFIG | {"quantization_config": {"quant_method": method, "bits": 4}}
    source = write_folder(tmp_path / "model", weights(**ATTENTION), config)
    for target in ("bf16", "fp8"):
        message = refused("convert", source, tmp_path / "out", "--to", target)
        assert f"'{method}'" in message
