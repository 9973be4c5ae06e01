"""A directory of malformed models: each is refused with one line that names what is wrong."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import (
    CONFIG,
    Stored,
    file_bytes,
    random_tensors,
    raw_file,
    read_folder,
    stored,
    write_folder,
)
from program import run

PROGRAM = os.environ["FP8LAB_PROGRAM"]


def refusal(*arguments: object) -> str:
    words = [PROGRAM, *map(str, arguments)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2, (result.returncode, result.stdout, result.stderr)
    assert result.stdout == ""
    assert result.stderr.startswith("fp8lab: ")
    assert result.stderr.count("\n") == 1 and len(result.stderr) < 1000, result.stderr
    return result.stderr


def entry(
    dtype: object = "F32", shape: object = (1, 2), offsets: object = (0, 8)
) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def one(tensor: object, data: int = 8) -> bytes:
    return raw_file({"t": tensor}, bytes(data))


def two(first: tuple[int, int], second: tuple[int, int], data: int) -> bytes:
    header = {
        "a": entry("U8", [first[1] - first[0]], first),
        "b": entry("U8", [second[1] - second[0]], second),
    }
    return raw_file(header, bytes(data))


ENTRY = b'{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}'

# name: (bytes of the file, what the message has to say)
FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "too short"),
    "seven_bytes": (bytes(7), "too short"),
    "header_beyond_the_end": (b"\x40" + bytes(7) + b"{}", "header length 64"),
    "header_of_all_ones": (b"\xff" * 8 + b"{}", "header length"),
    "no_header": (bytes(8), "not a JSON object"),
    "header_is_an_array": (raw_file([1, 2]), "not a JSON object"),
    "header_begins_with_a_space": (raw_file(b" {}"), "not a JSON object"),
    "header_is_cut": (raw_file(b'{"t": {"dtype"', pad=1), "error at byte"),
    "text_after_the_header": (raw_file(b'{"t":' + ENTRY + b"}x", bytes(8)), "error at byte"),
    "null_after_the_header": (raw_file(b'{"t":' + ENTRY + b"}\0", bytes(8)), "error at byte"),
    "text_after_a_null": (raw_file(b'{"t":' + ENTRY + b"}\0x", bytes(8)), "error at byte"),
    "not_utf8": (raw_file(b'{"\xff\xfe":' + ENTRY + b"}", bytes(8)), "error at byte"),
    "tensor_named_twice": (
        raw_file(b'{"t":' + ENTRY + b',"t":' + ENTRY + b"}", bytes(8)),
        "'t': named twice",
    ),
    "key_named_twice": (
        raw_file(
            b'{"t":{"dtype":"U8","dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}', bytes(8)
        ),
        "'t': key 'dtype' is given twice",
    ),
    "metadata_named_twice": (
        raw_file(b'{"__metadata__":{"a":"1"},"__metadata__":{"a":"2"}}'),
        "named twice",
    ),
    "metadata_key_named_twice": (
        raw_file(b'{"__metadata__":{"a":"1","a":"2"}}'),
        "__metadata__: key 'a' is given twice",
    ),
    "metadata_holds_a_number": (raw_file({"__metadata__": {"a": 1}}), "metadata values"),
    "metadata_holds_an_object": (raw_file({"__metadata__": {"a": {}}}), "metadata values"),
    "metadata_is_a_text": (raw_file({"__metadata__": "pt"}), "malformed header entry"),
    "entry_is_a_number": (one(3), "'t': malformed header entry"),
    "entry_is_a_list": (one([1, 2]), "'t': malformed header entry"),
    "entries_in_entries": (one({"dtype": {"a": 1}}), "'t': malformed header entry"),
    "entry_is_empty": (one({}), "'t': malformed header entry: needs 'dtype'"),
    "no_dtype": (one({"shape": [1, 2], "data_offsets": [0, 8]}), "needs 'dtype'"),
    "no_shape": (one({"dtype": "F32", "data_offsets": [0, 8]}), "needs 'dtype'"),
    "no_offsets": (one({"dtype": "F32", "shape": [1, 2]}), "needs 'dtype'"),
    "unknown_key": (
        one(entry() | {"order": "C"}),
        "'t': malformed header entry: unknown key 'order'",
    ),
    "unknown_dtype": (one(entry("Q7")), "'t': dtype 'Q7'"),
    "packed_dtype": (one(entry("F4")), "'t': dtype 'F4'"),
    "dtype_is_a_number": (one(entry(4)), "'t': malformed header entry"),
    "dtype_is_null": (one(entry(None)), "'t': malformed header entry"),
    "shape_is_a_number": (one(entry(shape=2)), "'t': malformed header entry"),
    "shape_in_a_shape": (one(entry(shape=[[1], 2])), "'t': "),
    "negative_extent": (one(entry(shape=[-1, 2])), "'t': shape: expected integers from 0 on"),
    "fraction_of_an_extent": (
        one(entry(shape=[0.5, 4])),
        "'t': shape: expected integers from 0 on",
    ),
    "extent_is_a_text": (one(entry(shape=["1", 2])), "'t': shape: expected integers from 0 on"),
    "extent_beyond_63_bits": (
        one(entry(shape=[0, 2**63], offsets=[0, 0]), 0),
        "'t': 9223372036854775808",
    ),
    "extent_beyond_64_bits": (one(entry(shape=[2**64, 1])), "'t': shape"),
    "product_wraps_to_the_size": (one(entry(shape=[2**62 + 1, 2])), "'t': shape F32"),
    "product_wraps_to_zero": (one(entry(shape=[2**62, 4], offsets=[0, 0]), 0), "'t': shape F32"),
    "product_overflows_beside_a_zero": (
        one(entry(shape=[2**62, 2**62, 0], offsets=[0, 0]), 0),
        "'t': shape F32",
    ),
    "one_offset": (one(entry(offsets=[0])), "'t': data_offsets are not two numbers"),
    "three_offsets": (one(entry(offsets=[0, 4, 8])), "'t': data_offsets are not two numbers"),
    "offsets_reversed": (one(entry(offsets=[8, 0])), "'t': data offsets [8, 0) lie outside"),
    "offset_is_negative": (one(entry(offsets=[-8, 0])), "'t': data_offsets: expected two integers"),
    "offset_is_huge": (one(entry(offsets=[0, 5.6e95])), "'t': data_offsets: expected two integers"),
    "offset_beyond_63_bits": (one(entry(offsets=[0, 2**64 - 1])), "'t': 18446744073709551615"),
    "data_are_cut": (one(entry(), 4), "'t': data offsets [0, 8) lie outside"),
    "shape_too_large": (one(entry(shape=[1, 3])), "'t': shape F32 (1, 3) does not fit"),
    "shape_too_small": (one(entry(shape=[1, 1])), "'t': shape F32 (1, 1) does not fit"),
    "tensors_overlap": (two((0, 8), (4, 12), 12), "'a' and 'b' overlap"),
    "tensors_coincide": (two((0, 8), (0, 8), 8), "'a' and 'b' overlap"),
    "hole_at_the_start": (two((4, 8), (8, 12), 12), "'a': a hole of 4 bytes"),
    "hole_between": (two((0, 4), (8, 12), 12), "'b': a hole of 4 bytes"),
    "bytes_after_the_last": (two((0, 4), (4, 12), 13), "1 bytes after the last tensor"),
    "name_of_a_megabyte": (raw_file({"n" * 1000000: entry()}, bytes(8)), "a name of 1000000 bytes"),
    "deep_nesting": (raw_file(b'{"t":' + b"[" * 100000, bytes(8)), "'t': malformed header entry"),
    "no_linear_weight": (one(entry()), "no weight of a linear layer"),
}


@pytest.mark.parametrize("name", FILES)
def test_malformed_file(tmp_path: Path, name: str) -> None:
    content, message = FILES[name]
    path = tmp_path / f"{name}.safetensors"
    path.write_bytes(content)
    said = refusal("quantize", path, "--recipe", "fp8_block128")
    assert path.name in said and message in said, said


def test_a_header_over_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_001))
        file.truncate(100_000_100)  # a file with a hole: no byte of it is on the disk
    said = refusal("quantize", path, "--recipe", "fp8_block128")
    assert path.name in said and "header length 100000001 lies outside" in said, said


def index(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Applies `change` to the folder's index."""
    path = folder / "model.safetensors.index.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def shard_name(number: int) -> str:
    return f"model-{number:05}-of-00003.safetensors"


