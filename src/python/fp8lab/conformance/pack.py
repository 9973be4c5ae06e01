"""Reads the folder of test vectors that `fp8lab validate export` writes. Needs only NumPy."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

SCHEMA = "fp8lab-conformance-3"
Array = NDArray[Any]
Case = dict[str, Any]


class PackError(ValueError):
    """The folder is no complete conformance pack, or a result has the wrong type or shape."""


def _read(path: Path) -> bytes:
    """Returns the bytes of a file. Raises OSError also for a pipe, which may have no writer."""
    if path.exists() and not path.is_file():
        raise OSError("is no regular file")
    return path.read_bytes()


class Pack:
    """A folder of test vectors. Checks the SHA-256 of every file that it reads."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        try:
            text = _read(self.directory / "manifest.json").decode()
            manifest = json.loads(text)
        except (OSError, ValueError) as error:
            raise PackError(f"{self.directory}: no readable manifest.json: {error}") from error
        if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
            raise PackError(f"{self.directory}: manifest.json is not one of schema {SCHEMA}")
        self.manifest: dict[str, Any] = manifest

    def cases(self, section: str) -> list[Case]:
        """Returns the cases of a section, in the order of the manifest."""
        cases: list[Case] = self.manifest["sections"][section]
        return cases

    def array(self, name: str) -> Array:
        """Returns one array. Raises PackError if its file is missing or damaged."""
        expected = self.manifest["files"].get(name)
        path = PurePosixPath(name)
        if expected is None or path.is_absolute() or ".." in path.parts:
            raise PackError(f"{self.directory}: the manifest lists no file {name}")
        try:
            data = _read(self.directory / path)
        except OSError as error:
            reason = error.strerror or error
            raise PackError(f"{self.directory / path}: {reason}") from error
        if hashlib.sha256(data).hexdigest() != expected:
            raise PackError(f"{self.directory / path}: damaged, its SHA-256 is not the manifest's")
        array: Array = np.load(io.BytesIO(data), allow_pickle=False)
        return array

    def optional(self, case: Case, key: str) -> Array | None:
        """Returns the array that `case` names under `key`; None if it has no such key."""
        return self.array(case[key]) if key in case else None
