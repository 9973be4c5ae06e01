"""Files of mixtures, and names given twice: the doctor names what the conversion refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import Stored, stored, write_folder
from program import refused, run

CONFIG: dict[str, Any] = {"model_type": "mixture", "num_hidden_layers": 1, "dtype": "bfloat16"}
MXFP4 = CONFIG | {"quantization_config": {"quant_method": "mxfp4"}}
FOUR = CONFIG | {"num_experts": 4, "num_experts_per_tok": 2}
LAYER = "model.layers.0."
MLP = LAYER + "mlp."
STACK = MLP + "experts.gate_up_proj"
OUTPUT = LAYER + "self_attn.o_proj.weight"
RANDOM = np.random.default_rng(3)


def values(*shape: int) -> Stored:
    return stored(RANDOM.normal(size=shape).astype(np.float32))


def raw(*shape: int, byte: int | None = None, kind: str = "U8") -> Stored:
    size = int(np.prod(shape)) * (4 if kind in ("F32", "I32") else 1)
    if byte is not None:
        return kind, shape, bytes([byte]) * size
    return kind, shape, RANDOM.integers(100, 140, size).astype(np.uint8).tobytes()


def packed(blocks: Stored | None = None, scales: Stored | None = None) -> dict[str, Stored]:
    return {
        OUTPUT: values(64, 64),
        STACK + "_blocks": blocks or raw(2, 8, 2, 16),
        STACK + "_scales": scales or raw(2, 8, 2),
    }


def experts(*numbers: object) -> dict[str, Stored]:
    parts = ("gate_proj", "up_proj", "down_proj")
    return {OUTPUT: values(64, 64)} | {
        f"{MLP}experts.{n}.{part}.weight": values(64, 64) for n in numbers for part in parts
    }


def found(folder: Path) -> list[tuple[str, str]]:
    """Kind and tensor of the doctor's errors."""
    result = run("doctor", folder, "--json")
    assert result.stderr == "" and result.returncode in (0, 3), result.stderr
    findings = json.loads(result.stdout)["findings"]
    return [(one["kind"], one["tensor"]) for one in findings if one["severity"] == "error"]


