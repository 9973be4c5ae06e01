"""Two levels of noise: the text that all seeds are evaluated on, and the seeds. Planted data, the
pairing by document, what a report says, and run files of before."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import h5py
import make_example_run
import numpy as np
import pytest
from make_example_run import StatedDesign, SyntheticRecipe
from scipy import stats as distributions

from fp8lab_analysis import report, study_page
from fp8lab_analysis.judge import compare, inference, verdicts
from fp8lab_analysis.judge.stats import Array
from fp8lab_analysis.judge.text_noise import LEAST_DOCUMENTS, TextNoise, text_noise
from fp8lab_analysis.page.findings import make_findings
from fp8lab_analysis.read import study
from fp8lab_analysis.read.run_reader import load_run

NATS = 2.5  # a token
TRUE = 0.01  # gap, relative


# --- the estimator --------------------------------------------------------------------------------


def left_out_in_loops(ours: Array, theirs: Array) -> tuple[float, float]:
    """Variance over documents of the mean gap, and the mean over seeds of each one's."""
    seeds, documents = ours.shape
    gaps = [
        [
            sum(ours[s][j] - theirs[s][j] for j in range(documents) if j != d)
            / sum(theirs[s][j] for j in range(documents) if j != d)
            for d in range(documents)
        ]
        for s in range(seeds)
    ]

    def variance(values: list[float]) -> float:
        middle = sum(values) / documents
        return (documents - 1) / documents * sum((value - middle) ** 2 for value in values)

    of_mean = variance([sum(column) / seeds for column in zip(*gaps)])
    return of_mean, sum(map(variance, gaps)) / seeds


@pytest.mark.parametrize("seeds", [1, 2, 4])
def test_the_variance_is_the_jackknife_over_documents_of_the_mean_gap(seeds: int) -> None:
    generator = np.random.default_rng(seeds)
    tokens = generator.integers(3, 400, 9)
    theirs = tokens * generator.normal(NATS, 0.2, (seeds, 9))
    ours = theirs * (1.0 + generator.normal(0.02, 0.05, (seeds, 9)))
    found = text_noise(ours - theirs, theirs)
    of_mean, of_each = left_out_in_loops(ours, theirs)
    assert found.documents == 9 and found.variance == pytest.approx(of_mean, rel=1e-9)
    quantile = float(distributions.t.ppf(0.975, 8))
    assert found.half_width(0.05) == pytest.approx(quantile * math.sqrt(of_mean), rel=1e-9)
    if seeds == 1:
        assert math.isnan(found.of_both) and math.isnan(found.half_width_of_both(0.01, 0.05))
        return
    assert found.of_both == pytest.approx((of_each - of_mean) / (seeds - 1), rel=1e-6)
    squares = 0.2**2 + quantile**2 * max(of_mean - found.of_both, 0.0)
    assert found.half_width_of_both(0.2, 0.05) == pytest.approx(math.sqrt(squares), rel=1e-9)
    assert found.half_width_of_both(0.0, 0.05) == pytest.approx(found.half_width(0.05), rel=1e-9)


def test_without_enough_or_finite_documents_there_is_none() -> None:
    few = np.ones((2, LEAST_DOCUMENTS - 1))
    assert text_noise(0.1 * few, few) == TextNoise(4, unknown="fewer than 5 documents")
    enough = np.ones((2, LEAST_DOCUMENTS))
    assert text_noise(0.1 * enough, enough).variance == pytest.approx(0.0, abs=1e-30)
    broken = enough.copy()
    broken[1, 2] = math.nan
    for numerators, denominators in ((broken, enough), (enough, broken)):
        found = text_noise(numerators, denominators)
        assert found.unknown == "a loss that is not finite" and not found.is_known
        assert math.isnan(found.half_width(0.05))


# --- what the intervals hold ----------------------------------------------------------------------


