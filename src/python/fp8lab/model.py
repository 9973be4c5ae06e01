"""Models: logits, loss, gradients and optimizer steps under a recipe."""

from __future__ import annotations

import ctypes
import operator
import threading
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from os import PathLike
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fp8lab import _library as library
from fp8lab._library import Handle, call, numpy_array
from fp8lab.errors import Error

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

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
    """The objective's mean over the trained targets before the update, in nats."""
    gradient_norm: float
    """Norm over all parameters, before clipping."""


def _tokens(values: ArrayLike, name: str) -> NDArray[np.int32]:
    array = np.asarray(values)
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise Error(
            f"{name}: {array.dtype} of shape {array.shape}; accepted: integers of shape "
            "(sequences, length)"
        )
    return np.ascontiguousarray(np.clip(array.astype(np.int64), -1, 2**31 - 1), dtype=np.int32)


def _prompts(prompts: Any) -> list[list[int]]:
    """Returns the ids of prompts; those that no vocabulary has stay such. Raises TypeError for what
    is no list of lists of integers."""
    try:
        ids = [[operator.index(token) for token in prompt] for prompt in prompts]
    except TypeError:
        raise TypeError("prompts: accepted: a list of lists of token ids, integers") from None
    return [[min(max(token, -1), 2**31 - 1) for token in prompt] for prompt in ids]


def _columns(values: Mapping[str, ArrayLike] | None) -> dict[str, NDArray[np.float32]]:
    """Returns columns of a batch. Raises TypeError for what is no mapping of names to arrays."""
    given = {} if values is None else values
    if not isinstance(given, Mapping):
        kind = type(given).__name__
        raise TypeError(f"columns: {kind}; accepted: a mapping of names to arrays")
    columns = {}
    for name, value in given.items():
        word = library.words(name, "a name of columns")
        try:
            column = np.asarray(value)
        except ValueError:
            raise Error(f"column '{word}': rows of unequal length; accepted: an array") from None
        if column.dtype.kind not in "fiu":
            raise Error(f"column '{word}': {column.dtype}; accepted: numbers")
        with np.errstate(over="ignore"):
            narrow = np.ascontiguousarray(column, dtype=np.float32)
        if np.any(np.isinf(narrow) & np.isfinite(column)):
            largest = np.abs(column[np.isfinite(column)]).max()
            raise Error(
                f"column '{word}': {largest:.6g}; accepted: float32, at most "
                f"{np.finfo(np.float32).max:.6g}"
            )
        columns[word] = narrow
    return columns


def _described(columns: Mapping[str, NDArray[np.float32]]) -> library.Columns:
    """Returns the descriptor of columns, which must outlive it."""
    arrays = [numpy_array(column, name) for name, column in columns.items()]
    return library.Columns(
        (ctypes.c_char_p * len(arrays))(*map(library.text, columns)),
        (library.Array * len(arrays))(*arrays),
        len(arrays),
    )


def _arrays(*arrays: NDArray[Any]) -> list[library.Array]:
    """Returns the descriptors of arrays, which must outlive them."""
    return [numpy_array(array, "batch") for array in arrays]


def _completion(completions: Handle, index: int) -> Completion:
    tokens = ctypes.POINTER(ctypes.c_int32)()
    log_probabilities = ctypes.POINTER(ctypes.c_double)()
    length, ended = ctypes.c_size_t(), ctypes.c_int32()
    places = ctypes.byref(tokens), ctypes.byref(log_probabilities)
    call("completion", completions, index, *places, ctypes.byref(length), ctypes.byref(ended))
    last = length.value
    return Completion(tokens[:last], log_probabilities[:last], bool(ended.value))


def _in_turn(
    method: Callable[Concatenate[Model, _Arguments], _Result]
) -> Callable[Concatenate[Model, _Arguments], _Result]:
    """Lets the calls of a method, which release the GIL, take turns with all others of a model."""

    @wraps(method)
    def waiting(self: Model, /, *arguments: _Arguments.args, **keys: _Arguments.kwargs) -> _Result:
        with self._turn:
            return method(self, *arguments, **keys)

    return waiting


