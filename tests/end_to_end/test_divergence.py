"""`fp8lab train` and reports say alike whether a run diverged, and from which step on."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from test_provenance import stage, train, write_config
from test_recipe_changes import fallback, recipe_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "analysis"))

from fp8lab_analysis.judge.breaks import find_break  # noqa: E402
from fp8lab_analysis.judge.compare import summarise  # noqa: E402
from fp8lab_analysis.judge.divergence import find_divergence  # noqa: E402
from fp8lab_analysis.read.run_reader import load_run  # noqa: E402
from fp8lab_analysis.read.study import load_study  # noqa: E402

NAN = float("nan")
NONFINITE = '[slots.fprop.x]\nscale_source = "static"\nstatic_scale = 1e-6\noverflow = "special"\n'
GO_ON = 'statistics_every_steps = 1\nnonfinite = "keep_going"\n'
EVALUATED = 'eval = { every_steps = 5, sequences = 2, data = { kind = "arithmetic" } }\n'


def program_says(status: int, said: str) -> dict[str, int]:
    """The steps that it names, by stage; 0 for a held-out loss, of which it names none."""
    assert status in (0, 5), status
    lines = [line for line in said.splitlines() if line.startswith("diverged: ")]
    assert len(lines) == (1 if status == 5 else 0), said
    assert ("\ncomplete, but diverged: " in "\n" + said) == (status == 5)
    found: dict[str, int] = {}
    name = ""
    for text in lines[0].removeprefix("diverged: ").split("; ") if lines else []:
        if at := re.search(r"(?:at|from) step (\d+)", text):
            found[name or text.partition(":")[0]] = int(at[1])
            name = ""
        elif text == "the last held-out loss is not finite":
            found["held out"] = 0
        else:  # the first half of a sentence on a smoothed loss
            name = text.partition(":")[0]
    return found


def report_says(out: Path) -> dict[str, int]:
    read = load_run(out / "run.h5")
    divergences = {name: find_divergence(read, name) for name in read.stage_names}
    found = {n: d.step for n, d in divergences.items() if d and (d.finite or not d.held_out)}
    if not found and any(divergences.values()):
        found = {"held out": 0}
    (summary,) = summarise(load_study([out / "run.h5"]))
    assert [item.diverged for item in summary.runs] == [bool(found)]
    return found


def asked(config: Path, out: Path, *more: str) -> dict[str, int]:
    """What both say of a run, which is the same."""
    result = train(config, out, *more)
    said = program_says(result.returncode, result.stdout)
    assert said == report_says(out), result.stdout
    return said


def test_a_step_that_a_fallback_left_out_is_no_loss(tmp_path: Path) -> None:
    recipe = recipe_file(tmp_path, "special", "te_current", NONFINITE)
    falls = stage("a", more=fallback("bf16", "nonfinite = true"))
    config = write_config(tmp_path, falls, recipe=str(recipe), logging=GO_ON)
    assert asked(config, tmp_path / "left-out") == {}
    read = load_run(tmp_path / "left-out/run.h5")
    assert read.left_out.tolist() == [True, False, False, False]
    assert not np.isfinite(read.metrics.loss[0])
    assert read.stage_rows("a").tolist() == [False, True, True, True]
    # The step that another criterion saw has moved the weights.
    falls = stage("a", more=fallback("bf16", "saturation = 0.01"))
    config = write_config(tmp_path, falls, recipe=str(recipe), logging=GO_ON)
    (step,) = asked(config, tmp_path / "taken").values()
    assert "fallback" in {event.kind for event in load_run(tmp_path / "taken/run.h5").events}
    assert step == 2


def test_a_gradient_norm_that_is_not_finite_is_a_divergence(tmp_path: Path) -> None:
    words = NONFINITE.replace("fprop.x", "dgrad.dy").replace("1e-6", "1e-9")
    recipe = recipe_file(tmp_path, "special", "te_current", words)
    # The run stops at the step; its losses are those of before.
    config = write_config(tmp_path, stage("a"), recipe=str(recipe))
    assert train(config, tmp_path / "stopped").returncode == 1
    read = load_run(tmp_path / "stopped/run.h5")
    assert np.isfinite(read.metrics.loss).all() and not np.isfinite(read.metrics.grad_norm[-1])
    assert report_says(tmp_path / "stopped") == {"a": 1}
    found = find_break(read, read.stage_names)
    assert found is not None and found.loss == "gradient norm"
    assert found.event is not None and "dgrad.dy" in found.event.message
    # One that goes on has no finite loss after it, and the step counts.
    config = write_config(tmp_path, stage("a"), recipe=str(recipe), logging=GO_ON)
    assert asked(config, tmp_path / "goes-on") == {"a": 1}
    falls = stage("a", more=fallback("bf16", "nonfinite = true"))
    config = write_config(tmp_path, falls, recipe=str(recipe), logging=GO_ON)
    assert asked(config, tmp_path / "falls-back") == {}


def set_losses(file: h5py.File, losses: list[float], held_out: list[float]) -> None:
    file["metrics/loss"][:] = losses
    file["eval/loss"][:] = held_out


def add_events(file: h5py.File, kind: str, *steps: int) -> None:
    events, rows = file["events"], file["events/step"].shape[0]
    for name in events:
        events[name].resize(rows + len(steps), axis=0)
    events["step"][rows:] = steps
    events["kind"][rows:] = kind.encode()
    events["message"][rows:] = b"of a test"


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Configuration and folder of a run of 30 and 10 steps."""
    folder = tmp_path_factory.mktemp("complete")
    stages = stage("a", steps=30, more=EVALUATED) + stage("b", steps=10, more=EVALUATED)
    config = write_config(folder, stages)
    assert asked(config, folder / "run") == {}
    return config, folder / "run"


