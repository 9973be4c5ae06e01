"""The conformance pack and its reader: other implementations pass, wrong ones and damage do not.

Run by ctest with PYTHONPATH at the build tree's package and the program in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensor_core_model
from plain_arithmetic import (
    FORMATS,
    ROUNDINGS,
    decode,
    e8m0,
    encode,
    nvfp4,
    quantize_by_search,
    scale,
    through,
)

pytest.importorskip("fp8lab", reason="the package fp8lab is not built")
import fp8lab  # noqa: E402
from fp8lab import conformance  # noqa: E402

Array = np.ndarray[Any, Any]


def export(directory: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = [os.environ["FP8LAB_PROGRAM"], "validate", "export", str(directory)]
    words += map(str, arguments)
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(name="pack", scope="session")
def fixture_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("conformance") / "pack"
    result = export(directory)
    assert result.returncode == 0, result.stderr
    return directory


@pytest.fixture(name="copied")
def fixture_copied(pack: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pack, tmp_path / "pack"))


def total(reports: list[conformance.Report]) -> int:
    assert reports and all(report.results for report in reports)
    return sum(report.mismatches for report in reports)


def quantizer(spec: dict[str, Any]) -> Any:
    """QuantSpec of the keys that have an effect."""
    keys = {key: spec[key] for key in ("format", "rounding", "overflow", "scale_source")}
    if spec["scale_source"] == "current":
        always = (
            "tile",
            "scale_format",
            "scale_arithmetic",
            "margin",
            "scale_statistic",
            "amax_epsilon",
        )
        keys |= {key: spec[key] for key in always}
        if spec["scale_format"] != "fp32":
            keys["scale_rounding"] = spec["scale_rounding"]
        if spec["scale_format"] == "pow2":
            keys["scale_factor"] = spec["scale_factor"]
    return fp8lab.QuantSpec(**keys)


def quantize(x: Array, spec: dict[str, Any], transpose: bool, random_bits: Array | None) -> Any:
    if random_bits is not None:
        return NotImplemented
    result = fp8lab.quantize(x, quantizer(spec), transpose=transpose, statistics=False)
    return result.codes, result.scales


def gemm(
    a: conformance.Operand,
    b: conformance.Operand,
    bias: Array | None,
    accumulate: Array | None,
    spec: dict[str, Any],
) -> Array:
    words = [spec["accumulator"], spec["schedule"], spec["output"], spec["scale_order"]]
    operands = [
        fp8lab.QuantSpec(one.spec["format"]) if one.scales is None else quantizer(one.spec)
        for one in (a, b)
    ]
    d = fp8lab.gemm(
        a.codes,
        b.codes,
        "/".join([*words, f"split_k:{spec['split_k']}"]),
        operand_a=operands[0],
        operand_b=operands[1],
        scale_a=a.scales,
        scale_b=b.scales,
        bias=bias,
        accumulate=accumulate,
    )
    if spec["output"] == "fp32":
        return d
    codes: Array = fp8lab.encode(d, "bf16", overflow="special")
    return codes


@pytest.fixture(autouse=True)
def fixture_formats(pack: Path) -> None:
    FORMATS.update(conformance.Pack(pack).manifest["formats"])


# --- what passes and what does not ----------------------------------------------------------------


def test_every_file_is_listed_and_hashed(pack: Path) -> None:
    reader = conformance.Pack(pack)
    listed = reader.manifest["files"]
    assert {p.relative_to(pack).as_posix() for p in pack.rglob("*.npy")} == set(listed)
    for name in listed:
        assert reader.array(name).ndim == 2
    assert set(reader.manifest["sections"]) == set(conformance.SECTIONS)
    assert all(reader.cases(section) for section in conformance.SECTIONS)
    assert sum(path.stat().st_size for path in pack.rglob("*.*")) < 20e6


def test_independent_codec_conforms(pack: Path) -> None:
    reports = conformance.check(pack, decode=decode, encode=encode)
    assert total(reports) == 0, [conformance.describe(r) for r in reports if r.mismatches]
    assert {report.section for report in reports} == {"decode", "encode"}
    assert all(r.overflow_differences == r.nan_differences == 0 for r in reports)
    assert sum(report.results for report in reports) > 250_000
    names = {report.name for report in reports}
    assert {f"binary8p{p}se nearest special" for p in range(2, 8)} <= names
    assert {f"e2m1 stochastic_{n} saturate" for n in (8, 16)} <= names
    assert "e8m0 toward_positive saturate" in names


def test_independent_conversions_and_block_scales_conform(pack: Path) -> None:
    reports = conformance.check(pack, through=through, e8m0=e8m0, nvfp4=nvfp4)
    assert total(reports) == 0, [conformance.describe(r) for r in reports if r.mismatches]
    counts = {s: sum(r.section == s and not r.case for r in reports) for s in ("through", "e8m0")}
    assert counts == {"through": 5 * 2 * 2, "e8m0": 5 * 7}
    assert sum(report.section == "nvfp4" for report in reports) == 8


def test_independent_scales_conform(pack: Path) -> None:
    reports = conformance.check(pack, scale=scale)
    assert len(reports) == 6 * 2 * (3 + 3 * 7)
    assert total(reports) == 0, [conformance.describe(r) for r in reports if r.mismatches]


def test_independent_quantizers_conform(pack: Path, tmp_path: Path) -> None:
    """Deviations and factors among them, in integers and fractions. Two seeds draw every kind."""
    seen = []

    def quantize(x: Array, spec: dict[str, Any], transpose: bool, random_bits: Array | None) -> Any:
        result = quantize_by_search(x, spec, transpose, random_bits)
        if result is not NotImplemented:
            seen.append(spec)
        return result

    assert export(tmp_path / "second", "--seed", 2).returncode == 0
    reports = [
        report
        for directory in (pack, tmp_path / "second")
        for report in conformance.check(directory, quantize=quantize)
    ]
    assert len(reports) == len(seen) > 60
    assert total(reports) == 0, [conformance.describe(r) for r in reports if r.mismatches]
    assert {one["scale_rounding"] for one in seen if one["scale_format"] != "fp32"} == ROUNDINGS
    of_deviations = [spec for spec in seen if spec["scale_statistic"] != "amax"]
    assert {"fp32", "pow2", "e8m0"} == {one["scale_format"] for one in of_deviations}
    assert len({one["scale_statistic"] for one in of_deviations}) == 4
    assert any(spec["scale_factor"] != 1 for spec in seen)


def test_independent_tensor_core_conforms(pack: Path) -> None:
    reports = conformance.check(pack, dot=tensor_core_model.dot)
    assert len(reports) == 9 + 10 and {report.results for report in reports} == {507}
    assert total(reports) == 0, [conformance.describe(r) for r in reports if r.mismatches]


def test_the_package_conforms(pack: Path) -> None:
    reports = conformance.check(  # fmt: skip
        pack,
        decode=fp8lab.decode,
        encode=lambda x, f, r, o, bits: (
            NotImplemented
            if r not in ("nearest", "toward_zero") or f == "e8m0"
            else fp8lab.encode(x, f, rounding=r, overflow=o)
        ),
        quantize=quantize,
        gemm=gemm,
    )
    assert total(reports) == 0, [conformance.describe(r) for r in reports if r.mismatches]
    counts = {s: sum(r.section == s for r in reports) for s in ("encode", "quantize", "gemm")}
    assert counts["encode"] > 80 and counts["quantize"] >= 20 and counts["gemm"] == 24


def test_stochastic_rounding_is_described(pack: Path) -> None:
    """floor of significand plus random bits, for a value in the normal range of e5m2."""

    def stochastic(x: Array, format: str, rounding: str, overflow: str, bits: Array) -> Any:
        if (format, rounding, overflow) != ("e5m2", "stochastic", "saturate"):
            return NotImplemented
        ours = x.view(np.uint32)
        magnitude = ours & 0x7FFFFFFF
        rounded = (magnitude.astype(np.int64) + (bits & 0x1FFFFF)) >> 21
        code = rounded - (127 - 15) * 4
        inside = (magnitude >= 113 << 23) & (code <= 0x7B)
        case = next(c for c in conformance.Pack(pack).cases("encode") if c["format"] == format
                    and c["rounding"] == rounding and c["overflow"] == overflow)  # fmt: skip
        expected = conformance.Pack(pack).array(case["codes"])
        assert inside.sum() > 1000
        return np.where(inside, code | (ours >> 31 << 7), expected).astype(np.uint8)

    assert total(conformance.check(pack, encode=stochastic)) == 0


def off_by(function: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    def wrong(*arguments: Any) -> Any:
        result = function(*arguments)
        return result if result is NotImplemented else change(result)

    return wrong


@pytest.mark.parametrize(
    "functions",
    [
        {"decode": off_by(decode, lambda values: np.where(values == 1, np.float32(1.5), values))},
        {"encode": lambda x, f, r, o, bits: encode(x, f, r, o, bits, ties=1)},
        {"encode": lambda x, f, r, o, bits: encode(x, f, "toward_zero", o, bits)},
        {"scale": off_by(scale, lambda parts: (parts[0], parts[0], parts[2]))},
        {"scale": lambda amax, f, rule: scale(amax, f, rule | {"scale_factor": 1.0})},
        {"scale": lambda amax, f, rule: scale(amax, f, rule | (
            {"scale_rounding": "nearest"} if rule["scale_rounding"] == "floor" else {}))},
        {"quantize": lambda x, spec, transpose, bits: quantize_by_search(
            x, spec | {"scale_statistic": "amax"}, transpose, bits)},
        {"quantize": lambda x, spec, transpose, bits: quantize_by_search(
            x, spec, transpose, bits, lambda tile, c: float(c * tile.astype(float).std()))},
        {"dot": lambda a, b, c, case: tensor_core_model.dot(a, b, c, case, fraction_bits=12)},
        {"dot": lambda a, b, c, case: tensor_core_model.dot(a, b, c, case, mantissa_bits=9)},
        {"dot": lambda a, b, c, case: tensor_core_model.dot(
            a, b, c, case | {"mma_sync_fp8": False})},
        {"quantize": lambda x, spec, transpose, bits: quantize(
            x, spec | {"scale_arithmetic": "dec_div"}, transpose, bits)},
        {"gemm": lambda a, b, bias, addend, spec: gemm(
            a, b, bias, addend, spec | {"schedule": "promote:32"})},
        {"gemm": lambda a, b, bias, addend, spec: gemm(a, b, None, addend, spec)},
        {"encode": lambda x, f, r, o, bits: encode(
            x, f, r, o, None if bits is None else bits // 2)},
        {"through": lambda x, f, between, o: encode(x, f, "nearest", o, np.empty(0))},
        {"e8m0": lambda amax, f, rounding: e8m0(amax, f, "rceil")},
        {"nvfp4": off_by(nvfp4, lambda parts: (parts[0], parts[1] ^ 1, parts[2]))},
    ],
)  # fmt: skip
def test_wrong_functions_are_caught(pack: Path, functions: dict[str, Any]) -> None:
    reports = conformance.check(pack, **functions)
    assert total(reports) > 0
    first = next(report for report in reports if report.mismatches)
    assert "expected 0x" in first.first and "first:" in conformance.describe(first)


def test_the_overflow_policy_is_told_from_rounding(pack: Path) -> None:
    def always_special(x: Array, f: str, r: str, o: str, bits: Array) -> Any:
        return encode(x, f, r, "special", bits)

    reports = conformance.check(pack, encode=always_special)
    assert [conformance.describe(r) for r in reports if r.mismatches] == []
    counts = {report.name: report.overflow_differences for report in reports}
    with_specials = [
        "e4m3fn",
        "e5m2",
        "e4m3_240",
        "e4m3fnuz",
        "e5m2fnuz",
        "binary8p3se",
        "e3m4ieee",
    ]
    for name in with_specials:
        assert counts[f"{name} nearest saturate"] > 50, name
        assert counts[f"{name} nearest special"] == 0, name
    # The pack has 8 random bits under one policy only.
    assert counts["e4m3fn stochastic_8 saturate"] > 50
    assert counts["e5m2 stochastic_16 saturate"] > 50
    for name in ("e2m1 nearest", "e2m1 stochastic_8"):  # has no special code
        assert counts[f"{name} saturate"] == 0


@pytest.mark.parametrize("rounding", ["nearest", "stochastic_8"])
def test_special_codes_of_the_largest_value_are_mismatches(pack: Path, rounding: str) -> None:
    def eager(x: Array, f: str, r: str, o: str, bits: Array) -> Any:
        if (f, r, o) != ("e4m3fn", rounding, "saturate"):
            return NotImplemented
        return np.where(x == 448, np.uint8(0x7F), encode(x, f, r, o, bits))

    (report,) = [r for r in conformance.check(pack, encode=eager) if not r.case]
    assert report.mismatches > 0 and "expected 0x7e, got 0x7f for 448.0" in report.first
    assert report.overflow_differences == 0


@pytest.mark.parametrize("code", [0, 0x55, "previous"])
def test_other_codes_of_values_that_overflow_are_mismatches(pack: Path, code: Any) -> None:
    """Neither policy's, for each format and rounding that the pack has."""
    largest = {
        format: float(values[np.isfinite(values)].max())
        for format in FORMATS
        for values in [decode(np.arange(256, dtype=np.uint8), format)]
        if FORMATS[format]["bits"] == 8 and values is not NotImplemented
    }

    def wrong(x: Array, f: str, r: str, o: str, bits: Array) -> Any:
        codes = encode(x, f, r, o, bits) if f in largest else NotImplemented
        if codes is NotImplemented:
            return codes
        with np.errstate(invalid="ignore"):  # signalling NaN
            beyond = np.abs(x.astype(np.float64)) > 2 * largest[f]
        return np.where(beyond, codes - 2 if code == "previous" else np.uint8(code), codes)

    reports = conformance.check(pack, encode=wrong)
    general = [report for report in reports if not report.case]
    assert len({report.name.split()[0] for report in general}) > 12
    assert all(r.mismatches > 0 and r.overflow_differences == 0 for r in general)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda codes, f: codes, "the function returned uint8, expected float32"),
        (lambda codes, f: decode(codes, f)[0], "the shape is"),
        (lambda codes, f: None, "the function returned NoneType"),
    ],
)
def test_results_of_another_kind_are_refused(pack: Path, result: Any, message: str) -> None:
    first = conformance.Pack(pack).cases("decode")[0]["format"]
    with pytest.raises(conformance.PackError, match=f"decode {first}: {message}"):
        conformance.check(pack, decode=result)


