"""Python interface of the bit-exact FP8 emulator, on NumPy arrays.

    import numpy as np, fp8lab
    q = fp8lab.quantize(x, "e4m3fn/1x128/pow2")     # q.codes, q.scales, q.statistics
    q = fp8lab.quantize(x, "infir2:fprop.x")        # the quantizer of a recipe's operand
    d = fp8lab.gemm(a, b, "sm90_wgmma_fp8/promote:128/fp32")
    model = fp8lab.Model("FOLDER", recipe="infir2")          # saved by transformers
    loss, gradients = model.gradients(tokens)                # and logits, step, ...

Arrays may be float32, float16 (widened exactly), ml_dtypes.bfloat16 or uint16 (the bits of bf16);
codes are uint8 or the FP8, FP6 and FP4 types of ml_dtypes. Arrays need not be contiguous. Bad input
raises `fp8lab.Error` (a ValueError) with one line. The GIL is released while the emulator computes.

Three parts work without the shared library, which is loaded when one of its functions is first
used: `read_run` (needs h5py), `fp8lab.conformance` (checks other implementations; needs only NumPy)
and `fp8lab.tokens` (makes token shards).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fp8lab._library import VERSION as __version__
    from fp8lab.arithmetic import Quantized, decode, dequantize, encode, gemm, quantize
    from fp8lab.errors import Error, RuntimeFailure
    from fp8lab.model import Completion, Model, Step
    from fp8lab.quantizer import QuantSpec
    from fp8lab.runs import Run, read_run, read_samples, read_statistic, statistic_names
    from fp8lab.torch_order import scaled_mm

__all__ = [
    "Completion",
    "Error",
    "Model",
    "QuantSpec",
    "Quantized",
    "Run",
    "RuntimeFailure",
    "Step",
    "__version__",
    "decode",
    "dequantize",
    "encode",
    "gemm",
    "quantize",
    "read_run",
    "read_samples",
    "read_statistic",
    "scaled_mm",
    "statistic_names",
]

_HOME = {
    "arithmetic": ("Quantized", "decode", "dequantize", "encode", "gemm", "quantize"),
    "errors": ("Error", "RuntimeFailure"),
    "model": ("Completion", "Model", "Step"),
    "quantizer": ("QuantSpec",),
    "runs": ("Run", "read_run", "read_samples", "read_statistic", "statistic_names"),
    "torch_order": ("scaled_mm",),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("fp8lab._library").VERSION
    for module, names in _HOME.items():
        if name in names:
            value = getattr(import_module(f"fp8lab.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'fp8lab' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
