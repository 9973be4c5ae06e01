"""fp8lab.gguf: files that the package gguf wrote, as folders that the program reads."""

from __future__ import annotations

import errno
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

gguf = pytest.importorskip("gguf", reason="gguf is not installed")
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "src/python"))

from fp8lab.gguf import folder as folder_module  # noqa: E402
from fp8lab.gguf.__main__ import main  # noqa: E402

Floats = npt.NDArray[np.float32]
Type = gguf.GGMLQuantizationType
HIDDEN, INNER, HEADS, FEW, LAYERS = 256, 512, 4, 2, 2
HEAD = HIDDEN // HEADS
SPECIALS = ["<|begin|>", "<|end|>"]
TEXTS = [
    "the scale of a tile is a power of two, 1234 tiles",
    "It's the tile's largest value\n\n  x",
]


def bpe() -> tuple[list[str], list[str]]:
    """Tokens by id and merges of a small byte-level BPE."""
    library = tokenizers
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = library.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    by_id = sorted(model["vocab"], key=model["vocab"].get)
    return by_id, [" ".join(pair) for pair in model["merges"]]


TOKENS, MERGES = bpe()
UNUSED = 4  # tokens at the end that fill up the table
VOCABULARY = len(TOKENS) + UNUSED


class File:
    """What a GGUF file gets, to be changed before it is written."""

    def __init__(self, arch: str = "llama", pre: str = "gpt-2") -> None:
        self.arch = arch
        eps = "layer_norm_epsilon" if arch == "gpt2" else "layer_norm_rms_epsilon"
        self.numbers: dict[str, Any] = {
            f"{arch}.block_count": LAYERS,
            f"{arch}.context_length": 128,
            f"{arch}.embedding_length": HIDDEN,
            f"{arch}.feed_forward_length": INNER,
            f"{arch}.attention.head_count": HEADS,
            f"{arch}.attention.{eps}": 1e-5,
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 1,
        }
        if arch != "gpt2":
            self.numbers[f"{arch}.attention.head_count_kv"] = FEW
            self.numbers[f"{arch}.rope.freq_base"] = 50000.0
        self.words: dict[str, Any] = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre}
        self.lists: dict[str, list[Any]] = {
            "tokenizer.ggml.tokens": TOKENS + [f"[PAD{i}]" for i in range(UNUSED)],
            "tokenizer.ggml.token_type": [3, 3] + [1] * (len(TOKENS) - 2) + [5] * UNUSED,
            "tokenizer.ggml.merges": MERGES,
        }
        self.tensors: dict[str, Floats] = {}
        self.raw: dict[str, tuple[npt.NDArray[Any], Any]] = {}  # bytes and their type
        random = np.random.default_rng(3)

        def add(name: str, *shape: int) -> None:
            self.tensors[name] = random.standard_normal(shape).astype(np.float32)

        add("token_embd.weight", VOCABULARY, HIDDEN)
        add("output_norm.weight", HIDDEN)
        for layer in range(LAYERS):
            block = f"blk.{layer}."
            for name in ("attn_norm", "ffn_norm"):
                add(block + name + ".weight", HIDDEN)
            add(block + "ffn_up.weight", INNER, HIDDEN)
            add(block + "ffn_down.weight", HIDDEN, INNER)
            add(block + "attn_output.weight", HIDDEN, HIDDEN)
            if arch == "gpt2":
                add(block + "attn_qkv.weight", 3 * HIDDEN, HIDDEN)
                sizes = {"attn_qkv": 3 * HIDDEN, "attn_output": HIDDEN, "ffn_up": INNER}
                for name, size in {**sizes, "ffn_down": HIDDEN}.items():
                    add(block + name + ".bias", size)
                for name in ("attn_norm", "ffn_norm"):
                    add(block + name + ".bias", HIDDEN)
                continue
            add(block + "ffn_gate.weight", INNER, HIDDEN)
            for part, rows in (("q", HEADS * HEAD), ("k", FEW * HEAD), ("v", FEW * HEAD)):
                add(block + f"attn_{part}.weight", rows, HIDDEN)
                if arch == "qwen2":
                    add(block + f"attn_{part}.bias", rows)
                if arch == "qwen3" and part != "v":
                    add(block + f"attn_{part}_norm.weight", HEAD)
        if arch == "gpt2":
            add("position_embd.weight", 128, HIDDEN)
            add("output_norm.bias", HIDDEN)

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.arch)
        for key, value in self.numbers.items():
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            else:
                writer.add_uint32(key, value)
        for key, value in self.words.items():
            writer.add_string(key, value)
        for key, value in self.lists.items():
            writer.add_array(key, value)
        for name, tensor in self.tensors.items():
            if name not in self.raw:
                writer.add_tensor(name, tensor)
        for name, (data, kind) in self.raw.items():
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def stored(folder: Path) -> dict[str, Floats]:
    """The tensors of model.safetensors, widened."""
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            bits = np.frombuffer(data[begin:end], "<u2").astype(np.uint32) << 16
            values = bits.view(np.float32)
        else:
            values = np.frombuffer(data[begin:end], "<f4")
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def converted(file: File, tmp_path: Path, *options: str) -> Path:
    out = tmp_path / "out"
    assert main([str(file.write(tmp_path / "m.gguf")), str(out), *options]) == 0
    return out


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def permuted(weight: Floats, heads: int) -> Floats:
    """As llama.cpp reorders rows of q and k: rotated pairs, half a head apart, come together."""
    rows = len(weight)
    return weight.reshape(heads, 2, rows // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


# Blocks, value by value, from the layouts of ggml's source.


def _half(raw: bytes) -> float:
    return float(np.frombuffer(raw, "<f2")[0])


def _q4_0(b: bytes) -> list[float]:
    d, q = _half(b[:2]), b[2:]
    return [d * ((x & 15) - 8) for x in q] + [d * ((x >> 4) - 8) for x in q]


def _q4_1(b: bytes) -> list[float]:
    d, m, q = _half(b[:2]), _half(b[2:4]), b[4:]
    return [d * (x & 15) + m for x in q] + [d * (x >> 4) + m for x in q]


def _fifth(high: int, index: int) -> int:
    return (high >> index & 1) << 4


def _q5_0(b: bytes) -> list[float]:
    d, high, q = _half(b[:2]), int.from_bytes(b[2:6], "little"), b[6:]
    low = [d * ((x & 15 | _fifth(high, i)) - 16) for i, x in enumerate(q)]
    return low + [d * ((x >> 4 | _fifth(high, i + 16)) - 16) for i, x in enumerate(q)]


def _q5_1(b: bytes) -> list[float]:
    d, m, high, q = _half(b[:2]), _half(b[2:4]), int.from_bytes(b[4:8], "little"), b[8:]
    low = [d * (x & 15 | _fifth(high, i)) + m for i, x in enumerate(q)]
    return low + [d * (x >> 4 | _fifth(high, i + 16)) + m for i, x in enumerate(q)]


def _q8_0(b: bytes) -> list[float]:
    return [_half(b[:2]) * x for x in np.frombuffer(b[2:], np.int8).tolist()]


def _q2_k(b: bytes) -> list[float]:
    scales, q, d, m = b[:16], b[16:80], _half(b[80:82]), _half(b[82:84])
    values = []
    for i in range(256):
        code = q[i // 128 * 32 + i % 32] >> (i % 128 // 32 * 2) & 3
        scale = scales[i // 16]
        values.append(d * (scale & 15) * code - m * (scale >> 4))
    return values


def _q3_k(b: bytes) -> list[float]:
    mask, q, packed, d = b[:32], b[32:96], b[96:108], _half(b[108:110])
    values = []
    for i in range(256):
        code = q[i // 128 * 32 + i % 32] >> (i % 128 // 32 * 2) & 3
        code -= 0 if mask[i % 32] >> (i // 32) & 1 else 4
        group = i // 16
        low = packed[group % 8] >> (group // 8 * 4) & 15
        high = packed[8 + group % 4] >> (group // 4 * 2) & 3
        values.append(d * ((low | high << 4) - 32) * code)
    return values


def _six_bits(packed: bytes, group: int) -> tuple[int, int]:
    """Scale and minimum of a group of Q4_K and Q5_K."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    scale = packed[group + 4] & 15 | packed[group - 4] >> 6 << 4
    return scale, packed[group + 4] >> 4 | packed[group] >> 6 << 4


def _q4_k(b: bytes) -> list[float]:
    d, m, packed, q = _half(b[:2]), _half(b[2:4]), b[4:16], b[16:]
    values = []
    for i in range(256):
        scale, least = _six_bits(packed, i // 32)
        values.append(d * scale * (q[i // 64 * 32 + i % 32] >> (i // 32 % 2 * 4) & 15) - m * least)
    return values


def _q5_k(b: bytes) -> list[float]:
    d, m, packed, high, q = _half(b[:2]), _half(b[2:4]), b[4:16], b[16:48], b[48:]
    values = []
    for i in range(256):
        scale, least = _six_bits(packed, i // 32)
        code = q[i // 64 * 32 + i % 32] >> (i // 32 % 2 * 4) & 15
        code |= (high[i % 32] >> (i // 32) & 1) << 4
        values.append(d * scale * code - m * least)
    return values


def _q6_k(b: bytes) -> list[float]:
    low, high, scales = b[:128], b[128:192], np.frombuffer(b[192:208], np.int8).tolist()
    d, values = _half(b[208:210]), []
    for i in range(256):
        half, within = divmod(i, 128)
        code = low[half * 64 + within % 64] >> (within // 64 * 4) & 15
        code |= (high[half * 32 + within % 32] >> (within // 32 * 2) & 3) << 4
        values.append(d * scales[i // 16] * (code - 32))
    return values


# Decoder, and where a block has its half-precision numbers.
BLOCKS = {
    Type.Q4_0: (_q4_0, [0]),
    Type.Q4_1: (_q4_1, [0, 2]),
    Type.Q5_0: (_q5_0, [0]),
    Type.Q5_1: (_q5_1, [0, 2]),
    Type.Q8_0: (_q8_0, [0]),
    Type.Q2_K: (_q2_k, [80, 82]),
    Type.Q3_K: (_q3_k, [108]),
    Type.Q4_K: (_q4_k, [0, 2]),
    Type.Q5_K: (_q5_k, [0, 2]),
    Type.Q6_K: (_q6_k, [208]),
}


def random_blocks(kind: Any, rows: int, columns: int) -> npt.NDArray[np.uint8]:
    """Any bits, but with finite scales."""
    size, length = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(kind.value)
    blocks = random.integers(0, 256, (rows * columns // size, length), np.uint8)
    for place in BLOCKS[kind][1]:
        scales = random.uniform(-0.1, 0.1, len(blocks)).astype("<f2")
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("kind", list(BLOCKS), ids=[kind.name for kind in BLOCKS])
def test_block_type(kind: Any, tmp_path: Path) -> None:
    file = File()
    raw = random_blocks(kind, INNER, HIDDEN)
    query = random_blocks(kind, HIDDEN, HIDDEN)
    file.raw["blk.1.ffn_gate.weight"] = (raw, kind)
    file.raw["blk.0.attn_q.weight"] = (query, kind)
    tensors = stored(converted(file, tmp_path, "--dtype", "float32"))
    decode, length = BLOCKS[kind][0], gguf.GGML_QUANT_SIZES[kind][1]

    def expected(data: npt.NDArray[np.uint8]) -> Floats:
        values = [decode(block.tobytes()) for block in data.reshape(-1, length)]
        return np.asarray(values, np.float64).reshape(len(data), HIDDEN).astype(np.float32)

    gate = tensors["model.layers.1.mlp.gate_proj.weight"]
    np.testing.assert_allclose(gate, expected(raw), rtol=2e-6, atol=1e-6)
    assert np.abs(gate).max() > 0.1
    rows = tensors["model.layers.0.self_attn.q_proj.weight"]
    np.testing.assert_allclose(permuted(rows, HEADS), expected(query), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_half_types(kind: str, tmp_path: Path) -> None:
    file = File()
    exact = np.round(file.tensors["blk.0.ffn_up.weight"] * 16) / 16  # few bits
    if kind == "F16":
        file.raw["blk.0.ffn_up.weight"] = (exact.astype(np.float16), Type.F16)
    else:
        bits = (exact.view(np.uint32) >> 16).astype("<u2")
        file.raw["blk.0.ffn_up.weight"] = (bits.view(np.uint8).reshape(INNER, -1), Type.BF16)
    tensors = stored(converted(file, tmp_path, "--dtype", "float32"))
    assert np.array_equal(tensors["model.layers.0.mlp.up_proj.weight"], exact)


def test_llama_rows_go_back(tmp_path: Path) -> None:
    file = File()
    query = file.tensors["blk.0.attn_q.weight"]
    key = file.tensors["blk.1.attn_k.weight"]
    file.tensors["blk.0.attn_q.weight"] = permuted(query, HEADS)
    file.tensors["blk.1.attn_k.weight"] = permuted(key, FEW)
    out = converted(file, tmp_path, "--dtype", "float32")
    tensors = stored(out)
    assert np.array_equal(tensors["model.layers.0.self_attn.q_proj.weight"], query)
    assert np.array_equal(tensors["model.layers.1.self_attn.k_proj.weight"], key)
    value = tensors["model.layers.1.self_attn.v_proj.weight"]
    assert np.array_equal(value, file.tensors["blk.1.attn_v.weight"])
    assert len(tensors) == 2 + 9 * LAYERS
    config = config_of(out)
    assert config["rms_norm_eps"] == 1e-5 and config["rope_theta"] == 50000.0
    assert config["tie_word_embeddings"] is True and config["vocab_size"] == VOCABULARY
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (HEADS, FEW)
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 1)
    assert config["torch_dtype"] == "float32"


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_qwen(arch: str, tmp_path: Path) -> None:
    file = File(arch, "qwen2")
    file.tensors["output.weight"] = file.tensors["token_embd.weight"] + np.float32(1)
    out = converted(file, tmp_path, "--dtype", "float32")
    tensors = stored(out)
    query = tensors["model.layers.0.self_attn.q_proj.weight"]
    assert np.array_equal(query, file.tensors["blk.0.attn_q.weight"])
    assert np.array_equal(tensors["lm_head.weight"], file.tensors["output.weight"])
    assert config_of(out)["tie_word_embeddings"] is False
    more = "q_proj.bias" if arch == "qwen2" else "k_norm.weight"
    name = "attn_q.bias" if arch == "qwen2" else "attn_k_norm.weight"
    found = tensors[f"model.layers.1.self_attn.{more}"]
    assert np.array_equal(found, file.tensors[f"blk.1.{name}"])


def test_gpt2_is_transposed(tmp_path: Path) -> None:
    file = File("gpt2")
    out = converted(file, tmp_path, "--dtype", "float32")
    tensors = stored(out)
    fused = tensors["transformer.h.1.attn.c_attn.weight"]
    assert fused.shape == (HIDDEN, 3 * HIDDEN)
    assert np.array_equal(fused, file.tensors["blk.1.attn_qkv.weight"].T)
    down = tensors["transformer.h.0.mlp.c_proj.weight"]
    assert np.array_equal(down, file.tensors["blk.0.ffn_down.weight"].T)
    positions = tensors["transformer.wpe.weight"]
    assert np.array_equal(positions, file.tensors["position_embd.weight"])


def test_a_head_that_is_the_embedding_is_tied(tmp_path: Path) -> None:
    file = File()
    file.tensors["output.weight"] = file.tensors["token_embd.weight"]
    out = converted(file, tmp_path)
    assert "lm_head.weight" not in stored(out)
    assert config_of(out)["tie_word_embeddings"] is True


def test_bfloat16_is_the_nearest(tmp_path: Path) -> None:
    file = File()
    rows = file.tensors["blk.0.ffn_up.weight"]
    rows[0, :4] = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x00000001], "<u4").view("<f4")
    found = stored(converted(file, tmp_path))["model.layers.0.mlp.up_proj.weight"]
    bits = found[0, :4].astype("<f4").view("<u4")
    assert bits.tolist() == [0x3F800000, 0x3F820000, 0x3F810000, 0]  # ties to even
    assert np.abs(found - rows).max() <= 2.0**-8 * np.abs(rows).max()


def test_large_tensors_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = converted(File(), tmp_path)
    monkeypatch.setattr("fp8lab.gguf.source.CHUNK", 3 * HIDDEN + 1)
    again = tmp_path / "again"
    assert main([str(tmp_path / "m.gguf"), str(again)]) == 0
    name = "model.safetensors"
    assert (again / name).read_bytes() == (whole / name).read_bytes()


def test_scaling_of_llama_3(tmp_path: Path) -> None:
    file = File()
    file.numbers["llama.rope.freq_base"] = 500000.0
    frequency = 500000.0 ** (-np.arange(0, HEAD, 2) / HEAD)
    scaled = []
    for value in frequency:  # transformers' _compute_llama3_parameters
        wavelength = 2 * np.pi / value
        smooth = (8192 / wavelength - 1) / (4 - 1)
        between = (1 - smooth) * value / 32 + smooth * value
        slow, fast = wavelength > 8192, wavelength < 8192 / 4
        scaled.append(value / 32 if slow else value if fast else between)
    file.tensors["rope_freqs.weight"] = (frequency / np.array(scaled)).astype(np.float32)
    scaling = config_of(converted(file, tmp_path))["rope_scaling"]
    assert scaling["rope_type"] == "llama3" and scaling["factor"] == 32.0
    assert scaling["original_max_position_embeddings"] == 8192


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["It", "'s", " 1234", " tiles", ",", "  ", " no", "\n"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", " tiles", ",", "  ", " no", "\n"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", " tiles", ",", "  ", " no", "\n"]),
        ("llama-bpe", ["It", "'s", " ", "123", "4", " tiles", ",", "  ", " no", "\n"]),
    ],
)
def test_words_of_a_pre_tokenizer(pre: str, words: list[str], tmp_path: Path) -> None:
    out = converted(File(pre=pre), tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    text = "It's 1234 tiles,   no\n"
    cut = [text[begin:end] for _, (begin, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert cut == words
    encoding = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(encoding.ids) == text
    assert tokenizer.encode("<|end|>", add_special_tokens=False).ids == [1]
    assert tokenizer.token_to_id("[PAD0]") is None
    begins = tokenizer.encode("a").ids[0] == 0
    assert begins == (pre == "llama-bpe")
    config = json.loads((out / "tokenizer_config.json").read_text())
    assert config.get("bos_token") == (None if pre == "qwen2" else "<|begin|>")
    assert config["eos_token"] == "<|end|>" and config["model_max_length"] == 128


def test_contractions_and_marks(tmp_path: Path) -> None:
    """What tells the expression of Llama 3 and Qwen2 from GPT-2's: case, one mark before a word."""
    out = converted(File(pre="qwen2"), tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    text = "IT'S (a)\n\n b"
    cut = [text[begin:end] for _, (begin, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    assert cut == ["IT", "'S", " (", "a", ")\n\n", " b"]
    assert tokenizer.normalizer.normalize_str("e\u0301") == "\u00e9"


def test_sentence_pieces(tmp_path: Path) -> None:
    file = File()
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [2, 3, 3] + [6] * 256
    scores = [0.0] * len(pieces)
    for score, piece in enumerate(
        ["\u2581t", "he", "\u2581the", "in", "\u2581", "t", "h", "e", "i", "n", "th"]
    ):
        pieces.append(piece)
        types.append(1)
        scores.append(-float(score) - 1)
    file.words = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }
    file.lists = {
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
    }
    file.numbers["tokenizer.ggml.bos_token_id"] = 1
    file.numbers["tokenizer.ggml.eos_token_id"] = 2
    file.numbers["tokenizer.ggml.unknown_token_id"] = 0
    out = converted(file, tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json"))
    encoding = tokenizer.encode("the thin \u00e9")
    assert encoding.tokens == [
        "<s>", "\u2581the", "\u2581t", "h", "in", "\u2581", "<0xC3>", "<0xA9>",
    ]  # fmt: skip
    assert tokenizer.decode(encoding.ids) == "the thin \u00e9"
    assert tokenizer.encode("nthe").tokens == ["<s>", "\u2581", "n", "t", "he"]  # before th
    config = json.loads((out / "tokenizer_config.json").read_text())
    assert config["chat_template"] == "{{ messages[0].content }}"
    assert (config["bos_token"], config["unk_token"]) == ("<s>", "<unk>")


def refusal(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int = 2) -> str:
    """One line, and nothing of the folder is left."""
    capsys.readouterr()
    out = tmp_path / "out"
    assert main([str(path), str(out)]) == status
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("fp8lab.gguf: ")
    assert not [entry for entry in tmp_path.iterdir() if "out" in entry.name]
    return said


def _no_head_count(file: File) -> None:
    del file.numbers["llama.attention.head_count"]


def _unknown_metadata(file: File) -> None:
    file.numbers["llama.logit_scale"] = 2.0


def _experts(file: File) -> None:
    file.numbers["llama.expert_count"] = 8


def _other_architecture(file: File) -> None:
    file.arch = "gemma2"


def _unknown_tensor(file: File) -> None:
    file.tensors["blk.0.attn_sinks.weight"] = np.zeros(4, np.float32)


def _missing_tensor(file: File) -> None:
    del file.tensors["blk.1.ffn_down.weight"]


def _wrong_shape(file: File) -> None:
    file.tensors["blk.1.ffn_down.weight"] = np.zeros((HIDDEN, HIDDEN), np.float32)


def _not_finite(file: File) -> None:
    file.tensors["blk.0.attn_v.weight"][3, 5] = np.nan


def _too_large(file: File) -> None:
    file.tensors["blk.0.attn_v.weight"][3, 5] = np.finfo(np.float32).max


def _integers(file: File) -> None:
    file.raw["blk.0.attn_v.weight"] = (np.zeros((FEW * HEAD, HIDDEN), np.int8), None)


def _other_pre_tokenizer(file: File) -> None:
    file.words["tokenizer.ggml.pre"] = "tekken"


def _other_tokenizer(file: File) -> None:
    file.words["tokenizer.ggml.model"] = "t5"


def _no_tokenizer(file: File) -> None:
    del file.words["tokenizer.ggml.model"]


def _part_rotated(file: File) -> None:
    file.numbers["llama.rope.dimension_count"] = HEAD // 2


def _imatrix(file: File) -> None:
    file.words["general.type"] = "imatrix"


def _split(file: File) -> None:
    file.numbers["split.count"] = 3


def _other_factors(file: File) -> None:
    file.tensors["rope_freqs.weight"] = np.full(HEAD // 2, 2, np.float32)


def _odd_merge(file: File) -> None:
    file.lists["tokenizer.ggml.merges"] = ["abc", *MERGES]


def _merge_of_nothing(file: File) -> None:
    file.lists["tokenizer.ggml.merges"] = ["zq qz", *MERGES]


def _special_beyond(file: File) -> None:
    file.numbers["tokenizer.ggml.eos_token_id"] = 100000


def _text_for_a_number(file: File) -> None:
    del file.numbers["llama.block_count"]
    file.words["llama.block_count"] = "two"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_no_head_count, "llama.attention.head_count is missing"),
        (_unknown_metadata, "llama.logit_scale is not known"),
        (_experts, "llama.expert_count = 8 is not supported; accepted: 0"),
        (_other_architecture, "is 'gemma2'; accepted: llama, qwen2, qwen3, gpt2"),
        (_unknown_tensor, "tensor blk.0.attn_sinks.weight is none of the architecture llama"),
        (_missing_tensor, "tensor blk.1.ffn_down.weight is missing"),
        (_wrong_shape, "tensor blk.1.ffn_down.weight has the shape (256, 256); expected: (256, 5"),
        (_not_finite, "blk.0.attn_v.weight: holds values that are not finite"),
        (_too_large, "blk.0.attn_v.weight: holds values beyond bfloat16"),
        (_integers, "blk.0.attn_v.weight: is of the type I8"),
        (_other_pre_tokenizer, "is 'tekken'; accepted: gpt-2, smollm, qwen2, llama-bpe"),
        (_other_tokenizer, "tokenizer.ggml.model is 't5'; accepted: gpt2, llama"),
        (_no_tokenizer, "tokenizer.ggml.model is missing"),
        (_part_rotated, "llama.rope.dimension_count is not 64"),
        (_imatrix, "general.type = imatrix is not supported; accepted: model"),
        (_split, "split.count = 3 is not supported"),
        (_other_factors, "rope_freqs.weight is not the scaling of Llama 3.1"),
        (_odd_merge, "tokenizer.ggml.merges holds 'abc', which is no pair"),
        (_merge_of_nothing, "and merges are no BPE"),
        (_special_beyond, "tokenizer.ggml.eos_token_id is 100000"),
        (_text_for_a_number, "llama.block_count is 'two'; accepted: an integer"),
    ],
)
def test_refused(
    change: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = File()
    change(file)
    assert said in refusal(file.write(tmp_path / "m.gguf"), tmp_path, capsys)


def test_every_cut_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = File().write(tmp_path / "m.gguf")
    whole = path.read_bytes()
    begin = gguf.GGUFReader(path).data_offset
    places = [
        0,
        3,
        4,
        9,
        23,
        24,
        40,
        100,
        begin // 2,
        begin - 1,
        begin,
        begin + 100,
        len(whole) - 40,
    ]
    for place in places:
        path.write_bytes(whole[:place])
        said = refusal(path, tmp_path, capsys)
        assert "is no GGUF file" in said or "is cut off or damaged" in said


def test_pipes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    words = [sys.executable, "-m", "fp8lab.gguf", str(tmp_path / "pipe.gguf"), str(tmp_path / "o")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src/python")}
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, env=environment)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "pipe.gguf: is no regular file" in done.stderr


def of_metadata(path: Path, *values: bytes) -> Path:
    """A file without tensors, whose keys have these types and values."""
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(values))
    keys = (struct.pack("<Q", 2) + b"k%d" % i for i in range(len(values)))
    path.write_bytes(head + b"".join(map(b"".join, zip(keys, values))) + bytes(64))
    return path


def test_arrays_that_do_not_end_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array, number, text = (struct.pack("<I", code) for code in (9, 4, 8))
    one, many = struct.pack("<Q", 1), struct.pack("<Q", 1 << 40)
    for value, said in {
        array + (array + one) * 5000 + number + one + bytes(4): "an array of arrays",
        array + number + many: "beyond the end of the file",
        array + text + many: "is cut off or damaged",
        text + many: "beyond the end of the file",
        struct.pack("<I", 77): "of the unknown type 77",
    }.items():
        path = of_metadata(tmp_path / "m.gguf", value)
        line = refusal(path, tmp_path, capsys)
        assert "m.gguf: is cut off or damaged" in line and said in line


def test_a_folder_that_exists_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = File().write(tmp_path / "m.gguf")
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    assert main([str(path), str(out)]) == 2
    assert "exists; accepted: a new folder" in capsys.readouterr().err
    assert [entry.name for entry in out.iterdir()] == ["mine"]


def test_a_full_disk_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = File().write(tmp_path / "m.gguf")
    count = 0

    def full(*arguments: Any) -> bytes:
        nonlocal count
        count += 1
        if count == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return encoded(*arguments)

    encoded = folder_module._encoded
    monkeypatch.setattr(folder_module, "_encoded", full)
    assert "No space left on device" in refusal(path, tmp_path, capsys, status=1)


def test_a_signal_leaves_nothing(tmp_path: Path) -> None:
    file = File()
    file.numbers["llama.feed_forward_length"] = INNER
    path = file.write(tmp_path / "m.gguf")
    slow = (
        "import sys, time\nfrom fp8lab.gguf import folder\nfrom fp8lab.gguf.__main__ import main\n"
        "real = folder._encoded\n"
        "folder._encoded = lambda *a: (time.sleep(0.2), real(*a))[1]\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src/python")}
    words = [sys.executable, "-c", slow, str(path), str(tmp_path / "out")]
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".out.tmp-*/model.safetensors")):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 130 and said == "fp8lab.gguf: interrupted; nothing is written\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.gguf"]


def test_a_missing_package_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = File().write(tmp_path / "m.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)  # type: ignore[misc]
    said = refusal(path, tmp_path, capsys)
    assert "gguf is not installed: " in said and "pip install gguf" in said


@pytest.mark.skipif("FP8LAB_PROGRAM" not in os.environ, reason="FP8LAB_PROGRAM names no program")
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gpt2"])
def test_the_program_reads_the_folder(arch: str, tmp_path: Path) -> None:
    file = File(arch)
    out = converted(file, tmp_path)
    (tmp_path / "p.jsonl").write_text('{"prompt": [5, 6, 7]}\n')
    words = [os.environ["FP8LAB_PROGRAM"], "generate", str(out), "--prompts"]
    words += [str(tmp_path / "p.jsonl"), "--max-new-tokens", "3", "--sequence-length", "16"]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "3 tokens" in result.stdout
