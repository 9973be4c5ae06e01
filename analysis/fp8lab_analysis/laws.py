"""Scaling laws: the effective parameters and tokens of a recipe, from runs of many sizes.

    python3 -m fp8lab_analysis.laws DIR|RUN.h5 ... [--json FILE]

The baseline's law is that of Hoffmann et al. (arXiv:2203.15556, equation 2),

    L(N, D) = A / N^alpha + B / D^beta + E

where N is the number of all parameters of a run, D the number of trained tokens, and L the last
held-out loss in nats per token. Another recipe has the baseline's constants and two factors
(Quartet, arXiv:2505.14669, equation 1, with its exponent gamma = 1): its loss is that of the
baseline with N eff_N parameters and D eff_D tokens. A factor of 0.9 means that a tenth of them is
lost. Both fits minimize the squared errors of log L.

Intervals have 95 % each: Student's interval of the logarithm of a factor, with the jackknife error
over seeds. For the jackknife both fits are repeated without all runs of each seed. With one seed
there are no intervals and no order. A factor is not reported if its term changes the loss over the
measured sizes by less than the law's residual, since any number would fit.

Exit codes are those of the report."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy import optimize

from fp8lab_analysis.judge.claims import ALPHA
from fp8lab_analysis.judge.inference import jackknife_half_width
from fp8lab_analysis.judge.stats import Array
from fp8lab_analysis.read.hdf5 import InputError
from fp8lab_analysis.read.isolation import ReadFailure, load_study_apart
from fp8lab_analysis.read.runs import Run
from fp8lab_analysis.read.study import Study
from fp8lab_analysis.report import Parser, complain, write_json

LEAST_SIZES = 2  # different N, and different D; fewer determine no exponent
CONSTANTS = 5


@dataclass(frozen=True)
class Point:
    """One trained run."""

    recipe: str
    seed: int
    parameters: float
    tokens: float
    loss: float  # nats per token


@dataclass(frozen=True)
class Law:
    """L = A / N^alpha + B / D^beta + E."""

    a: float
    b: float
    e: float
    alpha: float
    beta: float

    def loss(self, parameters: Array, tokens: Array) -> Array:
        """Returns the loss in nats per token."""
        return np.asarray(
            self.a * parameters**-self.alpha + self.b * tokens**-self.beta + self.e
        )


@dataclass(frozen=True)
class Worth:
    """The effective parameters and tokens of a recipe, as fractions of the baseline's."""

    recipe: str
    runs: int
    seeds: int
    eff_n: float | None  # None: not determined
    eff_d: float | None
    eff_n_interval: tuple[float, float] | None  # None: as in `_half_widths`
    eff_d_interval: tuple[float, float] | None
    rms: float  # RMS of the residuals of log L

    def line(self) -> str:
        """Returns a line of the program's output."""
        told = f"{self.recipe:<20} {self.runs:>3} runs {self.seeds:>2} seeds"
        for name, value, interval in (
            ("eff_N", self.eff_n, self.eff_n_interval),
            ("eff_D", self.eff_d, self.eff_d_interval),
        ):
            between = (
                "no interval" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
            )
            told += f"  {name} not told" if value is None else f"  {name} {value:.3f} ({between})"
        return f"{told}  residual {100.0 * self.rms:.2f} %"


def columns(points: Sequence[Point]) -> tuple[Array, Array, Array]:
    """Returns N, D and log L."""
    table = np.array([(p.parameters, p.tokens, p.loss) for p in points])
    return table[:, 0], table[:, 1], np.log(table[:, 2])


def _law_of(free: Array, unit: tuple[float, float]) -> Law:
    """Returns the law from unbounded parameters; `unit`: the sizes at which terms are exp(free)."""
    alpha, beta = np.exp(free[3:5])
    a, b, e = np.exp(free[:3])
    return Law(a * unit[0] ** alpha, b * unit[1] ** beta, e, float(alpha), float(beta))


