"""Numbers from the facts of `fp8lab assess`: gaps between recipes on the same tokens, with
intervals.

`sums[r, d]` is the sum of the losses of document d under recipe r in nats, `tokens[d]` its number
of tokens. A gap is the fraction (loss - baseline) / baseline on the same tokens. Intervals are over
documents (text_noise.py)."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fp8lab_analysis.judge.stats import Array
from fp8lab_analysis.judge.text_noise import (
    ALPHA,
    LEAST_DOCUMENTS,
    Estimate,
    clustered_ratio,
    few_documents,
)

NAT_DIGITS = 4
AS_IT_IS = "as it is"  # words of the unchanged recipe


def holm(p_values: Sequence[float], alpha: float = ALPHA) -> list[bool]:
    """Returns for each hypothesis whether it is rejected, with a family-wise error of at most
    `alpha` (Holm, Scandinavian Journal of Statistics 6 (1979) 65-70)."""
    rejected = [False] * len(p_values)
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    for rank, i in enumerate(order):
        if not p_values[i] <= alpha / (len(order) - rank):
            break
        rejected[i] = True
    return rejected


@dataclass(frozen=True)
class RecipeCost:
    """One recipe compared with the baseline."""

    name: str
    loss: float  # nats per token
    gap: Estimate  # fraction of the baseline's loss
    nats: float  # loss minus the baseline's loss
    same_forward_as: str  # a recipe with the same forward pass, or empty
    like: tuple[str, ...]  # recipes with losses that are not significantly different
    remarks: tuple[str, ...] = ()
    gradient_error: float = math.nan  # |g - g0| / |g0|; g0: the baseline's gradient
    gradient_cosine: float = math.nan


@dataclass(frozen=True)
class MapEntry:
    """The gap with only one layer in the recipe, relative to the baseline's loss."""

    layer: str
    both: Estimate
    x: Estimate | None
    w: Estimate | None


@dataclass(frozen=True)
class SensitivityMap:
    """The gap of one recipe by layer and operand."""

    recipe: str
    sequences: int
    whole: Estimate
    layers: tuple[MapEntry, ...]
    noise: float  # deviation of the baseline's loss over minimal changes of one layer
    documents: int  # number of documents in the sequences

    @property
    def noise_sentence(self) -> str:
        """States the gap that a layer must add to exceed the noise of rounding."""
        if not math.isfinite(self.noise):
            return ""
        above = sum(abs(entry.both.value) > 2 * self.noise for entry in self.layers)
        return (
            f"A layer that moves by one unit in the last place already moves the loss by "
            f"{100 * self.noise:.3f} %; {above} of {len(self.layers)} layers add or take twice "
            "that or more."
        )

    @property
    def additive(self) -> float:
        """Sum of the gaps of single layers."""
        return sum(entry.both.value for entry in self.layers)

    @property
    def remainder(self) -> float:
        """The recipe's gap minus that sum."""
        return self.whole.value - self.additive

    def largest(self, count: int) -> list[MapEntry]:
        """Returns the layers with the largest gaps, in descending order."""
        return sorted(self.layers, key=lambda entry: -entry.both.value)[:count]


@dataclass(frozen=True)
class Tried:
    """A change of the recipe that was run on the sequences of the map."""

    words: str  # description of the change
    gap: float  # fraction of the baseline's loss, without an interval; NaN: the loss is not finite
    layers: int  # number of linear layers in the baseline's format
    seconds: float  # GEMM time of a step on the rated GPU; NaN: unknown
    time: float  # `seconds` relative to the unchanged recipe, (t - t0) / t0; NaN: unknown


