"""What somebody meets who has not seen the program: endings, notes, estimates, help on words."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from program import PROGRAM, SMALL_MODEL, refused, run, succeeded

CONFIG = (
    """
name = "first"
recipe = "{recipe}"
"""
    + SMALL_MODEL
    + """[[stages]]
name = "one"
kind = "pretrain"
steps = {steps}
batch_sequences = 4
sequence_length = 64
data = {{kind = "arithmetic", problems = 200}}
learning_rate = {{kind = "constant", peak = {rate}, warmup_steps = 0}}
eval = {{sequences = 4, data = {{kind = "arithmetic", problems = 50, corpus_seed = 9}}}}
[[stages]]
base = "one"
name = "two"
kind = "cpt"
steps = 1
batch_sequences = 4
sequence_length = 64
data = {{kind = "arithmetic", problems = 200}}
learning_rate = {{kind = "constant", peak = {rate}, warmup_steps = 0}}
"""
).replace('base = "one"\n', "")


def config(folder: Path, recipe: str = "infir2", steps: int = 2, rate: float = 1e-3) -> Path:
    path = folder / "first.toml"
    path.write_text(CONFIG.format(recipe=recipe, steps=steps, rate=rate))
    return path


@pytest.fixture(name="runs", scope="module")
def fixture_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that are a pair."""
    folder = tmp_path_factory.mktemp("first")
    for recipe in ("bf16", "te_current"):
        succeeded("train", "--config", config(folder, recipe), "--out", recipe, cwd=folder)
    return folder


def test_compare_prints_the_last_losses_of_both(runs: Path) -> None:
    words = ("compare", "bf16", "te_current", "--files-only", "--json", "out.json")
    result = run(*words, cwd=runs)
    assert result.returncode == 3
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["loss", "in", "nats", "step", "A", "B", "B", "-", "A"]
    losses = json.loads((runs / "out.json").read_text())["losses"]
    assert [(row["name"], row["step"]) for row in losses] == [("training", 3), ("held-out one", 2)]
    for row, line in zip(losses, lines[2:]):
        assert line.startswith(row["name"])
        values = [float(word) for word in line.split()[-3:]]
        assert values == pytest.approx([row["a"], row["b"], row["difference"]], rel=1e-3)
        assert row["difference"] == pytest.approx(row["b"] - row["a"])
    assert "files: loss differs first at step" in result.stdout
    evaluated = json.loads(succeeded("eval", "bf16", "--json", *_held_out(), cwd=runs))
    assert evaluated["loss"] > 0
    longer = config(runs, "bf16", steps=1)
    succeeded("train", "--config", longer, "--out", "short", cwd=runs)
    run("compare", "bf16", "short", "--files-only", "--json", "short.json", cwd=runs)
    (training,) = json.loads((runs / "short.json").read_text())["losses"]
    assert training["step"] == 2, "the last step that both have"


def _held_out() -> list[str]:
    return ["--set", 'data={kind = "arithmetic", problems = 50, corpus_seed = 9}']