def told_terms(law: Law, points: Sequence[Point]) -> tuple[bool, bool]:
    """Returns whether the terms of N and D change the loss over `points` by more than the
    residual."""
    n, d, log_loss = columns(points)
    residual = float(np.sqrt(np.mean((np.log(law.loss(n, d)) - log_loss) ** 2)))

    def tells(term: Array) -> bool:
        return bool(np.ptp(term) / np.mean(law.loss(n, d)) > residual)

    return tells(law.a * n**-law.alpha), tells(law.b * d**-law.beta)


def fit_law(points: Sequence[Point]) -> Law:
    """Fits the law to one recipe's runs, as the best result of many starting points."""
    n, d, log_loss = columns(points)
    unit = (float(np.exp(np.log(n).mean())), float(np.exp(np.log(d).mean())))

    def residuals(free: Array) -> Array:
        return np.asarray(np.log(_law_of(free, unit).loss(n, d)) - log_loss)

    middle = float(np.exp(log_loss.mean()))
    starts = itertools.product((0.1, 0.4), (0.1, 0.4), (0.2, 0.7), (-1.5, -0.5), (-1.5, -0.5))
    fits = [
        optimize.least_squares(
            residuals,
            [*np.log([first * middle, second * middle, floor * middle]), alpha, beta],
            bounds=([-30.0, -30.0, -30.0, -6.0, -6.0], [10.0, 10.0, 10.0, 1.5, 1.5]),
        )
        for first, second, floor, alpha, beta in starts
    ]
    return _law_of(min(fits, key=lambda fit: float(fit.cost)).x, unit)


def fit_worth(law: Law, points: Sequence[Point]) -> tuple[float, float, float]:
    """Fits eff_N and eff_D; returns them and the RMS of the residuals of log L."""
    n, d, log_loss = columns(points)

    def residuals(free: Array) -> Array:
        eff_n, eff_d = np.exp(free)
        return np.asarray(np.log(law.loss(n * eff_n, d * eff_d)) - log_loss)

    fit = optimize.least_squares(residuals, [0.0, 0.0], bounds=(-5.0, 5.0))
    return float(np.exp(fit.x[0])), float(np.exp(fit.x[1])), float(np.sqrt(np.mean(fit.fun**2)))


def check_sizes(recipe: str, points: Sequence[Point], least: int) -> None:
    """Raises InputError if the runs do not determine both exponents."""
    sizes = {p.parameters for p in points}
    lengths = {p.tokens for p in points}
    both = {(p.parameters, p.tokens) for p in points}
    if min(len(sizes), len(lengths)) < LEAST_SIZES or len(both) < least:
        raise InputError(
            f"{recipe}: {len(both)} pairs of {len(sizes)} model sizes and {len(lengths)} numbers "
            f"of tokens (expected {LEAST_SIZES} or more of each, and {least} pairs)"
        )


def _without(points: Sequence[Point], seed: int) -> list[Point]:
    return [point for point in points if point.seed != seed]


def _laws_without(own: Sequence[Point]) -> dict[int, Law]:
    """Returns the laws without each seed; empty if the other seeds lack a needed size."""
    kept = {seed: _without(own, seed) for seed in sorted({point.seed for point in own})}
    try:
        for rest in kept.values():
            check_sizes("baseline", rest, CONSTANTS)
    except InputError:
        return {}
    return {seed: fit_law(rest) for seed, rest in kept.items()}


def _half_widths(law: Law, laws_without: dict[int, Law], runs: Sequence[Point]) -> Array | None:
    """Returns the half widths of the intervals of log eff_N and log eff_D; None for one seed of the
    baseline or of the recipe, or if the other seeds lack a size that the fits need."""
    seeds = {point.seed for point in runs}
    fewest = min(len(laws_without), len(seeds))
    if fewest < 2:
        return None
    fits = []
    for seed in sorted(seeds.union(laws_without)):
        rest = _without(runs, seed)
        try:
            check_sizes("recipe", rest, LEAST_SIZES)
        except InputError:
            return None
        fits.append(np.log(fit_worth(laws_without.get(seed, law), rest)[:2]))
    return jackknife_half_width(np.array(fits), fewest - 1, ALPHA)


