"""Launchers of studies: what is submitted to a scheduler, and ranks that share a study. The
scheduler is a stand-in here; test_slurm.py has a real one."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from studies import ARMS, SHARED, Study, hashes, trainers_of, wait_until

SEEDS = '[[axis]]\nkey = "seed"\nvalues = [1, 2, 3]\n'
NAMES = [f"{recipe}-seed{seed}" for recipe in ARMS for seed in (1, 2, 3)]

# Keeps what it is given; the queue is a file.
SBATCH = """#!/bin/sh
number=$(($(cat jobs) + 1)); echo $number > jobs
echo "$@" > words.$number
for last; do :; done
cp "$last" script.$number
echo "$number;here"
"""
SQUEUE = "#!/bin/sh\ncat queue\n"


class Scheduler:
    """Commands of Slurm that only note what they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
            lines = text.split("\n", 1)
            (folder / name).write_text(f"{lines[0]}\ncd '{folder}'\n{lines[1]}")
            (folder / name).chmod(0o755)
        (folder / "jobs").write_text("0\n")
        self.in_queue()

    def in_queue(self, *tasks: str) -> None:
        (self.folder / "queue").write_text("".join(task + "\n" for task in tasks))

    def submit(self, study: Study, *extra: object) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder}:{os.environ['PATH']}"
        return subprocess.run(
            study.words("--launcher", "slurm", *extra),
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def submitted(self, study: Study, *extra: object) -> str:
        done = self.submit(study, *extra)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    def words(self, job: int) -> str:
        return (self.folder / f"words.{job}").read_text()

    def script(self, job: int) -> str:
        return (self.folder / f"script.{job}").read_text()

    def run_task(self, job: int, task: int) -> None:
        """Runs a task as Slurm would, and waits for it."""
        environment = {**os.environ, "SLURM_ARRAY_TASK_ID": str(task), "SLURM_CPUS_ON_NODE": "1"}
        output = re.findall(r'--output="(.*)"', self.script(job))[0]
        output = output.replace("%A", str(job)).replace("%a", str(task))
        with open(output, "a", encoding="utf-8") as log:
            subprocess.run(
                ["bash", self.folder / f"script.{job}"],
                env=environment,
                stdout=log,
                stderr=log,
                timeout=120,
                check=False,
            )


def three_seeds(folder: Path, head: str = SHARED, steps: int = 2) -> Study:
    study = Study(folder, head, steps=steps)
    study.file.write_text(study.file.read_text() + SEEDS)
    return study


def test_only_what_is_neither_complete_nor_queued_is_submitted(tmp_path: Path) -> None:
    scheduler, study = Scheduler(tmp_path / "slurm"), three_seeds(tmp_path)
    study.done("--run", "bf16-seed1")  # with the shared run
    text = scheduler.submitted(study, "--slurm", "gpus=1", "--slurm", "exclusive", "--jobs", 2)
    assert "bf16-seed1: complete already" in text
    assert f"job 1: {', '.join(NAMES[1:])}\n" in text and "1 complete, 5 submitted, 0 in" in text
    script = scheduler.script(1)
    for line in ("array=0-4%2", "gpus=1", "exclusive", "cpus-per-task=1", "job-name=s"):
        assert f"#SBATCH --{line}\n" in script
    assert "--dependency" not in scheduler.words(1)
    scheduler.in_queue("1_0", "1_3", "99_1")
    scheduler.run_task(1, 1)
    text = scheduler.submitted(study)
    assert f"job 2: {NAMES[3]}, {NAMES[5]}\n" in text
    assert f"{NAMES[3]}: its task 1_2 ended: it never began" in text
    assert "2 complete, 2 submitted, 2 in the queue already" in text
    assert (study.out / "slurm" / "2.sh").read_text() == scheduler.script(2)
    scheduler.in_queue()
    for task in range(2):
        scheduler.run_task(2, task)
    for task in (0, 3):
        scheduler.run_task(1, task)
    assert all(study.complete().values())
    text = scheduler.submitted(study)
    assert "6 complete, 0 submitted, 0 in the queue already" in text and "job " not in text


def test_arms_wait_for_their_own_shared_run(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path / "slurm")
    study = three_seeds(tmp_path)
    study.file.write_text(study.file.read_text() + '[shared]\naxes = ["seed"]\n')
    text = scheduler.submitted(study)
    assert "job 1: shared-seed1, shared-seed2, shared-seed3\n" in text
    for seed in (1, 2, 3):
        assert f"job {seed + 1}: bf16-seed{seed}, fp32-seed{seed}, once 1_{seed - 1} is" in text
        assert f"--dependency=afterok:1_{seed - 1} --kill-on" in scheduler.words(seed + 1)
    scheduler.run_task(1, 1)
    scheduler.in_queue("1_0", "2_0", "2_1", "4_0")
    text = scheduler.submitted(study)
    # Seed 1 waits as before, seed 2 can begin, of seed 3 the shared run is gone from the queue.
    assert "job 5: shared-seed3\n" in text and "job 6: bf16-seed2, fp32-seed2\n" in text
    assert "job 7: fp32-seed3, once 5_0 is complete\n" in text
    assert "0 complete, 3 submitted, 3 in the queue already" in text


def test_a_failed_task_is_told_with_its_reason(tmp_path: Path) -> None:
    scheduler, study = Scheduler(tmp_path / "slurm"), Study(tmp_path)
    (study.out / "fp32" / "run.h5.lock").mkdir(parents=True)
    scheduler.submitted(study)
    scheduler.run_task(1, 0)
    scheduler.run_task(1, 1)
    text = scheduler.submitted(study)
    assert "fp32: its task 1_1 ended: failed with status 1 after" in text
    assert "run.h5.lock: cannot create the lock file" in text
    assert "job 2: fp32\n" in text and study.complete() == {"bf16": True, "fp32": False}
    with open(study.out / "slurm" / "2_0.out", "w", encoding="utf-8") as log:
        log.write("fp32: starts\nslurmstepd: error: *** JOB 2 ON n CANCELLED DUE TO TIME LIMIT\n")
    assert "fp32: its task 2_0 ended: slurmstepd: error: *** JOB 2" in scheduler.submitted(study)
    (study.out / "slurm" / "3_0.out").write_text("fp32: starts\n")
    assert "fp32: its task 3_0 ended: killed before it could" in scheduler.submitted(study)


def test_every_option_of_sbatch_stands_once_in_the_script(tmp_path: Path) -> None:
    scheduler, study = Scheduler(tmp_path / "slurm"), Study(tmp_path)
    scheduler.submitted(study)
    assert "#SBATCH --signal=B:TERM@60\n" in scheduler.script(1)
    scheduler.submitted(study, "--stop-before", 600)
    assert "#SBATCH --signal=B:TERM@600\n" in scheduler.script(2)
    own = ["signal=B:TERM@900", "open-mode=truncate", "job-name=mine"]
    scheduler.submitted(study, *(word for line in own for word in ("--slurm", line)))
    for line in own:
        assert f"#SBATCH --{line}\n" in scheduler.script(3)
    for job in (1, 2, 3):
        options = re.findall("^#SBATCH --([a-z-]+)", scheduler.script(job), re.MULTILINE)
        assert len(options) == len(set(options)) and "signal" in options, options


@pytest.mark.parametrize("name", ["s2\ntouch pwned\n#", 'a"b', "a\\b", "a\tb", "a\x1bb"])
def test_a_folder_that_no_script_can_hold_is_refused(tmp_path: Path, name: str) -> None:
    scheduler, study = Scheduler(tmp_path / "slurm"), Study(tmp_path)
    study.out = tmp_path / name
    done = scheduler.submit(study)
    assert done.returncode == 2 and "a script of sbatch cannot hold" in done.stderr
    assert done.stderr.count("\n") == 1 and "\x1b" not in done.stderr
    assert not study.out.exists() and not (scheduler.folder / "script.1").exists()
    # The folder from which it is named counts as well, and a name with other signs is kept whole.
    study.out = tmp_path / "50% of 'it' $HOME"
    scheduler.submitted(study)
    assert f"--output=\"{tmp_path}/50%% of 'it' $HOME/slurm/%A_%a.out\"" in scheduler.script(1)


def test_a_plan_warns_of_steps_longer_than_a_task_has_left(tmp_path: Path) -> None:
    study = Study(tmp_path)
    assert "longest step" not in study.planned()
    study.base.write_text(study.base.read_text().replace("hidden_size = 64", "hidden_size = 1024"))
    big = ("--set", "stages.*.batch_sequences=4096", "--set", "stages.*.micro_batch_sequences=1")
    text = study.planned(*big, "--stop-before", 1)
    assert "plan: warning: the longest step takes about" in text and "SIGTERM 1 s before" in text


def test_an_arm_that_diverges_is_complete(tmp_path: Path) -> None:
    study = Study(tmp_path, steps=12)
    steep = "stages.sft.learning_rate={kind='constant', peak=9.0, final=9.0, warmup_steps=0}"
    text = study.done("--set", steep, "--set", "stages.sft.data.families=['sum']")
    assert re.search(r"^bf16: complete after \d+ s, diverged", text, re.MULTILINE), text
    assert "2 complete, 0 failed, 0 interrupted" in text
    assert all(study.complete().values())
    assert study.run("--set", steep).returncode == 2  # another study


def test_settings_and_commands_that_do_not_serve_are_refused(tmp_path: Path) -> None:
    scheduler, study = Scheduler(tmp_path / "slurm"), Study(tmp_path)
    for words, part in {
        ("--slurm", "array=0-9"): "'array' is set by ablate itself",
        ("--slurm", "--partition=x"): "without its hyphens",
        ("--slurm", "Partition=x"): "a long option of sbatch",
        ("--slurm", "time=1\ttouch"): "a long option of sbatch",
        ("--slurm", "time=1", "--slurm", "time=2"): "'time' is given before as time=1",
        ("--slurm", "cpus-per-task=2"): "'cpus-per-task' is given before as cpus-per-task=1",
        ("--slurm", "signal=B:TERM@9", "--stop-before", 9): "say the same twice",
        ("--stop-before", 0): "--stop-before 0: accepted: 1 to 65535 seconds",
        ("--index", "0"): "--index is for --launcher local",
        ("--run", "bf16"): "--run is for --launcher local",
        ("--set", "stages.cpt.data.path=none.txt"): "none.txt",
    }.items():
        done = scheduler.submit(study, *words)
        assert done.returncode == 2 and part in done.stderr, (words, done.stderr)
    assert "--slurm is for --launcher slurm" in study.refused("--slurm", "gpus=1")
    assert "--stop-before is for --launcher slurm" in study.refused("--stop-before", 9)
    assert "--launcher slrm (did you mean 'slurm'?): accepted" in study.refused(
        "--launcher", "slrm"
    )
    assert "the study has no run 'bf61' (did you mean 'bf16'?)" in study.refused("--run", "bf61")
    assert "names a run as well" in study.refused("--run", "bf16", "--index", 0)
    (scheduler.folder / "sbatch").write_text("#!/bin/sh\necho no such partition >&2\nexit 1\n")
    done = scheduler.submit(study)
    assert done.returncode == 1 and "sbatch failed: no such partition" in done.stderr
    assert not (study.out / "slurm" / "tasks").exists()
    if shutil.which("sbatch") is None:
        message = study.run("--launcher", "slurm").stderr
        assert "cannot be started" in message and message.count("\n") == 1


def test_nothing_is_submitted_while_the_study_runs_here(tmp_path: Path) -> None:
    scheduler, study = Scheduler(tmp_path / "slurm"), Study(tmp_path, steps=20000)
    process = study.start("--jobs", 1)
    wait_until(lambda: len(trainers_of(process.pid)) > 0)
    done = scheduler.submit(study)
    assert done.returncode == 2 and f"process {process.pid} on " in done.stderr
    process.terminate()
    assert process.wait() == 4


# --- ranks ----------------------------------------------------------------------------------------


def start_ranks(study: Study, count: int, *extra: object) -> list[subprocess.Popen[str]]:
    """Ranks as mpirun of MPICH starts them."""
    return [
        subprocess.Popen(
            study.words("--launcher", "mpi", *extra),
            env={**os.environ, "PMI_RANK": str(rank), "PMI_SIZE": str(count)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


def ended(ranks: list[subprocess.Popen[str]]) -> list[str]:
    """What each rank printed."""
    return [rank.communicate(timeout=180)[0] for rank in ranks]


def begun(outputs: list[str]) -> list[str]:
    return sorted(re.findall(r"^rank \d+: (\S+): starts$", "".join(outputs), re.M))


def test_ranks_share_a_study_and_none_runs_twice(tmp_path: Path) -> None:
    study = three_seeds(tmp_path, steps=20)
    study.done("--jobs", 1)
    expected = {name: hashes(study.out / name) for name in NAMES}
    shutil.rmtree(study.out)
    ranks = start_ranks(study, 3)
    outputs = ended(ranks)
    assert [rank.returncode for rank in ranks] == [0, 0, 0], outputs
    assert begun(outputs) == sorted([*NAMES, "shared"]), outputs
    assert "rank 0: 6 complete, 0 failed, 0 interrupted\n" in outputs[0]
    assert all(study.complete().values()) and list(study.out.rglob("*.lock")) == []
    assert {name: hashes(study.out / name) for name in NAMES} == expected
    assert begun(ended(start_ranks(study, 2))) == []


def test_a_failed_run_stops_no_rank_and_is_tried_once(tmp_path: Path) -> None:
    study = three_seeds(tmp_path)
    (study.out / "fp32-seed2" / "run.h5.lock").mkdir(parents=True)
    ranks = start_ranks(study, 3)
    outputs = ended(ranks)
    assert [rank.returncode for rank in ranks] == [1, 0, 0], outputs
    assert begun(outputs) == sorted([*NAMES, "shared"]), outputs
    assert "fp32-seed2: failed with status 1" in "".join(outputs)
    assert "rank 0: 5 complete, 1 failed, 0 interrupted\n" in outputs[0]
    assert study.complete() == {name: name != "fp32-seed2" for name in NAMES}


def test_a_failed_shared_run_leaves_the_arms_of_the_others(tmp_path: Path) -> None:
    study = three_seeds(tmp_path)
    study.file.write_text(study.file.read_text() + '[shared]\naxes = ["seed"]\n')
    (study.out / "shared-seed2" / "run.h5.lock").mkdir(parents=True)
    ranks = start_ranks(study, 2)
    outputs = ended(ranks)
    assert [rank.returncode for rank in ranks] == [1, 0], outputs
    assert begun(outputs).count("shared-seed2") == 1
    assert "rank 0: bf16-seed2: not begun, shared-seed2 is not complete" in outputs[0]
    assert study.complete() == {name: "seed2" not in name for name in NAMES}


def test_the_runs_of_dead_ranks_go_on_in_one_that_had_nothing_to_do(tmp_path: Path) -> None:
    study = Study(tmp_path, steps=150)
    ranks = start_ranks(study, 3)
    wait_until(lambda: sum(len(trainers_of(rank.pid)) for rank in ranks) == 2)
    dead = [rank for rank in ranks if trainers_of(rank.pid)]
    for rank in dead:
        os.kill(rank.pid, signal.SIGKILL)
    outputs = ended(ranks)
    assert [rank.returncode for rank in ranks if rank not in dead] == [0], outputs
    assert begun(outputs) == sorted([*ARMS, *ARMS]), outputs
    assert all(study.complete().values())


def test_what_is_no_rank_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(tmp_path)
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert "no rank in the environment" in study.refused("--launcher", "mpi")
    monkeypatch.setenv("PMI_RANK", "2")
    assert "PMI_SIZE is ''" in study.refused("--launcher", "mpi")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert "PMI_RANK is '2'; accepted: a number from 0 to 1" in study.refused("--launcher", "mpi")
    assert "each runs one arm" in study.refused("--launcher", "mpi", "--jobs", 2)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_mpirun_starts_the_ranks(tmp_path: Path) -> None:
    study = three_seeds(tmp_path)
    (study.out / "fp32-seed2" / "run.h5.lock").mkdir(parents=True)
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    study_words = study.words("--launcher", "mpi")

    def launched() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*words, *study_words], capture_output=True, text=True, timeout=180, check=False
        )

    done = launched()
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert study.complete() == {name: name != "fp32-seed2" for name in NAMES}
    assert begun([done.stdout]) == sorted([*NAMES, "shared"]), done.stdout
    (study.out / "fp32-seed2" / "run.h5.lock").rmdir()
    done = launched()
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert begun([done.stdout]) == ["fp32-seed2"] and all(study.complete().values())
