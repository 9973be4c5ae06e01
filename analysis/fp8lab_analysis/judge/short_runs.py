"""Whether runs are long enough for a verdict of no harm to mean something."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fp8lab_analysis.judge.phrases import counted
from fp8lab_analysis.read.runs import Run

FEWEST_STEPS = 30
"""Steps of a stage, by choice. A gap that grows with training, such as that of a scale that lags
behind, leaves the noise between steps only after some tens of them: the outliers of the default
study alone take 18 steps to grow. Steps of the warm-up do not count."""

FEWEST_TOKENS = 1.0
"""Tokens per parameter of a training from random weights, by choice: a twentieth of the optimum of
Hoffmann et al., "Training Compute-Optimal Large Language Models" (2022), section 3."""


def stage_length(run: Run, stage: str) -> tuple[int, int]:
    """Returns the steps and the trained tokens of a stage, as far as it is logged."""
    index = run.stage_names.index(stage)
    rows = run.metrics.stage == index
    if not rows.any():
        return 0, 0
    start = int(run.stage_starts[index])
    earlier = run.metrics.tokens[run.metrics.step <= start]
    before = int(earlier[-1]) if earlier.size else 0
    return int(run.metrics.step[rows][-1]) - start, int(run.metrics.tokens[rows][-1]) - before


@dataclass(frozen=True)
class Extent:
    """What a verdict rests on: the shortest of its runs. Zero or NaN: not known."""

    stage: str = ""
    steps: int = 0  # of the stage, as far as they are logged
    warm_up: int = 0  # of these steps, those of rising learning rate
    tokens: int = 0  # trained in the stage
    trained: int = 0  # trained from random weights to the end of the stage; 0: other start
    parameters: float = math.nan

    @property
    def text(self) -> str:
        """Steps and tokens in words; empty if they are not known."""
        if not self.steps:
            return ""
        return f"{counted(self.steps, 'step')} and {_grouped(self.tokens)} tokens of {self.stage}"

    @property
    def caveat(self) -> str:
        """States that the runs are too short for a verdict of no harm; empty if they are not."""
        said = []
        after = self.steps - self.warm_up
        if self.steps and after < FEWEST_STEPS:
            of = f" after {self.warm_up} of warm-up" if self.warm_up else ""
            said.append(
                f"{counted(max(after, 0), 'step')}{of}, a gap may take {FEWEST_STEPS} to show"
            )
        if 0 < self.trained < FEWEST_TOKENS * self.parameters:
            said.append(
                f"{self.trained / self.parameters:.2g} tokens per parameter from random weights"
            )
        return f"short runs: {', '.join(said)}" if said else ""


def extent_of(runs: Sequence[Run], stage: str) -> Extent:
    """Returns the extent of the shortest of `runs` in `stage`."""
    return min(
        (_extent(r, stage) for r in runs if stage in r.stage_names), key=_size, default=Extent()
    )


def _size(extent: Extent) -> tuple[int, int]:
    return extent.steps - extent.warm_up, extent.tokens


def _extent(run: Run, stage: str) -> Extent:
    steps, tokens = stage_length(run, stage)
    try:
        config = tomllib.loads(run.meta.get("config_text", ""))
    except tomllib.TOMLDecodeError:
        config = {}
    stages = config.get("stages", [])
    own: dict[str, Any] = next((one for one in stages if one.get("name") == stage), {})
    rate = own.get("learning_rate", {})
    warm_up = rate.get("warmup_steps", 0)
    rows = run.metrics.stage == run.stage_names.index(stage)
    at_random = bool(stages) and not config.get("init_from")
    trained = int(run.metrics.tokens[rows][-1]) if at_random and rows.any() else 0
    count = float(run.meta.get("parameter_count", "nan"))
    return Extent(stage, steps, min(int(warm_up), steps), tokens, trained, count)


def _grouped(count: int) -> str:
    return f"{count:,}".replace(",", " ")
