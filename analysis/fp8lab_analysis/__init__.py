"""Reads fp8lab run files and turns them into figures, tables and one self-contained report."""

from fp8lab_analysis.runs import InputError, Run, load_run
from fp8lab_analysis.study import Group, Study, load_study

__version__ = "0.1.0"

__all__ = ["Group", "InputError", "Run", "Study", "load_run", "load_study", "__version__"]
