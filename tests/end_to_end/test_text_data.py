"""Text for a model with a tokenizer.json: the program makes shards of it, and keeps them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from model_files import CONFIG, random_tensors, write_folder
from program import PROGRAM, errors, refused, run, stopped, succeeded

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("xxhash", reason="xxhash is not installed")

ROOT = Path(__file__).resolve().parents[2]
TOKENS = ROOT / "tests/golden/tokens"
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
RUN = """
name = "r"
recipe = "bf16"
init_from = "model"
[logging]
statistics_every_steps = 0
[[stages]]
name = "sft"
kind = "sft"
steps = {steps}
batch_sequences = 1
sequence_length = 32
[stages.learning_rate]
warmup_steps = 0
[stages.data]
kind = "jsonl"
path = "chats.jsonl"
"""


@pytest.fixture()
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with a tokenizer and a chat template, texts, and a cache of its own."""
    write_folder(tmp_path / "model", random_tensors(CONFIG))
    shutil.copy(TOKENS / "tokenizer.json", tmp_path / "model")
    config = json.loads((TOKENS / "tokenizer_config.json").read_text())
    config["chat_template"] = TEMPLATE
    (tmp_path / "model/tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "a.txt").write_text("Three and four make seven.\n\nTwo and two make four.\n" * 20)
    said = [
        {"messages": [
            {"role": "user", "content": f"What is {i} and one?"},
            {"role": "assistant", "content": f"It is {i + 1}."},
        ]}
        for i in range(9)
    ]  # fmt: skip
    lines = "".join(json.dumps(line) + "\n" for line in said)
    (tmp_path / "chats.jsonl").write_text(lines)
    monkeypatch.setenv("FP8LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FP8LAB_PYTHON", sys.executable)
    return tmp_path


def kept(folder: Path) -> list[Path]:
    """Whole entries of the cache, and whatever else lies there."""
    place = folder / "cache/shards"
    return sorted(place.iterdir()) if place.exists() else []


def make_shards(folder: Path, name: str) -> None:
    words = [sys.executable, "-m", "fp8lab.tokens", name, "--tokenizer", "model", "--out", "byhand"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src/python")}
    subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True)


def loss(folder: Path, data: str, *options: str) -> Any:
    text = succeeded("eval", "model", "--data", data, "--json", *options, cwd=folder)
    return json.loads(text)["loss"]


def interpreter(folder: Path, before: str = "", after: str = "") -> str:
    """One that notes each start, and does something before and after the work."""
    file = folder / "interpreter"
    file.write_text(
        f"#!/bin/sh\necho start >> '{folder}/starts'\n{before}\n'{sys.executable}' \"$@\"\n"
        f"status=$?\n{after}\nexit $status\n"
    )
    file.chmod(0o755)
    return str(file)


def starts(folder: Path) -> int:
    file = folder / "starts"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.parametrize(
    ("name", "options"), [("a.txt", []), ("chats.jsonl", ["--form", "prompt_response"])]
)
def test_text_is_its_shards(
    name: str, options: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = loss(folder, name, *options)
    make_shards(folder, name)
    form = options or ["--form", "running_text"]
    assert loss(folder, "byhand", *form) == first
    (entry,) = kept(folder)
    shard = next((folder / "byhand").glob("*.tokens")).read_bytes()
    assert (entry / "text-00000.tokens").read_bytes() == shard
    monkeypatch.setenv("FP8LAB_PYTHON", "/bin/false")  # no child is started for what is kept
    assert loss(folder, name, *options) == first


def test_an_entry_follows_from_all_that_the_ids_do(folder: Path) -> None:
    loss(folder, "chats.jsonl")
    shutil.copy(folder / "chats.jsonl", folder / "copy.jsonl")
    loss(folder, "copy.jsonl")
    assert len(kept(folder)) == 1
    (folder / "copy.jsonl").write_text((folder / "chats.jsonl").read_text() * 2)
    loss(folder, "copy.jsonl")
    assert len(kept(folder)) == 2
    before = loss(folder, "chats.jsonl")
    (folder / "model/chat_template.jinja").write_text(TEMPLATE.replace(": ", " -> "))
    assert loss(folder, "chats.jsonl") != before
    assert len(kept(folder)) == 3


def test_messages_need_a_template(folder: Path) -> None:
    (folder / "model/tokenizer_config.json").unlink()
    message = refused("eval", "model", "--data", "chats.jsonl", cwd=folder)
    assert "chats.jsonl:1: messages need a chat template" in message
    assert kept(folder) == []


def test_a_run_on_text(folder: Path) -> None:
    """Its identity is the shards', and a resume takes them from the cache or makes them again."""
    config = folder / "run.toml"
    config.write_text(RUN.format(steps=12))
    stopped("train", "--config", config, "--out", folder / "r", cwd=folder)
    shutil.copytree(folder / "r", folder / "s")
    shutil.copytree(folder / "r", folder / "t")
    done = []
    for name in ("r", "s"):
        words = ("train", "--config", config, "--out", name, "--resume")
        assert run(*words, cwd=folder).returncode in (0, 5)
        succeeded("export", name, f"{name}-weights", cwd=folder)
        done.append((folder / f"{name}-weights/model.safetensors").read_bytes())
        shutil.rmtree(folder / "cache")
    assert done[0] == done[1]
    make_shards(folder, "chats.jsonl")
    manifest = json.loads((folder / "byhand/chats.manifest.json").read_text())
    text = succeeded("eval", "r", "--data", "chats.jsonl", "--json", cwd=folder)
    shards = ("eval", "r", "--data", "byhand", "--form", "prompt_response", "--json")
    assert json.loads(text)["loss"] == json.loads(succeeded(*shards, cwd=folder))["loss"]
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "r/run.h5") as file:
        (entry,) = json.loads(bytes(file["meta"].attrs["extra.data_manifest"]))
    (source,) = entry["sources"]
    assert source["files"][0]["path"] == "chats.jsonl" and source["documents"] == 9
    assert source["tokenizer"] == manifest["tokenizer"]["hash"]
    # A run that starts from this one knows the tokenizer too.
    text = RUN.format(steps=1).replace('"model"', '"r/checkpoint.safetensors"')
    config.with_name("next.toml").write_text(text)
    assert run("train", "--config", "next.toml", "--out", "n", cwd=folder).returncode in (0, 5)
    assert "loss" in succeeded("eval", "n", "--data", "a.txt", "--form", "running_text", cwd=folder)
    (folder / "chats.jsonl").write_text((folder / "chats.jsonl").read_text() * 2)
    words = ("train", "--config", config, "--out", "t", "--resume")
    assert "training data" in refused(*words, cwd=folder)


def test_generate_prints_text(folder: Path) -> None:
    (folder / "p.jsonl").write_text('{"prompt": "Two and"}\n{"prompt": [5, 6, 7]}\n')
    words = ["generate", "model", "--prompt", "Three and four", "--prompts", "p.jsonl"]
    words += ["--max-new-tokens", "8", "--min-new-tokens", "8"]
    text = succeeded(*words, "--json", cwd=folder)
    answers = [json.loads(line) for line in text.splitlines()]
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "model/tokenizer.json"))
    assert len(answers) == 3
    for answer in answers:
        said = answer["text"].encode(errors="replace").decode(errors="replace")
        assert said == tokenizer.decode(answer["tokens"])
    # The same ids by hand: a prompt begins as a document does.
    config = json.loads((folder / "model/tokenizer_config.json").read_text())
    begin = tokenizer.token_to_id(config["bos_token"])
    ids = tokenizer.encode("Three and four", add_special_tokens=False).ids
    (folder / "q.jsonl").write_text(json.dumps({"prompt": [begin, *ids]}) + "\n")
    words = ["generate", "model", "--prompts", "q.jsonl", "--json"]
    words += ["--max-new-tokens", "8", "--min-new-tokens", "8"]
    assert json.loads(succeeded(*words, cwd=folder))["tokens"] == answers[0]["tokens"]
    plain = succeeded("generate", "model", "--prompt", "Two", "--max-new-tokens", "3", cwd=folder)
    assert plain.startswith("--- prompt 0 sample 0: ")
    assert not list((folder / "cache").glob("*prompts*"))