def worths(points: Sequence[Point], baseline: str) -> tuple[Law, list[Worth]]:
    """Returns the baseline's law and the effective sizes of every other recipe."""
    by_recipe: dict[str, list[Point]] = {}
    for point in points:
        by_recipe.setdefault(point.recipe, []).append(point)
    own = by_recipe.pop(baseline, [])
    check_sizes(baseline, own, CONSTANTS)
    for recipe, runs in by_recipe.items():
        check_sizes(recipe, runs, LEAST_SIZES)
    law = fit_law(own)
    told = told_terms(law, own)
    laws_without = _laws_without(own)
    found = []
    for recipe, runs in by_recipe.items():
        eff_n, eff_d, rms = fit_worth(law, runs)
        half = _half_widths(law, laws_without, runs)
        values = [value if is_told else None for value, is_told in zip((eff_n, eff_d), told)]
        intervals: list[tuple[float, float] | None] = [None, None]
        if half is not None:
            factors = np.exp(half)
            intervals = [
                None if value is None else (float(value / factor), float(value * factor))
                for value, factor in zip(values, factors)
            ]
        count = len({run.seed for run in runs})
        found.append(
            Worth(recipe, len(runs), count, values[0], values[1], intervals[0], intervals[1], rms)
        )
    return law, found


def point_of(run: Run) -> Point:
    """Converts a run. Raises InputError if the run lacks a needed number."""
    loss = run.evaluations.loss[-1] if len(run.evaluations) else math.nan
    if not run.complete or not np.isfinite(loss):
        raise InputError(f"{run.path}: no held-out loss of a complete run")
    count = float(run.meta.get("parameter_count", "nan"))
    if not count > 0.0:
        raise InputError(f"{run.path}: does not say how many parameters its model has")
    return Point(run.recipe, run.seed, count, float(run.metrics.tokens[-1]), float(loss))


def points_of(study: Study) -> tuple[list[Point], list[str]]:
    """Returns the runs of a study as points, and the reasons for excluding others."""
    points, refused = [], []
    for run in study.runs:
        try:
            points.append(point_of(run))
        except InputError as error:
            refused.append(str(error))
    return points, refused


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; a usage error exits 2 with one line."""
    parser = Parser(
        prog="fp8lab_analysis.laws",
        description="What recipes are worth in parameters and tokens, from runs of many sizes.",
    )
    parser.add_argument("inputs", nargs="+", type=Path, metavar="DIR|RUN.h5")
    parser.add_json("law and worths")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    try:
        study = load_study_apart(options.inputs, "")
        points, refused = points_of(study)
        law, found = worths(points, study.baseline_recipe)
    except (InputError, ReadFailure) as error:
        complain(f"{error}")
        return 2 if isinstance(error, InputError) else 1
    for line in refused:
        print(f"left out: {line}")
    print(
        f"{study.baseline_recipe}: L = {law.a:.4g} / N^{law.alpha:.3f} + {law.b:.4g} / "
        f"D^{law.beta:.3f} + {law.e:.4g}"
    )
    for worth in found:
        print(worth.line())
    if any(worth.eff_n is None or worth.eff_d is None for worth in found):
        print("not told: the term changes the baseline's loss by less than the law's residual")
    if any(worth.eff_n_interval is None and worth.eff_d_interval is None for worth in found):
        print("without an interval nothing is ordered: two seeds of every size at least")
    told = {"law": asdict(law), "worths": [asdict(worth) for worth in found]}
    return 0 if write_json(options.json, told) else 1


if __name__ == "__main__":
    sys.exit(main())
