"""Runs that watch themselves: what detectors and events say of planted trouble, and that it
changes no bit of the training.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from program import PROGRAM, run

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "analysis"))

from fp8lab_analysis.judge import stats  # noqa: E402
from fp8lab_analysis.judge.divergence import find_divergence  # noqa: E402
from fp8lab_analysis.read.run_reader import load_run  # noqa: E402
from fp8lab_analysis.read.runs import Run  # noqa: E402

STAGE = """
[[stages]]
name = "{name}"
kind = "cpt"
steps = {steps}
batch_sequences = 2
micro_batch_sequences = 1
sequence_length = 96
[stages.learning_rate]
kind = "wsd"
peak = 1e-3
final = 1e-4
warmup_steps = 5
"""
CONFIG = """
name = "watched"
recipe = "bf16"
seed = 3
[model]
hidden_size = 128
intermediate_size = 256
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 64
vocab_size = 272
[logging]
statistics_every_steps = 2
checkpoint_every_steps = 7
print_every_seconds = 0
"""
# FP8 as it comes: no scale, and what lies beyond the range becomes infinite.
RANGELESS = """
name = "rangeless"
summary = "E5M2 without scales"
[slots.default]
format = "e5m2"
scale_source = "none"
rounding = "nearest"
overflow = "special"
[gemm]
accumulator = "sm90_wgmma_fp8"
schedule = "promote:128"
output = "bf16"
[gemm.wgrad]
output = "fp32"
[keep_high_precision]
modules = ["lm_head", "embed", "norm", "attention.core"]
"""
OUTLIERS = ("--set", 'stages.two.stress=[{kind="outlier_channels", channels=2, gain=4096.0}]')
# Gradients that grow a little are spikes.
TOUCHY = ("--set", "warnings.gradient_norm=1.5")
ALONE = ("--set", "warnings.enabled=false")
# Other operands to watch, from steps 13, 41 and 64 on.
CHANGES = (
    "--set",
    'stages.one.recipe_at=[{step=12, recipe="infir2"}, {step=40, recipe="te_delayed"}]',
    "--set",
    'stages.two.fallback={recipe="te_current", when={gradient_norm=0.001, window=2}}',
)
# Two problems by heart, and then, among them, what was never seen.
BY_HEART = """
[[stages]]
name = "one"
kind = "cpt"
steps = 60
batch_sequences = 2
micro_batch_sequences = 1
sequence_length = 48
learning_rate = {{kind = "constant", peak = 3e-3, final = 3e-3, warmup_steps = 5}}
data = {{families = ["sum"], problems = 2}}
[[stages]]
name = "two"
kind = "cpt"
steps = 40
batch_sequences = 2
micro_batch_sequences = 1
sequence_length = 48
learning_rate = {{kind = "constant", peak = 1e-5, final = 1e-5, warmup_steps = 0}}
[stages.data]
form = "running_text"
[[stages.data.sources]]
kind = "arithmetic"
families = ["sum"]
problems = 2
weight = 0.98
[[stages.data.sources]]
kind = "text"
path = "{strange}"
weight = 0.02
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("config")
    (folder / "rangeless.toml").write_text(RANGELESS)
    path = folder / "run.toml"
    stages = STAGE.format(name="one", steps=24) + STAGE.format(name="two", steps=12)
    path.write_text(CONFIG + stages)
    return path


@pytest.fixture(scope="module")
def surprised(config: Path) -> Path:
    """A run whose loss spikes."""
    strange = config.parent / "strange.txt"
    strange.write_text("\n\n".join("QXZ#J%KV@WY!" * n for n in (3, 4, 5, 4, 3)))
    path = config.parent / "surprised.toml"
    path.write_text(CONFIG + BY_HEART.format(strange=strange))
    return path


