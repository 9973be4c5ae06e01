"""Muon against an implementation in NumPy and the one of PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

fp8lab = pytest.importorskip("fp8lab", reason="the package fp8lab is not built")

SHAPE = """
vocab_size = 61
hidden_size = 48
intermediate_size = 80
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 20
qkv_bias = true
tie_word_embeddings = false
initializer_range = 0.2
"""
RATE, DECAY, MOMENTUM, STEPS = 0.01, 0.1, 0.95, 4
Array = np.ndarray[Any, Any]
Weights = dict[str, Array]


@pytest.fixture
def shape(tmp_path: Path) -> Path:
    file = tmp_path / "model.toml"
    file.write_text(SHAPE)
    return file


def is_muon(name: str) -> bool:
    """Of the names of transformers: q, k and v, and gate and up, are tensors of their own."""
    return name.endswith("_proj.weight")


def trained(shape: Path, backend: str, scale: str) -> tuple[list[Weights], list[Weights]]:
    """The weights before and after every step, and its gradients."""
    model = fp8lab.Model(
        shape,
        recipe="fp32",
        backend=backend,
        threads=1,
        kind="muon",
        momentum=MOMENTUM,
        update_scale=scale,
        weight_decay=DECAY,
        clip_norm=0.0,
    )
    weights, gradients = [model.parameters()], []
    for seed in range(STEPS):
        tokens = np.random.default_rng(seed).integers(0, 61, (2, 12))
        gradients.append(model.gradients(tokens)[1])
        model.step(tokens, learning_rate=RATE)
        weights.append(model.parameters())
    return weights, gradients


def orthogonalized(matrix: Array) -> Array:
    """Newton-Schulz in double precision, by the singular values: U p(p(...)) V^T."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / max(np.sqrt((values**2).sum()), 1e-7)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    result: Array = (left * values) @ right
    return result


def factor(scale: str, rows: int, columns: int) -> float:
    if scale == "adamw_rms":
        return float(0.2 * np.sqrt(max(rows, columns)))
    return float(np.sqrt(max(1, rows / columns)))


def moved(first: Weights, gradients: list[Weights], scale: str) -> Weights:
    """The matrices of Muon after the last step, by NumPy."""
    result = {}
    for name in filter(is_muon, first):
        weight = first[name].astype(np.float64)
        momentum = np.zeros_like(weight)
        for step in gradients:
            gradient = step[name].astype(np.float64)
            momentum = MOMENTUM * momentum + (1 - MOMENTUM) * gradient
            ahead = MOMENTUM * momentum + (1 - MOMENTUM) * gradient
            weight *= 1 - RATE * DECAY
            weight -= RATE * factor(scale, *weight.shape) * orthogonalized(ahead)
        result[name] = weight
    return result


def distance(name: str, weights: Weights, expected: Weights, first: Weights) -> float:
    """Of the changes from the first weights, relative."""
    change = expected[name] - first[name]
    return float(np.linalg.norm(weights[name] - expected[name]) / np.linalg.norm(change))


@pytest.mark.parametrize("scale", ["adamw_rms", "original"])
def test_the_truth_path_is_muon_in_numpy(shape: Path, scale: str) -> None:
    weights, gradients = trained(shape, "truth", scale)
    expected = moved(weights[0], gradients, scale)
    assert len(expected) == 14, "seven matrices in each of two layers"
    for name in expected:
        assert distance(name, weights[-1], expected, weights[0]) < 1e-4, name


def test_the_emulator_is_muon_in_numpy_but_for_bf16(shape: Path) -> None:
    weights, gradients = trained(shape, "cpu", "adamw_rms")
    expected = moved(weights[0], gradients, "adamw_rms")
    for name in expected:
        assert distance(name, weights[-1], expected, weights[0]) < 0.02, name


def test_embedding_head_norms_and_biases_have_adamw(shape: Path) -> None:
    weights, gradients = trained(shape, "truth", "adamw_rms")
    others = [name for name in weights[0] if not is_muon(name)]
    kinds = ("embed_tokens", "lm_head", "norm", "bias")
    assert all(any(kind in name for kind in kinds) for name in others)
    assert all(any(kind in name for name in others) for kind in kinds)
    for name in others:
        first = weights[0][name].astype(np.float64)
        gradient = gradients[0][name].astype(np.float64)
        decay = 1 - RATE * DECAY * (first.ndim == 2)
        step = RATE * gradient / (np.abs(gradient) + 1e-8)
        np.testing.assert_allclose(weights[1][name], first * decay - step, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("scale", ["adamw_rms", "original"])
def test_the_emulator_is_the_muon_of_torch_but_for_bf16(shape: Path, scale: str) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("torch has Muon from version 2.9 on")
    weights, gradients = trained(shape, "cpu", scale)
    names = list(filter(is_muon, weights[0]))
    # PyTorch rounds to BF16 too, at other places.
    tensors = {name: torch.nn.Parameter(torch.tensor(weights[0][name])) for name in names}
    muon = torch.optim.Muon(
        tensors.values(),
        lr=RATE,
        weight_decay=DECAY,
        momentum=MOMENTUM,
        adjust_lr_fn={"adamw_rms": "match_rms_adamw"}.get(scale, scale),
    )
    for step in gradients:
        for name in names:
            tensors[name].grad = torch.tensor(step[name])
        muon.step()
    expected = {name: tensors[name].detach().numpy() for name in names}
    for name in names:
        assert distance(name, weights[-1], expected, weights[0]) < 0.03, name


def test_a_rule_that_is_none_is_refused(shape: Path) -> None:
    with pytest.raises(fp8lab.Error, match="adamw, lion, sgd, madam, muon"):
        fp8lab.Model(shape, recipe="fp32", kind="adam")
    with pytest.raises(fp8lab.Error, match="adamw_rms, original"):
        fp8lab.Model(shape, recipe="fp32", kind="muon", update_scale="none")
