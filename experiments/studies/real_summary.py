"""Losses of the studies real_*.toml as one CSV, also of run files that are no longer there.

python3 experiments/studies/real_summary.py runs/real_10m/*/run.h5 --before before__*.json \
    --into experiments/results/real_checkpoint/losses.csv

The studies take hours of a GPU, in several sittings. Each adds the rows of its complete runs to the
file; a row that is there already must be the same. `--before` are what `fp8lab eval --json`
printed of the checkpoint before training. Losses are in nats a token, held out: of each source, of
all of them, and of all of them with the weights in bf16.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py

COLUMNS = (
    "study",
    "arm",
    "seed",
    "recipe",
    "stage",
    "step",
    "loss",
    "loss_in_bf16",
    "peps",
    "cpp_docs",
    "gsm8k",
    "exact_match",
    "config_hash",
    "version",
    "device",
)
KEY = ("study", "arm", "stage")
SOURCES = ("peps", "cpp_docs", "gsm8k")

Row = dict[str, str]


def text(value: object) -> str:
    """An attribute as text."""
    return value.decode() if isinstance(value, bytes) else str(value)


def by_source(named: Iterator[tuple[str, float]]) -> Row:
    """Losses by the beginning of their source's name."""
    row = {}
    for name, loss in named:
        for source in SOURCES:
            if name.startswith(source + "_"):
                row[source] = repr(loss)
    return row


def opened(path: Path) -> h5py.File | None:
    """A run file; none if a program that trains holds it."""
    try:
        return h5py.File(path)
    except BlockingIOError:
        print(f"{path}: left out, since a run writes it", file=sys.stderr)
        return None


def rows_of_run(path: Path) -> Iterator[Row]:
    """One row a stage of a complete run; none of another."""
    run = opened(path)
    if run is None:
        return
    with run as file:
        if file["complete"].shape[0] == 0:
            return
        meta = file["meta"].attrs
        scores = list(zip(file["scores/stage"], file["scores/name"].asstr(), file["scores/value"]))
        last = {
            int(stage): (int(step), float(loss), float(match))
            for step, stage, loss, match in zip(
                file["eval/step"], file["eval/stage"], file["eval/loss"], file["eval/exact_match"]
            )
        }
        for index, stage in enumerate(meta["stage_names"]):
            step, loss, match = last[index]
            own = [(name, float(value)) for at, name, value in scores if at == index]
            yield {
                "study": path.parent.parent.name,
                "arm": path.parent.name,
                "seed": text(meta["seed"]),
                "recipe": text(meta["recipe_name"]),
                "stage": text(stage),
                "step": str(step),
                "loss": repr(loss),
                "loss_in_bf16": next((repr(v) for n, v in own if n == "loss_in_bf16"), ""),
                "exact_match": repr(match) if match >= 0 else "",
                "config_hash": text(meta["config_hash"]),
                "version": text(meta["code_version"]),
                "device": text(meta["device"]),
                **by_source((n.removeprefix("loss/"), v) for n, v in own if n.startswith("loss/")),
            }


def row_before(path: Path) -> Row:
    """The checkpoint under one recipe."""
    found = json.loads(path.read_text())
    return {
        "study": "before",
        "arm": found["recipe"],
        "seed": "",
        "recipe": found["recipe"],
        "stage": "before training",
        "step": "0",
        "loss": repr(found["loss"]),
        "device": found["device"],
        **by_source((item["name"], item["loss"]) for item in found["sources"]),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Adds rows; refuses one that contradicts what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, metavar="run.h5")
    parser.add_argument("--before", nargs="*", type=Path, default=[], metavar="FILE.json")
    parser.add_argument("--into", type=Path, required=True, metavar="FILE.csv")
    options = parser.parse_args(arguments)
    table: dict[tuple[str, ...], Row] = {}
    if options.into.exists():
        with options.into.open(newline="") as file:
            table = {tuple(row[k] for k in KEY): row for row in csv.DictReader(file)}
    new = [row_before(path) for path in options.before]
    new += [row for path in options.runs for row in rows_of_run(path)]
    for found in new:
        row = {column: found.get(column, "") for column in COLUMNS}
        before = table.setdefault(tuple(row[k] for k in KEY), row)
        if before != row:
            print(f"error: {'/'.join(row[k] for k in KEY)} was another result", file=sys.stderr)
            return 1
    with options.into.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table[key] for key in sorted(table))
    print(f"{options.into}: {len(table)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
