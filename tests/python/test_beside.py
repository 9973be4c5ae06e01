"""Two studies side by side, and a study followed while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import make_example_run
import numpy as np
import pytest

from fp8lab_analysis import report
from fp8lab_analysis.draw import figures
from fp8lab_analysis.judge import beside, compare
from fp8lab_analysis.read import study

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("FP8LAB_PROGRAM", "")
RECIPES = {item.name: item for item in make_example_run.RECIPES}


def configure(path: Path, text: str) -> None:
    """Gives a run file another configuration."""
    with h5py.File(path, "a") as file:
        file["meta"].attrs["config_text"] = text
        make_example_run.seal_meta(file)


def make_study(
    folder: Path,
    gap: float,
    design: make_example_run.StatedDesign | None = None,
    recipes: tuple[str, ...] = ("bf16", "infir2"),
    seeds: tuple[int, ...] = (1, 2, 3, 4),
    steps: int = 60,
) -> study.Study:
    """A study whose infir2 is `gap` of the baseline's held-out loss worse, nearly without noise."""
    make_example_run.make_example(folder, [RECIPES[name] for name in recipes], seeds, design)
    for recipe in recipes:
        for seed in seeds:
            path = folder / f"{recipe}-seed{seed}" / "run.h5"
            configure(path, f'recipe = "{recipe}"\nseed = {seed}\n[cpt]\nsteps = {steps}\n')
            with h5py.File(path, "a") as file:
                worse = 0.0 if recipe == "bf16" else gap + 1e-5 * seed
                file["eval/loss"][...] = 1.0 + worse
    return study.load_study([folder])


def lay(ours: study.Study, theirs: study.Study) -> beside.Beside:
    return beside.lay_beside(ours, compare.summarise(ours), theirs, compare.summarise(theirs))


def test_a_changed_verdict_is_named(tmp_path: Path) -> None:
    ours, theirs = make_study(tmp_path / "a", 0.001), make_study(tmp_path / "b", 0.02)
    found = lay(ours, theirs)
    assert [(p.label, p.changed) for p in found.pairs] == [("bf16", False), ("infir2", True)]
    assert found.sentences[0][1] == (
        "The verdict changed for 1 of 1 arm, from the other study to this one: infir2 from worse "
        "to equivalent."
    )
    assert found.sentences[1:] == [
        ("good", "Configuration, recipes, data, first weights, seeds and code agree.")
    ]
    same = lay(ours, ours)
    assert same.sentences[0][1] == "The verdict on 1 arm is the same in both studies."


def test_other_margins_configurations_and_seeds_are_said(tmp_path: Path) -> None:
    stated = make_example_run.StatedDesign(margin=0.03)
    ours = make_study(tmp_path / "a", 0.001)
    theirs = make_study(tmp_path / "b", 0.02, stated, seeds=(1, 2, 3), steps=90)
    text = "\n".join(sentence for _, sentence in lay(ours, theirs).sentences)
    assert "margin (0.5 % / 3 %); stated beforehand (no / yes)" in text
    assert "cpt.steps (60 / 90)" in text and "seeds (1, 2, 3, 4 / 1, 2, 3)" in text
    assert "agree" not in text


def test_arms_of_other_names_are_matched_by_their_configuration(tmp_path: Path) -> None:
    ours, theirs = make_study(tmp_path / "a", 0.001), make_study(tmp_path / "b", 0.001)
    for seed in (1, 2, 3, 4):
        path = tmp_path / "b" / f"infir2-seed{seed}" / "run.h5"
        with h5py.File(path, "a") as file:
            file["meta"].attrs["extra.variant"] = "named otherwise"
            make_example_run.seal_meta(file)
    theirs = study.load_study([tmp_path / "b"])
    assert {g.label for g in theirs.groups} == {"bf16", "infir2 (named otherwise)"}
    pairs = {p.label: p for p in lay(ours, theirs).pairs}
    assert set(pairs) == {"bf16", "infir2"} and pairs["infir2"].theirs is not None
    for seed in (1, 2, 3, 4):
        path = tmp_path / "b" / f"infir2-seed{seed}" / "run.h5"
        configure(path, f'recipe = "infir2"\nseed = {seed}\n[cpt]\nsteps = 7\n')
    labels = [p.label for p in lay(ours, study.load_study([tmp_path / "b"])).pairs]
    assert labels == ["bf16", "infir2", "infir2 (named otherwise)"]


