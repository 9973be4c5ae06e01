"""A loss gap split by source of error, on runs whose contributions are planted."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from pathlib import Path

import make_example_run
import numpy as np
import pytest
from scipy import stats as scipy_stats

from fp8lab_analysis.draw import figures
from fp8lab_analysis.draw.style import PlotContext
from fp8lab_analysis.judge import compare, inference, pooling
from fp8lab_analysis.judge.attribution import Attribution, attribute_gaps, group_of
from fp8lab_analysis.page.findings import attribution_findings, make_findings
from fp8lab_analysis.page.tables import attribution_table
from fp8lab_analysis.read.pairing import pair_runs
from fp8lab_analysis.read.run_reader import load_run
from fp8lab_analysis.read.runs import Run
from fp8lab_analysis.read.study import Study, group_runs

FLOOR = -0.001  # relative gap with every source exact
SOURCES = {
    "element cast": 0.010,
    "underflow": 0.030,
    "saturation": 0.0,
    "accumulator": -0.002,
    "storage": 0.005,
    "estimator": 0.008,
}
TOGETHER = 0.004  # what no source makes by itself
WHOLE = FLOOR + sum(SOURCES.values()) + TOGETHER
NOISE = (0.0004, -0.0002, 0.0001, -0.0003)  # of the gaps of one seed; its mean is zero
ORDER = re.compile(r"(better|worse|largest|smallest|highest|lowest|told from none over)")


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Run]:
    folder = tmp_path_factory.mktemp("twins")
    runs = {}
    for seed in range(1, len(NOISE) + 1):
        path = folder / f"bf16-{seed}" / "run.h5"
        make_example_run.write_run(path, make_example_run.RECIPES[0], seed)
        runs[seed] = load_run(path)
    return runs


def arm(twin: Run, exact: list[str], gap: float) -> Run:
    """A run whose held-out losses are those of its twin times 1 + gap."""
    name = f"te_delayed-{len(exact)}-{'-'.join(exact)}-{twin.seed}"
    text = f'recipe = "te_delayed"\nseed = {twin.seed}\nexact = {exact}\n'
    losses = dataclasses.replace(twin.evaluations, loss=twin.evaluations.loss * (1.0 + gap))
    return dataclasses.replace(
        twin,
        path=twin.path.parent / name,
        name=name,
        recipe="te_delayed",
        meta={**twin.meta, "config_text": text},
        evaluations=losses,
    )


def gaps_of_arms() -> dict[str, float]:
    """The relative gap of every arm by its `exact`, without noise."""
    gaps = {"": WHOLE, "all": FLOOR, "scale rounding": WHOLE - 0.02}
    gaps |= {name: WHOLE - gap for name, gap in SOURCES.items()}
    gaps |= {f"all but {name}": FLOOR + 0.5 * gap for name, gap in SOURCES.items()}
    gaps |= {"fprop.x": WHOLE - 0.01, "layers.0.mlp.down": WHOLE - 0.03}
    return gaps


def made(twins: dict[int, Run], gaps: dict[str, float], seeds: int = len(NOISE)) -> Study:
    runs = []
    for seed in range(1, seeds + 1):
        text = f'recipe = "bf16"\nseed = {seed}\n'
        twin = dataclasses.replace(
            twins[seed], meta={**twins[seed].meta, "config_text": text, "recipe_name": "bf16"}
        )
        runs.append(twin)
        for number, (exact, gap) in enumerate(gaps.items()):
            noise = NOISE[seed - 1] * (number % 3)
            runs.append(arm(twin, [exact] if exact else [], gap + noise))
    pairings = pair_runs(runs, {}, "bf16")
    return Study("made", group_runs(runs, pairings), pairings, ["pretrain", "cpt", "sft"], "bf16")


def split(study: Study) -> Attribution:
    found = attribute_gaps(study, compare.summarise(study))
    assert len(found) == 1
    return found[0]


def part(found: Attribution, name: str):  # type: ignore[no-untyped-def]
    return next(p for group in found.groups for p in group.parts if p.name == name)


def test_planted_contributions_come_back(twins: dict[int, Run]) -> None:
    found = split(made(twins, gaps_of_arms()))
    assert found.label == "te_delayed" and found.seeds == 4 and found.ordered
    assert found.whole.spread.mean == pytest.approx(WHOLE, abs=1e-12)
    assert found.floor is not None and found.floor.spread.mean == pytest.approx(FLOOR, abs=1e-12)
    for name, gap in SOURCES.items():
        assert part(found, name).left_out.spread.mean == pytest.approx(gap, abs=1e-12)
        assert part(found, name).alone.spread.mean == pytest.approx(0.5 * gap, abs=1e-12)
    assert part(found, "fprop.x").alone is None
    assert [group.name for group in found.groups] == ["source", "scale", "slot", "layer"]
    source, scale, slot, layer = found.groups
    total = sum(SOURCES.values())
    assert source.remainder is not None and source.remainder_alone is not None
    assert source.remainder.spread.mean == pytest.approx(TOGETHER, abs=1e-12)
    rest = WHOLE - FLOOR - 0.5 * total
    assert source.remainder_alone.spread.mean == pytest.approx(rest, abs=1e-12)
    assert slot.remainder is not None and slot.remainder_alone is None
    assert slot.remainder.spread.mean == pytest.approx(WHOLE - FLOOR - 0.01, abs=1e-12)
    assert layer.remainder is not None
    assert scale.remainder is None and scale.parts[0].name == "scale rounding"


def test_intervals_are_those_of_paired_differences(
    twins: dict[int, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pooling, "HOMOGENEITY", 0.0)  # the noise of these arms is all in common
    gaps = gaps_of_arms()
    found = split(made(twins, gaps))
    exact = list(gaps)
    contributions = sum(
        item is not None
        for group in found.groups
        for p in group.parts
        for item in (p.left_out, p.alone)
    )
    assert contributions == 2 * len(SOURCES) + 3
    factor = list(exact).index("underflow") % 3
    differences = -factor * np.array(NOISE)  # the whole is arm 0 and has no noise
    sd = float(np.std(differences, ddof=1))
    left_out = part(found, "underflow").left_out
    assert left_out.spread.sd == pytest.approx(sd, abs=1e-12) and sd > 0.0
    # What is left out shares the run of the whole: one layout, whose variance is moderated.
    left = [name for name in gaps if name not in ("", "all") and not name.startswith("all but ")]
    noises = [-(exact.index(name) % 3) * np.array(NOISE) for name in left]
    noise = pooling.pool(np.array(noises))
    place = left.index("underflow")
    assert noise.borrows[place] and noise.df[place] > 3.0
    t = float(scipy_stats.t.isf(0.05 / contributions / 2.0, noise.df[place]))
    width = t * float(np.sqrt(noise.variance[place])) / 2.0
    assert left_out.half_width == pytest.approx(width, rel=1e-6)
    whole = compare.summarise(made(twins, gaps))[1].verdict.noise
    assert found.whole.half_width == inference.half_width(whole.sd, 4, 0.05, whole.df)
    assert left_out.told_from_zero and not part(found, "saturation").left_out.told_from_zero


def test_without_an_arm_that_is_all_exact_zero_stands_for_it(twins: dict[int, Run]) -> None:
    gaps = gaps_of_arms()
    del gaps["all"]
    found = split(made(twins, gaps))
    assert found.floor is None
    source = found.groups[0]
    assert source.remainder is not None
    rest = WHOLE - sum(SOURCES.values())
    assert source.remainder.spread.mean == pytest.approx(rest, abs=1e-12)
    alone = part(found, "storage").alone
    assert alone.spread.mean == pytest.approx(FLOOR + 0.5 * SOURCES["storage"], abs=1e-12)


def test_sentences(twins: dict[int, Run]) -> None:
    study = made(twins, gaps_of_arms())
    (finding,) = attribution_findings([split(study)])
    assert finding.topic == "Sources of the gap"
    names = (
        "underflow",
        "element cast",
        "estimator",
        "storage",
        "saturation",
        "accumulator",
        "remainder",
    )
    places = [finding.text.index(name) for name in names]
    assert places == sorted(places)
    assert "underflow 3.0" in finding.text and "accumulator −0.2" in finding.text
    assert re.search(r"Told from none over 4 seeds: .*underflow", finding.text)
    everything = make_findings(study, compare.summarise(study))
    assert finding in everything


def test_one_seed_gives_numbers_and_no_order(twins: dict[int, Run]) -> None:
    found = split(made(twins, gaps_of_arms(), seeds=1))
    assert not found.ordered and math.isnan(part(found, "underflow").left_out.half_width)
    (finding,) = attribution_findings([found])
    places = [finding.text.index(name) for name in SOURCES]
    assert places == sorted(places)  # as they come
    assert not ORDER.search(finding.text) and "no order follows" in finding.text


def test_a_seed_that_broke_is_not_left_out(twins: dict[int, Run]) -> None:
    gaps = gaps_of_arms()
    gaps["storage"] = math.nan
    found = split(made(twins, gaps))
    assert not part(found, "storage").left_out.known
    assert found.groups[0].remainder is not None and not found.groups[0].remainder.known
    (finding,) = attribution_findings([found])
    assert "Diverged, and so without a number: te_delayed (exact storage)" in finding.text


@pytest.mark.parametrize("exact", ["storage", "all but storage"])
def test_a_seed_that_is_missing_is_told(twins: dict[int, Run], exact: str) -> None:
    whole = made(twins, gaps_of_arms())
    runs = [r for r in whole.runs if r.name != f"te_delayed-1-{exact}-2"]
    assert len(runs) == len(whole.runs) - 1
    groups = group_runs(runs, whole.pairings)
    found = split(dataclasses.replace(whole, groups=groups))
    storage = part(found, "storage")
    assert not (storage.left_out if exact == "storage" else storage.alone).known
    assert (storage.alone if exact == "storage" else storage.left_out).known
    assert found.lacking == [f"te_delayed (exact {exact})"] and found.diverged == []
    (finding,) = attribution_findings([found])
    assert f"seed, and so without a number: te_delayed (exact {exact})" in finding.text
    assert not split(whole).lacking


def test_figure_and_table_hold_the_numbers(twins: dict[int, Run], tmp_path: Path) -> None:
    study = made(twins, gaps_of_arms())
    summaries = compare.summarise(study)
    spec = next(item for item in figures.FIGURES if item.name == "attribution")
    figure = spec.draw(PlotContext.of(study, summaries))
    assert figure is not None
    figures.save_figure(figure, spec, tmp_path)
    with (tmp_path / "attribution.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["panel"] == "1"]
    bars = {row["y"]: row for row in rows if row["kind"] == "bar"}
    at = 100.0 * FLOOR
    for name, gap in SOURCES.items():
        # A bar goes from where the last one ended, to the left where the source does good.
        assert float(bars[name]["low"]) == pytest.approx(at, abs=1e-9)
        at += 100.0 * gap
        assert float(bars[name]["high"]) == pytest.approx(at, abs=1e-9)
    # The remainder ends where the gap as it is does.
    assert float(bars["remainder"]["high"]) == pytest.approx(100.0 * WHOLE, abs=1e-9)
    assert float(bars["as it is"]["x"]) == pytest.approx(100.0 * WHOLE, abs=1e-9)
    assert all((tmp_path / f"attribution.{form}").exists() for form in figures.FORMS)
    table = attribution_table(attribute_gaps(study, summaries))
    cells = {(row[1], row[2]): row for row in table.rows}
    assert cells["source", "underflow"][3] == pytest.approx(3.0, abs=1e-9)
    assert cells["source", "remainder"][3] == pytest.approx(100.0 * TOGETHER, abs=1e-9)
    assert ("scale", "remainder") not in cells


def test_a_study_without_such_arms_has_nothing_of_it(twins: dict[int, Run]) -> None:
    study = made(twins, {"": WHOLE})
    summaries = compare.summarise(study)
    assert attribute_gaps(study, summaries) == []
    spec = next(item for item in figures.FIGURES if item.name == "attribution")
    assert spec.draw(PlotContext.of(study, summaries)) is None and spec.on_request
    assert attribution_table([]).rows == []


def test_a_baseline_has_all_its_errors(twins: dict[int, Run]) -> None:
    exact = dataclasses.replace(
        twins[1], meta={**twins[1].meta, "config_text": 'seed = 1\nexact = ["all"]\n'}
    )
    pairings = pair_runs([exact], {}, "bf16")
    assert not pairings.is_baseline(exact)


def test_names_of_groups() -> None:
    assert [group_of(name) for name in ("estimator", "amax history", "dgrad.w", "wgrad")] == [
        "source",
        "scale",
        "slot",
        "GEMM",
    ]
    assert group_of("layers.1.attention.qkv") == group_of("lm_head") == "layer"
