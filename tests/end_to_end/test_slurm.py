"""A study as jobs of a real Slurm: one node, this machine, started here. A visible skip where
Slurm or munge is not installed (on Debian: slurmctld, slurmd, slurm-client, munge)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, missing
from studies import SHARED, Study, hashes, wait_until

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"Slurm is not installed: {missing()}")

NAMES = ("shared", "bf16-seed1", "bf16-seed2", "fp32-seed1", "fp32-seed2")
SEEDS = '[[axis]]\nkey = "seed"\nvalues = [1, 2]\n'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with SlurmCluster(tmp_path_factory.mktemp("slurm") / "cluster") as found:
        yield found


def study_in(folder: Path, steps: int) -> Study:
    study = Study(folder, SHARED, steps=steps)
    study.out = folder / "an out"
    study.file.write_text(study.file.read_text() + SEEDS)
    return study


def submitted(cluster: SlurmCluster, study: Study, *extra: object) -> str:
    """What `ablate` prints that submits."""
    done = subprocess.run(
        study.words("--launcher", "slurm", *extra),
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    print(done.stdout)
    return done.stdout


def tasks(study: Study) -> dict[str, str]:
    """The last task of every run."""
    lines = (study.out / "slurm" / "tasks").read_text().splitlines()
    return {run: task for task, run in map(str.split, lines)}


def trainer_of(study: Study, name: str) -> int:
    """The process that trains a run; 0 for none."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if "train" in words and f"--out={study.out / name}" in words:
                return int(folder.name)
    return 0


def wait_for_empty_queue(cluster: SlurmCluster) -> None:
    wait_until(lambda: not cluster.queue(), 240)


def test_a_study_with_a_killed_task_is_whole_after_ablate_runs_again(
    tmp_path: Path, cluster: SlurmCluster
) -> None:
    study = study_in(tmp_path, steps=300)
    study.done("--jobs", 1)
    expected = {name: hashes(study.out / name) for name in NAMES}
    study.out = tmp_path / "queue"
    text = submitted(cluster, study, "--slurm", "time=30", "--slurm", "partition=test")
    shared, arms = re.findall(r"^job (\d+): (.*)$", text, re.M)
    assert shared[1] == "shared"
    assert arms[1] == ", ".join(NAMES[1:]) + f", once {shared[0]}_0 is complete"
    assert "0 complete, 4 submitted, 0 in the queue already" in text
    again = submitted(cluster, study)
    assert "job " not in again and "0 complete, 0 submitted, 4 in the queue already" in again

    killed = "fp32-seed1"
    wait_until(lambda: trainer_of(study, killed) != 0, 120)
    wait_until(lambda: (study.out / killed / "checkpoint.safetensors").exists())
    os.kill(trainer_of(study, killed), signal.SIGKILL)
    wait_for_empty_queue(cluster)
    assert study.complete() == {name: name != killed for name in NAMES[1:]}

    text = submitted(cluster, study)
    assert f"{killed}: its task {arms[0]}_2 ended: killed by signal 9 after" in text
    assert re.findall(r"^job \d+: (.*)$", text, re.M) == [killed]
    assert "3 complete, 1 submitted, 0 in the queue already" in text
    wait_for_empty_queue(cluster)
    assert all(study.complete().values())
    assert {name: hashes(study.out / name) for name in NAMES} == expected
    assert "4 complete, 0 submitted, 0 in the queue already" in submitted(cluster, study)
    assert list(study.out.rglob("*.lock")) == []


def test_a_cancelled_task_writes_a_checkpoint_and_a_failed_start_stops_its_arms_alone(
    tmp_path: Path, cluster: SlurmCluster
) -> None:
    study = study_in(tmp_path, steps=20000)
    study.file.write_text(study.file.read_text() + '[shared]\naxes = ["seed"]\n')
    blocked = study.out / "shared-seed2" / "run.h5.lock"
    blocked.mkdir(parents=True)
    text = submitted(cluster, study)
    first = re.findall(r"^job (\d+): shared-seed1, shared-seed2$", text, re.M)
    assert len(first) == 1 and f"once {first[0]}_0 is" in text and f"once {first[0]}_1 is" in text
    wait_until(lambda: trainer_of(study, "bf16-seed1") != 0, 120)
    wait_until(lambda: (study.out / "bf16-seed1" / "checkpoint.safetensors").exists())
    cluster.run("scancel", tasks(study)["bf16-seed1"])
    cluster.run("scancel", tasks(study)["fp32-seed1"])
    wait_for_empty_queue(cluster)  # arms of seed 2 are not left waiting for what will not be
    assert trainer_of(study, "bf16-seed1") == 0
    assert (study.out / "shared-seed1" / "run.h5").exists()

    blocked.rmdir()
    before = tasks(study)
    text = submitted(cluster, study)
    cancelled = f"bf16-seed1: its task {before['bf16-seed1']} ended: "
    line = next(line for line in text.splitlines() if line.startswith(cancelled))
    assert "interrupted after" in line or "CANCELLED" in line
    assert f"shared-seed2: its task {first[0]}_1 ended: failed with status 1" in text
    assert f"bf16-seed2: its task {before['bf16-seed2']} ended: it never began" in text
    assert "0 complete, 4 submitted" in text
    for task in tasks(study).values():
        cluster.run("scancel", task)
    wait_for_empty_queue(cluster)


def test_what_sbatch_refuses_is_told(tmp_path: Path, cluster: SlurmCluster) -> None:
    study = study_in(tmp_path, steps=2)
    words = study.words("--launcher", "slurm", "--slurm", "partition=none")
    done = subprocess.run(
        words, env=cluster.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "sbatch failed: " in done.stderr and "invalid partition" in done.stderr
    assert not (study.out / "slurm" / "tasks").exists()
