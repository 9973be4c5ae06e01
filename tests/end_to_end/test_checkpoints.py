"""Checkpoints that are written beside the steps: in a row, killed, read, and on a full disk."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import h5py
import pytest
from program import PROGRAM, SMALL_MODEL, refused, run, stopped, succeeded, without_notes

# 185 MB of weights and moments, which no disk has in the time of a step.
CONFIG = """
name = "large"
recipe = "bf16"
[model]
hidden_size = 256
intermediate_size = 256
num_hidden_layers = 1
num_attention_heads = 4
num_key_value_heads = 4
head_dim = 64
vocab_size = 60000
[logging]
statistics_every_steps = 0
checkpoint_every_steps = 1
[[stages]]
name = "cpt"
kind = "cpt"
steps = {steps}
batch_sequences = 1
sequence_length = 32
learning_rate.warmup_steps = 1
data.problems = 50
"""
# Heaps of threads, and what malloc keeps of what was freed, would fill a small space of addresses.
HEAP = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "1000000"}
FULL = "checkpoint.safetensors: cannot write: File too large\n"


def words_of(folder: Path, steps: int, out: str) -> list[str]:
    (folder / f"{steps}.toml").write_text(CONFIG.format(steps=steps))
    words = ["train", "--config", str(folder / f"{steps}.toml"), "--out", str(folder / out)]
    return [*words, "--threads", "1"]


def started(words: list[str], space: int = resource.RLIM_INFINITY) -> subprocess.Popen[str]:
    """In `space` bytes of addresses."""

    def before() -> None:
        # A file beyond its limit is then an error of the call, as on a full disk.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_AS, (space, space))

    return subprocess.Popen(
        [PROGRAM, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **HEAP},
        preexec_fn=before,
    )


def space_to_start() -> int:
    """Bytes of addresses that the program and its libraries take, to 16 MiB."""
    below, enough = 0, 256
    while enough - below > 1:
        middle = (below + enough) // 2
        process = started(["--version"], space=middle << 24)
        process.communicate(timeout=60)
        below, enough = (below, middle) if process.returncode == 0 else (middle, enough)
    return enough << 24


def tables(out: Path) -> dict[str, list[int]]:
    names = ("/checkpoints/step", "/hashes/weights", "/complete")
    with h5py.File(out / "run.h5", "r", libver="latest", swmr=True) as file:
        return {name: [int(value) for value in file[name][:]] for name in names}


def step_of(checkpoint: Path) -> int:
    with checkpoint.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return int(json.loads(file.read(length))["__metadata__"]["step"])


def unfinished(out: Path) -> list[str]:
    return [path.name for path in out.glob(".checkpoint.safetensors.tmp-*")]


def wait_for_checkpoint(process: subprocess.Popen[str], out: Path) -> None:
    while not (out / "checkpoint.safetensors").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)


@pytest.fixture(name="whole", scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    folder = tmp_path_factory.mktemp("whole")
    succeeded(*words_of(folder, 5, "run"))
    assert succeeded("doctor", folder / "run", "--check")
    assert step_of(folder / "run/checkpoint.safetensors") == 5
    assert unfinished(folder / "run") == []
    return tables(folder / "run")


def test_each_of_many_in_a_row_is_recorded(whole: dict[str, list[int]]) -> None:
    assert whole["/checkpoints/step"] == [1, 2, 3, 4, 5]
    assert whole["/complete"] == whole["/hashes/weights"][-1:]


def test_a_kill_leaves_the_checkpoint_before(tmp_path: Path, whole: dict[str, list[int]]) -> None:
    """While the next one is written; it is then neither recorded nor in the way."""
    for attempt in range(10):
        out = tmp_path / f"run{attempt}"
        process = started(words_of(tmp_path, 5, out.name))
        wait_for_checkpoint(process, out)
        while not unfinished(out) and process.poll() is None:
            pass
        process.kill()
        process.communicate()
        if unfinished(out):
            break
    else:
        raise AssertionError("no run was killed while it wrote a checkpoint")
    step = step_of(out / "checkpoint.safetensors")
    recorded = tables(out)["/checkpoints/step"]
    assert recorded in (list(range(1, step)), list(range(1, step + 1)))
    found = json.loads(succeeded("doctor", out, "--check", "--json"))
    health = {Path(item["file"]).name: item["health"] for item in found}
    assert health["checkpoint.safetensors"] == "whole"
    assert health[unfinished(out)[0]] == "fixable"
    succeeded(*words_of(tmp_path, 5, out.name), "--resume")
    assert unfinished(out) == []
    assert tables(out) == whole


def test_little_memory_makes_the_steps_wait(tmp_path: Path, whole: dict[str, list[int]]) -> None:
    """The plan says so, and the run is the same."""
    words = words_of(tmp_path, 5, "run")
    assert ", copied on the host and written beside the steps\n" in succeeded(*words, "--dry-run")
    space = space_to_start() + (560 << 20)
    said = []
    for more in (["--dry-run"], []):
        process = started(words + more, space=space)
        said.append(process.communicate(timeout=120))
        assert process.returncode == 0, said
    copied = re.search(r"^checkpoint ([\d.]+) MiB, copied through ([\d.]+) MiB", said[0][0], re.M)
    assert copied and float(copied[1]) > float(copied[2]) >= 16, said
    assert tables(tmp_path / "run") == whole


@pytest.mark.parametrize("steps", [1, 5])
def test_a_disk_that_is_full_ends_the_run(
    tmp_path: Path, whole: dict[str, list[int]], steps: int
) -> None:
    """After the step at work, or at the end of the run."""
    words = words_of(tmp_path, steps, "run")
    process = started(words)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100 << 20, resource.RLIM_INFINITY))
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    said = without_notes(said)
    assert said.count("\n") == 1 and said.endswith(FULL), said
    assert unfinished(tmp_path / "run") == []
    assert not (tmp_path / "run/checkpoint.safetensors").exists()
    found = tables(tmp_path / "run")
    assert found["/checkpoints/step"] == found["/complete"] == []
    assert found["/hashes/weights"][:1] == whole["/hashes/weights"][:1]
    succeeded(*words, "--resume")
    assert tables(tmp_path / "run")["/hashes/weights"] == whole["/hashes/weights"][:steps]


def test_a_disk_that_becomes_full_keeps_the_checkpoint_before(
    tmp_path: Path, whole: dict[str, list[int]]
) -> None:
    words, out = words_of(tmp_path, 5, "run"), tmp_path / "run"
    process = started(words)
    wait_for_checkpoint(process, out)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1 and said.endswith(FULL), said
    step = step_of(out / "checkpoint.safetensors")
    assert 1 <= step < 5
    assert tables(out)["/checkpoints/step"] == list(range(1, step + 1))
    assert run("doctor", out, "--check").returncode == 0
    succeeded(*words, "--resume")
    assert tables(out) == whole


SMALL = """
name = "small"
recipe = "te_delayed"
{model}
[logging]
statistics_every_steps = 0
[[stages]]
name = "cpt"
kind = "cpt"
steps = 20
batch_sequences = 1
sequence_length = 64
learning_rate = {{kind = "constant", peak = 3e-3, warmup_steps = 0}}
data.problems = 100
eval.sequences = 2
"""


def test_who_reads_while_a_run_writes_reads_one_checkpoint(tmp_path: Path) -> None:
    """The next checkpoint takes the place of the one that is read, again and again."""
    (tmp_path / "small.toml").write_text(SMALL.format(model=SMALL_MODEL))
    stopped("train", "--config", tmp_path / "small.toml", "--out", tmp_path / "run")
    place = tmp_path / "run/checkpoint.safetensors"
    shutil.copy(place, tmp_path / "early")
    succeeded("train", "--config", tmp_path / "small.toml", "--out", tmp_path / "run", "--resume")
    shutil.copy(place, tmp_path / "late")

    def put(name: str) -> None:
        shutil.copy(tmp_path / name, tmp_path / "next")
        os.replace(tmp_path / "next", place)

    commands = {
        "eval": ("eval", "--json"),
        "whatif": ("whatif", "--recipe", "te_delayed", "--accumulator", "ideal_exact"),
        "attribute": ("attribute", "--group", "scale"),
        "verify": ("verify", "--steps", 3),
    }
    for command, (word, *options) in commands.items():
        words = (word, tmp_path / "run", *options, "--threads", 1)
        allowed = []
        for name in ("early", "late"):
            put(name)
            allowed.append(succeeded(*words))
        ended = threading.Event()

        def replace(ended: threading.Event = ended) -> None:
            while not ended.is_set():
                for name in ("early", "late"):
                    put(name)

        other = threading.Thread(target=replace)
        other.start()
        try:
            found = {succeeded(*words) for _ in range(5)}
        finally:
            ended.set()
            other.join()
        assert found <= set(allowed), command


def test_a_run_whose_lock_file_was_removed_lets_nobody_in(tmp_path: Path) -> None:
    first = words_of(tmp_path, 100000, "run")
    with started(first) as process:
        run_file, lock = tmp_path / "run/run.h5", tmp_path / "run/run.h5.lock"
        while not (tmp_path / "run/checkpoint.safetensors").exists():
            assert process.poll() is None
            time.sleep(0.05)
        lock.unlink()
        assert "run.h5: another process is writing this run" in refused(*first, "--resume")
        examined = run("doctor", tmp_path / "run")
        assert "a process is writing this run" in examined.stdout + examined.stderr
        assert run_file.exists() and process.poll() is None
        process.kill()
    # A killed process holds nothing.
    assert "another process" not in run("doctor", tmp_path / "run").stdout
