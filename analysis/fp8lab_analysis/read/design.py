"""The design of a study: what is stated before its first run, and what its reports promise."""

from __future__ import annotations

from dataclasses import dataclass

MOST_LOOKS = 50


@dataclass(frozen=True)
class Design:
    """The design that a study states beforehand. The defaults apply if it states none."""

    margin: float = 0.005  # fraction of the baseline's loss
    alpha: float = 0.05  # probability of a false claim, over all arms and looks
    power: float = 0.9
    looks: int = 1  # number of times that the study is judged
    stated: str = ""  # UTC; empty: not stated beforehand

    def problem(self) -> str:
        """Returns the fault of the design; empty if it is usable."""
        if not 0.0 < self.margin < 1.0:
            return f"margin {self.margin} is no fraction between 0 and 1"
        if not 1e-6 <= self.alpha <= 0.25:
            return f"alpha {self.alpha} is not between 1e-6 and 0.25"
        if not 0.5 <= self.power <= 0.999:
            return f"power {self.power} is not between 0.5 and 0.999"
        if not 1 <= self.looks <= MOST_LOOKS:
            return f"looks {self.looks} is not between 1 and {MOST_LOOKS}"
        return ""

    @property
    def margin_text(self) -> str:
        """The margin in percent."""
        return f"{100.0 * self.margin:g} %"

    @property
    def confidence_text(self) -> str:
        """1 - alpha in percent."""
        return f"{100.0 * (1.0 - self.alpha):g} %"
