"""fp8lab.torch: tensors of wrong shapes, types and devices are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch_small import arguments  # noqa: E402

import fp8lab.torch  # noqa: E402
from fp8lab.torch import operators  # noqa: E402

Tensor = torch.Tensor


def sequence(w: Tensor | None = None, bias: Tensor | None = None) -> nn.Sequential:
    converted = fp8lab.torch.convert(nn.Sequential(nn.Linear(64, 32)))
    if w is not None:
        converted[0].weight = nn.Parameter(w)
    if bias is not None:
        converted[0].bias = nn.Parameter(bias)
    return converted


def set_weight() -> Tensor:
    converted = sequence()
    with torch.no_grad():
        converted[0].weight.set_(torch.randn(32, 16))
    return converted(torch.ones(4, 64))


def backward_of(dy: Tensor) -> Any:
    x, w, _, clock, layer, training = arguments()
    return operators.linear_backward(x, w, dy, clock, layer, training, [True, True, True])


def on_fakes(act: Callable[[], Any]) -> Callable[[], Any]:
    def fake() -> Any:
        with torch._subclasses.FakeTensorMode():
            return act()

    return fake


def fake_linear() -> Tensor:
    number = torch.tensor(1)
    return operators.linear(torch.ones(4, 16), torch.ones(8, 64), None, number, number, True)


def fake_backward() -> Any:
    x, w, dy, number = torch.ones(4, 64), torch.ones(8, 64), torch.ones(3, 8), torch.tensor(1)
    return operators.linear_backward(x, w, dy, number, number, True, [True, True, True])


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: sequence()(torch.ones(4, 16)), r"x of shape \(4, 16\) .* \(32, 64\)"),
        (lambda: sequence()(torch.ones(4, 128)), r"x of shape \(4, 128\) .* \(32, 64\)"),
        (lambda: sequence()(torch.tensor(1.0)), r"x of shape \(\) .* \(32, 64\)"),
        (lambda: sequence(torch.randn(16, 64))(torch.ones(4, 64)), r"bias of shape \(32,\)"),
        (
            lambda: sequence(torch.randn(16, 64), torch.randn(16))(torch.ones(4, 64)),
            r"0: a weight of shape \(16, 64\); accepted: \(32, 64\)",
        ),
        (
            lambda: sequence(torch.randn(32, 16))(torch.ones(4, 16)),
            r"0: a weight of shape \(32, 16\); accepted: \(32, 64\)",
        ),
        (set_weight, r"x of shape \(4, 64\) .* \(32, 16\)"),
        (lambda: sequence(bias=torch.randn(31))(torch.ones(4, 64)), r"bias of shape \(31,\)"),
        (lambda: sequence(bias=torch.randn(1, 32))(torch.ones(4, 64)), r"bias of shape \(1, 32\)"),
        (lambda: sequence()(torch.ones(4, 64, device="meta")), "x on meta with a weight on cpu"),
        (
            lambda: fp8lab.torch.fp8_matmul(torch.ones(4, 16), torch.ones(8, 64)),
            r"fp8_matmul: x of shape \(4, 16\) .* \(8, 64\)",
        ),
        (
            lambda: fp8lab.torch.fp8_matmul(torch.ones(4, 16), torch.ones(2, 16, 3)),
            r"fp8_matmul: x of shape \(4, 16\) .* \(2, 16, 3\)",
        ),
        (
            lambda: fp8lab.torch.fp8_matmul(torch.ones(4, 16), torch.ones(16)),
            r"fp8_matmul: x of shape \(4, 16\) .* \(16,\)",
        ),
        (lambda: backward_of(torch.ones(19, 63)), r"gradient of shape \(19, 63\)"),
        (lambda: backward_of(torch.ones(18, 64)), r"gradient of shape \(18, 64\)"),
        (lambda: backward_of(torch.ones(19, 64).bfloat16()), "torch.bfloat16; accepted"),
        (on_fakes(fake_linear), r"fp8lab::linear: x of shape \(4, 16\) .* \(8, 64\)"),
        (on_fakes(fake_backward), r"fp8lab::linear_backward: a gradient of shape \(3, 8\)"),
    ],
)
def test_wrong_shapes_are_refused(act: Callable[[], Any], message: str) -> None:
    with pytest.raises(fp8lab.torch.Error, match=message):
        act()
