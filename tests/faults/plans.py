"""What training refuses, a dry run refuses in the same words, and the other way round."""

from __future__ import annotations

import json
import random
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grammar
from malformed import ONE_STEP
from program import fault_of, refusal_fault
from runs import TRAIN, Context, Outcome, case_folder

Table = dict[str, Any]

# Keys that training may refuse, with values of which some are right.
SETTINGS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("model.vocab_size", (200, 256, 259, 260, 288)),
    ("model.hidden_size", (63, 64, 65)),
    ("model.head_dim", (31, 32, 64)),
    ("model.num_attention_heads", (1, 2, 3)),
    ("model.num_hidden_layers", (1, 2, 3)),
    ("model.intermediate_size", (1, 127, 128)),
    ("stages.cpt.sequence_length", (1, 7, 32, 100000)),
    ("stages.sft.sequence_length", (1, 8, 96)),
    ("stages.cpt.steps", (0, 1, 2)),
    ("stages.cpt.batch_sequences", (0, 1, 2, 3)),
    ("stages.cpt.micro_batch_sequences", (0, 1, 2, 3)),
    ("stages.cpt.learning_rate.warmup_steps", (0, 1, 5)),
    ("stages.cpt.recipe", ("bf16", "infir2", "nothing", "rollout.toml", "cpt.jsonl")),
    ("stages.sft.data.path", ("nothing", "cpt.jsonl", "run", ".", "/dev/zero", "questions.jsonl")),
    ("stages.cpt.data.kind", ("text", "jsonl", "tokens", "arithmetic")),
    ("stages.sft.data.form", ("running_text", "prompt_response")),
    ("stages.cpt.data.range", ([0.0, 0.0001], [0.5, 1.0], [1.0, 0.5], [0.0, 2.0])),
    ("stages.sft.eval.multiple_choice", ("nothing", "questions.jsonl", "cpt.jsonl")),
    ("stages.sft.eval.sequences", (0, 1, 3)),
    ("stages.sft.eval.exact_match", (0, 1, 1000)),
    ("stages.sft.eval.max_new_tokens", (0, 1, 90, 200)),
    ("stages.sft.eval.rollout.recipe", ("bf16", "nothing")),
    ("stages.sft.eval.rollout.prompts", (0, 1, 1000)),
    ("stages.sft.eval.data.path", ("nothing", "cpt.jsonl", "eval.jsonl")),
    ("init_from", ("start", "nothing", "start/config.json", "cpt.jsonl", "whole")),
    ("growth.from_layers", (1,)),
    ("optimizer.kind", ("adamw", "muon", "nothing")),
    ("memory.loss_chunk", (1, 8, 64)),
    ("memory.recompute", ("layer", "none", "x")),
    ("logging.checkpoint_every_steps", (0, 1)),
)  # fmt: skip
OUTS = ("run", "run", "run", "run", "run", "/proc/x", "cpt.jsonl", "cpt.jsonl/x", "start", "", ".")


def set_key(table: Table, key: str, value: Any) -> None:
    names = key.split(".")
    target: Any = table
    for position, name in enumerate(names[:-1]):
        if position == 1 and names[0] == "stages":
            target = next(stage for stage in target if stage["name"] == name)
        else:
            target = target.setdefault(name, {})
    target[names[-1]] = value


def settings(folder: Path, rng: random.Random) -> str:
    document = tomllib.loads((folder / "config.toml").read_text())
    notes = []
    for key, values in rng.sample(SETTINGS, rng.choice((1, 1, 1, 2))):
        value = rng.choice(values)
        set_key(document, key, value)
        notes.append(f"{key} = {value!r}")
    (folder / "config.toml").write_text(grammar.toml_text(document))
    return ", ".join(notes)


def text(folder: Path, rng: random.Random) -> str:
    document = tomllib.loads((folder / "config.toml").read_text())
    broken = grammar.broken_toml(document, rng)
    (folder / "config.toml").write_bytes(broken.data)
    return broken.note


def input_file(folder: Path, rng: random.Random) -> str:
    """Some file that the run reads, gone or with a bad line."""
    name = rng.choice(("cpt.jsonl", "sft.jsonl", "eval.jsonl", "questions.jsonl", "sft.toml"))
    path = folder / name
    if rng.random() < 0.3 or path.suffix == ".toml":
        path.unlink()
        return f"no {name}"
    lines = path.read_bytes().splitlines()
    place = rng.randrange(len(lines))
    broken = grammar.broken_json(json.loads(lines[place]), rng)
    lines[place] = broken.data
    path.write_bytes(b"\n".join(lines) + b"\n")
    return f"{name}:{place + 1}: {broken.note}"


MUTATIONS: tuple[tuple[Callable[[Path, random.Random], str], int], ...] = (
    (settings, 6), (text, 2), (input_file, 2),
)  # fmt: skip


def plan(context: Context, rng: random.Random) -> Outcome:
    mutate = rng.choices([m for m, _ in MUTATIONS], [share for _, share in MUTATIONS])[0]
    out = rng.choice(OUTS)
    seed = rng.random()
    ended = []
    for more in (("--dry-run",), ()):
        folder = context.bytes.copy(case_folder(context, "plan"))
        note = mutate(folder, random.Random(seed))
        words = [*TRAIN[:3], f"--out={out}", *TRAIN[5:], *more]
        if mutate is not text:
            words += ONE_STEP[:4] if "steps" not in note else []
        ended.append(context.program.run(folder, *words))
    dry, real = ended
    note = f"{note}, --out {out!r}; {dry.said()}; {real.said()}"
    problem = fault_of(dry) or fault_of(real)
    if problem:
        return Outcome("crashed", f"{problem}; {note}")
    if real.code in (0, 4, 5):
        return Outcome("right" if dry.code == 0 else "wrong", note)
    problem = refusal_fault(real, "", (1, 2))
    if problem:
        return Outcome("crashed", f"{problem}; {note}")
    if real.code == 1 and dry.code == 0:  # a failure of the machine, which no plan foresees
        return Outcome("refused", note)
    if dry.code != real.code or dry.err != real.err:
        return Outcome("wrong", f"another answer; {note}")
    return Outcome("refused", note)
