"""`python3 -m fp8lab_analysis.assess FACTS.json --out OUT`: the answer of `fp8lab assess` on the
terminal, as JSON, and as a page."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from fp8lab_analysis.report import BadInput, Parser, import_needed, outcome, written


def check() -> None:
    """Imports what the page needs; the program asks before it computes for minutes."""
    import_needed()
    importlib.import_module("fp8lab_analysis.page.assess_page")


def print_answer(options: argparse.Namespace) -> None:
    """Reads the facts, writes page and JSON, prints the table and the answer."""
    import_needed()
    from fp8lab_analysis.judge.assessment import Assessment, percent
    from fp8lab_analysis.page.assess_page import write_page

    try:
        assessment = Assessment.read(options.facts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{options.facts}: no facts of fp8lab assess ({error})") from None
    page = written(options.out, lambda: str(write_page(assessment, options.out)))
    if options.json is not None:
        text = json.dumps(assessment.to_json(), indent=1, allow_nan=False)
        written(options.json.parent, lambda: str(options.json.write_text(text + "\n")))
    width = max(len(cost.name) for cost in assessment.costs)
    known = all(cost.gap.is_known for cost in assessment.costs[1:] if math.isfinite(cost.gap.value))
    heading = "gap (95 %)" if known else "gap, no interval"
    print(f"{'recipe':{width}}  {'loss, nats':>10}  {heading:>16}  not told apart from")
    for cost in assessment.ordered():
        gap = "" if cost.name == assessment.baseline else percent(cost.gap)
        like = f"same forward pass as {cost.same_forward_as}" if cost.same_forward_as else ""
        like = like or ", ".join(cost.like) or "-"
        loss = f"{cost.loss:9.4f}" if math.isfinite(cost.loss) else "not finite"
        print(f"{cost.name:{width}}  {loss:>10}  {gap:>16}  {like}")
    for line in assessment.answer() + assessment.outlier_sentences():
        print(line)
    print(page)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = Parser(prog="fp8lab_analysis.assess", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only import what a page needs")
    parser.add_argument("facts", type=Path, nargs="?", metavar="FACTS.json")
    parser.add_argument("--out", type=Path, help="folder of the page")
    parser.add_argument("--json", type=Path, help="also write the answer to this file")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    if options.check:
        return outcome("assess", check)
    if options.facts is None or options.out is None:
        parser.error("FACTS.json and --out are missing")
    return outcome("assess", lambda: print_answer(options))


if __name__ == "__main__":
    sys.exit(main())
