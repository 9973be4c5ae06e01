"""config.json that says one thing twice, in other words, against itself, or what no reader knows.
Equal statements give the bits of the plain one; everything else is refused by the field's name."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import numpy as np

import weights  # first: it says where the next one is
import model_files
from program import fault_of, refusal_fault
from runs import Context, Outcome, case_folder
from weights import CONFIG, EVAL

Fields = dict[str, Any]

SCALINGS: tuple[Fields, ...] = (
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8,
    },
    {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8,
    },
)
BASES = (10.0, 100.0, 10000.0)

# Of other tools and of transformers, without effect on this model.
WITHOUT_EFFECT: tuple[Fields, ...] = (
    {"torch_dtype": "float16"},
    {"dtype": "bfloat16"},
    {"torch_dtype": "float32", "dtype": "bfloat16"},
    {"use_cache": False},
    {"transformers_version": "5.24.0"},
    {"_name_or_path": "../../x"},
    {"pretraining_tp": 1},
    {"hidden_act": None},
    {"head_dim": 16},
    {"use_mrope": False},
    {"partial_rotary_factor": 1.0},
    {"sliding_window": 8, "use_sliding_window": False},
    {"layer_types": ["full_attention", "full_attention"]},
    {"attention_dropout": 0},
    {"initializer_range": 5},
    {"architectures": ["Qwen2ForCausalLM"]},
)
# With effect, or of unknown effect.
REFUSED: tuple[Fields, ...] = (
    {"attn_logit_softcapping": 30.0},
    {"final_logit_softcapping": 1},
    {"residual_multiplier": 0.5},
    {"no_rope_layers": [1, 0]},
    {"rope_interleaved": True},
    {"use_mrope": True},
    {"partial_rotary_factor": 0.5},
    {"hidden_act": "gelu"},
    {"use_sliding_window": True, "sliding_window": 0},
    {"layer_types": ["full_attention", "sliding_attention"], "use_sliding_window": False},
    {"layer_types": ["full_attention"]},
    {"rope_scaling": {"rope_type": "default", "factor": 8.0}},
    {"attention_dropout": 0.1},
    {"pretraining_tp": 2},
    {"head_dim": 32},
    {"head_dim": 15},
    {"head_dim": "16"},
    {"num_key_value_heads": None},
    {"num_key_value_heads": 2},
    {"num_hidden_layers": 3},
    {"num_hidden_layers": 1},
    {"intermediate_size": 64},
    {"vocab_size": 261},
    {"model_type": "qwen9"},
    {"model_type": "llama"},
    {"tie_word_embeddings": False},
    {"tie_word_embeddings": "yes"},
    {"rope_theta": "10"},
    {"rope_theta": -1},
    {"rms_norm_eps": "1e-6"},
    {"quantization_config": {"quant_method": "gptq", "bits": 4}},
    {"zz": 1},
    {"MODEL_TYPE": "qwen2"},
)


def spell(
    meaning: tuple[float, Fields], rng: random.Random, explicit: bool = False
) -> list[Fields]:
    """Ways to say a base and a scaling; with `explicit` each has words for both."""
    base, scaling = meaning
    named = {key if key != "rope_type" else "type": value for key, value in scaling.items()}
    both = scaling | {"type": scaling["rope_type"]}
    old: Fields | None = rng.choice((scaling, named, both))
    plain = scaling["rope_type"] == "default" and not explicit
    if plain:
        old = None if rng.random() < 0.5 else old
    ways: list[Fields] = [
        {"rope_theta": base, "rope_scaling": old},
        {"rope_parameters": {"rope_theta": base, **scaling}},
        {"rope_theta": base, "rope_parameters": scaling},
        {"rope_parameters": {"rope_theta": base, **both}},
    ]
    if plain:
        ways.append({"rope_theta": base})
    return ways


def together(first: Fields, second: Fields) -> Fields | None:
    """Both statements in one file; nothing where they use one field for different words."""
    joined = dict(first)
    for key, value in second.items():
        if key in joined and joined[key] != value:
            return None
        joined[key] = value
    return joined


def write(folder: Any, config: str, head: str = "") -> None:
    tensors = dict(weights.base_tensors("F32", "F32", "tensor"))
    if head:
        embedding = tensors["model.embed_tokens.weight"]
        tensors["lm_head.weight"] = embedding
        if head == "other":
            values = weights.values_of(embedding).copy()
            values[3, 4] = np.nextafter(values[3, 4], np.float32(9))
            tensors["lm_head.weight"] = model_files.stored(values, "F32")
    weights.write_model(folder, tensors, CONFIG)
    (folder / "model/config.json").write_text(config)


def evaluate(context: Context, config: str, head: str = "") -> tuple[str, Any]:
    folder = case_folder(context, "config")
    write(folder, config, head)
    words = (*EVAL, "--data", "d.jsonl", "--form", "running_text")
    result = context.program.run(folder, *words)
    return result.out, result


def statements(context: Context, rng: random.Random) -> Outcome:
    meaning = (rng.choice(BASES), rng.choice(SCALINGS))
    plain = {key: value for key, value in CONFIG.items() if not key.startswith("rope")}
    ways = spell(meaning, rng)
    said: Fields | None = rng.choice(ways)
    assert said is not None
    refused, named, head = False, "", ""
    how = rng.randrange(7)
    if how == 0:  # twice the same
        said = together(said, rng.choice(spell(meaning, rng))) or said
    elif how == 1:  # against each other
        other = (
            rng.choice([base for base in BASES if base != meaning[0]]),
            rng.choice([scaling for scaling in SCALINGS if scaling != meaning[1]]),
        )
        other = rng.choice((other, (meaning[0], other[1]), (other[0], meaning[1])))
        said = rng.choice(spell(meaning, rng, True))
        joined = together(said, rng.choice(spell(other, rng, True)))
        if joined is not None:
            said, refused, named = joined, True, "contradicts"
    config = plain | said
    if how == 2:
        config |= rng.choice(WITHOUT_EFFECT) | rng.choice(WITHOUT_EFFECT)
        if config.get("use_sliding_window") is False:
            config.setdefault("sliding_window", None)
    elif how in (3, 4):
        config |= rng.choice(REFUSED)
        refused = True
    elif how == 5:
        head = rng.choice(("same", "other"))
        refused = head == "other"
    text = json.dumps(config)
    if how == 6:  # one key, two values; readers differ in which they take
        key = rng.choice(sorted(config))
        text = text[:-1] + f", {json.dumps(key)}: {json.dumps(copy.deepcopy(config[key]))}}}"
        refused, named = True, key
    out, result = evaluate(context, text, head)
    note = f"way {how}, {text} {head}; {result.said()}"
    if fault_of(result):
        return Outcome("crashed", f"{fault_of(result)}; {note}")
    if result.code != 0:
        problem = refusal_fault(result, named)
        if not refused:
            problem = problem or "refuses what is well said"
        return Outcome("crashed" if problem else "refused", f"{problem}; {note}")
    if refused:
        return Outcome("wrong", note)
    due = evaluate(context, json.dumps(plain | ways[0]))[0]
    return Outcome("right" if out == due and due else "wrong", note)
