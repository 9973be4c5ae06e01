"""One test for each case of a pack, on the functions that --fp8lab-adapter names."""

from __future__ import annotations

from pathlib import Path

import pytest

from fp8lab.conformance.adapters import load
from fp8lab.conformance.checks import (
    SECTIONS,
    Function,
    check_case,
    describe,
    functions_of,
    name_of,
)
from fp8lab.conformance.pack import Pack, PackError


def _option(config: pytest.Config, name: str) -> str:
    value = config.getoption(name, None)
    if value is None:
        raise pytest.UsageError(
            f"fp8lab.conformance: {name} is missing (from a source tree, also pass "
            "-p fp8lab.conformance.plugin)"
        )
    return str(value)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes a test of every case in the sections for which the adapter has a function."""
    adapter = _option(metafunc.config, "--fp8lab-adapter")
    directory = _option(metafunc.config, "--fp8lab-pack")
    try:
        pack, functions = Pack(Path(directory)), functions_of(load(adapter))
    except (PackError, ImportError, AttributeError) as error:
        raise pytest.UsageError(f"fp8lab.conformance: {error}") from error
    cases = [
        pytest.param(pack, section, index, functions[section], id=f"{section}-{name}")
        for section in SECTIONS
        if section in functions
        for index, case in enumerate(pack.cases(section))
        for name in [name_of(section, index, case)]
    ]
    metafunc.parametrize(("pack", "section", "index", "function"), cases)


def test_case(pack: Pack, section: str, index: int, function: Function) -> None:
    """Fails if a result differs in a bit, other than by overflow policy or the bits of NaN."""
    report = check_case(pack, section, index, function)
    if report is None:
        pytest.skip("the adapter does not offer this case")
    assert report.results > 0
    if report.mismatches:
        pytest.fail(describe(report), pytrace=False)
