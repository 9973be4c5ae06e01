"""torchao's reference quantizers: MX scales, MX tiles of 1x32 and NVFP4, on the CPU."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.kernels import unpack_uint4
from torchao.prototype.mx_formats.mx_tensor import to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

from fp8lab.conformance.adapters.torch import VERSION as _TORCH
from fp8lab.conformance.pack import Array

VERSION = f"{version('torchao')} (PyTorch {_TORCH})"

# CEIL rounds log2(amax) up, before the division by the largest power: none of the seven rules.
_MODES = {
    "ocp_floor": ScaleCalculationMode.FLOOR,
    "rceil": ScaleCalculationMode.RCEIL,
    "even": ScaleCalculationMode.EVEN,
}
_ELEMENTS = {
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e2m1": torch.float4_e2m1fn_x2,
}


def _mx(x: Array, format: str, scale_rounding: str) -> tuple[Array, Array]:
    """Returns codes and the e8m0 codes of scales, in tiles of 1x32."""
    scales, elements = to_mx(
        torch.from_numpy(x.copy()), _ELEMENTS[format], 32, _MODES[scale_rounding]
    )
    elements = elements.view(torch.uint8)
    if format == "e2m1":
        elements = unpack_uint4(elements)
    return elements.numpy().reshape(x.shape), scales.view(torch.uint8).numpy()


def e8m0(amax: Array, format: str, scale_rounding: str) -> Any:
    """The scales of tiles with one element that is not zero."""
    if scale_rounding not in _MODES or format not in _ELEMENTS:
        return NotImplemented
    x = np.zeros((amax.size, 32), np.float32)
    x[:, 5] = amax[0]
    return _mx(x, format, scale_rounding)[1].reshape(amax.shape)


def quantize(x: Array, spec: dict[str, Any], transpose: bool, random_bits: Array | None) -> Any:
    """Tiles of 1x32 with e8m0 scales, where the columns fill whole tiles."""
    rule = (spec["tile"], spec["scale_format"], spec["rounding"], spec["overflow"])
    plain = spec["scale_statistic"] == "amax" and spec["amax_epsilon"] == spec["margin"] == 0
    values = x.T if transpose else x
    if (
        rule != ("1x32", "e8m0", "nearest", "saturate")
        or spec["scale_source"] != "current"
        or not plain
        or spec["scale_rounding"] not in _MODES
        or spec["format"] not in _ELEMENTS
        or values.shape[1] % 32
    ):
        return NotImplemented
    if values.dtype == np.uint16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    codes, scales = _mx(np.ascontiguousarray(values), spec["format"], spec["scale_rounding"])
    exponents = scales.astype(np.int64) - 127
    factors = np.ldexp(np.float32(1), exponents).astype(np.float32)
    nan = np.uint32(0x7FFFFFFF).view(np.float32)
    return codes, np.where(scales == 255, nan, factors).astype(np.float32)


def nvfp4(x: Array) -> Any:
    """Two levels of scales with the tensor's amax."""
    tensor = torch.from_numpy(x.copy())
    factor = per_tensor_amax_to_scale(tensor.abs().max())
    scales, packed = nvfp4_quantize(tensor, 16, factor)
    codes = unpack_uint4(packed.view(torch.uint8)).numpy().reshape(x.shape)
    scale_codes = scales.view(torch.uint8).numpy().reshape(x.shape[0], -1)
    return codes, scale_codes, factor.numpy().astype(np.float32).reshape(1, 1)
