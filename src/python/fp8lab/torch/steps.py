"""What a converted model carries from step to step: counters, amax histories, smoothing factors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fp8lab.errors import Error
from fp8lab.torch.conversion import Layers, converted
from fp8lab.torch.layer import FORWARDS, STEP, LayerState


def clock_of(model: nn.Module) -> Tensor:
    """Returns the counters of a converted model (fp8lab.torch.layer)."""
    for module in model.modules():
        if "fp8lab_clock" in module.__dict__:
            clock: Tensor = module.fp8lab_clock
            return clock
    raise Error(f"{type(model).__name__} is not converted; accepted: a model of convert")


def _share_amaxes(layers: Layers) -> None:
    """Gives every process the largest amaxes of all. Compared as bits: NaN wins."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    stateful = [layer for layer in layers.values() if layer.is_stateful]
    together = torch.stack([layer.amaxes() for layer in stateful]).view(torch.int32)
    is_nccl = torch.distributed.get_backend() == "nccl"
    shared = together.cuda() if is_nccl else together
    torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
    for layer, amaxes in zip(stateful, shared.cpu().view(torch.float32)):
        layer.set_amaxes(amaxes)


def end_step(model: nn.Module) -> None:
    """Ends a training step: call it after optimizer.step().

    The amaxes of the step enter the histories of delayed scales; of all processes that train
    together (torch.distributed), the largest counts. The next step draws other random words. For a
    recipe with neither, such as infir2, it only counts.
    """
    clock = clock_of(model)
    layers = converted(model)
    if any(layer.is_stateful for layer in layers.values()):
        _share_amaxes(layers)
        for layer in layers.values():
            layer.end_step()
    clock[STEP] += 1
    clock[FORWARDS] = 0


def end_steps_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
    """Calls end_step(model) after each optimizer.step(). Returns the hook, which has remove()."""
    return optimizer.register_step_post_hook(lambda *_: end_step(model))


def state(model: nn.Module) -> dict[str, Any]:
    """Returns what a model needs, besides its state_dict, to go on with the same bits.

    A dictionary of tensors and numbers for torch.save: the counters, and by layer the amax
    histories and static smoothing factors, none for recipes without.
    """
    layers: dict[str, dict[str, tuple[Tensor, int]]] = {}
    for name, layer in converted(model).items():
        own = layer.state()
        if own:
            layers[name] = {key: (values, steps) for key, (values, steps) in own.items()}
    return {"clock": clock_of(model).clone(), "layers": layers}


def load_state(model: nn.Module, saved: dict[str, Any]) -> None:
    """Continues from a state(). Raises Error for layers and states that the model does not have."""
    layers = converted(model)
    unknown = [name for name in saved["layers"] if name not in layers]
    if unknown:
        raise Error(f"state of {unknown[0]}, which is not a converted layer of the model")
    clock_of(model).copy_(saved["clock"])
    for name, layer in layers.items():
        own = saved["layers"].get(name, {})
        layer.load_state({key: LayerState(values, steps) for key, (values, steps) in own.items()})
