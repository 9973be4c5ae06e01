"""Hugging Face models in and out, compared with NumPy's own reading of the files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from model_files import (
    CONFIG,
    E4M3,
    Floats,
    Stored,
    bf16_bits,
    decode,
    e4m3_codes,
    random_tensors,
    read_file,
    read_folder,
    stored,
    write_folder,
)

PROGRAM = os.environ["FP8LAB_PROGRAM"]

LLAMA = {key: value for key, value in CONFIG.items() if "window" not in key} | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": False,
    "pretraining_tp": 1,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
        "rope_type": "llama3",
    },
}
QWEN3 = CONFIG | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 20,
    "layer_types": ["full_attention", "full_attention"],
    "rope_theta": 5e6,
    "rope_parameters": {"rope_theta": 5e6, "rope_type": "default"},
    "dtype": "bfloat16",
}
PLAIN = {key: value for key, value in CONFIG.items() if "window" not in key}
GEMMA = PLAIN | {
    "architectures": ["GemmaForCausalLM"],
    "model_type": "gemma",
    "attention_bias": False,
    "head_dim": 20,
    "hidden_act": "gelu_pytorch_tanh",
    "num_key_value_heads": 1,
}
PHI3 = PLAIN | {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "original_max_position_embeddings": 512,
    "resid_pdrop": 0.0,
    "rope_scaling": None,
    "sliding_window": 24,
    "tie_word_embeddings": False,
}
FAMILIES = {"qwen2": CONFIG, "llama": LLAMA, "qwen3": QWEN3, "gemma": GEMMA, "phi3": PHI3}

RUN = """
name = "continued"
recipe = "bf16"
init_from = "{folder}"
[logging]
statistics_every_steps = 0
[[stages]]
name = "cpt"
kind = "cpt"
steps = 1
batch_sequences = 1
sequence_length = 32
[stages.learning_rate]
kind = "constant"
peak = 0.0
final = 0.0
warmup_steps = 0
"""
TOKENS = Path(__file__).resolve().parents[1] / "golden/tokens"
SHARDS = f"""
[stages.data]
kind = "tokens"
path = "{TOKENS}"
form = "running_text"
"""


def program(*arguments: object, status: int = 0) -> str:
    words = [PROGRAM, *map(str, arguments)]
    result = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == status, (result.returncode, result.stdout, result.stderr)
    return result.stderr if status else result.stdout


def equal(a: dict[str, Stored], b: dict[str, Stored]) -> None:
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert tensor == b[name], name


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_load_train_nothing_save(tmp_path: Path, family: str, shards: int) -> None:
    """Through the parameters of a run whose only step has the learning rate 0."""
    tensors = random_tensors(FAMILIES[family])
    folder = write_folder(tmp_path / "model", tensors, FAMILIES[family], shards)
    shutil.copy(TOKENS / "tokenizer.json", folder)
    (folder / "notes.txt").write_text("not part of a tokenizer")
    config = tmp_path / "run.toml"
    config.write_text(RUN.format(folder=folder) + SHARDS)
    program("train", "--config", config, "--out", tmp_path / "run")
    program("export", tmp_path / "run", tmp_path / "saved")
    equal(read_folder(tmp_path / "saved"), tensors)
    tokenizer = (TOKENS / "tokenizer.json").read_bytes()
    assert (tmp_path / "saved" / "tokenizer.json").read_bytes() == tokenizer
    assert not (tmp_path / "saved" / "notes.txt").exists()
    saved = json.loads((tmp_path / "saved" / "config.json").read_text())
    rope = FAMILIES[family].get("rope_parameters", {"rope_theta": 1000000.0})
    for key, value in (FAMILIES[family] | {"rope_theta": rope["rope_theta"]}).items():
        if key in saved and key != "transformers_version":
            assert saved[key] == value, key
    for key in ("hidden_size", "bos_token_id", "eos_token_id", "head_dim", "architectures"):
        assert key in saved
    # The saved folder is a model again.
    program("export", tmp_path / "saved", tmp_path / "again")
    equal(read_folder(tmp_path / "again"), tensors)
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == saved


def test_norms_of_gemma(tmp_path: Path) -> None:
    """Files hold w, parameters are 1 + w in FP32: what a run writes is that less 1."""
    tensors = random_tensors(GEMMA)
    w = np.ldexp(1 + np.arange(48) / 64, -(np.arange(48) * 2 // 3)).astype(np.float32)
    w *= np.where(np.arange(48) % 3 == 1, -1, 1).astype(np.float32)
    tensors["model.norm.weight"] = stored(w)
    folder = write_folder(tmp_path / "model", tensors, GEMMA)
    program("export", folder, tmp_path / "copy")
    equal(read_folder(tmp_path / "copy"), tensors)  # from file to file nothing is added
    shutil.copy(TOKENS / "tokenizer.json", folder)
    config = tmp_path / "run.toml"
    config.write_text(RUN.format(folder=folder) + SHARDS)
    program("train", "--config", config, "--out", tmp_path / "run")
    program("export", tmp_path / "run", tmp_path / "saved")
    written = decode(read_folder(tmp_path / "saved")["model.norm.weight"])
    held = decode(tensors["model.norm.weight"])
    expected = (np.float32(1) + held) - np.float32(1)
    assert np.array_equal(written, decode(stored(expected)))
    assert np.array_equal(written[:25], held[:25])  # down to 2^-16
    assert not written[-1] and held[-1]
    for table, words in (
        ('weights = "bf16"', "would round the 1 + w"),
        ('[[optimizer.group]]\nmatch = "norm"\nweight_decay = 0.1', "would pull w to -1"),
    ):
        config.write_text(RUN.format(folder=folder) + SHARDS + "[optimizer]\n" + table + "\n")
        message = program("train", "--config", config, "--out", tmp_path / "other", status=2)
        assert words in message and "accepted: " in message


@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_other_types(tmp_path: Path, dtype: str) -> None:
    tensors = random_tensors(CONFIG, dtype)
    folder = write_folder(tmp_path / "model", tensors)
    program("export", folder, tmp_path / "same", "--dtype", dtype.lower())
    equal(read_folder(tmp_path / "same"), tensors)
    word = {"F32": "float32", "F16": "float16"}[dtype]
    assert json.loads((tmp_path / "same/config.json").read_text())["torch_dtype"] == word
    program("export", folder, tmp_path / "bf16")
    for name, tensor in read_folder(tmp_path / "bf16").items():
        assert tensor == stored(decode(tensors[name]), "BF16"), name


def test_too_large_for_the_type(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    name = "model.layers.1.mlp.down_proj.weight"
    values = decode(tensors[name]).copy()
    values[3, 5] = 1e6
    tensors[name] = stored(values)
    folder = write_folder(tmp_path / "model", tensors)
    message = program("export", folder, tmp_path / "out", "--dtype", "f16", status=2)
    assert f"'{name}'" in message and "too large for F16" in message
    assert list(tmp_path.iterdir()) == [folder]  # nothing half-written


def test_shards_have_the_wanted_size(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    folder = write_folder(tmp_path / "model", tensors)
    program("export", folder, tmp_path / "out", "--shard-bytes", 20000)
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    count = len(files)
    assert count > 3 and files == [
        f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)
    ]
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in tensors.values())
    for file in files:
        part = read_file(tmp_path / "out" / file)
        assert len(part) == 1 or sum(len(data) for _, _, data in part.values()) <= 20000
        for name in part:
            assert index["weight_map"].pop(name) == file
    assert index["weight_map"] == {}
    equal(read_folder(tmp_path / "out"), tensors)


def test_what_a_folder_may_hold_besides(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    extra = dict(tensors)
    extra["lm_head.weight"] = tensors["model.embed_tokens.weight"]  # tied, and stored nevertheless
    extra["model.layers.0.self_attn.rotary_emb.inv_freq"] = stored(np.ones(6, np.float32), "F32")
    folder = write_folder(tmp_path / "model", extra)
    program("export", folder, tmp_path / "out")
    equal(read_folder(tmp_path / "out"), tensors)


Codes = np.ndarray[Any, np.dtype[np.uint8]]


def multiplier(amax: Floats, power_of_two: bool) -> Floats:
    """What is cast is x times this: RN(448 / amax), or the power of two below it."""
    factor: Floats = np.float32(448) / np.where(amax == 0, np.float32(448), amax).astype(np.float32)
    if not power_of_two:
        return factor
    power: Floats = np.ldexp(np.float32(1), np.frexp(factor)[1] - 1).astype(np.float32)
    return power


def quantized(values: Floats, amax: Floats, power_of_two: bool = False) -> tuple[Codes, Floats]:
    """Codes and decode scales for amaxes spread to the shape of the values."""
    factor = multiplier(amax, power_of_two)
    return e4m3_codes(values * factor), np.float32(1) / factor


def spread(blocks: Floats, shape: tuple[int, ...], rows: int, cols: int) -> Floats:
    """Each block's number at each of its elements."""
    tall: Floats = np.repeat(np.repeat(blocks, rows, 0), cols, 1)
    return tall[: shape[0], : shape[1]]


