"""Verdicts and their sentences: from gaps, from a study file, on the page; and the speed at equal
quality."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
import shutil
from pathlib import Path

import h5py
import make_example_run
import numpy as np
import pytest
from make_example_run import StatedDesign, SyntheticRecipe

from fp8lab_analysis import report
from fp8lab_analysis.draw import figures
from fp8lab_analysis.judge import compare, inference, speed
from fp8lab_analysis.judge.verdicts import Evidence, Kind, Verdict, judge, measured
from fp8lab_analysis.page.findings import make_findings
from fp8lab_analysis.read import study
from fp8lab_analysis.read.design import Design
from fp8lab_analysis.read.hdf5 import InputError
from fp8lab_analysis.read.run_reader import load_run

NAN = math.nan
STATED = Design(stated="2026-01-02T03:04:05Z")


def evidence(
    *gaps: float, diverged: int = 0, twins_diverged: int = 0, of: str = "bf16"
) -> Evidence:
    """An arm of these relative gaps to the runs of `of`, the first seeds of which diverged."""
    return Evidence(
        gaps=list(gaps),
        diverged=[row < diverged for row in range(len(gaps))],
        twins_diverged=[row < twins_diverged for row in range(len(gaps))],
        twins=[f"{of}, {row}" for row in range(len(gaps))],
    )


def verdict_on(*gaps: float, design: Design = STATED, diverged: int = 0) -> Verdict:
    """The verdict on one arm alone."""
    return judge([evidence(*gaps, diverged=diverged)], design)[0]


# --- the kinds ------------------------------------------------------------------------------------


def test_equivalent() -> None:
    # Mean 0.001, deviation 0.001, n = 4: t = 0.004 / 0.0005 = 8 of the upper test, 12 of the lower.
    found = verdict_on(0.0, 0.002, 0.0015, 0.0005)
    assert found.kind is Kind.EQUIVALENT and found.ordered and found.holds
    assert found.sentence == "Equivalent within 0.5 % (95 %)"
    sd = math.sqrt((1e-6 + 1e-6 + 0.25e-6 + 0.25e-6) / 3.0)
    assert found.gap.mean == pytest.approx(0.001) and found.gap.sd == pytest.approx(sd)
    assert found.half_width == pytest.approx(3.182446 * sd / 2.0)
    assert found.equivalence_p == pytest.approx(inference.one_sided_p(0.001, sd, 4, 0.005))


def test_a_gap_within_the_margin_that_is_not_zero_is_equivalent() -> None:
    found = verdict_on(0.0019, 0.002, 0.0021, 0.002)
    assert found.kind is Kind.EQUIVALENT and found.difference_p < 1e-4


def test_worse_and_better() -> None:
    # Mean 0.012, deviation root of 2e-6 / 3, far beyond the margin.
    gaps = [0.011, 0.012, 0.013, 0.012]
    half = 3.182446 * math.sqrt(2e-6 / 3.0) / 2.0
    worse = verdict_on(*gaps)
    assert worse.kind is Kind.WORSE and not worse.holds
    assert worse.half_width == pytest.approx(half)
    assert worse.sentence == "Worse by 1.20 % ± 0.13 %"
    better = verdict_on(*[-gap for gap in gaps])
    assert better.kind is Kind.BETTER and better.holds
    assert better.sentence == "Better by 1.20 % ± 0.13 %"
    assert verdict_on(0.010, 0.012, 0.014, 0.012).sentence == "Worse by 1.2 % ± 0.3 %"


def test_inconclusive_names_the_seeds_needed() -> None:
    found = verdict_on(-0.004, 0.004, 0.002)
    assert found.kind is Kind.INCONCLUSIVE and not found.holds
    needed = inference.seeds_for_margin(0.005, found.gap.sd, 0.05, 0.9)
    assert needed is not None and needed > 3
    assert found.seeds_needed == needed
    assert found.sentence == f"Inconclusive: 0.5 % needs about {needed} seeds"
    assert found.detectable == pytest.approx(inference.detectable_gap(3, found.gap.sd, 0.05, 0.9))
    lost = verdict_on(-50.0, 50.0, 1e-3)
    assert lost.sentence == "Inconclusive: 0.5 % needs more than 10000 seeds"


def test_inconclusive_beyond_the_margin_is_about_the_gap() -> None:
    found = verdict_on(0.03, 0.05)
    assert found.kind is Kind.INCONCLUSIVE
    assert found.sentence == "Inconclusive: to tell +4 % ± 13 % from no gap needs about 4 seeds"
    assert found.seeds_to_differ == inference.seeds_for_gap(0.04, found.gap.sd, 0.05, 0.9)


def test_inconclusive_may_be_known_not_to_be_worse() -> None:
    # Mean -0.003, n = 4: the interval goes below -0.5 %, yet ends far below +0.5 %.
    found = verdict_on(-0.006, 0.0, -0.004, -0.002)
    assert found.kind is Kind.INCONCLUSIVE and found.not_worse and found.holds
    said = "Not worse by 0.5 % (95 %, one-sided); whether it is equivalent or better is open: 0.5 %"
    assert found.sentence.startswith(said) and found.sentence.endswith(" seeds")


def test_one_seed_says_nothing_of_order() -> None:
    for gap in (0.5, 0.0, -0.5):
        found = verdict_on(gap)
        assert found.kind is Kind.NOT_ORDERED and not found.ordered and not found.holds
        assert found.sentence == "Not ordered: one seed, so that the noise between seeds is unknown"
        assert math.isnan(found.difference_p) and math.isnan(found.half_width)


def test_seeds_that_share_a_baseline_run_are_no_pairs() -> None:
    shared = dataclasses.replace(evidence(0.001, 0.001, 0.001), twins=["bf16"] * 3)
    found = judge([shared], STATED)[0]
    assert found.kind is Kind.NOT_ORDERED
    assert found.sentence.startswith("Not ordered: seeds that share a baseline run")


def test_a_diverged_seed_decides_whatever_the_others_do() -> None:
    found = verdict_on(0.0, 0.0001, 0.0002, 0.0001, diverged=1)
    assert found.kind is Kind.DIVERGED and not found.holds and math.isnan(found.gap.mean)
    # One of four: Clopper and Pearson give 0.63 to 80.6 %.
    assert found.sentence == (
        "Diverged in 1 of 4 seeds (95 % interval of the rate: 1 to 81 %); no gap is given for the "
        "others"
    )
    assert verdict_on(NAN, diverged=1).sentence == "Diverged in its only seed"
    both = judge([evidence(NAN, NAN, diverged=2, twins_diverged=1)], STATED)[0]
    assert both.sentence == (
        "Diverged in 2 of 2 seeds (95 % interval of the rate: 16 to 100 %), its baseline in 1"
    )


def test_a_baseline_that_diverged_or_lacks_leaves_no_verdict() -> None:
    found = judge([evidence(0.0, -3.0, twins_diverged=1)], STATED)[0]
    assert found.kind is Kind.UNPAIRED
    assert found.sentence == "No verdict: the baseline itself diverged in 1 of 2 seeds"
    assert verdict_on(0.001, NAN, 0.001).kind is Kind.UNPAIRED


def test_from_six_seeds_signs_are_flipped_too() -> None:
    assert math.isnan(verdict_on(*[0.012] * 4, 0.013).sign_flip_p)
    assert verdict_on(*[0.012] * 5, 0.013).sign_flip_p == 2.0 / 64.0


def test_identical_runs_are_equivalent() -> None:
    found = verdict_on(0.0, 0.0, 0.0)
    assert found.kind is Kind.EQUIVALENT and found.gap_text == "0.0 % ± 0.0 %"


# --- the design -----------------------------------------------------------------------------------


def test_an_unstated_margin_is_told_in_the_sentence() -> None:
    unstated = Design()
    told = [
        verdict_on(*gaps, design=unstated).sentence
        for gaps in (
            (0.0, 0.002, 0.0015, 0.0005),
            (0.011, 0.012, 0.013, 0.012),
            (-0.004, 0.004, 0.002),
        )
    ]
    assert told[0] == "Equivalent within 0.5 % (95 %; margin not stated beforehand)"
    assert told[1] == "Worse by 1.20 % ± 0.13 % (margin not stated beforehand)"
    assert all("margin not stated beforehand" in sentence for sentence in told)


def test_an_interval_beyond_the_margin_has_that_of_the_tests_beside_it() -> None:
    # Deviation 0.003 of four: 0.48 % at 5 % two-sided, which reaches beyond 0.5 %, and 0.35 % at
    # 5 % one-sided, which does not.
    found = verdict_on(0.0036, 0.0036, -0.0016, -0.0016)
    sd = 0.0026 * math.sqrt(4.0 / 3.0)
    assert found.kind is Kind.EQUIVALENT and found.shows_one_sided
    assert found.half_width == pytest.approx(3.182446 * sd / 2.0)
    assert found.equivalence_half_width == pytest.approx(2.353363 * sd / 2.0)
    assert found.sentence == "Equivalent within 0.5 % (95 %, one-sided tests: +0.1 % ± 0.4 %)"
    assert not verdict_on(0.0, 0.002, 0.0015, 0.0005).shows_one_sided
    assert not verdict_on(0.011, 0.012, 0.013, 0.012).shows_one_sided


def test_margin_and_level_are_those_of_the_design() -> None:
    gaps = (0.004, 0.006, 0.005, 0.005)
    assert verdict_on(*gaps).kind is Kind.WORSE
    wide = dataclasses.replace(STATED, margin=0.01, alpha=0.1)
    assert verdict_on(*gaps, design=wide).sentence == "Equivalent within 1 % (90 %)"


def test_arms_are_corrected_together() -> None:
    # Difference p of each arm: 0.03 (t = 3.9, 3 degrees); of two such arms none passes at 0.025.
    gaps = (0.04, 0.018, 0.05, 0.018)
    alone = verdict_on(*gaps)
    assert alone.kind is Kind.WORSE and 0.025 < alone.difference_p < 0.05
    pair = judge([evidence(*gaps), evidence(*gaps, of="another")], STATED)
    assert [v.kind for v in pair] == [Kind.INCONCLUSIVE] * 2
    assert [v.arms for v in pair] == [2, 2]
    assert pair[0].half_width == pytest.approx(inference.half_width(alone.gap.sd, 4, 0.025))
    # The interval of a decision agrees with it: it holds zero where nothing is told apart.
    assert pair[0].half_width > pair[0].gap.mean > alone.half_width
    # Beside an arm that is clearly worse the second one meets the whole level.
    clear = evidence(0.1, 0.1001, 0.1, 0.0999, of="another")
    stepped = judge([evidence(*gaps), clear], STATED)
    assert [v.kind for v in stepped] == [Kind.WORSE, Kind.WORSE]


def test_diverged_arms_stay_in_the_family() -> None:
    gaps = (0.04, 0.018, 0.05, 0.018)
    broken = evidence(*gaps, diverged=1)
    assert judge([evidence(*gaps), broken], STATED)[0].kind is Kind.INCONCLUSIVE
    # One seed, no pair and the baseline itself are no tests whatever their outcome.
    baseline = dataclasses.replace(evidence(NAN, NAN), is_baseline=True)
    others = [evidence(0.1), evidence(0.1, diverged=1), evidence(0.1, NAN), baseline]
    found = judge([evidence(*gaps), *others], STATED)
    assert found[0].kind is Kind.WORSE
    assert [v.kind for v in found[1:]] == [
        Kind.NOT_ORDERED,
        Kind.DIVERGED,
        Kind.UNPAIRED,
        Kind.BASELINE,
    ]


def test_looks_are_corrected() -> None:
    gaps = (0.04, 0.018, 0.05, 0.018)
    looked = dataclasses.replace(STATED, looks=3)
    found = verdict_on(*gaps, design=looked)
    assert found.kind is Kind.INCONCLUSIVE
    level = 0.05 / 3
    assert found.half_width == pytest.approx(inference.half_width(found.gap.sd, 4, level))
    assert found.seeds_needed == inference.seeds_for_margin(0.005, found.gap.sd, level, 0.9)


def test_numbers_have_the_digits_of_their_error() -> None:
    assert measured(0.012, 0.003) == "1.2 % ± 0.3 %"
    assert measured(0.01234, 0.00132) == "1.23 % ± 0.13 %"
    assert measured(-0.25, 0.04) == "−25.0 % ± 4.0 %"
    assert measured(0.003, 0.02) == "0.3 % ± 2.0 %" and measured(0.04, 0.127) == "4 % ± 13 %"
    assert measured(0.00012345) == "0.012 %"
    assert measured(0.0) == "0.0 %"


# --- studies --------------------------------------------------------------------------------------


RECIPES = (
    make_example_run.RECIPES[0],
    SyntheticRecipe("alike", "e4m3fn 1x128 pow2", 31.5, 0.0005, 1e-9, 0.25),
    SyntheticRecipe("worse", "e4m3fn tensor fp32", 29.0, 0.01, 0.05, 0.0001),
    make_example_run.RECIPES[3],
)
SEEDS = range(1, 7)


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of six seeds with a stated margin; tests must not write into it."""
    folder = tmp_path_factory.mktemp("verdicts")
    make_example_run.make_example(folder, RECIPES, SEEDS, StatedDesign(margin=0.01))
    return folder


