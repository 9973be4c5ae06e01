"""Run files, and the package without the shared library."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import make_example_run
import numpy as np
import pytest

from fp8lab_analysis.read.hdf5 import InputError
from fp8lab_analysis.read.run_reader import load_run

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "src/python"))

from fp8lab import runs  # noqa: E402
from fp8lab.errors import Error  # noqa: E402

NO_STATISTICS = {"step", "layer", "slot", "format", "scale_bits_per_element", "hash"}


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    make_example_run.make_example(folder)
    return sorted(folder.rglob("run.h5"))[0]


def copied(run_file: Path, folder: Path) -> Path:
    path = folder / "run.h5"
    path.write_bytes(run_file.read_bytes())
    return path


def test_a_run_reads_as_it_was_written(run_file: Path) -> None:
    run = runs.read_run(run_file)
    with h5py.File(run_file, "r") as file:
        for name in set(file["metrics"]):
            assert np.array_equal(run.metrics[name], file[f"metrics/{name}"][:]), name
        assert np.array_equal(run.metrics["weight_hash"], file["hashes/weights"][:])
        assert run.meta["seed"] == int(file["meta"].attrs["seed"])
        assert set(run.meta["extra"]) == {
            name.removeprefix("extra.") for name in file["meta"].attrs if name.startswith("extra.")
        }
        assert len(run.tensors["layer"]) == file["tensors/amax"].shape[1]
        found = set(file["tensors"]) - NO_STATISTICS - {"without_history"}
        assert found == set(runs.statistic_names())
        for name in found:
            assert np.array_equal(runs.read_statistic(run_file, name), file[f"tensors/{name}"][:])
        assert run.complete and run.final_weight_hash == int(file["complete"][0])
        assert run.events["kind"] == [kind.decode() for kind in file["events/kind"][:]]
    with pytest.raises(Error, match="unknown statistic 'sqnr'; known are amax"):
        runs.read_statistic(run_file, "sqnr")


def test_rows_that_a_killed_writer_left_are_cut(run_file: Path, tmp_path: Path) -> None:
    path = copied(run_file, tmp_path)
    with h5py.File(path, "r+") as file:
        rows = file["metrics/step"].shape[0]
        file["metrics/loss"].resize((rows - 1,))
        file["metrics/step"][rows - 3] = -1
        file["events/step"].resize((0,))
    run = runs.read_run(path)
    assert {len(column) for column in run.metrics.values()} == {rows - 3}
    assert {len(column) for column in run.events.values()} == {0}


def test_what_is_no_run_file_is_one_line(run_file: Path, tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no HDF5")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["a"] = [1]
    (tmp_path / "folder").mkdir()
    (tmp_path / "odd/run.h5").mkdir(parents=True)
    damaged = copied(run_file, tmp_path)
    with h5py.File(damaged, "r+") as file:
        file["meta"].attrs["seed"] = np.uint64(99)
    for path, message in {
        "none.h5": "no such file",
        "folder": "folder/run.h5: no such file",
        "odd": "odd/run.h5: is no regular file",
        ".": "run.h5: damaged run file",
        "text.h5": "not a readable HDF5 file",
        "other.h5": "schema '' of /meta",
        "run.h5": "do not have their checksum",
    }.items():
        with pytest.raises(Error, match=message) as caught:
            runs.read_run(tmp_path / path)
        assert "\n" not in str(caught.value) and isinstance(caught.value, ValueError)


KILLED = """
import os, sys, h5py
file = h5py.File(sys.argv[1], "a", libver="latest")
file.swmr_mode = True
file.flush()
os._exit(0)
"""


def cut_files(run_file: Path, folder: Path) -> Iterator[tuple[Path, int]]:
    """A complete file and one that a killed writer left, each cut short at several places."""
    for kind in ("complete", "killed"):
        (folder / kind).mkdir()
        path = copied(run_file, folder / kind)
        if kind == "killed":
            subprocess.run([sys.executable, "-c", KILLED, str(path)], check=True)
            assert path.read_bytes()[11] != 0 and runs.read_run(path).metrics["step"].size
        whole = path.read_bytes()
        for size in (12, 47, 48, 2000, len(whole) // 3, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:size])
            yield path, size


def test_every_cut_is_refused_at_once(run_file: Path, tmp_path: Path) -> None:
    begin = time.monotonic()
    for path, size in cut_files(run_file, tmp_path):
        words = rf"damaged run file \(truncated: {size} of \d+ bytes are there\)"
        with pytest.raises(Error, match=words) as caught:
            runs.read_run(path)
        assert "\n" not in str(caught.value)
        with pytest.raises(InputError, match=words):
            load_run(path)
    assert time.monotonic() - begin < 10


def test_damage_in_a_file_of_a_killed_run_is_refused_soon(run_file: Path, tmp_path: Path) -> None:
    path = copied(run_file, tmp_path)
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=True)
    data = bytearray(path.read_bytes())
    data[int.from_bytes(data[36:44], "little") + 20] ^= 4  # in the header of the root group
    path.write_bytes(data)
    begin = time.monotonic()
    with pytest.raises(Error, match=r"damaged run file .*checksum"):
        runs.read_run(path)
    with pytest.raises(InputError, match="checksum"):
        load_run(path)
    assert time.monotonic() - begin < 10


def test_a_folder_stands_for_its_run(run_file: Path, tmp_path: Path) -> None:
    file = copied(run_file, tmp_path)
    assert file.name == "run.h5"
    run = runs.read_run(tmp_path)
    assert run.meta == runs.read_run(file).meta
    assert repr(run).startswith("<fp8lab run ") and len(repr(run)) < 200 and "\n" not in repr(run)
    assert f"{len(run.metrics['step'])} steps, complete" in repr(run)
    assert str(runs.read_samples(tmp_path)) == str(runs.read_samples(file))


def test_data_of_other_files_are_not_read(run_file: Path, tmp_path: Path) -> None:
    """A file of others must not read what its sender could not."""
    (tmp_path / "secret").write_bytes(bytes(80))
    for kind in ("external", "link"):
        path = copied(run_file, tmp_path)
        with h5py.File(path, "r+") as file:
            rows = file["metrics/loss"].shape[0]
            del file["metrics/loss"]
            if kind == "link":
                file["metrics/loss"] = h5py.ExternalLink(str(run_file), "metrics/loss")
            else:
                size = [(str(tmp_path / "secret"), 0, 8 * rows)]
                file["metrics"].create_dataset("loss", (rows,), "f8", external=size)
        with pytest.raises(Error, match="lies in another file|there is no dataset"):
            runs.read_run(path)


def test_the_package_works_without_the_library(run_file: Path, tmp_path: Path) -> None:
    without = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "src/python/fp8lab", tmp_path / "fp8lab", ignore=without)
    script = (
        "import fp8lab, sys\n"
        "print(len(fp8lab.read_run(sys.argv[1]).metrics['loss']), fp8lab.Error.__module__)\n"
        "for name in ('gemm', 'Model', 'QuantSpec', 'scaled_mm'):\n"
        "    try: getattr(fp8lab, name)\n"
        "    except ImportError as error: print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    environment.pop("FP8LAB_LIBRARY", None)
    command = [sys.executable, "-c", script, str(run_file)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    first, *others = ended.stdout.splitlines()
    rows = len(runs.read_run(run_file).metrics["loss"])
    assert first == f"{rows} fp8lab" and len(others) == 4 and ended.stderr == ""
    for line in others:
        assert line.startswith(f"fp8lab needs libfp8lab.so, which is neither in {tmp_path}/fp8lab ")
