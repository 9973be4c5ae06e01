"""Short texts that sentences and tables share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fp8lab_analysis.judge.stats import Spread

MISSING = "–"


def plus_minus(spread: Spread, form: str = "{:.4f}", sign: bool = False) -> str:
    """Returns "mean ± sd", only the mean for one seed, or a dash if undefined."""
    if not math.isfinite(spread.mean):
        return MISSING
    shown = (form.replace(":", ":+") if sign else form).format(spread.mean)
    if math.isfinite(spread.sd):
        shown += f" ± {form.format(spread.sd)}"
    return shown.replace("-", "−")


def counted(number: int, noun: str) -> str:
    """ "1 arm", "2 arms"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def joined(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    items = list(names)
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"
