"""A held-out gap split in two: what the arithmetic of the evaluation costs, and what training in it
did to the weights.

After a stage that quantizes, a run takes its held-out loss once more in bf16 (`loss_in_bf16` of
/scores). With the baseline's loss b of the same seed, the gap (l - b) / b is the sum of
(l - w) / b, the arithmetic, and (w - b) / b, the weights; w is the loss in bf16."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fp8lab_analysis import stats
from fp8lab_analysis.compare import GroupSummary, final_scores, held_out_pair
from fp8lab_analysis.sentences import Finding
from fp8lab_analysis.study import Study

LOSS_IN_BF16 = "loss_in_bf16"  # kLossInBf16 of src/io/run_log.hpp


@dataclass(frozen=True)
class WeightsGap:
    """One recipe after one stage; fractions of the baseline's loss, over seeds."""

    label: str
    stage: str
    arithmetic: stats.Spread
    weights: stats.Spread


def weights_gaps(study: Study, summaries: Sequence[GroupSummary]) -> list[WeightsGap]:
    """Of every recipe and stage that has both losses, but for diverged runs."""
    found = []
    for summary in summaries:
        if summary.group.is_baseline:
            continue
        for stage in study.stages:
            arithmetic, weights = [], []
            for item in summary.runs:
                score = final_scores(item.run, stage).get(LOSS_IN_BF16)
                pair = held_out_pair(item.run, study.pairings.of(item.run), stage)
                if score is None or pair is None or item.diverged:
                    continue
                loss, baseline = pair
                if not (math.isfinite(score.value) and math.isfinite(loss) and baseline > 0):
                    continue
                arithmetic.append((loss - score.value) / baseline)
                weights.append((score.value - baseline) / baseline)
            if weights:
                spreads = stats.spread_over_seeds(arithmetic), stats.spread_over_seeds(weights)
                found.append(WeightsGap(summary.group.label, stage, *spreads))
    return found


def weights_findings(study: Study, summaries: Sequence[GroupSummary]) -> list[Finding]:
    """One sentence on the last stage that has both."""
    gaps = weights_gaps(study, summaries)
    if not gaps:
        return []
    last = gaps[-1].stage
    parts = [
        f"{gap.label} {100 * (gap.arithmetic.mean + gap.weights.mean):+.2f} % = "
        f"{100 * gap.weights.mean:+.2f} % weights {100 * gap.arithmetic.mean:+.2f} % arithmetic"
        for gap in gaps
        if gap.stage == last
    ]
    text = (
        f"Held-out gap after {last}, split by evaluating the weights in bf16: {'; '.join(parts)}."
    )
    return [Finding("fact", "Arithmetic or weights", text)]
