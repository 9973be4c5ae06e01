"""Where a run is and what surrounds it: names of folders and files, devices, pipes, links, the
environment and its descriptors. They change no bit, and write nothing where nobody asked."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from program import Result, fault_of, refusal_fault
from runs import TRAIN, Context, Outcome, case_folder, contents, difference

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")

NAMES = (
    "a b", "a\nb", "a\rb", "a\x1b[31mb", "'", '"', "a'; touch pwned; '", '$(touch pwned)',
    "`touch pwned`", "a\\", "%s%n", "-run", "--out", "é\u4e16", "\u202e", "a\tb", "*", "?", "~",
    "{a,b}", "#x", "x" * 255, "x" * 256, "d/" * 300 + "x", ".hidden", "...", "a/../b", "./a//b/",
    "new/er/than/all", "a\udcffb",
)  # fmt: skip
ENDLESS = ("/dev/zero", "/dev/urandom", "/dev/full", "/dev/null", "/proc/self/mem", "/proc/self")


def files_below(folder: Path) -> dict[str, bytes]:
    """Everything in a folder but its runs."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def complaint(result: Result, codes: tuple[int, ...] = (1, 2)) -> str:
    """What is wrong with a refusal: also characters that steer a terminal."""
    problem = fault_of(result) or refusal_fault(result, "", codes)
    if not problem and CONTROL.search(result.err.removesuffix("\n")):
        problem = "a control character in the complaint"
    return problem


def out_folder(context: Context, rng: random.Random) -> Outcome:
    """--out with an odd name; nothing else in the folder changes."""
    fixture = rng.choice((context.bytes, context.tokens))
    folder = fixture.copy(case_folder(context, "paths"))
    name = rng.choice(NAMES)
    before = files_below(folder)
    words = [*TRAIN[:3], rng.choice((f"--out={name}", f"--out=./{name}")), *TRAIN[5:]]
    result = context.program.run(folder, *words)
    note = f"--out {name[:60]!r}; {result.said()}"
    after = files_below(folder)
    changed = [key for key in before if after.get(key) != before[key]]
    if (folder / "pwned").exists() or changed:
        return Outcome("wrong", f"changes {changed or 'pwned'}; {note}")
    if result.code != 0 or fault_of(result):
        problem = complaint(result)
        return Outcome("crashed" if problem else "refused", f"{problem}; {note}")
    differs = difference(fixture.right, contents(folder / name / "run.h5"))
    own = (folder / name).resolve()
    made = [key for key in after if key not in before]
    stray = [key for key in made if not (folder / key).resolve().is_relative_to(own)]
    if differs or stray:
        return Outcome("wrong", f"{differs} {stray[:1]}; {note}")
    if CONTROL.search(result.err.replace("\n", "")):
        return Outcome("crashed", f"a control character in what it says; {note}")
    return Outcome("right", note)


def no_file(context: Context, rng: random.Random) -> Outcome:
    """Devices, pipes, folders and links where files are read."""
    fixture = context.bytes
    folder = fixture.copy(case_folder(context, "paths"))
    name = rng.choice((*fixture.inputs, "p.jsonl"))
    path = folder / name
    path.unlink(missing_ok=True)
    how = rng.choice(("device", "device", "fifo", "folder", "dangling", "loop"))
    if how == "device":
        target = rng.choice(ENDLESS)
        path.symlink_to(target)
        how = target
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "folder":
        path.mkdir()
    elif how == "dangling":
        path.symlink_to("nothing")
    else:
        path.symlink_to(path.name)
    words: tuple[object, ...] = TRAIN
    if name == "p.jsonl":
        shutil.copytree(fixture.folder / "whole", folder / "run")
        words = ("generate", "run", "--prompts", "p.jsonl", "--threads", "1")
    result = context.program.run(folder, *words)
    note = f"{name} is {how}; {result.said()}"
    if result.code == 0:
        return Outcome("wrong", note)
    problem = complaint(result) or refusal_fault(result, Path(name).name, (1, 2))
    return Outcome("crashed" if problem else "refused", f"{problem}; {note}")


LOCKS = ("run.h5.lock", "run.h5", "checkpoint.safetensors", "log.txt")


