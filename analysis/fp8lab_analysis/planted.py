"""Measures how often verdicts are right, on runs and normal draws with a known (planted) true gap.

    python3 -m fp8lab_analysis.planted DIR|RUN.h5 ... [--resamples N] [--seed S] [--json FILE]

The population is the gaps of an arm's pairs with its baseline, shifted to mean zero and divided by
their deviation (with n, not n - 1). Samples of seeds are drawn from it with replacement. In each
pair, run and baseline are exchanged at random, as is valid for equal arms: the true gap is zero,
the true deviation is 1, and the distribution is symmetric. (Without the exchange, few pairs would
have a skewness of their own: +-0.7 for 48 pairs of normal gaps. With eight seeds, a skewness of
0.35 changes a rate of 5 % by one percent.) A true gap is planted by adding it, and the tests of
inference.py judge it. The margin is the one for which the number of seeds is planned; the gap is
the one that this number detects. Arms with the same seeds are drawn together, as in a study.

Exit codes: those of the report, and 3 if a rate is outside its allowed range."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fp8lab_analysis.judge import inference, pooling
from fp8lab_analysis.judge.compare import GroupSummary, summarise
from fp8lab_analysis.judge.stats import Array
from fp8lab_analysis.read.design import Design
from fp8lab_analysis.read.hdf5 import InputError
from fp8lab_analysis.read.isolation import ReadFailure, load_study_apart
from fp8lab_analysis.report import Parser, complain, write_json

RUN_SEEDS = (8, 16)  # sample sizes from runs; fewer seeds depend too much on the tails of few runs
NORMAL_SEEDS = (4, *RUN_SEEDS)
LOOKS = 4
NORMAL_ARMS = 7
SHARED_VARIANCE = 0.5  # shared fraction of the gaps' variance in normal draws: common baselines
LEAST_PAIRS = 16
POWER_ROOM = 0.05  # tolerance around the planned power


@dataclass(frozen=True)
class Rate:
    """How often a claim was made, and its allowed range."""

    source: str
    seeds: int
    claim: str
    made: int
    trials: int
    low: float
    high: float

    @property
    def rate(self) -> float:
        """Fraction of the trials with the claim."""
        return self.made / self.trials

    @property
    def holds(self) -> bool:
        """True if the rate is in its allowed range."""
        return self.low <= self.rate <= self.high

    def line(self) -> str:
        """Returns a line of the program's output."""
        low, high = 100.0 * self.low, 100.0 * self.high
        allowed = f"{low:.0f} to {high:.0f} %" if self.low > 0.0 else f"at most {high:.2f} %"
        end = "" if self.holds else "  OUTSIDE"
        what = f"{self.source:<28} {self.seeds:>3} seeds  {self.claim:<52}"
        return f"{what} {100.0 * self.rate:6.2f} %  ({allowed}){end}"


def _at_most(alpha: float, trials: int) -> tuple[float, float]:
    """Returns the allowed range of a false claim: up to alpha plus three standard errors."""
    return 0.0, alpha + 3.0 * math.sqrt(alpha * (1.0 - alpha) / trials)


def _around(power: float) -> tuple[float, float]:
    return power - POWER_ROOM, power + POWER_ROOM


@dataclass(frozen=True)
class Called:
    """The claims about samples (..., arms)."""

    equivalent: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    different: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]  # different and not equivalent


def call(gaps: Array, margin: float, design: Design) -> Called:
    """Judges gaps (samples, arms, seeds) by the rules of verdicts."""
    count, arms = gaps.shape[-1], gaps.shape[-2]
    noise = pooling.pool(gaps)
    mean, sd, df = gaps.mean(axis=-1), np.sqrt(noise.variance), noise.df
    levels = inference.step_levels(design.alpha, arms, design.looks)
    equivalent = inference.reject(inference.equivalence_p(mean, sd, count, margin, df), levels)
    different = inference.reject(inference.difference_p(mean, sd, count, df), levels)
    return Called(equivalent, different & ~equivalent)


