"""fp8lab.torch: the bits of every product are those of fp8lab.gemm.

The models of transformers are in tests/reference/compare_torch.py.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch_products  # noqa: E402
from torch import nn  # noqa: E402
from torch_small import inputs, model, run, same  # noqa: E402

import fp8lab.torch  # noqa: E402


@pytest.mark.parametrize("recipe", ["infir2", "te_current", "mxfp8", "torchao_rowwise", "bf16"])
def test_every_product_is_that_of_gemm(recipe: str) -> None:
    converted = fp8lab.torch.convert(model(), recipe, overrides={"lm_head": recipe})
    with torch_products.compared_products() as count:
        run(converted, inputs())
        with torch.autocast("cpu", torch.bfloat16):
            run(converted, inputs(6))
        run(converted.bfloat16(), inputs(7).bfloat16())
    assert (count.products, count.different) == (3 * 3 * 5, 0), count.worst


def test_matmul_is_that_of_gemm() -> None:
    x, w = inputs().requires_grad_(), torch.randn(48, 160, requires_grad=True)
    with torch_products.compared_products() as count:
        fp8lab.torch.fp8_matmul(x, w, "infir2").sum().backward()
    assert (count.products, count.different) == (3, 0), count.worst
    assert x.grad.shape == x.shape and w.grad.shape == w.shape


def test_a_planted_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = torch_products.product
    monkeypatch.setattr(torch_products, "product", lambda recipe, *rest: wrong("te_current", *rest))
    with torch_products.compared_products() as count:
        run(fp8lab.torch.convert(model()), inputs())
    assert count.different > 0 and "layers.0.up_proj fprop" in count.worst


def test_the_bias_has_its_gradient() -> None:
    converted = fp8lab.torch.convert(nn.Sequential(nn.Linear(160, 64)))
    x = inputs(rows=(300,))
    y = converted(x)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    y.backward(dy)
    exact = dy.double().sum(0)
    assert torch.allclose(converted[0].bias.grad.double(), exact, atol=1e-4)


def test_rows_come_in_any_number() -> None:
    converted = fp8lab.torch.convert(nn.Sequential(nn.Linear(160, 64)))
    outputs = {rows: run(converted, inputs(rows=(rows,))) for rows in (7, 300, 1, 7)}
    for rows, found in outputs.items():
        fresh = fp8lab.torch.convert(nn.Sequential(nn.Linear(160, 64)))
        fresh.load_state_dict(converted.state_dict())
        assert same(found, run(fresh, inputs(rows=(rows,))))
    nothing = run(converted, inputs(rows=(0,)))
    assert nothing["y"].shape == (0, 64) and not nothing["0.weight"].any()


def test_an_operand_may_lie_anywhere() -> None:
    converted = fp8lab.torch.convert(nn.Sequential(nn.Linear(160, 64)))
    whole = inputs(rows=(9, 9)).bfloat16()
    converted.bfloat16()
    for part in (whole[:, 1:], whole.transpose(0, 1), whole.flatten(0, 1)[3:]):
        assert torch.equal(converted(part), converted(part.clone().contiguous()))


def test_a_frozen_weight_has_no_gradient_and_no_other_changes() -> None:
    converted = fp8lab.torch.convert(model())
    before = run(converted, inputs())
    converted.layers[0].up_proj.weight.requires_grad_(False)
    converted.zero_grad()
    x = inputs().requires_grad_()
    converted(x).square().mean().backward()
    assert torch.equal(x.grad, before["dx"])
    assert torch.equal(converted.layers[0].up_proj.bias.grad, before["layers.0.up_proj.bias"])
