"""Simulates studies with known true gaps: coverage of the intervals of verdicts, and false claims.

    python3 -m fp8lab_analysis.coverage [--studies N] [--seed S] [--csv FILE]

A study is a layout arms x seeds. Every run, including the baseline's, has a normal loss with its
own deviation. A gap is run minus baseline, so all arms of a seed share the baseline's noise.
Scenarios determine which runs scatter more. A study is judged by the functions of a report
(pooling.py, inference.py), and for comparison by the paired t test of each arm alone.

The coverage of a study is the fraction of its arms whose 95 % interval contains the truth; the
coverage of the worst arm is reported too. False claims are claims on any arm of a study after
Holm's correction: worse or better if no arm has a gap, equivalent if all arms have a gap at the
margin. That margin is so wide that the other bound never decides.

Exit codes: 0: success; 1: the CSV cannot be written; 2: wrong command line; 3: a number is outside
its promised range."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fp8lab_analysis.judge import inference, pooling
from fp8lab_analysis.judge.pooling import Flags
from fp8lab_analysis.judge.stats import Array
from fp8lab_analysis.page.result_page import write_csv
from fp8lab_analysis.read.design import Design
from fp8lab_analysis.report import Parser, complain

SEEDS = tuple(range(2, 9))
ARMS = (3, 4, 6, 8, 10, 12)
ALPHA = 0.05
FAR = 1e3  # a margin, in deviations, at which only one bound decides
ROOM = 3.0  # tolerance of a number, in standard errors of the simulation

# Returns the deviations of all runs, broadcastable to (studies, arms + 1, seeds), baseline first.
# Arguments: the numbers of studies, arms and seeds, and a random generator.
Deviations = Callable[[int, int, int, np.random.Generator], Array]


@dataclass(frozen=True)
class Scenario:
    """The deviations of the runs of a study, and the promised coverage (fractions)."""

    name: str
    deviations: Deviations
    least: float  # promised minimum of the coverage; 0: no promise
    most: float = 1.0
    controlled: bool = False  # True: the rate of false claims is promised to be at most ALPHA
    off: float = 0.0  # additional offset of one run of one arm, in deviations


def _runs(times: Sequence[tuple[slice, float]]) -> Deviations:
    def deviations(_: int, arms: int, seeds: int, rng: np.random.Generator) -> Array:
        values = np.ones((1, arms + 1, 1))
        for rows, factor in times:
            values[:, rows] = factor
        return values

    return deviations


def _drawn(ratio: float) -> Deviations:
    def deviations(studies: int, arms: int, _: int, rng: np.random.Generator) -> Array:
        return np.asarray(ratio ** rng.uniform(size=(studies, arms + 1, 1)))

    return deviations


def _loud_seed(ratio: float) -> Deviations:
    def deviations(_: int, arms: int, seeds: int, rng: np.random.Generator) -> Array:
        values = np.ones((1, 1, seeds))
        values[..., 0] = ratio
        return values

    return deviations


ONE, EVERY_OTHER, BASELINE = slice(1, 2), slice(1, None, 2), slice(0, 1)
SCENARIOS = (
    Scenario("equal", _runs([]), 0.94, 0.96, True),
    Scenario("one arm twofold", _runs([(ONE, 2.0)]), 0.93, controlled=True),
    Scenario("every other arm twofold", _runs([(EVERY_OTHER, 2.0)]), 0.93, controlled=True),
    Scenario("all runs between one and twofold", _drawn(2.0), 0.93, controlled=True),
    Scenario("one arm fourfold", _runs([(ONE, 4.0)]), 0.90),
    Scenario("every other arm fourfold", _runs([(EVERY_OTHER, 4.0)]), 0.90),
    Scenario("all runs between one and fourfold", _drawn(4.0), 0.90),
    Scenario("one seed fourfold", _loud_seed(4.0), 0.90),
    Scenario("one run off by 4 deviations", _runs([]), 0.90, off=4.0),
    Scenario("baseline alone twofold", _runs([(BASELINE, 2.0)]), 0.0),
    Scenario("baseline alone fourfold", _runs([(BASELINE, 4.0)]), 0.0),
)


@dataclass(frozen=True)
class Cell:
    """Results of one scenario for one number of seeds and arms."""

    scenario: str
    seeds: int
    arms: int
    studies: int
    coverage: float  # mean over studies and arms
    error: float  # standard error of the coverage over studies
    worst_arm: float  # coverage of the worst arm
    false_different: float
    false_equivalent: float
    half_width: float  # median of the 95 % interval, in deviations of a run
    coverage_alone: float  # `coverage` of the arm's own t test
    half_width_alone: float

    def problems(self) -> list[str]:
        """Returns the violated promises of its scenario."""
        promise = next(item for item in SCENARIOS if item.name == self.scenario)
        found, room = [], ROOM * self.error
        if self.coverage < promise.least - room or self.coverage > promise.most + room:
            found.append(f"coverage {100.0 * self.coverage:.1f} %")
        room = ROOM * math.sqrt(ALPHA * (1.0 - ALPHA) / self.studies)
        for claim, rate in (
            ("false worse or better", self.false_different),
            ("false equivalent", self.false_equivalent),
        ):
            if promise.controlled and rate > ALPHA + room:
                found.append(f"{claim} {100.0 * rate:.1f} %")
        return found


def draw_gaps(
    scenario: Scenario, studies: int, arms: int, seeds: int, rng: np.random.Generator
) -> Array:
    """Draws gaps (studies, arms, seeds) with true gap zero, in deviations of a run."""
    noise = rng.normal(size=(studies, arms + 1, seeds))
    noise = noise * scenario.deviations(studies, arms, seeds, rng)
    noise[:, 1, 0] += scenario.off * rng.choice([-1.0, 1.0], size=studies)
    return noise[:, 1:] - noise[:, :1]


def _intervals(mean: Array, sd: Array, df: Array, seeds: int) -> tuple[Flags, Array]:
    """Returns whether the 95 % interval of each arm contains zero, and its half width."""
    half = np.array([inference.half_width(1.0, seeds, ALPHA, n) for n in np.unique(df)])
    width = half[np.searchsorted(np.unique(df), df)] * sd
    return np.abs(mean) <= width, width


def simulate(
    scenario: Scenario, studies: int, arms: int, seeds: int, rng: np.random.Generator
) -> Cell:
    """Simulates one cell of the grid."""
    gaps = draw_gaps(scenario, studies, arms, seeds, rng)
    noise = pooling.pool(gaps)
    mean, sd = gaps.mean(axis=-1), np.sqrt(noise.variance)
    holds, width = _intervals(mean, sd, noise.df, seeds)
    alone = gaps.std(axis=-1, ddof=1)
    holds_alone, width_alone = _intervals(mean, alone, np.full(mean.shape, seeds - 1.0), seeds)
    levels = inference.step_levels(ALPHA, arms, Design().looks)
    different = inference.difference_p(mean, sd, seeds, noise.df)
    equivalent = inference.equivalence_p(mean + FAR, sd, seeds, FAR, noise.df)
    return Cell(
        scenario=scenario.name,
        seeds=seeds,
        arms=arms,
        studies=studies,
        coverage=float(holds.mean()),
        error=float(holds.mean(axis=1).std() / math.sqrt(studies)),
        worst_arm=float(holds.mean(axis=0).min()),
        false_different=float(inference.reject(different, levels).any(axis=1).mean()),
        false_equivalent=float(inference.reject(equivalent, levels).any(axis=1).mean()),
        half_width=float(np.median(width)),
        coverage_alone=float(holds_alone.mean()),
        half_width_alone=float(np.median(width_alone)),
    )


def summarise_cells(cells: Sequence[Cell]) -> list[str]:
    """Returns one line per scenario with the extremes over the grid."""
    lines = []
    for name in dict.fromkeys(cell.scenario for cell in cells):
        found = [cell for cell in cells if cell.scenario == name]
        low, high = (pick(found, key=lambda cell: cell.coverage) for pick in (min, max))
        false = max(max(cell.false_different, cell.false_equivalent) for cell in found)
        lines.append(
            f"{name:<34} coverage {100.0 * low.coverage:.1f} % ({low.seeds} seeds, {low.arms} arms)"
            f" to {100.0 * high.coverage:.1f} % ({high.seeds}, {high.arms}); false claims at most "
            f"{100.0 * false:.1f} %"
        )
    return lines


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; a usage error exits 2 with one line."""
    parser = Parser(
        prog="fp8lab_analysis.coverage",
        description="Coverage of moderated intervals and false claims on studies of planted truth.",
    )
    parser.add_argument("--studies", type=int, default=10_000, help="a cell; default: 10000")
    parser.add_argument("--seed", type=int, default=1, help="of the draws; default: 1")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="every cell")
    options = parser.parse_args(arguments)
    if options.studies < 100:
        parser.error(f"--studies {options.studies}: expected 100 or more")
    if options.seed < 0:
        parser.error(f"--seed {options.seed}: expected 0 or more")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    rng = np.random.default_rng(options.seed)
    cells = [
        simulate(scenario, options.studies, arms, seeds, rng)
        for scenario in SCENARIOS
        for seeds in SEEDS
        for arms in ARMS
    ]
    for line in summarise_cells(cells):
        print(line)
    outside = 0
    for cell in cells:
        for problem in cell.problems():
            outside += 1
            print(f"OUTSIDE: {cell.scenario}, {cell.seeds} seeds, {cell.arms} arms: {problem}")
    print(f"{len(cells)} cells of {options.studies} studies, {outside} numbers outside the promise")
    if options.csv is not None:
        rows = [list(asdict(cells[0])), *(list(asdict(cell).values()) for cell in cells)]
        try:
            write_csv(options.csv, rows)
        except OSError as error:
            complain(f"--csv {options.csv}: {error.strerror}")
            return 1
    return 3 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
