"""A run folder is evaluated, executed again and compared from any directory and any machine, with
what it holds; what lies outside is looked up, told by its hash, and named where it is missing."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from program import SMALL_MODEL, errors, refused, run, stopped, succeeded

RECIPE = """
name = "mine"
base = "infir2"
"""

CONFIG = (
    """
name = "tiny"
recipe = "mine.toml"
"""
    + SMALL_MODEL
    + """[logging]
checkpoint_every_steps = 3
[[stages]]
name = "only"
kind = "cpt"
steps = 4
batch_sequences = 2
sequence_length = 64
data = {kind = "jsonl", path = ["data/train.jsonl"], form = "prompt_response"}
learning_rate = {kind = "constant", peak = 1e-3, warmup_steps = 0}
recipe_at = [{step = 2, recipe = "recipes/later.toml"}]
fallback = {recipe = "recipes/fallback.toml", when = {nonfinite = true}}
[stages.eval]
data = {kind = "jsonl", path = "data/held.jsonl", form = "prompt_response"}
every_steps = 10
sequences = 2
max_new_tokens = 4
multiple_choice = "questions.jsonl"
rollout = {recipe = "recipes/rollout.toml", prompts = 2}
"""
)

RUN = "runs/mine"


def write_lines(path: Path, word: str = "twice") -> None:
    path.parent.mkdir(exist_ok=True)
    lines = [{"question": f"{i} {word}", "answer": str(2 * i)} for i in range(60)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_recipes(folder: Path) -> None:
    (folder / "recipes").mkdir()
    (folder / "mine.toml").write_text(RECIPE)
    for name in ("later", "fallback", "rollout"):
        base = "bf16" if name == "fallback" else "infir2"
        text = f'name = "{name}"\nbase = "{base}"\n'
        (folder / "recipes" / f"{name}.toml").write_text(text)


def write_files(folder: Path) -> None:
    folder.mkdir()
    write_recipes(folder)
    (folder / "run.toml").write_text(CONFIG)
    write_lines(folder / "data" / "train.jsonl")
    write_lines(folder / "data" / "held.jsonl", "two times")
    question = {"question": "1 twice", "choices": ["2", "3"], "answer": 0}
    (folder / "questions.jsonl").write_text(json.dumps(question) + "\n")


@pytest.fixture(name="moved", scope="module")
def fixture_moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of own recipes, own data and a relative start, moved with all of that but the recipes:
    nothing is left where it was."""
    folder = tmp_path_factory.mktemp("moved") / "there"
    write_files(folder)
    train = ("train", "--config", "run.toml")
    other = ("--recipe", "bf16", "--set", "stages.*.recipe_at=[]")
    succeeded(*train, *other, "--out", "start", cwd=folder)
    start = ("--init-from", "start/checkpoint.safetensors")
    succeeded(*train, *start, "--out", RUN, cwd=folder)
    rate = ("--set", "stages.*.learning_rate.peak=2e-3")
    succeeded(*train, *start, *rate, "--out", "runs/rate", cwd=folder)
    moved = folder.parent / "here"
    folder.rename(moved)
    shutil.rmtree(moved / "recipes")
    (moved / "mine.toml").unlink()
    return moved


@pytest.fixture(name="copy")
def fixture_copy(moved: Path, tmp_path: Path) -> Path:
    shutil.copytree(moved, tmp_path / "copy")
    return tmp_path / "copy"


def recorded(run: Path) -> dict[str, dict[str, str]]:
    """Hashes of the sources by use, and of the rest of the identity by name."""
    with h5py.File(run / "run.h5", "r", libver="latest", swmr=True) as file:
        meta = file["meta"].attrs
        names = zip(meta["identity_names"], meta["identity_hashes"])
        manifest = json.loads(bytes(meta["extra.data_manifest"]))
        hashes = {entry["use"]: entry["sources"][0]["hash"] for entry in manifest}
        return {**hashes, **{bytes(name).decode(): bytes(value).decode() for name, value in names}}


def forget(run: Path, *keys: str) -> None:
    """The run file without attributes of /meta, as programs before them wrote it."""
    with h5py.File(run / "run.h5", "a", libver="latest") as file:
        meta = file["meta"].attrs
        for key in (*keys, "checksum"):
            del meta[key]
        whole = b""
        for name in sorted(meta):
            values = meta[name]
            listed = isinstance(values, np.ndarray)
            texts = [netstring(value) for value in values] if listed else [text_of(values)]
            whole += netstring(name.encode()) + netstring(b"".join(texts))
        meta["checksum"] = hashlib.sha256(whole).hexdigest()


