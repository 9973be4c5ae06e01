"""Fake quantization in PyTorch: operands take the values of a narrow format, products are FP32.

The rules are written from their publications, with PyTorch's own casts; nothing of fp8lab is
called. Names of RULES are those of the recipes that state the same forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

E4M3 = 448.0  # largest numbers
E2M1 = 6.0
INT8 = 127.0
EVERY = 0  # a side of a tile that is as long as the matrix

# Linear layers that read one input and are one matrix multiplication, as in TransformerEngine and
# Megatron: a tile, or the tensor that has one scale, may hold rows of several.
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


# --- grids: the nearest value, ties to even, of numbers that have been scaled ---------------------


def to_e4m3(x: Tensor) -> Tensor:
    """What lies beyond 448 becomes 448."""
    return x.clamp(-E4M3, E4M3).to(torch.float8_e4m3fn).to(torch.float32)


def to_e2m1(x: Tensor) -> Tensor:
    """0, 0.5, 1, 1.5, 2, 3, 4, 6."""
    size = x.abs()
    step = torch.where(size < 2.0, 0.5, torch.where(size < 4.0, 1.0, 2.0))
    return (torch.round(x / step) * step).clamp(-E2M1, E2M1)


def to_int8(x: Tensor) -> Tensor:
    """-127 to 127."""
    return torch.round(x).clamp(-INT8, INT8)


# --- scales: (amax of each tile, amax of the tensor, largest number) -> what values are multiplied
# by before the cast, and after it. All amax are positive. ---------------------------------------


def cleared(x: Tensor) -> Tensor:
    """The largest power of two up to x, a normal FP32 number."""
    return (x.view(torch.int32) & 0x7F800000).view(torch.float32)


def quotient(numerator: float | Tensor, denominator: Tensor) -> Tensor:
    """Rounded once: PyTorch takes a number over a tensor as that number times the reciprocals."""
    return torch.as_tensor(numerator, dtype=torch.float32) / denominator


def fp32_scales(amax: Tensor, _: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """TransformerEngine: the largest number of a tile becomes that of the format."""
    factor = quotient(largest, amax)
    return factor, quotient(1.0, factor)


def floored_scales(amax: Tensor, _: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """TransformerEngine's blocks, InfiR2, TorchAO: that factor, down to a power of two."""
    factor = cleared(quotient(largest, amax))
    return factor, quotient(1.0, factor)


