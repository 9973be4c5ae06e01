"""Reads a study in a separate process: on some damaged files HDF5 crashes or does not terminate.

About one in a hundred randomly damaged files crashes the process that reads it, without an
exception to catch. Therefore a child process reads the files, sends the name of each file before it
opens it, and sends back the study.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from fp8lab_analysis.read.hdf5 import InputError, NothingYet, damaged, one_line
from fp8lab_analysis.read.study import Study, load_study

READ_SECONDS = 60.0  # time limit for a file, plus its size / BYTES_PER_SECOND
BYTES_PER_SECOND = 1 << 20

Loader = Callable[[Sequence[Path], str, Callable[[Path], None]], Study]


class ReadFailure(Exception):
    """A failure of the machine, not of a file."""


def _read(pipe: Connection, load: Loader, inputs: Sequence[Path], title: str) -> None:
    """The child process: sends pairs (kind, value)."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)  # suppresses messages of the C library
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        pipe.send(("study", load(inputs, title, lambda path: pipe.send(("file", path)))))
    except NothingYet as error:
        pipe.send(("nothing yet", str(error)))
    except InputError as error:
        pipe.send(("refused", str(error)))
    except MemoryError:
        pipe.send(("failed", "not enough memory"))
    except Exception as error:
        pipe.send(("failed", f"{type(error).__name__}: {one_line(error)}"))


def _seconds_for(path: Path) -> float:
    return READ_SECONDS + path.stat().st_size / BYTES_PER_SECOND


def _kind(path: Path) -> str:
    return "study" if path.name == "study.h5" else "run"


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        return f"reading it ends in {signal.Signals(-code).name}"
    return f"reading it ends with status {code}"


def load_study_apart(inputs: Sequence[Path], title: str, load: Loader = load_study) -> Study:
    """Runs `load_study` in a child process. Raises InputError also if reading a file crashes or
    does not end, ReadFailure if the machine failed."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_read, args=(theirs, load, inputs, title), daemon=True)
    child.start()
    theirs.close()
    file, seconds = Path(inputs[0]), READ_SECONDS
    try:
        while True:
            if not ours.poll(seconds):
                raise damaged(file, f"reading it does not end within {seconds:.0f} s", _kind(file))
            try:
                what, value = ours.recv()
            except EOFError:
                child.join()
                raise damaged(file, _death(child.exitcode), _kind(file)) from None
            if what == "file":
                file = value
                seconds = _seconds_for(file) if os.path.isfile(file) else READ_SECONDS
            elif what == "study":
                assert isinstance(value, Study)
                return value
            elif what == "nothing yet":
                raise NothingYet(value)
            elif what == "refused":
                raise InputError(value)
            else:
                raise ReadFailure(f"{file}: cannot be read ({value})")
    finally:
        if child.exitcode is None:
            child.kill()
        child.join()
        ours.close()
