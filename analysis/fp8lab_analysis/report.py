"""Command line: run files in, one self-contained HTML report with PNG, PDF and CSV beside it out.

    python3 -m fp8lab_analysis.report DIR|RUN.h5 ... --out OUTDIR [--title TITLE]

Exit codes: 0 success, 1 the machine failed, 2 bad input. Whatever goes wrong is one line on
standard error; only Python's own library is imported before that can be kept.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

NEEDED = ("numpy", "h5py", "scipy", "matplotlib", "jinja2")
PACKAGES = "python3-numpy python3-h5py python3-scipy python3-matplotlib python3-jinja2"
# What the caller can mend; the rest (a full disk, a broken one) is the machine's.
BAD_PATH = {
    getattr(errno, name)
    for name in (
        "EACCES EPERM EROFS ENOTDIR EISDIR EEXIST ENOENT ENAMETOOLONG ELOOP EINVAL ENOTEMPTY"
    ).split()
}


class BadInput(Exception):
    """One line that says what is wrong, where, and what would be accepted."""


class MachineFailure(Exception):
    """One line about what failed though the input was good."""


class Parser(argparse.ArgumentParser):
    """A usage error is one line."""

    def error(self, message: str) -> NoReturn:
        """Prints the line and leaves with status 2."""
        self.exit(2, f"error: {self.prog}: {message}; --help lists what is accepted\n")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Command line; a usage error exits 2 with one line."""
    parser = Parser(
        prog="fp8lab report", description="Makes a report from run files or study directories."
    )
    parser.add_argument("inputs", nargs="+", type=Path, metavar="DIR|RUN.h5")
    parser.add_argument("--out", metavar="OUTDIR", help="default: DIR/report")
    parser.add_argument("--title", default="", help="default: the study's title")
    return parser.parse_args(arguments)


def default_out(inputs: Sequence[Path]) -> Path:
    """DIR/report for a directory, `report` beside a file."""
    first = inputs[0]
    return first / "report" if os.path.isdir(first) else first.parent / "report"


def import_needed() -> None:
    """Imports what the report is made with. Throws BadInput for an interpreter that lacks some."""
    if sys.version_info < (3, 11):
        version = ".".join(map(str, sys.version_info[:2]))
        raise BadInput(
            f"{sys.executable}: Python {version}, but the report takes 3.11 or later; name another "
            "with --python"
        )
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except Exception as error:  # a module may be there and broken in any way
            missing = isinstance(error, ModuleNotFoundError) and error.name == name
            reason = "is not installed" if missing else f"does not load ({_one_line(error)})"
            raise BadInput(
                f"{sys.executable}: the Python module {name} {reason}; the report needs "
                f"{', '.join(NEEDED)}: on Debian 'apt-get install {PACKAGES}', or name an "
                "interpreter that has them with --python"
            ) from None


def _one_line(error: object) -> str:
    return " ".join(str(error).split())


def check_out(out: Path) -> None:
    """Throws BadInput when the report cannot be written there; makes nothing."""
    nearest = out
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    if not os.path.isdir(nearest):
        raise BadInput(f"--out {out}: {nearest} is no directory; give one, there or to be made")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise BadInput(f"--out {out}: no permission to write in {nearest}; give another directory")


def make_report(options: argparse.Namespace) -> None:
    """Reads the inputs and writes the report. Throws BadInput and MachineFailure."""
    if options.out is not None and not options.out:
        raise BadInput("--out: empty (give a directory, there or to be made)")
    out = default_out(options.inputs) if options.out is None else Path(options.out)
    import_needed()
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from fp8lab_analysis.hdf5 import InputError
    from fp8lab_analysis.isolation import ReadFailure, load_study_apart
    from fp8lab_analysis.page import write_report

    try:
        study = load_study_apart(options.inputs, options.title)
    except InputError as error:
        raise BadInput(str(error)) from None
    except ReadFailure as error:
        raise MachineFailure(str(error)) from None
    check_out(out)
    try:
        line = write_report(study, out)
    except OSError as error:
        where = error.filename or out
        text = f"{where}: cannot be written ({error.strerror or error})"
        if error.errno in BAD_PATH:
            raise BadInput(f"{text}; give another --out, or remove what is in the way") from None
        raise MachineFailure(f"{text}; the report is not complete") from None
    _say(line)


def _say(line: str) -> None:
    """Prints the line. Throws MachineFailure where nobody can read it."""
    try:
        print(line, flush=True)
    except OSError as error:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # else Python tries again at its end
        raise MachineFailure(f"standard output: {error.strerror}; the report is made") from None


def _told(error: BaseException) -> str:
    """An error that this program did not foresee, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"internal error, {type(error).__name__}: {_one_line(error)} ({where})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a missing glyph is no news for who wants a report
            make_report(options)
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except MachineFailure as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except MemoryError:
        print("error: report: not enough memory", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: report: interrupted; it is not complete", file=sys.stderr)
        return 1
    except Exception as error:
        print(f"error: report: {_told(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
