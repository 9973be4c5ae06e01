"""How many seeds a margin needs: the plan of a study from the noise of earlier runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import h5py
import make_example_run
import numpy as np
import pytest
from make_example_run import StatedDesign, SyntheticRecipe

from fp8lab_analysis import report
from fp8lab_analysis.judge import inference, plan, pooling
from fp8lab_analysis.judge.compare import summarise
from fp8lab_analysis.judge.plan import describe, floors, needs, read_plan
from fp8lab_analysis.judge.verdicts import Kind
from fp8lab_analysis.read.study import load_study

PROGRAM = os.environ.get("FP8LAB_PROGRAM", "")
BF16, INFIR2, TE_CURRENT, DIVERGING = make_example_run.RECIPES
NEW = SyntheticRecipe("new", "e4m3fn tensor fp32", 29.0, 0.01, 0.02, 0.0001)
RECIPES = (BF16, INFIR2, TE_CURRENT)


def planned(
    folder: Path, recipes: tuple[SyntheticRecipe, ...], seeds: int, design: StatedDesign | None
) -> Path:
    """A study.h5 without a run."""
    folder.mkdir()
    arms = [(recipe, seed, 0) for recipe in recipes for seed in range(1, seeds + 1)]
    make_example_run.write_study(folder / "study.h5", arms, design)
    return folder / "study.h5"


@pytest.fixture(name="as_if_alike")
def fixture_as_if_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of homogeneity rejects: the noise of synthetic arms is mostly their baseline's."""
    monkeypatch.setattr(pooling, "HOMOGENEITY", 0.0)


@pytest.mark.usefixtures("as_if_alike")
def test_the_seeds_of_a_plan_are_those_that_verdicts_ask_for(tmp_path: Path) -> None:
    # A margin that no arm is within: every verdict is made at the first level of Holm's procedure.
    design = StatedDesign(margin=0.001, looks=2)
    make_example_run.make_example(tmp_path / "pilot", RECIPES, range(1, 7), design)
    summaries = summarise(load_study([tmp_path / "pilot"]))
    verdicts = {s.group.label: s.verdict for s in summaries}
    assert all(verdict.kind is not Kind.EQUIVALENT for verdict in verdicts.values())
    plan = read_plan(planned(tmp_path / "plan", RECIPES, 3, design))
    assert [item.label for item in plan.comparisons] == ["infir2", "te_current"]
    for need in needs(plan, floors(summaries)):
        verdict = verdicts[need.comparison.label]
        noise = verdict.noise
        assert noise.pool == 2 and noise.df > 5.0 and noise.sd != verdict.gap.sd
        assert need.floor.sd == noise.sd and need.floor.df == noise.df
        assert need.floor.source == "6 seeds of 2 arms"
        assert need.seeds == verdict.seeds_needed
        limit = inference.deviation_limit(need.floor.sd, noise.df, 0.8)
        safe = inference.seeds_for_margin(0.001, limit, plan.level, 0.9, noise.df_of)
        assert need.seeds is not None and need.safe_seeds == safe is not None
        assert safe > 1.5 * need.seeds
        assert need.comparison.seeds == 3
        shown, df = need.provable, noise.df_of(3)
        power = inference.equivalence_power(3, 0.0, need.floor.sd, shown, plan.level, df)
        assert power == pytest.approx(0.9, abs=1e-6)


def test_more_arms_and_looks_need_more(tmp_path: Path) -> None:
    two, three, looks = (
        read_plan(planned(tmp_path / name, recipes, 4, StatedDesign(looks=looks)))
        for name, recipes, looks in (
            ("two", RECIPES, 1),
            ("three", (*RECIPES, NEW), 1),
            ("looks", RECIPES, 3),
        )
    )
    assert two.level == pytest.approx(0.05 / 2) and three.level == pytest.approx(0.05 / 3)
    assert looks.level == pytest.approx(0.025 / 3) and looks.level < 0.025


