"""The program's messages about bad input, word for word: tests/golden/messages.txt.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM. Tests of a refusal elsewhere ask
what it names; how that is put into words is asked here alone, and the file is made anew by one
command (tests/golden/make_messages.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from program import PROGRAM

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
sys.path.insert(0, str(GOLDEN))

from make_messages import CLASSES, section  # noqa: E402


def recorded() -> dict[str, str]:
    """Sections of the file by their heads."""
    text = (GOLDEN / "messages.txt").read_text()
    return {part.split("\n", 1)[0]: "# " + part for part in text.split("# ")[1:]}


@pytest.mark.parametrize("cases", CLASSES, ids=lambda cases: cases.__name__)
def test_messages_are_those_of_the_golden_file(cases: object) -> None:
    now = section(PROGRAM, cases)
    assert now.splitlines() == recorded()[str(cases.__doc__)].splitlines()


def test_the_file_has_every_class_and_no_message_twice_for_one_input() -> None:
    sections = recorded()
    assert list(sections) == [cases.__doc__ for cases in CLASSES]
    cases = [
        block for part in sections.values() for block in part.split("\n\n")[1:] if block.strip()
    ]
    assert len(cases) > 250
    assert len(set(cases)) == len(cases)
