"""Pages of results: a folder with README.md, figure.png and CSV files. A page contains what was
stated beforehand, the results, and how they were made. study_page.py makes the page of a study; the
scripts of experiments/tensors make pages of their measurements."""

from __future__ import annotations

import csv
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from fp8lab_analysis.judge.claims import Judged
from fp8lab_analysis.judge.phrases import MISSING
from fp8lab_analysis.page.cells import Cell

PNG_DPI = 110
WIDTH = 110  # characters of a line of text


# Versions that redefined an operation; the last is kArithmetic of
# src/train/checkpoint/identity.hpp.
ARITHMETICS = ("0.1", "0.2")


def arithmetic_of(version: str) -> str:
    """Returns the arithmetic of a program version such as 0.2.0; the last one for unknown text."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", text)[:2]]

    known = [item for item in ARITHMETICS if numbers(item) <= numbers(version)]
    return known[-1] if known else ARITHMETICS[-1]


@dataclass(frozen=True)
class Page:
    """The contents of a page, in Markdown."""

    title: str
    stated: str  # stated beforehand: question, data, expected outcome
    results: Sequence[str]  # blocks, mostly tables
    figure: Figure | None
    caption: str
    arithmetic: str  # version of the arithmetic, which determines the numbers
    made: str  # commands, device, seeds, intervals
    remarks: str = ""  # follow the results
    tables: Mapping[str, Sequence[Sequence[Cell]]] = field(default_factory=dict)  # CSV by name


def wrapped(text: str) -> str:
    """Fills paragraphs and lists to the width of a page; tables and code are unchanged."""
    blocks = []
    for block in textwrap.dedent(text).strip().split("\n\n"):
        if block.startswith(("|", "```", "    ", "!")):
            blocks.append(block)
            continue
        items: list[str] = []
        for line in block.splitlines():
            if items and not line.startswith("- "):
                items[-1] += " " + line.strip()
            else:
                items.append(line.strip())
        for item in items:
            indent = "  " if item.startswith("- ") else ""
            blocks.append(
                textwrap.fill(
                    item,
                    WIDTH,
                    subsequent_indent=indent,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
                + ("\n" if indent and item is not items[-1] else "")
            )
    return "\n\n".join(blocks).replace("\n\n\n", "\n")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table; bars in cells are escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in lines)


def shown(value: float, error: float = math.nan, digits: int = 3) -> str:
    """Formats a number with its error, to one digit of the error (two if it starts with 1). Without
    an error, the number has `digits` digits."""
    if not math.isfinite(value):
        return MISSING
    if not math.isfinite(error) or error == 0.0:
        return f"{value:.{digits}g}".replace("-", "−")
    exponent = math.floor(math.log10(error))
    decimals = -exponent + (1 if error / 10.0**exponent < 1.95 else 0)
    if decimals > 5:
        return f"{value:.3g} ± {error:.1g}".replace("-", "−")
    decimals = max(0, decimals)
    return f"{value:.{decimals}f} ± {error:.{decimals}f}".replace("-", "−")


def claims_table(judged: Sequence[Judged]) -> str:
    """Returns the table of claims and their outcomes."""
    rows = []
    for item in judged:
        unit = f" {item.claim.unit}" if item.claim.unit else ""
        seen = shown(item.spread.mean, item.half_width)
        finite = sum(map(math.isfinite, item.values))
        if finite < len(item.values):
            seen = f"none in {len(item.values) - finite} of {len(item.values)} seeds"
            unit = ""
        rows.append([item.claim.what, item.claim.bounds, seen + unit, f"**{item.outcome.value}**"])
    return markdown_table(["claim", "must be", "seen", ""], rows)


def write_csv(path: Path, rows: Sequence[Sequence[Cell]]) -> None:
    """Writes a CSV file; numbers have six digits, undefined ones are empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        for row in rows:
            writer.writerow(
                [
                    ("" if math.isnan(c) else f"{c:.6g}") if isinstance(c, float) else c
                    for c in ("" if cell is None else cell for cell in row)
                ]
            )


def write_page(page: Page, folder: Path) -> Path:
    """Writes README.md, figure.png and the CSV files; returns the path of README.md."""
    folder.mkdir(parents=True, exist_ok=True)
    named = f"Numbers of this page: arithmetic {page.arithmetic}."
    parts = [f"# {page.title}", named, wrapped(page.stated), "## Seen", *page.results]
    if page.figure is not None:
        page.figure.savefig(folder / "figure.png", dpi=PNG_DPI, metadata={"Software": None})
        parts.append(f"![{page.caption}](figure.png)")
        parts.append(wrapped(f"Figure: {page.caption}"))
    if page.remarks:
        parts += ["## What follows", wrapped(page.remarks)]
    for name, rows in page.tables.items():
        write_csv(folder / f"{name}.csv", rows)
    numbers = ", ".join(f"`{name}.csv`" for name in page.tables)
    parts += ["## How it was made", wrapped(page.made), f"Numbers: {numbers}."]
    path = folder / "README.md"
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path
