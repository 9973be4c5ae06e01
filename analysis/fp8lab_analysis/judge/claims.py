"""Claims that are stated before an experiment, and their outcome. A claim bounds the true mean over
seeds of a number that each seed has.

A claim is judged by Student's interval of its mean over seeds (`inference.half_width`). The level
is divided among the claims that are judged together (Bonferroni), so that the probability of any
interval without its true mean is at most alpha."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

from fp8lab_analysis.judge import inference
from fp8lab_analysis.judge.stats import Spread, spread_over_seeds

ALPHA = 0.05


class Outcome(enum.Enum):
    """The outcome of a claim."""

    SHOWN = "shown"  # the interval is within the bounds
    REFUTED = "not so"  # the interval is outside the bounds
    OPEN = "open"  # the interval contains a bound, or a seed has no finite number


@dataclass(frozen=True)
class Claim:
    """The claim that `what` has a true mean over seeds from `low` to `high`, in `unit`."""

    what: str
    unit: str = ""
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        if not self.low < self.high or math.isinf(self.low) and math.isinf(self.high):
            raise ValueError(f"'{self.what}': bounds {self.low} to {self.high} claim nothing")

    @property
    def bounds(self) -> str:
        """The bounds in words."""
        unit = f" {self.unit}" if self.unit else ""
        if math.isinf(self.high):
            text = f"at least {self.low:g}{unit}"
        elif math.isinf(self.low):
            text = f"at most {self.high:g}{unit}"
        else:
            text = f"{self.low:g} to {self.high:g}{unit}"
        return text.replace("-", "−")


@dataclass(frozen=True)
class Judged:
    """A claim with its statistics over seeds and its outcome."""

    claim: Claim
    values: tuple[float, ...]  # one per seed
    spread: Spread
    half_width: float  # NaN for one seed, or if a seed has no finite number
    outcome: Outcome


def judge_claims(
    claims: Sequence[Claim], values: Sequence[Sequence[float]], alpha: float = ALPHA
) -> list[Judged]:
    """Judges each claim by the numbers of its seeds, at a joint level of alpha."""
    judged = []
    for claim, numbers in zip(claims, values, strict=True):
        spread = spread_over_seeds(numbers)
        half = math.nan
        if spread.count > 1:
            half = inference.half_width(spread.sd, spread.count, alpha / len(claims))
        low, high = spread.mean - half, spread.mean + half
        outcome = Outcome.OPEN
        if claim.low <= low and high <= claim.high:
            outcome = Outcome.SHOWN
        elif high < claim.low or low > claim.high:
            outcome = Outcome.REFUTED
        judged.append(Judged(claim, tuple(numbers), spread, half, outcome))
    return judged
