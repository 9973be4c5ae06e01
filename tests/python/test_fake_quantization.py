"""Fake quantization in PyTorch beside the program: the rules bit for bit, and `assess` on a small
model that transformers has made.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("xxhash", reason="xxhash is not installed")

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "src/python"), str(ROOT / "tests/reference")]

import compare_fake_quantization as comparison  # noqa: E402
import fake_quantization  # noqa: E402
from fake_quantization import RULES, fake_quantized  # noqa: E402
from fp8lab.tokens.shards import ShardWriter, Tokenization  # noqa: E402

pytestmark = pytest.mark.skipif(
    "FP8LAB_PROGRAM" not in os.environ, reason="FP8LAB_PROGRAM names no program"
)
VOCABULARY, DOCUMENTS, SEQUENCES, LENGTH = 96, 14, 12, 64
RECIPES = ("infir2", "te_current", "nvfp4", "ptq_int8")


def program(*words: object, cwd: Path) -> None:
    subprocess.run([os.environ["FP8LAB_PROGRAM"], *map(str, words)], check=True, cwd=cwd)


# --- the rules ------------------------------------------------------------------------------------


@pytest.fixture(name="matrix", scope="module")
def fixture_matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BF16 numbers over many powers of two, with a row and a tile of zeros, a channel that stands
    out, and sides that are no multiples of a tile."""
    random = np.random.default_rng(5)
    rows = np.exp(3.0 * random.standard_normal((200, 1)))
    x = (random.standard_normal((200, 300)) * rows).astype(np.float32)
    x[:, 7] *= 512.0
    x[:, 128:200] *= 2.0**-10
    x[5] = 0.0
    x[128:, :16] = 0.0
    folder = tmp_path_factory.mktemp("matrix")
    np.save(folder / "x.npy", torch.from_numpy(x).to(torch.bfloat16).to(torch.float32).numpy())
    return folder


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("operand", ("x", "w"))
def test_rules_have_the_bits_of_the_program(matrix: Path, rule: str, operand: str) -> None:
    slot = ("--recipe", rule, "--slot", f"fprop.{operand}")
    program("quantize", "x.npy", *slot, "--dequantized", "read_back.npy", cwd=matrix)
    x = torch.from_numpy(np.load(matrix / "x.npy"))
    found = getattr(RULES[rule], operand)(x).numpy()
    expected = np.load(matrix / "read_back.npy")
    assert (expected != x.numpy()).mean() > 0.2
    np.testing.assert_array_equal(found, expected)


# --- models ---------------------------------------------------------------------------------------


def chain(random: np.random.Generator, length: int) -> list[int]:
    """Tokens of which the next is mostly a function of the last one."""
    tokens = [int(random.integers(VOCABULARY))]
    for _ in range(length - 1):
        follows = (7 * tokens[-1] + 3) % VOCABULARY
        tokens.append(follows if random.random() < 0.8 else int(random.integers(VOCABULARY)))
    return tokens