def train(config: Path, out: Path, *more: object) -> Run:
    result = run("train", "--config", config, "--out", out, *more)
    found = load_run(out / "run.h5")
    # Complete; the status is that of the definition which reports have.
    diverged = any(find_divergence(found, stage) for stage in found.stage_names)
    assert result.returncode == (5 if diverged else 0), result.stderr
    assert ("\ncomplete, but diverged: " if diverged else "\ncomplete: ") in result.stdout
    return found


def kinds(found: Run, kind: str) -> list[Any]:
    return [event for event in found.events if event.kind == kind]


def bits(out: Path) -> dict[str, Any]:
    """All that training leaves in the file."""
    with h5py.File(out / "run.h5", "r", libver="latest", swmr=True) as file:
        rows = {f"metrics/{name}": file["metrics"][name][:] for name in ("loss", "grad_norm")}
        rows["weights"] = file["hashes/weights"][:]
        rows["operands"] = file["tensors/hash"][:]
        rows["amax"] = file["tensors/amax"][:]
        rows["complete"] = file["complete"][:]
    return rows


def test_a_quiet_run_warns_of_nothing(config: Path, tmp_path: Path) -> None:
    for recipe in ("bf16", "te_delayed"):
        found = train(config, tmp_path / recipe, "--set", f"recipe={recipe}")
        assert not kinds(found, "early_warning") and not kinds(found, "nan")
        assert not any(score.warns for score in found.warnings)
        # A row a logged step of each detector that has something to say there.
        logged = found.tensors.step.tolist()
        assert logged == [*range(1, 24, 2), *range(25, 36, 2)]
        rows: dict[str, list[int]] = {}
        for score in found.warnings:
            rows.setdefault(score.detector, []).append(score.step)
        assert rows["swiglu_alignment"] == logged
        # What grows needs four values before; windows of activations go on in the second stage.
        assert rows["outlier_channels"] == rows["kurtosis"] == logged[4:]
        assert rows["gradient_norm"] == [*range(5, 24, 2), *range(29, 36, 2)]
        if recipe == "bf16":
            assert "scale_drift" not in rows and "amax_lag" not in rows
        else:
            assert rows["amax_lag"] == [step for step in logged if step != 1]
            assert rows["scale_drift"][0] > 7 and 27 not in rows["scale_drift"]
        for score in found.warnings:
            assert bool(score.place) == (score.detector != "gradient_norm")


def test_planted_outliers_are_found_where_they_are(config: Path, tmp_path: Path) -> None:
    found = train(config, tmp_path / "run", "--set", "recipe=te_delayed", *OUTLIERS)
    warned = {event.message.split(":")[0]: event for event in kinds(found, "early_warning")}
    assert {"outlier_channels", "kurtosis", "amax_lag"} <= set(warned)
    for name in ("outlier_channels", "amax_lag"):
        assert warned[name].step == 25  # the first step after they were planted
        first = next(s for s in found.warnings if s.detector == name and s.warns)
        assert first.step == 25 and first.place.endswith("/fprop.x") and first.count >= 4
        assert f"most in {first.place}, channel {first.channel}" in warned[name].message
        row = found.tensors.step.tolist().index(25)
        column = found.tensors.layer.index(first.place.split("/")[0])
        assert found.tensors.slot[column] == "fprop.x"
        assert found.tensors.get("top_channel")[row, column, 0] == first.channel
    # One event a stage, however long it warns.
    assert len(warned) == len(kinds(found, "early_warning"))


def test_thresholds_are_those_of_the_configuration(config: Path, tmp_path: Path) -> None:
    low = train(config, tmp_path / "low", "--set", "warnings.kurtosis=0.5")
    usual = train(config, tmp_path / "usual")
    assert [e.message.split(":")[0] for e in kinds(low, "early_warning")] == ["kurtosis"] * 2
    ours = [s.score for s in low.warnings if s.detector == "kurtosis"]
    theirs = [s.score for s in usual.warnings if s.detector == "kurtosis"]
    assert ours == pytest.approx([24.0 * score for score in theirs])
    assert low.meta["config_hash"] != usual.meta["config_hash"]


