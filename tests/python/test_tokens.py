"""fp8lab.tokens: documents, masks, chat templates, training a BPE, and what the program reads."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
xxhash = pytest.importorskip("xxhash", reason="xxhash is not installed")

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "src/python"))

from fp8lab.tokens import TokenError, read_shard  # noqa: E402
from fp8lab.tokens.__main__ import main  # noqa: E402
from fp8lab.tokens.documents import Chat, read_documents  # noqa: E402
from fp8lab.tokens.tokenizer import load_encoder  # noqa: E402

GOLDEN = ROOT / "tests/golden/tokens"

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}"
    "[A]{% generation %}{{ message['content'] }}{{ eos_token }}{% endgeneration %}"
    "{%- else -%}[U]{{ message['content'] }}{%- endif -%}"
    "{%- endfor -%}"
)
TALK = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "sure?"},
    {"role": "assistant", "content": "yes"},
]


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("fp8lab.tokens: ") and message.count("\n") == 1, message
    return message


def write_lines(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def byte_tokenizer(folder: Path, *specials: str) -> Path:
    """A tokenizer.json whose ids are the specials, then the bytes: masks can be told by hand."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*specials, *alphabet])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(list(specials))
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def spoken(shard_folder: Path, document: int = 0, specials: bool = False) -> tuple[str, str]:
    """The text of a document, and the part of it that is trained on, without special tokens unless
    `specials`."""
    found = json.loads((shard_folder / "token_bytes.json").read_text())
    table = found["tokens"]
    if specials:
        for index, text in found["special"].items():
            table[int(index)] = text.encode().hex()
    (file,) = shard_folder.glob("*.tokens")
    shard = read_shard(file)
    first = 0 if document == 0 else int(shard.document_ends[document - 1])
    last = int(shard.document_ends[document])
    texts = [bytes.fromhex(table[int(i)]).decode("latin-1") for i in shard.tokens[first:last]]
    assert shard.trained is not None
    chosen = [text for text, kept in zip(texts, shard.trained[first:last], strict=True) if kept]
    return "".join(texts), "".join(chosen)


def test_pipes_in_the_place_of_results_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "a-00000.tokens")
    with pytest.raises(TokenError, match="a-00000.tokens: is no regular file"):
        read_shard(tmp_path / "a-00000.tokens")
    (tmp_path / "a.txt").write_text("one two")
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out/tokenizer.json")
    said = refused(capsys, tmp_path / "a.txt", "--out", tmp_path / "out", "--train-bpe", 300)
    assert "out/tokenizer.json: is no regular file" in said


def test_questions_are_masked_and_running_text_is_not(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "qa.jsonl", {"question": "2+2?", "answer": "It is\n#### 4"})
    folder = byte_tokenizer(tmp_path / "model", "<b>", "<e>")
    run(file, "--out", tmp_path / "qa", "--tokenizer", folder, "--begin", "<b>", "--end", "<e>")
    shard = read_shard(tmp_path / "qa/qa-00000.tokens")
    assert shard.tokens[0] == 0 and shard.tokens[-1] == 1
    prompt = len("Question: 2+2?\nAnswer: ")
    assert shard.trained is not None
    assert shard.trained.tolist() == [False] * (1 + prompt) + [True] * (len("It is\n#### 4") + 1)
    assert spoken(tmp_path / "qa") == ("Question: 2+2?\nAnswer: It is\n#### 4", "It is\n#### 4")

    text = tmp_path / "text.txt"
    text.write_text("one\ntwo\n\n \nthree\n")
    run(text, "--out", tmp_path / "text", "--tokenizer", folder, "--end", "<e>")
    shard = read_shard(tmp_path / "text/text-00000.tokens")
    assert shard.trained is None and shard.document_ends.tolist() == [8, 14]
    assert shard.tokenization.begin == -1 and shard.tokenization.end == 1


