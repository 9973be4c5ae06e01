"""fp8lab gemm with cublaslt_h200 specs: what the library returned on an H200, bit for bit.

Run by ctest, which passes the program's path in FP8LAB_PROGRAM.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from program import succeeded

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

GEMM_HEADER = struct.Struct("<15I2fIfI112s")
TILES = {"tensor": ("tensor",) * 2, "row": ("row",) * 2, "1x128x1x128": ("1x128",) * 2}
TILES |= {"1x128x128x128": ("1x128", "128x128"), "128x128x1x128": ("128x128", "1x128")}
CODE_TYPES = {0: np.uint8, 1: np.uint8, 2: np.uint16}


@dataclass
class LibraryCall:
    """A GEMM of cuBLASLt recorded on an H200: some of its rows and columns (golden/README.md)."""

    spec: str
    output: str
    formats: tuple[int, int]
    arrays: dict[str, np.ndarray]
    alpha: float
    beta: float
    d_scale: float
    d: np.ndarray


def shared_tile(scales: np.ndarray, rows: np.ndarray, mode: int) -> tuple[np.ndarray, np.ndarray]:
    """Which stored rows one file can hold, and their scales as the program reads them."""
    if mode == 0:
        return np.arange(len(rows)), scales[:1]
    if mode == 5:
        kept = np.flatnonzero(rows // 128 == rows[0] // 128)
        return kept, scales[:1]
    return np.arange(len(rows)), scales


def library_calls(path: Path) -> list[LibraryCall]:
    data = path.read_bytes()
    assert data[:8] == b"GEMM" + struct.pack("<I", 1)
    offset, calls = 8, []
    modes = {(0, 0): "tensor", (3, 3): "row", (4, 4): "1x128x1x128"}
    modes |= {(4, 5): "1x128x128x128", (5, 4): "128x128x1x128"}
    outputs = ["bf16", "fp32", "fp16", "e4m3fn", "e5m2"]
    while offset < len(data):
        words = GEMM_HEADER.unpack_from(data, offset)
        offset += GEMM_HEADER.size
        k, fa, fb, out, mode_a, mode_b, fast, split, has_bias, r, c, sa, sb = words[2:15]
        alpha, beta, has_c, d_scale = words[15:19]

        def take(kind: type, *shape: int) -> np.ndarray:
            nonlocal offset
            count = int(np.prod(shape))
            values = np.frombuffer(data, np.dtype(kind).newbyteorder("<"), count, offset)
            offset += values.nbytes
            return values.reshape(shape)

        rows, cols = take(np.uint32, r), take(np.uint32, c)
        arrays = {"a": take(CODE_TYPES[fa], r, k), "b": take(CODE_TYPES[fb], c, k)}
        scales_a, scales_b = take(np.float32, r, sa), take(np.float32, c, sb)
        if has_c:
            arrays["c"] = take(np.float32, r, c)
        if has_bias:
            arrays["bias"] = take(np.float32, r)
        d = take(np.uint32, r, c)
        spec = "bf16" if fa == 2 else modes[mode_a, mode_b] + ("/fast" if fast else "/promote")
        spec = f"cublaslt_h200:{spec}/{outputs[out]}" + (f"/split_k={split}" if split > 1 else "")
        kept_a, kept_b = np.arange(r), np.arange(c)
        if fa < 2 and sa > 0:
            kept_a, arrays["scale-a"] = shared_tile(scales_a, rows, mode_a)
            kept_b, arrays["scale-b"] = shared_tile(scales_b, cols, mode_b)
        arrays["a"], arrays["b"] = arrays["a"][kept_a], arrays["b"][kept_b]
        if "c" in arrays:
            arrays["c"] = arrays["c"][np.ix_(kept_a, kept_b)]
        if "bias" in arrays:
            arrays["bias"] = arrays["bias"][kept_a]
        d = d[np.ix_(kept_a, kept_b)]
        calls.append(LibraryCall(spec, outputs[out], (fa, fb), arrays, alpha, beta, d_scale, d))
    return calls


def result_bits(result: np.ndarray, output: str) -> np.ndarray:
    """The output bits as the recording has them; a widened NaN is the canonical one."""
    if result.dtype == np.uint8:
        return result.astype(np.uint32)
    bits = result.view(np.uint32)
    if output == "bf16":
        return bits >> 16
    if output == "fp16":
        halves = result.astype(np.float16).view(np.uint16).astype(np.uint32)
        return np.where(np.isnan(result), np.uint32(0x7FFF), halves)
    return bits


def in_sixteens(arrays: dict[str, np.ndarray], mode: str) -> dict[str, np.ndarray]:
    """The arrays with M and N brought to multiples of 16, as FP8 calls take them."""
    rows, cols = (-len(arrays[side]) % 16 for side in "ab")
    added = {"a": [(0, rows), (0, 0)], "b": [(0, cols), (0, 0)], "c": [(0, rows), (0, cols)]}
    added["bias"] = [(0, rows)]
    for side, count in zip("ab", (rows, cols), strict=True):
        one_a_row = TILES.get(mode, ("", ""))["ab".index(side)] in ("row", "1x128")
        added[f"scale-{side}"] = [(0, count if one_a_row else 0), (0, 0)]
    return {name: np.pad(array, added[name], mode="edge") for name, array in arrays.items()}


def replayed(call: LibraryCall, folder: Path) -> int:
    """Differences between the program's answer and the recording."""
    words: list[object] = ["--spec", call.spec, "--out", folder / "d.npy"]
    mode = call.spec.split(":")[1].split("/")[0]
    for name, array in in_sixteens(call.arrays, mode).items():
        np.save(folder / f"{name}.npy", array)
        words += [f"--{name}", folder / f"{name}.npy"]
    for side in range(2) if mode != "bf16" else []:
        name = ["e4m3fn", "e5m2"][call.formats[side]]
        scaled = f"scale-{'ab'[side]}" in call.arrays
        words += [f"--operand-{'ab'[side]}", f"{name}/{TILES[mode][side]}" if scaled else name]
    words += [f"--alpha={call.alpha!r}", f"--beta={call.beta!r}"]
    if call.output in ("e4m3fn", "e5m2"):
        words += [f"--d-scale={call.d_scale!r}"]
    succeeded("gemm", *words)
    result = np.load(folder / "d.npy")[: call.d.shape[0], : call.d.shape[1]]
    return int(np.sum(result_bits(result, call.output) != call.d))


def test_library_calls_return_what_the_h200_returned(tmp_path: Path) -> None:
    calls = library_calls(GOLDEN / "gemm.bin") + library_calls(GOLDEN / "gemm_edge.bin")
    assert len(calls) > 100 and any("split_k" in call.spec for call in calls)
    for call in calls:
        assert replayed(call, tmp_path) == 0, call.spec
