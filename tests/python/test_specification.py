"""The worked examples of emulation/specification.md, computed again.

Run by ctest with PYTHONPATH at the build tree's package. The blocks `numbers` of the document are
those of tests/emulation/cpu/test_specification_numbers.cpp.
"""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

fp8lab = pytest.importorskip("fp8lab", reason="the package fp8lab is not built")

DOCUMENT = Path(__file__).parents[2] / "emulation" / "specification.md"


def test_the_program_answers_as_the_document_says() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    example = doctest.DocTestParser().get_doctest(text, {}, DOCUMENT.name, str(DOCUMENT), 0)
    answers = [entry for entry in example.examples if entry.want]
    assert len(answers) >= 40
    report: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert not report, "".join(report)


def test_every_section_of_the_contents_exists() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    headings = {
        line.lstrip("# ").strip().lower().replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("## ")
    }
    named = {part.split(")")[0] for part in text.split("](#")[1:]}
    assert len(named) >= 13
    assert named == headings
