"""Reads a GGUF file: metadata by key, tensors as float32 in blocks of rows."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp8lab.errors import Error
from fp8lab.packages import how_to_install, missing_of

Floats = NDArray[np.float32]
CHUNK = 1 << 23
"""Largest number of elements converted to floats at a time; at least one row is converted."""

WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the types of metadata that are numbers, by their codes."""
STRING, ARRAY = 8, 9
"""Codes of the other types of metadata."""


def need(module: str) -> Any:
    """Imports a library that only this tool needs. Raises Error that names what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        missing = list(dict.fromkeys([name, *missing_of(("gguf", "tokenizers"))]))
        raise Error(f"{name} is not installed: {how_to_install(missing)}") from error


class Tensor:
    """A tensor of the file. `shape` is in the order of transformers: rows first."""

    def __init__(self, entry: Any, where: str) -> None:
        self.name: str = entry.name
        self.shape = tuple(int(size) for size in reversed(entry.shape))
        self.type: str = entry.tensor_type.name
        self._entry = entry
        self._where = f"{where}: {self.name}"
        self._quants = need("gguf.quants")

    def rows(self, order: NDArray[np.intp] | None = None) -> Iterator[Floats]:
        """Yields blocks of consecutive rows, permuted by `order` if given; a vector is one row.
        Raises Error if the type holds no floats or a value is not finite."""
        data = self._entry.data.reshape(max(1, int(np.prod(self.shape[:-1]))), -1)
        step = max(1, CHUNK // max(1, self.shape[-1]))
        for begin in range(0, len(data), step):
            part = slice(begin, begin + step)
            raw = np.ascontiguousarray(data[part] if order is None else data[order[part]])
            try:
                values = self._quants.dequantize(raw, self._entry.tensor_type)
            except (NotImplementedError, ValueError) as error:
                raise Error(f"{self._where}: is of the type {self.type}: {error}") from error
            floats: Floats = np.asarray(values, np.float32).reshape(len(raw), self.shape[-1])
            if not np.isfinite(floats).all():
                raise Error(f"{self._where}: holds values that are not finite")
            yield floats

    def whole(self) -> Floats:
        """Returns the whole tensor."""
        return np.concatenate(list(self.rows())).reshape(self.shape)

    def equals(self, other: Tensor) -> bool:
        """Returns true if both tensors have the same type and bytes."""
        same = self.type == other.type and self.shape == other.shape
        return same and bool(np.array_equal(self._entry.data, other._entry.data))


def _check_arrays(data: mmap.mmap) -> None:
    """Raises ValueError or struct.error for an array of arrays, in which the package gguf recurses,
    and for one beyond the end of the file, whose elements it would count without end."""
    order = ">" if struct.unpack_from("<I", data, 4)[0] & 0xFFFF == 0 else "<"
    if struct.unpack_from(f"{order}I", data, 4)[0] not in (2, 3):
        return  # the package says which versions it reads
    integer, length = struct.Struct(f"{order}I"), struct.Struct(f"{order}Q")

    def after_text(place: int) -> int:
        return place + length.size + int(length.unpack_from(data, place)[0])

    place = 24
    for _ in range(length.unpack_from(data, 16)[0]):
        place = after_text(place)
        (kind,), count = integer.unpack_from(data, place), 1
        place += integer.size
        if kind == ARRAY:
            (kind,), (count,) = (
                integer.unpack_from(data, place),
                length.unpack_from(data, place + integer.size),
            )
            place += integer.size + length.size
            if kind == ARRAY:
                raise ValueError("metadata hold an array of arrays")
        if kind == STRING:
            for _ in range(count):
                place = after_text(place)
        elif kind in WIDTHS:
            place += WIDTHS[kind] * count
        else:
            raise ValueError(f"metadata of the unknown type {kind}")
        if place > len(data):
            raise ValueError("metadata reach beyond the end of the file")


class Source:
    """An open GGUF file. Failures raise Error that names file and key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        gguf = need("gguf")
        if path.exists() and not path.is_file():
            raise Error(f"{path}: is no regular file")
        try:
            with path.open("rb") as file:
                magic = file.read(4)
        except OSError as error:
            raise Error(f"{path}: {error.strerror}") from error
        if magic != b"GGUF":
            raise Error(f"{path}: is no GGUF file")
        try:
            with path.open("rb") as file:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    _check_arrays(data)
            reader = gguf.GGUFReader(path)
            self._fields = {key: field.contents() for key, field in reader.fields.items()}
        except (
            ValueError,
            IndexError,
            KeyError,
            TypeError,
            OverflowError,
            struct.error,
        ) as error:
            reason = " ".join(str(error).split())[:200]
            raise Error(f"{path}: is cut off or damaged: {reason}") from error
        self._read: set[str] = set()
        self.tensors = {entry.name: Tensor(entry, str(path)) for entry in reader.tensors}

    def fail(self, key: str, what: str) -> Error:
        return Error(f"{self.path}: {key} {what}")

    def has(self, key: str) -> bool:
        return self._fields.get(key) is not None

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """Returns a value. Raises Error if its type is not `kind`, or if it is missing and there is
        no default."""
        self._read.add(key)
        value = self._fields.get(key)
        if value is None:
            if default is None:
                raise self.fail(key, "is missing")
            return default
        wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
        if wrong:
            raise self.fail(key, f"is {str(value)[:80]!r}; accepted: {_names(kind)}")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        value: int = self.get(key, int, default)
        if not 0 < value < 1 << 40:
            raise self.fail(key, f"is {value}; accepted: a positive number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Returns the shortest decimal that rounds to the float32: 1e-05, not 9.99999975e-06."""
        value = float(self.get(key, (float, int), default))
        if not np.isfinite(value):
            raise self.fail(key, f"is {value}; accepted: a finite number")
        return float(str(np.float32(value)))

    def words(self, key: str) -> list[str]:
        values: list[str] = self.get(key, list)
        if not all(isinstance(value, str) for value in values):
            raise self.fail(key, "holds what is no text")
        return values

    def expect(self, key: str, accepted: Sequence[Any]) -> None:
        """Raises Error if the key is present and its value is not one of `accepted`."""
        self._read.add(key)
        value = self._fields.get(key)
        if value is not None and value not in accepted:
            said = ", ".join(str(item) for item in accepted)
            raise self.fail(key, f"= {str(value)[:80]} is not supported; accepted: {said}")

    def ignore(self, *keys: str) -> None:
        self._read.update(keys)

    def refuse_unread(self, prefix: str) -> None:
        """Raises Error if a key with `prefix` was never read: it may change the model's results."""
        for key in self._fields:
            if key.startswith(prefix) and key not in self._read:
                raise self.fail(key, "is not known; it may change what the model computes")


def _names(kind: type | tuple[type, ...]) -> str:
    words = {
        str: "text",
        int: "an integer",
        float: "a number",
        bool: "true or false",
        list: "a list",
    }
    return words[kind[0] if isinstance(kind, tuple) else kind]
