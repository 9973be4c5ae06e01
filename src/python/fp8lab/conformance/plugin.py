"""The pytest plugin of `pytest --pyargs fp8lab.conformance`: its two options.

An installed package registers it. From a source tree, load it with `-p fp8lab.conformance.plugin`.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("fp8lab", "conformance of FP8 arithmetic")
    group.addoption(
        "--fp8lab-adapter",
        metavar="MODULE[:OBJECT]",
        help="the functions under test: a module, or an object of it, whose attributes decode, "
        "encode, through, scale, e8m0, quantize, nvfp4, dot and gemm are tested if they exist "
        "(fp8lab.conformance.check describes them)",
    )
    group.addoption(
        "--fp8lab-pack",
        metavar="FOLDER",
        help="the vectors that `fp8lab validate export FOLDER` wrote",
    )
