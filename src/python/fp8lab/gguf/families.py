"""The supported architectures: maps their metadata to config.json, and their tensor names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp8lab.errors import Error
from fp8lab.gguf.source import Source

Config = dict[str, Any]
BLOCK = "blk.{}."
LLAMA = "model.layers.{}."
GPT2 = "transformer.h.{}."


@dataclass(frozen=True)
class Name:
    """The target of a GGUF tensor. "{}" stands for a layer number."""

    ours: str
    shape: tuple[str, ...]
    """Sizes by their names in `sizes`."""
    heads: str = ""
    """The size that counts the heads if GGUF reorders their rows; see `_rotary_order`."""
    transposed: bool = False
    """True if transformers stores the tensor as (in, out)."""


@dataclass(frozen=True)
class Family:
    model_type: str
    architecture: str
    names: dict[str, Name]
    read: Callable[[Source, Config], None]
    """Reads the shape and the family's other keys into the configuration."""
    heads_are_reordered: bool = False
    before: frozenset[str] = field(default=frozenset())
    """GGUF tensors without weights that `read` uses."""


@dataclass(frozen=True)
class Weight:
    """A tensor of the folder and its source."""

    name: str
    shape: tuple[int, ...]
    origin: str
    order: NDArray[np.intp] | None = None
    transposed: bool = False


def _decoder_names(biases: bool, head_norms: bool) -> dict[str, Name]:
    names = {
        "token_embd.weight": Name("model.embed_tokens.weight", ("vocabulary", "hidden")),
        BLOCK + "attn_norm.weight": Name(LLAMA + "input_layernorm.weight", ("hidden",)),
        BLOCK + "ffn_norm.weight": Name(LLAMA + "post_attention_layernorm.weight", ("hidden",)),
        BLOCK + "ffn_gate.weight": Name(LLAMA + "mlp.gate_proj.weight", ("inner", "hidden")),
        BLOCK + "ffn_up.weight": Name(LLAMA + "mlp.up_proj.weight", ("inner", "hidden")),
        BLOCK + "ffn_down.weight": Name(LLAMA + "mlp.down_proj.weight", ("hidden", "inner")),
        BLOCK + "attn_output.weight": Name(LLAMA + "self_attn.o_proj.weight", ("hidden", "query")),
        "output_norm.weight": Name("model.norm.weight", ("hidden",)),
        "output.weight": Name("lm_head.weight", ("vocabulary", "hidden")),
    }
    for part, size, heads in (
        ("q", "query", "heads"),
        ("k", "key_value", "key_value_heads"),
        ("v", "key_value", ""),
    ):
        to = LLAMA + f"self_attn.{part}_proj"
        names[BLOCK + f"attn_{part}.weight"] = Name(to + ".weight", (size, "hidden"), heads=heads)
        if biases:
            names[BLOCK + f"attn_{part}.bias"] = Name(to + ".bias", (size,))
        if head_norms and part != "v":
            to = LLAMA + f"self_attn.{part}_norm.weight"
            names[BLOCK + f"attn_{part}_norm.weight"] = Name(to, ("head",))
    return names


def _gpt2_names() -> dict[str, Name]:
    names = {
        "token_embd.weight": Name("transformer.wte.weight", ("vocabulary", "hidden")),
        "position_embd.weight": Name("transformer.wpe.weight", ("positions", "hidden")),
        "output.weight": Name("lm_head.weight", ("vocabulary", "hidden")),
    }
    for theirs, to in (
        (BLOCK + "attn_norm", GPT2 + "ln_1"),
        (BLOCK + "ffn_norm", GPT2 + "ln_2"),
        ("output_norm", "transformer.ln_f"),
    ):
        for part in (".weight", ".bias"):
            names[theirs + part] = Name(to + part, ("hidden",))
    for theirs, to, rows, columns in (
        ("attn_qkv", "attn.c_attn", "query_key_value", "hidden"),
        ("attn_output", "attn.c_proj", "hidden", "hidden"),
        ("ffn_up", "mlp.c_fc", "inner", "hidden"),
        ("ffn_down", "mlp.c_proj", "hidden", "inner"),
    ):
        weight = Name(GPT2 + to + ".weight", (rows, columns), transposed=True)
        names[BLOCK + theirs + ".weight"] = weight
        names[BLOCK + theirs + ".bias"] = Name(GPT2 + to + ".bias", (rows,))
    return names


