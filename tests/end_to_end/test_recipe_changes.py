"""Recipes by step within a stage, fallbacks, and scales of their own for both orientations."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from program import PROGRAM
from test_provenance import (
    column,
    documents,
    events,
    header_of,
    open_run,
    refused,
    run,
    stage,
    train,
    trained,
    write_config,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "analysis"))

from fp8lab_analysis.read.run_reader import load_run  # noqa: E402

SHIPPED = Path(__file__).parents[2] / "experiments/recipes/transformer_engine"
CONSTANT = 'learning_rate.kind = "constant"\n'
EVERY = "statistics_every_steps = 1\n"


def recipe_file(folder: Path, name: str, base: str, keys: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(f'base = "{base}"\nname = "{name}"\nsummary = "of a test"\n{keys}')
    return path


def recipe_at(*changes: tuple[object, object]) -> str:
    tables = ", ".join(f'{{ step = {step}, recipe = "{name}" }}' for step, name in changes)
    return f"recipe_at = [{tables}]\n"


def fallback(recipe: object, when: str) -> str:
    return f'fallback = {{ recipe = "{recipe}", when = {{ {when} }} }}\n'


def hashes(out: Path) -> list[int]:
    return column(out, "/hashes/weights")


def kinds(out: Path) -> list[tuple[int, str]]:
    """Of events, but for those of an interruption and those of warnings."""
    others = ("resume", "early_warning", "spike")
    return [(step, kind) for step, kind, _ in events(out) if kind not in others]


def message(out: Path, kind: str) -> str:
    (text,) = [text for _, found, text in events(out) if found == kind]
    return text


def tensor(path: Path, name: str) -> np.ndarray:
    header, begin = header_of(path)
    first, last = header[name]["data_offsets"]
    return np.frombuffer(path.read_bytes()[begin + first : begin + last], "<f4")


def resumed_after_every_checkpoint(config: Path, out: Path) -> int:
    """Trains with a kill after each checkpoint; returns how often it was killed."""
    checkpoint, kills = out / "checkpoint.safetensors", 0
    while True:
        words = ["--resume"] if (out / "run.h5").exists() else []
        process = subprocess.Popen(
            [PROGRAM, "train", "--config", str(config), "--out", str(out), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        while process.poll() is None:
            if checkpoint.exists() and checkpoint.stat().st_mtime_ns != before:
                process.kill()
                break
            time.sleep(0.001)
        _, errors = process.communicate()
        if process.returncode == 0:
            return kills
        assert process.returncode == -9, errors
        kills += 1


# --- two scales of a tensor -----------------------------------------------------------------------


def test_orientations_in_two_formats_derive_two_scales_from_one_amax(tmp_path: Path) -> None:
    keys = '[slots.wgrad.x]\nformat = "e5m2"\n[slots.dgrad.w]\nscale_source = "current"\n'
    recipe = recipe_file(tmp_path, "two", str(SHIPPED / "te_delayed.toml"), keys)
    config = write_config(tmp_path, stage("a"), recipe=str(recipe), logging=EVERY)
    trained(config, tmp_path / "whole")
    checkpoint = tmp_path / "whole" / "checkpoint.safetensors"
    names = [name for name in header_of(checkpoint)[0] if "mlp.down" in name and "delayed" in name]
    layer = "delayed/layers.0.mlp.down/"
    assert sorted(names) == sorted(layer + of for of in ("x", "wgrad.x", "w", "dy"))
    x, second = tensor(checkpoint, layer + "x"), tensor(checkpoint, layer + "wgrad.x")
    # Scale, running amax, multiplier, history.
    assert (x[3:] == second[3:]).all() and (x[3:] > 0).sum() == 4
    assert x[0] == np.float32(1) / (np.float32(448) / x[3:].max())
    assert second[0] == np.float32(1) / (np.float32(57344) / x[3:].max())
    with open_run(tmp_path / "whole") as file:
        assert not np.any(file["/tensors/without_history"][1:])
        assert np.any(file["/tensors/without_history"][0])

    logging = EVERY + "checkpoint_every_steps = 1\n"
    config = write_config(tmp_path, stage("a"), recipe=str(recipe), logging=logging)
    assert resumed_after_every_checkpoint(config, tmp_path / "killed") >= 2
    assert hashes(tmp_path / "killed") == hashes(tmp_path / "whole")
    result = run("verify", tmp_path / "whole", "--from", 0)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_current_first_orientation_leaves_the_history_to_the_second(tmp_path: Path) -> None:
    keys = '[slots.fprop.x]\nscale_source = "current"\n'
    recipe = recipe_file(tmp_path, "second", str(SHIPPED / "te_delayed.toml"), keys)
    config = write_config(tmp_path, stage("a"), recipe=str(recipe))
    trained(config, tmp_path / "run")
    header, _ = header_of(tmp_path / "run" / "checkpoint.safetensors")
    assert "delayed/layers.0.mlp.down/wgrad.x" in header
    assert "delayed/layers.0.mlp.down/x" not in header
    result = run("whatif", tmp_path / "run", "--recipe", "te_delayed")
    assert result.returncode == 0, result.stderr


# --- recipes by step ------------------------------------------------------------------------------


@pytest.mark.parametrize("first, second", [("te_delayed", "fast"), ("te_delayed", "bf16")])
def test_a_recipe_by_step_is_a_stage_that_goes_on(tmp_path: Path, first: str, second: str) -> None:
    fast = '[gemm]\nschedule = "fast"\n'
    path = recipe_file(tmp_path, "fast", str(SHIPPED / "te_delayed.toml"), fast)
    name = str(path) if second == "fast" else second
    logging = EVERY + "checkpoint_every_steps = 1\n"
    whole = stage("a", steps=6, more=CONSTANT + recipe_at((2, name), (4, first)))
    config = write_config(tmp_path, whole, recipe=first, logging=logging)
    trained(config, tmp_path / "whole")
    rest = CONSTANT + "reset_optimizer = false\n"
    later = [
        stage(label, steps=2, more=rest + f'recipe = "{of}"\n').replace(
            "learning_rate.warmup_steps = 1", "learning_rate.warmup_steps = 0"
        )
        for label, of in (("b", name), ("c", first))
    ]
    parts = [stage("a", steps=2, more=CONSTANT), *later]
    trained(write_config(tmp_path, *parts, recipe=first, logging=EVERY), tmp_path / "parts")
    assert hashes(tmp_path / "whole") == hashes(tmp_path / "parts")
    changes = [entry for entry in kinds(tmp_path / "whole") if entry[1] == "recipe_changed"]
    assert changes == [(3, "recipe_changed"), (5, "recipe_changed")]

    config = write_config(tmp_path, whole, recipe=first, logging=logging)
    assert resumed_after_every_checkpoint(config, tmp_path / "killed") >= 4
    assert hashes(tmp_path / "killed") == hashes(tmp_path / "whole")
    assert kinds(tmp_path / "killed") == kinds(tmp_path / "whole")
    for start in (0, 2, 3):
        result = run("verify", tmp_path / "whole", "--from", start)
        assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("recipe", ["te_delayed", "nvfp4"])
def test_the_recipe_in_force_changes_nothing(tmp_path: Path, recipe: str) -> None:
    """Neither a history nor a random key."""
    plain = write_config(tmp_path, stage("a"), recipe=recipe)
    trained(plain, tmp_path / "plain")
    more = recipe_at((1, recipe), (3, recipe))
    trained(write_config(tmp_path, stage("a", more=more), recipe=recipe), tmp_path / "changed")
    assert hashes(tmp_path / "plain") == hashes(tmp_path / "changed")
    assert kinds(tmp_path / "changed") == [(2, "recipe_changed"), (4, "recipe_changed")]


def test_sources_of_error_stay_exact_after_a_change(tmp_path: Path) -> None:
    logging = EVERY + "checkpoint_every_steps = 1\n"
    more = recipe_at((2, "bf16"), (4, "te_delayed"))
    config = write_config(
        tmp_path, stage("a", steps=6, more=more), recipe="te_delayed", logging=logging
    )
    trained(config, tmp_path / "inexact")
    config.write_text('exact = ["element cast", "underflow"]\n' + config.read_text())
    trained(config, tmp_path / "whole")
    assert hashes(tmp_path / "whole") != hashes(tmp_path / "inexact")
    assert resumed_after_every_checkpoint(config, tmp_path / "killed") >= 4
    assert hashes(tmp_path / "killed") == hashes(tmp_path / "whole")
    result = run("verify", tmp_path / "whole", "--from", 0)
    assert result.returncode == 0, result.stdout + result.stderr
    data = ("--data", documents(tmp_path / "data.jsonl"))
    refused(run("eval", tmp_path / "whole", *data), "exact", "--recipe")
    result = run("eval", tmp_path / "whole", *data, "--recipe", "te_current", "--json")
    assert json.loads(result.stdout)["recipe"] == "te_current", result.stderr


def test_compare_finds_the_step_of_the_change(tmp_path: Path) -> None:
    for name, more in (("a", ""), ("b", recipe_at((2, "te_current")))):
        trained(write_config(tmp_path, stage("a", more=more), recipe="infir2"), tmp_path / name)
    result = run("compare", tmp_path / "a", tmp_path / "b", "--json", tmp_path / "c.json")
    assert result.returncode == 3, result.stderr
    found = json.loads((tmp_path / "c.json").read_text())
    assert found["first_step"] == 3 and not found["transient"]
    assert found["reproduced_a"]["good"] and found["reproduced_b"]["good"]
    assert "stages.a.recipe_at" in result.stdout
    assert "recipe of stage a after 2 steps: (none) -> " in result.stdout


def test_generation_is_certified_against_the_recipe_at_work(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("a", more=recipe_at((2, "te_current"))), recipe="infir2")
    trained(config, tmp_path / "run")
    few = ("--together", 1, "--max-new-tokens", 2, "--json", tmp_path / "c.json")
    result = run("certify", tmp_path / "run", *few)
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads((tmp_path / "c.json").read_text())["recipe"] == "te_current"


def test_histories_that_do_not_fit_restart_with_an_event(tmp_path: Path) -> None:
    more = recipe_at((0.5, "fp8_lm"))
    trained(write_config(tmp_path, stage("a", more=more), recipe="te_delayed"), tmp_path / "run")
    assert kinds(tmp_path / "run") == [(3, "recipe_changed"), (3, "amax_history_reset")]
    text = message(tmp_path / "run", "recipe_changed")
    assert "from te_delayed to fp8_lm" in text and "after 2 steps of stage a" in text


def test_the_recipe_at_work_is_that_of_the_run(tmp_path: Path) -> None:
    mine = recipe_file(tmp_path, "mine", "te_current", '[gemm]\nschedule = "fast"\n')
    config = write_config(tmp_path, stage("a", more=recipe_at((3, mine))), recipe="te_delayed")
    trained(config, tmp_path / "run")
    with open_run(tmp_path / "run") as file:
        names = [name.decode() for name in file["/meta"].attrs["identity_names"]]
        recipes = file["/meta"].attrs["extra.stage_recipes"]
    assert "recipe of stage a" in names and "recipe of stage a after 3 steps" in names
    assert recipes == b"a=te_delayed+mine@3"
    data = ("--data", documents(tmp_path / "data.jsonl"))
    result = run("eval", tmp_path / "run", *data, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["recipe"] == "mine"
    before = run("eval", tmp_path / "run", *data).stdout
    mine.write_text(mine.read_text().replace('"fast"', '"promote:64"'))
    refused(train(config, tmp_path / "run", "--resume"), "recipe of stage a after 3 steps")
    assert run("eval", tmp_path / "run", *data).stdout == before != ""
    plan = train(config, tmp_path / "no", "--dry-run").stdout
    assert "after 3 steps: recipe mine" in plan and plan.count("memory ") == 2


@pytest.mark.parametrize(
    ("recipe", "stages", "named", "measured"),
    [
        ("infir2", (("a", 'recipe = "bf16"\n'), ("b", "")), "infir2", range(5, 9)),
        ("bf16", (("a", 'recipe = "infir2"\n'), ("b", 'recipe = "fp32"\n')), "infir2", range(1, 5)),
        ("infir2", (("a", recipe_at((3, "bf16"))),), "infir2", range(1, 4)),
        ("infir2", (("a", fallback("bf16", "nonfinite = true")),), "infir2", range(1, 5)),
    ],
)
def test_errors_are_those_of_the_formats_that_the_run_names(
    tmp_path: Path,
    recipe: str,
    stages: tuple[tuple[str, str], ...],
    named: str,
    measured: range,
) -> None:
    text = "".join(stage(name, more=more) for name, more in stages)
    # Rows of /metrics need not be those of /tensors.
    logging = EVERY + "every_steps = 3\n"
    trained(write_config(tmp_path, text, recipe=recipe, logging=logging), tmp_path / "run")
    found = load_run(tmp_path / "run" / "run.h5")
    assert found.meta["extra.tensors_recipe"] == named
    formats = dict(zip(zip(found.tensors.layer, found.tensors.slot), found.tensors.format))
    assert formats["layers.0.mlp.down", "fprop.x"].startswith("e4m3fn/1x128")
    chosen = [layer != "lm_head" for layer in found.tensors.layer]
    known = np.isfinite(found.tensors.get("sqnr_db")[:, chosen])
    assert list(found.tensors.step[known.all(axis=1)]) == list(measured)
    assert not known[~np.isin(found.tensors.step, measured)].any()
    assert found.tensors.get("sqnr_db")[known.all(axis=1)][:, chosen].max() < 60
    assert np.isfinite(found.tensors.get("kurtosis")).all()


# --- fallbacks ------------------------------------------------------------------------------------


def test_a_spike_makes_the_stage_fall_back(tmp_path: Path) -> None:
    when = "gradient_norm = 0.01, window = 2"
    logging = EVERY + "checkpoint_every_steps = 1\n"
    falls = stage("a", steps=6, more=fallback("bf16", when))
    config = write_config(tmp_path, falls, recipe="te_delayed", logging=logging)
    trained(config, tmp_path / "fallen")
    assert kinds(tmp_path / "fallen") == [(3, "fallback"), (4, "recipe_changed")]
    text = message(tmp_path / "fallen", "fallback")
    assert "gradient norm" in text and ".weight" in text and "recipe bf16" in text
    assert resumed_after_every_checkpoint(config, tmp_path / "killed") >= 4
    assert hashes(tmp_path / "killed") == hashes(tmp_path / "fallen")
    assert kinds(tmp_path / "killed") == kinds(tmp_path / "fallen")
    result = run("verify", tmp_path / "fallen", "--from", 2)
    assert result.returncode == 0, result.stdout + result.stderr

    switched = stage("a", steps=6, more=recipe_at((3, "bf16")))
    trained(write_config(tmp_path, switched, recipe="te_delayed"), tmp_path / "switched")
    assert hashes(tmp_path / "switched") == hashes(tmp_path / "fallen")
    never = falls.replace("0.01", "100.0")
    trained(write_config(tmp_path, never, recipe="te_delayed"), tmp_path / "never")
    assert kinds(tmp_path / "never") == []
    assert hashes(tmp_path / "never")[:3] == hashes(tmp_path / "fallen")[:3]
    assert hashes(tmp_path / "never")[3] != hashes(tmp_path / "fallen")[3]


def test_a_stress_makes_the_stage_fall_back(tmp_path: Path) -> None:
    spike = 'stress = [{ kind = "spike", at_step = 2, factor = 65536.0 }]\n'
    logging = EVERY + "checkpoint_every_steps = 1\n"
    more = fallback("te_current", "saturation = 0.9")
    config = write_config(
        tmp_path, stage("a", steps=6, more=spike + more), recipe="te_delayed", logging=logging
    )
    trained(config, tmp_path / "whole")
    assert kinds(tmp_path / "whole") == [(3, "stress"), (3, "fallback"), (4, "recipe_changed")]
    assert resumed_after_every_checkpoint(config, tmp_path / "killed") >= 4
    assert hashes(tmp_path / "killed") == hashes(tmp_path / "whole")
    assert kinds(tmp_path / "killed") == kinds(tmp_path / "whole")
    result = run("verify", tmp_path / "whole", "--from", 0)
    assert result.returncode == 0, result.stdout + result.stderr


def test_saturation_names_the_operand(tmp_path: Path) -> None:
    keys = '[slots.fprop.x]\nscale_source = "static"\nstatic_scale = 1e-4\n'
    recipe = recipe_file(tmp_path, "narrow", "te_current", keys)
    falls = stage("a", more=fallback("te_current", "saturation = 0.2"))
    logging = "statistics_every_steps = 2\n"
    config = write_config(tmp_path, falls, recipe=str(recipe), logging=logging)
    trained(config, tmp_path / "run")
    assert [kind for _, kind in kinds(tmp_path / "run")] == ["fallback", "recipe_changed"]
    text = message(tmp_path / "run", "fallback")
    assert "fprop.x" in text and "layers.0" in text and "recipe te_current" in text


def test_a_step_that_is_not_finite_leaves_the_weights(tmp_path: Path) -> None:
    keys = '[slots.fprop.x]\nscale_source = "static"\nstatic_scale = 1e-6\noverflow = "special"\n'
    recipe = recipe_file(tmp_path, "special", "te_current", keys)
    falls = stage("a", more=fallback("bf16", "nonfinite = true"))
    trained(write_config(tmp_path, falls, recipe=str(recipe)), tmp_path / "run")
    found = kinds(tmp_path / "run")
    assert found == [(1, "nan"), (1, "fallback"), (2, "recipe_changed")]
    losses = column(tmp_path / "run", "/metrics/loss")
    assert not np.isfinite(losses[0]) and np.isfinite(losses[1:]).all()
    with open_run(tmp_path / "run") as file:
        initial = file["/meta"].attrs["initial_weights_hash"].decode()
    assert f"{hashes(tmp_path / 'run')[0]:016x}" == initial
    # What is broken and no reason of its own ends a run, whatever else makes it fall back.
    for more in ("", fallback("bf16", "saturation = 0.01")):
        config = write_config(tmp_path, stage("a", more=more), recipe=str(recipe), logging=EVERY)
        out = tmp_path / ("stops" if more else "plain")
        assert train(config, out).returncode == 1
        assert column(out, "/metrics/step") == [1]


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more, words",
    [
        (recipe_at((4, "bf16")), ["recipe_at.step", "from 1 to 3"]),
        (recipe_at((2, "bf16"), (2, "fp32")), ["recipe_at.step", "from 3 to 3"]),
        (recipe_at((2, "no_such")), ["no_such"]),
        ("recipe_at = [{ step = 2 }]\n", ["recipe_at.recipe", "missing"]),
        (fallback("no_such", "nonfinite = true"), ["no_such"]),
        (fallback("bf16", "window = 3"), ["window", "loss_spike or gradient_norm"]),
        (fallback("bf16", ""), ["nothing makes the stage fall back"]),
        ('fallback = { recipe = "bf16" }\n', ["fallback.when", "nothing makes"]),
        (fallback("bf16", "saturation = 0.1"), ["statistics_every_steps above 0"]),
        (fallback("bf16", "loss_spike = 2.0"), ["when.window = 16", "in 4 steps"]),
        (fallback("bf16", "gradient_norm = 2.0, window = 3"), ["from step 4 on", "from 1 to 2"]),
    ],
)
def test_what_no_stage_can_do_is_refused(tmp_path: Path, more: str, words: list[str]) -> None:
    logging = "statistics_every_steps = 0\n"
    config = write_config(tmp_path, stage("a", more=more), logging=logging)
    refused(train(config, tmp_path / "run", "--dry-run"), *words)


@pytest.mark.parametrize("step", [0.5, 20])
def test_a_scaled_run_changes_at_the_scaled_step(tmp_path: Path, step: float) -> None:
    more = recipe_at((step, "bf16"))
    config = write_config(tmp_path, stage("a", steps=40, more=more), recipe="te_current")
    trained(config, tmp_path / "run", "--scale", 0.1)
    assert kinds(tmp_path / "run") == [(3, "recipe_changed")]
