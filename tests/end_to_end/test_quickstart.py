"""The default study shows what its comment says, on one of its seeds, and stays small."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import h5py
import numpy as np
from program import PROGRAM

STUDY = Path(__file__).resolve().parents[2] / "experiments/studies/quickstart.toml"


def train(out: Path, *runs: str) -> None:
    for run in runs:
        words = [PROGRAM, "ablate", "--study", STUDY, "--out", out, "--run", run]
        subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=600)


def test_a_slow_break_comes_after_its_warning(tmp_path: Path) -> None:
    names = ("bf16-seed1", "switchback_int8-seed1", "te_current-seed1")
    train(tmp_path, "shared-seed1", *names)
    held_out, losses, warned = {}, {}, {}
    for name in names:
        with h5py.File(tmp_path / name / "run.h5", "r") as run:
            recipe = name.split("-")[0]
            held_out[recipe] = dict(zip(run["eval/step"][:].tolist(), run["eval/loss"][:]))
            losses[recipe] = run["metrics/loss"][:]
            events = zip(run["events/kind"][:], run["events/message"][:], run["events/step"][:])
            warned[recipe] = min(
                int(step)
                for kind, text, step in events
                if kind == b"early_warning" and text.startswith(b"outlier_channels")
            )
    before, end_of_cpt, end = 12, 36, 52
    gap = {
        (recipe, step): held_out[recipe][step] / held_out["bf16"][step] - 1
        for recipe in ("switchback_int8", "te_current")
        for step in (before, end_of_cpt, end)
    }
    assert all(abs(gap["te_current", step]) < 0.05 for step in (before, end_of_cpt, end)), gap
    assert abs(gap["switchback_int8", before]) < 0.05, gap
    assert gap["switchback_int8", end_of_cpt] > 0.5 and gap["switchback_int8", end] > 0.05, gap
    breaks = np.flatnonzero(losses["switchback_int8"] > 1.2 * losses["bf16"])[0] + 1
    assert all(14 < step <= breaks - 3 for step in warned.values()), (warned, breaks)


def test_it_trains_on_few_tokens() -> None:
    study = tomllib.loads(STUDY.read_text())
    tokens = {
        name: stage["steps"] * stage["batch_sequences"] * stage["sequence_length"]
        for name, stage in study["set"]["stages"].items()
    }
    seeds = next(len(axis["values"]) for axis in study["axis"] if axis["key"] == "seed")
    arms = len(study["arm"]) + np.prod([len(axis["values"]) for axis in study["axis"]])
    assert set(tokens) == {"pretrain", "cpt", "sft"} and seeds == 3
    assert seeds * tokens["pretrain"] + arms * (tokens["cpt"] + tokens["sft"]) <= 180_000
