"""Mistakes that libraries made, each as a faulty adapter: the pack notices it by its case's name.

Also the two ways in which people meet the pack: pytest with an adapter, and the table of libraries.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import plain_arithmetic as plain
import pytest

pytest.importorskip("fp8lab", reason="the package fp8lab is not built")
from fp8lab import conformance  # noqa: E402
from fp8lab.conformance import __main__ as table  # noqa: E402

Array = np.ndarray[Any, Any]
RIGHT = {
    "decode": plain.decode,
    "encode": plain.encode,
    "through": plain.through,
    "e8m0": plain.e8m0,
    "quantize": plain.quantize_by_search,
}


@pytest.fixture(name="pack", scope="module")
def fixture_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("mistakes") / "pack"
    words = [os.environ["FP8LAB_PROGRAM"], "validate", "export", str(directory)]
    subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    plain.FORMATS.update(conformance.Pack(directory).manifest["formats"])
    return directory


# --- the mistakes ---------------------------------------------------------------------------------


def by_way_of(between: str) -> Any:
    return lambda x, f, r, o, bits: plain.through(x, f, between, o)


def truncating(x: Array, format: str, rounding: str, overflow: str, bits: Any) -> Any:
    return plain.encode(x, format, "toward_zero" if format != "e8m0" else rounding, overflow, bits)


def saturating(x: Array, format: str, rounding: str, overflow: str, bits: Any) -> Any:
    return plain.encode(x, format, rounding, "saturate", bits)


def at_most_224(x: Array, format: str, rounding: str, overflow: str, bits: Any) -> Any:
    bounded = np.clip(x, -224, 224).astype(np.float32) if format == "e4m3fnuz" else x
    return plain.encode(bounded, format, rounding, overflow, bits)


def e8m0_to_nearest(x: Array, format: str, rounding: str, overflow: str, bits: Any) -> Any:
    if format == "e8m0":
        x = np.exp2(np.floor(np.log2(x.astype(float)) + 0.5)).astype(np.float32)
    return plain.encode(x, format, rounding, overflow, bits)


def e8m0_with_a_short_mask(x: Array, format: str, rounding: str, overflow: str, bits: Any) -> Any:
    """Looks at the fraction through 0x4FFFFF instead of 0x7FFFFF."""
    if format == "e8m0" and rounding == "toward_positive":
        x = (x.view(np.uint32) & ~np.uint32(0x300000)).view(np.float32)
    return plain.encode(x, format, rounding, overflow, bits)


def decoding(format: str, codes: list[int], values: list[float]) -> Any:
    """Decodes some codes of a format to other values."""

    def decode(given: Array, name: str) -> Any:
        result = plain.decode(given, name)
        for code, value in zip(codes, values, strict=True):
            if name == format:
                result[given == code] = value
        return result

    return decode


def e3m4_of_the_other_kind(codes: Array, name: str) -> Any:
    other = {"e3m4": "e3m4ieee", "e3m4ieee": "e3m4"}
    return plain.decode(codes, other.get(name, name))


def code_of(exponent: Array) -> Array:
    return np.clip(exponent + 127, 0, 254).astype(np.uint8)


def e8m0_nearest(amax: Array, format: str, rounding: str) -> Any:
    return code_of(np.rint(np.log2(amax.astype(float) / 448)))


def e8m0_by_logarithm(amax: Array, format: str, rounding: str) -> Any:
    return code_of(np.ceil(np.log2((amax / np.float32(448)).astype(np.float32))))


def e8m0_by_frexp(amax: Array, format: str, rounding: str) -> Any:
    return code_of(np.frexp(amax / np.float32(448))[1])


def floored_by_layout(x: Array, spec: dict[str, Any], transpose: bool, bits: Any) -> Any:
    """One layout bounds the amax from below, the other one the scale."""
    if not transpose or spec["amax_epsilon"] == 0:
        return plain.quantize_by_search(x, spec, transpose, bits)
    return plain.quantize_by_search(x, spec | {"amax_epsilon": 448e-10}, transpose, bits)


def amax_without_nan(x: Array, spec: dict[str, Any], transpose: bool, bits: Any) -> Any:
    codes, scales = plain.quantize_by_search(x, spec, transpose, bits)
    return codes, plain.quantize_by_search(np.nan_to_num(x, nan=0), spec, transpose, bits)[1]


MISTAKES: dict[str, dict[str, Any]] = {
    "fp16_intermediate_e4m3fn": {"encode": by_way_of("fp16")},
    "fp16_intermediate_e5m2": {"encode": by_way_of("fp16")},
    "fp16_intermediate_wanted": {
        "through": lambda x, f, between, o: plain.encode(x, f, "nearest", o, np.empty(0))
    },
    "bf16_intermediate": {"encode": by_way_of("bf16")},
    "truncated": {"encode": truncating},
    "overflow_becomes_largest": {"encode": saturating},
    "fnuz_largest_224": {"encode": at_most_224},
    "e8m0_cast_to_nearest": {"encode": e8m0_to_nearest},
    "e8m0_up_ignores_bits": {"encode": e8m0_with_a_short_mask},
    "e3m4_has_two_meanings": {"decode": e3m4_of_the_other_kind},
    "nan_read_as_480": {"decode": decoding("e4m3fn", [0x7F, 0xFF], [480, -480])},
    "e8m0_nan_read_as_infinity": {"decode": decoding("e8m0", [0xFF], [math.inf])},
    "fnuz_nan_read_as_zero": {"decode": decoding("e4m3fnuz", [0x80], [-0.0])},
    "e8m0_scale_to_nearest": {"e8m0": e8m0_nearest},
    "e8m0_ceil_of_a_rounded_logarithm": {"e8m0": e8m0_by_logarithm},
    "e8m0_exact_powers_doubled": {"e8m0": e8m0_by_frexp},
    "zero_group_by_layout": {"quantize": floored_by_layout},
    "nan_lost_in_amax": {"quantize": amax_without_nan},
}


def noticed(pack: Path, functions: dict[str, Any]) -> set[str]:
    """The names of the known mistakes of which a case has mismatches."""
    reader = conformance.Pack(pack)
    return {
        case["case"]
        for section, function in functions.items()
        for index, case in enumerate(reader.cases(section))
        if "case" in case
        for report in [conformance.check_case(reader, section, index, function)]
        if report is not None and report.mismatches
    }


def test_right_functions_have_none_of_the_mistakes(pack: Path) -> None:
    assert noticed(pack, RIGHT) == set()


def test_every_known_mistake_has_a_case_and_a_fault(pack: Path) -> None:
    sections = conformance.Pack(pack).manifest["sections"].values()
    entries = [case for cases in sections for case in cases if "case" in case]
    assert {case["case"] for case in entries} == set(MISTAKES)
    assert all("#" in case["threads"] and len(case["about"]) > 20 for case in entries)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_noticed_by_the_name_of_its_case(pack: Path, name: str) -> None:
    assert name in noticed(pack, RIGHT | MISTAKES[name])


def test_cases_tell_similar_mistakes_apart(pack: Path) -> None:
    """Sharp inputs: each of these has mismatches in its own case and in none of the others'."""
    for name in ("e8m0_ceil_of_a_rounded_logarithm", "e8m0_exact_powers_doubled",
                 "e8m0_up_ignores_bits", "overflow_becomes_largest", "nan_lost_in_amax",
                 "zero_group_by_layout", "fnuz_largest_224", "nan_read_as_480"):  # fmt: skip
        assert noticed(pack, RIGHT | MISTAKES[name]) == {name}