def rates_of_one(source: str, gaps: Array, design: Design) -> list[Rate]:
    """Returns the rates of one arm from gaps (samples, seeds) of true gap 0 and deviation 1."""
    trials, count = gaps.shape
    margin = inference.provable_margin(count, 1.0, design.alpha, design.power)
    gap = inference.detectable_gap(count, 1.0, design.alpha, design.power)
    draws = gaps[:, None, :]
    equal = call(draws, margin, design)
    found = call(draws + gap, margin, design).different[:, 0] & (draws.mean(axis=(1, 2)) + gap > 0)
    claims = (
        ("false equivalent, gap at the margin", call(draws + margin, margin, design).equivalent, 0),
        (
            "false equivalent, gap at minus the margin",
            call(draws - margin, margin, design).equivalent,
            0,
        ),
        ("false worse or better, no gap", equal.different, 0),
        ("equivalent, no gap, planned margin", equal.equivalent, 1),
        ("worse, detectable gap", found, 1),
    )
    allowed = (_at_most(design.alpha, trials), _around(design.power))
    return [
        Rate(source, count, claim, int(np.sum(made)), trials, *allowed[powered])
        for claim, made, powered in claims
    ]


def rates_of_many(source: str, gaps: Array, design: Design) -> list[Rate]:
    """Returns rates of false claims about any of several arms, from gaps (samples, arms, seeds) of
    true gap 0 and true deviation 1: all at the margin, all without a gap, and half of each."""
    trials, arms, count = gaps.shape
    margin = inference.provable_margin(count, 1.0, design.alpha, design.power)
    far = np.arange(arms) % 2 == 0
    mixed = call(gaps + margin * far[:, None], margin, design)
    claims = (
        ("all at the margin", call(gaps + margin, margin, design).equivalent),
        ("half at the margin", mixed.equivalent & far),
    )
    told = [(f"any of {arms} false equivalent, {where}", made) for where, made in claims]
    claims = (
        ("no gap", call(gaps, margin, design).different),
        ("half without a gap", mixed.different & ~far),
    )
    told += [(f"any of {arms} false worse or better, {where}", made) for where, made in claims]
    allowed = _at_most(design.alpha, trials)
    return [
        Rate(source, count, claim, int(np.sum(made.any(axis=-1))), trials, *allowed)
        for claim, made in told
    ]