def drop_from_index(folder: Path) -> None:
    index(folder, lambda document: document["weight_map"].pop("model.norm.weight"))


def point(name: str, file: object) -> Callable[[Path], None]:
    def change(document: dict[str, Any]) -> None:
        document["weight_map"][name] = file

    return lambda folder: index(folder, change)


def repeat_in_shard(folder: Path) -> None:
    """A second copy of a tensor in another shard."""
    tensors = random_tensors(CONFIG)
    first = list(tensors)[0::3]
    names = [*list(tensors)[1::3], first[0]]
    (folder / shard_name(2)).write_bytes(file_bytes({name: tensors[name] for name in names}))


def turn_into_folder(folder: Path) -> None:
    (folder / shard_name(3)).unlink()
    (folder / shard_name(3)).mkdir()


def overwrite(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


INDEX = "model.safetensors.index.json"
SHARDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "index_is_cut": (overwrite(INDEX, '{"weight_map": {'), f"{INDEX}: malformed JSON"),
    "index_is_a_list": (overwrite(INDEX, "[]"), f"{INDEX}: is no index"),
    "index_without_map": (overwrite(INDEX, "{}"), f"{INDEX}: is no index"),
    "index_of_nothing": (overwrite(INDEX, '{"weight_map": {}}'), "names no tensor"),
    "index_names_twice": (
        overwrite(INDEX, '{"weight_map": {"a": "b.safetensors", "a": "c.safetensors"}}'),
        "key 'a' is given twice",
    ),
    "index_number_is_huge": (overwrite(INDEX, '{"metadata": 1e999}'), f"{INDEX}: malformed JSON"),
    "shard_is_a_number": (point("model.norm.weight", 3), "'model.norm.weight': the shard is not"),
    "shard_above_the_folder": (
        point("model.norm.weight", "../model.safetensors"),
        "'model.norm.weight': the shard is not",
    ),
    "shard_anywhere": (
        point("model.norm.weight", "/etc/x.safetensors"),
        "'model.norm.weight': the shard is not",
    ),
    "shard_of_another_kind": (point("model.norm.weight", "config.json"), "the shard is not"),
    "shard_missing": (
        lambda folder: (folder / shard_name(3)).unlink(),
        f"{shard_name(3)}: cannot open",
    ),
    "shard_is_a_folder": (
        turn_into_folder,
        f"{shard_name(3)}: is no regular file",
    ),
    "tensor_not_in_the_index": (drop_from_index, "'model.norm.weight' is here, but"),
    "tensor_in_another_shard": (
        point("model.norm.weight", shard_name(1)),
        "'model.norm.weight' is here, but model.safetensors.index.json says " + shard_name(1),
    ),
    "tensor_in_no_shard": (point("extra", shard_name(2)), "'extra' is not in " + shard_name(2)),
    "tensor_in_two_shards": (repeat_in_shard, "'model.embed_tokens.weight' is here, but"),
}


