"""What the experiments on tensors share: seeds, judged claims, a table, a figure and the page."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator
from numpy.typing import NDArray

import fp8lab
from fp8lab_analysis.draw import style
from fp8lab_analysis.judge import inference
from fp8lab_analysis.judge.claims import ALPHA, Claim, Judged, judge_claims
from fp8lab_analysis.judge.stats import Spread, spread_over_seeds
from fp8lab_analysis.page.cells import Cell
from fp8lab_analysis.page.result_page import (
    Page,
    arithmetic_of,
    claims_table,
    markdown_table,
    shown,
    write_page,
)

RESULTS = Path(__file__).resolve().parents[1] / "results"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#332288")
MARKERS = ("s", "^", "D", "P", "v", "X", "h", "<")

Place = float | str
Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Quantity:
    """Something measured, as one panel of the figure."""

    name: str
    unit: str = ""
    log: bool = False
    axis: str = ""  # the other one; empty: that of the experiment

    @property
    def header(self) -> str:
        """Name with unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


class Values:
    """The numbers of one seed, by quantity, series and place along the other axis."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[str, str, Place], float] = {}

    def put(self, quantity: str, series: str, place: Place, value: float) -> None:
        """Adds a number; each is measured once."""
        key = (quantity, series, place)
        if key in self.numbers:
            raise ValueError(f"measured twice: {key}")
        self.numbers[key] = float(value)

    def get(self, quantity: str, series: str, place: Place) -> float:
        """One number."""
        return self.numbers[quantity, series, place]

    def line(self, quantity: str, series: str) -> tuple[list[float], list[float]]:
        """Places and numbers of one series, in the order measured."""
        found = [(k[2], v) for k, v in self.numbers.items() if k[:2] == (quantity, series)]
        return [float(place) for place, _ in found], [value for _, value in found]


@dataclass(frozen=True)
class Stated:
    """A claim and the number of a seed that it is about."""

    claim: Claim
    of: Callable[[Values], float]


@dataclass(frozen=True)
class Experiment:
    """An experiment on tensors. `stated` and the claims are written before the result, `remarks`
    after it."""

    name: str
    title: str
    stated: str
    seeds: int
    measure: Callable[[int], Values]
    quantities: Sequence[Quantity]
    axis: str  # the other axis of a panel
    claims: Sequence[Stated]
    caption: str
    remarks: str = ""
    log_axis: bool = False
    computed: str = "The emulator on a CPU, whose bits no machine changes"


@dataclass(frozen=True)
class Outcome:
    """What an experiment gave."""

    judged: Sequence[Judged]
    spreads: Mapping[tuple[str, str, Place], Spread]
    seconds: float


def half_width(spread: Spread) -> float:
    """Half width of the 95 % interval of a mean over seeds."""
    return inference.half_width(spread.sd, spread.count, ALPHA)


def run(experiment: Experiment, seeds: int) -> Outcome:
    """Measures seeds 1 to `seeds` and judges the claims."""
    started = time.monotonic()
    measured = [experiment.measure(seed) for seed in range(1, seeds + 1)]
    claimed = [[stated.of(values) for values in measured] for stated in experiment.claims]
    judged = judge_claims([stated.claim for stated in experiment.claims], claimed)
    spreads = {
        key: spread_over_seeds([values.numbers[key] for values in measured])
        for key in measured[0].numbers
    }
    return Outcome(judged, spreads, time.monotonic() - started)


def _rows(experiment: Experiment, outcome: Outcome) -> list[list[Cell]]:
    rows: list[list[Cell]] = [["quantity", "series", "axis", "place", "mean", "± 95 %", "seeds"]]
    known = {quantity.name: quantity for quantity in experiment.quantities}
    for (name, series, place), spread in outcome.spreads.items():
        quantity, numbers = known[name], [spread.mean, half_width(spread), spread.count]
        axis = quantity.axis or experiment.axis
        rows.append([quantity.header, series, axis, place, *numbers])
    return rows


def _table(quantity: Quantity, usual_axis: str, outcome: Outcome) -> str:
    """One quantity: series across, places down."""
    keys = [key for key in outcome.spreads if key[0] == quantity.name]
    series = list(dict.fromkeys(key[1] for key in keys))
    places = list(dict.fromkeys(key[2] for key in keys))
    rows = []
    for place in places:
        row = [f"{place:g}" if isinstance(place, float) else str(place)]
        for one in series:
            spread = outcome.spreads.get((quantity.name, one, place))
            row.append("" if spread is None else shown(spread.mean, half_width(spread)))
        rows.append(row)
    return f"{quantity.header}:\n\n" + markdown_table([quantity.axis or usual_axis, *series], rows)


def _figure(experiment: Experiment, outcome: Outcome) -> Figure:
    count = len(experiment.quantities)
    across = min(count, 3)
    down = -(-count // across)
    figure = Figure(figsize=(4.4 * across + 0.6, 3.4 * down), layout="constrained")
    for number, quantity in enumerate(experiment.quantities):
        axes = figure.add_subplot(down, across, number + 1)
        keys = [key for key in outcome.spreads if key[0] == quantity.name]
        places = list(dict.fromkeys(key[2] for key in keys))
        named = any(isinstance(place, str) for place in places)
        for index, series in enumerate(dict.fromkeys(key[1] for key in keys)):
            mine = [key for key in keys if key[1] == series]
            along = [float(places.index(k[2])) if named else float(k[2]) for k in mine]
            spreads = [outcome.spreads[key] for key in mine]
            axes.errorbar(
                along,
                [spread.mean for spread in spreads],
                yerr=[half_width(spread) for spread in spreads],
                label=series,
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index % len(MARKERS)],
                linestyle="none" if named else "-",
                markersize=4.5,
                capsize=2,
            )
        axes.set_title(quantity.header)
        if named:
            axes.set_xticks(range(len(places)), [str(place) for place in places])
            axes.set_xlim(-0.5, len(places) - 0.5)
        else:
            axes.set_xlabel(quantity.axis or experiment.axis)
        if quantity.log:
            axes.set_yscale("log")
        if experiment.log_axis and not named:
            axes.set_xscale("log")
            axes.set_xticks(places, [f"{place:g}" for place in places])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.legend(fontsize=7)
    return figure


def page_of(experiment: Experiment, outcome: Outcome, seeds: int, command: str) -> Page:
    """The page of a result."""
    with matplotlib.rc_context(style.RC):
        figure = _figure(experiment, outcome)
    tables = [_table(q, experiment.axis, outcome) for q in experiment.quantities]
    together = f"the {len(experiment.claims)} claims together" if experiment.claims else "no claim"
    return Page(
        title=experiment.title,
        stated=experiment.stated,
        results=[claims_table(outcome.judged), *tables],
        figure=figure,
        caption=experiment.caption,
        arithmetic=arithmetic_of(fp8lab.__version__),
        remarks=experiment.remarks,
        made=f"""
