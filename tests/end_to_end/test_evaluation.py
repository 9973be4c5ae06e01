"""fp8lab eval and generate on a run, a checkpoint and a Hugging Face folder.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import h5py
import pytest
from model_files import CONFIG, random_tensors, write_folder

PROGRAM = os.environ["FP8LAB_PROGRAM"]

RUN = """\
name = "sums"
recipe = "infir2"
model = "tiny"
[logging]
statistics_every_steps = 0
[[stages]]
name = "sft"
kind = "sft"
steps = 6
batch_sequences = 2
sequence_length = 128
[stages.learning_rate]
warmup_steps = 1
[stages.data]
kind = "jsonl"
path = "train.jsonl"
[stages.eval]
sequences = 2
exact_match = 3
max_new_tokens = 10
multiple_choice = "choices.jsonl"
[stages.eval.data]
kind = "jsonl"
path = "held.jsonl"
[stages.eval.pass_at_k]
problems = 2
samples = 3
k = [1, 3]
[stages.eval.rollout]
prompts = 2
bucket = 4
"""


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    words = [PROGRAM, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, timeout=300, check=False)


def succeeded(*arguments: object, cwd: Path | None = None) -> str:
    result = run(*arguments, cwd=cwd)
    assert result.returncode == 0, (result.returncode, result.stderr)
    return result.stdout


def refused(*arguments: object, cwd: Path | None = None) -> str:
    """The message of a command that must end with status 2 and one line on standard error."""
    result = run(*arguments, cwd=cwd)
    assert result.returncode == 2, (result.returncode, result.stdout, result.stderr)
    assert result.stderr.startswith("fp8lab: ") and result.stderr.count("\n") == 1, result.stderr
    assert result.stdout == ""
    return result.stderr


def write_lines(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run with its data."""
    folder = tmp_path_factory.mktemp("evaluation")
    for name, first in {"train": 0, "held": 40}.items():
        rows = [
            {"question": f"What is {i} plus 3?", "answer": f"{i} + 3 = {i + 3}\n#### {i + 3}"}
            for i in range(first, first + 12)
        ]
        write_lines(folder / f"{name}.jsonl", rows)
    write_lines(
        folder / "choices.jsonl",
        [{"question": "1 + 1 = ", "choices": ["2", "3", "11"], "answer": "A"}] * 2,
    )
    write_lines(folder / "prompts.jsonl", [{"prompt": "p" * i} for i in range(1, 13)])
    (folder / "run.toml").write_text(RUN)
    succeeded("train", "--config", "run.toml", "--out", "run", cwd=folder)
    return folder


