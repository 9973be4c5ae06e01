"""fp8lab assess: what recipes cost a checkpoint, where, and which change takes it away.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import decode, file_bytes, read_folder, stored
from program import refused, run, succeeded

RUN = """
name = "r"
model = "tiny"
recipe = "bf16"
[logging]
statistics_every_steps = 0
[[stages]]
name = "s"
steps = 80
batch_sequences = 4
sequence_length = 128
learning_rate = { peak = 3e-3, warmup_steps = 5 }
data.kind = "text"
data.path = "train.txt"
"""
DOCUMENTS = [
    f"{i} and {i + 1} make {2 * i + 1}; {i} times two makes {2 * i}. " * 3 for i in range(400)
]
PLANTED = "layers.1.attention.qkv"


def test_a_python_that_cannot_write_the_page_is_refused_at_once(folder: Path) -> None:
    """Before minutes of losses: of an interpreter without packages, and of none."""
    bare = folder / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    for python, said in ((bare, "numpy"), (folder / "none", "cannot be started")):
        words = ("assess", "plain", "--data", "held.jsonl", "--out", "no", "--python", python)
        result = run(*words, cwd=folder)
        assert result.returncode == 2 and said in result.stderr, result.stderr
        assert "losses" not in result.stderr and not (folder / "no").exists()


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model, and the same function with one channel 2^12 times as large where the second
    layer's queries, keys and values read it."""
    folder = tmp_path_factory.mktemp("assess")
    (folder / "run.toml").write_text(RUN)
    (folder / "train.txt").write_text("\n\n".join(DOCUMENTS[::2]))
    held = [json.dumps({"text": text}) for text in DOCUMENTS[1:80:2]]
    (folder / "held.jsonl").write_text("\n".join(held))
    succeeded("train", "--config", "run.toml", "--out", "run", cwd=folder)
    succeeded("export", "run", "plain", cwd=folder)
    tensors = read_folder(folder / "plain")
    planted = dict(tensors)
    prefix = "model.layers.1."
    norm = decode(tensors[prefix + "input_layernorm.weight"]).copy()
    norm[7] *= 4096.0
    planted[prefix + "input_layernorm.weight"] = stored(norm)
    for name in ("q", "k", "v"):
        key = f"{prefix}self_attn.{name}_proj.weight"
        weight = decode(tensors[key]).copy()
        weight[:, 7] /= 4096.0
        planted[key] = stored(weight)
    (folder / "planted").mkdir()
    config = (folder / "plain" / "config.json").read_bytes()
    (folder / "planted" / "config.json").write_bytes(config)
    (folder / "planted" / "model.safetensors").write_bytes(file_bytes(planted))
    return folder


def assessed(folder: Path, model: str, *words: object, page: str = "") -> dict[str, Any]:
    succeeded(
        "assess",
        model,
        "--data",
        "held.jsonl",
        "--form",
        "running_text",
        "--sequence-length",
        128,
        "--json",
        f"{model}.json",
        "--out",
        page or f"{model}_page",
        *words,
        cwd=folder,
    )
    found: dict[str, Any] = json.loads((folder / f"{model}.json").read_text())
    return found


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in found["recipes"]}


def test_a_text_shorter_than_a_sequence_is_read_once(folder: Path) -> None:
    texts = ["3 and 4 make 7; 3 times two makes 6.", "5 and 6 make 11."]
    (folder / "short.jsonl").write_text("\n".join(json.dumps({"text": one}) for one in texts))
    words = ("--data", "short.jsonl", "--form", "running_text", "--json")
    options = ("--recipe", "infir2", "--gradient-sequences", 0, "--out", "short_page")
    result = run("assess", "plain", *words, "short.json", *options, cwd=folder)
    assert result.returncode == 0, result.stderr
    found = by_name(json.loads((folder / "short.json").read_text()))
    facts = json.loads((folder / "short_page" / "facts.json").read_text())
    assert facts["sequences"] == 1 and facts["sequence_length"] < 100
    assert "no document counts twice" in result.stderr
    evaluated = run("eval", "plain", "--recipe", "bf16", *words, cwd=folder)
    assert found["bf16"]["loss"] == pytest.approx(json.loads(evaluated.stdout)["loss"], rel=1e-6)


def test_losses_are_those_of_eval(folder: Path) -> None:
    found = by_name(
        assessed(folder, "plain", "--sequences", 4, "--recipe", "infir2", "--recipe", "nvfp4")
    )
    facts = json.loads((folder / "plain_page" / "facts.json").read_text())
    assert facts["sequences"] == 4
    assert sum(tokens for _, _, tokens in facts["documents"]) == 4 * 128
    for row in facts["recipes"]:
        evaluated = succeeded(
            "eval",
            "plain",
            "--data",
            "held.jsonl",
            "--form",
            "running_text",
            "--sequence-length",
            128,
            "--sequences",
            4,
            "--recipe",
            row["name"],
            "--json",
            cwd=folder,
        )
        assert row["loss"] == json.loads(evaluated)["loss"], row["name"]
        assert found[row["name"]]["loss"] == pytest.approx(row["loss"], rel=1e-6)
    assert (folder / "plain_page" / "index.html").is_file()


