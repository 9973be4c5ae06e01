#!/usr/bin/env python3
"""Breaks device kernels on purpose and shows that the validation notices.

    break_kernels.py list                           # each breakage still finds its place
    break_kernels.py build BUILD FOLDER [--jobs N]  # where nvcc is: FOLDER/NAME, a program each
    break_kernels.py check PROGRAM FOLDER STEPS...  # on a Hopper GPU; PROGRAM is the unbroken one

BUILD is a CMake build folder of this tree (Ninja, FP8LAB_CUDA=ON) with a built program. A breakage
replaces one piece of text of one source, compiles the translation units that it names from a copy
of `kernels/` and links them in the place of their objects; the tree itself stays as it is. The
programs look for libraries and data where those of a bundle lie, so FOLDER may be the `bin` of one.
`check` runs `validate kernels` and replays STEPS, files of tests/golden/steps, with every program.
Exit status 3 when the unbroken one fails or a broken one passes both. --only NAME, repeated,
chooses some.

With --simulated, `build` makes programs that run on this processor (tests/simulator), from a BUILD
with a built fp8lab_simulated; --rounds 1 then keeps a check to half a minute.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from breakages import BREAKAGES, Breakage

ROOT = Path(__file__).resolve().parents[2]
PROGRAM, SIMULATED = "src/fp8lab", "tests/simulator/fp8lab_simulated"  # below BUILD
TIMEOUT = 120  # seconds for one validation; a kernel that hangs is a noticed one


def chosen(only: list[str]) -> list[Breakage]:
    """Those with the given names, or all."""
    return [breakage for breakage in BREAKAGES if not only or breakage.name in only]


def broken_text(breakage: Breakage) -> str:
    """The source with the breakage in it; ValueError unless its place is found once."""
    text = (ROOT / "kernels" / breakage.file).read_text()
    found = text.count(breakage.old)
    if found != 1:
        raise ValueError(
            f"{breakage.name}: kernels/{breakage.file} has its place {found} times, not once"
        )
    return text.replace(breakage.old, breakage.new)


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)}\n{done.stdout}{done.stderr}")


def translate(build: Path, copy: Path) -> None:
    """The device code of copy/kernels for the simulator, in its place."""
    for path in [*copy.glob("kernels/**/*.cu"), *copy.glob("kernels/**/*.cuh")]:
        output = path.with_name(path.name + ".cpp") if path.suffix == ".cu" else path
        run([sys.executable, str(ROOT / "tests/simulator/translate.py"), path, output], build)
    # The simulator has its own.
    shutil.rmtree(copy / "kernels/ptx")


def compile_unit(build: Path, copy: Path, unit: str, output: Path, simulated: bool) -> None:
    """Compiles copy/kernels/UNIT as the build compiles kernels/UNIT, headers of the copy first."""
    source = ROOT / "kernels" / unit
    if simulated:
        unit += ".cpp"
        source = build / "tests/simulator/translated/kernels" / unit
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if Path(entry["file"]) == source:
            words = shlex.split(entry["command"])
            break
    else:
        raise ValueError(f"{build}/compile_commands.json does not compile {source}")
    words = [str(copy / "kernels" / unit) if word == str(source) else word for word in words]
    words[words.index("-o") + 1] = str(output)
    words.insert(next(i for i, word in enumerate(words) if word.startswith("-I")), f"-I{copy}")
    # What a breakage leaves unused is no error.
    run([*words, "-Wno-error"] if simulated else words, Path(entry["directory"]))


def link_command(build: Path, program: str) -> list[str]:
    """The last command that the build makes the program with, without what comes after it."""
    listed = subprocess.run(
        ["ninja", "-t", "commands", program],
        cwd=build,
        check=True,
        capture_output=True,
        text=True,
    )
    last = listed.stdout.splitlines()[-1]
    return shlex.split(next(part for part in last.split("&&") if f" -o {program} " in part))


def build_one(breakage: Breakage, build: Path, folder: Path, simulated: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        shutil.copytree(ROOT / "kernels", copy / "kernels")
        (copy / "kernels" / breakage.file).write_text(broken_text(breakage))
        if simulated:
            translate(build, copy)
        objects = [copy / f"{Path(unit).stem}.o" for unit in breakage.units]
        for unit, output in zip(breakage.units, objects):
            compile_unit(build, copy, unit, output, simulated)
        words = link_command(build, SIMULATED if simulated else PROGRAM)
        at = words.index("-o")
        # Before the archives: the linker then never asks them for the units that were replaced.
        words[at + 1 : at + 2] = [str(folder / breakage.name), *map(str, objects)]
        run([*words, "-s", "-Wl,-rpath,$ORIGIN/../lib/fp8lab"], build)


def build_all(build: Path, folder: Path, jobs: int, only: list[str], simulated: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    broken = chosen(only)
    with ThreadPoolExecutor(jobs) as pool:
        pending = [
            pool.submit(build_one, breakage, build, folder, simulated) for breakage in broken
        ]
        for breakage, future in zip(broken, pending):
            future.result()
            print(folder / breakage.name, flush=True)


@dataclass
class Verdict:
    noticed: bool
    how: str


def validate(program: Path, arguments: tuple[str, ...], wanted: str) -> Verdict:
    """Runs a validation; `how` has the count of lines with `wanted` and the first of them."""
    command = [str(program), "validate", *arguments, "--backend", "cuda"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return Verdict(True, f"no end after {TIMEOUT} s")
    if done.returncode == 0:
        return Verdict(False, "passes")
    lines = [line for line in done.stdout.splitlines() if wanted in line]
    if not lines:
        return Verdict(True, f"exit status {done.returncode}: {done.stderr.strip()[-200:]}")
    return Verdict(True, f"{len(lines)}, first: {lines[0]}")


def check_kernels(program: Path, kernels: tuple[str, ...]) -> Verdict:
    return validate(program, kernels, "first mismatch of")


def check_step(program: Path, steps: list[str]) -> Verdict:
    return validate(program, ("step", *steps), "differs first at")


def check_all(
    program: Path, folder: Path, steps: list[str], only: list[str], rounds: int | None
) -> int:
    """One program after the other: two at a time share the device by turns and take far longer."""
    broken = chosen(only)
    if rounds is not None:
        kernels = ("kernels", "--rounds", str(rounds), "--outputs", "1")
        broken = [replace(breakage, kernels=kernels) for breakage in broken]
    runs = sorted({breakage.kernels for breakage in broken})
    passed = [
        not any(check_kernels(program, kernels).noticed for kernels in runs),
        not steps or not check_step(program, steps).noticed,
    ]
    print(f"unbroken: kernels {passed[0]}, step {passed[1]}", flush=True)
    survivors = []
    for breakage in broken:
        kernels = check_kernels(folder / breakage.name, breakage.kernels)
        step = check_step(folder / breakage.name, steps) if steps else Verdict(False, "no steps")
        print(f"{breakage.name}: {breakage.what}")
        print(f"  validate kernels: {kernels.how}")
        print(f"  validate step: {step.how}", flush=True)
        if not (kernels.noticed or step.noticed):
            survivors.append(breakage.name)
    print(f"{len(broken)} breakages, {len(survivors)} survived {' '.join(survivors)}")
    return 0 if all(passed) and not survivors else 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    build = commands.add_parser("build")
    build.add_argument("build", type=Path)
    build.add_argument("folder", type=Path)
    build.add_argument("--jobs", type=int, default=2)
    build.add_argument("--simulated", action="store_true")
    check = commands.add_parser("check")
    check.add_argument("program", type=Path)
    check.add_argument("folder", type=Path)
    check.add_argument("steps", nargs="*")
    check.add_argument("--rounds", type=int, help="of every validation, instead of its own")
    names = [breakage.name for breakage in BREAKAGES]
    for command in (build, check):
        command.add_argument("--only", action="append", default=[], choices=names)
    arguments = parser.parse_args()
    if arguments.command == "list":
        for breakage in BREAKAGES:
            broken_text(breakage)
            print(f"{breakage.name}: {breakage.what}")
        return 0
    if arguments.command == "build":
        folder = arguments.folder.resolve()
        build_all(
            arguments.build.resolve(), folder, arguments.jobs, arguments.only, arguments.simulated
        )
        return 0
    return check_all(
        arguments.program.resolve(),
        arguments.folder.resolve(),
        arguments.steps,
        arguments.only,
        arguments.rounds,
    )


if __name__ == "__main__":
    sys.exit(main())
