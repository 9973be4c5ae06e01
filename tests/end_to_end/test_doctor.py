"""fp8lab doctor: what it finds in the files of runs, and what it mends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import pytest
from test_provenance import (
    PROGRAM,
    column,
    interrupted,
    refused,
    run,
    stage,
    train,
    trained,
    write_config,
)

ROOT = Path(__file__).resolve().parents[2]


def doctor(directory: Path, *extra: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Exit status, and health and text by file name."""
    result = run("doctor", directory, "--json", *extra)
    assert result.returncode in (0, 3), result.stderr
    found = json.loads(result.stdout)
    return result.returncode, {
        str(Path(item["file"]).relative_to(directory)): (item["health"], item["text"])
        for item in found
    }


def killed(config: Path, out: Path) -> None:
    """A run whose writer got kill -9 after a checkpoint."""
    process = subprocess.Popen(
        [PROGRAM, "train", "--config", str(config), "--out", str(out)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for _ in process.stdout:
        if (out / "checkpoint.safetensors").exists():
            break
    process.kill()
    process.wait()


def test_a_killed_run_is_closed_and_loses_no_step(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("cpt", steps=300), logging="checkpoint_every_steps = 3\n")
    out = tmp_path / "run"
    killed(config, out)
    left = out / ".checkpoint.safetensors.tmp-4711-0"
    left.write_bytes(b"half")
    with pytest.raises(OSError):
        h5py.File(out / "run.h5", "r")
    before = {path: column(out, path) for path in ("/metrics/step", "/hashes/weights")}

    status, found = doctor(out, "--check")
    assert status == 0 and found["run.h5"][0] == found[left.name][0] == "fixable"
    assert left.exists()
    status, found = doctor(out)
    assert status == 0 and found["run.h5"][0] == found[left.name][0] == "repaired"
    assert found["checkpoint.safetensors"][0] == "whole"
    assert not left.exists()
    with h5py.File(out / "run.h5", "r") as file:
        for path, values in before.items():
            assert list(file[path][:]) == values
    status, found = doctor(out)
    assert status == 0 and {health for health, _ in found.values()} == {"whole"}
    trained(config, out, "--resume")
    trained(config, tmp_path / "whole")
    assert column(out, "/hashes/weights") == column(tmp_path / "whole", "/hashes/weights")


def test_a_complete_run_stays_complete(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("cpt"))
    trained(config, tmp_path / "run")
    before = (tmp_path / "run" / "run.h5").read_bytes()
    status, found = doctor(tmp_path / "run")
    assert status == 0 and "4 steps, complete" in found["run.h5"][1]
    assert (tmp_path / "run" / "run.h5").read_bytes() == before


def test_a_run_goes_by_its_run_file(tmp_path: Path) -> None:
    trained(write_config(tmp_path, stage("cpt")), tmp_path / "run")
    by_folder, by_file = (run("doctor", tmp_path / "run" / name) for name in ("", "run.h5"))
    assert by_file.returncode == 0, by_file.stderr
    assert by_file.stdout.replace("//", "/") == by_folder.stdout.replace("//", "/")


def test_damage_is_named_with_the_way_on(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("cpt", steps=40))
    out = tmp_path / "run"
    interrupted(config, out)
    checkpoint, file = out / "checkpoint.safetensors", out / "run.h5"
    whole = checkpoint.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 4
    checkpoint.write_bytes(damaged)
    status, found = doctor(out)
    assert status == 3 and found["run.h5"][0] == "whole"
    health, text = found["checkpoint.safetensors"]
    assert health == "damaged" and "checksum" in text and "copy" in text
    assert checkpoint.read_bytes() == bytes(damaged)
    before = file.read_bytes()
    refused(train(config, out, "--resume"), "checksum")
    assert file.read_bytes() == before
    checkpoint.unlink()
    status, found = doctor(out)
    assert status == 3 and "missing" in found["checkpoint.safetensors"][1]
    checkpoint.write_bytes(whole)

    bytes_of_run = file.read_bytes()
    with h5py.File(file, "r", libver="latest", swmr=True) as opened:
        chunk = opened["metrics/loss"].id.get_chunk_info(0)
    flipped = bytearray(bytes_of_run)
    flipped[chunk.byte_offset + 3] ^= 1
    file.write_bytes(flipped)
    status, found = doctor(out)
    assert status == 3 and found["run.h5"][0] == "damaged"
    assert "/metrics/loss" in found["run.h5"][1] and "--init-from" in found["run.h5"][1]
    refused(train(config, out, "--resume"), "/metrics/loss")
    file.write_bytes(bytes_of_run)
    file.rename(tmp_path / "aside")
    status, found = doctor(out)
    assert status == 3 and "no run.h5" in found["checkpoint.safetensors"][1]


def test_a_running_run_is_left_alone(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("cpt", steps=4000))
    process = subprocess.Popen(
        [PROGRAM, "train", "--config", str(config), "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    status, found = doctor(tmp_path / "run")
    process.kill()
    process.wait()
    assert status == 0 and found["run.h5"][0] == "busy"


STUDY = """
name = "pair"
base = "config.toml"
[[axis]]
key = "recipe"
values = ["bf16", "te_current"]
"""


def test_the_links_of_a_study_are_followed(tmp_path: Path) -> None:
    write_config(tmp_path, stage("cpt"))
    (tmp_path / "study.toml").write_text(STUDY)
    out = tmp_path / "study"
    result = run("ablate", "--study", tmp_path / "study.toml", "--out", out, "--jobs", 1)
    assert result.returncode == 0, result.stderr
    status, found = doctor(out)
    assert status == 0 and found["study.h5"] == ("whole", "2 links")
    assert sum(name.endswith("run.h5") for name in found) == 2
    for schema, health in (("1", "whole"), ("9", "damaged"), ("2", "whole")):
        with h5py.File(out / "study.h5", "a") as file:
            file["meta"].attrs["schema"] = f"fp8lab-study-{schema}"
            file["meta"].attrs.pop("checksum", None)
        assert doctor(out)[1]["study.h5"][0] == health, schema
    file = out / "study.h5"
    whole = file.read_bytes()
    with h5py.File(file, "r") as study:
        places = [
            study["arms/recipe"].id.get_chunk_info(0).byte_offset + 3,
            study["arms/last_step"].id.get_chunk_info(0).byte_offset + 3,
            study["axes/0"].id.get_chunk_info(0).byte_offset + 3,
        ]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        assert doctor(out)[1]["study.h5"][0] == "damaged", place
    file.write_bytes(whole)
    next(out.glob("te_current*/run.h5")).unlink()
    status, found = doctor(out)
    assert status == 3 and "ablate" in found["study.h5"][1]


def test_rows_of_other_files_are_not_read(tmp_path: Path) -> None:
    out = tmp_path / "run"
    trained(write_config(tmp_path, stage("cpt")), out)
    whole = (out / "run.h5").read_bytes()
    (tmp_path / "secret").write_bytes(bytes(range(256)))
    for kind in ("storage", "virtual", "external", "soft"):
        (out / "run.h5").write_bytes(whole)
        with h5py.File(out / "run.h5", "a") as file:
            rows = file["metrics/loss"].shape[0]
            del file["metrics/loss"]
            if kind == "storage":
                secret = [(str(tmp_path / "secret"), 0, h5py.h5f.UNLIMITED)]
                file["metrics"].create_dataset("loss", (rows,), "f8", external=secret)
            elif kind == "virtual":
                layout = h5py.VirtualLayout((rows,), "f8")
                layout[:] = h5py.VirtualSource(tmp_path / "secret", "x", (rows,))
                file["metrics"].create_virtual_dataset("loss", layout)
            elif kind == "external":
                file["metrics/loss"] = h5py.ExternalLink(str(tmp_path / "secret"), "/x")
            else:
                file["metrics/loss"] = h5py.SoftLink("/metrics/grad_norm")
        status, found = doctor(out, "--check")
        assert status == 3 and found["run.h5"][0] == "damaged", kind
        assert "another" in found["run.h5"][1], (kind, found)
        report = [sys.executable, "-m", "fp8lab_analysis.report", out, "--out", tmp_path / "page"]
        path = {**os.environ, "PYTHONPATH": f"{ROOT / 'analysis'}:{ROOT / 'src/python'}"}
        result = subprocess.run(report, capture_output=True, text=True, env=path)
        assert result.returncode == 2 and result.stderr.count("\n") == 1, (kind, result.stderr)
        assert "another" in result.stderr and "/metrics/loss" in result.stderr, (kind, result)


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_lock_file_that_is_none_is_refused(tmp_path: Path, kind: str) -> None:
    config = write_config(tmp_path, stage("cpt"))
    out = tmp_path / "run"
    out.mkdir()
    (tmp_path / "mine").write_text("mine")
    lock = out / "run.h5.lock"
    if kind == "link":
        lock.symlink_to(tmp_path / "mine")
    else:
        os.mkfifo(lock)
    refused(train(config, out), "run.h5.lock", "is no regular file")
    assert (tmp_path / "mine").read_text() == "mine" and not (out / "run.h5").exists()


def test_a_limit_of_file_sizes_is_one_line(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("cpt"))
    words = f"ulimit -f 40; exec '{PROGRAM}' train --config '{config}' --out '{tmp_path / 'run'}'"
    result = subprocess.run(["bash", "-c", words], capture_output=True, text=True)
    assert result.returncode == 1, (result.returncode, result.stderr)
    assert result.stderr.count("\n") == 1 and "File too large" in result.stderr, result.stderr


@pytest.mark.parametrize("name", ["run.h5", "checkpoint.safetensors", "study.h5"])
def test_a_fifo_is_no_file(tmp_path: Path, name: str) -> None:
    """Nobody writes into it, and reading would wait for ever."""
    out = tmp_path / "run"
    trained(write_config(tmp_path, stage("cpt", steps=1)), out)
    (out / name).unlink(missing_ok=True)
    os.mkfifo(out / name)
    status, found = doctor(out, "--check")
    assert status == 3 and found[name] == ("damaged", "is no regular file; put a copy back")


def test_what_holds_no_run_is_refused(tmp_path: Path) -> None:
    refused(run("doctor", tmp_path), "neither run.h5 nor study.h5")
    refused(run("doctor", tmp_path / "none"), "no directory")
    refused(run("doctor"), "DIRECTORY is missing; usage: fp8lab doctor DIR")


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q"]))
