"""Splits a held-out gap into two parts: the cost of the arithmetic in the evaluation, and the
effect of training in it on the weights.

After a stage that quantizes, a run evaluates its held-out loss once more in bf16 (`loss_in_bf16` of
/scores). Let l be the run's loss, w its loss in bf16 and b the baseline's loss of the same seed.
The gap (l - b) / b is the sum of the arithmetic's part (l - w) / b and the weights' part (w - b) /
b. If runs store losses by document, each part has an interval over other texts of such
documents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fp8lab_analysis.judge import stats
from fp8lab_analysis.judge.compare import GroupSummary, final_scores, held_out_pair
from fp8lab_analysis.judge.document_pairs import noise_of_parts_after
from fp8lab_analysis.judge.text_noise import ALPHA, TextNoise
from fp8lab_analysis.page.finding import Finding
from fp8lab_analysis.read.study import Study

LOSS_IN_BF16 = "loss_in_bf16"  # kLossInBf16 of src/io/hdf5/run_log.hpp


@dataclass(frozen=True)
class WeightsGap:
    """The two parts for one recipe after one stage: fractions of the baseline's loss, over
    seeds."""

    label: str
    stage: str
    arithmetic: stats.Spread
    weights: stats.Spread
    texts: tuple[TextNoise, TextNoise]  # noise of the held-out text in arithmetic and weights

    @property
    def text(self) -> str:
        """Both parts in percent."""

        def part(spread: stats.Spread, text: TextNoise) -> str:
            half = text.half_width(ALPHA)
            shown = f"{100 * spread.mean:+.2f} %"
            return shown + (f" ± {100 * half:.2f} %" if math.isfinite(half) else "")

        return (
            f"{part(self.weights, self.texts[1])} weights "
            f"{part(self.arithmetic, self.texts[0])} arithmetic"
        )


def weights_gaps(study: Study, summaries: Sequence[GroupSummary]) -> list[WeightsGap]:
    """Returns the parts for every recipe and stage with both losses, except diverged runs."""
    found = []
    for summary in summaries:
        if summary.group.is_baseline:
            continue
        for stage in study.stages:
            arithmetic, weights, pairs = [], [], []
            for item in summary.runs:
                score = final_scores(item.run, stage).get(LOSS_IN_BF16)
                twin = study.pairings.of(item.run)
                pair = held_out_pair(item.run, twin, stage)
                if score is None or pair is None or twin is None or item.diverged:
                    continue
                loss, baseline = pair
                if not (math.isfinite(score.value) and math.isfinite(loss) and baseline > 0):
                    continue
                arithmetic.append((loss - score.value) / baseline)
                weights.append((score.value - baseline) / baseline)
                pairs.append((item.run, twin))
            if weights:
                spreads = stats.spread_over_seeds(arithmetic), stats.spread_over_seeds(weights)
                texts = noise_of_parts_after(pairs, stage)
                found.append(WeightsGap(summary.group.label, stage, *spreads, texts))
    return found


def weights_findings(study: Study, summaries: Sequence[GroupSummary]) -> list[Finding]:
    """Returns one sentence about the last stage that has both losses."""
    gaps = weights_gaps(study, summaries)
    if not gaps:
        return []
    last = gaps[-1].stage
    parts = [
        f"{gap.label} {100 * (gap.arithmetic.mean + gap.weights.mean):+.2f} % = {gap.text}"
        for gap in gaps
        if gap.stage == last
    ]
    text = (
        f"Held-out gap after {last}, split by evaluating the weights in bf16: {'; '.join(parts)}."
    )
    if any(text.is_known for gap in gaps for text in gap.texts if gap.stage == last):
        text += " ± is of 95 % over documents of the held-out text."
    return [Finding("fact", "Arithmetic or weights", text)]
