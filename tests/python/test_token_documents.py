"""What fp8lab.tokens does without a tokenizer: reading documents and rendering chat templates."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "src/python"))

from fp8lab.tokens import documents  # noqa: E402
from fp8lab.tokens.chat import ChatTemplate  # noqa: E402
from fp8lab.tokens.documents import Chat, Passage, read_documents, to_record  # noqa: E402
from fp8lab.tokens.shards import TokenError, need  # noqa: E402
from fp8lab.tokens.template import Rendered  # noqa: E402
from fp8lab.tokens.tokenizer import assistant_mask  # noqa: E402


def test_a_token_across_the_border_belongs_to_where_it_begins() -> None:
    rendered = Rendered("abcdef", [(2, 4)])
    offsets = [(0, 1), (1, 3), (2, 3), (3, 5), (4, 6)]
    assert assistant_mask(rendered, offsets) == [False, False, True, True, False]


def test_templates_run_in_a_sandbox_and_say_what_they_refuse() -> None:
    chat = Chat([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "f:1")
    cases = {
        "{{ messages.__class__.__mro__ }}": "unsafe",
        "{{ messages.append(1) }}": "f:1",
        "{{ raise_exception('only one user') }}": "f:1: chat template: only one user",
        "{{ messages[9].content.x }}": "f:1",
        "{% for m in messages %}{{ messages | length }}{% endfor %}": "message 1 reads otherwise",
        "{% generation %}{% endgeneration %}x{{ strftime_now('%d') }}": "strftime_now",
        "{{ ['a', 'b']|random }}": "No filter named 'random'",
        "{{ lipsum() }}": "lipsum",
    }
    for source, message in cases.items():
        with pytest.raises(TokenError, match=message):
            ChatTemplate(source, {}).render(chat)
    with pytest.raises(TokenError, match="chat template"):
        ChatTemplate("{% for %}", {})
    with pytest.raises(TokenError, match="marks nothing"):
        ChatTemplate("{% if false %}{% generation %}{% endgeneration %}{% endif %}", {}).render(
            chat
        )


ROLES = "{% for m in messages %}<|{{ m.role }}|>"
CALL = {"role": "assistant", "content": None, "tool_calls": [{"name": "weather"}]}


def talk(*contents: Any) -> list[dict[str, Any]]:
    roles = ("user", "assistant") * len(contents)
    return [{"role": role, "content": content} for role, content in zip(roles, contents)]


@pytest.mark.parametrize(
    "writes",
    [
        "{{ m.content }}",
        "{{ m.content | trim }}",
        "{{ m['content'] | string }}",
        "{{ 'a' ~ m.content }}",
        "{{ '%s' % m.content }}",
        "{{ '%s' % (m.content,) }}",
        "{{ '%(c)s' % {'c': m.content} }}",
        "{{ '{}'.format(m.content) }}",
        "{{ [m.content] | join }}",
        "{{ '%s' | format(m.content) }}",
        "{% set text = m.content %}{% set both %}{{ text }}{% endset %}{{ both }}",
        "{% generation %}{{ m.content }}{% endgeneration %}",
    ],
)
def test_what_is_no_text_is_not_written(writes: str) -> None:
    """As None, True, [...] and {...}, whatever the way: those words would be trained on."""
    template = ChatTemplate(ROLES + writes + "{% endfor %}", {})
    assert template.render(Chat(talk("w?", "ok"), "f:1")).text.endswith("ok")
    bad: list[Any] = [(None, "null"), (True, "true"), ([{"type": "text", "text": "x"}], "a list")]
    for value, kind in [*bad, ({"a": 1}, "an object")]:
        with pytest.raises(TokenError, match=f"f:1: .*writes {kind} where text belongs"):
            template.render(Chat(talk("w?", value), "f:1"))


def test_null_that_a_template_leaves_out_is_no_fault() -> None:
    template = ChatTemplate(
        ROLES + "{% if m.content %}{{ m.content }}{% endif %}"
        "{% for call in m.tool_calls %}{{ loop.index }}{{ call | tojson }}{% endfor %};{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
        {},
    )
    messages = [*talk("w?"), CALL, {"role": "tool", "content": "sunny"}, *talk("", "ok")[1:]]
    text, spans = template.render(Chat(messages, "f:1"))
    assert text == '<|user|>w?;<|assistant|>1{"name": "weather"};<|tool|>sunny;<|assistant|>ok;'
    assert [text[begin:end] for begin, end in spans] == ['1{"name": "weather"};', "ok;"]


TAGS = [
    ("{% generation %}", "{% endgeneration %}"),
    ("{%generation%}", "{%endgeneration%}"),
    ("{%- generation-%}", "{%-endgeneration -%}"),
    ("{%+ generation %}", "{%\n\tendgeneration\n%}"),
    ("{%  \n generation %}", "{%+endgeneration%}"),
]


@pytest.mark.parametrize(("begin", "end"), TAGS)
def test_the_tag_is_found_however_it_is_spelled(begin: str, end: str) -> None:
    source = (
        ROLES + "{% if m.role == 'assistant' %}" + begin + "{{ m.content }}" + end + "{% else %}"
        "{{ m.content }}{% endif %}{% endfor %}"
    )
    text, spans = ChatTemplate(source, {}).render(Chat(talk("2+2?", "4"), "f:1"))
    assert (text, spans) == ("<|user|>2+2?<|assistant|>4", [(25, 26)])


def test_marks_do_not_stay_in_the_text() -> None:
    chat = Chat(talk("q", "a"), "f:1")
    nested = "{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}"
    half = "{% set x %}{% generation %}ab{% endgeneration %}{% endset %}{{ x[1:] }}"
    for source, message in {
        nested: "no row of parts",
        half: "no row of parts",
        "x\U0010fffe": "has a character that marks",
        "{{ '\\U0010fffe' }}{% for m in messages %}{% endfor %}": "left in the text",
    }.items():
        with pytest.raises(TokenError, match=message):
            ChatTemplate(source, {}).render(chat)
    with pytest.raises(TokenError, match="has a character that marks"):
        ChatTemplate("{{ bos_token }}", {"bos_token": "\U0010ffff"})


HOSTILE = {
    "{{ 1/0 }}": "ZeroDivisionError",
    "{{ 2.0**99999 }}": "OverflowError",
    "{{ 'x'*10**10 }}": "needs more than",
    "{{ 'x'.center(10**10) }}": "needs more than",
    "{{ range(10**12) | list }}": "OverflowError",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "too deeply",
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}": "too deeply",
    "{{ '\\ud800' }}": "half of a surrogate pair",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}": "not done",
    "{{ 10**(10**9) }}": "not done",
}


@pytest.mark.parametrize("source", HOSTILE)
def test_whatever_a_template_does_is_one_line(source: str) -> None:
    with pytest.raises(TokenError) as caught:
        ChatTemplate(source, {}, seconds=1.0).render(Chat(talk("q", "a"), "f:1"))
    message = str(caught.value)
    assert HOSTILE[source] in message and message.count("\n") == 0 and len(message) < 500


def test_turns_that_are_not_to_be_trained_on() -> None:
    marked = ROLES + (
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    plain = ROLES + "{{ m.content }}{% endfor %}"
    plain += "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    for key, no, yes in (("weight", 0, 1), ("train", False, True)):
        messages = talk("a", "bad", "c", "good")
        messages[1][key], messages[3][key] = no, yes
        record = to_record({"messages": messages}, "f:1")
        assert isinstance(record, Chat) and record.untrained == {1}
        for source in (marked, plain):
            text, spans = ChatTemplate(source, {}).render(record)
            assert "bad" in text and [text[begin:end] for begin, end in spans] == ["good"]
    assert isinstance(record, Chat)
    once = "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}"
    with pytest.raises(TokenError, match="not one part for each message"):
        ChatTemplate(once, {}).render(record)
    for change, message in {
        ("weight", 0.5): 'message 1: "weight"; accepted: 0 and 1',
        ("weight", True): 'message 1: "weight"; accepted: 0 and 1',
        ("train", 0): 'message 1: "train"; accepted: false and true',
        ("train", "no"): 'message 1: "train"; accepted: false and true',
        ("weight", 0): "no message that is trained on, so nothing to train on",
    }.items():
        messages = talk("a", "b")
        messages[1][change[0]] = change[1]
        with pytest.raises(TokenError, match=message):
            to_record({"messages": messages}, "f:1")
    for key in ("loss", "train_on_turn"):
        with pytest.raises(TokenError, match=f'message 1: "{key}" is not read'):
            to_record({"messages": [talk("a")[0], {**talk("a", "b")[1], key: False}]}, "f:1")
    with pytest.raises(TokenError, match="message 0: only messages of the assistant"):
        to_record({"messages": [{**talk("a")[0], "train": True}, talk("a", "b")[1]]}, "f:1")
    with pytest.raises(TokenError, match="say different things"):
        both = {"role": "assistant", "content": "b", "weight": 1, "train": False}
        to_record({"messages": [both]}, "f:1")


@pytest.mark.parametrize(
    "record",
    [
        {"text": "a"},
        {"prompt": "a", "completion": "b"},
        {"question": "a", "answer": "b"},
        {"messages": talk("a", "b")},
    ],
)
def test_a_record_as_a_whole_has_no_weight(record: dict[str, Any]) -> None:
    for key, wrong, right in (("weight", (0, 0.5, True), 1), ("train", (False, 1, "no"), True)):
        for value in wrong:
            with pytest.raises(TokenError, match=f'f:1: "{key}" of a whole record'):
                to_record({**record, key: value}, "f:1")
        for value in (right, None):
            assert to_record({**record, key: value}, "f:1") == to_record(record, "f:1")


def test_records_are_those_of_the_program() -> None:
    """The same as in tests/src/data/test_data.cpp."""
    user, answer = talk("a", "b")
    assert to_record({"prompt": "a", "completion": "b", "text": None}, "f") == Passage("a", "b")
    assert to_record({"messages": None, "prompt": "a", "completion": "b"}, "f") == Passage("a", "b")
    system = {"role": "system", "content": "s"}
    turns = [("system", "s"), ("human", "a"), ("gpt", "b")]
    sharegpt = {"conversations": [{"from": name, "value": value} for name, value in turns]}
    assert to_record(sharegpt, "f") == Chat([system, user, answer], "f")
    assert to_record({"conversations": [user, answer]}, "f") == Chat([user, answer], "f")
    alpaca = {"instruction": "a", "input": "b", "output": "c"}
    assert to_record(alpaca, "f") == Chat(talk("a\nb", "c"), "f")
    alpaca = {"instruction": "a", "input": "", "output": "b", "system": "s"}
    assert to_record(alpaca, "f") == Chat([system, user, answer], "f")
    assert to_record({"messages": [user, answer, user]}, "f") == Chat([user, answer, user], "f")
    called = to_record({"messages": [user, CALL], "tools": [{"name": "weather"}]}, "f")
    assert called == Chat([user, CALL], "f", tools=[{"name": "weather"}])
    bad: list[tuple[Any, str]] = [
        ({"conversations": [{"from": "bot", "value": "a"}]}, "message 0: from 'bot'; accepted: hu"),
        (
            {"messages": [user, answer, {"role": "asistant", "content": "c"}]},
            "message 2: role 'asistant'; accepted: system, developer, user, assistant, tool",
        ),
        ({"messages": [{"role": "Assistant", "content": "c"}, answer]}, "0: role 'Assistant'"),
        ({"conversations": [{"role": "gpt", "content": "a"}]}, "message 0: role 'gpt'"),
        ({"instruction": "a", "output": "b", "history": [["c", "d"]]}, '"history" is not read'),
        ({"prompt": [1], "completion": "b"}, 'expected a string in "prompt"'),
        ({"messages": [user, {"role": "assistant"}]}, 'message 1: expected a string in "content"'),
        ({"messages": [user, {"role": "assistant", "content": 4}]}, "message 1: expected a string"),
        ({"messages": [user, answer], "tools": {}}, '"tools" must be a list'),
        ({"messages": [{"role": "assistant", "content": "b", "x": b"y"}]}, "what is no JSON"),
    ]
    for record, message in bad:
        with pytest.raises(TokenError, match=message):
            to_record(record, "f:1")


def test_both_readers_have_the_same_roles() -> None:
    source = (Path(__file__).resolve().parents[2] / "src/data/json_records.cpp").read_text()
    (table,) = re.findall(r"kRoles = \{\s*((?:\"\w+\",?\s*)+)\}", source)
    assert tuple(re.findall(r'"(\w+)"', table)) == documents.ROLES
    critic = {"role": "critic", "content": "c", "train": False}
    record = to_record({"messages": [*talk("a", "b"), critic]}, "f")
    assert isinstance(record, Chat) and len(record.messages) == 3, "said not to be trained on"


def test_tools_reach_the_template() -> None:
    source = "{{ tools | tojson }}{% generation %}{{ messages[0].content }}{% endgeneration %}"
    record = to_record({"messages": talk("q", "a")[1:], "tools": [{"name": "w"}]}, "f:1")
    assert isinstance(record, Chat)
    assert ChatTemplate(source, {}).render(record).text == '[{"name": "w"}]a'


def test_byte_order_marks_and_white_space_are_those_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(
        b'\xef\xbb\xbf{"text": "a"}\n\xef\xbb\xbf \r\n\xef\xbb\xbf\xef\xbb\xbf{"text": "b"}'
    )
    assert list(read_documents(tmp_path / "a.jsonl")) == [Passage("", "a"), Passage("", "b")]
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf\xef\xbb\xbfa\nb\n\xc2\xa0\n\x0c\nc\r\n\t\r\nd")
    records = read_documents(tmp_path / "a.txt")
    texts = [record.response for record in records if isinstance(record, Passage)]
    assert texts == ["a\nb\n\xa0\n\x0c\nc\r", "d"]


def test_json_is_as_strict_as_that_of_the_program(tmp_path: Path) -> None:
    deep = '{"text": "a", "b": ' + "[" * 64 + "1" + "]" * 64 + "}"
    file = tmp_path / "a.jsonl"
    for line, message in {
        '{"text": "a", "text": "b"}': ":1: key 'text' is given twice",
        '{"text": "a", "b": NaN}': ":1: not valid JSON",
        '{"text": "a", "b": 1e999}': ":1: not valid JSON",
        '{"text": "a", "b": "\\ud800"}': ":1: holds half of a surrogate pair",
        deep: ":1: lists and objects in one another, more than 64",
        "[" * 100_000: ":1: lists and objects in one another, more than 64",
    }.items():
        file.write_text(line)
        with pytest.raises(TokenError, match=message):
            list(read_documents(file))
    file.write_text(deep.replace("[", "", 1).replace("]", "", 1))
    assert list(read_documents(file)) == [Passage("", "a")]


def test_json_in_templates_is_that_of_transformers() -> None:
    chat = Chat([{"role": "assistant", "content": "é<&"}], "f:1")
    template = "{% generation %}{{ messages[0] | tojson }}{% endgeneration %}"
    assert ChatTemplate(template, {}).render(chat).text == '{"role": "assistant", "content": "é<&"}'


def test_passages_keep_their_parts() -> None:
    record = to_record({"question": "a", "answer": "b"}, "f:1")
    assert record == Passage("Question: a\nAnswer: ", "b")


def test_text_and_json_lines_give_the_same_passages(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\n \t\nthree")
    lines = '{"text": "one\\ntwo"}\n\n{"text": "three"}\n'
    (tmp_path / "a.jsonl").write_text(lines)
    expected = [Passage("", "one\ntwo"), Passage("", "three")]
    assert list(read_documents(tmp_path / "a.txt")) == expected
    assert list(read_documents(tmp_path / "a.jsonl")) == expected
    assert list(read_documents(tmp_path / "a.txt", "text")) == expected


def test_the_assistant_speaks_after_its_prompt() -> None:
    template = ChatTemplate(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}",
        {},
    )
    talk = [("user", "a"), ("assistant", "bc"), ("user", "d"), ("assistant", "e")]
    messages = [{"role": role, "content": content} for role, content in talk]
    text, spans = template.render(Chat(messages, "f:1"))
    assert text == "<user>a;<assistant>bc;<user>d;<assistant>e;"
    assert [text[begin:end] for begin, end in spans] == ["bc;", "e;"]


def test_bad_documents_name_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    for line, message in {
        "{oops": ":2: not valid JSON",
        "[1]": ":2: expected an object",
        '{"prompt": "a"}': ":2: accepted are",
        '{"text": "\\ud800"}': ":2: holds half of a surrogate pair",
        '{"messages": [3]}': ":2: every message",
    }.items():
        file.write_text('{"text": "x"}\n' + line + "\n")
        with pytest.raises(TokenError, match=message):
            list(read_documents(file))


def test_a_missing_library_is_one_line() -> None:
    with pytest.raises(TokenError, match="no_such_library is not installed; hashing needs it"):
        need("no_such_library.part", "hashing")