def test_text_that_looks_like_a_special_token_is_spelled_out(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", {"text": "x<e>y"})
    folder = byte_tokenizer(tmp_path / "model", "<b>", "<e>")
    run(file, "--out", tmp_path / "out", "--tokenizer", folder, "--begin", "<b>", "--end", "<e>")
    tokens = read_shard(tmp_path / "out/a-00000.tokens").tokens.tolist()
    assert len(tokens) == 7 and tokens.count(1) == 1 and tokens[-1] == 1


def chat_folder(tmp_path: Path, template: object) -> Path:
    folder = byte_tokenizer(tmp_path / "model", "<|im_start|>", "<|im_end|>", "</s>")
    config = {"chat_template": template, "eos_token": {"content": "</s>"}, "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("template", [CHATML, [{"name": "default", "template": CHATML}]])
def test_without_marks_the_assistant_is_what_follows_its_prompt(
    tmp_path: Path, template: object
) -> None:
    folder = chat_folder(tmp_path, template)
    file = write_lines(tmp_path / "chat.jsonl", {"messages": TALK})
    run(file, "--out", tmp_path / "out", "--tokenizer", folder)
    said, trained = spoken(tmp_path / "out", specials=True)
    assert said.startswith("<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>")
    said, trained = spoken(tmp_path / "out")
    assert said == "user\n2+2?\nassistant\n4\nuser\nsure?\nassistant\nyes\n"
    assert trained == "4\nyes\n"
    shard = read_shard(tmp_path / "out/chat-00000.tokens")
    assert shard.trained is not None
    ends = [i for i, token in enumerate(shard.tokens) if token == 1]
    assert shard.trained[ends].tolist() == [False, True, False, True], "it learns to stop"
    assert shard.tokens.tolist().count(0) == 4, "specials of the template are single tokens"


def test_marks_of_the_template_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path, MARKED)
    file = write_lines(tmp_path / "chat.jsonl", {"messages": TALK})
    run(file, "--out", tmp_path / "out", "--tokenizer", folder)
    assert spoken(tmp_path / "out") == ("[U]2+2?[A]4[U]sure?[A]yes", "4yes")


AS_TRANSFORMERS = [
    CHATML,
    MARKED,
    "{%- for m in messages %}\n  {%- if m.role == 'user' %}\n    {% continue %}\n  {% endif %}\n"
    "  {% generation %}\n {{ m | tojson }}\n {% endgeneration %}\n{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}"
    "{%- generation -%} {{ m.content }} {%- endgeneration -%}"
    "{% if ns.n > 2 %}{% break %}{% endif %}{% endfor %}{{ messages[0] | tojson(indent=2) }}",
]


@pytest.mark.parametrize("template", AS_TRANSFORMERS)
def test_transformers_renders_and_masks_alike(tmp_path: Path, template: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = chat_folder(tmp_path, template)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="</s>", chat_template=template
    )
    marked = "endgeneration" in template
    expected = theirs.apply_chat_template(
        TALK, tokenize=True, return_dict=True, return_assistant_tokens_mask=marked
    )
    ((ids, mask),) = load_encoder(folder, None, None).encode([Chat(TALK, "f:1")])
    assert ids == expected["input_ids"]
    if marked:
        assert [int(kept) for kept in mask] == expected["assistant_masks"]


def test_training_is_reproducible_in_another_process(tmp_path: Path) -> None:
    records = [{"question": f"What is {i} plus {i}?", "answer": f"#### {2 * i}"} for i in range(60)]
    file = write_lines(tmp_path / "sums.jsonl", *records)
    for name in ("one", "two"):
        command = [sys.executable, "-m", "fp8lab.tokens", str(file), "--out", str(tmp_path / name)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src/python")}
        environment["PYTHONHASHSEED"] = "1" if name == "one" else "2"
        subprocess.run([*command, "--train-bpe", "270"], check=True, env=environment)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert "sums.manifest.json" in names and "sums-00000.tokens" in names
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    manifest = json.loads((tmp_path / "one/sums.manifest.json").read_text())
    assert manifest["documents"] == 60 and manifest["tokenizer"]["vocabulary"] == 270
    shard = read_shard(tmp_path / "one/sums-00000.tokens")
    assert f"{shard.content_hash:016x}" == manifest["shards"][0]["hash"]
    said, trained = spoken(tmp_path / "one", 7)
    assert said == "Question: What is 7 plus 7?\nAnswer: #### 14" and trained == "#### 14"


def test_a_trained_tokenizer_serves_other_files_and_digits_stay_single(tmp_path: Path) -> None:
    text = write_lines(tmp_path / "train.jsonl", *[{"text": "1234 1234 apples"}] * 50)
    run(text, "--out", tmp_path / "out", "--train-bpe", 280)
    other = write_lines(tmp_path / "test.jsonl", {"text": "1234 pears"})
    run(other, "--out", tmp_path / "out", "--tokenizer", tmp_path / "out")
    first = read_shard(tmp_path / "out/train-00000.tokens")
    second = read_shard(tmp_path / "out/test-00000.tokens")
    assert first.tokenization == second.tokenization
    assert second.tokens[0] == second.tokenization.begin == 0
    assert second.tokens[-1] == second.tokenization.end == 1
    table = json.loads((tmp_path / "out/token_bytes.json").read_text())["tokens"]
    digits = [
        bytes.fromhex(text)
        for text in table
        if any(c in b"0123456789" for c in bytes.fromhex(text))
    ]
    assert sorted(digits) == [bytes([c]) for c in b"0123456789"]


def test_shards_end_with_documents(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", *[{"text": "x" * 9} for _ in range(7)])
    folder = byte_tokenizer(tmp_path / "model", "<e>")
    run(
        file, "--out", tmp_path / "out", "--tokenizer", folder, "--end", "<e>", "--shard-tokens", 25
    )
    shards = [read_shard(path) for path in sorted((tmp_path / "out").glob("*.tokens"))]
    assert [len(shard.document_ends) for shard in shards] == [3, 3, 1]
    assert all(document.tolist()[-1] == 0 for shard in shards for document in shard.documents())


def test_wide_vocabularies_get_wide_tokens(tmp_path: Path) -> None:
    vocabulary = {chr(0x4E00 + i): i for i in range(20000)}
    vocabulary.update({f"{chr(0x4E00 + i)}x": 20000 + i for i in range(20000)})
    vocabulary.update({f"{chr(0x4E00 + i)}y": 40000 + i for i in range(20000)})
    vocabulary.update({f"{chr(0x4E00 + i)}z": 60000 + i for i in range(10000)})
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, chr(0x4E00)))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    last = chr(0x4E00 + 9999) + "z"
    file = write_lines(tmp_path / "a.jsonl", {"text": f"{last} {last}"})
    run(file, "--out", tmp_path / "out", "--tokenizer", tmp_path / "words.json")
    shard = read_shard(tmp_path / "out/a-00000.tokens")
    assert shard.tokens.dtype == np.uint32 and shard.tokens.tolist() == [69999, 69999]
    assert not (tmp_path / "out/token_bytes.json").exists(), "words are not byte-level"


def test_parquet_equals_json_lines(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    records = [{"question": f"{i}?", "answer": f"#### {i}"} for i in range(3000)]
    parquet.write_table(arrow.Table.from_pylist(records), tmp_path / "a.parquet")
    lines = write_lines(tmp_path / "a.jsonl", *records)
    assert list(read_documents(tmp_path / "a.parquet")) == list(read_documents(lines))
    talks = [{"messages": TALK}]
    parquet.write_table(arrow.Table.from_pylist(talks), tmp_path / "b.parquet")
    (chat,) = read_documents(tmp_path / "b.parquet")
    assert isinstance(chat, Chat) and chat.messages == TALK
    (tmp_path / "c.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(TokenError, match="not a Parquet file"):
        list(read_documents(tmp_path / "c.parquet"))


BAD_RECORDS = {
    "{oops": ":1: not valid JSON",
    "[1]": ":1: expected an object",
    '{"question": 3, "answer": "b"}': 'expected a string in "question"',
    '{"question": "a"}': 'expected a string in "answer"',
    '{"prompt": "a"}': "accepted are",
    '{"text": "\\ud800"}': "surrogate",
    '{"messages": []}': "non-empty list",
    '{"messages": [{"content": "x"}]}': "role",
    '{"messages": [{"role": "user", "content": "x"}]}': "nothing to train on",
    '{"messages": [{"role": "assistant", "content": "x"}]}': "need a chat template",
    "": "no documents",
}


@pytest.mark.parametrize("record", BAD_RECORDS)
def test_bad_records_are_one_line_and_leave_no_shard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record: str
) -> None:
    folder = byte_tokenizer(tmp_path / "model", "<e>")
    file = tmp_path / "a.jsonl"
    file.write_text(record + "\n")
    out = tmp_path / "out"
    message = refused(capsys, file, "--out", out, "--tokenizer", folder, "--end", "<e>")
    assert BAD_RECORDS[record] in message
    good = '{"text": "xxxxxxxx"}\n' * 3
    if record:
        file.write_text(good + record + "\n")
        arguments = ["--tokenizer", folder, "--end", "<e>", "--shard-tokens", 9]
        refused(capsys, file, "--out", out, *arguments)
    assert not out.exists() or not list(out.iterdir())


def test_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = byte_tokenizer(tmp_path / "model", "<e>")
    file = write_lines(tmp_path / "a.jsonl", {"text": "abc"})
    out = tmp_path / "out"
    trained = ["--out", out, "--train-bpe"]
    assert "at least 258" in refused(capsys, file, *trained, 100)
    assert "has <|begin|>" in refused(capsys, file, *trained, 300, "--end", "<e>")
    chosen = ["--out", out, "--tokenizer"]
    assert "no token '<x>'" in refused(capsys, file, *chosen, folder, "--end", "<x>")
    assert "No such file" in refused(capsys, file, *chosen, tmp_path / "none")
    assert "No such file" in refused(capsys, tmp_path / "none.txt", *chosen, folder)
    assert "accepted endings" in refused(capsys, tmp_path / "a.pdf", *chosen, folder)
    (tmp_path / "bad.json").write_text("{}")
    assert "bad.json: Model missing" in refused(capsys, file, *chosen, tmp_path / "bad.json")
    (folder / "tokenizer_config.json").write_text("[]")
    assert "expected an object" in refused(capsys, file, *chosen, folder)
    (folder / "tokenizer_config.json").unlink()
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    assert "not UTF-8" in refused(capsys, tmp_path / "latin.txt", *chosen, folder)
    run(file, *chosen, folder, "--end", "<e>")
    assert "holds shards" in refused(capsys, file, *chosen, folder, "--end", "<e>")
    other = byte_tokenizer(tmp_path / "other", "<f>")
    assert "another tokenizer" in refused(capsys, file, *chosen, other, "--name", "b")


def changed(folder: Path, change: Callable[[dict[str, Any]], None], file: str) -> Path:
    """The folder with one JSON file changed."""
    path = folder / file
    document = json.loads(path.read_text()) if path.exists() else {}
    change(document)
    path.write_text(json.dumps(document))
    return folder


TOKEN = {"content": "<x>", "single_word": False, "lstrip": False, "rstrip": False}
TOKEN = {**TOKEN, "normalized": False, "special": True}
BAD_FOLDERS: list[tuple[str, Callable[[dict[str, Any]], Any], str]] = [
    ("tokenizer_config.json", lambda c: c.update(bos_token=3), "bos_token: expected a string"),
    ("tokenizer_config.json", lambda c: c.update(eos_token=["a"]), "eos_token: expected a string"),
    ("tokenizer_config.json", lambda c: c.update(pad_token={"content": 1}), "pad_token: expected"),
    ("tokenizer_config.json", lambda c: c.update(eos_token="\ud800"), "surrogate"),
    ("tokenizer_config.json", lambda c: c.update(chat_template=[1]), 'every entry needs a "name"'),
    ("tokenizer_config.json", lambda c: c.update(chat_template=7), "expected a string or a list"),
    (
        "tokenizer_config.json",
        lambda c: c.update(chat_template=[{"name": "default", "template": {}}]),
        "expected a string or a list",
    ),
    (
        "tokenizer.json",
        lambda c: c["added_tokens"].append({**TOKEN, "id": 4294967295}),
        "says 4294967295",
    ),
    ("tokenizer.json", lambda c: c["model"]["vocab"].update(zz=2_000_000_000), "largest token id"),
    ("tokenizer.json", lambda c: c["model"].update(vocab={}), "no token for 'a' (U+0061)"),
]


@pytest.mark.parametrize(("file", "change", "message"), BAD_FOLDERS)
def test_bad_folders_of_models_are_one_line(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    file: str,
    change: Callable[[dict[str, Any]], None],
    message: str,
) -> None:
    folder = changed(byte_tokenizer(tmp_path / "model", "<e>"), change, file)
    text = write_lines(tmp_path / "a.jsonl", {"text": "abc"})
    out = tmp_path / "out"
    assert message in refused(capfd, text, "--out", out, "--tokenizer", folder)
    assert not out.exists()


def test_nested_json_and_other_files_of_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = byte_tokenizer(tmp_path / "model", "<e>")
    file = write_lines(tmp_path / "a.jsonl", {"text": "abc"})
    common = (file, "--out", tmp_path / "out", "--tokenizer")
    config = folder / "tokenizer_config.json"
    config.write_text("[" * 100_000)
    assert "more than 64" in refused(capsys, *common, folder)
    config.write_bytes(b'{"bos_token": "\xff"}')
    assert "not UTF-8" in refused(capsys, *common, folder)
    config.unlink()
    config.mkdir()
    assert "is no regular file" in refused(capsys, *common, folder)
    config.rmdir()
    os.mkfifo(tmp_path / "fifo")
    assert "is no regular file" in refused(capsys, *common, tmp_path / "fifo")
    chosen = ("--out", tmp_path / "out", "--format", "jsonl", "--tokenizer", folder)
    assert "is no regular file" in refused(capsys, tmp_path / "fifo", *chosen)
    assert "is no regular file" in refused(capsys, "/dev/zero", *chosen)
    assert not (tmp_path / "out").exists()


def test_names_stay_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = byte_tokenizer(tmp_path / "model", "<e>")
    file = write_lines(tmp_path / "a.jsonl", {"text": "abc"})
    common = (file, "--out", tmp_path / "x/y/out", "--tokenizer", folder, "--name")
    for name in ("../../evil", str(tmp_path / "evil"), "a/b", "..", ".a", "", "a\nb", "é" * 101):
        assert "accepted: the beginning of a file name" in refused(capsys, *common, name)
    assert {path.name for path in tmp_path.iterdir()} == {"model", "a.jsonl"}
    run(*common, "a[b]")
    assert "holds shards" in refused(capsys, *common, "a[b]"), "no pattern"
    run(*common, "a")


def test_absurd_vocabularies_and_special_tokens(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = write_lines(tmp_path / "a.jsonl", {"text": "abc"})
    common = (file, "--out", tmp_path / "out", "--train-bpe")
    for size in (-1, 0, 257, 99999999999999):
        assert "accepted: at least 258" in refused(capfd, *common, size)
    assert "at least 259" in refused(capfd, *common, 258, "--special", "<x>")
    assert "each once" in refused(capfd, *common, 300, "--special", "<x>", "--special", "<x>")
    assert "each once" in refused(capfd, *common, 300, "--special", "")
    folder = byte_tokenizer(tmp_path / "model", "<e>")
    wrong = ("--tokenizer", folder, "--special", "<x>")
    assert "for --train-bpe only" in refused(capfd, *common[:-1], *wrong)
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """In a limit of file sizes, which fails in the same calls: at a shard, and at a later file."""
    file = write_lines(tmp_path / "a.jsonl", *[{"text": "x" * 500}] * 20)
    folder = byte_tokenizer(tmp_path / "model", "<e>")
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)\n"
        "from fp8lab.tokens.__main__ import main\n"
        "sys.exit(main(sys.argv[2:]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src/python")}
    out = tmp_path / "out"
    words = [file, "--out", out, "--tokenizer", folder]
    for limit, shard in ((1000, 1 << 20), (2000, 500)):
        command = [sys.executable, "-c", script, limit, *words, "--shard-tokens", shard]
        ended = subprocess.run(
            [str(word) for word in command], env=environment, capture_output=True, text=True
        )
        assert ended.returncode == 1 and ended.stderr.count("\n") == 1, ended.stderr
        assert ended.stderr.startswith("fp8lab.tokens: ") and "File too large" in ended.stderr
        assert not out.exists()
    run(*words)
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "fp8lab.tokens", *words, "--name", "b"]
        ended = subprocess.run(
            [str(word) for word in command],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert "standard output: No space left on device" in ended.stderr


def test_messages_and_a_new_tokenizer_are_one_command(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "chat.jsonl", {"messages": TALK})
    out = tmp_path / "out"
    run(file, "--out", out, "--train-bpe", 300, "--special", "<|tool|>")
    said, trained = spoken(out)
    assert said == "user\n2+2?\nassistant\n4\nuser\nsure?\nassistant\nyes\n"
    assert trained == "4yes"
    shard = read_shard(out / "chat-00000.tokens")
    vocabulary = json.loads((out / "tokenizer.json").read_text())["added_tokens"]
    ids = {token["content"]: token["id"] for token in vocabulary}
    assert list(ids) == ["<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>", "<|tool|>"]
    tokens = shard.tokens.tolist()
    assert tokens.count(ids["<|im_start|>"]) == tokens.count(ids["<|im_end|>"]) == 4
    assert shard.tokenization.end == ids["<|im_end|>"] and shard.trained is not None
    ends = [i for i, token in enumerate(tokens) if token == ids["<|im_end|>"]]
    assert shard.trained[ends].tolist() == [False, True, False, True], "it learns to stop"
    # The folder serves other chats, and a template of one's own can be named.
    run(file, "--out", out, "--tokenizer", out, "--name", "again")
    again = read_shard(out / "again-00000.tokens")
    assert again.tokens.tolist() == tokens and np.array_equal(again.trained, shard.trained)
    (tmp_path / "own.jinja").write_text(MARKED)
    run(
        file, "--out", tmp_path / "o", "--train-bpe", 300, "--chat-template", tmp_path / "own.jinja"
    )
    said, _ = spoken(tmp_path / "o")
    assert said == "[U]2+2?[A]4[U]sure?[A]yes"


def test_inputs_that_change_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = byte_tokenizer(tmp_path / "model", "<e>")
    file = write_lines(tmp_path / "a.jsonl", {"text": "abc"})
    hashes = iter((1, 2))
    monkeypatch.setattr("fp8lab.tokens.__main__.hash_file", lambda path: next(hashes))
    out = tmp_path / "out"
    assert "changed while" in refused(capsys, file, "--out", out, "--tokenizer", folder)
    assert not out.exists()


def test_damage_is_noticed(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl", {"text": "abc"})
    folder = byte_tokenizer(tmp_path / "model", "<e>")
    run(file, "--out", tmp_path / "out", "--tokenizer", folder, "--end", "<e>")
    path = tmp_path / "out/a-00000.tokens"
    good = path.read_bytes()
    for bad in (good[:-1], good + b"\0", good[:136] + b"\x09" + good[137:], b"x" + good[1:]):
        path.write_bytes(bad)
        with pytest.raises(TokenError):
            read_shard(path)


def test_the_committed_shard_reads_as_written() -> None:
    """The C++ tests read the same files; tests/golden/tokens/README.md says how they were made."""
    shard = read_shard(GOLDEN / "sums-00000.tokens")
    assert shard.tokenization.vocabulary == 284 and len(shard.document_ends) == 40
    table = json.loads((GOLDEN / "token_bytes.json").read_text())
    assert table["tokenizer_hash"] == f"{shard.tokenization.tokenizer_hash:016x}"
    document = shard.documents()[3]
    text = b"".join(bytes.fromhex(table["tokens"][int(token)]) for token in document).decode()
    assert text == "Question: What is 3 plus 9?\nAnswer: 3 + 9 = 12\n#### 12"
    assert struct.unpack_from("<8sII", (GOLDEN / "sums-00000.tokens").read_bytes())[2] == 16


PROGRAM = os.environ.get("FP8LAB_PROGRAM", "")


@pytest.mark.skipif(not PROGRAM, reason="FP8LAB_PROGRAM is not set")
def test_the_program_reads_what_the_tool_writes(tmp_path: Path) -> None:
    folder = chat_folder(tmp_path, CHATML)
    file = write_lines(
        tmp_path / "chat.jsonl", {"messages": TALK}, {"question": "a", "answer": "b"}
    )
    run(file, "--out", tmp_path / "out", "--tokenizer", folder)
    shard = read_shard(tmp_path / "out/chat-00000.tokens")
    for index, document in enumerate(shard.documents()):
        command = [
            PROGRAM,
            "data",
            "inspect",
            str(tmp_path / "out"),
            "--json",
            "--document",
            str(index),
        ]
        (facts,) = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        assert facts["ids"] == document.tolist()
        assert facts["hash"] == f"{shard.content_hash:016x}"
        first = 0 if index == 0 else int(shard.document_ends[index - 1])
        assert shard.trained is not None
        kept = shard.trained[first : first + len(document)]
        assert facts["trained"] == "".join("01"[int(bit)] for bit in kept)
        assert facts["text"] == spoken(tmp_path / "out", index, specials=True)[0]
        assert facts["trained_tokens"] == int(shard.trained.sum())
        assert facts["tokenizer"] == f"{shard.tokenization.tokenizer_hash:016x}"


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q"]))


PLAIN = {"type": "BPE", "unk_token": None, "vocab": {"a": 0, "b": 1, "ab": 2, " ": 3, "\n": 4}}
PLAIN |= {"merges": [["a", "b"]], "byte_fallback": False}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def plain_tokenizer(folder: Path, model: dict[str, Any], **parts: Any) -> Path:
    folder.mkdir(exist_ok=True)
    document = {"version": "1.0", "added_tokens": [], "model": PLAIN | model, **parts}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize(
    ("text", "place"),
    [("ab\n\nab\nbé a\n", "a.txt:4"), ("é", "a.txt:1"), ("\n\na\n\nab\n aé", "a.txt:6")],
)
def test_what_a_tokenizer_would_leave_out_is_refused_by_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, place: str
) -> None:
    folder = plain_tokenizer(tmp_path / "model", {})
    (tmp_path / "a.txt").write_text(text)
    words = (tmp_path / "a.txt", "--out", tmp_path / "out", "--tokenizer", folder)
    message = refused(capsys, *words)
    assert f"{tmp_path}/{place}: the tokenizer has no token for 'é' (U+00E9)" in message
    assert not (tmp_path / "out").exists()
    (tmp_path / "a.txt").write_text("ab ab\n")
    run(*words)


@pytest.mark.parametrize(
    ("model", "parts", "text", "said"),
    [
        ({}, {}, "ab\x1b", r"has no token for '\x1b' (U+001B)"),
        ({}, {}, "ab\U0001f600", "has no token for '\U0001f600' (U+1F600)"),
        # Bytes: a part of them is there, or none.
        ({}, {"pre_tokenizer": BYTE_LEVEL}, "abé", "has no token for 'é' (U+00E9)"),
        ({"byte_fallback": True}, {}, "abé", "has no token for 'é' (U+00E9)"),
        (
            {
                "continuing_subword_prefix": "#",
                "vocab": {"a": 0, "b": 1, "#b": 2, "ab": 3},
                "merges": [["a", "#b"]],
            },
            {},
            "ba",
            "has no token for 'a' (U+0061)",
        ),
        # The library's own words for models without a token for what is unknown.
        ({"unk_token": "gone"}, {}, "abé", "fails: Unk token `gone` not found"),
        (
            {"type": "WordLevel", "unk_token": "gone"},
            {},
            "abé",
            "fails: WordLevel error: Missing [UNK] token",
        ),
        (
            {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0], ["b", -1.0]]},
            {},
            "abé",
            "fails: Encountered an unknown token",
        ),
    ],
)
def test_other_ways_to_lack_a_token(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: dict[str, Any],
    parts: dict[str, Any],
    text: str,
    said: str,
) -> None:
    folder = plain_tokenizer(tmp_path / "model", model, **parts)
    records = [{"text": "ab"}, {"prompt": "a", "completion": text}]
    if model.get("type") == "WordLevel":
        records[1]["prompt"] = "ab"
    source = write_lines(tmp_path / "a.jsonl", *records)
    message = refused(capsys, source, "--out", tmp_path / "out", "--tokenizer", folder)
    assert f"a.jsonl:2: the tokenizer {said}" in message and message.count("\n") == 1
    question = write_lines(tmp_path / "q.jsonl", {"question": "ab", "choices": ["ab", text]})
    words = (question, "--questions", "--out", tmp_path / "out", "--tokenizer", folder)
    assert f"q.jsonl:1: the tokenizer {said}" in refused(capsys, *words)