def summaries_of(folder: Path) -> dict[str, compare.GroupSummary]:
    """Summaries by group label."""
    return {s.group.label: s for s in compare.summarise(study.load_study([folder]))}


def told(folder: Path) -> str:
    """All findings."""
    found = study.load_study([folder])
    return "\n".join(f"{f.topic}: {f.text}" for f in make_findings(found, compare.summarise(found)))


def held_out(recipe: SyntheticRecipe, seed: int) -> float:
    """The last held-out loss that the example writes."""
    return float(make_example_run.loss_curve(recipe, seed)[-1]) + 0.03


def test_verdicts_of_a_study_are_those_of_its_held_out_losses(example: Path) -> None:
    found = summaries_of(example)
    assert {label: s.verdict.kind for label, s in found.items()} == {
        "bf16": Kind.BASELINE,
        "alike": Kind.EQUIVALENT,
        "worse": Kind.WORSE,
        "e5m2_tensor": Kind.DIVERGED,
    }
    ours, twins = ([held_out(RECIPES[r], seed) for seed in SEEDS] for r in (2, 0))
    gaps = inference.relative_gaps(ours, twins)
    verdict = found["worse"].verdict
    assert found["worse"].judged_on == "held-out" and found["worse"].gap_stage == "sft"
    assert verdict.gap.mean == pytest.approx(gaps.mean())
    assert verdict.gap.sd == pytest.approx(np.std(gaps, ddof=1))
    assert verdict.arms == 3 and verdict.design.margin == 0.01
    pooled = "variance moderated over 2 arms"
    assert found["alike"].verdict.sentence == f"Equivalent within 1 % (95 %; {pooled})"


