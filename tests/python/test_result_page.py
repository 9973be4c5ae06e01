"""Pages of results: claims and their outcomes, the page's files, and the page of a study."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import replace
from pathlib import Path

import h5py
import make_example_run
import pytest
from matplotlib.figure import Figure

from fp8lab_analysis import study_page
from fp8lab_analysis.judge import compare, inference
from fp8lab_analysis.judge.claims import ALPHA, Claim, Judged, Outcome, judge_claims
from fp8lab_analysis.judge.stats import Spread
from fp8lab_analysis.page.result_page import (
    ARITHMETICS,
    Page,
    arithmetic_of,
    claims_table,
    markdown_table,
    shown,
    wrapped,
    write_page,
)
from fp8lab_analysis.read import study
from fp8lab_analysis.read.runs import Run, Score

RECIPES = {item.name: item for item in make_example_run.RECIPES}


def judged(values: list[float], low: float = -math.inf, high: float = math.inf) -> Judged:
    """One claim alone."""
    (result,) = judge_claims([Claim("it", "", low, high)], [values])
    return result


def test_a_claim_is_shown_when_its_interval_is_within_the_bounds() -> None:
    values = [1.0, 2.0, 3.0]  # mean 2, deviation 1, t(0.975; 2) = 4.302653
    half = judged(values, low=0.0).half_width
    assert half == pytest.approx(4.302653 / math.sqrt(3.0), abs=1e-6)
    assert judged(values, low=2.0 - half - 1e-9).outcome is Outcome.SHOWN
    assert judged(values, low=2.0 - half + 1e-9).outcome is Outcome.OPEN
    assert judged(values, high=2.0 + half + 1e-9).outcome is Outcome.SHOWN
    assert judged(values, high=2.0 + half - 1e-9).outcome is Outcome.OPEN
    assert judged(values, low=2.0 + half + 1e-9).outcome is Outcome.REFUTED
    assert judged(values, high=2.0 - half - 1e-9).outcome is Outcome.REFUTED
    assert judged(values, low=-1.0, high=5.0).outcome is Outcome.SHOWN


def test_claims_share_the_level() -> None:
    claims = [Claim("a", low=0.0), Claim("b", low=0.0)]
    first, second = judge_claims(claims, [[1.0, 2.0, 3.0], [1.0, 2.0, 4.0]])
    assert first.half_width == pytest.approx(inference.half_width(1.0, 3, ALPHA / 2))
    assert second.half_width > first.half_width
    with pytest.raises(ValueError):
        judge_claims(claims, [[1.0, 2.0]])


def test_a_seed_without_a_number_leaves_a_claim_open() -> None:
    broken = judged([1.0, math.nan, 1.0], low=0.0)
    assert broken.outcome is Outcome.OPEN
    assert "none in 1 of 3 seeds" in claims_table([broken])
    assert judged([1.0], low=0.0).outcome is Outcome.OPEN  # one seed has no interval


def test_a_claim_has_a_bound() -> None:
    nothing: list[dict[str, float]] = [{}, {"low": 1.0, "high": 1.0}, {"low": 2.0, "high": 1.0}]
    for bounds in nothing:
        with pytest.raises(ValueError, match="claim nothing"):
            Claim("it", "", **bounds)
    assert Claim("it", "dB", low=-1.0).bounds == "at least −1 dB"
    assert Claim("it", high=2.0).bounds == "at most 2"
    assert Claim("it", "%", low=0.5, high=4.0).bounds == "0.5 to 4 %"


def test_numbers_have_the_digits_of_their_errors() -> None:
    assert shown(1.23456, 0.034) == "1.23 ± 0.03"
    assert shown(-1.23456, 0.012) == "−1.235 ± 0.012"
    assert shown(123.4, 33.0) == "123 ± 33"
    assert shown(1.23456) == "1.23"
    assert shown(2.77e-6, 1e-7) == "2.77e−06 ± 1e−07"
    assert shown(math.nan, 1.0) == "–"


def test_text_is_filled_and_tables_are_not() -> None:
    long = "word " * 60
    text = wrapped(f"{long}\n\n- one\n  {long}\n- two\n\n| a | {long} |\n| - | - |")
    lines = text.splitlines()
    assert all(len(line) <= 110 for line in lines if not line.startswith("|"))
    first = lines.index(next(line for line in lines if line.startswith("- one word")))
    assert lines[first + 1].startswith("  word")
    assert lines[lines.index("- two") - 1].startswith("  word")
    assert f"| a | {long} |" in text
    assert markdown_table(["a|b"], [["c"]]).splitlines()[0] == "| a\\|b |"


def test_a_page_is_written_with_its_files(tmp_path: Path) -> None:
    rows: list[list[str | float | int | None]] = [["x", "y"], [1.23456789, None], [math.nan, 3]]
    page = Page(
        "T", "Asked.", ["| r |"], Figure(), "drawn", "0.2", "Made.", "Follows.", {"values": rows}
    )
    path = write_page(page, tmp_path / "page")
    text = path.read_text(encoding="utf-8")
    order = [
        "# T",
        "Numbers of this page: arithmetic 0.2.",
        "Asked.",
        "## Seen",
        "| r |",
        "](figure.png)",
        "## What follows",
        "Follows.",
    ]
    order += ["## How it was made", "Made.", "Numbers: `values.csv`."]
    places = [text.index(item) for item in order]
    assert places == sorted(places)
    assert (tmp_path / "page" / "figure.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "page" / "values.csv").open(encoding="utf-8") as file:
        assert list(csv.reader(file)) == [["x", "y"], ["1.23457", ""], ["", "3"]]


ROOT = Path(__file__).parents[2]


def test_every_page_names_the_arithmetic_of_its_numbers() -> None:
    header = (ROOT / "src/train/checkpoint/identity.hpp").read_text(encoding="utf-8")
    assert f'kArithmetic[] = "{ARITHMETICS[-1]}"' in header
    versions = ("0.1.3", "0.2.0", "0.2.0+dda4b41", "0.10.0", "")
    assert [arithmetic_of(v) for v in versions] == ["0.1", "0.2", "0.2", "0.2", "0.2"]
    results = ROOT / "experiments/results"
    pages = [*results.glob("*.md"), *results.glob("*/README.md")]
    assert len(pages) > 30
    for page in pages:
        lines = page.read_text(encoding="utf-8").splitlines()
        known = "|".join(ARITHMETICS).replace(".", r"\.")
        assert re.match(rf"Numbers of this page: arithmetic ({known})\b", lines[2]), page


# --- studies --------------------------------------------------------------------------------------

TEXT = """# What is asked.
# To be seen: nothing.
name = "example"
# not this

