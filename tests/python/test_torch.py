"""fp8lab.torch: the bits of fp8lab.gemm, and what PyTorch does with modules and operators.

Run by ctest with PYTHONPATH at the build tree's package; the models of transformers are in
tests/reference/compare_torch.py.
"""

from __future__ import annotations

import copy
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch_products  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import fp8lab.torch  # noqa: E402
from fp8lab.torch import operators  # noqa: E402

Tensor = torch.Tensor


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


# --- products -------------------------------------------------------------------------------------


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


# --- what PyTorch does with it --------------------------------------------------------------------


def arguments(recipe: str = "infir2", dtype: Any = torch.float32) -> tuple[Any, ...]:
    layer = fp8lab.torch.convert(nn.Sequential(nn.Linear(160, 64)), recipe)[0]
    x = inputs(rows=(19,)).to(dtype).requires_grad_()
    w, bias = (p.detach().to(dtype).requires_grad_() for p in (layer.weight, layer.bias))
    arguments.kept = layer  # type: ignore[attr-defined]
    return x, w, bias, layer.fp8lab_clock, layer.fp8lab.number, True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operators_pass_opcheck(dtype: Any) -> None:
    forward = arguments(dtype=dtype)
    torch.library.opcheck(operators.linear, forward)
    x, w, _, clock, layer, training = (
        value.detach() if isinstance(value, Tensor) else value for value in forward
    )
    dy = torch.randn(19, 64).to(dtype)
    for wanted in ([True, True, True], [True, False, False], [False, True, True]):
        torch.library.opcheck(operators.linear_backward, (x, w, dy, clock, layer, training, wanted))


@pytest.mark.parametrize("recipe", ["infir2", "te_delayed", "nvfp4_no_rht"])
def test_a_compiled_model_has_no_graph_break_and_the_same_bits(recipe: str) -> None:
    eager, compiled = (fp8lab.torch.convert(model(), recipe) for _ in range(2))
    torch._dynamo.reset()
    graph = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    for step in range(3):
        expected = run(eager, inputs(step))
        x = inputs(step).requires_grad_()
        compiled.zero_grad()
        y = graph(x)
        y.square().mean().backward()
        found = {"y": y.detach(), "dx": x.grad}
        found.update((name, p.grad) for name, p in compiled.named_parameters())
        assert same(found, expected)
        for each in (eager, compiled):
            fp8lab.torch.end_step(each)


def test_blocks_share_one_graph() -> None:
    converted = fp8lab.torch.convert(model())
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    for layer in converted.layers:
        layer.compile(backend=counter, fullgraph=True)
    run(converted, inputs())
    assert counter.frame_count == 1


@pytest.mark.parametrize("recipe", ["infir2", "te_delayed", "nvfp4_no_rht"])
def test_checkpointing_changes_no_bit(recipe: str) -> None:
    plain = fp8lab.torch.convert(model(), recipe)
    again = fp8lab.torch.convert(model(checkpoints=True), recipe)
    for step in range(2):
        for _ in range(2):  # micro-batches
            assert same(run(again, inputs(step)), run(plain, inputs(step)))
        fp8lab.torch.end_step(plain)
        fp8lab.torch.end_step(again)


def test_autocast_takes_the_weights_as_masters() -> None:
    converted = fp8lab.torch.convert(model())
    with torch.autocast("cpu", torch.bfloat16):
        found = run(converted, inputs())
    assert found["y"].dtype == torch.bfloat16
    assert found["layers.0.down_proj.weight"].dtype == torch.float32
    # A weight that is rounded beforehand gives the same products, but for the rounding of dw.
    rounded = copy.deepcopy(converted).bfloat16()
    x = inputs().bfloat16()
    assert torch.equal(rounded.layers[0].up_proj(x), found_up(converted, x))