def test_chats_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = plain_tokenizer(tmp_path / "model", {})
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "{% for m in messages %}{{ m.content }} {% endfor %}"})
    )
    talk = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "aé"}]
    source = write_lines(tmp_path / "a.jsonl", {"text": "ab a"}, {"messages": talk})
    message = refused(capsys, source, "--out", tmp_path / "out", "--tokenizer", folder)
    assert "a.jsonl:2: the tokenizer has no token for 'é' (U+00E9)" in message


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_ids_are_those_of_the_library(tmp_path: Path, ignore_merges: bool) -> None:
    """What is refused is looked for with another vocabulary; the ids stay those of the file."""
    model = {"ignore_merges": ignore_merges, "vocab": PLAIN["vocab"] | {"unknown": 7, "aba": 5}}
    folder = plain_tokenizer(tmp_path / "model", model)
    own = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoder = load_encoder(folder, None, None)
    assert encoder.tokenization.vocabulary == 8
    for text in ("ab ab\nba", "aba", "", "bbaab a"):
        assert encoder.text(text, "here") == own.encode(text, add_special_tokens=False).ids
    # With a token for what is unknown, that is what it gets.
    words = {"unk_token": "?u", "vocab": PLAIN["vocab"] | {"?u": 6}}
    known = plain_tokenizer(tmp_path / "known", words)
    assert load_encoder(known, None, None).text("aéa", "here") == [0, 6, 0]