@dataclass(frozen=True)
class Suggestion:
    """The changes of the mapped recipe that were tried to bring it under a margin."""

    recipe: str
    margin: float  # fraction of the baseline's loss
    card: str
    tokens: int  # number of tokens in the timed step
    tried: tuple[Tried, ...]  # in the order of their runs
    chosen: int | None  # index in `tried`; None: no change reaches the margin

    @classmethod
    def of(cls, facts: Mapping[str, Any], recipe: str) -> Suggestion:
        """Creates it from the facts of a file. Raises ValueError if the choice was not tried."""
        rows, chosen = facts["tried"], facts["chosen"]
        if chosen is not None and not 0 <= chosen < len(rows):
            raise ValueError(f"suggestion: chosen {chosen} of {len(rows)} that were tried")
        first = next(
            (_number(row["seconds"]) for row in rows if row["words"] == AS_IT_IS), math.nan
        )
        tried = tuple(
            Tried(
                row["words"],
                _number(row["gap"]),
                row["layers"],
                _number(row["seconds"]),
                _number(row["seconds"]) / first - 1.0 if first > 0.0 else math.nan,
            )
            for row in rows
        )
        return cls(recipe, facts["margin"], facts["card"], facts["tokens"], tried, chosen)

    @property
    def sentence(self) -> str:
        """States the change to make, or that no tried change is sufficient."""
        margin = f"the margin of {100 * self.margin:g} %"
        if self.chosen is not None:
            best = self.tried[self.chosen]
            if best.words == AS_IT_IS:
                return f"{self._named(best)} costs {signed(best.gap)}, under {margin}."
            cost = f"at {signed(best.time, 1)} of the products' time on an {self.card}"
            if math.isnan(best.time):
                cost = f"at a time on an {self.card} that is not known"
            return (
                f"{self._named(best)} costs {signed(best.gap)}, under {margin}, "
                f"{cost}: suggested.toml."
            )
        finite = [tried for tried in self.tried if math.isfinite(tried.gap)]
        text = f"No change that was tried brings {self.recipe} under {margin}"
        if not finite:
            return f"{text}: no loss of theirs is finite."
        nearest = min(finite, key=lambda tried: tried.gap)
        return f"{text}; nearest: {self._named(nearest)}, {signed(nearest.gap)}."

    def _named(self, tried: Tried) -> str:
        """Names the recipe and its change."""
        if tried.words == AS_IT_IS:
            return f"{self.recipe} {AS_IT_IS}"
        return f"{self.recipe} with {tried.words}"


