"""Writes the page of a study.

    python3 -m fp8lab_analysis.study_page runs/NAME --out experiments/results/NAME

The page contains the first comment of the study file, the verdict on every arm, its scores compared
with the baseline's, conclusions (remarks.md of that folder, if present), and how it was made.
Figure and numbers are written to the same folder. Exit codes are those of the report."""

from __future__ import annotations

import math
import shlex
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import matplotlib

from fp8lab_analysis.draw import overview_plot, style
from fp8lab_analysis.judge import inference
from fp8lab_analysis.judge.breaks import find_break
from fp8lab_analysis.judge.claims import ALPHA
from fp8lab_analysis.judge.compare import (
    GroupSummary,
    final_scores,
    held_out_loss,
    held_out_pair,
    summarise,
)
from fp8lab_analysis.judge.early_warning import warning_before
from fp8lab_analysis.judge.phrases import MISSING, joined
from fp8lab_analysis.judge.stats import Spread, spread_over_seeds
from fp8lab_analysis.page.cells import Cell
from fp8lab_analysis.page.result_page import Page, arithmetic_of, markdown_table, shown, write_page
from fp8lab_analysis.read.study import Study
from fp8lab_analysis.report import (
    BadInput,
    MachineFailure,
    Parser,
    complain,
    import_needed,
    read_study,
    written,
)

CAPTION = (
    "gap to the baseline of the same seed; bars are the intervals of the verdict's tests, grey the "
    "margin."
)


def leading_comment(text: str) -> str:
    """Returns the comment at the start of a TOML file."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line[1:].removeprefix(" "))
    return "\n".join(lines)


def options_of(text: str) -> str:
    """Returns --set and --scale of the command, which are comments after the study file's text."""
    words = []
    for line in text.splitlines():
        if line.startswith("# --set "):
            value = tomllib.loads("set = " + line.removeprefix("# --set "))["set"]
            words.append(f"--set {shlex.quote(value)}")
        elif line.startswith("# --scale "):
            words.append(line.removeprefix("# "))
    return " ".join(words)


def half_width(spread: Spread) -> float:
    """Half width of the 95 % interval of a mean over seeds; NaN if unknown."""
    if spread.count < 2 or not math.isfinite(spread.sd):
        return math.nan
    return inference.half_width(spread.sd, spread.count, ALPHA)


def score_spreads(
    study: Study, summary: GroupSummary, stage: str
) -> dict[str, tuple[Spread, Spread]]:
    """Returns for each score after a stage the spread over seeds, and the spread of its difference
    from the baseline of the same seed."""
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
    """Returns one row per arm: gap, final held-out loss, broken seeds, verdict."""
    rows: list[list[Cell]] = [
        ["arm", "seeds", "gap (%)", "± over seeds (%)", "± over documents (%)", "± over both (%)"]
    ]
    rows[0] += ["held-out loss", "± 95 %", "diverged", "verdict"]
    for summary in summaries:
        verdict = summary.verdict
        loss = summary.held_out.get(study.stages[-1], Spread(math.nan, math.nan, 0))
        rows.append(
            [
                summary.group.label,
                summary.seeds,
                100.0 * (verdict.gap_seen if verdict.diverged else verdict.gap.mean),
                100.0 * verdict.half_width,
                100.0 * verdict.over_documents,
                100.0 * verdict.over_both,
                loss.mean,
                half_width(loss),
                sum(run.diverged for run in summary.runs),
                verdict.sentence,
            ]
        )
    return rows


def stage_rows(study: Study, summaries: Sequence[GroupSummary]) -> list[list[Cell]]:
    """Returns one row per arm and stage with a separate verdict: the held-out loss at its end."""
    rows: list[list[Cell]] = [["arm", "stage", "seeds", "gap (%)", "± over seeds (%)"]]
    rows[0] += ["± over documents (%)", "± over both (%)", "diverged", "verdict"]
    for summary in summaries:
        for stage, verdict in summary.verdicts_after.items():
            if verdict is None:
                continue
            gap = verdict.gap_seen if verdict.diverged else verdict.gap.mean
            halves = (verdict.half_width, verdict.over_documents, verdict.over_both)
            numbers: list[Cell] = [100.0 * number for number in (gap, *halves)]
            numbers.append(verdict.diverged)
            rows.append([summary.group.label, stage, verdict.seeds, *numbers, verdict.sentence])
    return rows


def run_rows(study: Study, summaries: Sequence[GroupSummary]) -> list[list[Cell]]:
    """Returns one row per run and stage: held-out loss at its end, step of a break, and the first
    warning before it."""
    rows: list[list[Cell]] = [
        ["arm", "seed", "stage", "held-out loss", "gap (%)", "breaks at", "warned at", "detector"]
    ]
    for summary in summaries:
        for run in summary.group.runs:
            found = find_break(run, study.stages)
            warning = warning_before(run, found.step) if found else None
            for stage in study.stages:
                loss = held_out_loss(run, stage)
                if loss is None:
                    continue
                pair = held_out_pair(run, study.pairings.of(run), stage)
                row: list[Cell] = [summary.group.label, run.seed, stage, loss]
                row.append(100.0 * (pair[0] / pair[1] - 1.0) if pair else math.nan)
                here = found if found and found.stage == stage else None
                row += [here.step if here else None, None, ""]
                if here and warning:
                    row[-2:] = [warning.step, warning.detector]
                rows.append(row)
    return rows


