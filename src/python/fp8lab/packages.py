"""What a package that is run by `python3 -m` needs before it imports anything else."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path


def missing_of(packages: Iterable[str]) -> list[str]:
    """Those of the packages that this interpreter does not have."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


def how_to_install(names: Iterable[str]) -> str:
    """The command that installs packages for this interpreter; of one that its distribution manages
    (PEP 668), where pip refuses, for a virtual environment that has its packages too."""
    managed = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    if sys.prefix != sys.base_prefix or not managed.exists():
        return f"{sys.executable} -m pip install {' '.join(names)}"
    return (
        f"{sys.executable} -m venv --system-site-packages fp8lab-venv && "
        f"fp8lab-venv/bin/pip install {' '.join(names)}, then use fp8lab-venv/bin/python "
        "(for the program: export FP8LAB_PYTHON=$PWD/fp8lab-venv/bin/python)"
    )


def require_when_run(tool: str, *packages: str) -> None:
    """Ends `python3 -m tool` with status 2 and one line if a package is not installed. Does nothing
    when `tool` is imported. To be called in the package's __init__.py: while Python locates the
    module to run, sys.argv[0] is "-m"."""
    if sys.argv[:1] != ["-m"]:
        return
    missing = missing_of(packages)
    if not missing:
        return
    are = "is" if len(missing) == 1 else "are"
    text = f"{tool}: {' '.join(missing)} {are} not installed: {how_to_install(missing)}"
    print(text, file=sys.stderr)
    raise SystemExit(2)
