"""What the package raises; the compiled module raises the same."""

from __future__ import annotations


class Error(ValueError):
    """Bad input, in one line: what was wrong, where, and what is accepted."""


class RuntimeFailure(RuntimeError):
    """The machine failed: a file could not be read."""


# Users know them by the package that shows them.
Error.__module__ = RuntimeFailure.__module__ = "fp8lab"
