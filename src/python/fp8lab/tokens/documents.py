"""Reads documents: text, JSON lines, Parquet. The kind of each record is determined separately.

src/data/README.md lists the kinds of records; the program's `kind = "jsonl"` reads the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fp8lab.errors import where_looked
from fp8lab.tokens.json_lines import BLANK, BYTE_ORDER_MARK, read_json_lines, require_unicode
from fp8lab.tokens.shards import TokenError, need

Messages = list[dict[str, Any]]
FORMATS = {
    ".txt": "text",
    ".md": "text",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}
PROMPT = "Question: {question}\nAnswer: "
"""The text that the program's byte-level reader puts around a question."""
ROLES = (
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "function",
    "ipython",
    "observation",
    "environment",
)
"""The roles of published chat templates, as kRoles in src/data/json_records.cpp."""
SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
}
OTHER_WORDS = ("loss", "train_on_turn")
"""Keys by which other tools mark messages that are not trained on."""
ACCEPTED = (
    "{question, answer}, {messages}, {conversations}, {prompt, completion}, {instruction, output} "
    "and {text}"
)


@dataclass(frozen=True)
class Passage:
    """A prompt, which is not trained on and may be empty, and a response, which is trained on."""

    prompt: str
    response: str
    where: str = field(default="", compare=False)
    line: int | None = field(default=None, compare=False)
    """For a text file: the line of the first character; `where` is then the file."""

    def place(self, text: str, index: int) -> str:
        """Returns the place of a character of `text`, which is the prompt or the response."""
        if self.line is None:
            return self.where
        return f"{self.where}:{self.line + text.count(chr(10), 0, index)}"


@dataclass(frozen=True)
class Chat:
    """Messages for a chat template."""

    messages: Messages
    where: str
    untrained: frozenset[int] = frozenset()
    """Indices of assistant messages that are not trained on."""
    tools: list[Any] | None = None


Record = Passage | Chat