@pytest.mark.parametrize("name", SHARDS)
def test_malformed_shards(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "model", random_tensors(CONFIG), shards=3)
    change, message = SHARDS[name]
    change(folder)
    said = refusal("export", folder, tmp_path / "out")
    assert message in said, said
    assert not (tmp_path / "out").exists()


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "another_family": ({"model_type": "mixtral"}, "'model_type' is 'mixtral'"),
    "no_family": ({"model_type": None}, "'model_type'"),
    "another_task": ({"architectures": ["Qwen2ForSequenceClassification"]}, "'architectures'"),
    "no_hidden_size": ({"hidden_size": None}, "'hidden_size' is missing"),
    "hidden_size_is_a_text": ({"hidden_size": "48"}, "'hidden_size' is \"48\""),
    "hidden_size_is_huge": ({"hidden_size": 2**64}, "'hidden_size'"),
    "hidden_size_is_negative": ({"hidden_size": -48}, "'hidden_size' is -48"),
    "layers_are_a_fraction": ({"num_hidden_layers": 1.5}, "'num_hidden_layers' is 1.5"),
    "heads_do_not_divide": ({"num_key_value_heads": 3}, "'num_key_value_heads' = 3"),
    "odd_head": ({"head_dim": 13}, "'head_dim' is 13"),
    "other_activation": ({"hidden_act": "gelu"}, "'hidden_act' = \"gelu\""),
    "dropout": ({"attention_dropout": 0.1}, "'attention_dropout' = 0.1"),
    "window_of_none": (
        {"use_sliding_window": True, "sliding_window": 0},
        "'sliding_window' is 0; accepted: an integer from 1",
    ),
    "window_of_layers": (
        {"layer_types": ["full_attention", "sliding_attention"]},
        "'layer_types' holds \"sliding_attention\" without a 'sliding_window'",
    ),
    "chunks": (
        {"layer_types": ["full_attention", "chunked_attention"]},
        "'layer_types' holds \"chunked_attention\"",
    ),
    "partial_rotation": ({"partial_rotary_factor": 0.5}, "'partial_rotary_factor'"),
    "three_rotations": ({"use_mrope": True}, "'use_mrope'"),
    "unknown_field": ({"residual_multiplier": 0.22}, "unknown field 'residual_multiplier'"),
    "epsilon_is_negative": ({"rms_norm_eps": -1e-6}, "'rms_norm_eps'"),
    "rope_of_another_type": (
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1], "long_factor": [1]}},
        "rope_scaling: 'rope_type' is 'longrope'",
    ),
    "rope_without_factor": (
        {"rope_scaling": {"type": "linear"}},
        "rope_scaling: 'factor' is missing",
    ),
    "rope_factor_below_1": (
        {"rope_scaling": {"type": "linear", "factor": 0.5}},
        "rope_scaling: 'factor' is 0.5",
    ),
    "rope_lacks_a_frequency": (
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
        },
        "rope_scaling: 'low_freq_factor' is missing",
    ),
    "rope_with_an_unknown_key": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7}},
        "rope_scaling: unknown field 'mscale'",
    ),
    "rope_is_a_number": ({"rope_scaling": 2.0}, "rope_scaling: is no JSON object"),
    "weights_of_another_method": (
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        "quantization_config: 'quant_method' is 'gptq'",
    ),
    "block_of_nothing": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 0]}},
        "quantization_config: 'weight_block_size' is [128,0]",
    ),
    "block_of_one_size": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
        "quantization_config: 'weight_block_size' is [128]",
    ),
    "group_of_integers": (
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}},
            }
        },
        "group_0.weights: 'type' = \"int\"",
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_malformed_config(tmp_path: Path, name: str) -> None:
    change, message = CONFIGS[name]
    folder = write_folder(tmp_path / "model", random_tensors(CONFIG), CONFIG | change)
    said = refusal("export", folder, tmp_path / "out")
    assert "config.json: " in said and message in said, said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "malformed JSON at byte"),
        ("{", "malformed JSON at byte"),
        ("[]", "is no JSON object"),
        ('{"vocab_size": 1, "vocab_size": 2}', "key 'vocab_size' is given twice"),
        ('{"a": ' + "[" * 100000 + "]" * 100000 + "}", "in one another, more than 64"),
    ],
    ids=["empty", "cut", "list", "key_twice", "deep"],
)
def test_config_that_is_no_config(tmp_path: Path, text: str, message: str) -> None:
    folder = write_folder(tmp_path / "model", random_tensors(CONFIG))
    (folder / "config.json").write_text(text)
    said = refusal("export", folder, tmp_path / "out")
    assert "config.json: " in said and message in said, said