def score_rows(study: Study, summaries: Sequence[GroupSummary]) -> list[list[Cell]]:
    """Returns one row per arm, stage and score."""
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
            _number(gap, over_seeds),
            _number(over_documents, math.nan),
            _number(loss, error),
            str(broken),
            str(text),
        ]
        for arm, seeds, gap, over_seeds, over_documents, _, loss, error, broken, text in rows[1:]
    ]
    names = ["arm", "seeds", "gap (%)", "± over documents (%)", "held-out loss", "diverged"]
    return markdown_table([*names, "verdict"], cells)


def operand_rows(summaries: Sequence[GroupSummary]) -> list[list[Cell]]:
    """Returns one row per arm and quantized, logged slot or saved activation."""
    rows: list[list[Cell]] = [
        ["arm", "slot", "SQNR (dB)", "± 95 %", "underflow (%)", "± 95 %", "seeds"]
    ]
    for summary in summaries:
        for slot, found in (summary.operands | summary.activations).items():
            if not found.quantized:
                continue
            sqnr, gone = found.sqnr_db, found.underflow
            numbers = [sqnr.mean, half_width(sqnr), 100.0 * gone.mean, 100.0 * half_width(gone)]
            rows.append([summary.group.label, slot, *numbers, sqnr.count])
    return rows


def _pivot(what: str, cells: Sequence[tuple[str, str, str]]) -> list[str]:
    """Returns a table of cells (row, column, text); empty without cells."""
    columns = list(dict.fromkeys(column for _, column, _ in cells))
    texts = {(row, column): text for row, column, text in cells}
    rows = [
        [row, *(texts.get((row, column), MISSING) for column in columns)]
        for row in dict.fromkeys(row for row, _, _ in cells)
    ]
    return [f"{what}:", markdown_table(["arm", *columns], rows)] if rows else []


def _score_blocks(study: Study, rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Returns tables of the scores of the last stage, and of their differences from the baseline's.
    Omits the loss of a single source, which is that of the whole text, and bits per byte, which are
    losses in another unit."""
    last = [row for row in rows[1:] if row[1] == study.stages[-1]]
    names = {str(row[2]) for row in last}
    alone = {n for n in names if n.startswith("loss/")}
    hidden = alone if len(alone) == 1 else set()
    kept = [r for r in last if r[2] not in hidden and not str(r[2]).startswith("bits_per_byte/")]
    means = [(str(r[0]), str(r[2]), _number(r[3], r[4])) for r in kept]
    gaps = [
        (str(r[0]), str(r[2]), _number(r[5], r[6]))
        for r in kept
        if isinstance(r[5], float) and math.isfinite(r[5])
    ]
    after = f"after {study.stages[-1]}, mean ± 95 %"
    return _pivot(f"Scores {after}", means) + _pivot(f"Scores minus the baseline's {after}", gaps)


def _operand_blocks(rows: Sequence[Sequence[Cell]]) -> list[str]:
    sqnr = [(str(r[0]), str(r[1]), _number(r[2], r[3])) for r in rows[1:]]
    gone = [(str(r[0]), str(r[1]), _number(r[4], r[5])) for r in rows[1:]]
    return _pivot("SQNR of operands (dB), mean over tensors and steps", sqnr) + _pivot(
        "Share flushed to zero (%)", gone
    )


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
    variants = {group.shared for group in study.groups} - {""}
    shared = "".join(f", all with {variant}" for variant in variants)
    return f"""
```sh
fp8lab ablate --study experiments/studies/{name}.toml{' ' + option if option else ''}
python3 -m fp8lab_analysis.study_page runs/{name} --out experiments/results/{name}
```

{', '.join(devices)}; fp8lab {', '.join(versions)}; {len(study.runs)} runs{shared}, seeds
{', '.join(map(str, seeds))}. Gaps are those of the held-out loss to the baseline of the same seed;
their intervals are of {design.confidence_text} (Student, paired, Holm), the margin of
{design.margin_text} was {stated}. Other intervals are of 95 % each, over seeds. ± over documents is
the noise of the held-out text (`analysis/README.md`).
"""


def page_of(study: Study, remarks: str = "") -> Page:
    """Returns the page of a study; `remarks` are the conclusions in Markdown."""
    summaries = summarise(study)
    verdicts, scores = verdict_rows(study, summaries), score_rows(study, summaries)
    operands = operand_rows(summaries)
    with matplotlib.rc_context(style.RC):
        figure = overview_plot.overview_figure(style.PlotContext.of(study, summaries))
    stages, runs = stage_rows(study, summaries), run_rows(study, summaries)
    tables = {"verdicts": verdicts, "stages": stages, "runs": runs}
    tables |= {"scores": scores, "operands": operands}
    return Page(
        title=study.title,
        stated=leading_comment(study.meta.get("config_text", "")),
        results=[
            _verdict_block(verdicts),
            *_score_blocks(study, scores),
            *_operand_blocks(operands),
        ],
        figure=figure,
        caption=CAPTION,
        arithmetic=joined(
            sorted({arithmetic_of(run.meta.get("code_version", "")) for run in study.runs})
        ),
        remarks=remarks,
        made=_made(study),
        tables={name: rows for name, rows in tables.items() if len(rows) > 1},
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = Parser(prog="study_page", description="The page of a study of experiments/results.")
    parser.add_argument("study", type=Path, help="folder of a study that has been run")
    parser.add_argument("--out", type=Path, required=True, help="folder of the page")
    try:
        options = parser.parse_args(arguments)
        import_needed()
        study = read_study([options.study], "")
        beside = options.out / "remarks.md"
        remarks = beside.read_text(encoding="utf-8") if beside.exists() else ""
        print(written(options.out, lambda: str(write_page(page_of(study, remarks), options.out))))
    except (BadInput, MachineFailure) as error:
        complain(f"{error}")
        return 2 if isinstance(error, BadInput) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
