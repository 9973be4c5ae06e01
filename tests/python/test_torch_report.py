"""Run files of PyTorch and the commands that read runs: `report` judges them, the others say what
they miss.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("h5py", reason="h5py is not installed")

from torch_llama import batch, llama  # noqa: E402

import fp8lab.torch  # noqa: E402

pytestmark = pytest.mark.skipif(
    "FP8LAB_PROGRAM" not in os.environ, reason="FP8LAB_PROGRAM names no program"
)
STEPS, SEEDS = 30, (1, 2)


def program(*words: object) -> subprocess.CompletedProcess[str]:
    command = [os.environ["FP8LAB_PROGRAM"], *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def train(folder: Path, recipe: str, seed: int) -> None:
    model = fp8lab.torch.convert(llama(seed), recipe, seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    path = folder / f"{recipe}-seed{seed}" / "run.h5"
    with fp8lab.torch.RunFile(model, path, steps=STEPS) as file:
        for step in range(STEPS):
            tokens = batch(seed, step)
            loss = model(input_ids=tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            file.step(loss, tokens=tokens.numel())
            fp8lab.torch.end_step(model)


@pytest.fixture(name="runs", scope="module")
def fixture_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds each of bf16 and infir2, as the README writes them: without gradient norms."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    for recipe in ("bf16", "infir2"):
        for seed in SEEDS:
            train(folder, recipe, seed)
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_report_judges_the_arm(runs: Path, tmp_path: Path) -> None:
    done = program("report", runs, "--out", tmp_path / "page")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    tables = tmp_path / "page/tables"
    assert {row["state"] for row in rows(tables / "runs.csv")} == {"complete"}
    (verdict,) = rows(tables / "verdicts.csv")
    assert (verdict["recipe"], verdict["seeds"]) == ("infir2", "2")
    assert verdict["loss"] == "training, train"
    assert verdict["verdict"] and "diverged" not in verdict["verdict"]
    losses = {
        (recipe, seed): fp8lab.read_run(runs / f"{recipe}-seed{seed}").metrics["loss"][-10:].mean()
        for recipe in ("bf16", "infir2")
        for seed in SEEDS
    }
    gaps = [100 * (losses["infir2", s] / losses["bf16", s] - 1) for s in SEEDS]
    assert float(verdict["gap (%)"]) == pytest.approx(np.mean(gaps), abs=0.02)
    operands = {row["slot"]: row for row in rows(tables / "operands.csv")}
    assert len(operands) == 6
    for slot, row in operands.items():
        assert row["recipe"] == "infir2"
        assert float(row["mean SQNR (dB)"]) == pytest.approx(sqnr(runs, slot), abs=1e-6)
    page = (tmp_path / "page/index.html").read_text()
    text = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", page, flags=re.DOTALL)
    assert verdict["in words"].split(";")[0] in text
    assert not re.search(r"damaged|cannot be read|stopped being finite|NaN", text)
    whole = program("doctor", runs)
    assert (
        whole.returncode == 0
        and whole.stdout.count("complete") == len(whole.stdout.split("\n")[:-1]) == 4
    )


def sqnr(runs: Path, slot: str) -> float:
    """Mean over layers, logged steps and seeds."""
    values = []
    for seed in SEEDS:
        folder = runs / f"infir2-seed{seed}"
        columns = [name == slot for name in fp8lab.read_run(folder).tensors["slot"]]
        values.append(fp8lab.read_statistic(folder, "sqnr_db")[:, columns])
    found = float(np.mean(values))
    assert 25 < found < 40
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("whatif", "RUN", "--recipe", "nvfp4"),
        ("whatif", "RUN", "--tensors"),
        ("whatif", "RUN", "--accumulator", "sm89_mma_fp8"),
        ("attribute", "RUN", "--recipe", "nvfp4"),
        ("eval", "RUN"),
        ("generate", "RUN", "--prompt", "x"),
        ("certify", "RUN"),
        ("export", "RUN", "OUT"),
        ("verify", "RUN"),
        ("compare", "RUN", "OTHER"),
    ],
)
def test_what_needs_a_checkpoint_or_configuration_says_so(
    runs: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    places = {"RUN": runs / "infir2-seed1", "OTHER": runs / "infir2-seed2", "OUT": tmp_path / "out"}
    done = program(*(places.get(word, word) for word in words))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and str(places["RUN"]) in done.stderr
    needs_configuration = words[0] in ("verify", "compare")
    missing = (
        "another program wrote it (fp8lab.torch)"
        if needs_configuration
        else "checkpoint.safetensors"
    )
    assert missing in done.stderr and "accepted:" in done.stderr
    assert not (tmp_path / "out").exists()
