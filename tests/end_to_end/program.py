"""The program under test, as its users run it. Its path is in FP8LAB_PROGRAM."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
from pathlib import Path

PROGRAM = os.environ["FP8LAB_PROGRAM"]

# The model of runs that only have to be runs: one layer, bytes as tokens.
SMALL_MODEL = """
[model]
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 1
num_attention_heads = 1
num_key_value_heads = 1
head_dim = 64
vocab_size = 272
"""


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


def without_notes(said: str) -> str:
    """Standard error without notes and the phases that a loaded machine takes seconds for."""
    return "".join(
        line
        for line in said.splitlines(keepends=True)
        if not line.endswith(" ...\n") and not line.startswith("fp8lab: note: ")
    )


def errors(result: subprocess.CompletedProcess[str]) -> str:
    return without_notes(result.stderr)


def refused(
    *arguments: object, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> str:
    """The message of a command that must end with status 2 and one line on standard error."""
    result = run(*arguments, cwd=cwd, environment=environment)
    assert result.returncode == 2, (result.returncode, result.stdout, result.stderr)
    message = errors(result)
    assert message.startswith("fp8lab: ")
    assert message.count("\n") == 1 and message.endswith("\n"), result.stderr
    assert result.stdout == ""
    return message


def succeeded(*arguments: object, cwd: Path | None = None) -> str:
    """What a command that must succeed printed; it must have said nothing on standard error."""
    result = run(*arguments, cwd=cwd)
    assert result.returncode == 0, (result.returncode, result.stderr)
    assert errors(result) == ""
    return result.stdout


def stopped(*arguments: object, cwd: Path | None = None) -> None:
    """Runs a command that trains until its first step and stops it there with SIGTERM, which must
    end it with status 4, after a checkpoint.

    A new run prints a line for each of its first two steps. Its standard output holds one of them:
    until the signal it waits with the second, so that it stops after step 1 or 2 on every machine.
    A resumed run prints its first step, then a line a second: give it many steps."""
    ours, theirs = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)  # every line a packet
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)  # a page is room for one packet
    with subprocess.Popen([PROGRAM, *map(str, arguments)], stdout=theirs, cwd=cwd) as process:
        os.close(theirs)
        select.select([ours], [], [])
        process.send_signal(signal.SIGTERM)
        with os.fdopen(ours, "rb") as output:
            said = output.read()
    assert process.returncode == 4, (process.returncode, said)
