"""Every file that names the version of a release names the same one, and its date."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def named(pattern: str, file: str) -> str:
    found = re.search(pattern, text(file), re.MULTILINE)
    assert found, f"{file} has no {pattern}"
    return found[1]


PROJECT = tomllib.loads(text("pyproject.toml"))["project"]["version"]
RELEASES = re.findall(r"(?m)^## (\d+\.\d+\.\d+)(?: \((.*)\))?$", text("CHANGELOG.md"))


def test_all_files_name_one_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", PROJECT)
    assert named(r"^project\(fp8lab VERSION (\S+) ", "CMakeLists.txt") == PROJECT
    assert named(r"^version: (\S+)$", "CITATION.cff") == PROJECT
    assert RELEASES[0][0] == PROJECT
    minor = PROJECT.rpartition(".")[0]
    for file in ("src/README.md", "tests/consumer/CMakeLists.txt"):
        assert named(r"find_package\(fp8lab (\S+) REQUIRED\)", file) == minor


def test_the_release_has_one_date_and_notes() -> None:
    date = datetime.date.fromisoformat(RELEASES[0][1])
    assert named(r"^date-released: (\S+)$", "CITATION.cff") == date.isoformat()
    notes = text("CHANGELOG.md").partition(f"## {PROJECT}")[2].partition("\n## ")[0]
    for part in ("Arithmetic ", "\nAdded\n", "\nChanged\n", "\nKnown limits\n"):
        assert part in notes, part
    versions = [tuple(map(int, version.split("."))) for version, _ in RELEASES]
    assert versions == sorted(set(versions), reverse=True)


def test_the_arithmetic_of_the_notes_is_the_one_of_the_program() -> None:
    constant = named(r'kArithmetic\[\] = "(.*)"', "src/train/checkpoint/identity.hpp")
    notes = text("CHANGELOG.md").partition(f"## {PROJECT}")[2]
    assert notes.lstrip(" ()0123456789-\n").startswith(f"Arithmetic {constant}:")


def test_the_licence_is_the_same() -> None:
    assert named(r"^license: (\S+)$", "CITATION.cff") == "Apache-2.0"
    assert 'text = "Apache-2.0"' in text("pyproject.toml")
    assert "Apache License" in text("LICENSE")


@pytest.mark.skipif("FP8LAB_PROGRAM" not in os.environ, reason="FP8LAB_PROGRAM names no program")
def test_the_program_says_the_version() -> None:
    command = [os.environ["FP8LAB_PROGRAM"], "version"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"\b{re.escape(PROJECT)}\b", said), said
