"""Which runs a study compares with which: by its file, or by their configurations."""

from __future__ import annotations

from pathlib import Path

import h5py
import make_example_run
import numpy as np
import pytest
from loose_runs import pairs_of, stress, write_run

from fp8lab_analysis.draw import style
from fp8lab_analysis.read import study
from fp8lab_analysis.read.hdf5 import InputError
from fp8lab_analysis.read.run_reader import load_run


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


def test_what_changes_no_bit_parts_no_loose_pair(tmp_path: Path) -> None:
    settings = {
        "bf16": "",
        "recomputed": '[memory]\nrecompute = "layer"\n',
        "silent": "[warnings]\nenabled = false\n",
        "chunks": "[memory]\nloss_chunk = 64\n",
    }
    for name, text in settings.items():
        write_run(tmp_path / name, "bf16" if name == "bf16" else "infir2", stress=text)
    assert pairs_of(study.load_study([tmp_path])) == {"recomputed": "bf16", "silent": "bf16"}


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
    """Recipes that follow in the stage of loose_runs.CONFIG."""
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


def write_run_of(folder: Path, recipe: str, path: str, seed: int = 1, content: str = "") -> None:
    """A run whose stage reads `path`; `content` is the hash of what lay there."""
    file = write_run(
        folder, recipe, seed, stress=f'[stages.data]\nkind = "jsonl"\npath = ["{path}"]'
    )
    with h5py.File(file, "a") as opened:
        attributes = opened["meta"].attrs
        hashes = dict(zip(attributes["identity_names"], attributes["identity_hashes"]))
        hashes["training data of stage cpt"] = content or hashes["training data of stage cpt"]
        attributes.create("identity_hashes", list(hashes.values()), dtype=h5py.string_dtype())
        make_example_run.seal_meta(opened)


def test_data_are_the_same_by_content(tmp_path: Path) -> None:
    write_run_of(tmp_path / "base", "bf16", "data.jsonl")
    write_run_of(tmp_path / "moved", "infir2", "/elsewhere/copy.jsonl")
    write_run_of(tmp_path / "other", "te_current", "data.jsonl", content="0" * 16)
    found = study.load_study([tmp_path])
    assert pairs_of(found) == {"moved": "base"}
    labels = {group.runs[0].name: group.label for group in found.groups}
    assert "0" * 16 in labels["other"] and "data.jsonl" in labels["other"]
    assert "copy.jsonl" not in labels["moved"]


def test_runs_of_an_arm_may_read_copies_of_the_data(tmp_path: Path) -> None:
    write_run_of(tmp_path / "base1", "bf16", "a/data.jsonl")
    write_run_of(tmp_path / "base2", "bf16", "b/data.jsonl", seed=2)
    write_run_of(tmp_path / "one", "infir2", "c/data.jsonl")
    write_run_of(tmp_path / "two", "infir2", "d/data.jsonl", seed=2)
    found = study.load_study([tmp_path])
    assert sorted(len(group.runs) for group in found.groups) == [2, 2]
    assert pairs_of(found) == {"one": "base1", "two": "base2"}
