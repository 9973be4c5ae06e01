"""Muon against implementations in NumPy, and one of these against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
def fp8lab() -> Any:
    return pytest.importorskip("fp8lab", reason="the package fp8lab is not built")


@pytest.fixture
def shape(tmp_path: Path) -> Path:
    file = tmp_path / "model.toml"
    file.write_text(SHAPE)
    return file


def is_muon(name: str) -> bool:
    """Of the names of transformers: q, k and v, and gate and up, are tensors of their own."""
    return name.endswith("_proj.weight")


def trained(
    fp8lab: Any, shape: Path, backend: str, scale: str
) -> tuple[list[Weights], list[Weights]]:
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


def exact(matrix: Array) -> Array:
    """Newton-Schulz in double precision, by the singular values: U p(p(...)) V^T."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / max(np.sqrt((values**2).sum()), 1e-7)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    result: Array = (left * values) @ right
    return result


def bf16(values: Array) -> Array:
    bits = values.astype(np.float32).view(np.uint32)
    bits += np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def published(matrix: Array) -> Array:
    """The same in BF16, as in the published code: each line rounds its result once."""
    x = bf16(matrix)
    if x.shape[0] > x.shape[1]:
        return published(x.T).T
    x = bf16(x / max(bf16(np.linalg.norm(x)[None])[0], np.float32(1e-7)))
    for _ in range(5):
        gram = bf16(x @ x.T)
        polynomial = bf16(np.float32(-4.7750) * gram + np.float32(2.0315) * (gram @ gram))
        x = bf16(np.float32(3.4445) * x + polynomial @ x)
    return x


def factor(scale: str, rows: int, columns: int) -> float:
    if scale == "adamw_rms":
        return float(0.2 * np.sqrt(max(rows, columns)))
    return float(np.sqrt(max(1, rows / columns)))


def moved(
    first: Weights, gradients: list[Weights], scale: str, orthogonalize: Callable[[Array], Array]
) -> Weights:
    """The matrices of Muon after the last step, in double precision around `orthogonalize`."""
    result = {}
    for name in filter(is_muon, first):
        weight = first[name].astype(np.float64)
        momentum = np.zeros_like(weight)
        for step in gradients:
            gradient = step[name].astype(np.float64)
            momentum = MOMENTUM * momentum + (1 - MOMENTUM) * gradient
            ahead = MOMENTUM * momentum + (1 - MOMENTUM) * gradient
            weight *= 1 - RATE * DECAY
            weight -= RATE * factor(scale, *weight.shape) * orthogonalize(ahead)
        result[name] = weight
    return result


def distance(weights: Array, expected: Array, first: Array) -> float:
    """Relative to the expected change."""
    change = np.linalg.norm(expected - first)
    return float(np.linalg.norm(weights - expected) / change)


@pytest.mark.parametrize("scale", ["adamw_rms", "original"])
def test_the_truth_path_is_muon(fp8lab: Any, shape: Path, scale: str) -> None:
    weights, gradients = trained(fp8lab, shape, "truth", scale)
    expected = moved(weights[0], gradients, scale, exact)
    assert len(expected) == 14, "seven matrices in each of two layers"
    for name in expected:
        assert distance(weights[-1][name], expected[name], weights[0][name]) < 1e-4, name


@pytest.mark.parametrize("scale", ["adamw_rms", "original"])
def test_the_emulator_is_as_near_to_it_as_the_published_code(
    fp8lab: Any, shape: Path, scale: str
) -> None:
    weights, gradients = trained(fp8lab, shape, "cpu", scale)
    expected = moved(weights[0], gradients, scale, exact)
    in_bf16 = moved(weights[0], gradients, scale, published)
    for name in expected:
        error = distance(weights[-1][name], expected[name], weights[0][name])
        usual = distance(in_bf16[name], expected[name], weights[0][name])
        assert 0.01 < usual < 0.1, name
        assert error < 1.25 * usual, name


def test_embedding_head_norms_and_biases_have_adamw(fp8lab: Any, shape: Path) -> None:
    weights, gradients = trained(fp8lab, shape, "truth", "adamw_rms")
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
@pytest.mark.parametrize(("rows", "columns"), [(48, 80), (80, 48)])
def test_the_published_code_is_that_of_torch(scale: str, rows: int, columns: int) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("torch has Muon from version 2.9 on")
    draw = np.random.default_rng(1).standard_normal
    first = {"a_proj.weight": draw((rows, columns)).astype(np.float32)}
    gradients = [{"a_proj.weight": draw((rows, columns)).astype(np.float32)} for _ in range(STEPS)]
    weight = torch.nn.Parameter(torch.tensor(first["a_proj.weight"]))
    muon = torch.optim.Muon(
        [weight],
        lr=RATE,
        weight_decay=DECAY,
        momentum=MOMENTUM,
        adjust_lr_fn={"adamw_rms": "match_rms_adamw"}.get(scale, scale),
    )
    for step in gradients:
        weight.grad = torch.tensor(step["a_proj.weight"])
        muon.step()
    of_torch = weight.detach().numpy()
    ours = moved(first, gradients, scale, published)["a_proj.weight"]
    right = moved(first, gradients, scale, exact)["a_proj.weight"]
    usual = distance(of_torch, right, first["a_proj.weight"])
    # Sums of another order round some numbers otherwise, and every step triples the difference.
    assert distance(ours, of_torch, first["a_proj.weight"]) < 1.5 * usual < 0.06
    assert distance(ours, right, first["a_proj.weight"]) == pytest.approx(usual, rel=0.2)


def test_a_rule_that_is_none_is_refused(fp8lab: Any, shape: Path) -> None:
    with pytest.raises(fp8lab.Error, match="adamw, lion, sgd, madam, muon"):
        fp8lab.Model(shape, recipe="fp32", kind="adam")
    with pytest.raises(fp8lab.Error, match="adamw_rms, original"):
        fp8lab.Model(shape, recipe="fp32", kind="muon", update_scale="none")