@torch.no_grad()
def plant(model: Any) -> None:
    """The same function with a channel 2^8 times as large where linear layers read it."""
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, readers in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            norm.weight[7] *= 256.0
            for reader in readers:
                reader.weight[:, 7] /= 256.0


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama that has learned such chains and has a channel that stands out, a shard of
    them, and what `assess` says."""
    folder = tmp_path_factory.mktemp("fake")
    torch.manual_seed(3)
    random = np.random.default_rng(3)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(60):
        batch = torch.tensor([chain(random, 64) for _ in range(8)])
        optimizer.zero_grad()
        model(batch, labels=batch).loss.backward()
        optimizer.step()
    plant(model)
    model.to(torch.bfloat16).save_pretrained(folder / "model")
    writer = ShardWriter(folder, "held", Tokenization(VOCABULARY, -1, -1, 0), masked=False)
    for _ in range(DOCUMENTS):
        tokens = chain(random, int(random.integers(40, 100)))
        writer.add(tokens, [True] * len(tokens))
    writer.finish()
    sizes = ("--sequences", SEQUENCES, "--sequence-length", LENGTH, "--gradient-sequences", 0)
    recipes = [word for recipe in RECIPES for word in ("--recipe", recipe)]
    where = ("--data", "held-00000.tokens", "--out", "assessed", "--python", sys.executable)
    program("assess", "model", *where, *sizes, *recipes, cwd=folder)
    return folder


def compare(folder: Path, *words: object, facts: str = "assessed/facts.json") -> tuple[int, Any]:
    """Exit status and figures."""
    data = ("--data", folder / "held-00000.tokens", "--facts", folder / facts)
    end = ("--program", os.environ["FP8LAB_PROGRAM"], "--json", folder / "compared.json")
    sizes = ("--prompt-tokens", 8, "--new-tokens", 16, "--prompts", 4)
    arguments = [str(word) for word in (folder / "model", *data, *end, *sizes, *words)]
    status = comparison.main(arguments)
    return status, json.loads((folder / "compared.json").read_text())


def test_assess_agrees(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = compare(folder)
    said = capsys.readouterr().out
    assert status == 0, said
    assert found["passed"] and [gap["rule"] for gap in found["gaps"]] == list(RECIPES)
    losses = found["losses"]
    assert losses["fp8lab"] < 0.6 * np.log(VOCABULARY), "the model has learned nothing"
    assert losses["BF16, FP32 sums"] == pytest.approx(losses["BF16"], rel=1e-3)
    for gap in found["gaps"]:
        assert gap["within"] and gap["difference"][0] == pytest.approx(
            gap["pytorch"][0] - gap["fp8lab"][0], abs=1e-12
        )
        assert gap["rule"] in said
    assert found["gaps"][RECIPES.index("ptq_int8")]["fp8lab"][0] > 0.02
    for greedy in found["greedy"].values():
        assert greedy["tokens"] == 4 * 16 and greedy["same"] + len(greedy["gaps"]) == 64
        assert greedy["same"] >= 60, greedy


def test_another_rule_is_noticed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RULES, "infir2", RULES["ptq_int8"])
    status, found = compare(folder, "--prompts", 0)
    outside = [gap["rule"] for gap in found["gaps"] if not gap["within"]]
    assert (status, outside, found["passed"], found["greedy"]) == (1, ["infir2"], False, {})
    assert "NO" in capsys.readouterr().out


def test_other_losses_and_other_tokens_are_noticed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = json.loads((folder / "assessed/facts.json").read_text())
    for row in facts["recipes"]:
        row["sums"] = [1.003 * value for value in row["sums"]]
    (folder / "larger.json").write_text(json.dumps(facts))
    status, found = compare(folder, "--prompts", 0, facts="larger.json")
    assert status == 1 and all(gap["within"] for gap in found["gaps"])
    assert "not within 0.2% of that of transformers" in capsys.readouterr().out
    facts["documents"][:2] = reversed(facts["documents"][:2])
    facts["documents"][0][2], facts["documents"][1][2] = 1, 2
    (folder / "others.json").write_text(json.dumps(facts))
    with pytest.raises(SystemExit, match="tokens by document"):
        compare(folder, facts="others.json")
    facts["documents"][0][1] = DOCUMENTS
    (folder / "more.json").write_text(json.dumps(facts))
    with pytest.raises(SystemExit, match=f"has {DOCUMENTS} documents"):
        compare(folder, facts="more.json")
    facts["recipes"] = facts["recipes"][:1]
    (folder / "none.json").write_text(json.dumps(facts))
    with pytest.raises(SystemExit, match="at least one recipe"):
        compare(folder, facts="none.json")


def test_linear_layers_are_replaced_and_put_back(folder: Path) -> None:
    model = comparison.load(folder / "model", torch.bfloat16)
    before = {name: type(module) for name, module in model.named_modules()}
    for rule, matrices in (("infir2", 8), ("nvfp4", 4), ("ptq_int8", 9), (None, 0)):
        with fake_quantized(model, RULES[rule] if rule else None) as quantized:
            assert quantized == matrices  # qkv, o, gate and up, down of each layer, lm_head
            kinds = [type(module) for module in model.modules()]
            has_head = rule == "ptq_int8"
            assert kinds.count(fake_quantization.FakeQuantizedLinear) == 14 + has_head
            assert isinstance(model.lm_head, torch.nn.Linear) != has_head
        assert {name: type(module) for name, module in model.named_modules()} == before


def test_a_tile_of_weights_holds_rows_of_layers_that_read_one_input(folder: Path) -> None:
    """q, k and v are rows 0 to 191, 192 to 255 and 256 to 319 of one matrix: the second tile of
    128 rows holds the last of q, and k."""
    model = comparison.load(folder / "model", torch.float32)
    attention = model.model.layers[0].self_attn
    names = ("q_proj", "k_proj", "v_proj")
    with torch.no_grad():
        attention.k_proj.weight *= 512.0
    w = torch.cat([getattr(attention, name).weight.detach() for name in names])
    with fake_quantized(model, RULES["infir2"]):
        q, k, v = (getattr(attention, name).w for name in names)
    assert torch.equal(torch.cat([q, k, v]), RULES["infir2"].w(w))
    alone = RULES["infir2"].w(w[:192])
    assert torch.equal(q[:128], alone[:128]) and not torch.equal(q[128:], alone[128:])


def test_pieces_of_documents() -> None:
    documents = [np.arange(10, 16), np.arange(20, 23), np.arange(30, 40)]
    first, second, third = comparison.packed(documents, 3, 4)
    assert first.tokens.tolist() == [10, 11, 12, 13] and first.targets.tolist() == [11, 12, 13, 14]
    assert second.tokens.tolist() == [14, 20, 21, 30]
    assert second.places.tolist() == [0, 0, 1, 0] and second.documents.tolist() == [0, 1, 1, 2]
    assert third.tokens.tolist() == [31, 32, 33, 34] and third.places.tolist() == [0, 1, 2, 3]
    mask = comparison.mask_of(second, torch.float32)[0, 0]
    assert (mask == 0).int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    with pytest.raises(SystemExit, match="16 tokens are fewer than 5 x 4"):
        comparison.packed(documents, 5, 4)