def test_first_page_says_the_verdicts(example: Path) -> None:
    text = told(example)
    pooled = "variance moderated over 2 arms"
    assert f"Equivalent: alike: Equivalent within 1 % (95 %; {pooled}); gap " in text
    assert re.search(rf"Worse: worse: Worse by \d+\.\d % ± 0\.\d+ % \({pooled}\)\.", text)
    assert "e5m2_tensor diverged in 6 of 6 seeds (95 % interval of the rate: 54 to 100 %)" in text
    assert "Held-out loss after sft, each run beside the bf16 run of its seed (6 seeds)" in text
    assert "5 % over 3 arms and 1 look (stated 2026-01-02T03:04:05Z)" in text
    assert "by seed, its variance moderated over 2 arms. The noise of the held-out set" in text
    assert "alike (e4m3fn 1x128 pow2), at 0.25 scale bits per element: shown to be not" in text
    assert "not stated beforehand" not in text


def test_arms_whose_runs_are_not_there_stay_in_the_correction(tmp_path: Path) -> None:
    recipes = [RECIPES[0], *(dataclasses.replace(RECIPES[2], name=f"r{i}") for i in range(4))]
    make_example_run.make_example(tmp_path, recipes, (1, 2, 3), StatedDesign())
    whole = summaries_of(tmp_path)
    assert [s.verdict.arms for s in whole.values()] == [0, 4, 4, 4, 4]
    for seed in (1, 2, 3):  # no run of one arm, one of another
        shutil.rmtree(tmp_path / f"r3-seed{seed}")
        if seed > 1:
            shutil.rmtree(tmp_path / f"r2-seed{seed}")
    found = summaries_of(tmp_path)
    assert [s.verdict.arms for s in found.values()] == [0, 4, 4, 0]
    assert found["r2"].verdict.kind is Kind.NOT_ORDERED
    noise = found["r0"].verdict.noise
    assert noise.pool == 2 and noise.df > 2.0
    assert found["r0"].verdict.half_width in (
        inference.half_width(noise.sd, 3, 0.05 / left, noise.df) for left in (4, 3)
    )
    assert "5 % over 4 arms" in told(tmp_path)
    with h5py.File(tmp_path / "study.h5", "a") as file:  # listed for one seed: never tested
        file["arms/baseline_arm"][...] = [
            name if not name or not arm.startswith(b"r3") else b"bf16-seed1"
            for arm, name in zip(file["arms/name"][...], file["arms/baseline_arm"][...])
        ]
    assert [s.verdict.arms for s in summaries_of(tmp_path).values()] == [0, 3, 3, 0]