# --- the pack itself ------------------------------------------------------------------------------


def test_damaged_packs_are_refused(copied: Path) -> None:
    file = copied / "decode" / "e5m2_values.npy"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(conformance.PackError, match="e5m2_values.npy: damaged"):
        conformance.check(copied, decode=decode)
    file.unlink()
    with pytest.raises(conformance.PackError, match="e5m2_values.npy: No such file"):
        conformance.check(copied, decode=decode)
    os.mkfifo(file)
    with pytest.raises(conformance.PackError, match="e5m2_values.npy: is no regular file"):
        conformance.check(copied, decode=decode)
    (copied / "manifest.json").unlink()
    os.mkfifo(copied / "manifest.json")
    with pytest.raises(conformance.PackError, match="no readable manifest.*is no regular file"):
        conformance.check(copied, decode=decode)


def test_manifests_are_checked(copied: Path, tmp_path: Path) -> None:
    path = copied / "manifest.json"
    manifest = json.loads(path.read_text())
    outside: dict[str, Any] = {**manifest, "files": {"../x.npy": "0"}}
    outside["sections"] = {"decode": [{"format": "e5m2", "codes": "../x.npy", "values": "a"}]}
    for content, message in (
        (json.dumps({**manifest, "schema": "other"}), "not one of schema"),
        (json.dumps([]), "not one of schema"),
        ("{", "no readable manifest"),
        (json.dumps({**manifest, "files": {}}), "lists no file"),
        (json.dumps(outside), "lists no file"),
    ):
        path.write_text(content)
        with pytest.raises(conformance.PackError, match=message):
            conformance.check(copied, decode=decode)
    with pytest.raises(conformance.PackError, match="no readable manifest"):
        conformance.check(tmp_path / "nothing", decode=decode)


