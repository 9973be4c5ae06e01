"""What a wheel of fp8lab promises, checked on the file: `python3 audit.py WHEEL`.

A wheel is for every Python 3, so no member may need an interpreter's symbols. Its platform tag
manylinux_2_N says that the C library 2.N suffices, so no member may need a symbol of a later one,
and every library that a member needs is in the wheel or belongs to the machine. OpenMP's runtime
has its own name, by which the loader takes the one that PyTorch brings instead of a second one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MACHINE = re.compile(r"(ld-linux-x86-64|lib(c|m|mvec|dl|rt|pthread|gcc_s|z))\.so\.\d+")
"""Libraries that every manylinux machine has."""
OPENMP = "libgomp.so.1"
CUBLAS = "nvidia/cu13/lib"
"""Where NVIDIA's wheel has its libraries, seen from the folder of packages."""
TAG = re.compile(r"-py3-none-manylinux_2_(\d+)_x86_64\.whl$")


class Promise(NamedTuple):
    """What a wheel of one name must hold."""

    largest: int
    """Bytes of the wheel."""
    library: str
    program: str
    data: tuple[str, ...] = ()
    """Other members."""
    has_kernels: bool = False
    """Whether the library and the program hold code for GPUs."""
    beside: tuple[str, ...] = ()
    """Libraries that the wheel which it requires puts into the same folder."""

    @property
    def members(self) -> tuple[str, ...]:
        return (self.library, self.program, *self.data)


CPU = Promise(
    largest=35 * 10**6,
    library="fp8lab/libfp8lab.so",
    program="fp8lab/bin/fp8lab",
    data=(
        "fp8lab/py.typed",
        "fp8lab/experiments/recipes/infir2/infir2.toml",
        "fp8lab/experiments/presets/quickstart.toml",
        "fp8lab_analysis/report.py",
        "fp8lab_analysis/page/templates/report.html",
    ),
)
CUDA = Promise(
    largest=60 * 10**6,
    library="fp8lab/libfp8lab_cuda.so",
    program="fp8lab/bin/fp8lab-cuda",
    has_kernels=True,
    beside=(OPENMP,),
)


class Elf(NamedTuple):
    """What a program or library needs and exports."""

    needed: set[str]
    soname: str
    search: list[str]
    """Folders of its RPATH or RUNPATH."""
    versions: set[str]
    """Of the symbols that it needs, such as GLIBC_2.34."""
    undefined: set[str]
    exported: set[str]
    has_kernels: bool
    """Code for GPUs, which nvcc puts into sections of their own."""


def _readelf(option: str, path: Path) -> str:
    words = ["readelf", "--wide", option, str(path)]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def read_elf(path: Path) -> Elf:
    dynamic = _readelf("--dynamic", path)
    symbols = [line.split() for line in _readelf("--dyn-syms", path).splitlines()]
    named = [words for words in symbols if len(words) >= 8 and words[0].rstrip(":").isdigit()]
    names = {(words[6], words[7].split("@")[0]) for words in named if words[4] != "LOCAL"}
    paths = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", dynamic)
    needs = _readelf("--version-info", path).partition("Version needs section")[2]
    return Elf(
        needed=set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)),
        soname="".join(re.findall(r"\(SONAME\).*\[(.*)\]", dynamic)),
        search=[folder for path_ in paths for folder in path_.split(":")],
        versions=set(re.findall(r"Name: (\S+)", needs)),
        undefined={name for place, name in names if place == "UND"},
        exported={name for place, name in names if place not in ("UND", "ABS")},
        has_kernels=" .nv_fatbin " in _readelf("--sections", path),
    )


def lowest_c_library(elves: dict[str, Elf]) -> int:
    """Returns N of the lowest C library 2.N that has every symbol which the members need."""
    versions = [version for elf in elves.values() for version in elf.versions]
    found = [re.fullmatch(r"GLIBC_2\.(\d+)(\.\d+)?", version) for version in versions]
    return max(int(match.group(1)) for match in found if match)


