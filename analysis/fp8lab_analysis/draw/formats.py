"""The ranges of number formats by their names in recipes, for figures only.
emulation/numerics/format.hpp has the arithmetic."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Format names that do not determine the meaning of the largest codes.
_ALIASES = {"e4m3_240": "e4m3ieee", "e3m4": "e3m4fn"}
_ALIASES.update({name: f"{name}f" for name in ("e2m1", "e2m3", "e3m2")})
_NAME = re.compile(r"e(\d)m(\d+)(ieee|fnuz|fn|f)?(?:b(-?\d+))?")
# IEEE P3109: bits, precision, sign, and the codes at the top that are not finite.
_P3109 = re.compile(r"binary(\d+)p(\d+)(se|sf|ue|uf)")
_TAKEN = {"se": 1, "sf": 0, "ue": 2, "uf": 1}


@dataclass(frozen=True)
class FormatRange:
    """Exponents of a floating-point format, before any scale."""

    lowest: int  # exponent of the smallest subnormal number
    normal: int  # exponent of the smallest normal number
    top: int  # exponent of the largest number


def format_range(label: str) -> FormatRange | None:
    """Returns the range of the format at the start of a quantizer label; None for integers,
    logarithmic formats and formats that pass values through."""
    name = re.split(r"[/ ]", label.strip())[0].lower()
    if (standard := _P3109.fullmatch(name)) is not None:
        mantissa_bits, kind = int(standard[2]) - 1, standard[3]
        exponent_bits = int(standard[1]) - mantissa_bits - (kind[0] == "s")
        bias = 2 ** (exponent_bits - 1)
        largest = 2 ** (exponent_bits + mantissa_bits) - 1 - _TAKEN[kind]
        return FormatRange(1 - bias - mantissa_bits, 1 - bias, (largest >> mantissa_bits) - bias)
    found = _NAME.fullmatch(_ALIASES.get(name, name))
    if found is None:
        return None
    exponent_bits, mantissa_bits, kind = int(found[1]), int(found[2]), found[3] or "ieee"
    bias = 2 ** (exponent_bits - 1) - (0 if kind == "fnuz" else 1)
    if found[4]:
        bias = int(found[4])
    # Infinity and NaN occupy the whole top exponent; a single NaN occupies one code of it.
    taken = kind == "ieee" or (kind == "fn" and mantissa_bits == 0)
    top = 2**exponent_bits - 1 - taken - bias
    return FormatRange(1 - bias - mantissa_bits, 1 - bias, top)
