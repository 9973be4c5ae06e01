"""Whatever a report is given, it is made, or one line says what is wrong: damaged, truncated,
foreign and half-written files, modules that are missing, places that cannot be written."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import h5py
import make_example_run
import numpy as np
import pytest

from fp8lab_analysis import report
from fp8lab_analysis.draw import figures
from fp8lab_analysis.read import isolation
from fp8lab_analysis.read.hdf5 import InputError
from fp8lab_analysis.read.study import Study, load_study

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("FP8LAB_PROGRAM", "")
FLIPS = 150  # random damages of a run file; ten times as many: tests/faults


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of one run; tests must not write into it."""
    folder = tmp_path_factory.mktemp("example")
    recipe = make_example_run.RECIPES[1]
    done = make_example_run.write_run(folder / "infir2-seed1" / "run.h5", recipe, 1)
    make_example_run.write_study(folder / "study.h5", [(recipe, 1, done)])
    return folder


@pytest.fixture(scope="module")
def run_bytes(example: Path) -> bytes:
    return (example / "infir2-seed1" / "run.h5").read_bytes()


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading that does not end is given up sooner."""
    monkeypatch.setattr(isolation, "READ_SECONDS", 10.0)


@pytest.fixture
def one_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FIGURES", figures.FIGURES[1:2])


def refused(
    capfd: pytest.CaptureFixture[str], *arguments: str | Path, status: int = 2, names: str
) -> str:
    """The one line that a refused report prints, which holds `names`."""
    assert report.main([str(argument) for argument in arguments]) == status
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("fp8lab: ") and names in captured.err, captured.err
    assert "internal error" not in captured.err
    return captured.err


def same(one: Any, other: Any) -> bool:
    """Equal values, with NaN equal to NaN."""
    if is_dataclass(one):
        return all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


# --- run files ------------------------------------------------------------------------------------


def random_damage(whole: bytes, number: int) -> bytes:
    """Flipped bits, zeroed, copied or cut away parts."""
    draw = random.Random(number)
    data = bytearray(whole)
    place, length = draw.randrange(len(data)), draw.choice((8, 64, 512, 4096))
    kind = number % 5
    if kind < 2:
        for _ in range(draw.choice((1, 1, 4, 16))):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif kind == 2:
        data[place : place + length] = bytes(len(data[place : place + length]))
    elif kind == 3:
        source = draw.randrange(len(data) - length)
        data[place : place + length] = data[source : source + len(data[place : place + length])]
    else:
        del data[place:]
    return bytes(data)


def test_a_damaged_run_is_refused_or_read_as_it_was(tmp_path: Path, run_bytes: bytes) -> None:
    path = tmp_path / "run.h5"
    path.write_bytes(run_bytes)
    whole = load_study([path]).runs[0]
    refusals = 0
    for number in range(FLIPS):
        path.write_bytes(random_damage(run_bytes, number))
        try:
            found = isolation.load_study_apart([path], "")
        except InputError as error:
            refusals += 1
            assert str(path) in str(error) and "\n" not in str(error), number
            assert "fp8lab doctor" in str(error) or "expected" in str(error), number
        else:
            assert same(found.runs[0], whole), f"damage {number} changed what is read"
    assert refusals > FLIPS // 2


def datasets(path: Path) -> list[str]:
    names: list[str] = []
    with h5py.File(path, "r") as file:
        file.visititems(
            lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
        )
    return names


def replace_by(values: Any) -> Callable[[h5py.File, str], None]:
    def change(file: h5py.File, name: str) -> None:
        del file[name]
        file[name] = values

    return change


def huge(file: h5py.File, name: str) -> None:
    """Rows that nothing is stored of."""
    if file[name].maxshape[0] is not None:
        replace_by(0)(file, name)
    else:
        file[name].resize(10**12, axis=0)


def lost_link(file: h5py.File, name: str) -> None:
    del file[name]
    file[name] = h5py.SoftLink("/nowhere")


def as_group(file: h5py.File, name: str) -> None:
    del file[name]
    file.create_group(name)


CHANGES: dict[str, Callable[[h5py.File, str], None]] = {
    "text": replace_by(np.array([b"a", b"b"])),
    "scalar": replace_by(1),
    "empty": replace_by(np.zeros(0)),
    "complex": replace_by(np.ones(140, dtype=complex)),
    "records": replace_by(np.zeros(140, dtype=[("a", "f8"), ("b", "i4")])),
    "four dimensions": replace_by(np.zeros((2, 2, 2, 2))),
    "negative": replace_by(np.full(140, -7)),
    "enormous numbers": replace_by(np.full(140, 1e300)),
    "not UTF-8": replace_by(np.array([b"\xff\xfe"] * 48)),
    "huge": huge,
    "lost link": lost_link,
    "group": as_group,
}
# What a report reads; the rest of a file may be anything.
READ = [
    *(f"metrics/{name}" for name in ("step", "stage", "loss", "tokens")),
    *(f"eval/{name}" for name in ("step", "stage", "exact_match")),
    *(f"scores/{name}" for name in ("step", "name", "value")),
    *(f"tensors/{name}" for name in ("step", "layer", "slot", "format", "sqnr_db")),
    *("tensors/without_history", "events/step", "events/kind", "complete"),
]
# Another number or name is none that cannot be; a column that is short is noted.
ACCEPTED = {
    "text": ["scores/name", "events/kind"],
    "empty": ["metrics/loss", "eval/exact_match", "scores/name", "scores/value", "events/kind"],
    "negative": ["metrics/loss", "scores/value"],
    "enormous numbers": ["metrics/loss", "scores/value"],
}


@pytest.mark.parametrize("kind", list(CHANGES))
def test_changed_datasets_are_refused_or_reported(
    tmp_path: Path, run_bytes: bytes, kind: str
) -> None:
    """Every dataset that a report reads, changed in the way of `kind`."""
    path = tmp_path / "run.h5"
    accepted = []
    for name in READ:
        path.write_bytes(run_bytes)
        with h5py.File(path, "a", libver="latest") as file:
            CHANGES[kind](file, name)
        try:
            run = isolation.load_study_apart([path], "").runs[0]
        except InputError as error:
            assert str(path) in str(error) and "damaged run file" in str(error), name
        else:
            accepted.append(name)
            assert run.notes or kind not in ("text", "empty"), name
    assert accepted == ACCEPTED.get(kind, [])


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("recipe_name", "infir3"),
        ("seed", np.uint64(2)),
        ("config_text", "seed = 2"),
        ("stage_names", ["pretrain", "cpt"]),
        ("identity_hashes", ["0" * 16]),
        ("extra.new", "added"),
        ("checksum", "0" * 64),
    ],
)
def test_changed_attributes_are_refused(
    tmp_path: Path, run_bytes: bytes, attribute: str, value: Any
) -> None:
    path = tmp_path / "run.h5"
    path.write_bytes(run_bytes)
    with h5py.File(path, "a") as file:
        file["meta"].attrs[attribute] = value
    with pytest.raises(InputError, match="attributes of /meta do not have their checksum"):
        isolation.load_study_apart([path], "")


@pytest.mark.parametrize("schema", ["", "fp8lab-run-0", "fp8lab-run-3", "fp8lab-study-2"])
def test_other_versions_are_named(
    tmp_path: Path, run_bytes: bytes, capfd: pytest.CaptureFixture[str], schema: str
) -> None:
    path = tmp_path / "run.h5"
    path.write_bytes(run_bytes)
    with h5py.File(path, "a") as file:
        file["meta"].attrs["schema"] = schema
    line = refused(capfd, path, names=str(path))
    assert f"'{schema}'" in line and "expected fp8lab-run-1 or fp8lab-run-2" in line


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b"\0" * 4096, "not a readable HDF5 file"),
        (b"\x89HDF\r\n\x1a\n", "not a readable HDF5 file"),
        (b"PK\x03\x04" + b"x" * 2000, "not a readable HDF5 file"),
        (b"step,loss\n1,2.5\n", "not a readable HDF5 file"),
    ],
)
def test_foreign_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: bytes, expected: str
) -> None:
    path = tmp_path / "run.h5"
    path.write_bytes(content)
    assert expected in refused(capfd, tmp_path, names=str(path))
    os.rename(path, tmp_path / "study.h5")
    assert expected in refused(capfd, tmp_path, names="study.h5")


def test_special_files_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "run.h5")
    assert "no regular file" in refused(capfd, tmp_path, names="run.h5")
    assert "no regular file" in refused(capfd, "/dev/zero", names="/dev/zero")
    os.remove(tmp_path / "run.h5")
    os.symlink("run.h5", tmp_path / "run.h5")
    refused(capfd, tmp_path / "run.h5", names="run.h5")
    refused(capfd, tmp_path / ("x" * 300), names="xxx")


def test_one_damaged_run_of_a_study_is_named(
    tmp_path: Path, run_bytes: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    for arm in ("a", "b", "c"):
        (tmp_path / arm).mkdir()
        (tmp_path / arm / "run.h5").write_bytes(run_bytes if arm != "b" else run_bytes[:-9])
    line = refused(capfd, tmp_path, names=str(tmp_path / "b" / "run.h5"))
    assert "fp8lab doctor" in line and not (tmp_path / "report").exists()


# --- study files ----------------------------------------------------------------------------------


def test_damaged_study_files(tmp_path: Path, example: Path) -> None:
    whole = (example / "study.h5").read_bytes()
    (tmp_path / "infir2-seed1").symlink_to(example / "infir2-seed1")
    path = tmp_path / "study.h5"
    refusals = 0
    for number in range(FLIPS // 2):
        path.write_bytes(random_damage(whole, number))
        try:
            isolation.load_study_apart([tmp_path], "")
        except InputError as error:
            refusals += 1
            assert str(tmp_path) in str(error) and "\n" not in str(error), number
    assert refusals > FLIPS // 5


@pytest.mark.parametrize(
    "name", ["arms/name", "arms/run_file", "arms/baseline_arm", "arms/is_baseline"]
)
@pytest.mark.parametrize("kind", ["text", "scalar", "complex", "huge", "lost link", "group"])
def test_changed_study_files(tmp_path: Path, example: Path, name: str, kind: str) -> None:
    path = tmp_path / "study.h5"
    path.write_bytes((example / "study.h5").read_bytes())
    with h5py.File(path, "a", libver="latest") as file:
        CHANGES[kind](file, name)
    with pytest.raises(InputError, match="study.h5") as caught:
        isolation.load_study_apart([tmp_path], "")
    assert "\n" not in str(caught.value)


# --- reading that crashes or does not end ---------------------------------------------------------


def crash(inputs: Sequence[Path], title: str, opening: Callable[[Path], None]) -> Study:
    opening(inputs[0])
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def hang(inputs: Sequence[Path], title: str, opening: Callable[[Path], None]) -> Study:
    opening(inputs[0])
    time.sleep(100)
    raise AssertionError


def no_memory(inputs: Sequence[Path], title: str, opening: Callable[[Path], None]) -> Study:
    opening(inputs[0])
    raise MemoryError


def test_reading_that_crashes_or_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("some/run.h5")
    with pytest.raises(InputError, match=r"some/run.h5: damaged.*ends in SIGSEGV"):
        isolation.load_study_apart([path], "", crash)
    monkeypatch.setattr(isolation, "READ_SECONDS", 0.2)
    with pytest.raises(InputError, match=r"some/run.h5: damaged.*does not end within"):
        isolation.load_study_apart([path], "", hang)
    with pytest.raises(isolation.ReadFailure, match="some/run.h5.*not enough memory"):
        isolation.load_study_apart([path], "", no_memory)


# --- modules --------------------------------------------------------------------------------------


TOOLS = {
    "fp8lab_analysis.report": "fp8lab: report: ",
    "fp8lab_analysis.assess": "fp8lab_analysis.assess: ",
    "fp8lab_analysis.laws": "fp8lab_analysis.laws: ",
    "fp8lab_analysis.planted": "fp8lab_analysis.planted: ",
    "fp8lab_analysis.study_page": "study_page: ",
    "fp8lab_analysis.live": "fp8lab: train --log: ",
    "fp8lab.conformance": "fp8lab.conformance: ",
    "fp8lab.tokens": "fp8lab.tokens: ",
    "fp8lab.gguf": "fp8lab.gguf: ",
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("words", [("--nope",), ("a", "--nope", "b"), ()])
def test_usage_errors_of_every_tool_are_one_line(tool: str, words: tuple[str, ...]) -> None:
    if tool == "fp8lab_analysis.planted" and not words:
        pytest.skip("takes no run to draw from")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'analysis'}:{ROOT / 'src/python'}"}
    command = [sys.executable, "-m", tool, *words]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    if "is not installed" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith(TOOLS[tool]), done.stderr


def run_module(path: Path, before: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """The report in an interpreter that did `before` first."""
    code = f"import sys; {before}; from fp8lab_analysis import report; sys.exit(report.main())"
    environment = {**os.environ, "PYTHONPATH": f"{path}:{ROOT / 'analysis'}:{ROOT / 'src/python'}"}
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.parametrize("module", report.NEEDED)
@pytest.mark.parametrize("how", ["missing", "broken"])
def test_missing_modules(tmp_path: Path, example: Path, module: str, how: str) -> None:
    before = f"sys.modules['{module}'] = None" if how == "missing" else "pass"
    if how == "broken":
        text = "raise ValueError('dtype size changed,\\nexpected 96')\n"
        (tmp_path / f"{module}.py").write_text(text)
    result = run_module(tmp_path, before, example, "--out", tmp_path / "out")
    assert result.returncode == 2 and result.stdout == "", result.stderr
    assert result.stderr.count("\n") == 1 and f"the Python module {module} " in result.stderr
    assert ("is not installed" in result.stderr) == (how == "missing")
    assert "--python" in result.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [[], ["--nope"], ["a", "--out"], ["a", "--title"]])
def test_usage_errors_are_one_line(tmp_path: Path, words: list[str]) -> None:
    result = run_module(tmp_path, "pass", *words)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert "--help" in result.stderr


# --- where the report goes ------------------------------------------------------------------------


@pytest.mark.usefixtures("one_figure")
def test_places_that_cannot_be_written(
    tmp_path: Path, example: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    for out in (taken, taken / "below", taken / "far" / "below"):
        line = refused(capfd, example, "--out", out, names=str(taken))
        assert "no directory" in line
    refused(capfd, example, "--out", "", names="--out")
    refused(capfd, example, "--out", "/proc/none/report", names="/proc/none")
    refused(capfd, example, "--out", tmp_path / ("x" * 300), names="xxx")
    assert taken.read_text() == "mine"
    for part in ("figures", "tables", "tables/summary.csv", "index.html"):
        out = tmp_path / part.replace("/", "-")
        blocked = out / part
        blocked.parent.mkdir(parents=True)
        if "." in part:
            blocked.mkdir()
        else:
            blocked.write_text("mine")
        refused(capfd, example, "--out", out, names=part)


def test_a_full_disk_is_the_machines_failure(
    tmp_path: Path, example: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "summary.csv").symlink_to("/dev/full")
    line = refused(capfd, example, "--out", tmp_path, status=1, names="No space left")
    assert "not complete" in line and not (tmp_path / "index.html").exists()


def test_nobody_reads_standard_output(tmp_path: Path, example: Path) -> None:
    code = "import sys; from fp8lab_analysis import report; "
    code += "from fp8lab_analysis.draw import figures; figures.FIGURES = (); "
    code += "sys.exit(report.main())"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'analysis'}:{ROOT / 'src/python'}"}
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = subprocess.run(
            [sys.executable, "-c", code, str(example), "--out", str(tmp_path)],
            env=environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == 1 and result.stderr.count("\n") == 1, result.stderr
    assert "standard output" in result.stderr and (tmp_path / "index.html").exists()


# --- fp8lab report --------------------------------------------------------------------------------


def program(*words: str | Path) -> subprocess.CompletedProcess[str]:
    if not PROGRAM:
        pytest.skip("FP8LAB_PROGRAM is not set")
    return subprocess.run(
        [PROGRAM, "report", *map(str, words)], capture_output=True, text=True, check=False
    )


def test_program_passes_on_line_and_status(tmp_path: Path, example: Path) -> None:
    damaged = tmp_path / "run.h5"
    damaged.write_bytes(b"no")
    taken = tmp_path / "taken"
    taken.write_text("mine")
    cases: list[tuple[list[str | Path], str]] = [
        ([damaged], str(damaged)),
        ([example, "--out", taken], str(taken)),
        ([example, "--out", ""], "--out"),
        ([tmp_path / "none"], "no such file"),
        ([tmp_path / ("x" * 300)], "xxx"),
        ([example, "--python", tmp_path / "none"], "--python"),
        ([example, "--python", "/bin/true", "--out", tmp_path / "new"], "--python"),
    ]
    for words, expected in cases:
        result = program(*words)
        assert result.returncode == 2, (words, result)
        assert result.stderr.count("\n") == 1 and expected in result.stderr, (words, result)
        assert "Traceback" not in result.stderr and result.stdout == ""


def test_program_tells_of_an_interpreter_that_dies(tmp_path: Path, example: Path) -> None:
    dies = tmp_path / "dies"
    dies.write_text("#!/bin/sh\nkill -SEGV $$\n")
    dies.chmod(0o755)
    result = program(example, "--python", dies, "--out", tmp_path / "new")
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert "signal 11" in result.stderr and str(dies) in result.stderr
    dies.write_text("#!/bin/sh\nexit 120\n")
    result = program(example, "--python", dies, "--out", tmp_path / "new")
    assert result.returncode == 1 and result.stderr.count("\n") == 1
    assert "status 120" in result.stderr


def test_program_makes_a_report_of_odd_names(tmp_path: Path) -> None:
    path = tmp_path / "-odd $x^$ name"
    recipe, schema = make_example_run.RECIPES[1], make_example_run.FIRST_SCHEMA
    make_example_run.write_run(path / "run.h5", recipe, 1, schema)
    with h5py.File(path / "run.h5", "a") as file:
        file["meta"].attrs["recipe_name"] = r"$\frac{$"
        del file["tensors"]  # fewer figures
    result = program("--out", path / "-out", "--title", "-$a_", "--", path)
    assert result.returncode == 0, result.stderr
    assert (path / "-out" / "index.html").exists() and result.stderr == ""