def test_export_follows_the_seed(pack: Path, tmp_path: Path) -> None:
    def hashes(directory: Path) -> Any:
        return json.loads((directory / "manifest.json").read_text())["files"]

    assert export(tmp_path / "one", "--seed", 1).returncode == 0
    assert export(tmp_path / "two", "--seed", 2, "--json", tmp_path / "two.json").returncode == 0
    assert hashes(tmp_path / "one") == hashes(pack)
    assert hashes(tmp_path / "two") != hashes(pack)
    assert json.loads((tmp_path / "two.json").read_text())["seed"] == 2


def test_export_refusals(pack: Path, tmp_path: Path) -> None:
    before = (pack / "manifest.json").read_bytes()
    again = export(pack)
    assert again.returncode == 2 and "is not empty" in again.stderr
    assert (pack / "manifest.json").read_bytes() == before
    assert export(tmp_path / "new", "--backend", "cuda").returncode == 2
    assert not (tmp_path / "new").exists()


def test_the_reader_needs_no_compiled_module(pack: Path, tmp_path: Path) -> None:
    source = Path(__file__).resolve().parents[2] / "src" / "python" / "fp8lab"
    (tmp_path / "fp8lab").mkdir()
    shutil.copy(source / "__init__.py", tmp_path / "fp8lab" / "__init__.py")
    shutil.copytree(source / "conformance", tmp_path / "fp8lab" / "conformance")
    code = (
        "import sys; from fp8lab import conformance; "
        f"assert conformance.Pack({str(pack)!r}).cases('dot'); "
        "assert 'fp8lab._library' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)
