"""Training steps of Hugging Face transformers under torch.compile, beside `fp8lab bench train`.

    python src/bench/train_torch.py experiments/models/qwen2.5-1.5b.toml --sequences 8

The peer of the BF16 and FP8 steps of this repository: the same model shape from random weights,
all weights, gradients and AdamW states in BF16, attention by cuDNN through PyTorch, AdamW fused,
clipping as there. Tokens are random. Prints median tokens/s over the steps after the first ones,
the median seconds of forward pass, backward pass and update of as many steps more, each waited for,
and peak memory; --json writes them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tomllib
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel


def build(shape: dict[str, Any], length: int) -> torch.nn.Module:
    """A Qwen2 of this shape; other families have the same cost at the same extents."""
    config = transformers.Qwen2Config(
        vocab_size=shape["vocab_size"],
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        num_hidden_layers=shape["num_hidden_layers"],
        num_attention_heads=shape["num_attention_heads"],
        num_key_value_heads=shape["num_key_value_heads"],
        max_position_embeddings=max(length, 2048),
        rope_theta=shape.get("rope_theta", 10000.0),
        tie_word_embeddings=shape.get("tie_word_embeddings", False),
        use_cache=False,
        attn_implementation="sdpa",
    )
    torch.manual_seed(1)
    with torch.device("cuda"):
        model: torch.nn.Module = transformers.Qwen2ForCausalLM(config).to(torch.bfloat16)
    return model


def measure(
    model: torch.nn.Module, sequences: int, length: int, steps: int
) -> tuple[list[float], dict[str, list[float]]]:
    """Seconds of `steps` training steps, after three that are not counted, and those of the phases
    of as many steps more."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), fused=True)
    vocabulary = model.config.vocab_size
    tokens = torch.randint(vocabulary, (sequences, length), device="cuda")
    targets = torch.randint(vocabulary, (sequences * length,), device="cuda")

    @torch.compile(fullgraph=True)
    def loss_of(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = model.lm_head(model.model(input_ids=tokens).last_hidden_state)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets)

    seconds: list[float] = []
    phases: dict[str, list[float]] = {"forward": [], "backward": [], "update": []}
    # cuDNN's attention first: the fastest of PyTorch's on Hopper.
    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]

    def now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    with sdpa_kernel(order, set_priority=True):
        for step in range(steps + 3):
            began = now()
            loss_of(tokens, targets).backward()
            update()
            if step >= 3:
                seconds.append(now() - began)
        for _ in range(steps):
            times = [now()]
            loss = loss_of(tokens, targets)
            times.append(now())
            loss.backward()
            times.append(now())
            update()
            times.append(now())
            for phase, began, ended in zip(phases.values(), times, times[1:]):
                phase.append(ended - began)
    return seconds, phases


def main() -> None:
    """Measures one model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="model shape, TOML as in experiments/models")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--layers", type=int, help="instead of the model's own number")
    parser.add_argument("--vocabulary", type=int, help="instead of the model's own")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    shape = tomllib.loads(options.model.read_text())
    if options.layers:
        shape["num_hidden_layers"] = options.layers
    if options.vocabulary:
        shape["vocab_size"] = options.vocabulary
    model = build(shape, options.length)
    seconds, phases = measure(model, options.sequences, options.length, options.steps)
    median = statistics.median(seconds)
    tokens = options.sequences * options.length
    result = {
        "peer": f"transformers {transformers.__version__}, torch {torch.__version__}, compiled",
        "device": torch.cuda.get_device_name(),
        "model": options.model.stem,
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": tokens,
        "seconds": seconds,
        "phases": phases,
        "tokens_per_second": tokens / median,
        "peak_bytes": torch.cuda.max_memory_allocated(),
    }
    print(
        f"{result['peer']}: {median:.4f} s a step, {tokens / median:.0f} tokens/s, "
        f"{result['peak_bytes'] / 1e9:.1f} GB; "
        + ", ".join(f"{name} {statistics.median(phase):.4f} s" for name, phase in phases.items())
    )
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