def test_what_is_not_finite_is_named_with_operand_and_element(config: Path, tmp_path: Path) -> None:
    planted = 'stages.two.stress=[{kind="outlier_channels", channels=2, gain=65536.0}]'
    rangeless = config.parent / "rangeless.toml"
    arguments = ("--set", f"recipe={rangeless}", "--set", planted)
    result = run("train", "--config", config, "--out", tmp_path / "run", *arguments)
    assert result.returncode == 1 and "step 25" in result.stderr
    found = load_run(tmp_path / "run" / "run.h5")
    (event,) = kinds(found, "nan")
    assert event.step == 25
    # x of the first layer is finite, and is not once it is cast.
    assert event.message.startswith("layers.0.attention.qkv/fprop.x (forward, micro-batch 0): ")
    assert "not finite after the cast" in event.message
    assert "without a scale in e5m2/overflow:special" in event.message
    channel = int(event.message.split(", k ")[1].split(":")[0])
    quiet = train(config, tmp_path / "bf16", *OUTLIERS)
    row, column = quiet.tensors.step.tolist().index(25), 0
    assert (quiet.tensors.layer[column], quiet.tensors.slot[column]) == (
        "layers.0.attention.qkv",
        "fprop.x",
    )
    # The same channels as in a run that survives them.
    assert channel in quiet.tensors.get("top_channel")[row, column, :2]
    with h5py.File(tmp_path / "run" / "run.h5", "r", libver="latest", swmr=True) as file:
        assert file["samples/name"][:].tolist() == [b"layers.0.attention.qkv/fprop.x"]
        assert not np.isfinite(file["samples/values"][:]).all()


def test_only_the_first_of_broken_steps_is_executed_again(config: Path, tmp_path: Path) -> None:
    rangeless = config.parent / "rangeless.toml"
    broken = ["--set", f"recipe={rangeless}", "--set", "logging.nonfinite=keep_going", "--set"]
    broken += ['stages.two.stress=[{kind="outlier_channels", channels=2, gain=65536.0}]']
    found = train(config, tmp_path / "run", *broken)
    events = kinds(found, "nan")
    assert [event.step for event in events] == list(range(25, 37))
    again = run("train", "--config", config, "--out", tmp_path / "run", "--resume", *broken)
    assert again.returncode == 5 and "diverged: two: the loss is nan at step 25" in again.stdout
    assert [event.message.startswith("gradient of") for event in events] == [False] + [True] * 11


def test_spikes_are_those_of_the_analysis_and_name_an_operand(
    surprised: Path, tmp_path: Path
) -> None:
    found = train(surprised, tmp_path / "run")
    starts = []
    for stage in found.stage_names:
        rows = found.stage_rows(stage)
        steps, loss = found.metrics.step[rows], found.metrics.loss[rows]
        starts += [int(steps[row]) for row in stats.spike_rows(loss)]
    spikes = [event for event in kinds(found, "spike") if event.message.startswith("loss ")]
    assert starts and [event.step for event in spikes] == starts
    for event in spikes:
        assert "a spike from" in event.message and "times its usual one; row" in event.message


