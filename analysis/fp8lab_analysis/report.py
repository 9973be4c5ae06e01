"""Command line: makes a self-contained HTML report from run files, with every figure and table also
in separate files.

    python3 -m fp8lab_analysis.report DIR|RUN.h5 ... --out OUTDIR [--title TITLE]
        [--beside STUDY] [--follow SECONDS]
    python3 -m fp8lab_analysis.report DIR|RUN.h5 ... --export tensorboard|trackio --out OUTDIR
    python3 -m fp8lab_analysis.report --plan STUDY.h5 [--study FILE] [--from DIR|RUN.h5]

The last form prints the number of seeds that a study needs; its runs need not exist.

Exit codes: 0 success, 1 the machine failed, 2 bad input. Every failure is one line on standard
error. To guarantee this, only Python's standard library is imported at the start.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import json
import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from fp8lab_analysis.read.study import Study

EXPORTS = ("tensorboard", "trackio")
MOST_MISSES = 3  # consecutive failed readings of a followed study before an error
NEEDED = ("numpy", "h5py", "scipy", "matplotlib", "jinja2")
PACKAGES = "python3-numpy python3-h5py python3-scipy python3-matplotlib python3-jinja2"
# Errors that the caller can correct; others, such as a full disk, are failures of the machine.
BAD_PATH = {
    getattr(errno, name)
    for name in (
        "EACCES EPERM EROFS ENOTDIR EISDIR EEXIST ENOENT ENAMETOOLONG ELOOP EINVAL ENOTEMPTY"
    ).split()
}


class BadInput(Exception):
    """Bad input. The message is one line: the fault, its place, and what is accepted."""


class NotBegun(BadInput):
    """The study has no run yet."""


class MachineFailure(Exception):
    """A failure that the input did not cause. The message is one line."""


def complain(message: str) -> None:
    """Prints an error on one line, as the program does."""
    print(f"fp8lab: {message}", file=sys.stderr)


class Parser(argparse.ArgumentParser):
    """Reports usage errors in one line."""

    def error(self, message: str) -> NoReturn:
        """Prints the line and exits with status 2."""
        name = self.prog.replace("fp8lab ", "fp8lab: ", 1)
        self.exit(2, f"{name}: {message}; --help lists what is accepted\n")

    def add_resampling(self, resamples: int, what: str) -> None:
        """Adds the options of programs that resample; --json writes `what`."""
        self.add_argument("--resamples", type=int, default=resamples, help=f"default: {resamples}")
        self.add_argument("--seed", type=int, default=1, help="of the draws; default: 1")
        self.add_json(what)

    def add_json(self, what: str) -> None:
        """Adds the option --json, which writes `what`."""
        self.add_argument("--json", type=Path, metavar="FILE", help=f"{what}, for a machine")

    def check_resampling(self, options: argparse.Namespace, least: int) -> None:
        """Reports a usage error for fewer than `least` resamples or a negative seed."""
        if options.resamples < least:
            self.error(f"--resamples {options.resamples}: expected {least} or more")
        if options.seed < 0:
            self.error(f"--seed {options.seed}: expected 0 or more")


def write_json(path: Path | None, value: object) -> bool:
    """Writes the file of --json; on failure prints one line and returns False."""
    if path is None:
        return True
    try:
        path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        complain(f"--json {path}: {error.strerror}")
        return False
    return True


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; a usage error exits 2 with one line."""
    parser = Parser(
        prog="fp8lab report", description="Makes a report from run files or study directories."
    )
    parser.add_argument("inputs", nargs="*", type=Path, metavar="DIR|RUN.h5")
    parser.add_argument("--out", metavar="OUTDIR", help="default: DIR/report")
    parser.add_argument("--title", default="", help="default: the study's title")
    parser.add_argument(
        "--beside", metavar="STUDY", help="another study, whose arms are laid beside"
    )
    parser.add_argument(
        "--follow", metavar="SECONDS", type=float, help="write it anew until all runs are complete"
    )
    parser.add_argument(
        "--export", choices=EXPORTS, help="write files of another program instead of a report"
    )
    parser.add_argument(
        "--plan", metavar="STUDY.h5", type=Path, help="print the seeds that this study needs"
    )
    parser.add_argument("--study", metavar="FILE", help="the name of the study to plan")
    parser.add_argument(
        "--from", metavar="DIR|RUN.h5", type=Path, dest="earlier", help="earlier runs, for --plan"
    )
    options = parser.parse_args(arguments)
    if options.plan is not None:
        for name in ("inputs", "out", "title", "beside", "follow", "export"):
            if getattr(options, name):
                parser.error(f"{name} is for a report, not for --plan")
        return options
    if not options.inputs:
        parser.error("give a study directory or run files")
    if options.earlier is not None or options.study is not None:
        parser.error("--from and --study are for --plan")
    if options.beside == "":
        parser.error("--beside: empty (give a study directory or a run file)")
    if options.follow is not None and not 1.0 <= options.follow <= 86400.0:
        parser.error(f"--follow {options.follow:g}: accepted: 1 to 86400 seconds")
    if options.export is not None:
        for name in ("title", "beside", "follow"):
            if getattr(options, name):
                parser.error(f"--{name} is for a report, not for --export")
        if options.out is None:
            parser.error("--export needs --out")
    return options


