"""Single run files whose configuration is complete enough to be paired by."""

from __future__ import annotations

from pathlib import Path

import h5py
import make_example_run

from fp8lab_analysis.judge import compare
from fp8lab_analysis.read import study

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


def stress(kind: str, **keys: object) -> str:
    """A stress of the stage of CONFIG."""
    lines = [f"{key} = {value}" for key, value in keys.items()]
    return "\n".join(["[[stages.stress]]", f'kind = "{kind}"', *lines])


def truncate(file: h5py.File, group: str, rows: int) -> None:
    for item in file[group].values():
        if item.maxshape[0] is None:
            item.resize(rows, axis=0)
