"""Quantized weights of every dialect read with NumPy alone, from the definitions of the formats."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from model_files import Floats, Stored, read_file, stored

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 384,
    "max_position_embeddings": 512,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 96,
}

# Every layout that `fp8lab convert` writes, and the options that it needs.
TARGETS: dict[str, tuple[str, ...]] = {
    "fp8": (),
    "fp8:128x128:ue8m0": (),
    "fp8:128x128:e8m0": (),
    "fp8:64x32": (),
    "fp8:tensor": (),
    "fp8:fnuz": (),
    "fp8:tensor:fnuz": (),
    "compressed-tensors": (),
    "compressed-tensors:tensor": (),
    "compressed-tensors:128x128": (),
    "compressed-tensors:mxfp8": (),
    "compressed-tensors:mxfp4": (),
    "compressed-tensors:nvfp4": (),
    "modelopt": ("--input-scale", "0.05"),
    "modelopt:channel": (),
    "modelopt:128x128": (),
    "modelopt:mxfp8": (),
    "modelopt:nvfp4": (),
    "torchao": (),
    "torchao:tensor": (),
    "torchao:mxfp8": (),
    "torchao:nvfp4": (),
}


def float_table(exponent_bits: int, mantissa_bits: int, bias: int, special: str) -> Floats:
    """The value of each code of a small float; `special`: fn, fnuz, ieee or none."""
    width = 1 + exponent_bits + mantissa_bits
    values = np.empty(1 << width, np.float32)
    top = (1 << exponent_bits) - 1
    for code in range(1 << width):
        sign, magnitude = code >> (width - 1), code & ((1 << (width - 1)) - 1)
        exponent, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
        if exponent == 0:
            value = mantissa * 2.0 ** (1 - bias - mantissa_bits)
        else:
            value = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
        if special == "fn" and magnitude == (1 << (width - 1)) - 1:
            value = np.nan
        if special == "ieee" and exponent == top:
            value = np.nan if mantissa else np.inf
        if special == "fnuz" and code == 1 << (width - 1):
            value = np.nan
        values[code] = -value if sign else value
    return values


TABLES = {
    "F8_E4M3": float_table(4, 3, 7, "fn"),
    "F8_E5M2": float_table(5, 2, 15, "ieee"),
    "F8_E4M3FNUZ": float_table(4, 3, 8, "fnuz"),
    "F8_E5M2FNUZ": float_table(5, 2, 16, "fnuz"),
    "E2M1": float_table(2, 1, 1, "none"),
}


def read_metadata(path: Path) -> dict[str, str]:
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    metadata: dict[str, str] = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    return metadata


def numbers(tensor: Stored) -> Floats:
    dtype, shape, data = tensor
    if dtype in TABLES:
        values: Floats = TABLES[dtype][np.frombuffer(data, np.uint8)].reshape(shape)
        return values
    if dtype in ("F8_E8M0", "U8"):  # as scales
        exponents = np.frombuffer(data, np.uint8).astype(np.int32) - 127
        return np.ldexp(np.float32(1), exponents).astype(np.float32).reshape(shape)
    kind = {"F32": "<f4", "F16": "<f2"}.get(dtype)
    if kind:
        return np.frombuffer(data, kind).astype(np.float32).reshape(shape)
    assert dtype == "BF16", dtype
    bits = np.left_shift(np.frombuffer(data, "<u2"), 16, dtype=np.uint32)
    wide: Floats = bits.view(np.float32).reshape(shape)
    return wide


def unpacked(tensor: Stored) -> Floats:
    _, shape, data = tensor
    codes = np.frombuffer(data, np.uint8).reshape(shape)
    both = np.stack([codes & 15, codes >> 4], axis=-1).reshape(shape[0], -1)
    values: Floats = TABLES["E2M1"][both]
    return values


def spread(scales: Floats, shape: tuple[int, ...], block: tuple[int, int]) -> Floats:
    """One scale for each element of a weight."""
    if scales.size == 1:
        return np.broadcast_to(scales.reshape(1, 1), shape)
    if scales.ndim == 4:
        scales = scales[:, 0, :, 0]
    if scales.ndim == 1:
        scales = scales[:, None]
    rows = np.repeat(scales, block[0], axis=0)[: shape[0]]
    return np.repeat(rows, block[1], axis=1)[:, : shape[1]]


def block_of(config: dict[str, Any], target: str, columns: int) -> tuple[int, int]:
    """The tile, from what each dialect says of it."""
    table = config["quantization_config"]
    if table["quant_method"] == "fp8":
        return tuple(table["weight_block_size"] or (1, columns))  # type: ignore[return-value]
    if "mxfp" in target:
        return 1, 32
    if "nvfp4" in target:
        return 1, 16
    if table["quant_method"] == "compressed-tensors":
        weights = table["config_groups"]["group_0"]["weights"]
        return tuple(weights.get("block_structure", (1, columns)))  # type: ignore[return-value]
    return (128, 128) if "128x128" in target else (1, columns)


def read_weights(folder: Path, target: str) -> dict[str, Floats]:
    """The values of all tensors of a converted folder, quantized ones under "X.weight"."""
    config = json.loads((folder / "config.json").read_text())
    tensors: dict[str, Stored] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= read_file(path)
    values: dict[str, Floats] = {}
    for name, tensor in tensors.items():
        if name.endswith(("_scale", "_scale_inv", "_scale_2", "_global_scale")):
            continue
        weight, scale, factor, codes = name, None, np.float32(1), tensor
        if name.endswith("._weight_qdata"):
            weight = name.replace("._weight_qdata", ".weight")
            scale = tensors[name.replace("_qdata", "_scale")]
            if "nvfp4" in target:
                factor = numbers(tensors[name.replace("_qdata", "_per_tensor_scale")])
        elif name.endswith("_packed"):
            weight = name.removesuffix("_packed")
            scale = tensors[weight + "_scale"]
            if "nvfp4" in target:
                factor = 1 / numbers(tensors[weight + "_global_scale"])
        else:
            scale = tensors.get(name + "_scale_inv", tensors.get(name + "_scale"))
            if name + "_scale_2" in tensors:
                factor = numbers(tensors[name + "_scale_2"])
        if scale is None:
            values[name] = numbers(tensor)
            continue
        wide = unpacked(codes) if codes[0] == "U8" else numbers(codes)
        block = block_of(config, target, wide.shape[1])
        values[weight] = wide * spread(numbers(scale) * factor, wide.shape, block)
    return values


def sqnr(reference: Floats, values: Floats) -> float:
    signal = np.sum(reference.astype(np.float64) ** 2)
    noise = np.sum((reference.astype(np.float64) - values) ** 2)
    return float("inf") if noise == 0 else float(10 * np.log10(signal / noise))


def gaussian_model(config: dict[str, Any], seed: int = 7) -> dict[str, Stored]:
    """BF16 weights of deviation 0.03 under the names of Llama."""
    generator = np.random.default_rng(seed)
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    tensors: dict[str, Stored] = {}

    def add(name: str, *shape: int) -> None:
        values: npt.NDArray[np.float32] = generator.standard_normal(shape, np.float32)
        tensors[name] = stored(values * np.float32(0.03 if len(shape) == 2 else 1))

    add("model.embed_tokens.weight", config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        add(prefix + "input_layernorm.weight", hidden)
        for name, rows, cols in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden)):
            add(f"{prefix}self_attn.{name}_proj.weight", rows, cols)
        add(prefix + "self_attn.o_proj.weight", hidden, q)
        add(prefix + "post_attention_layernorm.weight", hidden)
        for name, rows, cols in (
            ("gate", inner, hidden),
            ("up", inner, hidden),
            ("down", hidden, inner),
        ):
            add(f"{prefix}mlp.{name}_proj.weight", rows, cols)
    add("model.norm.weight", hidden)
    if not config["tie_word_embeddings"]:
        add("lm_head.weight", config["vocab_size"], hidden)
    return tensors
