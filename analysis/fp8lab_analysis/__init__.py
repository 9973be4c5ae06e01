"""Reads fp8lab run files and turns them into figures, tables and one self-contained report.

Modules that need h5py are imported on first use, so that the report can name missing packages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fp8lab_analysis.read.hdf5 import InputError
    from fp8lab_analysis.read.run_reader import load_run
    from fp8lab_analysis.read.runs import Run
    from fp8lab_analysis.read.study import Group, Study, load_study

__version__ = "0.2.0"

__all__ = ["Group", "InputError", "Run", "Study", "load_run", "load_study", "__version__"]

_HOMES = {
    "InputError": "read.hdf5",
    "Run": "read.runs",
    "load_run": "read.run_reader",
    "Group": "read.study",
    "Study": "read.study",
    "load_study": "read.study",
}


def __getattr__(name: str) -> Any:
    """Imports a public name from its module."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'fp8lab_analysis' has no attribute '{name}'")
    return getattr(import_module(f"fp8lab_analysis.{_HOMES[name]}"), name)
