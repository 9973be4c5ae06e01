"""Follows a run during training and writes its log to TensorBoard or trackio.

`fp8lab train --log` starts this process with a pipe to its standard input. When the pipe closes,
however the run ended, this process writes the rest and exits. It reads the run file as any other
program can. Names are those of the run file; times are those of the clock.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from fp8lab_analysis.page import exports
from fp8lab_analysis.read.hdf5 import InputError
from fp8lab_analysis.read.run_reader import load_run
from fp8lab_analysis.read.runs import Run
from fp8lab_analysis.report import Parser, complain

SHORTEST_PAUSE = 1.0  # seconds between two readings
SHARE = 0.05  # largest fraction of a processor for the readings
MOST_MISSES = 20  # consecutive failed readings before an error


class Events:
    """An event file of TensorBoard. A resumed run starts a new one; TensorBoard joins them."""

    def __init__(self, out: Path, clock: float) -> None:
        out.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}.fp8lab"
        self._file = open(out / name, "xb")  # noqa: SIM115: open during the run
        self._clock = clock
        self._file.write(exports.event_head(now))
        self._file.flush()

    def write(self, run: Run, items: Sequence[exports.Scalar]) -> None:
        """Appends scalars."""
        del run
        self._file.write(exports.event_records(items, self._clock))
        self._file.flush()

    def close(self) -> None:
        """Ends the file."""
        self._file.close()


class Trackio:
    """A run in a database of trackio. The project has the run's name."""

    def __init__(self, out: Path, clock: float) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._out = out
        self._clock = clock

    def write(self, run: Run, items: Sequence[exports.Scalar]) -> None:
        """Adds rows, then closes the database for other readers."""
        name = run.name or "run"
        with closing(exports.open_trackio(self._out / f"{name}.db")) as base, base:
            exports.insert_scalars(base, name, items, self._clock)
            exports.insert_config(base, name, run, self._clock)

    def close(self) -> None:
        """Does nothing: the database is closed between writes."""


def new_scalars(run: Run, after: int, written: set[tuple[int, str]]) -> list[exports.Scalar]:
    """Returns the scalars after step `after` that are not in `written`, in the order of steps."""
    found = [
        item
        for item in exports.scalars(run)
        if item[0] > after and (item[0], item[2]) not in written
    ]
    written.update((item[0], item[2]) for item in found)
    return sorted(found, key=lambda item: item[0])


def ended(pause: float) -> bool:
    """Waits up to `pause` seconds; returns True once the run has closed our standard input."""
    ready, _, _ = select.select([sys.stdin], [], [], pause)
    return bool(ready) and not os.read(sys.stdin.fileno(), 4096)


def follow(path: Path, sink: Events | Trackio, after: int) -> None:
    """Writes new scalars of the run file until the run has ended."""
    written: set[tuple[int, str]] = set()
    misses, last, pause = 0, False, SHORTEST_PAUSE
    while not last:
        last = ended(pause)
        began = time.monotonic()
        try:
            run = load_run(path)
        except InputError:
            misses += 1
            if last or misses > MOST_MISSES:
                raise
            continue
        misses = 0
        sink.write(run, new_scalars(run, after, written))
        pause = max(SHORTEST_PAUSE, (time.monotonic() - began) / SHARE)
    sink.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 once the run has ended and everything is written."""
    parser = Parser(prog="fp8lab train --log", add_help=False)
    parser.add_argument("--kind", choices=("tensorboard", "trackio"), default="tensorboard")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--clock", type=float, help="time at which the seconds of the run were 0")
    parser.add_argument("--after", type=int, default=0, help="last step that is written elsewhere")
    parser.add_argument("--check", action="store_true", help="whether all packages are there")
    parser.add_argument("run", type=Path, nargs="?")
    options = parser.parse_args(arguments)
    if options.check:
        return 0
    if options.run is None or options.out is None or options.clock is None:
        parser.error("a run file, --out and --clock are required")
    # Ctrl-C is meant for the run; this process continues until the run ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(10)
    make: type[Events] | type[Trackio] = Events if options.kind == "tensorboard" else Trackio
    try:
        follow(options.run, make(options.out, options.clock), options.after)
    except (InputError, OSError, sqlite3.Error) as error:
        complain(f"train --log {options.kind}: {error}; the run goes on")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