def links(context: Context, rng: random.Random) -> Outcome:
    """A folder of others: links in the run's folder lead to a file that is not the run's."""
    fixture = context.bytes
    state = rng.choice(("", "stopped"))
    folder = fixture.copy(case_folder(context, "links"), state)
    (folder / "run").mkdir(exist_ok=True)
    precious = folder / "precious"
    precious.write_text("precious\n" * 100)
    name = rng.choice(LOCKS)
    (folder / "run" / name).unlink(missing_ok=True)
    (folder / "run" / name).symlink_to(rng.choice(("../precious", "../not/there", str(precious))))
    words = rng.choice(((*TRAIN, "--resume"), TRAIN, ("doctor", "run"), ("eval", "run")))
    result = context.program.run(folder, *words)
    note = f"run/{name} a link, {state}; {result.said()}"
    if precious.read_text() != "precious\n" * 100:
        return Outcome("wrong", f"another's file is overwritten; {note}")
    if (folder / "not").exists():
        return Outcome("wrong", f"a file is made elsewhere; {note}")
    if result.code in (0, 3):
        if result.code == 3 or words[0] != "train":
            problem = fault_of(result)
            return Outcome("crashed" if problem else "right", f"{problem}; {note}")
        outcome = fixture.judge(folder, result)
        return Outcome(outcome.verdict, f"{outcome.note}; {note}")
    problem = complaint(result)
    return Outcome("crashed" if problem else "refused", f"{problem}; {note}")


SBATCH = """#!/bin/sh
for last; do :; done
cp "$last" script 2>/dev/null || cat > script
echo 1
"""


def slurm(context: Context, rng: random.Random) -> Outcome:
    """The script of a study in a folder with an odd name, run by a shell, starts nothing else."""
    folder = case_folder(context, "slurm")
    shutil.copytree(context.study, folder, ignore=shutil.ignore_patterns("study"))
    (folder / "bin").mkdir()
    for name, text in (
        ("sbatch", SBATCH),
        ("srun", "#!/bin/sh\nexit 0\n"),
        ("fp8lab", "#!/bin/sh\nexit 0\n"),
        ("squeue", "#!/bin/sh\nexit 0\n"),
    ):
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    commands = ["s2\ntouch pwned\n#", 's";touch pwned;"']
    name = rng.choice([n for n in NAMES if len(n) < 60] + commands)
    path = {"PATH": f"{folder / 'bin'}:{os.environ.get('PATH', '/usr/bin:/bin')}"}
    words = ("ablate", "--study", "study.toml", "--launcher", "slurm", f"--out=./{name}")
    more = rng.choice((
        (), ("--slurm", "partition=a b"), ("--slurm", "comment=$(touch pwned)"),
        ("--slurm", "signal=B:TERM@600"), ("--slurm", "x=\ntouch pwned"), ("--slurm", "=1"),
    ))  # fmt: skip
    environment = context.program.environment() | path
    result = context.program.run(folder, *words, *more, environment=environment)
    note = f"--out {name!r} {more}; {result.said()}"
    if result.code != 0 or fault_of(result):
        problem = complaint(result)
        return Outcome("crashed" if problem else "refused", f"{problem}; {note}")
    scripts = [folder / "script", *folder.rglob("*.sh"), *folder.rglob("*.sbatch")]
    for script in scripts:
        if not script.is_file():
            continue
        # What follows the lines of sbatch may start the program, which here is a stand-in.
        text = script.read_text(errors="surrogateescape")
        text = text.replace(str(context.program.path.resolve()), str(folder / "bin/fp8lab"))
        script.write_text(text, errors="surrogateescape")
        with Path(os.devnull).open("w") as nothing:
            subprocess.run(
                ["bash", str(script)],
                cwd=folder,
                env=environment | {"SLURM_ARRAY_TASK_ID": "0"},
                stdout=nothing,
                stderr=nothing,
                timeout=20,
                check=False,
            )
    if list(folder.rglob("pwned")):
        return Outcome("wrong", f"the script starts what the name says; {note}")
    return Outcome("right", note)


def run_name(context: Context, rng: random.Random) -> Outcome:
    """Names of runs, arms and studies, which become folders."""
    name = rng.choice(NAMES)
    folder = context.bytes.copy(case_folder(context, "paths"))
    before = files_below(folder)
    words = [*TRAIN[:3], *TRAIN[5:], "--set", f"name={quoted(name)}"]
    words += ["--set", "stages.cpt.steps=1", "--set", "stages.sft.steps=1"]
    result = context.program.run(folder, *words)
    note = f"name {name[:60]!r}; {result.said()}"
    made = [key for key in files_below(folder) if key not in before]
    if [key for key in made if not key.startswith("runs/")] or (folder / "pwned").exists():
        return Outcome("wrong", f"writes {made[0]}; {note}")
    if result.code == 0 and not fault_of(result):
        clean = re.fullmatch(r"[A-Za-z0-9._-]+", name) is not None
        return Outcome("right" if clean else "wrong", note)
    problem = complaint(result)
    return Outcome("crashed" if problem else "refused", f"{problem}; {note}")