Q = "model.layers.0.self_attn.q_proj.weight"
CODES: Stored = ("F8_E4M3", (48, 48), bytes(48 * 48))
BLOCKS = {"quant_method": "fp8", "weight_block_size": [32, 32]}


def scales(*shape: int) -> Stored:
    return stored(np.ones(shape, np.float32), "F32")


# name: (changed tensors, None: left out; quantization_config; what the message has to say)
TENSORS: dict[str, tuple[dict[str, Stored | None], dict[str, Any] | None, str]] = {
    "tensor_missing": ({Q: None}, None, f"no tensor '{Q}'"),
    "tensor_transposed": (
        {"model.layers.1.mlp.up_proj.weight": stored(np.ones((48, 144), np.float32))},
        None,
        "'model.layers.1.mlp.up_proj.weight' is BF16 (48, 144), the model needs (144, 48)",
    ),
    "norm_as_a_matrix": (
        {"model.norm.weight": stored(np.ones((1, 48), np.float32))},
        None,
        "'model.norm.weight' is BF16 (1, 48), the model needs (48)",
    ),
    "tensor_too_many": (
        {"model.layers.0.self_attn.o_proj.bias": stored(np.ones(48, np.float32))},
        None,
        "'model.layers.0.self_attn.o_proj.bias' has no place in the model",
    ),
    "layer_too_many": (
        {"model.layers.2.input_layernorm.weight": stored(np.ones(48, np.float32))},
        None,
        "'model.layers.2.input_layernorm.weight' has no place in the model",
    ),
    "weights_of_integers": ({Q: ("I8", (48, 48), bytes(48 * 48))}, None, f"'{Q}' is I8"),
    "weights_of_doubles": ({Q: ("F64", (48, 48), bytes(8 * 48 * 48))}, None, f"'{Q}' is F64"),
    "head_differs_from_embedding": (
        {"lm_head.weight": stored(np.ones((301, 48), np.float32))},
        None,
        "'lm_head.weight' differs from 'model.embed_tokens.weight'",
    ),
    "codes_without_scales": (
        {Q: CODES},
        BLOCKS,
        f"'{Q}' is F8_E4M3 (48, 48); accepted: FP8 matrices",
    ),
    "scales_of_other_blocks": (
        {Q: CODES, Q + "_scale_inv": scales(3, 3)},
        BLOCKS,
        f"'{Q}_scale_inv' is F32 (3, 3), which fits weights of (48, 48) neither",
    ),
    "blocks_of_no_size": (
        {Q: CODES, Q + "_scale_inv": scales(2, 2)},
        None,
        f"'{Q}_scale_inv' is F32 (2, 2)",
    ),
    "scales_of_too_few_rows": ({Q: CODES, Q + "_scale": scales(47, 1)}, None, f"'{Q}_scale'"),
    "scales_of_integers": (
        {Q: CODES, Q + "_scale": ("I32", (1,), bytes(4))},
        None,
        f"'{Q}_scale' is I32",
    ),
    "scales_of_zero": (
        {Q: CODES, Q + "_scale": stored(np.array([1.0] * 47 + [0.0], np.float32)[:, None], "F32")},
        None,
        f"'{Q}_scale' is 0 at (47, 0); accepted: scales above 0",
    ),
    "scales_below_zero": (
        {Q: CODES, Q + "_scale_inv": stored(np.full((2, 2), -0.5, np.float32), "F32")},
        BLOCKS,
        f"'{Q}_scale_inv' is -0.5 at (0, 0); accepted: scales above 0",
    ),
    "codes_of_another_format": (
        {Q: ("F8_E5M2", (48, 48), bytes(48 * 48)), Q + "_scale_inv": scales(2, 2)},
        BLOCKS | {"fmt": "e4m3"},
        f"'{Q}' is F8_E5M2, but quantization_config of config.json says E4M3",
    ),
    "weights_of_scales": ({Q: ("F8_E8M0", (48, 48), bytes(48 * 48))}, None, f"'{Q}' is F8_E8M0"),
    "scales_without_codes": ({Q + "_scale": scales(1)}, None, f"'{Q}_scale' has no place"),
    "norm_of_codes": (
        {
            "model.norm.weight": ("F8_E4M3", (48,), bytes(48)),
            "model.norm.weight_scale": scales(1),
        },
        None,
        "'model.norm.weight' is F8_E4M3 (48)",
    ),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_do_not_fit(tmp_path: Path, name: str) -> None:
    change, quantization, message = TENSORS[name]
    tensors = random_tensors(CONFIG)
    for key, tensor in change.items():
        if tensor is None:
            del tensors[key]
        else:
            tensors[key] = tensor
    config = CONFIG if quantization is None else CONFIG | {"quantization_config": quantization}
    folder = write_folder(tmp_path / "model", tensors, config)
    said = refusal("export", folder, tmp_path / "out")
    assert str(folder) in said and message in said, said
    assert not (tmp_path / "out").exists()


GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "n_embd": 32,
    "n_head": 2,
    "n_layer": 1,
    "n_positions": 64,
    "n_ctx": 64,
    "vocab_size": 300,
    "layer_norm_epsilon": 1e-5,
}


