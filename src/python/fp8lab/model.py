"""Models: logits, loss, gradients and optimizer steps under a recipe."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fp8lab._emulator import _fp8lab

IGNORED = -100
"""A target that is not trained on. Any negative number has the same effect."""


class Completion(NamedTuple):
    """The tokens that a model generated after a prompt."""

    tokens: list[int]
    """Generated tokens, including the end token if it was generated."""
    log_probabilities: list[float]
    """Log-probability of each token in nats, without temperature and filters."""
    ended: bool
    """True if the completion ended with the end token."""


class Step(NamedTuple):
    """Results of an optimizer step."""

    loss: float
    """Mean over the trained targets before the update, in nats."""
    gradient_norm: float
    """Norm over all parameters, before clipping."""


def _tokens(values: ArrayLike, name: str) -> NDArray[np.int32]:
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise _fp8lab.Error(
            f"{name}: {array.dtype} of shape {array.shape}; accepted: integers of shape "
            "(sequences, length)"
        )
    return np.ascontiguousarray(np.clip(array.astype(np.int64), -1, 2**31 - 1), dtype=np.int32)


class Model:
    """A decoder with weights, optimizer state and numerics.

    Its family is Llama, Mistral, Qwen2, Qwen3 or GPT-2.

    `source` is a folder that transformers saved (config.json and safetensors), whose weights are
    loaded, or the name or TOML file of an fp8lab model, with random weights from `seed`. `recipe`
    is a name from `fp8lab recipes list` or a file. The backend is `cpu` (the bit-exact emulator),
    `truth` (double precision, nothing quantized) or, if built in, `cuda`. Weights and gradients
    have the tensor names of transformers.
    """

    def __init__(
        self,
        source: str | PathLike[str],
        *,
        recipe: str | PathLike[str] = "bf16",
        backend: str = "cpu",
        seed: int = 1,
        threads: int = 0,
        kind: str = "adamw",
        beta1: float = 0.9,
        beta2: float = 0.95,
        epsilon: float = 1e-8,
        weight_decay: float = 0.1,
        clip_norm: float = 1.0,
        momentum: float = 0.95,
        update_scale: str = "adamw_rms",
    ) -> None:
        """Weight decay applies only to matrices. `clip_norm` 0: no clipping. `threads` 0: all.

        `kind`, and what each of the other words means to it: [optimizer] of `fp8lab help config`.
        """
        optimizer: dict[str, float | str] = {
            "kind": kind,
            "beta1": beta1,
            "beta2": beta2,
            "epsilon": epsilon,
            "weight_decay": weight_decay,
            "clip_norm": clip_norm,
        }
        if kind == "muon":
            optimizer |= {"momentum": momentum, "update_scale": update_scale}
        self._model = _fp8lab.Model(
            fspath(source), fspath(recipe), backend, optimizer, seed, threads
        )

    @property
    def config(self) -> dict[str, Any]:
        """The model's shape, with the keys of a run file's [model] table."""
        table: dict[str, Any] = tomllib.loads(self._model.config)["model"]
        return table

    @property
    def device(self) -> str:
        """Description of the backend's device, in one line."""
        return self._model.device

    @property
    def steps(self) -> int:
        """Number of completed optimizer steps."""
        return self._model.steps

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """Returns copies of the master weights."""
        return self._model.parameters()

    def set_parameters(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Sets all weights from float32, float16 or bfloat16 arrays; keeps the optimizer state."""
        self._model.set_parameters(dict(weights))

    def logits(self, tokens: ArrayLike) -> NDArray[np.float32]:
        """Returns logits (sequences, length, vocabulary) for tokens (sequences, length)."""
        return self._model.logits(_tokens(tokens, "tokens"))

    def log_probabilities(self, tokens: ArrayLike) -> NDArray[np.float32]:
        """Returns the log-probability in nats of every token except the first of each sequence,
        given the tokens before it: (sequences, length - 1)."""
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
        """Completes lists of token ids with a key-value cache, `together` prompts at a time.

        Temperature 0 selects the most probable token. Draws depend only on `seed`, the prompt's
        index, `sample` and the position. Delayed scales start without a history.
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
        """Returns the mean cross-entropy in nats over the nonnegative targets (sequences, length).

        Without targets, the target of each token is the next token of its sequence.
        """
        return self._model.loss(*self._batch(tokens, targets))

    def gradients(
        self, tokens: ArrayLike, targets: ArrayLike | None = None
    ) -> tuple[float, dict[str, NDArray[np.float32]]]:
        """Returns the loss and its gradient with respect to every weight."""
        loss = self._model.backward(*self._batch(tokens, targets))
        return loss, self._model.gradients()

    def step(
        self, tokens: ArrayLike, targets: ArrayLike | None = None, *, learning_rate: float
    ) -> Step:
        """Performs one optimizer step with clipping: AdamW, unless the model was made with another
        `kind`."""
        return Step(*self._model.step(*self._batch(tokens, targets), learning_rate))

    def save(
        self,
        folder: str | PathLike[str],
        *,
        dtype: str = "bf16",
        recipe: str | PathLike[str] | None = None,
    ) -> None:
        """Writes a folder that transformers loads. An existing folder must be empty.

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
