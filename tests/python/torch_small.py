"""A small model of PyTorch, its inputs and its gradients, for the tests of fp8lab.torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fp8lab.torch


class Block(nn.Module):
    def __init__(self, width: int = 160, inner: int = 224) -> None:
        super().__init__()
        self.up_proj = nn.Linear(width, inner)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down_proj(nn.functional.gelu(self.up_proj(x)))


class Model(nn.Module):
    """Two blocks and a head."""

    def __init__(self, checkpoints: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.lm_head = nn.Linear(160, 48, bias=False)
        self.checkpoints = checkpoints

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        return self.lm_head(x)


def model(seed: int = 0, **options: Any) -> Model:
    torch.manual_seed(seed)
    return Model(**options)


def inputs(seed: int = 5, rows: tuple[int, ...] = (2, 19)) -> Tensor:
    return torch.randn(*rows, 160, generator=torch.Generator().manual_seed(seed))


def run(module: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Output and gradients of a pass."""
    x = x.clone().requires_grad_()
    module.zero_grad()
    y = module(x)
    y.float().square().mean().backward()
    gradients = {name: p.grad.clone() for name, p in module.named_parameters()}
    return {"y": y.detach(), "dx": x.grad, **gradients}


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    assert found.keys() == expected.keys()
    return all(torch.equal(found[name], expected[name]) for name in found)


def arguments(recipe: str = "infir2", dtype: Any = torch.float32) -> tuple[Any, ...]:
    """Those of the operator fp8lab::linear."""
    layer = fp8lab.torch.convert(nn.Sequential(nn.Linear(160, 64)), recipe)[0]
    x = inputs(rows=(19,)).to(dtype).requires_grad_()
    w, bias = (p.detach().to(dtype).requires_grad_() for p in (layer.weight, layer.bias))
    arguments.kept = layer  # type: ignore[attr-defined]
    return x, w, bias, layer.fp8lab_clock, layer.fp8lab.number, True