def gpt2_tensors() -> dict[str, Stored]:
    generator = np.random.default_rng(3)
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (300, 32), "wpe.weight": (64, 32)}
    for name, shape in {
        "ln_1.weight": (32,), "ln_1.bias": (32,), "ln_2.weight": (32,), "ln_2.bias": (32,),
        "attn.c_attn.weight": (32, 96), "attn.c_attn.bias": (96,),
        "attn.c_proj.weight": (32, 32), "attn.c_proj.bias": (32,),
        "mlp.c_fc.weight": (32, 128), "mlp.c_fc.bias": (128,),
        "mlp.c_proj.weight": (128, 32), "mlp.c_proj.bias": (32,),
    }.items():  # fmt: skip
        shapes[f"h.0.{name}"] = shape
    shapes |= {"ln_f.weight": (32,), "ln_f.bias": (32,)}
    return {
        f"transformer.{name}": stored(generator.standard_normal(shape).astype(np.float32), "F32")
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("name", ["ln_f.bias", "wte.weight", "h.0.mlp.c_fc.weight"])
def test_one_parameter_under_two_names(tmp_path: Path, name: str) -> None:
    tensors = gpt2_tensors()
    assert read_folder(write_folder(tmp_path / "model", tensors, GPT2)).keys() == tensors.keys()
    program = run("export", tmp_path / "model", tmp_path / "plain", "--dtype", "f32")
    assert program.returncode == 0, program.stderr
    for order in ("first", "last"):
        kind, shape, data = tensors[f"transformer.{name}"]
        other = (kind, shape, data[:-1] + bytes([data[-1] ^ 1]))
        changed = {name: other, **tensors} if order == "first" else {**tensors, name: other}
        folder = write_folder(tmp_path / order, changed, GPT2)
        said = refusal("export", folder, tmp_path / "out")
        assert f"'{name}'" in said and f"'transformer.{name}'" in said and "two names" in said
    both = write_folder(tmp_path / "both", {**tensors, name: tensors[f"transformer.{name}"]}, GPT2)
    result = run("export", both, tmp_path / "same", "--dtype", "f32")
    assert result.returncode == 0, result.stderr
    assert read_folder(tmp_path / "same") == read_folder(tmp_path / "plain")


def test_the_directory_is_large() -> None:
    assert len(FILES) + len(SHARDS) + len(CONFIGS) + len(TENSORS) >= 40
    assert len(FILES) >= 40


def test_the_unchanged_model_is_accepted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", random_tensors(CONFIG), shards=3)
    words = [PROGRAM, "export", str(folder), str(tmp_path / "out")]
    assert subprocess.run(words, capture_output=True, timeout=120, check=False).returncode == 0


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    assert "holds no model" in refusal("quantize", tmp_path, "--recipe", "bf16")
    assert "there is no such file or folder" in refusal(
        "quantize", tmp_path / "no.safetensors", "--recipe", "bf16"
    )
    assert "there is no such file or folder" in refusal(
        "export", tmp_path / "nowhere", tmp_path / "out"
    )