def test_damage_in_the_cache_is_made_good(folder: Path) -> None:
    first = loss(folder, "a.txt")
    (entry,) = kept(folder)
    shard = entry / "text-00000.tokens"
    whole = shard.read_bytes()
    for damage in (whole[:-9], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        shard.write_bytes(damage)
        assert loss(folder, "a.txt") == first
        assert shard.read_bytes() == whole
    shard.unlink()
    assert loss(folder, "a.txt") == first
    (entry / "token_bytes.json").write_text("{")
    assert loss(folder, "a.txt") == first
    (entry / "text.manifest.json").write_text('{"shards": []}')
    assert loss(folder, "a.txt") == first
    assert kept(folder) == [entry]


def test_one_of_several_processes_makes_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FP8LAB_PYTHON", interpreter(folder, "sleep 1"))
    words = [PROGRAM, "eval", "model", "--data", "a.txt", "--json", "--threads", "1"]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as first:
        others = [
            subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) for _ in range(3)
        ]
        said = [process.communicate(timeout=100)[0] for process in (first, *others)]
    losses = {json.loads(text)["loss"] for text in said}
    assert len(losses) == 1
    assert starts(folder) == 1


def test_a_kill_leaves_no_half(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program dies while its child writes: what is left has another name and goes later."""
    marker = folder / "at-work"
    slow = interpreter(folder, after=f"touch '{marker}'; sleep 2")
    monkeypatch.setenv("FP8LAB_PYTHON", slow)
    words = [PROGRAM, "eval", "model", "--data", "a.txt"]
    with subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not marker.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    left = [entry for entry in kept(folder) if (entry / "text.manifest.json").exists()]
    assert len(left) == 1 and ".tmp" in left[0].name
    monkeypatch.setenv("FP8LAB_PYTHON", sys.executable)
    assert loss(folder, "a.txt") > 0
    (entry,) = kept(folder)
    assert entry != left[0]


def test_a_file_that_changes_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = f"echo Five. >> '{folder}/a.txt'"
    monkeypatch.setenv("FP8LAB_PYTHON", interpreter(folder, after=change))
    message = refused("eval", "model", "--data", "a.txt", cwd=folder)
    assert "a.txt: it, or the tokenizer in model, changed while it was read" in message
    assert kept(folder) == []


def test_what_is_missing_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = folder / "block/tokenizers"
    block.mkdir(parents=True)
    raised = 'raise ModuleNotFoundError("No module named tokenizers", name="tokenizers")\n'
    (block / "__init__.py").write_text(raised)
    with monkeypatch.context() as changed:
        changed.setenv("PYTHONPATH", str(folder / "block"))
        for words in (["eval", "model", "--data", "a.txt"], ["generate", "model", "--prompt", "a"]):
            message = (
                refused(*words, cwd=folder)
                if words[0] == "eval"
                else errors(run(*words, cwd=folder))
            )
            assert "tokenizers is not installed; encoding needs it" in message
            assert "pip install tokenizers" in message and sys.executable in message
    monkeypatch.setenv("FP8LAB_PYTHON", str(folder / "nowhere"))
    message = refused("eval", "model", "--data", "a.txt", cwd=folder)
    assert "nowhere: cannot be started" in message
    assert "FP8LAB_PYTHON=INTERPRETER with numpy, tokenizers and xxhash" in message
    monkeypatch.setenv("FP8LAB_PYTHON", "/bin/false")
    result = run("eval", "model", "--data", "a.txt", cwd=folder)
    assert result.returncode == 1 and "/bin/false -m fp8lab.tokens ended with status 1" in (
        result.stderr
    )


def test_bad_data_are_named(folder: Path) -> None:
    (folder / "bad.jsonl").write_text('{"text": "Fine."}\n{"text": 3}\n')
    message = refused("eval", "model", "--data", "bad.jsonl", cwd=folder)
    assert 'bad.jsonl:2: expected a string in "text"' in message
    (folder / "plain.jsonl").write_text('{"text": "Nobody asks, nobody answers."}\n')
    words = ["eval", "model", "--data", "plain.jsonl", "--form", "prompt_response"]
    message = refused(*words, cwd=folder)
    assert "plain.jsonl: no record has a prompt" in message
    assert loss(folder, "plain.jsonl", "--form", "running_text") > 0
    words = ["eval", "model", "--data", "a.txt", "--form", "prompt_response"]
    assert "plain text has no prompts" in refused(*words, cwd=folder)
    assert "no-such.txt" in refused("eval", "model", "--data", "no-such.txt", cwd=folder)


def test_where_shards_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FP8LAB_CACHE")
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # counts for nothing
    loss(folder, "a.txt")
    assert len(list((folder / "home/.cache/fp8lab/shards").iterdir())) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "xdg"))
    loss(folder, "a.txt")
    assert len(list((folder / "xdg/fp8lab/shards").iterdir())) == 1
    (folder / "file").write_text("")
    monkeypatch.setenv("FP8LAB_CACHE", str(folder / "file"))
    assert str(folder / "file") in refused("eval", "model", "--data", "a.txt", cwd=folder)
