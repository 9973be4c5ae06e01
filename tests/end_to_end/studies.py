"""A small study and what its folder holds, for the tests of studies and launchers."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Callable

import h5py
from program import PROGRAM, SMALL_MODEL

BASE = (
    """
name = "base"
recipe = "bf16"
seed = 3
"""
    + SMALL_MODEL
    + """[logging]
statistics_every_steps = 0
checkpoint_every_steps = 2
[[stages]]
name = "cpt"
kind = "cpt"
steps = 2
batch_sequences = 1
sequence_length = 32
[stages.data]
kind = "arithmetic"
problems = 200
[[stages]]
name = "sft"
kind = "sft"
steps = {steps}
batch_sequences = 1
sequence_length = 128
[stages.data]
kind = "arithmetic"
problems = 200
"""
)
STUDY = """
base = "base.toml"
{head}
[[axis]]
key = "recipe"
values = ["bf16", "fp32"]
"""
SHARED = 'shared_stages = ["cpt"]\n'
ARMS = ("bf16", "fp32")


class Study:
    """A study file, its base and its folder."""

    def __init__(self, folder: Path, head: str = "", steps: int = 2) -> None:
        self.file = folder / "s.toml"
        self.out = folder / "out"
        self.base = folder / "base.toml"
        self.base.write_text(BASE.format(steps=steps))
        self.file.write_text(STUDY.format(head=head))

    def words(self, *extra: object) -> list[str]:
        words = [PROGRAM, "ablate", "--study", self.file, "--out", self.out, "--threads", 1, *extra]
        return [str(word) for word in words]

    def run(self, *extra: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*extra), capture_output=True, text=True, timeout=120, check=False
        )

    def start(self, *extra: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.words(*extra), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def done(self, *extra: object) -> str:
        result = self.run(*extra)
        assert result.returncode == 0, (result.stdout, result.stderr)
        return result.stdout

    def listed(self, *extra: object) -> str:
        """What --list prints."""
        return self._told("--list", *extra)

    def planned(self, *extra: object, status: int = 0) -> str:
        """What --dry-run prints, which must end with `status`."""
        return self._told("--dry-run", *extra, status=status)

    def _told(self, *extra: object, status: int = 0) -> str:
        words = [PROGRAM, "ablate", "--study", self.file, *extra]
        result = subprocess.run(
            [str(word) for word in words], capture_output=True, text=True, timeout=120, check=False
        )
        assert result.returncode == status, (result.stdout, result.stderr)
        return result.stdout

    def refused(self, *extra: object) -> str:
        """The message; nothing in the folder may change."""
        before = self.state()
        result = self.run(*extra)
        assert result.returncode == 2, (result.returncode, result.stdout, result.stderr)
        assert result.stderr.count("\n") == 1, result.stderr
        assert self.state() == before
        return result.stderr

    def state(self) -> dict[str, int]:
        files = [path for path in self.out.rglob("*") if path.is_file()]
        return {str(p): p.stat().st_mtime_ns for p in files if p.suffix != ".lock"}

    def complete(self) -> dict[str, bool]:
        with h5py.File(self.out / "study.h5", "r") as table:
            names = [name.decode() for name in table["/arms/name"][:]]
            return dict(zip(names, (bool(x) for x in table["/arms/complete"][:])))


def open_run(folder: Path) -> h5py.File:
    return h5py.File(folder / "run.h5", "r", libver="latest", swmr=True)


def meta(folder: Path, name: str) -> str:
    with open_run(folder) as run:
        return bytes(run["/meta"].attrs[name]).decode()


def hashes(folder: Path) -> list[int]:
    with open_run(folder) as run:
        return [int(value) for value in run["/hashes/weights"][:]]


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def arguments_of(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def trainers_of(process: int) -> list[int]:
    """Children that have become `fp8lab train`."""
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(word) for word in text.split() if "train" in arguments_of(int(word))]


def is_running(process: int) -> bool:
    """False also for a zombie, which nobody may be there to collect."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def steps_of(folder: Path) -> int:
    if not (folder / "run.h5").exists():
        return 0
    with open_run(folder) as run:
        return len(run["/metrics/step"])


def start_and_wait_for_child(study: Study, *extra: object) -> tuple[subprocess.Popen[str], int]:
    """An ablate at work, and its child, which has written a checkpoint of an arm."""
    process = study.start(*extra)
    wait_until(lambda: any(study.out.glob("*/checkpoint.safetensors")))
    wait_until(lambda: len(trainers_of(process.pid)) > 0)
    return process, trainers_of(process.pid)[0]
