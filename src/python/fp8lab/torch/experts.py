"""Experts of transformers, whose weights are slices of 3-D parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fp8lab.torch.layer import Layer
from fp8lab.torch.operators import apply

_LAYER = "_fp8lab_layer"


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

    fp8lab: dict[str, dict[int, Layer]]
    """Layers by parameter, (experts, out, in) or transposed, and expert. Other slices are
    multiplied as before."""
    is_transposed: bool
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
        self._layers = {id(getattr(experts, name)): own for name, own in experts.fp8lab.items()}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if function is Tensor.__getitem__ and id(args[0]) in self._layers:
            weight = function(*args, **named)
            layers = self._layers[id(args[0])]
            if weight.dim() == 2 and int(args[1]) in layers:
                setattr(weight, _LAYER, layers[int(args[1])])
            return weight
        if function is nn.functional.linear and hasattr(args[1], _LAYER):
            return self._product(args[0], args[1], *args[2:], **named)
        if function in _MATMULS and hasattr(args[1], _LAYER):
            return self._product(args[0], args[1])
        return function(*args, **named)

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        layer = getattr(weight, _LAYER)
        w = weight.t().contiguous() if self._experts.is_transposed else weight
        clock, training = self._experts.fp8lab_clock, self._experts.training
        return apply(x, w, bias, clock, layer.number, training)


_MATMULS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)
