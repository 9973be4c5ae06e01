"""What fp8lab.tokens does without a tokenizer: reading documents and rendering chat templates."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src/python"))

from fp8lab.tokens.chat import ChatTemplate, Rendered  # noqa: E402
from fp8lab.tokens.documents import Chat, Passage, read_documents, to_record  # noqa: E402
from fp8lab.tokens.shards import TokenError, need  # noqa: E402
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
