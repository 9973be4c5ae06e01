"""fp8lab.torch: run files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch_small import inputs, model, run  # noqa: E402

import fp8lab.torch  # noqa: E402


@pytest.mark.parametrize("recipe", ["infir2", "te_delayed"])
def test_a_run_file_has_what_each_operand_is(recipe: str, tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="h5py is not installed")
    converted = fp8lab.torch.convert(model(), recipe, seed=7)
    path = tmp_path / "mine" / "run.h5"
    with fp8lab.torch.RunFile(converted, path, every=2, config='note = "here"') as file:
        for step in range(3):
            loss = run(converted, inputs(step))["y"].square().mean()
            file.step(loss, tokens=38, learning_rate=0.1)
            fp8lab.torch.end_step(converted)
    written = fp8lab.read_run(path)
    assert written.metrics["step"].tolist() == [1, 2, 3]
    assert written.metrics["tokens"].tolist() == [38, 76, 114]
    tensors = written.tensors
    assert tensors["step"].tolist() == [1, 2]
    assert len(tensors["layer"]) == 4 * 6 and "layers.0.up_proj" in list(tensors["layer"])
    sqnr = fp8lab.read_statistic(path, "sqnr_db")
    assert sqnr.shape == (2, 24)
    columns = list(zip(tensors["layer"], tensors["slot"]))
    x = columns.index(("layers.0.up_proj", "fprop.x"))
    for row, step in enumerate((0, 1)):
        if recipe == "infir2":
            same_operand = fp8lab.quantize(inputs(step).flatten(0, 1).numpy(), "infir2:fprop.x")
            assert sqnr[row, x] == same_operand.statistics["sqnr_db"]
        amax = fp8lab.read_statistic(path, "amax")[row, x]
        assert amax == float(inputs(step).abs().max())
    assert (sqnr > 15).all() or recipe == "te_delayed"


def test_a_run_file_is_not_overwritten(tmp_path: Path) -> None:
    converted = fp8lab.torch.convert(model())
    (tmp_path / "run.h5").write_bytes(b"mine")
    file = fp8lab.torch.RunFile(converted, tmp_path / "run.h5")
    with pytest.raises(fp8lab.torch.Error, match="no converted layer has run"):
        file.step(1.0)
    run(converted, inputs())
    with pytest.raises(fp8lab.torch.Error, match="run.h5: exists"):
        file.step(1.0)
    assert (tmp_path / "run.h5").read_bytes() == b"mine"


def test_held_out_losses(tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="h5py is not installed")
    converted = fp8lab.torch.convert(model(), seed=3)
    with fp8lab.torch.RunFile(converted, tmp_path / "run.h5", every=2) as file:
        with pytest.raises(fp8lab.torch.Error, match="accepted: after step"):
            file.evaluation(2.0)
        for step in range(3):
            file.step(run(converted, inputs(step))["y"].square().mean())
            fp8lab.torch.end_step(converted)
            converted.eval()
            with torch.no_grad():
                loss = converted(inputs(9)).square().mean()
            nats = float(loss)
            with pytest.raises(fp8lab.torch.Error, match="those of the loss"):
                file.evaluation(2.0, documents=[(2, 40.0)])
            file.evaluation(loss, documents=[(2, nats), (1, 2 * nats)] if step == 2 else ())
            converted.train()
        with pytest.raises(fp8lab.torch.Error, match="has an evaluation"):
            file.evaluation(loss)
    with pytest.raises(fp8lab.torch.Error, match="after the end"):
        file.step(1.0)
    written = fp8lab.read_run(tmp_path / "run.h5")
    assert written.eval["step"].tolist() == [1, 2, 3]
    assert written.eval["loss"][2] == float(loss)
    assert written.tensors["step"].tolist() == [1, 2]  # evaluations are not measured


@pytest.mark.filterwarnings("error")
def test_a_step_takes_tensors_and_numbers(tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="h5py is not installed")
    converted = fp8lab.torch.convert(model())
    with fp8lab.torch.RunFile(converted, tmp_path / "run.h5") as file:
        loss = converted(inputs()).square().mean()
        assert loss.requires_grad
        file.step(loss, gradient_norm=torch.tensor(2.5), learning_rate=0.1)
        file.step(1.5)
        file.step(1.5, gradient_norm=torch.tensor(float("nan")))
    metrics = fp8lab.read_run(tmp_path / "run.h5").metrics
    assert metrics["loss"].tolist() == [loss.item(), 1.5, 1.5]
    norms = metrics["grad_norm"]
    assert norms[0] == 2.5 and np.isnan(norms[1]) and np.isposinf(norms[2])
