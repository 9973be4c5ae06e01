"""What changes nothing, counts twice or cannot be told is said, or refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from model_files import CONFIG, random_tensors, stored, write_folder
from program import PROGRAM, SMALL_MODEL, refused, run, succeeded

RUN = """
name = "r"
recipe = "{recipe}"
{model}
[[stages]]
name = "cpt"
kind = "cpt"
steps = 3
sequence_length = 32
batch_sequences = 2
data = {{ kind = "text", path = "{train}" }}
[stages.eval]
sequences = {sequences}
data = {{ kind = "text", form = "running_text", path = "held.txt" }}
{more}
"""


def write_run(folder: Path, more: str = "", recipe: str = "bf16", **changed: object) -> Path:
    words = {"train": "train.txt", "sequences": 2, **changed}
    text = RUN.format(recipe=recipe, model=SMALL_MODEL, more=more, **words)
    (folder / "run.toml").write_text(text)
    return folder / "run.toml"


@pytest.fixture()
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text("".join(f"training {i}, {i * i}.\n\n" for i in range(60)))
    (tmp_path / "held.txt").write_text("".join(f"held out {i}, {i * i}.\n\n" for i in range(40)))
    return tmp_path


def notes(folder: Path, *words: object) -> list[str]:
    """Those of a run and of its plan, which are the same."""
    said = []
    for more in (("--dry-run",), ()):
        shutil.rmtree(folder / "out", ignore_errors=True)
        result = run("train", "--config", "run.toml", "--out", "out", *more, *words, cwd=folder)
        assert result.returncode == 0, result.stderr
        lines = result.stderr.splitlines()
        said.append([line for line in lines if line.startswith("fp8lab: note: ")])
    assert said[0] == said[1]
    return said[0]


FALLBACK = '[stages.fallback]\nrecipe = "{}"\n[stages.fallback.when]\n{}\n'
AT = '[[stages.recipe_at]]\nstep = {}\nrecipe = "{}"\n'


@pytest.mark.parametrize(
    ("recipe", "more", "said"),
    [
        ("bf16", FALLBACK.format("fp32", "nonfinite = true"), None),
        ("infir2", FALLBACK.format("bf16", "saturation = 0.1"), None),
        ("bf16", FALLBACK.format("bf16", "nonfinite = true"), "the fallback changes nothing"),
        ("bf16", FALLBACK.format("fp32", "saturation = 0.1"), "saturation never holds"),
        ("bf16", AT.format(1, "infir2"), None),
        ("bf16", AT.format(1, "bf16"), "recipe_at after 1 steps changes nothing"),
        ("bf16", AT.format(1, "infir2") + AT.format(2, "infir2"), "after 2 steps changes nothing"),
    ],
)
def test_recipes_that_change_nothing(
    folder: Path, recipe: str, more: str, said: str | None
) -> None:
    write_run(folder, more, recipe)
    lines = notes(folder)
    assert len(lines) == (said is not None), lines
    assert said is None or said in lines[0], lines


def test_held_out_documents_that_are_trained_on(folder: Path) -> None:
    write_run(folder, train="held.txt")
    (line,) = notes(folder)
    assert "stage cpt: 40 of the 40 different held-out documents are trained on as well" in line
    shutil.copy(folder / "held.txt", folder / "train.txt")
    with (folder / "held.txt").open("a") as file:
        file.write("another\n\nand one\n\nand one\n")
    write_run(folder)
    (line,) = notes(folder)
    assert "40 of the 42 different held-out documents" in line
    # Parts of one file that overlap.
    cut = "stages.cpt.data.range=[0.0, 0.5]", "stages.cpt.eval.data.range=[0.25, 1.0]"
    write_run(folder, train="held.txt")
    (line,) = notes(folder, "--set", cut[0], "--set", cut[1])
    assert "11 of the 32 different" in line, line  # 10 to 20 of 43, two of them equal
    cut = "stages.cpt.data.range=[0.0, 0.5]", "stages.cpt.eval.data.range=[0.5, 1.0]"
    assert notes(folder, "--set", cut[0], "--set", cut[1]) == []


def test_a_final_rate_that_is_never_reached(folder: Path) -> None:
    write_run(folder)
    rate = "stages.cpt.learning_rate."
    stated = ("--set", rate + "warmup_steps=1", "--set", rate + "final=1e-5")
    (line,) = notes(folder, *stated)
    assert "stage cpt: learning_rate.final = 1e-05 has no effect: decay_steps is 0" in line
    (line,) = notes(folder, *stated, "--set", rate + "kind=constant")
    assert "the rate is constant" in line
    for decay in ("decay_steps=2", "kind=cosine", "kind=linear"):
        assert notes(folder, *stated, "--set", rate + decay) == []
    for final in ("1e-4", "1e-3"):  # the default, and the peak
        assert notes(folder, *stated[:2], "--set", rate + "final=" + final) == []


def test_a_schedule_that_is_not_what_it_seems(folder: Path) -> None:
    write_run(folder)
    rate = "stages.cpt.learning_rate."
    few = ("--dry-run", "--set", "stages.cpt.steps=12", "--set", rate + "kind={}")

    def plan(kind: str, *settings: str) -> tuple[list[str], str]:
        words = [word for setting in settings for word in ("--set", rate + setting)]
        result = run(
            "train", "--config", "run.toml", *few[:-1], few[-1].format(kind), *words, cwd=folder
        )
        (told,) = [line for line in result.stdout.splitlines() if "learning rate: " in line]
        said = [line for line in result.stderr.splitlines() if "note: stage cpt" in line]
        return said, told.removeprefix("learning rate: ")

    (note,), told = plan("constant")
    assert "constant only after 10 steps of warm-up, the default of" in note
    assert told == "warm-up over 10 steps, constant 0.001"
    assert plan("constant", "warmup_steps=10") == ([], told)
    assert plan("constant", "warmup_steps=0") == ([], "constant 0.001")
    for kind, settings, words in (
        ("cosine", (), "warm-up over 10 steps, cosine from 5e-05 to 0.0001"),
        ("wsd", ("warmup_steps=0", "decay_steps=4", "decay=linear"),
         "constant 5e-05, linear decay to 0.0001 over the last 4"),
    ):  # fmt: skip
        (note,), told = plan(kind, "peak=5e-5", *settings)
        assert "learning_rate.final = 0.0001, its default, is above peak = 5e-05" in note
        assert told == words


def test_json_that_is_read_as_text(folder: Path) -> None:
    (folder / "lines.jsonl").write_text('{"text": "a"}\n' * 40)
    write_run(folder, train="lines.jsonl")
    (line,) = notes(folder)
    assert "stage cpt: lines.jsonl is read as text, braces and keys included; kind" in line


def test_overrides_are_compared_with_a_model_or_said_not_to_be(folder: Path) -> None:
    text = 'name = "r"\n[slots.default]\nformat = "e4m3fn"\n[[override]]\nmatch = "layers.{}.*"\n'
    (folder / "r.toml").write_text(text.format(99))
    result = run("recipes", "check", "r.toml", cwd=folder)
    assert result.returncode == 0 and "compared with no model; --model NAME" in result.stderr
    assert "layers.99.*" in refused("recipes", "check", "r.toml", "--model", "tiny", cwd=folder)
    (folder / "r.toml").write_text(text.format("first"))
    said = succeeded("recipes", "check", "r.toml", "--model", "tiny", cwd=folder)
    assert "override layers.first.*: 4 of 9 layers\n" in said
    second = '[[override]]\nmatch = "layers.0.mlp.down"\n'
    (folder / "r.toml").write_text(text.format("first") + second)
    said = succeeded("recipes", "check", "r.toml", "--model", "tiny", cwd=folder)
    assert "override layers.0.mlp.down: 0 of 9 layers, since what stands before it" in said


def test_sequences_of_an_evaluation_come_in_whole_batches(folder: Path) -> None:
    write_run(folder)
    assert run("train", "--config", "run.toml", "--out", "out", cwd=folder).returncode == 0
    words = ("eval", "out", "--sequences-together", 4, "--sequences")
    result = run(*words, 5, cwd=folder)
    said = "8 sequences are evaluated, not 5: whole batches of 4 (--sequences-together)"
    assert result.returncode == 0 and said in result.stderr
    assert "whole batches" not in run(*words, 8, cwd=folder).stderr


def test_answers_that_nothing_can_be_compared_with_are_refused(folder: Path) -> None:
    rows = [{"question": f"What is {i}?", "answer": f"It is {i}."} for i in range(20)]
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_run(folder)
    assert run("train", "--config", "run.toml", "--out", "out", cwd=folder).returncode == 0
    words = (
        "eval",
        "out",
        "--data",
        "q.jsonl",
        "--form",
        "prompt_response",
        "--sequence-length",
        128,
    )
    for option in (("--exact-match", 4), ("--pass-at", 1)):
        said = refused(*words, *option, "--max-new-tokens", 4, cwd=folder)
        assert 'it compares what follows the last "####"' in said and "q.jsonl has one" in said
        assert 'accepted: answers that end with "#### RESULT"' in said, said
    rows[7]["answer"] += " #### 7"
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = succeeded(*words, "--exact-match", 10, "--max-new-tokens", 4, "--json", cwd=folder)
    assert json.loads(answer)["exact_match"]["asked"] == 10


def test_held_out_documents_that_are_read_again(folder: Path) -> None:
    (folder / "held.txt").write_text("few words\n\nand more\n")
    write_run(folder, sequences=4)
    (line,) = notes(folder)
    assert (
        "eval.sequences = 4 sequences of 32 tokens read the 2 documents of held.txt 7 times" in line
    )
    result = run("eval", "out", cwd=folder)
    assert result.returncode == 0 and "sequences = 4 sequences" in result.stderr
    write_run(folder, sequences=1)
    (folder / "held.txt").write_text(
        "a document of more than 64 tokens, so that it is read once alone, and no more than that\n"
    )
    assert notes(folder) == []


def test_a_loss_that_is_no_number_ends_with_status_1_and_says_where(folder: Path) -> None:
    tensors = random_tensors(CONFIG)
    name = "model.norm.weight"
    values = np.full(tensors[name][1], 3e38, np.float32)
    tensors[name] = stored(values, "F32")
    write_folder(folder / "model", tensors)
    words = ("eval", "model", "--data", "held.txt", "--sequence-length", 32)
    for more in ((), ("--json",)):
        result = run(*words, *more, cwd=folder)
        assert result.returncode == 1, result
        assert "tokens have a loss that is not finite, the first in document" in result.stderr
        assert "of held.txt" in result.stderr and result.stdout


def test_eval_names_the_command_for_several_recipes(folder: Path) -> None:
    said = refused("eval", "model", "--data", "t", "--recipe", "bf16", "--recipe=infir2")
    assert "fp8lab assess MODEL --recipe bf16 --recipe infir2" in said
    write_folder(folder / "model", random_tensors(CONFIG))
    for command in ("whatif", "attribute"):
        said = refused(command, "model", "--recipe", "nvfp4", cwd=folder)
        assert "fp8lab assess model --data TEXT" in said


def test_the_form_of_held_out_data_is_that_of_the_first_document(folder: Path) -> None:
    write_run(folder)
    succeeded("train", "--config", "run.toml", "--out", "out", cwd=folder)
    (folder / "t.jsonl").write_text('\n{"text": "One and two and three."}\n' * 9)
    (folder / "q.jsonl").write_text('{"prompt": "One and", "completion": " two."}\n' * 9)
    for data, tokens in (("t.jsonl", 32), ("q.jsonl", 6)):
        words = ("eval", "out", "--data", data, "--sequences", 1, "--json")
        facts = json.loads(succeeded(*words, cwd=folder))
        assert facts["sources"][0]["tokens"] >= tokens
        assert facts["sources"][0]["tokens"] > 31 or data == "q.jsonl"
    said = refused("eval", "out", "--data", "t.jsonl", "--form", "prompt_response", cwd=folder)
    assert "prompt_response needs" in said
    assert "every_steps" in refused("eval", "out", "--set", "every_steps=1", cwd=folder)


def test_two_equal_choices_are_refused(folder: Path) -> None:
    write_run(folder)
    succeeded("train", "--config", "run.toml", "--out", "out", cwd=folder)
    for choices in (["2", "3", "2"], ["2", [50]]):
        line = {"question": "1 + 1 = ", "choices": choices, "answer": 0}
        (folder / "c.jsonl").write_text(json.dumps(line) + "\n")
        said = refused("eval", "out", "--multiple-choice", "c.jsonl", cwd=folder)
        assert "c.jsonl:1" in said and "two that are equal" in said
    assert "--shard-bytes 0" in refused("export", "out", "hf", "--shard-bytes", 0, cwd=folder)


def test_finite_elements_that_overflow_are_told(tmp_path: Path) -> None:
    values = np.ones((4, 64), np.float32)
    np.save(tmp_path / "fine.npy", values)
    values[1, 2] = 3.4e38
    np.save(tmp_path / "large.npy", values)
    values[2, 3] = np.inf
    np.save(tmp_path / "both.npy", values)
    for name, count in (("fine", 0), ("large", 1), ("both", 1)):
        words = ("quantize", f"{name}.npy", "--spec", "e4m3fn/row/pow2/enc_floor")
        for more in ((), ("--json",), ("--out", f"{name}-codes.npy")):
            result = run(*words, *more, cwd=tmp_path)
            assert result.returncode == 0, result.stderr
            told = f"scale * code of {count} finite elements is beyond FP32" in result.stderr
            assert told == (count > 0), result.stderr


def test_a_tree_that_was_moved_after_its_build_is_found(tmp_path: Path) -> None:
    source = Path(__file__).resolve().parents[2]
    tree = tmp_path / "moved"
    (tree / "build/program/src").mkdir(parents=True)
    shutil.copy(PROGRAM, tree / "build/program/src/fp8lab")
    shutil.copytree(source / "experiments/recipes", tree / "experiments/recipes")
    shutil.copy(source / "CMakePresets.json", tree)
    text = (tree / "experiments/recipes/baselines/bf16.toml").read_text()
    (tree / "experiments/recipes/of_the_moved_tree.toml").write_text(text)
    for program in (tree / "build/program/src/fp8lab", tmp_path / "link"):
        if not program.exists():
            program.symlink_to(tree / "build/program/src/fp8lab")
        listed = subprocess.run(
            [str(program), "recipes", "show", "of_the_moved_tree"],
            capture_output=True, text=True, check=False, cwd="/",
        )  # fmt: skip
        assert listed.returncode == 0, listed.stderr
    (tree / "CMakePresets.json").unlink()
    result = subprocess.run(
        [str(tree / "build/program/src/fp8lab"), "recipes", "show", "of_the_moved_tree"],
        capture_output=True, text=True, check=False, env={**os.environ},
    )  # fmt: skip
    assert result.returncode == 2
