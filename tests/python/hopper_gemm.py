"""FP8 GEMMs of Hopper in NumPy, from emulation/specification.md: sums of 32 products with 13
fraction bits, promoted every 128 products or not, scales, BF16 results."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
FIELDS = {"e4m3fn": (4, 3, 7), "e5m2": (5, 2, 15)}


def parts(codes: Array, format: str) -> tuple[Array, Array]:
    """Signed significands and exponents of finite codes; nothing is normalised."""
    exponent_bits, mantissa_bits, bias = FIELDS[format]
    wide = codes.astype(np.int64)
    field = wide >> mantissa_bits & (1 << exponent_bits) - 1
    significand = (wide & (1 << mantissa_bits) - 1) + np.where(field > 0, 1 << mantissa_bits, 0)
    return np.where(wide >> 7 > 0, -significand, significand), np.maximum(field, 1) - bias


def values(codes: Array, format: str) -> Array:
    significand, exponent = parts(codes, format)
    return np.ldexp(significand.astype(float), exponent - FIELDS[format][1])


def chain(a: Array, b: Array, formats: tuple[str, str]) -> Array:
    """(M, N) sums of (M, K) by (N, K), one accumulator of 13 mantissa bits over all of K."""
    (sig_a, exp_a), (sig_b, exp_b) = parts(a, formats[0]), parts(b, formats[1])
    shift = FIELDS[formats[0]][1] + FIELDS[formats[1]][1]
    total = np.zeros((a.shape[0], b.shape[0]))
    for k in range(0, a.shape[1], 32):
        step = slice(k, k + 32)
        product = sig_a[:, None, step] * sig_b[None, :, step]
        exponent = exp_a[:, None, step] + exp_b[None, :, step]
        top = np.where(product != 0, exponent, -1000).max(axis=2)
        top = np.maximum(top, np.where(total != 0, np.frexp(total)[1] - 1, -1000))
        grid = np.where(top > -1000, top - 13, 0)
        scaled = np.ldexp(product.astype(float), exponent - shift - grid[:, :, None])
        exact = np.trunc(scaled).sum(axis=2) + np.trunc(np.ldexp(total, -grid))
        fraction, power = np.frexp(np.ldexp(exact, grid))
        total = np.ldexp(np.trunc(np.ldexp(fraction, 14)), power - 14)
    return total.astype(np.float32)


def spread(scales: Array, tile: str, rows: int, k: int) -> Array:
    """Scales of single rows and blocks of 128 products, or one column for the whole of K."""
    if tile in ("tensor", "row"):
        return np.broadcast_to(scales, (rows, 1))
    return scales.repeat(128, axis=0)[:rows] if tile == "128x128" else scales


def gemm(
    a: Array,
    b: Array,
    scales: tuple[Array, Array],
    tiles: tuple[str, str] = ("tensor", "tensor"),
    formats: tuple[str, str] = ("e4m3fn", "e4m3fn"),
    fast: bool = False,
) -> Array:
    """Float32 results (M, N) of codes (M, K) and (N, K), before their rounding to the output."""
    (m, k), n = a.shape, b.shape[0]
    sa, sb = spread(scales[0], tiles[0], m, k), spread(scales[1], tiles[1], n, k)
    if tiles[0] in ("tensor", "row"):
        total = np.zeros((m, n), np.float32)
        for first in range(0, k, k if fast else 128):
            step = slice(first, None if fast else first + 128)
            total += chain(a[:, step], b[:, step], formats)
        if tiles == ("tensor", "tensor"):
            return total * (sa[:, :1] * sb[:, 0][None, :])
        return (total * sa[:, :1]) * sb[:, 0][None, :]
    total = np.zeros((m, n), np.float32)
    for block, first in enumerate(range(0, k, 128)):
        step = slice(first, first + 128)
        part, x, y = chain(a[:, step], b[:, step], formats), sa[:, block, None], sb[None, :, block]
        if "128x128" in tiles:
            left, right = part, (x * y).astype(np.float32)
        else:
            left, right = (part * y).astype(np.float32), x
        total = (left.astype(float) * right + total).astype(np.float32)
    return total


def to_bf16(x: Array) -> Array:
    """The bits of BF16, to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.int64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
