"""Data that were not made with the tokenizer of a model's weights are refused, by every command.

Read as they are, bytes and ids of another tokenizer give losses of a model that reads noise.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from model_files import CONFIG, random_tensors, write_folder
from program import errors, refused, run, succeeded

TOKENS = Path(__file__).resolve().parents[1] / "golden/tokens"
TOKENIZER = "bc83a9915a32dc3a"  # of these shards, as their manifest says

RUN = """
name = "r"
recipe = "bf16"
{start}
[logging]
statistics_every_steps = 0
[[stages]]
name = "cpt"
kind = "cpt"
steps = 1
batch_sequences = 1
sequence_length = 32
[stages.learning_rate]
warmup_steps = 0
[stages.data]
{data}
"""
SHARDS = 'kind = "tokens"\npath = "shards"\nform = "running_text"'
TEXT = 'kind = "text"\npath = "a.txt"\nform = "running_text"'


@pytest.fixture()
def folder(tmp_path: Path) -> Path:
    """A model with a tokenizer, its shards, a text, JSON lines and questions of text."""
    write_folder(tmp_path / "model", random_tensors(CONFIG))
    shutil.copytree(TOKENS, tmp_path / "shards")
    shutil.copy(TOKENS / "tokenizer.json", tmp_path / "model")
    (tmp_path / "a.txt").write_text("A text of bytes, long enough.\n" * 20)
    line = {"question": "One and one?", "answer": "Two."}
    (tmp_path / "a.jsonl").write_text((json.dumps(line) + "\n") * 9)
    return tmp_path


def write_run(folder: Path, data: str, start: str = 'init_from = "model"') -> Path:
    file = folder / "run.toml"
    file.write_text(RUN.format(start=start, data=data))
    return file


def test_bytes_are_no_ids_of_another_tokenizer(folder: Path) -> None:
    known = json.dumps(CONFIG | {"fp8lab_tokenizer": TOKENIZER})
    shutil.copytree(folder / "model", folder / "bare")
    (folder / "bare/config.json").write_text(known)
    (folder / "bare/tokenizer.json").unlink()  # with one, text becomes ids: test_text_data.py
    for name in ("a.txt", "a.jsonl"):
        for command in ("eval", "certify"):
            message = refused(command, "bare", "--data", name, cwd=folder)
            assert f"{name} would be read as bytes" in message
            assert f"the weights of bare are of the tokenizer {TOKENIZER}" in message
            wanted = f"python3 -m fp8lab.tokens {name} --tokenizer FOLDER --out shards"
            assert wanted in message
    message = refused("generate", "model", "--prompt", "x", "--vocabulary", "bytes", cwd=folder)
    assert TOKENIZER in message
    for data, start in ((TEXT, "bare"), ("", "bare"), ("", "model")):
        config = write_run(folder, data, f'init_from = "{start}"')
        for words in ([], ["--dry-run"]):
            message = refused("train", "--config", config, "--out", "r", *words, cwd=folder)
            assert f"of the tokenizer {TOKENIZER}" in message
        plain = write_run(folder, data, 'model = "model"')
        words = ["train", "--config", plain, "--init-from", start, "--dry-run"]
        message = refused(*words, cwd=folder)
        assert f"of the tokenizer {TOKENIZER}" in message
    assert not (folder / "r").exists()
    text = succeeded("eval", "model", "--data", "shards", "--json", cwd=folder)
    assert json.loads(text)["loss"] > 0


def test_the_identity_travels(folder: Path) -> None:
    """Into run file, checkpoint and exported folder, where no tokenizer.json lies any more."""
    config = write_run(folder, SHARDS)
    succeeded("train", "--config", config, "--out", "r", cwd=folder)
    (folder / "alone").mkdir()
    shutil.copy(folder / "r/checkpoint.safetensors", folder / "alone/c.safetensors")
    for place in ("model", "shards"):
        (folder / place / "tokenizer.json").unlink()
    succeeded("export", "alone/c.safetensors", "exported", cwd=folder)
    config_json = json.loads((folder / "exported/config.json").read_text())
    assert config_json["fp8lab_tokenizer"] == TOKENIZER
    for source in ("r", "alone/c.safetensors", "exported"):
        message = refused("eval", source, "--data", "a.txt", cwd=folder)
        assert f"the weights of {source} are of the tokenizer {TOKENIZER}" in message
        succeeded("eval", source, "--data", "shards", cwd=folder)
    start = 'init_from = "alone/c.safetensors"\nmodel = "model"'
    message = refused("train", "--config", write_run(folder, TEXT, start), "--out", "s", cwd=folder)
    assert "would be read as bytes" in message


def test_shards_of_another_tokenizer(folder: Path) -> None:
    (folder / "model/tokenizer.json").write_text("{}")
    message = refused("eval", "model", "--data", "shards", cwd=folder)
    assert f"shards was made with the tokenizer {TOKENIZER}, but the weights of model" in message
    message = refused("train", "--config", write_run(folder, SHARDS), "--dry-run", cwd=folder)
    assert TOKENIZER in message and "python3 -m fp8lab.tokens FILE --tokenizer model" in message


FEW = "model.vocab_size=272"


def test_a_model_of_bytes_takes_no_shards(folder: Path) -> None:
    config = write_run(folder, TEXT, 'model = "tiny"')
    size = ["--set", "model.vocab_size=304"]
    succeeded("train", "--config", config, "--out", "r", *size, cwd=folder)
    succeeded("export", "r", "exported", cwd=folder)
    assert json.loads((folder / "exported/config.json").read_text())["fp8lab_tokenizer"] == "bytes"
    for source in ("r", "exported"):
        succeeded("eval", source, "--data", "a.txt", cwd=folder)
        message = refused("eval", source, "--data", "shards", cwd=folder)
        assert f"the tokenizer {TOKENIZER}, but the weights of {source} are of bytes" in message
    message = refused("export", "r", "other", "--tokenizer", "shards", cwd=folder)
    assert "the weights are of bytes" in message
    # Too few ids for the shards as well: they cannot be made with a tokenizer of the model.
    succeeded("train", "--config", config, "--out", "few", *size[:1], FEW, cwd=folder)
    message = refused("eval", "few", "--data", "shards", cwd=folder)
    assert "needs a vocabulary of" in message and "fp8lab.tokens" not in message
    assert message.endswith("accepted: the text itself, as .txt or .jsonl\n")


def test_what_does_not_say_its_tokenizer(folder: Path) -> None:
    """Is believed where the sizes fit, in a line; a large model is of bytes in no case."""
    (folder / "model/tokenizer.json").unlink()
    result = run("eval", "model", "--data", "shards", cwd=folder)
    assert result.returncode == 0
    notes = [line for line in result.stderr.splitlines() if line.startswith("fp8lab: note: ")]
    assert errors(result) == "" and len(notes) == 2 and "2 are evaluated" in notes[1]
    assert "model does not say its tokenizer" in notes[0]
    succeeded("eval", "model", "--data", "a.txt", cwd=folder)  # 301 ids: as bytes are kept
    large = CONFIG | {"vocab_size": 4096}
    write_folder(folder / "large", random_tensors(large), large)
    message = refused("eval", "large", "--data", "a.txt", cwd=folder)
    assert "the weights of large are of 4096 ids of another tokenizer" in message
    config = write_run(folder, TEXT, 'model = "tiny"')
    words = ["train", "--config", config, "--set", "model.vocab_size=4096", "--out", "r"]
    result = run(*words, cwd=folder)
    assert result.returncode == 0
    assert "a.txt is read as bytes, which use 259 of the model's 4096 ids" in result.stderr


def test_a_missing_library_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text of a model with a tokenizer.json needs the library; ids do not."""
    block = folder / "block/tokenizers"
    block.mkdir(parents=True)
    raised = 'raise ModuleNotFoundError("No module named tokenizers", name="tokenizers")\n'
    (block / "__init__.py").write_text(raised)
    monkeypatch.setenv("PYTHONPATH", str(folder / "block"))
    monkeypatch.setenv("FP8LAB_PYTHON", sys.executable)
    monkeypatch.setenv("FP8LAB_CACHE", str(folder / "cache"))
    message = refused("eval", "model", "--data", "a.txt", cwd=folder)
    assert "tokenizers is not installed; encoding needs it" in message
    assert "pip install tokenizers" in message and sys.executable in message
    message = refused("generate", "model", "--prompt", "One", cwd=folder)
    assert "tokenizers is not installed" in message
    (folder / "p.jsonl").write_text('{"prompt": [5, 6]}\n')
    words = ["generate", "model", "--prompts", "p.jsonl", "--max-new-tokens", "2"]
    result = run(*words, cwd=folder)
    assert result.returncode == 0 and errors(result) == ""
    assert "note: ids are not spelled out: tokenizers is not installed" in result.stderr
