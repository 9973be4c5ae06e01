"""Shard files: header, document ends, ids, loss mask. src/data/README.md describes the bytes."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp8lab.packages import how_to_install, missing_of

MAGIC = b"fp8ltok\n"
VERSION = 1
HEADER = struct.Struct("<8sIIQQIiiIQQ64x")
HAS_LOSS_MASK = 1


class TokenError(ValueError):
    """Bad input. The message is one line: the fault, its place, and what is accepted."""


def need(module: str, purpose: str) -> Any:
    """Imports a library that only this tool needs. Raises TokenError if it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        name = module.partition(".")[0]
        missing = list(dict.fromkeys([name, *missing_of(("tokenizers", "xxhash"))]))
        raise TokenError(
            f"{name} is not installed; {purpose} needs it: {how_to_install(missing)}"
        ) from error
    except ImportError as error:
        raise TokenError(f"{purpose}: {error}") from error


def hash_pieces(pieces: Iterable[Any]) -> int:
    """Returns the XXH3-64 of the concatenated pieces, equal to that of the C++ code."""
    state = need("xxhash", "hashing").xxh3_64()
    for piece in pieces:
        state.update(piece)
    return int(state.intdigest())


def hash_file(path: Path) -> int:
    """Returns the XXH3-64 of a file, read in blocks."""
    with path.open("rb") as file:
        return hash_pieces(iter(lambda: file.read(1 << 20), b""))


class NewFiles:
    """Files that are written together. On an error, removes those written so far, and the folder if
    it was created for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: list[Path] = []
        self._made: list[Path] = []

    def __enter__(self) -> NewFiles:
        missing = [self.folder, *self.folder.parents]
        self._made = [folder for folder in missing if not folder.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def write(self, path: Path, *pieces: Any) -> None:
        """Replaces `path` by the pieces. A file that existed before is not removed on an error."""
        if not path.exists():
            self._written.append(path)
        write_atomically(path, *pieces)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        for path in self._written:
            path.unlink(missing_ok=True)
        for folder in self._made:
            with suppress(OSError):
                folder.rmdir()


def write_atomically(path: Path, *pieces: Any) -> None:
    """Replaces `path` by the pieces atomically: no reader sees a partial file, even after a
    crash."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@dataclass(frozen=True)
