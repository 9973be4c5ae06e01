"""Files for other programs, read back by readers that share no code with what wrote them."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import make_example_run
import numpy as np
import pytest

from fp8lab_analysis import report
from fp8lab_analysis.page import exports
from fp8lab_analysis.read import study
from fp8lab_analysis.read.run_reader import load_run

RECIPES = {item.name: item for item in make_example_run.RECIPES}


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    make_example_run.make_example(tmp_path / "study", [RECIPES["bf16"], RECIPES["e5m2_tensor"]])
    return tmp_path / "study"


def bitwise_crc32c(data: bytes) -> int:
    """CRC-32C bit by bit, from the polynomial as the standard writes it, most significant first."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= int(f"{byte:08b}"[::-1], 2) << 24
        for _ in range(8):
            crc = ((crc << 1) ^ (0x1EDC6F41 if crc >> 31 else 0)) & 0xFFFFFFFF
    return int(f"{crc ^ 0xFFFFFFFF:032b}"[::-1], 2)


def unmasked(word: int) -> int:
    """The checksum of a record without its disguise."""
    rotated = (word - 0xA282EAD8) % 2**32
    return (rotated << 15 | rotated >> 17) % 2**32


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(number, content) of every field of a protocol buffer."""
    place = 0

    def varint() -> int:
        nonlocal place
        result, shift = 0, 0
        while True:
            byte = message[place]
            place += 1
            result |= (byte & 127) << shift
            if byte < 128:
                return result
            shift += 7

    while place < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(kind) or varint()
        content = message[place : place + size]
        place += size
        if kind == 2:
            yield key >> 3, content
        else:
            yield key >> 3, struct.unpack("<d" if kind == 1 else "<f", content)[0]


def read_events(path: Path) -> tuple[str, list[tuple[int, float, str, float]]]:
    """Version of an event file, and (step, wall time, tag, value) of its scalars."""
    data, place = path.read_bytes(), 0
    version, found = "", []
    while place < len(data):
        head = data[place : place + 8]
        (size,) = struct.unpack("<Q", head)
        (crc,) = struct.unpack_from("<I", data, place + 8)
        assert unmasked(crc) == bitwise_crc32c(head)
        body = data[place + 12 : place + 12 + size]
        (crc,) = struct.unpack_from("<I", data, place + 12 + size)
        assert len(body) == size and unmasked(crc) == bitwise_crc32c(body)
        place += size + 16
        event = dict(fields(body))
        if 3 in event:
            version = event[3].decode()
            continue
        for number, value in fields(event[5]):
            assert number == 1
            entry = dict(fields(value))
            found.append((event[2], event[1], entry[1].decode(), entry[2]))
    return version, found


def test_crc32c_of_known_texts() -> None:
    assert exports.crc32c(b"123456789") == 0xE3069283  # the check value of the standard
    assert exports.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert bitwise_crc32c(b"123456789") == 0xE3069283


def test_event_files_hold_what_the_run_files_do(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "events"
    words = [str(folder), "--export", "tensorboard", "--out", str(out)]
    assert report.main(words) == 0
    paths = sorted(out.glob("*/*tfevents*"))
    assert [path.parent.name for path in paths] == [
        f"{recipe}-seed{seed}" for recipe in ("bf16", "e5m2_tensor") for seed in (1, 2)
    ]
    version, events = read_events(paths[2])
    assert version == "brain.Event:2"
    run = load_run(folder / "e5m2_tensor-seed1" / "run.h5")
    losses = [(step, time, value) for step, time, tag, value in events if tag == "metrics/loss"]
    assert [step for step, _, _ in losses] == run.metrics.step.tolist()
    assert [time for _, time, _ in losses] == run.metrics.seconds.tolist()
    values = np.array([value for _, _, value in losses])
    assert np.array_equal(values, run.metrics.loss.astype(np.float32), equal_nan=True)
    assert math.isnan(values[-1])
    held_out = [(step, value) for step, _, tag, value in events if tag == "eval/loss"]
    assert [step for step, _ in held_out] == run.evaluations.step.tolist()
    slot = [name == "dgrad.dy" for name in run.tensors.slot]
    means = run.tensors.get("sqnr_db")[:, slot].mean(axis=1)
    shown = [value for _, _, tag, value in events if tag == "tensors/dgrad.dy/sqnr_db"]
    assert shown == pytest.approx(means, rel=1e-6)
    steps = [step for step, _, _, _ in events]
    assert steps == sorted(steps)
    first = {path: path.read_bytes() for path in paths}
    assert report.main(words) == 0 and all(path.read_bytes() == first[path] for path in paths)


def test_a_database_of_trackio_holds_what_the_run_files_do(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "trackio"
    assert report.main([str(folder), "--export", "trackio", "--out", str(out)]) == 0
    with sqlite3.connect(out / "example.db") as base:
        rows = base.execute(
            "SELECT step, timestamp, metrics FROM metrics WHERE run_name = ? ORDER BY id",
            ("e5m2_tensor-seed1",),
        ).fetchall()
        configs = dict(base.execute("SELECT run_name, config FROM configs").fetchall())
    run = load_run(folder / "e5m2_tensor-seed1" / "run.h5")
    assert [step for step, _, _ in rows] == run.metrics.step.tolist()
    losses = [json.loads(metrics)["metrics/loss"] for _, _, metrics in rows]
    assert losses[:-1] == run.metrics.loss[:-1].tolist() and losses[-1] == "NaN"
    assert json.loads(rows[19][2])["eval/loss"] == run.evaluations.loss[0]
    assert rows[0][1] == "1970-01-01T00:00:00.350000+00:00"
    assert len(configs) == 4
    assert json.loads(configs["e5m2_tensor-seed1"])["recipe_hash"] == run.meta["recipe_hash"]


def test_names_of_runs_are_folders_of_their_own(tmp_path: Path) -> None:
    for number, name in enumerate(("a/b", "a_b", "..")):
        path = tmp_path / str(number) / "run.h5"
        make_example_run.write_run(path, RECIPES["bf16"], number + 1)
        with h5py.File(path, "a") as file:
            file["meta"].attrs["extra.arm"] = name
            make_example_run.seal_meta(file)
    names = [name for name, _ in exports.run_names(study.load_study([tmp_path]))]
    assert sorted(names) == ["a_b", "a_b_2", "run"]


RUN = """
name = "r"
model = "tiny"
model.num_hidden_layers = 1
[logging]
checkpoint_every_steps = 2
[[stages]]
name = "s"
steps = 4
batch_sequences = 1
sequence_length = 32
learning_rate.warmup_steps = 0
eval = { every_steps = 2, sequences = 1 }
"""


def trained(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    (folder / "run.toml").write_text(
        RUN.replace('model = "tiny"\nmodel.', '[model]\nbase = "tiny"\n')
    )
    words = [os.environ["FP8LAB_PROGRAM"], "train", "--config", "run.toml", "--out", "out", *more]
    plain = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        words, cwd=folder, env=plain, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.skipif("FP8LAB_PROGRAM" not in os.environ, reason="the program is not built")
def test_a_run_is_logged_while_it_trains(tmp_path: Path) -> None:
    """What the run file holds, under its names, at the time of day."""
    began = time.time()
    done = trained(tmp_path, "--log", "tensorboard", "--python", sys.executable)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "out" / "tensorboard").iterdir()
    _, events = read_events(path)
    with h5py.File(tmp_path / "out" / "run.h5", "r") as file:
        losses, steps = file["metrics/loss"][:], file["metrics/step"][:]
        seconds, held = file["metrics/seconds"][:], file["eval/loss"][:]
    found = {
        tag: [(step, value) for step, _, t, value in events if t == tag] for _, _, tag, _ in events
    }
    assert found["metrics/loss"] == [(int(s), float(np.float32(v))) for s, v in zip(steps, losses)]
    assert [value for _, value in found["eval/loss"]] == held.astype(np.float32).tolist()
    times = [wall for _, wall, tag, _ in events if tag == "metrics/loss"]
    assert all(began - 1 < wall < time.time() for wall in times)
    assert np.diff(times) == pytest.approx(np.diff(seconds), abs=1e-4)
    # A complete run has nothing new.
    again = trained(tmp_path, "--log", "trackio", "--resume", "--python", sys.executable)
    assert again.returncode == 0 and not (tmp_path / "out" / "trackio").exists()
    one = trained(tmp_path, "--log", "trackio", "--log-dir", "db", "--out", "b", "--python", "none")
    assert one.returncode == 2 and "more than once" in one.stderr


@pytest.mark.skipif("FP8LAB_PROGRAM" not in os.environ, reason="the program is not built")
def test_a_log_without_its_packages_says_what_to_install(tmp_path: Path) -> None:
    for python in ("nothing-of-the-kind", "/bin/false"):
        done = trained(tmp_path, "--log", "trackio", "--python", python)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "python3-h5py" in done.stderr and not (tmp_path / "out").exists()
    assert "--python is for --log" in trained(tmp_path, "--python", "python3").stderr
    done = trained(tmp_path, "--log", "trackio", "--python", sys.executable)
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(tmp_path / "out" / "trackio" / "out.db") as base:
        rows = base.execute("SELECT step, timestamp, metrics FROM metrics ORDER BY id").fetchall()
    assert {step for step, _, _ in rows} == {1, 2, 3, 4}
    assert all(
        json.loads(text).keys() <= {*json.loads(rows[0][2])} or "eval/loss" in text
        for _, _, text in rows
    )
