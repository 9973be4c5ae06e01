"""Ctrl-C: before, in and after an evaluation, and twice; and what long phases say.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import h5py
from program import PROGRAM, run, succeeded

CONFIG = """
name = "small"
recipe = "te_delayed"
model = "tiny"
[logging]
statistics_every_steps = 0
checkpoint_every_steps = 0
[[stages]]
name = "sft"
kind = "sft"
steps = {steps}
batch_sequences = {batch}
micro_batch_sequences = 1
sequence_length = 192
[stages.learning_rate]
warmup_steps = 1
[stages.data]
problems = {problems}
[stages.eval]
every_steps = 2
sequences = {sequences}
exact_match = 2
max_new_tokens = 4
[stages.eval.data]
problems = 2000
"""


def start(
    folder: Path,
    *,
    steps: int = 4,
    batch: int = 1,
    problems: int = 2000,
    sequences: int = 200,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    text = CONFIG.format(steps=steps, batch=batch, problems=problems, sequences=sequences)
    (folder / "run.toml").write_text(text)
    return subprocess.Popen(
        [PROGRAM, "train", "--config", "run.toml", "--out", "run", "--threads", "1"],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        cwd=folder,
    )


def wait_for_phase(terminal: int, phase: str) -> None:
    """Reads what a terminal shows until it names the phase."""
    shown, end = b"", time.monotonic() + 120
    while phase.encode() not in shown:
        assert time.monotonic() < end, shown[-500:]
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 4096)


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            return
    raise AssertionError(f"the run ended without '{words}'")


def tables(folder: Path) -> tuple[list[int], list[float], list[int], list[float], list[float]]:
    with h5py.File(folder / "run/run.h5", "r", swmr=True) as file:
        return (
            [int(step) for step in file["/eval/step"][:]],
            [float(loss) for loss in file["/eval/loss"][:]],
            [int(value) for value in file["/hashes/weights"][:]],
            [float(loss) for loss in file["/metrics/loss"][:]],
            [float(nats) for nats in file["/documents/nats"][:]],
        )


def test_an_interrupted_evaluation_is_made_again(tmp_path: Path) -> None:
    """In the middle of a stage, where the last step is evaluated, and in the resumed run."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    process = start(whole)
    assert process.wait() == 0, process.communicate()
    expected = tables(whole)
    assert expected[0] == [2, 4]
    process = start(broken)
    wait_for(process, "step 2/4")
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 4, process.communicate()
    assert tables(broken)[0] == [], "the evaluation after step 2 must not have ended"
    assert len(tables(broken)[2]) == 2
    words = [PROGRAM, "train", "--config", "run.toml", "--out", "run", "--resume", "--threads", "1"]
    again = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=broken)
    wait_for(again, "step 4/4")
    time.sleep(0.05)
    again.send_signal(signal.SIGTERM)
    assert again.wait() == 4
    assert tables(broken)[0] == [2]
    assert run(*words[1:], cwd=broken).returncode == 0
    assert tables(broken) == expected


def test_a_second_interrupt_ends_the_run_at_once(tmp_path: Path) -> None:
    process = start(tmp_path, batch=1000)  # steps of many seconds
    while not (tmp_path / "run/run.h5").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None, "the step was too short"
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == -signal.SIGINT
    assert not (tmp_path / "run/checkpoint.safetensors").exists()


def test_other_signals_do_not_add_up(tmp_path: Path) -> None:
    """A study passes a terminal's Ctrl-C on as SIGTERM: its arms get one of each."""
    process = start(tmp_path)
    wait_for(process, "step 1/4")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 4
    assert (tmp_path / "run/checkpoint.safetensors").exists()


def test_what_takes_long_is_said_and_can_be_interrupted(tmp_path: Path) -> None:
    terminal, shown = pty.openpty()
    process = start(tmp_path, problems=6_000_000, stderr=shown)
    os.close(shown)
    wait_for_phase(terminal, "opening the data (")
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == -signal.SIGINT
    assert not (tmp_path / "run").exists(), "nothing is written before the data are read"


def test_an_interrupted_eval_ends_by_its_signal(tmp_path: Path) -> None:
    process = start(tmp_path, steps=1, sequences=1)
    assert process.wait() == 0
    words = [PROGRAM, "eval", "run", "--sequences", "1000000", "--threads", "1"]
    terminal, shown = pty.openpty()
    evaluation = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=shown, cwd=tmp_path)
    os.close(shown)
    wait_for_phase(terminal, ": evaluating")
    evaluation.send_signal(signal.SIGINT)
    assert evaluation.wait(10) == -signal.SIGINT
    assert succeeded("eval", "run", cwd=tmp_path)