class Planted:
    """Gaps of S seeds on D documents of 40 to 400 tokens: TRUE, and parts of the seed, of the
    document and of both, of these deviations."""

    def __init__(self, seeds: int, documents: int, of_seed: float, of_text: float, of_both: float):
        self.shape = (seeds, documents)
        self.deviations = (of_seed, of_text, of_both)

    def draw(self, generator: np.random.Generator) -> tuple[TextNoise, Array, float, float]:
        """Noise of the text, gaps of the seeds, and their truth: of these seeds on any text, and
        of any seeds on this text."""
        of_seed, of_text, of_both = self.deviations
        seeds, documents = self.shape
        tokens = generator.integers(40, 401, documents)
        theirs = tokens * (NATS + generator.normal(0.0, 0.3, documents)) * np.ones(self.shape)
        added = generator.normal(0.0, of_seed, (seeds, 1))
        texts = generator.normal(0.0, of_text, documents)
        both = generator.normal(0.0, of_both, self.shape)
        ours = theirs + tokens * NATS * (TRUE + added + texts + both)
        gaps = (ours - theirs).sum(axis=1) / theirs.sum(axis=1)
        here = float((tokens * NATS * (TRUE + texts)).sum() / theirs[0].sum())
        return text_noise(ours - theirs, theirs), gaps, TRUE + float(added.mean()), here

    def coverage(self, draws: int) -> tuple[float, float, float]:
        """Share of the 95 % intervals over documents, over seeds, and over both that hold their
        truth."""
        generator = np.random.default_rng(7)
        held = np.zeros(3)
        for _ in range(draws):
            noise, gaps, anywhere, here = self.draw(generator)
            mean = float(gaps.mean())
            over_seeds = inference.half_width(float(np.std(gaps, ddof=1)), gaps.size, 0.05)
            held += (
                abs(mean - anywhere) <= noise.half_width(0.05),
                abs(mean - here) <= over_seeds,
                abs(mean - TRUE) <= noise.half_width_of_both(over_seeds, 0.05),
            )
        documents, seeds, both = held / draws
        return float(documents), float(seeds), float(both)


DRAWS = 1500
ERROR = 3.0 * math.sqrt(0.05 * 0.95 / DRAWS)

CASES = [
    Planted(seeds, documents, *deviations)
    for seeds in (2, 3, 6)
    for documents in (12, 60)
    for deviations in ((0.004, 0.02, 0.0), (0.0005, 0.03, 0.01), (0.004, 0.02, 0.03))
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.shape}, {case.deviations}")
def test_each_interval_holds_its_own_truth(case: Planted) -> None:
    documents, seeds, both = case.coverage(DRAWS)
    # The jackknife over 12 documents of unequal lengths holds slightly less than it says.
    assert 0.95 - 0.01 - ERROR < documents < 0.95 + ERROR
    assert 0.95 - ERROR < seeds < 0.95 + ERROR
    assert both > 0.95 - 0.01 - ERROR


def test_one_level_does_not_hold_the_other() -> None:
    """Where the text is most of the noise, seeds on it say little of another one; and seeds that
    scatter are not seen over documents."""
    generator = np.random.default_rng(3)
    held = np.zeros(2)
    for _ in range(400):
        noise, gaps, _, _ = Planted(4, 30, 0.0005, 0.04, 0.0).draw(generator)
        sd = float(np.std(gaps, ddof=1))
        held[0] += abs(float(gaps.mean()) - TRUE) <= inference.half_width(sd, 4, 0.05)
        noise, gaps, _, _ = Planted(4, 30, 0.02, 0.001, 0.0).draw(generator)
        held[1] += abs(float(gaps.mean()) - TRUE) <= noise.half_width(0.05)
    assert held[0] < 0.3 * 400 and held[1] < 0.3 * 400


def test_the_shared_part_is_taken_off_once() -> None:
    """Its planted size is found, and without taking it off the interval would be wider."""
    case = Planted(3, 40, 0.0, 0.0, 0.03)
    generator = np.random.default_rng(5)
    noises = [case.draw(generator)[0] for _ in range(600)]
    variance = float(np.mean([noise.variance for noise in noises]))
    shared = float(np.mean([noise.of_both for noise in noises]))
    assert shared == pytest.approx(variance, rel=0.1)  # nothing but it is there
    lengths = np.random.default_rng(1).integers(40, 401, (4000, 40)).astype(float)
    weights = np.mean(np.sum(lengths**2, axis=1) / np.sum(lengths, axis=1) ** 2)
    assert variance == pytest.approx(0.03**2 * weights / 3.0, rel=0.1)


# --- reports --------------------------------------------------------------------------------------


LITTLE = SyntheticRecipe("little", "e4m3fn 1x128 pow2", 31.5, 0.0005, 0.02, 0.25)
RECIPES = (make_example_run.RECIPES[0], LITTLE, make_example_run.RECIPES[3])
SEEDS = range(1, 4)


