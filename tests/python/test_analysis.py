"""Reports from synthesised runs, whole, growing, killed, poor and broken ones."""

from __future__ import annotations

import csv
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import make_example_run
import numpy as np
import pytest

from fp8lab_analysis import compare, figures, report, stats, style, study
from fp8lab_analysis.findings import make_findings
from fp8lab_analysis.hdf5 import InputError
from fp8lab_analysis.run_reader import load_run
from fp8lab_analysis.verdicts import Kind

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
name = "{name}"
recipe = "{recipe}"
seed = {seed}
[logging]
every_steps = {every}
[[stages]]
name = "cpt"
recipe = ""
[stages.learning_rate]
peak = {peak}
{stress}
"""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example study; tests must not write into it."""
    folder = tmp_path_factory.mktemp("example")
    make_example_run.make_example(folder)
    return folder


@pytest.fixture(scope="module")
def example_report(example: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the report of the example study."""
    out = tmp_path_factory.mktemp("report")
    assert report.main([str(example), "--out", str(out)]) == 0
    return out


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three figures instead of all, for tests that are not about figures."""
    names = ("loss", "sqnr_heat_map", "scales")
    chosen = tuple(spec for spec in figures.FIGURES if spec.name in names)
    assert len(chosen) == len(names)
    monkeypatch.setattr(figures, "FIGURES", chosen)


def write_run(
    folder: Path,
    recipe: str = "infir2",
    seed: int = 1,
    schema: str = make_example_run.SCHEMA,
    **config: object,
) -> Path:
    """One run file whose configuration text is complete enough to be paired by."""
    values: dict[str, object] = {"every": 1, "peak": 0.001, "stress": "", **config}
    known = {item.name: item for item in make_example_run.RECIPES}
    path = folder / "run.h5"
    make_example_run.write_run(path, known[recipe], seed, schema)
    with h5py.File(path, "a") as file:
        text = CONFIG.format(name=folder.name, recipe=recipe, seed=seed, **values)
        file["meta"].attrs["config_text"] = text
        if schema != make_example_run.FIRST_SCHEMA:
            make_example_run.seal_meta(file)
    return path


def summaries_of(folder: Path) -> dict[str, compare.GroupSummary]:
    """Summaries by group label."""
    return {s.group.label: s for s in compare.summarise(study.load_study([folder]))}


def pairs_of(found: study.Study) -> dict[str, str]:
    """Names of runs and of the baselines that they are compared with."""
    partners = {run.name: found.pairings.of(run) for run in found.runs}
    return {name: partner.name for name, partner in partners.items() if partner is not None}


# --- loading and pairing --------------------------------------------------------------------------


def test_run_is_read_completely(example: Path) -> None:
    run = load_run(example / "infir2-seed2" / "run.h5")
    assert (run.name, run.recipe, run.seed, run.complete) == ("infir2-seed2", "infir2", 2, True)
    assert run.stage_names == ["pretrain", "cpt", "sft"]
    assert len(run.metrics) == make_example_run.STEPS
    expected = make_example_run.loss_curve(make_example_run.RECIPES[1], 2)
    assert run.metrics.loss == pytest.approx(expected, rel=1e-15)
    assert run.stage_of_step(40) == "pretrain" and run.stage_of_step(41) == "cpt"
    assert len(run.tensors) == len(make_example_run.TENSORS)
    assert run.tensors.get("sqnr_db").shape == (7, len(run.tensors))
    assert np.isnan(run.evaluations.exact_match).any()  # -1 in the file: not measured


def test_study_file_names_the_baselines(example: Path) -> None:
    found = study.load_study([example])
    assert found.title == "Synthetic example for tests"
    assert [group.key.recipe for group in found.groups][0] == "bf16"
    pairs = pairs_of(found)
    assert pairs["te_current-seed2"] == "bf16-seed2"
    assert "bf16-seed1" not in pairs


def changed_study(example: Path, folder: Path) -> Path:
    """The example with a study.h5 to write into; its runs are those of the example."""
    for path in example.iterdir():
        if path.is_dir():
            (folder / path.name).symlink_to(path)
    (folder / "study.h5").write_bytes((example / "study.h5").read_bytes())
    return folder / "study.h5"


def test_pairs_of_a_study_are_those_of_its_file(example: Path, tmp_path: Path) -> None:
    path = changed_study(example, tmp_path)
    with h5py.File(path, "a", libver="latest") as file:
        names = [name.decode() for name in file["arms/name"][...]]
        partners = [name.decode() for name in file["arms/baseline_arm"][...]]
        flags = file["arms/is_baseline"][...]
        # Another baseline: te_current; infir2-seed2 stays without one.
        for row, name in enumerate(names):
            recipe, seed = name.split("-")
            flags[row] = recipe == "te_current"
            partners[row] = "" if flags[row] or name == "infir2-seed2" else f"te_current-{seed}"
        file["arms/is_baseline"][...] = flags
        del file["arms/baseline_arm"]
        file["arms/baseline_arm"] = np.array([name.encode() for name in partners])
    found = study.load_study([tmp_path])
    assert pairs_of(found) == {name: twin for name, twin in zip(names, partners) if twin}
    assert [g.key.recipe for g in found.groups if g.is_baseline] == ["te_current"]
    assert found.baseline_recipe == "te_current"
    with h5py.File(path, "a", libver="latest") as file:
        file["arms/baseline_arm"][0] = b"nowhere"
    with pytest.raises(InputError, match="'nowhere', which is no arm"):
        study.load_study([tmp_path])
    with h5py.File(path, "a", libver="latest") as file:
        file["arms/is_baseline"][0] = 2
    with pytest.raises(InputError, match="/arms/is_baseline does not hold flags"):
        study.load_study([tmp_path])


def test_study_files_of_the_first_schema_are_read(example: Path, tmp_path: Path) -> None:
    path = changed_study(example, tmp_path)
    with h5py.File(path, "a", libver="latest") as file:
        file["meta"].attrs["schema"] = "fp8lab-study-1"
        del file["arms/is_baseline"]
        file["arms/final_gap"] = np.full(file["arms/name"].shape, 7.0)  # a statistic of that schema
    first, now = study.load_study([tmp_path]), study.load_study([example])
    assert pairs_of(first) == pairs_of(now) != {}
    assert [(g.key, g.is_baseline) for g in first.groups] == [
        (g.key, g.is_baseline) for g in now.groups
    ]


def test_a_study_file_of_another_version_is_refused(example: Path, tmp_path: Path) -> None:
    with h5py.File(changed_study(example, tmp_path), "a", libver="latest") as file:
        file["meta"].attrs["schema"] = "fp8lab-study-9"
    expected = "schema is 'fp8lab-study-9' .expected fp8lab-study-1 or fp8lab-study-2."
    with pytest.raises(InputError, match=expected):
        study.load_study([tmp_path])


def test_runs_pair_by_configuration_without_a_study_file(tmp_path: Path) -> None:
    for peak in (0.001, 0.002):
        for recipe in ("bf16", "infir2"):
            write_run(tmp_path / f"{recipe}-{peak}", recipe, peak=peak, every=2)
    write_run(tmp_path / "infir2-other-seed", "infir2", seed=2, peak=0.001)
    write_run(tmp_path / "shared", "bf16", seed=7)
    found = study.load_study([tmp_path])
    pairs = pairs_of(found)
    assert pairs == {"infir2-0.001": "bf16-0.001", "infir2-0.002": "bf16-0.002"}
    assert {group.label for group in found.groups} == {
        "bf16 (learning_rate.peak = 0.001)",
        "bf16 (learning_rate.peak = 0.002)",
        "infir2 (learning_rate.peak = 0.001)",
        "infir2 (learning_rate.peak = 0.002)",
    }


def test_loose_runs_of_other_data_start_or_arithmetic_are_no_pair(tmp_path: Path) -> None:
    for folder in ("bf16", "infir2", "data", "start", "truth", "mixed", "arithmetic"):
        write_run(tmp_path / folder, "bf16" if folder in ("bf16", "mixed") else "infir2")
    changes = {
        "data": ("data_hash", "0" * 16),
        "start": ("initial_weights_hash", "0" * 16),
        "truth": ("config_text", 'backend = "truth"\n'),
        "mixed": ("config_text", '[[stages]]\nname = "sft"\nrecipe = "infir2"\n'),
        "arithmetic": ("identity", "arithmetic"),
    }
    for folder, (key, value) in changes.items():
        with h5py.File(tmp_path / folder / "run.h5", "a") as file:
            if key == "identity":
                attrs = file["meta"].attrs
                for name, more in (("identity_names", value), ("identity_hashes", "0" * 16)):
                    attrs.create(name, [*attrs[name], more], dtype=h5py.string_dtype())
                make_example_run.seal_meta(file)
                continue
            if key == "config_text":
                before = file["meta"].attrs[key]
                value = value + before if folder == "truth" else before + value
            file["meta"].attrs[key] = value
            make_example_run.seal_meta(file)
    found = study.load_study([tmp_path])
    assert pairs_of(found) == {"infir2": "bf16"}
    assert {run.name for run in found.runs if found.pairings.is_baseline(run)} == {"bf16"}


def test_loose_runs_are_compared_with_a_baseline_of_a_study(example: Path, tmp_path: Path) -> None:
    path = changed_study(example, tmp_path)
    with h5py.File(path, "a", libver="latest") as file:
        rows = [i for i, name in enumerate(file["arms/name"][...]) if b"infir2" not in name]
        for name in list(file["arms"]):
            kept = file[f"arms/{name}"][...][rows]
            del file[f"arms/{name}"]
            file[f"arms/{name}"] = kept
        del file["axes"]
    loose = tmp_path / "infir2-seed2" / "run.h5"
    assert pairs_of(study.load_study([tmp_path, loose]))["infir2-seed2"] == "bf16-seed2"
    assert "infir2-seed2" not in pairs_of(study.load_study([tmp_path]))


def stress(kind: str, **keys: object) -> str:
    """A stress of the stage of CONFIG."""
    lines = [f"{key} = {value}" for key, value in keys.items()]
    return "\n".join(["[[stages.stress]]", f'kind = "{kind}"', *lines])


def test_stresses_are_a_variant_that_takes_a_baseline_of_its_own(tmp_path: Path) -> None:
    outliers = stress("outlier_channels", channels=4, gain=64.0)
    write_run(tmp_path / "bf16", "bf16")
    write_run(tmp_path / "infir2", "infir2")
    write_run(tmp_path / "infir2-stress", "infir2", stress=outliers)
    found = study.load_study([tmp_path])
    assert pairs_of(found) == {"infir2": "bf16"}
    write_run(tmp_path / "bf16-stress", "bf16", stress=outliers)
    assert pairs_of(study.load_study([tmp_path]))["infir2-stress"] == "bf16-stress"
    styles = style.assign_styles(found.groups)
    plain, marked = (styles[study.GroupKey("infir2", v)] for v in ("", "outlier channels"))
    assert plain.colour == marked.colour and plain.line != marked.line
    assert plain.filled and not marked.filled


def test_stressed_arms_are_set_apart_from_each_other_only(tmp_path: Path) -> None:
    write_run(tmp_path / "bf16", "bf16")
    write_run(tmp_path / "one", "infir2", stress=stress("spike", factor=64), peak=0.002)
    assert study.variant_labels(study.load_study([tmp_path]).runs) == ["", "spike"]
    write_run(tmp_path / "two", "infir2", stress=stress("spike", factor=256), peak=0.002)
    write_run(
        tmp_path / "three",
        "infir2",
        stress=stress("spike") + "\n" + stress("aligned_swiglu"),
    )
    labels = {group.label for group in study.load_study([tmp_path]).groups}
    assert labels == {
        "bf16",
        "infir2 (spike, factor = 64)",
        "infir2 (spike, factor = 256)",
        "infir2 (spike, aligned swiglu)",
    }


def changing(at: int = 0, recipe: str = "bf16", fallback: str = "") -> str:
    """Recipes that follow in the stage of CONFIG."""
    text = f'[[stages.recipe_at]]\nstep = {at}\nrecipe = "{recipe}"\n' if at else ""
    if fallback:
        text += f'[stages.fallback]\nrecipe = "{fallback}"\nwhen = {{ nonfinite = true }}\n'
    return text


def test_recipes_within_a_stage_are_a_variant_with_the_baseline_of_the_others(
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "bf16", "bf16")
    write_run(tmp_path / "infir2", "infir2")
    write_run(tmp_path / "after-2", "infir2", stress=changing(2))
    write_run(tmp_path / "after-3", "infir2", stress=changing(3, fallback="te_current"))
    write_run(tmp_path / "bf16-changed", "bf16", stress=changing(2, "infir2"))
    found = study.load_study([tmp_path])
    assert pairs_of(found) == {
        name: "bf16" for name in ("infir2", "after-2", "after-3", "bf16-changed")
    }
    assert {group.label for group in found.groups} == {
        "bf16",
        "infir2",
        "infir2 (then bf16 after 2 steps)",
        "infir2 (then bf16 after 3 steps, fallback te_current)",
        "bf16 (then infir2 after 2 steps)",
    }
    write_run(tmp_path / "bf16", "bf16", stress=changing(2, "bf16"))
    assert "bf16" in pairs_of(study.load_study([tmp_path])).values()


def test_labels_have_keys_that_tell_variants_apart() -> None:
    def labels(*rows: str) -> list[str]:
        parts = [{key: key + value for key, value in zip("abcd", row)} for row in rows]
        return study._shortened(parts)

    assert labels("111", "121", "131") == ["a1, b1, 1 more", "a1, b2, 1 more", "a1, b3, 1 more"]
    assert labels("111", "112", "211") == ["a1, c1, 1 more", "a1, c2, 1 more", "a2, c1, 1 more"]
    assert labels("1111", "2111", "1121", "1112")[3] == "a1, c1, d2, 1 more"
    four = labels("1111", "2111", "1211", "1121", "1112")
    assert four == ["a1, b1, c1, d1", "a2, b1, c1, d1", "a1, b2, c1, d1", "a1, b1, c2, d1"] + [
        "a1, b1, c1, d2"
    ]
    assert labels("1", "1", "2") == ["a1", "a1", "a2"]
    rules = [{"a": f"a{i % 2}", "b": f"b{i}", "c": "c", "kind": f"kind{i}"} for i in range(4)]
    both = [{**rule, "d": f"d{j}"} for rule in rules for j in range(2)]
    assert study._shortened(both)[3] == "kind1, d1, 3 more"


def test_run_files_from_before_stresses_are_paired(tmp_path: Path) -> None:
    none = "[stages.planted_outliers]\nchannels = 0"
    write_run(tmp_path / "bf16", "bf16", stress=none)
    write_run(tmp_path / "infir2", "infir2")
    found = study.load_study([tmp_path])
    assert pairs_of(found) == {"infir2": "bf16"}
    assert study.variant_labels(found.runs) == ["", ""]


def test_colours_follow_the_recipe_name_and_differ_within_a_report() -> None:
    names = ["bf16", "infir2", "my_recipe", "another", "e5m2_wide", "third", "fourth"]
    groups = [study.Group(study.GroupKey(name, ""), [], False) for name in names]
    styles = style.assign_styles(groups)
    assert len({item.colour for item in styles.values()}) == len(names)
    alone = style.assign_styles(groups[1:2])
    assert alone[groups[1].key] == styles[groups[1].key]
    assert style.assign_styles(groups[::-1]) == styles


# --- numbers --------------------------------------------------------------------------------------


def test_summary_matches_the_numbers_behind_the_example(example: Path) -> None:
    found = summaries_of(example)
    curve, recipes = make_example_run.loss_curve, {r.name: r for r in make_example_run.RECIPES}
    gaps = [
        float(np.mean((curve(recipes["te_current"], s) - curve(recipes["bf16"], s))[-10:]))
        for s in (1, 2)
    ]
    te_current = found["te_current"]
    assert te_current.gap_stage == "sft"
    assert te_current.final_gap.mean == pytest.approx(np.mean(gaps))
    assert te_current.final_gap.sd == pytest.approx(np.std(gaps, ddof=1))
    stage = te_current.runs[0].stages["sft"]
    smooth = stats.smoothed((curve(recipes["te_current"], 1) - curve(recipes["bf16"], 1))[100:])[2:]
    assert stage.largest_gap == pytest.approx(max(smooth, key=abs))
    assert stage.largest_gap_step == 103 + int(np.argmax(np.abs(smooth)))
    assert found["bf16"].verdict.kind is Kind.BASELINE
    assert found["e5m2_tensor"].verdict.kind is Kind.DIVERGED
    assert found["e5m2_tensor"].verdict.diverged == 2
    assert found["infir2"].matches["sft"].asked == 128
    assert found["infir2"].matches["sft"].correct == 2 * round(0.616 * 64)
    # Two seeds answer the same 64 problems: the interval is that of 39 of 64.
    assert found["infir2"].matches["sft"].interval == pytest.approx(stats.wilson_interval(39, 64))


def test_operand_means_are_taken_over_tensors_steps_and_seeds(example: Path) -> None:
    operand = summaries_of(example)["infir2"].operands["wgrad.dy"]
    per_seed = []
    for seed in (1, 2):
        with h5py.File(example / f"infir2-seed{seed}" / "run.h5") as file:
            chosen = np.array([slot == "wgrad.dy" for _, slot in make_example_run.TENSORS])
            per_seed.append(float(file["tensors/sqnr_db"][...][:, chosen].mean()))
    assert operand.sqnr_db.mean == pytest.approx(np.mean(per_seed))
    assert operand.sqnr_db.sd == pytest.approx(np.std(per_seed, ddof=1))
    assert operand.quantized
    assert not summaries_of(example)["bf16"].operands["fprop.x"].quantized


def test_a_baseline_that_diverged_is_none_after_any_stage(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        for recipe in ("bf16", "infir2"):
            path = write_run(tmp_path / f"{recipe}-{seed}", recipe, seed)
            if recipe == "bf16" and seed == 2:
                with h5py.File(path, "a") as file:
                    file["metrics/loss"][-15:] = 9.0  # ran away, and every number is finite
    found = summaries_of(tmp_path)["infir2"]
    kinds = {item.kind.value for item in (found.verdict, *found.verdicts_after.values()) if item}
    assert kinds == {"no baseline"} and len(found.verdicts_after) == 3


def test_seeds_that_change_nothing_are_no_pairs(tmp_path: Path) -> None:
    """One run of each recipe, executed for three seeds that nothing depends on."""
    for seed in (1, 2, 3):
        for recipe in ("bf16", "infir2"):
            path = write_run(tmp_path / f"{recipe}-{seed}", recipe, seed)
            if seed > 1:
                with h5py.File(path, "a") as file, h5py.File(
                    tmp_path / f"{recipe}-1" / "run.h5"
                ) as first:
                    for name in ("metrics/loss", "eval/loss"):
                        file[name][...] = first[name][...]
    found = summaries_of(tmp_path)["infir2"]
    assert found.verdict.kind.value == "not ordered"
    assert "share a baseline run" in found.verdict.sentence


def test_each_evaluated_stage_is_judged(tmp_path: Path) -> None:
    factors = [1.0, 1.001, 1.03]  # pretrain, cpt, sft
    for seed in (1, 2, 3, 4):
        for recipe in ("bf16", "infir2"):
            path = write_run(tmp_path / f"{recipe}-{seed}", recipe, seed)
            with h5py.File(path, "a") as file:
                for row, stage in enumerate(file["eval/stage"][:]):
                    worse = factors[int(stage)] + 0.0001 * seed if recipe == "infir2" else 1.0
                    file["eval/loss"][row] = (2.0 + 0.1 * seed) * worse
    found = summaries_of(tmp_path)["infir2"]
    kinds = {stage: item.kind.value for stage, item in found.verdicts_after.items() if item}
    assert kinds == {"pretrain": "equivalent", "cpt": "equivalent", "sft": "worse"}
    after = found.verdicts_after["cpt"]
    assert after is not None and after.gap.mean == pytest.approx(0.00125)
    assert found.verdicts_after["sft"] == found.verdict
    with h5py.File(tmp_path / "infir2-3" / "run.h5", "a") as file:
        truncate(file, "eval", 0)
    assert summaries_of(tmp_path)["infir2"].verdicts_after["cpt"] is None


def test_a_seed_that_broke_is_not_left_out_of_a_mean(tmp_path: Path) -> None:
    for recipe in ("bf16", "infir2", "te_current"):
        for seed in (1, 2):
            write_run(tmp_path / f"{recipe}-{seed}", recipe, seed)
    with h5py.File(tmp_path / "infir2-2" / "run.h5", "a") as file:
        file["eval/loss"][-1] = np.nan
    with h5py.File(tmp_path / "te_current-2" / "run.h5", "a") as file:
        truncate(file, "eval", 0)
    found = summaries_of(tmp_path)
    assert np.isnan(found["infir2"].held_out["sft"].mean)
    assert np.isnan(found["infir2"].held_out_gap["sft"].mean)
    measured = found["te_current"].held_out_gap["sft"]
    assert np.isfinite(measured.mean) and measured.count == 1
    assert found["bf16"].held_out["sft"].count == 2
    assert found["bf16"].held_out_gap["sft"].count == 0


def test_the_seed_band_of_curves_leaves_out_a_seed_without_the_stage(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        write_run(tmp_path / f"bf16-{seed}", "bf16", seed)
    with h5py.File(tmp_path / "bf16-3" / "run.h5", "a") as file:
        truncate(file, "metrics", 100)  # pretrain and cpt alone
    baseline = study.load_study([tmp_path]).groups[0]
    floor = compare.seed_floor(baseline, "sft")
    assert floor is not None and floor.steps.tolist() == list(range(101, 141))
    curves = [compare.loss_curve(run, "sft") for run in baseline.runs[:2]]
    expected = stats.seed_floor(curves)
    assert expected is not None and (floor.half_width == expected.half_width).all()


def test_findings_follow_the_data(example: Path, tmp_path: Path) -> None:
    found = study.load_study([example])
    text = "\n".join(f.text for f in make_findings(found, compare.summarise(found)))
    assert "e5m2_tensor diverged in 2 of 2 seeds" in text
    assert "layers.1.mlp.down/dgrad.dy" in text
    assert re.search(r"smallest after sft: infir2 .*largest: te_current", text)
    swapped = tmp_path / "swapped"
    for recipe in ("bf16", "infir2", "te_current"):
        for seed in (1, 2):
            write_run(swapped / f"{recipe}-{seed}", recipe, seed)
    for seed in (1, 2):
        with h5py.File(swapped / f"infir2-{seed}" / "run.h5", "a") as file:
            file["metrics/loss"][...] += 0.3
    found = study.load_study([swapped])
    text = "\n".join(f.text for f in make_findings(found, compare.summarise(found)))
    assert re.search(r"smallest after sft: te_current .*largest: infir2", text)
    assert "diverged" not in text


# --- the report -----------------------------------------------------------------------------------


def test_report_holds_every_figure_in_every_form(example_report: Path) -> None:
    text = (example_report / "index.html").read_text()
    drawn = [spec for spec in figures.FIGURES if not spec.on_request]
    assert text.count("<svg") == len(drawn)
    for spec in drawn:
        assert f'id="figure-{spec.name}"' in text
        png = (example_report / "figures" / f"{spec.name}.png").read_bytes()
        assert png.startswith(b"\x89PNG")
        pdf = (example_report / "figures" / f"{spec.name}.pdf").read_bytes()
        assert pdf.startswith(b"%PDF")
        svg = (example_report / "figures" / f"{spec.name}.svg").read_text()
        assert "<svg" in svg and svg.rstrip().endswith("</svg>")
        with (example_report / "figures" / f"{spec.name}.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert len(rows) > 3 and all(row["x"] and row["y"] for row in rows)
        for form in figures.FORMS:
            assert f'href="figures/{spec.name}.{form}"' in text


def test_page_refers_to_nothing_outside_itself(example_report: Path) -> None:
    page = (example_report / "index.html").read_text()
    assert "http:" not in page and "https:" not in page
    references = re.findall(r'(?:src|href|data)="([^"]*)"', page) + re.findall(
        r"url\(([^)]*)\)", page
    )
    assert references
    files = [item for item in references if not item.startswith(("#", "data:"))]
    assert all((example_report / item).is_file() for item in files)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    targets = {item[1:] for item in references if item.startswith("#")}
    assert targets <= set(ids)
    assert "<script" not in page


def test_page_shows_provenance_of_every_run(example_report: Path, example: Path) -> None:
    page = (example_report / "index.html").read_text()
    for path in example.glob("*/run.h5"):
        with h5py.File(path) as file:
            for key in ("recipe_hash", "config_hash", "initial_weights_hash", "device"):
                assert file["meta"].attrs[key] in page


def test_tables_are_written_as_csv(example_report: Path) -> None:
    with (example_report / "tables" / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["recipe"] for row in rows] == ["bf16", "infir2", "te_current", "e5m2_tensor"]
    assert float(rows[1]["scale bits (bit/element)"]) == 0.25
    assert rows[3]["final gap (nats/token)"] == ""
    for name in ("stages", "operands", "tensors", "worst_tensors", "evaluation", "runs", "events"):
        assert (example_report / "tables" / f"{name}.csv").exists()


def test_scores_of_the_end_of_a_stage_are_averaged_over_seeds(
    example: Path, example_report: Path
) -> None:
    with (example_report / "tables" / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    row = next(r for r in rows if (r["recipe"], r["score"]) == ("bf16", "pass@4"))
    values = []
    for path in sorted(example.glob("bf16-seed*/run.h5")):
        run = load_run(path)
        stage = run.stage_names.index(row["stage"])
        values.append([s for s in run.scores if s.name == "pass@4" and s.stage == stage][-1].value)
    assert float(row["value"]) == pytest.approx(np.mean(values), rel=1e-4)
    assert row["count"] == "64"


@pytest.mark.usefixtures("few_figures")
def test_same_runs_give_the_same_bytes(example: Path, tmp_path: Path) -> None:
    inputs = [str(example / f"{name}-seed1" / "run.h5") for name in ("bf16", "infir2")]
    pages = []
    for name in ("a", "b"):
        assert report.main([*inputs, "--out", str(tmp_path / name), "--title", "T"]) == 0
        pages.append((tmp_path / name / "index.html").read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.usefixtures("few_figures")
def test_text_from_run_files_is_escaped(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    with h5py.File(path, "a") as file:
        file["meta"].attrs["recipe_name"] = "<b>&$x_"
        file["meta"].attrs["device"] = "<script>alert(1)</script>"
        make_example_run.seal_meta(file)
    assert report.main([str(path), "--out", str(tmp_path / "r")]) == 0
    page = (tmp_path / "r" / "index.html").read_text()
    assert "<script" not in page and "&lt;b&gt;" in page


# --- poor and broken runs -------------------------------------------------------------------------


def make_poor(path: Path, without: tuple[str, ...]) -> None:
    """Removes groups from a run file."""
    with h5py.File(path, "a") as file:
        for name in without:
            del file[name]


@pytest.mark.parametrize(
    "without",
    [
        ("eval",),
        ("tensors",),
        ("eval", "scores", "tensors", "events", "hashes", "samples", "complete"),
    ],
)
def test_single_run_without_baseline(tmp_path: Path, without: tuple[str, ...]) -> None:
    path = write_run(tmp_path / "alone", schema=make_example_run.FIRST_SCHEMA)
    make_poor(path, without)
    assert report.main([str(path), "--out", str(tmp_path / "r")]) == 0
    page = (tmp_path / "r" / "index.html").read_text()
    assert 'id="figure-loss"' in page
    assert ('id="figure-sqnr"' in page) == ("tensors" not in without)
    assert ('id="figure-held_out"' in page) == ("eval" not in without)


def truncate(file: h5py.File, group: str, rows: int) -> None:
    for item in file[group].values():
        if item.maxshape[0] is None:
            item.resize(rows, axis=0)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_run_with_hardly_any_rows(tmp_path: Path, rows: int) -> None:
    for recipe in ("bf16", "infir2"):
        path = write_run(tmp_path / recipe, recipe)
        with h5py.File(path, "a") as file:
            truncate(file, "metrics", rows)
            truncate(file, "tensors", 0)
            truncate(file, "eval", 0)
            file["complete"].resize(0, axis=0)
    assert report.main([str(tmp_path), "--out", str(tmp_path / "r")]) == 0
    assert "not complete" in (tmp_path / "r" / "index.html").read_text()


def test_everything_not_finite(tmp_path: Path) -> None:
    for recipe in ("bf16", "infir2"):
        path = write_run(tmp_path / recipe, recipe)
        with h5py.File(path, "a") as file:
            for group in ("metrics", "tensors", "eval"):
                for item in file[group].values():
                    if item.dtype.kind == "f" and item.ndim and item.name[-8:] != "_element":
                        item[...] = np.nan
            file["tensors/channel_outlier_ratio"][...] = np.inf
    assert report.main([str(tmp_path), "--out", str(tmp_path / "r")]) == 0
    assert "diverged" in (tmp_path / "r" / "index.html").read_text()


@pytest.mark.parametrize("value", [1e30, 1e308])
@pytest.mark.usefixtures("few_figures")
def test_numbers_too_large_to_draw(tmp_path: Path, value: float) -> None:
    for recipe in ("bf16", "infir2"):
        path = write_run(tmp_path / recipe, recipe)
        with h5py.File(path, "a") as file:
            file["metrics/loss"][70] = value
            file["metrics/loss"][71:90] = -value
    assert report.main([str(tmp_path), "--out", str(tmp_path / "r")]) == 0
    text = (tmp_path / "r" / "index.html").read_text()
    drawn = 'id="figure-loss"' in text
    assert drawn or "Could not be drawn" in text
    assert drawn == (tmp_path / "r" / "figures" / "loss.png").exists()
    assert drawn or value > 1e300


def test_run_that_logs_no_tensor_names(tmp_path: Path) -> None:
    path = write_run(tmp_path / "none")
    with h5py.File(path, "a") as file:
        file["warnings/tensor"][...] = -1
        file["warnings/channel"][...] = -1
        for name in list(file["tensors"]):
            if name != "step":
                shape = file["tensors"][name].shape
                del file["tensors"][name]
                if name in ("layer", "slot", "format", "scale_bits_per_element"):
                    file["tensors"][name] = np.zeros(0)
                else:
                    file["tensors"][name] = np.zeros((shape[0], 0, *shape[2:]))
    assert report.main([str(path), "--out", str(tmp_path / "r")]) == 0


def test_unequal_lengths_and_unwritten_rows_are_cut(tmp_path: Path) -> None:
    path = write_run(tmp_path / "cut")
    with h5py.File(path, "a") as file:
        file["metrics/loss"].resize(100, axis=0)
        file["metrics/step"][90:] = -1
        file["tensors/step"].resize(3, axis=0)
    run = load_run(path)
    assert len(run.metrics) == 90 and run.metrics.loss.size == 90
    assert run.tensors.get("sqnr_db").shape[0] == 3


WRITER = """
import sys, time, h5py
file = h5py.File(sys.argv[1], "a", libver="latest")
file.swmr_mode = True
metrics = file["metrics"]
rows = metrics["step"].shape[0]
for name in metrics:
    metrics[name].resize(rows + 5, axis=0)
metrics["step"][rows:] = range(rows + 1, rows + 6)
metrics["stage"][rows:] = 2
metrics["loss"][rows:] = 0.25
file.flush()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.usefixtures("few_figures")
def test_growing_and_killed_files(tmp_path: Path, killed: bool) -> None:
    path = write_run(tmp_path / "live")
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        try:
            assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
            if killed:
                os.kill(writer.pid, signal.SIGKILL)
                writer.wait()
            run = load_run(path)
            assert len(run.metrics) == make_example_run.STEPS + 5
            assert run.metrics.loss[-1] == 0.25
            assert report.main([str(path), "--out", str(tmp_path / "r")]) == 0
        finally:
            writer.kill()


# --- refusals -------------------------------------------------------------------------------------


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a refused command prints; the exit code must be 2."""
    assert report.main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


def test_refusals_are_one_line_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (tmp_path / "empty").mkdir()
    text = tmp_path / "text.h5"
    text.write_text("this is not HDF5")
    bare = tmp_path / "bare.h5"
    with h5py.File(bare, "w") as file:
        file["x"] = 1
    newer = write_run(tmp_path / "newer")
    with h5py.File(newer, "a") as file:
        file["meta"].attrs["schema"] = "fp8lab-run-9"
    nameless = write_run(tmp_path / "nameless")
    with h5py.File(nameless, "a") as file:
        del file["meta"].attrs["recipe_name"]
        make_example_run.seal_meta(file)
    cases = {
        "missing.h5": "no such file",
        "empty": "holds neither study.h5 nor run.h5",
        "text.h5": "not a readable HDF5 file",
        "bare.h5": "no group /meta",
        "newer/run.h5": "schema is 'fp8lab-run-9' (expected fp8lab-run-1 or fp8lab-run-2)",
        "nameless/run.h5": "no attribute 'recipe_name'",
    }
    for name, expected in cases.items():
        line = refusal(capsys, str(tmp_path / name), "--out", str(out))
        assert expected in line and name in line
    assert not out.exists()


def test_study_with_runs_still_to_come(example: Path, tmp_path: Path) -> None:
    (tmp_path / "study.h5").write_bytes((example / "study.h5").read_bytes())
    for name in ("bf16-seed1", "infir2-seed1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.h5").write_bytes((example / name / "run.h5").read_bytes())
    found = study.load_study([tmp_path])
    assert len(found.runs) == 2
    assert found.notes[0] == "No run file yet for: e5m2_tensor-seed1, e5m2_tensor-seed2."
    assert "te_current-seed2" in found.notes[1] and "without a run file" in found.notes[1]


def test_command_line_of_the_module(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "analysis")}
    command = [sys.executable, "-m", "fp8lab_analysis.report"]
    usage = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert usage.returncode == 2 and "give a study directory" in usage.stderr
    path = write_run(tmp_path / "run")
    result = subprocess.run(
        [*command, str(path.parent)], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert (path.parent / "report" / "index.html").exists()
