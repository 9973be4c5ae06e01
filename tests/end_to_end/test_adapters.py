"""Low-rank adapters on the weights of another run.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
from program import refused, stopped, succeeded

RUN = """\
name = "run"
recipe = "infir2"
{more}
[model]
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 32
vocab_size = 272
qkv_bias = false
{model}
[[stages]]
name = "pretrain"
kind = "pretrain"
steps = {steps}
batch_sequences = 2
sequence_length = 64
[stages.learning_rate]
warmup_steps = 1
"""
LORA = 'lora_rank = 8\nlora_alpha = 12\nlora_targets = ["attention.q", "mlp.gate", "mlp.down"]\n'


def configuration(path: Path, model: str = "", more: str = "", steps: int = 3) -> Path:
    path.write_text(RUN.format(model=model, more=more, steps=steps))
    return path


@pytest.fixture(scope="module", name="base")
def fixture_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a model without adapters."""
    folder = tmp_path_factory.mktemp("base")
    succeeded("train", "--config", configuration(folder / "run.toml"), "--out", folder / "run")
    return folder / "run" / "checkpoint.safetensors"


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, one in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__" or one["dtype"] != "F32":
            continue
        begin, end = one["data_offsets"]
        values = np.frombuffer(data[8 + size + begin : 8 + size + end], np.float32)
        tensors[name] = values.reshape(one["shape"])
    return tensors


def losses(path: Path) -> list[float]:
    with h5py.File(path / "run.h5") as file:
        return [float(loss) for loss in file["metrics/loss"]]


def test_adapters_begin_as_no_change_and_alone_are_trained(base: Path, tmp_path: Path) -> None:
    plain = configuration(tmp_path / "plain.toml")
    lora = configuration(tmp_path / "lora.toml", LORA)
    for config in (plain, lora):
        succeeded("train", "--config", config, "--init-from", base, "--out", config.with_suffix(""))
    first, adapted = losses(tmp_path / "plain"), losses(tmp_path / "lora")
    for name, start in (("folder", base.parent), ("file", base.parent / "run.h5")):
        succeeded("train", "--config", plain, "--init-from", start, "--out", tmp_path / name)
        assert losses(tmp_path / name) == first
    assert first[0] == adapted[0]
    assert first[1:] != adapted[1:]
    before = read_safetensors(base)
    after = read_safetensors(tmp_path / "lora" / "checkpoint.safetensors")
    weights = [name for name in before if name.startswith("weight/") and name in after]
    assert len(weights) >= 10
    assert all(np.array_equal(before[name], after[name]) for name in weights)
    trained = [name for name in after if name.startswith("weight/")]
    b = [name for name in trained if name.endswith(".lora_b.weight")]
    assert len(b) == 6
    assert all(np.any(after[name] != 0) for name in b)


def test_interrupted_and_resumed_it_has_the_same_bits(base: Path, tmp_path: Path) -> None:
    config = configuration(tmp_path / "lora.toml", LORA, steps=30)
    command = ("train", "--config", config, "--init-from", base, "--out")
    succeeded(*command, tmp_path / "whole")
    stopped(*command, tmp_path / "parts")
    succeeded(*command, tmp_path / "parts", "--resume")
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")


def test_operands_that_a_frozen_layer_never_makes_have_no_statistics(
    base: Path, tmp_path: Path
) -> None:
    config = configuration(tmp_path / "lora.toml", LORA)
    every = ("--set", "logging.statistics_every_steps=1")
    succeeded("train", "--config", config, "--init-from", base, "--out", tmp_path / "lora", *every)
    with h5py.File(tmp_path / "lora" / "run.h5") as file:
        tensors = file["tensors"]
        layers = [name.decode() for name in tensors["layer"]]
        slots = [name.decode() for name in tensors["slot"]]
        made = np.array([".lora_" in a or not b.startswith("wgrad") for a, b in zip(layers, slots)])
        assert made.any() and not made.all()
        for name, values in tensors.items():
            if values.dtype != np.float64 or values.ndim < 2:
                continue
            # Some statistics of a made operand are undefined, none of another is a number.
            finite = np.isfinite(values[:]).reshape(*values.shape[:2], -1).any(axis=2)
            assert not finite[:, ~made].any(), name
        for name in ("amax", "underflow_fraction", "saturation_fraction", "rms"):
            assert np.isfinite(tensors[name][:, made]).all(), name
        assert (tensors["top_channel"][:, ~made] == -1).all()
    report = tmp_path / "report"
    succeeded("report", tmp_path / "lora" / "run.h5", "--out", report)
    page = (report / "index.html").read_text()
    assert "0.0 dB" not in page


