#!/usr/bin/env python3
"""Compares fp8lab with transformers and torch.optim.AdamW on models that transformers saved.

    python tests/reference/compare_transformers.py [--backend cuda] [--case NAME]... [--json FILE]

Needs torch, transformers and the package fp8lab. Each model of transformers_models.py, made wider,
is saved by transformers with random weights and loaded by fp8lab. It must give

  logits      in FP32 within 1e-5 of transformers, relative to the norm of each token's,
  bf16        logits of recipe bf16 with at most twice the error that transformers has in BF16, both
              against FP32,
  loss        within 1e-6, and every parameter's gradient within 2e-5 of its norm,
  steps       after 20 steps of AdamW with clipping what changed of every weight within 1e-3, or
              within three times what transformers in FP32 differs from double precision,
  saved       saved by fp8lab and loaded by transformers: the same logits, bit for bit,
  greedy      the same tokens from generate(do_sample=False) of transformers and from fp8lab, which
              decodes all prompts together with its cache: none differs,
  choices     log-probabilities of given tokens in FP32 within 1e-5 nats.

Exit status 3 when a figure is beyond its bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import fp8lab
import numpy as np
import torch
import transformers
import transformers_models as models

WIDER = {
    "hidden_size": 192,
    "intermediate_size": 320,
    "num_hidden_layers": 3,
    "vocab_size": 1003,
    "initializer_range": 0.08,
}
NAMES = {
    "GPT2": {
        "hidden_size": "n_embd",
        "intermediate_size": "n_inner",
        "num_hidden_layers": "n_layer",
    }
}
BOUNDS = {
    "logits": 1e-5,
    "bf16": 2.0,
    "loss": 1e-6,
    "gradient": 2e-5,
    "steps": 1.0,
    "saved": 0.0,
    "greedy": 0,
    "choices": 1e-5,
}
PROMPT_LENGTHS = (1, 5, 12, 20)
NEW_TOKENS = 40


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest distance of a row from the expected one, in units of that one's norm."""
    distance = np.linalg.norm(found.astype(np.float64) - expected, axis=-1)
    return float((distance / np.linalg.norm(expected.astype(np.float64), axis=-1)).max())


def widened(case: models.Case) -> models.Case:
    names = NAMES.get(case.family, {})
    config = {**case.config, **{names.get(key, key): value for key, value in WIDER.items()}}
    if "head_dim" in config:
        config["head_dim"] *= 2
    if "layer_types" in config:
        layers = config[names.get("num_hidden_layers", "num_hidden_layers")]
        config["layer_types"] = (layers * config["layer_types"])[:layers]
    return replace(case, config=config)


def random_model(case: models.Case, seed: int) -> torch.nn.Module:
    """Weights as transformers draws them; norms and biases too are random."""
    torch.manual_seed(seed)
    config = getattr(transformers, case.config_class)(**case.config)
    config._attn_implementation = "eager"
    model = getattr(transformers, case.architecture)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.train()


def compare_gradients(model: torch.nn.Module, ours: Any, batch: np.ndarray) -> dict[str, Any]:
    model.zero_grad()
    _, loss = models.loss_of(model, batch)
    loss.backward()
    found_loss, found = ours.gradients(batch, models.labels(batch))
    worst = {
        name: relative(found[name].ravel(), parameter.grad.numpy().ravel())
        for name, parameter in model.named_parameters()
    }
    if set(found) != set(worst):
        raise SystemExit(f"other names: {set(found) ^ set(worst)}")
    name = max(worst, key=lambda key: worst[key])
    return {
        "loss": abs(found_loss - loss.item()) / loss.item(),
        "gradient": worst[name],
        "gradient_of": name,
    }


def trained(ours: Any, vocabulary: int) -> tuple[dict[str, np.ndarray], list[float]]:
    """Weights and losses of the steps that models.train_steps takes."""
    losses = []
    for step in range(models.STEPS):
        batch = models.tokens(vocabulary, step)
        rate = models.learning_rate(step)
        losses.append(ours.step(batch, models.labels(batch), learning_rate=rate).loss)
    return ours.parameters(), losses


