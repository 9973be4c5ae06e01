"""ml_dtypes and NumPy's float16: casts to nearest, the only rounding that they have."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import ml_dtypes
import numpy as np

from fp8lab.conformance.pack import Array

VERSION = version("ml_dtypes")

_NAMES = {
    "e4m3fn": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e4m3_240": "float8_e4m3",
    "e3m4ieee": "float8_e3m4",
    "e2m3": "float6_e2m3fn",
    "e3m2": "float6_e3m2fn",
    "e2m1": "float4_e2m1fn",
    "e8m0": "float8_e8m0fnu",
    "bf16": "bfloat16",
}
_TYPES: dict[str, Any] = {"fp16": np.float16}
_TYPES |= {ours: getattr(ml_dtypes, theirs) for ours, theirs in _NAMES.items()}


def decode(codes: Array, format: str) -> Any:
    """Casts codes to float32."""
    if format not in _TYPES:
        return NotImplemented
    return codes.view(_TYPES[format]).astype(np.float32)


def encode(x: Array, format: str, rounding: str, overflow: str, random_bits: Array | None) -> Any:
    """Casts from float32. The one cast to e8m0 is compared with rounding up, MX recipes' choice."""
    if format not in _TYPES or rounding != ("toward_positive" if format == "e8m0" else "nearest"):
        return NotImplemented
    with np.errstate(all="ignore"):
        codes = x.astype(_TYPES[format])
    return codes.view(np.uint8 if codes.itemsize == 1 else np.uint16)


def through(x: Array, format: str, through: str, overflow: str) -> Any:
    """Casts to the 16-bit type and from there to the target."""
    if format not in _TYPES:
        return NotImplemented
    with np.errstate(all="ignore"):
        return x.astype(_TYPES[through]).astype(_TYPES[format]).view(np.uint8)
