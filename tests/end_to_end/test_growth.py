"""A run whose model grows in depth out of another run's weights.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest
from program import refused, run, stopped, succeeded

RUN = """\
name = "run"
recipe = "te_delayed"
{growth}
[model]
hidden_size = 64
intermediate_size = 128
num_hidden_layers = {layers}
num_attention_heads = 1
num_key_value_heads = 1
head_dim = 64
vocab_size = 272
[[stages]]
name = "pretrain"
kind = "pretrain"
steps = {steps}
batch_sequences = 2
sequence_length = 64
[stages.learning_rate]
warmup_steps = 1
"""


def configuration(path: Path, layers: int, growth: str = "", steps: int = 3) -> Path:
    path.write_text(RUN.format(layers=layers, growth=growth, steps=steps))
    return path


@pytest.fixture(scope="module", name="small")
def fixture_small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of two layers."""
    folder = tmp_path_factory.mktemp("small")
    succeeded("train", "--config", configuration(folder / "run.toml", 2), "--out", folder / "run")
    return folder / "run" / "checkpoint.safetensors"


def grown(order: str, silent: bool = False) -> str:
    told = f'[growth]\nfrom_layers = 2\norder = "{order}"\n'
    return told + "silent_copies = true\n" if silent else told


def first_loss(path: Path) -> float:
    with h5py.File(path / "run.h5") as file:
        return float(file["metrics/loss"][0])


def test_a_grown_run_starts_from_the_weights_and_resumes(small: Path, tmp_path: Path) -> None:
    losses = {}
    for name, layers, growth in (
        ("plain", 2, ""),
        ("silent", 4, grown("stack", True)),
        ("stacked", 4, grown("stack")),
        ("interposed", 4, grown("interpose")),
    ):
        config = configuration(tmp_path / f"{name}.toml", layers, growth)
        out = tmp_path / name
        # In BF16: scales of the first step would come from other histories.
        command = ("train", "--config", config, "--set", "recipe=bf16", "--init-from", small)
        succeeded(*command, "--out", out)
        losses[name] = first_loss(out)
        succeeded("verify", out, "--init-from", small)
    assert losses["silent"] == losses["plain"]
    assert len(set(losses.values())) == 3


def test_interrupted_and_resumed_it_has_the_same_bits(small: Path, tmp_path: Path) -> None:
    config = configuration(tmp_path / "run.toml", 4, grown("interpose"), steps=40)
    command = ("train", "--config", config, "--init-from", small, "--out")
    succeeded(*command, tmp_path / "whole")
    stopped(*command, tmp_path / "parts")
    succeeded(*command, tmp_path / "parts", "--resume")
    said = succeeded("compare", tmp_path / "whole", tmp_path / "parts")
    assert "same bits" in said
    with h5py.File(tmp_path / "whole" / "run.h5") as file:
        assert b"amax_history_reset" not in file["events/kind"][...].tolist()


def test_what_cannot_grow_is_refused(small: Path, tmp_path: Path) -> None:
    odd = configuration(tmp_path / "odd.toml", 3, grown("stack"))
    assert "2 layers cannot grow to 3" in refused("train", "--config", odd, "--out", tmp_path / "x")
    same = configuration(tmp_path / "same.toml", 2, grown("stack"))
    assert "2 layers cannot grow to 2" in refused(
        "train", "--config", same, "--out", tmp_path / "x"
    )
    alone = configuration(tmp_path / "alone.toml", 4, grown("stack"))
    said = refused("train", "--config", alone, "--out", tmp_path / "x")
    assert "growth: there is nothing to grow" in said
    deep = configuration(tmp_path / "deep.toml", 8, grown("stack").replace("= 2", "= 4"))
    result = run("train", "--config", deep, "--init-from", small, "--out", tmp_path / "x")
    assert result.returncode == 2 and str(small) in result.stderr, result.stderr


@pytest.mark.parametrize(
    ("layers", "growth", "key"),
    [
        (1, "", "num_hidden_layers = 2, this one num_hidden_layers = 1"),
        (3, "[growth]\nfrom_layers = 1\n", "num_hidden_layers = 2"),
        (2, "", "tie_word_embeddings = true, this one tie_word_embeddings = false"),
        (2, "", "num_attention_heads = 1, this one num_attention_heads = 2"),
        (2, "", "qkv_bias = true, this one qkv_bias = false"),
    ],
)
def test_weights_of_another_architecture_are_refused(
    small: Path, tmp_path: Path, layers: int, growth: str, key: str
) -> None:
    config = configuration(tmp_path / "run.toml", layers, growth)
    settings = {
        "tie": "model.tie_word_embeddings=false",
        "heads": "model.num_attention_heads=2",
        "qkv": "model.qkv_bias=false",
    }
    chosen = [text for word, text in settings.items() if word in key]
    more = [word for text in chosen for word in ("--set", text)]
    if "heads" in key:
        more += ["--set", "model.head_dim=32", "--set", "model.num_key_value_heads=2"]
    words = ("train", "--config", config, "--out", tmp_path / "run", "--init-from", small)
    assert key in refused(*words, *more)
    # A longer context is the same architecture.
    longer = ("--set", "model.rope_theta=50000.0", "--set", "model.max_position_embeddings=8192")
    if layers == 2 and "tie" in key:
        succeeded(*words, *longer)