def compare_steps(model: torch.nn.Module, ours: Any, truth: Any, vocabulary: int) -> dict[str, Any]:
    """20 steps on the same batches. AdamW divides a gradient by its own size: where one nearly
    cancels (a bias of k), or a weight has a single one (a row of the embedding), rounding errors
    come out as large as the rest. So a tensor may differ by what transformers in FP32 differs from
    double precision, three times."""
    before = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    record = models.train_steps(model, vocabulary)
    after = {name: p.detach().numpy() for name, p in model.named_parameters()}
    found, losses = trained(ours, vocabulary)
    exact, _ = trained(truth, vocabulary)

    def distance(weights: dict[str, np.ndarray], name: str) -> float:
        change = (after[name] - before[name]).ravel()
        return relative((weights[name] - before[name]).ravel(), change)

    excess = {n: distance(found, n) / max(1e-3, 3 * distance(exact, n)) for n in after}
    name = max(excess, key=lambda key: excess[key])
    return {
        "steps": excess[name],
        "steps_of": name,
        "steps_change": distance(found, name),
        "steps_change_of_transformers": distance(exact, name),
        "weights": max(relative(found[n].ravel(), after[n].ravel()) for n in after),
        "step_loss": max(abs(a - b) / b for a, (b, _) in zip(losses, record)),
    }


def compare_saved(ours: Any, folder: Path, expected: np.ndarray, batch: np.ndarray) -> float:
    ours.save(folder, dtype="f32")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with torch.no_grad():
        return relative(models.loss_of(loaded, batch)[0].numpy(), expected)


def compare_greedy(model: torch.nn.Module, ours: Any, batch: np.ndarray) -> int:
    """Number of tokens that differ, over prompts of several lengths."""
    prompts = [batch.ravel()[length : 2 * length].tolist() for length in PROMPT_LENGTHS]
    how = transformers.GenerationConfig(
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        use_cache=True,
        eos_token_id=None,
        pad_token_id=0,
    )
    model.generation_config.eos_token_id = None  # else it takes the place of None in `how`
    different = 0
    for prompt, completion in zip(prompts, ours.generate(prompts, max_new_tokens=NEW_TOKENS)):
        with torch.no_grad():
            theirs = model.eval().generate(torch.tensor([prompt]), generation_config=how)
        expected = theirs[0, len(prompt) :].tolist()
        different += sum(a != b for a, b in zip(completion.tokens, expected, strict=True))
    return different


def compare_choices(logits: np.ndarray, ours: Any, batch: np.ndarray) -> float:
    """Largest difference of the log-probability of a token after those before it."""
    exact = torch.log_softmax(torch.from_numpy(logits[:, :-1]).double(), dim=-1)
    following = torch.from_numpy(batch[:, 1:, None])
    expected = exact.gather(-1, following)[..., 0].numpy()
    return float(np.abs(ours.log_probabilities(batch) - expected).max())


def compare(case: models.Case, backend: str, folder: Path) -> dict[str, Any]:
    vocabulary = case.config["vocab_size"]
    batch = models.tokens(vocabulary, 0)
    model = random_model(case, 17)
    model.save_pretrained(folder / "theirs")
    ours = fp8lab.Model(folder / "theirs", recipe="fp32", backend=backend)
    with torch.no_grad():
        logits = models.loss_of(model, batch)[0].numpy()
        brief = transformers.AutoModelForCausalLM.from_pretrained(
            folder / "theirs", dtype=torch.bfloat16, attn_implementation="eager"
        )
        theirs = models.loss_of(brief, batch)[0].numpy()
    found = fp8lab.Model(folder / "theirs", recipe="bf16", backend=backend).logits(batch)
    rms = [float(np.linalg.norm(x - logits) / np.linalg.norm(logits)) for x in (found, theirs)]
    result: dict[str, Any] = {
        "case": case.name,
        "backend": backend,
        "logits": relative(ours.logits(batch), logits),
        "bf16": rms[0] / rms[1],
        "bf16_error": rms[0],
        "bf16_error_of_transformers": rms[1],
        "saved": compare_saved(ours, folder / "ours", logits, batch),
        "greedy": compare_greedy(model, ours, batch),
        "choices": compare_choices(logits, ours, batch),
    }
    result |= compare_gradients(model, ours, batch)
    truth = fp8lab.Model(folder / "theirs", recipe="fp32", backend="truth")
    result |= compare_steps(model, ours, truth, vocabulary)
    result["passed"] = all(result[key] <= bound for key, bound in BOUNDS.items())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--case", action="append", choices=[case.name for case in models.CASES])
    parser.add_argument("--json", type=Path)
    transformers.utils.logging.disable_progress_bar()
    arguments = parser.parse_args()
    results = []
    for case in models.CASES:
        if arguments.case and case.name not in arguments.case:
            continue
        with tempfile.TemporaryDirectory() as folder:
            results.append(compare(widened(case), arguments.backend, Path(folder)))
        print(json.dumps(results[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(0 if all(result["passed"] for result in results) else 3)


if __name__ == "__main__":
    main()