def test_an_arm_of_one_seed_takes_no_part_in_the_correction(tmp_path: Path) -> None:
    path = planned(tmp_path / "plan", RECIPES, 3, StatedDesign())
    with h5py.File(path, "a") as file:  # te_current has the baseline of seed 1 alone
        names = zip(file["arms/name"][...], file["arms/baseline_arm"][...])
        file["arms/baseline_arm"][...] = [
            b"bf16-seed1" if arm.startswith(b"te_") else twin for arm, twin in names
        ]
    plan = read_plan(path)
    assert [item.seeds for item in plan.comparisons] == [3, 1] and plan.level == 0.05
    assert "5 % over 1 comparison and 1 look" in describe(plan, "s.toml", None, "")[0]
    alone = read_plan(planned(tmp_path / "alone", RECIPES, 1, StatedDesign()))
    assert alone.level == 0.05 / 2


@pytest.mark.usefixtures("as_if_alike")
def test_a_recipe_without_runs_gets_the_floor_of_all(tmp_path: Path) -> None:
    make_example_run.make_example(tmp_path / "pilot", RECIPES, (1, 2, 3))
    known = floors(summarise(load_study([tmp_path / "pilot"])))
    assert set(known) == {"infir2", "te_current", ""}
    seen = [s.verdict.gap.sd for s in summarise(load_study([tmp_path / "pilot"]))[1:]]
    assert known[""].sd == pytest.approx(np.mean(np.square(seen)) ** 0.5)
    assert known[""].df == pooling.pool_df(2, 2.0)
    plan = read_plan(planned(tmp_path / "plan", (BF16, INFIR2, NEW), 4, StatedDesign()))
    own, other = needs(plan, known)
    assert own.floor == known["infir2"] and own.floor.source == "3 seeds of 2 arms"
    assert other.floor == known[""] and other.floor.source == "all 2 arms"
    for need in (own, other):
        assert need.seeds is not None and need.safe_seeds is not None
        assert need.safe_seeds >= need.seeds >= 2
        assert (need.provable <= 0.01) == (need.seeds <= 4)


def test_without_pairs_the_pilot_is_named(tmp_path: Path) -> None:
    make_example_run.make_example(tmp_path / "lone", (BF16, INFIR2), (1,))
    lone = load_study([tmp_path / "lone"])
    assert floors(summarise(lone)) == {}
    path = planned(tmp_path / "plan", RECIPES, 5, None)
    text = "\n".join(describe(read_plan(path), "s.toml", lone, "runs/lone"))
    assert "is unknown: runs/lone compares no arm over two or more seeds" in text
    assert "the study states no [design]" in text
    assert (
        "--study s.toml --run NAME for bf16-seed1, bf16-seed2, bf16-seed3, bf16-seed4, inf" in text
    )
    assert "infir2-seed4\n" in text and "-seed5" not in text and "and more seeds" not in text
    # 5 seeds show 0.5 % at the level 0.025 with a power of 90 % where the floor is at most this.
    df = pooling.moderated_df(0.5, 2, 5)
    assert 4.0 < df <= 4.5
    largest = 0.005 / inference.provable_margin(5, 1.0, 0.025, 0.9, df)
    assert f"5 seeds show 0.5 % where the floor is at most {100 * largest:.2f} %" in text
    power = inference.equivalence_power(5, 0.0, largest, 0.005, 0.025, df)
    assert power == pytest.approx(0.9, abs=1e-6)


def test_one_seed_shows_nothing(tmp_path: Path) -> None:
    plan = read_plan(planned(tmp_path / "plan", RECIPES, 1, StatedDesign()))
    text = "\n".join(describe(plan, "s.toml", None, ""))
    assert "1 seed shows nothing" in text and "and more seeds of these, 4 in all" in text
    make_example_run.make_example(tmp_path / "pilot", RECIPES, (1, 2, 3))
    text = "\n".join(describe(plan, "s.toml", load_study([tmp_path / "pilot"]), "pilot"))
    assert text.count("nothing") == 2 and "too few seeds for 1 %: infir2, te_current" in text


def test_a_diverged_arm_tells_no_floor(tmp_path: Path) -> None:
    make_example_run.make_example(tmp_path / "pilot", (BF16, INFIR2, DIVERGING), (1, 2))
    pilot = load_study([tmp_path / "pilot"])
    assert set(floors(summarise(pilot))) == {"infir2", ""}
    plan = read_plan(planned(tmp_path / "plan", RECIPES, 2, StatedDesign()))
    text = "\n".join(describe(plan, "s.toml", pilot, "pilot"))
    assert "diverged in pilot, which tells no floor: e5m2_tensor" in text


