"""A result never takes the place of an input, nor of a file that no command would make again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from model_files import CONFIG, random_tensors, write_folder
from program import SMALL_MODEL, refused, run, succeeded

TEXT = "".join(f"{i} plus {i + 1} is {2 * i + 1}.\n\n" for i in range(40))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the runs `a` and `b` of another seed, with the data of both."""
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "train.txt").write_text(TEXT)
    (folder / "held.txt").write_text(TEXT[: len(TEXT) // 2].replace("plus", "and"))
    (folder / "run.toml").write_text(
        f"""
name = "outputs"
recipe = "te_current"
{SMALL_MODEL}
[[stages]]
name = "cpt"
kind = "cpt"
steps = 2
sequence_length = 32
batch_sequences = 2
micro_batch_sequences = 2
data = {{ kind = "text", path = "train.txt" }}
eval = {{ sequences = 2, data = {{ kind = "text", form = "running_text", path = "held.txt" }} }}
"""
    )
    for seed, name in ((1, "a"), (2, "b")):
        words = ("train", "--config", "run.toml", "--set", f"seed={seed}", "--out", name)
        assert run(*words, cwd=folder).returncode == 0
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


COMMANDS: dict[str, tuple[str, ...]] = {
    "whatif": ("whatif", "a", "--recipe", "nvfp4"),
    "attribute": ("attribute", "a"),
    "verify": ("verify", "a", "--steps", "1"),
    "compare": ("compare", "a", "b", "--files-only"),
}


@pytest.mark.parametrize("place", ["a/run.h5", "a/checkpoint.safetensors", "train.txt", "link"])
@pytest.mark.parametrize("command", COMMANDS)
def test_json_takes_no_place_of_a_run(runs: Path, command: str, place: str) -> None:
    if not (runs / "link").exists():
        (runs / "link").symlink_to("a/run.h5")
    before = contents(runs)
    said = refused(*COMMANDS[command], "--json", place, cwd=runs)
    assert f"{command}: --json '{place}'" in said, said
    assert contents(runs) == before


def test_json_takes_no_place_of_json_that_is_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", random_tensors(CONFIG))
    for name in ("config.json", "tokenizer.json", "model.safetensors.index.json"):
        if not (folder / name).exists():
            (folder / name).write_text(json.dumps({"version": 1}, indent=2))
    (tmp_path / "t.txt").write_text("a b c")
    before = contents(tmp_path)
    for name in ("config.json", "tokenizer.json", "model.safetensors.index.json"):
        words = ("assess", "model", "--data", "t.txt", "--json", f"model/{name}")
        assert "is a file of a model, a tokenizer" in refused(*words, cwd=tmp_path)
    assert "holds no result in JSON" in refused(
        "bench", "emulation", "--json", "model/model.safetensors", cwd=tmp_path
    )
    assert contents(tmp_path) == before


def test_an_earlier_result_is_replaced(runs: Path) -> None:
    words = ("compare", "a", "b", "--files-only", "--json", "a/result.json")
    for _ in range(2):
        assert run(*words, cwd=runs).returncode == 3
    (runs / "a/result.json").write_text("")
    assert run(*words, cwd=runs).returncode == 3
    assert json.loads((runs / "a/result.json").read_text())


@pytest.fixture()
def matrices(tmp_path: Path) -> Path:
    values = np.linspace(-3, 3, 8 * 64, dtype=np.float32).reshape(8, 64)
    for name in ("x.scale.npy", "p.scale.npy", "x.npy"):
        np.save(tmp_path / name, values)
    (tmp_path / "note.npy").write_text("not a matrix")
    (tmp_path / "hard.npy").hardlink_to(tmp_path / "x.npy")
    return tmp_path


ROW = ("--spec", "e4m3fn/row")
SMOOTH = ("--spec", "int8/row/smooth:0.5")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("x.npy", *ROW, "--out", "x.npy"), "--out 'x.npy': is the file of --input"),
        (("x.npy", *ROW, "--out", "hard.npy"), "--out 'hard.npy': is the file of --input"),
        (("x.scale.npy", *ROW, "--out", "x.npy"), "the scales of --out 'x.scale.npy'"),
        (("x.npy", *SMOOTH, "--partner", "p.scale.npy", "--out", "p.npy"), "the scales of --out"),
        (
            ("x.npy", *ROW, "--out", "q.npy", "--dequantized", "q.scale.npy"),
            "the scales of --out 'q.scale.npy': is the file of --dequantized",
        ),
        (("x.npy", *ROW, "--out", "note.npy"), "holds no matrix of NumPy"),
        (("x.npy", *ROW, "--dequantized", "./x.npy"), "is the file of --input"),
    ],
)
def test_quantize_knows_the_files_that_it_implies(
    matrices: Path, words: tuple[str, ...], said: str
) -> None:
    before = contents(matrices)
    assert said in refused("quantize", *words, cwd=matrices)
    assert contents(matrices) == before


def test_quantize_writes_beside_and_again(matrices: Path) -> None:
    for _ in range(2):
        succeeded("quantize", "x.npy", *ROW, "--out", "q.npy", "--dequantized", "d.npy",
                  cwd=matrices)  # fmt: skip
    assert (matrices / "q.scale.npy").exists()
    # Without scales nothing is implied.
    succeeded("quantize", "x.scale.npy", "--spec", "bf16", "--out", "x.npy", cwd=matrices)


def test_a_folder_that_is_a_link_to_nowhere(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("none")
    for out in ("loop", "dangling", "loop/in"):
        for more in ((), ("--dry-run",)):
            said = refused("train", "--preset", "quickstart", "--out", out, *more, cwd=tmp_path)
            assert "is a link that leads nowhere" in said, said
    assert "x/run.h5: no run to resume" in refused("train", "--resume", "--out", "x", cwd=tmp_path)


def test_a_page_of_two_runs_needs_its_own_place(runs: Path) -> None:
    before = contents(runs)
    said = refused("report", "a/run.h5", "b/run.h5", cwd=runs)
    assert "2 inputs need --out FOLDER, as a/report is" in said
    assert contents(runs) == before
    assert (
        "fp8lab report a/run.h5 b/run.h5 --out report"
        in run("compare", "a", "b", "--files-only", cwd=runs).stdout
    )
