"""Hugging Face folders made and read with NumPy alone: the other side of fp8lab's own files."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Stored = tuple[str, tuple[int, ...], bytes]  # dtype, shape, data

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "hidden_act": "silu",
    "hidden_size": 48,
    "initializer_range": 0.02,
    "intermediate_size": 144,
    "max_position_embeddings": 512,
    "max_window_layers": 2,
    "model_type": "qwen2",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.57.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 301,
}


def bf16_bits(values: Floats) -> npt.NDArray[np.uint16]:
    """Round to nearest even; for finite values."""
    bits = np.atleast_1d(values).astype(np.float32).view(np.uint32)
    rounded: npt.NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded.reshape(values.shape)


def e4m3_values() -> Floats:
    """The value of each E4M3 code, from the definition of the format."""
    values = np.empty(256, np.float32)
    for code in range(256):
        exponent, mantissa = (code >> 3) & 15, code & 7
        if exponent == 0:
            magnitude = mantissa / 8 * 2.0**-6
        else:
            magnitude = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        if exponent == 15 and mantissa == 7:
            magnitude = np.nan
        values[code] = -magnitude if code & 128 else magnitude
    return values


E4M3 = e4m3_values()


def e4m3_codes(values: Floats) -> npt.NDArray[np.uint8]:
    """Nearest E4M3 codes, ties to the even one, saturating: a search in the table of values."""
    table = E4M3[:127].astype(np.float64)
    magnitude = np.minimum(np.abs(values.astype(np.float64)), 448.0)
    above = np.clip(np.searchsorted(table, magnitude), 1, 126)
    low, high = magnitude - table[above - 1], table[above] - magnitude
    even = np.where(above % 2 == 0, above, above - 1)
    code = np.where(low < high, above - 1, np.where(high < low, above, even))
    return (code | np.where(np.signbit(values), 128, 0)).astype(np.uint8)


def decode(tensor: Stored) -> Floats:
    dtype, shape, data = tensor
    if dtype == "F32":
        return np.frombuffer(data, "<f4").reshape(shape)
    if dtype == "F16":
        return np.frombuffer(data, "<f2").astype(np.float32).reshape(shape)
    if dtype == "BF16":
        bits = np.left_shift(np.frombuffer(data, "<u2"), 16, dtype=np.uint32)
        wide: Floats = bits.view(np.float32).reshape(shape)
        return wide
    assert dtype == "F8_E4M3", dtype
    values: Floats = E4M3[np.frombuffer(data, np.uint8)].reshape(shape)
    return values


def stored(values: Floats, dtype: str = "BF16") -> Stored:
    if dtype == "BF16":
        return dtype, values.shape, bf16_bits(values).tobytes()
    kind = {"F32": "<f4", "F16": "<f2"}[dtype]
    return dtype, values.shape, values.astype(kind).tobytes()


def raw_file(header: object, data: bytes = b"", pad: int = 8) -> bytes:
    """A safetensors file with this header: an object, or the text itself."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % pad)
    return struct.pack("<Q", len(text)) + text + data


def file_bytes(tensors: Mapping[str, Stored], metadata: Mapping[str, str] | None = None) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        place = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": place}
        data += content
    return raw_file(header, data)


def read_file(path: Path) -> dict[str, Stored]:
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    assert length % 8 == 0
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    data = content[8 + length :]
    tensors: dict[str, Stored] = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], tuple(entry["shape"]), data[begin:end])
    return tensors


def read_folder(folder: Path) -> dict[str, Stored]:
    tensors: dict[str, Stored] = {}
    for path in sorted(folder.glob("*.safetensors")):
        part = read_file(path)
        assert not tensors.keys() & part.keys()
        tensors |= part
    return tensors


def random_tensors(
    config: Mapping[str, Any], dtype: str = "BF16", seed: int = 1
) -> dict[str, Stored]:
    """Weights of the model under the names of transformers, with a few large columns."""
    generator = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    tensors: dict[str, Stored] = {}

    def add(name: str, *shape: int) -> None:
        values = (generator.standard_normal(shape) * 0.05).astype(np.float32)
        if len(shape) == 2:
            values[:, generator.integers(shape[1])] *= 20
        tensors[name] = stored(values, dtype)

    add("model.embed_tokens.weight", config["vocab_size"], hidden)
    qwen2, qwen3 = config["model_type"] == "qwen2", config["model_type"] == "qwen3"
    bias = config.get("attention_bias", False)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        add(prefix + "input_layernorm.weight", hidden)
        is_fused = config["model_type"] == "phi3"
        if is_fused:
            add(prefix + "self_attn.qkv_proj.weight", q + 2 * kv, hidden)
        for name, rows in () if is_fused else (("q", q), ("k", kv), ("v", kv)):
            add(f"{prefix}self_attn.{name}_proj.weight", rows, hidden)
            if qwen2 or bias:
                add(f"{prefix}self_attn.{name}_proj.bias", rows)
            if qwen3 and name != "v":
                add(f"{prefix}self_attn.{name}_norm.weight", head)
        add(prefix + "self_attn.o_proj.weight", hidden, q)
        if bias:
            add(prefix + "self_attn.o_proj.bias", hidden)
        add(prefix + "post_attention_layernorm.weight", hidden)
        for name, rows, cols in (
            *(
                [("gate_up", 2 * inner, hidden)]
                if is_fused
                else [("gate", inner, hidden), ("up", inner, hidden)]
            ),
            ("down", hidden, inner),
        ):
            add(f"{prefix}mlp.{name}_proj.weight", rows, cols)
            if config.get("mlp_bias", False):
                add(f"{prefix}mlp.{name}_proj.bias", rows)
    add("model.norm.weight", hidden)
    if not config["tie_word_embeddings"]:
        add("lm_head.weight", config["vocab_size"], hidden)
    return tensors


def write_folder(
    folder: Path, tensors: Mapping[str, Stored], config: Mapping[str, Any] = CONFIG, shards: int = 1
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        (folder / "model.safetensors").write_bytes(file_bytes(tensors))
        return folder
    names = list(tensors)
    index: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = names[shard::shards]
        index |= {name: file for name in part}
        (folder / file).write_bytes(file_bytes({name: tensors[name] for name in part}))
    document = {"metadata": {"total_size": 1}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))
    return folder
