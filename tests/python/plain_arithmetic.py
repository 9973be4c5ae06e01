"""FP8 arithmetic in plain NumPy and fractions, independent of the emulator, to check its vectors.

The functions have the names and types of `fp8lab.conformance.check`. `FORMATS` must be filled from
the manifest of a pack first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
LARGEST = float(np.finfo(np.float32).max)


def grid_values(magnitude: Array, spec: dict[str, Any]) -> Array:
    """The values of magnitude codes as if none of them were special."""
    mantissa_bits = spec["mantissa_bits"]
    field, mantissa = magnitude >> mantissa_bits, magnitude & (1 << mantissa_bits) - 1
    normal = (field > 0) | (not spec["has_subnormals"])
    exponent = np.where(normal, field, 1) - spec["bias"]
    return np.ldexp((mantissa + (normal << mantissa_bits)).astype(float), exponent - mantissa_bits)


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
    value = grid_values(magnitude, spec)
    top, ones = (1 << spec["exponent_bits"]) - 1, (1 << mantissa_bits) - 1
    if spec["specials"] == "ieee":
        value = np.where(field == top, np.where(mantissa == 0, np.inf, np.nan), value)
    if spec["specials"] == "nan_only":
        value = np.where((field == top) & (mantissa == ones), np.nan, value)
    if spec["specials"] == "extended":
        value = np.where((field == top) & (mantissa == ones), np.inf, value)
    if spec["specials"] in ("unsigned_zero", "extended"):
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
    if format == "e8m0":
        return encode_e8m0(x, rounding == "toward_positive", overflow)
    if spec["bits"] > 8 or rounding == "stochastic" or spec["encoding"] != "floating":
        return NotImplemented
    values = decode(np.arange(1 << spec["bits"] - 1, dtype=np.uint8), format).astype(float)
    grid = values[np.isfinite(values)]
    wide = grid_values(np.arange(len(grid) + 2), spec)  # to decide overflow
    with np.errstate(invalid="ignore"):
        magnitude = np.abs(x.astype(float))
        lower = np.clip(np.searchsorted(wide, magnitude, "right") - 1, 0, len(wide) - 2)
        below, above = magnitude - wide[lower], wide[lower + 1] - magnitude
        code = lower.copy()
        if rounding == "nearest":
            code += (above < below) | ((above == below) & (lower % 2 != ties))
        if rounding.startswith("stochastic_"):
            steps = 1 << int(rounding.partition("_")[2])
            random = random_bits.astype(np.int64) % steps
            finite = np.isfinite(x) & (magnitude < wide[-1])
            part = np.where(finite, below / (wide[lower + 1] - wide[lower]) * steps, 0)
            code += np.floor(part).astype(np.int64) + random >= steps
    sign, largest = 1 << spec["bits"] - 1, len(grid) - 1
    unsigned_zero = spec["specials"] in ("unsigned_zero", "extended")
    nan = sign if unsigned_zero else sign - 1
    special = {"none": largest, "unsigned_zero": nan}.get(spec["specials"], largest + 1)
    beyond = largest if overflow == "saturate" else special
    code = np.where((code > largest) | np.isinf(x), beyond, code)
    code |= np.where(np.signbit(x) & ~(unsigned_zero & (code == 0)), sign, 0)
    return np.where(np.isnan(x), nan, code).astype(np.uint8)


def encode_e8m0(x: Array, upwards: bool, overflow: str) -> Any:
    """The exponents of magnitudes, rounded down or up; 2^-127 is the smallest."""
    with np.errstate(all="ignore"):
        fraction, exponent = np.frexp(np.abs(x).astype(float))
        exponent = np.where(np.abs(x) == 0, -200, exponent - 1)  # |x| = 2 fraction 2^exponent
        code = np.maximum(exponent + (upwards & (fraction > 0.5)), -127) + 127
    beyond = 0xFE if overflow == "saturate" else 0xFF
    code = np.where((code > 0xFE) | np.isinf(x), beyond, code)
    return np.where(np.isnan(x), 0xFF, code).astype(np.uint8)


def through(x: Array, format: str, between: str, overflow: str) -> Any:
    """Rounded to FP16 by NumPy, or to BF16 on the bits, and then encoded."""
    if between == "fp16":
        with np.errstate(all="ignore"):
            first = x.astype(np.float16).astype(np.float32)
    else:
        bits = x.view(np.uint32).astype(np.int64)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
        first = np.where(np.isnan(x), bits, rounded).astype(np.uint32).view(np.float32)
    return encode(first, format, "nearest", overflow, np.empty(0))


def e8m0(amax: Array, format: str, scale_rounding: str) -> Any:
    """The codes of the decode factors of `scale`."""
    rule = {"scale_format": "e8m0", "scale_rounding": scale_rounding, "scale_factor": 1.0}
    factors = scale(amax, format, rule | {"margin": 0, "amax_epsilon": 0.0})[0]
    return encode_e8m0(factors, False, "special")


def nvfp4(x: Array) -> Any:
    """Two levels of scales, each operation in float32."""
    with np.errstate(all="ignore"):
        amax = np.abs(x).max()
        factor = np.float32(min(np.float32(448 * 6) / amax, np.float32(LARGEST)))
        if not amax > 0 or factor == 0:
            factor = np.float32(1)
        tiles = x.reshape(x.shape[0], -1, 16)
        ratio = np.abs(tiles).max(axis=2) * (factor * (np.float32(1) / np.float32(6)))
        scales = encode(ratio, "e4m3fn", "nearest", "saturate", np.empty(0))
        stored = decode(scales, "e4m3fn") * (np.float32(1) / factor)
        multiplier = np.minimum(np.float32(1) / stored, np.float32(LARGEST))
        codes = encode(tiles * multiplier[:, :, None], "e2m1", "nearest", "saturate", np.empty(0))
    return codes.reshape(x.shape), scales, np.full((1, 1), np.float32(1) / factor, np.float32)


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
