"""Small models of transformers with weights and tokens from a formula.

The formula is integer arithmetic that ends in one rounding to FP32, so that a reader in any
language has the same weights without a file: tests/src/model/test_transformers.cpp repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transformers

SEQUENCES, LENGTH = 2, 24
MASKED = 3  # targets of the first sequence that are not trained on
STEPS = 20
OPTIMIZER = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
CLIP_NORM = 1.0


@dataclass(frozen=True)
class Case:
    """A model family with what config.json says of it."""

    name: str
    family: str
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        return self.family + ("LMHeadModel" if self.family == "GPT2" else "ForCausalLM")

    @property
    def config_class(self) -> str:
        return self.family + ("TextConfig" if self.family == "Gemma3" else "Config")

    @property
    def norm_centre(self) -> float:
        """What the weights of norms in files lie around."""
        return 0.0 if self.family.startswith("Gemma") else 1.0


SHAPE = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
GPT2 = {
    "vocab_size": 61,
    "n_embd": 48,
    "n_inner": 80,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
YARN_ALL = {
    **YARN,
    "attention_factor": 1.25,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "truncate": False,
}


def case(
    name: str, family: str, tied: bool, scaling: dict[str, Any] | None = None, **config: Any
) -> Case:
    values = {**SHAPE, "tie_word_embeddings": tied, **config}
    if scaling is not None:
        values["rope_scaling"] = scaling
    return Case(name, family, values)


CASES = [
    case("qwen2", "Qwen2", True),
    case("qwen2_yarn", "Qwen2", False, YARN, rope_theta=100.0),
    case("llama2", "Llama", False, num_key_value_heads=4, vocab_size=64, rms_norm_eps=1e-5),
    case(
        "llama2_bias",
        "Llama",
        False,
        {"rope_type": "linear", "factor": 2.5},
        attention_bias=True,
        mlp_bias=True,
    ),
    case("llama2_dynamic", "Llama", True, {"rope_type": "dynamic", "factor": 2.0}),
    case("llama3", "Llama", True, LLAMA3, num_key_value_heads=1, rope_theta=500000.0),
    case("qwen3", "Qwen3", True, head_dim=20, rope_theta=1e6),
    case("qwen3_yarn", "Qwen3", False, YARN_ALL, head_dim=16, attention_bias=True),
    case("mistral", "Mistral", False, sliding_window=7, head_dim=16),
    case(
        "qwen2_window",
        "Qwen2",
        True,
        use_sliding_window=True,
        sliding_window=5,
        max_window_layers=1,
    ),
    case(
        "qwen3_window",
        "Qwen3",
        False,
        head_dim=16,
        use_sliding_window=True,
        sliding_window=9,
        layer_types=["sliding_attention", "full_attention"],
    ),
    # torch trains no embedding of a padding token
    case("olmo2", "Olmo2", False, rope_theta=500000.0, pad_token_id=None),
    case(
        "olmo2_bias",
        "Olmo2",
        True,
        YARN,
        num_key_value_heads=4,
        attention_bias=True,
        rms_norm_eps=1e-5,
        pad_token_id=None,
    ),
    case("gemma", "Gemma", True, head_dim=20, num_key_value_heads=1, pad_token_id=None),
    case("gemma_bias", "Gemma", False, head_dim=16, attention_bias=True, pad_token_id=None),
    case(
        "gemma2",
        "Gemma2",
        True,
        head_dim=16,
        query_pre_attn_scalar=24,
        sliding_window=7,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        pad_token_id=None,
    ),
    case(
        "gemma3",
        "Gemma3",
        True,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention"],
        rope_local_base_freq=10000.0,
        pad_token_id=None,
    ),
    case("phi3", "Phi3", False, pad_token_id=None, sliding_window=7),
    case("phi3_tied", "Phi3", True, pad_token_id=None, rms_norm_eps=1e-5),
    Case("gpt2", "GPT2", {**GPT2, "tie_word_embeddings": True}),
    Case("gpt2_untied", "GPT2", {**GPT2, "tie_word_embeddings": False, "n_head": 3}),
]


def uniform(name: str, count: int) -> np.ndarray:
    """Doubles in [-1, 1) with 23 fraction bits: FNV-1a of the name, then SplitMix64."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) / 2.0**23 - 1.0


def weight(name: str, shape: tuple[int, ...], norm_centre: float = 1.0) -> np.ndarray:
    values = 0.25 * uniform(name, int(np.prod(shape)))
    if ("norm" in name or "ln_" in name) and name.endswith(".weight"):
        values = norm_centre + values
    return values.astype(np.float32).reshape(shape)


def tokens(vocabulary: int, step: int) -> np.ndarray:
    """(SEQUENCES, LENGTH) token numbers of one batch."""
    values = uniform(f"tokens {step}", SEQUENCES * LENGTH)
    return ((values + 1.0) / 2.0 * vocabulary).astype(np.int64).reshape(SEQUENCES, LENGTH)


def labels(batch: np.ndarray) -> np.ndarray:
    """The next token, -100 where none is trained on."""
    result = np.full_like(batch, -100)
    result[:, :-1] = batch[:, 1:]
    result[0, :MASKED] = -100
    return result


def learning_rate(step: int) -> float:
    return 1e-3 * (1.0 - step / (2.0 * STEPS))


def make_model(case: Case, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """Attention as transformers writes it out, without fused kernels."""
    config = getattr(transformers, case.config_class)(**case.config)
    config._attn_implementation = "eager"
    model = getattr(transformers, case.architecture)(config).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = weight(name, tuple(parameter.shape), case.norm_centre)
            parameter.copy_(torch.from_numpy(values))
    return model.train()


def loss_of(model: torch.nn.Module, batch: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits in FP32 and the mean loss over the trained targets."""
    logits = model(input_ids=torch.from_numpy(batch)).logits.float()
    targets = torch.from_numpy(labels(batch))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return logits, loss


def make_optimizer(model: torch.nn.Module) -> torch.optim.AdamW:
    """Matrices decay, norms and biases do not."""
    groups: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
    for parameter in model.parameters():
        groups[parameter.dim() > 1].append(parameter)
    return torch.optim.AdamW(
        [{"params": groups[True]}, {"params": groups[False], "weight_decay": 0.0}], **OPTIMIZER
    )


def train_steps(model: torch.nn.Module, vocabulary: int) -> list[tuple[float, float]]:
    """Loss and gradient norm of each of STEPS steps of AdamW with clipping."""
    optimizer = make_optimizer(model)
    record = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        loss = loss_of(model, tokens(vocabulary, step))[1]
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        record.append((loss.item(), norm.item()))
    return record
