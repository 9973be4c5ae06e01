"""A sentence of a report and its kind."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One or two sentences and their kind: good, bad, fact or caution."""

    kind: str
    topic: str
    text: str
