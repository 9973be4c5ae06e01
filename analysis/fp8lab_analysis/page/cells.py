"""Elements of tables: columns with units, cells for CSV and HTML, and short texts shared with
sentences."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, Union

from fp8lab_analysis.judge import stats
from fp8lab_analysis.judge.compare import GroupSummary
from fp8lab_analysis.judge.phrases import MISSING, plus_minus
from fp8lab_analysis.judge.speed import EqualQuality
from fp8lab_analysis.judge.verdicts import Kind

Cell = Union[str, int, float, None]


@dataclass(frozen=True)
class Column:
    """One column: CSV header with unit, HTML header, and number format."""

    name: str
    unit: str = ""
    show: str = "{}"

    @property
    def header(self) -> str:
        """Header with unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def text(self, cell: Cell) -> str:
        """Formats a cell; a dash for a missing or undefined one."""
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return MISSING
        if isinstance(cell, str):
            return cell
        return self.show.format(cell).replace("-", "−")


@dataclass(frozen=True)
class Table:
    """A named table; `keys` names the group of each row, which determines its colour."""

    name: str
    title: str
    note: str
    columns: list[Column]
    rows: list[list[Cell]]
    keys: list[str]

    def write_csv(self, folder: Path) -> Path:
        """Writes folder/<name>.csv at full precision; missing cells are empty."""
        path = folder / f"{self.name}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([column.header for column in self.columns])
            for row in self.rows:
                writer.writerow([_csv_cell(cell) for cell in row])
        return path

    def text_rows(self) -> list[list[str]]:
        """Returns every cell as text for HTML."""
        return [[c.text(cell) for c, cell in zip(self.columns, row)] for row in self.rows]


def _csv_cell(cell: Cell) -> str:
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    return repr(cell) if isinstance(cell, float) else str(cell)


def gap_text(summary: GroupSummary) -> str:
    """Final gap ± its standard deviation over seeds, or the error within a single run."""
    shown = plus_minus(summary.final_gap, sign=True)
    if math.isfinite(summary.final_gap.mean) and summary.final_gap.count == 1:
        if math.isfinite(summary.gap_error):
            shown += f" (in the run ±{summary.gap_error:.4f})"
    return shown


def verdict_text(summary: GroupSummary) -> str:
    """Kind of the verdict, with the number of diverged seeds and a mark for unfinished runs."""
    text = summary.verdict.kind.value
    if summary.verdict.kind is Kind.DIVERGED:
        text += f" ({summary.verdict.diverged} of {summary.verdict.seeds})"
    return text if summary.complete else f"{text}, unfinished"


def ratio_text(ratio: stats.Spread) -> str:
    """ "×1.02 ± 0.01" over seeds, or "unknown"."""
    return f"×{plus_minus(ratio, '{:.2f}')}" if math.isfinite(ratio.mean) else "unknown"


def equal_quality_text(found: EqualQuality) -> str:
    """States the steps and seconds of an arm, relative to the baseline's, until it reaches the
    loss, or that it does not reach it."""
    if found.reached < found.seeds:
        missed = found.seeds - found.reached
        return f"not reached in {missed} of {found.seeds} seeds"
    return f"{ratio_text(found.step_ratio)} steps, {ratio_text(found.second_ratio)} seconds"


def target_text(found: EqualQuality) -> str:
    """The loss to reach, in words."""
    return f"within {100.0 * found.above:g} % of it" if found.above else "the final loss"


Row = TypeVar("Row")
Field = tuple[Column, Callable[[Row], Cell]]  # a column and its cell in a row


def tabulate(
    name: str,
    title: str,
    rows: Iterable[Row],
    label: Callable[[Row], str],
    fields: Sequence[Field[Row]],
    note: str = "",
) -> Table:
    """Returns a table with a line for each of `rows`; `label` names the group of a row."""
    kept = list(rows)
    return Table(
        name,
        title,
        note,
        [column for column, _ in fields],
        [[cell(row) for _, cell in fields] for row in kept],
        [label(row) for row in kept],
    )
