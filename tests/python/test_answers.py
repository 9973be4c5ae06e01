"""What the first screen says, and the numbers of figures as they are saved."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import make_example_run
import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from fp8lab_analysis.draw.drawn import drawn_rows, name_rows
from fp8lab_analysis.draw.formats import format_range
from fp8lab_analysis.judge import breaks, compare
from fp8lab_analysis.judge.operands import slot_histogram
from fp8lab_analysis.judge.short_runs import Extent, extent_of
from fp8lab_analysis.page import answers
from fp8lab_analysis.read import study
from fp8lab_analysis.read.run_reader import load_run

RECIPES = {item.name: item for item in make_example_run.RECIPES}


def example(folder: Path, *names: str, seeds: tuple[int, ...] = (1, 2)) -> study.Study:
    """A study of some of the example's recipes."""
    make_example_run.make_example(folder, [RECIPES[name] for name in names], seeds)
    return study.load_study([folder])


def told(found: study.Study) -> dict[str, list[tuple[str, str]]]:
    """Sentences by question."""
    return {a.question: a.sentences for a in answers.make_answers(found, compare.summarise(found))}


def add_event(path: Path, step: int, kind: str, message: str) -> None:
    """One more row of /events."""
    with h5py.File(path, "a") as file:
        for name, value in (("step", step), ("kind", kind), ("message", message)):
            rows = file[f"events/{name}"]
            values = [*rows[...], np.array(value).astype(rows.dtype)]
            dtype = rows.dtype
            del file[f"events/{name}"]
            file.create_dataset(f"events/{name}", data=np.array(values, dtype=dtype))


def test_the_break_of_an_arm_is_named_with_its_operands(tmp_path: Path) -> None:
    found = example(tmp_path, "bf16", "e5m2_tensor")
    said = told(found)
    ((kind, text),) = said["Why did that arm break?"]
    assert kind == "bad"
    assert text.startswith("e5m2_tensor, seed 1: the loss stopped being finite at step 130 (sft)")
    assert "first seen at step 130: layers.1.mlp.down/dgrad.dy: 3 elements" in text
    run = load_run(tmp_path / "e5m2_tensor-seed1" / "run.h5")
    row = run.tensors.step.tolist().index(120)
    column = int(np.argmin(run.tensors.get("sqnr_db")[row]))
    name = f"{run.tensors.layer[column]}/{run.tensors.slot[column]}"
    value = run.tensors.get("sqnr_db")[row, column]
    assert f"At step 120, logged before it: lowest SQNR {value:.1f} dB ({name})" in text
    assert ("bad", "No, e5m2_tensor (loss not finite, diverged).") in said["May I use it?"]


def test_the_warning_before_a_break_is_named(tmp_path: Path) -> None:
    found = example(tmp_path, "bf16", "e5m2_tensor", seeds=(1,))
    ((_, text),) = told(found)["Why did that arm break?"]
    assert (
        "The detector of amax lag warned at step 40, 90 steps before the loss broke, most in "
        "layers.0.attention.qkv/dgrad.dy." in text
    )
    path = tmp_path / "e5m2_tensor-seed1" / "run.h5"
    with h5py.File(path, "a") as file:
        warnings = file["warnings"]
        lag = np.flatnonzero(warnings["detector"].asstr()[:] == "amax_lag")
        warnings["channel"][lag] = 12
        late = lag[warnings["step"][lag] < 120]
        warnings["score"][late] = 0.5
    ((_, text),) = told(study.load_study([tmp_path]))["Why did that arm break?"]
    assert "warned at step 120, 10 steps before the loss broke, most in layers.0.att" in text
    assert "dgrad.dy, channel 12. At step 120, logged before" in text
    with h5py.File(path, "a") as file:
        file["warnings/score"][:] = 0.5
    ((_, text),) = told(study.load_study([tmp_path]))["Why did that arm break?"]
    assert "No detector warned before." in text
    with h5py.File(path, "a") as file:  # a run that did not watch
        del file["warnings"]
    ((_, text),) = told(study.load_study([tmp_path]))["Why did that arm break?"]
    assert "warned" not in text


