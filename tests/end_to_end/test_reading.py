"""What a run reads is read once, to its end, and is what its identity says: read errors, too little
memory, what is no file, and files that change while a run goes on."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

import h5py
import pytest
from program import PROGRAM, SMALL_MODEL, errors, refused, run, succeeded

TOKENS = Path(__file__).resolve().parents[1] / "golden/tokens"
DOCUMENT = "A text of bytes, long enough to be trained on.\n\n"

HEAD = (
    """
name = "r"
recipe = "bf16"
"""
    + SMALL_MODEL
    + """
[logging]
statistics_every_steps = 0
"""
)
STAGE = """
[[stages]]
name = "{name}"
kind = "cpt"
steps = {steps}
batch_sequences = 1
sequence_length = 32
[stages.learning_rate]
warmup_steps = 0
[stages.data]
kind = "{kind}"
path = "{path}"
form = "running_text"
"""
EVALUATION = """
[stages.eval]
sequences = 1
multiple_choice = "c.jsonl"
[stages.eval.data]
kind = "text"
path = "a.txt"
form = "running_text"
"""


def write_run(folder: Path, path: str, kind: str = "text", steps: int = 1, more: str = "") -> Path:
    file = folder / "run.toml"
    file.write_text(HEAD + STAGE.format(name="cpt", steps=steps, kind=kind, path=path) + more)
    return file


def begin(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A training that has taken its first step."""
    process = subprocess.Popen(
        [PROGRAM, "train", "--config", "run.toml", "--threads", "1", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    assert process.stdout is not None
    assert "step 1/" in process.stdout.readline()
    return process


def test_a_read_error_is_no_end(tmp_path: Path) -> None:
    write_run(tmp_path, "/proc/self/mem")
    result = run("train", "--config", "run.toml", "--out", "r", cwd=tmp_path)
    assert result.returncode == 1
    assert errors(result) == "fp8lab: /proc/self/mem: cannot read: Input/output error\n"


def test_too_little_memory_is_no_end(tmp_path: Path) -> None:
    """A line of five gigabytes, none of them on the disk, between documents."""
    with (tmp_path / "big.txt").open("w") as file:
        file.write(DOCUMENT * 30)
        file.seek(5 << 30)
        file.write("\n\n" + DOCUMENT * 30)
    write_run(tmp_path, "big.txt")
    result = subprocess.run(
        [PROGRAM, "train", "--config", "run.toml", "--out", "r", "--threads", "1"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)),
        check=False,
    )
    assert result.returncode in (1, 2), (result.stdout, result.stderr)
    assert "big.txt" in errors(result) and "memory" in errors(result)
    assert not (tmp_path / "r/run.h5").exists()


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom", "pipe"])
def test_what_is_no_regular_file(tmp_path: Path, path: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    write_run(tmp_path, path)
    for words in ([], ["--dry-run"]):
        message = refused("train", "--config", "run.toml", *words, cwd=tmp_path)
        assert f"{path}: is no regular file" in message
    for kind in ("jsonl", "tokens"):
        words = ["--set", f"stages.cpt.data.kind={kind}"]
        assert f"{path}: is no" in refused("train", "--config", "run.toml", *words, cwd=tmp_path)
    assert f"{path}: is no regular file" in refused("train", "--config", path, cwd=tmp_path)
    (tmp_path / "a.txt").write_text(DOCUMENT * 9)
    write_run(tmp_path, "a.txt")
    succeeded("train", "--config", "run.toml", "--out", "r", cwd=tmp_path)
    assert f"{path}: is no" in refused("generate", "r", "--prompts", path, cwd=tmp_path)
    words = ["eval", "r", "--data", "a.txt", "--multiple-choice", path]
    assert f"{path}: is no" in refused(*words, cwd=tmp_path)


def test_questions_are_those_of_the_start(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(DOCUMENT * 9)
    question = {"question": "A text of ", "choices": ["bytes", "##@#!"], "answer": 0}
    last = STAGE.format(name="last", steps=1, kind="text", path="a.txt") + EVALUATION
    write_run(tmp_path, "a.txt", steps=300, more=last)
    for out in ("one", "two"):
        (tmp_path / "c.jsonl").write_text(json.dumps(question) + "\n")
        process = begin(tmp_path, "--out", out)
        if out == "two":
            (tmp_path / "c.jsonl").write_text(json.dumps(question | {"answer": 1}) + "\n")
        process.communicate(timeout=120)
        assert process.returncode == 0
    found = []
    for out in ("one", "two"):
        with h5py.File(tmp_path / out / "run.h5", "r") as file:
            assert b"choice/sum" in file["/scores/name"][:]
            found.append(file["/scores/value"][:].tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("how", ["written", "cut", "replaced"])
def test_token_files_that_change(tmp_path: Path, how: str) -> None:
    file = tmp_path / "s/sums-00000.tokens"
    shutil.copytree(TOKENS, file.parent)
    write_run(tmp_path, "s", "tokens", steps=600)
    size = ["--set", "model.vocab_size=288"]
    succeeded("train", "--config", "run.toml", *size, "--out", "one", cwd=tmp_path)
    process = begin(tmp_path, *size, "--out", "two")
    whole = file.read_bytes()
    if how == "written":
        with file.open("r+b") as open_file:
            open_file.seek(len(whole) // 2)
            open_file.write(b"\5\0" * 64)
    elif how == "cut":
        os.truncate(file, 0)
    else:
        (tmp_path / "other").write_bytes(b"another file")
        (tmp_path / "other").rename(file)
    _, said = process.communicate(timeout=120)
    lines = [line for line in said.splitlines() if not line.endswith(" ...")]
    if how == "replaced":
        assert (process.returncode, lines) == (0, [])
        hashes = []
        for out in ("one", "two"):
            with h5py.File(tmp_path / out / "run.h5", "r") as run_file:
                hashes.append(run_file["/hashes/weights"][-1])
        assert hashes[0] == hashes[1]
        return
    assert process.returncode == 1, said
    assert len(lines) == 1 and "s/sums-00000.tokens: was " in lines[0]


def test_a_plan_is_refused_as_the_run_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(DOCUMENT * 9)
    (tmp_path / "bad.jsonl").write_text("{]\n")
    questions = '{"question": "A", "choices": ["b", "c"], "answer": 2}\n'
    (tmp_path / "c.jsonl").write_text(questions)
    write_run(tmp_path, "a.txt", more=EVALUATION)
    rotated = "".join(f'[slots.{s}]\ntransform = "hadamard:48"\n' for s in ("x", "w", "dy"))
    (tmp_path / "rotated.toml").write_text('name = "rotated"\nbase = "infir2"\n' + rotated)
    sound = ["--set", "stages.cpt.eval.multiple_choice="]
    data = "stages.cpt.data."
    for words, wanted in {
        ("--set", f"{data}path=none.txt"): "none.txt: cannot open",
        ("--set", f"{data}path=bad.jsonl", "--set", f"{data}kind=jsonl"): "bad.jsonl:1",
        ("--set", f"{data}range=[0.0, 0.01]"): "no documents in range",
        ("--set", "model.vocab_size=200"): "needs a vocabulary of 259",
        ("--set", "growth.from_layers=1", "--set", "model.num_hidden_layers=2"): "nothing to grow",
        ("--resume",): "no run to resume",
        ("--out", "/proc/x"): "'/proc/x': ",
        ("--out", "r/" + "x" * 300): "too long",
        ("--init-from", "none.safetensors"): "none.safetensors does not exist",
        ("--init-from", "a.txt"): "a.txt",
        ("--log-dir", "logs"): "--log-dir is for --log",
        ("--set", "recipe=none.toml"): "recipe file 'none.toml' does not exist",
        ("--set", "model.head_dim=48", "--set", "recipe=rotated.toml"): "hadamard:48",
        ("--set", 'stages.cpt.eval.data={kind = "text", path = "none.txt"}'): "none.txt",
    }.items():
        given = ["train", "--config", "run.toml", *sound, *words]
        given += [] if "--out" in words else ["--out", "r"]
        message = refused(*given, cwd=tmp_path)
        assert wanted in message
        assert refused(*given, "--dry-run", cwd=tmp_path) == message
    message = refused("train", "--config", "run.toml", "--dry-run", cwd=tmp_path)
    assert "c.jsonl:1" in message and "is not one of the 2 choices" in message
    (tmp_path / "c.jsonl").write_text(
        '{"question": "A", "choices": ["b", "%s"], "answer": 0}\n' % ("c" * 99)
    )
    beyond = ["train", "--config", "run.toml", "--out", "r"]
    message = refused(*beyond, cwd=tmp_path)
    assert "c.jsonl: question 1 with a choice has" in message
    assert refused(*beyond, "--dry-run", cwd=tmp_path) == message
    (tmp_path / "c.jsonl").write_text(questions)
    (tmp_path / "study.toml").write_text(
        'base = "run.toml"\n[[axis]]\nkey = "recipe"\nvalues = ["bf16", "fp32"]\n'
    )
    for more in ([], ["--dry-run"]):
        assert "c.jsonl:1" in refused("ablate", "--study", "study.toml", *more, cwd=tmp_path)


def test_a_recipe_that_contradicts_its_base_is_named_itself(tmp_path: Path) -> None:
    for base, keys, key, of_base in (
        ("infir2", '[slots.x]\ntile = "1x64"', "gemm.fprop.schedule", "infir2.toml:"),
        (
            "te_current",
            '[slots.default]\nscale_source = "static"',
            "slots.default.scale_format",
            "te_current.toml:",
        ),
    ):
        (tmp_path / "mine.toml").write_text(f'name = "mine"\nbase = "{base}"\n{keys}\n')
        said = refused("recipes", "check", "mine.toml", cwd=tmp_path)
        assert said.startswith(f"fp8lab: mine.toml: '{key}'"), said
        assert "the key is in its base, " in said and of_base in said
    own = '[slots.x]\ntile = "1x64"\n[gemm]\nschedule = "promote:128"\n'
    (tmp_path / "mine.toml").write_text(f'name = "mine"\nbase = "infir2"\n{own}')
    said = refused("recipes", "check", "mine.toml", cwd=tmp_path)
    assert said.startswith("fp8lab: mine.toml:6:1: ") and "base" not in said


def test_a_plan_of_a_resume_is_refused_as_the_resume_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(DOCUMENT * 9)
    (tmp_path / "mine.toml").write_text('name = "mine"\nbase = "infir2"\n')
    write_run(tmp_path, "a.txt", steps=3)
    train = ["train", "--config", "run.toml", "--recipe", "mine.toml", "--out", "r"]
    succeeded(*train, cwd=tmp_path)
    train.append("--resume")
    succeeded(*train, "--dry-run", cwd=tmp_path)
    file = tmp_path / "r/run.h5"
    with h5py.File(file, "r+") as run_file:  # as if it had been killed
        run_file["complete"].resize(0, axis=0)
    succeeded(*train, "--dry-run", cwd=tmp_path)
    checkpoint = tmp_path / "r/checkpoint.safetensors"

    def both(*words: object) -> str:
        message = refused(*train, *words, cwd=tmp_path)
        assert refused(*train, *words, "--dry-run", cwd=tmp_path) == message
        return message

    # Random weights, which follow from the seed, are drawn by the run alone.
    for more in ([], ["--dry-run"]):
        assert "another run: configuration" in refused(
            *train, "--set", "seed=2", *more, cwd=tmp_path
        )
    assert "another run: configuration" in both("--set", "stages.cpt.steps=4")
    (tmp_path / "a.txt").write_text(DOCUMENT * 8)
    assert "training data of stage cpt" in both()
    (tmp_path / "a.txt").write_text(DOCUMENT * 9)
    (tmp_path / "mine.toml").write_text('name = "mine"\nbase = "te_current"\n')
    said = both()
    assert "recipe of stage cpt was " in said and "summary" not in said
    assert re.search(r"now [0-9a-f]{16} \(recipe of stage cpt: gemm\.\S+: ", said), said
    assert 'recipe of stage cpt: slots.default.scale_rounding: "enc_floor" -> (none)' in said
    (tmp_path / "other.toml").write_text('name = "other"\nbase = "te_current"\n')
    others = ["other.toml" if word == "mine.toml" else word for word in train]
    assert '(recipe: "mine.toml" -> "other.toml"; ' in refused(*others, cwd=tmp_path)
    (tmp_path / "mine.toml").write_text('name = "mine"\nbase = "infir2"\n')
    checkpoint.rename(tmp_path / "away")
    assert "checkpoint.safetensors: missing" in both()
    checkpoint.write_bytes((tmp_path / "away").read_bytes()[:-8])
    assert "checkpoint.safetensors" in both()
    (tmp_path / "away").rename(checkpoint)
    file.write_bytes(b"nothing")
    assert "run.h5" in both()


def test_an_arm_is_refused_as_its_run_is(tmp_path: Path) -> None:
    """Before any arm is trained, with the message of the run behind the name of the arm."""
    (tmp_path / "a.txt").write_text(DOCUMENT * 9)
    (tmp_path / "weights.safetensors").write_bytes(b"no weights")
    write_run(tmp_path, "a.txt")
    for key, value in {
        "init_from": "weights.safetensors",
        "stages.cpt.data.path": "none.txt",
        "model.vocab_size": 200,
        "recipe": "none.toml",
    }.items():
        study = 'base = "run.toml"\n[[axis]]\nkey = "recipe"\nvalues = ["bf16", "fp32"]\n'
        study += f"[set]\n{json.dumps(key)} = {json.dumps(value)}\n"
        study = study if key != "recipe" else study.replace("fp32", "none.toml").split("[set]")[0]
        (tmp_path / "study.toml").write_text(study)
        alone = refused(
            "train", "--config", "run.toml", "--set", f"{key}={value}", "--dry-run", cwd=tmp_path
        )
        for more in ([], ["--dry-run"]):
            words = ["ablate", "--study", "study.toml", "--out", "s", *more]
            message = refused(*words, cwd=tmp_path)
            # `train` names the option, the arm its name and the assignment.
            said = alone.rstrip().split(": ", 2)[-1].removeprefix(f"--set {key}={value}: ")
            assert message.rstrip().endswith(said), (message, alone)
        assert not list(tmp_path.glob("s/*/run.h5"))


def test_a_model_that_is_replaced_is_not_looked_up(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(DOCUMENT * 9)
    file = write_run(tmp_path, "a.txt")
    text = file.read_text().replace(SMALL_MODEL, 'model = "doesnotexist"\noptimizer = "none"\n')
    file.write_text(text)
    assert "doesnotexist" in refused("train", "--config", file, "--dry-run", cwd=tmp_path)
    words = ["--set", "model=tiny", "--set", "optimizer=deepseek_v3"]
    succeeded("train", "--config", file, "--dry-run", *words, cwd=tmp_path)
