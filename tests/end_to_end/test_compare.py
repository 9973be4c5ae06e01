"""Two runs compared, and steps of a run verified, by the program itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from program import PROGRAM, SMALL_MODEL, refused, run, succeeded

CONFIG = (
    """
name = "tiny"
recipe = "{recipe}"
"""
    + SMALL_MODEL
    + """[logging]
checkpoint_every_steps = 2
[[stages]]
name = "first"
kind = "pretrain"
steps = 2
batch_sequences = 2
sequence_length = 64
data = {{kind = "jsonl", path = ["data.jsonl"]}}
learning_rate = {{kind = "constant", peak = 1e-3, warmup_steps = 0}}
[[stages]]
name = "second"
kind = "cpt"
steps = 2
batch_sequences = 2
sequence_length = 64
data = {{kind = "arithmetic", problems = 100}}
learning_rate = {{kind = "constant", peak = 1e-3, warmup_steps = 0}}
stress = [{{kind = "outlier_channels", channels = 2, gain = 4.0}}]
"""
)


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two equal runs, one of another recipe, one of another rate in the second stage."""
    folder = tmp_path_factory.mktemp("runs")
    lines = [json.dumps({"text": f"the number after {i} is {i + 1}"}) for i in range(200)]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "run.toml").write_text(CONFIG.format(recipe="infir2"))
    rate = "stages.second.learning_rate.peak=2e-3"
    changes = {
        "a": [],
        "b": [],
        "recipe": ["--recipe", "infir2_fp32scale"],
        "rate": ["--set", rate],
    }
    for name, more in changes.items():
        succeeded("train", "--config", "run.toml", "--out", name, *more, cwd=folder)
    return folder


def test_equal_runs(folder: Path) -> None:
    text = succeeded("compare", "a", "b/run.h5", cwd=folder)
    assert text.startswith("A and B are the same run; their bits must be equal\n")
    assert "4 steps that both have: same bits" in text
    assert "4 steps, same bits" in succeeded("verify", "a", cwd=folder)
    text = succeeded("verify", "a", "--from", 1, "--steps", 2, "--json", "v.json", cwd=folder)
    assert "steps 1 to 3" in text
    result = json.loads((folder / "v.json").read_text())
    assert result["good"] and result["executed"] == 3 and result["hashed"] == 3


def test_names_that_are_no_text(folder: Path) -> None:
    """Of what --json writes, to files and to standard output, the odd byte is replaced."""
    odd = os.fsdecode(b"r\xff")
    shutil.copytree(folder / "a", folder / odd)
    for words in (("verify", odd, "--steps=1", "--json", "v.json"), ("doctor", odd, "--json")):
        done = subprocess.run([PROGRAM, *words], capture_output=True, cwd=folder, check=False)
        assert done.returncode == 0, done.stderr
    assert json.loads((folder / "v.json").read_text())["run"] == "r\ufffd/run.h5"
    assert json.loads(done.stdout)[0]["file"].startswith("r\ufffd/")
    shutil.rmtree(folder / odd)


def test_another_recipe(folder: Path) -> None:
    result = run("compare", "a", "recipe", "--json", "c.json", cwd=folder)
    assert result.returncode == 3, result.stderr
    assert 'recipe: "infir2" -> "infir2_fp32scale"' in result.stdout
    assert "quantization in both orientations: scales of fprop.w" in result.stdout, "in words"
    first = "A and B differ in recipe: they are a pair; the gap between their losses is what the"
    assert result.stdout.startswith(first)
    found = json.loads((folder / "c.json").read_text())
    assert found["pair"] and found["differs_in"] == ["recipe"]
    assert found["first_step"] == 1 and not found["good"] and not found["transient"]
    assert found["located"]["where"] == "operation"
    assert found["located"]["output"]["operand"] == "fprop.w"
    assert found["reproduced_a"]["good"] and found["reproduced_b"]["good"]


def test_the_first_line_says_what_follows(folder: Path) -> None:
    (folder / "other.jsonl").write_text((folder / "data.jsonl").read_text().replace("after", "of"))
    (folder / "other.toml").write_text(
        (folder / "run.toml").read_text().replace("data.jsonl", "other.jsonl")
    )
    no_pair = "they are no pair; only runs that differ in the recipe alone tell what a recipe costs"
    noise = "the difference of their losses is the noise between seeds"
    for name, (file, setting, words) in {
        "seed": ("run.toml", "seed=5", f"seed: {noise}"),
        "model": ("run.toml", "model.intermediate_size=256", f"model: {no_pair}"),
        "data": ("other.toml", "logging.print_every_seconds=2", f"training data: {no_pair}"),
        "quiet": ("run.toml", "logging.print_every_seconds=2", None),
    }.items():
        succeeded("train", "--config", file, "--set", setting, "--out", name, cwd=folder)
        result = run("compare", "a", name, "--files-only", cwd=folder)
        same = "A and B are the same run, executed or recorded in another way; their bits must be"
        assert result.stdout.startswith(f"A and B differ in {words}\n" if words else same)
        assert result.returncode == (3 if words else 0)
    result = run("compare", "rate", "seed", "--files-only", cwd=folder)
    peak = "stages.second.learning_rate.peak"
    assert result.stdout.startswith(f"A and B differ in seed, {peak}: {no_pair}\n")