def found_up(converted: Model, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return converted.layers[0].up_proj(x)


def _train(rank: int, folder: str, recipe: str) -> None:
    """One process of two, each with half of the batch."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.set_num_threads(1)
    converted = fp8lab.torch.convert(model(), recipe)
    wrapped = nn.parallel.DistributedDataParallel(converted)
    for step in range(2):
        wrapped.zero_grad()
        x = inputs(step, (2, 19))[rank] * (1 + 3 * rank)
        wrapped(x).square().mean().backward()
        fp8lab.torch.end_step(converted)
    saved = {"state": fp8lab.torch.state(converted), "x": x}
    saved["gradients"] = {name: p.grad for name, p in converted.named_parameters()}
    torch.save(saved, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_processes_share_gradients_and_amaxes(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_train, (str(tmp_path), "te_delayed"), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for name, gradient in first["gradients"].items():
        assert torch.equal(gradient, second["gradients"][name])
    layers, others = first["state"]["layers"], second["state"]["layers"]
    assert layers.keys() == others.keys() and layers
    for name, own in layers.items():
        for key, (values, steps) in own.items():
            assert steps == 2 and torch.equal(values, others[name][key][0])
    # The second process has the larger inputs.
    history = layers["layers.0.up_proj"]["x"][0]
    assert history[3] == second["x"].abs().max() > first["x"].abs().max()


# --- modules --------------------------------------------------------------------------------------


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
            "'layers.7' matches no linear layer",
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


# --- from step to step ----------------------------------------------------------------------------


def steps(converted: Model, first: int, last: int) -> dict[str, Tensor]:
    found = {}
    for step in range(first, last):
        found = run(converted, inputs(step))
        fp8lab.torch.end_step(converted)
    return found


@pytest.mark.parametrize("recipe", ["infir2", "te_delayed", "nvfp4_no_rht"])
def test_a_state_continues_with_the_same_bits(recipe: str) -> None:
    whole = fp8lab.torch.convert(model(), recipe)
    steps(whole, 0, 2)
    file = io.BytesIO()
    torch.save(fp8lab.torch.state(whole), file)
    copied = copy.deepcopy(whole)
    file.seek(0)
    resumed = fp8lab.torch.convert(model(), recipe)
    fp8lab.torch.load_state(resumed, torch.load(file, weights_only=True))
    expected = steps(whole, 2, 4)
    assert same(steps(resumed, 2, 4), expected)
    assert same(steps(copied, 2, 4), expected)
    if recipe != "infir2":
        assert not same(steps(fp8lab.torch.convert(model(), recipe), 2, 4), expected)


def test_an_evaluation_leaves_the_histories() -> None:
    converted = fp8lab.torch.convert(model(), "te_delayed")
    run(converted, inputs())
    before = fp8lab.torch.state(converted)["layers"]
    converted.eval()
    with torch.no_grad():
        converted(1000 * inputs())
    after = fp8lab.torch.state(converted)["layers"]
    assert before.keys() == after.keys() and before
    for name, own in before.items():
        for key, (values, _) in own.items():
            assert torch.equal(values, after[name][key][0])


def test_random_words_differ_by_step_micro_batch_and_seed() -> None:
    def outputs(seed: int) -> list[Tensor]:
        converted = fp8lab.torch.convert(model(), "nvfp4_no_rht", seed=seed)
        found = []
        for _ in range(2):
            found += [run(converted, inputs())["layers.0.up_proj.weight"] for _ in range(2)]
            fp8lab.torch.end_step(converted)
        return found

    first, again, other = outputs(1), outputs(1), outputs(2)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    distinct = [*first, *other]
    for i, a in enumerate(distinct):
        assert not any(torch.equal(a, b) for b in distinct[:i])


def test_an_optimizer_can_end_the_steps() -> None:
    converted = fp8lab.torch.convert(model(), "te_delayed")
    optimizer = torch.optim.SGD(converted.parameters(), 0.1)
    hook = fp8lab.torch.end_steps_of(optimizer, converted)
    run(converted, inputs())
    optimizer.step()
    assert fp8lab.torch.state(converted)["clock"].tolist() == [1, 1, 0, 0]
    hook.remove()
    optimizer.step()
    assert fp8lab.torch.state(converted)["clock"].tolist() == [1, 1, 0, 0]


def test_a_state_of_another_model_is_refused() -> None:
    saved = fp8lab.torch.convert(model(), "te_delayed")
    run(saved, inputs())
    state = fp8lab.torch.state(saved)
    other = fp8lab.torch.convert(model(), "infir2")
    run(other, inputs())
    with pytest.raises(fp8lab.torch.Error, match="accepted by recipe infir2: none"):
        fp8lab.torch.load_state(other, state)
    state["layers"]["layers.9.up_proj"] = state["layers"].pop("layers.0.up_proj")
    with pytest.raises(fp8lab.torch.Error, match="layers.9.up_proj, which is not a converted"):
        fp8lab.torch.load_state(other, state)


# --- run files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["infir2", "te_delayed"])
def test_a_run_file_has_what_each_operand_is(recipe: str, tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="h5py is not installed")
    converted = fp8lab.torch.convert(model(), recipe, seed=7)
    path = tmp_path / "mine" / "run.h5"
    with fp8lab.torch.RunFile(converted, path, every=2, config='note = "here"') as file:
        for step in range(3):
            loss = run(converted, inputs(step))["y"].square().mean()
            file.step(loss, tokens=38, learning_rate=0.1)
            fp8lab.torch.end_step(converted)
    written = fp8lab.read_run(path)
    assert written.metrics["step"].tolist() == [1, 2, 3]
    assert written.metrics["tokens"].tolist() == [38, 76, 114]
    tensors = written.tensors
    assert tensors["step"].tolist() == [1, 2]
    assert len(tensors["layer"]) == 4 * 6 and "layers.0.up_proj" in list(tensors["layer"])
    sqnr = fp8lab.read_statistic(path, "sqnr_db")
    assert sqnr.shape == (2, 24)
    columns = list(zip(tensors["layer"], tensors["slot"]))
    x = columns.index(("layers.0.up_proj", "fprop.x"))
    for row, step in enumerate((0, 1)):
        if recipe == "infir2":
            same_operand = fp8lab.quantize(inputs(step).flatten(0, 1).numpy(), "infir2:fprop.x")
            assert sqnr[row, x] == same_operand.statistics["sqnr_db"]
        amax = fp8lab.read_statistic(path, "amax")[row, x]
        assert amax == float(inputs(step).abs().max())
    assert (sqnr > 15).all() or recipe == "te_delayed"


def test_a_run_file_is_not_overwritten(tmp_path: Path) -> None:
    converted = fp8lab.torch.convert(model())
    (tmp_path / "run.h5").write_bytes(b"mine")
    file = fp8lab.torch.RunFile(converted, tmp_path / "run.h5")
    with pytest.raises(fp8lab.torch.Error, match="no converted layer has run"):
        file.step(1.0)
    run(converted, inputs())
    with pytest.raises(fp8lab.torch.Error, match="run.h5: exists"):
        file.step(1.0)
    assert (tmp_path / "run.h5").read_bytes() == b"mine"
