"""Random texts: valid documents with something wrong in them."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# Numbers at which sizes, products and conversions go wrong.
INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    127,
    2**15,
    2**31 - 1,
    2**31,
    2**32,
    10**12,
    2**53 + 1,
    2**62,
    2**63 - 1,
)
FLOATS = ("nan", "inf", "-inf", "-0.0", "1e308", "1e-320", "0.1", "1e12", "-1.5")
WORDS = (
    "",
    "x",
    "../../x",
    "/",
    "/dev/zero",
    "/proc/self/mem",
    ".",
    "a b",
    "\u00e9\u4e16",
    "'",
    "\\",
)


@dataclass(frozen=True)
class Document:
    """An input file. `invalid`: by construction, so that accepting it is wrong."""

    data: bytes
    invalid: bool
    note: str


def random_bytes(rng: random.Random, longest: int) -> bytes:
    return rng.randbytes(rng.randrange(longest))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything that is no table."""
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [leaf for i, item in enumerate(value) for leaf in leaves(item, (*path, i))]
    return [path]


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def put(value: Any, path: tuple[Any, ...], item: Any) -> None:
    at(value, path[:-1])[path[-1]] = item


class Raw(str):
    """Text that stands in a document as it is."""


def toml_value(value: Any) -> str:
    if isinstance(value, Raw):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, dict):
        pairs = ", ".join(f"{toml_key(key)} = {toml_value(v)}" for key, v in value.items())
        return "{" + pairs + "}"
    return str(value)


def toml_key(key: str) -> str:
    plain = key and all(c.isascii() and (c.isalnum() or c in "_-") for c in key)
    return key if plain else json.dumps(key)


def toml_text(table: dict[str, Any]) -> str:
    """Plain keys first; tables inline, which is the same document."""
    return "".join(f"{toml_key(key)} = {toml_value(value)}\n" for key, value in table.items())


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return rng.choice(INTEGERS) * rng.choice((1, 1, 1, -1))
    if kind == 1:
        return Raw(rng.choice(FLOATS))
    if kind == 2:
        return rng.choice((True, False))
    if kind == 3:
        return rng.choice(WORDS) * rng.choice((1, 1, 1, 500))
    if kind == 4:
        return Raw(rng.choice(("1979-05-27T07:32:00Z", "07:32:00", "0x7fffffffffffffff", "0b1")))
    if kind == 5:
        return {f"k{i}": random_value(rng, depth + 1) for i in range(rng.randrange(3))}
    return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]


def other_type(rng: random.Random, value: Any) -> Any:
    """A value that no reader of `value` may take."""
    if isinstance(value, bool):
        return rng.choice((0, 1, "true"))
    if isinstance(value, (int, float)):
        return rng.choice(("1", True, [1], {"a": 1}, Raw("07:32:00")))
    if isinstance(value, str):
        return rng.choice((1, 1.5, False, {"a": 1}, Raw("07:32:00")))
    return rng.choice((1, "x", True))


SYNTAX = (
    "x =\n",
    "[[\n",
    "= 3\n",
    'x = "open\n',
    "x = [1, 2\n",
    "x = 1 2\n",
    "x = 01\n",
    "[a]\n[a]\n",
    "x = 1\nx = 2\n",
    "x = 1e\n",
    "x = {a = 1\n",
    "x\n",
    'x = "\\q"\n',
    "x = 1979-99-99\n",
    "x = \x00\n",
)


def _syntax(text: str, rng: random.Random) -> Document:
    return Document((rng.choice(SYNTAX) + text).encode(), True, "syntax error")


def _cut(text: str, rng: random.Random) -> Document:
    return Document(text.encode()[: rng.randrange(len(text))], False, "cut off")


def _noise(text: str, rng: random.Random) -> Document:
    data = bytearray(text.encode())
    for _ in range(rng.randint(1, 5)):
        place = rng.randrange(len(data))
        data[place : place + rng.randrange(3)] = random_bytes(rng, 4)
    return Document(bytes(data), False, "random bytes")


def _not_utf8(text: str, rng: random.Random) -> Document:
    bad = rng.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\x80"))
    return Document(b'zz = "' + bad + b'"\n' + text.encode(), True, "no UTF-8")