def _published_llama3_factors(config: Config, factor: float) -> tuple[Config, NDArray[np.float64]]:
    """Returns the scaling of Llama 3.1 and 3.2, and its divisor of each frequency."""
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    head = config["head_dim"]
    wavelength = 2 * np.pi * config["rope_theta"] ** (np.arange(0, head, 2) / head)
    smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
    between = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(wavelength < 8192 / 4.0, 1.0, np.where(smooth < 0, factor, between))
    return scaling, factors


def _read_rope(source: Source, config: Config, arch: str) -> None:
    """Reads RoPE base and scaling. Files of Llama 3.1 store the scaling as a tensor of factors."""
    key = f"{arch}.rope.scaling."
    length = config["max_position_embeddings"]
    kind = source.get(key + "type", str, "none")
    scaling: Config | None = None
    if kind in ("linear", "yarn"):
        factor = source.number(key + "factor")
        scaling = {"rope_type": kind, "factor": factor}
        if kind == "yarn":
            original = source.count(key + "original_context_length")
            scaling["original_max_position_embeddings"] = original
    elif kind != "none":
        raise source.fail(key + "type", f"is '{kind[:80]}'; accepted: none, linear, yarn")
    else:
        source.ignore(key + "original_context_length")
        source.expect(key + "factor", [1.0, 0.0])
    source.expect(f"{arch}.rope.scale_linear", [1.0, 0.0])
    source.ignore(key + "finetuned")
    if "rope_freqs.weight" in source.tensors:
        factors = source.tensors["rope_freqs.weight"].whole().reshape(-1)
        published, expected = _published_llama3_factors(config, float(factors.max(initial=1.0)))
        fits = scaling is None and factors.shape == expected.shape
        if not fits or not np.allclose(factors, expected, rtol=1e-4):
            raise source.fail(
                "rope_freqs.weight",
                "is not the scaling of Llama 3.1 and 3.2 (low_freq_factor 1, high_freq_factor 4, "
                "8192 positions); others cannot be told from its values",
            )
        scaling = published
    if scaling is not None:
        config["rope_scaling"] = scaling
    if length < 1:
        raise source.fail(f"{arch}.context_length", "is not positive")


