"""[saved_activations] of recipes in whole runs: losses, logged statistics, plans and refusals."""

import sys
from pathlib import Path

import numpy as np
from test_provenance import column, open_run, refused, run, stage, train, trained, write_config

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "analysis"))

from fp8lab_analysis.judge.operands import activation_names, quantized_mask  # noqa: E402
from fp8lab_analysis.read.run_reader import load_run  # noqa: E402

EVERY = "statistics_every_steps = 1\n"
SAVED = ("input", "middle", "mlp.inner")


def losses(out: Path) -> np.ndarray:
    return np.asarray(column(out, "metrics/loss"))


def test_first_losses_are_those_without_it_and_later_ones_are_close(tmp_path: Path) -> None:
    for recipe in ("coat", "coat_activations_1x16", "coat_activations_tensor"):
        config = write_config(tmp_path, stage("cpt"), recipe=recipe, logging=EVERY)
        trained(config, tmp_path / recipe)
    plain, saved = losses(tmp_path / "coat"), losses(tmp_path / "coat_activations_1x16")
    assert plain[0] == saved[0]
    assert (plain[1:] != saved[1:]).all()
    assert np.abs(plain - saved).max() < 0.02
    quality = {}
    for group in ("1x16", "tensor"):
        with open_run(tmp_path / f"coat_activations_{group}") as file:
            slots = [text.decode() for text in file["/tensors/slot"][:]]
            layers = [text.decode() for text in file["/tensors/layer"][:]]
            values = file["/tensors/sqnr_db"][:]
        rows = [i for i, slot in enumerate(slots) if slot in SAVED]
        assert {layers[i] for i in rows} == {"layers.0"}
        assert np.isfinite(values[:, rows]).all()
        # The linear layers keep codes of their inputs; those tensors are not saved besides.
        others = [i for i, slot in enumerate(slots) if slot in ("mlp.norm", "mlp.activated")]
        assert len(others) == 2 and np.isnan(values[:, others]).all()
        quality[group] = values[:, rows].mean()
    assert 30 < quality["tensor"] < quality["1x16"] < 36


def test_reports_tell_saved_activations_from_operands(tmp_path: Path) -> None:
    stages = stage("cpt"), stage("plain", more='recipe = "bf16"\n')
    config = write_config(tmp_path, *stages, recipe="coat_activations_1x16", logging=EVERY)
    out = tmp_path / "run"
    trained(config, out)
    logged = load_run(out / "run.h5")
    assert set(SAVED) <= set(activation_names(logged))
    slots = [slot for slot, chosen in zip(logged.tensors.slot, quantized_mask(logged)) if chosen]
    assert slots and all("prop" in slot or "grad" in slot for slot in slots)
    report = run("report", out / "run.h5", "--out", tmp_path / "report")
    assert report.returncode == 0, report.stderr
    page = (tmp_path / "report/index.html").read_text(encoding="utf-8")
    assert "mlp.inner" in page and "mlp.activated" not in page


def test_sources_of_error_may_be_exact_beside_it(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("cpt"), recipe="infir2_saved", logging=EVERY)
    trained(config, tmp_path / "cast", "--set", 'exact=["element cast"]')
    trained(config, tmp_path / "all", "--set", 'exact=["all"]')
    with open_run(tmp_path / "all") as file:  # saved in FP32 then, and nothing is logged of codes
        slots = [text.decode() for text in file["/tensors/slot"][:]]
        rows = [i for i, slot in enumerate(slots) if slot in SAVED]
        assert np.isnan(file["/tensors/sqnr_db"][:, rows]).all()


def test_recomputation_from_saved_codes_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path, stage("cpt"), recipe="infir2_saved")
    refused(
        train(config, tmp_path / "run", "--set", "memory.recompute=layer"),
        "saved_activations.input",
        'memory.recompute = "layer"',
    )
    assert not (tmp_path / "run").exists()
