"""Texts and comments cite what a reader of the repository can open: files, and sections by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = [
    ".github",
    "analysis",
    "emulation",
    "experiments",
    "kernels",
    "notebooks",
    "src",
    "tests",
]
SOURCES = {".cpp", ".cu", ".cuh", ".hpp", ".ipynb", ".md", ".py", ".toml"}
# Files of a report, of another project, and of a template.
ELSEWHERE = {"arithmetic.py", "equal_quality.csv", "evaluation.csv", "operands.csv", "tensors.csv"}
ELSEWHERE |= {"verdicts.csv"}


def repository() -> list[Path]:
    files = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in FOLDERS:
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file()]
    return sorted(path for path in files if "__pycache__" not in path.parts)


FILES = repository()
NAMES = {path.name for path in FILES}
TEXTS = [path for path in FILES if path.suffix in SOURCES and "golden" not in path.parts]


def joined(path: Path) -> str:
    """The text with comments as running text: a citation may be broken over two lines."""
    return re.sub(r"\n[ \t]*(?:///?|#)?[ \t]*", " ", path.read_text(encoding="utf-8"))


def unknown_files(text: str) -> list[str]:
    pages = re.findall(r"(?<![\w{*<-])([\w.-]+(?:/[\w.-]+)*\.md)\b", text)
    quoted = re.findall(
        r"`([\w.-]+(?:/[\w.-]+)+\.(?:hpp|cpp|cuh?|py|toml|sh|ipynb|csv|json|cmake))`", text
    )
    names = {word: word.rsplit("/", 1)[-1] for word in pages + quoted}
    return [word for word, name in names.items() if name not in NAMES | ELSEWHERE]


def headings(page: Path) -> set[str]:
    return set(re.findall(r"(?m)^#+ +(.*?) *$", page.read_text(encoding="utf-8")))


def unknown_sections(text: str, folder: Path) -> list[str]:
    """Citations of the form `page.md, "Section"` that name no heading of that page."""
    missing = []
    for page, section in re.findall(r'([\w./-]+\.md), "([^"]+)"', text):
        places = [above / page for above in [folder, *folder.parents] if (above / page).is_file()]
        if not any(section in headings(place) for place in places):
            missing.append(f"{page}, {section}")
    return missing


@pytest.mark.parametrize("folder", [".", *FOLDERS])
def test_what_is_cited_is_here(folder: str) -> None:
    texts = [
        path
        for path in TEXTS
        if path.relative_to(ROOT).parts[0] == folder or (folder == "." and path.parent == ROOT)
    ]
    assert texts
    faults = []
    for path in texts:
        if path == Path(__file__):
            continue
        text = joined(path)
        for fault in unknown_files(text) + unknown_sections(text, path.parent):
            faults.append(f"{path.relative_to(ROOT)}: {fault}")
    assert not faults, "\n".join(faults)


def test_a_citation_of_nothing_is_found() -> None:
    assert unknown_files("see notes.md section 3, and `src/cli/nothing.cpp`") == [
        "notes.md",
        "src/cli/nothing.cpp",
    ]
    assert unknown_files("README.md, `src/cli/commands/eval.cpp` and src/README.md") == []
    folder = ROOT / "emulation" / "ops"
    assert unknown_sections('(specification.md, "Scales")', folder) == []
    assert unknown_sections('(specification.md, "The Group of 5")', folder) == [
        "specification.md, The Group of 5"
    ]