def quoted(text: str) -> str:
    """As a TOML string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub("[\x00-\x1f\x7f]", lambda c: f"\\u{ord(c[0]):04x}", escaped) + '"'


Way = Callable[[Context, random.Random], Outcome]
PATHS: tuple[tuple[Way, int], ...] = (
    (out_folder, 4), (no_file, 4), (links, 3), (slurm, 2), (run_name, 1),
)  # fmt: skip


def paths(context: Context, rng: random.Random) -> Outcome:
    way = rng.choices([way for way, _ in PATHS], [share for _, share in PATHS])[0]
    outcome = way(context, rng)
    return Outcome(outcome.verdict, f"{way.__name__}: {outcome.note}")


# --- environment ----------------------------------------------------------------------------------

SETTINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("OMP_NUM_THREADS", ("1", "2", "3", "0", "-1", "", "x", "2,3", "1e3", "9" * 11, " 2 ", "2x")),
    ("OMP_DYNAMIC", ("true", "x")),
    ("OMP_SCHEDULE", ("dynamic,1", "guided", "x")),
    ("OMP_THREAD_LIMIT", ("1", "2", "0")),
    ("OMP_STACKSIZE", ("1M", "64K", "x")),
    ("OMP_PROC_BIND", ("true", "close", "x")),
    ("OMP_PLACES", ("cores", "{0}", "{99999}")),
    ("OMP_WAIT_POLICY", ("active", "passive", "x")),
    ("OMP_NESTED", ("true",)),
    ("OMP_MAX_ACTIVE_LEVELS", ("0", "3")),
    ("LC_ALL", ("C", "C.UTF-8", "tr_TR.UTF-8", "de_DE.UTF-8", "nothing", "")),
    ("LC_NUMERIC", ("de_DE.UTF-8",)),
    ("LANG", ("tr_TR.UTF-8", "xx")),
    ("TZ", ("UTC", "Asia/Kathmandu", "nothing", ":/etc/passwd", "")),
    ("HOME", ("", "/nonexistent")),
    ("TMPDIR", ("/nonexistent", "")),
    ("PATH", ("", "/nonexistent")),
    ("MALLOC_PERTURB_", ("85", "255")),
    ("MALLOC_ARENA_MAX", ("1",)),
    ("HDF5_USE_FILE_LOCKING", ("FALSE", "TRUE", "BEST_EFFORT", "x")),
    ("HDF5_DISABLE_VERSION_CHECK", ("0", "2")),
    ("COLUMNS", ("0", "-1", "9999999999")),
    ("TERM", ("", "dumb")),
    ("FP8LAB_THREADS", ("7",)),
    ("GLIBC_TUNABLES", ("glibc.malloc.check=3", "x")),
)  # fmt: skip
# With words of the library that is set so, before the program's own.
TOLD_BY_OTHERS = ("\nlibgomp: ", "libgomp: ", "OMP: ", "Warning! ***HDF5")


def environment(context: Context, rng: random.Random) -> Outcome:
    fixture = rng.choice((context.bytes, context.tokens))
    folder = fixture.copy(case_folder(context, "environment"))
    chosen = rng.choice(("settings", "settings", "settings", "empty", "closed", "umask"))
    surroundings = context.program.environment()
    closed: tuple[int, ...] = ()
    words: list[object] = [*TRAIN[:5]]
    note = chosen
    if chosen == "settings":
        for name, values in rng.sample(SETTINGS, rng.randint(1, 3)):
            surroundings[name] = rng.choice(values)
            note += f" {name}={surroundings[name]!r}"
        if "OMP_NUM_THREADS" not in surroundings and rng.random() < 0.5:
            words += ["--threads", rng.choice((1, 2, 3))]
    elif chosen == "empty":
        surroundings = {}
    elif chosen == "closed":
        closed = rng.choice(((0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)))
        note += f" {closed}"
    mask = os.umask(rng.choice((0o077, 0o000, 0o777)) if chosen == "umask" else 0o022)
    try:
        result = context.program.run(folder, *words, environment=surroundings, closed=closed)
    finally:
        os.umask(mask)
    note += f"; {result.said()}"
    if fault_of(result):
        return Outcome("crashed", f"{fault_of(result)}; {note}")
    if result.code == 0:
        outcome = fixture.judge(folder, result)
        return Outcome(outcome.verdict, f"{outcome.note}; {note}")
    problem = "" if 2 in closed else complaint(result)
    if problem and any(result.err.startswith(text) for text in TOLD_BY_OTHERS):
        problem = "" if result.err.strip().split("\n")[-1].startswith("fp8lab: ") else problem
    return Outcome("crashed" if problem else "refused", f"{problem}; {note}")