def test_without_a_stated_margin_the_page_says_so(example: Path, tmp_path: Path) -> None:
    changed(example, tmp_path)
    with h5py.File(tmp_path / "study.h5", "a") as file:
        del file["design"]
    assert study.load_study([tmp_path]).design == Design()
    text = told(tmp_path)
    assumed = "variance moderated over 2 arms; margin not stated beforehand"
    assert f"Equivalent within 0.5 % (95 %; {assumed})" in text
    assert "(not stated beforehand)" in text


def changed(example: Path, folder: Path) -> Path:
    """The example with a study.h5 to write into; its runs are those of the example."""
    for path in example.iterdir():
        if path.is_dir():
            (folder / path.name).symlink_to(path)
    (folder / "study.h5").write_bytes((example / "study.h5").read_bytes())
    return folder / "study.h5"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("margin", 0.0, "margin 0.0 is no fraction"),
        ("margin", NAN, "margin nan is no fraction"),
        ("alpha", 0.5, "alpha 0.5 is not between"),
        ("power", 1.0, "power 1.0 is not between"),
        ("looks", 0, "looks 0 is not between"),
        ("looks", 1.5, "looks 0 is not between"),
        ("margin", "much", "/design margin is no number"),
        ("stated", "", "does not say when it was stated"),
        ("power", None, "/design has no attribute 'power'"),
    ],
)
def test_a_design_that_cannot_be_is_refused(
    example: Path, tmp_path: Path, name: str, value: object, expected: str
) -> None:
    with h5py.File(changed(example, tmp_path), "a") as file:
        del file["design"].attrs[name]
        if value is not None:
            file["design"].attrs[name] = value
    with pytest.raises(InputError, match=re.escape(expected)):
        study.load_study([tmp_path])


