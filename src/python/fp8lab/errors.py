"""Exceptions of the package; those of the shared library arrive as these."""

from __future__ import annotations

from pathlib import Path


class Error(ValueError):
    """Bad input, in one line: what was wrong, where, and what is accepted."""


class RuntimeFailure(RuntimeError):
    """The machine failed: a file could not be read."""


def where_looked(path: Path) -> str:
    """Returns ", looked for in /home/me/data" for a relative path that does not exist, ", there is
    no folder /home/me/data" if a folder of the path is missing, and an empty text otherwise; as
    src/io/files/missing_file.hpp."""
    try:
        absolute = path.absolute()
        if absolute.exists():
            return ""
        missing = [folder for folder in absolute.parents if not folder.exists()]
    except (OSError, ValueError):
        return ""
    if missing:
        return f", there is no folder {missing[-1]}"
    return "" if path.is_absolute() else f", looked for in {absolute.parent}"


# Shown as fp8lab.Error and fp8lab.RuntimeFailure.
Error.__module__ = RuntimeFailure.__module__ = "fp8lab"
