"""fp8lab.torch under torch.compile with its default backend, which compiles C++."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

sys.path.append(str(Path(__file__).resolve().parents[1] / "reference"))

import torch_models  # noqa: E402
import torch_products  # noqa: E402
from torch_small import inputs  # noqa: E402

import fp8lab.torch  # noqa: E402

RECIPES = ("infir2", "te_delayed", "nvfp4_no_rht")


@pytest.fixture(autouse=True, scope="module")
def fixture_compiler() -> None:
    """Skips where inductor cannot compile C++."""
    torch.set_num_threads(1)
    torch._dynamo.reset()
    try:
        torch.compile(lambda x: x + 1)(torch.ones(3))
    except Exception as error:  # of many types, by compiler and version
        pytest.skip(f"inductor has no C++ compiler that works: {str(error).splitlines()[0]}")


def compiled(model: Any) -> Any:
    """One graph: a break is an error."""
    torch._dynamo.reset()
    return torch.compile(model, fullgraph=True)


def gradients(model: Any) -> dict[str, Any]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("recipe", RECIPES)
def test_bits_are_those_of_eager(recipe: str) -> None:
    """Of a model whose other operations round nothing."""

    def made() -> Any:
        torch.manual_seed(2)
        layers = (torch.nn.Linear(160, 64), torch.nn.ReLU(), torch.nn.Linear(64, 48))
        return fp8lab.torch.convert(torch.nn.Sequential(*layers), recipe)

    eager, other = made(), made()
    graph = compiled(other)
    for step in range(3):
        x = inputs(step)
        outputs = []
        for model, call in ((eager, eager), (other, graph)):
            model.zero_grad()
            y = call(x)
            y.backward(y.detach())
            outputs.append({"y": y.detach(), **gradients(model)})
            fp8lab.torch.end_step(model)
        assert all(torch.equal(outputs[0][name], outputs[1][name]) for name in outputs[0])


@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_architectures_have_the_products_of_gemm(name: str) -> None:
    """Norms, softmax and loss are inductor's own: they sum in another order than eager ones."""
    make, make_batch = torch_models.MODELS[name]
    losses, found = [], []
    for call in (lambda model: model, compiled):
        torch.manual_seed(1)
        model, batch = make().train(), make_batch()
        fp8lab.torch.convert(model, "infir2")
        graph = call(model)
        with torch_products.compared_products() as count:
            loss = graph(**batch).loss
            loss.backward()
        assert (count.products, count.different) == (42, 0), count.worst
        losses.append(loss.item())
        found.append(gradients(model))
    eager, other = found
    equal = [key for key in eager if torch.equal(eager[key], other[key])]
    worst = max(float((eager[k] - other[k]).norm() / eager[k].norm()) for k in eager)
    print(
        f"{name}: losses {losses}, {len(equal)} of {len(eager)} gradients equal, worst {worst:.1e}"
    )
    assert abs(losses[1] / losses[0] - 1) < 1e-3 and worst < 0.05