# --- pytest and the table -------------------------------------------------------------------------

ADAPTER = """
import numpy as np
import plain_arithmetic as plain
from fp8lab import conformance

plain.FORMATS.update(conformance.Pack({pack!r}).manifest["formats"])

class right:
    decode = staticmethod(plain.decode)
    e8m0 = staticmethod(plain.e8m0)

class wrong(right):
    @staticmethod
    def e8m0(amax, format, rounding):
        return np.clip(np.frexp(amax / np.float32(448))[1] + 127, 0, 254).astype(np.uint8)

class empty:
    pass
"""


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest",
               "-c", os.devnull, "-p", "fp8lab.conformance.plugin",
               "--pyargs", "fp8lab.conformance", *words]  # fmt: skip
    paths = [str(folder), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=folder,
        env=environment,
    )  # fmt: skip


@pytest.fixture(name="adapters")
def fixture_adapters(pack: Path, tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(ADAPTER.format(pack=str(pack)))
    return tmp_path


def test_pytest_runs_a_test_for_each_case(pack: Path, adapters: Path) -> None:
    done = run_pytest(adapters, "--fp8lab-pack", str(pack), "--fp8lab-adapter", "mine:right")
    assert done.returncode == 0, done.stdout + done.stderr
    reader = conformance.Pack(pack)
    assert f"{len(reader.cases('decode') + reader.cases('e8m0')) - 1} passed" in done.stdout
    assert "1 skipped" in done.stdout  # lns8, which the adapter does not offer


def test_pytest_names_the_mistake(pack: Path, adapters: Path) -> None:
    done = run_pytest(adapters, "--fp8lab-pack", str(pack), "--fp8lab-adapter", "mine:wrong")
    assert done.returncode == 1
    assert "e8m0_exact_powers_doubled" in done.stdout
    assert "known from onnxruntime#32122: frexp has the mantissa 0.5" in done.stdout
    assert "one above" not in done.stdout.split("e4m3fn ceil")[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--fp8lab-adapter", "mine:right"], "--fp8lab-pack is missing"),
        (["--fp8lab-pack", "PACK"], "--fp8lab-adapter is missing"),
        (["--fp8lab-pack", "PACK", "--fp8lab-adapter", "nothing"], "No module named 'nothing'"),
        (["--fp8lab-pack", "PACK", "--fp8lab-adapter", "mine:other"], "no attribute 'other'"),
        (["--fp8lab-pack", "PACK", "--fp8lab-adapter", "mine:empty"], "has none of the functions"),
        (["--fp8lab-pack", ".", "--fp8lab-adapter", "mine:right"], "no readable manifest.json"),
    ],
)
def test_pytest_refuses(pack: Path, adapters: Path, words: list[str], message: str) -> None:
    done = run_pytest(adapters, *[str(pack) if word == "PACK" else word for word in words])
    assert done.returncode not in (0, 1) and message in done.stdout + done.stderr


