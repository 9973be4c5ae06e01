"""Files for other programs, read back by readers that share no code with what wrote them."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import make_example_run
import numpy as np
import pytest

from fp8lab_analysis import exports, report, study
from fp8lab_analysis.run_reader import load_run

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
    losses = [(step, time, value) for step, time, tag, value in events if tag == "train/loss"]
    assert [step for step, _, _ in losses] == run.metrics.step.tolist()
    assert [time for _, time, _ in losses] == run.metrics.seconds.tolist()
    values = np.array([value for _, _, value in losses])
    assert np.array_equal(values, run.metrics.loss.astype(np.float32), equal_nan=True)
    assert math.isnan(values[-1])
    held_out = [(step, value) for step, _, tag, value in events if tag == "held_out/loss"]
    assert [step for step, _ in held_out] == run.evaluations.step.tolist()
    slot = [name == "dgrad.dy" for name in run.tensors.slot]
    means = run.tensors.get("sqnr_db")[:, slot].mean(axis=1)
    shown = [value for _, _, tag, value in events if tag == "operands/dgrad.dy/sqnr_db"]
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
    losses = [json.loads(metrics)["train/loss"] for _, _, metrics in rows]
    assert losses[:-1] == run.metrics.loss[:-1].tolist() and losses[-1] == "NaN"
    assert json.loads(rows[19][2])["held_out/loss"] == run.evaluations.loss[0]
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
