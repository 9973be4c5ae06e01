"""[attention] of recipes: what is read and refused, whole runs, resumed ones, and generation."""

from pathlib import Path

import numpy as np
import pytest
from test_provenance import (
    column,
    interrupted,
    open_run,
    refused,
    run,
    stage,
    train,
    trained,
    write_config,
)

EVERY = "statistics_every_steps = 1\nhash_every_step = true\n"
SLOTS = ("q", "k", "v", "p", "do", "ds")
RECIPES = ("fa3_fp8", "fa3_fp8_no_hadamard", "fa3_fp8_tensor", "fp8_attention", "kv_scale_one")


def losses(out: Path) -> np.ndarray:
    return np.asarray(column(out, "metrics/loss"))


def recipe_file(folder: Path, *lines: str, base: str = "bf16") -> Path:
    path = folder / "own.toml"
    text = f'base = "{base}"\nname = "own"\n[attention]\n' + "\n".join(lines) + "\n"
    path.write_text(text, encoding="utf-8")
    return path


def rows(out: Path, statistic: str) -> dict[str, np.ndarray]:
    """Returns a statistic (steps, layers) by the name of the operand of attention."""
    with open_run(out) as file:
        names = [text.decode() for text in file["/tensors/slot"][:]]
        values = file[f"/tensors/{statistic}"][:]
    chosen = {name for name in names if name.startswith("attention.")}
    return {name: values[:, [i for i, n in enumerate(names) if n == name]] for name in chosen}


def test_losses_are_close_to_those_without_it(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("cpt", steps=3), logging=EVERY)
    trained(config, tmp_path / "bf16")
    plain = losses(tmp_path / "bf16")
    for recipe in RECIPES:
        trained(config, tmp_path / recipe, "--set", f"recipe={recipe}")
        found = losses(tmp_path / recipe)
        assert (found != plain).all()
        assert np.abs(found - plain).max() < 0.03, recipe


def test_rows_have_the_statistics_of_tensors_in_memory(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("cpt"), recipe="fp8_attention", logging=EVERY)
    trained(config, tmp_path / "run")
    quality, amax = rows(tmp_path / "run", "sqnr_db"), rows(tmp_path / "run", "amax")
    assert set(quality) == {f"attention.{slot}" for slot in SLOTS}
    for slot in ("q", "k", "v"):
        assert (quality[f"attention.{slot}"] > 25).all() and (amax[f"attention.{slot}"] > 0).all()
    assert (quality["attention.do"] > 20).all()  # two bits of mantissa
    assert np.isnan(quality["attention.p"]).all() and np.isnan(quality["attention.ds"]).all()


def test_rows_fit_stages_with_and_without_the_tables(tmp_path: Path) -> None:
    stages = stage("cpt"), stage("saved", more='recipe = "infir2_saved"\n')
    config = write_config(tmp_path, *stages, recipe="fa3_fp8", logging=EVERY)
    trained(config, tmp_path / "run")
    with open_run(tmp_path / "run") as file:
        names = [text.decode() for text in file["/tensors/slot"][:]]
        values = file["/tensors/sqnr_db"][:]
    of = {name: values[:, names.index(name)] for name in ("input", "attention.q", "fprop.x")}
    assert np.isnan(of["input"][:4]).all() and np.isfinite(of["input"][4:]).all()
    assert np.isfinite(of["attention.q"][:4]).all() and np.isnan(of["attention.q"][4:]).all()


@pytest.mark.parametrize("recipe", ("fa3_fp8", "fp8_attention"))
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path: Path, recipe: str) -> None:
    config = write_config(tmp_path, stage("cpt", steps=6), recipe=recipe, logging=EVERY)
    trained(config, tmp_path / "whole")
    interrupted(config, tmp_path / "parts")
    trained(config, tmp_path / "parts", "--resume")
    hashes = [column(tmp_path / out, "hashes/weights") for out in ("whole", "parts")]
    assert len(hashes[0]) == 6 and hashes[0] == hashes[1]


def test_shards_and_recomputation_change_no_bit_of_static_scales(tmp_path: Path) -> None:
    lines = 'q = "e4m3fn/token/hadamard:full"', 'k = "e4m3fn/token/hadamard:full"'
    own = recipe_file(tmp_path, *lines, 'v = "e4m3fn/static:0.05"', 'p = "e4m3fn"')
    config = write_config(tmp_path, stage("cpt"), recipe=str(own), logging=EVERY)
    found = []
    for i, change in enumerate(("memory.recompute=none", "memory.recompute=layer")):
        trained(config, tmp_path / str(i), "--set", change)
        found.append(column(tmp_path / str(i), "hashes/weights"))
    assert found[0] == found[1]