```sh
PYTHONPATH=build/PRESET/python:analysis {command}
```

{experiment.computed}; fp8lab {fp8lab.__version__}. Seeds 1 to
{seeds}. Errors are taken in FP64. Intervals are Student's over seeds: those of the claims of 95 %
for {together} (Bonferroni), all others of 95 % each.
""",
        tables={"values": _rows(experiment, outcome)},
    )


def main(experiment: Experiment) -> None:
    """The command line of an experiment."""
    parser = argparse.ArgumentParser(description=experiment.title)
    parser.add_argument("--seeds", type=int, default=experiment.seeds, help="at least 2")
    parser.add_argument("--out", type=Path, default=RESULTS / experiment.name)
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error("--seeds: an interval takes at least 2")
    outcome = run(experiment, options.seeds)
    command = f"python3 experiments/tensors/{Path(sys.argv[0]).name}"
    if options.seeds != experiment.seeds:
        command += f" --seeds {options.seeds}"
    page = write_page(page_of(experiment, outcome, options.seeds, command), options.out)
    for judged in outcome.judged:
        seen = shown(judged.spread.mean, judged.half_width)
        print(f"{judged.outcome.value:8} {judged.claim.what}: {seen} ({judged.claim.bounds})")
    print(f"{page}, {outcome.seconds:.0f} s")


# --- errors ---------------------------------------------------------------------------------------


def decoded(x: Matrix, words: str, seed: int = 0) -> NDArray[np.float64]:
    """x as its quantizer leaves it, transforms undone."""
    q = fp8lab.quantize(x, words, seed=seed, statistics=False)
    return fp8lab.dequantize(q.codes, q.scales, words).astype(np.float64)


def product(a: Matrix, b: Matrix) -> NDArray[np.float64]:
    """A B^T in FP64."""
    return a.astype(np.float64) @ b.astype(np.float64).T


def relative_error(seen: NDArray[Any], exact: NDArray[Any]) -> float:
    """Of the 2-norm."""
    return float(np.linalg.norm(seen - exact) / np.linalg.norm(exact))


def sqnr_db(seen: NDArray[Any], exact: NDArray[Any]) -> float:
    """Signal over noise, dB."""
    return -20.0 * math.log10(relative_error(seen, exact))


def statistic(x: Matrix, words: str, name: str, seed: int = 0) -> float:
    """One number of the quantizer's own statistics."""
    statistics = fp8lab.quantize(x, words, seed=seed).statistics
    assert statistics is not None
    return float(statistics[name])


def cosine(seen: NDArray[Any], exact: NDArray[Any]) -> float:
    """Of all elements."""
    a, b = seen.ravel().astype(np.float64), exact.ravel().astype(np.float64)
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def normal(rng: np.random.Generator, rows: int, columns: int) -> Matrix:
    """Standard normal FP32."""
    return rng.normal(size=(rows, columns)).astype(np.float32)
