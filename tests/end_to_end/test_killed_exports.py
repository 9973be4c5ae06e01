"""What a killed `export` or `quantize --out` leaves: found by doctor, gone at the next attempt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from model_files import CONFIG, random_tensors, read_folder, write_folder
from program import PROGRAM, errors, refused, run

SIZES = CONFIG | {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 3}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    return write_folder(folder, random_tensors(SIZES), SIZES)


def command(kind: str, model: Path, out: Path) -> list[str]:
    words = ["export", model, out] if kind == "export" else ["quantize", model, "--out", out]
    return [PROGRAM, *map(str, words), "--recipe", "fp8_block128"]


def start(words: list[str], out: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """The process once it has begun to write a tensor, and the folder that it writes."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = list(out.parent.glob(f".{out.name}.tmp-{process.pid}-*"))
        if found and any(found[0].iterdir()):
            return process, found[0]
        assert process.poll() is None, "ended before it could be killed"
    raise AssertionError("wrote nothing")


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def doctor(directory: Path, *extra: str) -> list[tuple[str, str]]:
    result = run("doctor", directory, "--json", *extra)
    assert result.returncode == 0, result.stderr
    return [(Path(item["file"]).name, item["health"]) for item in json.loads(result.stdout)]


@pytest.mark.parametrize("kind", ["export", "quantize"])
@pytest.mark.parametrize("where", ["itself", "around"])
def test_doctor_removes_what_a_killed_export_left(
    tmp_path: Path, model: Path, kind: str, where: str
) -> None:
    out = tmp_path / "out"
    process, left = start(command(kind, model, out), out)
    kill(process)
    assert left.is_dir() and not out.exists()
    directory = out if where == "itself" else tmp_path
    assert doctor(directory, "--check") == [(left.name, "fixable")]
    assert left.is_dir()
    assert doctor(directory) == [(left.name, "repaired")]
    assert list(tmp_path.iterdir()) == []
    # Nothing is left to be found.
    assert "fp8lab: " in refused("doctor", directory)


@pytest.mark.parametrize("kind", ["export", "quantize"])
def test_the_next_attempt_removes_it_too(tmp_path: Path, model: Path, kind: str) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        process, left = start(command(kind, model, out), out)
        kill(process)
        assert left.is_dir()
        assert [path.name for path in tmp_path.glob(".out*")] == [left.name]
    result = subprocess.run(command(kind, model, out), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert list(tmp_path.iterdir()) == [out]
    assert len(read_folder(out)) > 20


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "out"
    process, left = start(command("export", model, out), out)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        assert doctor(tmp_path) == [(left.name, "busy")]
        assert doctor(out) == [(left.name, "busy")]
        assert f"is being written by process {process.pid} on" in refused("export", model, out)
        # Another name beside it is another matter.
        assert run("export", model, tmp_path / "other").returncode == 0
        assert left.is_dir()
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert process.wait() == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


def test_folders_of_others_are_left_alone(tmp_path: Path, model: Path) -> None:
    """Names that only look like ours, links, and folders with anything else in them."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "config.json").write_text("{}")
    work = tmp_path / "work"
    work.mkdir()
    (work / ".out.tmp-12-0").symlink_to(elsewhere)
    for name in (".out.tmp-12-1", ".out.tmp-12", ".out.tmp-a-0", ".out.tmp-12-x", "out.tmp-1-1"):
        (work / name).mkdir()
        (work / name / "config.json").write_text("{}")
    (work / ".out.tmp-12-1/notes.txt").write_text("mine")
    before = sorted(work.rglob("*"))
    assert "holds neither run.h5 nor study.h5" in refused("doctor", work)
    result = run("export", model, work / "out")
    assert result.returncode == 0 and errors(result) == "", result.stderr
    assert (
        sorted(path for path in work.rglob("*") if work / "out" not in (path, path.parent))
        == before
    )
    assert (elsewhere / "config.json").exists()