def change_sums(folder: Path, recipe: str, size: float) -> None:
    """Makes the losses of documents scatter by `size` nats a token around what they were, alike
    for all seeds; their means stay."""
    added = np.random.default_rng(1).normal(0.0, size, make_example_run.DOCUMENTS)
    for path in sorted(folder.glob(f"{recipe}-seed*/run.h5")):
        with h5py.File(path, "a") as file:
            tokens = file["documents/tokens"][:].reshape(-1, make_example_run.DOCUMENTS)
            centred = added - np.average(added, weights=tokens[0])
            file["documents/nats"][...] += (tokens * centred).reshape(-1)


def summary_of(folder: Path, label: str) -> compare.GroupSummary:
    found = compare.summarise(study.load_study([folder]))
    return next(s for s in found if s.group.label == label)


def told(folder: Path) -> dict[str, str]:
    """Findings by topic."""
    found = study.load_study([folder])
    return {f.topic: f.text for f in make_findings(found, compare.summarise(found))}


@pytest.fixture(name="example")
def fixture_example(tmp_path: Path) -> Path:
    make_example_run.make_example(tmp_path, RECIPES, SEEDS, StatedDesign(margin=0.01))
    return tmp_path


def sums(folder: Path, recipe: str, seed: int, stage: int = 2) -> Array:
    """Nats of the documents at the end of a stage, by document."""
    with h5py.File(folder / f"{recipe}-seed{seed}" / "run.h5") as file:
        last = file["documents/stage"][:] == stage
        nats = file["documents/nats"][:][last]
        return np.asarray(nats[np.argsort(file["documents/document"][:][last])])


def test_a_verdict_has_both_levels_and_is_made_from_one(example: Path) -> None:
    before = summary_of(example, "little").verdict
    assert before.kind is verdicts.Kind.WORSE and not before.text_leaves_sign_open
    ours = np.array([sums(example, "little", seed) for seed in SEEDS])
    theirs = np.array([sums(example, "bf16", seed) for seed in SEEDS])
    of_mean, _ = left_out_in_loops(ours, theirs)
    quantile = float(distributions.t.isf(before.level / 2.0, make_example_run.DOCUMENTS - 1))
    assert before.over_documents == pytest.approx(quantile * math.sqrt(of_mean), rel=1e-9)
    assert before.gap.mean == pytest.approx(np.mean(ours.sum(axis=1) / theirs.sum(axis=1) - 1.0))
    # Another text changes neither gap nor verdict, and the level of the documents alone.
    change_sums(example, "little", 0.2)
    after = summary_of(example, "little").verdict
    assert (after.kind, after.gap, after.half_width) == (before.kind, before.gap, before.half_width)
    assert after.over_documents > 5.0 * before.over_documents
    assert after.text_leaves_sign_open and "sign open over documents" in after.sentence
    assert after.over_both >= max(after.over_documents, after.half_width)


def test_each_stage_has_the_noise_of_its_own_documents(example: Path) -> None:
    after = summary_of(example, "little").verdicts_after
    assert list(after) == ["pretrain", "cpt", "sft"]
    for stage, verdict in enumerate(after.values()):
        ours, theirs = (
            np.array([sums(example, recipe, seed, stage) for seed in SEEDS])
            for recipe in ("little", "bf16")
        )
        assert verdict is not None and verdict.text.documents == make_example_run.DOCUMENTS
        assert verdict.text.variance == pytest.approx(left_out_in_loops(ours, theirs)[0], rel=1e-6)
    assert len({verdict.text.variance for verdict in after.values() if verdict}) == 3


def test_one_seed_has_the_level_of_the_documents_alone(tmp_path: Path) -> None:
    make_example_run.make_example(tmp_path, RECIPES[:2], (1,))
    verdict = summary_of(tmp_path, "little").verdict
    assert verdict.kind is verdicts.Kind.NOT_ORDERED and verdict.over_documents > 0.0
    assert math.isnan(verdict.half_width) and math.isnan(verdict.over_both)
    assert "Noise of the held-out text" in told(tmp_path)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("few_figures")
