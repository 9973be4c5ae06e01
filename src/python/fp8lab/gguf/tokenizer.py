"""Converts a GGUF file's metadata to tokenizer.json, tokenizer_config.json and special ids."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fp8lab.errors import Error
from fp8lab.gguf.source import Source, need

KEY = "tokenizer.ggml."
# Token types, as in llama.cpp's llama_token_type.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """The rules by which a family's byte-level BPE splits text into words."""

    pattern: str = ""
    """A regular expression; empty: GPT-2's own."""
    digits: bool = False
    """Splits off every digit first."""
    composed: bool = False
    """Normalizes text to NFC."""
    whole_words: bool = False
    """Encodes a word that is a token as this token, without merges."""
    begin: bool = True
    """Names the begin token in tokenizer_config.json even if texts do not start with it."""


PRE_TOKENIZERS = {
    "gpt-2": PreTokenizer(),
    "smollm": PreTokenizer(digits=True),
    "qwen2": PreTokenizer(_WORDS % "", composed=True, begin=False),
    "llama-bpe": PreTokenizer(_WORDS % "{1,3}", whole_words=True),
}
"""Rules by `tokenizer.ggml.pre`, from the published tokenizer.json of GPT-2, SmolLM2, Qwen2 to 3
and Llama 3."""


@dataclass(frozen=True)
class TokenizerFiles:
    """Tokenizer files of the folder. `ids` are keys of config.json and generation_config.json."""

    json_text: str
    config: dict[str, Any]
    ids: dict[str, Any]
    size: int
    """Number of ids; every token's id is smaller."""