def _deep(text: str, rng: random.Random) -> Document:
    depth = rng.choice((50, 300, 5000, 100000))
    how = rng.randrange(4)
    if how == 0:
        extra = "zz = " + "[" * depth + "]" * depth
    elif how == 1:
        extra = ".".join(["z"] * depth) + " = 1"
    elif how == 2:
        extra = "zz = " + "{a = " * depth + "1" + "}" * depth
    else:
        extra = "[" + ".".join(["z"] * depth) + "]"
        return Document((text + extra + "\n").encode(), True, f"a table {depth} deep")
    return Document((extra + "\n" + text).encode(), True, f"nested {depth} deep")


def _long(text: str, rng: random.Random) -> Document:
    size = rng.choice((1000, 100000, 2000000))
    extra = rng.choice(
        ("z" * size + " = 1\n", "zz = " + "9" * size + "\n", "[" + "z" * size + "]\n")
    )
    return Document((extra + text).encode(), True, f"{size} bytes of one word")


TEXT_FAULTS = (_syntax, _cut, _noise, _not_utf8, _deep, _long)


def broken_toml(document: dict[str, Any], rng: random.Random) -> Document:
    """`document` with one thing wrong, or something random."""
    if rng.random() < 0.4:
        return rng.choice(TEXT_FAULTS)(toml_text(document), rng)
    changed = copy.deepcopy(document)
    path = rng.choice(leaves(changed))
    name = ".".join(map(str, path))
    how = rng.randrange(5)
    if how == 0:
        table = at(changed, path[:-1])
        if isinstance(table, dict):
            table[rng.choice(("steps_", "Seed", "zz", "recip"))] = random_value(rng)
        return Document(toml_text(changed).encode(), True, f"unknown key beside {name}")
    if how == 1:
        put(changed, path, other_type(rng, at(changed, path)))
        return Document(toml_text(changed).encode(), True, f"{name} of another type")
    if how == 2:
        value = rng.choice(INTEGERS) * rng.choice((1, -1))
        put(changed, path, value)
        return Document(toml_text(changed).encode(), False, f"{name} = {value}")
    if how == 3:
        put(changed, path, random_value(rng))
        return Document(toml_text(changed).encode(), False, f"{name} random")
    parent = at(changed, path[:-1])
    if isinstance(parent, dict):
        del parent[path[-1]]
    return Document(toml_text(changed).encode(), False, f"{name} left out")


PATTERN_PARTS = ("layers", "first", "last", "12", "*", "attention", "qkv", "mlp", "down", "lm_head")


def layer_pattern(rng: random.Random) -> str:
    """Names of layers with wildcards and choices, up to very many of them."""
    parts = []
    for _ in range(rng.randint(1, 4)):
        part = rng.choice(PATTERN_PARTS)
        if rng.random() < 0.5:
            choice = "{" + ",".join(rng.choices(PATTERN_PARTS, k=rng.randint(1, 5))) + "}"
            part += choice * rng.choice((1, 1, 2, 30))
        parts.append(part)
    return rng.choice((".", ".", "")).join(parts) + rng.choice(("", "", "{", "}", ",", ".*"))


def broken_json(document: Any, rng: random.Random) -> Document:
    """The same for JSON."""
    changed = copy.deepcopy(document)
    paths = [path for path in leaves(changed) if path]
    path = rng.choice(paths) if paths else ()
    how = rng.randrange(7)
    if how == 0 and path:
        put(changed, path, rng.choice(INTEGERS) * rng.choice((1, -1)))
        return Document(json.dumps(changed).encode(), False, f"{path} an integer")
    if how == 1 and path:
        others: tuple[Any, ...] = (None, [], {}, "", "x" * 5000, 1.5, float("nan"), [[[]]], True)
        value = rng.choice(others)
        put(changed, path, value)
        return Document(json.dumps(changed).encode(), False, f"{path} of another type")
    if how == 2 and path and isinstance(at(changed, path[:-1]), dict):
        del at(changed, path[:-1])[path[-1]]
        return Document(json.dumps(changed).encode(), False, f"{path} left out")
    text = json.dumps(changed).encode()
    if how == 3:
        return Document(text[: rng.randrange(len(text))], True, "cut off")
    if how == 4:
        depth = rng.choice((100, 10000, 1000000))
        return Document(b'{"zz": ' + b"[" * depth, True, f"{depth} open brackets")
    if how == 5:
        bad = rng.choice((b"\xff", b'"\\x"', b"01", b"+1", b"'a'", b"1 2", b'{"a":1,}'))
        return Document(b'{"zz": ' + bad + b", " + text[1:], True, "syntax error")
    data = bytearray(text)
    data[rng.randrange(len(data))] = rng.randrange(256)
    return Document(bytes(data), False, "one random byte")


