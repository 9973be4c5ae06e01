"""Stresses of a stage, through the program: logged, resumed, compared, and who sees a spike."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from program import SMALL_MODEL, refused, run, stopped, succeeded

STEPS = 8
CONFIG = (
    """
name = "stressed"
recipe = "bf16"
"""
    + SMALL_MODEL
    + """[logging]
statistics_every_steps = 1
checkpoint_every_steps = 2
[[stages]]
name = "cpt"
kind = "cpt"
steps = 8
batch_sequences = 2
micro_batch_sequences = 1
sequence_length = 64
data = {kind = "arithmetic", problems = 100}
learning_rate = {kind = "constant", peak = 1e-3, warmup_steps = 0}
"""
)
SPIKE_STEP = 4  # the fifth step is that of the spike
SPIKE = f'stages.cpt.stress=[{{kind="spike", at_step={SPIKE_STEP}}}]'
RAMP = 'stages.cpt.stress=[{kind="outlier_channels", channels=2, gain=4096, over_steps=6}]'
ALL = (
    'stages.cpt.stress=[{kind="outlier_channels", gain=64, over_steps=7}, '
    '{kind="aligned_swiglu", at_step=0.5, channels=3, factor=4}, {kind="spike", at_step=5}]'
)


@pytest.fixture(name="folder", scope="module")
def fixture_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "run.toml").write_text(CONFIG)
    return folder


def trained(folder: Path, name: str, recipe: str, stress: str = "") -> Path:
    """A run, made once."""
    if not (folder / name).exists():
        stresses = ["--set", stress] if stress else []
        words = ["--config", "run.toml", "--recipe", recipe, "--out", name, *stresses]
        succeeded("train", *words, cwd=folder)
    return folder / name


def column(out: Path, name: str) -> np.ndarray:
    """A dataset of a run file."""
    with h5py.File(out / "run.h5", "r", libver="latest", swmr=True) as file:
        return np.asarray(file[name][:])


def events(out: Path) -> list[tuple[int, str]]:
    """Steps and messages of the stresses."""
    kinds = column(out, "events/kind")
    rows = zip(column(out, "events/step"), kinds, column(out, "events/message"))
    return [(int(step), text.decode()) for step, kind, text in rows if kind == b"stress"]


def statistic(out: Path, name: str, layer: str, slot: str) -> np.ndarray:
    """A statistic of one operand, step by step."""
    layers, slots = column(out, "tensors/layer"), column(out, "tensors/slot")
    at = list(zip(layers, slots)).index((layer.encode(), slot.encode()))
    return column(out, f"tensors/{name}")[:, at]


@pytest.mark.parametrize("recipe", ["bf16", "te_current"])
def test_a_spike_changes_no_bit_without_a_history_of_amaxes(folder: Path, recipe: str) -> None:
    plain = trained(folder, f"{recipe}-plain", recipe)
    spiked = trained(folder, f"{recipe}-spike", recipe, SPIKE)
    for name in ("hashes/weights", "metrics/loss", "metrics/grad_norm"):
        assert np.array_equal(column(plain, name), column(spiked, name)), name
    assert events(plain) == []
    assert events(spiked) == [(SPIKE_STEP + 1, "spike: factor 64")]
    # It was there: the activations behind the norm were 64 times as large in this step.
    seen, usual = (
        statistic(out, "amax", "layers.0.mlp.gate_up", "fprop.x") for out in (spiked, plain)
    )
    expected = np.where(np.arange(STEPS) == SPIKE_STEP, 64.0, 1.0)
    assert np.array_equal(seen / usual, expected)


def test_delayed_scaling_saturates_at_a_spike_and_underflows_after_it(folder: Path) -> None:
    plain = trained(folder, "te_delayed-plain", "te_delayed")
    spiked = trained(
        folder, "te_delayed-spike", "te_delayed", SPIKE.replace("}", ", factor=65536}")
    )
    same = column(plain, "hashes/weights") == column(spiked, "hashes/weights")
    assert same.tolist() == [True] * SPIKE_STEP + [False] * (STEPS - SPIKE_STEP)
    for layer in ("layers.0.attention.qkv", "layers.0.mlp.gate_up"):
        saturated, usual = (
            statistic(out, "saturation_fraction", layer, "fprop.x") for out in (spiked, plain)
        )
        lost, before = (
            statistic(out, "underflow_fraction", layer, "fprop.x") for out in (spiked, plain)
        )
        assert saturated[SPIKE_STEP] > 0.9 and usual[SPIKE_STEP] < 0.01
        after = slice(SPIKE_STEP + 1, STEPS)
        assert (saturated[after] == 0).all()
        assert (lost[after] > before[after] + 0.3).all(), (lost, before)
        # What is not behind a norm has its usual scale.
        other = statistic(spiked, "saturation_fraction", "layers.0.mlp.down", "fprop.x")
        assert other[SPIKE_STEP] < 0.5


def test_a_ramp_is_logged_and_goes_on_after_a_stop(folder: Path) -> None:
    whole = trained(folder, "whole", "infir2", RAMP)
    gains = [4, 16, 64, 256, 1024, 4096]
    said = [(i + 1, f"outlier_channels: 2 channels, gain {gain}") for i, gain in enumerate(gains)]
    assert events(whole) == said
    words = ["--config", folder / "run.toml", "--recipe", "infir2", "--out", folder / "stopped"]
    stopped("train", *words, "--set", RAMP)
    assert len(events(folder / "stopped")) < len(gains)
    assert run("train", *words, "--set", RAMP, "--resume").returncode == 0
    for name in ("hashes/weights", "metrics/loss"):
        assert np.array_equal(column(whole, name), column(folder / "stopped", name)), name
    assert events(folder / "stopped") == said
    changed = refused("train", *words, "--set", RAMP.replace("4096", "2048"), "--resume")
    assert "stress" in changed and "4096" in changed and "2048" in changed


def test_stressed_runs_are_executed_again(folder: Path) -> None:
    trained(folder, "a", "infir2", ALL)
    trained(folder, "b", "infir2", ALL)
    assert [step for step, _ in events(folder / "a")] == [2, 3, 4, 5, 5, 6, 6, 7]
    assert "8 steps that both have: same bits" in succeeded("compare", "a", "b", cwd=folder)
    assert "8 steps, same bits" in succeeded("verify", "a", "--from", 0, "--steps", 8, cwd=folder)


def test_another_stress_is_named(folder: Path) -> None:
    trained(folder, "a", "infir2", ALL)
    trained(folder, "other", "infir2", ALL.replace("factor=4", "factor=8"))
    result = run("compare", "a", "other", "--json", "c.json", cwd=folder)
    assert result.returncode == 3, result.stderr
    assert "factor" in result.stdout and "4" in result.stdout
    found = json.loads((folder / "c.json").read_text())
    assert found["first_step"] == 5
    assert "stress, layers.0.mlp.gate_up.weight" in result.stdout


def test_steps_of_a_stress_are_scaled_and_fit_the_stage(folder: Path) -> None:
    words = ["--config", "run.toml", "--set", SPIKE, "--scale", "0.5", "--out", "half"]
    succeeded("train", *words, cwd=folder)
    assert events(folder / "half") == [(3, "spike: factor 64")]
    late = SPIKE.replace(f"at_step={SPIKE_STEP}", "at_step=1.0")
    message = refused("train", "--config", "run.toml", "--dry-run", "--set", late, cwd=folder)
    assert "do not fit into steps = 8" in message


def test_what_changes_nothing_is_refused(folder: Path) -> None:
    for assignment, expected in {
        'stages.cpt.stress=[{kind="spike", at_step=1, factor=1}]': "1 makes no spike",
        'stages.cpt.stress=[{kind="outlier_channels", gain=1}]': "1 changes no channel",
    }.items():
        words = ("train", "--config", "run.toml", "--dry-run", "--set", assignment)
        message = refused(*words, cwd=folder)
        assert expected in message and "accepted" in message
    names = ["layers", "layers.*.mlp"]
    for order in (names, names[::-1]):
        groups = ", ".join(f'{{match="{name}", learning_rate=0.5}}' for name in order)
        words = ("train", "--config", "run.toml", "--set", f"optimizer.group=[{groups}]", "--out")
        if order[0] == "layers.*.mlp":
            succeeded(*words, folder / "groups", cwd=folder)
        else:
            message = refused(*words, folder / "shadowed", cwd=folder)
            assert "'optimizer.group.match' is 'layers.*.mlp', which changes nothing" in message
