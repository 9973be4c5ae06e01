"""Reads documents: text, JSON lines, Parquet. What they hold is decided record by record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
"""The same words as the byte-level reader of the program puts around a question."""


@dataclass(frozen=True)
class Passage:
    """A prompt that is not trained on, which may be empty, and what is."""

    prompt: str
    response: str


@dataclass(frozen=True)
class Chat:
    """Messages for a chat template."""

    messages: Messages
    where: str


Record = Passage | Chat


def _string(record: dict[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise TokenError(f'{where}: expected a string in "{key}"')
    _require_unicode(value, where)
    return value


def _require_unicode(text: str, where: str) -> None:
    """JSON can spell half of a surrogate pair, which is no character and has no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenError(f"{where}: holds half of a surrogate pair") from error


def _messages(record: dict[str, Any], where: str) -> Messages:
    messages = record["messages"]
    if not isinstance(messages, list) or not messages:
        raise TokenError(f'{where}: "messages" must be a non-empty list')
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise TokenError(f'{where}: every message needs a "role"')
    _require_unicode(json.dumps(messages, ensure_ascii=False), where)
    if not any(message["role"] == "assistant" for message in messages):
        raise TokenError(f"{where}: no message of the assistant, so nothing to train on")
    return messages


def to_record(record: Any, where: str) -> Record:
    """{"question", "answer"}, {"messages"} or {"text"}. Raises TokenError for anything else."""
    if not isinstance(record, dict):
        raise TokenError(f"{where}: expected an object")
    if "question" in record:
        prompt = PROMPT.format(question=_string(record, "question", where))
        return Passage(prompt, _string(record, "answer", where))
    if "messages" in record:
        return Chat(_messages(record, where), where)
    if "text" in record:
        return Passage("", _string(record, "text", where))
    raise TokenError(f"{where}: accepted are {{question, answer}}, {{messages}} and {{text}}")


def _read_text(path: Path) -> Iterator[Record]:
    """Paragraphs: blank lines separate documents."""
    lines: list[str] = []
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            if line.strip():
                lines.append(line.removesuffix("\n"))
            elif lines:
                yield Passage("", "\n".join(lines))
                lines = []
    if lines:
        yield Passage("", "\n".join(lines))


def _read_json_lines(path: Path) -> Iterator[Record]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                value = json.loads(line)
            except ValueError as error:
                raise TokenError(f"{where}: not valid JSON") from error
            yield to_record(value, where)


def _read_parquet(path: Path) -> Iterator[Record]:
    parquet = need("pyarrow.parquet", "Parquet")
    arrow = need("pyarrow", "Parquet")
    try:
        with parquet.ParquetFile(path) as file:
            row = 0
            for batch in file.iter_batches(batch_size=1024):
                for record in batch.to_pylist():
                    row += 1
                    used = {key: value for key, value in record.items() if value is not None}
                    yield to_record(used, f"{path}: row {row}")
    except (arrow.ArrowInvalid, OSError) as error:
        raise TokenError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from error


def read_documents(path: Path, file_format: str | None = None) -> Iterator[Record]:
    """Records of a file in order. Without `file_format` the name's ending says what it is."""
    chosen = file_format or FORMATS.get(path.suffix)
    if chosen is None:
        raise TokenError(f"{path}: accepted endings are {', '.join(FORMATS)}; or give --format")
    reader = {"text": _read_text, "jsonl": _read_json_lines, "parquet": _read_parquet}[chosen]
    try:
        yield from reader(path)
    except UnicodeDecodeError as error:
        raise TokenError(f"{path}: not UTF-8 at byte {error.start} of a line or block") from error
    except OSError as error:
        raise TokenError(f"{path}: {error.strerror}") from error