def test_what_replaces_a_recipe_is_named(folder: Path) -> None:
    fallback = 'stages.first.fallback={recipe="bf16", when={nonfinite=true}}'
    (folder / "mine.toml").write_text('name = "mine"\nbase = "infir2"\n')
    for name, settings in {
        "fallback": [fallback],
        "at": ['stages.second.recipe_at=[{step=1, recipe="mine.toml"}]'],
        "both": [fallback, "recipe=mine.toml"],
    }.items():
        words = [word for one in settings for word in ("--set", one)]
        succeeded("train", "--config", "run.toml", *words, "--out", name, cwd=folder)
    pair = "they are a pair; the gap between their losses is what "
    for name, expected in {
        "fallback": f"stages.first.fallback, fallback recipe of stage first: {pair}that changes",
        "at": f"stages.second.recipe_at, recipe of stage second after 1 steps: {pair}that changes",
        "both": f"recipe: {pair}the recipe costs",
    }.items():
        result = run("compare", "a", name, "--files-only", "--json", "c.json", cwd=folder)
        said = result.stdout
        assert said.startswith(f"A and B differ in {expected}"), said
        # A setting that differs is a difference, also where no bit shows it.
        assert result.returncode == 3, said
        assert not json.loads((folder / "c.json").read_text())["good"]
        assert "4 steps that both have: same bits" in said, said
    # A recipe that changed under its name: its keys, not hashes alone.
    (folder / "mine.toml").write_text(
        'name = "mine"\nbase = "infir2"\nsummary = "x"\n[slots.dy]\nformat = "e5m2"\n'
    )
    succeeded("train", "--config", "run.toml", "--recipe", "mine.toml", "--out", "m", cwd=folder)
    said = run("compare", "both", "m", "--files-only", cwd=folder).stdout
    assert 'differs in recipe of stage first: slots.dy.format: (none) -> "e5m2"\n' in said
    assert "summary" not in said


def test_another_rate_in_a_later_stage(folder: Path) -> None:
    files = run("compare", "a", "rate", "--files-only", cwd=folder)
    assert files.returncode == 3 and "executed" not in files.stdout
    assert "differences of configuration: fp8lab report " in files.stdout.splitlines()[-1]
    assert "weights differs first at step 3" in files.stdout
    result = run("compare", "a", "rate", cwd=folder)
    assert result.returncode == 3, result.stderr
    assert "stages.second.learning_rate.peak: 0.001 -> 0.002" in result.stdout
    assert "first difference: step 3, micro-batch 0, load, upload: step scalars" in result.stdout


def damaged(folder: Path, name: str, row: int) -> None:
    """A copy of run a whose file has another hash of the weights, as after a transient fault."""
    shutil.copytree(folder / "a", folder / name)
    with h5py.File(folder / name / "run.h5", "r+", libver="latest") as file:
        file["hashes/weights"][row] ^= np.uint64(1)


def test_transient_fault(folder: Path) -> None:
    damaged(folder, "transient", 2)
    result = run("compare", "a", "transient", "--json", "t.json", cwd=folder)
    assert result.returncode == 3, result.stderr
    assert "transient: both agree when they are executed again; B had a fault at step 3" in (
        result.stdout
    )
    found = json.loads((folder / "t.json").read_text())
    assert found["transient"] and found["located"]["where"] == "nowhere"
    assert found["reproduced_a"]["good"] and not found["reproduced_b"]["good"]
    result = run("verify", "transient", "--json", "v.json", cwd=folder)
    assert result.returncode == 3, result.stderr
    assert "weights differs first at step 3" in result.stdout
    assert json.loads((folder / "v.json").read_text())["first_step"] == 3
    assert "2 steps, same bits" in succeeded("verify", "transient", "--steps", 2, cwd=folder)


def test_what_is_missing(folder: Path) -> None:
    assert "two" in refused("compare", "a", cwd=folder)
    assert "no run file" in refused("compare", "a", "nothing", cwd=folder)
    assert "no run file" in refused("verify", "nothing", cwd=folder)
    assert "RUN is missing; usage: fp8lab " in refused("verify", cwd=folder)
    assert "ends after step 4" in refused("verify", "a", "--from", 4, cwd=folder)
    assert "more than it has" in refused("verify", "a", "--steps", 5, cwd=folder)
    assert "from 1 on" in refused("verify", "a", "--steps", 0, cwd=folder)
    assert "from 0 on" in refused("verify", "a", "--from=-1", cwd=folder)
    assert "--threads" in refused("compare", "a", "b", "--files-only", "--threads", 1, cwd=folder)
    assert "no folder" in refused("compare", "a", "b", "--json", "no/j", cwd=folder)
    assert "--backend cupa (did you mean 'cuda'?)" in refused(
        "verify", "a", "--backend", "cupa", cwd=folder
    )


def test_changed_data(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "moved")
    succeeded("train", "--config", "run.toml", "--out", "c", cwd=tmp_path / "moved")
    lines = (tmp_path / "moved" / "data.jsonl").read_text()
    (tmp_path / "moved" / "data.jsonl").write_text(lines.replace("after 7 ", "after 8 "))
    message = refused("verify", "c", cwd=tmp_path / "moved")
    assert "training data of stage first" in message
    (tmp_path / "moved" / "data.jsonl").unlink()
    assert "data.jsonl" in refused("verify", "c", cwd=tmp_path / "moved")
    # Where the other run was started its data are still there.
    assert "same bits" in succeeded("verify", "a", cwd=tmp_path / "moved")
