"""What a user asks: text, special tokens typed by hand and messages, of folders and of runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from model_files import CONFIG, random_tensors, write_folder
from program import SMALL_MODEL, refused, run, succeeded

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("xxhash", reason="xxhash is not installed")
pytest.importorskip("jinja2", reason="jinja2 is not installed")

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/tokens"
RUN = """
name = "r"
recipe = "bf16"
{start}
[logging]
statistics_every_steps = 0
[[stages]]
name = "sft"
kind = "sft"
steps = 2
batch_sequences = 1
sequence_length = 96
[stages.data]
kind = "{kind}"
path = "{path}"
"""
FEW = ("--max-new-tokens", 6, "--min-new-tokens", 6, "--json")
CHAT = {"messages": [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 2?"}]}
TYPED = "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n1 + 2?<|im_end|>\n"
TYPED += "<|im_start|>assistant\n"


def make_shards(folder: Path, name: str, *options: object) -> None:
    words = [sys.executable, "-m", "fp8lab.tokens", name, *map(str, options)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src/python")}
    subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True)


@pytest.fixture()
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Chats, and a cache of its own."""
    said = [
        {"messages": [
            {"role": "system", "content": "Add."},
            {"role": "user", "content": f"{i} + 2?"},
            {"role": "assistant", "content": f"It is {i + 2}."},
        ]}
        for i in range(20)
    ]  # fmt: skip
    lines = "".join(json.dumps(line) + "\n" for line in said)
    (tmp_path / "chats.jsonl").write_text(lines)
    monkeypatch.setenv("FP8LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FP8LAB_PYTHON", sys.executable)
    return tmp_path


def train(folder: Path, name: str, kind: str, path: str, start: str) -> None:
    (folder / f"{name}.toml").write_text(RUN.format(kind=kind, path=path, start=start))
    words = ("train", "--config", f"{name}.toml", "--out", name)
    assert run(*words, cwd=folder).returncode in (0, 5)


@pytest.fixture()
def asked(folder: Path) -> Path:
    """A run, sft, on shards of a BPE that was trained on them."""
    make_shards(folder, "chats.jsonl", "--out", "shards", "--train-bpe", 300)
    (folder / "small.toml").write_text(SMALL_MODEL.replace("272", "320"))
    start = SMALL_MODEL.replace("272", "320").replace("[model]", "").strip().splitlines()
    train(folder, "sft", "tokens", "shards", "\n".join(f"model.{line}" for line in start))
    return folder


def answers(folder: Path, source: str, *words: object) -> list[Any]:
    said = succeeded("generate", source, *words, *FEW, cwd=folder)
    return [json.loads(line)["tokens"] for line in said.splitlines()]


def by_ids(folder: Path, source: str, *prompts: list[int]) -> list[Any]:
    text = "".join(json.dumps({"prompt": ids}) + "\n" for ids in prompts)
    (folder / "ids.jsonl").write_text(text)
    return answers(folder, source, "--prompts", "ids.jsonl")


def test_a_run_on_shards_is_asked_in_text(asked: Path) -> None:
    own = tokenizers.Tokenizer.from_file(str(asked / "shards/tokenizer.json"))
    begin = own.token_to_id("<|begin|>")
    plain = [begin, *own.encode("1 + 2?", add_special_tokens=False).ids]
    chat = own.encode(TYPED, add_special_tokens=False).ids
    assert chat.count(own.token_to_id("<|im_start|>")) == 3
    user = own.encode(
        "<|im_start|>user\n1 + 2?<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False
    ).ids
    expected = by_ids(asked, "sft", plain, chat, user, chat)
    assert expected[0] != expected[1]
    (asked / "asked.jsonl").write_text(json.dumps(CHAT) + "\n")
    words = [
        "--prompt",
        "1 + 2?",
        "--prompt",
        TYPED,
        "--chat",
        "1 + 2?",
        "--prompts",
        "asked.jsonl",
    ]
    assert answers(asked, "sft", *words) == expected
    (answer, *_) = succeeded("generate", "sft", *words, *FEW, cwd=asked).splitlines()
    shown = json.loads(answer)
    text = own.decode(shown["tokens"], skip_special_tokens=True)
    assert shown["text"].encode(errors="replace").decode(errors="replace") == text
    # So is its checkpoint, and what is exported of it.
    assert answers(asked, "sft/checkpoint.safetensors", *words) == expected
    succeeded("export", "sft", "out", "--tokenizer", "shards", "--dtype", "f32", cwd=asked)
    assert answers(asked, "out", *words) == by_ids(asked, "out", plain, chat, user, chat)
    # The tokenizer of the data is copied without being named.
    assert "without a tokenizer" not in succeeded("export", "sft", "own", cwd=asked)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (asked / "own" / name).read_bytes() == (asked / "shards" / name).read_bytes()
    words = (
        "certify",
        "sft",
        "--chat",
        "Add.",
        "--max-new-tokens",
        4,
        "--together",
        1,
        "--json",
        "c.json",
    )
    assert "exact" in succeeded(*words, cwd=asked)


