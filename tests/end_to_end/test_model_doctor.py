"""fp8lab doctor MODEL: all broken folders are found and named; whole ones raise no alarm."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broken_models import CASES, FILES, UP, Model
from model_files import file_bytes, read_folder, write_folder
from program import refused, run
from quantized_files import CONFIG, TARGETS, gaussian_model, read_metadata

RAGGED = CONFIG | {"hidden_size": 192, "head_dim": 48, "intermediate_size": 352}
TIED = CONFIG | {"tie_word_embeddings": True, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A whole folder of a target and a shape, made once."""
    root = tmp_path_factory.mktemp("models")
    shapes = {"even": CONFIG, "ragged": RAGGED, "tied": TIED}
    made: dict[str, Path] = {}

    def folder(target: str, shape: str = "even") -> Path:
        key = f"{shape}-{target}".replace(":", "_")
        if key in made:
            return made[key]
        if target == "bf16":
            made[key] = write_folder(root / key, gaussian_model(shapes[shape]), shapes[shape])
            return made[key]
        result = run("convert", folder("bf16", shape), root / key, "--to", target, *TARGETS[target])
        assert result.returncode == 0, result.stderr
        made[key] = root / key
        return made[key]

    return folder


def examine(folder: Path, *options: object) -> tuple[int, list[dict[str, Any]]]:
    result = run("doctor", folder, "--json", *options)
    assert result.stderr == "" and result.returncode in (0, 3), result.stderr
    findings: list[dict[str, Any]] = json.loads(result.stdout)["findings"]
    return result.returncode, findings


@pytest.mark.parametrize("target", ["bf16", *TARGETS])
@pytest.mark.parametrize("shape", ["even", "ragged", "tied"])
def test_whole_folders_raise_no_alarm(
    folders: Callable[[str, str], Path], target: str, shape: str
) -> None:
    status, findings = examine(folders(target, shape))
    assert (status, [one for one in findings if one["severity"] != "note"]) == (0, [])
    # The rows of ragged q, k, v are a fact that engines refuse, and no fault of the file.
    assert all(one["kind"] == "fused_rows" for one in findings)


@pytest.mark.parametrize("target", ["fp8", "compressed-tensors:nvfp4", "modelopt:mxfp8", "torchao"])
def test_the_bf16_sibling_agrees(folders: Callable[[str, str], Path], target: str) -> None:
    status, findings = examine(folders(target, "even"), "--reference", folders("bf16", "even"))
    assert (status, findings) == (0, [])


@pytest.mark.parametrize("name", CASES)
def test_broken_folders_are_found(
    tmp_path: Path, folders: Callable[[str, str], Path], name: str
) -> None:
    case = CASES[name]
    whole = folders(case.target, "even")
    model = Model(
        read_folder(whole),
        json.loads((whole / "config.json").read_text()),
        read_metadata(whole / "model.safetensors"),
    )
    case.breaks(model)
    broken = tmp_path / "broken"
    write_folder(broken, model.tensors, model.config)
    (broken / "model.safetensors").write_bytes(file_bytes(model.tensors, model.metadata))
    options = (*case.options, folders("bf16", "even")) if case.options else ()
    status, findings = examine(broken, *options)
    assert status == 3
    matching = [
        one
        for one in findings
        if one["kind"] == case.kind
        and one["tensor"].startswith(case.tensor)
        and one["severity"] == case.severity
        and case.text in one["text"]
        and (case.block is None or one["block"] == case.block)
    ]
    assert matching, findings
    assert len(matching[0]["text"].split()) > 5  # a sentence


@pytest.mark.parametrize("name", FILES)
def test_broken_files_are_found(
    tmp_path: Path, folders: Callable[[str, str], Path], name: str
) -> None:
    whole = folders("fp8", "even")
    config = json.loads((whole / "config.json").read_text())
    folder = write_folder(tmp_path / "shards", read_folder(whole), config, shards=3)
    assert examine(folder) == (0, [])
    change, kind, tensor = FILES[name]
    change(folder)
    status, findings = examine(folder)
    assert status == 3
    assert any(
        one["kind"] == kind and one["tensor"].startswith(tensor) for one in findings
    ), findings


def test_modelopt_states_its_algorithm_twice(
    tmp_path: Path, folders: Callable[[str, str], Path]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(folders("modelopt:mxfp8", "even"), folder)
    file = folder / "hf_quant_config.json"
    document = json.loads(file.read_text())
    document["quantization"]["quant_algo"] = "FP8"
    file.write_text(json.dumps(document))
    status, findings = examine(folder)
    assert (status, findings[0]["kind"]) == (3, "config_method")


def test_the_text_names_severity_tensor_and_block(
    tmp_path: Path, folders: Callable[[str, str], Path]
) -> None:
    whole = folders("fp8", "even")
    model = Model(read_folder(whole), json.loads((whole / "config.json").read_text()))
    model.set_byte(UP + ".weight", (300, 200), 0x7F)
    broken = write_folder(tmp_path / "broken", model.tensors, model.config)
    result = run("doctor", broken)
    assert result.returncode == 3
    lines = result.stdout.splitlines()
    assert (
        lines[0].startswith(f"error    {UP}.weight: 1 codes are NaN") and "block (2, 1)" in lines[0]
    )
    assert lines[1] == "fp8 e4m3fn/128x128, scales F32: 28 weights"
    assert lines[2].endswith("tensors, 1 errors, 0 warnings")


def test_refusals(tmp_path: Path, folders: Callable[[str, str], Path]) -> None:
    model = folders("fp8", "even")
    assert "--check is for runs" in refused("doctor", model, "--check")
    assert "holds no model" in refused("doctor", model, "--reference", tmp_path)
    (tmp_path / "run").mkdir()
    assert "neither run.h5" in refused("doctor", tmp_path / "run")
