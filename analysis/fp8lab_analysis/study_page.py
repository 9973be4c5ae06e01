"""The page of a study.

    python3 -m fp8lab_analysis.study_page runs/NAME --out experiments/results/NAME

What the study file states in its first comment, the verdict on every arm, its scores beside those
of the baseline, and how it was made; figure and numbers beside it. Exit codes are those of the
report."""

from __future__ import annotations

import math
import shlex
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import matplotlib

from fp8lab_analysis import inference, overview_plot, style
from fp8lab_analysis.cells import MISSING, Cell
from fp8lab_analysis.claims import ALPHA
from fp8lab_analysis.compare import GroupSummary, final_scores, summarise
from fp8lab_analysis.report import (
    BadInput,
    MachineFailure,
    Parser,
    import_needed,
    read_study,
    written,
)
from fp8lab_analysis.result_page import Page, markdown_table, shown, write_page
from fp8lab_analysis.stats import Spread, spread_over_seeds
from fp8lab_analysis.study import Study

CAPTION = (
    "gap to the baseline of the same seed, with the interval of the verdict's test; grey is the "
    "margin; then, where operands are quantized, their errors."
)


def leading_comment(text: str) -> str:
    """The comment that a TOML file begins with."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line[1:].removeprefix(" "))
    return "\n".join(lines)


def options_of(text: str) -> str:
    """--set and --scale of the command, which follow the text of a study file as comments."""
    words = []
    for line in text.splitlines():
        if line.startswith("# --set "):
            value = tomllib.loads("set = " + line.removeprefix("# --set "))["set"]
            words.append(f"--set {shlex.quote(value)}")
        elif line.startswith("# --scale "):
            words.append(line.removeprefix("# "))
    return " ".join(words)


def half_width(spread: Spread) -> float:
    """Half width of the 95 % interval of a mean over seeds; NaN without one."""
    if spread.count < 2 or not math.isfinite(spread.sd):
        return math.nan
    return inference.half_width(spread.sd, spread.count, ALPHA)


def score_spreads(
    study: Study, summary: GroupSummary, stage: str
) -> dict[str, tuple[Spread, Spread]]:
    """Of each score after a stage the spread over seeds, and that of its difference to the
    baseline of the same seed."""
    of_runs = [(final_scores(run, stage), study.pairings.of(run)) for run in summary.group.runs]
    found = {}
    for name in dict.fromkeys(name for scores, _ in of_runs for name in scores):
        values, differences = [], []
        for scores, partner in of_runs:
            value = scores[name].value if name in scores else math.nan
            theirs = final_scores(partner, stage) if partner else {}
            values.append(value)
            differences.append(value - theirs[name].value if name in theirs else math.nan)
        found[name] = (spread_over_seeds(values), spread_over_seeds(differences))
    return found


def verdict_rows(study: Study, summaries: Sequence[GroupSummary]) -> list[list[Cell]]:
    """One row an arm: gap, final held-out loss, seeds that broke, verdict."""
    rows: list[list[Cell]] = [
        ["arm", "seeds", "gap (%)", "± (%)", "held-out loss", "± 95 %", "diverged", "verdict"]
    ]
    for summary in summaries:
        verdict = summary.verdict
        loss = summary.held_out.get(study.stages[-1], Spread(math.nan, math.nan, 0))
        rows.append(
            [
                summary.group.label,
                summary.seeds,
                100.0 * verdict.gap.mean,
                100.0 * verdict.half_width,
                loss.mean,
                half_width(loss),
                sum(run.diverged for run in summary.runs),
                verdict.sentence,
            ]
        )
    return rows


def score_rows(study: Study, summaries: Sequence[GroupSummary]) -> list[list[Cell]]:
    """One row an arm, stage and score."""
    rows: list[list[Cell]] = [
        ["arm", "stage", "score", "mean", "± 95 %", "minus baseline", "± 95 %", "seeds"]
    ]
    for summary in summaries:
        for stage in study.stages:
            for name, (own, gap) in score_spreads(study, summary, stage).items():
                numbers = [own.mean, half_width(own), gap.mean, half_width(gap)]
                rows.append([summary.group.label, stage, name, *numbers, own.count])
    return rows


def _number(value: Cell, error: Cell) -> str:
    if not isinstance(value, float):
        return MISSING
    return shown(value, error if isinstance(error, float) else math.nan)


def _verdict_block(rows: Sequence[Sequence[Cell]]) -> str:
    cells = [
        [
            str(arm),
            str(seeds),
            _number(gap, gap_error),
            _number(loss, error),
            str(broken),
            str(text),
        ]
        for arm, seeds, gap, gap_error, loss, error, broken, text in rows[1:]
    ]
    return markdown_table(
        ["arm", "seeds", "gap (%)", "held-out loss", "diverged", "verdict"], cells
    )


def _score_blocks(rows: Sequence[Sequence[Cell]]) -> list[str]:
    if len(rows) == 1:
        return []
    cells = [
        [str(arm), str(stage), str(name), _number(own, error), _number(gap, gap_error)]
        for arm, stage, name, own, error, gap, gap_error, _ in rows[1:]
    ]
    return [markdown_table(["arm", "stage", "score", "mean", "minus baseline"], cells)]


def _made(study: Study) -> str:
    text = study.meta.get("config_text", "")
    name = study.meta.get("name", "NAME")
    devices = sorted(
        {run.meta.get("device", "") or run.meta.get("backend", "") for run in study.runs}
    )
    versions = sorted({run.meta.get("code_version", "?") for run in study.runs})
    seeds = sorted({run.seed for run in study.runs})
    design = study.design
    stated = "stated before the first run" if design.stated else "not stated beforehand"
    option = options_of(text)
    return f"""
```sh
fp8lab ablate --study experiments/studies/{name}.toml{' ' + option if option else ''}
python3 -m fp8lab_analysis.study_page runs/{name} --out experiments/results/{name}
```

{', '.join(devices)}; fp8lab {', '.join(versions)}; {len(study.runs)} runs, seeds
{', '.join(map(str, seeds))}. Gaps are those of the held-out loss to the baseline of the same seed;
their intervals are of {design.confidence_text} (Student, paired, Holm), the margin of
{design.margin_text} was {stated}. Other intervals are of 95 % each, over seeds.
"""


def page_of(study: Study) -> Page:
    """The page of a study."""
    summaries = summarise(study)
    verdicts, scores = verdict_rows(study, summaries), score_rows(study, summaries)
    with matplotlib.rc_context(style.RC):
        figure = overview_plot.overview_figure(style.PlotContext.of(study, summaries))
    tables = {"verdicts": verdicts}
    if len(scores) > 1:
        tables["scores"] = scores
    return Page(
        title=study.title,
        stated=leading_comment(study.meta.get("config_text", "")),
        results=[_verdict_block(verdicts), *_score_blocks(scores)],
        figure=figure,
        caption=CAPTION,
        made=_made(study),
        tables=tables,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = Parser(prog="study_page", description="The page of a study of experiments/results.")
    parser.add_argument("study", type=Path, help="folder of a study that has been run")
    parser.add_argument("--out", type=Path, required=True, help="folder of the page")
    try:
        options = parser.parse_args(arguments)
        import_needed()
        study = read_study([options.study], "")
        print(written(options.out, lambda: str(write_page(page_of(study), options.out))))
    except (BadInput, MachineFailure) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, BadInput) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
