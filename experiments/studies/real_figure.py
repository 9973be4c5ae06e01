"""The figure of the studies of a published checkpoint, from the losses of real_summary.py.

PYTHONPATH=analysis:src/python python3 experiments/studies/real_figure.py \
    experiments/results/real_checkpoint/losses.csv \
    --out experiments/results/real_checkpoint/figure.png

One panel a stage of real_10m. Dots are gaps to bf16 of the same seed, bars the intervals that
decide the verdicts (real_verdicts.py), small crosses the gaps of the same weights evaluated in
bf16, the grey band the margin. An arm beyond the axis is a number at its end.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from fp8lab_analysis.draw.style import BAND, INK, MUTED, RC
from real_verdicts import (
    MARGIN,
    SFT_ALONE,
    Losses,
    evidence,
    read_losses,
    verdicts,
    without_copies,
)

BASELINE = "bf16"
LARGEST = 2.2  # % of the loss
TITLES = {"cpt": "after CPT", "sft": "after SFT"}


def gaps_of(own: dict[int, float], baseline: dict[int, float]) -> list[float]:
    """In % of the loss, by seed."""
    return [100.0 * gap for gap in evidence(own, baseline).gaps]


def draw_stage(axes: Axes, losses: Losses, in_bf16: Losses, stage: str) -> None:
    """One row an arm, the smallest gap at the top."""
    found = verdicts(losses, BASELINE)
    margin = 100.0 * MARGIN.margin
    axes.axvspan(-margin, margin, color=BAND, alpha=0.6, linewidth=0)
    axes.axvline(0.0, color=MUTED, linewidth=0.8)
    for row, (arm, verdict) in enumerate(found.items()):
        mean, half = 100.0 * verdict.gap.mean, 100.0 * verdict.half_width
        if mean > LARGEST:
            text = f"+{mean:.1f} ± {half:.1f} →"
            axes.text(LARGEST, row, text, ha="right", va="center", fontsize=7.5, color=INK)
            continue
        axes.plot([mean - half, mean + half], [row, row], color=INK, linewidth=1.6)
        gaps = gaps_of(losses[arm], losses[BASELINE])
        axes.plot(gaps, [row] * len(gaps), "o", color="#0072B2", markersize=3.2, alpha=0.8)
        if arm in in_bf16:
            weights = gaps_of(in_bf16[arm], losses[BASELINE])
            row_below = [row + 0.28] * len(weights)
            axes.plot(weights, row_below, "x", color="#D55E00", markersize=3.2)
    axes.set_yticks(range(len(found)), list(found))
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_xlim(-margin - 0.1, LARGEST)
    axes.set_title(TITLES[stage])
    axes.set_xlabel("gap to bf16 of the same seed, % of the held-out loss")


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("losses", type=Path, metavar="losses.csv")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.png")
    options = parser.parse_args(arguments)
    matplotlib.use("Agg")
    with plt.rc_context(RC):
        figure, panels = plt.subplots(1, len(TITLES), figsize=(10.0, 4.2), layout="constrained")
        for axes, stage in zip(panels, TITLES):
            losses = without_copies(read_losses(options.losses, stage)[""])
            if stage == "cpt":
                losses = {arm: own for arm, own in losses.items() if arm not in SFT_ALONE}
            draw_stage(axes, losses, read_losses(options.losses, stage, "loss_in_bf16")[""], stage)
        figure.savefig(options.out, dpi=150, metadata={"Software": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
