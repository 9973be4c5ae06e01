"""fp8lab.torch: which modules are converted, and that they stay modules."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch_products  # noqa: E402
from torch import nn  # noqa: E402
from torch_small import inputs, model, run, same  # noqa: E402

import fp8lab.torch  # noqa: E402

Tensor = torch.Tensor


def test_parameters_and_state_dict_stay() -> None:
    plain = model()
    before = dict(plain.named_parameters())
    keys = list(plain.state_dict())
    converted = fp8lab.torch.convert(plain, "te_delayed")
    assert converted is plain and list(plain.state_dict()) == keys
    assert all(p is before[name] for name, p in plain.named_parameters())
    assert isinstance(plain.layers[0].up_proj, nn.Linear)
    assert "recipe=te_delayed" in repr(plain.layers[0].up_proj)
    model().load_state_dict(plain.state_dict())


def test_the_head_keeps_its_type_unless_it_is_named() -> None:
    names = ["layers.0.up_proj", "layers.0.down_proj", "layers.1.up_proj", "layers.1.down_proj"]
    assert list(fp8lab.torch.converted(fp8lab.torch.convert(model()))) == names
    named = fp8lab.torch.convert(model(), overrides={"lm_head": "te_current"})
    layers = fp8lab.torch.converted(named)
    assert list(layers) == [*names, "lm_head"] and layers["lm_head"].recipe.name == "te_current"
    assert str(layers).splitlines()[-1] == "lm_head: te_current, has not run"
    named(inputs())
    assert str(layers).splitlines()[-1] == "lm_head: te_current"


def test_overrides_come_first_and_in_order() -> None:
    converted = fp8lab.torch.convert(
        model(),
        overrides={
            "layers.last.mlp.down": None,
            "layers.*.down_proj": "te_current",
            "layers.last": "mxfp8",
        },
    )
    found = {name: layer.recipe.name for name, layer in fp8lab.torch.converted(converted).items()}
    assert found == {
        "layers.0.up_proj": "infir2",
        "layers.0.down_proj": "te_current",
        "layers.1.up_proj": "mxfp8",
    }


def test_a_recipe_has_exceptions_of_its_own() -> None:
    layers = fp8lab.torch.converted(fp8lab.torch.convert(model(), "intel_delayed_down_bf16"))
    numerics = {name: layer.numerics for name, layer in layers.items()}
    assert numerics["layers.0.up_proj"] == 0 and numerics["layers.0.down_proj"] == 1


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: fp8lab.torch.convert(model(), "infir"), "infir2"),
        (lambda: fp8lab.torch.convert(nn.ReLU()), "ReLU has no nn.Linear"),
        (
            lambda: fp8lab.torch.convert(model(), overrides={"layers.7": None}),
            "'layers.7' matches no linear layer; the first are layers.0",
        ),
        (
            lambda: fp8lab.torch.convert(model(), overrides={"up_proj": None}),
            "'up_proj' matches no linear layer (did you mean 'layers.*.up_proj'?)",
        ),
        (
            lambda: fp8lab.torch.convert(model(), overrides=["layers.0"]),
            "overrides: a list; accepted: a dictionary",
        ),
        (
            lambda: fp8lab.torch.convert(fp8lab.torch.convert(model())),
            "layers.0.up_proj is converted already",
        ),
        (
            lambda: fp8lab.torch.convert(model())(inputs().half()),
            "layers.0.up_proj: activations of torch.float16; accepted: float32, bfloat16",
        ),
        (
            lambda: fp8lab.torch.convert(model()).bfloat16()(inputs()),
            "layers.0.up_proj: float32 activations with a bfloat16 weight",
        ),
        (
            lambda: fp8lab.torch.fp8_matmul(inputs(), torch.randn(8, 160), "te_delayed"),
            "recipe te_delayed carries a state from step to step",
        ),
        (lambda: fp8lab.torch.end_step(model()), "Model is not converted"),
        (
            lambda: fp8lab.torch.convert(model(), "nvfp4_all_layers")(inputs()),
            "layers.0.up_proj: 'slots.wgrad",
        ),
    ],
)
def test_refusals_say_what_is_accepted(act: Callable[[], Any], message: str) -> None:
    with pytest.raises(fp8lab.torch.Error) as refusal:
        act()
    assert message in str(refusal.value)


class OwnLinear(nn.Linear):
    """A subclass with the forward of nn.Linear."""


@pytest.mark.parametrize("kind", [nn.Linear, OwnLinear])
def test_a_converted_model_is_pickled(kind: Any) -> None:
    whole = fp8lab.torch.convert(nn.Sequential(kind(160, 64)), "te_delayed")
    run(whole, inputs())
    file = io.BytesIO()
    torch.save(whole, file)
    file.seek(0)
    for each in (torch.load(file, weights_only=False), copy.deepcopy(whole)):
        assert each[0].__class__ is whole[0].__class__ and isinstance(each[0], kind)
        assert same(run(each, inputs(1)), run(copy.deepcopy(whole), inputs(1)))


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.LazyLinear(5), "0: its weight has no shape yet"),
        (lambda: nn.Linear(0, 5), r"0: a weight of shape \(5, 0\)"),
        (lambda: nn.Linear(5, 0), r"0: a weight of shape \(0, 5\)"),
    ],
)
def test_layers_without_elements_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(fp8lab.torch.Error, match=message):
        fp8lab.torch.convert(nn.Sequential(make()))


def test_a_layer_that_is_not_called_is_named() -> None:
    attention = nn.ModuleDict({"a": nn.MultiheadAttention(32, 2), "b": nn.Linear(32, 32)})
    with pytest.warns(UserWarning, match="a.out_proj .* is left as it is"):
        fp8lab.torch.convert(attention)
    assert list(fp8lab.torch.converted(attention)) == ["b"]


class Experts(nn.Module):
    """Two experts in the form of transformers, whose forward is wrapped by a dispatcher."""

    def __init__(self, is_transposed: bool) -> None:
        super().__init__()
        self.is_transposed = is_transposed
        shapes = ((160, 64), (32, 160)) if is_transposed else ((64, 160), (160, 32))
        self.gate_up_proj = nn.Parameter(torch.randn(2, *shapes[0]) / 12)
        self.down_proj = nn.Parameter(torch.randn(2, *shapes[1]) / 6)

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("the experts' own forward runs")

    def _own_forward(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for expert in torch.arange(2)[:, None]:
            rows = torch.arange(int(expert), len(x), 2)
            gate_up, down = self.gate_up_proj[expert[0]], self.down_proj[expert[0]]
            if self.is_transposed:
                gate, up = (x[rows] @ gate_up).chunk(2, -1)
                out.index_add_(0, rows, (gate * up) @ down)
            else:
                gate, up = nn.functional.linear(x[rows], gate_up).chunk(2, -1)
                out.index_add_(0, rows, nn.functional.linear(gate * up, down))
        return out

    forward.__wrapped__ = _own_forward  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_transposed", [False, True])
def test_experts_are_layers_by_expert(is_transposed: bool) -> None:
    torch.manual_seed(0)
    experts = nn.ModuleDict({"experts": Experts(is_transposed)})
    overrides = {"experts.1.down_proj": None}
    fp8lab.torch.convert(experts, overrides=overrides)
    names = ["experts.0.gate_up_proj", "experts.1.gate_up_proj", "experts.0.down_proj"]
    assert list(fp8lab.torch.converted(experts)) == names
    with torch_products.compared_products() as count:
        experts["experts"](inputs(rows=(9,)).requires_grad_()).square().sum().backward()
    assert (count.products, count.different) == (9, 0), count.worst
    assert count.layers == set(names)
    for name in ("gate_up_proj", "down_proj"):
        assert getattr(experts["experts"], name).grad.flatten(1).norm(dim=1).all()