def rates_of_looks(source: str, gaps: Array, design: Design) -> list[Rate]:
    """Returns rates of false claims at any of `design.looks` looks, after equal numbers of seeds,
    from gaps (samples, seeds) of true gap 0 and true deviation 1."""
    trials, count = gaps.shape
    margin = inference.provable_margin(count, 1.0, design.alpha, design.power)
    equivalent, different = np.zeros(trials, dtype=bool), np.zeros(trials, dtype=bool)
    for look in range(1, design.looks + 1):
        seen = gaps[:, None, : look * count // design.looks]
        equivalent |= call(seen + margin, margin, design).equivalent[:, 0]
        different |= call(seen, margin, design).different[:, 0]
    allowed = _at_most(design.alpha, trials)
    return [
        Rate(
            source,
            count,
            f"{claim}, any of {design.looks} looks",
            int(made.sum()),
            trials,
            *allowed,
        )
        for claim, made in (
            ("false equivalent", equivalent),
            ("false worse or better", different),
        )
    ]


def normal_rates(resamples: int, design: Design, rng: np.random.Generator) -> list[Rate]:
    """Returns all rates from normal draws."""
    rates = []
    for count in NORMAL_SEEDS:
        rates += rates_of_one("normal draws", rng.normal(size=(resamples, count)), design)
    looked = Design(alpha=design.alpha, power=design.power, looks=LOOKS)
    most = max(NORMAL_SEEDS)
    rates += rates_of_looks("normal draws", rng.normal(size=(resamples, most)), looked)
    own = rng.normal(size=(resamples, NORMAL_ARMS, RUN_SEEDS[0]))
    common = rng.normal(size=(resamples, 1, RUN_SEEDS[0]))
    gaps = math.sqrt(1.0 - SHARED_VARIANCE) * own + math.sqrt(SHARED_VARIANCE) * common
    return rates + rates_of_many("normal draws", gaps, design)


@dataclass(frozen=True)
class Pool:
    """The gaps of one arm as a population of mean 0 and deviation 1, by seed."""

    label: str
    seeds: tuple[int, ...]
    gaps: Array


def pools_of(summaries: Sequence[GroupSummary]) -> tuple[list[Pool], list[str]]:
    """Returns the arms with enough pairs as pools, and the reasons for excluding others."""
    pools, refused = [], []
    for summary in summaries:
        if summary.group.is_baseline:
            continue
        gaps = np.array(summary.seed_gaps)
        label = summary.group.label
        if not summary.verdict.ordered:
            refused.append(f"{label}: {summary.verdict.sentence}")
        elif gaps.size < LEAST_PAIRS:
            refused.append(f"{label}: {gaps.size} pairs (expected {LEAST_PAIRS} or more)")
        elif float(np.std(gaps)) == 0.0:
            refused.append(f"{label}: its gaps do not differ")
        else:
            seeds = tuple(run.seed for run in summary.group.runs)
            pools.append(Pool(label, seeds, (gaps - gaps.mean()) / np.std(gaps)))
    return pools, refused


def drawn_from(gaps: Array, resamples: int, count: int, rng: np.random.Generator) -> Array:
    """Draws samples (resamples, ..., seeds) along the last axis of `gaps`, with run and baseline
    exchanged at random."""
    rows = rng.integers(gaps.shape[-1], size=(resamples, count))
    signs = rng.choice([-1.0, 1.0], size=(resamples, count))
    return np.asarray(np.moveaxis(gaps[..., rows] * signs, -2, 0))


def run_rates(
    pools: Sequence[Pool], resamples: int, design: Design, rng: np.random.Generator
) -> list[Rate]:
    """Returns all rates from the pairs of runs."""
    rates = []
    looked = Design(alpha=design.alpha, power=design.power, looks=LOOKS)
    for pool in pools:
        for count in RUN_SEEDS:
            drawn = drawn_from(pool.gaps, resamples, count, rng)
            rates += rates_of_one(pool.label, drawn, design)
        rates += rates_of_looks(pool.label, drawn, looked)
    for seeds in dict.fromkeys(pool.seeds for pool in pools):
        together = [pool for pool in pools if pool.seeds == seeds]
        if len(together) > 1:
            gaps = np.stack([pool.gaps for pool in together])
            drawn = drawn_from(gaps, resamples, RUN_SEEDS[0], rng)
            rates += rates_of_many(f"{len(together)} arms together", drawn, design)
    return rates


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; a usage error exits 2 with one line."""
    parser = Parser(
        prog="fp8lab_analysis.planted",
        description="Error rates of verdicts on resampled pairs of runs and on normal draws.",
    )
    parser.add_argument("inputs", nargs="*", type=Path, metavar="DIR|RUN.h5")
    parser.add_resampling(10_000, "the rates")
    options = parser.parse_args(arguments)
    parser.check_resampling(options, 1000)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    options = parse_arguments(sys.argv[1:] if arguments is None else arguments)
    rng = np.random.default_rng(options.seed)
    design, pools, refused = Design(), list[Pool](), list[str]()
    try:
        if options.inputs:
            study = load_study_apart(options.inputs, "")
            design = study.design
            pools, refused = pools_of(summarise(study))
            if not pools:
                raise InputError(f"no arm to draw from; {'; '.join(refused) or 'no arm at all'}")
    except (InputError, ReadFailure) as error:
        complain(f"{error}")
        return 2 if isinstance(error, InputError) else 1
    rates = run_rates(pools, options.resamples, design, rng)
    rates += normal_rates(options.resamples, design, rng)
    for line in refused:
        print(f"not drawn from: {line}")
    for pool in pools:
        skewness = float(np.mean(pool.gaps**3))
        told = f"{pool.gaps.size} pairs, skewness {skewness:+.2f}, {options.resamples} resamples"
        print(f"{pool.label}: {told}")
    for rate in rates:
        print(rate.line())
    outside = sum(not rate.holds for rate in rates)
    print(f"{len(rates)} rates, {outside} outside what is allowed")
    rows = [{**asdict(rate), "rate": rate.rate, "holds": rate.holds} for rate in rates]
    if not write_json(options.json, rows):
        return 1
    return 3 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
