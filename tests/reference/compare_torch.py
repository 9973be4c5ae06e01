#!/usr/bin/env python3
"""Converts models of transformers by fp8lab.torch and compares every product with fp8lab.gemm.

    PYTHONPATH=build/cpu-release/python python tests/reference/compare_torch.py [--model NAME]...

Needs torch and transformers. Each model of torch_models.py has random weights and takes three steps
of AdamW. The products of every linear layer, forward and backward, are computed again by
fp8lab.gemm from operands of fp8lab.quantize, and must have the same bits; losses must be finite,
and every linear layer must run. For some models the same steps under torch.compile, with activation
checkpointing and in two processes (DDP) must give the bits of the plain ones. Exit status 3
otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch_models
import transformers

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
import torch_products  # noqa: E402

import fp8lab.torch  # noqa: E402

STEPS = 3
MODES = {
    "compile": ("Llama", "Qwen2", "Gemma 2", "BERT"),
    "checkpoint": ("Llama", "GPT-NeoX", "ViT", "Qwen3"),
    "ddp": ("Llama", "Qwen3", "OLMo 2"),
}


def prepared(name: str, recipe: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """A converted model without dropout, and a batch."""
    make, make_batch = torch_models.MODELS[name]
    torch.manual_seed(1)
    model = make()
    batch = make_batch()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train()
    return fp8lab.torch.convert(model, recipe), batch


def train(model: Any, batch: dict[str, torch.Tensor], call: Any = None) -> dict[str, Any]:
    """Losses and final weights of a few steps of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for _ in range(STEPS):
        loss = (model if call is None else call)(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():  # AdamW rounds otherwise where strides are others
            if parameter.grad is not None:
                parameter.grad = parameter.grad.contiguous()
        optimizer.step()
        fp8lab.torch.end_step(model)
        losses.append(float(loss.detach()))
    return {"losses": losses, "weights": [p.detach().clone() for p in model.parameters()]}


def equal(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    pairs = zip(found["weights"], expected["weights"], strict=True)
    return found["losses"] == expected["losses"] and all(torch.equal(a, b) for a, b in pairs)


def compiled(name: str, recipe: str) -> dict[str, Any]:
    model, batch = prepared(name, recipe)
    torch._dynamo.reset()
    return train(model, batch, torch.compile(model, backend="aot_eager", fullgraph=True))


def checkpointed(name: str, recipe: str) -> dict[str, Any]:
    model, batch = prepared(name, recipe)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return train(model, batch)


def _process(rank: int, name: str, recipe: str, folder: str) -> None:
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.set_num_threads(1)
    model, batch = prepared(name, recipe)
    found = train(model, batch, torch.nn.parallel.DistributedDataParallel(model))
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def distributed(name: str, recipe: str) -> dict[str, Any]:
    """Two processes with the same batch, whose mean gradient is that of one."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_process, (name, recipe, folder), nprocs=2)
        first, second = (torch.load(f"{folder}/{rank}.pt") for rank in range(2))
    assert equal(first, second)
    return first


RUNS = {"compile": compiled, "checkpoint": checkpointed, "ddp": distributed}


def compare(name: str, recipe: str) -> dict[str, Any]:
    """The steps of one model, and those of its modes."""
    torch.set_num_threads(1)  # sums of other operators of torch depend on the number
    began = time.perf_counter()
    model, batch = prepared(name, recipe)
    layers = fp8lab.torch.converted(model)
    with torch_products.compared_products() as count:
        steps = train(model, batch)
    found: dict[str, Any] = {
        "model": name,
        "layers": len(layers),
        "silent": sorted(set(layers) - count.layers),
        "products": count.products,
        "elements": count.elements,
        "different": count.different,
        "worst": count.worst,
        "losses": steps["losses"],
    }
    for mode, names in MODES.items():
        if name in names:
            try:
                found[mode] = equal(RUNS[mode](name, recipe), steps)
            except Exception as error:  # of torch: shown beside the others
                found[mode] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    found["seconds"] = round(time.perf_counter() - began, 1)
    return found


def passed(found: dict[str, Any]) -> bool:
    modes = [found[mode] for mode in MODES if mode in found]
    finite = all(math.isfinite(loss) for loss in found["losses"])
    return (
        found["different"] == 0
        and finite
        and found["products"] > 0
        and not found["silent"]
        and all(mode is True for mode in modes)
    )


def main() -> int:
    """Prints a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=list(torch_models.MODELS))
    parser.add_argument("--recipe", default="infir2")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", module="torch|transformers")
    transformers.logging.set_verbosity_error()
    results = []
    for name in options.model or list(torch_models.MODELS):
        found = compare(name, options.recipe)
        results.append(found)
        modes = ", ".join(f"{mode}: {found[mode]}" for mode in MODES if mode in found)
        losses = " ".join(f"{loss:.4f}" for loss in found["losses"])
        print(
            f"{'ok ' if passed(found) else 'BAD'} {name:12} {found['layers']:3} layers "
            f"{found['products']:4} products {found['elements']:8} elements "
            f"{found['different']} differ; loss {losses}; {modes or '-'}; {found['seconds']} s"
            + (f"; silent: {found['silent']}" if found["silent"] else "")
            + (f"; {found['worst']}" if found["worst"] else ""),
            flush=True,
        )
    if options.json:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        whole = {**versions, "recipe": options.recipe, "results": results}
        options.json.write_text(json.dumps(whole, indent=2) + "\n")
    return 0 if all(passed(found) for found in results) else 3


if __name__ == "__main__":
    sys.exit(main())
