"""The command `fp8lab` of an installed package, which starts the program beside it: that of the
wheel fp8lab-cuda if it is installed, else that of fp8lab.

What the program starts in Python, reports and tokenizers, runs in this interpreter, unless
FP8LAB_PYTHON names another one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    folder = Path(__file__).parent / "bin"
    cuda = folder / "fp8lab-cuda"
    program = cuda if cuda.is_file() else folder / "fp8lab"
    os.environ.setdefault("FP8LAB_PYTHON", sys.executable)
    try:
        os.execv(program, [str(program), *sys.argv[1:]])
    except OSError as error:
        print(f"fp8lab: {program}: {error.strerror}", file=sys.stderr)
        raise SystemExit(1) from None
