"""What a step keeps, and what it computes again instead: the same runs, and what does not fit."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from program import PROGRAM, SMALL_MODEL, refused, run, stopped, succeeded

CONFIG = (
    """
name = "memory"
seed = 3
"""
    + SMALL_MODEL.replace("num_hidden_layers = 1", "num_hidden_layers = 3")
    + """
[logging]
statistics_every_steps = 2
checkpoint_every_steps = 2
[warnings]
gradient_norm = 1.0
[[stages]]
name = "cpt"
kind = "cpt"
steps = 5
batch_sequences = 4
micro_batch_sequences = 2
sequence_length = 64
data = {kind = "arithmetic", problems = 100}
learning_rate = {kind = "constant", peak = 3e-3, warmup_steps = 0}
stress = [{kind = "spike", at_step = 3}]
eval = {every_steps = 2, sequences = 2}
[[stages]]
name = "sft"
kind = "sft"
steps = 2
batch_sequences = 2
sequence_length = 128
data = {kind = "arithmetic", form = "prompt_response", problems = 100}
eval = {every_steps = 2, sequences = 2}
"""
)
LEVELS = ("gate_up", "feed_forward", "layer")
SAME = "memory.recompute=layer", "memory.weight_codes=remake"


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "run.toml").write_text(CONFIG)
    return folder


def words(recipe: str, *settings: str) -> list[str]:
    chosen = [word for setting in settings for word in ("--set", setting)]
    return ["--config", "run.toml", "--recipe", recipe, *chosen]


def trained(folder: Path, name: str, recipe: str, *settings: str) -> Path:
    """A run, made once."""
    if not (folder / name).exists():
        succeeded("train", *words(recipe, *settings), "--out", name, cwd=folder)
    return folder / name


def numbers(out: Path) -> dict[str, bytes]:
    """All datasets of the run file that are not about time."""
    found: dict[str, bytes] = {}

    def take(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and "seconds" not in name and "checkpoints" not in name:
            found[name] = np.asarray(item[()]).tobytes()

    with h5py.File(out / "run.h5", "r", libver="latest", swmr=True) as file:
        for name in ("metrics", "eval", "tensors", "hashes", "warnings", "scores"):
            if name in file:
                file[name].visititems(lambda key, item, name=name: take(f"{name}/{key}", item))
    assert len(found) > 20
    return found


def hash_of(out: Path) -> str:
    with h5py.File(out / "run.h5", "r", libver="latest", swmr=True) as file:
        names = [str(name, "utf-8") for name in file["meta"].attrs["identity_names"]]
        return str(file["meta"].attrs["identity_hashes"][names.index("configuration")])


@pytest.mark.parametrize(
    "recipe", ["bf16", "infir2", "te_delayed", "nvfp4", "halo1_fp8", "quartet"]
)
def test_runs_are_the_same(folder: Path, recipe: str) -> None:
    kept = trained(folder, f"{recipe}-kept", recipe)
    expected = numbers(kept)
    for level in LEVELS:
        out = trained(folder, f"{recipe}-{level}", recipe, f"memory.recompute={level}")
        assert numbers(out) == expected, level
    remade = trained(folder, f"{recipe}-remade", recipe, *SAME)
    assert numbers(remade) == expected
    assert hash_of(remade) == hash_of(kept)


def test_exact_sources_are_the_same(folder: Path) -> None:
    exact = 'exact=["underflow", "dgrad"]'
    kept = trained(folder, "exact-kept", "infir2", exact)
    remade = trained(folder, "exact-remade", "infir2", exact, *SAME)
    assert numbers(remade) == numbers(kept)
    assert numbers(kept) != numbers(trained(folder, "infir2-kept", "infir2"))


def test_an_interrupted_run_goes_on_with_other_choices(folder: Path) -> None:
    expected = numbers(trained(folder, "te_delayed-kept", "te_delayed"))
    half = folder / "half"
    stopped("train", "--config", folder / "run.toml", "--recipe", "te_delayed", "--out", half)
    succeeded("train", *words("te_delayed", *SAME), "--out", "half", "--resume", cwd=folder)
    assert numbers(half) == expected
    chunks = words("te_delayed", "memory.loss_chunk=32")
    other = refused("train", *chunks, "--out", "half", "--resume", cwd=folder)
    assert "memory.loss_chunk: 0 -> 32" in other and "recompute" not in other


def test_runs_of_other_choices_compare(folder: Path) -> None:
    trained(folder, "infir2-kept", "infir2")
    trained(folder, "infir2-remade", "infir2", *SAME)
    assert "7 steps that both have: same bits" in succeeded(
        "compare", "infir2-kept", "infir2-remade", cwd=folder
    )
    trained(folder, "rate", "infir2", *SAME, "stages.sft.learning_rate.peak=2e-3")
    result = run("compare", "infir2-kept", "rate", cwd=folder)
    assert result.returncode == 3, result.stderr
    assert "first difference: step 6, micro-batch 0, load, upload: step scalars" in result.stdout
    assert "7 steps, same bits" in succeeded("verify", "infir2-remade", cwd=folder)


def test_chunks_of_the_loss(folder: Path) -> None:
    whole = trained(folder, "bf16-kept", "bf16")
    chunked = trained(folder, "bf16-chunked", "bf16", "memory.loss_chunk=32")
    assert hash_of(chunked) != hash_of(whole)
    own, other = numbers(whole), numbers(chunked)
    losses = [np.frombuffer(found["metrics/loss"], "<f8") for found in (own, other)]
    assert losses[0][0] == losses[1][0] and np.allclose(*losses, rtol=1e-3)
    assert own["hashes/weights"] != other["hashes/weights"]
    again = trained(folder, "bf16-chunked-layer", "bf16", "memory.loss_chunk=32", *SAME)
    assert numbers(again) == other
    texts = [
        succeeded("eval", out, "--json", cwd=folder)
        for out in ("bf16-chunked", "bf16-chunked-layer")
    ]
    evaluated, same = (json.loads(text) | {"source": ""} for text in texts)
    assert evaluated == same and evaluated["source"] == ""
    assert succeeded(
        "generate", "bf16-chunked", "--prompt", "1 + 1", "--max-new-tokens", 2, cwd=folder
    )


def test_what_is_refused(folder: Path) -> None:
    def message(*settings: str) -> str:
        return refused("train", *words("bf16", *settings), "--dry-run", cwd=folder)

    assert "48 does not divide the 128 tokens of a micro-batch of stage cpt" in message(
        "memory.loss_chunk=48"
    )
    assert "at most 4096" in message("memory.loss_chunk=1", "stages.cpt.batch_sequences=8192")
    assert "optimizer.gradients" in message(
        "memory.loss_chunk=32",
        "optimizer.gradients=bf16",
        "model.tie_word_embeddings=false",
        "stages.cpt.micro_batch_sequences=4",
    )
    assert "none, gate_up, feed_forward, layer" in message("memory.recompute=all")


def test_what_does_not_fit_names_what_would(folder: Path) -> None:
    settings = (
        "model.vocab_size=60000",
        "stages.cpt.micro_batch_sequences=4096",
        "stages.cpt.batch_sequences=4096",
    )
    four_gib = 'ulimit -v 4194304; exec "$0" "$@"'
    command = ["sh", "-c", four_gib, PROGRAM, "train", *words("infir2", *settings)]
    command += ["--threads", "1"]
    result = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    planned = subprocess.run(
        [*command, "--dry-run"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert planned.returncode == result.returncode, planned.stderr
    *plan, why, last = planned.stdout.splitlines()
    assert any(line.startswith("time of the run about") for line in plan), "the plan itself"
    assert why == "this plan is for a machine with more memory than this one"
    start = "train would be refused here (status 2, as of this --dry-run): "
    assert last == start + result.stderr.strip()[8:]
    assert result.returncode == 2, result.stderr
    assert "stage cpt: steps of 4096 x 64 tokens, 4096 x 64 at once" in result.stderr
    assert "this machine has 4 GiB; it fits with " in result.stderr
    ways = result.stderr.split("; it fits with ")[1].split(", or ")
    assert len(ways) == 2 and all("% more work, other bits)" in way for way in ways)
    micro_batch, chunk = (way.split(" (")[0] for way in sorted(ways, reverse=True))
    assert micro_batch == "stages.cpt.micro_batch_sequences=512"
    assert chunk == "memory.loss_chunk=128"
    assert not (folder / "runs").exists()


def test_memory_that_runs_out_is_said_wherever_it_does(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(CONFIG)
    words = ["train", "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]
    # Heaps of threads, and what malloc keeps of what was freed, would hide most allocations.
    heap = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "100000"}

    def train_in(space: int) -> subprocess.CompletedProcess[str]:
        """In `space` MiB of addresses."""
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        limit = (space << 20, space << 20)
        return subprocess.run(
            [PROGRAM, *words, "--threads", "2"],
            capture_output=True,
            text=True,
            env={**os.environ, **heap},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
            timeout=120,
        )

    below, enough = 32, 4096
    assert train_in(enough).returncode == 0
    while enough - below > 1:
        middle = (below + enough) // 2
        below, enough = (below, middle) if train_in(middle).returncode == 0 else (middle, enough)
    said = []
    for space in range(enough - 1, enough - 11, -1):
        ended = train_in(space)
        if ended.returncode == 0:  # how much is needed depends on when threads run
            continue
        assert ended.returncode == 1, f"{space} MiB: {ended.returncode} {ended.stderr}"
        said.append(ended.stderr)
    assert len(said) >= 5
    assert any("out of memory" in text or "no memory for" in text for text in said)


def test_threads_that_cannot_start_are_refused_in_one_line(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 128), np.float32))
    words = [PROGRAM, "quantize", str(tmp_path / "x.npy"), "--spec", "e4m3fn", "--threads", "4"]

    def run_in(space: int) -> subprocess.CompletedProcess[str]:
        """In `space` KiB of addresses."""
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (space << 10, space << 10)),
            timeout=120,
        )

    below, enough = 16 << 10, 1 << 20
    assert run_in(enough).returncode == 0
    while enough - below > 256:
        middle = (below + enough) // 2
        below, enough = (below, middle) if run_in(middle).returncode == 0 else (middle, enough)
    said = []
    for space in range(enough - 256, enough - (20 << 10), -1024):  # the stacks of two threads
        ended = run_in(space)
        assert ended.returncode == 1, f"{space} KiB: {ended.returncode} {ended.stderr}"
        assert ended.stderr.startswith("fp8lab: ") and ended.stderr.count("\n") == 1, ended.stderr
        said.append(ended.stderr)
    assert any("cannot start 4 threads: " in text for text in said)
