"""Casts and tile quantizers of the package fp8lab beside ml_dtypes, one core, in one process.

    PYTHONPATH=build/python OMP_NUM_THREADS=1 python src/bench/compare_ml_dtypes.py [--rows 4096]

Every contender returns a new array. Times are processor times of the one thread that works, the
least of the repetitions, contenders in turn. `of copy` are the bytes read and written a second over
those of `x.copy()`, and `of memcpy` over those of a copy into a ready array. ml_dtypes has no tile
quantizer, so its column is amax, scale, product and cast in NumPy around its cast. Codes are
compared first; a difference ends the program with exit code 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

if os.environ.setdefault("OMP_NUM_THREADS", "1") != "1":
    sys.exit("compare_ml_dtypes: OMP_NUM_THREADS must be 1: the comparison is one core with one")

import fp8lab  # noqa: E402 - the number of threads is read when the module is loaded
import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402

Array = np.ndarray[Any, Any]
Action = Callable[[], Array]

FORMATS = (
    ("e4m3fn", "float8_e4m3fn"),
    ("e5m2", "float8_e5m2"),
    ("e2m3", "float6_e2m3fn"),
    ("e2m1", "float4_e2m1fn"),
)
TILES = (("tensor", None, None), ("row", 1, None), ("1x128", 1, 128), ("128x128", 128, 128))


class Contest(NamedTuple):
    """The same work by both: arrays read and their result."""

    name: str
    source: Array
    ours: Action
    theirs: Action


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name))


def cast_with_ml_dtypes(x: Array, dtype: np.dtype[Any]) -> Array:
    codes: Array = x.astype(dtype).view(np.uint8)
    return codes


def decode_with_ml_dtypes(codes: Array, dtype: np.dtype[Any]) -> Array:
    values: Array = codes.view(dtype).astype(np.float32)
    return values


def casts(x: Array) -> list[Contest]:
    contests = []
    half = x.astype(ml_dtypes.bfloat16)
    for ours, theirs in FORMATS:
        dtype = dtype_of(theirs)
        for source, name in ((x, "fp32"), (half, "bf16")):
            contests.append(
                Contest(
                    f"{name} -> {ours}",
                    source,
                    partial(fp8lab.encode, source, ours),
                    partial(cast_with_ml_dtypes, source, dtype),
                )
            )
        codes = fp8lab.encode(x, ours)
        contests.append(
            Contest(
                f"{ours} -> fp32",
                codes,
                partial(fp8lab.decode, codes, ours),
                partial(decode_with_ml_dtypes, codes, dtype),
            )
        )
    return contests


def quantize(x: Array, tile: str) -> Array:
    return fp8lab.quantize(x, f"e4m3fn/{tile}", statistics=False, threads=1).codes


def quantize_with_ml_dtypes(x: Array, rows: int | None, cols: int | None) -> Array:
    """Codes of e4m3fn with the encode factor 448 / amax of each tile, for whole tiles."""
    height, width = rows or x.shape[0], cols or x.shape[1]
    values = x.astype(np.float32, copy=False)
    tiles = values.reshape(x.shape[0] // height, height, x.shape[1] // width, width)
    amax = np.max(np.abs(tiles), axis=(1, 3), keepdims=True)
    return cast_with_ml_dtypes(tiles * (np.float32(448) / amax), dtype_of("float8_e4m3fn")).reshape(
        x.shape
    )


def quantizers(x: Array) -> list[Contest]:
    half = x.astype(ml_dtypes.bfloat16)
    return [
        Contest(
            f"e4m3fn/{tile} of {name}",
            source,
            partial(quantize, source, tile),
            partial(quantize_with_ml_dtypes, source, rows, cols),
        )
        for source, name in ((x, "fp32"), (half, "bf16"))
        for tile, rows, cols in TILES
    ]


def seconds_of(action: Callable[[], object]) -> float:
    begin = time.thread_time()
    action()
    return time.thread_time() - begin


def line(contest: Contest, repeats: int) -> str:
    """A row of the table; raises SystemExit where the codes differ."""
    result = contest.ours()
    if not np.array_equal(result, contest.theirs()):
        raise SystemExit(f"compare_ml_dtypes: {contest.name}: the results differ")
    ready = np.empty_like(contest.source)
    actions: tuple[Callable[[], object], ...] = (
        contest.ours,
        contest.theirs,
        contest.source.copy,
        partial(np.copyto, ready, contest.source),
    )
    ours, theirs, copy, memcpy = (
        min(times)
        for times in zip(*([seconds_of(a) for a in actions] for _ in range(repeats)), strict=True)
    )
    elements = contest.source.size
    speed = (contest.source.nbytes + result.nbytes) / ours
    copy_bytes = 2 * contest.source.nbytes
    return (
        f"| {contest.name} | {elements / ours * 1e-9:.3f} | {elements / theirs * 1e-9:.3f} "
        f"| {theirs / ours:.1f} | {speed * copy / copy_bytes:.2f} "
        f"| {speed * memcpy / copy_bytes:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096, help="a multiple of 128")
    parser.add_argument("--cols", type=int, default=1024, help="a multiple of 128")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    if min(options.rows, options.cols, options.repeats) < 1:
        parser.error("--rows, --cols and --repeats must be at least 1")
    if options.rows % 128 or options.cols % 128:
        parser.error("--rows and --cols must be multiples of 128")
    x = np.random.default_rng(1).normal(size=(options.rows, options.cols)).astype(np.float32)
    print(f"fp8lab {fp8lab.__version__}, ml_dtypes {ml_dtypes.__version__}, {x.shape}, one core")
    print("| operation | fp8lab, Gelem/s | ml_dtypes, Gelem/s | ratio | of copy | of memcpy |")
    print("| --- | --- | --- | --- | --- | --- |")
    for contest in casts(x) + quantizers(x):
        print(line(contest, options.repeats), flush=True)


if __name__ == "__main__":
    main()
