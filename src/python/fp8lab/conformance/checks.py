"""Compares functions with the cases of a pack, bit by bit. Needs only NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fp8lab.conformance.pack import Array, Case, Pack, PackError

Function = Callable[..., Any]


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
    case: str = ""
    """The known mistake that the case is about; empty for the general ones."""
    about: str = ""
    threads: str = ""
    results: int = 0
    mismatches: int = 0
    overflow_differences: int = 0
    """Codes of values above the largest one by the other overflow policy, not by rounding."""
    nan_differences: int = 0
    """Differing bits of NaN."""
    first: str = ""
    """The first mismatch."""


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


def _compare(
    report: Report,
    expected: Array,
    actual: Any,
    policy: dict[str, Array],
    inputs: Array | None = None,
    kinds: list[str] | None = None,
) -> None:
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
        if inputs is not None:
            report.first += f" for {inputs[index]!s}"
        if kinds is not None:
            report.first += f", {kinds[index[-1]]}"


def _check_decode(pack: Pack, case: Case, decode: Function, report: Report) -> Any:
    expected = pack.array(case["values"])
    actual = decode(pack.array(case["codes"]), case["format"])
    if actual is NotImplemented:
        return NotImplemented
    actual = _fitting(report, expected, actual)
    _compare(report, expected, actual, {"nan_differences": np.isnan(expected) & np.isnan(actual)})


def _twin(pack: Pack, case: Case, section: str) -> Case | None:
    """Returns the case that differs in the overflow policy only, if the pack has it."""
    same = {k: v for k, v in case.items() if k not in ("overflow", "codes")}
    others = [
        c for c in pack.cases(section)
        if c["overflow"] != case["overflow"] and same.items() <= c.items()
    ]  # fmt: skip
    return others[0] if others else None


def _beyond_largest(pack: Pack, case: Case, x: Array, expected: Array) -> Array:
    """Returns `expected` with the codes of the other policy for x above the largest value.

    For a conversion that the pack has under one policy only. The codes are those of another
    rounding to the same format; without one, `expected` is returned as it is.
    """
    codes = expected.copy()
    for one in pack.cases("encode"):
        twin = _twin(pack, one, "encode") if "case" not in one else None
        if (one["format"], one["overflow"]) == (case["format"], case["overflow"]) and twin:
            own, other = pack.array(one["codes"]), pack.array(twin["codes"])
            negative = np.signbit(pack.array(one["x"]))
            break
    else:
        return codes
    decoded = next(c for c in pack.cases("decode") if c["format"] == case["format"])
    values = pack.array(decoded["values"])
    beyond = np.abs(x) > values[np.isfinite(values)].max()
    for sign in (False, True):
        for index in np.argwhere((own != other) & (negative == sign))[:1]:
            codes[beyond & (np.signbit(x) == sign)] = other[tuple(index)]
    return codes


def _other_overflow(pack: Pack, case: Case, section: str, x: Array, expected: Array) -> Array:
    """Returns the codes of the same values under the other overflow policy.

    The two differ only for values that overflow. For a case about a known mistake `expected` is
    returned, so that every difference counts.
    """
    if "case" in case:
        return expected
    twin = _twin(pack, case, section)
    return _beyond_largest(pack, case, x, expected) if twin is None else pack.array(twin["codes"])


def _compare_codes(pack: Pack, case: Case, actual: Any, report: Report) -> None:
    x, expected = pack.array(case["x"]), pack.array(case["codes"])
    actual = _fitting(report, expected, actual)
    other = _other_overflow(pack, case, report.section, x, expected)
    policy = {
        "nan_differences": np.isnan(x),
        "overflow_differences": (expected != other) & (actual == other),
    }
    _compare(report, expected, actual, policy, x)


def _check_encode(pack: Pack, case: Case, encode: Function, report: Report) -> Any:
    words = case["format"], case["rounding"], case["overflow"]
    actual = encode(pack.array(case["x"]), *words, _random(pack, case))
    if actual is NotImplemented:
        return NotImplemented
    _compare_codes(pack, case, actual, report)


def _check_through(pack: Pack, case: Case, through: Function, report: Report) -> Any:
    actual = through(pack.array(case["x"]), case["format"], case["through"], case["overflow"])
    if actual is NotImplemented:
        return NotImplemented
    _compare_codes(pack, case, actual, report)


def _check_scale(pack: Pack, case: Case, scale: Function, report: Report) -> Any:
    amax = pack.array(case["amax"])
    actual = scale(amax, case["format"], case["rule"])
    if actual is NotImplemented:
        return NotImplemented
    for key, result in zip(("decode", "multiplier", "divide"), actual, strict=True):
        _compare(report, pack.array(case[key]), result, {}, amax)


def _check_e8m0(pack: Pack, case: Case, e8m0: Function, report: Report) -> Any:
    amax = pack.array(case["amax"])
    actual = e8m0(amax, case["format"], case["scale_rounding"])
    if actual is NotImplemented:
        return NotImplemented
    _compare(report, pack.array(case["codes"]), actual, {}, amax, case.get("kinds"))


def _check_quantize(pack: Pack, case: Case, quantize: Function, report: Report) -> Any:
    actual = quantize(pack.array(case["x"]), case["spec"], case["transpose"], _random(pack, case))
    if actual is NotImplemented:
        return NotImplemented
    codes, scales = actual
    _compare(report, pack.array(case["codes"]), codes, {})
    expected = pack.optional(case, "scales")
    if expected is not None:
        _compare(report, expected, scales, {})


def _check_nvfp4(pack: Pack, case: Case, nvfp4: Function, report: Report) -> Any:
    actual = nvfp4(pack.array(case["x"]))
    if actual is NotImplemented:
        return NotImplemented
    for key, result in zip(("codes", "scales", "tensor_scale"), actual, strict=True):
        _compare(report, pack.array(case[key]), result, {})


def _check_dot(pack: Pack, case: Case, dot: Function, report: Report) -> Any:
    a, b, c = (pack.array(case[key]) for key in "abc")
    instruction = {key: value for key, value in case.items() if key not in "abcd"}
    actual = dot(a, b, c[0], instruction)
    if actual is NotImplemented:
        return NotImplemented
    _compare(report, pack.array(case["d"])[0], actual, {})


def _check_gemm(pack: Pack, case: Case, gemm: Function, report: Report) -> Any:
    a, b = (
        Operand(pack.array(one["codes"]), pack.optional(one, "scales"), one["spec"])
        for one in (case["a"], case["b"])
    )
    bias = pack.optional(case, "bias")
    accumulate = pack.optional(case, "accumulate")
    actual = gemm(a, b, None if bias is None else bias[0], accumulate, case["spec"])
    if actual is NotImplemented:
        return NotImplemented
    _compare(report, pack.array(case["d"]), actual, {})


_CHECKS: dict[str, Callable[[Pack, Case, Function, Report], Any]] = {
    "decode": _check_decode,
    "encode": _check_encode,
    "through": _check_through,
    "scale": _check_scale,
    "e8m0": _check_e8m0,
    "quantize": _check_quantize,
    "nvfp4": _check_nvfp4,
    "dot": _check_dot,
    "gemm": _check_gemm,
}
SECTIONS = tuple(_CHECKS)


def _general_name(section: str, index: int, case: Case) -> str:
    """Returns what a case is about, from its keys."""
    if section == "quantize":
        return f"{index} {case['spec']['format']} {case['spec']['tile']}"
    if section == "nvfp4":
        return f"tensor {index}"
    if section == "gemm":
        return f"{index} {case['spec']['accumulator']} {case['spec']['schedule']}"
    if section == "scale":
        return f"{case['format']} {' '.join(str(v) for v in case['rule'].values())}"
    words = ("instruction", "format", "through", "rounding", "overflow", "scale_rounding")
    return " ".join(str(case[word]) for word in words if word in case)


def name_of(section: str, index: int, case: Case) -> str:
    """Returns the name of case `index` of a section; a known mistake's name comes first."""
    name = _general_name(section, index, case)
    return f"{case['case']}: {name}" if "case" in case else name


