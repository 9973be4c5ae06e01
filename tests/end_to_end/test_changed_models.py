"""Model files that are cut off, written to or replaced while a command reads them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from model_files import CONFIG, random_tensors, write_folder
from program import PROGRAM, run, without_notes

SIZES = CONFIG | {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    return write_folder(folder, random_tensors(SIZES), SIZES)


def bytes_read(process: subprocess.Popen[str]) -> int:
    counts = Path(f"/proc/{process.pid}/io").read_text()
    found = re.search(r"^rchar: (\d+)", counts, re.MULTILINE)
    assert found
    return int(found[1])


def begun(words: list[str], size: int) -> subprocess.Popen[str]:
    """The command, stopped when it has read a part of the file but not all of it."""
    for _ in range(20):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and bytes_read(process) < size // 4:
            time.sleep(0.0005)
        if process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            if bytes_read(process) < size * 3 // 4:
                return process
            process.kill()
        process.communicate()
    raise AssertionError("was never stopped in the middle of the file")


def change(file: Path, how: str) -> None:
    size = file.stat().st_size
    if how == "cut":
        os.truncate(file, size // 5)
    elif how == "emptied":
        os.truncate(file, 0)
    elif how == "written":
        with file.open("r+b") as open_file:
            open_file.seek(size - 4096)
            open_file.write(bytes(64))
    elif how == "grown":
        with file.open("ab") as open_file:
            open_file.write(b"more")
    elif how == "replaced":
        other = file.with_name("other")
        other.write_bytes(b"another file")
        other.rename(file)
    else:
        file.unlink()


@pytest.mark.parametrize("command", ["eval", "export", "train"])
@pytest.mark.parametrize("how", ["cut", "emptied", "written", "grown", "replaced", "removed"])
def test_files_that_change_under_a_command(
    original: Path, tmp_path: Path, command: str, how: str
) -> None:
    model, text, out = tmp_path / "model", tmp_path / "text.txt", tmp_path / "out"
    shutil.copytree(original, model)
    text.write_text("A text of bytes.\n\n" * 4)
    config = tmp_path / "run.toml"
    config.write_text(
        f'name = "r"\nrecipe = "bf16"\ninit_from = "{model}"\n[[stages]]\nname = "cpt"\n'
        'kind = "cpt"\nsteps = 1\nbatch_sequences = 1\nsequence_length = 16\n'
        "[stages.learning_rate]\nwarmup_steps = 0\n"
        f'[stages.data]\nkind = "text"\npath = "{text}"\n'
    )
    words = {
        "eval": ["eval", model, "--data", text, "--sequence-length", 16, "--json"],
        "export": ["export", model, out, "--dtype", "f32"],
        "train": ["train", "--config", config, "--out", out],
    }[command]
    file = model / "model.safetensors"
    process = begun([PROGRAM, *map(str, words)], file.stat().st_size)
    change(file, how)
    process.send_signal(signal.SIGCONT)
    stdout, stderr = process.communicate(timeout=120)
    if how in ("replaced", "removed"):
        # The file that was opened is read to its end.
        assert (process.returncode, without_notes(stderr)) == (0, ""), stderr
        if command == "eval":
            undisturbed = run(*[original if word == model else word for word in words])
            assert stdout == undisturbed.stdout.replace(str(original), str(model))
        return
    assert process.returncode == 1, (process.returncode, stderr)
    what = "cut off" if how in ("cut", "emptied") else "written to"
    said = without_notes(stderr)
    assert said == f"fp8lab: {file}: was {what} while it was in use\n"
    assert not (out / "config.json").exists() and not list(tmp_path.glob(".out*"))