def broken_binary(data: bytes, words: list[tuple[int, str]], rng: random.Random) -> Document:
    """A binary file with a header: numbers at `words` (offset, struct format) changed, cut off, or
    random bytes in its head."""
    changed = bytearray(data)
    how = rng.randrange(4)
    if how == 0 and words:
        offset, form = rng.choice(words)
        size = struct.calcsize(form)
        limit = 1 << (8 * size)
        value = (rng.choice(INTEGERS) * rng.choice((1, -1))) % limit
        same = data[offset : offset + size] == value.to_bytes(size, "little")
        changed[offset : offset + size] = value.to_bytes(size, "little")
        return Document(bytes(changed), False, f"{value} at {offset}" + " as before" * same)
    if how == 1:
        place = rng.randrange(len(data))
        return Document(data[:place], True, f"cut to {place} bytes")
    if how == 2:
        for _ in range(rng.randint(1, 4)):
            changed[rng.randrange(min(len(data), 128))] = rng.randrange(256)
        return Document(bytes(changed), False, "random bytes in the head")
    return Document(random_bytes(rng, 4096), True, "random bytes")


Make = Callable[[random.Random], Document]


def npy(rng: random.Random) -> Document:
    """An array file by its grammar, mostly wrong."""
    descr = rng.choice(("<f4", "<f8", "|u1", "<i4", "<u2", "|O", ">f4", "<c8", "f4", "<f4\\"))
    shape = ", ".join(str(rng.choice((1, 2, 4, 64, *INTEGERS))) for _ in range(rng.randrange(4)))
    order = rng.choice(("False", "False", "True", "None", "0"))
    header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({shape}), }}"
    if rng.random() < 0.3:
        place = rng.randrange(len(header))
        header = (
            header[:place]
            + rng.choice(("'", "{", "}", ",", "(", "\x00", "[", "9"))
            + header[place:]
        )
    text = header.encode() + b" " * rng.randrange(64) + b"\n"
    length = len(text) if rng.random() < 0.8 else rng.choice((0, 1, 65535))
    version = rng.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\xff\xff"))
    size = length.to_bytes(4 if version[0] == 2 else 2, "little")
    data = b"\x93NUMPY" + version + size + text + random_bytes(rng, 600)
    return Document(data, False, header[:200])


def safetensors(rng: random.Random) -> Document:
    """A safetensors file by its grammar, mostly wrong."""
    size = rng.choice((0, 4, 8, 64, 256))
    header: dict[str, Any] = {}
    for i in range(rng.randrange(4)):
        first = rng.choice((0, 0, i * size, *INTEGERS))
        header[rng.choice(("a", "b", f"layers.{i}.weight", "", "n" * 3000))] = {
            "dtype": rng.choice(("F32", "BF16", "F8_E4M3", "U8", "Q4", 3)),
            "shape": rng.choice(([], [size // 4], [2, size // 8], [rng.choice(INTEGERS)] * 2)),
            "data_offsets": rng.choice(([first, first + size], [first], [size, first], "x")),
        }
    if rng.random() < 0.3:
        header["__metadata__"] = rng.choice(
            ({"format": "pt"}, {"schema": "fp8lab-checkpoint-3"}, 3)
        )
    text = json.dumps(header).encode()
    if rng.random() < 0.2:
        text = broken_json(header, rng).data
    length = len(text) if rng.random() < 0.8 else rng.choice(INTEGERS)
    data = struct.pack("<Q", length % 2**64) + text + bytes(rng.choice((0, size, 2 * size, 999)))
    return Document(data, False, text[:200].decode(errors="replace"))