def text_of(value: object) -> bytes:
    return bytes(value) if isinstance(value, bytes) else str(value).encode()


def netstring(value: object) -> bytes:
    text = text_of(value)
    return f"{len(text)}:".encode() + text


def commands(folder: Path) -> dict[str, tuple[object, ...]]:
    """Every command that reads a run, with no more than the run as its argument."""
    run, rate = folder / RUN, folder / "runs" / "rate"
    return {
        "eval": ("eval", run),
        "generate": ("generate", run, "--prompt", "1 twice", "--max-new-tokens", 3),
        "certify": ("certify", run, "--max-new-tokens", 3, "--together", 1),
        "verify": ("verify", run),
        "whatif": ("whatif", run, "--recipe", "bf16", "--accumulator", "sm89_mma_fp8"),
        "attribute": ("attribute", run, "--group", "slot", "--sequences", 1),
        "export": ("export", run, folder / "exported"),
        "files": ("compare", run, rate, "--files-only"),
        "compare": ("compare", run, rate),
        "doctor": ("doctor", run),
    }


DIFFER = ("files", "compare")  # the two runs


@pytest.mark.parametrize("command", commands(Path()))
def test_every_command_reads_a_run_that_was_moved(command: str, copy: Path) -> None:
    result = run(*commands(copy)[command], cwd=Path("/"))
    assert result.returncode == (3 if command in DIFFER else 0), result.stderr
    assert errors(result) == ""
    if command == "compare":
        assert result.stdout.count("same bits as its file") == 2
    if command.startswith("verify"):
        assert "same bits" in result.stdout


@pytest.mark.parametrize("command", commands(Path()))
def test_what_a_command_does_not_need_may_be_missing(command: str, copy: Path) -> None:
    """Without a file that it reads each ends with one line that names the file and its hash."""
    hashes = recorded(copy / RUN)
    needs = {
        "data/train.jsonl": ("verify", "whatif", "attribute", "compare"),
        "data/held.jsonl": ("eval", "certify", "whatif"),
        "questions.jsonl": ("eval",),
        "start/checkpoint.safetensors": ("verify", "compare"),
    }
    known = {
        "data/train.jsonl": hashes["train"],
        "data/held.jsonl": hashes["eval"],
        "questions.jsonl": hashes["questions of stage only"],
        "start/checkpoint.safetensors": hashes["initial weights"],
    }
    for file, users in needs.items():
        (copy / file).rename(copy / "away")
        is_used = command in users
        result = run(*commands(copy)[command], cwd=Path("/"))
        if is_used:
            assert result.returncode == 2, (command, file, result.stdout)
            message = errors(result)
            assert message.count("\n") == 1, message
            for word in (file, known[file], "--look-in" if "jsonl" in file else "--init-from"):
                assert word in message, (command, message)
        else:
            assert result.returncode == (3 if command in DIFFER else 0), result.stderr
        shutil.rmtree(copy / "exported", ignore_errors=True)
        (copy / "away").rename(copy / file)


def test_steps_after_a_checkpoint_need_no_start(copy: Path, tmp_path: Path) -> None:
    write_recipes(copy)
    train = ("train", "--config", "run.toml", "--init-from", "start/checkpoint.safetensors")
    train = (*train, "--set", "stages.*.steps=40", "--out", "long")
    stopped(*train, cwd=copy)
    shutil.copy(copy / "long/checkpoint.safetensors", tmp_path)
    succeeded(*train, "--resume", cwd=copy)
    shutil.rmtree(copy / "start")
    message = refused("verify", copy / "long", cwd=Path("/"))
    assert "initial weights are missing: start/checkpoint.safetensors" in message
    shutil.copy(tmp_path / "checkpoint.safetensors", copy / "long")
    assert "same bits" in succeeded("verify", copy / "long", cwd=Path("/"))