class Tokenization:
    """The tokenizer's fields of a shard header. `begin` and `end` are -1 for no token."""

    vocabulary: int
    begin: int
    end: int
    tokenizer_hash: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The narrowest type for every id."""
        return np.dtype("<u2" if self.vocabulary <= 1 << 16 else "<u4")


@dataclass(frozen=True)
class Shard:
    """The contents of a shard."""

    tokenization: Tokenization
    tokens: NDArray[Any]
    document_ends: NDArray[np.uint64]
    trained: NDArray[np.bool_] | None
    """For each token, whether it is a target; None: the file has no loss mask."""
    content_hash: int

    def documents(self) -> list[NDArray[Any]]:
        return np.split(self.tokens, self.document_ends[:-1].astype(np.int64))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


class ShardWriter:
    """Collects documents and writes PREFIX-00000.tokens, PREFIX-00001.tokens, ...

    A shard ends with the document that brings it to `shard_tokens`. If `masked`, files get a loss
    mask; without one, every token except a document's first is trained on.
    """

    def __init__(
        self,
        folder: Path,
        prefix: str,
        tokenization: Tokenization,
        *,
        masked: bool,
        shard_tokens: int = 1 << 27,
        write: Callable[..., None] = write_atomically,
    ) -> None:
        self.folder = folder
        self._write_file = write
        self.prefix = prefix
        self.tokenization = tokenization
        self.masked = masked
        self.shard_tokens = shard_tokens
        self.records: list[dict[str, Any]] = []
        self._clear()

    def _clear(self) -> None:
        self._tokens: list[NDArray[Any]] = []
        self._trained: list[NDArray[np.bool_]] = []
        self._ends: list[int] = []

    def add(self, tokens: Sequence[int], trained: Sequence[bool] | NDArray[np.bool_]) -> None:
        """Appends a document. Its first token is never a target. Raises TokenError if it has fewer
        than two tokens."""
        if len(tokens) < 2:
            raise TokenError("fewer than two tokens, so nothing to predict")
        mask = np.asarray(trained, dtype=np.bool_).copy()
        if mask.shape != (len(tokens),):
            raise TokenError(f"a mask of {mask.size} for {len(tokens)} tokens")
        mask[0] = False
        if not self.masked and not mask[1:].all():
            raise TokenError("a document with masked tokens in a shard without a loss mask")
        ids = np.asarray(tokens, dtype=np.int64)
        if ids.min() < 0 or ids.max() >= self.tokenization.vocabulary:
            raise TokenError(
                f"token {ids.max()} is beyond the vocabulary of {self.tokenization.vocabulary}"
            )
        self._tokens.append(ids.astype(self.tokenization.dtype))
        self._trained.append(mask)
        self._ends.append((self._ends[-1] if self._ends else 0) + len(tokens))
        if self._ends[-1] >= self.shard_tokens:
            self._write()

    def finish(self) -> list[dict[str, Any]]:
        """Writes the last shard; returns one record per shard for the manifest. Raises TokenError
        if there is no document."""
        if self._ends:
            self._write()
        if not self.records:
            raise TokenError("no documents: no shard is written")
        return self.records

    def _write(self) -> None:
        tokens = np.concatenate(self._tokens)
        trained = np.concatenate(self._trained)
        if self.masked and not trained.any():
            raise TokenError("no token of a shard is trained on")
        sections = [
            np.asarray(self._ends, dtype="<u8").tobytes(),
            _padded(tokens.tobytes()),
        ]
        if self.masked:
            sections.append(_padded(np.packbits(trained, bitorder="little").tobytes()))
        content_hash = hash_pieces(sections)
        t = self.tokenization
        header = HEADER.pack(
            MAGIC,
            VERSION,
            8 * tokens.itemsize,
            len(tokens),
            len(self._ends),
            t.vocabulary,
            t.begin,
            t.end,
            HAS_LOSS_MASK if self.masked else 0,
            t.tokenizer_hash,
            content_hash,
        )
        path = self.folder / f"{self.prefix}-{len(self.records):05d}.tokens"
        self._write_file(path, header, *sections)
        record = {
            "file": path.name,
            "tokens": len(tokens),
            "trained_tokens": int(trained.sum()),
            "documents": len(self._ends),
            "hash": f"{content_hash:016x}",
        }
        self.records.append(record)
        self._clear()


def read_shard(path: Path | str) -> Shard:
    """Reads a whole shard. Raises TokenError if the file is no shard or is damaged."""
    if Path(path).exists() and not Path(path).is_file():
        raise TokenError(f"{path}: is no regular file")
    data = Path(path).read_bytes()
    if len(data) < HEADER.size or data[:8] != MAGIC:
        raise TokenError(f"{path}: not a shard of fp8lab.tokens")
    (
        _,
        version,
        bits,
        count,
        documents,
        vocabulary,
        begin,
        end,
        flags,
        tokenizer,
        content,
    ) = HEADER.unpack_from(data)
    if version != VERSION or bits not in (16, 32):
        raise TokenError(f"{path}: version {version} with {bits}-bit ids")
    width = bits // 8
    sizes = [8 * documents, width * count, (count + 7) // 8 if flags & HAS_LOSS_MASK else 0]
    offsets = [HEADER.size]
    for size in sizes:
        offsets.append(offsets[-1] + size + -size % 8)
    if offsets[-1] != len(data) or hash_pieces([memoryview(data)[HEADER.size :]]) != content:
        raise TokenError(f"{path}: damaged")
    trained = None
    if sizes[2]:
        bits_of_mask = np.frombuffer(data, np.uint8, sizes[2], offsets[2])
        trained = np.unpackbits(bits_of_mask, count=count, bitorder="little").astype(np.bool_)
    return Shard(
        Tokenization(vocabulary, begin, end, tokenizer),
        np.frombuffer(data, f"<u{width}", count, offsets[1]),
        np.frombuffer(data, "<u8", documents, offsets[0]),
        trained,
        content,
    )
