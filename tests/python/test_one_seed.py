"""What a report may not say: an order from one seed, damage by scales that knew no amax, a
divergence where there was nothing to learn."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import make_example_run
import numpy as np
import pytest

from fp8lab_analysis import report
from fp8lab_analysis.draw import figures
from fp8lab_analysis.draw.operand_plots import heat_matrix
from fp8lab_analysis.draw.overview_plot import overview_order
from fp8lab_analysis.judge import compare
from fp8lab_analysis.judge.breaks import find_break
from fp8lab_analysis.judge.verdicts import Kind
from fp8lab_analysis.page.answers import break_text
from fp8lab_analysis.page.exports import scalars
from fp8lab_analysis.page.findings import make_findings
from fp8lab_analysis.read import study
from fp8lab_analysis.read.run_reader import load_run

# Words that put recipes in an order, and the sentences that may hold one of them: what is weakest
# within a recipe, and that there is no order.
ORDER = re.compile(
    r"(better|worse|best|smallest|largest|highest|lowest|closest|cheapest|holds|none of)",
    re.IGNORECASE,
)
WITHIN = (
    re.compile(r"None is better or worse than \w+ or than one another by these numbers"),
    re.compile(r"Lowest SQNR within each recipe"),
    re.compile(r"The worst tensor is a \S+ in \d of \d recipes"),
)
RECIPES = {item.name: item for item in (*make_example_run.RECIPES, make_example_run.DELAYED)}


def write_runs(folder: Path, *arms: tuple[str, int]) -> None:
    """A run for every (recipe, seed), in folders that sort as given."""
    for number, (recipe, seed) in enumerate(arms):
        path = folder / f"{number}-{recipe}" / "run.h5"
        make_example_run.write_run(path, RECIPES[recipe], seed)
        with h5py.File(path, "a") as file:
            file["meta"].attrs["config_text"] = f'recipe = "{recipe}"\nseed = {seed}\n'
            make_example_run.seal_meta(file)


def told(folder: Path) -> tuple[dict[str, compare.GroupSummary], str]:
    """Summaries by label, and all findings."""
    found = study.load_study([folder])
    summaries = compare.summarise(found)
    text = "\n".join(f"{f.topic}: {f.text}" for f in make_findings(found, summaries))
    return {s.group.label: s for s in summaries}, text


def orders(text: str) -> list[str]:
    """The words that order recipes."""
    for sentence in WITHIN:
        text = sentence.sub("", text)
    return [match.group() for match in ORDER.finditer(text)]


def test_words_of_order_are_recognised() -> None:
    assert orders("Measurably better: te_current (−0.0187 ± 0.0052).") == ["better"]
    assert orders("Smallest: a; largest: b. Cheapest that holds") == [
        "Smallest",
        "largest",
        "Cheapest",
        "holds",
    ]


def test_one_seed_orders_nothing(tmp_path: Path) -> None:
    # The gap of te_current is five times that of infir2, far beyond the noise within the runs.
    write_runs(tmp_path, ("bf16", 1), ("te_current", 1), ("infir2", 1))
    summaries, text = told(tmp_path)
    assert summaries["te_current"].final_gap.mean > 10 * summaries["te_current"].gap_error
    assert summaries["te_current"].verdict.kind is summaries["infir2"].verdict.kind
    assert summaries["infir2"].verdict.kind is Kind.NOT_ORDERED
    assert "Nothing can be ordered" in text
    assert re.search(r"te_current \+0\.0\d{3} \(in the run ±0\.\d{4}\).*; infir2 \+0\.0", text)
    assert orders(text) == []
    rows = [s.group.label for s in overview_order(list(summaries.values()))]
    assert rows == ["bf16", "te_current", "infir2"]


def test_page_of_one_seed_orders_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = tuple(spec for spec in figures.FIGURES if spec.name in ("overview", "loss"))
    monkeypatch.setattr(figures, "FIGURES", chosen)
    write_runs(tmp_path, ("bf16", 1), ("te_current", 1), ("infir2", 1))
    assert report.main([str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "index.html").read_text()
    assert text.count('<span class="chip not">not ordered</span>') == 4  # two tables
    assert not re.search(r'class="chip (better|worse|equivalent)"', text)
    assert "best on top" not in text and "above zero is worse" not in text


@pytest.mark.parametrize(
    "arms",
    [
        [("bf16", 1), ("bf16", 2), ("infir2", 1)],
        [("bf16", 1), ("bf16", 1), ("infir2", 1), ("infir2", 1)],
    ],
)
def test_two_seeds_of_both_are_needed(tmp_path: Path, arms: list[tuple[str, int]]) -> None:
    write_runs(tmp_path, *arms)
    summaries, text = told(tmp_path)
    candidates = [s for s in summaries.values() if not s.group.is_baseline]
    judged = {s.verdict.kind for s in candidates if s.group.key.recipe == "infir2"}
    assert judged == {Kind.NOT_ORDERED}
    assert "Nothing can be ordered" in text and "Loss gap" not in text and "holds" not in text


def test_a_seed_without_a_baseline_gives_no_gap(tmp_path: Path) -> None:
    write_runs(tmp_path, ("bf16", 1), ("infir2", 1), ("infir2", 2))
    summaries, text = told(tmp_path)
    assert summaries["infir2"].verdict.kind is Kind.UNPAIRED
    assert "Loss gap" not in text and "holds" not in text and "Seed band" not in text


def test_a_seed_counts_once(tmp_path: Path) -> None:
    write_runs(tmp_path, ("bf16", 1), ("bf16", 1), ("bf16", 2))
    found = study.load_study([tmp_path])
    assert [[run.seed for run in group.runs] for group in found.groups] == [[1, 2], [1]]
    assert found.groups[1].label == "bf16 (seed 1 again, 1-bf16)"


def test_two_seeds_are_ordered(tmp_path: Path) -> None:
    arms = [(recipe, seed) for seed in (1, 2) for recipe in ("bf16", "te_current", "infir2")]
    write_runs(tmp_path, *arms)
    summaries, text = told(tmp_path)
    assert "Nothing can be ordered" not in text
    assert re.search(r"smallest after sft: infir2 .*largest: te_current", text)
    rows = [s.group.label for s in overview_order(list(summaries.values()))]
    assert rows == ["bf16", "infir2", "te_current"]


# --- delayed scaling without amax history ---------------------------------------------------------


def delayed_run(folder: Path, schema: str) -> Path:
    path = folder / "te_delayed" / "run.h5"
    make_example_run.write_run(path, make_example_run.DELAYED, 1, schema)
    return path


def test_operands_without_history_enter_no_number(tmp_path: Path) -> None:
    path = delayed_run(tmp_path, make_example_run.SCHEMA)
    with h5py.File(path) as file:
        marks = file["tensors/without_history"][...] != 0
        raw = file["tensors/underflow_fraction"][...]
    slots = np.array([slot for _, slot in make_example_run.TENSORS])
    gradients = slots == "dgrad.dy"
    assert raw[marks].min() == 0.9 and raw[~marks].max() < 0.05
    run = load_run(path)
    for name in run.tensors.statistics:
        assert np.isnan(run.tensors.get(name)[marks]).all(), name
        assert np.isfinite(run.tensors.get(name)[~marks]).all(), name
    summaries, text = told(tmp_path)
    operand = summaries["te_delayed"].operands["dgrad.dy"]
    assert operand.underflow.mean == pytest.approx(raw[2:, gradients].mean())
    group = summaries["te_delayed"].group
    order = [(slot, layer) for layer, slot in make_example_run.TENSORS]
    _, values = heat_matrix(group, order, "underflow_fraction")
    assert (np.isnan(values) == marks.T).all() and np.nanmax(values) < 0.05
    assert f"te_delayed: {marks.sum()} of {marks.size} logged operands, at steps 20, 40" in text
    shown = [float(number) for number in re.findall(r"([0-9.]+) % of", text)]
    assert shown and max(shown) < 5.0


def test_first_schema_has_no_history_at_the_start_of_a_stage(tmp_path: Path) -> None:
    path = delayed_run(tmp_path, make_example_run.FIRST_SCHEMA)
    with h5py.File(path, "a") as file:
        steps = file["tensors/step"]
        steps[...] = [1, 20, 41, 60, 80, 101, 120]  # stages of 40, 60 and 40 steps
    log = load_run(path).tensors
    assert log.step[log.without_history.all(axis=1)].tolist() == [1, 41, 101]
    assert not log.without_history[[1, 3, 4, 6]].any()
    with h5py.File(path, "a") as file:
        file["tensors/format"][...] = b"e4m3fn/tensor/fp32"
    assert not load_run(path).tensors.without_history.any()


def log_sparsely(path: Path, every: int) -> None:
    """Leaves the rows of /metrics that `logging.every_steps` leaves: each stage's last is there."""
    ends = np.cumsum(make_example_run.STAGE_STEPS)
    with h5py.File(path, "a") as file:
        step = file["metrics/step"][:]
        kept = (step % every == 0) | np.isin(step, ends)
        for name in list(file["metrics"]):
            rows = file[f"metrics/{name}"]
            values = rows[:][kept]
            rows.resize(len(values), axis=0)
            rows[...] = values