class Assessment:
    """The statistics of one `facts.json`."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.facts = facts
        self.tokens = np.asarray([item[2] for item in facts["documents"]], dtype=np.float64)
        rows = facts["recipes"]
        self.names = [row["name"] for row in rows]
        self.sums = np.asarray(
            [[math.nan if x is None else x for x in row["sums"]] for row in rows], np.float64
        )
        self.baseline = self.names[0]
        self.costs = self._costs(rows)
        self.map = self._map(facts["map"]) if "map" in facts else None
        self.suggestion: Suggestion | None = None
        if "suggestion" in facts:
            self.suggestion = Suggestion.of(facts["suggestion"], facts["map"]["recipe"])

    @classmethod
    def read(cls, path: Path) -> Assessment:
        """Reads a file that fp8lab wrote."""
        return cls(json.loads(path.read_text(encoding="utf-8")))

    def gap(self, one: int, other: int) -> Estimate:
        """Returns (loss of `one` - loss of `other`) / loss of the baseline."""
        return clustered_ratio(self.sums[one] - self.sums[other], self.sums[0])

    def _costs(self, rows: Sequence[Mapping[str, Any]]) -> list[RecipeCost]:
        unlike = self._told_apart(rows)
        gradients = {
            item["recipe"]: item for item in self.facts.get("gradients", {}).get("recipes", [])
        }
        total = float(np.sum(self.tokens))
        costs = []
        for i, row in enumerate(rows):
            gradient = gradients.get(row["name"], {})
            costs.append(
                RecipeCost(
                    row["name"],
                    _sum(self.sums[i]) / total,
                    self.gap(i, 0),
                    _sum(self.sums[i] - self.sums[0]) / total,
                    row.get("same_forward_as", ""),
                    tuple(
                        name
                        for j, name in enumerate(self.names)
                        if j != i and (min(i, j), max(i, j)) not in unlike
                    ),
                    tuple(row.get("remarks", ())),
                    _number(gradient.get("error")),
                    _number(gradient.get("cosine")),
                )
            )
        return costs

    def _told_apart(self, rows: Sequence[Mapping[str, Any]]) -> set[tuple[int, int]]:
        """Returns the pairs of recipes with significantly different losses, corrected for the
        number of pairs. A loss that is not finite differs from every other."""
        finite = np.isfinite(self.sums).all(axis=1)
        distinct = [i for i, row in enumerate(rows) if not row.get("same_forward_as") and finite[i]]
        twin = {
            i: self.names.index(row["same_forward_as"]) if row.get("same_forward_as") else i
            for i, row in enumerate(rows)
        }
        pairs = list(itertools.combinations(distinct, 2))
        found = holm([_or_one(self.gap(i, j).p) for i, j in pairs])
        differing = {pair for pair, is_found in zip(pairs, found) if is_found}
        return {
            (i, j)
            for i, j in itertools.combinations(range(len(rows)), 2)
            if (min(twin[i], twin[j]), max(twin[i], twin[j])) in differing
            or not (finite[i] and finite[j])
        }

    def _map(self, facts: Mapping[str, Any]) -> SensitivityMap:
        taken = [facts["baseline"], *facts["replicates"]]  # with minimal changes
        sums = np.asarray(taken, np.float64)
        baseline = sums.mean(axis=0)
        total = _sum(baseline)
        noise = math.nan
        if len(taken) > 1 and total != 0.0 and math.isfinite(total):
            noise = float(np.std(sums.sum(axis=1) / total, ddof=1))

        def added(sums: Sequence[float]) -> Estimate:
            return clustered_ratio(np.asarray(sums, np.float64) - baseline, baseline)

        layers = tuple(
            MapEntry(
                item["layer"],
                added(item["both"]),
                added(item["x"]) if "x" in item else None,
                added(item["w"]) if "w" in item else None,
            )
            for item in facts["layers"]
        )
        return SensitivityMap(
            facts["recipe"],
            facts["sequences"],
            added(facts["whole"]),
            layers,
            noise,
            baseline.size,
        )

    # --- sentences ------------------------------------------------------------------------------

    def ordered(self) -> list[RecipeCost]:
        """Returns the baseline, then the others by ascending gap; non-finite losses last."""
        rest = sorted(
            self.costs[1:],
            key=lambda cost: cost.gap.value if math.isfinite(cost.gap.value) else math.inf,
        )
        return [self.costs[0], *rest]

    def answer(self) -> list[str]:
        """Returns the sentences of the first screen."""
        rest = [cost for cost in self.ordered()[1:] if math.isfinite(cost.gap.value)]
        lines = []
        base = self.costs[0].loss
        if not math.isfinite(base) or base == 0.0:
            wrong = "0" if base == 0.0 else "not finite"
            lines.append(
                f"The loss of {self.baseline}, the baseline, is {wrong}: there are no gaps."
            )
        for cost in self.costs[1:]:
            if not math.isfinite(cost.loss):
                lines.append(f"{cost.name}: the loss is not finite.")
        if not rest:
            return lines or ["No recipe was named beside the baseline."]
        least, most = rest[0], rest[-1]
        few = f" ({said})" if (said := few_documents(self.tokens.size)) else ""
        lines.insert(
            0,
            f"{least.name} costs the least{few}: {percent(least.gap)} of the loss of "
            f"{self.baseline} ({self.costs[0].loss:.{NAT_DIGITS}f} nats a token).",
        )
        if most is not least:
            lines.append(f"{most.name} costs the most{few}: {percent(most.gap)}.")
        like = [name for name in least.like if name != self.baseline]
        if like:
            lines.append(f"Not told apart from {least.name}{few}: {', '.join(like)}.")
        if self.baseline in least.like:
            lines.append(f"{least.name} is not told apart from {self.baseline}{few}.")
        if not least.gap.is_known:
            lines.append(
                f"There are no intervals: {self.facts['sequences']} sequences of "
                f"{self.facts['sequence_length']} tokens reach {self.tokens.size} documents, and "
                f"at least {LEAST_DOCUMENTS} are needed. Give more --sequences or more documents, "
                f"not longer ones."
            )
        on = ""
        if self.map is not None:
            if self.map.sequences != self.facts["sequences"]:
                on = f"On {self.map.sequences} of the {self.facts['sequences']} sequences: "
            lines.append(on + self.map_sentence(self.map))
        if self.suggestion is not None:
            lines.append(on + self.suggestion.sentence)
        return lines

    def map_sentence(self, found: SensitivityMap) -> str:
        """States which layers cause the gap."""
        few = f" ({said})" if (said := few_documents(found.documents)) else ""
        top = found.largest(3)
        parts = ", ".join(f"{entry.layer} ({percent(entry.both)})" for entry in top)
        return (
            f"Under {found.recipe} most is added{few} by {parts}. The layers one by one add "
            f"{100 * found.additive:+.2f} %, all together {percent(found.whole)}; the remainder is "
            f"{100 * found.remainder:+.2f} %. {found.noise_sentence}"
        )

    def outlier_sentences(self) -> list[str]:
        """Describes outliers in the activations."""
        outliers = self.facts["outliers"]
        lines = []
        inputs = [item for item in outliers["inputs"] if item["median"] > 0]
        if inputs:
            worst = max(inputs, key=lambda item: float(item["amax"] / item["median"]))
            lines.append(
                f"Massive activation: the input of {worst['layer']} reaches {worst['amax']:.4g}, "
                f"{worst['amax'] / worst['median']:.3g} times its median, at token "
                f"{token_text(worst['token'])}, channel {worst['channel']}."
            )
            channel = max(inputs, key=lambda item: float(item["channel_ratio"]))
            lines.append(
                f"Outlier channel: in the input of {channel['layer']} channel {channel['channel']} "
                f"reaches {channel['channel_ratio']:.3g} times the median channel."
            )
        sinks = outliers["sinks"]
        if sinks:
            layer = max(range(len(sinks)), key=lambda i: float(sinks[i]["share"]))
            lines.append(
                f"Attention sink: in layer {layer} queries give "
                f"{100 * sinks[layer]['share']:.0f} % of their weight to token "
                f"{token_text(sinks[layer]['token'])}."
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """Returns the answer as JSON."""
        result: dict[str, Any] = {
            "model": self.facts["model"],
            "baseline": self.baseline,
            "tokens": int(np.sum(self.tokens)),
            "documents": int(self.tokens.size),
            "alpha": ALPHA,
            "answer": self.answer(),
            "outliers": self.outlier_sentences(),
            "recipes": [
                {
                    "name": cost.name,
                    "loss": _json(cost.loss),
                    "gap": _estimate_json(cost.gap),
                    "gap_nats": _json(cost.nats),
                    "same_forward_as": cost.same_forward_as or None,
                    "not_told_apart_from": list(cost.like),
                    "gradient_error": _json(cost.gradient_error),
                    "gradient_cosine": _json(cost.gradient_cosine),
                    "remarks": list(cost.remarks),
                }
                for cost in self.costs
            ],
        }
        if self.map is not None:
            result["map"] = {
                "recipe": self.map.recipe,
                "whole": _estimate_json(self.map.whole),
                "additive": _json(self.map.additive),
                "remainder": _json(self.map.remainder),
                "layers": [
                    {
                        "layer": entry.layer,
                        "both": _estimate_json(entry.both),
                        "x": _estimate_json(entry.x) if entry.x else None,
                        "w": _estimate_json(entry.w) if entry.w else None,
                    }
                    for entry in self.map.layers
                ],
            }
        if self.suggestion is not None:
            result["suggestion"] = {
                "recipe": self.suggestion.recipe,
                "margin": self.suggestion.margin,
                "card": self.suggestion.card,
                "tokens": self.suggestion.tokens,
                "sentence": self.suggestion.sentence,
                "chosen": self.suggestion.chosen,
                "tried": [
                    {
                        "words": tried.words,
                        "gap": _json(tried.gap),
                        "layers": tried.layers,
                        "seconds": _json(tried.seconds),
                        "time": _json(tried.time),
                    }
                    for tried in self.suggestion.tried
                ],
            }
        return result


def signed(fraction: float, digits: int = 2) -> str:
    """ "+0.31 %" """
    return f"{100 * fraction:+.{digits}f} %"


def percent(estimate: Estimate) -> str:
    """ "+1.19 ± 0.07 %" """
    if not estimate.is_known:
        return f"{100 * estimate.value:+.2f} %"
    return f"{100 * estimate.value:+.2f} ± {100 * estimate.half:.2f} %"


def token_text(token: Mapping[str, Any]) -> str:
    """Returns a token's text, else its id, and its position."""
    name = json.dumps(token["text"], ensure_ascii=False) if token["text"] else f"id {token['id']}"
    return f"{name} (place {token['position']} of its document)"


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _sum(values: Array) -> float:
    """Returns the sum; infinity beyond FP64, which is reported as a loss that is not finite."""
    with np.errstate(over="ignore"):
        return float(np.sum(values))


def _or_one(p: float) -> float:
    return 1.0 if math.isnan(p) else p


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _estimate_json(estimate: Estimate) -> dict[str, float | None]:
    return {
        "value": _json(estimate.value),
        "half_width": _json(estimate.half),
        "p": _json(estimate.p),
    }