def block_amaxes(values: Floats, rows: int, cols: int) -> Floats:
    down, across = -(-values.shape[0] // rows), -(-values.shape[1] // cols)
    padded = np.zeros((down * rows, across * cols), np.float32)
    padded[: values.shape[0], : values.shape[1]] = np.abs(values)
    amaxes: Floats = padded.reshape(down, rows, across, cols).max((1, 3))
    return amaxes


def is_linear(name: str) -> bool:
    return "_proj.weight" in name


# recipe: tile of the weights (0: the whole extent), and whether scales are powers of two
CONVENTIONS = {
    "fp8_block128": (128, 128, False),
    "e4m3_tensor": (0, 0, False),
    "torchao_rowwise": (1, 0, True),
    "infir2": (128, 128, True),
}


@pytest.mark.parametrize(
    ("recipe", "dtype"), [*((recipe, "BF16") for recipe in CONVENTIONS), ("fp8_block128", "F32")]
)
def test_fp8_against_numpy(tmp_path: Path, recipe: str, dtype: str) -> None:
    """The recipes quantize weights from their BF16 copies, whatever the files hold."""
    # The larger matrices are read in several pieces; neither size is a multiple of the block.
    hidden, inner = (160, 200) if dtype == "BF16" else (536, 660)
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 1}
    config = CONFIG | sizes | {"tie_word_embeddings": False}
    tensors = random_tensors(config, dtype)
    folder = write_folder(tmp_path / "model", tensors, config)
    tensors = {name: stored(decode(tensor)) for name, tensor in tensors.items()}
    program("export", folder, tmp_path / "fp8", "--recipe", recipe)
    written = read_folder(tmp_path / "fp8")
    rows, cols, power_of_two = CONVENTIONS[recipe]
    block = rows > 1
    suffix = "_scale_inv" if block else "_scale"
    linear = [name for name in tensors if is_linear(name)]
    assert written.keys() == tensors.keys() | {name + suffix for name in linear}
    for name, tensor in tensors.items():
        if name not in linear:
            assert written[name] == tensor, name
            continue
        values = decode(tensor)
        extents = (rows or values.shape[0], cols or values.shape[1])
        amax = block_amaxes(values, *extents)
        codes, _ = quantized(values, spread(amax, values.shape, *extents), power_of_two)
        assert written[name][:2] == ("F8_E4M3", values.shape)
        stored_codes = np.frombuffer(written[name][2], np.uint8).reshape(values.shape)
        assert np.array_equal(stored_codes, codes), name
        shape = amax.shape if block else (1,) if rows == 0 else (values.shape[0], 1)
        assert written[name + suffix][:2] == ("F32", shape)
        scales = np.float32(1) / multiplier(amax, power_of_two)
        assert np.array_equal(decode(written[name + suffix]).ravel(), scales.ravel()), name
    # Back: every weight is scale * code, rounded once, and to the wanted type.
    program("export", tmp_path / "fp8", tmp_path / "back", "--dtype", "f32")
    back = read_folder(tmp_path / "back")
    assert back.keys() == tensors.keys()
    for name in linear:
        scale = decode(written[name + suffix])
        extents = (rows or tensors[name][1][0], cols or tensors[name][1][1])
        scale = spread(scale.reshape(-1, 1) if not block else scale, tensors[name][1], *extents)
        assert np.array_equal(decode(back[name]), decode(written[name]) * scale), name