def _vocabulary(source: Source) -> tuple[dict[str, int], list[str], list[int]]:
    """Returns ids by token, without unused padding tokens; all tokens; their types."""
    tokens = source.words(KEY + "tokens")
    types: list[int] = source.get(KEY + "token_type", list, [NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise source.fail(KEY + "token_type", f"has {len(types)} entries for {len(tokens)} tokens")
    used = [index for index, kind in enumerate(types) if kind != UNUSED]
    vocabulary = {tokens[index]: index for index in used}
    if len(vocabulary) != len(used) or not used:
        raise source.fail(KEY + "tokens", "names a token twice, or none")
    return vocabulary, tokens, types


def _byte_level(source: Source, library: Any, vocabulary: dict[str, int]) -> Any:
    """Returns a byte-level BPE: GPT-2, Llama 3, Qwen, SmolLM."""
    name: str = source.get(KEY + "pre", str)
    if name not in PRE_TOKENIZERS:
        accepted = ", ".join(PRE_TOKENIZERS)
        raise source.fail(KEY + "pre", f"is '{name[:80]}'; accepted: {accepted}")
    rule = PRE_TOKENIZERS[name]
    merges = []
    for merge in source.words(KEY + "merges"):
        parts = merge.split(" ")
        if len(parts) != 2:
            raise source.fail(KEY + "merges", f"holds {merge[:80]!r}, which is no pair")
        merges.append((parts[0], parts[1]))
    tokenizer = library.Tokenizer(
        library.models.BPE(vocab=vocabulary, merges=merges, ignore_merges=rule.whole_words)
    )
    pre = library.pre_tokenizers
    steps = []
    if rule.digits:
        steps.append(pre.Digits(individual_digits=True))
    if rule.pattern:
        steps.append(pre.Split(library.Regex(rule.pattern), behavior="isolated"))
    steps.append(pre.ByteLevel(add_prefix_space=False, use_regex=not rule.pattern))
    tokenizer.pre_tokenizer = pre.Sequence(steps) if len(steps) > 1 else steps[0]
    if rule.composed:
        tokenizer.normalizer = library.normalizers.NFC()
    tokenizer.decoder = library.decoders.ByteLevel()
    return tokenizer


def _merges_of(vocabulary: dict[str, int], scores: dict[str, float]) -> list[tuple[str, str]]:
    """Reconstructs the merges of a SentencePiece BPE, which stores only scores: every split of a
    token into two tokens. Sorted by descending score, then by descending length of the parts."""
    merges: list[tuple[float, tuple[str, str]]] = []
    for token, score in scores.items():
        cuts = [(token[:i], token[i:]) for i in range(1, len(token))]
        known = [cut for cut in cuts if cut[0] in vocabulary and cut[1] in vocabulary]
        known.sort(key=lambda cut: (vocabulary[cut[0]], vocabulary[cut[1]]))
        merges.extend((score, cut) for cut in known)
    merges.sort(key=lambda entry: (-entry[0], -len(entry[1][0]), -len(entry[1][1])))
    return [cut for _, cut in merges]


def _sentence_pieces(
    source: Source, library: Any, vocabulary: dict[str, int], tokens: list[str], types: list[int]
) -> Any:
    """Returns the SentencePiece BPE of Llama 2 and TinyLlama: spaces become U+2581, unknown text
    becomes bytes."""
    scores = source.get(KEY + "scores", list)
    if len(scores) != len(tokens) or not all(isinstance(score, float) for score in scores):
        raise source.fail(KEY + "scores", f"is no list of {len(tokens)} numbers")
    learned = {t: s for t, s, kind in zip(tokens, scores, types, strict=True) if kind == NORMAL}
    unknown = [token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN]
    if len(unknown) != 1:
        raise source.fail(KEY + "token_type", f"has {len(unknown)} unknown tokens; accepted: one")
    missing = [f"<0x{byte:02X}>" for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary]
    if missing:
        raise source.fail(KEY + "tokens", f"lacks the byte {missing[0]}")
    tokenizer = library.Tokenizer(
        library.models.BPE(
            vocab=vocabulary,
            merges=_merges_of(vocabulary, learned),
            unk_token=unknown[0],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    decoders, normalizers = library.decoders, library.normalizers
    prefix = source.get(KEY + "add_space_prefix", bool, True)
    steps = [normalizers.Prepend("▁")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        parts.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(parts)
    return tokenizer


def _special_ids(source: Source, tokens: list[str]) -> dict[str, int]:
    """Returns the ids of special tokens that the file names, by their purpose."""
    ids = {}
    for role in ("bos", "eos", "unknown", "padding", "eot"):
        key = f"{KEY}{role}_token_id"
        if source.has(key):
            value: int = source.get(key, int)
            if not 0 <= value < len(tokens):
                raise source.fail(key, f"is {value}, of {len(tokens)} tokens")
            ids[role] = value
    return ids


def read_tokenizer(source: Source, context: int) -> TokenizerFiles:
    """Returns the tokenizer files. Raises Error if the families do not use this tokenizer kind."""
    library = need("tokenizers")
    kind: str = source.get(KEY + "model", str)
    if kind not in ("gpt2", "llama"):
        raise source.fail(KEY + "model", f"is '{kind[:80]}'; accepted: gpt2, llama")
    vocabulary, tokens, types = _vocabulary(source)
    try:
        if kind == "gpt2":
            tokenizer = _byte_level(source, library, vocabulary)
        else:
            tokenizer = _sentence_pieces(source, library, vocabulary, tokens, types)
    except Error:
        raise
    except Exception as error:  # the library raises bare Exception
        reason = " ".join(str(error).split())[:200]
        raise source.fail(KEY + "tokens", f"and merges are no BPE: {reason}") from error
    for index, (token, type_) in enumerate(zip(tokens, types, strict=True)):
        if type_ in (CONTROL, UNKNOWN, USER_DEFINED):
            special = type_ != USER_DEFINED
            tokenizer.add_tokens([library.AddedToken(token, special=special, normalized=False)])
            if tokenizer.token_to_id(token) != index:
                raise source.fail(KEY + "tokens", f"gives {token[:80]!r} two ids")
    ids = _special_ids(source, tokens)
    begins = source.get(KEY + "add_bos_token", bool, kind == "llama" or _adds_begin(source))
    if source.get(KEY + "add_eos_token", bool, False):
        raise source.fail(KEY + "add_eos_token", "= True is not supported; accepted: False")
    if begins and "bos" in ids:
        token = tokens[ids["bos"]]
        tokenizer.post_processor = library.processors.TemplateProcessing(
            single=f"{token} $A",
            pair=f"{token} $A {token} $B",
            special_tokens=[(token, ids["bos"])],
        )
    elif kind == "gpt2":
        tokenizer.post_processor = library.processors.ByteLevel(trim_offsets=False)
    config = _config(source, ids, tokens, begins, context)
    text = str(tokenizer.to_str(pretty=False)) + "\n"
    return TokenizerFiles(text, config, _ids_of_config(ids), 1 + max(vocabulary.values()))


def _adds_begin(source: Source) -> bool:
    """Returns true if a byte-level BPE starts texts with the begin token by default."""
    return bool(source.get(KEY + "pre", str) == "llama-bpe")


def _config(
    source: Source, ids: dict[str, int], tokens: list[str], begins: bool, context: int
) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": begins,
    }
    pre = source.get(KEY + "pre", str, "")
    named = begins or pre not in PRE_TOKENIZERS or PRE_TOKENIZERS[pre].begin
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unknown", "unk"), ("padding", "pad")):
        if role in ids and (role != "bos" or named):
            config[f"{key}_token"] = tokens[ids[role]]
    template = source.get("tokenizer.chat_template", str, "")
    if template:
        config["chat_template"] = template
    return config


def _ids_of_config(ids: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "bos" in ids:
        found["bos_token_id"] = ids["bos"]
    if "eos" in ids:
        ends = [ids["eos"], *([ids["eot"]] if ids.get("eot", ids["eos"]) != ids["eos"] else [])]
        found["eos_token_id"] = ends if len(ends) > 1 else ends[0]
    if "padding" in ids:
        found["pad_token_id"] = ids["padding"]
    return found


def json_bytes(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
