"""Verdicts on a study real_*.toml from the losses that real_summary.py has gathered, as Markdown.

PYTHONPATH=analysis:src/python python3 experiments/studies/real_verdicts.py \
    experiments/results/real_checkpoint/losses.csv [--study real_rate]

Gaps are relative to the run of the same seed in `--baseline` (bf16), of real_10m where the study
has none of its own. Verdicts are those of a report on the run files: the margin of 0.5 % that each
study states, variance pooled over the arms, Holm's correction over them; in real_tokens for each
number of steps by itself. The noise of the held-out text needs the run files and is not in them.
Arms whose losses are equal in every digit are judged once.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from fp8lab_analysis.judge.inference import relative_gaps
from fp8lab_analysis.judge.verdicts import Evidence, Verdict, judge
from fp8lab_analysis.read.design import Design

MARGIN = Design(margin=0.005, stated="in the study, before the first run")
WHOLE = "real_10m"
STAGES = ("cpt", "sft")
# An arm and the recipe that it has in CPT, where its losses are those of that recipe's runs.
SFT_ALONE = {"bf16_then_infir2": "bf16", "infir2_then_bf16": "infir2"}

Losses = dict[str, dict[int, float]]  # by arm and seed


def read_losses(
    path: Path, stage: str, column: str = "loss", study: str = WHOLE
) -> dict[str, Losses]:
    """Losses after a stage of a study, by its number of steps ("" where it has one); none where the
    column is empty."""
    found: dict[str, Losses] = defaultdict(lambda: defaultdict(dict))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["study"] != study or row["stage"] != stage or not row[column]:
                continue
            arm = re.sub(r"^seed\d+-|-seed\d+$", "", row["arm"])
            steps = re.match(r"(?:steps(\d+)-)?", arm)
            assert steps is not None
            group = found[steps[1] or ""]
            group[arm[steps.end() :].removesuffix(".toml")][int(row["seed"])] = float(row[column])
    return found


def with_baseline(losses: Losses, of_whole: Losses, baseline: str) -> Losses:
    """The losses, with those of the baseline in real_10m where there are none."""
    return losses if baseline in losses else {**losses, baseline: of_whole[baseline]}


def without_copies(losses: Losses) -> Losses:
    """The arms, of those with equal losses only the first; a copy may have fewer seeds."""
    kept: Losses = {}
    for arm in sorted(losses, key=lambda name: (-len(losses[name]), name)):
        own = losses[arm].items()
        if not any(own <= other.items() for other in kept.values()):
            kept[arm] = losses[arm]
    return kept


def evidence(own: dict[int, float], baseline: dict[int, float]) -> Evidence:
    """The gaps of an arm, by the seeds that both have."""
    seeds = sorted(own.keys() & baseline.keys())
    gaps = relative_gaps([own[s] for s in seeds], [baseline[s] for s in seeds])
    return Evidence(list(gaps), [False] * len(seeds), [False] * len(seeds), seeds)


def verdicts(losses: Losses, baseline: str) -> dict[str, Verdict]:
    """The verdict on each other arm, smallest gap first."""
    arms = [arm for arm in losses if arm != baseline]
    results = judge([evidence(losses[arm], losses[baseline]) for arm in arms], MARGIN)
    return dict(sorted(zip(arms, results), key=lambda pair: pair[1].gap.mean))


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the verdicts after each stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("losses", type=Path, metavar="losses.csv")
    parser.add_argument("--baseline", default="bf16", metavar="RECIPE")
    parser.add_argument("--study", default=WHOLE, metavar="NAME")
    options = parser.parse_args(arguments)
    for stage in STAGES:
        of_whole = read_losses(options.losses, stage)[""]
        of_study = read_losses(options.losses, stage, study=options.study)
        for steps, group in sorted(of_study.items()):
            losses = without_copies(with_baseline(group, of_whole, options.baseline))
            if stage == "cpt":
                losses = {arm: own for arm, own in losses.items() if arm not in SFT_ALONE}
            after = f"{stage} of {steps} steps" if steps else stage
            print_table(after, losses, options.baseline)
    return 0


def print_table(after: str, losses: Losses, baseline: str) -> None:
    """The verdicts on arms that are compared with one another."""
    print(f"\n| after {after} | gaps of the seeds, % of the loss | mean | verdict |")
    print("|---|---|---|---|")
    for arm, verdict in verdicts(losses, baseline).items():
        own = evidence(losses[arm], losses[baseline])
        gaps = " ".join(f"{100 * gap:+.2f}" for gap in own.gaps)
        mean = f"{100 * verdict.gap.mean:+.2f} ± {100 * verdict.half_width:.2f}"
        print(f"| {arm} | {gaps} | {mean} | {verdict.sentence} |")


if __name__ == "__main__":
    sys.exit(main())
