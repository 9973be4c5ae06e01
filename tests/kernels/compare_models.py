#!/usr/bin/env python3
"""Trains small models of every family on the CPU and on the GPU and compares all bits.

    python tests/kernels/compare_models.py [--recipe NAME]...

Needs the package fp8lab of a build with CUDA, and NumPy. Vocabulary and heads have odd sizes, so
that rows lie on no boundary of 16 bytes. Exit status 3 when completions, logits, losses, gradients
or weights differ.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import fp8lab
import numpy as np

SHAPE: dict[str, Any] = {
    "vocab_size": 1003,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.08,
}
LLAMA3 = '{rope_type="llama3", factor=8.0, original_max_position_embeddings=16}'
YARN = '{rope_type="yarn", factor=4.0, original_max_position_embeddings=16}'
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"qkv_bias": "true", "rope_scaling": YARN},
    "llama": {
        "qkv_bias": "true",
        "o_bias": "true",
        "mlp_bias": "true",
        "tie_word_embeddings": "false",
        "rope_scaling": LLAMA3,
    },
    "qwen3": {"qkv_bias": "false", "qk_norm": "true", "head_dim": 72},
    "qwen3 with heads of 38": {"qkv_bias": "false", "qk_norm": "true", "head_dim": 38},
    "gpt2": {
        "norm": '"layernorm"',
        "feed_forward": '"gelu_tanh"',
        "positions": '"learned"',
        "num_key_value_heads": 4,
        "qkv_bias": "true",
        "o_bias": "true",
        "mlp_bias": "true",
    },
}
STEPS = 3
PROMPT_LENGTHS = (1, 17, 40, 90)
SAMPLING: dict[str, Any] = {"temperature": 1.5, "top_p": 0.95, "max_new_tokens": 40, "together": 3}


def differences(file: Path, recipe: str) -> list[str]:
    """What is not the same on both backends."""
    cpu, cuda = (fp8lab.Model(file, recipe=recipe, backend=name) for name in ("cpu", "cuda"))
    batch = np.random.default_rng(1).integers(0, SHAPE["vocab_size"], (2, 128))
    prompts = [batch.ravel()[:length].tolist() for length in PROMPT_LENGTHS]
    found = []
    if cpu.generate(prompts, **SAMPLING) != cuda.generate(prompts, **SAMPLING):
        found.append("samples or their log-probabilities")
    if not np.array_equal(cpu.logits(batch), cuda.logits(batch)):
        found.append("logits")
    (loss, gradients), (other_loss, others) = cpu.gradients(batch), cuda.gradients(batch)
    found += ["loss"] if loss != other_loss else []
    found += [f"gradient of {n}" for n, g in gradients.items() if not np.array_equal(g, others[n])]
    for step in range(STEPS):
        if cpu.step(batch, learning_rate=1e-3) != cuda.step(batch, learning_rate=1e-3):
            found.append(f"step {step + 1}")
    weights, others = cpu.parameters(), cuda.parameters()
    return found + [n for n, w in weights.items() if not np.array_equal(w, others[n])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", action="append")
    recipes = parser.parse_args().recipe or ["bf16", "fp32", "infir2", "te_delayed"]
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for family, keys in FAMILIES.items():
            file = Path(folder) / "model.toml"
            file.write_text("".join(f"{k} = {v}\n" for k, v in {**SHAPE, **keys}.items()))
            for recipe in recipes:
                try:
                    found = differences(file, recipe)
                except fp8lab.Error as error:
                    found = [str(error)]
                failed |= bool(found)
                print(
                    f"{family}, {recipe}: {', '.join(found) if found else 'same bits'}", flush=True
                )
    sys.exit(3 if failed else 0)


if __name__ == "__main__":
    main()
