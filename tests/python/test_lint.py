"""The sources have the form that .clang-format, black, flake8 and mypy ask for.

Each check is skipped where its tool is missing or of another version than Debian 12's, whose forms
differ. `CI=true ./quickstart.sh test` installs them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ["analysis", "emulation", "experiments", "kernels", "notebooks", "src", "tests"]
CODE = {".cpp", ".cu", ".cuh", ".hpp"}


def sources(suffixes: set[str]) -> list[str]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    names = [path.relative_to(ROOT).as_posix() for path in files if path.suffix in suffixes]
    return sorted(name for name in names if "/_deps/" not in name)


def output(*command: str) -> str:
    """What a command says, whatever its status."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    return done.stdout + done.stderr


def require(version: str, *command: str) -> None:
    """Skips the test unless the tool is there and says that version."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is missing")
    said = output(*command, "--version")
    if not re.search(rf"\b{re.escape(version)}\b", said):
        pytest.skip(f"{' '.join(command)} is not {version}: {said.splitlines()[:1]}")


def module(name: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name)


def test_code_is_formatted() -> None:
    require("14.0", "clang-format")
    files = sources(CODE)
    assert len(files) > 900
    faults = []
    for first in range(0, len(files), 100):
        faults += re.findall(
            r"(?m)^(\S+?):\d+:\d+: error", output("clang-format", "--dry-run", "-Werror",
                                                  *files[first:first + 100])
        )  # fmt: skip
    assert not faults, sorted(set(faults))


def test_python_is_formatted() -> None:
    require("23.1.0", *module("black"))
    said = output(*module("black"), "--check", *sources({".py"}))
    assert "would reformat" not in said, said


def test_python_has_no_unused_names_and_long_lines() -> None:
    require("5.0.4", *module("flake8"))
    assert output(*module("flake8"), *sources({".py"})) == ""


def test_types_of_the_packages() -> None:
    require("1.0.1", *module("mypy"))
    said = output(*module("mypy"), "--cache-dir=/dev/null", "-p", "fp8lab_analysis", "-p", "fp8lab")
    assert "Success: no issues found" in said, said


def test_every_test_file_is_run() -> None:
    lists = [path.read_text() for path in (ROOT / "tests").rglob("CMakeLists.txt")]
    words = set(re.findall(r"[\w-]+", "\n".join(lists)))
    tests = [
        path.stem for path in (ROOT / "tests").rglob("test_*") if path.suffix in (".py", ".cpp")
    ]
    assert len(tests) > 200
    # A list names the file, or what follows "test_" in a loop over such names.
    assert not [name for name in tests if not {name, name.removeprefix("test_")} & words]
