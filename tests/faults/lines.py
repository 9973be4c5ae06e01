"""JSON lines in every spelling: the program and fp8lab.tokens take the same ones, a line that is
spelled oddly gives the bits of its plain form, and every other one is refused with its number."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from program import Result, fault_of, refusal_fault
from runs import SOURCE, Context, Outcome, case_folder, contents, difference

sys.path.append(str(SOURCE / "src/python"))
from fp8lab.tokens.documents import Chat, Record, read_documents  # noqa: E402
from fp8lab.tokens.shards import TokenError  # noqa: E402

CONFIG = """
name = "lines"
recipe = "bf16"
seed = 3
[model]
hidden_size = 16
intermediate_size = 16
num_hidden_layers = 1
num_attention_heads = 1
num_key_value_heads = 1
head_dim = 16
vocab_size = 288
[[stages]]
name = "sft"
kind = "sft"
steps = 3
batch_sequences = 2
micro_batch_sequences = 2
sequence_length = 192
[stages.data]
kind = "jsonl"
path = "d.jsonl"
"""
TRAIN = ("train", "--config", "c.toml", "--out", "run", "--threads", "1")

Object = dict[str, Any]
GOOD: tuple[Object, ...] = (
    {"question": "one two", "answer": "three"},
    {"prompt": "one", "completion": " two"},
    {"instruction": "add", "input": "1 2", "output": "3"},
    {"instruction": "add", "output": "3", "system": "be short"},
    {"text": "four five six"},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "weight": 0},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d"},
            {"role": "user", "content": "e"},
        ]
    },
    {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
)
STRINGS = (
    "", " ", "é", "\u4e16\u754c", "\U0001f600", "\x00", "\u2028\x85", "\ufeff", "a\tb\r\n", "\x7f",
    "'\"\\/", "x" * 300, "\ufffe", "e\u0301",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -0.0, 1.0, 2, 1.5, 10**30, "", "x", "1", [], {}, ["x"], [None],
    {"type": "text", "text": "x"}, [{"type": "text", "text": "x"}],
)  # fmt: skip
MORE_KEYS: tuple[Object, ...] = (
    {"id": 7}, {"meta": {"a": [1, {"b": None}]}}, {"score": 1e300}, {"": ""}, {"text": None},
    {"question": None}, {"messages": None}, {"tools": []}, {"tools": None}, {"tools": [{}]},
    {"history": []}, {"history": [["a", "b"]]}, {"input": None}, {"input": 3}, {"system": ""},
    {"answer": "z"}, {"text": "z"}, {"prompt": "z"}, {"output": 1},
)  # fmt: skip
MESSAGE_KEYS: tuple[Object, ...] = (
    {"weight": 0}, {"weight": 1}, {"weight": 0.0}, {"weight": True}, {"weight": 2}, {"weight": "0"},
    {"train": True}, {"train": False}, {"train": 0}, {"train": None}, {"weight": 1, "train": False},
    {"name": "bob"}, {"tool_calls": []}, {"tool_calls": [{"id": 1}]}, {"tool_calls": None},
    {"role": ""}, {"role": "tool"}, {"role": "assistant"}, {"role": "gpt"}, {"from": "gpt"},
    {"value": "v"},
)  # fmt: skip


def mutate(record: Object, rng: random.Random) -> str:
    """Another value, key or message somewhere; most results are no records any more."""
    turns = record.get("messages") or record.get("conversations")
    message = rng.choice(turns) if isinstance(turns, list) and turns else None
    target = message if message is not None and rng.random() < 0.7 else record
    how = rng.randrange(6)
    if how == 0:
        key = rng.choice(sorted(target))
        target[key] = rng.choice(VALUES)
        return f"{key} = {target[key]!r}"
    if how == 1:
        key = rng.choice(sorted(target))
        del target[key]
        return f"no {key}"
    if how == 2:
        key = rng.choice(sorted(target))
        target[key] = rng.choice(STRINGS)
        return f"{key} = {target[key][:20]!r}"
    if how == 3 and isinstance(turns, list):
        turns.insert(rng.randrange(len(turns) + 1), rng.choice(VALUES))
        return "something between the messages"
    more = rng.choice(MESSAGE_KEYS if target is message else MORE_KEYS)
    target.update(more)
    return f"with {more}"


def spelled(record: Object, rng: random.Random) -> tuple[bytes, str]:
    """Some JSON of a record: escapes, white space and order of keys are free."""
    if rng.random() < 0.5:
        items = list(record.items())
        rng.shuffle(items)
        record = dict(items)
    text = json.dumps(
        record,
        ensure_ascii=rng.random() < 0.5,
        separators=rng.choice(((",", ":"), (" ,\t", " : "), (", ", ": "))),
    )
    if rng.random() < 0.2:
        text = text.replace("o", "\\u006f").replace("/", "\\/")
    return text.encode("utf-8", "surrogatepass"), ""


def broken(text: bytes, rng: random.Random) -> tuple[bytes, str]:
    """What no JSON may hold, or may just so."""
    deep = rng.choice((62, 63, 64, 65, 70, 5000))
    number = rng.choice((b"01", b"+1", b".5", b"1.", b"0x1", b"-0", b"1E5"))
    other = rng.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\x80"))
    inserts = {
        "a key twice": b'"text": "a", "text": "a", ',
        "a key twice, escaped": b'"zz": 1, "z\\u007a": 1, ',
        "NaN": b'"zz": NaN, ',
        "a large number": b'"zz": 1e400, ',
        "half a pair": b'"zz": "\\ud800", ',
        "half a pair, turned": b'"zz": "\\udc00\\ud800", ',
        "a pair": b'"zz": "\\ud83d\\ude00", ',
        "an escaped null": b'"zz": "\\u0000", ',
        "a control character": b'"zz": "\x01", ',
        "a raw tab": b'"zz": "\t", ',
        "no UTF-8": b'"zz": "' + other + b'", ',
        "nesting": b'"zz": ' + b"[" * deep + b"]" * deep + b", ",
        "a bad escape": b'"zz": "\\x41", ',
        "a number": b'"zz": ' + number + b", ",
        "two commas": b'"zz": 1,, ',
        "a comment": b"/* */ ",
        "single quotes": b"'zz': 1, ",
        "form feed": b"\x0c",
        "no-break space": b"\xc2\xa0",
        "a byte order mark inside": b"\xef\xbb\xbf",
    }  # fmt: skip
    name = rng.choice(list(inserts))
    note = f"{name} {deep}" if name == "nesting" else name
    return text[:1] + inserts[name] + text[1:], note


def file_of(rng: random.Random) -> tuple[bytes, str]:
    """Lines of a file, one of them odd in some way."""
    records = [json.loads(json.dumps(rng.choice(GOOD))) for _ in range(5)]
    place = rng.randrange(len(records))
    notes = []
    if rng.random() < 0.5:
        notes.append(mutate(records[place], rng))
    lines = [spelled(record, rng)[0] for record in records]
    if rng.random() < 0.4:
        lines[place], note = broken(lines[place], rng)
        notes.append(note)
    around = {
        "a byte order mark": (b"\xef\xbb\xbf", b""),
        "two marks": (b"\xef\xbb\xbf\xef\xbb\xbf", b""),
        "a carriage return": (b"", b"\r"),
        "spaces": (b" \t", b"  "),
        "a blank line": (b" \t\r\n", b""),
        "a second value": (b"", b" {}"),
        "nothing else": (b"", b""),
        "a vertical tab": (b"", b"\x0b"),
        "a null byte": (b"", b"\x00"),
        "an open end": (b"", b'{"'),
    }
    name = rng.choice(list(around))
    before, after = around[name]
    lines[place] = before + lines[place] + after
    notes.append(name)
    if rng.random() < 0.1:  # the end of lines that other programs know
        separator = rng.choice((b"\r", b"\xe2\x80\xa8", b"\x0c\n", b"\n\n\r\n"))
        notes.append(f"lines end with {separator!r}")
    else:
        separator = rng.choice((b"\n", b"\n", b"\r\n"))
    data = separator.join(lines) + rng.choice((b"", separator))
    return data, f"line {place + 1}: " + ", ".join(notes)


def plain(record: Record) -> Object | None:
    """The record as short JSON; nothing where the byte-level form has no words for it."""
    if not isinstance(record, Chat):
        if not record.prompt:
            return {"text": record.response}
        return {"prompt": record.prompt, "completion": record.response}
    if record.tools or any(
        not isinstance(m.get("content"), str) or m.get("tool_calls") for m in record.messages
    ):
        return None
    return {
        "messages": [
            {"role": m["role"], "content": m["content"]}
            | ({"weight": 0} if i in record.untrained else {})
            for i, m in enumerate(record.messages)
        ]
    }


def as_tokens_reads(path: Path) -> list[Object] | None:
    """What fp8lab.tokens finds in the file, plainly; nothing where it, or the form, has none."""
    try:
        found = [plain(record) for record in read_documents(path)]
    except TokenError:
        return None
    return [record for record in found if record is not None] if None not in found else None


def train(context: Context, data: bytes, name: str, form: str) -> tuple[Path, Result]:
    folder = case_folder(context, name)
    folder.mkdir(parents=True)
    (folder / "d.jsonl").write_bytes(data)
    (folder / "c.toml").write_text(CONFIG + f'form = "{form}"\n')
    return folder, context.program.run(folder, *TRAIN)


def lines(context: Context, rng: random.Random) -> Outcome:
    data, note = file_of(rng)
    folder, result = train(context, data, "lines", "running_text")
    known = as_tokens_reads(folder / "d.jsonl")
    note = f"{note}; {result.said()}"
    if fault_of(result):
        return Outcome("crashed", f"{fault_of(result)}; {note}")
    if result.code != 0:
        problem = refusal_fault(result, "d.jsonl")
        if not problem and known:
            problem = "fp8lab.tokens takes this file"
        return Outcome("crashed" if problem else "refused", f"{problem}; {note}")
    if known is None:
        return Outcome("wrong", f"taken, which fp8lab.tokens refuses; {note}")
    form = rng.choice(("running_text", "prompt_response"))
    text = "".join(json.dumps(record) + "\n" for record in known).encode()
    if form == "prompt_response":
        if any("text" in record for record in known):
            form = "running_text"
        else:
            folder, result = train(context, data, "lines", form)
    beside, again = train(context, text, "lines-plain", form)
    if result.code != 0 or again.code != 0:
        return Outcome("crashed", f"as {form}: {again.said()}; {note}")
    changed = difference(contents(beside / "run/run.h5"), contents(folder / "run/run.h5"))
    return Outcome("wrong" if changed else "right", f"{changed}; {note}")
