"""The conformance pack and its reader: other implementations pass, wrong ones and damage do not.

Run by ctest with PYTHONPATH at the build tree's package and the program in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensor_core_model

pytest.importorskip("fp8lab", reason="the package fp8lab is not built")
import fp8lab  # noqa: E402
from fp8lab import conformance  # noqa: E402

Array = np.ndarray[Any, Any]
LARGEST = float(np.finfo(np.float32).max)


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


# --- implementations ------------------------------------------------------------------------------


def decode(codes: Array, format: str) -> Any:
    """By the definition of a format, in float64; 2^(k/m) is left to others."""
    spec = FORMATS[format]
    mantissa_bits = spec["mantissa_bits"]
    if spec["encoding"] == "logarithmic":
        return NotImplemented
    if spec["encoding"] == "twos_complement":
        bits = spec["bits"]
        number = (codes.astype(np.int64) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
        return (number * 2.0 ** (1 - spec["bias"] - mantissa_bits)).astype(np.float32)
    magnitude = codes.astype(np.int64) & (1 << spec["exponent_bits"] + mantissa_bits) - 1
    negative = codes.astype(np.int64) != magnitude
    field, mantissa = magnitude >> mantissa_bits, magnitude & (1 << mantissa_bits) - 1
    normal = (field > 0) | (not spec["has_subnormals"])
    exponent = np.where(normal, field, 1) - spec["bias"]
    value = np.ldexp((mantissa + (normal << mantissa_bits)).astype(float), exponent - mantissa_bits)
    top, ones = (1 << spec["exponent_bits"]) - 1, (1 << mantissa_bits) - 1
    if spec["specials"] == "ieee":
        value = np.where(field == top, np.where(mantissa == 0, np.inf, np.nan), value)
    if spec["specials"] == "nan_only":
        value = np.where((field == top) & (mantissa == ones), np.nan, value)
    if spec["specials"] == "unsigned_zero":
        value = np.where(negative & (magnitude == 0), np.nan, value)
    result = np.where(negative, -value, value).astype(np.float32)
    return np.where(np.isnan(result), np.uint32(0x7FFFFFFF).view(np.float32), result)


FORMATS: dict[str, dict[str, Any]] = {}
TOPS = {  # the largest exponent, mantissa bits
    "e4m3fn": (8, 3),
    "e5m2": (15, 2),
    "e3m4": (4, 4),
    "e2m3": (2, 3),
    "e3m2": (4, 2),
    "e2m1": (2, 1),
}
ROUNDINGS = {"nearest", "ceil", "enc_floor", "ocp_floor", "rceil", "even", "floor"}


def encode(
    x: Array, format: str, rounding: str, overflow: str, random_bits: Array, ties: int = 0
) -> Any:
    """By search among all values of a format of at most 8 bits. `ties` 1 sends ties to odd."""
    spec = FORMATS[format]
    if spec["bits"] > 8 or rounding == "stochastic" or spec["encoding"] != "floating":
        return NotImplemented
    values = decode(np.arange(1 << spec["bits"] - 1, dtype=np.uint8), format).astype(float)
    grid = values[np.isfinite(values)]
    step = grid[-1] - grid[-2]
    wide = np.concatenate([grid, grid[-1] + step * np.arange(1, 3)])  # to decide overflow
    with np.errstate(invalid="ignore"):
        magnitude = np.abs(x.astype(float))
        lower = np.clip(np.searchsorted(wide, magnitude, "right") - 1, 0, len(wide) - 2)
        below, above = magnitude - wide[lower], wide[lower + 1] - magnitude
        code = lower.copy()
        if rounding == "nearest":
            code += (above < below) | ((above == below) & (lower % 2 != ties))
    sign, largest = 1 << spec["bits"] - 1, len(grid) - 1
    unsigned_zero = spec["specials"] == "unsigned_zero"
    nan = sign if unsigned_zero else sign - 1
    special = {"none": largest, "unsigned_zero": nan}.get(spec["specials"], largest + 1)
    beyond = largest if overflow == "saturate" else special
    code = np.where((code > largest) | np.isinf(x), beyond, code)
    code |= np.where(np.signbit(x) & ~(unsigned_zero & (code == 0)), sign, 0)
    return np.where(np.isnan(x), nan, code).astype(np.uint8)


def nearest_f32(value: Fraction) -> float:
    """The FP32 number nearest to one that is not negative; infinity beyond the largest."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= value < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(value / unit) * unit
    return float(rounded) if rounded < 2**128 else math.inf


def root_f32(square: float) -> float:
    """The FP32 number nearest to the root of an integer."""
    root = math.isqrt(int(square) << 64)  # 32 bits behind the point
    is_exact = root * root == int(square) << 64
    return nearest_f32(Fraction(root, 2**32) if is_exact else Fraction(2 * root + 1, 2**33))