def test_what_is_missing_can_be_given(copy: Path, tmp_path: Path) -> None:
    """Beside the run, or in a folder that the command is told; the start by its own option."""
    files = ("data/train.jsonl", "data/held.jsonl", "questions.jsonl")
    other = tmp_path / "other"
    other.mkdir()
    for file in files:
        (copy / file).rename(other / Path(file).name)
    look = ("--look-in", other)
    for name in ("eval", "certify", "whatif", "attribute", "verify"):
        assert "look-in" in refused(*commands(copy)[name], cwd=Path("/"))
        succeeded(*commands(copy)[name], *look, cwd=Path("/"))
    assert run(*commands(copy)["compare"], *look).returncode == 3
    assert "is no folder" in refused("eval", copy / RUN, "--look-in", other / "no")
    assert "--look-in" in refused(*commands(copy)["files"], *look)
    for file in other.iterdir():
        shutil.copy(file, copy / RUN)
    succeeded(*commands(copy)["eval"], cwd=Path("/"))
    start = tmp_path / "weights.safetensors"
    (copy / "start/checkpoint.safetensors").rename(start)
    verify = commands(copy)["verify"]
    refused(*verify, cwd=Path("/"))
    succeeded(*verify, "--init-from", start, cwd=Path("/"))


def test_the_hash_decides_among_files_of_one_name(copy: Path, tmp_path: Path) -> None:
    """Above the run, beside it and where the command runs lie other ones; the right one counts."""
    write_lines(copy / "runs" / "data" / "train.jsonl", "thrice")
    write_lines(copy / "runs" / "data" / "held.jsonl", "thrice")
    (copy / "runs" / "questions.jsonl").write_text("nothing\n")
    (copy / RUN / "start").mkdir()
    shutil.copy(copy / "runs/rate/checkpoint.safetensors", copy / RUN / "start")
    (copy / "runs" / "start").mkdir()
    (copy / "runs/start/checkpoint.safetensors").write_bytes(b"no weights")
    for name in ("eval", "certify", "verify", "whatif"):
        succeeded(*commands(copy)[name], cwd=copy / "runs")
    (copy / "data/train.jsonl").unlink()
    (copy / "data/held.jsonl").unlink()
    for name, part in {
        "eval": "evaluation data of stage only",
        "verify": "training data of stage only",
        "whatif": "training data of stage only",
    }.items():
        message = refused(*commands(copy)[name], cwd=copy / "data")
        assert part in message
    write_lines(copy / "data" / "train.jsonl")
    (copy / "start/checkpoint.safetensors").unlink()
    message = refused(*commands(copy)["verify"], cwd=copy)
    assert "initial weights are missing" in message and "something else" in message
    write_lines(copy / "data" / "held.jsonl", "two times")
    (copy / "questions.jsonl").unlink()
    assert "questions of stage only are missing" in refused(*commands(copy)["eval"], cwd=copy)


def test_recipes_of_a_run_are_what_they_were(copy: Path) -> None:
    """Other files in their places change nothing; those that a command is given count."""
    before = succeeded("eval", copy / RUN, "--json", cwd=Path("/"))
    (copy / "recipes").mkdir()
    for name in ("mine.toml", "recipes/later.toml", "recipes/rollout.toml"):
        (copy / name).write_text('name = "changed"\nbase = "bf16"\n')
    assert succeeded("eval", copy / RUN, "--json", cwd=copy) == before
    found = json.loads(succeeded("eval", copy / RUN, "--recipe", "mine.toml", "--json", cwd=copy))
    assert found["recipe"] == "changed"
    rollout = ("--rollout-recipe", "recipes/rollout.toml", "--json")
    other = json.loads(succeeded("eval", copy / RUN, *rollout, cwd=copy))
    assert other["rollout"] != json.loads(before)["rollout"]
    assert "does not exist" in refused("eval", copy / RUN, "--recipe", "mine.toml", cwd=Path("/"))


def test_a_resume_still_refuses_a_changed_recipe(copy: Path) -> None:
    train = ("train", "--config", "run.toml", "--init-from", "start/checkpoint.safetensors")
    resume = (*train, "--out", RUN, "--resume")
    assert "does not exist" in refused(*resume, cwd=copy)
    write_recipes(copy)
    succeeded(*resume, cwd=copy)
    (copy / "recipes/later.toml").write_text('name = "later"\nbase = "bf16"\n')
    message = refused(*resume, cwd=copy)
    assert "recipe of stage only after 2 steps" in message


def test_runs_of_older_programs(copy: Path) -> None:
    """Of the recipes they hold the run's own; where they were started they do not say."""
    for run_folder in (copy / RUN, copy / "runs/rate"):
        forget(run_folder, "extra.recipes", "extra.started_in")
    message = refused(*commands(copy)["eval"], cwd=Path("/"))
    assert "'recipes/rollout.toml' does not exist" in message
    write_recipes(copy)
    (copy / "mine.toml").unlink()
    for name in ("eval", "verify", "whatif"):
        succeeded(*commands(copy)[name], cwd=copy)