def functions_of(adapter: Any) -> dict[str, Function]:
    """Returns the functions of an adapter, an object whose attributes have names of sections.

    Raises PackError if it has none.
    """
    found = {name: getattr(adapter, name, None) for name in SECTIONS}
    functions = {name: function for name, function in found.items() if callable(function)}
    if not functions:
        raise PackError(f"the adapter has none of the functions {', '.join(SECTIONS)}")
    return functions


def check_case(pack: Pack, section: str, index: int, function: Function) -> Report | None:
    """Runs one function on one case. Returns None if it returned NotImplemented."""
    case = pack.cases(section)[index]
    known = {key: case.get(key, "") for key in ("case", "about", "threads")}
    report = Report(section, name_of(section, index, case), **known)
    return None if _CHECKS[section](pack, case, function, report) is NotImplemented else report


def _reports(pack: Pack, functions: dict[str, Function]) -> Iterator[Report]:
    for section, function in functions.items():
        for index in range(len(pack.cases(section))):
            report = check_case(pack, section, index, function)
            if report is not None:
                yield report


def check(directory: str | Path, **functions: Function) -> list[Report]:
    """Runs the given functions on every case of their sections; returns one report per case.

    - `decode(codes, format)`: float32 values of the codes;
    - `encode(x, format, rounding, overflow, random_bits)`: codes of float32 values;
    - `through(x, format, through, overflow)`: codes of values that are rounded to fp16 or bf16
      first, both roundings to nearest;
    - `scale(amax, format, rule)`: decode factors and multipliers (float32), and uint8 flags: 1 if
      the cast value is x / decode instead of x * multiplier;
    - `e8m0(amax, format, scale_rounding)`: uint8 codes of the scales of tiles with that amax;
    - `quantize(x, spec, transpose, random_bits)`: codes (rows, K) and scales; x is float32, or
      uint16 with the bits of bf16; random_bits, of the shape of x, or None;
    - `nvfp4(x)`: codes (rows, K), e4m3 codes of the scales (rows, K / 16), and the decode factor of
      the tensor, float32 (1, 1);
    - `dot(a, b, c, instruction)`: a and b (n, products) codes, c and the result (n,) accumulators;
    - `gemm(a, b, bias, accumulate, spec)`: d (M, N) of two `Operand`s; uint16 for bf16.

    Formats, rules, specs and instructions are those of manifest.json. A function may return
    NotImplemented for a case that it does not support. Results must have the type and shape of the
    expected arrays; their bits are compared. Raises PackError if the pack is damaged, and TypeError
    for a function of another name.
    """
    for name in functions:
        if name not in _CHECKS:
            raise TypeError(f"check() has no section {name}; accepted: {', '.join(SECTIONS)}")
    return list(_reports(Pack(directory), functions))


def describe(report: Report) -> str:
    """Returns the report as one line of text."""
    line = f"{report.section} {report.name}: {report.results} results, "
    line += f"{report.mismatches} mismatches"
    if report.overflow_differences:
        line += f", {report.overflow_differences} by overflow policy"
    if report.nan_differences:
        line += f", {report.nan_differences} by the bits of NaN"
    if report.case and report.mismatches:
        line += f"; known from {report.threads}: {report.about}"
    return line + (f"; first: {report.first}" if report.first else "")
