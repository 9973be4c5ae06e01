"""Kills, signals and full disks: whatever happens, a run comes to the same bits in the end."""

from __future__ import annotations

import random
import resource
import shutil
import signal
from pathlib import Path

import h5py

from program import Died, Interrupt, Result, fault_of, in_child, refusal_fault
from runs import TRAIN, Context, Fixture, Outcome, case_folder, contents, refused_or_crashed

PAGE = 4096  # below it not even a complaint would fit into the file that catches it


def pick_fixture(context: Context, rng: random.Random) -> Fixture:
    return rng.choice((context.bytes, context.tokens))


def pick_moment(context: Context, fixture: Fixture, rng: random.Random, what: int) -> Interrupt:
    """Some moment of a run; now and then beyond its end."""
    part = rng.uniform(0.0, 1.05)
    at = max(1, int(part * fixture.stops)) if context.traced else None
    return Interrupt(what, at, part * fixture.seconds)


def train(
    context: Context, folder: Path, interrupt: Interrupt | None = None, **limits: int
) -> Result:
    """Starts the run, or continues it where a run file exists."""
    words = [*TRAIN, "--resume"] if (folder / "run/run.h5").exists() else [*TRAIN]
    chosen = {resource.RLIMIT_FSIZE: limits["file_size"]} if limits else {}
    return context.program.run(folder, *words, limits=chosen, interrupt=interrupt)


def finish(context: Context, fixture: Fixture, folder: Path) -> Outcome:
    """The run undisturbed to its end; it has to be accepted, since nothing was damaged."""
    result = train(context, folder)
    if result.code not in (0, 1) or fault_of(result):
        return Outcome("crashed", f"an interrupted run is not continued: {result.said()}")
    outcome = fixture.judge(folder, result)
    left = [path.name for path in (folder / "run").iterdir() if ".tmp" in path.name]
    if outcome.verdict == "right" and left:
        return Outcome("crashed", f"left behind: {left}")
    if outcome.verdict == "refused":
        return Outcome("crashed", outcome.note)
    return outcome


def kill(context: Context, rng: random.Random) -> Outcome:
    """kill -9 one to three times, `doctor` in between, then to the end."""
    fixture = pick_fixture(context, rng)
    folder = fixture.copy(case_folder(context, "kill"))
    for _ in range(rng.randint(1, 3)):
        result = train(context, folder, pick_moment(context, fixture, rng, signal.SIGKILL))
        if result.code not in (0, -signal.SIGKILL):
            return Outcome("crashed", f"after a kill: {result.said()}")
        if rng.random() < 0.3 and (folder / "run/run.h5").exists():
            problem = examine(context, folder, rng)
            if problem:
                return Outcome("crashed", problem)
    return finish(context, fixture, folder)


def examine(context: Context, folder: Path, rng: random.Random) -> str:
    """What is wrong with `doctor` on a killed run, which is damaged in nothing. It is itself killed
    now and then; afterwards plain HDF5 readers open the run file."""
    if rng.random() < 0.5:
        at = rng.randrange(1, 300) if context.traced else None
        interrupt = Interrupt(signal.SIGKILL, at, rng.uniform(0.0, 0.05))
        context.program.run(folder, "doctor", "run", interrupt=interrupt)
    result = context.program.run(folder, "doctor", "run")
    if result.code != 0 or fault_of(result):
        return f"a killed run is not well: {result.out}{result.said()}"
    try:
        in_child(lambda: h5py.File(folder / "run/run.h5", "r")["meta"].attrs["schema"])
    except Died as died:
        return f"opening the run plainly after doctor {died}"
    return ""


def stop(context: Context, rng: random.Random) -> Outcome:
    """SIGINT or SIGTERM once or twice; each ends in a checkpoint and exit 4, or comes too late, or
    before the program listens and so before it has written anything."""
    fixture = pick_fixture(context, rng)
    folder = fixture.copy(case_folder(context, "signal"))
    for _ in range(rng.randint(1, 2)):
        what = rng.choice((signal.SIGINT, signal.SIGTERM))
        existed = (folder / "run/run.h5").exists()
        interrupt = pick_moment(context, fixture, rng, what)
        result = train(context, folder, interrupt)
        early = result.code == -what and (folder / "run/run.h5").exists() == existed
        if result.code not in (0, 4) and not early:
            return Outcome("crashed", f"after signal {what}: {result.said()}")
        if result.code == 4 and not (folder / "run/checkpoint.safetensors").exists():
            return Outcome("crashed", f"exit 4 without a checkpoint: {result.said()}")
    return finish(context, fixture, folder)