@pytest.mark.parametrize("every", [1, 7, 10, 50, 1000])
def test_masks_of_old_files_begin_with_their_stages(every: int, tmp_path: Path) -> None:
    path = delayed_run(tmp_path, make_example_run.FIRST_SCHEMA)
    with h5py.File(path, "a") as file:
        file["tensors/step"][...] = [1, 10, 40, 41, 50, 100, 101]  # stages of 40, 60 and 40 steps
    log_sparsely(path, every)
    run = load_run(path)
    assert run.stage_starts.tolist() == [0, 40, 100]
    log = run.tensors
    assert log.step[log.without_history.all(axis=1)].tolist() == [1, 41, 101]
    assert not log.without_history[[1, 2, 4, 5]].any()
    names = [run.stage_of_step(step) for step in (0, *log.step)]
    assert names == ["", *["pretrain"] * 3, *["cpt"] * 3, "sft"]
    assert run.first_steps() == [(1, "pretrain"), (41, "cpt"), (101, "sft")]


@pytest.mark.parametrize("every", [1, 10, 1000])
@pytest.mark.parametrize("counted", [True, False])
def test_steps_in_another_recipe_are_told_at_the_boundary(
    every: int, counted: bool, tmp_path: Path
) -> None:
    """Of files with and without extra.stage_steps."""
    path = tmp_path / "run.h5"
    make_example_run.write_run(path, make_example_run.RECIPES[1], 1)
    with h5py.File(path, "a") as file:
        meta = file["meta"].attrs
        meta["extra.stage_recipes"] = "pretrain=infir2,cpt=bf16+infir2@5,sft=bf16"
        if counted:
            meta["extra.stage_steps"] = "40,60,40"
        make_example_run.seal_meta(file)
        file["tensors/step"][...] = [1, 40, 41, 45, 46, 100, 101]
    log_sparsely(path, every)
    log = load_run(path).tensors
    kept = np.isfinite(log.get("sqnr_db")).all(axis=1)
    assert log.step[kept].tolist() == [1, 40, 46, 100]
    assert np.isfinite(log.get("kurtosis")).all()  # of the tensor, not of its quantizer


