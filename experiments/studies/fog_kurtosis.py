"""How the kurtosis of activations changes over the runs of the study fog, by model.

PYTHONPATH=analysis:src/python python3 experiments/studies/fog_kurtosis.py runs/fog \
    --into experiments/results/fog/kurtosis.csv

Of each run: the mean of log2(kurtosis) over the x of all forward GEMMs within layers, at the first
record of the statistics from step 20 on and at the last one. Kurtosis is mean(x^4) / mean(x^2)^2:
3 for normal numbers, the number of elements for a single outlier. Prints, for each model and
recipe, the mean over seeds of the change and of the last value, and for each recipe how much higher
the last value is with fog_llama than with fog, paired by seed; each with its interval of 95 %
(Student).
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fp8lab_analysis.judge.inference import half_width
from fp8lab_analysis.judge.stats import spread_over_seeds
from fp8lab_analysis.read.run_reader import load_run

FIRST_STEP = 20
COLUMNS = ("model", "recipe", "seed", "first_step", "last_step", "first", "last")
Key = tuple[str, str]


def row_of(path: Path) -> dict[str, str]:
    """One run; its arm is the model and the recipe, as in "fog bf16"."""
    run = load_run(path)
    if not run.complete:
        raise SystemExit(f"{path}: the run is not complete")
    log = run.tensors
    chosen = [slot == "fprop.x" and layer != "lm_head" for slot, layer in zip(log.slot, log.layer)]
    counted = log.step >= FIRST_STEP
    steps, kurtosis = log.step[counted], log.get("kurtosis")[counted][:, np.array(chosen)]
    if not np.isfinite(kurtosis).all():
        raise SystemExit(f"{path}: kurtosis is not recorded for every operand")
    means = np.log2(kurtosis).mean(axis=1)
    return {
        "model": "fog" if 'feed_forward = "xielu"' in run.meta["config_text"] else "fog_llama",
        "recipe": run.recipe,
        "seed": str(run.seed),
        "first_step": str(steps[0]),
        "last_step": str(steps[-1]),
        "first": f"{means[0]:.4f}",
        "last": f"{means[-1]:.4f}",
    }


def text_of(values: Sequence[float]) -> str:
    """Mean and half width of its interval of 95 %."""
    spread = spread_over_seeds(values)
    return f"{spread.mean:.2f} ± {half_width(spread.sd, spread.count, 0.05):.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("study", type=Path, help="folder of the study's runs")
    parser.add_argument("--into", type=Path, help="CSV to write")
    given = parser.parse_args(arguments)
    rows = [row_of(path) for path in sorted(given.study.glob("*/run.h5"))]
    rows.sort(key=lambda row: tuple(row[key] for key in COLUMNS[:3]))
    groups: dict[Key, dict[str, tuple[float, float]]] = defaultdict(dict)
    for row in rows:
        ends = float(row["first"]), float(row["last"])
        groups[row["model"], row["recipe"]][row["seed"]] = ends
    for (model, recipe), seeds in groups.items():
        change = text_of([last - first for first, last in seeds.values()])
        last = text_of([last for _, last in seeds.values()])
        print(f"{model} {recipe}: change {change}, at the end {last}, {len(seeds)} seeds")
    for recipe in sorted({recipe for _, recipe in groups}):
        llama, fog = groups["fog_llama", recipe], groups["fog", recipe]
        shared = sorted(set(llama) & set(fog))
        difference = text_of([llama[seed][1] - fog[seed][1] for seed in shared])
        print(f"{recipe}: fog_llama is higher at the end by {difference}")
    if given.into:
        given.into.parent.mkdir(parents=True, exist_ok=True)
        with given.into.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
