r"""Checks implementations of FP8 arithmetic against the vectors of `fp8lab validate export PACK`.

Needs only NumPy, not the shared library. With pytest, where `mine.py` defines `encode`, `decode`
or other functions by the names of `fp8lab.conformance.check`:

    python3 -m pytest -p fp8lab.conformance.plugin --pyargs fp8lab.conformance \
        --fp8lab-pack PACK --fp8lab-adapter mine

In Python:

    from fp8lab import conformance
    reports = conformance.check("PACK", encode=my_encode, dot=my_dot)
    assert all(report.mismatches == 0 for report in reports)

`python -m fp8lab.conformance PACK` checks the libraries for which `fp8lab.conformance.adapters` has
functions and that are installed; with `--write FILE` it writes a table of their differences.
"""

from fp8lab.conformance.checks import (
    SECTIONS,
    Operand,
    Report,
    check,
    check_case,
    describe,
    functions_of,
    name_of,
)
from fp8lab.conformance.pack import SCHEMA, Pack, PackError

__all__ = [
    "SCHEMA",
    "SECTIONS",
    "Operand",
    "Pack",
    "PackError",
    "Report",
    "check",
    "check_case",
    "describe",
    "functions_of",
    "name_of",
]
