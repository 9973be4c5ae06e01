"""Exchanged files: valid ones that belong to something else, and missing ones. All are refused."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from program import fault_of, refusal_fault
from runs import SHARDS, TRAIN, Context, Fixture, Outcome, case_folder

Swap = Callable[[Context, Path, random.Random], None]


def edit(path: Path, pattern: str, replacement: str) -> None:
    """Changes the first match; there has to be one."""
    text, count = re.subn(pattern, replacement, path.read_text(), count=1)
    assert count == 1 and text != path.read_text(), f"{path}: nothing to change at {pattern}"
    path.write_text(text)


def other_recipe(name: str) -> Swap:
    def swap(_: Context, folder: Path, rng: random.Random) -> None:
        changes: tuple[tuple[str, str], ...] = (
            ('schedule = "[a-z0-9:]+"', f'schedule = "promote:{rng.choice((32, 128, 256))}"'),
            ('tile = "tensor"', f'tile = "{rng.choice(("row", "1x32"))}"'),
            ('format = "e4m3fn"', f'format = "{rng.choice(("e4m3fnuz", "e5m2"))}"'),
        )
        if "history" in (folder / name).read_text():
            changes = (*changes[:1], ("history = [0-9]+", f"history = {rng.randint(5, 99)}"))
        edit(folder / name, *rng.choice(changes))

    return swap


def other_text(name: str) -> Swap:
    """One word of one document, a line less, or the lines in another order."""

    def swap(_: Context, folder: Path, rng: random.Random) -> None:
        lines = (folder / name).read_text().splitlines(keepends=True)
        before = list(lines)
        while lines == before:
            how = rng.randrange(3)
            place = rng.randrange(len(lines))
            if how == 0:
                lines[place] = re.sub("one|apples|pears|left|plus|minus|are", "cats", lines[place])
            elif how == 1 and len(lines) > 1:
                del lines[place]
            else:
                rng.shuffle(lines)
        (folder / name).write_text("".join(lines))

    return swap


def other_weights(context: Context, folder: Path, rng: random.Random) -> None:
    """Initial weights of another training, of the same shapes."""
    del rng
    other = folder / "other"
    context.program.run(folder, "export", context.bytes.folder / "whole", other, "--dtype", "f32")
    shutil.copy(other / "model.safetensors", folder / "start/model.safetensors")


def other_run(context: Context, folder: Path, rng: random.Random) -> Path:
    """A run of the same inputs under another seed or another number of steps, beside the first."""
    change = rng.choice(("seed=4", "stages.sft.steps=9", "optimizer.weight_decay=0.05"))
    words = [*TRAIN[:3], "--out", "other", *TRAIN[5:], "--set", change]
    result = context.program.run(folder, *words)
    assert result.code == 0, result.said()
    return folder / "other"


def other_checkpoint(context: Context, folder: Path, rng: random.Random) -> None:
    source = other_run(context, folder, rng)
    shutil.copy(source / "checkpoint.safetensors", folder / "run/checkpoint.safetensors")


def other_run_file(context: Context, folder: Path, rng: random.Random) -> None:
    shutil.copy(other_run(context, folder, rng) / "run.h5", folder / "run/run.h5")


def foreign_checkpoint(context: Context, folder: Path, rng: random.Random) -> None:
    """Of a run over other data."""
    del rng
    source = context.tokens.folder / "stopped/checkpoint.safetensors"
    shutil.copy(source, folder / "run/checkpoint.safetensors")


def missing(name: str) -> Swap:
    def swap(_: Context, folder: Path, __: random.Random) -> None:
        (folder / name).unlink()

    return swap


def nothing_to_resume(_: Context, folder: Path, __: random.Random) -> None:
    shutil.rmtree(folder / "run")


def other_setting(_: Context, folder: Path, rng: random.Random) -> None:
    changes = (
        ("seed = 3", "seed = 4"),
        ("warmup_steps = 1", "warmup_steps = 0"),
        ("sequence_length = 96", "sequence_length = 80"),
        ("sequences = 2\nexact", "sequences = 1\nexact"),
        ("steps = 8", "steps = 9"),
        ("exact_match = 1", "exact_match = 2"),
        ("prompts = 1", "prompts = 2"),
    )
    edit(folder / "config.toml", *rng.choice(changes))


def stale_shards(_: Context, folder: Path, rng: random.Random) -> None:
    """A second shard, as after tokenizing more text."""
    del rng
    shutil.copy(folder / SHARDS, (folder / SHARDS).with_name("sums-00001.tokens"))


OF_BYTES: dict[str, Swap] = {
    "recipe of the run": other_recipe("run.toml"),
    "recipe of a stage": other_recipe("sft.toml"),
    "recipe of rollouts": other_recipe("rollout.toml"),
    "training data": other_text("cpt.jsonl"),
    "training data of the second stage": other_text("sft.jsonl"),
    "evaluation data": other_text("eval.jsonl"),
    "questions": other_text("questions.jsonl"),
    "initial weights": other_weights,
    "checkpoint of another run": other_checkpoint,
    "checkpoint over other data": foreign_checkpoint,
    "run file of another run": other_run_file,
    "no checkpoint": missing("run/checkpoint.safetensors"),
    "no run file": missing("run/run.h5"),
    "no run": nothing_to_resume,
    "no recipe": missing("sft.toml"),
    "no data": missing("cpt.jsonl"),
    "no initial weights": missing("start/model.safetensors"),
    "another setting": other_setting,
}
OF_TOKENS: dict[str, Swap] = {
    "recipe of rollouts": other_recipe("rollout.toml"),
    "one more shard": stale_shards,
    "no shard": missing(SHARDS),
    "no run file": missing("run/run.h5"),
    "no checkpoint": missing("run/checkpoint.safetensors"),
}


def other_base(folder: Path, rng: random.Random) -> None:
    changes = (
        ("seed = 3", "seed = 4"),
        ("warmup_steps = 1", "warmup_steps = 0"),
        ("steps = 4", "steps = 5"),
        ("sequence_length = 32", "sequence_length = 40"),
    )
    edit(folder / "base.toml", *rng.choice(changes))


def exchanged_arms(folder: Path, rng: random.Random) -> None:
    """The run of one arm in the folder of the other."""
    del rng
    shutil.rmtree(folder / "study/infir2")
    shutil.copytree(folder / "study/bf16", folder / "study/infir2")


OF_STUDIES = {"another base": other_base, "the run of another arm": exchanged_arms}


def swap_study(context: Context, rng: random.Random) -> Outcome:
    """An exchange in a finished study, then ablate again; it neither counts nor describes runs of
    other settings as its own."""
    folder = case_folder(context, "swap-study")
    shutil.copytree(context.study, folder)
    name = rng.choice(list(OF_STUDIES))
    OF_STUDIES[name](folder, rng)
    before = (folder / "study/study.h5").read_bytes()
    words = ("ablate", "--study", "study.toml", "--out", "study", "--jobs", "1", "--threads", "1")
    result = context.program.run(folder, *words)
    problem = fault_of(result) or (refusal_fault(result, "", (1, 2)) if result.code != 0 else "")
    if problem:
        return Outcome("crashed", f"{name}: {problem}; {result.said()}")
    if result.code == 0 or (folder / "study/study.h5").read_bytes() != before:
        return Outcome("wrong", f"{name}: {result.said()}")
    return Outcome("refused", f"{name}: {result.said()}")


def swap(context: Context, rng: random.Random) -> Outcome:
    """One exchange in a stopped run, then --resume; only a refusal is right."""
    if rng.random() < 0.15:
        return swap_study(context, rng)
    fixture: Fixture = rng.choice((context.bytes, context.bytes, context.tokens))
    swaps = OF_BYTES if fixture is context.bytes else OF_TOKENS
    name = rng.choice(list(swaps))
    folder = fixture.copy(case_folder(context, "swap"), "stopped")
    swaps[name](context, folder, rng)
    result = context.program.run(folder, *TRAIN, "--resume")
    problem = fault_of(result) or (refusal_fault(result) if result.code != 0 else "")
    if problem:
        return Outcome("crashed", f"{name}: {problem}; {result.said()}")
    return Outcome("wrong" if result.code == 0 else "refused", f"{name}: {result.said()}")