def test_studies_of_different_margins_are_judged_by_neither(example: Path, tmp_path: Path) -> None:
    with h5py.File(changed(example, tmp_path), "a") as file:
        file["design"].attrs["margin"] = 0.2
    found = study.load_study([example, tmp_path])
    assert found.design == Design()
    assert "different margins" in found.notes[-1]
    with h5py.File(tmp_path / "study.h5", "a") as file:
        file["design"].attrs["margin"] = 0.01
        file["design"].attrs["stated"] = "2026-02-01T00:00:00Z"
    assert study.load_study([example, tmp_path]).design.margin == 0.01


def copied(example: Path, folder: Path) -> None:
    """The runs of the example, to write into."""
    for path in example.glob("*/run.h5"):
        (folder / path.parent.name).mkdir()
        (folder / path.parent.name / "run.h5").write_bytes(path.read_bytes())
    (folder / "study.h5").write_bytes((example / "study.h5").read_bytes())


def cut_evaluations(path: Path, rows: int) -> None:
    """Leaves the first evaluations alone, of a run that goes on."""
    with h5py.File(path, "a") as file:
        for item in file["eval"].values():
            item.resize(rows, axis=0)
        file["complete"].resize(0, axis=0)


def test_pairs_are_compared_at_the_last_evaluation_that_both_have(
    example: Path, tmp_path: Path
) -> None:
    copied(example, tmp_path)
    cut_evaluations(tmp_path / "worse-seed2" / "run.h5", 6)  # steps 20 to 120
    found = summaries_of(tmp_path)["worse"]
    losses = [make_example_run.loss_curve(RECIPES[row], 2)[119] + 0.03 for row in (2, 0)]
    assert found.seed_gaps[1] == pytest.approx(losses[0] / losses[1] - 1.0)
    assert "unfinished" in told(tmp_path)