def evaluate(*arguments: object, cwd: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(succeeded("eval", *arguments, "--json", cwd=cwd))
    return result


def test_a_run_is_evaluated_as_it_evaluated_itself(folder: Path) -> None:
    with h5py.File(folder / "run/run.h5", "r", swmr=True) as file:
        loss = file["/eval/loss"][-1]
        scores = {
            name.decode().rstrip("\0"): value
            for name, value in zip(file["/scores/name"][:], file["/scores/value"][:])
        }
    for source in ("run", "run/checkpoint.safetensors"):
        found = evaluate(source, cwd=folder)
        assert found["loss"] == loss
        assert found["exact_match"]["asked"] == 3
        assert found["pass_at_k"]["1"] == scores["pass@1"]
        assert found["pass_at_k"]["3"] == scores["pass@3"]
        assert found["multiple_choice"]["questions"] == 2
        assert found["multiple_choice"]["per_byte"] == scores["choice/per_byte"]
        assert found["sources"][0]["name"] == "held.jsonl"
        assert found["sources"][0]["bits_per_byte"] == scores["bits_per_byte/held.jsonl"]
        assert found["rollout"]["gap_largest"] == 0.0 == scores["rollout/gap_largest"]
        assert found["rollout"]["k3_by_position"][1]["first"] == 4
    table = succeeded("eval", "run", cwd=folder)
    for word in ("perplexity", "pass@3", "choice/per_token", "rollout/k3", "exact_match"):
        assert word in table


def test_run_files_from_before_there_were_scores_are_read(folder: Path, tmp_path: Path) -> None:
    """Also continued: resume copies what there is."""
    config = (folder / "run.toml").read_text().replace("steps = 6", "steps = 4")
    (folder / "old.toml").write_text(config)
    succeeded("train", "--config", "old.toml", "--out", tmp_path / "old", cwd=folder)
    path = tmp_path / "old/run.h5"
    with h5py.File(path, "r+") as file:
        del file["scores"]
        file["complete"].resize(0, axis=0)
    loss = evaluate(tmp_path / "old", cwd=folder)["loss"]
    resume = ("train", "--config", "old.toml", "--out", tmp_path / "old", "--resume")
    succeeded(*resume, cwd=folder)
    with h5py.File(path, "r", swmr=True) as file:
        assert file["/eval/loss"][-1] == loss
        assert file["complete"].shape == (1,)
        assert list(file["scores/name"].asstr()) == ["loss_in_bf16"]  # taken by the resumed run


def test_options_replace_parts_of_the_evaluation(folder: Path) -> None:
    found = evaluate(
        "run", "--recipe", "bf16", "--rollout-recipe", "infir2", "--rollouts", 4,
        "--exact-match", 1, "--pass-at", 2, "--samples", 2, "--problems", 1,
        "--temperature", 0.5, "--top-k", 3, "--sequences", 4,
        "--set", "max_new_tokens=6", "--threads", 1, cwd=folder,
    )  # fmt: skip
    assert found["recipe"] == "bf16"
    assert found["rollout"]["gap_largest"] > 0 and found["rollout"]["k3"] > 0
    assert found["rollout"]["tokens"] <= 4 * 6
    assert found["exact_match"]["asked"] == 1
    assert list(found["pass_at_k"]) == ["problems", "2"] and found["pass_at_k"]["problems"] == 1
    assert found["sources"][0]["tokens"] > evaluate("run", cwd=folder)["sources"][0]["tokens"]
    train = evaluate("run", "--data", "train.jsonl", cwd=folder)
    assert train["sources"][0]["name"] == "train.jsonl"


def completions(*arguments: object, cwd: Path) -> list[dict[str, Any]]:
    lines = succeeded("generate", *arguments, "--json", cwd=cwd).splitlines()
    return [json.loads(line) for line in lines]


def test_completions_are_reproducible_and_independent_of_their_neighbours(folder: Path) -> None:
    sampled = ("--temperature", 1.2, "--max-new-tokens", 12, "--samples", 2, "--seed", 5)
    prompts = ("--prompt", "What is 3 plus 3?", "--prompt", "Why", "--prompts", "prompts.jsonl")
    together = completions("run", *prompts, *sampled, "--log-probabilities", cwd=folder)
    assert len(together) == 2 * 14
    assert together[0]["tokens"] != together[1]["tokens"]
    alone = completions("run", *prompts, *sampled, "--log-probabilities", "--together", 1,
                        "--threads", 1, cwd=folder)  # fmt: skip
    assert together == alone
    one = completions("run", "--prompt", "What is 3 plus 3?", *sampled, cwd=folder)
    assert [c["tokens"] for c in one] == [c["tokens"] for c in together[:2]]
    other = completions("run", "--prompt", "What is 3 plus 3?", *sampled[:-1], 6, cwd=folder)
    assert [c["tokens"] for c in one] != [c["tokens"] for c in other]
    for completion in together:
        ids = bytes(t for t in completion["tokens"] if t < 256)
        assert completion["text"] == ids.decode(errors="replace")
        assert len(completion["log_probabilities"]) == len(completion["tokens"]) <= 12
    text = succeeded("generate", "run", "--prompt", "Why", "--max-new-tokens", 4, cwd=folder)
    assert text.startswith("--- prompt 0 sample 0: ")
    long = completions("run", "--prompt", "Why", "--min-new-tokens", 30, "--max-new-tokens", 30,
                       "--temperature", 3, cwd=folder)  # fmt: skip
    assert len(long[0]["tokens"]) == 30


def test_completions_that_fill_the_positions_are_counted(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", random_tensors(CONFIG))
    positions = CONFIG["max_position_embeddings"]
    write_lines(tmp_path / "p.jsonl", [{"prompt": [5] * (positions - 3)}, {"prompt": [5, 6]}])
    words = ("generate", "model", "--prompts", "p.jsonl", "--json", "--max-new-tokens")
    cut = run(*words, 5, cwd=tmp_path)
    assert cut.returncode == 0, cut.stderr
    lengths = [len(json.loads(line)["tokens"]) for line in cut.stdout.splitlines()]
    assert lengths == [3, 5]
    assert f"1 of 2 completions end at {positions} tokens with their prompt" in cut.stderr
    assert "--sequence-length" in cut.stderr
    assert "with their prompt" not in run(*words, 3, cwd=tmp_path).stderr


def test_a_hugging_face_folder_speaks_in_token_ids(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", random_tensors(CONFIG))
    write_lines(tmp_path / "prompts.jsonl", [{"prompt": [5, 6, 7]}, {"prompt": [300] * 40}])
    base = ("generate", "model", "--prompts", "prompts.jsonl", "--max-new-tokens", 5)
    first = [json.loads(line) for line in succeeded(*base, "--json", cwd=tmp_path).splitlines()]
    assert [len(c["tokens"]) for c in first] == [5, 5] and "text" not in first[0]
    end = first[0]["tokens"][1]
    ended = succeeded(*base, "--json", "--end", end, cwd=tmp_path).splitlines()
    assert json.loads(ended[0])["ended"] and end == json.loads(ended[0])["tokens"][-1]
    (tmp_path / "text.txt").write_text("A text of bytes, whose tokens any model of 259 has.\n" * 40)
    found = evaluate("model", "--data", "text.txt", "--sequence-length", 64, cwd=tmp_path)
    assert found["sources"][0]["bits_per_byte"] > 0
    assert "--data is missing" in refused("eval", "model", cwd=tmp_path)
    assert "amax history" in refused(
        "eval", "model", "--data", "text.txt", "--recipe", "te_delayed", cwd=tmp_path
    )
    message = refused("generate", "model", "--prompt", "text", cwd=tmp_path)
    assert "accepted: token ids" in message


def test_recipes_that_remember_are_evaluated_with_what_a_checkpoint_holds(folder: Path) -> None:
    recipe = (
        'name = "smooth"\n[slots.default]\nformat = "e4m3fn"\ntile = "row"\n'
        'transform = "smooth:0.5"\n'
        '[gemm]\naccumulator = "sm90_wgmma_fp8"\nschedule = "promote:128"\n'
    )
    (folder / "smooth.toml").write_text(recipe)
    assert evaluate("run", "--recipe", "smooth.toml", cwd=folder)["loss"] > 0
    assert "has no amax history" in refused("eval", "run", "--recipe", "te_delayed", cwd=folder)
    train = ("train", "--config", "run.toml", "--recipe", "te_delayed", "--out", "delayed")
    succeeded(*train, cwd=folder)
    with h5py.File(folder / "delayed/run.h5", "r", swmr=True) as file:
        assert evaluate("delayed", cwd=folder)["loss"] == file["/eval/loss"][-1]


def test_random_roundings_are_those_of_the_run(folder: Path) -> None:
    train = ("train", "--config", "run.toml", "--recipe", "unit_scaling", "--out", "random")
    succeeded(*train, cwd=folder)
    with h5py.File(folder / "random/run.h5", "r", swmr=True) as file:
        assert evaluate("random", cwd=folder)["loss"] == file["/eval/loss"][-1]


def test_an_evaluation_without_a_target_is_refused(folder: Path) -> None:
    message = refused("eval", "run", "--sequence-length", 4, cwd=folder)
    assert "no token of held.jsonl can be trained on or scored" in message


def test_the_documents_of_a_text_file_are_told(folder: Path, tmp_path: Path) -> None:
    start = RUN.index("exact_match"), RUN.index("[stages.eval.data]")
    config = (RUN[: start[0]] + RUN[start[1] :]).partition("[stages.eval.pass_at_k]")[0]
    (folder / "plain.toml").write_text(config)
    succeeded("train", "--config", "plain.toml", "--out", "plain", cwd=folder)
    options = ["--sequence-length", 16, "--sequences", 1]
    for text, documents in (("One.\n\nTwo, of more words.\n \nThree.\n", 3), ("One.\nTwo.\n", 1)):
        (tmp_path / "told.txt").write_text(text * (1 if documents > 1 else 8))
        said = run("eval", "plain", "--data", tmp_path / "told.txt", *options, cwd=folder)
        assert said.returncode == 0, said.stderr
        told = f"told.txt holds {documents} documents, which blank lines separate"
        assert (told in said.stderr) == (documents > 1), said.stderr


def test_a_run_that_ended_before_its_first_checkpoint_says_so(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "ended").mkdir()
    (tmp_path / "ended/run.h5").write_bytes((folder / "run/run.h5").read_bytes())
    for command in (["eval"], ["whatif", "--recipe", "bf16"], ["generate", "--prompt", "1"]):
        said = refused(command[0], tmp_path / "ended", *command[1:])
        assert "a run without a checkpoint: it ended before its first one" in said


def test_sources_of_several_files_are_named_by_the_first(folder: Path) -> None:
    config = RUN.replace('path = "held.jsonl"', 'path = ["held.jsonl", "train.jsonl"]')
    (folder / "two.toml").write_text(config)
    succeeded("train", "--config", "two.toml", "--out", "two", cwd=folder)
    assert evaluate("two", cwd=folder)["sources"][0]["name"] == "held.jsonl+1"


def test_bad_input_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    for arguments, words in {
        (): "SOURCE is missing; usage: fp8lab ",
        ("none",): "none",
        ("run", "--recipe", "nothing"): "nothing",
        ("run", "--pass-at", "9"): "from 1 to samples = 3",
        ("run", "--set", "colour=1"): "unknown key",
        ("run", "--set", "exact_match"): "accepted: KEY=VALUE",
        ("run", "--multiple-choice", "held.jsonl"): "held.jsonl:1",
        ("run", "--data", "absent.jsonl"): "absent.jsonl",
        ("run", "--rollout-recipe", "te_delayed"): "amax history",
        ("run", "--sequence-length", "1"): "--sequence-length 1: accepted",
        ("run", "--form", "verse"): "verse",
        ("run", "--backend", "abacus"): "abacus",
    }.items():
        assert words in refused("eval", *arguments, cwd=folder), arguments
    write_lines(tmp_path / "bad.jsonl", [{"prompt": "fine"}, {"text": "no"}])
    (tmp_path / "broken.jsonl").write_text("{\n")
    write_lines(tmp_path / "ids.jsonl", [{"prompt": [1, 100000]}])
    for arguments, words in {
        (): "no prompt",
        ("--prompts", tmp_path / "none"): "cannot open",
        ("--prompts", tmp_path / "bad.jsonl"): 'bad.jsonl:2: accepted: an object with "prompt" or',
        ("--prompts", tmp_path / "broken.jsonl"): "broken.jsonl:1",
        ("--prompts", tmp_path / "ids.jsonl"): "100000, which is no token",
        ("--prompt", "a" * 200): "accepted: 1 to 127",
        ("--prompt", "a", "--temperature", -1): "accepted: 0 to 1000",
        ("--prompt", "a", "--samples", 0): "accepted: 1 to",
        ("--prompt", "a", "--top-p", 0): "--top-p 0",
        ("--prompt", "a", "--end", 272): "--end 272",
        ("--prompt", "a", "--end", -2): "--end -2",
        ("--prompt", "a", "--min-new-tokens", 9, "--max-new-tokens", 8): "more than --max-new",
        ("--prompt", "a", "--log-probabilities"): "needs --json",
        ("--prompt", "a", "--vocabulary", "run.toml"): "run.toml: malformed JSON",
    }.items():
        assert words in refused("generate", "run", *arguments, cwd=folder), arguments