def test_every_ending_names_the_next_command(tmp_path: Path) -> None:
    long = config(tmp_path, "te_current", steps=4000)
    words = [PROGRAM, "train", "--config", long.name, "--out", "my run"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    while "step 2/" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    said = process.stdout.read()
    assert process.wait(60) == 4
    command = said.strip().splitlines()[-1]
    assert command == "next: fp8lab train --config first.toml --out 'my run' --resume"
    resumed = command.removeprefix("next: fp8lab ").replace("'my run'", "my@run").split()
    resumed = [word.replace("@", " ") for word in resumed]
    check = run(*resumed, "--dry-run", cwd=tmp_path)
    assert check.returncode == 0 and "holds a run, which is continued" in check.stdout


def test_a_stopped_run_says_how_its_loss_went(tmp_path: Path) -> None:
    rate = ("warmup_steps=0", "peak=10")
    wild = ["recipe=te_delayed", "stages.*.steps=6", *(f"stages.*.learning_rate.{r}" for r in rate)]
    words = [word for setting in wild for word in ("--set", setting)]
    result = run("train", "--preset", "quickstart", *words, "--out", "run", cwd=tmp_path)
    assert result.returncode == 1, result.stdout
    lines = result.stdout.splitlines()
    assert lines[-1] == "next: fp8lab report run/run.h5 | fp8lab doctor run"
    (event,) = [line for line in lines if " nan: " in line]
    assert re.search(r"nan: loss growing since step 1: \d\.\d+ to \d+(\.\d)? at step \d+; ", event)
    assert "layers.0." in event


def test_a_study_names_the_commands_that_show_its_runs(tmp_path: Path) -> None:
    config(tmp_path, "bf16")
    study = 'name = "two"\nbase = "first.toml"\n[[axis]]\nkey = "seed"\nvalues = [1, 2]\n'
    (tmp_path / "two.toml").write_text(study)
    words = ("ablate", "--study", "two.toml", "--jobs", 1, "--out")
    (tmp_path / "one/seed2/run.h5.lock").mkdir(parents=True)  # this run cannot begin
    for out, status, following in (
        ("none", 0, "fp8lab report none"),
        ("one", 1, "fp8lab report one | fp8lab doctor one"),
    ):
        result = run(*words, out, cwd=tmp_path)
        assert result.returncode == status, result.stderr
        assert (result.stdout + result.stderr).splitlines()[-1] == f"next: {following}"


def test_a_dry_run_prints_each_recipe_once_and_notes_shards(tmp_path: Path) -> None:
    result = run("train", "--config", config(tmp_path), "--out", "r", "--dry-run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("infir2: described at stage one") == 1
    assert "a forward pass takes one shard" not in result.stderr
    shards = ("--set", "parallel.shards=2")
    for words in (("--dry-run",), ()):
        result = run(
            "train", "--config", config(tmp_path), "--out", "r", *shards, *words, cwd=tmp_path
        )
        assert result.returncode == 0, result.stderr
        assert (
            "stage two: a forward pass takes one shard, 2 of 4 sequences ([parallel] shards = 2), "
            "not micro_batch_sequences = 4" in result.stderr
        )
    fits = ("--set", "stages.*.micro_batch_sequences=2")
    result = run(
        "train",
        "--config",
        config(tmp_path),
        "--out",
        "s",
        *shards,
        *fits,
        "--dry-run",
        cwd=tmp_path,
    )
    assert result.returncode == 0 and "takes one shard" not in result.stderr


@pytest.mark.parametrize(
    "word, parts",
    [
        ("infir2", ["infir2: a recipe: InfiR2", "fp8lab recipes show infir2"]),
        ("quickstart", ["quickstart: a preset: ", "--preset quickstart", "quickstart: a study: "]),
        ("smollm2-135m", ["smollm2-135m: a model: ", 'model = "smollm2-135m"']),
        ("coat", ["coat: a recipe", "coat: a study", "an optimizer: COAT", 'optimizer = "coat"']),
        ("shards", ["parallel.shards: a key of a run file", "power of two"]),
        ("micro_batch_sequences", ["stages.micro_batch_sequences: a key", "divides batch"]),
        ("learning_rate.peak", ["stages.learning_rate.peak: a key"]),
        ("scale_source", ["slots.OPERAND.scale_source: a key of a recipe file"]),
        ("margin", ["design.margin: a key of a study file"]),
        ("parallel", ["parallel: a table of a run file"]),
    ],
)
def test_help_explains_names_and_keys(word: str, parts: list[str]) -> None:
    said = succeeded("help", word)
    for part in parts:
        assert part in said


def test_help_on_an_unknown_word_names_the_near_ones() -> None:
    for word, near in {
        "shardz": "'shards'",
        "infir3": "'infir2'",
        "quikstart": "'quickstart'",
        "trian": "'train'",
    }.items():
        assert f"did you mean {near}?" in refused("help", word)
    assert "did you mean" not in refused("help", "zzzzzzzzzz")


def test_messages_hold_numbers_where_numbers_belong(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((128, 256), np.float32))
    spec = ("--spec", "sm90_wgmma_fp8/fast/fp32", "--operand-a", "e4m3fn/1x128/pow2")
    both = (*spec, "--operand-b", "e4m3fn/1x128/pow2", "--a", "a.npy", "--b", "a.npy")
    message = refused("gemm", *both, "--out", "d.npy", cwd=tmp_path)
    assert "promote:32, promote:64, promote:128" in message and "promote:G" not in message
    for word in ("promote:48", "fest"):
        spec = ("--spec", f"sm90_wgmma_fp8/{word}/fp32", "--a", "a.npy", "--b", "a.npy")
        assert ":G" not in refused("gemm", *spec, "--out", "d.npy", cwd=tmp_path)


def test_a_vocabulary_that_is_too_small_names_the_line_to_write(tmp_path: Path) -> None:
    small = ("--set", "model.vocab_size=200")
    message = refused("train", "--config", config(tmp_path), *small, "--out", "r", cwd=tmp_path)
    assert "write vocab_size = 259 into [model]" in message
    assert "--set model.vocab_size=259" in message
    fits = ("--set", "model.vocab_size=259", "--dry-run")
    assert run("train", "--config", config(tmp_path), *fits, cwd=tmp_path).returncode == 0


def test_long_evaluations_say_how_long_they_take(runs: Path) -> None:
    """Longer than the five seconds under which nothing is said, on any machine."""
    for backend in ("truth", "cpu"):
        words = [PROGRAM, "eval", "bf16", "--sequences", "2000000", "--backend", backend]
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=runs
        )
        assert process.stderr is not None
        line = ""
        while " batches done, about " not in line:
            line = process.stderr.readline()
            assert line, "ended without an estimate"
        process.kill()
        process.wait()
        assert line.startswith("eval: ") and line.endswith(" s left: evaluating ...\n")


def test_generation_says_how_long_it_takes(runs: Path) -> None:
    words = [PROGRAM, "generate", "bf16", "--prompt", "1+1=", "--samples", "65536"]
    words += ["--temperature", "1", "--max-new-tokens", "40"]
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=runs
    )
    assert process.stderr is not None
    lines: list[str] = []
    while not lines or " tokens done, about " not in lines[-1]:
        lines.append(process.stderr.readline())
        assert lines[-1], lines
    process.kill()
    process.wait()
    assert lines[-1].startswith("generate: ")