def test_a_stage_that_has_not_begun_starts_never(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    make_example_run.write_run(path, make_example_run.RECIPES[1], 1)
    with h5py.File(path, "a") as file:
        for name in list(file["metrics"]):
            file[f"metrics/{name}"].resize(45, axis=0)
        file["complete"].resize(0, axis=0)
    run = load_run(path)
    assert run.stage_starts.tolist() == [0, 40, np.iinfo(np.int64).max]
    assert [run.stage_of_step(step) for step in (40, 41, 139)] == ["pretrain", "cpt", "cpt"]
    assert run.first_steps() == [(1, "pretrain"), (41, "cpt")]


# --- steps without targets ------------------------------------------------------------------------


def test_a_step_without_targets_is_no_divergence(tmp_path: Path) -> None:
    write_runs(tmp_path, ("bf16", 1), ("infir2", 1))
    path = tmp_path / "1-infir2" / "run.h5"
    with h5py.File(path, "a") as file:
        for step in (60, make_example_run.STEPS):
            file["metrics/loss"][step - 1] = np.nan
            file["metrics/grad_norm"][step - 1] = np.nan
    assert told(tmp_path)[0]["infir2"].verdict.kind is Kind.DIVERGED
    with h5py.File(path, "a") as file:
        events = file["events"]
        rows = events["step"].shape[0]
        for name in events:
            events[name].resize(rows + 2, axis=0)
        events["step"][rows:] = [60, make_example_run.STEPS]
        events["kind"][rows:] = b"no_targets"
        events["message"][rows:] = b"no token of this step is trained on"
        file["complete"].resize(0, axis=0)
    summaries, text = told(tmp_path)
    assert summaries["infir2"].verdict.kind is Kind.NOT_ORDERED
    assert np.isfinite(summaries["infir2"].final_gap.mean)
    assert "1-infir2: no token to learn at steps 60, 140" in text
    assert "diverged" not in text and "not finite" not in text


def test_a_step_that_a_fallback_left_out_is_no_divergence(tmp_path: Path) -> None:
    write_runs(tmp_path, ("bf16", 1), ("infir2", 1))
    path = tmp_path / "1-infir2" / "run.h5"
    with h5py.File(path, "a") as file:
        file["metrics/loss"][59] = np.nan
        events, rows = file["events"], file["events/step"].shape[0]
        for name in events:
            events[name].resize(rows + 2, axis=0)
        events["step"][rows:] = [60, 60]
        events["kind"][rows:] = [b"nan", b"fallback"]
        events["message"][rows:] = b"loss nan, gradient norm nan: not finite"
        file["complete"].resize(0, axis=0)
    summaries, text = told(tmp_path)
    assert summaries["infir2"].verdict.kind is Kind.NOT_ORDERED
    assert np.isfinite(summaries["infir2"].final_gap.mean)
    assert "1-infir2: the fallback left out step 60, not finite" in text
    assert "diverged" not in text and "infir2 broke" not in text
    with h5py.File(path, "a") as file:  # what was left out is not why the loss broke later
        file["metrics/loss"][130:] = np.nan
    found = find_break(load_run(path), make_example_run.STAGES)
    assert found is not None and (found.step, found.event) == (131, None)


def test_a_held_out_loss_that_is_not_finite_is_a_break(tmp_path: Path) -> None:
    write_runs(tmp_path, ("bf16", 1), ("infir2", 1))
    path = tmp_path / "1-infir2" / "run.h5"
    with h5py.File(path, "a") as file:
        steps, stages = file["eval/step"][:], file["eval/stage"][:]
        broken = np.flatnonzero(stages == 2)[-1:]
        file["eval/loss"][broken[0]] = np.inf
    summaries, _ = told(tmp_path)
    assert summaries["infir2"].verdict.kind is Kind.DIVERGED
    assert [item.diverged for item in summaries["infir2"].runs] == [True]
    found = find_break(load_run(path), make_example_run.STAGES)
    assert found is not None and found.held_out and found.step == steps[broken[0]]
    assert found.before is not None and found.before.step == 140
    said = break_text("infir2", found)
    assert "the held-out loss stopped being finite at step 140 (sft)" in said


# --- runs of other programs -----------------------------------------------------------------------


def test_norms_that_were_not_measured_are_no_divergence(tmp_path: Path) -> None:
    """Files of other programs list no identity. A file of ours that lists one has diverged."""
    write_runs(tmp_path, ("bf16", 1), ("infir2", 1))
    paths = [tmp_path / name / "run.h5" for name in ("0-bf16", "1-infir2")]
    for path in paths:
        with h5py.File(path, "a") as file:
            file["metrics/grad_norm"][...] = np.nan
    summaries, text = told(tmp_path)
    assert summaries["infir2"].verdict.kind is Kind.DIVERGED and "diverged" in text
    for path in paths:
        with h5py.File(path, "a") as file:
            for key in ("identity_names", "identity_hashes"):
                del file["meta"].attrs[key]
            make_example_run.seal_meta(file)
    summaries, text = told(tmp_path)
    assert summaries["infir2"].verdict.kind is Kind.NOT_ORDERED
    assert "diverged" not in text and "not finite" not in text
    with h5py.File(paths[1], "a") as file:
        norms = np.full(len(file["metrics/grad_norm"]), np.nan)
        norms[::10] = 2.0  # measured every tenth step
        file["metrics/grad_norm"][...] = norms
    summaries, text = told(tmp_path)
    assert summaries["infir2"].verdict.kind is Kind.NOT_ORDERED and "diverged" not in text
    run = load_run(paths[1])
    curves = [compare.smooth_grad_norm(run, stage) for stage in make_example_run.STAGES]
    assert sum(steps.size for steps, _ in curves) == np.isfinite(norms).sum()
    assert all(np.allclose(norm, 2.0) for _, norm in curves)
    exported = [value for _, _, name, value in scalars(run) if name == "metrics/grad_norm"]
    assert exported == [2.0] * int(np.isfinite(norms).sum())
    with h5py.File(paths[1], "a") as file:
        file["metrics/grad_norm"][-20] = np.inf  # measured
    assert told(tmp_path)[0]["infir2"].verdict.kind is Kind.DIVERGED