def published_tokenizer(folder: Path, family: str) -> Path:
    """Of the form of Qwen2.5's and Llama 3's: special tokens beside the vocabulary, not in it, and
    no token for what is unknown."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = {"qwen": {}, "llama": {"ignore_merges": True}}[family]
    vocabulary = {token: i for i, token in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], **words))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<tool_call>"])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    document = json.loads((folder / "tokenizer.json").read_text())
    assert [t["id"] for t in document["added_tokens"]] == [256, 257, 258, 259]
    assert len(document["model"]["vocab"]) == 256 and document["model"]["unk_token"] is None
    config = {"chat_template": CHATML, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("family", ["qwen", "llama"])
def test_special_tokens_beside_the_vocabulary_keep_their_ids(tmp_path: Path, family: str) -> None:
    folder = published_tokenizer(tmp_path / "model", family)
    own = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    talk = [
        {"role": "user", "content": "unknown?"},
        {"role": "assistant", "content": "<tool_call>"},
    ]
    run(write_lines(tmp_path / "c.jsonl", {"messages": talk}), "--out", tmp_path / "out",
        "--tokenizer", folder)  # fmt: skip
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in talk)
    shard = read_shard(tmp_path / "out/c-00000.tokens")
    assert shard.tokens.tolist() == own.encode(text, add_special_tokens=False).ids
    assert {257, 258, 259} <= set(shard.tokens.tolist()) and max(shard.tokens) == 259
    encoder = load_encoder(folder, None, None)
    assert encoder.text("unknown <|im_end|> <tool_call>", "here") == (
        own.encode("unknown <", add_special_tokens=False).ids
        + own.encode("|im_end|> ", add_special_tokens=False).ids
        + [259]
    )


def test_prompts_and_questions_become_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = load_encoder(GOLDEN, None, None)
    begin = encoder.tokenization.begin
    records = [
        {"prompt": "What is 3 plus 9?", "id": 4},
        {"question": "3 + 9 = ", "choices": ["12", [5, 6]], "answer": 0},
        {"prompt": [1, 2]},
    ]
    source = tmp_path / "q.jsonl"
    source.write_text("\n".join(json.dumps(record) for record in records))
    run(source, "--questions", "--tokenizer", GOLDEN, "--out", tmp_path / "ids")
    found = lines(tmp_path / "ids/q.jsonl")
    assert found[0] == {"prompt": [begin, *encoder.text("What is 3 plus 9?", "q")], "id": 4}
    assert found[1]["question"] == [begin, *encoder.text("3 + 9 = ", "q")]
    assert found[1]["choices"] == [encoder.text("12", "q"), [5, 6]] and found[1]["answer"] == 0
    assert found[2] == {"prompt": [1, 2]}
    assert (tmp_path / "ids/token_bytes.json").exists()
    common = ("--questions", "--tokenizer", GOLDEN, "--out", tmp_path / "other")
    for text, words in {
        "{": "bad.jsonl:1: not valid JSON",
        '{"text": "a"}': 'expected an object with "prompt", "messages" or "question"',
        '{"question": "What?"}': 'a "question" without a list of "choices"',
        '{"prompt": "\\ud800"}': "surrogate",
    }.items():
        (tmp_path / "bad.jsonl").write_text(text)
        assert words in refused(capsys, tmp_path / "bad.jsonl", *common)
    assert "none.jsonl" in refused(capsys, tmp_path / "none.jsonl", *common)
    assert "exists" in refused(
        capsys, source, "--questions", "--tokenizer", GOLDEN, "--out", tmp_path / "ids"
    )
    assert "needs the --tokenizer" in refused(
        capsys, source, "--questions", "--train-bpe", 300, "--out", tmp_path / "ids2"
    )