def _finds(folder: Path, name: str, search: list[str], root: Path) -> bool:
    """Whether the loader finds `name` in the wheel for a member in `folder`."""
    for place in search:
        path = Path(place.replace("$ORIGIN", str(folder))) / name
        if path.is_file() and path.resolve().is_relative_to(root.resolve()):
            return True
    return False


def _faults_of_member(name: str, elf: Elf, root: Path, promise: Promise) -> Iterator[str]:
    for library in sorted(elf.needed):
        if MACHINE.fullmatch(library) or library in promise.beside:
            continue
        if not _finds((root / name).parent, library, elf.search, root):
            yield f"{name}: needs {library}, which is neither in the wheel nor every machine's"
    if python := sorted(symbol for symbol in elf.undefined if re.match("_?Py[A-Z_]", symbol)):
        yield f"{name}: needs {python[0]} of an interpreter"
    if later := sorted(version for version in elf.versions if version.startswith("GLIBCXX")):
        yield f"{name}: needs {later[-1]} of the machine's C++ library"
    for place in elf.search:
        if not place.startswith("$ORIGIN"):
            yield f"{name}: looks for libraries in {place}"


def promise_of(wheel: Path) -> Promise:
    return CUDA if wheel.name.startswith("fp8lab_cuda-") else CPU


def faults(wheel: Path, promise: Promise) -> list[str]:
    """Returns what is wrong with a wheel, in lines; nothing for a good one."""
    tag = TAG.search(wheel.name)
    if tag is None:
        return [f"{wheel.name}: accepted: a tag py3-none-manylinux_2_N_x86_64"]
    found = []
    if wheel.stat().st_size > promise.largest:
        found.append(f"{wheel.name}: {wheel.stat().st_size} bytes; accepted: {promise.largest}")
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        root = Path(folder)
        archive.extractall(root)
        members = archive.namelist()
        found += [f"no member {name}" for name in promise.members if name not in members]
        written = [name for name in members if name.endswith(".dist-info/WHEEL")]
        platform = f"Tag: py3-none-manylinux_2_{tag.group(1)}_x86_64"
        if not written or platform not in (root / written[0]).read_text().splitlines():
            found.append(f"the file WHEEL does not say {platform!r}")
        elves = {
            name: read_elf(root / name)
            for name in members
            if (root / name).is_file() and (root / name).read_bytes()[:4] == b"\x7fELF"
        }
        for name, elf in elves.items():
            found += _faults_of_member(name, elf, root, promise)
        if elves and lowest_c_library(elves) > int(tag.group(1)):
            found.append(f"needs the C library 2.{lowest_c_library(elves)}, the tag says less")
        runtimes = [name for name, elf in elves.items() if "GOMP_parallel" in elf.exported]
        own = [] if OPENMP in promise.beside else [OPENMP]
        if [Path(name).name for name in runtimes] != own or any(
            elves[name].soname != OPENMP for name in runtimes
        ):
            accepted = f"one of the name {OPENMP}" if own else "none"
            found.append(f"OpenMP's runtimes are {runtimes}; accepted: {accepted}")
        for name in (promise.library, promise.program):
            if name in elves and elves[name].has_kernels != promise.has_kernels:
                found.append(f"{name}: has {'no ' if promise.has_kernels else ''}code for GPUs")
            place = "/".join(["$ORIGIN", *[".."] * name.count("/"), CUBLAS])
            if promise.has_kernels and name in elves and place not in elves[name].search:
                found.append(f"{name}: does not look for libraries in {place}")
        if promise.library in elves:
            exported = elves[promise.library].exported
            strange = sorted(name for name in exported if not name.startswith("fp8lab_"))
            found += [f"{promise.library}: exports {name}" for name in strange[:1]]
    return found


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("usage: audit.py WHEEL")
    wheel = Path(sys.argv[1])
    found = faults(wheel, promise_of(wheel))
    for line in found:
        print(line)
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