def test_arms_without_evaluations_are_judged_on_the_training_loss(
    example: Path, tmp_path: Path
) -> None:
    copied(example, tmp_path)
    cut_evaluations(tmp_path / "worse-seed2" / "run.h5", 0)
    found = summaries_of(tmp_path)
    assert found["worse"].judged_on == "training" and found["alike"].judged_on == "held-out"
    ours, twins = (
        [make_example_run.loss_curve(RECIPES[row], seed)[-10:].mean() for seed in SEEDS]
        for row in (2, 0)
    )
    assert found["worse"].seed_gaps == pytest.approx(inference.relative_gaps(ours, twins))


def test_training_losses_of_a_pair_end_at_the_same_step(example: Path, tmp_path: Path) -> None:
    copied(example, tmp_path)
    for name, rows in (("worse-seed2", 130), ("bf16-seed1", 125)):
        cut_evaluations(tmp_path / name / "run.h5", 0)
        with h5py.File(tmp_path / name / "run.h5", "a") as file:
            for item in file["metrics"].values():
                item.resize(rows, axis=0)
    found = summaries_of(tmp_path)["worse"]
    for seed, end in ((1, 125), (2, 130)):
        ours, twin = (
            make_example_run.loss_curve(RECIPES[row], seed)[end - 10 : end].mean() for row in (2, 0)
        )
        assert found.seed_gaps[seed - 1] == pytest.approx(ours / twin - 1.0)


def test_a_broken_held_out_loss_is_a_diverged_seed(example: Path, tmp_path: Path) -> None:
    copied(example, tmp_path)
    with h5py.File(tmp_path / "alike-seed3" / "run.h5", "a") as file:
        file["eval/loss"][-1] = np.nan
    found = summaries_of(tmp_path)["alike"].verdict
    assert found.kind is Kind.DIVERGED and found.diverged == 1
    with h5py.File(tmp_path / "bf16-seed3" / "run.h5", "a") as file:
        file["metrics/loss"][-1] = np.nan
    summaries = summaries_of(tmp_path)
    assert summaries["worse"].verdict.kind is Kind.UNPAIRED
    assert "the baseline itself diverged in 1 of 6 seeds" in told(tmp_path)


