"""The arms of a study with axes are labelled by what its axes set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import h5py
import make_example_run
import pytest
from loose_runs import stress

from fp8lab_analysis import study_page
from fp8lab_analysis.judge import compare
from fp8lab_analysis.judge.plan import read_plan
from fp8lab_analysis.page.tables import settings_table
from fp8lab_analysis.read import study
from fp8lab_analysis.read.axes import axis_keys, axis_settings
from fp8lab_analysis.read.hdf5 import InputError
from fp8lab_analysis.read.study import differing_settings

BF16, INFIR2 = make_example_run.RECIPES[:2]
ORDER = ("recipe", "stages.cpt.steps", "model.base", "seed")  # neither alphabetic nor sorted
SIZES = {'"tiny"': "hidden_size = 256\nlayers = 4", '"small"': "hidden_size = 384\nlayers = 6"}


def study_text(*axes: str) -> str:
    return 'name = "s"\n' + "".join(f'[[axis]]\nkey = "{key}"\nvalues = [1]\n' for key in axes)


def write_arm(folder: Path, recipe: make_example_run.SyntheticRecipe, seed: int, text: str) -> int:
    done = make_example_run.write_run(folder / "run.h5", recipe, seed)
    with h5py.File(folder / "run.h5", "a") as file:
        file["meta"].attrs["config_text"] = f'recipe = "{recipe.name}"\nseed = {seed}\n{text}'
        make_example_run.seal_meta(file)
    return done


def write_axes(path: Path, text: str, arms: Mapping[str, Mapping[str, str]]) -> None:
    """Gives study.h5 another text, and what each arm sets."""
    with h5py.File(path, "a") as file:
        file["meta"].attrs["config_text"] = text
        del file["axes"]
        axes = file.create_group("axes")
        # As fp8lab ablate writes them: in alphabetic order.
        for index, key in enumerate(sorted({key for own in arms.values() for key in own})):
            cells = [own.get(key, "") for own in arms.values()]
            make_example_run.add_fixed(axes, str(index), make_example_run.text(cells), "TOML")
            axes[str(index)].attrs["key"] = key


@pytest.fixture(name="grid")
def fixture_grid(tmp_path: Path) -> Path:
    """Two recipes, two lengths, two models, two seeds, and one arm beside the grid."""
    arms: dict[str, dict[str, str]] = {}
    written = []
    for recipe in (BF16, INFIR2):
        for steps in (250, 600):
            for base, shape in SIZES.items():
                for seed in (1, 2):
                    name = f"{recipe.name}-{steps}-{base[1:-1]}-seed{seed}"
                    # The steps show in two keys, the model in two others.
                    text = f'[model]\n{shape}\n[[stages]]\nname = "cpt"\nsteps = {steps}\n'
                    text += f"eval.every_steps = {steps}\n"
                    done = write_arm(tmp_path / name, recipe, seed, text)
                    values = (f'"{recipe.name}"', str(steps), base, str(seed))
                    arms[name] = dict(zip(ORDER, values))
                    written.append((recipe, seed, done))
    shape = SIZES['"tiny"']
    text = f'[model]\n{shape}\ntie = false\n[[stages]]\nname = "cpt"\nsteps = 250\n'
    done = write_arm(tmp_path / "untied", INFIR2, 1, text)
    arms["untied"] = {"recipe": '"infir2"', "seed": "1", "model.tie": "false"}
    arms["untied"]["logging.every_steps"] = "7"
    written.append((INFIR2, 1, done))
    make_example_run.write_study(tmp_path / "study.h5", written, names=list(arms))
    write_axes(tmp_path / "study.h5", study_text(*ORDER), arms)
    return tmp_path


def labels_of(folder: Path) -> dict[str, str]:
    return {
        run.name: group.label for group in study.load_study([folder]).groups for run in group.runs
    }


def test_arms_are_labelled_by_the_axes_in_the_order_of_the_study_file(grid: Path) -> None:
    labels = labels_of(grid)
    for recipe in ("bf16", "infir2"):
        for steps in (250, 600):
            for base in ("tiny", "small"):
                expected = f"{recipe} (cpt.steps = {steps}, model.base = {base})"
                for seed in (1, 2):
                    assert labels[f"{recipe}-{steps}-{base}-seed{seed}"] == expected
    assert labels["untied"] == "infir2 (model.tie = False)"
    assert len(labels) == 17
    found = study.load_study([grid])
    rows = study_page.verdict_rows(found, compare.summarise(found))
    assert {row[0] for row in rows[1:]} == set(labels.values())


def test_without_axes_the_keys_that_differ_are_the_label(grid: Path) -> None:
    """Of a study of [[arm]] tables, of one of an older version, and of several inputs."""
    by_keys = "bf16 (model.hidden_size = 384, eval.every_steps = 600, 3 more)"
    path = grid / "study.h5"
    several = study.load_study([grid, grid / "untied" / "run.h5"])
    assert by_keys in [group.label for group in several.groups]
    rows = differing_settings(several.groups)
    assert {"model.hidden_size", "stages.cpt.eval.every_steps"} <= {key for key, _, _ in rows}
    assert any(key == "model.hidden_size" and value == "384" for key, value, _ in rows)
    for key in {key for key, _, _ in rows}:
        labels = [label for other, _, of in rows for label in of if other == key]
        assert sorted(labels) == sorted(group.label for group in several.groups)
    assert len(settings_table(several).rows) == len(rows)
    for change in ("text", "columns"):
        with h5py.File(path, "a") as file:
            if change == "text":
                file["meta"].attrs["config_text"] = 'name = "s"\n[[arm]]\nname = "x"\n'
            else:
                file["meta"].attrs["config_text"] = study_text(*ORDER)
                del file["axes"]
        labels = labels_of(grid)
        assert labels["bf16-600-small-seed1"] == by_keys, change
    assert read_plan(path).comparisons == []


def test_damaged_axes_are_refused(grid: Path) -> None:
    with h5py.File(grid / "study.h5", "a") as file:
        cells = make_example_run.text(["1"] * 3)
        del file["axes/1"]
        make_example_run.add_fixed(file["axes"], "1", cells, "TOML")
        file["axes/1"].attrs["key"] = "seed"
    with pytest.raises(InputError, match="/axes/1 has no key, or another length"):
        study.load_study([grid])


def test_stresses_recipes_and_what_changes_no_number_keep_their_place(tmp_path: Path) -> None:
    arms, written = {}, []
    for factor in (64, 256):
        for recipe in ("bf16", "infir2"):
            for peak in ("0.001", "0.002"):
                name = f"{factor}-{recipe}-{peak}"
                text = f'[[stages]]\nname = "cpt"\nrecipe = "{recipe}"\n'
                text += f"learning_rate.peak = {peak}\n{stress('spike', factor=factor)}\n"
                written.append((BF16, 1, write_arm(tmp_path / name, BF16, 1, text)))
                arms[name] = {
                    "stages.cpt.stress": f'[{{ kind = "spike", factor = {factor} }}]',
                    "stages.cpt.recipe": f'"{recipe}"',
                    "stages.cpt.learning_rate.peak": peak,
                    "backend": '"cpu"' if recipe == "bf16" else '"cuda"',
                }
    make_example_run.write_study(tmp_path / "study.h5", written, names=list(arms))
    order = ["backend", "stages.cpt.learning_rate.peak", "stages.cpt.recipe", "stages.cpt.stress"]
    write_axes(tmp_path / "study.h5", study_text(*order), arms)
    labels = labels_of(tmp_path)
    assert labels["64-bf16-0.001"] == "bf16 (spike, factor = 64, learning_rate.peak = 0.001)"
    both = "learning_rate.peak = 0.002, cpt.recipe = infir2"
    assert labels["256-infir2-0.002"] == f"bf16 (spike, factor = 256, {both})"


def test_an_axis_of_tables_is_told_by_the_keys_that_tell_its_values_apart() -> None:
    def told(*values: str) -> list[dict[str, str]]:
        return axis_settings({"a": values}, ["a"])

    madam = '{ beta2 = 0.9, clip_norm = 0.0, kind = "madam" }'
    assert told('{ kind = "adamw" }', madam, '{ kind = "sgd" }') == [
        {"a.kind": "adamw"}, {"a.kind": "madam"}, {"a.kind": "sgd"}
    ]  # fmt: skip
    grown = [
        '{ n = 2, order = "stack" }',
        '{ n = 2, order = "in" }',
        '{ n = 2, order = "in", s = 1 }',
    ]
    assert told(*grown) == [
        {"a.order": "stack"}, {"a.order": "in"}, {"a.order": "in", "a.s": "1"}
    ]  # fmt: skip
    assert told('{ base = "x" }', '{ m = "y" }', '{ m = "y", n = 2 }', '{ base = "z" }') == [
        {"a.base": "x"}, {"a.m": "y"}, {"a.m": "y", "a.n": "2"}, {"a.base": "z"}
    ]  # fmt: skip
    assert told("{}", "{ x = 1 }") == [{"a": "{}"}, {"a.x": "1"}]
    assert told("3", "3", "") == [{}, {}, {}]
    assert told("[1, 2]", "[3]") == [{"a": "[1, 2]"}, {"a": "[3]"}]


def test_the_axes_of_a_study_file_that_is_none() -> None:
    assert axis_keys(study_text("b", "a")) == ["b", "a"]
    assert axis_keys("axis = 3 [") == [] and axis_keys("") == []