def test_quantization_configs(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", random_tensors(CONFIG))
    found = {}
    for recipe in CONVENTIONS:
        program("export", folder, tmp_path / recipe, "--recipe", recipe)
        config = json.loads((tmp_path / recipe / "config.json").read_text())
        found[recipe] = config["quantization_config"]
    assert found["fp8_block128"] == {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head"],
    }
    assert found["infir2"] == found["fp8_block128"] | {"scale_fmt": "ue8m0"}
    for recipe, strategy, activations in (
        ("e4m3_tensor", "tensor", "tensor"),
        ("torchao_rowwise", "channel", "token"),
    ):
        assert found[recipe]["quant_method"] == "compressed-tensors"
        assert found[recipe]["format"] == "float-quantized"
        assert found[recipe]["ignore"] == ["lm_head"]
        group = found[recipe]["config_groups"]["group_0"]
        common = {"num_bits": 8, "type": "float", "symmetric": True}
        assert group["targets"] == ["Linear"]
        assert group["weights"] == common | {"strategy": strategy, "dynamic": False}
        assert group["input_activations"] == common | {"strategy": activations, "dynamic": True}


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("bf16", "recipe bf16 quantizes no weight"),
        ("lns8", "no file convention has weights quantized as"),
        ("quartet", "no file convention has weights quantized as"),
        ("mxfp8", "K = 48 is no multiple of 32, as compressed-tensors e4m3fn/1x32"),
    ],
)
def test_recipes_without_a_convention(tmp_path: Path, recipe: str, message: str) -> None:
    folder = write_folder(tmp_path / "model", random_tensors(CONFIG))
    assert message in program("export", folder, tmp_path / "o", "--recipe", recipe, status=2)
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("scale_type", ["F32", "BF16"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_files_of_other_tools(tmp_path: Path, shape: tuple[int, ...], scale_type: str) -> None:
    """One scale a tensor under quant_method "fp8", with scales of activations and caches beside."""
    plain = random_tensors(CONFIG)
    tensors = {}
    for number, (name, tensor) in enumerate(plain.items()):
        if not is_linear(name):
            tensors[name] = tensor
            continue
        codes = np.random.default_rng(number).integers(0, 127, tensor[1]).astype(np.uint8)
        tensors[name] = ("F8_E4M3", tensor[1], codes.tobytes())
        scale = np.full(shape, 2.0**-7 * (1 + number % 3), np.float32)
        tensors[name + "_scale"] = stored(scale, scale_type)
        module = name.removesuffix(".weight")
        tensors[module + ".input_scale"] = stored(np.ones((), np.float32), "F32")
        tensors[module + ".k_scale"] = stored(np.ones((), np.float32), "F32")
    config = CONFIG | {
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}
    }
    folder = write_folder(tmp_path / "model", tensors, config, shards=2)
    program("export", folder, tmp_path / "out", "--dtype", "f32")
    written = read_folder(tmp_path / "out")
    assert written.keys() == plain.keys()
    for name in filter(is_linear, plain):
        expected = decode(tensors[name]) * decode(tensors[name + "_scale"]).ravel()[0]
        assert np.array_equal(decode(written[name]), expected), name


def test_blocks_of_compressed_tensors(tmp_path: Path) -> None:
    tensors: dict[str, Stored] = random_tensors(CONFIG)
    expected = {}
    for name in [name for name in tensors if is_linear(name)]:
        shape = tensors[name][1]
        codes = np.random.default_rng(1).integers(0, 127, shape).astype(np.uint8)
        scale = np.random.default_rng(2).random(
            (-(-shape[0] // 32), -(-shape[1] // 64)), np.float32
        )
        tensors[name] = ("F8_E4M3", shape, codes.tobytes())
        tensors[name + "_scale"] = stored(scale, "F32")
        expected[name] = E4M3[codes] * spread(scale, shape, 32, 64)
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 64]}
    quantization = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    config = CONFIG | {"quantization_config": quantization}
    folder = write_folder(tmp_path / "model", tensors, config)
    program("export", folder, tmp_path / "out", "--dtype", "f32")
    written = read_folder(tmp_path / "out")
    for name, values in expected.items():
        assert np.array_equal(decode(written[name]), values), name


def sqnr(values: Floats, codes: Codes, scales: Floats) -> float:
    error = values.astype(np.float64) - (E4M3[codes] * scales).astype(np.float64)
    return float(10 * np.log10((values.astype(np.float64) ** 2).sum() / (error**2).sum()))


def test_report(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    folder = write_folder(tmp_path / "model", tensors)
    text = program("quantize", folder, "--recipe", "infir2")
    assert "* e4m3fn/128x128/pow2" in text and "all weights of linear layers" in text
    words = ["quantize", folder, "--recipe", "fp8_block128", "--compare", "e4m3fn/tensor", "--json"]
    report = json.loads(program(*words, "--compare", "e4m3fn/row"))
    names = [weight["tensor"] for weight in report["weights"]]
    assert names == [name for name in tensors if is_linear(name) or "embed" in name]
    for weight in report["weights"]:
        values = decode(tensors[weight["tensor"]])
        by_label = {entry["quantizer"]: entry for entry in weight["quantizers"]}
        head = weight["layer"] == "lm_head"
        assert [entry["of_recipe"] for entry in weight["quantizers"]] == [True] * (not head) + [
            False,
            False,
        ]
        assert weight["amax"] == np.abs(values).max()
        tiles = {"tensor": values.shape, "row": (1, values.shape[1])}
        if not head:
            tiles["128x128"] = (128, 128)
        for tile, extents in tiles.items():
            amax = spread(block_amaxes(values, *extents), values.shape, *extents)
            codes, scales = quantized(values, amax)
            limit = "/encode_limit:bf16" if tile == "128x128" else ""
            entry = by_label[f"e4m3fn/{tile}/fp32{limit}"]
            assert entry["sqnr_db"] == pytest.approx(sqnr(values, codes, scales), abs=1e-9)
            lost = (values != 0) & (codes & 127 == 0)
            assert entry["underflow_fraction"] == pytest.approx(lost.mean())
    for summary in report["summary"]:
        entries = [
            (entry["sqnr_db"], weight["tensor"])
            for weight in report["weights"]
            for entry in weight["quantizers"]
            if (entry["quantizer"], entry["of_recipe"])
            == (summary["quantizer"], summary["of_recipe"])
        ]
        assert summary["weights"] == len(entries)
        assert summary["mean_sqnr_db"] == pytest.approx(np.mean([number for number, _ in entries]))
        assert (summary["lowest_sqnr_db"], summary["lowest_tensor"]) == min(entries)


def test_zero_and_exact_weights_enter_no_mean_of_sqnr(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    zero, exact = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.o_proj.weight"
    for name, element in ((zero, b"\0\0"), (exact, b"\x80\x3f")):  # 0 and 1 in bf16
        kind, shape, data = tensors[name]
        assert kind == "BF16"
        tensors[name] = (kind, shape, element * (len(data) // 2))
    folder = write_folder(tmp_path / "model", tensors)
    report = json.loads(program("quantize", folder, "--recipe", "te_current", "--json"))
    own = {w["tensor"]: w["quantizers"][0] for w in report["weights"] if w["layer"] != "lm_head"}
    assert (own[zero]["sqnr_db"], own[zero]["cosine"], own[zero]["exact"]) == (None, None, False)
    assert (own[exact]["sqnr_db"], own[exact]["cosine"], own[exact]["exact"]) == (None, 1.0, True)
    finite = [entry["sqnr_db"] for entry in own.values() if entry["sqnr_db"] is not None]
    assert len(finite) == len(own) - 2
    summary = next(found for found in report["summary"] if found["of_recipe"])
    assert (summary["exact"], summary["without_sqnr"]) == (1, 1)
    assert summary["mean_sqnr_db"] == pytest.approx(np.mean(finite))
    assert summary["mean_sqnr_db"] < 40.0  # 200 dB for either of the two would be above 50
    text = program("quantize", folder, "--recipe", "te_current", "--report")
    assert "1 exact, 1 without a nonzero finite element" in text


def test_report_of_a_file_without_config(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", random_tensors(CONFIG))
    (folder / "config.json").unlink()
    file = folder / "model.safetensors"
    report = json.loads(program("quantize", file, "--recipe", "infir2", "--json"))
    assert len(report["weights"]) == 14  # the embedding is not known to be the head
    words = ["quantize", file, "--recipe", "infir2", "--out", tmp_path / "o"]
    assert "no config.json lies beside it" in program(*words, status=2)


def test_quantize_writes_what_export_writes(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", random_tensors(CONFIG))
    program("quantize", folder, "--recipe", "infir2", "--out", tmp_path / "a")
    program("export", folder, tmp_path / "b", "--recipe", "infir2")
    equal(read_folder(tmp_path / "a"), read_folder(tmp_path / "b"))
    assert (tmp_path / "a/config.json").read_text() == (tmp_path / "b/config.json").read_text()


def test_fp8_start_of_a_run(tmp_path: Path) -> None:
    """The master weights of a run that starts from FP8 files are scale * code."""
    folder = write_folder(tmp_path / "model", random_tensors(CONFIG))
    program("export", folder, tmp_path / "fp8", "--recipe", "fp8_block128")
    config = tmp_path / "run.toml"
    config.write_text(RUN.format(folder=tmp_path / "fp8"))
    program("train", "--config", config, "--out", tmp_path / "run")
    program("export", tmp_path / "run/checkpoint.safetensors", tmp_path / "a", "--dtype", "f32")
    program("export", tmp_path / "fp8", tmp_path / "b", "--dtype", "f32")
    a, b = read_folder(tmp_path / "a"), read_folder(tmp_path / "b")
    assert a.keys() == b.keys()
    for name, tensor in a.items():  # the optimizer's step by 0 makes -0 into 0
        assert np.array_equal(decode(tensor), decode(b[name])), name


def test_where_a_run_takes_its_model_from(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", random_tensors(CONFIG))
    config = tmp_path / "run.toml"
    text = RUN.format(folder=folder)
    config.write_text(text.replace(f'init_from = "{folder}"', f'model = "{folder}"'))
    program("train", "--config", config, "--out", tmp_path / "shape_only")
    config.write_text(text + f'[model]\nbase = "{folder}"\nrope_theta = 5000.0\n')
    program("train", "--config", config, "--out", tmp_path / "longer")
    config.write_text(text)
    program("train", "--config", config, "--out", tmp_path / "plain")
    hashes, configs = {}, {}
    for name in ("shape_only", "longer", "plain"):
        with h5py.File(tmp_path / name / "run.h5", libver="latest", swmr=True) as run:
            hashes[name] = run["/meta"].attrs["initial_weights_hash"]
            configs[name] = run["/meta"].attrs["config_text"]
    assert hashes["longer"] == hashes["plain"] != hashes["shape_only"]
    assert "rope_theta = 5000.0" in str(configs["longer"])
    assert "rope_theta = 1000000.0" in str(configs["plain"])
    # The stored configuration reads as itself.
    stored_config = configs["plain"]
    config.write_text(stored_config.decode() if isinstance(stored_config, bytes) else stored_config)
    program("train", "--config", config, "--out", tmp_path / "plain", "--resume")


def test_both_ways_to_name_the_start_give_the_same_run(tmp_path: Path) -> None:
    config = CONFIG | {"rope_theta": 3.0, "rms_norm_eps": 0.01}
    folder = write_folder(tmp_path / "model", random_tensors(config), config)
    text = RUN.replace('init_from = "{folder}"\n', "")
    run = tmp_path / "run.toml"
    run.write_text(text)
    program("train", "--config", run, "--set", f"init_from={folder}", "--out", tmp_path / "a")
    program("train", "--config", run, "--init-from", folder, "--out", tmp_path / "b")
    assert "same bits" in program("compare", tmp_path / "a", tmp_path / "b")
    # A checkpoint says its model as well.
    start = tmp_path / "a/checkpoint.safetensors"
    program("train", "--config", run, "--init-from", start, "--out", tmp_path / "c")
    with h5py.File(tmp_path / "c/run.h5", libver="latest", swmr=True) as file:
        assert "rope_theta = 3.0" in str(file["/meta"].attrs["config_text"])
    # What comes from a base instead must be the model's own; what the run says itself may differ.
    write_folder(tmp_path / "other", random_tensors(CONFIG))
    run.write_text(text + f'[model]\nbase = "{tmp_path / "other"}"\n')
    for begin in (folder, start):
        command = ("train", "--config", run, "--init-from", begin, "--out", tmp_path / "d")
        said = program(*command, status=2)
        assert "model.rope_theta: 3.0 -> 1000000.0" in said and "model.rms_norm_eps" in said
    own = ("--set", "model.rope_theta=9.0", "--set", "model.rms_norm_eps=0.01")
    program(*command, *own, "--dry-run")


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        ("F32", b"\0\0\xc0\x7f"),
        ("F32", b"\0\0\x80\xff"),
        ("BF16", b"\x80\x7f"),
        ("BF16", b"\xc1\xff"),
        ("F16", b"\0\xfc"),
        ("F16", b"\1\x7e"),
    ],
)
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, dtype: str, code: bytes) -> None:
    tensors = random_tensors(CONFIG, dtype)
    name = "model.layers.1.mlp.up_proj.weight"
    kind, shape, data = tensors[name]
    at = (2 * shape[1] + 3) * len(code)
    tensors[name] = kind, shape, data[:at] + code + data[at + len(code) :]
    folder = write_folder(tmp_path / "model", tensors)
    run = tmp_path / "run.toml"
    run.write_text(RUN.format(folder=folder))
    for command in (
        ("train", "--config", run, "--out", tmp_path / "out", "--dry-run"),
        ("train", "--config", run, "--out", tmp_path / "out"),
        ("export", folder, tmp_path / "out"),
        ("quantize", folder, "--recipe", "fp8_block128", "--report"),
    ):
        said = program(*command, status=2)
        assert name in said and "(2, 3)" in said, said


@pytest.mark.parametrize("kind", ["weight", "bias", "norm", "embedding"])
def test_every_kind_of_tensor_is_looked_at(tmp_path: Path, kind: str) -> None:
    name = {
        "weight": "model.layers.0.self_attn.o_proj.weight",
        "bias": "model.layers.1.self_attn.k_proj.bias",
        "norm": "model.norm.weight",
        "embedding": "model.embed_tokens.weight",
    }[kind]
    tensors = random_tensors(CONFIG)
    dtype, shape, data = tensors[name]
    tensors[name] = dtype, shape, data[:-2] + b"\xc0\x7f"  # the last element
    folder = write_folder(tmp_path / "model", tensors)
    place = ", ".join(str(extent - 1) for extent in shape)
    said = program("export", folder, tmp_path / "out", status=2)
    assert f"tensor '{name}' is NaN at ({place}); accepted: finite numbers" in said, said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("code", "what"), [(0x7C, "infinite"), (0xFC, "infinite"), (0x7E, "NaN")])
@pytest.mark.parametrize("scaled", [False, True])
def test_e5m2_codes_that_are_no_numbers_are_refused(
    tmp_path: Path, code: int, what: str, scaled: bool
) -> None:
    tensors = random_tensors(CONFIG)
    name = "model.layers.0.mlp.up_proj.weight"
    shape = tensors[name][1]
    if scaled:
        tensors[name + "_scale"] = stored(np.full(1, 0.25, np.float32), "F32")
    codes = np.random.default_rng(1).integers(0, 0x7C, shape).astype(np.uint8)
    tensors[name] = "F8_E5M2", shape, codes.tobytes()
    program("export", write_folder(tmp_path / "good", tensors), tmp_path / "out", "--dtype", "f32")
    back = decode(read_folder(tmp_path / "out")[name])
    values = (codes.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
    assert np.array_equal(back, values * np.float32(0.25 if scaled else 1))
    codes[1, 7] = code
    tensors[name] = "F8_E5M2", shape, codes.tobytes()
    said = program("export", write_folder(tmp_path / "bad", tensors), tmp_path / "o", status=2)
    assert f"tensor '{name}' is {what} at (1, 7)" in said, said


def test_fp8_codes_and_scales_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    program(
        "export",
        write_folder(tmp_path / "model", random_tensors(CONFIG)),
        tmp_path / "fp8",
        "--recipe",
        "fp8_block128",
    )
    config = json.loads((tmp_path / "fp8/config.json").read_text())
    tensors = read_folder(tmp_path / "fp8")
    name = "model.layers.0.mlp.up_proj.weight"
    kind, shape, codes = tensors[name]
    scale = tensors[name + "_scale_inv"]
    blocks = scale[1][0] * scale[1][1]
    cases = [
        ({name: (kind, shape, b"\x7f" + codes[1:])}, name),
        ({name: (kind, shape, codes[:-1] + b"\xff")}, name),
        ({name + "_scale_inv": stored(np.full(scale[1], np.nan), "F32")}, "_scale_inv"),
        ({name + "_scale_inv": stored(np.full(scale[1], -np.inf), "F32")}, "_scale_inv"),
        ({name + "_scale_inv": ("BF16", scale[1], b"\x80\x7f" * blocks)}, "_scale_inv"),
        ({name + "_scale_inv": ("F16", scale[1], b"\1\x7e" * blocks)}, "_scale_inv"),
        (
            {name + "_scale_inv": ("F8_E8M0", scale[1], b"\xff" + b"\x7f" * (blocks - 1))},
            "_scale_inv",
        ),
        ({name + "_scale_inv": stored(np.full(scale[1], 3e38), "F32")}, name),
    ]
    for i, (changed, words) in enumerate(cases):
        folder = write_folder(tmp_path / str(i), tensors | changed, config)
        said = program("export", folder, tmp_path / "out", status=2)
        assert words in said and "accepted: finite numbers" in said, said


def test_refusals_of_the_commands(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", random_tensors(CONFIG))
    out = tmp_path / "out"
    assert "accepted: bf16, f16 or f32" in program("export", folder, out, "--dtype", "f8", status=2)
    assert "accepted: a new folder" in program("export", folder, folder, status=2)
    words = ["export", folder, out, "--tokenizer", tmp_path / "none"]
    assert "is no folder" in program(*words, status=2)
    (tmp_path / "none").mkdir()
    assert "holds no tokenizer" in program(*words, status=2)
    (tmp_path / "none").rmdir()
    assert "DIR is missing; usage: fp8lab export" in program("export", folder, status=2)
    words = ["quantize", folder, "--recipe", "infir2"]
    assert "--slot is for a matrix" in program(*words, "--slot", "fprop.w", status=2)
    assert "--recipe is missing" in program("quantize", folder, status=2)
    assert "e4m9" in program(*words, "--compare", "e4m9/row", status=2)
    np.save(tmp_path / "a.npy", np.ones((4, 4), np.float32))
    words = ["quantize", tmp_path / "a.npy", "--spec", "e4m3fn", "--compare", "e5m2/row"]
    assert "--compare is for a model" in program(*words, status=2)
    assert "delayed scaling" in program("quantize", folder, "--recipe", "te_delayed", status=2)
    assert not out.exists()


def test_the_files_load_in_the_package_of_the_format(tmp_path: Path) -> None:
    safe_open = pytest.importorskip("safetensors", reason="safetensors is not installed").safe_open
    tensors = random_tensors(CONFIG)
    folder = write_folder(tmp_path / "model", tensors)
    program("export", folder, tmp_path / "out", "--dtype", "f32", "--shard-bytes", 20000)
    seen: dict[str, Floats] = {}
    for path in (tmp_path / "out").glob("*.safetensors"):
        with safe_open(path, framework="np") as file:
            assert file.metadata() == {"format": "pt"}
            seen |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert seen.keys() == tensors.keys()
    for name, values in seen.items():
        assert np.array_equal(bf16_bits(values), bf16_bits(decode(tensors[name])))
    program("export", folder, tmp_path / "fp8", "--recipe", "fp8_block128")
    with safe_open(tmp_path / "fp8/model.safetensors", framework="np") as file:
        for name, (dtype, shape, _) in read_folder(tmp_path / "fp8").items():
            part = file.get_slice(name)
            assert (part.get_dtype(), tuple(part.get_shape())) == (dtype, shape), name