def test_adapters_of_random_weights_say_that_no_file_holds_these(tmp_path: Path) -> None:
    config = configuration(tmp_path / "lora.toml", LORA, steps=1)
    succeeded("train", "--config", config, "--out", tmp_path / "lora")
    said = succeeded("export", tmp_path / "lora", tmp_path / "adapter")
    assert "low-rank adapters of random weights, which no file holds" in said
    assert "--init-from" in said
    told = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] is None


def test_models_of_no_family_are_refused_for_that(tmp_path: Path) -> None:
    xielu = 'feed_forward = "xielu"\n'
    lora = LORA.replace('"mlp.gate", ', "")
    for name, more in (("plain", xielu), ("lora", xielu + lora)):
        config = configuration(tmp_path / f"{name}.toml", more, steps=1)
        succeeded("train", "--config", config, "--out", tmp_path / name)
    plain, out = tmp_path / "plain", tmp_path / "out"
    for words in (
        ("export", plain, out),
        ("export", plain, out, "--recipe", "infir2"),
        ("quantize", plain, "--recipe", "infir2", "--out", out),
        ("export", tmp_path / "lora", out),
    ):
        assert "no family of transformers has" in refused(*words), words
        assert not out.exists()


def test_adapters_are_exported_as_peft_reads_them(base: Path, tmp_path: Path) -> None:
    config = configuration(tmp_path / "lora.toml", LORA)
    out = tmp_path / "lora"
    succeeded("train", "--config", config, "--init-from", base, "--out", out)
    said = succeeded("export", out, tmp_path / "adapter", "--dtype", "f32")
    assert f"low-rank adapters of {base}" in said
    told = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (told["peft_type"], told["r"], told["lora_alpha"]) == ("LORA", 8, 12.0)
    assert told["target_modules"] == ["down_proj", "gate_proj", "q_proj"]
    tensors = read_safetensors(tmp_path / "adapter" / "adapter_model.safetensors")
    stem = "base_model.model.model.layers."
    assert sorted(tensors) == sorted(
        f"{stem}{layer}.{module}.lora_{matrix}.weight"
        for layer in (0, 1)
        for module in ("mlp.down_proj", "mlp.gate_proj", "self_attn.q_proj")
        for matrix in "AB"
    )
    assert tensors[stem + "0.mlp.down_proj.lora_A.weight"].shape == (8, 128)
    assert tensors[stem + "1.mlp.gate_proj.lora_B.weight"].shape == (128, 8)
    stored = read_safetensors(out / "checkpoint.safetensors")
    for ours, theirs in (("attention.q", "self_attn.q_proj"), ("mlp.gate", "mlp.gate_proj")):
        for matrix in "ab":
            own = stored[f"weight/layers.1.{ours}.lora_{matrix}.weight"]
            assert np.array_equal(own, tensors[f"{stem}1.{theirs}.lora_{matrix.upper()}.weight"])
    assert "for low-rank adapters" in refused(
        "export", out, tmp_path / "other", "--recipe", "te_current"
    )


def test_impossible_adapters_are_refused_by_name(base: Path, tmp_path: Path) -> None:
    def refusal(model: str, more: str = "") -> str:
        config = configuration(tmp_path / "bad.toml", model, more)
        return refused("train", "--config", config, "--init-from", base, "--out", tmp_path / "bad")

    assert "'model.lora_targets'" in refusal(LORA.replace("mlp.gate", "mlp.gates"))
    assert "lora_rank above 0" in refusal("lora_alpha = 2.0\n")
    group = '[optimizer]\n[[optimizer.group]]\nmatch = "embed"\nlearning_rate = 2.0\n'
    assert "only adapters are trained" in refusal(LORA, group)
