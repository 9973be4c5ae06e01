"""Models: logits, loss, gradients and optimizer steps in the numerics of a recipe."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fp8lab._emulator import _fp8lab

IGNORED = -100
"""A target that is not trained on; any negative number is one."""


class Completion(NamedTuple):
    """What a model added to a prompt."""

    tokens: list[int]
    """With the end token, if it was met."""
    log_probabilities: list[float]
    """Of the tokens, in nats, without temperature and filters."""
    ended: bool
    """By the end token."""


class Step(NamedTuple):
    """What an optimizer step reports."""

    loss: float
    """Mean over the trained targets before the update, in nats."""
    gradient_norm: float
    """Over all parameters, before clipping."""


def _tokens(values: ArrayLike, name: str) -> NDArray[np.int32]:
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise _fp8lab.Error(
            f"{name}: {array.dtype} of shape {array.shape}; accepted: integers of shape "
            "(sequences, length)"
        )
    return np.ascontiguousarray(np.clip(array.astype(np.int64), -1, 2**31 - 1), dtype=np.int32)


class Model:
    """A decoder of the Llama, Qwen2 or Qwen3 family with weights, optimizer state and numerics.

    `source` is a folder that transformers saved (config.json and safetensors), whose weights are
    loaded; or the name or TOML file of one of fp8lab's models, which starts from random weights of
    `seed`. `recipe` is a name out of `fp8lab recipes list` or a file; the backend is `cpu` (the
    bit-exact emulator), `truth` (double precision, nothing quantized) or `cuda` where it was built
    in. Weights and gradients go by the names of transformers.
    """

    def __init__(
        self,
        source: str | PathLike[str],
        *,
        recipe: str | PathLike[str] = "bf16",
        backend: str = "cpu",
        seed: int = 1,
        threads: int = 0,
        beta1: float = 0.9,
        beta2: float = 0.95,
        epsilon: float = 1e-8,
        weight_decay: float = 0.1,
        clip_norm: float = 1.0,
    ) -> None:
        """Weight decay is for matrices alone; `clip_norm` 0 does not clip; `threads` 0: all."""
        optimizer = {
            "beta1": beta1,
            "beta2": beta2,
            "epsilon": epsilon,
            "weight_decay": weight_decay,
            "clip_norm": clip_norm,
        }
        self._model = _fp8lab.Model(
            fspath(source), fspath(recipe), backend, optimizer, seed, threads
        )

    @property
    def config(self) -> dict[str, Any]:
        """The shape, by the keys of a run file's [model] table."""
        table: dict[str, Any] = tomllib.loads(self._model.config)["model"]
        return table

    @property
    def device(self) -> str:
        """What computes, in one line."""
        return self._model.device

    @property
    def steps(self) -> int:
        """Optimizer steps done."""
        return self._model.steps

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """Copies of the master weights."""
        return self._model.parameters()

    def set_parameters(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Sets all weights from float32, float16 or bfloat16 arrays, no state of the optimizer."""
        self._model.set_parameters(dict(weights))

    def logits(self, tokens: ArrayLike) -> NDArray[np.float32]:
        """(sequences, length, vocabulary) for tokens (sequences, length)."""
        return self._model.logits(_tokens(tokens, "tokens"))

    def log_probabilities(self, tokens: ArrayLike) -> NDArray[np.float32]:
        """(sequences, length - 1) in nats: each token's but the first, after those before it."""
        losses = self._model.token_losses(*self._batch(tokens, None))
        return -losses[:, :-1]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int = 64,
        min_new_tokens: int = 0,
        end: int = -1,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 1,
        sample: int = 0,
        together: int = 64,
    ) -> list[Completion]:
        """Completions of lists of token ids, with a key-value cache, `together` of them at once.

        Temperature 0 takes the likeliest token. Draws depend on `seed`, the prompt's index,
        `sample` and the position alone. Delayed scales start again.
        """
        if together < 1 or max_new_tokens < 1 or sample < 0:
            raise _fp8lab.Error(
                "generate: accepted: max_new_tokens and together positive, sample not negative"
            )
        options = {
            "max_new_tokens": max_new_tokens,
            "min_new_tokens": min_new_tokens,
            "end": end,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "seed": seed,
            "sample": sample,
            "together": together,
        }
        ids = [[min(max(int(token), -1), 2**31 - 1) for token in prompt] for prompt in prompts]
        return [Completion(*found) for found in self._model.generate(ids, options)]

    def loss(self, tokens: ArrayLike, targets: ArrayLike | None = None) -> float:
        """Mean cross-entropy in nats over the targets (sequences, length) that are not negative.

        Without targets each token but a sequence's last predicts the next one.
        """
        return self._model.loss(*self._batch(tokens, targets))

    def gradients(
        self, tokens: ArrayLike, targets: ArrayLike | None = None
    ) -> tuple[float, dict[str, NDArray[np.float32]]]:
        """The loss, and its gradient for every weight."""
        loss = self._model.backward(*self._batch(tokens, targets))
        return loss, self._model.gradients()

    def step(
        self, tokens: ArrayLike, targets: ArrayLike | None = None, *, learning_rate: float
    ) -> Step:
        """One step of the optimizer, AdamW unless `kind` names another, with clipping."""
        return Step(*self._model.step(*self._batch(tokens, targets), learning_rate))

    def save(
        self,
        folder: str | PathLike[str],
        *,
        dtype: str = "bf16",
        recipe: str | PathLike[str] | None = None,
    ) -> None:
        """Writes a folder that transformers loads; one that exists must be empty.

        `dtype` is bf16, f16 or f32. With a recipe the weights of linear layers are FP8 codes with
        scales, as the recipe quantizes them for the forward pass.
        """
        self._model.save(fspath(folder), dtype.upper(), "" if recipe is None else fspath(recipe))

    @staticmethod
    def _batch(
        tokens: ArrayLike, targets: ArrayLike | None
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        inputs = _tokens(tokens, "tokens")
        if targets is not None:
            return inputs, _tokens(targets, "targets")
        following = np.full_like(inputs, IGNORED)
        following[:, :-1] = inputs[:, 1:]
        return inputs, following
