"""Exceptions of the package; those of the shared library arrive as these."""

from __future__ import annotations


class Error(ValueError):
    """Bad input, in one line: what was wrong, where, and what is accepted."""


class RuntimeFailure(RuntimeError):
    """The machine failed: a file could not be read."""


# Shown as fp8lab.Error and fp8lab.RuntimeFailure.
Error.__module__ = RuntimeFailure.__module__ = "fp8lab"