def test_the_terminal_tells_what_the_file_holds(surprised: Path, tmp_path: Path) -> None:
    """Events as they are in the file, held-out losses as they are measured, and how it ended."""
    steep = "stages.two.learning_rate={kind='constant', peak=0.3, final=0.3, warmup_steps=0}"
    every = ("--set", "stages.*.eval={every_steps=20, sequences=1, data={kind='arithmetic'}}")
    out = tmp_path / "a run"
    result = run(
        *("train", "--config", surprised, "--out", out),
        *("--set", steep, "--set", "recipe=te_delayed", *every),
    )
    found, lines = load_run(out / "run.h5"), result.stdout.splitlines()
    assert found.events and {event.kind for event in found.events} & {"spike", "early_warning"}
    for event in found.events:
        assert any(
            line.startswith(f"step {event.step} {event.kind}: {event.message}") for line in lines
        )
    told = [line for line in lines if " held-out loss " in line]
    held = [line for line in told if " of the weights in bf16 " not in line]
    assert len(told) - len(held) == 2  # once a stage
    assert len(held) == found.evaluations.step.size == 5
    for step, loss, line in zip(found.evaluations.step, found.evaluations.loss, held):
        assert line.startswith(f"step {step} ") and float(line.split()[5]) == pytest.approx(
            loss, rel=1e-4
        )
    # Steps so large that what was learned by heart is lost.
    loss = found.metrics.loss[found.stage_rows("two")]
    assert stats.has_diverged(loss) and result.returncode == 5
    row = stats.divergence_row(loss)
    step = int(found.metrics.step[found.stage_rows("two")][row])
    complete = lines.index(f"complete, but diverged: {out}/run.h5")
    assert lines[complete + 1].startswith("held-out loss: one ")
    assert lines[complete + 2].startswith("diverged: two: the smoothed loss ends at ")
    assert lines[complete + 2].endswith(f"; from step {step} on")
    count = len(kinds(found, "early_warning"))
    assert not count or f"{count} early_warning" in lines[complete + 3]
    assert lines[complete + 4].startswith("try: bf16, which shows whether the recipe is at fault: ")
    (following,) = [line for line in lines[complete + 5 :] if line.startswith("next: ")]
    assert following.startswith(f"next: fp8lab report '{out}'/run.h5 | fp8lab eval ")


@pytest.mark.parametrize("recipe", ["bf16", "te_delayed", "infir2"])
def test_watching_changes_no_bit(surprised: Path, tmp_path: Path, recipe: str) -> None:
    """Steps that are executed twice, of two micro-batches, among them."""
    chosen = ("--set", f"recipe={recipe}", *TOUCHY)
    watched = train(surprised, tmp_path / "watched", *chosen)
    twice = {event.step for event in kinds(watched, "spike")}
    assert len(twice) > 3 and twice & set(watched.tensors.step.tolist())
    alone = train(surprised, tmp_path / "alone", "--set", f"recipe={recipe}", *ALONE)
    assert alone.warnings == [] and not kinds(alone, "spike")
    ours, theirs = bits(tmp_path / "watched"), bits(tmp_path / "alone")
    for name, values in ours.items():
        assert np.array_equal(values, theirs[name], equal_nan=True), name


@pytest.mark.parametrize(
    "step, recipes", [(3, ()), (17, ()), (65, ()), (17, CHANGES), (45, CHANGES), (65, CHANGES)]
)
def test_an_interrupted_run_goes_on_with_the_same_scores(
    surprised: Path, tmp_path: Path, step: int, recipes: tuple[str, ...]
) -> None:
    chosen = ("--set", "recipe=te_delayed", *TOUCHY, *OUTLIERS, *recipes)
    whole = train(surprised, tmp_path / "whole", *chosen)
    assert kinds(whole, "early_warning") and kinds(whole, "spike")
    out = tmp_path / "parts"
    words = ["train", "--config", surprised, "--out", out, *chosen]
    with subprocess.Popen(
        [PROGRAM, *map(str, words)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(f"step {step}/"):
                process.send_signal(signal.SIGTERM)
                break
        process.stdout.read()
    assert process.returncode == 4
    parts = train(surprised, out, "--resume", *chosen)
    assert kinds(parts, "resume") and parts.warnings == whole.warnings
    assert [e for e in parts.events if e.kind != "resume"] == whole.events
    assert np.array_equal(bits(out)["weights"], bits(tmp_path / "whole")["weights"])


def test_a_run_without_statistics_watches_its_gradients(surprised: Path, tmp_path: Path) -> None:
    without = ("--set", "logging.statistics_every_steps=0")
    found = train(surprised, tmp_path / "run", *TOUCHY, *without)
    spikes = kinds(found, "spike")
    assert spikes and all("row" not in event.message for event in spikes)
    assert {score.detector for score in found.warnings} == {"gradient_norm"}
    assert len(found.warnings) == len(kinds(found, "early_warning"))
