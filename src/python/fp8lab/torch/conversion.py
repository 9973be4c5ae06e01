"""Turns the linear layers of a model into those of a recipe."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fp8lab.errors import Error
from fp8lab.torch import experts
from fp8lab.torch.experts import ConvertedExperts
from fp8lab.torch.layer import (
    FORWARDS,
    HIGH_PRECISION,
    Layer,
    ModuleName,
    Recipe,
    match_modules,
    recipe_of,
)
from fp8lab.torch.operators import apply


class Converted:
    """What conversion adds to a module. Its class becomes a subclass of the one it had."""

    fp8lab: Layer
    fp8lab_clock: Tensor
    training: bool
    weight: Tensor
    bias: Tensor | None

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"{super().extra_repr()}, recipe={self.fp8lab.recipe.name}"  # type: ignore[misc]


class ConvertedLinear(Converted, nn.Linear):
    """nn.Linear by the GEMMs of a recipe."""

    def forward(self, x: Tensor) -> Tensor:
        """y (..., out) of x (..., in)."""
        layer = self.fp8lab
        return apply(x, self.weight, self.bias, self.fp8lab_clock, layer.number, self.training)


class ConvertedConv1D(Converted, nn.Module):
    """Conv1D of transformers, a linear layer with its weight as (in, out)."""

    def forward(self, x: Tensor) -> Tensor:
        """y (..., out) of x (..., in)."""
        w = self.weight.t().contiguous()
        return apply(x, w, self.bias, self.fp8lab_clock, self.fp8lab.number, self.training)


def _is_conv1d(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils"


_classes: dict[type[nn.Module], type[nn.Module]] = {nn.Linear: ConvertedLinear}


def _converted_class(module: nn.Module) -> type[nn.Module]:
    kind = type(module)
    if kind not in _classes:
        base: type = ConvertedConv1D if _is_conv1d(module) else ConvertedLinear
        if experts.is_experts(module):
            base = ConvertedExperts
        _add_class(base, kind)
    return _classes[kind]


def _reduce_converted(module: nn.Module, _protocol: int) -> tuple[Any, ...]:
    """Pickles a module of a class that is made here by the class that it had."""
    return _restore_converted, type(module).__bases__, module.__getstate__()


def _restore_converted(base: type[nn.Module], kind: type[nn.Module]) -> nn.Module:
    made = _classes.get(kind) or _add_class(base, kind)
    module: nn.Module = object.__new__(made)
    return module


def _add_class(base: type, kind: type[nn.Module]) -> type[nn.Module]:
    body = {"__reduce_ex__": _reduce_converted}
    _classes[kind] = type(f"Converted{kind.__name__}", (base, kind), body)
    return _classes[kind]


_SAME_PRODUCT = {"FalconLinear"}
"""Subclasses of nn.Linear in transformers whose own forward computes the same."""


def _is_linear(module: nn.Module) -> bool:
    """True for a layer whose forward is that of nn.Linear, or of Conv1D."""
    kind = type(module)
    is_same = kind.__name__ in _SAME_PRODUCT and kind.__module__.startswith("transformers.")
    return _is_conv1d(module) or is_same or kind.forward is nn.Linear.forward


def _is_bypassed(module: nn.Module, parent: nn.Module) -> bool:
    """True for a linear layer whose parent uses its weight without calling it."""
    is_scan = "Mamba" in type(parent).__name__ and module is getattr(parent, "dt_proj", None)
    return isinstance(parent, nn.MultiheadAttention) or is_scan


class _Found(NamedTuple):
    """A layer to convert: a module, or an expert's slice of a parameter of one."""

    name: str
    module: nn.Module
    in_features: int
    out_features: int
    parameter: str = ""
    """Of experts: the 3-D parameter."""


def _found_in(name: str, module: nn.Module) -> Iterator[_Found]:
    if experts.is_experts(module):
        for own, parameter, in_features, out in experts.parameters(module):
            for expert in range(len(parameter)):
                yield _Found(f"{name}.{expert}.{own}", module, in_features, out, own)
    elif _is_linear(module):
        if isinstance(module.weight, nn.parameter.UninitializedParameter):
            raise Error(f"{name}: its weight has no shape yet; accepted: a model that has run once")
        rows, cols = module.weight.shape
        if rows * cols == 0:
            raise Error(f"{name}: a weight of shape {(rows, cols)}; accepted: one with elements")
        yield _Found(name, module, *((rows, cols) if _is_conv1d(module) else (cols, rows)))


def _linears(model: nn.Module) -> Iterator[_Found]:
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if isinstance(module, (Converted, ConvertedExperts)):
            raise Error(f"{name} is converted already; accepted: a model that is not")
        parent = modules[name.rpartition(".")[0]] if name else model
        if isinstance(module, nn.Linear) and (
            not _is_linear(module) or _is_bypassed(module, parent)
        ):
            warnings.warn(
                f"fp8lab.torch.convert: {name} ({type(module).__name__}) is left as it is: its "
                "product is not computed by nn.Linear.forward",
                stacklevel=3,
            )
        else:
            yield from _found_in(name, module)


def _head(model: nn.Module) -> nn.Module | None:
    """The module whose outputs are the logits of a language model, of a model of transformers."""
    find = getattr(model, "get_output_embeddings", None)
    return find() if callable(find) else None


