"""Tensor-core instructions in Python integers, from emulation/specification.md alone, and that
of CDNA3 from MMA-Sim (arXiv:2511.10909, GTR-FDPA)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# (exponent bits, mantissa bits, bias, specials)
FORMATS = {
    "e4m3fn": (4, 3, 7, "nan"),
    "e5m2": (5, 2, 15, "ieee"),
    "e4m3fnuz": (4, 3, 8, "unsigned_zero"),
    "e5m2fnuz": (5, 2, 16, "unsigned_zero"),
    "bf16": (8, 7, 127, "ieee"),
    "fp16": (5, 10, 15, "ieee"),
    "e8m10": (8, 10, 127, "ieee"),
    "fp32": (8, 23, 127, "ieee"),
}


@dataclass
class Number:
    """significand * 2^unit, counted at `exponent`; `special` is "", "inf" or "nan"."""

    significand: int  # signed
    exponent: int
    unit: int
    special: str = ""
    negative: bool = False


def unpack(code: int, name: str) -> Number:
    """Section 1: nothing is normalised."""
    exponent_bits, mantissa_bits, bias, specials = FORMATS[name]
    negative = bool(code >> exponent_bits + mantissa_bits)
    field = code >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = code & (1 << mantissa_bits) - 1
    top = (1 << exponent_bits) - 1
    if specials == "unsigned_zero" and negative and field == mantissa == 0:
        return Number(1, 0, 0, "nan")
    all_ones = specials == "nan" and mantissa == (1 << mantissa_bits) - 1
    if field == top and (specials == "ieee" or all_ones):
        special = "inf" if specials == "ieee" and mantissa == 0 else "nan"
        return Number(1, 0, 0, special, negative)
    significand = mantissa + ((1 << mantissa_bits) if field else 0)
    exponent = max(field, 1) - bias
    return Number(
        -significand if negative else significand,
        exponent,
        exponent - mantissa_bits,
        negative=negative,
    )


def widen(code: int, name: str) -> Number:
    """Section 5: as f16, where e4m3 subnormals are normal and those of e5m2 are not."""
    number = unpack(code, name)
    if name == "e4m3fn" and not number.special and number.significand:
        number.exponent = number.unit + abs(number.significand).bit_length() - 1
    return number


def truncate(value: int, shift: int) -> int:
    """value * 2^-shift, the magnitude truncated."""
    magnitude = abs(value) >> shift if shift >= 0 else abs(value) << -shift
    return -magnitude if value < 0 else magnitude


def nearest(value: int, shift: int) -> int:
    """value * 2^-shift, ties to even."""
    if shift <= 0:
        return value << -shift
    magnitude, rest = divmod(abs(value), 1 << shift)
    half = 1 << shift - 1
    magnitude += rest > half or (rest == half and magnitude % 2 == 1)
    return -magnitude if value < 0 else magnitude


def pack(value: int, unit: int, name: str, kept: int, to_nearest: bool) -> int:
    """Code of value * 2^unit with `kept` mantissa bits; too large is infinity, zero is +0."""
    exponent_bits, mantissa_bits, bias, _ = FORMATS[name]
    if value == 0:
        return 0
    exponent = max(abs(value).bit_length() - 1 + unit, 1 - bias)
    shift = exponent - kept - unit
    rounded = nearest(value, shift) if to_nearest else truncate(value, shift)
    if rounded == 0:
        return 0
    sign = (1 << exponent_bits + mantissa_bits) if rounded < 0 else 0
    # The hidden bit, or a carry out of the mantissa, counts into the exponent field.
    code = (exponent + bias - 1 << mantissa_bits) + (abs(rounded) << mantissa_bits - kept)
    infinity = (1 << exponent_bits) - 1 << mantissa_bits
    return sign | min(code, infinity)


Term = tuple[int, int, int]  # significand * 2^unit, counted at the exponent: (s, exponent, unit)


def largest_exponent(terms: list[Term]) -> int:
    return max((exponent for _, exponent, _ in terms), default=-10_000)


def late_sum(products: list[Term | None], c: Number, case: dict[str, Any]) -> tuple[int, int]:
    """CDNA3: products in partial sums, then the accumulator, everything rounded down: (sum, unit).
    None stands for a product that is zero."""
    bits, late = case["fraction_bits"], case["late_fraction_bits"]
    parts = [products[i :: case["partial_sums"]] for i in range(case["partial_sums"])]
    sums = []
    for part in parts:
        terms = [term for term in part if term is not None]
        top = largest_exponent(terms)
        sums.append((sum(truncate(s, top - bits - unit) for s, _, unit in terms), top))
    top = max(exponent for _, exponent in sums)
    total = sum(units >> (top - exponent) for units, exponent in sums)  # >> rounds down
    if not c.significand or c.exponent < top - bits - 1:
        return total << late - bits, top - late
    both = max(top, c.exponent)
    total = total << late - bits >> both - top
    shift = both - bits - c.unit
    addend = c.significand >> shift if shift > 0 else c.significand << -shift
    return total + (addend << late - bits), both - late


def group(
    products: list[tuple[Number, Number]],
    c: Number,
    case: dict[str, Any],
    alignment: Any = truncate,
) -> int:
    """Section 3: bits of the accumulator case["format_c"] ("fp32" or "fp16")."""
    output = case["format_c"]
    exponent_bits, mantissa_bits, _, _ = FORMATS[output]
    infinity = (1 << exponent_bits) - 1 << mantissa_bits
    nan, infinities = c.special == "nan", set[bool]()
    terms: list[Term | None] = []
    if c.special == "inf":
        infinities.add(c.negative)
    for x, y in products:
        zero = not (x.significand and y.significand)
        terms.append(None)
        if "nan" in (x.special, y.special) or ((x.special or y.special) and zero):
            nan = True
        elif x.special or y.special:
            infinities.add(x.negative != y.negative)
        elif not zero:
            terms[-1] = (x.significand * y.significand, x.exponent + y.exponent, x.unit + y.unit)
    if nan or len(infinities) == 2:
        return infinity | (1 << mantissa_bits) - 1
    if infinities:
        return infinity | (1 << exponent_bits + mantissa_bits if infinities.pop() else 0)
    kept, to_nearest = case["mantissa_bits"], case["output_rounding"] == "nearest"
    if "late_fraction_bits" in case:
        return pack(*late_sum(terms, c, case), output, kept, to_nearest)
    present = [term for term in terms if term is not None]
    if c.significand:
        present.append((c.significand, c.exponent, c.unit))
    emax = max(largest_exponent(present), case.get("exponent_floor", -10_000))
    grid = emax - case["fraction_bits"]
    total = sum(alignment(significand, grid - unit) for significand, _, unit in present)
    return pack(total, grid, output, kept, to_nearest)


def instruction(a: list[int], b: list[int], c: int, case: dict[str, Any]) -> int:
    """One instruction as manifest.json describes it."""
    output = case["format_c"]
    read = widen if case["mma_sync_fp8"] else unpack
    products = [
        (read(x, case["format_a"]), read(y, case["format_b"])) for x, y in zip(a, b, strict=True)
    ]
    if not case["mma_sync_fp8"]:
        return group(products, unpack(c, output), case)
    first = [p for k, p in enumerate(products) if k % 4 < 2]
    second = [p for k, p in enumerate(products) if k % 4 >= 2]
    partial = group(first, unpack(0, output), case)
    partial = group(second, unpack(partial, output), case)
    return add(partial, c, output)


def add(x: int, y: int, name: str) -> int:
    """IEEE addition, to nearest even, NaN canonical."""
    code, value = (np.uint32, np.float32) if name == "fp32" else (np.uint16, np.float16)
    with np.errstate(all="ignore"):
        total = np.array([x], code).view(value) + np.array([y], code).view(value)
    if np.isnan(total[0]):
        return 0x7FFFFFFF if name == "fp32" else 0x7FFF
    return int(total.view(code)[0])


def codes_of(array: Array) -> Array:
    """tf32 comes as float32, of which it is the upper 19 bits."""
    return array.view(np.uint32) >> 13 if array.dtype == np.float32 else array


def dot(a: Array, b: Array, c: Array, case: dict[str, Any], **wrong: int) -> Array:
    """The function that fp8lab.conformance.check takes as `dot`; `wrong` replaces parameters."""
    code = np.uint32 if c.dtype == np.float32 else np.uint16
    rows = zip(codes_of(a).tolist(), codes_of(b).tolist(), c.view(code).tolist(), strict=True)
    results = [instruction(x, y, z, case | wrong) for x, y, z in rows]
    return np.array(results, code).view(c.dtype)


def wgmma_fp8(a: Array, b: Array, names: tuple[str, str], c: np.float32) -> np.float32:
    """One wgmma on up to 32 FP8 codes with an FP32 accumulator (section 4.1)."""
    case: dict[str, Any] = {"format_a": names[0], "format_b": names[1], "format_c": "fp32"}
    case |= {"fraction_bits": 13, "mantissa_bits": 13, "output_rounding": "toward_zero"}
    case["mma_sync_fp8"] = False
    return np.float32(dot(a[None], b[None], np.array([c]), case)[0])
