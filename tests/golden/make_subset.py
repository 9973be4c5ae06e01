"""Cuts the full set of recorded vectors down to the committed subset.

    python3 tests/golden/make_subset.py FULL_DIRECTORY OUTPUT_DIRECTORY

The subset has the layout of README.md, so the same reader replays both sets. conv_sample.bin is
copied whole. From mma.bin every record is kept with fewer tiles: one tile of each of the 14 input
classes, or, where four records share an operation, alternately the even and the odd classes. From
gemm.bin and gemm_edge.bin records are kept with fewer rows and columns (elements of D are
independent of each other); a record whose single row and column exceed the limit is kept only if it
used split-K, which needs a long K.
"""

import argparse
import shutil
import struct
from collections import Counter
from pathlib import Path

CODE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2}
MMA_HEADER = struct.Struct("<40s6I")
GEMM_HEADER = struct.Struct("<15I2fIfI112s")
INPUT_CLASSES = 14
# Bytes of operands kept per GEMM record, by bytes per element: there are few 16-bit records.
RECORD_LIMIT = {1: 6144, 2: 24000}


class Cursor:
    """Reads a byte string front to back and refuses to run over its end."""

    def __init__(self, data: bytes, offset: int) -> None:
        self.data = data
        self.offset = offset

    def take(self, count: int) -> bytes:
        if self.offset + count > len(self.data):
            raise SystemExit(f"truncated at offset {self.offset}")
        part = self.data[self.offset : self.offset + count]
        self.offset += count
        return part

    def at_end(self) -> bool:
        return self.offset == len(self.data)


def open_records(path: Path, magic: bytes) -> Cursor:
    data = path.read_bytes()
    if data[:4] != magic or data[4:8] != struct.pack("<I", 1):
        raise SystemExit(f"{path}: not a version 1 {magic.decode()} file")
    return Cursor(data, 8)


def subset_mma(data: Cursor) -> bytes:
    records = []
    while not data.at_end():
        header = list(MMA_HEADER.unpack(data.take(MMA_HEADER.size)))
        format_a, format_b, accumulator_bits, k, tiles = header[2:7]
        size = k * (64 * CODE_BYTES[format_a] + 8 * CODE_BYTES[format_b])
        size += 2 * 64 * 8 * accumulator_bits // 8
        records.append((header, [data.take(size) for _ in range(tiles)]))
    shared = Counter(header[1] for header, _ in records)
    result = b"MMAG" + struct.pack("<I", 1)
    for index, (header, tiles) in enumerate(records):
        step = 2 if shared[header[1]] > 1 else 1
        kept = tiles[: min(len(tiles), INPUT_CLASSES)][index % step :: step]
        header[6] = len(kept)
        result += MMA_HEADER.pack(*header) + b"".join(kept)
    return result


def kept_vectors(rows: int, cols: int, bytes_a: int, bytes_b: int, limit: int) -> tuple[int, int]:
    """Halves the larger side until the operands fit; at least one row and one column stay."""
    while rows * bytes_a + cols * bytes_b > limit and max(rows, cols) > 1:
        if rows >= cols:
            rows //= 2
        else:
            cols //= 2
    return rows, cols


def head(block: bytes, vectors: int, vector_bytes: int) -> bytes:
    return block[: vectors * vector_bytes]


def subset_gemm(data: Cursor) -> bytes:
    result = b"GEMM" + struct.pack("<I", 1)
    while not data.at_end():
        header = list(GEMM_HEADER.unpack(data.take(GEMM_HEADER.size)))
        k, format_a, format_b = header[2:5]
        has_bias, rows, cols, scales_a, scales_b = header[10:15]
        has_c = header[17]
        bytes_a, bytes_b = k * CODE_BYTES[format_a], k * CODE_BYTES[format_b]
        limit = RECORD_LIMIT[CODE_BYTES[format_a]]
        keep_rows, keep_cols = kept_vectors(rows, cols, bytes_a, bytes_b, limit)

        def matrix(present: int) -> bytes:
            block = data.take(4 * rows * cols) if present else b""
            lines = [block[4 * cols * r :][: 4 * keep_cols] for r in range(keep_rows)]
            return b"".join(lines)

        body = head(data.take(4 * rows), keep_rows, 4)
        body += head(data.take(4 * cols), keep_cols, 4)
        body += head(data.take(rows * bytes_a), keep_rows, bytes_a)
        body += head(data.take(cols * bytes_b), keep_cols, bytes_b)
        body += head(data.take(4 * rows * scales_a), keep_rows, 4 * scales_a)
        body += head(data.take(4 * cols * scales_b), keep_cols, 4 * scales_b)
        body += matrix(has_c)
        body += head(data.take(4 * rows), keep_rows, 4) if has_bias else b""
        body += matrix(1)
        header[11], header[12] = keep_rows, keep_cols
        split_k = header[9]
        if bytes_a + bytes_b > limit and split_k == 1:
            continue
        result += GEMM_HEADER.pack(*header) + body
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("destination", type=Path)
    arguments = parser.parse_args()
    source, destination = arguments.source, arguments.destination
    destination.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "conv_sample.bin", destination / "conv_sample.bin")
    mma = subset_mma(open_records(source / "mma.bin", b"MMAG"))
    (destination / "mma.bin").write_bytes(mma)
    for name in ("gemm.bin", "gemm_edge.bin"):
        subset = subset_gemm(open_records(source / name, b"GEMM"))
        (destination / name).write_bytes(subset)
    for path in sorted(destination.glob("*.bin")):
        print(f"{path.name} {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