def test_chats_are_read_by_the_tokenizer_that_asks(asked: Path) -> None:
    def loss(source: str, data: str) -> float:
        said = succeeded("eval", source, "--data", data, "--sequences", 2, "--json", cwd=asked)
        return float(json.loads(said)["loss"])

    expected = loss("sft", "shards")
    assert loss("sft", "chats.jsonl") == expected
    assert loss("sft/checkpoint.safetensors", "chats.jsonl") == expected
    # What starts from the run, and what starts from that.
    start = 'init_from = "{}/checkpoint.safetensors"'
    train(asked, "second", "jsonl", "chats.jsonl", start.format("sft"))
    train(asked, "third", "jsonl", "chats.jsonl", start.format("second"))
    assert loss("third", "chats.jsonl") == loss("third", "shards")
    succeeded("export", "third", "folder", cwd=asked)
    assert (asked / "folder/tokenizer.json").is_file()


def test_what_to_do_without_the_tokenizer(asked: Path) -> None:
    expected = answers(asked, "sft", "--chat", "Add.")
    hash_ = json.loads((asked / "shards/token_bytes.json").read_text())["tokenizer_hash"]
    (asked / "shards/tokenizer.json").rename(asked / "kept.json")
    for words in (["--prompt", "a"], ["--chat", "a"]):
        message = refused("generate", "sft", *words, cwd=asked)
        assert f"generate: {words[0]} is text, and the tokenizer.json ({hash_})" in message
        for way in ("--look-in", "fp8lab export sft DIR --tokenizer FOLDER", "ids by --prompts"):
            assert way in message
    (asked / "shards/tokenizer.json").write_text(GOLDEN.joinpath("tokenizer.json").read_text())
    assert "is not beside them" in refused("generate", "sft", "--prompt", "a", cwd=asked)
    # A folder that has it, and nothing of the data.
    (asked / "other").mkdir()
    (asked / "kept.json").rename(asked / "other/tokenizer.json")
    shutil.copy(asked / "shards/tokenizer_config.json", asked / "other")
    look = ("--look-in", "other")
    assert answers(asked, "sft", "--chat", "Add.", *look) == expected
    shutil.rmtree(asked / "shards")
    assert "without a tokenizer" in succeeded("export", "sft", "bare", cwd=asked)
    message = refused("generate", "sft", "--prompt", "a", cwd=asked)
    assert (
        "are missing: shards" in message
        and f"or a folder with its tokenizer.json ({hash_})" in message
    )
    assert answers(asked, "sft", "--chat", "Add.", *look) == expected
    # Moved with the data: as these are found.
    make_shards(asked, "chats.jsonl", "--out", "far/shards", "--train-bpe", 300)
    assert answers(asked, "sft", "--chat", "Add.", "--look-in", "far") == expected


def published(folder: Path, **config: Any) -> None:
    """The folder `model`, with the tokenizer of the golden shards."""
    write_folder(folder / "model", random_tensors(CONFIG))
    shutil.copy(GOLDEN / "tokenizer.json", folder / "model")
    config = json.loads((GOLDEN / "tokenizer_config.json").read_text()) | config
    (folder / "model/tokenizer_config.json").write_text(json.dumps(config))


def golden_ids(text: str) -> list[int]:
    own = tokenizers.Tokenizer.from_file(str(GOLDEN / "tokenizer.json"))
    ids: list[int] = own.encode(text, add_special_tokens=False).ids
    return ids


def test_prompts_of_a_folder(folder: Path) -> None:
    template = (
        "{% for m in messages %}<|end|>{{ m.role }}: {{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|end|>assistant: {% endif %}"
    )
    published(folder, chat_template=template)
    typed = "<|end|>system: Add.<|end|>user: 1 + 2?<|end|>assistant: "
    chat = golden_ids(typed)
    assert chat.count(1) == 3
    expected = by_ids(folder, "model", chat, [0, *golden_ids("1 + 2?")], [0, *golden_ids("a")])
    (folder / "asked.jsonl").write_text(json.dumps(CHAT) + '\n{"prompt": "1 + 2?"}\n')
    words = ("--prompt", typed, "--prompt", "1 + 2?", "--prompt", "<|begin|>a")
    assert answers(folder, "model", *words) == expected
    assert answers(folder, "model", "--prompts", "asked.jsonl") == expected[:2]
    said = run("generate", "model", "--prompt", "<|im_start|>a", *FEW, cwd=folder)
    note = "fp8lab: note: generate: --prompt: '<|im_start|>' reads like a special token, but is "
    assert note + "none of the tokenizer: it is spelled out\n" in said.stderr
    assert "note" not in run("generate", "model", *words, *FEW, cwd=folder).stderr