def default_out(inputs: Sequence[Path]) -> Path:
    """Returns DIR/report for a directory, or `report` in the folder of a file."""
    first = inputs[0]
    return first / "report" if os.path.isdir(first) else first.parent / "report"


def import_needed() -> None:
    """Imports the packages of the report. Raises BadInput if the interpreter lacks one."""
    if sys.version_info < (3, 11):
        version = ".".join(map(str, sys.version_info[:2]))
        raise BadInput(
            f"{sys.executable}: Python {version}, but the report takes 3.11 or later; name another "
            "with --python or FP8LAB_PYTHON"
        )
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except Exception as error:  # an installed module can fail in any way
            missing = isinstance(error, ModuleNotFoundError) and error.name == name
            reason = "is not installed" if missing else f"does not load ({_one_line(error)})"
            raise BadInput(
                f"{sys.executable}: the Python module {name} {reason}; the report needs "
                f"{', '.join(NEEDED)}: on Debian 'apt-get install {PACKAGES}', or name an "
                "interpreter that has them with --python or FP8LAB_PYTHON"
            ) from None


def _one_line(error: object) -> str:
    return " ".join(str(error).split())


def check_out(out: Path) -> None:
    """Raises BadInput if the report cannot be written to `out`. Creates nothing."""
    nearest = out
    while not os.path.lexists(nearest) and nearest != nearest.parent:
        nearest = nearest.parent
    if not os.path.isdir(nearest):
        raise BadInput(f"--out {out}: {nearest} is no directory; give one, there or to be made")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise BadInput(f"--out {out}: no permission to write in {nearest}; give another directory")


def read_study(inputs: Sequence[Path], title: str) -> Study:
    """Reads the study. Raises BadInput and MachineFailure."""
    from fp8lab_analysis.read.hdf5 import InputError, NothingYet
    from fp8lab_analysis.read.isolation import ReadFailure, load_study_apart

    try:
        return load_study_apart(inputs, title)
    except NothingYet as error:
        raise NotBegun(str(error)) from None
    except InputError as error:
        raise BadInput(str(error)) from None
    except ReadFailure as error:
        raise MachineFailure(str(error)) from None


def written(out: Path, write: Callable[[], str]) -> str:
    """Returns the result of `write`. Raises BadInput or MachineFailure if it cannot write."""
    check_out(out)
    try:
        return write()
    except OSError as error:
        where = error.filename or out
        text = f"{where}: cannot be written ({error.strerror or error})"
        if error.errno in BAD_PATH:
            raise BadInput(f"{text}; give another --out, or remove what is in the way") from None
        raise MachineFailure(f"{text}; the report is not complete") from None