def _string(record: dict[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise TokenError(f'{where}: expected a string in "{key}"')
    require_unicode(value, where)
    return value


def _is_trained(message: dict[str, Any], where: str) -> bool:
    """Returns whether a message is trained on: by its key `weight` (0 or 1) or `train` (false or
    true); without them, true for the assistant's messages."""
    for key in OTHER_WORDS:
        if message.get(key) is not None:
            raise TokenError(f'{where}: "{key}" is not read; accepted: "weight" or "train"')
    assistant = message["role"] == "assistant"
    said = []
    kinds: dict[str, type | tuple[type, ...]] = {"weight": (int, float), "train": bool}
    for key, kind in kinds.items():
        value = message.get(key)
        if value is None:
            continue
        is_bool = isinstance(value, bool)
        if not isinstance(value, kind) or value not in (0, 1) or is_bool != (kind is bool):
            accepted = "false and true" if kind is bool else "0 and 1"
            raise TokenError(f'{where}: "{key}"; accepted: {accepted}')
        said.append(bool(value))
    if len(set(said)) > 1:
        raise TokenError(f'{where}: "weight" and "train" say different things')
    if said and said[0] and not assistant:
        raise TokenError(f"{where}: only messages of the assistant can be trained on")
    trained = said[0] if said else bool(assistant)
    if message["role"] not in ROLES and not (said and not trained):
        # A mistyped "assistant" would silently be left out of training.
        accepted = f'{", ".join(ROLES)}; others with "train": false'
        raise TokenError(f"{where}: role '{message['role']}'; accepted: {accepted}")
    return trained


def _content_fits(message: dict[str, Any]) -> bool:
    """Returns true if the content is text, a list of parts, null, or absent in a message with tool
    calls. Lists and null are checked later, in the text that the template writes."""
    content = message.get("content")
    if content is None:
        return "content" in message or bool(message.get("tool_calls"))
    return isinstance(content, (str, list))


def _messages(record: dict[str, Any], messages: Any, key: str, where: str) -> Chat:
    """Returns a chat, even if none of its messages is trained on."""
    if not isinstance(messages, list) or not messages:
        raise TokenError(f'{where}: "{key}" must be a non-empty list')
    untrained, kept = [], []
    for index, message in enumerate(messages):
        place = f"{where}: message {index}"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise TokenError(f'{where}: every message needs a "role"')
        if not _content_fits(message):
            raise TokenError(f'{place}: expected a string in "content"')
        if not _is_trained(message, place) and message["role"] == "assistant":
            untrained.append(index)
        kept.append({k: value for k, value in message.items() if k not in ("weight", "train")})
    tools = record.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise TokenError(f'{where}: "tools" must be a list')
    try:
        require_unicode([kept, tools], where)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, TokenError):
            raise
        raise TokenError(f"{where}: holds what is no JSON: {error}") from error
    return Chat(kept, where, frozenset(untrained), tools or None)


def _chat(record: dict[str, Any], messages: Any, key: str, where: str) -> Chat:
    chat = _messages(record, messages, key, where)
    answers = sum(message["role"] == "assistant" for message in chat.messages)
    if answers == len(chat.untrained):
        what = "that is trained on" if chat.untrained else "of the assistant"
        raise TokenError(f"{where}: no message {what}, so nothing to train on")
    return chat


def _turns(record: dict[str, Any], where: str) -> Any:
    """Converts ShareGPT's `from` and `value` to `role` and `content`."""
    turns = record["conversations"]
    if not isinstance(turns, list):
        return turns
    return [_named_as_message(turn, f"{where}: message {i}") for i, turn in enumerate(turns)]


def to_question(record: dict[str, Any], where: str) -> Chat:
    """Returns the messages of a record for the assistant to answer. Raises TokenError if the last
    message is the assistant's."""
    key = "messages" if "messages" in record else "conversations"
    messages = record[key] if key == "messages" else _turns(record, where)
    chat = _messages(record, messages, key, where)
    if chat.messages[-1]["role"] == "assistant":
        raise TokenError(
            f"{where}: the last message is the assistant's, so nothing is asked; accepted: "
            "messages up to one of another role"
        )
    return chat


def _named_as_message(turn: Any, where: str) -> Any:
    if not isinstance(turn, dict) or "from" not in turn:
        return turn
    role = _string(turn, "from", where)
    if role not in SHAREGPT_ROLES:
        raise TokenError(f"{where}: from '{role}'; accepted: {', '.join(SHAREGPT_ROLES)}")
    others = {key: value for key, value in turn.items() if key not in ("from", "value")}
    return {"role": SHAREGPT_ROLES[role], "content": _string(turn, "value", where), **others}


def _instruction(record: dict[str, Any], where: str) -> Chat:
    """Reads an Alpaca record: an instruction, optionally an input, and the output."""
    if record.get("history"):
        raise TokenError(f'{where}: "history" is not read; accepted: {{messages}}')
    user = _string(record, "instruction", where)
    if record.get("input") not in (None, ""):
        user += "\n" + _string(record, "input", where)
    messages = [
        {"role": "user", "content": user},
        {"role": "assistant", "content": _string(record, "output", where)},
    ]
    if record.get("system") not in (None, ""):
        messages.insert(0, {"role": "system", "content": _string(record, "system", where)})
    return _chat({}, messages, "messages", where)


def to_record(record: Any, where: str) -> Record:
    """Returns the record as the first kind of ACCEPTED that matches; a null value counts as an
    absent key. Raises TokenError if none matches."""
    if not isinstance(record, dict):
        raise TokenError(f"{where}: expected an object")
    record = {key: value for key, value in record.items() if value is not None}
    for key, trained in (("weight", 1), ("train", True)):
        value = record.get(key, trained)
        if isinstance(value, bool) != isinstance(trained, bool) or value != trained:
            raise TokenError(
                f'{where}: "{key}" of a whole record; accepted: {json.dumps(trained)}, or the key '
                "in a message"
            )
    if "question" in record:
        prompt = PROMPT.format(question=_string(record, "question", where))
        return Passage(prompt, _string(record, "answer", where), where)
    if "messages" in record:
        return _chat(record, record["messages"], "messages", where)
    if "conversations" in record:
        return _chat(record, _turns(record, where), "conversations", where)
    if "prompt" in record and "completion" in record:
        prompt = _string(record, "prompt", where)
        return Passage(prompt, _string(record, "completion", where), where)
    if "instruction" in record and "output" in record:
        return _instruction(record, where)
    if "text" in record:
        return Passage("", _string(record, "text", where), where)
    raise TokenError(f"{where}: accepted are {ACCEPTED}")


def _read_text(path: Path) -> Iterator[Record]:
    """Yields the paragraphs of a text file; blank lines separate documents."""
    lines: list[str] = []
    number = 0
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file):
            text = line.lstrip(BYTE_ORDER_MARK) if number == 0 else line
            if text.strip(BLANK):
                lines.append(text.removesuffix("\n"))
            elif lines:
                yield Passage("", "\n".join(lines), str(path), number + 1 - len(lines))
                lines = []
    if lines:
        yield Passage("", "\n".join(lines), str(path), number + 2 - len(lines))


def _without_filling(value: Any) -> Any:
    """Removes the null values that Arrow adds for keys that a message lacks. Keeps `content`, which
    may itself be null."""
    if isinstance(value, list):
        return [_without_filling(item) for item in value]
    if isinstance(value, dict):
        return {
            key: _without_filling(item)
            for key, item in value.items()
            if item is not None or key == "content"
        }
    return value


def _read_parquet(path: Path) -> Iterator[Record]:
    parquet = need("pyarrow.parquet", "Parquet")
    arrow = need("pyarrow", "Parquet")
    try:
        with parquet.ParquetFile(path) as file:
            row = 0
            for batch in file.iter_batches(batch_size=1024):
                for record in batch.to_pylist():
                    row += 1
                    yield to_record(_without_filling(record), f"{path}: row {row}")
    except (arrow.lib.ArrowException, OSError) as error:
        raise TokenError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from error


def read_documents(path: Path, file_format: str | None = None) -> Iterator[Record]:
    """Yields the records of a file in order. Default of `file_format`: by the name's ending."""
    chosen = file_format or FORMATS.get(path.suffix)
    if chosen is None:
        raise TokenError(f"{path}: accepted endings are {', '.join(FORMATS)}; or give --format")
    try:
        if path.exists() and not path.is_file():
            raise TokenError(f"{path}: is no regular file")
        if chosen == "jsonl":
            for where, value in read_json_lines(path):
                yield to_record(value, where)
        else:
            yield from _read_text(path) if chosen == "text" else _read_parquet(path)
    except UnicodeDecodeError as error:
        raise TokenError(f"{path}: not UTF-8 at byte {error.start} of a line or block") from error
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        if isinstance(error, TokenError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise TokenError(f"{path}: {reason}{where_looked(path)}") from error
