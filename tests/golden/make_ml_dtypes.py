"""Writes ml_dtypes.txt: what the ml_dtypes package makes of narrow floating-point formats.

Usage: python3 make_ml_dtypes.py OUTPUT. Needs numpy and ml_dtypes; the test needs neither.

For each format: the FP32 bits of every code; the codes of all 65536 BF16 numbers as runs of equal
codes ("first:code", hexadecimal, in ascending order of the bits); and for the midpoint of each pair
of neighbouring magnitudes its FP32 bits and the codes of the FP32 number below, at and above it,
then of their negatives.
"""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np

# Name in recipes, name in ml_dtypes, width in bits.
FORMATS = [
    ("e4m3fn", "float8_e4m3fn", 8),
    ("e4m3_240", "float8_e4m3", 8),
    ("e5m2", "float8_e5m2", 8),
    ("e4m3fnuz", "float8_e4m3fnuz", 8),
    ("e5m2fnuz", "float8_e5m2fnuz", 8),
    ("e3m4ieee", "float8_e3m4", 8),
    ("e2m3", "float6_e2m3fn", 6),
    ("e3m2", "float6_e3m2fn", 6),
    ("e2m1", "float4_e2m1fn", 4),
    ("e8m0", "float8_e8m0fnu", 8),
]


def encode(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Codes of FP32 values."""
    with np.errstate(all="ignore"):
        return values.astype(dtype).view(np.uint8)


def runs(codes: np.ndarray) -> str:
    """Runs of equal codes over the BF16 bit patterns."""
    starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    return " ".join(f"{start:x}:{codes[start]:x}" for start in starts)


def midpoints(decoded: np.ndarray, dtype: np.dtype) -> list[str]:
    """One line for each pair of neighbouring finite magnitudes."""
    magnitudes = np.unique(np.abs(decoded[np.isfinite(decoded)]).astype(np.float64))
    lines = []
    for low, high in zip(magnitudes[:-1], magnitudes[1:]):
        middle = np.float32((low + high) / 2)
        bits = int(middle.view(np.uint32))
        near = np.array([bits - 1, bits, bits + 1], np.uint32).view(np.float32)
        codes = np.concatenate([encode(near, dtype), encode(-near, dtype)])
        lines.append("mid " + " ".join([f"{bits:x}", *(f"{code:x}" for code in codes)]))
    return lines


def describe(name: str, dtype: np.dtype, bits: int) -> list[str]:
    """The lines of one format."""
    decoded = np.arange(2**bits, dtype=np.uint8).view(dtype).astype(np.float32)
    bf16 = (np.arange(65536, dtype=np.uint32) << 16).view(np.float32)
    return [
        f"format {name}",
        "decode " + " ".join(f"{int(word):x}" for word in decoded.view(np.uint32)),
        "runs " + runs(encode(bf16, dtype)),
        *midpoints(decoded, dtype),
    ]


def main() -> None:
    lines = [f"ml_dtypes {ml_dtypes.__version__}"]
    for name, type_name, bits in FORMATS:
        lines += describe(name, np.dtype(getattr(ml_dtypes, type_name)), bits)
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