# --set "backend=\\"cuda\\""
# --set "seed=3"
# --scale 0.5
"""


def example(folder: Path) -> Path:
    """A study of two arms and three seeds, with a score and a text of its own."""
    arms = [RECIPES["bf16"], RECIPES["infir2"]]
    design = make_example_run.StatedDesign(margin=0.5)
    make_example_run.make_example(folder, arms, (1, 2, 3), design)
    with h5py.File(folder / "study.h5", "a") as file:
        file["meta"].attrs["config_text"] = TEXT
    return folder


def test_remarks_beside_the_page_of_a_study_are_on_it(tmp_path: Path) -> None:
    folder = str(example(tmp_path / "study"))
    out = tmp_path / "page"
    assert study_page.main([folder, "--out", str(out)]) == 0
    assert "What follows" not in (out / "README.md").read_text(encoding="utf-8")
    (out / "remarks.md").write_text("- Nothing\n  follows.\n", encoding="utf-8")
    assert study_page.main([folder, "--out", str(out)]) == 0
    text = (out / "README.md").read_text(encoding="utf-8")
    assert "## What follows\n\n- Nothing follows.\n\n## How it was made" in text


def test_every_score_of_a_stage_has_its_last_value(tmp_path: Path) -> None:
    scores = [
        Score(3, 0, "update/lost", 0.5, 1),
        Score(4, 0, "loss/a", 2.0, 1),
        Score(5, 1, "update/lost", 0.25, 1),
        Score(6, 1, "update/lost", 0.125, 1),
        Score(7, 1, "loss/a", 1.0, 1),
    ]
    run = replace(study.load_study([example(tmp_path / "study")]).runs[0], scores=scores)
    last = compare.final_scores(run, run.stage_names[1])
    assert {name: score.value for name, score in last.items()} == {
        "update/lost": 0.125,
        "loss/a": 1.0,
    }


def test_the_page_of_a_study_says_what_was_stated_and_seen(tmp_path: Path) -> None:
    out = tmp_path / "page"
    assert study_page.main([str(example(tmp_path / "study")), "--out", str(out)]) == 0
    text = (out / "README.md").read_text(encoding="utf-8")
    assert "What is asked. To be seen: nothing." in text
    assert "not this" not in text
    found = study.load_study([tmp_path / "study"])
    for summary in compare.summarise(found):
        assert f"| {summary.group.label} | 3 |" in text
        assert summary.verdict.sentence in text
    command = "fp8lab ablate --study experiments/studies/example.toml "
    assert command + "--set 'backend=\"cuda\"' --set seed=3 --scale 0.5" in text
    assert (out / "figure.png").exists()
    with (out / "verdicts.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["arm"] for row in rows] == ["bf16", "infir2"]
    infir2 = compare.summarise(found)[1].operands["dgrad.dy"]
    with (out / "operands.csv").open(encoding="utf-8") as file:
        slots = {row["slot"]: row for row in csv.DictReader(file)}
    assert float(slots["dgrad.dy"]["SQNR (dB)"]) == pytest.approx(infir2.sqnr_db.mean, rel=1e-5)
    gone = 100.0 * infir2.underflow.mean
    assert float(slots["dgrad.dy"]["underflow (%)"]) == pytest.approx(gone, rel=1e-5)
    assert rows[0]["gap (%)"] == "" and float(rows[1]["gap (%)"]) != 0.0


def test_the_page_of_a_study_has_every_run_and_stage(tmp_path: Path) -> None:
    arms = [RECIPES["bf16"], RECIPES["e5m2_tensor"]]
    make_example_run.make_example(tmp_path / "study", arms, (1, 2))
    out = tmp_path / "page"
    assert study_page.main([str(tmp_path / "study"), "--out", str(out)]) == 0
    with (out / "runs.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    broken = [row for row in rows if row["arm"] == "e5m2_tensor"]
    assert {row["arm"]: row["gap (%)"] for row in rows}["bf16"] == ""
    at = [(row["seed"], row["stage"], row["breaks at"], row["warned at"]) for row in broken]
    assert [row for row in at if row[2]] == [("1", "sft", "130", "40"), ("2", "sft", "130", "40")]
    assert {row["detector"] for row in broken if row["breaks at"]} == {"amax_lag"}
    found = study.load_study([tmp_path / "study"])
    for row in rows:
        (run,) = [r for r in found.runs if (r.recipe, str(r.seed)) == (row["arm"], row["seed"])]
        assert row["held-out loss"] == f"{compare.held_out_loss(run, row['stage']):.6g}"
    with (out / "stages.csv").open(encoding="utf-8") as file:
        stages = list(csv.DictReader(file))
    judged = compare.summarise(found)[1].verdicts_after
    seen = [(row["stage"], row["verdict"]) for row in stages if row["arm"] == "e5m2_tensor"]
    assert seen == [(stage, v.sentence) for stage, v in judged.items() if v is not None]


def test_scores_are_compared_seed_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = study.load_study([example(tmp_path)])
    summaries = compare.summarise(found)

    def scores(run: Run, stage: str) -> dict[str, Score]:
        value = run.seed + (0.5 if run.recipe == "infir2" else 0.0)
        return {"loss/a": Score(1, 0, "loss/a", value, 7)} if stage == "sft" else {}

    monkeypatch.setattr(study_page, "final_scores", scores)
    (own, gap) = study_page.score_spreads(found, summaries[1], "sft")["loss/a"]
    assert own == Spread(2.5, 1.0, 3)
    assert gap == Spread(0.5, 0.0, 3)
    (_, none) = study_page.score_spreads(found, summaries[0], "sft")["loss/a"]
    assert math.isnan(none.mean)  # a baseline has none
    rows = study_page.score_rows(found, summaries)
    assert [row[:3] for row in rows[1:]] == [[r, "sft", "loss/a"] for r in ("bf16", "infir2")]


def test_scores_that_say_the_same_twice_are_left_to_the_csv(tmp_path: Path) -> None:
    found = study.load_study([example(tmp_path)])
    last = found.stages[-1]

    def text(*names: str) -> str:
        rows: list[list[str | float | int | None]] = [["head"]]
        rows += [["infir2", last, name, 1.5, 0.1, 0.25, 0.01, 3] for name in names]
        return "\n".join(study_page._score_blocks(found, rows))

    assert text("loss/a", "bits_per_byte/a") == ""
    both = text("loss/a", "loss/b", "bits_per_byte/a")
    assert "| arm | loss/a | loss/b |" in both and "bits_per_byte" not in both
    assert both.count("| infir2 |") == 2
    assert "| infir2 | 1.50 ± 0.10 | 1.50 ± 0.10 |" in both
    assert "| infir2 | 0.250 ± 0.010 | 0.250 ± 0.010 |" in both


def test_what_is_no_study_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert study_page.main([str(tmp_path / "none"), "--out", str(tmp_path / "page")]) == 2
    assert "no such file" in capsys.readouterr().err
    assert not (tmp_path / "page").exists()