class Model:
    """A decoder with weights, optimizer state and numerics.

    Its family is Llama, Mistral, Qwen2, Qwen3 or GPT-2.

    `source` is a folder that transformers saved (config.json and safetensors), whose weights are
    loaded, or the name or TOML file of an fp8lab model, with random weights from `seed`. `recipe`
    is a name from `fp8lab recipes list` or a file. The backend is `cpu` (the bit-exact emulator),
    `truth` (double precision, nothing quantized) or, if built in, `cuda`. Weights and gradients
    have the tensor names of transformers. Several threads may use a model: their calls take turns.

    `objective` is what `gradients` and `step` minimize: `cross_entropy`, or another kind of
    [stages.objective] (`fp8lab help config`) with columns of its own. `loss` and
    `log_probabilities` measure the likelihood whatever it is.
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
        objective: str = "cross_entropy",
    ) -> None:
        """Weight decay applies only to matrices. `clip_norm` 0: no clipping. `threads` 0: all.

        `kind`, and what each of the other words means to it: [optimizer] of `fp8lab help config`.
        """
        numbers = {
            "beta1": beta1,
            "beta2": beta2,
            "epsilon": epsilon,
            "weight_decay": weight_decay,
            "clip_norm": clip_norm,
        }
        is_muon = library.words(kind, "kind") == "muon"
        if is_muon:
            numbers["momentum"] = momentum
        optimizer: dict[str, float | str] = {"kind": kind}
        optimizer |= {name: library.real(value, name) for name, value in numbers.items()}
        if is_muon:
            optimizer["update_scale"] = library.words(update_scale, "update_scale")
        self._model = Handle(
            "model_new",
            library.path(source, "source"),
            library.path(recipe, "recipe"),
            library.words(backend, "backend"),
            library.integer(threads, "threads", 31),
            library.make_keys(optimizer),
            len(optimizer),
            library.words(objective, "objective"),
            library.integer(seed, "seed", 64),
        )
        self._turn = threading.RLock()

    @property
    @_in_turn
    def config(self) -> dict[str, Any]:
        """The model's shape, with the keys of a run file's [model] table."""
        table: dict[str, Any] = tomllib.loads(self._text("model_config"))["model"]
        return table

    @property
    @_in_turn
    def device(self) -> str:
        """Description of the backend's device, in one line."""
        return self._text("model_device")

    @property
    @_in_turn
    def steps(self) -> int:
        """Number of completed optimizer steps."""
        return int(call("model_steps", self._model))

    @_in_turn
    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """Returns copies of the master weights, those of Gemma's norms less 1, as in files."""
        return self._tensors("model_weight")

    @_in_turn
    def set_parameters(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Sets all weights from float32, float16 or bfloat16 arrays; keeps the optimizer state."""
        if not isinstance(weights, Mapping):
            kind = type(weights).__name__
            raise TypeError(f"weights: {kind}; accepted: a mapping of names to arrays")
        texts = [library.text(library.words(name, "a name of weights")) for name in weights]
        arrays = [numpy_array(array, name) for name, array in weights.items()]
        names = (ctypes.c_char_p * len(arrays))(*texts)
        given = (library.Array * len(arrays))(*arrays)
        call("model_set_weights", self._model, names, given, len(arrays))

    @_in_turn
    def logits(self, tokens: ArrayLike) -> NDArray[np.float32]:
        """Returns logits (sequences, length, vocabulary) for tokens (sequences, length)."""
        inputs = _tokens(tokens, "tokens")
        logits = np.empty((*inputs.shape, call("model_vocabulary", self._model)), np.float32)
        call("model_logits", self._model, *_arrays(inputs, logits))
        return logits

    @_in_turn
    def log_probabilities(self, tokens: ArrayLike) -> NDArray[np.float32]:
        """Returns the log-probability in nats of every token except the first of each sequence,
        given the tokens before it: (sequences, length - 1)."""
        inputs, targets = self._batch(tokens, None)
        losses = np.empty(inputs.shape, np.float32)
        call("model_token_losses", self._model, *_arrays(inputs, targets, losses))
        return -losses[:, :-1]

    @_in_turn
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
        together = library.integer(together, "together", 63)
        max_new_tokens = library.integer(max_new_tokens, "max_new_tokens", 63)
        sample = library.integer(sample, "sample", 31)
        if together < 1 or max_new_tokens < 1 or sample < 0:
            raise Error(
                "generate: accepted: max_new_tokens and together positive, sample not negative"
            )
        sampling = library.make_keys(
            {
                "temperature": temperature,
                "top_k": top_k,
                "top_p": top_p,
                "min_new_tokens": min_new_tokens,
                "seed": seed,
            }
        )
        generation = library.Generation(
            sampling,
            len(sampling),
            max_new_tokens,
            together,
            sample,
            library.integer(end, "end", 31),
        )
        ids = _prompts(prompts)
        arrays = [(ctypes.c_int32 * len(prompt))(*prompt) for prompt in ids]
        tokens = (ctypes.POINTER(ctypes.c_int32) * len(ids))(
            *(ctypes.cast(array, ctypes.POINTER(ctypes.c_int32)) for array in arrays)
        )
        lengths = (ctypes.c_size_t * len(ids))(*map(len, ids))
        found = Handle("model_generate", self._model, tokens, lengths, len(ids), generation)
        return [_completion(found, index) for index in range(len(ids))]

    @_in_turn
    def loss(self, tokens: ArrayLike, targets: ArrayLike | None = None) -> float:
        """Returns the mean cross-entropy in nats over the nonnegative targets (sequences, length).

        Without targets, the target of each token is the next token of its sequence.
        """
        loss = ctypes.c_double()
        batch = self._batch(tokens, targets)
        call("model_loss", self._model, *_arrays(*batch), ctypes.byref(loss))
        return loss.value

    @_in_turn
    def gradients(
        self,
        tokens: ArrayLike,
        targets: ArrayLike | None = None,
        *,
        columns: Mapping[str, ArrayLike] | None = None,
    ) -> tuple[float, dict[str, NDArray[np.float32]]]:
        """Returns the objective's loss and its gradient with respect to every trained weight.
        Frozen weights, such as those below low-rank adapters, are left out.

        `columns` has what the objective reads beside tokens and targets, by the keys of JSON-lines
        records: numbers of shape (sequences, length), such as {"advantage": ...}. They count at
        the targets that are trained on.
        """
        loss = ctypes.c_double()
        batch, more = self._batch(tokens, targets), _columns(columns)
        places = ctypes.byref(_described(more)), ctypes.byref(loss)
        call("model_backward", self._model, *_arrays(*batch), *places)
        return loss.value, self._tensors("model_gradient", trained=True)

    @_in_turn
    def step(
        self,
        tokens: ArrayLike,
        targets: ArrayLike | None = None,
        *,
        learning_rate: float,
        columns: Mapping[str, ArrayLike] | None = None,
    ) -> Step:
        """Performs one optimizer step with clipping: AdamW, unless the model was made with another
        `kind`. `learning_rate` is a number from 0 to 10; `columns` as for `gradients`."""
        rate = library.real(learning_rate, "learning_rate")
        loss, norm = ctypes.c_double(), ctypes.c_double()
        batch, more = self._batch(tokens, targets), _columns(columns)
        places = ctypes.byref(_described(more)), rate, ctypes.byref(loss), ctypes.byref(norm)
        call("model_step", self._model, *_arrays(*batch), *places)
        return Step(loss.value, norm.value)

    @_in_turn
    def save(
        self,
        folder: str | PathLike[str],
        *,
        dtype: str = "bf16",
        recipe: str | PathLike[str] | None = None,
    ) -> None:
        """Writes a folder that transformers loads. An existing folder must be empty.

        `dtype` is bf16, f16 or f32. With a recipe the weights of linear layers are FP8 codes with
        scales, as the recipe quantizes them for the forward pass. Weights that are not finite are
        refused: a model that has them lost its training.
        """
        name = None if recipe is None else library.path(recipe, "recipe")
        path, kind = library.path(folder, "folder"), library.words(dtype, "dtype")
        call("model_save", self._model, path, kind.upper(), name)

    def _text(self, function: str) -> str:
        text = ctypes.c_char_p()
        call(function, self._model, ctypes.byref(text))
        return (text.value or b"").decode()

    def _tensors(self, function: str, trained: bool = False) -> dict[str, NDArray[np.float32]]:
        """Returns what `function` writes of each tensor, or of each trained one, by the names of
        transformers."""
        tensors = {}
        name, rank = ctypes.c_char_p(), ctypes.c_int32()
        shape = ctypes.POINTER(ctypes.c_int64)()
        places = ctypes.byref(name), ctypes.byref(rank), ctypes.byref(shape)
        for index in range(call("model_tensors", self._model)):
            if trained and not call("model_is_trained", self._model, index):
                continue
            call("model_tensor", self._model, index, *places)
            values = np.empty(shape[: rank.value], np.float32)
            call(function, self._model, index, numpy_array(values, "values"))
            tensors[(name.value or b"").decode()] = values
        return tensors

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