def mx_scales(amax: Tensor, _: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """TransformerEngine's MXFP8: amax / largest, up to a power of two, as E8M0 holds."""
    ratio = amax * (1.0 / largest)
    scale = cleared(ratio)
    scale = torch.where(ratio > scale, 2.0 * scale, scale)
    return quotient(1.0, scale), scale


def nvfp4_scales(amax: Tensor, tensor_amax: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """NVFP4: an E4M3 number a tile, and one FP32 number for the tensor, under which the largest of
    them is 448. Tiles whose E4M3 number is 0 become zeros."""
    tensor_factor = quotient(E4M3 * largest, tensor_amax)
    stored = to_e4m3(amax * (tensor_factor * (1.0 / largest)))
    scale = stored * quotient(1.0, tensor_factor)
    return torch.where(scale > 0.0, quotient(1.0, scale), 0.0), scale


Scales = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Quantizer:
    """A grid, tiles of (rows, columns) and a rule for their scales."""

    tile: tuple[int, int]
    scales: Scales = fp32_scales
    grid: Callable[[Tensor], Tensor] = to_e4m3
    largest: float = E4M3

    def __call__(self, x: Tensor) -> Tensor:
        """FP32 values that x (rows, K), FP32, has after the cast and back; K is what the product
        sums over."""
        rows, columns = x.shape
        height, width = self.tile[0] or rows, self.tile[1] or columns
        padded = torch.nn.functional.pad(x, (0, -columns % width, 0, -rows % height))
        tiles = padded.view(padded.shape[0] // height, height, padded.shape[1] // width, width)
        amax = tiles.abs().amax(dim=(1, 3), keepdim=True)
        amax = torch.where(amax > 0.0, amax, 1.0)  # zeros stay zeros under any scale
        before, after = self.scales(amax, x.abs().max(), self.largest)
        return (self.grid(tiles * before) * after).view(padded.shape)[:rows, :columns]


@dataclass(frozen=True)
class Rule:
    """How the two operands of a linear layer's forward product are quantized."""

    x: Quantizer
    w: Quantizer
    last_layer: bool = True  # False: the last decoder layer is not quantized
    head: bool = False  # True: lm_head is quantized too


TENSOR, ROW = (EVERY, EVERY), (1, EVERY)
RULES = {
    "infir2": Rule(Quantizer((1, 128), floored_scales), Quantizer((128, 128), floored_scales)),
    "infir2_fp32scale": Rule(Quantizer((1, 128)), Quantizer((128, 128))),
    "infir2_tensor": Rule(Quantizer(TENSOR, floored_scales), Quantizer(TENSOR, floored_scales)),
    "te_current": Rule(Quantizer(TENSOR), Quantizer(TENSOR)),
    "torchao_rowwise": Rule(Quantizer(ROW, floored_scales), Quantizer(ROW, floored_scales)),
    "mxfp8": Rule(Quantizer((1, 32), mx_scales), Quantizer((1, 32), mx_scales)),
    "nvfp4": Rule(
        Quantizer((1, 16), nvfp4_scales, to_e2m1, E2M1),
        Quantizer((16, 16), nvfp4_scales, to_e2m1, E2M1),
        last_layer=False,
    ),
    "ptq_int8": Rule(
        Quantizer(TENSOR, fp32_scales, to_int8, INT8),
        Quantizer(ROW, fp32_scales, to_int8, INT8),
        head=True,
    ),
}


# --- models ---------------------------------------------------------------------------------------


class FakeQuantizedLinear(torch.nn.Module):
    """y = q(x) W^T + b with FP32 operands, products and sums, rounded once to the type of x. `w` is
    quantized already."""

    def __init__(self, w: Tensor, bias: Tensor | None, quantize: Quantizer | None) -> None:
        super().__init__()
        self.w, self.bias, self.quantize = w, bias, quantize

    def forward(self, x: Tensor) -> Tensor:
        """Of x (..., K)."""
        values = x.flatten(0, -2).to(torch.float32)
        if self.quantize is not None:
            values = self.quantize(values)
        y = values @ self.w.T
        if self.bias is not None:
            y = y + self.bias
        return y.to(x.dtype).view(*x.shape[:-1], -1)


def linear_groups(decoder: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, tuple[str, ...]]]:
    """Modules with the names of those of their linear layers that are one matrix."""
    for module in decoder.modules():
        names = [n for n, child in module.named_children() if isinstance(child, torch.nn.Linear)]
        for group in FUSED:
            if set(group) <= set(names):
                yield module, group
                names = [name for name in names if name not in group]
        for name in names:
            yield module, (name,)


@contextmanager
def fake_quantized(model: torch.nn.Module, rule: Rule | None) -> Iterator[int]:
    """A causal language model of transformers whose linear layers follow `rule`, its `lm_head` only
    where the rule says so; without one those of its layers only have FP32 sums. Gives the number of
    matrices that are quantized; afterwards the model is what it was."""
    layers = model.model.layers
    before: list[tuple[torch.nn.Module, str, torch.nn.Module]] = []

    def replace(module: torch.nn.Module, names: tuple[str, ...], own: Rule | None) -> None:
        linears = [getattr(module, name) for name in names]
        w = torch.cat([linear.weight.detach() for linear in linears]).to(torch.float32)
        if own is not None:
            w = own.w(w)
        parts = w.split([linear.out_features for linear in linears])
        for name, linear, part in zip(names, linears, parts):
            before.append((module, name, linear))
            setattr(module, name, FakeQuantizedLinear(part, linear.bias, own.x if own else None))

    quantized = 0
    try:
        for index, layer in enumerate(layers):
            own = rule
            if rule is not None and index == len(layers) - 1 and not rule.last_layer:
                own = None
            for module, names in list(linear_groups(layer)):
                replace(module, names, own)
                quantized += own is not None
        if rule is not None and rule.head:
            replace(model, ("lm_head",), rule)
            quantized += 1
        yield quantized
    finally:
        for module, name, linear in before:
            setattr(module, name, linear)
