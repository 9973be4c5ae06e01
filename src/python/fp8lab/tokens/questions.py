"""Prompts and multiple-choice questions as token ids, for models of other tokenizers than bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fp8lab.tokens.shards import TokenError, write_atomically
from fp8lab.tokens.tokenizer import Encoder

BEGINNINGS = ("prompt", "question")
"""Keys whose text a model sees first, after the begin token."""


def _ids(value: Any, encoder: Encoder, where: str) -> Any:
    """Ids of a string; what is no string stays, for the program to judge."""
    if not isinstance(value, str):
        return value
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise TokenError(f"{where}: holds half of a surrogate pair") from error
    return encoder.texts([value])[0]


def encode_record(record: Any, encoder: Encoder, where: str) -> dict[str, Any]:
    """The record with ids in the place of its prompt, question and choices."""
    if not isinstance(record, dict) or not any(key in record for key in BEGINNINGS):
        raise TokenError(f'{where}: expected an object with a "prompt" or a "question"')
    encoded = dict(record)
    begin = encoder.tokenization.begin
    for key in BEGINNINGS:
        if isinstance(record.get(key), str):
            ids = _ids(record[key], encoder, where)
            encoded[key] = ([begin] if begin >= 0 else []) + ids
    if isinstance(record.get("choices"), list):
        encoded["choices"] = [_ids(choice, encoder, where) for choice in record["choices"]]
    return encoded


def encode_questions(inputs: list[Path], encoder: Encoder, folder: Path) -> dict[str, int]:
    """Writes each of `inputs` (JSON lines) into `folder` under its name; records by file name."""
    counts = {}
    for path in inputs:
        target = folder / path.name
        if target.exists():
            raise TokenError(f"{target}: exists")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenError(f"{path}: {error}") from error
        lines = []
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                record = json.loads(line)
            except ValueError as error:
                raise TokenError(f"{where}: not JSON: {error}") from error
            lines.append(json.dumps(encode_record(record, encoder, where)) + "\n")
        write_atomically(target, "".join(lines).encode())
        counts[path.name] = len(lines)
    return counts
