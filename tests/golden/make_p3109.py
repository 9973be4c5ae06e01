#!/usr/bin/env python3
"""Digests of the value tables of IEEE P3109: tests/golden/p3109.txt.

    python3 tests/golden/make_p3109.py TABLES > tests/golden/p3109.txt

TABLES is the folder "Value Tables/Hexadecimal" of github.com/P3109/Public (read at commit 26df0d0,
2026-06-28), CSV files of code point and value for each format BinaryKpP{s,u}{e,f}. A line is the
format and the first 16 hex digits of the SHA-256 over the values of all codes in order, as FP32,
little-endian, NaN as 0x7FFFFFFF. Formats of more than 8 exponent bits have values outside FP32.
"""

from __future__ import annotations

import csv
import hashlib
import re
import struct
import sys
from pathlib import Path


def fp32(text: str) -> bytes:
    """Bits of a value as the tables write it; FP32 must hold it exactly."""
    if text == "NaN":
        return struct.pack("<I", 0x7FFFFFFF)
    value = float.fromhex(text)
    packed = struct.pack("<f", value)
    if struct.unpack("<f", packed)[0] != value:
        raise ValueError(f"{text} is no FP32 value")
    return packed


def digest(table: Path) -> str:
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if [int(row["codepoint"], 16) for row in rows] != list(range(len(rows))):
        raise ValueError(f"{table}: code points are not in order")
    values = b"".join(fp32(row["value"].strip()) for row in rows)
    return hashlib.sha256(values).hexdigest()[:16]


def key(table: Path) -> tuple[int, int, str]:
    found = re.fullmatch(r"Binary(\d+)p(\d+)([su][ef])", table.stem)
    if found is None:
        raise ValueError(f"{table}: not the name of a format")
    return int(found[1]), int(found[2]), found[3]


def main() -> None:
    for table in sorted(Path(sys.argv[1]).rglob("Binary*.csv"), key=key):
        bits, precision, kind = key(table)
        if bits - (precision - 1) - (kind[0] == "s") <= 8:
            print(table.stem.lower(), digest(table))


if __name__ == "__main__":
    main()