def test_gradients_in_the_space_of_a_transform_are_rotated_back(tmp_path: Path) -> None:
    both = [f'{slot} = "e4m3fn/block{{}}"' for slot in ("q", "k")] + [
        'v = "e4m3fn/block"',
        'p = "e4m3fn/static:0.00390625"',
        'do = "e5m2/block"',
        'ds = "e5m2/block"',
    ]
    config = write_config(tmp_path, stage("cpt", steps=6), logging=EVERY)
    trained(config, tmp_path / "bf16")
    plain = losses(tmp_path / "bf16")
    for transform in ("", "/hadamard:full"):
        own = recipe_file(tmp_path, *(line.format(transform) for line in both))
        out = tmp_path / f"run{len(transform)}"
        trained(config, out, "--set", f"recipe={own}")
        assert np.abs(losses(out) - plain).max() < 0.03


def test_a_cache_of_codes_generates_the_bits_of_training(tmp_path: Path) -> None:
    lines = 'q = "e4m3fn/token/hadamard:full"', 'k = "e4m3fn/token/hadamard:full"'
    own = recipe_file(tmp_path, *lines, 'v = "e4m3fn/static:0.05"', 'p = "e4m3fn/static:0.01"')
    config = write_config(tmp_path, stage("sft", "sft", length=128), recipe=str(own))
    trained(config, tmp_path / "run")
    certified = run("certify", tmp_path / "run", "--max-new-tokens", 16)
    assert certified.returncode == 0, certified.stdout + certified.stderr
    words = "--max-new-tokens", 16, "--rollout-recipe", "bf16"
    certified = run("certify", tmp_path / "run", *words)
    assert certified.returncode == 0, certified.stderr  # the recipes promise nothing
    assert "k is e4m3fn/1x64" in certified.stdout and "as it is in generation" in certified.stdout


def test_what_a_scale_of_one_costs_is_one_command(tmp_path: Path) -> None:
    more = "[stages.eval]\nevery_steps = 4\nexact_match = 0\n"
    config = write_config(tmp_path, stage("sft", "sft", more=more, length=128))
    trained(config, tmp_path / "run")
    told = run("eval", tmp_path / "run", "--recipe", "kv_scale_one")
    assert told.returncode == 0, told.stderr
    assert "loss" in told.stdout


def test_scales_of_later_tokens_cannot_be_generated_with(tmp_path: Path) -> None:
    more = "[stages.eval]\nevery_steps = 4\nexact_match = 2\n"
    config = write_config(tmp_path, stage("sft", "sft", more=more, length=128), recipe="fa3_fp8")
    refused(
        train(config, tmp_path / "run"),
        "attention.q",
        "cannot be generated token by token",
        "eval.exact_match = 0",
    )
    trained(config, tmp_path / "run", "--set", "stages.sft.eval.exact_match=0")


def test_a_sequence_that_tiles_do_not_divide_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("cpt", length=80), recipe="fa3_fp8")
    refused(train(config, tmp_path / "run"), "attention", "64 keys of a sequence of 80")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            ('q = "e4m3fn/hadamard:64"',),
            ("attention", "q has the transform hadamard:64 and k none"),
        ),
        (('v = "e4m3fn/hadamard:64"',), ("attention.v", "which only those of q and k undo")),
        (('q = "e4m3fn/hadamard:64:drawn"',), ("attention.q", "with a pattern")),
        (('q = "e4m3fn/head/1x64"',), ("attention.q", "one tile")),
        (('q = "e4m3fn/static:2/block"',), ("attention.q", "one number for the tensor")),
        (('k = "e4m3fn/mx32/hadamard:64"',), ("attention.k", "divides head_dim 32")),
        (('v = "logfmt8/1x64"',), ("attention.v", "codebook")),
        (('v = "fp16"',), ("attention.v", "more than 8 bits")),
        (('p = "e4m3fn/tensor"',), ("attention.p", "static scale")),
        (('p = "e4m3fn/delayed"',), ("attention.p", "static scale")),
        (('ds = "e5m2/tensor"',), ("attention.ds", "never in memory as a whole")),
        (('ds = "e5m2/block/stochastic"',), ("attention.ds", "random bits")),
        (('dp = "e5m2/block"',), ("attention.dp", "q, k, v, p, do, ds")),
        ((), ("attention", "empty")),
    ],
)
def test_impossible_quantizers_are_refused(
    tmp_path: Path, lines: tuple[str, ...], words: tuple[str, ...]
) -> None:
    refused(run("recipes", "check", recipe_file(tmp_path, *lines)), *words)


def test_a_module_is_not_kept_and_quantized(tmp_path: Path) -> None:
    own = recipe_file(tmp_path, 'v = "e4m3fn/block"', base="te_delayed")
    refused(run("recipes", "check", own), "attention.core", "keep_high_precision.modules")