def print_plan(options: argparse.Namespace) -> None:
    """Prints the number of seeds that a study needs. Raises BadInput and MachineFailure."""
    import_needed()
    from fp8lab_analysis.judge.plan import describe, read_plan
    from fp8lab_analysis.read.hdf5 import InputError

    try:
        plan = read_plan(options.plan)
    except InputError as error:
        raise BadInput(str(error)) from None
    source, earlier = "", None
    if options.earlier is not None:
        source = str(options.earlier)
        try:
            earlier = read_study([options.earlier], "")
        except NotBegun:
            earlier = None
    for line in describe(plan, options.study or str(options.plan), earlier, source):
        _say(line)


def make_report(options: argparse.Namespace) -> None:
    """Reads the inputs and writes the report or export. Raises BadInput and MachineFailure."""
    if options.out is not None and not options.out:
        raise BadInput("--out: empty (give a directory, there or to be made)")
    out = default_out(options.inputs) if options.out is None else Path(options.out)
    import_needed()
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from fp8lab_analysis.page.report_page import write_report

    study = first_reading(options)
    if options.export is not None:
        from fp8lab_analysis.page.exports import export_runs

        _say(written(out, lambda: export_runs(study, options.export, out)))
        return
    other = read_study([Path(options.beside)], "") if options.beside else None
    if options.follow is None:
        _say(written(out, lambda: write_report(study, out, other)))
    else:
        follow(options, study, other, out)


def first_reading(options: argparse.Namespace) -> Study:
    """Reads the study; with --follow, waits until it has a run."""
    while True:
        try:
            return read_study(options.inputs, options.title)
        except NotBegun as error:
            if options.follow is None:
                raise
            _say(f"{error}; waiting")
            time.sleep(options.follow)


def follow(options: argparse.Namespace, study: Study, other: Study | None, out: Path) -> None:
    """Writes the report, and writes it again whenever the files have grown, until every run is
    complete. Ctrl-C ends it with a last page that does not reload itself."""
    from fp8lab_analysis.page.report_page import write_report

    misses, shown = 0, None
    try:
        while not study.complete:
            if study.progress != shown:
                current = study
                _say(written(out, lambda: write_report(current, out, other, options.follow)))
                shown = study.progress
            time.sleep(options.follow)
            try:
                study, misses = read_study(options.inputs, options.title), 0
            except BadInput:  # a file may be half written or being replaced
                misses += 1
                if misses == MOST_MISSES:
                    raise
    except KeyboardInterrupt:
        pass
    finished = study
    _say(written(out, lambda: write_report(finished, out, other)))


def _say(line: str) -> None:
    """Prints the line. Raises MachineFailure if standard output is not writable."""
    try:
        print(line, flush=True)
    except OSError as error:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # else Python writes again at exit
        raise MachineFailure(f"standard output: {error.strerror}; the report is made") from None


def _told(error: BaseException) -> str:
    """Describes an unexpected error and its place."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
    return f"internal error, {type(error).__name__}: {_one_line(error)} ({where})"


MACHINE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE)


def _of_machine(error: BaseException) -> str:
    """Returns the failure of the machine that caused an error, such as a full disk when a library
    closes its file; empty if there is none."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, OSError) and behind.errno in MACHINE_ERRORS:
            place = f"{behind.filename}: " if behind.filename else ""
            return f"{place}{behind.strerror}; it is not complete"
        behind = behind.__cause__ or behind.__context__
    return ""


def outcome(command: str, act: Callable[[], None]) -> int:
    """Runs `act` and returns the exit code; a failure becomes one line that starts with
    `command`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as missing glyphs
            act()
    except BadInput as error:
        complain(f"{error}")
        return 2
    except MachineFailure as error:
        complain(f"{error}")
        return 1
    except MemoryError:
        complain(f"{command}: not enough memory")
        return 1
    except KeyboardInterrupt:
        complain(f"{command}: interrupted; it is not complete")
        return 1
    except Exception as error:
        complain(f"{command}: {_of_machine(error) or _told(error)}")
        return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    act = print_plan if options.plan is not None else make_report
    return outcome("report", lambda: act(options))


if __name__ == "__main__":
    sys.exit(main())
