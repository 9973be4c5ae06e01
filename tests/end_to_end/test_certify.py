"""fp8lab certify: generation has the bits of training, or the gaps are told.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_files import CONFIG, random_tensors, write_folder
from program import refused, run, succeeded

TRAIN = """\
name = "sums"
recipe = "infir2"
model = "tiny"
[logging]
statistics_every_steps = 0
[[stages]]
name = "sft"
kind = "sft"
steps = 4
batch_sequences = 2
sequence_length = 128
[stages.learning_rate]
warmup_steps = 1
[stages.data]
kind = "jsonl"
path = "train.jsonl"
"""

SMALL = ("--together", "1,4", "--rollouts", 4, "--prefill-chunk", "5", "--max-new-tokens", 6)


def write_lines(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run with its data."""
    folder = tmp_path_factory.mktemp("certify")
    rows = [
        {"question": f"What is {i} plus {i * i}?", "answer": f"{i + i * i}\n#### {i + i * i}"}
        for i in range(12)
    ]
    write_lines(folder / "train.jsonl", rows)
    (folder / "run.toml").write_text(TRAIN)
    assert run("train", "--config", "run.toml", "--out", "run", cwd=folder).returncode == 0
    return folder


def certificate(*words: object, cwd: Path) -> tuple[str, dict[str, Any]]:
    """What is printed, and the numbers; the command must succeed."""
    result = run("certify", *words, "--json", "c.json", cwd=cwd, timeout=300)
    assert result.returncode == 0, (result.returncode, result.stdout, result.stderr)
    found: dict[str, Any] = json.loads((cwd / "c.json").read_text())
    return result.stdout, found


def test_a_run_generates_as_it_trains(folder: Path) -> None:
    text, found = certificate("run", "--max-new-tokens", 8, cwd=folder)
    count = found["training"][0]["tokens"]
    words = f"exact: 0 of {count} tokens differ (batch 1, 8, 64; cached, whole, prefill in chunks"
    assert words in text and found["verdict"].startswith(words)
    assert found["exact"] and found["holds"] and found["expected"] == {"exact": True, "reasons": []}
    assert found["sequences"] == 128 and 128 <= count <= 128 * 8
    ways = [row["way"] for row in found["training"]]
    assert ways[:3] == ["batch 1", "batch 8", "batch 64"]
    assert ways[3] == "batch 64, prefill in chunks of 16"
    for row in found["training"] + found["whole"]:
        assert row["must_be_exact"] and row["different"] == row["chosen_otherwise"] == 0
        assert row["gap_largest"] == row["k3"] == 0 and "first_difference" not in row
        assert row["histogram"][0]["tokens"] == row["tokens"] == count
    # Documents that begin between tiles of attention are summed in other groups.
    assert found["packed"]["different"] > 0 and not found["packed"]["must_be_exact"]
    checkpoint = certificate("run/checkpoint.safetensors", "--max-new-tokens", 8, cwd=folder)[1]
    assert checkpoint["training"] == found["training"]


@pytest.mark.parametrize("recipe", ["bf16", "mxfp8", "infir2_e5m2", "torchao_rowwise"])
def test_recipes_local_to_a_token_are_exact(folder: Path, recipe: str) -> None:
    text, found = certificate("run", "--recipe", recipe, *SMALL, cwd=folder)
    assert found["exact"] and "the same bits are due" in text
    assert [row["way"] for row in found["whole"]] == [
        "batch 1", "batch 4", "batch 4, prefill in chunks of 5",
    ]  # fmt: skip


def test_a_mixed_pair_has_gaps_and_says_why(folder: Path) -> None:
    words = ("run", "--recipe", "bf16", "--rollout-recipe", "infir2", *SMALL, "--bucket", 2)
    text, found = certificate(*words, cwd=folder)
    assert found["recipe"] == "bf16" and found["rollout_recipe"] == "infir2"
    assert not found["exact"] and found["holds"] and found["expected_of_generation"]["exact"]
    assert "fprop.x is bf16 in training and e4m3fn/1x128" in found["expected"]["reasons"][0]
    assert "gaps: " in text and "by position in the completion" in text
    for row in found["training"]:
        assert row["different"] > 0 and row["gap_largest"] > 0 and row["k3"] > 0
        assert sum(part["tokens"] for part in row["histogram"]) == row["tokens"]
        parts = row["by_position"]
        assert [part["first"] for part in parts] == list(range(0, 2 * len(parts), 2))
        assert sum(part["different"] for part in parts) == row["different"]
        first = row["first_difference"]
        assert first["full"] != first["decoded"] and first["position"] == 0
    assert all(row["different"] == 0 for row in found["whole"])
    again = certificate(*words, "--threads", 1, cwd=folder)[1]
    assert {**again, "device": found["device"]} == found


def test_a_scale_of_the_tensor_promises_nothing(folder: Path) -> None:
    found = certificate("run", "--recipe", "e4m3_tensor", *SMALL, cwd=folder)[1]
    reason = found["expected"]["reasons"][0]
    assert reason.startswith("fprop.x, e4m3fn/tensor") and "the whole tensor" in reason
    assert "layers.0.attention" in reason
    assert not found["exact"] and found["holds"]
    assert found["training"][1]["different"] > 0 and found["whole"][1]["different"] > 0


