"""The operators fp8lab::linear and fp8lab::linear_backward of torch.library."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fp8lab.errors import Error
from fp8lab.torch.layer import HIGH_PRECISION, Layer, ModuleName, Recipe, layer_of, recipe_of


@torch.library.custom_op("fp8lab::linear", mutates_args=())
def linear(
    x: Tensor, w: Tensor, bias: Tensor | None, clock: Tensor, layer: Tensor, training: bool
) -> Tensor:
    """y (rows, out) = x (rows, in) w (out, in)^T + bias (out), of the type of x.

    `layer` is Layer.number. `clock` says when the pass runs. A pass outside of `training` leaves no
    trace in the state of the layer.
    """
    return layer_of(layer).forward(x, w, bias, clock, training)


@torch.library.custom_op("fp8lab::linear_backward", mutates_args=())
def linear_backward(
    x: Tensor,
    w: Tensor,
    dy: Tensor,
    clock: Tensor,
    layer: Tensor,
    training: bool,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dw and dbias of `linear` from dy (rows, out): those that are wanted, else empty."""
    return layer_of(layer).backward(x, w, dy, clock, training, wanted)


@linear.register_fake
def _(
    x: Tensor, w: Tensor, bias: Tensor | None, clock: Tensor, layer: Tensor, training: bool
) -> Tensor:
    return x.new_empty((x.shape[0], w.shape[0]))


@linear_backward.register_fake
def _(
    x: Tensor,
    w: Tensor,
    dy: Tensor,
    clock: Tensor,
    layer: Tensor,
    training: bool,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dw, dbias = wanted
    return (
        x.new_empty(x.shape if dx else (0,)),
        w.new_empty(w.shape if dw else (0,)),
        w.new_empty((w.shape[0],) if dbias else (0,)),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, _, clock, layer, training = inputs
    ctx.save_for_backward(x, w, clock.clone(), layer)
    ctx.training = training


def _gradients(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, w, clock, layer = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:3])
    results = linear_backward(x, w, dy, clock, layer, ctx.training, wanted)
    kept = [result if is_wanted else None for result, is_wanted in zip(results, wanted)]
    return (*kept, None, None, None)


linear.register_autograd(_gradients, setup_context=_save)


def apply(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    clock: Tensor,
    layer: Tensor,
    training: bool,
) -> Tensor:
    """The operator on x (..., in), under autocast of the type that autocast names."""
    if torch.is_autocast_enabled(x.device.type) and x.is_floating_point():
        x = x.to(torch.get_autocast_dtype(x.device.type))
    y = linear(x.reshape(-1, x.shape[-1]), w, bias, clock, layer, training)
    return y.reshape(*x.shape[:-1], w.shape[0])


_matmuls: dict[tuple[str, int, int], Layer] = {}


def _matmul_layer(recipe: Recipe, w: Tensor) -> Layer:
    key = (recipe.text, w.shape[1], w.shape[0])
    if key not in _matmuls:
        if recipe.has_state:
            raise Error(
                f"recipe {recipe.name} carries a state from step to step; accepted by fp8_matmul: "
                "recipes without, and any by convert"
            )
        numerics = recipe.choose([ModuleName("fp8_matmul")])[0]
        assert numerics != HIGH_PRECISION
        _matmuls[key] = Layer(recipe, numerics, "fp8_matmul", 0, w.shape[1], w.shape[0])
    return _matmuls[key]


def fp8_matmul(
    x: Tensor, w: Tensor, recipe: Any = "infir2", *, seed: int = 0, step: int = 0
) -> Tensor:
    """Returns x (..., in) w (out, in)^T by the three GEMMs of a recipe, as nn.functional.linear.

    `recipe` is as for `convert`, without its exceptions for layers. x is float32 or bfloat16,
    w has the same type, or float32. Random words depend on `seed` and `step`.
    """
    layer = _matmul_layer(recipe_of(recipe), w)
    clock = torch.tensor([seed, step, 0, 0])
    return apply(x, w, None, clock, layer.number, True)
