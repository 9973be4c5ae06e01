"""Studies through the program: whose runs they are, who works on them, what is refused."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import h5py
import pytest
from program import run as run_program
from studies import (
    ARMS,
    BASE,
    PROGRAM,
    SHARED,
    Study,
    arguments_of,
    hashes,
    is_running,
    meta,
    open_run,
    start_and_wait_for_child,
    steps_of,
    trainers_of,
    wait_until,
)

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "analysis"))

from fp8lab_analysis import load_study  # noqa: E402


def test_list_prints_the_hashes_that_the_runs_get(tmp_path: Path) -> None:
    study = Study(tmp_path, SHARED)
    text = study.listed()
    pattern = r"^ *[-\d]+ (\S+) .*configuration=([0-9a-f]{16}) recipes=([0-9a-f]{16})"
    listed = {row[0]: row[1:] for row in re.findall(pattern, text, re.M)}
    assert set(listed) == {"shared", *ARMS} and not study.out.exists()
    assert len(set(listed.values())) == 3 and listed["bf16"][0] == listed["fp32"][0]
    study.done()
    for name, values in listed.items():
        assert meta(study.out / name, "config_hash") == values[0]
        assert meta(study.out / name, "recipe_hash") == values[1]
    assert listed["bf16"][0] not in study.listed("--set", "seed=4")


def test_a_dry_run_says_what_the_runs_need(tmp_path: Path) -> None:
    study = Study(tmp_path, SHARED, steps=200)
    need = re.compile(
        r"^plan: (\S+): memory ([\d.]+) MiB, checkpoint ([\d.]+) MiB, time about (\S+) s$", re.M
    )
    together = re.compile(
        r"^plan: memory of (.+), (\d) at once, at most ([\d.]+) MiB of the [\d.]+ MiB here, "
        r"([\d.]+) of these for copies of checkpoints$",
        re.M,
    )
    total = re.compile(r"^plan: time of all these about (\S+) s, (\d) at once", re.M)

    def planned(*words: object) -> tuple[str, dict[str, tuple[float, ...]]]:
        text = study.planned("--threads", 1, *words)
        return text, {name: tuple(map(float, rest)) for name, *rest in need.findall(text)}

    text, needs = planned("--jobs", 1)
    assert "plan: 3 runs\n" in text and not study.out.exists()
    assert set(needs) == {"shared", *ARMS}
    assert all(memory > checkpoint > 0 and time > 0 for memory, checkpoint, time in needs.values())
    assert needs["shared"][2] < needs["bf16"][2] / 10, "2 steps of 32 tokens, 200 of 128"
    sum_of_all = sum(time for *_, time in needs.values())
    assert total.findall(text)[0][1] == "1"
    assert float(total.findall(text)[0][0]) == pytest.approx(sum_of_all, rel=0.02)
    # A copy takes 16 MiB at least (checkpoint_memory).
    most = max(needs[arm][0] for arm in ARMS)
    one = {what: tuple(map(float, rest)) for what, *rest in together.findall(text)}
    assert one["arms"] == (1, pytest.approx(most + 16, abs=0.2), 16)
    assert one["shared runs"] == (1, pytest.approx(needs["shared"][0] + 16, abs=0.2), 16)
    two, needs = planned("--jobs", 2)
    times = [needs[arm][2] for arm in ARMS]
    expected = needs["shared"][2] + max(sum(times) / 2, *times)
    assert total.findall(two)[0][1] == "2"
    assert float(total.findall(two)[0][0]) == pytest.approx(expected, rel=0.02)
    both = {what: tuple(map(float, rest)) for what, *rest in together.findall(two)}
    assert both["arms"] == (2, pytest.approx(sum(needs[arm][0] for arm in ARMS) + 32, abs=0.3), 32)
    assert both["shared runs"] == one["shared runs"]
    # Without --jobs as ablate would run them.
    processors = str(len(os.sched_getaffinity(0)))
    assert total.findall(planned()[0])[0][1] == processors
    study.done("--index", 0)
    text = study.planned("--threads", 1, "--out", study.out)
    assert f"plan: 3 runs, 2 complete in {study.out}\n" in text
    assert [row[0] for row in need.findall(text)] == ["fp32"]
    # What ablate would refuse, and the folder that it takes without --out.
    changed = ("--set", "stages.*.learning_rate.peak=2e-3")
    result = run_program("ablate", "--study", study.file, "--dry-run", "--out", study.out, *changed)
    assert result.returncode == 2 and "has other settings" in result.stderr
    usual = tmp_path / "runs" / study.file.stem
    usual.parent.mkdir()
    study.out.rename(usual)
    result = run_program("ablate", "--study", study.file, "--dry-run", cwd=tmp_path)
    assert f"plan: 3 runs, 2 complete in runs/{usual.name}\n" in result.stdout


def test_a_dry_run_gives_the_reason_once_for_all_runs_that_it_cannot_plan(tmp_path: Path) -> None:
    study = Study(tmp_path)
    plan = run_program("ablate", "--study", study.file, "--dry-run", "--set", "backend=cuda")
    text = plan.stdout
    if "unknown" not in text:
        pytest.skip("there is a device")
    assert plan.returncode == 2, "no run could begin here"
    assert text.count("unknown: ") == 1 and "time of all" not in text
    assert "plan: bf16, fp32: unknown: " in text
    values = ", ".join(str(seed) for seed in range(1, 4))
    study.file.write_text(study.file.read_text() + f'[[axis]]\nkey = "seed"\nvalues = [{values}]\n')
    text = study.planned("--set", "backend=cuda", status=2)
    assert "plan: bf16-seed1, bf16-seed2, bf16-seed3 and 3 more: unknown: " in text
    study.file.write_text(study.file.read_text() + DEVICE_ARM)
    text = study.planned("--set", "stages.sft.steps=1", status=2)
    assert "plan: device: unknown: " in text and ", without the 1 unknown" in text


def test_a_dry_run_ends_with_the_runs_that_do_not_fit_here(tmp_path: Path) -> None:
    study = Study(tmp_path)
    large = ("model.vocab_size=60000", "stages.cpt.batch_sequences=4096")
    settings = [word for setting in large for word in ("--set", setting)]
    words = ["ablate", "--study", study.file, "--dry-run", "--threads", 1, *settings]
    four_gib = 'ulimit -v 4194304; exec "$0" "$@"'
    planned = subprocess.run(
        ["sh", "-c", four_gib, PROGRAM, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert planned.returncode == 2, (planned.stdout, planned.stderr)
    lines = planned.stdout.splitlines()
    why = "plan: this plan is for a machine with more memory than this one"
    refused = "train would refuse it here (status 2, as of this --dry-run): stage cpt: steps of"
    last = lines[lines.index(why) + 1 :]
    assert [line.startswith(f"plan: {arm}: {refused}") for arm, line in zip(ARMS, last)] == [
        True
    ] * 2
    assert all("this machine has 4 GiB; it fits with" in line for line in last)


DEVICE_ARM = """
[[arm]]
name = "device"
[arm.set]
backend = "cuda"
"""


def test_a_list_times_nothing(tmp_path: Path) -> None:
    study = Study(tmp_path)
    assert "plan:" not in study.listed()
    assert "--out is not read without --dry-run" in study.refused("--list")


def test_a_scale_is_part_of_what_the_runs_are(tmp_path: Path) -> None:
    study = Study(tmp_path, SHARED)
    study.done("--scale", 2)
    for name, stage in {"shared": "cpt", "bf16": "sft"}.items():
        assert meta(study.out / name, "config_text").count(f'name = "{stage}"') == 1
        assert "steps = 4\n" in meta(study.out / name, "config_text")
    assert "complete already" in study.done("--scale", 2)
    assert "stages.cpt.steps: 4 -> 2" in study.refused()
    assert "accepted: a number above 0, at most 1000" in study.refused("--scale", 0)
    listed = study.listed("--scale", 2)
    study.file.write_text("scale = 2\n" + study.file.read_text())
    assert study.listed() == listed
    assert "complete already" in study.done()


@pytest.mark.parametrize("head", ["", SHARED])
def test_runs_under_other_settings_are_refused(tmp_path: Path, head: str) -> None:
    study = Study(tmp_path, head)
    study.done()
    message = study.refused("--set", "seed=4", "--set", "stages.sft.learning_rate.peak=0.002")
    assert "seed: 3 -> 4" in message and "stages.sft.learning_rate.peak: 0.001 -> 0.002" in (
        study.refused("--set", "stages.sft.learning_rate.peak=0.002")
    )
    assert "--out" in message and "remove" in message
    for name in ARMS:
        assert f"'{name}'" in message
    assert "seed: 3 -> 4" in study.refused("--set", "seed=4", "--index", 1)
    shutil.rmtree(study.out / "bf16")
    if head:
        message = study.refused("--set", "stages.cpt.steps=3")
        assert "'shared'" in message and "stages.cpt.steps: 2 -> 3" in message
    assert "complete already" in study.done()
    assert study.complete() == {name: True for name in ARMS}


def test_an_unfinished_arm_under_other_settings_is_refused(tmp_path: Path) -> None:
    study = Study(tmp_path, steps=20000)
    process, _ = start_and_wait_for_child(study, "--jobs", 1)
    process.terminate()
    assert process.wait() == 4
    assert "seed: 3 -> 4" in study.refused("--set", "seed=4")


def test_arms_from_other_shared_weights_are_refused(tmp_path: Path) -> None:
    study = Study(tmp_path, SHARED + "[shared]\nset = { seed = 7 }\n")
    study.done()
    study.file.write_text(study.file.read_text().replace("seed = 7", "seed = 8"))
    assert "'shared'" in study.refused()
    shutil.rmtree(study.out / "shared")
    shutil.rmtree(study.out / "fp32")
    table = (study.out / "study.h5").read_bytes()
    result = study.run()
    assert result.returncode == 2 and "'bf16'" in result.stderr, (result.stdout, result.stderr)
    assert "initial weights" in result.stderr and not (study.out / "fp32/run.h5").exists()
    assert (study.out / "study.h5").read_bytes() == table
    shutil.rmtree(study.out / "bf16")
    study.done()
    assert meta(study.out / "bf16", "initial_weights_hash") == meta(
        study.out / "fp32", "initial_weights_hash"
    )


def test_a_lost_shared_checkpoint_is_named(tmp_path: Path) -> None:
    study = Study(tmp_path, SHARED)
    study.done()
    shutil.rmtree(study.out / "fp32")
    (study.out / "shared/checkpoint.safetensors").unlink()
    assert "shared/checkpoint.safetensors: missing, although that run is" in study.refused()
    shutil.rmtree(study.out / "shared")
    study.done()


SEEDS = '[[axis]]\nkey = "seed"\nvalues = [1, 2]\n'
SHARED_SEEDS = SHARED + '[shared]\naxes = ["seed"]\nset = { recipe = "bf16" }\n'


def test_each_seed_starts_from_its_own_shared_run(tmp_path: Path) -> None:
    study = Study(tmp_path, SHARED_SEEDS + SEEDS)
    assert "shared-seed2" in study.listed()
    study.done()
    starts = {
        (seed, recipe): meta(study.out / f"seed{seed}-{recipe}", "initial_weights_hash")
        for seed in (1, 2)
        for recipe in ARMS
    }
    for seed in (1, 2):
        assert starts[seed, "bf16"] == starts[seed, "fp32"]
        assert int(starts[seed, "bf16"], 16) == hashes(study.out / f"shared-seed{seed}")[-1]
        assert meta(study.out / f"shared-seed{seed}", "recipe_name") == "bf16"
    assert starts[1, "bf16"] != starts[2, "bf16"]
    assert len(load_study([study.out]).runs) == 4
    # A shared run that has other weights now is noticed by its own arms.
    shutil.rmtree(study.out / "shared-seed2")
    shutil.copytree(study.out / "shared-seed1", study.out / "shared-seed2")
    assert "'shared-seed2'" in study.refused()


def test_arms_may_store_the_shared_weights_in_their_own_ways(tmp_path: Path) -> None:
    study = Study(tmp_path, SHARED)
    axis = '[[axis]]\nkey = "optimizer.weights"\nvalues = ["fp32", "bf16", "fp16/tensor"]\n'
    study.file.write_text(study.file.read_text().replace('["bf16", "fp32"]', '["bf16"]') + axis)
    study.done()
    assert "complete already" in study.done() or all(study.complete().values())
    starts = {meta(path.parent, "initial_weights_hash") for path in study.out.glob("bf16-*/run.h5")}
    assert len(starts) == 3


def test_a_killed_shared_run_keeps_its_own_arms_only(tmp_path: Path) -> None:
    study = Study(tmp_path, SHARED_SEEDS + SEEDS)
    study.base.write_text(BASE.format(steps=2).replace("\nsteps = 2", "\nsteps = 4000", 1))
    process, child = start_and_wait_for_child(study, "--jobs", 1)
    os.kill(child, signal.SIGKILL)
    out, error = process.communicate(timeout=300)
    assert process.returncode == 1, (out, error)
    assert "shared-seed1: killed by signal 9" in out and "seed1-bf16: not begun" in out
    assert study.complete() == {
        f"seed{seed}-{recipe}": seed == 2 for seed in (1, 2) for recipe in ARMS
    }
    study.done()
    assert all(study.complete().values())


def test_a_checkpoint_that_a_kill_left_unrecorded_is_recorded_later(tmp_path: Path) -> None:
    study = Study(tmp_path, SHARED)
    study.done()
    shutil.rmtree(study.out / "fp32")
    shared = study.out / "shared" / "run.h5"
    with h5py.File(shared, "r+", libver="latest") as run:  # as killed between its two files
        recorded = list(run["/checkpoints/hash"][:])
        for name in ("/checkpoints/step", "/checkpoints/hash", "/complete"):
            run[name].resize(0, axis=0)
    assert "shared: complete after" in study.done()
    with h5py.File(shared, "r") as run:
        assert list(run["/checkpoints/hash"][:]) == recorded


def test_a_new_arm_joins_what_is_done(tmp_path: Path) -> None:
    study = Study(tmp_path, SHARED)
    study.done()
    before = study.state()
    study.file.write_text(study.file.read_text().replace('"fp32"]', '"fp32", "infir2"]'))
    text = study.done()
    assert text.count("complete already") == 2 and "3 complete" in text
    assert study.complete() == {"bf16": True, "fp32": True, "infir2": True}
    after = study.state()
    changed = {path for path in before if before[path] != after[path]}
    assert changed == {str(study.out / "study.h5")}


def test_a_second_ablate_is_refused_and_named(tmp_path: Path) -> None:
    study = Study(tmp_path, steps=20000)
    process, _ = start_and_wait_for_child(study, "--jobs", 1)
    for extra in ((), ("--index", 1)):
        began = time.monotonic()
        second = study.run(*extra)
        assert second.returncode == 2 and second.stderr.count("\n") == 1, second.stderr
        assert time.monotonic() - began < 10
        for part in (f"process {process.pid} on {socket.gethostname()} since 20", "ablate --study"):
            assert part in second.stderr, second.stderr
    assert not (study.out / "fp32/run.h5").exists(), "the second one must not have started an arm"
    process.terminate()
    assert process.wait() == 4
    assert list(study.out.rglob("*.lock")) == []


def test_single_arms_run_beside_each_other(tmp_path: Path) -> None:
    study = Study(tmp_path, SHARED)
    values = ", ".join(str(seed) for seed in range(1, 3))
    study.file.write_text(study.file.read_text() + f'[[axis]]\nkey = "seed"\nvalues = [{values}]\n')
    processes = [study.start("--index", index) for index in range(4)]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    assert sum("shared: starts" in out for out, _ in outputs) == 1, outputs
    assert list(study.complete().values()) == [True] * 4
    assert list(study.out.rglob("*.lock")) == []
    start = {meta(study.out / name, "initial_weights_hash") for name in study.complete()}
    assert len(start) == 1


def test_one_arm_is_not_run_twice_at_once(tmp_path: Path) -> None:
    study = Study(tmp_path, steps=20000)
    process, _ = start_and_wait_for_child(study, "--index", 0)
    for extra in (("--index", 0), ()):
        second = study.run(*extra)
        assert second.returncode == 2 and second.stderr.count("\n") == 1, second.stderr
        assert "'bf16'" in second.stderr and f"process {process.pid} on " in second.stderr
    other = study.run("--index", 1, "--set", "seed=4")
    assert other.returncode == 2 and "seed: 3 -> 4" in other.stderr
    process.terminate()
    assert process.wait() == 4


def test_a_killed_ablate_leaves_no_child_and_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    study = Study(tmp_path, steps=100)
    study.done("--jobs", 1)
    expected = {name: hashes(study.out / name) for name in ARMS}
    shutil.rmtree(study.out)
    process, child = start_and_wait_for_child(study, "--jobs", 1)
    assert "--resume" not in arguments_of(child)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    again = study.start("--jobs", 1)  # at once: the orphan may still be writing its checkpoint
    wait_until(lambda: not is_running(child), 20)
    assert 0 < steps_of(study.out / "bf16") < 102, "the child must have been stopped in between"
    wait_until(lambda: len(trainers_of(again.pid)) > 0 or again.poll() is not None)
    assert "--resume" in arguments_of(trainers_of(again.pid)[0])
    out, error = again.communicate(timeout=120)
    assert again.returncode == 0, (out, error)
    assert {name: hashes(study.out / name) for name in ARMS} == expected


def test_a_failing_arm_shows_its_last_line_and_its_log(tmp_path: Path) -> None:
    study = Study(tmp_path)
    (study.out / "fp32" / "run.h5.lock").mkdir(parents=True)
    (study.out / "fp32" / "log.txt").write_text("what an earlier attempt wrote\n")
    result = study.run()
    assert result.returncode == 1
    line = next(line for line in result.stdout.splitlines() if line.startswith("fp32: "))
    assert "failed with status 1" in line and "run.h5.lock: cannot create the lock file" in line
    assert str(study.out / "fp32" / "log.txt") in line
    assert study.complete() == {"bf16": True, "fp32": False}


def test_a_killed_arm_says_so(tmp_path: Path) -> None:
    study = Study(tmp_path, steps=20000)
    process, child = start_and_wait_for_child(study, "--jobs", 1, "--index", 0)
    os.kill(child, signal.SIGKILL)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 1, error
    assert "bf16: killed by signal 9" in out and "log.txt" in out


def test_changed_contents_behind_the_same_names_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = Study(tmp_path)
    data, recipe = Path("text.txt"), Path("mine.toml")
    data.write_text("some words\n\nand more\n")
    recipe.write_text(RECIPE.replace("hadamard:64", "none"))
    generated = 'kind = "arithmetic"\nproblems = 200\n'
    text = 'kind = "text"\npath = "text.txt"\n'
    study.base.write_text(study.base.read_text().replace(generated, text, 1))
    study.file.write_text(study.file.read_text().replace('"fp32"', '"./mine.toml"'))
    study.done()
    recipe.write_text(recipe.read_text().replace("int8", "e4m3fn"))
    message = study.refused()
    assert "'mine'" in message and "recipe of stage sft was" in message and "bf16" not in message
    recipe.write_text(recipe.read_text().replace("e4m3fn", "int8"))
    data.write_text("some words\n\nand less\n")
    message = study.refused()
    assert "'bf16'" in message and "training data of stage cpt was" in message
    data.write_text("some words\n\nand more\n")
    study.done()
    # Another place of the same contents is no difference.
    data.rename("moved.txt")
    recipe.rename("moved.toml")
    study.base.write_text(study.base.read_text().replace("text.txt", "moved.txt"))
    name = study.file.read_text().replace("./mine.toml", "moved.toml")
    study.file.write_text(name.replace('"moved.toml"', '"fp32"') + ARM.format(recipe="moved.toml"))
    assert study.done().count("complete already") == 2


ARM = """
[[arm]]
name = "mine"
[arm.set]
recipe = "{recipe}"
"""


def test_other_initial_weights_behind_the_same_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = Study(tmp_path)
    for seed in (5, 6):
        words = ["train", "--config", "base.toml", "--out", f"start{seed}", "--set", f"seed={seed}"]
        subprocess.run([PROGRAM, *words], check=True, capture_output=True)
    start = Path("start.safetensors")
    start.write_bytes(Path("start5/checkpoint.safetensors").read_bytes())
    study.base.write_text(f'init_from = "{start}"\n' + study.base.read_text())
    study.done()
    start.write_bytes(Path("start6/checkpoint.safetensors").read_bytes())
    assert "initial weights was" in study.refused()
    study.base.write_text(BASE.format(steps=2))
    assert 'init_from: "start.safetensors" -> ""' in study.refused()


def test_a_foreign_shared_checkpoint_is_refused(tmp_path: Path) -> None:
    study = Study(tmp_path, SHARED)
    study.done()
    shutil.rmtree(study.out / "fp32")
    path = study.out / "shared/checkpoint.safetensors"
    own = path.read_bytes()
    path.write_bytes((study.out / "bf16/checkpoint.safetensors").read_bytes())
    assert "shared/checkpoint.safetensors: not the one" in study.refused()
    path.write_bytes(own)
    study.done()


MIXED = """
[[axis]]
key = "seed"
values = [1, 2]
[[arm]]
name = "mixed"
[arm.set]
seed = 1
recipe = "bf16"
stages.sft.recipe = "infir2"
[[arm]]
name = "other"
[arm.set]
seed = 3
recipe = "infir2"
"""


def pairs_of(*inputs: Path) -> dict[str, str]:
    """Names of the runs of a report and of the baselines that they are compared with."""
    found = load_study(inputs)
    partners = {run.name: found.pairings.of(run) for run in found.runs}
    return {name: partner.name for name, partner in partners.items() if partner is not None}


def test_the_study_file_holds_facts_that_the_report_takes_over(tmp_path: Path) -> None:
    study = Study(tmp_path, SHARED)
    study.file.write_text(study.file.read_text() + MIXED)
    study.done()
    with h5py.File(study.out / "study.h5", "r") as table:
        arms = {name: column[:] for name, column in table["arms"].items()}
        assert set(table) == {"meta", "runs", "arms", "axes"}
    names = [name.decode() for name in arms["name"]]
    assert set(arms) == {
        "name", "run_file", "recipe", "seed", "config_hash", "is_baseline", "baseline_arm",
        "complete", "last_step", "final_weight_hash",
    }  # fmt: skip
    for row, name in enumerate(names):
        assert arms["config_hash"][row].decode() == meta(study.out / name, "config_hash")
        with open_run(study.out / name) as run:
            assert arms["last_step"][row] == run["/metrics/step"][-1]
            assert arms["final_weight_hash"][row] == run["/complete"][0]
    partners = {n: b.decode() for n, b in zip(names, arms["baseline_arm"]) if b}
    assert partners == {
        "fp32-seed1": "bf16-seed1",
        "fp32-seed2": "bf16-seed2",
        "mixed": "bf16-seed1",
    }
    assert pairs_of(study.out) == partners
    # The rule for run files without a study file finds the same pairs.
    (study.out / "study.h5").unlink()
    assert pairs_of(study.out) == partners
    assert len(pairs_of(*study.out.glob("*-seed1/run.h5"))) == 1


def design_of(study: Study) -> dict[str, object]:
    with h5py.File(study.out / "study.h5", "r") as table:
        return dict(table["design"].attrs.items())


def test_a_margin_is_stated_before_the_runs_and_stays(tmp_path: Path) -> None:
    study = Study(tmp_path)
    stated = "\n[design]\nmargin = 0.01\nlooks = 2\n"
    text = study.file.read_text()
    study.file.write_text(text + stated)
    study.done()
    first = design_of(study)
    assert (first["margin"], first["looks"], first["arms_begun"]) == (0.01, 2, 0)
    assert (first["alpha"], first["power"]) == (0.05, 0.9)
    oldest = min((run / "run.h5").stat().st_mtime for run in study.out.iterdir() if run.is_dir())
    wanted = datetime.fromisoformat(str(first["stated"], "ascii").replace("Z", "+00:00"))
    assert wanted.timestamp() <= oldest
    assert load_study([study.out]).design.stated
    time.sleep(1.1)
    study.done()
    assert design_of(study) == first, "a second look changes nothing"
    # Another margin, now that there are results, is no margin stated beforehand.
    study.file.write_text(text + stated.replace("0.01", "0.02"))
    study.done()
    second = design_of(study)
    assert second["margin"] == 0.02 and second["arms_begun"] == len(ARMS)
    assert not load_study([study.out]).design.stated


@pytest.mark.parametrize(
    ("design", "message"),
    [
        ("looks = 2", "margin"),
        ("margin = 0.9", "0.5"),
        ("margin = 0.01\nlooks = 0", "looks"),
        ("margin = 0.01\nseeds = 4", "seeds"),
    ],
)
def test_designs_that_cannot_be_are_refused(tmp_path: Path, design: str, message: str) -> None:
    study = Study(tmp_path)
    study.file.write_text(study.file.read_text() + f"\n[design]\n{design}\n")
    assert message in study.refused()


RECIPE = """
name = "mine"
[slots.default]
format = "int8"
tile = "tensor"
transform = "hadamard:64"
[gemm]
accumulator = "sm90_bf16"
"""


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ('stages.cpt.data.path = "none.txt"\n', "none.txt"),
        ('recipe = "mine.toml"\nmodel.intermediate_size = 136\n', "stage cpt, recipe mine"),
        (
            'stages.sft.eval = { sequences = 1, multiple_choice = "none.jsonl" }\n',
            "none.jsonl",
        ),
        ('init_from = "none.safetensors"\n', "none.safetensors does not exist"),
    ],
)
def test_a_bad_arm_is_found_before_the_first_one_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, part: str
) -> None:
    monkeypatch.chdir(tmp_path)
    study = Study(tmp_path)
    Path("text.txt").write_text("some words\n\nand more\n")
    Path("mine.toml").write_text(RECIPE)
    generated = 'kind = "arithmetic"\nproblems = 200\n'
    text = 'kind = "text"\npath = "text.txt"\n'
    study.base.write_text(study.base.read_text().replace(generated, text, 1))
    study.done()
    shutil.rmtree(study.out)
    arm = '[[arm]]\nname = "bad"\n[arm.set]\n' + settings
    study.file.write_text(study.file.read_text() + arm)
    message = study.refused()
    assert part in message and "run 'bad': " in message
    assert [path for path in study.out.rglob("*") if path.is_file()] == []


def test_a_study_of_a_million_million_arms_is_refused_at_once(tmp_path: Path) -> None:
    study = Study(tmp_path)
    values = ", ".join(str(seed) for seed in range(1000))
    axis = f'[[axis]]\nkey = "seed"\nvalues = [{values}]\n'
    study.file.write_text('base = "base.toml"\n' + 4 * axis)
    began = time.monotonic()
    assert "1000000000000 arms in all; accepted: at most 10000" in study.refused()
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("name", ["study.h5", "report", "slurm", "shared", "shared-2", "a" * 300])
def test_arm_names_that_are_no_folders_are_refused(tmp_path: Path, name: str) -> None:
    study = Study(tmp_path)
    study.file.write_text(study.file.read_text() + f'[[arm]]\nname = "{name}"\n')
    message = study.refused()
    assert f"'{name}'" in message and not study.out.exists()


@pytest.mark.parametrize("name", ["../../x", "", "..", "a b", "\\u00e4", "a" * 101])
def test_run_names_stay_in_their_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a/b/c"
    folder.mkdir(parents=True)
    config = folder / "base.toml"
    config.write_text(BASE.format(steps=1).replace('name = "base"', f'name = "{name}"', 1))
    result = subprocess.run(
        [PROGRAM, "train", "--config", str(config)],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert result.returncode == 2 and result.stderr.count("\n") == 1, result.stderr
    assert (
        "'name' is" in result.stderr and "at most" in result.stderr or "1 to 100" in result.stderr
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [config]


def test_a_study_says_every_two_seconds_where_its_runs_are(tmp_path: Path) -> None:
    study = Study(tmp_path, steps=4000)
    process = study.start("--jobs", 1)
    assert process.stderr is not None
    lines = [process.stderr.readline()]
    began = time.monotonic()
    lines += [process.stderr.readline() for _ in range(2)]
    assert 3.0 < time.monotonic() - began < 20.0  # two seconds each, on a busy machine more
    process.terminate()
    process.communicate(timeout=60)
    told = re.compile(
        r"^bf16 step (\d+)/4002 sft loss (\d\.\d{4}); 0 of 2 runs done, about \d+ (?:s|min) left$"
    )
    found = [told.match(line.rstrip("\n")) for line in lines]
    assert all(found), lines
    steps = [int(match[1]) for match in found if match]
    assert steps == sorted(set(steps))
    with open_run(study.out / "bf16") as run:
        losses = dict(zip(run["metrics/step"][:].tolist(), run["metrics/loss"][:].tolist()))
    for match in found:
        assert match and abs(losses[int(match[1])] - float(match[2])) <= 6e-5


def test_the_descriptor_of_steps_must_be_open(tmp_path: Path) -> None:
    study = Study(tmp_path)
    for number in ("1", "77", "-1"):
        words = [PROGRAM, "train", "--config", study.base, f"--step-descriptor={number}"]
        words += ["--out", tmp_path / "run"]
        result = subprocess.run(
            [str(word) for word in words], capture_output=True, text=True, timeout=60, check=False
        )
        assert result.returncode == 2 and f"--step-descriptor {number}" in result.stderr
        assert not (tmp_path / "run").exists()
