"""Tiny models of transformers with random weights: name, model, and a batch with labels.

The shapes are such that tiles of 128 are whole, partial and single, and that no extent of one
operand is that of another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import nn

TEXT = dict(
    vocab_size=259,
    hidden_size=160,
    intermediate_size=288,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=128,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
GROUPED = TEXT | dict(num_key_value_heads=2)


def _causal(config: Any) -> Callable[[], nn.Module]:
    return lambda: hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def _text_batch(labels: str = "labels") -> dict[str, torch.Tensor]:
    tokens = torch.randint(3, 259, (2, 37))
    return {"input_ids": tokens, labels: tokens}


def _t5_batch() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, 259, (2, 37)), "labels": torch.randint(3, 259, (2, 21))}


def _image_batch() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 4])}


def _speech_batch() -> dict[str, torch.Tensor]:
    return {
        "input_features": torch.randn(2, 80, 100),
        "labels": torch.randint(3, 259, (2, 13)),
    }


def _whisper() -> nn.Module:
    config = hf.WhisperConfig(
        vocab_size=259,
        d_model=160,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=288,
        decoder_ffn_dim=288,
        max_source_positions=50,
        max_target_positions=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return hf.WhisperForConditionalGeneration(config)


def _t5() -> nn.Module:
    config = hf.T5Config(
        vocab_size=259,
        d_model=160,
        d_kv=40,
        d_ff=288,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return hf.T5ForConditionalGeneration(config)


def _vit() -> nn.Module:
    config = hf.ViTConfig(
        hidden_size=160,
        intermediate_size=288,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=8,
        num_labels=7,
    )
    return hf.ViTForImageClassification(config)


EXPERTS = dict(num_experts_per_tok=2, moe_intermediate_size=96)

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, torch.Tensor]]]] = {
    name: (_causal(config), _text_batch)
    for name, config in {
        "Llama": hf.LlamaConfig(**GROUPED),
        "Qwen2": hf.Qwen2Config(**GROUPED),
        "Qwen3": hf.Qwen3Config(**GROUPED, head_dim=40),
        "Mistral": hf.MistralConfig(**GROUPED),
        "Gemma 2": hf.Gemma2Config(**GROUPED, head_dim=40),
        "Gemma 3": hf.Gemma3TextConfig(**GROUPED, head_dim=40),
        "Phi-3": hf.Phi3Config(**GROUPED),
        "GPT-2": hf.GPT2Config(
            vocab_size=259, n_embd=160, n_layer=2, n_head=4, n_positions=128, n_inner=288
        ),
        "GPT-NeoX": hf.GPTNeoXConfig(**TEXT),
        "OLMo 2": hf.Olmo2Config(**GROUPED),
        "Falcon": hf.FalconConfig(**TEXT),
        "StableLM": hf.StableLmConfig(**GROUPED),
        "Cohere": hf.CohereConfig(**GROUPED),
        "Granite": hf.GraniteConfig(**GROUPED),
        "SmolLM3": hf.SmolLM3Config(**GROUPED),
        "Mixtral": hf.MixtralConfig(**GROUPED, num_local_experts=4),
        "Qwen2-MoE": hf.Qwen2MoeConfig(
            **GROUPED, num_experts=4, **EXPERTS, shared_expert_intermediate_size=96
        ),
        "Qwen3-MoE": hf.Qwen3MoeConfig(**GROUPED, head_dim=40, num_experts=4, **EXPERTS),
        "OLMoE": hf.OlmoeConfig(**GROUPED, num_experts=4, num_experts_per_tok=2),
        "DeepSeek-V3": hf.DeepseekV3Config(
            **TEXT,
            num_key_value_heads=4,
            n_routed_experts=4,
            **EXPERTS,
            n_group=2,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=48,
            kv_lora_rank=32,
            qk_rope_head_dim=16,
            qk_nope_head_dim=24,
            v_head_dim=40,
        ),
        "Mamba": hf.MambaConfig(
            vocab_size=259, hidden_size=160, num_hidden_layers=2, state_size=8, pad_token_id=0
        ),
        "OPT": hf.OPTConfig(
            vocab_size=259,
            hidden_size=160,
            ffn_dim=288,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=128,
            word_embed_proj_dim=160,
        ),
    }.items()
}
MODELS["BERT"] = (
    lambda: hf.BertForMaskedLM(hf.BertConfig(**TEXT)),
    _text_batch,
)
MODELS["T5"] = (_t5, _t5_batch)
MODELS["ViT"] = (_vit, _image_batch)
MODELS["Whisper"] = (_whisper, _speech_batch)