UP = "{}experts.{}.up_proj.weight"
FAULTS: dict[str, tuple[dict[str, Stored], dict[str, Any], str, str]] = {
    # Two tensors for one name of the result.
    "experts beside their codes": (
        packed() | {STACK: values(2, 64, 8)}, MXFP4, "weight_twice", STACK,
    ),
    "values named as codes": (
        {OUTPUT: values(64, 64), OUTPUT + "_packed": values(4, 4)},
        CONFIG, "weight_twice", OUTPUT + "_packed",
    ),
    "values named as codes alone": (
        {OUTPUT: values(64, 64), LAYER + "self_attn.q_proj.weight_packed": values(4, 4)},
        CONFIG, "code_type", LAYER + "self_attn.q_proj.weight_packed",
    ),
    # Codes that no quantization_config explains.
    "codes without a claim": (packed(), CONFIG, "config_unquantized", STACK + "_blocks"),
    "codes under another claim": (
        packed(),
        CONFIG | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        "config_method", STACK + "_blocks",
    ),
    "codes of GPTQ without a claim": (
        {OUTPUT: values(64, 64), LAYER + "self_attn.q_proj.qweight": raw(8, 64, kind="I32")},
        CONFIG, "config_unquantized", LAYER + "self_attn.q_proj.qweight",
    ),
    "codes of bitsandbytes without a claim": (
        {OUTPUT: values(64, 64), LAYER + "self_attn.q_proj.weight": raw(64, 64, kind="I8")},
        CONFIG, "config_unquantized", LAYER + "self_attn.q_proj.weight",
    ),
    # Experts in MXFP4 that do not fit.
    "half a block": (packed(raw(2, 8, 2, 8)), MXFP4, "grid", STACK + "_blocks"),
    "blocks of three extents": (packed(raw(8, 2, 16), raw(8, 2)), MXFP4, "grid", STACK + "_blocks"),
    "blocks of a linear layer": (
        packed() | {LAYER + "self_attn.q_proj.weight_blocks": raw(8, 2, 16),
                    LAYER + "self_attn.q_proj.weight_scales": raw(8, 2)},
        MXFP4, "config_method", LAYER + "self_attn.q_proj.weight_blocks",
    ),
    "blocks of other experts": (
        packed() | {MLP + "shared_experts.up_proj_blocks": raw(2, 8, 2, 16),
                    MLP + "shared_experts.up_proj_scales": raw(2, 8, 2)},
        MXFP4, "config_method", MLP + "shared_experts.up_proj_blocks",
    ),
    "scales in F32": (packed(scales=raw(2, 8, 2, kind="F32")), MXFP4, "grid", STACK + "_blocks"),
    "infinite products": (
        packed(raw(2, 8, 2, 16, byte=0x77), raw(2, 8, 2, byte=254)), MXFP4, "nonfinite", STACK,
    ),
    "scales of NaN": (packed(scales=raw(2, 8, 2, byte=255)), MXFP4, "nonfinite", STACK),
    "no scales": (
        {n: t for n, t in packed().items() if not n.endswith("_scales")},
        MXFP4, "scale_missing", STACK + "_blocks",
    ),
    "no blocks": (
        {n: t for n, t in packed().items() if not n.endswith("_blocks")},
        MXFP4, "scale_orphan", STACK + "_scales",
    ),
    # Experts with a tensor each.
    "a lost expert": (experts(0, 1, 3), FOUR, "tensor_missing", MLP + "experts.2"),
    "a lost expert of no stated number": (
        experts(0, 1, 3), CONFIG, "tensor_missing", MLP + "experts.2",
    ),
    "a lost last expert": (experts(0, 1, 2), FOUR, "tensor_missing", MLP + "experts.3"),
    "a lost expert of a nested configuration": (
        experts(0, 1, 2), CONFIG | {"text_config": {"n_routed_experts": 4}},
        "tensor_missing", MLP + "experts.3",
    ),
    "too many experts": (experts(0, 1, 2, 3, 4), FOUR, "expert_name", MLP + "experts.4"),
    "a lost projection": (
        {n: t for n, t in experts(0, 1, 2, 3).items() if n != UP.format(MLP, 1)},
        FOUR, "tensor_missing", UP.format(MLP, 1),
    ),
    "a projection of another shape": (
        experts(0, 1, 2, 3) | {UP.format(MLP, 1): values(64, 32)},
        FOUR, "expert_shape", UP.format(MLP, 1),
    ),
    "a leading zero": (
        experts(0, 1, 2, 3) | {UP.format(MLP, "01"): values(64, 64)},
        FOUR, "expert_name", UP.format(MLP, "01"),
    ),
    "a sign": (
        experts(0, 1, 2, 3) | {UP.format(MLP, "-1"): values(64, 64)},
        FOUR, "expert_name", UP.format(MLP, "-1"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_doctor_names_is_refused(fault: str, tmp_path: Path) -> None:
    tensors, config, kind, tensor = FAULTS[fault]
    source = write_folder(tmp_path / "model", tensors, config)
    assert (kind, tensor) in found(source)
    for target in ("bf16", "compressed-tensors:nvfp4"):
        message = refused("convert", source, tmp_path / "out", "--to", target)
        assert tensor in message
        assert not (tmp_path / "out").exists()


def test_codes_of_two_dialects_are_one_weight_twice(tmp_path: Path) -> None:
    module = LAYER + "self_attn.o_proj."
    tensors = {
        OUTPUT + "_packed": raw(64, 32),
        OUTPUT + "_scale": raw(64, 2),
        module + "_weight_qdata": ("F8_E4M3", (64, 64), bytes([30]) * 4096),
        module + "_weight_scale": stored(np.ones((64, 1), np.float32), "F32"),
    }
    source = write_folder(tmp_path / "model", tensors, CONFIG)
    kinds = dict(found(source))
    assert kinds.get("weight_twice") in (OUTPUT + "_packed", module + "_weight_qdata")
    assert module in refused("convert", source, tmp_path / "out", "--to", "bf16")


WHOLE: dict[str, tuple[dict[str, Stored], dict[str, Any]]] = {
    "packed": (packed(), MXFP4),
    "experts": (experts(0, 1, 2, 3), FOUR),
    "experts of no stated number": (experts(0, 1), CONFIG),
    "a smaller mixture in a tower": (
        experts(0, 1, 2, 3)
        | {f"visual.layers.0.mlp.experts.{e}.up_proj.weight": values(64, 64) for e in range(2)},
        CONFIG | {"text_config": {"num_experts": 4}},
    ),
    "ten experts and more": (experts(*range(12)), CONFIG | {"num_local_experts": 12}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_mixtures_raise_no_alarm(name: str, tmp_path: Path) -> None:
    tensors, config = WHOLE[name]
    source = write_folder(tmp_path / "model", tensors, config)
    result = run("doctor", source, "--json")
    document = json.loads(result.stdout)
    assert (result.returncode, document["findings"]) == (0, [])
    assert run("convert", source, tmp_path / "out", "--to", "f32").returncode == 0


ROUTERS = ("mlp.gate.wg", "mlp.gate.linear", "mlp.switch", "moe.gate_network", "mlp.gate")


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("target", ["fp8", "compressed-tensors:mxfp4"])
def test_routers_stay(router: str, target: str, tmp_path: Path) -> None:
    tensors = experts(0, 1) | {f"{LAYER}{router}.weight": values(4, 64)}
    source = write_folder(tmp_path / "model", tensors, CONFIG)
    result = run("convert", source, tmp_path / "out", "--to", target, "--json")
    assert result.returncode == 0, result.stderr
    quantized = {one["tensor"] for one in json.loads(result.stdout)["tensors"]}
    assert quantized == tensors.keys() - {f"{LAYER}{router}.weight"}
    table = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    assert f"{LAYER}{router}" in json.dumps(table)