def _read_decoder(source: Source, config: Config) -> None:
    """Reads the metadata of Llama, Qwen2 and Qwen3."""
    arch = config["model_type"]
    hidden = source.count(f"{arch}.embedding_length")
    heads = source.count(f"{arch}.attention.head_count")
    if hidden % heads and not source.has(f"{arch}.attention.key_length"):
        raise source.fail(f"{arch}.attention.head_count", f"= {heads} does not divide {hidden}")
    head = source.count(f"{arch}.attention.key_length", hidden // heads)
    if source.count(f"{arch}.attention.value_length", head) != head:
        raise source.fail(f"{arch}.attention.value_length", "differs from key_length")
    if source.count(f"{arch}.rope.dimension_count", head) != head:
        raise source.fail(
            f"{arch}.rope.dimension_count", f"is not {head}: only a part of each head is rotated"
        )
    config.update(
        hidden_size=hidden,
        intermediate_size=source.count(f"{arch}.feed_forward_length"),
        num_hidden_layers=source.count(f"{arch}.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=source.count(f"{arch}.attention.head_count_kv", heads),
        head_dim=head,
        hidden_act="silu",
        max_position_embeddings=source.count(f"{arch}.context_length"),
        rms_norm_eps=source.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        rope_theta=source.number(f"{arch}.rope.freq_base", 10000.0),
        attention_dropout=0.0,
    )
    if arch == "llama":
        config["mlp_bias"] = False
    if arch in ("llama", "qwen3"):
        config["attention_bias"] = False
    if arch != "llama":
        config["use_sliding_window"] = False
    source.expect(f"{arch}.expert_count", [0])
    source.expect(f"{arch}.expert_used_count", [0])
    _read_rope(source, config, arch)


def _read_gpt2(source: Source, config: Config) -> None:
    hidden = source.count("gpt2.embedding_length")
    heads = source.count("gpt2.attention.head_count")
    source.expect("gpt2.attention.head_count_kv", [heads])
    config.update(
        n_embd=hidden,
        n_head=heads,
        n_layer=source.count("gpt2.block_count"),
        n_inner=source.count("gpt2.feed_forward_length", 4 * hidden),
        n_positions=source.count("gpt2.context_length"),
        activation_function="gelu_new",
        layer_norm_epsilon=source.number("gpt2.attention.layer_norm_epsilon"),
    )


FAMILIES = {
    "llama": Family(
        "llama",
        "LlamaForCausalLM",
        _decoder_names(biases=False, head_norms=False),
        _read_decoder,
        heads_are_reordered=True,
        before=frozenset(["rope_freqs.weight"]),
    ),
    "qwen2": Family(
        "qwen2",
        "Qwen2ForCausalLM",
        _decoder_names(biases=True, head_norms=False),
        _read_decoder,
    ),
    "qwen3": Family(
        "qwen3",
        "Qwen3ForCausalLM",
        _decoder_names(biases=False, head_norms=True),
        _read_decoder,
    ),
    "gpt2": Family("gpt2", "GPT2LMHeadModel", _gpt2_names(), _read_gpt2),
}
"""By `general.architecture`."""


def family_of(source: Source) -> Family:
    """Raises Error if the file is no model, a part of one, or of an unsupported architecture."""
    source.expect("general.type", ["model"])
    source.expect("split.count", [0, 1])
    architecture: str = source.get("general.architecture", str)
    if architecture not in FAMILIES:
        raise source.fail(
            "general.architecture", f"is '{architecture[:80]}'; accepted: {', '.join(FAMILIES)}"
        )
    return FAMILIES[architecture]


def _sizes(config: Config, vocabulary: int) -> dict[str, int]:
    if config["model_type"] == "gpt2":
        hidden = config["n_embd"]
        return {
            "vocabulary": vocabulary,
            "hidden": hidden,
            "positions": config["n_positions"],
            "query_key_value": 3 * hidden,
            "inner": config["n_inner"],
            "layers": config["n_layer"],
        }
    heads, few = config["num_attention_heads"], config["num_key_value_heads"]
    return {
        "vocabulary": vocabulary,
        "hidden": config["hidden_size"],
        "inner": config["intermediate_size"],
        "head": config["head_dim"],
        "heads": heads,
        "key_value_heads": few,
        "query": heads * config["head_dim"],
        "key_value": few * config["head_dim"],
        "layers": config["num_hidden_layers"],
    }


def _rotary_order(heads: int, rows: int) -> NDArray[np.intp]:
    """Returns `order`: row i of transformers is row `order[i]` of the file. The two elements that a
    rotation mixes are adjacent in GGUF, and half a head apart in transformers."""
    half = rows // heads // 2
    return np.arange(rows).reshape(heads, half, 2).swapaxes(1, 2).reshape(-1)


def read_config(source: Source, family: Family) -> Config:
    """Returns config.json. Raises Error if metadata is missing, is inconsistent, or selects a
    computation that the family does not support."""
    config: Config = {"architectures": [family.architecture], "model_type": family.model_type}
    family.read(source, config)
    arch = family.model_type
    source.ignore(f"{arch}.vocab_size")
    source.refuse_unread(f"{arch}.")
    if "token_embd.weight" not in source.tensors:
        raise Error(f"{source.path}: tensor token_embd.weight is missing")
    embedding = source.tensors["token_embd.weight"]
    config["vocab_size"] = embedding.shape[0]
    output = source.tensors.get("output.weight")
    config["tie_word_embeddings"] = output is None or output.equals(embedding)
    return config


def weights_of(source: Source, family: Family, config: Config) -> list[Weight]:
    """Returns every tensor of the folder, in layer order. Raises Error if a tensor of the file is
    missing, unknown or has the wrong shape."""
    sizes = _sizes(config, config["vocab_size"])
    weights: list[Weight] = []
    known = set(family.before)

    def add(theirs: str, name: Name, layer: int | None) -> None:
        origin, ours = theirs.format(layer), name.ours.format(layer)
        known.add(origin)
        if theirs == "output.weight" and config["tie_word_embeddings"]:
            return
        if origin not in source.tensors:
            raise Error(f"{source.path}: tensor {origin} is missing")
        shape = tuple(sizes[size] for size in name.shape)
        found = source.tensors[origin].shape
        if found != shape:
            raise Error(f"{source.path}: tensor {origin} has the shape {found}; expected: {shape}")
        order = None
        if name.heads and family.heads_are_reordered:
            order = _rotary_order(sizes[name.heads], shape[0])
        to = shape[::-1] if name.transposed else shape
        weights.append(Weight(ours, to, origin, order, name.transposed))

    for theirs, name in family.names.items():
        if not theirs.startswith(BLOCK):
            add(theirs, name, None)
    for layer in range(sizes["layers"]):
        for theirs, name in family.names.items():
            if theirs.startswith(BLOCK):
                add(theirs, name, layer)
    for tensor in source.tensors:
        if tensor not in known:
            raise Error(
                f"{source.path}: tensor {tensor[:120]} is none of the architecture "
                f"{family.model_type}"
            )
    return weights
