#!/usr/bin/env python3
"""Writes what transformers computes for small models: tests/golden/transformers/*.json.

    python tests/reference/make_golden_transformers.py DIR [CASE...]

Each file holds config.json, and of the model with the formula's weights in FP32: the loss, the
logits of the last token of each sequence, and for every gradient its norm and its product with a
formula's vector; then the losses and gradient norms of 20 steps of torch.optim.AdamW and the same
numbers of what they added to each weight. Logits of the other tokens stand as their products with
such a vector.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import transformers_models as models


def digits(value: float) -> float:
    return float(f"{value:.9g}")


def summary(name: str, values: np.ndarray) -> list[float]:
    """Norm of a tensor, and its product with the vector of the formula for `name`."""
    flat = values.astype(np.float64).ravel()
    probe = models.uniform("probe " + name, flat.size)
    return [digits(float(np.linalg.norm(flat))), digits(float(flat @ probe))]


def record(case: models.Case) -> dict[str, Any]:
    model = models.make_model(case)
    vocabulary = case.config["vocab_size"]
    logits, loss = models.loss_of(model, models.tokens(vocabulary, 0))
    loss.backward()
    rows = logits.detach().numpy().astype(np.float64)
    probe = models.uniform("probe logits", vocabulary)
    before = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    gradients = {name: summary(name, p.grad.numpy()) for name, p in model.named_parameters()}
    steps = models.train_steps(model, vocabulary)
    updates = {
        name: summary(name, p.detach().numpy() - before[name])
        for name, p in model.named_parameters()
    }
    config = json.loads(model.config.to_json_string())
    config["architectures"] = [type(model).__name__]
    return {
        "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "config": {key: value for key, value in config.items() if not key.startswith("_")},
        "loss": digits(loss.item()),
        "last_logits": [[digits(x) for x in row] for row in rows[:, -1]],
        "logit_products": [digits(x) for x in (rows @ probe).ravel()],
        "gradients": gradients,
        "step_losses": [digits(loss) for loss, _ in steps],
        "step_gradient_norms": [digits(norm) for _, norm in steps],
        "updates": updates,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    names = [case.name for case in models.CASES]
    parser.add_argument("cases", nargs="*", metavar="CASE", help="one of " + ", ".join(names))
    arguments = parser.parse_args()
    for name in set(arguments.cases) - set(names):
        parser.error(f"no case '{name}'; accepted: " + ", ".join(names))
    directory = arguments.directory
    torch.set_num_threads(1)
    for case in models.CASES:
        if arguments.cases and case.name not in arguments.cases:
            continue
        text = json.dumps(record(case), indent=1)
        (directory / f"{case.name}.json").write_text(text + "\n")
        print(case.name, len(text), "bytes")


if __name__ == "__main__":
    main()
