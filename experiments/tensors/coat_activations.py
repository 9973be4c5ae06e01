"""COAT: the gradients of a model whose activations are saved in FP8, by the group size."""

from __future__ import annotations

from functools import cache

import numpy as np
from experiment import Experiment, Quantity, Stated, Values, cosine, main
from numpy.typing import NDArray

import fp8lab
from fp8lab_analysis.judge.claims import Claim

MODEL, SEQUENCES, LENGTH, STEPS = "tiny", 8, 128, 40
GROUPS = {"tensor": 0.0, "1x128": 128.0, "1x32": 32.0, "1x16": 16.0}
COSINE, DISTANCE = "1 - cosine", "relative distance"


def batch(rng: np.random.Generator, vocabulary: int) -> NDArray[np.int32]:
    """Sequences with a period, which a model learns from its context."""
    period = rng.integers(0, vocabulary, size=(SEQUENCES, 16), dtype=np.int32)
    return np.tile(period, (1, LENGTH // 16))


def gradient(recipe: str, weights: dict[str, NDArray[np.float32]], tokens: NDArray[np.int32]):
    """Loss and all gradients as one vector."""
    model = fp8lab.Model(MODEL, recipe=recipe)
    model.set_parameters(weights)
    loss, gradients = model.gradients(tokens)
    return loss, np.concatenate([gradients[name].ravel() for name in sorted(gradients)])


@cache
def trained(seed: int) -> fp8lab.Model:
    """A model after some steps in BF16: at the start activations are Gaussian."""
    rng = np.random.default_rng(seed)
    model = fp8lab.Model(MODEL, recipe="bf16", seed=seed)
    for _ in range(STEPS):
        model.step(batch(rng, model.config["vocab_size"]), learning_rate=3e-3)
    return model


def measure(seed: int) -> Values:
    model = trained(seed)
    tokens = batch(np.random.default_rng(1000 + seed), model.config["vocab_size"])
    weights = model.parameters()
    loss, exact = gradient("coat", weights, tokens)
    values = Values()
    for group, place in GROUPS.items():
        same, seen = gradient(f"coat_activations_{group}", weights, tokens)
        if same != loss:
            raise RuntimeError("saved activations changed the loss of a forward pass")
        values.put(COSINE, "all gradients", place, 1.0 - cosine(seen, exact))
        distance = np.linalg.norm(seen - exact) / np.linalg.norm(exact)
        values.put(DISTANCE, "all gradients", place, 100.0 * float(distance))
    return values


def of(quantity: str, group: str):
    return lambda values: values.get(quantity, "all gradients", GROUPS[group])


def gain(values: Values) -> float:
    """How much closer groups of 16 are than one scale."""
    return of(DISTANCE, "tensor")(values) / of(DISTANCE, "1x16")(values)


EXPERIMENT = Experiment(
    name="coat_activations",
    title="COAT: gradients from saved activations in FP8",
    stated="""
COAT (section 4.2) saves the inputs of norms, gate and up in E4M3 with one scale every 16 elements,
and finds their quantization error below that of a scale for the tensor. Measured here: the
gradient of all weights of the tiny model after 40 steps in BF16, under COAT's linear layers,
with saved activations in E4M3 against the same gradient with saved activations as they are. The
forward passes have the same bits. Place 0 is one scale a tensor.

Stated before the first run: groups of 16 keep a cosine above 0.999 and are closer than one scale a
tensor. How much closer depends on outliers, which a tiny model lacks.
""",
    seeds=8,
    measure=measure,
    quantities=[
        Quantity(COSINE, log=True),
        Quantity(DISTANCE, "%"),
    ],
    axis="elements of a scale",
    claims=[
        Stated(Claim("1 - cosine, groups of 16", high=1e-3), of(COSINE, "1x16")),
        Stated(Claim("distance of one scale a tensor over groups of 16", low=1.0), gain),
    ],
    caption="gradients under each group size; bars are 95 % over seeds.",
)

if __name__ == "__main__":
    main(EXPERIMENT)
