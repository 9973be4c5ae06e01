"""Held-out losses by document: what a run keeps of them, and what a report makes of a study's.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from program import SMALL_MODEL, succeeded

RUN = (
    """
name = "base"
recipe = "infir2"
"""
    + SMALL_MODEL
    + """
[logging]
statistics_every_steps = 0
checkpoint_every_steps = 2
"""
    + "".join(
        f"""
[[stages]]
name = "{stage}"
kind = "cpt"
steps = {steps}
batch_sequences = 2
sequence_length = 64
learning_rate.warmup_steps = 0
data.kind = "text"
data.path = "train.txt"
[stages.eval]
every_steps = 1
sequences = 12
data.path = "held_out.txt"
"""
        for stage, steps in (("one", 3), ("two", 2))
    )
)
STUDY = """
base = "run.toml"
[design]
margin = 0.05
[[axis]]
key = "recipe"
values = ["bf16", "infir2"]
[[axis]]
key = "seed"
values = [1, 2]
"""
COLUMNS = ("step", "stage", "in_bf16", "text", "count", "source", "document", "tokens", "nats")


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    (folder / "run.toml").write_text(RUN)
    (folder / "study.toml").write_text(STUDY)
    (folder / "train.txt").write_text("\n\n".join(f"{i} and {i + 1}." * 4 for i in range(300)))
    (folder / "held_out.txt").write_text(
        "\n\n".join(f"What is {i}?" * (1 + i % 5) for i in range(60))
    )
    train(folder, "whole", "--threads", 1)
    return folder


def train(folder: Path, name: str, *words: object) -> None:
    succeeded("train", "--config", "run.toml", "--out", name, *words, cwd=folder)


def documents(path: Path) -> dict[str, Any]:
    with h5py.File(path / "run.h5", "r", libver="latest", swmr=True) as file:
        return {name: file[f"documents/{name}"][:] for name in COLUMNS}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in COLUMNS)


def test_they_are_kept_at_the_end_of_each_stage_and_make_up_its_loss(folder: Path) -> None:
    found = documents(folder / "whole")
    keys = dict.fromkeys(zip(*(found[name].tolist() for name in COLUMNS[:3])))
    assert list(keys) == [(3, 0, 0), (3, 0, 1), (5, 1, 0), (5, 1, 1)]
    with h5py.File(folder / "whole/run.h5") as file:
        losses = dict(zip(file["eval/step"][:].tolist(), file["eval/loss"][:].tolist()))
        scores = list(zip(file["scores/step"][:], file["scores/name"][:], file["scores/count"][:]))
        in_bf16 = dict(
            (step, value)
            for step, name, value in zip(
                file["scores/step"][:], file["scores/name"][:], file["scores/value"][:]
            )
            if name == b"loss_in_bf16"
        )
    assert sorted(losses) == [1, 2, 3, 4, 5]
    for step, stage, bf16 in keys:
        rows = (found["step"] == step) & (found["in_bf16"] == bf16)
        assert set(found["count"][rows]) == {rows.sum()} and rows.sum() > 10
        tokens, nats = found["tokens"][rows].sum(), found["nats"][rows].sum()
        assert tokens == next(n for s, name, n in scores if s == step and b"loss/" in name)
        said = in_bf16[step] if bf16 else losses[step]
        # FP32 trees of 128 tokens, six of them added in turn.
        assert nats / tokens == pytest.approx(said, rel=14 * 2.0**-24)
        assert len(set(zip(found["source"][rows], found["document"][rows]))) == rows.sum()
    assert len(set(found["text"])) == 1


def test_another_number_of_threads_makes_the_same_bits(folder: Path) -> None:
    train(folder, "threads", "--threads", 2)
    assert same(documents(folder / "threads"), documents(folder / "whole"))


def test_a_resumed_run_has_them_once(folder: Path) -> None:
    """An evaluation in bf16 of which a kill left a part, and no score, is made again; what is of no
    use stays, and no reader takes it (tests/python/test_text_noise.py)."""
    with h5py.File(folder / "whole/run.h5") as file:
        rows = file["documents/step"].shape[0]
    shutil.copytree(folder / "whole", folder / "again")
    with h5py.File(folder / "again/run.h5", "a") as file:
        file["complete"].resize(0, axis=0)
        last = np.flatnonzero(file["documents/in_bf16"][:] == 1)[-1]
        assert last == rows - 1
        for name in COLUMNS:
            file[f"documents/{name}"].resize(rows - 3, axis=0)
        for name in file["scores"]:
            column = file[f"scores/{name}"]
            column.resize(column.shape[0] - 1, axis=0)
    train(folder, "again", "--resume", "--threads", 1)
    succeeded("doctor", "again", "--check", cwd=folder)
    whole, again = documents(folder / "whole"), documents(folder / "again")
    count = int(whole["count"][-1])
    kept = {
        name: np.concatenate([again[name][: rows - count], again[name][-count:]]) for name in again
    }
    assert same(kept, whole) and again["step"].size == rows + count - 3


def judged(folder: Path, name: str) -> dict[str, str]:
    with (folder / name / "tables/verdicts.csv").open(encoding="utf-8") as file:
        return next(row for row in csv.DictReader(file) if row["recipe"] == "infir2")


def test_a_study_shows_both_levels_and_one_of_before_says_that_it_cannot(folder: Path) -> None:
    succeeded("ablate", "--study", "study.toml", "--out", "study", "--threads", 1, cwd=folder)
    succeeded("report", "study", "--out", "page", cwd=folder)
    row = judged(folder, "page")
    assert float(row["± over seeds (%)"]) > 0.0 and int(row["documents"]) > 10
    sums = {}
    for recipe in ("bf16", "infir2"):
        for seed in (1, 2):
            (path,) = (folder / "study").glob(f"*{recipe}*{seed}*/run.h5")
            rows = documents(path.parent)
            last = (rows["step"] == 5) & (rows["in_bf16"] == 0)
            sums[recipe, seed] = rows["nats"][last]
    gaps = []
    for seed in (1, 2):
        ours, theirs = sums["infir2", seed], sums["bf16", seed]
        gaps.append(
            [
                (np.delete(ours, d).sum() / np.delete(theirs, d).sum()) - 1.0
                for d in range(ours.size)
            ]
        )
    means = np.mean(gaps, axis=0)
    count = means.size
    error = float(np.sqrt(np.sum((means - means.mean()) ** 2) * (count - 1) / count))
    ratio = float(row["± over documents (%)"]) / (100.0 * error)
    assert 1.96 < ratio < 2.6, "the quantile of t of the level"
    assert float(row["± over both (%)"]) >= float(row["± over documents (%)"])
    assert "± over documents" in (folder / "page/index.html").read_text(encoding="utf-8")

    for path in (folder / "study").glob("*/run.h5"):
        with h5py.File(path, "a") as file:
            del file["documents"]
        succeeded("doctor", path.parent, "--check", cwd=folder)
    succeeded("report", "study", "--out", "before", cwd=folder)
    before = judged(folder, "before")
    assert before["± over documents (%)"] == "" and before["in words"] in row["in words"] + ";"
    page = (folder / "before/index.html").read_text(encoding="utf-8")
    assert "not known: run files without losses by document" in page
