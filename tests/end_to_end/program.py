"""The program under test, as its users run it. Its path is in FP8LAB_PROGRAM."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PROGRAM = os.environ["FP8LAB_PROGRAM"]


def run(
    *arguments: object,
    cwd: Path | None = None,
    environment: dict[str, str] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    words = [PROGRAM, *map(str, arguments)]
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        timeout=timeout,
        check=False,
    )


def refused(
    *arguments: object, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> str:
    """The message of a command that must end with status 2 and one line on standard error."""
    result = run(*arguments, cwd=cwd, environment=environment)
    assert result.returncode == 2, (result.returncode, result.stdout, result.stderr)
    assert result.stderr.startswith("fp8lab: ")
    assert result.stderr.count("\n") == 1 and result.stderr.endswith("\n"), result.stderr
    assert result.stdout == ""
    return result.stderr


def succeeded(*arguments: object, cwd: Path | None = None) -> str:
    """What a command that must succeed printed; it must have said nothing on standard error."""
    result = run(*arguments, cwd=cwd)
    assert result.returncode == 0, (result.returncode, result.stderr)
    assert result.stderr == ""
    return result.stdout