def deviations_of(tile: Array, count: float) -> float:
    """What `count` standard deviations of a tile put in the place of its amax."""
    amax = float(np.abs(tile).max())
    if not math.isfinite(amax) or amax == 0:
        return amax
    unit = Fraction(2) ** (math.frexp(amax)[1] - 21)
    steps = [Fraction(float(x)) / unit for x in tile.flat]
    whole = [math.floor(abs(v) + Fraction(1, 2)) * (-1 if v < 0 else 1) for v in steps]
    variance = len(whole) * sum(v * v for v in whole) - sum(whole) ** 2
    if variance == 0:
        return amax
    root = root_f32(nearest_f32(Fraction(variance)))
    product = nearest_f32(Fraction(count) * Fraction(root))
    quotient = nearest_f32(Fraction(product) / len(whole))
    return min(nearest_f32(Fraction(quotient) * unit), LARGEST)


def scale(amax: Array, format: str, rule: dict[str, Any]) -> Any:
    """By every rule; powers of two from integers and fractions."""
    qmax = {"e4m3fn": 448.0, "e5m2": 57344.0, "e3m4": 30.0, "e2m3": 7.5, "e3m2": 28.0, "e2m1": 6.0}
    target = np.float32(qmax[format] / 2.0 ** rule["margin"])
    floor = np.float32(rule["amax_epsilon"])
    rows = [_scale(np.float32(max(value, floor)), target, format, rule) for value in amax[0]]
    decode_factor, multiplier, divide = zip(*rows, strict=True)
    return (
        np.array([decode_factor], np.float32),
        np.array([multiplier], np.float32),
        np.array([divide], np.uint8),
    )


def _bounded(numerator: Any, denominator: Any) -> np.float32:
    with np.errstate(all="ignore"):
        return np.float32(min(float(np.float32(numerator) / np.float32(denominator)), LARGEST))


def _scale(amax: np.float32, qmax: np.float32, format: str, rule: dict[str, Any]) -> Any:
    if not np.isfinite(amax):
        if rule["scale_format"] != "e8m0":
            return 1.0, 1.0, 0
        if np.isinf(amax) and rule["scale_rounding"] == "rceil":
            return 2.0**127, 2.0**-127, 0
        nan = np.uint32(0x7FFFFFFF).view(np.float32)
        return nan, nan, 0
    if rule["scale_format"] == "fp32":
        if amax == 0:
            return 1.0, 1.0, 0
        if rule["scale_arithmetic"] == "enc_div":
            multiplier = _bounded(qmax, amax)
            return _bounded(1, multiplier), multiplier, 0
        factor = np.float32(max(float(_bounded(amax, qmax)), 2.0**-149))
        reciprocal = _bounded(1, factor)
        if rule["scale_arithmetic"] == "dec_div":
            return factor, reciprocal, 1
        return (_bounded(1, reciprocal) if reciprocal == LARGEST else factor), reciprocal, 0
    exponent = _exponent(float(amax), float(qmax), format, rule)
    power = Fraction(2) ** min(max(exponent, -127), 127)
    times = Fraction(rule["scale_factor"])
    inverse = Fraction(nearest_f32(1 / times))
    return min(nearest_f32(times * power), LARGEST), nearest_f32(inverse / power), 0


def _exponent(amax: float, qmax: float, format: str, rule: dict[str, Any]) -> int:
    """Of a power-of-two scale, not yet clamped."""
    rounding = rule["scale_rounding"]
    largest, mantissa_bits = TOPS[format]
    a, e = math.frexp(amax)
    q, f = math.frexp(qmax)
    if rounding == "even":  # rounded up to the next power of two where that is nearer or as near
        e += Fraction(a) >= 1 - Fraction(1, 2 ** (mantissa_bits + 2))
        e = max(e, -125)
    if rounding in ("ocp_floor", "even"):
        return (e - 1 if amax else -126) - largest + int(rule["margin"])
    if rounding == "rceil":
        ratio = nearest_f32(Fraction(amax) * Fraction(nearest_f32(1 / Fraction(qmax))))
        a, e = math.frexp(ratio)
        return 128 if math.isinf(ratio) else e - (a == 0.5) if ratio else -127
    if not amax:
        return 0
    if rounding == "enc_floor":
        quotient = min(nearest_f32(Fraction(qmax) / Fraction(amax)), LARGEST)
        return 1 - math.frexp(quotient)[1]
    if rounding == "nearest":
        squares = (Fraction(a) / Fraction(q)) ** 2
        return e - f + (squares > 2) - (2 * squares < 1)
    return e - f + (a > q if rounding == "ceil" else -(a < q))


