#!/usr/bin/python3
"""Random faults against the program: kills, signals, full disks, flips in every file of a run,
malformed, exchanged and changing files, numbers that are none, failing reads, odd names and
environments. Every case has to end in the right result or in a refusal.

    python3 tests/faults/campaign.py --program build/cpu-release/src/fp8lab --cases 1000 --seed 1
    python3 tests/faults/campaign.py --program ... --seed 1 --only flip:17

Exit codes: 0 no wrong result accepted and no crash, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import changes
import codes
import flips
import interruptions
import lines
import malformed
import plans
import reads
import statements
import surroundings
import swaps
import token_inputs
import weights
from program import Disk, Program, can_trace, fit_limits_to, trace
from program import prepare as prepare_child
from runs import TRAIN, Context, Fixture, Outcome, make_context

Case = Callable[[Context, random.Random], Outcome]

KINDS: dict[str, tuple[Case, int]] = {  # with its share of the cases
    "kill": (interruptions.kill, 3),
    "signal": (interruptions.stop, 2),
    "disk": (interruptions.disk, 3),
    "study": (interruptions.study, 1),
    "flip": (flips.flip, 6),
    "swap": (swaps.swap, 2),
    "input": (malformed.malformed, 6),
    "tokens": (token_inputs.tokens, 3),
    "weights": (weights.weights, 5),
    "codes": (codes.codes, 5),
    "config": (statements.statements, 3),
    "plan": (plans.plan, 4),
    "paths": (surroundings.paths, 5),
    "environment": (surroundings.environment, 3),
    "change": (changes.change, 5),
    "moved": (changes.moved, 3),
    "reads": (reads.reads, 5),
    "lines": (lines.lines, 4),
}
VERDICTS = ("right", "refused", "wrong", "crashed")


@dataclass(frozen=True)
class Finished:
    """One case and what came of it."""

    kind: str
    index: int
    outcome: Outcome
    seconds: float


_context: Context | None = None  # of a worker


def start_worker(context: Context, with_disk: bool) -> None:
    """Every worker has a disk of its own."""
    global _context
    folder = context.scratch / f"disk-{os.getpid()}"
    _context = replace(context, disk=Disk.mount(folder) if with_disk else None)


def run_case(job: tuple[int, str, int]) -> Finished:
    """Runs case INDEX of KIND; the same for the same seed."""
    seed, kind, index = job
    assert _context is not None
    rng = random.Random(f"{seed}/{kind}/{index}")
    began = time.monotonic()
    try:
        outcome = KINDS[kind][0](_context, rng)
    except Exception:  # the campaign's own fault, told with the case
        outcome = Outcome("crashed", "the campaign itself: " + traceback.format_exc())
    return Finished(kind, index, outcome, time.monotonic() - began)


def counted(text: str) -> tuple[str, int]:
    """KIND=N of --count."""
    kind, _, number = text.partition("=")
    if kind not in KINDS or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: accepted: KIND=N, KIND of {', '.join(KINDS)}")
    return kind, int(number)


def plan(
    cases: int, seed: int, kinds: list[str], counts: dict[str, int]
) -> list[tuple[int, str, int]]:
    """The cases by share, kinds interleaved; those of `counts` by number, beside the others."""
    fixed = [(seed, kind, i) for kind, number in counts.items() for i in range(number)]
    kinds = [kind for kind in kinds if kind not in counts]
    if not kinds:
        return fixed
    order = [kind for kind in kinds for _ in range(KINDS[kind][1])]
    random.Random(seed).shuffle(order)
    count: Counter[str] = Counter()
    jobs = []
    for i in range(cases):
        kind = order[i % len(order)]
        jobs.append((seed, kind, count[kind]))
        count[kind] += 1
    return jobs + fixed


def count_stops(program: Program, fixture: Fixture) -> Fixture:
    """With the number of moments at which the undisturbed run can be interrupted."""
    folder = fixture.copy(fixture.folder.with_name("counted"))
    with subprocess.Popen(
        [str(program.path), *TRAIN],
        cwd=folder,
        env=program.environment(),
        stdout=subprocess.DEVNULL,
        preexec_fn=prepare_child({}, True),
    ) as child:
        stops = trace(child.pid)
    shutil.rmtree(folder)
    assert child.returncode == 0
    return replace(fixture, stops=stops)


def table(finished: list[Finished]) -> str:
    lines = [f"{'kind':<10}{'cases':>8}" + "".join(f"{name:>10}" for name in VERDICTS)]
    for kind in [*KINDS, "all"]:
        of_kind = [f for f in finished if kind in (f.kind, "all")]
        if not of_kind:
            continue
        counts = Counter(f.outcome.verdict for f in of_kind)
        row = "".join(f"{counts[name]:>10}" for name in VERDICTS)
        lines.append(f"{kind:<10}{len(of_kind):>8}{row}")
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="default: all")
    parser.add_argument(
        "--count",
        action="append",
        default=[],
        metavar="KIND=N",
        type=counted,
        help="N cases of a kind whatever its share, repeatable",
    )
    parser.add_argument("--only", metavar="KIND:INDEX", help="one case, for finding its cause")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at once")
    parser.add_argument("--json", type=Path, help="also write every case to this file")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the cases")
    return parser.parse_args()


def run_all(options: argparse.Namespace, scratch: Path) -> list[Finished]:
    fit_limits_to(options.program.resolve())
    program = Program(options.program.resolve())
    traced = can_trace()
    context = make_context(program, scratch, traced, None)
    if traced:
        context = replace(
            context,
            bytes=count_stops(program, context.bytes),
            tokens=count_stops(program, context.tokens),
        )
    with_disk = Disk.available(scratch / "disk")
    print("moments of interruption:", "file operations" if traced else "wall time")
    print("full disks:", "tmpfs" if with_disk else "limits on the size of files", flush=True)
    if options.only:
        kind, _, index = options.only.partition(":")
        jobs = [(options.seed, kind, int(index))]
    else:
        kinds = options.kind or list(KINDS)
        if not token_inputs.is_available():
            print("tokens: left out, tokenizers or xxhash is not installed")
            kinds = [kind for kind in kinds if kind != "tokens"]
        jobs = plan(options.cases, options.seed, kinds, dict(options.count))
    finished = []
    fork = multiprocessing.get_context("fork")
    with fork.Pool(min(options.jobs, len(jobs)), start_worker, (context, with_disk)) as pool:
        for done in pool.imap_unordered(run_case, jobs):
            finished.append(done)
            if done.outcome.verdict in ("wrong", "crashed") or options.only:
                outcome = done.outcome
                print(f"{done.kind}:{done.index} {outcome.verdict}: {outcome.note}", flush=True)
    return finished


def main() -> int:
    options = parse_arguments()
    scratch = Path(tempfile.mkdtemp(prefix="fp8lab-faults-"))
    began = time.monotonic()
    try:
        finished = run_all(options, scratch)
    finally:
        if options.keep:
            print(f"kept: {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    print(table(finished))
    print(f"{time.monotonic() - began:.0f} s, seed {options.seed}")
    if options.json:
        cases = [
            {"case": f"{f.kind}:{f.index}", "seconds": round(f.seconds, 3)} | vars(f.outcome)
            for f in finished
        ]
        options.json.write_text(json.dumps({"seed": options.seed, "cases": cases}, indent=1) + "\n")
    return 1 if any(f.outcome.verdict in ("wrong", "crashed") for f in finished) else 0


if __name__ == "__main__":
    sys.exit(main())
