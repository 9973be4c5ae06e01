"""A small Llama of transformers with random weights, and batches that it can learn."""

from __future__ import annotations

from typing import Any

import torch
import transformers

VOCABULARY = 96


def llama(seed: int, **config: Any) -> Any:
    """Two layers of FP32 weights. The widths are multiples of 32, as MX formats need them."""
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        **config,
    }
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))


def batch(seed: int, step: int, sequences: int = 4, length: int = 24) -> torch.Tensor:
    """Tokens of which each is a function of the last one."""
    numbers = torch.Generator().manual_seed(1000 * seed + step)
    tokens = [torch.randint(VOCABULARY, (sequences, 1), generator=numbers)]
    while len(tokens) < length:
        tokens.append((7 * tokens[-1] + 3) % VOCABULARY)
    return torch.cat(tokens, 1)
