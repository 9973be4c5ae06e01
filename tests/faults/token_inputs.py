"""Malformed tokenizers, templates and records for `python3 -m fp8lab.tokens`: one line and nothing
left behind, or shards without a word that nobody said."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grammar
from grammar import Document
from program import Program, fault_of, refusal_fault
from runs import SOURCE, Context, Outcome, case_folder

TOKENIZER = SOURCE / "tests/golden/tokens"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
# What a template of others may hold. {} is the content of a message.
PIECES = (
    "{}", "{} | trim", "'a' ~ {}", "'%s' % {}", "[{}] | join", "{} | tojson", "{} | length",
    "{} | upper", "{}[0]", "{}.x.y", "1 / 0", "2.0 ** 99999", "'x' * 10 ** 10", "range(10 ** 12)",
    "{} + 1", "none", "true", "[1, 2]", "[{}, 3]", "'\\ud800'", "'\\U0010fffe'", "m", "loop.index",
    "messages.__class__.__mro__", "messages.append(1)", "raise_exception('no')", "undefined()",
    "'{:9999999999}'.format(1)", "namespace(a=1)", "m.items()", "cycler(1)", "dict(a=1)", "1e999",
    "(" * 400 + "1" + ")" * 400, "f()",
)  # fmt: skip
TAGS = ("{% generation %}", "{%generation%}", "{%- generation -%}", "{% endgeneration %}")
NOT_TEXT = ("None", "True", "False", "{'", "[{", "\U0010fffe", "\U0010ffff")


@dataclass(frozen=True)
class Tool(Program):
    """fp8lab.tokens in the interpreter that runs the campaign."""

    def environment(self) -> dict[str, str]:
        mine = {"PYTHONPATH": str(SOURCE / "src/python"), "RAYON_NUM_THREADS": "1"}
        return super().environment() | mine


def is_available() -> bool:
    """Whether this interpreter has what the tool needs."""
    from importlib.util import find_spec

    return all(find_spec(name) is not None for name in ("tokenizers", "xxhash", "jinja2"))


def talk(rng: random.Random) -> dict[str, object]:
    roles = ("user", "assistant") * rng.randrange(1, 3)
    turns: list[dict[str, object]] = [{"role": role, "content": "one two"} for role in roles]
    if rng.random() < 0.3:
        turns[-1][rng.choice(("weight", "train"))] = rng.choice((0, 1, True, False, None, "x"))
    return {"messages": turns}


def said(out: Path) -> str:
    """The text of all shards."""
    sys.path.append(str(SOURCE / "src/python"))
    from fp8lab.tokens import read_shard

    table = json.loads((out / "token_bytes.json").read_text())["tokens"]
    tokens = [int(t) for path in sorted(out.glob("*.tokens")) for t in read_shard(path).tokens]
    return b"".join(bytes.fromhex(table[token]) for token in tokens).decode(errors="replace")


def judge(folder: Path, note: str, invalid: bool, *words: object, is_chat: bool = True) -> Outcome:
    """Runs the tool in the folder. With `is_chat` no text may have a word of NOT_TEXT."""
    before = {path for path in folder.rglob("*")}
    tool = Tool(Path(sys.executable))
    result = tool.run(folder, "-m", "fp8lab.tokens", *words)
    problem = fault_of(result)
    if not problem and result.code != 0:
        problem = refusal_fault(result)
        left = {path for path in folder.rglob("*")} - before
        if not problem and left:
            problem = f"leaves {sorted(str(path) for path in left)[0]}"
    note = f"{note}; {result.said()}"
    if problem:
        return Outcome("crashed", f"{problem}; {note}")
    if result.code != 0:
        return Outcome("refused", note)
    odd = [word for word in NOT_TEXT if is_chat and word in said(folder / "out")]
    if invalid or odd:
        return Outcome("wrong", f"{odd}; {note}")
    return Outcome("right", note)


def prepare(context: Context, rng: random.Random) -> tuple[Path, list[bytes]]:
    folder = case_folder(context, "tokens")
    (folder / "model").mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "model" / name).write_bytes((TOKENIZER / name).read_bytes())
    (folder / "model/chat_template.jinja").write_text(TEMPLATE)
    others: list[object] = [
        {"text": "one two"},
        {"prompt": "one", "completion": "two"},
        {"instruction": "one", "input": "two", "output": "three"},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
        {"question": "one", "answer": "two"},
    ]
    lines = [json.dumps(rng.choice([talk(rng), *others])).encode() for _ in range(6)]
    good = json.dumps({"messages": [{"role": "assistant", "content": "one"}]}).encode()
    return folder, [good, *lines]


WORDS = ("a.jsonl", "--out", "out", "--tokenizer", "model")


def record(context: Context, rng: random.Random) -> Outcome:
    folder, lines = prepare(context, rng)
    place = rng.randrange(len(lines))
    broken = grammar.broken_json(json.loads(lines[place]), rng)
    lines[place] = broken.data
    (folder / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    invalid = broken.invalid and broken.data.strip() != b""
    return judge(folder, f"line {place + 1}: {broken.note}", invalid, *WORDS)


def template(context: Context, rng: random.Random) -> Outcome:
    folder, lines = prepare(context, rng)
    (folder / "a.jsonl").write_bytes(lines[0] + b"\n")
    piece = "{{ " + rng.choice(PIECES).replace("{}", "m.content") + " }}"
    source = TEMPLATE.replace("{{ m.content }}", piece)
    if rng.random() < 0.3:
        source = "{% macro f() %}{{ f() }}{% endmacro %}" + source
    if rng.random() < 0.3:
        source = source.replace(piece, rng.choice(TAGS) + piece + rng.choice(TAGS))
    if rng.random() < 0.2:
        place = rng.randrange(len(source))
        source = (
            source[:place] + rng.choice(("{", "}}", "{%", "{#", "\n", "")) + source[place + 1 :]
        )
    (folder / "model/chat_template.jinja").write_text(source)
    return judge(folder, f"template {source[-300:]!r}", False, *WORDS)


# Ways to write one pair of marks.
MARKS = (
    ("{% generation %}", "{% endgeneration %}"),
    ("{%generation%}", "{%endgeneration%}"),
    ("{%- generation -%}", "{%- endgeneration -%}"),
    ("{%  generation\t%}", "{%\nendgeneration %}"),
    ("{%+ generation %}", "{% endgeneration +%}"),
    ("{% if true %}{% generation %}", "{% endgeneration %}{% endif %}"),
    ("{# generation #}{%generation %}", "{% endgeneration%}"),
)
MARKED = (
    "{%- for m in messages -%}<{{ m.role }}>{%- if m.role == 'assistant' -%}BEGIN{{ m.content }}"
    "END{%- else -%}{{ m.content }}{%- endif -%}{%- endfor -%}"
)


def marks(context: Context, rng: random.Random) -> Outcome:
    """One template whose marks are spelled in two ways: the same shards."""
    folder, lines = prepare(context, rng)
    (folder / "a.jsonl").write_bytes(lines[0] + b"\n" + json.dumps(talk(rng)).encode() + b"\n")
    written: list[dict[str, bytes]] = []
    chosen = rng.choice(MARKS)
    for begin, end in (MARKS[0], chosen):
        source = MARKED.replace("BEGIN", begin).replace("END", end)
        (folder / "model/chat_template.jinja").write_text(source)
        tool = Tool(Path(sys.executable))
        out = f"out{len(written)}"
        result = tool.run(folder, "-m", "fp8lab.tokens", *WORDS[:2], out, *WORDS[3:])
        if result.code != 0 or fault_of(result):
            problem = fault_of(result) or refusal_fault(result)
            if problem:
                return Outcome("crashed", f"{chosen}: {problem}; {result.said()}")
            written.append({})
            continue
        written.append({path.name: path.read_bytes() for path in (folder / out).glob("*.tokens")})
    if written[0] != written[1]:
        return Outcome("wrong", f"{chosen}")
    return Outcome("right" if written[0] else "refused", f"{chosen}")


def model_file(context: Context, rng: random.Random) -> Outcome:
    folder, lines = prepare(context, rng)
    (folder / "a.jsonl").write_bytes(b"\n".join(lines[:1]) + b"\n")
    path = folder / "model" / rng.choice(("tokenizer.json", "tokenizer_config.json"))
    broken: Document = grammar.broken_json(json.loads(path.read_text()), rng)
    path.write_bytes(broken.data)
    return judge(folder, f"{path.name}: {broken.note}", broken.invalid, *WORDS)


def command_line(context: Context, rng: random.Random) -> Outcome:
    folder, lines = prepare(context, rng)
    (folder / "a.jsonl").write_bytes(lines[0] + b"\n")
    size = rng.choice((-1, 0, 257, 258, 300, 1 << 24, 10**14))
    words: list[object] = ["a.jsonl", "--out", "out"]
    words += rng.choice((["--tokenizer", "model"], ["--train-bpe", size]))
    more = (
        ["--name", rng.choice(("../evil", "/evil", "a/b", "..", "", "a\nb", "x" * 300, "b"))],
        ["--special", rng.choice(("", "<x>", "<|im_start|>"))],
        ["--chat-template", rng.choice(("none", ".", "/dev/zero", "a.jsonl"))],
        ["--shard-tokens", rng.choice((-1, 0, 1, 2, 10**20))],
        ["--begin", rng.choice(("", "<|begin|>", "none"))],
        ["--format", rng.choice(("text", "jsonl", "parquet"))],
        ["--questions"],
    )
    for choice in rng.sample(more, rng.randrange(1, 3)):
        words += choice
    return judge(folder, "command line", False, *words, is_chat=False)


CASES: tuple[tuple[Callable[[Context, random.Random], Outcome], int], ...] = (
    (record, 4), (template, 4), (model_file, 3), (command_line, 2), (marks, 2),
)  # fmt: skip


def tokens(context: Context, rng: random.Random) -> Outcome:
    """One case of fp8lab.tokens."""
    chosen = rng.choices([case for case, _ in CASES], [share for _, share in CASES])[0]
    return chosen(context, rng)
