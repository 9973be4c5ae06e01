"""Models of the Hugging Face Hub by name, as `hf download` leaves them in its cache."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from model_files import CONFIG, random_tensors, write_folder
from program import refused, run, succeeded

TOKENS = Path(__file__).resolve().parents[1] / "golden/tokens"
RUN = """
name = "r"
recipe = "bf16"
init_from = "model"
[logging]
statistics_every_steps = 0
[[stages]]
name = "cpt"
kind = "cpt"
steps = {steps}
batch_sequences = 1
sequence_length = 32
[stages.learning_rate]
warmup_steps = 0
[stages.data]
kind = "tokens"
path = "shards"
form = "running_text"
"""


@pytest.fixture()
def folder(tmp_path: Path) -> Path:
    """A model, shards of its tokenizer, and prompts of ids."""
    write_folder(tmp_path / "model", random_tensors(CONFIG))
    shutil.copytree(TOKENS, tmp_path / "shards")
    for name in ("tokenizer.json", "token_bytes.json"):
        shutil.copy(TOKENS / name, tmp_path / "model")
    (tmp_path / "p.jsonl").write_text('{"prompt": [5, 6, 7]}\n')
    return tmp_path


def loss(folder: Path, data: str) -> Any:
    return json.loads(succeeded("eval", "model", "--data", data, "--json", cwd=folder))["loss"]


def hub_model(folder: Path, revision: str = "0123abcd") -> Path:
    """The model as `hf download` leaves it: files of a snapshot are links to blobs."""
    cache = folder / "hub/models--Org--Small-1.5"
    snapshot = cache / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir(exist_ok=True)
    for file in sorted((folder / "model").iterdir()):
        blob = cache / "blobs" / f"{revision}-{file.name}"
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    (cache / "refs").mkdir(exist_ok=True)
    (cache / "refs/main").write_text(revision)
    return snapshot


def test_models_of_the_hub_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = loss(folder, "shards")
    snapshot = hub_model(folder)
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    words = ["eval", "Org/Small-1.5", "--data", "shards", "--json"]
    answer = json.loads(succeeded(*words, cwd=folder))
    assert answer["loss"] == first and answer["source"] == "Org/Small-1.5"
    assert "tokens" in succeeded(
        "generate", "Org/Small-1.5", "--prompts", "p.jsonl", "--max-new-tokens", "2", cwd=folder
    )
    succeeded("quantize", "Org/Small-1.5", "--recipe", "infir2", "--report", cwd=folder)
    succeeded("export", "Org/Small-1.5", "exported", cwd=folder)
    assert (folder / "exported/tokenizer.json").exists()
    for start in (
        'init_from = "Org/Small-1.5"',
        'init_from = "Org/Small-1.5"\nmodel = "Org/Small-1.5"',
    ):
        config = folder / "run.toml"
        config.write_text(RUN.format(steps=1).replace('init_from = "model"', start))
        succeeded("train", "--config", config, "--dry-run", cwd=folder)
    succeeded("train", "--config", config, "--out", "r", cwd=folder)
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "r/run.h5") as file:
        assert str(snapshot) in bytes(file["meta"].attrs["config_text"]).decode()
    # Another revision of main later: the run keeps its own.
    hub_model(folder, "4567cdef")
    succeeded("eval", "r", "--data", "shards", cwd=folder)
    # What lies here comes first.
    (folder / "Org").mkdir()
    shutil.copytree(folder / "model", folder / "Org/Small-1.5")
    (folder / "Org/Small-1.5/config.json").write_text("{}")
    assert "Org/Small-1.5/config.json" in refused(*words, cwd=folder)


def test_where_the_hub_keeps_models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_model(folder)
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    home = folder / "home"
    places = {
        home / ".cache/huggingface/hub": ("HOME", home),
        folder / "xdg/huggingface/hub": ("XDG_CACHE_HOME", folder / "xdg"),
        folder / "hf/hub": ("HF_HOME", folder / "hf"),
        folder / "own": ("HF_HUB_CACHE", folder / "own"),
    }
    words = ["eval", "Org/Small-1.5", "--data", "shards"]
    for place, (name, value) in places.items():  # each later one counts before the others
        monkeypatch.setenv(name, str(value))
        message = refused(*words, cwd=folder)
        assert f"Org/Small-1.5: is neither a path nor a model in the Hub's cache {place}" in message
        assert message.endswith("download it: hf download Org/Small-1.5\n")
        shutil.copytree(folder / "hub", place, symlinks=True)
        assert run(*words, cwd=folder).returncode == 0
        shutil.rmtree(place)


def test_what_is_not_in_the_hubs_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = hub_model(folder)
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    for words in (
        ["eval", "Org/Other", "--data", "shards"],
        ["generate", "Org/Other", "--prompts", "p.jsonl"],
        ["quantize", "Org/Other", "--recipe", "infir2"],
        ["export", "Org/Other", "out"],
        ["bench", "load", "--model", "Org/Other"],
    ):
        assert "hf download Org/Other\n" in refused(*words, cwd=folder)
    config = folder / "run.toml"
    for start in ('init_from = "Org/Other"\nmodel = "model"', 'model = "Org/Other"'):
        text = RUN.format(steps=1).replace('init_from = "model"', start)
        config.write_text(text.replace("sequence_length = 32", "sequence_length = 256"))
        assert "hf download Org/Other" in refused("train", "--config", config, cwd=folder)
    # Of files and of folders that are here the name is no model's.
    for name in ("model/nothing", "nowhere/x.npy"):
        words = ["quantize", name, "--recipe", "infir2", "--slot", "fprop.x"]
        assert "hf download" not in refused(*words, cwd=folder)
    # A download that was cut off, and a reference that leads out of the cache.
    (snapshot / "config.json").unlink()
    assert "hf download Org/Small-1.5" in refused(
        "eval", "Org/Small-1.5", "--data", "shards", cwd=folder
    )
    shutil.copytree(folder / "model", folder / "hub/outside")
    (folder / "hub/models--Org--Small-1.5/refs/main").write_text("../../outside")
    assert "hf download Org/Small-1.5" in refused(
        "eval", "Org/Small-1.5", "--data", "shards", cwd=folder
    )
