"""What a package that is run by `python3 -m` needs before it imports anything else."""

from __future__ import annotations

import importlib.util
import sys


def require_when_run(tool: str, *packages: str) -> None:
    """Ends `python3 -m tool` with status 2 and one line if a package is not installed. Does nothing
    when `tool` is imported. To be called in the package's __init__.py: while Python locates the
    module to run, sys.argv[0] is "-m"."""
    if sys.argv[:1] != ["-m"]:
        return
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if not missing:
        return
    names = " ".join(missing)
    are = "is" if len(missing) == 1 else "are"
    install = f"{sys.executable} -m pip install {names}"
    print(f"{tool}: {names} {are} not installed: {install}", file=sys.stderr)
    raise SystemExit(2)
