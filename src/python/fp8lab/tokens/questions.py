"""Encodes prompts and multiple-choice questions as token ids, for tokenizers other than bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fp8lab.errors import where_looked
from fp8lab.tokens.documents import to_question
from fp8lab.tokens.json_lines import read_json_lines, require_unicode
from fp8lab.tokens.shards import TokenError
from fp8lab.tokens.tokenizer import Encoder

CHATS = ("messages", "conversations")
Notes = list[str]


def _ids(value: Any, encoder: Encoder, where: str) -> Any:
    """Returns the ids of a string. Other values are unchanged; the program checks them."""
    if not isinstance(value, str):
        return value
    require_unicode(value, where)
    return encoder.text(value, where)


def _prompt(record: dict[str, Any], encoder: Encoder, where: str) -> tuple[dict[str, Any], Notes]:
    """Replaces the prompt text, or the messages of a chat, by ids."""
    said = [key for key in ("prompt", *CHATS) if key in record]
    if len(said) > 1:
        raise TokenError(f'{where}: has "{said[0]}" and "{said[1]}"; accepted: one of them')
    if said == ["prompt"]:
        if not isinstance(record["prompt"], str):
            return record, []  # the program checks it
        require_unicode(record["prompt"], where)
        ids, notes = encoder.prompt(record["prompt"], where)
    else:
        ids, notes = encoder.question(to_question(record, where))
    others = {key: record[key] for key in record if key not in ("prompt", "tools", *CHATS)}
    return {"prompt": ids, **others}, notes


def encode_record(record: Any, encoder: Encoder, where: str) -> tuple[dict[str, Any], Notes]:
    """Returns the record with ids instead of its prompt or messages, or of its question and
    choices, and notes. Special tokens are recognised in prompts and chats, as in user input. In
    questions and choices, which are third-party text, they are spelled out."""
    keys = ("prompt", "question", *CHATS)
    if not isinstance(record, dict) or not any(key in record for key in keys):
        raise TokenError(f'{where}: expected an object with "prompt", "messages" or "question"')
    if "question" not in record:
        return _prompt(record, encoder, where)
    if not isinstance(record.get("choices"), list):
        raise TokenError(f'{where}: a "question" without a list of "choices"; accepted: a "prompt"')
    encoded = dict(record)
    begin = encoder.tokenization.begin
    if isinstance(record["question"], str):
        ids = _ids(record["question"], encoder, where)
        encoded["question"] = ([begin] if begin >= 0 else []) + ids
    encoded["choices"] = [_ids(choice, encoder, where) for choice in record["choices"]]
    return encoded, []


def encode_questions(
    inputs: list[Path], encoder: Encoder, folder: Path
) -> tuple[dict[Path, list[str]], Notes]:
    """Returns the encoded lines of each of `inputs` (JSON lines), by their target file in `folder`,
    and notes."""
    notes: Notes = []
    files: dict[Path, list[str]] = {}
    for path in inputs:
        target = folder / path.name
        if target.exists() or target in files:
            raise TokenError(f"{target}: exists")
        try:
            if path.exists() and not path.is_file():
                raise TokenError(f"{path}: is no regular file")
            files[target] = []
            for where, record in read_json_lines(path):
                encoded, more = encode_record(record, encoder, where)
                files[target].append(json.dumps(encoded) + "\n")
                notes += more
        except UnicodeDecodeError as error:
            raise TokenError(f"{path}: not UTF-8 at byte {error.start}") from error
        except OSError as error:
            raise TokenError(f"{path}: {error.strerror}{where_looked(path)}") from error
    return files, notes
