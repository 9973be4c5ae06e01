"""Compares the products of fp8lab.torch with fp8lab.gemm of operands by fp8lab.quantize."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fp8lab
from fp8lab.torch.layer import Layer


@dataclass
class Count:
    """What was compared."""

    products: int = 0
    elements: int = 0
    different: int = 0
    """Elements with other bits."""
    layers: set[str] = field(default_factory=set)
    worst: str = ""


def array(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().numpy()


def product(recipe: str, role: str, a: Any, b: Any, bias: Any = None) -> Any:
    """D = A B^T of quantized operands, float32."""
    slots = {"fprop": ("x", "w"), "dgrad": ("dy", "w"), "wgrad": ("dy", "x")}[role]
    quantized = [
        fp8lab.quantize(np.ascontiguousarray(values), f"{recipe}:{role}.{slot}", statistics=False)
        for values, slot in zip((a, b), slots)
    ]
    scales = {
        name: operand.scales
        for name, operand in zip(("scale_a", "scale_b"), quantized)
        if operand.scales is not None
    }
    codes = [operand.codes for operand in quantized]
    return fp8lab.gemm(codes[0], codes[1], f"{recipe}:{role}", bias=bias, **scales)


def _compare(count: Count, layer: Layer, role: str, found: Tensor, expected: Any) -> None:
    wanted = torch.from_numpy(np.ascontiguousarray(expected)).to(found.dtype).float()
    bits = array(found).view(np.uint32) != wanted.numpy().view(np.uint32)
    count.products += 1
    count.elements += bits.size
    count.layers.add(layer.name)
    if bits.any():
        count.different += int(bits.sum())
        place = tuple(int(i) for i in np.argwhere(bits)[0])
        count.worst = count.worst or (
            f"{layer.name} {role} {place}: {array(found)[place]} != {wanted.numpy()[place]}"
        )


@contextmanager
def compared_products() -> Iterator[Count]:
    """Compares every pass of every layer while open. Recipes: rounding to nearest, current scales,
    both orientations from the tensor, no exceptions for layers."""
    count = Count()
    forward, backward = Layer.forward, Layer.backward

    def working(x: Tensor, w: Tensor) -> Tensor:
        return w.detach().to(x.dtype)

    def checked_forward(
        self: Layer, x: Tensor, w: Tensor, bias: Tensor | None, clock: Tensor, training: bool
    ) -> Tensor:
        y = forward(self, x, w, bias, clock, training)
        added = None if bias is None else array(working(x, bias))
        if len(x):
            expected = product(self.recipe.name, "fprop", array(x), array(working(x, w)), added)
            _compare(count, self, "fprop", y, expected)
        return y

    def checked_backward(
        self: Layer, x: Tensor, w: Tensor, dy: Tensor, clock: Tensor, training: bool, wanted: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        dx, dw, dbias = backward(self, x, w, dy, clock, training, wanted)
        name = self.recipe.name
        if wanted[0] and len(x):
            expected = product(name, "dgrad", array(dy), array(working(x, w)).T)
            _compare(count, self, "dgrad", dx, expected)
        if wanted[1] and len(x):
            expected = product(name, "wgrad", array(dy).T, array(x).T)
            _compare(count, self, "wgrad", dw, expected)
        return dx, dw, dbias

    Layer.forward, Layer.backward = checked_forward, checked_backward  # type: ignore[method-assign]
    try:
        yield count
    finally:
        Layer.forward, Layer.backward = forward, backward  # type: ignore[method-assign]