def test_the_page_shows_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FIGURES", tuple(f for f in figures.FIGURES if f.name == "beside"))
    make_study(tmp_path / "a", 0.001)
    make_study(tmp_path / "b", 0.02, recipes=("bf16", "infir2", "te_current"))
    out = tmp_path / "out"
    words = [str(tmp_path / "a"), "--out", str(out)]
    assert report.main([*words, "--beside", str(tmp_path / "b")]) == 0
    text = (out / "index.html").read_text()
    assert 'id="beside"' in text and 'id="figure-beside"' in text
    assert "infir2 from worse to equivalent" in text and "Only in the other: te_current" in text
    rows = (out / "tables" / "beside.csv").read_text().splitlines()
    assert len(rows) == 4 and rows[2].startswith("infir2,equivalent,worse,changed,4,4,")
    drawn = (out / "figures" / "beside.csv").read_text()
    assert '"infir2, this study"' in drawn and '"infir2, the other"' in drawn
    assert report.main(words) == 0
    text = (out / "index.html").read_text()
    assert 'id="beside"' not in text and "Gaps of two studies" not in text


# --- followed live --------------------------------------------------------------------------------

FOLLOW = """
import sys
from fp8lab_analysis import report
from fp8lab_analysis.draw import figures
figures.FIGURES = ()
sys.exit(report.main(sys.argv[1:]))
"""


def wait_for(condition: object, seconds: float = 60.0) -> None:
    """Until `condition()` holds; fails after a while."""
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen"
        time.sleep(0.05)


def start(folder: Path, out: Path) -> subprocess.Popen[str]:
    """A report that follows a study."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'analysis'}:{ROOT / 'src/python'}"}
    words = [str(folder), "--out", str(out), "--follow", "1"]
    return subprocess.Popen(
        [sys.executable, "-c", FOLLOW, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def growing(folder: Path) -> Path:
    """The run file of a study that is not complete."""
    path = folder / "infir2-seed1" / "run.h5"
    make_example_run.make_example(folder, [RECIPES["bf16"], RECIPES["infir2"]], (1,))
    with h5py.File(path, "a") as file:
        for name in file["metrics"]:
            file["metrics"][name].resize(100, axis=0)
        file["hashes/weights"].resize(100, axis=0)
        file["complete"].resize(0, axis=0)
    return path


def test_a_study_is_followed_to_its_end(tmp_path: Path) -> None:
    path, page = growing(tmp_path / "study"), tmp_path / "out" / "index.html"
    with start(tmp_path / "study", tmp_path / "out") as process:
        try:
            wait_for(page.exists)
            assert '<meta http-equiv="refresh" content="1">' in page.read_text()
            assert "step 100" in page.read_text()
            with h5py.File(path, "a", libver="latest") as file:
                for name in file["metrics"]:
                    file["metrics"][name].resize(120, axis=0)
                file["metrics/step"][100:] = np.arange(101, 121)
                file["metrics/stage"][100:] = 2
                file["metrics/loss"][100:] = 0.5
            wait_for(lambda: "step 120" in page.read_text())
            assert 'http-equiv="refresh"' in page.read_text()
            with h5py.File(path, "a", libver="latest") as file:
                file["complete"].resize(1, axis=0)
            out, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0 and errors == ""
    assert out.count("index.html") == 3
    assert 'http-equiv="refresh"' not in page.read_text()


def test_a_study_is_awaited(tmp_path: Path) -> None:
    path, page = tmp_path / "study" / "run", tmp_path / "out" / "index.html"
    make_example_run.make_example(tmp_path / "study", [RECIPES["bf16"]], (1,))
    (tmp_path / "study" / "bf16-seed1").rename(path)
    with start(tmp_path / "study", tmp_path / "out") as process:
        try:
            assert process.stdout is not None and "waiting" in process.stdout.readline()
            assert not page.exists()
            path.rename(tmp_path / "study" / "bf16-seed1")
            _, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0 and errors == "" and page.exists()


def test_following_ends_by_an_interrupt(tmp_path: Path) -> None:
    growing(tmp_path / "study")
    page = tmp_path / "out" / "index.html"
    with start(tmp_path / "study", tmp_path / "out") as process:
        try:
            assert process.stdout is not None and "index.html" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0 and errors == ""
    assert 'http-equiv="refresh"' not in page.read_text()


def test_program_leaves_the_interrupt_to_the_report(tmp_path: Path) -> None:
    if not PROGRAM:
        pytest.skip("FP8LAB_PROGRAM is not set")
    growing(tmp_path / "study")
    page = tmp_path / "out" / "index.html"
    words = [PROGRAM, "report", str(tmp_path / "study"), "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        [*words, "--follow", "1"], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None and "index.html" in process.stdout.readline()
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0
    assert 'http-equiv="refresh"' not in page.read_text()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--follow", "0"], "--follow 0: accepted: 1 to 86400 seconds"),
        (["--follow", "nan"], "--follow nan"),
        (["--beside", ""], "--beside: empty"),
        (["--export", "tensorboard", "--follow", "5", "--out", "x"], "--follow is for a report"),
        (["--export", "tensorboard"], "--export needs --out"),
        (["--export", "wandb", "--out", "x"], "--export"),
    ],
)
def test_odd_requests_are_refused(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        report.main(["study", *words])
    assert refused.value.code == 2
    told = capsys.readouterr().err
    assert expected in told and told.count("\n") == 1
