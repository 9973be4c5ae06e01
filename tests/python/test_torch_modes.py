"""fp8lab.torch under torch.compile, activation checkpointing, autocast and DDP."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_small import Model, arguments, inputs, model, run, same  # noqa: E402

import fp8lab.torch  # noqa: E402
from fp8lab.torch import operators  # noqa: E402

Tensor = torch.Tensor


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


def test_two_passes_may_be_recomputed_without_random_words() -> None:
    gradients = []
    for checkpoints in (False, True):
        each = fp8lab.torch.convert(model(checkpoints=checkpoints))
        losses = [each(inputs(index).requires_grad_()).square().mean() for index in range(2)]
        sum(losses).backward()
        gradients.append({name: p.grad for name, p in each.named_parameters()})
    assert same(*gradients)


def test_a_whole_model_may_be_checkpointed() -> None:
    plain, again = (fp8lab.torch.convert(model(), "nvfp4_no_rht") for _ in range(2))
    for step in range(2):
        expected = run(plain, inputs(step))
        again.zero_grad()
        checkpoint(again, inputs(step), use_reentrant=False).square().mean().backward()
        for name, p in again.named_parameters():
            assert torch.equal(p.grad, expected[name])


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
