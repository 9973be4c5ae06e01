"""Prompts and multiple-choice questions as token ids, for models of other tokenizers than bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fp8lab.tokens.json_lines import read_json_lines, require_unicode
from fp8lab.tokens.shards import TokenError
from fp8lab.tokens.tokenizer import Encoder

BEGINNINGS = ("prompt", "question")
"""Keys whose text a model sees first, after the begin token."""


def _ids(value: Any, encoder: Encoder, where: str) -> Any:
    """Ids of a string; what is no string stays, for the program to judge."""
    if not isinstance(value, str):
        return value
    require_unicode(value, where)
    return encoder.text(value, where)


def encode_record(record: Any, encoder: Encoder, where: str) -> dict[str, Any]:
    """The record with ids in the place of its prompt, question and choices."""
    if not isinstance(record, dict) or not any(key in record for key in BEGINNINGS):
        raise TokenError(f'{where}: expected an object with a "prompt" or a "question"')
    if "question" in record and not isinstance(record.get("choices"), list):
        raise TokenError(f'{where}: a "question" without a list of "choices"; accepted: a "prompt"')
    encoded = dict(record)
    begin = encoder.tokenization.begin
    for key in BEGINNINGS:
        if isinstance(record.get(key), str):
            ids = _ids(record[key], encoder, where)
            encoded[key] = ([begin] if begin >= 0 else []) + ids
    if isinstance(record.get("choices"), list):
        encoded["choices"] = [_ids(choice, encoder, where) for choice in record["choices"]]
    return encoded


def encode_questions(inputs: list[Path], encoder: Encoder, folder: Path) -> dict[Path, list[str]]:
    """The lines of each of `inputs` (JSON lines) by the file in `folder` that gets them."""
    files: dict[Path, list[str]] = {}
    for path in inputs:
        target = folder / path.name
        if target.exists() or target in files:
            raise TokenError(f"{target}: exists")
        try:
            if path.exists() and not path.is_file():
                raise TokenError(f"{path}: is no regular file")
            files[target] = [
                json.dumps(encode_record(record, encoder, where)) + "\n"
                for where, record in read_json_lines(path)
            ]
        except UnicodeDecodeError as error:
            raise TokenError(f"{path}: not UTF-8 at byte {error.start}") from error
        except OSError as error:
            raise TokenError(f"{path}: {error.strerror}") from error
    return files