def test_the_layer_that_was_planted_is_found_and_repaired(folder: Path) -> None:
    words = ("--recipe", "ptq_int8", "--sequences", 12)
    plain = by_name(assessed(folder, "plain", *words))
    found = assessed(folder, "planted", *words, "--map", "ptq_int8", "--map-sequences", 12)
    planted = by_name(found)
    assert planted["bf16"]["loss"] == plain["bf16"]["loss"]  # the same function, bit for bit
    gap = planted["ptq_int8"]["gap"]["value"]
    assert gap > 0.005 > abs(plain["ptq_int8"]["gap"]["value"])
    layers = {entry["layer"]: entry for entry in found["map"]["layers"]}
    largest = max(layers.values(), key=lambda entry: entry["both"]["value"])
    assert largest["layer"] == PLANTED
    assert largest["x"]["value"] > 5 * abs(largest["w"]["value"])
    assert PLANTED in found["answer"][-1] or any(PLANTED in line for line in found["answer"])
    facts = json.loads((folder / "planted_page" / "facts.json").read_text())
    suggestion = facts["suggestion"]
    chosen = suggestion["tried"][suggestion["chosen"]]
    assert chosen["gap"] <= suggestion["margin"] == 0.005
    repaired = by_name(
        assessed(
            folder,
            "planted",
            "--recipe",
            folder / "planted_page" / "suggested.toml",
            "--sequences",
            12,
            page="repaired",
        )
    )["ptq_int8_suggested"]
    taken = [facts["map"]["baseline"], *facts["map"]["replicates"]]
    assert len(taken) == 1 + len(found["map"]["layers"])
    mean = sum(map(sum, taken)) / len(taken) / sum(taken[0])
    expected = (1.0 + chosen["gap"]) * mean - 1.0
    assert repaired["gap"]["value"] == pytest.approx(expected, abs=1e-12)
    outliers = facts["outliers"]["inputs"]
    channel = max(outliers, key=lambda one: one["channel_ratio"])
    assert (channel["layer"], channel["channel"]) == (PLANTED, 7)


def test_recipes_with_one_forward_pass_share_it(folder: Path) -> None:
    found = by_name(
        assessed(folder, "plain", "--sequences", 2, "--recipe", "infir2", "--recipe", "infir2_e5m2")
    )
    assert found["infir2_e5m2"]["same_forward_as"] == "infir2"
    assert found["infir2_e5m2"]["loss"] == found["infir2"]["loss"]
    assert found["infir2_e5m2"]["gradient_error"] != found["infir2"]["gradient_error"]
    assert found["bf16"]["gradient_error"] == 0.0
    assert found["infir2"]["gradient_cosine"] < 1.0


@pytest.mark.parametrize("recipe", ["kv_scale_one", "fa3_fp8", "fp8_attention"])
def test_attention_in_few_bits_is_no_forward_pass_of_bf16(folder: Path, recipe: str) -> None:
    """Its linear layers may be those of another recipe."""
    alike = "te_delayed" if recipe == "fp8_attention" else "bf16"
    words = ("--recipe", alike, "--recipe", recipe, "--gradient-sequences", 0)
    found = by_name(assessed(folder, "plain", "--sequences", 2, *words))
    assert found[recipe]["same_forward_as"] is None
    assert found[recipe]["loss"] != found[alike]["loss"]


def test_weights_alone_are_those_of_a_quantized_model(folder: Path) -> None:
    """The weight of one layer, quantized by NumPy's arithmetic, evaluated in bf16."""
    assessed(
        folder,
        "plain",
        "--sequences",
        2,
        "--recipe",
        "infir2_tensor",
        "--map",
        "infir2_tensor",
        "--map-sequences",
        2,
        "--margin",
        0,
    )
    facts = json.loads((folder / "plain_page" / "facts.json").read_text())
    (entry,) = [one for one in facts["map"]["layers"] if one["layer"] == "layers.0.mlp.down"]
    tensors = read_folder(folder / "plain")
    key = "model.layers.0.mlp.down_proj.weight"
    weight = decode(tensors[key]).astype(np.float64)
    # One power of two for the tensor, e4m3fn, nearest even, as infir2_tensor says (enc_floor).
    scale = 2.0 ** -np.floor(np.log2(448.0 / np.abs(weight).max()))
    scaled = weight / scale
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(scaled), 2.0**-40))), -6)
    step = 2.0 ** (exponent - 3)
    tensors[key] = stored((np.round(scaled / step) * step * scale).astype(np.float32))
    (folder / "rounded").mkdir(exist_ok=True)
    (folder / "rounded" / "config.json").write_bytes(
        (folder / "plain" / "config.json").read_bytes()
    )
    (folder / "rounded" / "model.safetensors").write_bytes(file_bytes(tensors))
    assessed(folder, "rounded", "--sequences", 2, "--recipe", "infir2")
    rounded = json.loads((folder / "rounded_page" / "facts.json").read_text())
    assert rounded["recipes"][0]["sums"] == entry["w"]
    assert entry["w"] != facts["map"]["baseline"]


def test_what_cannot_be_assessed_is_refused(folder: Path) -> None:
    assert "--data is missing" in refused("assess", "plain", cwd=folder)
    common = ("assess", "plain", "--data", "held.jsonl", "--form", "running_text")
    assert "is for --map" in refused(*common, "--margin", 0.1, cwd=folder)
    assert "--margin" in refused(*common, "--map", "infir2", "--margin", 2, cwd=folder)
    assert "--sequences 0" in refused(*common, "--sequences", 0, cwd=folder)
    assert "infir2" in refused(*common, "--recipe", "infir3", cwd=folder)
