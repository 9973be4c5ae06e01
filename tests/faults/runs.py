"""Tiny runs that the campaign disturbs, and what their files have to hold in the end."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from program import Disk, Died, Program, Result, fault_of, in_child, refusal_fault

SOURCE = Path(__file__).resolve().parents[2]

RECIPE = """
name = "{name}"
[slots.default]
format = "e4m3fn"
tile = "tensor"
scale_source = "delayed"
history = {history}
[slots.dy]
format = "e5m2"
[gemm]
accumulator = "sm90_wgmma_fp8"
schedule = "{schedule}"
"""

MODEL = """
name = "{name}"
recipe = "{recipe}"
seed = 3
{start}
[model]
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 32
vocab_size = 288
[logging]
statistics_every_steps = 4
checkpoint_every_steps = 3
"""

STAGE = """
[[stages]]
name = "{name}"
kind = "{name}"
steps = {steps}
batch_sequences = 2
micro_batch_sequences = 1
sequence_length = {length}
{recipe}
[stages.learning_rate]
warmup_steps = 1
[stages.data]
{data}
"""

EVAL = """
[stages.eval]
every_steps = 4
sequences = 2
exact_match = 1
max_new_tokens = 3
{questions}
[stages.eval.rollout]
recipe = "rollout.toml"
prompts = 1
[stages.eval.data]
{data}
"""

WORDS = "one two three four five six seven eight nine ten apples pears plus minus are left".split()

# What training with another file, or a damaged one, would change.
BYTES_INPUTS = (
    "config.toml",
    "run.toml",
    "sft.toml",
    "rollout.toml",
    "cpt.jsonl",
    "sft.jsonl",
    "eval.jsonl",
    "questions.jsonl",
    "start/model.safetensors",
)
SHARDS = "shards/sums-00000.tokens"
TOKENS_INPUTS = ("config.toml", SHARDS, "shards/token_bytes.json")
TRAIN = ("train", "--config", "config.toml", "--out", "run", "--threads", "1")


def sentence(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def question(rng: random.Random) -> dict[str, object]:
    return {"question": sentence(rng, 4) + "?", "answer": f"{sentence(rng, 2)} #### 7"}


def write_bytes_inputs(folder: Path) -> None:
    """A run over byte-level files: two stages with recipes of their own, initial weights, held-out
    questions, choices and rollouts."""
    rng = random.Random(1)
    write_lines(folder / "cpt.jsonl", [{"text": sentence(rng, 12)} for _ in range(24)])
    for name, count in (("sft", 16), ("eval", 4)):
        write_lines(folder / f"{name}.jsonl", [question(rng) for _ in range(count)])
    choices: list[dict[str, object]] = [
        {"question": sentence(rng, 3), "choices": ["pears", "apples"], "answer": 1}
        for _ in range(2)
    ]
    write_lines(folder / "questions.jsonl", choices)
    for name, history, schedule in (("run", 4, "fast"), ("sft", 3, "promote:64")):
        text = RECIPE.format(name=name, history=history, schedule=schedule)
        (folder / f"{name}.toml").write_text(text)
    text = RECIPE.replace('scale_source = "delayed"\nhistory = {history}\n', "")
    (folder / "rollout.toml").write_text(text.format(name="rollout", schedule="fast"))
    start = 'init_from = "start/model.safetensors"'
    cpt = STAGE.format(
        name="cpt", steps=2, length=32, recipe="", data='kind = "jsonl"\npath = "cpt.jsonl"'
    )
    sft = STAGE.format(
        name="sft",
        steps=8,
        length=96,
        recipe='recipe = "sft.toml"',
        data='kind = "jsonl"\npath = "sft.jsonl"',
    )
    held_out = EVAL.format(
        questions='multiple_choice = "questions.jsonl"',
        data='kind = "jsonl"\npath = "eval.jsonl"\nform = "prompt_response"',
    )
    model = MODEL.format(name="bytes", recipe="run.toml", start=start)
    (folder / "config.toml").write_text(model + cpt + sft + held_out)


def write_tokens_inputs(folder: Path) -> None:
    """A run over token shards with a built-in recipe."""
    shutil.copytree(SOURCE / "tests/golden/tokens", folder / "shards")
    shutil.copy(folder / "../bytes/rollout.toml", folder)
    data = 'kind = "tokens"\npath = "shards"'
    model = MODEL.format(name="tokens", recipe="infir2", start="")
    first = STAGE.format(name="cpt", steps=2, length=32, recipe="", data=data)
    second = STAGE.format(name="sft", steps=8, length=64, recipe="", data=data)
    held_out = EVAL.format(questions="", data=data + "\nrange = [0.5, 1.0]")
    (folder / "config.toml").write_text(model + first + second + held_out)


STUDY = """
name = "study"
title = "Two recipes"
base = "base.toml"
baseline = "bf16"
[[axis]]
key = "recipe"
values = ["bf16", "infir2"]
"""


def write_study_inputs(folder: Path) -> None:
    """A study of two arms over generated sums."""
    data = 'kind = "arithmetic"'
    model = MODEL.format(name="base", recipe="bf16", start="")
    stage = STAGE.format(name="cpt", steps=4, length=32, recipe="", data=data)
    (folder / "base.toml").write_text(model + stage)
    (folder / "study.toml").write_text(STUDY)


Contents = dict[str, bytes]


def contents(file: Path) -> Contents:
    """Everything in a run file that an interruption may not change: all rows but wall times and
    the record of interruptions. Throws Died."""
    found: Contents = in_child(lambda: _contents(file))
    return found


def _contents(file: Path) -> Contents:
    skipped = ("metrics/seconds", "events/", "checkpoints/")
    found: Contents = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith(skipped):
            found[name] = repr(item.shape).encode() + np.ascontiguousarray(item[...]).tobytes()

    # A SWMR reader waits minutes for a damaged block to become whole; a plain one does not open
    # what a killed writer left.
    for swmr in (False, True):
        try:
            with h5py.File(file, "r", libver="latest", swmr=swmr) as run:
                run.visititems(visit)
            return found
        except OSError as error:
            if "consistency flags" not in str(error) and "open for write" not in str(error):
                return {"unreadable": str(error).encode()}
    return {"unreadable": b"neither plainly nor as SWMR reader"}


def difference(wanted: Contents, found: Contents) -> str:
    """The first dataset that differs; empty: none."""
    if "unreadable" in found:
        return f"not readable ({found['unreadable'].decode()})"
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            return f"/{name} differs"
    return ""


@dataclass(frozen=True)
class Outcome:
    """Verdict on one case: right, refused, wrong (a wrong result accepted) or crashed (a signal, a
    hang, a traceback, or a refusal that does not say in one line what is wrong)."""

    verdict: str
    note: str = ""


def refused_or_crashed(result: Result, name: str = "") -> Outcome:
    """For a process that ended with a complaint."""
    problem = fault_of(result) or refusal_fault(result, name, (1, 2))
    if problem:
        return Outcome("crashed", f"{problem}; {result.said()}")
    return Outcome("refused", result.said())


@dataclass(frozen=True)
class Fixture:
    """A folder with inputs, the complete run in `whole`, the same run stopped half-way in
    `stopped`, and what is right."""

    folder: Path
    inputs: tuple[str, ...]
    right: Contents
    evaluation: str  # of the complete run
    seconds: float  # of the undisturbed run
    stops: int  # of the undisturbed run, at file operations

    def copy(self, to: Path, state: str = "") -> Path:
        """The inputs, and the run of `state` as `run`."""
        shutil.copytree(self.folder, to, ignore=lambda _, names: {"whole", "stopped"} & set(names))
        if state:
            shutil.copytree(self.folder / state, to / "run")
        return to

    def judge(self, folder: Path, result: Result) -> Outcome:
        """After a run that should have come to its end."""
        if result.code == 0 and not fault_of(result):
            try:
                changed = difference(self.right, contents(folder / "run/run.h5"))
            except Died as died:
                changed = f"reading the run file {died}"
            note = f"{changed}; {result.said()}" if changed else ""
            return Outcome("wrong" if changed else "right", note)
        return refused_or_crashed(result)


@dataclass(frozen=True)
class Context:
    """What every case needs."""

    program: Program
    scratch: Path
    bytes: Fixture
    tokens: Fixture
    study: Path  # folder with a complete study in `study`
    traced: bool
    disk: Disk | None


def stop_half_way(program: Program, folder: Path) -> None:
    """Leaves in `stopped` the run after its third step: in its second stage, with a checkpoint."""
    words = [str(program.path), *TRAIN[:3], "--out", "stopped", *TRAIN[5:]]
    for _ in range(50):
        shutil.rmtree(folder / "stopped", ignore_errors=True)
        with subprocess.Popen(
            words, cwd=folder, env=program.environment(), stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            for line in child.stdout:
                if line.startswith("step 2/"):
                    child.send_signal(signal.SIGTERM)
                    break
            child.stdout.read()
        if child.returncode == 4:
            rows = contents(folder / "stopped/run.h5")["metrics/step"]
            if rows.startswith(b"(3,)"):
                return
    raise SystemExit(f"{folder}: the run cannot be stopped after its third step")


def must_succeed(result: Result) -> Result:
    if result.code != 0:
        raise SystemExit(f"the undisturbed program fails: {result.said()}")
    return result


def make_fixture(
    program: Program, folder: Path, inputs: tuple[str, ...], stops: int = 0
) -> Fixture:
    """Trains the undisturbed run."""
    began = time.monotonic()
    must_succeed(program.run(folder, *TRAIN[:3], "--out", "whole", *TRAIN[5:]))
    seconds = time.monotonic() - began
    evaluation = must_succeed(program.run(folder, "eval", "whole", "--json", "--threads", "1")).out
    right = contents(folder / "whole/run.h5")
    stop_half_way(program, folder)
    return Fixture(folder, inputs, right, evaluation, seconds, stops)


def make_bytes_fixture(program: Program, folder: Path) -> Fixture:
    folder.mkdir()
    write_bytes_inputs(folder)
    text = (folder / "config.toml").read_text()
    first = folder / "first.toml"
    first.write_text(
        text.replace('init_from = "start/model.safetensors"', "seed = 9", 1).replace(
            "seed = 3\n", "", 1
        )
    )
    words = ("train", "--config", "first.toml", "--out", "first", "--threads", "1")
    must_succeed(program.run(folder, *words, "--set", "stages.sft.steps=1"))
    must_succeed(program.run(folder, "export", "first", "start", "--dtype", "f32"))
    shutil.rmtree(folder / "first")
    first.unlink()
    return make_fixture(program, folder, BYTES_INPUTS)


def make_context(program: Program, scratch: Path, traced: bool, disk: Disk | None) -> Context:
    """Trains everything that cases start from."""
    program_bytes = make_bytes_fixture(program, scratch / "bytes")
    (scratch / "tokens").mkdir()
    write_tokens_inputs(scratch / "tokens")
    tokens = make_fixture(program, scratch / "tokens", TOKENS_INPUTS)
    study = scratch / "study"
    study.mkdir()
    write_study_inputs(study)
    words = ("ablate", "--study", "study.toml", "--out", "study", "--jobs", "1", "--threads", "1")
    must_succeed(program.run(study, *words))
    return Context(program, scratch, program_bytes, tokens, study, traced, disk)


def case_folder(context: Context, name: str) -> Path:
    folder = context.scratch / "cases" / f"{name}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    return folder
