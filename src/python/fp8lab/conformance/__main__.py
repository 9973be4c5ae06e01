"""Checks the libraries that have adapters, and writes a table of what they differ in."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from fp8lab.conformance.adapters import LIBRARIES, load
from fp8lab.conformance.checks import SECTIONS, Report, check_case, describe, functions_of, name_of
from fp8lab.conformance.pack import Pack, PackError


class Library:
    """A library's functions and their reports on every case of a pack."""

    def __init__(self, name: str, version: str, adapter: Any, pack: Pack) -> None:
        self.name, self.version = name, version
        functions = functions_of(adapter)
        self.reports: dict[tuple[str, int], Report] = {}
        for section, function in functions.items():
            for index in range(len(pack.cases(section))):
                report = check_case(pack, section, index, function)
                if report is not None:
                    self.reports[section, index] = report

    @property
    def mismatches(self) -> int:
        """The number of results with another bit, not counting policies."""
        return sum(report.mismatches for report in self.reports.values())


def _share(reports: list[Report], count: Callable[[Report], int]) -> str:
    """Returns "0", or "n of all", or "-" if no case is offered."""
    if not reports:
        return "-"
    wrong = sum(map(count, reports))
    return f"{wrong} of {sum(report.results for report in reports)}" if wrong else "0"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _mistakes(libraries: list[Library], pack: Pack) -> list[str]:
    names = [library.name for library in libraries]
    lines = [_row("case", "reported in", *names), _row(*["---"] * (len(names) + 2))]
    entries: dict[str, tuple[str, list[tuple[str, int]]]] = {}
    for section in SECTIONS:
        for index, case in enumerate(pack.cases(section)):
            if "case" in case:
                keys = entries.setdefault(case["case"], (case["threads"], []))[1]
                keys.append((section, index))
    for name, (threads, keys) in entries.items():
        cells = [
            _share([one.reports[k] for k in keys if k in one.reports], lambda r: r.mismatches)
            for one in libraries
        ]
        lines.append(_row(name, threads, *cells))
    return lines


def _group(section: str, case: dict[str, Any]) -> str:
    """Returns the row of the table of sections that a case belongs to."""
    keys = {"decode": "format", "encode": "rounding", "through": "through", "dot": "instruction",
            "e8m0": "scale_rounding"}  # fmt: skip
    word = case[keys[section]] if section in keys else ""
    if section == "encode" and case["format"] == "e8m0":
        word = f"e8m0 {word}"
    if section == "decode":
        word = ""
    return f"{section} {word}".strip()


def _sections(libraries: list[Library], pack: Pack) -> list[str]:
    names = [library.name for library in libraries]
    lines = [_row("section", *names), _row(*["---"] * (len(names) + 1))]
    groups: dict[str, list[tuple[str, int]]] = {}
    for section in SECTIONS:
        for index, case in enumerate(pack.cases(section)):
            if "case" not in case:
                groups.setdefault(_group(section, case), []).append((section, index))
    for group, keys in groups.items():
        cells = []
        for library in libraries:
            reports = [library.reports[key] for key in keys if key in library.reports]
            cell = _share(reports, lambda r: r.mismatches)
            for kind, word in (("overflow_differences", "policy"), ("nan_differences", "NaN")):
                count = sum(getattr(report, kind) for report in reports)
                cell += f" ({count} {word})" if count else ""
            cells.append(cell)
        if set(cells) != {"-"}:
            lines.append(_row(group, *cells))
    return lines


def _differences(library: Library, pack: Pack) -> list[str]:
    lines = []
    for (section, index), report in library.reports.items():
        if report.mismatches and not report.case:
            name = name_of(section, index, pack.cases(section)[index])
            share = f"{report.mismatches} of {report.results}"
            lines.append(f"- {section} {name}: {share}; {report.first}")
    return lines or ["No difference."]


def page(libraries: list[Library], pack: Pack) -> str:
    """Returns the table of differences as a page of Markdown."""
    manifest = pack.manifest
    arithmetic = ".".join(manifest["version"].split(".")[:2])
    lines = [
        "# What FP8 libraries differ in",
        "",
        f"Numbers of this page: arithmetic {arithmetic}.",
        "",
        f"Vectors of fp8lab {manifest['version']}, seed {manifest['seed']}; "
        f"Python {platform.python_version()}, NumPy {metadata.version('numpy')}. Made by",
        "",
        "```sh",
        "fp8lab validate export PACK",
        "python3 -m fp8lab.conformance PACK "
        + " ".join(f"--library {library.name}" for library in libraries)
        + " --write FILE",
        "```",
        "",
        _row("library", "version"),
        _row("---", "---"),
        *(_row(library.name, library.version) for library in libraries),
        "",
        "A cell counts the results whose bits differ from the vectors; `0` means none, `-` that",
        "the library has no such function. A difference is not always a mistake: the vectors are",
        "those of NVIDIA's conversions, and a library may define another behaviour. The only cast",
        "to E8M0 of ml_dtypes and PyTorch rounds to nearest.",
        "",
        "## Mistakes that were reported in public",
        "",
        *_mistakes(libraries, pack),
        "",
        "## All sections",
        "",
        "*policy*: codes of values beyond the largest one that follow the other overflow policy.",
        "*NaN*: other bits of NaN. Neither is counted as a difference.",
        "",
        *_sections(libraries, pack),
    ]
    for library in libraries:
        lines += ["", f"## {library.name}", "", *_differences(library, pack)]
    return "\n".join(lines) + "\n"


class _Parser(argparse.ArgumentParser):
    """Complains in one line, as the program does."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"fp8lab.conformance: {message} (--help tells more)\n")


def _libraries(names: list[str] | None, pack: Pack) -> list[Library]:
    """Returns the named libraries, or the installed ones. Raises ImportError for a named one."""
    found = []
    for name in names or LIBRARIES:
        try:
            adapter = load(f"fp8lab.conformance.adapters.{name}")
        except ImportError:
            if names:
                raise
            continue
        found.append(Library(name, adapter.VERSION, adapter, pack))
    if not found:
        raise ImportError(f"none of {', '.join(LIBRARIES)} is installed")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks libraries: 0 all results equal, 2 no usable pack or library, 3 differences."""
    parser = _Parser(prog="fp8lab.conformance", description=main.__doc__)
    parser.add_argument("pack", help="written by fp8lab validate export")
    parser.add_argument(
        "--library",
        action="append",
        choices=LIBRARIES,
        help="a library to check, repeatable (default: all that are installed)",
    )
    parser.add_argument("--write", metavar="FILE", help="also write a table to this file")
    given = parser.parse_args(arguments)
    try:
        pack = Pack(given.pack)
        libraries = _libraries(given.library, pack)
        if given.write is not None:
            Path(given.write).write_text(page(libraries, pack), encoding="utf-8")
    except (PackError, ImportError, OSError) as error:
        print(f"fp8lab.conformance: {error}", file=sys.stderr)
        return 2
    for library in libraries:
        for report in library.reports.values():
            print(f"{library.name} {library.version}: {describe(report)}")
    for library in libraries:
        results = sum(report.results for report in library.reports.values())
        print(f"{library.name} {library.version}: {results} results, {library.mismatches} differ")
    return 3 if any(library.mismatches for library in libraries) else 0


if __name__ == "__main__":
    sys.exit(main())
