"""Damaged files: bits and bytes changed, pages zeroed, ends cut off, in every file of a run. What
reads them afterwards gives what the undamaged file gives, or refuses."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from program import Died, Result, fault_of, in_child
from runs import (
    SHARDS,
    SOURCE,
    TRAIN,
    Context,
    Fixture,
    Outcome,
    case_folder,
    contents,
    difference,
    refused_or_crashed,
)

PAGE = 4096


@dataclass(frozen=True)
class Damage:
    """Bytes of a file before and after."""

    before: bytes
    after: bytes
    note: str

    @property
    def nothing(self) -> bool:
        return self.before == self.after


def damage(data: bytes, rng: random.Random) -> Damage:
    """One random fault of a disk or a copy."""
    changed = bytearray(data)
    place = rng.randrange(max(len(data), 1))
    kind = rng.choice(("bit", "bit", "bit", "byte", "byte", "cut", "page", "append", "swap"))
    if kind == "bit" and data:
        bit = rng.randrange(8)
        changed[place] ^= 1 << bit
        note = f"bit {bit} of byte {place} flipped"
    elif kind == "byte" and data:
        changed[place] = rng.randrange(256)
        note = f"byte {place} set to {changed[place]}"
    elif kind == "cut":
        del changed[place:]
        note = f"cut to {place} bytes"
    elif kind == "page":
        first = place // PAGE * PAGE
        changed[first : first + PAGE] = bytes(len(changed[first : first + PAGE]))
        note = f"page at {first} zeroed"
    elif kind == "append":
        changed += rng.randbytes(rng.randrange(1, 64))
        note = f"{len(changed) - len(data)} bytes appended"
    else:
        length = min(rng.randrange(1, 64), len(data) - place)
        other = rng.randrange(len(data) - length + 1)
        changed[place : place + length] = data[other : other + length]
        note = f"bytes from {other} copied to {place}, {length} of them"
    return Damage(data, bytes(changed), note)


def damage_file(path: Path, rng: random.Random) -> Damage:
    done = damage(path.read_bytes(), rng)
    path.write_bytes(done.after)
    return done


def told(outcome: Outcome, name: str, done: Damage) -> Outcome:
    return Outcome(outcome.verdict, f"{name}: {done.note}; {outcome.note}")


def resume(context: Context, rng: random.Random) -> Outcome:
    """A file that a stopped run depends on, then --resume."""
    fixture, name = pick_file(context, rng, ("run/run.h5", "run/checkpoint.safetensors"))
    folder = fixture.copy(case_folder(context, "flip"), "stopped")
    done = damage_file(folder / name, rng)
    words = [*TRAIN, "--resume"]
    outcome = fixture.judge(folder, context.program.run(folder, *words))
    if outcome.verdict == "refused" and rng.random() < 0.3:
        (folder / name).write_bytes(done.before)
        again = fixture.judge(folder, context.program.run(folder, *words))
        if again.verdict != "right":
            note = f"with the file as it was before: {again.note}"
            return told(Outcome("crashed", note), name, done)
    return told(outcome, name, done)


def pick_file(context: Context, rng: random.Random, of_run: tuple[str, ...]) -> tuple[Fixture, str]:
    """Files of the run as often as all its inputs together."""
    fixture = rng.choice((context.bytes, context.tokens))
    return fixture, rng.choice(of_run if rng.random() < 0.5 else fixture.inputs)


def fresh_shard(context: Context, rng: random.Random) -> Outcome:
    """A new run over a damaged shard, which carries its own hash."""
    fixture = context.tokens
    folder = fixture.copy(case_folder(context, "shard"))
    done = damage_file(folder / SHARDS, rng)
    return told(fixture.judge(folder, context.program.run(folder, *TRAIN)), SHARDS, done)


def use(context: Context, rng: random.Random) -> Outcome:
    """A complete run, damaged, then evaluated or exported."""
    fixture = rng.choice((context.bytes, context.tokens))
    name = rng.choice(("run.h5", "checkpoint.safetensors", "checkpoint.safetensors"))
    folder = fixture.copy(case_folder(context, "use"), "whole")
    done = damage_file(folder / "run" / name, rng)
    how = evaluate if name == "run.h5" else rng.choice((evaluate, export, export))
    return told(how(context, fixture, folder), name, done)


def evaluate(context: Context, fixture: Fixture, folder: Path) -> Outcome:
    result = context.program.run(folder, "eval", "run", "--json", "--threads", "1")
    if result.code != 0 or fault_of(result):
        return refused_or_crashed(result)
    wanted = fixture.evaluation.replace('"whole"', '"run"')
    return Outcome("right") if result.out == wanted else Outcome("wrong", result.said())


def export(context: Context, fixture: Fixture, folder: Path) -> Outcome:
    words = ("--dtype", "f32")
    result = context.program.run(folder, "export", "run", "out", *words)
    if result.code != 0 or fault_of(result):
        return refused_or_crashed(result)
    shutil.copytree(fixture.folder / "whole", folder / "undamaged")
    context.program.run(folder, "export", "undamaged", "wanted", *words)
    for name in ("config.json", "model.safetensors"):
        if (folder / "out" / name).read_bytes() != (folder / "wanted" / name).read_bytes():
            return Outcome("wrong", f"{name} differs; {result.said()}")
    return Outcome("right")


def everything(value: object) -> object:
    """A value of the analysis package as plain data that compare by bits."""
    if hasattr(value, "tobytes"):
        return [str(getattr(value, "dtype", "")), str(getattr(value, "shape", "")), value.tobytes()]
    if hasattr(value, "__dataclass_fields__"):
        fields = value.__dataclass_fields__
        return [[name, everything(getattr(value, name))] for name in fields]
    if isinstance(value, dict):
        return sorted([repr(key), everything(item)] for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return [everything(item) for item in value]
    return repr(value)


def load(path: Path) -> tuple[str, str]:
    """Reads a run or study as the report does: (verdict, what it says). The verdict on what can be
    read is its hash."""
    try:
        found: tuple[str, str] = in_child(lambda: _load(path))
        return found
    except Died as died:
        return "crashed", f"reading {path.name} {died}"


def _load(path: Path) -> tuple[str, str]:
    os.chdir(path.parent)
    sys.path[:0] = [str(SOURCE / "analysis"), str(SOURCE / "src/python")]
    from fp8lab_analysis.read.hdf5 import InputError
    from fp8lab_analysis.read.run_reader import load_run
    from fp8lab_analysis.read.study import load_study

    name = Path(path.name)
    try:
        read: object = load_study([name]) if path.name == "study.h5" else load_run(name)
    except InputError as error:
        one_line = len(str(error).splitlines()) == 1
        return ("refused" if one_line else "crashed"), str(error)
    except Exception as error:  # what a user would see as a traceback
        return "crashed", f"{type(error).__name__}: {error}"
    return hashlib.sha256(repr(everything(read)).encode()).hexdigest(), ""


def compare_reading(before: str, file: Path) -> Outcome:
    """`before`: the verdict on the undamaged file in the same place."""
    verdict, said = load(file)
    if verdict in ("refused", "crashed"):
        return Outcome(verdict, said)
    same = verdict == before
    return Outcome("right") if same else Outcome("wrong", "the report would show other values")


def read_run(context: Context, rng: random.Random) -> Outcome:
    """What a report reads from run.h5."""
    fixture = rng.choice((context.bytes, context.tokens))
    file = fixture.copy(case_folder(context, "read"), "whole") / "run/run.h5"
    before = load(file)[0]
    done = damage_file(file, rng)
    return told(compare_reading(before, file), "run.h5", done)


def read_study(context: Context, rng: random.Random) -> Outcome:
    """What a report reads from study.h5 and the runs it links to."""
    folder = case_folder(context, "study-file")
    shutil.copytree(context.study, folder)
    name = rng.choice(("study.h5", "study.h5", "bf16/run.h5", "infir2/run.h5"))
    before = load(folder / "study/study.h5")[0]
    done = damage_file(folder / "study" / name, rng)
    return told(compare_reading(before, folder / "study/study.h5"), name, done)


def repeat_study(context: Context, rng: random.Random) -> Outcome:
    """A finished study with one damaged file, run again: what it says about
    its arms has to be what it was."""
    folder = case_folder(context, "study-again")
    shutil.copytree(context.study, folder)
    names = ("study.h5", "log.txt", "config.toml", "run.h5", "checkpoint.safetensors")
    name = rng.choice(names)
    path = folder / "study" / (name if name == "study.h5" else f"infir2/{name}")
    done = damage_file(path, rng)
    words = ("ablate", "--study", "study.toml", "--out", "study", "--jobs", "1", "--threads", "1")
    result = context.program.run(folder, *words)
    if result.code != 0 or fault_of(result):
        return told(refused_or_crashed(result), name, done)
    return told(same_study(context, folder, result), name, done)


def same_study(context: Context, folder: Path, result: Result) -> Outcome:
    try:
        wanted = contents(context.study / "study/study.h5")
        changed = difference(wanted, contents(folder / "study/study.h5"))
    except Died as died:
        changed = f"reading study.h5 {died}"
    return Outcome("wrong", f"{changed}; {result.said()}") if changed else Outcome("right")


def doctor(context: Context, rng: random.Random) -> Outcome:
    """A damaged run, examined: what `doctor` calls well has to be right."""
    fixture = rng.choice((context.bytes, context.tokens))
    state = rng.choice(("whole", "stopped"))
    folder = fixture.copy(case_folder(context, "doctor"), state)
    name = rng.choice(("run.h5", "checkpoint.safetensors"))
    done = damage_file(folder / "run" / name, rng)
    result = context.program.run(folder, "doctor", "run")
    if fault_of(result) or result.code not in (0, 3):
        return told(Outcome("crashed", f"{fault_of(result)}; {result.said()}"), name, done)
    if result.code == 3:
        explained = any(
            line.startswith("damaged") and name in line for line in result.out.split("\n")
        )
        verdict = "refused" if explained else "crashed"
        return told(Outcome(verdict, f"{result.out}{result.said()}"), name, done)
    if state == "stopped":
        outcome = fixture.judge(folder, context.program.run(folder, *TRAIN, "--resume"))
    else:
        outcome = evaluate(context, fixture, folder)
        try:
            changed = difference(fixture.right, contents(folder / "run/run.h5"))
        except Died as died:
            changed = f"reading the run file {died}"
        if changed:
            outcome = Outcome("wrong", changed)
    if outcome.verdict == "refused":
        outcome = Outcome("wrong", f"doctor called this well: {outcome.note}")
    return told(outcome, name, done)


def doctor_study(context: Context, rng: random.Random) -> Outcome:
    """A damaged study, examined: what `doctor --check` calls well, a report reads as it was."""
    folder = case_folder(context, "doctor-study")
    shutil.copytree(context.study, folder)
    file = folder / "study/study.h5"
    before = load(file)[0]
    done = damage_file(file, rng)
    result = context.program.run(folder, "doctor", "study", "--check")
    if fault_of(result) or result.code not in (0, 2, 3):
        return told(Outcome("crashed", f"{fault_of(result)}; {result.said()}"), "study.h5", done)
    if result.code == 0:
        outcome = compare_reading(before, file)
        if outcome.verdict == "refused":
            outcome = Outcome("wrong", f"doctor called this well: {outcome.note}")
        return told(outcome, "study.h5", done)
    named = "study" in result.out + result.err
    return told(Outcome("refused" if named else "crashed", result.said()), "study.h5", done)


def full_report(context: Context, rng: random.Random) -> Outcome:
    """The program's own report of a damaged run: its tables, or one line."""
    folder = context.bytes.copy(case_folder(context, "report"), "whole")
    done = damage_file(folder / "run/run.h5", rng)
    result = context.program.run(folder, "report", "run")
    if result.code != 0 or fault_of(result):
        return told(refused_or_crashed(result), "run.h5", done)
    shutil.copytree(context.bytes.folder / "whole", folder / "other/run")
    context.program.run(folder, "report", "other/run")
    for table in sorted((folder / "other/run/report/tables").iterdir()):
        if table.read_bytes() != (folder / "run/report/tables" / table.name).read_bytes():
            return told(Outcome("wrong", f"{table.name} differs"), "run.h5", done)
    return told(Outcome("right"), "run.h5", done)


def flip(context: Context, rng: random.Random) -> Outcome:
    ways = (
        (resume, 12),
        (use, 6),
        (read_run, 5),
        (fresh_shard, 2),
        (read_study, 3),
        (doctor, 4),
        (doctor_study, 3),
        (repeat_study, 2),
    )
    if rng.random() < 0.01:
        return full_report(context, rng)
    return rng.choices([way for way, _ in ways], [share for _, share in ways])[0](context, rng)