def test_delayed_scales_are_those_of_the_checkpoint(folder: Path) -> None:
    train = ("train", "--config", "run.toml", "--recipe", "te_delayed", "--out", "delayed")
    assert run(*train, cwd=folder).returncode == 0
    assert certificate("delayed", *SMALL, cwd=folder)[1]["exact"]
    # In its warm-up a history is not used yet: the scale is that of the tensor.
    recipes = Path(__file__).parents[2] / "experiments/recipes"
    recipe = (recipes / "transformer_engine/te_delayed.toml").read_text()
    recipe = recipe.replace("history = 1024", "history = 1024\nwarmup_steps = 100")
    (folder / "warming.toml").write_text(recipe.replace('"te_delayed"', '"warming"'))
    train = ("train", "--config", "run.toml", "--recipe", "warming.toml", "--out", "warming")
    assert run(*train, cwd=folder).returncode == 0
    found = certificate("warming", *SMALL, cwd=folder)[1]
    assert "in its warm-up" in found["expected"]["reasons"][0]
    assert found["holds"] and not found["exact"]
    words = ("certify", "run", "--rollout-recipe", "te_delayed", *SMALL)
    assert "amax history" in refused(*words, cwd=folder)


def test_prompts_and_data_of_the_command_line(folder: Path, tmp_path: Path) -> None:
    text = certificate("run", "--prompt", "What?", "--prompt", "Why is it so?", *SMALL, cwd=folder)
    assert "from 2 prompts of 6 to 14 tokens" in text[0]
    write_lines(folder / "prompts.jsonl", [{"prompt": "p" * i} for i in range(8, 15)])
    few = ("--together", "2", "--prefill-chunk", "3", "--max-new-tokens", 3)
    given = certificate("run", "--prompts", "prompts.jsonl", *few, cwd=folder)
    assert given[1]["sequences"] == 14 and given[1]["exact"]
    (folder / "text.txt").write_text("A text of bytes, of some length.\n\nAnd another one.\n")
    text = certificate("run", "--data", "text.txt", *SMALL, cwd=folder)
    assert "from 2 prompts of 9 to 17 tokens" in text[0]
    write_folder(tmp_path / "model", random_tensors(CONFIG))
    write_lines(tmp_path / "ids.jsonl", [{"prompt": [5, 6, 7] * 3}, {"prompt": [300] * 20}])
    ids = certificate("model", "--prompts", "ids.jsonl", "--recipe", "mxfp8", *SMALL, cwd=tmp_path)
    assert ids[1]["exact"] and ids[1]["training"][0]["tokens"] == 8 * 6


def test_prompts_are_read_in_chunks_with_the_same_bits(folder: Path) -> None:
    words = ("generate", "run", "--prompt", "What is 3 plus 3?", "--prompt", "Why", "--json",
             "--log-probabilities", "--max-new-tokens", 6, "--temperature", 1)  # fmt: skip
    whole = succeeded(*words, cwd=folder)
    for chunk in (1, 7):
        assert succeeded(*words, "--prefill-chunk", chunk, cwd=folder) == whole
    mixed = (*words, "--recipe", "e4m3_tensor")
    pieces = succeeded(*mixed, "--prefill-chunk", 1, cwd=folder)
    assert pieces != succeeded(*mixed, cwd=folder)


def test_bad_input_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "model", random_tensors(CONFIG))
    model = tmp_path / "model"
    for arguments, words in {
        (): "SOURCE is missing; usage: fp8lab ",
        ("run", "--together", "1,,2"): "--together 1,,2: accepted: different numbers from 1 to",
        ("run", "--together", "2,2"): "--together 2,2",
        ("run", "--together", "0"): "--together 0",
        ("run", "--together", "300"): "takes 256 tokens",
        ("run", "--together", "8", "--rollouts", 4): "--rollouts 4: accepted: 8 to",
        ("run", "--prefill-chunk", "9999"): "--prefill-chunk 9999 splits no prompt",
        ("run", "--max-new-tokens", 127): "no prompt of the data leaves room for 127 tokens",
        ("run", "--temperature", 0): "accepted: above 0",
        ("run", "--end", 400): "--end 400",
        ("run", "--max-new-tokens", 8, "--min-new-tokens", 9): "9 is more than --max-new-tokens 8",
        ("run", "--prompt", "a" * 100): "do not fit a sequence of 128",
        ("run", "--prompt", "a", "--data", "train.jsonl"): "--data is for prompts of documents",
        ("run", "--form", "running_text"): "--form is for --data",
        ("run", "--vocabulary", "bytes"): "--vocabulary is for --prompt",
        ("run", "--backend", "truth"): "--backend truth: accepted: cpu or cuda",
        ("run", "--rollout-recipe", "fp32"): "activations are f32",
        ("run", "--json", "none/c.json"): "none",
        (model,): "is no run with data of its own",
    }.items():  # fmt: skip
        assert words in refused("certify", *arguments, cwd=folder), arguments