def test_main_refuses_what_is_no_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert table.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_table_of_two_libraries(pack: Path, tmp_path: Path) -> None:
    right = table.Library("right", "1.0", SimpleNamespace(**RIGHT), conformance.Pack(pack))
    wrong = table.Library(
        "wrong", "2.0", SimpleNamespace(**RIGHT | MISTAKES["nan_read_as_480"]),
        conformance.Pack(pack),
    )  # fmt: skip
    text = table.page([right, wrong], conformance.Pack(pack))
    row = next(line for line in text.splitlines() if line.startswith("| nan_read_as_480 "))
    assert row.split("|")[2:4] == [" ram-coffers#716 ", " 0 "] and " 2 of 4 " in row
    assert "| right | 1.0 |" in text and "| wrong | 2.0 |" in text
    assert "e4m3fn: 2 of 256" in text


def test_codecs_of_ml_dtypes_conform(pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    assert table.main([str(pack), "--library", "ml_dtypes"]) == 3
    lines = capsys.readouterr().out.splitlines()
    *cases, summary = lines
    assert all(" mismatches" in line for line in cases) and summary.endswith(" differ")
    wrong = [line for line in cases if " 0 mismatches" not in line]
    assert wrong and all("e8m0 toward_positive" in line for line in wrong)  # it rounds to nearest
    saturating = next(line for line in lines if "encode e4m3fn nearest saturate" in line)
    assert " 0 mismatches" in saturating and "by overflow policy" in saturating
    special = next(line for line in lines if "encode e4m3fn nearest special" in line)
    assert "by overflow policy" not in special
