"""Checks implementations of FP8 arithmetic against the vectors of `fp8lab validate export DIR`.

Needs only NumPy, not the shared library. In Python:

    from fp8lab import conformance
    reports = conformance.check("DIR", encode=my_encode, dot=my_dot)
    assert all(report.mismatches == 0 for report in reports)

`python -m fp8lab.conformance DIR` checks the codecs of ml_dtypes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

SCHEMA = "fp8lab-conformance-2"
Array = NDArray[Any]
Function = Callable[..., Any]
Case = dict[str, Any]


class PackError(ValueError):
    """The folder is no complete conformance pack, or a result has the wrong type or shape."""


class Operand(NamedTuple):
    """One operand of a GEMM."""

    codes: Array
    """(rows, K) uint8, or the bits of bf16 as uint16."""
    scales: Array | None
    """(tile rows, tile columns) float32 decode factors."""
    spec: dict[str, Any]


@dataclass
class Report:
    """Bitwise comparison of one case of the pack."""

    section: str
    name: str
    results: int = 0
    mismatches: int = 0
    overflow_differences: int = 0
    """Differing codes of values above the largest one: another overflow policy, not rounding."""
    nan_differences: int = 0
    """Differing bits of NaN."""
    first: str = ""
    """The first mismatch."""


class Pack:
    """A folder of test vectors. Checks the SHA-256 of every file that it reads."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        try:
            text = (self.directory / "manifest.json").read_text(encoding="utf-8")
            manifest = json.loads(text)
        except (OSError, ValueError) as error:
            raise PackError(f"{self.directory}: no readable manifest.json: {error}") from error
        if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
            raise PackError(f"{self.directory}: manifest.json is not one of schema {SCHEMA}")
        self.manifest: dict[str, Any] = manifest

    def cases(self, section: str) -> list[Case]:
        """Returns the cases of a section: decode, encode, scale, quantize, dot or gemm."""
        cases: list[Case] = self.manifest["sections"][section]
        return cases

    def array(self, name: str) -> Array:
        """Returns one array. Raises PackError if its file is missing or damaged."""
        expected = self.manifest["files"].get(name)
        path = PurePosixPath(name)
        if expected is None or path.is_absolute() or ".." in path.parts:
            raise PackError(f"{self.directory}: the manifest lists no file {name}")
        try:
            data = (self.directory / path).read_bytes()
        except OSError as error:
            raise PackError(f"{self.directory / path}: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != expected:
            raise PackError(f"{self.directory / path}: damaged, its SHA-256 is not the manifest's")
        array: Array = np.load(io.BytesIO(data), allow_pickle=False)
        return array

    def optional(self, case: Case, key: str) -> Array | None:
        """Returns the array that `case` names under `key`; None if it has no such key."""
        return self.array(case[key]) if key in case else None


def _bits(array: Array) -> Array:
    return array.view(np.uint32) if array.dtype == np.float32 else array


def _random(pack: Pack, case: Case) -> Array | None:
    bits = pack.optional(case, "random_bits")
    return None if bits is None else bits.view(np.uint32)


def _fitting(report: Report, expected: Array, actual: Any) -> Array:
    """Returns `actual`. Raises PackError if its type or shape is not that of `expected`."""
    where = f"{report.section} {report.name}"
    if not isinstance(actual, np.ndarray) or actual.dtype != expected.dtype:
        kind = getattr(actual, "dtype", type(actual).__name__)
        raise PackError(f"{where}: the function returned {kind}, expected {expected.dtype}")
    if actual.shape != expected.shape:
        raise PackError(f"{where}: the shape is {actual.shape}, expected {expected.shape}")
    return np.ascontiguousarray(actual)


def _compare(report: Report, expected: Array, actual: Any, policy: dict[str, Array]) -> None:
    """Counts differences. Those of elements that `policy` marks are not mismatches."""
    want, got = _bits(expected), _bits(_fitting(report, expected, actual))
    different = want != got
    report.results += expected.size
    for kind, marked in policy.items():
        count = int((different & marked).sum())
        setattr(report, kind, getattr(report, kind) + count)
        different &= ~marked
    report.mismatches += int(different.sum())
    if different.any() and not report.first:
        index = tuple(int(i) for i in np.argwhere(different)[0])
        report.first = f"element {index}: expected {want[index]:#x}, got {got[index]:#x}"


def _check_decode(pack: Pack, decode: Function) -> Iterator[Report]:
    for case in pack.cases("decode"):
        expected = pack.array(case["values"])
        actual = decode(pack.array(case["codes"]), case["format"])
        if actual is NotImplemented:
            continue
        report = Report("decode", case["format"])
        actual = _fitting(report, expected, actual)
        policy = {"nan_differences": np.isnan(expected) & np.isnan(actual)}
        _compare(report, expected, actual, policy)
        yield report


def _check_encode(pack: Pack, encode: Function) -> Iterator[Report]:
    cases = pack.cases("encode")
    for case in cases:
        x = pack.array(case["x"])
        words = case["format"], case["rounding"], case["overflow"]
        actual = encode(x, *words, _random(pack, case))
        if actual is NotImplemented:
            continue
        report = Report("encode", " ".join(words))
        expected = pack.array(case["codes"])
        # The two overflow policies differ only for values that overflow.
        (other,) = (
            pack.array(c["codes"])
            for c in cases
            if (c["format"], c["rounding"]) == words[:2] and c["overflow"] != words[2]
        )
        policy = {"nan_differences": np.isnan(x), "overflow_differences": expected != other}
        _compare(report, expected, actual, policy)
        yield report


def _check_scale(pack: Pack, scale: Function) -> Iterator[Report]:
    for case in pack.cases("scale"):
        rule = case["rule"]
        actual = scale(pack.array(case["amax"]), case["format"], rule)
        if actual is NotImplemented:
            continue
        report = Report("scale", f"{case['format']} {' '.join(str(v) for v in rule.values())}")
        for key, result in zip(("decode", "multiplier", "divide"), actual, strict=True):
            _compare(report, pack.array(case[key]), result, {})
        yield report


def _check_quantize(pack: Pack, quantize: Function) -> Iterator[Report]:
    for index, case in enumerate(pack.cases("quantize")):
        spec = case["spec"]
        actual = quantize(pack.array(case["x"]), spec, case["transpose"], _random(pack, case))
        if actual is NotImplemented:
            continue
        report = Report("quantize", f"{index} {spec['format']} {spec['tile']}")
        codes, scales = actual
        _compare(report, pack.array(case["codes"]), codes, {})
        expected = pack.optional(case, "scales")
        if expected is not None:
            _compare(report, expected, scales, {})
        yield report


def _check_dot(pack: Pack, dot: Function) -> Iterator[Report]:
    for case in pack.cases("dot"):
        a, b, c = (pack.array(case[key]) for key in "abc")
        instruction = {key: value for key, value in case.items() if key not in "abcd"}
        actual = dot(a, b, c[0], instruction)
        if actual is NotImplemented:
            continue
        report = Report("dot", case["instruction"])
        _compare(report, pack.array(case["d"])[0], actual, {})
        yield report


def _check_gemm(pack: Pack, gemm: Function) -> Iterator[Report]:
    for index, case in enumerate(pack.cases("gemm")):
        a, b = (
            Operand(pack.array(one["codes"]), pack.optional(one, "scales"), one["spec"])
            for one in (case["a"], case["b"])
        )
        bias = pack.optional(case, "bias")
        accumulate = pack.optional(case, "accumulate")
        actual = gemm(a, b, None if bias is None else bias[0], accumulate, case["spec"])
        if actual is NotImplemented:
            continue
        report = Report("gemm", f"{index} {case['spec']['accumulator']} {case['spec']['schedule']}")
        _compare(report, pack.array(case["d"]), actual, {})
        yield report


_CHECKS: dict[str, Callable[[Pack, Function], Iterator[Report]]] = {
    "decode": _check_decode,
    "encode": _check_encode,
    "scale": _check_scale,
    "quantize": _check_quantize,
    "dot": _check_dot,
    "gemm": _check_gemm,
}


def check(
    directory: str | Path,
    *,
    decode: Function | None = None,
    encode: Function | None = None,
    scale: Function | None = None,
    quantize: Function | None = None,
    dot: Function | None = None,
    gemm: Function | None = None,
) -> list[Report]:
    """Runs the given functions on every case of their sections; returns one report per case.

    - `decode(codes, format)`: float32 values of the codes;
    - `encode(x, format, rounding, overflow, random_bits)`: codes of float32 values;
    - `scale(amax, format, rule)`: decode factors and multipliers (float32), and uint8 flags: 1 if
      the cast value is x / decode instead of x * multiplier;
    - `quantize(x, spec, transpose, random_bits)`: codes (rows, K) and scales; x is float32, or
      uint16 with the bits of bf16; random_bits, of the shape of x, or None;
    - `dot(a, b, c, instruction)`: a and b (n, products) codes, c and the result (n,) accumulators;
    - `gemm(a, b, bias, accumulate, spec)`: d (M, N) of two `Operand`s; uint16 for bf16.

    Formats, rules, specs and instructions are those of manifest.json. A function may return
    NotImplemented for a case that it does not support. Results must have the type and shape of the
    expected arrays; their bits are compared. Raises PackError if the pack is damaged.
    """
    pack = Pack(directory)
    functions = {
        "decode": decode,
        "encode": encode,
        "scale": scale,
        "quantize": quantize,
        "dot": dot,
        "gemm": gemm,
    }
    reports: list[Report] = []
    for section, function in functions.items():
        if function is not None:
            reports.extend(_CHECKS[section](pack, function))
    return reports


def ml_dtypes_codec() -> tuple[Function, Function]:
    """Returns `decode` and `encode` of ml_dtypes and NumPy's float16, for nearest rounding only."""
    import ml_dtypes

    types = {
        "e4m3fn": ml_dtypes.float8_e4m3fn,
        "e5m2": ml_dtypes.float8_e5m2,
        "e2m3": ml_dtypes.float6_e2m3fn,
        "e3m2": ml_dtypes.float6_e3m2fn,
        "e2m1": ml_dtypes.float4_e2m1fn,
        "e8m0": ml_dtypes.float8_e8m0fnu,
        "bf16": ml_dtypes.bfloat16,
        "fp16": np.float16,
    }

    def decode(codes: Array, format: str) -> Any:
        if format not in types:
            return NotImplemented
        return codes.view(types[format]).astype(np.float32)

    def encode(x: Array, format: str, rounding: str, overflow: str, random_bits: Array) -> Any:
        if format not in types or rounding != "nearest":
            return NotImplemented
        with np.errstate(all="ignore"):
            codes = x.astype(types[format])
        return codes.view(np.uint8 if codes.itemsize == 1 else np.uint16)

    return decode, encode


def describe(report: Report) -> str:
    """Returns the report as one line of text."""
    line = f"{report.section} {report.name}: {report.results} results, "
    line += f"{report.mismatches} mismatches"
    if report.overflow_differences:
        line += f", {report.overflow_differences} by overflow policy"
    if report.nan_differences:
        line += f", {report.nan_differences} by the bits of NaN"
    return line + (f"; first: {report.first}" if report.first else "")


class _Parser(argparse.ArgumentParser):
    """Complains in one line, as the program does."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"fp8lab.conformance: {message} (--help tells more)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks the codecs of ml_dtypes: 0 all rounded alike, 2 no usable pack, 3 mismatches."""
    parser = _Parser(prog="fp8lab.conformance", description=main.__doc__)
    parser.add_argument("directory", help="written by fp8lab validate export")
    directory = parser.parse_args(arguments).directory
    try:
        decode, encode = ml_dtypes_codec()
        reports = check(directory, decode=decode, encode=encode)
    except (PackError, ModuleNotFoundError) as error:
        print(f"fp8lab.conformance: {error}", file=sys.stderr)
        return 2
    for report in reports:
        print(describe(report))
    total = Report("all", "of ml_dtypes")
    for report in reports:
        total.results += report.results
        total.mismatches += report.mismatches
        total.overflow_differences += report.overflow_differences
        total.nan_differences += report.nan_differences
    print(describe(total))
    return 3 if total.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
