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

Three parts work without the compiled module, which is loaded when one of its functions is first
used: `read_run` (needs h5py), `fp8lab.conformance` (checks other implementations; needs only NumPy)
and `fp8lab.tokens` (makes token shards).
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fp8lab._fp8lab import QuantSpec, __version__
    from fp8lab.arithmetic import Quantized, decode, dequantize, encode, gemm, quantize
    from fp8lab.errors import Error, RuntimeFailure
    from fp8lab.model import Completion, Model, Step
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
    "_emulator": ("QuantSpec", "__version__"),
    "arithmetic": ("Quantized", "decode", "dequantize", "encode", "gemm", "quantize"),
    "errors": ("Error", "RuntimeFailure"),
    "model": ("Completion", "Model", "Step"),
    "runs": ("Run", "read_run", "read_samples", "read_statistic", "statistic_names"),
    "torch_order": ("scaled_mm",),
}


def _load(module: str, name: str) -> Any:
    try:
        return import_module(f"fp8lab.{module}")
    except ImportError:
        if find_spec("fp8lab._fp8lab") is not None:
            raise
    raise ImportError(
        f"fp8lab.{name} needs the compiled module, which is not in {__path__[0]}: pip install the "
        "package, or build with -DFP8LAB_PYTHON=ON where pybind11 and Python's headers are"
    )


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names:
            value = getattr(_load(module, name), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'fp8lab' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