class Layers(dict[str, Layer]):
    """The converted layers of a model by the names of their modules."""

    def __str__(self) -> str:
        lines = [
            f"{name}: {layer.recipe.name}" + ("" if layer.has_run else ", has not run")
            for name, layer in self.items()
        ]
        return "\n".join(lines) or "no layer is converted"


def convert(
    model: nn.Module,
    recipe: Any = "infir2",
    *,
    overrides: Mapping[str, Any] | None = None,
    seed: int = 1,
) -> nn.Module:
    """Makes every nn.Linear, and Conv1D of transformers, compute by the GEMMs of a recipe.

    `recipe` is a name, a path, TOML, or an object that fp8lab.library_recipes reads. Its
    [[override]] and keep_high_precision are matched with the names of modules, and with what they
    are in the names of recipes: model.layers.3.self_attn.q_proj is layers.3.attention.qkv. What
    the recipe keeps in high precision, `lm_head` for one, keeps its class and computes as before.
    `overrides` comes first: patterns with a recipe of their own, or None for a module that stays
    as it is; the first match wins. So {"lm_head": "infir2"} converts the head too, and
    {"layers.last": None} leaves the last layer.

    The model changes in place and is returned. Parameters, their names, hooks and the state_dict
    stay. x must be float32 or bfloat16 (autocast included), weights of the same type, or float32.
    `seed` is for recipes with random words.
    """
    whole = recipe_of(recipe)
    found = list(_linears(model))
    if not found:
        raise Error(f"{type(model).__name__} has no nn.Linear")
    head = _head(model)
    names = [ModuleName(layer.name, layer.module is head) for layer in found]
    clock = torch.tensor([seed, 0, 0, 0])
    is_random = False
    for index, (layer, choice) in enumerate(zip(found, _choices(whole, names, overrides or {}))):
        if choice is None:
            continue
        own, numerics = choice
        is_random = is_random or own.is_random
        made = Layer(own, numerics, layer.name, index, layer.in_features, layer.out_features)
        _install(layer, made, clock)
    model.fp8lab_clock = clock
    if is_random:
        model.register_forward_pre_hook(_count_forward)
    return model


def _meant(pattern: str, names: list[ModuleName]) -> str:
    """Names the pattern of all layers that end as `pattern` does; '*' is one part of a name."""
    last = pattern.rsplit(".", 1)[-1]
    alike = (name.name for name in names if name.name.rsplit(".", 1)[-1] == last)
    first = re.sub(r"(?<=\.)\d+(?=\.)", "*", next(alike, ""))
    return f" (did you mean '{first}'?)" if first else ""


def _choices(
    whole: Recipe, names: list[ModuleName], overrides: Mapping[str, Any]
) -> Iterator[tuple[Recipe, int] | None]:
    """The recipe and the numerics of each layer, or None for one that stays as it is."""
    if not isinstance(overrides, Mapping):
        raise Error(
            f"overrides: a {type(overrides).__name__}; accepted: a dictionary of patterns, "
            'such as {"lm_head": "bf16", "layers.0": None}'
        )
    patterns = list(overrides)
    others = [None if other is None else recipe_of(other) for other in overrides.values()]
    found = match_modules(patterns, names)
    for index, pattern in enumerate(patterns):
        if index not in found and not any(place >= 0 for place in match_modules([pattern], names)):
            raise Error(
                f"overrides: '{pattern}' matches no linear layer{_meant(pattern, names)}; "
                "the first are " + ", ".join(name.name for name in names[:4])
            )
    chosen = {id(recipe): recipe.choose(names) for recipe in (whole, *others) if recipe}
    for index, place in enumerate(found):
        own = whole if place < 0 else others[place]
        if own is None:
            yield None
            continue
        numerics = chosen[id(own)][index]
        if place >= 0:
            numerics = max(numerics, 0)  # a layer that is named gets it even if the recipe keeps it
        yield None if numerics == HIGH_PRECISION else (own, numerics)


def _install(layer: _Found, made: Layer, clock: Tensor) -> None:
    module = layer.module
    if not isinstance(module, (Converted, ConvertedExperts)):
        module.__class__ = _converted_class(module)
        module.fp8lab_clock = clock
        if layer.parameter:
            module.fp8lab = {}
    if not layer.parameter:
        module.fp8lab = made
        return
    expert = int(layer.name.split(".")[-2])
    module.fp8lab.setdefault(layer.parameter, {})[expert] = made


def _count_forward(model: nn.Module, arguments: Any) -> None:
    is_recomputing = not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
    if model.training and torch.is_grad_enabled() and not is_recomputing:
        model.fp8lab_clock[FORWARDS].add_(1)


def converted_by(module: nn.Module) -> list[Layer]:
    """Returns the layers that this module itself computes."""
    if isinstance(module, Converted):
        return [module.fp8lab]
    if isinstance(module, ConvertedExperts):
        return [layer for slices in module.fp8lab.values() for layer in slices.values()]
    return []


def converted(model: nn.Module) -> Layers:
    """Returns the converted layers of a model; those of experts as NAME.EXPERT.PARAMETER."""
    layers = Layers()
    for name, module in model.named_modules():
        if isinstance(module, Converted):
            layers[name] = module.fp8lab
        elif isinstance(module, ConvertedExperts):
            for parameter, slices in module.fp8lab.items():
                for expert, layer in slices.items():
                    layers[f"{name}.{expert}.{parameter}"] = layer
    return layers