def test_a_loss_that_runs_away_breaks_where_it_leaves_for_good(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    make_example_run.write_run(path, RECIPES["infir2"], 1)
    with h5py.File(path, "a") as file:
        file["metrics/loss"][120:] = 5.0  # steps 121 to 140, in sft
        file["eval/loss"][-1] = 5.0
    run = load_run(path)
    found = breaks.find_break(run, run.stage_names)
    assert found is not None and found.finite and found.stage == "sft"
    assert found.step in (121, 122)  # smoothing may take a row
    assert found.before is not None and found.before.step == 120
    assert breaks.find_break(load_run(path), ["pretrain", "cpt"]) is None
    assert found.event is None
    for step, seen in ((60, False), (121, True)):
        add_event(path, step, "spike", "loss 5, a spike; layers.0.mlp.down/fprop.x: amax 9")
        found = breaks.find_break(load_run(path), run.stage_names)
        assert found is not None and (found.event is not None) == seen
    assert "first seen at step 121: loss 5, a spike; layers.0" in answers.break_text("x", found)
    with h5py.File(path, "a") as file:
        file["metrics/loss"][119:] = np.nan  # what step 120 logged may be of the break itself
    found = breaks.find_break(load_run(path), run.stage_names)
    assert found is not None and not found.finite and found.step == 120
    assert found.before is not None and found.before.step == 100


def test_what_is_shown_to_hold_may_be_used(tmp_path: Path) -> None:
    for seed in range(1, 7):
        for number, recipe in enumerate(("bf16", "infir2")):
            path = tmp_path / f"{number}-{recipe}-{seed}" / "run.h5"
            make_example_run.write_run(path, RECIPES[recipe], seed)
            with h5py.File(path, "a") as file:
                file["meta"].attrs["config_text"] = f'recipe = "{recipe}"\nseed = {seed}\n'
                make_example_run.seal_meta(file)
                file["eval/loss"][...] = 1.0 + 1.23e-4 * number + 1e-5 * (seed - 3.5) * number
    ((kind, text),) = told(study.load_study([tmp_path]))["May I use it?"]
    assert kind == "good"
    assert text == (
        "Yes, infir2 (+0.012 %): shown to be not worse than bf16 by 0.5 % (95 %, one-sided), "
        "after 40 steps and 40 960 tokens of sft."
    )


@pytest.mark.parametrize(("fewer", "told_so"), [(31, True), (30, True), (10, False)])
def test_a_yes_of_a_short_run_says_so(tmp_path: Path, fewer: int, told_so: bool) -> None:
    """Stages of 40 steps whose last rows are missing have 9, 10 and 30."""
    runs = []
    for seed in (1, 2):
        path = tmp_path / f"bf16-{seed}" / "run.h5"
        make_example_run.write_run(path, RECIPES["bf16"], seed)
        with h5py.File(path, "a") as file:
            for column in file["metrics"].values():
                column.resize(column.shape[0] - fewer, axis=0)
        runs.append(load_run(path))
    extent = extent_of(runs, "sft")
    assert extent.steps == 40 - fewer and extent.text.startswith(f"{40 - fewer} steps and ")
    assert bool(extent.caveat) == told_so
    assert not told_so or extent.caveat == (
        f"short runs: {40 - fewer} steps, a gap may take 30 to show"
    )
    assert not extent_of(runs, "cpt").caveat and extent_of(runs, "other") == Extent()


def test_warm_up_and_few_tokens_are_said_in_the_verdict_itself(tmp_path: Path) -> None:
    """Steps of 40 of which the warm-up leaves 28; fewer tokens than parameters, unless the run
    starts from trained weights."""

    def said(folder: str, config: str) -> tuple[str, str, str]:
        for seed in range(1, 7):
            for number, recipe in enumerate(("bf16", "infir2")):
                path = tmp_path / folder / f"{number}-{recipe}-{seed}" / "run.h5"
                make_example_run.write_run(path, RECIPES[recipe], seed)
                with h5py.File(path, "a") as file:
                    text = f'recipe = "{recipe}"\nseed = {seed}\n{config}'
                    file["meta"].attrs["config_text"] = text
                    make_example_run.seal_meta(file)
                    file["eval/loss"][...] = 1.0 + 1.23e-4 * number + 1e-5 * (seed - 3.5) * number
        found = study.load_study([tmp_path / folder])
        ((kind, text),) = told(found)["May I use it?"]
        (arm,) = [s for s in compare.summarise(found) if not s.group.is_baseline]
        return kind, text, arm.verdict.sentence

    stage = '[[stages]]\nname = "sft"\nlearning_rate = {warmup_steps = %d}\n'
    start = 'init_from = "x"\n'
    kind, text, sentence = said("warm", start + stage % 12)
    caveat = "short runs: 28 steps after 12 of warm-up, a gap may take 30 to show"
    assert kind == "caution" and caveat in text and caveat in sentence
    kind, text, sentence = said("enough", start + stage % 10)
    assert kind == "good" and "after 40 steps and " in text and "short runs" not in text + sentence
    kind, text, sentence = said("tokens", stage % 10)
    assert kind == "caution" and "tokens per parameter from random weights)" in text
    assert "tokens per parameter from random weights" in sentence


def test_runs_that_lack_are_told_on_the_first_screen(tmp_path: Path) -> None:
    example(tmp_path, "bf16", "infir2", "te_current", "e5m2_tensor", seeds=(1, 2, 3))
    assert "the last word" not in str(told(study.load_study([tmp_path])))  # what diverged ended
    shutil.rmtree(tmp_path / "infir2-seed3")
    with h5py.File(tmp_path / "te_current-seed2" / "run.h5", "a") as file:
        del file["complete"]
        make_example_run.add(file, "complete", np.zeros(0, dtype=np.uint64), "hash")
    kind, text = told(study.load_study([tmp_path]))["May I use it?"][-1]
    assert kind == "caution"
    assert text == "Not the last word: 1 run not complete, 1 run not there."


def test_an_open_arm_is_settled_by_seeds_that_it_does_not_have(tmp_path: Path) -> None:
    for seed in range(1, 5):
        for number, recipe in enumerate(("bf16", "infir2")):
            path = tmp_path / f"{number}-{recipe}-{seed}" / "run.h5"
            make_example_run.write_run(path, RECIPES[recipe], seed)
            with h5py.File(path, "a") as file:
                file["meta"].attrs["config_text"] = f'recipe = "{recipe}"\nseed = {seed}\n'
                make_example_run.seal_meta(file)
                file["eval/loss"][...] = 1.0 + number * (0.006 + 0.0035 * (-1) ** (seed // 2))
    found = study.load_study([tmp_path])
    verdict = compare.summarise(found)[1].verdict
    assert verdict.seeds_needed != verdict.seeds_to_differ is not None  # beyond the margin
    (sentence,) = told(found)["May I use it?"]
    need = f"about {verdict.seeds_to_differ} seeds would settle it if the gap is as seen"
    assert need in sentence[1]


def test_one_seed_and_nothing_broken(tmp_path: Path) -> None:
    said = told(example(tmp_path, "bf16", "infir2", "te_current", seeds=(1,)))
    ((kind, text),) = said["May I use it?"]
    assert kind == "caution" and text.startswith("Not known: one seed of infir2, te_current")
    assert said["Why did that arm break?"][0] == (
        "good",
        "No arm broke: every loss stayed finite and did not run away.",
    )
    costs = [text for _, text in said["What did it cost?"]]
    # The speed of the CPU emulator is none of the formats'.
    assert costs == ["Bits of scale per element: 0.0001 te_current; 0.25 infir2."]


# --- ranges of formats and histograms against them ------------------------------------------------


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("e4m3fn/1x128/pow2", (-9, -6, 8)),  # 448 = 1.75 x 2^8
        ("e5m2/tensor/fp32", (-16, -14, 15)),  # 57344 = 1.75 x 2^15
        ("e4m3_240/tensor", (-9, -6, 7)),  # 240 = 1.875 x 2^7
        ("e4m3fnuz/row", (-10, -7, 7)),
        ("binary8p4se/row", (-10, -7, 7)),
        ("binary8p1se", (-63, -63, 62)),
        ("binary8p1uf", (-127, -127, 126)),
        ("e2m1/1x16", (-1, 0, 2)),  # 6 = 1.5 x 2^2
        ("e3m4/1x32", (-6, -2, 4)),
        ("e4m3fnb11", (-13, -10, 4)),
        ("bf16", None),
        ("int8/row", None),
    ],
)
def test_ranges_of_formats(label: str, expected: tuple[int, int, int] | None) -> None:
    found = format_range(label)
    assert (found and (found.lowest, found.normal, found.top)) == expected


def test_a_histogram_is_in_units_of_the_scale(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    make_example_run.write_run(path, RECIPES["infir2"], 1)
    with h5py.File(path, "a") as file:
        bins = np.zeros(file["tensors/exponent_histogram"].shape)
        bins[:, :, 43] = 1.0  # everything in [2^3, 2^4)
        file["tensors/exponent_histogram"][...] = bins
        file["tensors/scale_max"][...] = 2.0**-5
        file["tensors/scale_min"][...] = 2.0**-7
    (group,) = study.load_study([path]).groups
    found = slot_histogram(group, "dgrad.dy")
    assert found is not None and found.octaves == 2.0
    assert found.fractions.max() == 1.0
    assert found.exponents[found.fractions.argmax()] == 8.0  # 3 + 5


# --- the numbers of a figure ----------------------------------------------------------------------


def test_everything_drawn_is_read_back() -> None:
    figure = Figure()
    with matplotlib.rc_context():
        left, right = figure.subplots(1, 2)
    left.set_title("here", loc="left")
    left.plot([1.0, 2.0], [5.0, 6.0], label="line")
    left.axhline(3.0)
    left.errorbar([4.0], [1.0], xerr=[[0.5], [0.25]], label="whiskers")
    left.fill_between([1.0, 2.0, 3.0], [0.0, 1.0, 2.0], [4.0, 3.0, 6.0], label="band")
    right.barh([0], [2.0], left=[1.0], label="bar", xerr=0.5)
    right.imshow(np.array([[1.0, 2.0], [3.0, 4.0]]))
    right.set_yticks([0, 1], ["first", "second"])
    rows = drawn_rows(figure)
    shown = [(r.panel, r.series, r.kind, r.x, r.y, r.low, r.high, r.value) for r in rows]
    assert [item for item in shown if item[0] == 1] == [
        (1, "whiskers", "point", 4.0, 1.0, 3.5, 4.25, ""),
        (1, "line", "point", 1.0, 5.0, "", "", ""),
        (1, "line", "point", 2.0, 6.0, "", "", ""),
        (1, "band", "band", 1.0, 2.0, 0.0, 4.0, ""),
        (1, "band", "band", 2.0, 2.0, 1.0, 3.0, ""),
        (1, "band", "band", 3.0, 4.0, 2.0, 6.0, ""),
    ]
    assert [item for item in shown if item[0] == 2] == [
        (2, "bar", "bar", 3.0, "first", 1.0, 3.0, ""),
        (2, "", "cell", 0.0, "first", "", "", 1.0),
        (2, "", "cell", 1.0, "first", "", "", 2.0),
        (2, "", "cell", 0.0, "second", "", "", 3.0),
        (2, "", "cell", 1.0, "second", "", "", 4.0),
    ]
    assert {r.title for r in rows if r.panel == 1} == {"here"}
    name_rows(right, ["alpha", "beta"])
    assert {r.y for r in drawn_rows(figure) if r.kind == "cell"} == {"alpha", "beta"}


def test_hidden_panels_and_colour_bars_are_no_panels() -> None:
    figure = Figure()
    left, right = figure.subplots(1, 2)
    figure.colorbar(left.imshow(np.eye(2)), ax=left)
    right.plot([1.0], [1.0])
    right.set_visible(False)
    assert {row.kind for row in drawn_rows(figure)} == {"cell"}
    assert len(drawn_rows(figure)) == 4


@pytest.mark.parametrize("count", [1, 2, 5])
def test_numbers_of_a_band_of_any_length(count: int) -> None:
    figure = Figure()
    axes = figure.subplots()
    x = np.arange(1.0, count + 1.0)
    axes.fill_between(x, x, 3.0 * x)
    assert [(r.x, r.low, r.high) for r in drawn_rows(figure)] == [(v, v, 3 * v) for v in x]
