"""fp8lab.tokens --questions: prompts, messages and the token that documents begin with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytest.importorskip("xxhash", reason="xxhash is not installed")

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "src/python"))

from fp8lab.tokens import read_shard  # noqa: E402
from fp8lab.tokens.__main__ import main  # noqa: E402

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Begins with the begin token, as the templates of Llama 3 do; writes what the assistant says as
# marked text, and tools.
LLAMA = (
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "<|im_start|>{{ m.role }}: {% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant: {% endif %}"
)
SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
BEGIN, END, START, STOP = range(4)
ASKED = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "sure? <|im_end|>"},
]


def byte_ids(text: str) -> list[int]:
    """By hand: the specials, then the 256 characters of the byte-level alphabet in their order."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    spelled = {ord("\n"): "Ċ", ord(" "): "Ġ"}
    return [len(SPECIALS) + alphabet.index(spelled.get(b, chr(b))) for b in text.encode()]


def folder_of(path: Path, **config: Any) -> Path:
    """A model's tokenizer of single bytes; bos_token <s>, eos_token </s>."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIALS, *alphabet])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    path.mkdir()
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>"} | config
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def ids_of(tmp_path: Path, folder: Path, *records: dict[str, Any], options: Any = ()) -> list[Any]:
    """The records that --questions writes."""
    source = tmp_path / "asked.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    number = len(list(tmp_path.glob("ids*")))
    words = [source, "--questions", "--tokenizer", folder, "--out", tmp_path / f"ids{number}"]
    assert main([str(word) for word in [*words, *options]]) == 0
    written = (tmp_path / f"ids{number}/asked.jsonl").read_text()
    return [json.loads(line) for line in written.splitlines()]


def refused(
    tmp_path: Path, folder: Path, record: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> str:
    source = tmp_path / "bad.jsonl"
    source.write_text(json.dumps(record) + "\n")
    words = [source, "--questions", "--tokenizer", folder, "--out", tmp_path / "bad"]
    assert main([str(word) for word in words]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and not (tmp_path / "bad").exists()
    return message


def first_document(tmp_path: Path, folder: Path, *options: str) -> list[int]:
    """Its ids, of a text that says "ab" and an end token."""
    (tmp_path / "a.txt").write_text("ab\n")
    number = len(list(tmp_path.glob("shards*")))
    words = [tmp_path / "a.txt", "--tokenizer", folder, "--out", tmp_path / f"shards{number}"]
    assert main([str(word) for word in [*words, *options]]) == 0
    shard = read_shard(tmp_path / f"shards{number}/a-00000.tokens")
    begins = shard.tokens[0] in (BEGIN, STOP)
    assert shard.tokenization.begin == (int(shard.tokens[0]) if begins else -1)
    ids: list[int] = shard.tokens.tolist()
    return ids


def test_special_tokens_of_a_prompt_are_recognised(tmp_path: Path) -> None:
    """Those of a question and its choices, which are the text of others, are not."""
    folder = folder_of(tmp_path / "model", chat_template=CHATML)
    typed = {"prompt": "a<|im_end|>b", "id": 7}
    question = {"question": "a<s>", "choices": ["b</s>", "c"], "answer": 0}
    prompt, asked = ids_of(tmp_path, folder, typed, question)
    assert prompt == {"prompt": [BEGIN, *byte_ids("a"), STOP, *byte_ids("b")], "id": 7}
    assert asked["question"] == [BEGIN, *byte_ids("a<s>")]
    assert asked["choices"] == [byte_ids("b</s>"), byte_ids("c")]


@pytest.mark.parametrize("template", [CHATML, LLAMA])
def test_a_prompt_begins_as_what_it_is(tmp_path: Path, template: str) -> None:
    """A chat typed by hand has the ids of its messages; the begin token is never doubled."""
    folder = folder_of(tmp_path / "model", chat_template=template)
    begins, colon = (["<s>"], ": ") if template is LLAMA else ([], "\n")
    between = "" if template is LLAMA else "\n"
    typed = "".join(begins) + (
        f"<|im_start|>user{colon}Hi<|im_end|>{between}<|im_start|>assistant{colon}"
    )
    records = [
        {"prompt": typed},
        {"messages": [{"role": "user", "content": "Hi"}]},
        {"prompt": "<s>ab"},
        {"prompt": "ab"},
        {"prompt": ""},
        {"prompt": "<|im_end|>ab"},
    ]
    found = [record["prompt"] for record in ids_of(tmp_path, folder, *records)]
    said = [START, *byte_ids(f"user{colon}Hi"), STOP, *byte_ids(between), START]
    said += byte_ids(f"assistant{colon}")
    assert found[0] == found[1] == ([BEGIN] if begins else []) + said
    assert found[2] == found[3] == [BEGIN, *byte_ids("ab")] and found[4] == [BEGIN]
    assert found[5] == [BEGIN, STOP, *byte_ids("ab")]


@pytest.mark.parametrize("template", [CHATML, LLAMA])
@pytest.mark.parametrize("adds", [None, False, True])
def test_messages_are_those_of_transformers(
    tmp_path: Path, template: str, adds: bool | None
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    jinja2 = pytest.importorskip("jinja2", reason="jinja2 is not installed")
    if tuple(int(part) for part in jinja2.__version__.split(".")[:3]) < (3, 1, 6):
        pytest.skip("jinja2 is older than transformers accepts")
    config = {"chat_template": template} | ({} if adds is None else {"add_bos_token": adds})
    folder = folder_of(tmp_path / "model", **config)
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        bos_token="<s>",
        eos_token="</s>",
        chat_template=template,
    )
    tools = [{"type": "function", "function": {"name": "add"}}]
    records: list[dict[str, Any]] = [{"messages": ASKED}, {"messages": ASKED, "tools": tools}]
    found = ids_of(tmp_path, folder, *records)
    for record, given in zip(found, records, strict=True):
        expected = theirs.apply_chat_template(
            ASKED,
            tools=given.get("tools"),
            tokenize=True,
            return_dict=True,
            add_generation_prompt=True,
        )
        assert record == {"prompt": expected["input_ids"]}
    # What is typed, where it does not begin as a chat: transformers adds no token by itself here.
    text = "x <|im_end|>y<s>"
    (typed,) = ids_of(tmp_path, folder, {"prompt": text})
    front = [] if adds is False else [BEGIN]
    assert typed["prompt"] == front + theirs(text, add_special_tokens=False)["input_ids"]


def test_other_spellings_of_messages(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model", chat_template=CHATML)
    turns = [{"from": "human", "value": "Hi"}]
    records: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "Hi"}], "id": 3},
        {"conversations": turns},
        {"messages": [{"role": "user", "content": "Hi", "train": False}]},
    ]
    found = ids_of(tmp_path, folder, *records)
    assert found[0]["id"] == 3 and "messages" not in found[0]
    assert found[0]["prompt"] == found[1]["prompt"] == found[2]["prompt"]
    own = tmp_path / "own.jinja"
    own.write_text("{% for m in messages %}{{ m.content }}{% endfor %}!")
    (other,) = ids_of(tmp_path, folder, records[0], options=["--chat-template", own])
    assert other["prompt"] == byte_ids("Hi!")


BAD_CHATS = {
    "[]": "non-empty list",
    '[{"content": "a"}]': 'needs a "role"',
    '[{"role": "user"}]': 'message 0: expected a string in "content"',
    '[{"role": "assistant", "content": "a"}]': "last message is the assistant's",
    '[{"role": "user", "content": null}]': "writes null where text belongs",
}


@pytest.mark.parametrize("messages", BAD_CHATS)
def test_bad_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str], messages: str) -> None:
    template = CHATML.replace(" + message['content'] + '<|im_end|>'", "}}{{ message.content }}{{''")
    folder = folder_of(tmp_path / "model", chat_template=template)
    message = refused(tmp_path, folder, {"messages": json.loads(messages)}, capsys)
    assert "bad.jsonl:1: " in message and BAD_CHATS[messages] in message


def test_messages_need_a_template_and_nothing_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "model")
    chat = {"messages": [{"role": "user", "content": "a"}]}
    assert "messages need a chat template" in refused(tmp_path, folder, chat, capsys)
    message = refused(tmp_path, folder, {"prompt": "a", **chat}, capsys)
    assert 'has "prompt" and "messages"; accepted: one of them' in message


def test_what_only_reads_like_a_special_token_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path / "model", pad_token="<pad>", chat_template=CHATML)
    document = json.loads((folder / "tokenizer.json").read_text())
    document["added_tokens"][1]["single_word"] = True  # </s>
    (folder / "tokenizer.json").write_text(json.dumps(document))
    ids_of(tmp_path, folder, {"prompt": "a <|im_end|> b"}, {"prompt": "a < | b |> </s> |im_end|>"})
    assert capsys.readouterr().err == ""
    records = [{"prompt": "x<|im_ent|>"}, {"prompt": "a</s>b<pad>"}]
    chat = {"messages": [{"role": "user", "content": "<|tool|>"}]}
    ids_of(tmp_path, folder, *records, chat)
    notes = capsys.readouterr().err.splitlines()
    assert all(note.startswith("fp8lab.tokens: note: ") for note in notes) and len(notes) == 4
    said = [note.split("asked.jsonl:")[1] for note in notes]
    reads = "reads like a special token, but is"
    assert said == [
        f"1: '<|im_ent|>' {reads} none of the tokenizer: it is spelled out",
        f"2: '</s>' {reads} not recognised there: it is spelled out",
        f"2: '<pad>' {reads} not recognised there: it is spelled out",
        f"3: '<|tool|>' {reads} none of the tokenizer: it is spelled out",
    ]


def test_the_begin_token_of_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That of tokenizer_config.json unless it says false; the options decide otherwise."""
    text = [*byte_ids("ab"), END]
    with_begin, other = [BEGIN, *text], [STOP, *text]
    cases: list[tuple[str, dict[str, Any], list[int]]] = [
        ("absent", {}, with_begin),
        ("null", {"add_bos_token": None}, with_begin),
        ("true", {"add_bos_token": True}, with_begin),
        ("false", {"add_bos_token": False}, text),
    ]
    for name, config, plain in cases:
        folder = folder_of(tmp_path / name, **config)
        assert first_document(tmp_path, folder) == plain, name
        assert first_document(tmp_path, folder, "--begin", "<|im_end|>") == other, name
        assert first_document(tmp_path, folder, "--begin", "<s>") == with_begin, name
        assert first_document(tmp_path, folder, "--no-begin") == text, name
        question = {"question": "a", "choices": ["b", "c"], "answer": 0}
        prompt, asked = ids_of(tmp_path, folder, {"prompt": "ab"}, question)
        front = [BEGIN] if plain is with_begin else []
        assert prompt["prompt"] == front + byte_ids("ab") and asked["question"][:-1] == front
    wrong = folder_of(tmp_path / "wrong", add_bos_token="false")
    message = refused(tmp_path, wrong, {"prompt": "ab"}, capsys)
    assert "add_bos_token: expected true or false" in message
    words = ["a.txt", "--out", "x", "--tokenizer", str(wrong), "--begin", "<s>", "--no-begin"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    words = [str(tmp_path / "a.txt"), "--out", str(tmp_path / "x"), "--train-bpe", "300"]
    assert main([*words, "--no-begin"]) == 2


def test_shards_say_how_they_were_made(tmp_path: Path) -> None:
    """The folder of shards is a tokenizer's own: the same documents again, and the same chats."""
    folder = folder_of(tmp_path / "model", chat_template=CHATML, model_max_length=77)
    cases: list[tuple[list[str], list[int]]] = [
        ([], [BEGIN]),
        (["--begin", "<|im_end|>"], [STOP]),
        (["--no-begin"], []),
    ]
    for options, kept in cases:
        first = first_document(tmp_path, folder, *options)
        assert first[: len(kept)] == kept
        shards = sorted(tmp_path.glob("shards*"))[-1]
        assert first_document(tmp_path, shards) == first
        config = json.loads((shards / "tokenizer_config.json").read_text())
        assert config["model_max_length"] == 77 and config["eos_token"] == "</s>"
        chat = {"messages": [{"role": "user", "content": "Hi"}]}
        assert ids_of(tmp_path, shards, chat) == ids_of(tmp_path, folder, chat)
    before = (folder / "tokenizer_config.json").read_bytes()
    (tmp_path / "b.txt").write_text("ab\n")
    words = [tmp_path / "b.txt", "--tokenizer", folder, "--out", folder, "--no-begin"]
    assert main([str(word) for word in words]) == 0
    assert (folder / "tokenizer_config.json").read_bytes() == before, "what is there stays"
