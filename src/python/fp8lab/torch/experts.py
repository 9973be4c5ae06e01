"""Experts of transformers, whose weights are slices of 3-D parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fp8lab.torch.layer import Layer
from fp8lab.torch.operators import apply

_EXPERT = "_fp8lab_expert"


class Slices(NamedTuple):
    """The layers of one parameter (experts, out, in), or (experts, in, out) if transposed."""

    layers: list[Layer]
    is_transposed: bool


def is_experts(module: nn.Module) -> bool:
    """True for experts whose forward transformers dispatches, and whose own one multiplies expert
    by expert: use_experts_implementation."""
    own = getattr(type(module).forward, "__wrapped__", None)
    return own is not None and hasattr(module, "is_transposed") and bool(list(parameters(module)))


def parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, int, int]]:
    """Name, parameter, in and out of every 3-D weight."""
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.dim() == 3:
            _, rows, cols = parameter.shape
            yield name, parameter, *((rows, cols) if module.is_transposed else (cols, rows))


class ConvertedExperts:
    """What conversion adds to a module of experts. Its class becomes a subclass of the one it had.

    Experts run one after another, whatever implementation the model's configuration names.
    """

    fp8lab: dict[str, Slices]
    fp8lab_clock: Tensor
    training: bool

    def forward(self, *arguments: Any, **options: Any) -> Any:
        """The experts' own forward, with the products of slices by a recipe."""
        own = type(self).__mro__[2].forward.__wrapped__  # type: ignore[attr-defined]
        with _Products(self):
            return own(self, *arguments, **options)


class _Products(TorchFunctionMode):
    """Computes x W[expert]^T, and x W[expert] of transposed weights, by a recipe."""

    def __init__(self, experts: ConvertedExperts) -> None:
        super().__init__()
        self._experts = experts
        self._names = {id(getattr(experts, name)): name for name in experts.fp8lab}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if function is Tensor.__getitem__ and id(args[0]) in self._names:
            weight = function(*args, **named)
            if weight.dim() == 2:
                setattr(weight, _EXPERT, (self._names[id(args[0])], int(args[1])))
            return weight
        if function is nn.functional.linear and hasattr(args[1], _EXPERT):
            return self._product(args[0], args[1], *args[2:], **named)
        if function in _MATMULS and hasattr(args[1], _EXPERT):
            return self._product(args[0], args[1])
        return function(*args, **named)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        name, expert = getattr(weight, _EXPERT)
        slices = self._experts.fp8lab[name]
        layer = slices.layers[expert]
        w = weight.t().contiguous() if slices.is_transposed else weight
        clock, training = self._experts.fp8lab_clock, self._experts.training
        return apply(x, w, bias, clock, layer.number, training)


_MATMULS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)
