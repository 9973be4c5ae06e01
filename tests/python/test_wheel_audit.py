"""The audit of wheels notices what it is for: small wheels with one fault each.

The wheel itself takes a build of its own and is made by hand (src/python/README.md).
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "src/python/wheel/audit.py"
GOOD = {
    "library": "int fp8lab_version(void) { return 1; }",
    "program": '#include <stdio.h>\nint main(void) { return puts("") < 0; }',
    "openmp": "void GOMP_parallel(void) {}",
}


def load() -> Any:
    specification = importlib.util.spec_from_file_location("wheel_audit", SCRIPT)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["wheel_audit"] = module
    specification.loader.exec_module(module)
    return module


audit = load()


OPENMP = "fp8lab/libgomp.so.1"
OPENMP_FLAGS = ("-shared", "-Wl,-soname,libgomp.so.1")


class Wheel:
    """The members of a wheel, before it is packed."""

    def __init__(self, folder: Path, promise: Any) -> None:
        self.root, self.out, self.promise = folder / "members", folder, promise
        for name in promise.members:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text("")
        fatbin = '__attribute__((section(".nv_fatbin"), used)) static int code = 1;\n'
        prefix = fatbin if promise.has_kernels else ""
        self.compile(prefix + GOOD["library"], promise.library, "-shared", *self.search(1))
        self.compile(prefix + GOOD["program"], promise.program, *self.search(2))
        if not promise.beside:
            self.compile("openmp", OPENMP, *OPENMP_FLAGS)

    def search(self, folders: int) -> list[str]:
        """Flags for a member in so many folders of a wheel for GPUs, which finds cuBLASLt."""
        up = "/".join([".."] * folders)
        return [f"-Wl,-rpath,$ORIGIN/{up}/nvidia/cu13/lib"] if self.promise.has_kernels else []

    def compile(self, source: str, member: str, *flags: str) -> None:
        words = ["cc", "-fPIC", "-xc", "-", "-o", str(self.root / member), *flags]
        text = GOOD.get(source, source)
        subprocess.run(words, input=text, text=True, check=True, cwd=self.out)

    def lowest(self) -> int:
        files = [self.root / name for name in (self.promise.library, self.promise.program, OPENMP)]
        elves = {path.name: audit.read_elf(path) for path in files if path.is_file()}
        return int(audit.lowest_c_library(elves))

    def pack(self, c_library: int, said: int | None = None, python: str = "py3") -> Path:
        platform = f"manylinux_2_{c_library if said is None else said}_x86_64"
        info = self.root / "fp8lab-1.dist-info"
        info.mkdir()
        (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: py3-none-{platform}\n")
        path = self.out / f"fp8lab-1-{python}-none-manylinux_2_{c_library}_x86_64.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted(self.root.rglob("*")):
                if file.is_file():
                    archive.write(file, file.relative_to(self.root))
        return path


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    if shutil.which("cc") is None or shutil.which("readelf") is None:
        pytest.skip("no C compiler with binutils")
    return Wheel(tmp_path, audit.CPU)


def test_a_good_wheel_has_no_faults(wheel: Wheel) -> None:
    assert audit.faults(wheel.pack(wheel.lowest()), audit.CPU) == []


def test_a_wheel_for_gpus_takes_openmp_from_the_other_wheel(wheel: Wheel, tmp_path: Path) -> None:
    path = tmp_path / "fp8lab_cuda-1-py3-none-manylinux_2_34_x86_64.whl"
    assert audit.promise_of(path) == audit.CUDA
    assert audit.promise_of(tmp_path / "fp8lab-1-py3-none-manylinux_2_34_x86_64.whl") == audit.CPU
    (tmp_path / "cuda").mkdir()
    other = Wheel(tmp_path / "cuda", audit.CUDA)
    library = str(wheel.root / OPENMP)
    source = "void GOMP_parallel(void); void fp8lab_version(void) { GOMP_parallel(); }"
    flags = ("-shared", "-xnone", library)
    other.compile(source, audit.CUDA.library, *flags, *other.search(1))
    assert faults_of(other) == [f"{audit.CUDA.library}: has no code for GPUs"]
    source += '__attribute__((section(".nv_fatbin"), used)) static int code = 1;'
    other.compile(source, audit.CUDA.library, *flags)
    (fault,) = faults_of(other)
    assert fault.endswith("does not look for libraries in $ORIGIN/../nvidia/cu13/lib")
    other.compile(source, audit.CUDA.library, *flags, *other.search(1))
    assert faults_of(other) == []
    other.compile("openmp", OPENMP, *OPENMP_FLAGS)
    (fault,) = faults_of(other)
    assert fault.startswith("OpenMP's runtimes are ") and fault.endswith("accepted: none")


def faults_of(wheel: Wheel) -> list[str]:
    shutil.rmtree(wheel.root / "fp8lab-1.dist-info", ignore_errors=True)
    return list(audit.faults(wheel.pack(wheel.lowest()), wheel.promise))


def only_fault(wheel: Wheel, **options: Any) -> str:
    found = audit.faults(wheel.pack(wheel.lowest(), **options), wheel.promise)
    assert len(found) == 1, found
    return str(found[0])


def test_a_lower_tag_than_the_symbols_is_found(wheel: Wheel) -> None:
    (fault,) = audit.faults(wheel.pack(wheel.lowest() - 1), audit.CPU)
    assert fault == f"needs the C library 2.{wheel.lowest()}, the tag says less"


def test_a_name_that_the_file_does_not_say_is_found(wheel: Wheel) -> None:
    assert "the file WHEEL does not say" in only_fault(wheel, said=5)


def test_a_wheel_for_one_python_is_found(wheel: Wheel) -> None:
    assert "accepted: a tag py3-none" in only_fault(wheel, python="cp311")


def test_a_large_wheel_is_found(wheel: Wheel) -> None:
    (fault,) = audit.faults(wheel.pack(wheel.lowest()), audit.CPU._replace(largest=1000))
    assert "bytes; accepted: 1000" in fault


@pytest.mark.parametrize("name", audit.CPU.data)
def test_a_missing_member_is_found(wheel: Wheel, name: str) -> None:
    (wheel.root / name).unlink()
    assert only_fault(wheel) == f"no member {name}"


def test_a_symbol_of_an_interpreter_is_found(wheel: Wheel) -> None:
    source = "int Py_IsInitialized(void); int fp8lab_x(void) { return Py_IsInitialized(); }"
    wheel.compile(source, audit.CPU.library, "-shared")
    assert "needs Py_IsInitialized of an interpreter" in only_fault(wheel)


def test_a_library_outside_the_wheel_is_found(wheel: Wheel) -> None:
    wheel.compile("int other(void) { return 1; }", "libother.so.7", "-shared")
    (wheel.root / "libother.so.7").rename(wheel.out / "libother.so.7")
    flags = ("-shared", "-Wl,--no-as-needed", "-L.", "-l:libother.so.7")
    wheel.compile("library", audit.CPU.library, *flags)
    assert "needs libother.so.7, which is neither in the wheel" in only_fault(wheel)


def test_a_folder_of_the_builder_is_found(wheel: Wheel) -> None:
    wheel.compile("library", audit.CPU.library, "-shared", "-Wl,-rpath,/opt/lib")
    assert only_fault(wheel) == f"{audit.CPU.library}: looks for libraries in /opt/lib"


def test_the_machine_s_c_library_for_cxx_is_found(wheel: Wheel) -> None:
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    source = (
        '#include <string>\nextern "C" void* fp8lab_x(const char* s) { return new std::string(s); }'
    )
    words = ["c++", "-fPIC", "-shared", "-xc++", "-", "-o", str(wheel.root / audit.CPU.library)]
    subprocess.run(words, input=source, text=True, check=True)
    found = audit.faults(wheel.pack(wheel.lowest()), audit.CPU)
    assert any("of the machine's C++ library" in fault for fault in found)


@pytest.mark.parametrize("name", ["libgomp-1234abcd.so.1", "libgomp.so.1"])
def test_a_renamed_or_second_runtime_of_openmp_is_found(wheel: Wheel, name: str) -> None:
    (wheel.root / "fp8lab.libs").mkdir()
    wheel.compile("openmp", f"fp8lab.libs/{name}", "-shared", f"-Wl,-soname,{name}")
    assert "accepted: one of the name libgomp.so.1" in only_fault(wheel)


def test_an_exported_symbol_of_another_library_is_found(wheel: Wheel) -> None:
    wheel.compile(
        "int fp8lab_x(void) { return 1; } int deflate(void) { return 2; }",
        audit.CPU.library,
        "-shared",
    )
    assert only_fault(wheel) == f"{audit.CPU.library}: exports deflate"
