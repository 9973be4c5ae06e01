"""PyTorch on the CPU: Tensor.to, to nearest."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fp8lab.conformance.pack import Array

VERSION = str(torch.__version__)

_NAMES = {
    "e4m3fn": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e8m0": "float8_e8m0fnu",
    "bf16": "bfloat16",
    "fp16": "float16",
}
_TYPES = {ours: getattr(torch, theirs) for ours, theirs in _NAMES.items() if hasattr(torch, theirs)}


def _array(tensor: Any, like: Any) -> Array:
    """Returns the bits of a tensor."""
    bits = tensor.contiguous().view(torch.uint8).numpy()
    array: Array = np.ascontiguousarray(bits).view(like)
    return array.reshape(tensor.shape)


def decode(codes: Array, format: str) -> Any:
    """Casts codes to float32."""
    if format not in _TYPES:
        return NotImplemented
    return torch.from_numpy(codes.copy()).view(_TYPES[format]).to(torch.float32).numpy()


def encode(x: Array, format: str, rounding: str, overflow: str, random_bits: Array | None) -> Any:
    """Casts from float32. The one cast to e8m0 is compared with rounding up, MX recipes' choice."""
    if format not in _TYPES or rounding != ("toward_positive" if format == "e8m0" else "nearest"):
        return NotImplemented
    codes = torch.from_numpy(x.copy()).to(_TYPES[format])
    return _array(codes, np.uint8 if codes.itemsize == 1 else np.uint16)


def through(x: Array, format: str, through: str, overflow: str) -> Any:
    """Casts to the 16-bit type and from there to the target."""
    if format not in _TYPES:
        return NotImplemented
    return _array(torch.from_numpy(x.copy()).to(_TYPES[through]).to(_TYPES[format]), np.uint8)
