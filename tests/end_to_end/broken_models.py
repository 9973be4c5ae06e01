"""Kinds of broken quantized models, each made of the tensors and configuration of a whole one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from model_files import Floats, Stored, stored
from quantized_files import TABLES, numbers

LAYER = "model.layers.2."
UP, Q = LAYER + "mlp.up_proj", LAYER + "self_attn.q_proj"


@dataclass
class Model:
    """What a folder holds, to be broken."""

    tensors: dict[str, Stored]
    config: dict[str, Any]
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def quantization(self) -> dict[str, Any]:
        table: dict[str, Any] = self.config["quantization_config"]
        return table

    def bytes(self, name: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.frombuffer(self.tensors[name][2], np.uint8).copy()

    def put(self, name: str, content: np.ndarray[Any, Any]) -> None:
        dtype, shape, _ = self.tensors[name]
        self.tensors[name] = (dtype, shape, content.tobytes())

    def set_byte(self, name: str, place: tuple[int, ...], byte: int) -> None:
        content = self.bytes(name).reshape(self.tensors[name][1])
        content[place] = byte
        self.put(name, content)

    def change(self, name: str, function: Callable[[Floats], Floats]) -> None:
        """F32 values."""
        values = np.frombuffer(self.tensors[name][2], "<f4").reshape(self.tensors[name][1])
        self.put(name, function(values.copy()).astype("<f4"))

    def set_scale(self, name: str, place: tuple[int, ...], value: float) -> None:
        def change(values: Floats) -> Floats:
            values[place] = value
            return values

        self.change(name, change)

    def rename(self, old: str, new: str) -> None:
        self.tensors[new] = self.tensors.pop(old)

    def reshape(self, name: str, *shape: int) -> None:
        dtype, _, data = self.tensors[name]
        self.tensors[name] = (dtype, shape, data)


@dataclass
class Case:
    target: str
    breaks: Callable[[Model], object]
    kind: str
    tensor: str
    block: list[int] | None = None
    text: str = ""
    severity: str = "error"
    options: tuple[str, ...] = ()


def drop(name: str) -> Callable[[Model], object]:
    return lambda model: model.tensors.pop(name)


def dequantize(model: Model, name: str) -> None:
    values = TABLES["F8_E4M3"][model.bytes(name + ".weight")]
    shape = model.tensors[name + ".weight"][1]
    model.tensors[name + ".weight"] = stored(values.reshape(shape))


def dropped_scale(model: Model) -> None:
    dequantize(model, UP)
    del model.tensors[UP + ".weight_scale_inv"]
    model.quantization["modules_to_not_convert"].append(UP)


def resized(name: str, rows: int, cols: int) -> Callable[[Model], object]:
    def change(model: Model) -> None:
        model.tensors[name] = stored(np.full((rows, cols), 2e-4, np.float32), "F32")

    return change


def as_type(suffix: str, dtype: str) -> Callable[[Model], object]:
    def change(model: Model) -> None:
        for name, (_, shape, data) in list(model.tensors.items()):
            if name.endswith(suffix) and model.tensors[name][0].startswith("F8_E"):
                model.tensors[name] = (dtype, shape, data)

    return change


def e5m2_bytes(model: Model) -> None:
    """Codes quantized to E5M2, labelled E4M3."""
    weight = numbers(model.tensors[UP + ".weight"])
    scales = np.frombuffer(model.tensors[UP + ".weight_scale_inv"][2], "<f4").reshape(3, 2)
    wide = weight * np.kron(scales, np.ones((128, 128), np.float32))
    blocks = wide.reshape(3, 128, 2, 128)
    amax = np.max(np.abs(blocks), axis=(1, 3))
    scaled = (blocks / (amax / 57344)[:, None, :, None]).reshape(wide.shape)
    table = TABLES["F8_E5M2"][:124]
    nearest = np.abs(np.abs(scaled)[..., None] - table).argmin(axis=-1).astype(np.uint8)
    model.put(UP + ".weight", nearest | np.where(scaled < 0, 128, 0).astype(np.uint8))
    model.put(UP + ".weight_scale_inv", (amax / 57344).astype("<f4"))


def quantization(key: str, value: Any) -> Callable[[Model], object]:
    return lambda model: model.quantization.update({key: value})


def weights_of_group(key: str, value: Any) -> Callable[[Model], object]:
    return lambda model: model.quantization["config_groups"]["group_0"]["weights"].update(
        {key: value}
    )


def both_heads(model: Model) -> None:
    model.config["tie_word_embeddings"] = True


def fused(model: Model) -> None:
    """q, k and v of 256, 128 and 128 rows in blocks of 96 rows, as one tensor."""
    model.quantization["weight_block_size"] = [96, 128]
    codes, names = b"", ("q", "k", "v")
    for layer in range(4):
        codes = b""
        for name in names:
            weight = f"model.layers.{layer}.self_attn.{name}_proj.weight"
            codes += model.tensors.pop(weight)[2]
            del model.tensors[weight + "_scale_inv"]
        fused_name = f"model.layers.{layer}.self_attn.qkv_proj.weight"
        model.tensors[fused_name] = ("F8_E4M3", (512, 256), codes)
        model.tensors[fused_name + "_scale_inv"] = stored(np.full((6, 2), 2e-4, np.float32), "F32")
    for name, (dtype, shape, _) in list(model.tensors.items()):
        if name.endswith("_scale_inv") and "qkv" not in name:
            rows = -(-model.tensors[name.removesuffix("_scale_inv")][1][0] // 96)
            model.tensors[name] = stored(np.full((rows, shape[1]), 2e-4, np.float32), "F32")


def nan_norm(model: Model) -> None:
    name = LAYER + "input_layernorm.weight"
    bits = np.frombuffer(model.tensors[name][2], np.uint16).copy()
    bits[17] = 0x7FC0
    model.put(name, bits)


def swap_scales(model: Model) -> None:
    """Rows of blocks in another order than the codes."""
    model.change(UP + ".weight_scale_inv", lambda values: values[::-1] * [[1], [1.5], [8]])


CASES: dict[str, Case] = {
    # scales that are missing or belong to nothing
    "a scale is missing": Case(
        "fp8", drop(UP + ".weight_scale_inv"), "scale_missing", UP + ".weight"
    ),
    "a channel scale is missing": Case(
        "compressed-tensors", drop(Q + ".weight_scale"), "scale_missing", Q + ".weight"
    ),
    "a packed weight lacks its scales": Case(
        "compressed-tensors:mxfp4", drop(Q + ".weight_scale"), "scale_missing", Q + ".weight_packed"
    ),
    "a global scale is missing": Case(
        "compressed-tensors:nvfp4",
        drop(UP + ".weight_global_scale"),
        "scale_missing",
        UP + ".weight_packed",
    ),
    "a second level is missing": Case(
        "modelopt:nvfp4", drop(UP + ".weight_scale_2"), "scale_missing", UP + ".weight"
    ),
    "a torchao scale is missing": Case(
        "torchao", drop(UP + "._weight_scale"), "scale_missing", UP + "._weight_qdata"
    ),
    "a scale is left without its weight": Case(
        "fp8", drop(UP + ".weight"), "scale_orphan", UP + ".weight_scale_inv"
    ),
    "a scale is left beside BF16": Case(
        "fp8", lambda model: dequantize(model, UP), "scale_orphan", UP + ".weight_scale_inv"
    ),
    "codes were written as values, without scales": Case(
        "fp8", dropped_scale, "scale_dropped", UP + ".weight"
    ),
    "a weight is there twice": Case(
        "compressed-tensors:nvfp4",
        lambda model: model.tensors.update(
            {UP + ".weight": stored(np.ones((384, 256), np.float32))}
        ),
        "weight_twice",
        UP + ".weight",
    ),
    "codes are U8": Case("fp8", as_type("up_proj.weight", "U8"), "code_type", UP + ".weight"),
    "scales are integers": Case(
        "fp8",
        lambda model: model.tensors.update({UP + ".weight_scale_inv": ("I32", (3, 2), bytes(24))}),
        "scale_type",
        UP + ".weight_scale_inv",
    ),
    # grids
    "the grid is transposed": Case(
        "fp8",
        lambda model: model.reshape(UP + ".weight_scale_inv", 2, 3),
        "grid",
        UP + ".weight_scale_inv",
        text="transposed",
    ),
    "the grid lacks a row": Case(
        "fp8",
        resized(UP + ".weight_scale_inv", 2, 2),
        "grid",
        UP + ".weight_scale_inv",
        [2, 0],
        "block (2, 0) has no scale",
    ),
    "the grid has a column too many": Case(
        "fp8",
        resized(UP + ".weight_scale_inv", 3, 3),
        "grid",
        UP + ".weight_scale_inv",
        [0, 2],
        "has no weights",
    ),
    "the block of the configuration is another": Case(
        "fp8", quantization("weight_block_size", [64, 64]), "grid", UP + ".weight_scale_inv"
    ),
    "the configuration says one scale a tensor": Case(
        "compressed-tensors",
        weights_of_group("strategy", "tensor"),
        "grid",
        UP + ".weight_scale",
        text="row",
    ),
    "groups of 32 under a configuration of 16": Case(
        "compressed-tensors:nvfp4",
        lambda model: model.tensors.update(
            {UP + ".weight_scale": ("F8_E4M3", (384, 8), bytes([0x7E]) * 3072)}
        ),
        "grid",
        UP + ".weight_scale",
        text="1x32",
    ),
    "a block is no pair of sizes": Case(
        "fp8", quantization("weight_block_size", [128]), "config_malformed", "config.json"
    ),
    # codes and scales that are no numbers
    "a NaN code": Case(
        "fp8",
        lambda model: model.set_byte(UP + ".weight", (300, 200), 0x7F),
        "nan_code",
        UP + ".weight",
        [2, 1],
        "(300, 200)",
    ),
    "a NaN code in a row": Case(
        "compressed-tensors",
        lambda model: model.set_byte(UP + ".weight", (300, 200), 0xFF),
        "nan_code",
        UP + ".weight",
        [300, 0],
    ),
    "a NaN code of FNUZ": Case(
        "fp8:fnuz",
        lambda model: model.set_byte(Q + ".weight", (130, 5), 0x80),
        "nan_code",
        Q + ".weight",
        [1, 0],
    ),
    "a NaN scale": Case(
        "fp8",
        lambda model: model.set_scale(UP + ".weight_scale_inv", (1, 1), np.nan),
        "scale_value",
        UP + ".weight_scale_inv",
        [1, 1],
        "NaN",
    ),
    "an infinite scale": Case(
        "fp8",
        lambda model: model.set_scale(UP + ".weight_scale_inv", (2, 0), np.inf),
        "scale_value",
        UP + ".weight_scale_inv",
        [2, 0],
        "infinite",
    ),
    "a scale of zero": Case(
        "compressed-tensors",
        lambda model: model.set_scale(UP + ".weight_scale", (77, 0), 0.0),
        "scale_value",
        UP + ".weight_scale",
        [77, 0],
        "zero",
    ),
    "a negative scale": Case(
        "modelopt:channel",
        lambda model: model.set_scale(UP + ".weight_scale", (5,), -2e-4),
        "scale_value",
        UP + ".weight_scale",
        [5, 0],
        "negative",
    ),
    "an E8M0 scale of FF": Case(
        "fp8:128x128:e8m0",
        lambda model: model.set_byte(UP + ".weight_scale_inv", (0, 1), 0xFF),
        "scale_value",
        UP + ".weight_scale_inv",
        [0, 1],
        "NaN",
    ),
    "a U8 scale of FF": Case(
        "modelopt:mxfp8",
        lambda model: model.set_byte(UP + ".weight_scale", (9, 3), 0xFF),
        "scale_value",
        UP + ".weight_scale",
        [9, 3],
    ),
    "a NaN scale of two levels": Case(
        "torchao:nvfp4",
        lambda model: model.set_byte(UP + "._weight_scale", (9, 3), 0x7F),
        "scale_value",
        UP + "._weight_scale",
        [9, 3],
    ),
    "a norm with NaN": Case(
        "bf16", nan_norm, "nonfinite", LAYER + "input_layernorm.weight", text="(17)"
    ),
    # another format, another sense
    "FNUZ codes labelled E4M3": Case(
        "fp8:fnuz",
        lambda model: (as_type(".weight", "F8_E4M3")(model), model.quantization.update(fmt="e4m3")),
        "fnuz",
        UP + ".weight",
        text="e4m3fnuz",
    ),
    "E4M3 codes labelled FNUZ": Case(
        "fp8",
        lambda model: (
            as_type(".weight", "F8_E4M3FNUZ")(model),
            model.quantization.update(fmt="e4m3fnuz"),
            model.set_byte(UP + ".weight", (0, 0), 0x80),
        ),
        "fnuz",
        UP + ".weight",
        text="e4m3fn",
    ),
    "the configuration says FNUZ, the file E4M3": Case(
        "fp8", quantization("fmt", "e4m3fnuz"), "config_type", UP + ".weight", text="factor of 2"
    ),
    "E5M2 codes labelled E4M3": Case("fp8", e5m2_bytes, "other_format", UP + ".weight"),
    "E4M3 codes labelled E5M2": Case(
        "fp8", as_type(".weight", "F8_E5M2"), "other_format", UP + ".weight"
    ),
    "the inverse of the scale": Case(
        "fp8",
        lambda model: model.change(UP + ".weight_scale_inv", lambda values: 1 / values),
        "scale_inverted",
        UP + ".weight_scale_inv",
        text="inverse",
    ),
    "the inverse of the global scale": Case(
        "compressed-tensors:nvfp4",
        lambda model: model.change(UP + ".weight_global_scale", lambda values: 1 / values),
        "scale_inverted",
        UP + ".weight_scale",
    ),
    "an infinite global scale": Case(
        "compressed-tensors:nvfp4",
        lambda model: model.change(
            UP + ".weight_global_scale", lambda values: np.full_like(values, np.inf)
        ),
        "scale_value",
        UP + ".weight_global_scale",
        text="every value of",
    ),
    "a negative global scale": Case(
        "compressed-tensors:nvfp4",
        lambda model: model.change(UP + ".weight_global_scale", lambda values: -values),
        "scale_value",
        UP + ".weight_global_scale",
    ),
    "a lost global scale": Case(
        "modelopt:nvfp4",
        lambda model: model.change(UP + ".weight_scale_2", np.ones_like),
        "scale_inverted",
        UP + ".weight_scale_2",
        text="the tensor's scale is lost",
    ),
    "scales of 1": Case(
        "compressed-tensors",
        lambda model: model.change(UP + ".weight_scale", np.ones_like),
        "scale_inverted",
        UP + ".weight_scale",
        text="all scales are 1",
    ),
    "a scale applied twice": Case(
        "compressed-tensors:tensor",
        lambda model: model.change(UP + ".weight_scale", np.square),
        "scale_of_another",
        UP + ".weight_scale",
        text="smaller",
    ),
    "a scale that jumps": Case(
        "fp8",
        lambda model: model.change(
            UP + ".weight_scale_inv", lambda values: values * [[1, 1], [1, 64], [1, 1]]
        ),
        "scale_jump",
        UP + ".weight_scale_inv",
        [1, 1],
        severity="warning",
    ),
    "a row's scale that jumps": Case(
        "compressed-tensors",
        lambda model: model.change(
            UP + ".weight_scale",
            lambda values: values * (1 + 500 * (np.arange(384) == 99))[:, None],
        ),
        "scale_jump",
        UP + ".weight_scale",
        [99, 0],
        severity="warning",
    ),
    "scales that are no powers of two": Case(
        "fp8:128x128:ue8m0",
        lambda model: model.change(
            UP + ".weight_scale_inv", lambda values: values * [[1, 1], [1, 1], [1.25, 1]]
        ),
        "scale_format",
        UP + ".weight_scale_inv",
        [2, 0],
    ),
    "a weight of zeros": Case(
        "fp8",
        lambda model: model.put(UP + ".weight", np.zeros(384 * 256, np.uint8)),
        "all_zero",
        UP + ".weight",
        severity="warning",
    ),
    # the configuration
    "no quantization_config": Case(
        "fp8",
        lambda model: model.config.pop("quantization_config"),
        "config_unquantized",
        "model.layers.0",
    ),
    "a quantization_config of plain weights": Case(
        "bf16",
        lambda model: model.config.update(
            quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]}
        ),
        "config_quantized",
        "config.json",
    ),
    "another method": Case(
        "compressed-tensors",
        lambda model: model.config.update(
            quantization_config={"quant_method": "fp8", "weight_block_size": [1, 256]}
        ),
        "config_method",
        UP + ".weight",
    ),
    "codes in a module that is left out": Case(
        "fp8",
        lambda model: model.quantization["modules_to_not_convert"].append(UP),
        "config_ignored",
        UP + ".weight",
    ),
    "codes in a module that no group targets": Case(
        "compressed-tensors",
        lambda model: next(iter(model.quantization["config_groups"].values())).update(
            targets=["re:.*(q|k|v|o|gate|down)_proj$"]
        ),
        "config_ignored",
        UP + ".weight",
        text="no group of quantization_config has its module as a target",
    ),
    "values in a module that is not left out": Case(
        "compressed-tensors",
        lambda model: (dequantize(model, UP), model.tensors.pop(UP + ".weight_scale")),
        "config_ignored",
        UP + ".weight",
    ),
    "another width": Case(
        "compressed-tensors", weights_of_group("num_bits", 4), "config_type", UP + ".weight"
    ),
    "integers in the configuration": Case(
        "compressed-tensors", weights_of_group("type", "int"), "config_type", UP + ".weight"
    ),
    "static inputs without a scale": Case(
        "fp8", quantization("activation_scheme", "static"), "input_scale_missing", UP + ".weight"
    ),
    "a scale of inputs that is zero": Case(
        "modelopt",
        lambda model: model.set_scale(UP + ".input_scale", (), 0.0),
        "input_scale_value",
        UP + ".input_scale",
    ),
    "scales of inputs that were never calibrated": Case(
        "modelopt",
        lambda model: [
            model.change(name, np.ones_like)
            for name in model.tensors
            if name.endswith(".input_scale")
        ],
        "input_scale_value",
        "model.layers.0",
        severity="warning",
    ),
    "a head that is tied and is not": Case("bf16", both_heads, "tied_head", "lm_head.weight"),
    "a quantized head that is tied": Case(
        "fp8",
        lambda model: (
            both_heads(model),
            model.rename(LAYER + "self_attn.k_proj.weight", "lm_head.weight"),
            model.rename(LAYER + "self_attn.k_proj.weight_scale_inv", "lm_head.weight_scale_inv"),
        ),
        "tied_head",
        "lm_head.weight",
    ),
    "no head": Case("bf16", drop("lm_head.weight"), "tied_head", "lm_head.weight"),
    "a tensor that one layer lacks": Case(
        "bf16", drop(LAYER + "mlp.up_proj.weight"), "tensor_missing", UP + ".weight"
    ),
    "fewer layers than the configuration says": Case(
        "bf16", lambda model: model.config.update(num_hidden_layers=6), "tensor_missing", "layers.4"
    ),
    "blocks over fused rows": Case(
        "fp8",
        fused,
        "fused_rows",
        LAYER + "self_attn.qkv_proj.weight_scale_inv",
        [2, 0],
        "row 256",
        "warning",
    ),
    # against the reference
    "scales in another order": Case(
        "fp8", swap_scales, "reference", UP + ".weight", options=("--reference",)
    ),
    "all scales halved": Case(
        "compressed-tensors",
        lambda model: model.change(UP + ".weight_scale", lambda values: values / 2),
        "reference",
        UP + ".weight",
        text="twice the scale",
        options=("--reference",),
    ),
    "rows that moved without their scales": Case(
        "compressed-tensors",
        lambda model: model.put(
            UP + ".weight", np.roll(model.bytes(UP + ".weight").reshape(384, 256), 1, axis=0)
        ),
        "reference",
        UP + ".weight",
        options=("--reference",),
    ),
    "nibbles that were swapped": Case(
        "modelopt:nvfp4",
        lambda model: model.put(
            UP + ".weight", (model.bytes(UP + ".weight") << 4) | (model.bytes(UP + ".weight") >> 4)
        ),
        "reference",
        UP + ".weight",
        options=("--reference",),
    ),
}
