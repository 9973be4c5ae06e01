"""Sentences of a report and their lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One or two sentences and their kind: good, bad, fact or caution."""

    kind: str
    topic: str
    text: str


def joined(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    items = list(names)
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"
