"""The tutorials of the site: their commands and lines of Python, run as they stand, print what the
texts say. Those that need torch are skipped without it."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from told_commands import commands, follow

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = {path.stem: path for path in (ROOT / "notebooks" / "site").glob("*.md")}
WITHOUT_TORCH = ("python", "doctor_convert", "conformance", "assess")
WITH_TORCH = ("torch", "replay")


@pytest.fixture(name="shell")
def _shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment in which `fp8lab` and `python3` are those of the tests."""
    program = os.environ.get("FP8LAB_PROGRAM")
    if program is None:
        pytest.skip("FP8LAB_PROGRAM names no program")
    commands_here = tmp_path / "bin"
    commands_here.mkdir()
    for name, path in {"fp8lab": program, "python3": sys.executable}.items():
        (commands_here / name).write_text(f'#!/bin/sh\nexec "{path}" "$@"\n')
        (commands_here / name).chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return os.environ | {"PATH": f"{commands_here}:{os.environ['PATH']}", "FP8LAB": str(ROOT)}


def run(path: Path, shell: dict[str, str]) -> None:
    """Runs the blocks of a tutorial in their order, in one folder and one interpreter."""
    text = path.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    ran = 0
    for found in re.finditer(r"```(python|text)\n(.*?)```", text, re.DOTALL):
        if found[1] == "python":
            code = doctest.DocTestParser().get_doctest(found[2], {}, path.name, str(path), 0)
            code.globs = names
            report: list[str] = []
            runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
            runner.run(code, out=report.append, clear_globs=False)
            assert not report, "".join(report)
            ran += len(code.examples)
        for command, expected in commands(found.group()):
            done = subprocess.run(
                ["sh", "-c", command], capture_output=True, text=True, env=shell, check=False
            )
            assert done.returncode == 0, (command, done.stdout, done.stderr)
            lines = [line.replace("  ...", "...") for line in expected]
            assert follow(done.stdout.splitlines(), lines), (command, done.stdout)
            ran += 1
    assert ran >= 3


def test_every_tutorial_is_run() -> None:
    assert set(TUTORIALS) == {*WITHOUT_TORCH, *WITH_TORCH, "front"}


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_tutorial(name: str, shell: dict[str, str]) -> None:
    pytest.importorskip("fp8lab", reason="the package fp8lab is not built")
    run(TUTORIALS[name], shell)


@pytest.mark.parametrize("name", WITH_TORCH)
def test_tutorial_with_torch(name: str, shell: dict[str, str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    run(TUTORIALS[name], shell)


def test_other_words_are_noticed(tmp_path: Path, shell: dict[str, str]) -> None:
    page = tmp_path / "page"
    page.write_text("```python\n>>> x = 3\n>>> x\n3\n\n```\n\n```text\n$ echo one\none\n```\n")
    run(page, shell)
    for wrong in ("```python\n>>> x = 3\n>>> x\n4\n\n```\n", "```text\n$ echo one\ntwo\n```\n"):
        page.write_text(wrong)
        with pytest.raises(AssertionError):
            run(page, shell)
    page.write_text("```text\n$ false\n```\n")
    with pytest.raises(AssertionError):
        run(page, shell)
