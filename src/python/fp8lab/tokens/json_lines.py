"""Parses JSON by the rules of both JSON lines readers: this tool and the program's `jsonl`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fp8lab.tokens.shards import TokenError

DEEPEST = 64  # nesting of lists and objects, as in src/io/json_document.cpp
BLANK = " \t\r\n"  # a line of only these characters holds no record
BYTE_ORDER_MARK = "\ufeff"


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is out of range")
    return value


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise TokenError(f"key '{twice[:200]}' is given twice")
    return keys


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_keys, parse_float=_finite, parse_constant=_no_constant
)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST + 1):
        containers = [item for item in level if isinstance(item, (dict, list))]
        level = [
            inner
            for item in containers
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return bool(level)


def parse_json(text: str, where: str) -> Any:
    """Returns the value. Raises TokenError for invalid JSON, a duplicate key, an unpaired
    surrogate, and lists and objects nested more than DEEPEST deep."""
    deep = f"{where}: lists and objects in one another, more than {DEEPEST}"
    try:
        value = _DECODER.decode(text)
    except TokenError as error:
        raise TokenError(f"{where}: {error}") from error
    except ValueError as error:
        raise TokenError(f"{where}: not valid JSON") from error
    except RecursionError as error:
        raise TokenError(deep) from error
    if text.count("[") + text.count("{") > DEEPEST and _is_deep(value):
        raise TokenError(deep)
    if "\\u" in text:
        require_unicode(value, where)
    return value


def require_unicode(value: Any, where: str) -> None:
    """Raises TokenError for an unpaired surrogate, which JSON can spell but UTF-8 cannot encode."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise TokenError(f"{where}: holds half of a surrogate pair") from error


def read_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields FILE:LINE and the value of every line that is not blank. Skips byte order marks at the
    start of any line, since concatenated files contain several."""
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            text = line.lstrip(BYTE_ORDER_MARK).strip(BLANK)
            if text:
                where = f"{path}:{number}"
                yield where, parse_json(text, where)