def complains_of_space(result: Result) -> str:
    """What is wrong with a run that found no space; empty: one line and exit 1."""
    return fault_of(result) or refusal_fault(result, "", (1,))


def full_disk(context: Context, rng: random.Random) -> Outcome:
    """A disk that is full at some moment of a run, then is not. Without the right to mount one, a
    limit on the size of each file, which fails in the same calls."""
    fixture = pick_fixture(context, rng)
    if context.disk is None:
        folder = fixture.copy(case_folder(context, "disk"))
        result = train(context, folder, file_size=rng.randrange(PAGE, 1 << 21))
    else:
        shutil.rmtree(context.disk.folder / "case", ignore_errors=True)
        folder = fixture.copy(context.disk.folder / "case")
        if rng.random() < 0.5:  # full from some moment of the run on
            train(context, folder, pick_moment(context, fixture, rng, signal.SIGKILL))
        context.disk.leave(int(rng.choice((1, 1 / 8, 1 / 64)) * rng.randrange(0, 6 << 20)))
        result = train(context, folder)
        context.disk.release()
    if result.code != 0:
        problem = complains_of_space(result)
        if problem:
            return Outcome("crashed", f"{problem}; {result.said()}")
    return finish(context, fixture, folder)


def full_output(context: Context, rng: random.Random) -> Outcome:
    """Standard output that takes nothing, then standard error."""
    commands = (
        ("recipes", "list"),
        ("info", "--json"),
        ("data", "inspect", "shards"),
        ("eval", "whole", "--json", "--threads", "1"),
        ("quantize", "whole", "--recipe", "infir2", "--threads", "1"),
        ("train", "--config", "config.toml", "--dry-run"),
    )
    folder = context.tokens.folder
    result = context.program.run(folder, *rng.choice(commands), out=Path("/dev/full"))
    problem = complains_of_space(result)
    if problem:
        return Outcome("crashed", f"{problem}; {result.said()}")
    silent = context.program.run(folder, "eval", "nothing", err=Path("/dev/full"))
    if silent.code != 2:
        return Outcome("crashed", f"with standard error full: {silent.said()}")
    return Outcome("refused")


def full_export(context: Context, rng: random.Random) -> Outcome:
    """An export that finds no space fails, and works once there is some."""
    folder = context.bytes.copy(case_folder(context, "export"), "whole")
    limits = {resource.RLIMIT_FSIZE: rng.randrange(PAGE, 500_000)}
    words = ("export", "run", "out", "--dtype", "f32")
    result = context.program.run(folder, *words, limits=limits)
    if result.code != 0:
        problem = complains_of_space(result)
        if problem:
            return Outcome("crashed", f"{problem}; {result.said()}")
        again = context.program.run(folder, *words)
        if again.code == 2 and "empty" in again.err:
            shutil.rmtree(folder / "out")  # what was written before the space ran out
            again = context.program.run(folder, *words)
        if again.code != 0:
            return Outcome("crashed", again.said())
    context.program.run(folder, "export", "run", "undisturbed", *words[3:])
    for name in ("config.json", "model.safetensors"):
        if (folder / "out" / name).read_bytes() != (folder / "undisturbed" / name).read_bytes():
            return Outcome("wrong", f"{name} differs after a full disk")
    return Outcome("right")


def disk(context: Context, rng: random.Random) -> Outcome:
    kinds = (full_disk, full_disk, full_disk, full_output, full_export)
    return rng.choice(kinds)(context, rng)


def study(context: Context, rng: random.Random) -> Outcome:
    """An ablate killed or stopped at some moment, then run to its end."""
    folder = case_folder(context, "study")
    shutil.copytree(context.study, folder, ignore=shutil.ignore_patterns("study"))
    what = rng.choice((signal.SIGKILL, signal.SIGTERM))
    words = ("ablate", "--study", "study.toml", "--out", "study", "--jobs", "2", "--threads", "1")
    interrupt = Interrupt(what, None, rng.uniform(0.0, 0.4))
    result = context.program.run(folder, *words, interrupt=interrupt)
    if result.code not in (0, 4, -what):
        return Outcome("crashed", f"after signal {what}: {result.said()}")
    result = context.program.run(folder, *words)
    if result.code != 0:
        return Outcome("crashed", refused_or_crashed(result).note)
    for arm in ("bf16", "infir2"):
        wanted = contents(context.study / "study" / arm / "run.h5")
        if contents(folder / "study" / arm / "run.h5") != wanted:
            return Outcome("wrong", f"arm {arm} differs; {result.said()}")
    return Outcome("right")