def test_what_is_wrong_has_its_place(folder: Path) -> None:
    published(folder)
    (folder / "asked.jsonl").write_text('{"prompt": "a"}\n\n' + json.dumps(CHAT) + "\n")
    message = refused("generate", "model", "--prompts", "asked.jsonl", cwd=folder)
    assert "asked.jsonl:3: messages need a chat template" in message and "cache" not in message
    message = refused("generate", "model", "--chat", "a", cwd=folder)
    assert "generate: --chat: messages need a chat template" in message
    for line in ('{"text": "a"}', '{"prompt": "a", "messages": []}', "[1]"):
        (folder / "asked.jsonl").write_text(line + "\n")
        message = refused("generate", "model", "--prompts", "asked.jsonl", cwd=folder)
        assert 'asked.jsonl:1: accepted: an object with "prompt" or "messages"' in message
    (folder / "asked.jsonl").write_text('{"prompt": []}\n')
    message = refused("generate", "model", "--prompts", "asked.jsonl", cwd=folder)
    assert 'asked.jsonl:1: "prompt" is empty' in message


def test_no_begin_token_where_the_tokenizer_adds_none(folder: Path) -> None:
    """In front of documents and prompts alike; the cache holds both kinds."""
    (folder / "a.txt").write_text("Three and four make seven.\n\nTwo and two make four.\n" * 20)
    losses = {}
    for adds in (True, False):
        shutil.rmtree(folder / "model", ignore_errors=True)
        published(folder, add_bos_token=adds)
        front = [0] if adds else []
        words = ("eval", "model", "--data", "a.txt", "--json")
        losses[adds] = json.loads(succeeded(*words, cwd=folder))["loss"]
        option = ["--begin", "<|begin|>"] if adds else ["--no-begin"]
        make_shards(folder, "a.txt", "--tokenizer", GOLDEN, "--out", f"made{adds}", *option)
        words = ("eval", "model", "--data", f"made{adds}", "--form", "running_text", "--json")
        assert json.loads(succeeded(*words, cwd=folder))["loss"] == losses[adds]
        expected = by_ids(folder, "model", [*front, *golden_ids("Two and")])
        assert answers(folder, "model", "--prompt", "Two and") == expected
    assert losses[True] != losses[False]
    assert len(list((folder / "cache/shards").iterdir())) == 2
    assert "generate: --prompt is empty" in refused("generate", "model", "--prompt", "", cwd=folder)


def test_prompts_begin_as_the_documents_of_the_run(folder: Path) -> None:
    """Whatever the folder that it started from says."""
    published(folder, add_bos_token=True, chat_template="{{ messages[0].content }}")
    make_shards(folder, "chats.jsonl", "--tokenizer", "model", "--out", "shards", "--no-begin",
                "--chat-template", write_template(folder))  # fmt: skip
    train(folder, "r", "tokens", "shards", 'init_from = "model"')
    expected = by_ids(folder, "r", golden_ids("Two and"))
    assert answers(folder, "r", "--prompt", "Two and") == expected
    assert answers(folder, "model", "--prompt", "Two and") == by_ids(
        folder, "model", [0, *golden_ids("Two and")]
    )
    make_shards(folder, "chats.jsonl", "--tokenizer", "model", "--out", "ended", "--begin",
                "<|end|>", "--chat-template", write_template(folder))  # fmt: skip
    train(folder, "s", "tokens", "ended", 'init_from = "model"')
    expected = by_ids(folder, "s", [1, *golden_ids("Two and")])
    assert answers(folder, "s", "--prompt", "Two and") == expected


def write_template(folder: Path) -> Path:
    file = folder / "own.jinja"
    file.write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    return file


def test_a_run_on_bytes_is_asked_by_messages(folder: Path) -> None:
    start = SMALL_MODEL.replace("[model]", "").strip().splitlines()
    train(folder, "r", "jsonl", "chats.jsonl", "\n".join(f"model.{line}" for line in start))
    (folder / "asked.jsonl").write_text(json.dumps(CHAT) + "\n")
    text = "system: Add.\nuser: 1 + 2?\nassistant: "
    expected = by_ids(folder, "r", [256, *text.encode()])
    assert answers(folder, "r", "--prompts", "asked.jsonl") == expected
    assert answers(folder, "r", "--prompt", text) == expected
    said = run("generate", "r", "--prompt", "<|im_start|>user", *FEW, cwd=folder)
    note = "'<|im_start|>' reads like a special token, of which bytes have none"
    assert f"fp8lab: note: generate: --prompt: {note}" in said.stderr
    (folder / "asked.jsonl").write_text('{"messages": [{"role": "assistant", "content": "a"}]}\n')
    message = refused("generate", "r", "--prompts", "asked.jsonl", cwd=folder)
    assert "asked.jsonl:1: the last message is the assistant's" in message