def quantize_by_search(
    x: Array,
    spec: dict[str, Any],
    transpose: bool,
    random_bits: Array | None,
    statistic: Callable[[Array, float], float] = deviations_of,
) -> Any:
    """Tiles with the scales of `scale`, cast by `encode`."""
    values = (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x
    values = values.T if transpose else values
    if random_bits is not None:
        return NotImplemented
    words = spec["format"], spec["rounding"], spec["overflow"], np.empty(0)
    if spec["scale_source"] == "none":
        return encode(values, *words), None
    rows, k = values.shape
    tiles = {"tensor": (rows, k), "row": (1, k)}
    high, wide = tiles.get(spec["tile"]) or map(int, spec["tile"].split("x"))
    kind, _, count = spec["scale_statistic"].partition(":")
    amaxes = [
        [
            statistic(tile, float(np.float32(count))) if kind == "std" else np.abs(tile).max()
            for tile in (values[r : r + high, c : c + wide] for c in range(0, k, wide))
        ]
        for r in range(0, rows, high)
    ]
    derived = scale(np.array(amaxes, np.float32).reshape(1, -1), spec["format"], spec)
    decode_factor, multiplier, divide = (part.reshape(np.shape(amaxes)) for part in derived)

    def spread(part: Array) -> Array:
        return part.repeat(high, axis=0).repeat(wide, axis=1)[:rows, :k]

    with np.errstate(all="ignore"):
        quotient, product = values / spread(decode_factor), values * spread(multiplier)
    return encode(np.where(spread(divide) == 1, quotient, product), *words), decode_factor


def quantizer(spec: dict[str, Any]) -> Any:
    """QuantSpec of the keys that have an effect."""
    keys = {key: spec[key] for key in ("format", "rounding", "overflow", "scale_source")}
    if spec["scale_source"] == "current":
        always = ("tile", "scale_format", "scale_arithmetic", "margin", "scale_statistic")
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
    assert [len(reader.cases(s)) for s in ("decode", "encode", "scale", "quantize", "dot", "gemm")]


def test_independent_codec_conforms(pack: Path) -> None:
    reports = conformance.check(pack, decode=decode, encode=encode)
    assert total(reports) == 0, [conformance.describe(r) for r in reports if r.mismatches]
    assert {report.section for report in reports} == {"decode", "encode"}
    assert all(r.overflow_differences == r.nan_differences == 0 for r in reports)
    assert sum(report.results for report in reports) > 150_000


def test_independent_scales_conform(pack: Path) -> None:
    reports = conformance.check(pack, scale=scale)
    assert len(reports) == 6 * 2 * (3 + 3 * 7)
    assert total(reports) == 0, [conformance.describe(r) for r in reports if r.mismatches]


def test_independent_quantizers_conform(pack: Path) -> None:
    """Deviations and factors among them, in integers and fractions."""
    seen = []

    def quantize(x: Array, spec: dict[str, Any], transpose: bool, random_bits: Array | None) -> Any:
        result = quantize_by_search(x, spec, transpose, random_bits)
        if result is not NotImplemented:
            seen.append(spec)
        return result

    reports = conformance.check(pack, quantize=quantize)
    assert len(reports) == len(seen) > 30
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
    reports = conformance.check(
        pack,
        decode=fp8lab.decode,
        encode=lambda x, f, r, o, bits: (
            NotImplemented if r == "stochastic" else fp8lab.encode(x, f, rounding=r, overflow=o)
        ),
        quantize=quantize,
        gemm=gemm,
    )
    assert total(reports) == 0, [conformance.describe(r) for r in reports if r.mismatches]
    counts = {s: sum(r.section == s for r in reports) for s in ("encode", "quantize", "gemm")}
    assert counts["encode"] == 48 and counts["quantize"] >= 20 and counts["gemm"] == 24


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
    assert total(reports) == 0
    by_name = {report.name: report for report in reports}
    assert by_name["e4m3fn nearest saturate"].overflow_differences > 50
    assert by_name["e4m3fn nearest special"].overflow_differences == 0
    assert by_name["e2m1 nearest saturate"].overflow_differences == 0  # has no special code


@pytest.mark.parametrize(
    "result", [lambda codes, f: codes, lambda codes, f: decode(codes, f)[0], lambda codes, f: None]
)
def test_results_of_another_kind_are_refused(pack: Path, result: Any) -> None:
    with pytest.raises(conformance.PackError, match="decode e4m3fn"):
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
    for name in ("__init__.py", "conformance.py"):
        shutil.copy(source / name, tmp_path / "fp8lab" / name)
    code = (
        "import sys; from fp8lab import conformance; "
        f"assert conformance.Pack({str(pack)!r}).cases('dot'); "
        "assert 'fp8lab._library' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)


def test_main_refuses_what_is_no_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert conformance.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_codecs_of_ml_dtypes_conform(pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    assert conformance.main([str(pack)]) == 0
    lines = capsys.readouterr().out.splitlines()
    saturating = next(line for line in lines if line.startswith("encode e4m3fn nearest saturate"))
    assert " 0 mismatches" in saturating and "by overflow policy" in saturating
    special = next(line for line in lines if line.startswith("encode e4m3fn nearest special"))
    assert "by overflow policy" not in special