def test_the_page_shows_both_levels(example: Path, tmp_path: Path) -> None:
    change_sums(example, "little", 0.2)
    assert report.main([str(example), "--out", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    for words in (
        "± over seeds",
        "± over documents",
        "± over both",
        "Told from zero over seeds, but not over documents: little.",
        "All seeds are evaluated on one text of 12 documents.",
        "is not in it, but beside it",
    ):
        assert words in page
    verdict = summary_of(example, "little").verdict
    row = next(r for r in rows_of(tmp_path / "page/tables/verdicts.csv") if r["recipe"] == "little")
    for name, value in (
        ("± over seeds (%)", verdict.half_width),
        ("± over documents (%)", verdict.over_documents),
        ("± over both (%)", verdict.over_both),
    ):
        assert float(row[name]) == pytest.approx(100.0 * value)
    assert row["documents"] == "12"
    stages = rows_of(tmp_path / "page/tables/evaluation.csv")
    known = [r for r in stages if r["recipe"] == "little"]
    assert len(known) == 3 and all(float(r["± over documents (%)"]) > 0.0 for r in known)
    diverged = [r for r in stages if r["recipe"] == "e5m2_tensor"]
    assert all(r["± over documents (%)"] == "" for r in diverged)
    found = study.load_study([example])
    table = study_page.verdict_rows(found, compare.summarise(found))
    assert table[2][5] == pytest.approx(100.0 * verdict.over_both)


@pytest.mark.usefixtures("few_figures")
def test_run_files_of_before_have_a_report_that_says_so(example: Path, tmp_path: Path) -> None:
    with_documents = summary_of(example, "little").verdict
    for path in example.glob("*/run.h5"):
        with h5py.File(path, "a") as file:
            del file["documents"]
    verdict = summary_of(example, "little").verdict
    assert verdict.sentence == with_documents.sentence
    assert math.isnan(verdict.over_documents) and math.isnan(verdict.over_both)
    found = told(example)
    assert "Noise of the held-out text" not in found
    assert "not known: run files without losses by document" in found["How it was judged"]
    assert report.main([str(example), "--out", str(tmp_path / "page")]) == 0
    row = next(r for r in rows_of(tmp_path / "page/tables/verdicts.csv") if r["recipe"] == "little")
    assert row["± over documents (%)"] == "" and row["documents"] == ""
    assert "± over documents (%)" not in (tmp_path / "page/index.html").read_text(encoding="utf-8")


# --- pairing --------------------------------------------------------------------------------------


def changed(folder: Path, name: str, value: Any) -> TextNoise:
    """The noise of the text after one column of one run has another value in its last row."""
    with h5py.File(folder / "little-seed3" / "run.h5", "a") as file:
        column = file[f"documents/{name}"]
        rows = column[:]
        chosen = file["documents/stage"][:] == file["documents/stage"][:].max()
        column[...] = np.where(chosen, value(rows), rows)
    return summary_of(folder, "little").verdict.text


def test_other_texts_and_documents_are_no_pairs(example: Path) -> None:
    assert summary_of(example, "little").verdict.text.is_known
    found = changed(example, "tokens", lambda tokens: np.roll(tokens, 1))
    assert found.unknown == "runs whose documents differ" and not found.is_known
    found = changed(example, "text", lambda text: text + np.uint64(1))
    assert found.unknown == "runs evaluated on other texts"
    assert "not known: runs evaluated on other texts" in told(example)["How it was judged"]


# --- reading --------------------------------------------------------------------------------------


def resize(file: h5py.File, rows: int) -> None:
    for column in file["documents"].values():
        column.resize((rows, *column.shape[1:]))


def test_a_part_of_an_evaluation_is_none_and_one_made_again_counts_once(example: Path) -> None:
    path = example / "little-seed1" / "run.h5"
    whole = load_run(path).documents
    assert [item.step for item in whole] == [40, 100, 140]
    assert list(whole[2].document) == list(range(make_example_run.DOCUMENTS))
    with h5py.File(path, "a") as file:
        tails = {name: column[-12:] for name, column in file["documents"].items()}
        resize(file, 24 + 5)  # killed in the middle of a flush
    assert [item.step for item in load_run(path).documents] == [40, 100]
    with h5py.File(path, "a") as file:
        resize(file, 24 + 5 + 12)  # and made again
        for name, column in file["documents"].items():
            column[-12:] = tails[name]
    again = load_run(path).documents
    assert [item.step for item in again] == [40, 100, 140]
    assert np.array_equal(again[2].nats, whole[2].nats)


def test_losses_that_do_not_make_up_the_mean_are_left_out(example: Path) -> None:
    path = example / "little-seed1" / "run.h5"
    with h5py.File(path, "a") as file:
        file["documents/nats"][-1] += 40.0
    run = load_run(path)
    assert [item.step for item in run.documents] == [40, 100]
    assert any("losses by document of step 140 are left out" in note for note in run.notes)
    assert not summary_of(example, "little").verdict.text.is_known