def test_departures_are_the_first_of_all_seeds(example: Path) -> None:
    found = summaries_of(example)["worse"]
    steps = [
        next(s for s in item.stages.values() if s.first_departure is not None)
        for item in found.runs
    ]
    first = min(steps, key=lambda s: s.first_departure or 0)
    assert found.first_departure == (first.first_departure, first.stage, 6)
    assert f"worse at step {first.first_departure} ({first.stage}; 6 of 6 seeds)" in told(example)
    assert summaries_of(example)["alike"].first_departure is None


def test_page_shows_chips_words_and_tables(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        figures, "FIGURES", tuple(f for f in figures.FIGURES if f.name == "overview")
    )
    assert report.main([str(example), "--out", str(tmp_path)]) == 0
    text = (tmp_path / "index.html").read_text()
    for kind in ("equivalent", "worse", "diverged"):
        assert f'<span class="chip {kind}">{kind}' in text
    assert "the one stated at 2026-01-02T03:04:05Z" in text
    with (tmp_path / "tables" / "verdicts.csv").open() as file:
        rows = {row["recipe"]: row for row in csv.DictReader(file)}
    pooled = "variance moderated over 2 arms"
    assert rows["alike"]["in words"] == f"Equivalent within 1 % (95 %; {pooled})"
    assert rows["alike"]["arms of the pool"] == "2"
    assert float(rows["alike"]["degrees of freedom"]) > 5.0
    assert float(rows["worse"]["p difference"]) < 0.05
    assert rows["e5m2_tensor"]["gap (%)"] == "" and rows["e5m2_tensor"]["diverged seeds"] == "6"
    assert float(rows["worse"]["p sign flips"]) == pytest.approx(2.0 / 64.0)


# --- speed at equal quality -----------------------------------------------------------------------


def write_losses(path: Path, held_out: list[float], seconds: float, scale: float = 1.0) -> None:
    """Puts held-out losses (every 20 steps) and seconds a step into a run; a training loss that
    differs from the start of cpt on when `scale` is not 1."""
    with h5py.File(path, "a") as file:
        file["eval/loss"][...] = held_out
        steps = file["metrics/step"][...].astype(float)
        shared = np.minimum(steps, 40.0)
        file["metrics/seconds"][...] = 2.0 * shared + seconds * (steps - shared)
        file["metrics/loss"][40:] *= scale


def pair(folder: Path, losses: list[float], seconds: float = 0.25) -> speed.EqualQuality | None:
    """A run of these held-out losses beside a baseline that ends at 1.0 after 140 steps."""
    runs = []
    for row, name in enumerate(("bf16", "infir2")):
        path = folder / name / "run.h5"
        make_example_run.write_run(path, make_example_run.RECIPES[row], 1)
        with h5py.File(path, "a") as file:
            loss = make_example_run.loss_curve(make_example_run.RECIPES[0], 1)
            file["metrics/loss"][...] = loss
    write_losses(folder / "bf16" / "run.h5", [9.0, 9.0, 5.0, 5.0, 5.0, 1.5, 1.0], 0.5)
    write_losses(folder / "infir2" / "run.h5", losses, seconds, 1.01)
    runs = [load_run(folder / name / "run.h5") for name in ("infir2", "bf16")]
    return speed.equal_quality([(runs[0], runs[1])], "sft", 0.0)


def test_speed_is_counted_from_where_the_runs_part(tmp_path: Path) -> None:
    # 1.0 is half way between 2.0 at step 120 and 0.0 at 140; they part after step 40.
    found = pair(tmp_path, [9.0, 9.0, 5.0, 5.0, 5.0, 2.0, 0.0])
    assert found is not None and (found.seeds, found.reached) == (1, 1)
    assert found.steps.mean == pytest.approx(90.0)
    assert found.tokens.mean == pytest.approx(90.0 * make_example_run.TOKENS_PER_STEP)
    assert found.seconds.mean == pytest.approx(22.5)
    assert found.step_ratio.mean == pytest.approx(0.9)
    assert found.second_ratio.mean == pytest.approx(22.5 / 50.0)