FALLING = [5.0 - 0.05 * step for step in range(40)]
HELD_OUT = [5.0] * 8


def with_losses(**changed: float) -> list[float]:
    """FALLING, but for the losses of `s12=2.0`, of step 12."""
    losses = list(FALLING)
    for name, loss in changed.items():
        losses[int(name[1:]) - 1] = loss
    return losses


CASES: dict[str, tuple[list[float], list[float], dict[str, tuple[int, ...]], dict[str, int]]] = {
    "falls": (FALLING, HELD_OUT, {}, {}),
    "a loss": (with_losses(s12=NAN), HELD_OUT, {}, {"a": 12}),
    "infinite": (with_losses(s40=float("inf")), HELD_OUT, {}, {"b": 40}),
    "left out": (with_losses(s12=NAN, s13=np.inf), HELD_OUT, {"fallback": (12, 13)}, {}),
    "fallback of a number": (with_losses(s12=9.0), HELD_OUT, {"fallback": (12,)}, {}),
    "another step's fallback": (with_losses(s12=NAN), HELD_OUT, {"fallback": (11, 13)}, {"a": 12}),
    "no targets": (with_losses(s1=NAN, s31=NAN), HELD_OUT, {"no_targets": (1, 31)}, {}),
    "an event alone": (with_losses(s12=NAN), HELD_OUT, {"nan": (12,), "spike": (12,)}, {"a": 12}),
    "runs away": (FALLING[:20] + [9.0] * 20, [5.0] * 4 + [9.0] * 4, {}, {"a": 21}),
    # Held-out losses from before and after decide what a training loss means.
    "of training batches alone": (FALLING[:20] + [9.0] * 20, HELD_OUT, {}, {}),
    "held out within the margin": (FALLING[:20] + [9.0] * 20, [5.0] * 5 + [5.5] * 3, {}, {}),
    "held out above it": (FALLING[:20] + [9.0] * 20, [5.0] * 5 + [5.6] * 3, {}, {"a": 21}),
    "held out broken before": (FALLING[:20] + [9.0] * 20, [NAN] * 4 + [9.0] * 4, {}, {"a": 21}),
    # Minimum of the first third of the rows that count.
    "low rows": ([1.0] * 10 + [1.6] * 30, [1.0] * 2 + [1.6] * 6, {}, {"a": 18}),
    "rows without a loss": (
        [NAN] * 10 + [1.6] * 30,
        [1.0] * 2 + [1.6] * 6,
        {"no_targets": tuple(range(1, 11))},
        {},
    ),
    # Ten rows are too few for their noise: of stage b held-out losses say it.
    "few rows": (FALLING[:30] + [4.0] * 5 + [6.0] * 5, HELD_OUT, {}, {}),
    "few rows, held out": (FALLING, [5.0] * 7 + [5.6], {}, {"b": 40}),
    "few rows, far away": (FALLING[:35] + [7488.0] * 5, [5.0] * 7 + [6999.0], {}, {"b": 36}),
    "held out, last": (FALLING, [5.0] * 7 + [NAN], {}, {"held out": 0}),
    "held out, last of a": (FALLING, [5.0] * 5 + [NAN] + [5.0] * 2, {}, {"held out": 0}),
    "held out, before": (FALLING, [NAN] * 5 + [5.0] * 3, {}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_both_read_a_run_file_alike(case: str, complete: tuple[Path, Path], tmp_path: Path) -> None:
    losses, held_out, events, expected = CASES[case]

    def change(file: h5py.File) -> None:
        set_losses(file, losses, held_out)
        for kind, steps in events.items():
            add_events(file, kind, *steps)

    assert resumed(complete, tmp_path, change) == expected


def resumed(
    complete: tuple[Path, Path], tmp_path: Path, change: Callable[[h5py.File], None]
) -> dict[str, int]:
    """What both say of a copy of a complete run whose file is changed: --resume says it again."""
    config, whole = complete
    out = tmp_path / "run"
    out.mkdir()
    for path in whole.iterdir():
        if path.is_file():
            (out / path.name).write_bytes(path.read_bytes())
    with h5py.File(out / "run.h5", "r+", libver="latest") as file:
        change(file)
    return asked(config, out, "--resume")


def test_both_find_the_same_row_of_any_curve(complete: tuple[Path, Path], tmp_path: Path) -> None:
    seen = set()
    for seed in range(24):
        random = np.random.default_rng(seed)
        losses = 4.0 + random.normal(0.0, random.choice([0.1, 0.5]), 40)
        losses[int(random.integers(12, 35)) :] += random.choice([0.0, 0.6, 3.0, 20.0])
        held_out = (5.0 + random.choice([0.0, 0.6], 8)).tolist()
        folder = tmp_path / str(seed)
        folder.mkdir()
        said = resumed(complete, folder, lambda file: set_losses(file, losses.tolist(), held_out))
        seen.add(tuple(said))
    assert {(), ("a",), ("b",)} <= seen
