"""Functions in the form of MLX: to_fp8, from_fp8, and quantize with the modes mxfp8 and mxfp4."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from fp8lab.conformance.pack import Array


def functions(mx: Any) -> SimpleNamespace:
    """Returns the adapter of `mx`, a module with the functions of mlx.core."""

    def encode(x: Array, format: str, rounding: str, overflow: str, bits: Array | None) -> Any:
        """Casts to e4m3fn, saturating."""
        if (format, rounding, overflow) != ("e4m3fn", "nearest", "saturate"):
            return NotImplemented
        return np.array(mx.to_fp8(mx.array(x)), dtype=np.uint8)

    def decode(codes: Array, format: str) -> Any:
        """Casts e4m3fn to float32."""
        if format != "e4m3fn":
            return NotImplemented
        return np.array(mx.from_fp8(mx.array(codes), dtype=mx.float32), dtype=np.float32)

    def e8m0(amax: Array, format: str, scale_rounding: str) -> Any:
        """The scales of tiles with one element that is not zero, compared with rounding up."""
        modes = {"e4m3fn": ("mxfp8", 8), "e2m1": ("mxfp4", 4)}
        if format not in modes or scale_rounding != "ceil":
            return NotImplemented
        x = np.zeros((amax.size, 32), np.float32)
        x[:, 5] = amax[0]
        mode, bits = modes[format]
        scales = mx.quantize(mx.array(x), group_size=32, bits=bits, mode=mode)[1]
        return np.array(scales, dtype=np.uint8).reshape(amax.shape)

    return SimpleNamespace(encode=encode, decode=decode, e8m0=e8m0)