def test_a_study_without_pairs_has_nothing_to_plan(tmp_path: Path) -> None:
    plan = read_plan(planned(tmp_path / "plan", (BF16,), 3, StatedDesign()))
    assert describe(plan, "s.toml", None, "") == [
        "no arm of this study has a baseline: there is nothing to show of its margin"
    ]


def test_the_limit_of_a_deviation_from_the_table_of_chi_square() -> None:
    # The quantile 0.2 of chi-square with 3 degrees of freedom is 1.0052.
    assert inference.deviation_limit(2.0, 3, 0.8) == pytest.approx(2.0 * (3 / 1.0052) ** 0.5, 1e-4)
    draws = np.random.default_rng(1).normal(0.0, 1.0, (20000, 4)).std(axis=1, ddof=1)
    factor = inference.deviation_limit(1.0, 3, 0.8)
    share = float(np.mean(draws * factor >= 1.0))
    assert share == pytest.approx(0.8, abs=3.0 * (0.16 / 20000) ** 0.5)


@pytest.mark.parametrize(("arms", "seeds"), [(2, 3), (7, 3), (4, 8)])
def test_the_floor_of_arms_that_share_baselines_is_safe(arms: int, seeds: int) -> None:
    rng, trials = np.random.default_rng(3), 4000
    gaps = rng.normal(size=(trials, arms, seeds)) - rng.normal(size=(trials, 1, seeds))
    deviations = gaps.std(axis=2, ddof=1) / 2.0**0.5  # the true one is 1
    pooled = [plan._pooled([(sd, seeds - 1) for sd in row], "") for row in deviations]
    assert 0.78 < np.mean([floor.safe >= 1.0 for floor in pooled]) < 0.88


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["runs"], "inputs is for a report, not for --plan"),
        (["--out", "x"], "out is for a report"),
        (["--from", "none"], "none: no such file"),
    ],
)
def test_words_that_a_plan_does_not_read_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], part: str
) -> None:
    path = planned(tmp_path / "plan", RECIPES, 2, StatedDesign())
    try:
        status = report.main(["--plan", str(path), *words])
    except SystemExit as end:
        status = int(str(end.code))
    said = capfd.readouterr()
    assert status == 2 and part in said.err and said.err.count("\n") == 1 and said.out == ""


STUDY = """
base = "base.toml"
[design]
margin = 0.02
[[axis]]
key = "recipe"
values = ["bf16", "infir2", "te_current"]
[[axis]]
key = "seed"
values = [1, 2, 3]
[[arm]]
name = "unlike"
[arm.set]
recipe = "infir2"
seed = 7
"""


@pytest.mark.skipif(not PROGRAM, reason="FP8LAB_PROGRAM names no program")
def test_the_program_plans_a_study_file(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('model = "tiny"\n[[stages]]\nname = "a"\n')
    (tmp_path / "s.toml").write_text(STUDY)

    def told(*words: str, status: int = 0) -> str:
        done = subprocess.run(
            [PROGRAM, "report", "--plan", "s.toml", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, (done.stdout, done.stderr)
        return done.stdout if status == 0 else done.stderr

    text = told()
    assert "margin 2 %, error rate 5 % over 2 comparisons and 1 look, power 90 %\n" in text
    assert "is unknown: no earlier runs" in text and "bf16-seed3, infir2-seed1" in text
    make_example_run.make_example(tmp_path / "runs" / "s", RECIPES, (1, 2, 3))
    text = told()  # the study's own folder
    assert "in runs/s (after sft)" in text and "3 seeds" in text
    assert told("--from", "runs/s") == text
    (tmp_path / "runs" / "s").rename(tmp_path / "elsewhere")
    assert told("--from", "elsewhere") == text.replace("runs/s", "elsewhere")
    assert "none: no such file" in told("--from", "none", status=2)
    assert "--out is for a report" in told("--out", "x", status=2)
    assert "earlier runs are given by --from" in told("elsewhere", status=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "base.toml",
        "elsewhere",
        "runs",
        "s.toml",
    ]