def test_a_loss_that_is_not_reached(tmp_path: Path) -> None:
    found = pair(tmp_path, [9.0, 9.0, 5.0, 5.0, 5.0, 2.0, 1.1])
    assert found is not None and (found.seeds, found.reached) == (1, 0)
    assert math.isnan(found.steps.mean) and math.isnan(found.second_ratio.mean)


def test_within_a_margin_the_baseline_is_measured_to_the_same_loss(tmp_path: Path) -> None:
    # 1.1 lies four fifths from 2.0 to 0.875 of the run, and from 1.5 to 1.0 of the baseline.
    pair(tmp_path, [9.0, 9.0, 5.0, 5.0, 5.0, 2.0, 0.875])
    runs = [load_run(tmp_path / name / "run.h5") for name in ("infir2", "bf16")]
    found = speed.equal_quality([(runs[0], runs[1])], "sft", 0.1)
    assert found is not None and found.above == 0.1
    assert found.steps.mean == pytest.approx(80.0 + 16.0)
    assert found.step_ratio.mean == pytest.approx(1.0)


def test_the_baseline_is_measured_in_the_same_way(tmp_path: Path) -> None:
    # It ends at 1.0, which it first reaches half way to its best, 0.8.
    losses = [9.0, 9.0, 5.0, 5.0, 5.0, 1.2, 1.0]
    pair(tmp_path, losses)
    path = tmp_path / "bf16" / "run.h5"
    with h5py.File(path, "a") as file:
        file["eval/loss"][...] = [9.0, 9.0, 5.0, 5.0, 5.0, 0.9, 1.0]
    runs = [load_run(tmp_path / name / "run.h5") for name in ("infir2", "bf16")]
    found = speed.equal_quality([(runs[0], runs[1])], "sft", 0.0)
    assert found is not None  # the first evaluation of the stage, step 120, has it already
    assert found.step_ratio.mean == pytest.approx(100.0 / 80.0)


def test_seconds_of_other_devices_have_no_ratio(tmp_path: Path) -> None:
    pair(tmp_path, [9.0, 9.0, 5.0, 5.0, 5.0, 2.0, 0.0])
    path = tmp_path / "infir2" / "run.h5"
    with h5py.File(path, "a") as file:
        file["meta"].attrs["device"] = "another"
        make_example_run.seal_meta(file)
    runs = [load_run(tmp_path / name / "run.h5") for name in ("infir2", "bf16")]
    found = speed.equal_quality([(runs[0], runs[1])], "sft", 0.0)
    assert found is not None
    assert math.isnan(found.second_ratio.mean) and found.step_ratio.mean == pytest.approx(0.9)
    assert found.devices == "cpu, another; cpu, synthetic example, no device"


def test_no_speed_without_losses_or_with_a_baseline_that_goes_on(tmp_path: Path) -> None:
    losses = [9.0, 9.0, 5.0, 5.0, 5.0, 2.0, 0.0]
    pair(tmp_path, losses)
    cut_evaluations(tmp_path / "bf16" / "run.h5", 7)
    runs = [load_run(tmp_path / name / "run.h5") for name in ("infir2", "bf16")]
    assert speed.equal_quality([(runs[0], runs[1])], "sft", 0.0) is None
    assert speed.equal_quality([], "sft", 0.0) is None


def test_speed_of_a_cpu_is_in_the_table_alone(example: Path) -> None:
    text = told(example)
    assert "Speed at equal quality" not in text  # made on a CPU: tables/equal_quality.csv has it
    alike = summaries_of(example)["alike"].equal_quality
    assert [found.above for found in alike] == [0.0, 0.01]
    assert alike[1].reached == 6 > alike[0].reached
    assert alike[1].step_ratio.mean == pytest.approx(1.0, abs=0.02)
