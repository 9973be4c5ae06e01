"""Conversions, quantizers and GEMMs with the bits of the emulator's CPU backend."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp8lab import _library as library
from fp8lab._library import Handle, call, numpy_array, optional_array, pointer_to
from fp8lab.errors import Error
from fp8lab.quantizer import QuantSpec


_LARGEST = float(np.finfo(np.float32).max)


class Quantized(NamedTuple):
    """A quantized matrix: x ~ scales * decode(codes), with one scale per tile."""

    codes: NDArray[Any]
    """(rows, K) uint8; float32 values if the format is bf16 or fp32."""
    scales: NDArray[np.float32] | None
    """(tile rows, tile columns) decode factors; None for a quantizer without a scale."""
    statistics: dict[str, Any] | None
    """Error statistics as in a run file, and scale_bits_per_element; None if not requested."""


def _spec(spec: str | QuantSpec, name: str = "spec") -> QuantSpec:
    if isinstance(spec, QuantSpec):
        return spec
    return QuantSpec(library.words(spec, name, "a QuantSpec or its words"))


def _operand(name: str, values: Any, scales: Any, spec: str | QuantSpec | None) -> library.Operand:
    given = numpy_array(values, name)
    quantizer = None if spec is None else _spec(spec, f"operand_{name}")
    operand = library.Operand(
        pointer_to(given),
        pointer_to(optional_array(scales, f"scale_{name}")),
        None if quantizer is None else quantizer._handle.address,
    )
    operand.keeps = quantizer  # as long as the structure holds its address
    return operand


def _named(record: NDArray[np.float64]) -> dict[str, Any]:
    """Returns the statistics of fp8lab_quantize by name."""
    named: dict[str, Any] = {}
    name, first, width = ctypes.c_char_p(), ctypes.c_size_t(), ctypes.c_size_t()
    places = ctypes.byref(name), ctypes.byref(first), ctypes.byref(width)
    while call("statistic", len(named), *places) is None and name.value is not None:
        values = record[first.value : first.value + width.value]
        named[name.value.decode()] = float(values[0]) if len(values) == 1 else values.copy()
    return named


def encode(
    x: NDArray[Any],
    format: str = "e4m3fn",
    *,
    rounding: str = "nearest",
    overflow: str = "saturate",
    seed: int = 0,
) -> NDArray[Any]:
    """Returns the codes of `x` in `format`: uint8, uint16 or uint32 by the width of the format.

    The shape is that of `x`. Rounding is `nearest` (ties to even), `toward_zero`, `stochastic`
    (Philox bits of `seed` and the element's index) or `stochastic:N` (N of these bits). Overflow is
    `saturate` (largest finite magnitude, also for infinity) or `special` (infinity if the format
    has one, else NaN). NaN becomes the positive canonical NaN, or the maximum if the format has no
    NaN.
    """
    bits = ctypes.c_int32()
    for name, word in (("format", format), ("rounding", rounding), ("overflow", overflow)):
        library.words(word, name)
    call("format_bits", format, ctypes.byref(bits))
    source = numpy_array(x, "x")
    type_of_codes = np.uint8 if bits.value <= 8 else np.uint16 if bits.value <= 16 else np.uint32
    codes = np.empty(x.shape, type_of_codes)
    bits_of = library.integer(seed, "seed", 64)
    call("encode", source, format, rounding, overflow, bits_of, numpy_array(codes, "codes"))
    return codes


def decode(codes: NDArray[Any], format: str = "e4m3fn") -> NDArray[np.float32]:
    """Returns the exact float32 values of `codes`, with the same shape.

    `codes` are uint8, uint16 or uint32 by the format's width, or an array of the format's own type,
    such as `ml_dtypes.float8_e5m2` for e5m2. Codes of another format's type, or with more bits than
    the format, are refused. NaN becomes the canonical 0x7FFFFFFF.
    """
    library.words(format, "format")
    source = numpy_array(codes, "codes")
    values = np.empty(codes.shape, np.float32)
    call("decode", source, format, numpy_array(values, "values"))
    return values


def quantize(
    x: NDArray[Any],
    spec: str | QuantSpec,
    *,
    transpose: bool = False,
    seed: int = 0,
    statistics: bool = True,
    threads: int = 0,
) -> Quantized:
    """Returns codes, scales and error statistics of `x` (rows, K).

    With `transpose`, quantizes the transpose of `x`. `spec` is a `QuantSpec` or its words:
    `FORMAT[/WORD...]`, or `RECIPE:SLOT` such as `infir2:fprop.x`. `x` has the orientation of the
    GEMM's operand, also for a slot that training quantizes from a transposed tensor. Partial tiles
    at the edges have their own scales. `seed` is for stochastic rounding. Delayed scaling is
    refused, since it needs the amax history of a run. `threads` 0 means all processors; the number
    of threads changes no bit.
    """
    quantizer, source = _spec(spec)._handle, numpy_array(x, "x")
    backend = library.backend("cpu", threads)
    shape = library.Quantized()
    call("quantized_shape", quantizer, source, bool(transpose), ctypes.byref(shape))
    codes = np.empty((shape.rows, shape.k), np.uint8 if shape.is_codes else np.float32)
    scales = (
        np.empty((shape.scale_rows, shape.scale_cols), np.float32) if shape.scale_rows else None
    )
    record = np.empty(call("statistics")) if statistics else None
    call(
        "quantize",
        backend,
        quantizer,
        source,
        bool(transpose),
        library.integer(seed, "seed", 64),
        numpy_array(codes, "codes"),
        optional_array(scales, "scales"),
        optional_array(record, "statistics"),
    )
    return Quantized(codes, scales, None if record is None else _named(record))


def dequantize(
    codes: NDArray[Any],
    scales: NDArray[np.float32] | None,
    spec: str | QuantSpec,
    *,
    threads: int = 0,
) -> NDArray[np.float32]:
    """Returns scale * decode(code), rounded to float32, for `codes` (rows, K) quantized by `spec`.

    Codes are uint8, or an array of the format's ml_dtypes type. Scales that `spec` cannot store,
    such as 0.3 under pow2, are refused, as are codes with more bits than the format.
    """
    quantizer = _spec(spec)._handle
    given = numpy_array(codes, "codes"), optional_array(scales, "scales")
    values = np.empty(codes.shape, np.float32)
    backend = library.backend("cpu", threads)
    call("dequantize", backend, quantizer, *given, numpy_array(values, "values"))
    return values


def gemm(
    a: NDArray[Any],
    b: NDArray[Any],
    spec: str,
    *,
    operand_a: str | QuantSpec | None = None,
    operand_b: str | QuantSpec | None = None,
    scale_a: NDArray[np.float32] | None = None,
    scale_b: NDArray[np.float32] | None = None,
    bias: NDArray[np.float32] | None = None,
    accumulate: NDArray[np.float32] | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    c: NDArray[np.float32] | None = None,
    d_scale: float = 1.0,
    seed: int = 0,
    threads: int = 0,
) -> NDArray[Any]:
    """Returns D (M, N) = A (M, K) B (N, K)^T with the bits of the hardware; bf16 D as float32.

    `spec` is `ACCUMULATOR[/SCHEDULE][/OUTPUT]...` such as `sm90_wgmma_fp8/promote:128/fp32`, or
    `RECIPE:ROLE` such as `infir2:fprop` with that recipe's operands. `operand_a` and `operand_b`
    are the quantizers of the operands. Without one, the operand is unscaled, in the format of its
    ml_dtypes codes, else e4m3fn for FP8 units and bf16 for other units. An array of values is
    quantized by its operand's spec. uint8 codes are used unchanged, with `scale_a` (tile rows, tile
    columns) if the spec has scales. Codes of another format and scales that the spec cannot store
    are refused.

    `bias` (N,) is added to every row after scaling, rounded separately. `accumulate` (M, N) is the
    addend of an fp32 output: fma(acc, scale, accumulate). `threads` 0 means all processors.

    `cublaslt_h200:MODE[/fast][/OUTPUT][/split_k=N]` is a call of cuBLASLt as measured on an H200:
    D = alpha A B^T + beta C + bias with `c` (M, N). `bias` is (M,), since the library is
    column-major. FP8 outputs are uint8 codes of D * d_scale. MODE is tensor, row, 1x128x1x128,
    1x128x128x128, 128x128x1x128 or bf16. In FP8 calls M, N and K must be multiples of 16.
    """
    factors = {"alpha": alpha, "beta": beta, "d_scale": d_scale}
    alpha, beta, d_scale = (
        library.number(factor, name, -_LARGEST, _LARGEST) for name, factor in factors.items()
    )
    product = Handle("gemm_new", library.words(spec, "spec"))
    if call("gemm_is_library_call", product):
        if accumulate is not None:
            raise Error("accumulate: not for library calls; accepted: c with beta")
        addend = optional_array(c, "c")
    else:
        if (alpha, beta, c is None, d_scale) != (1.0, 0.0, True, 1.0):
            raise Error("alpha, beta, c and d_scale: for specs cublaslt_h200:MODE only")
        addend = optional_array(accumulate, "accumulate")
    left = _operand("a", a, scale_a, operand_a)
    right = _operand("b", b, scale_b, operand_b)
    arguments = library.GemmArguments(
        left,
        right,
        pointer_to(optional_array(bias, "bias")),
        pointer_to(addend),
        library.integer(seed, "seed", 64),
        alpha,
        beta,
        d_scale,
    )
    d = np.empty(a.shape[:1] + b.shape[:1], call("gemm_result_type", product).decode())
    call("gemm_run", library.backend("cpu", threads), product, arguments, numpy_array(d, "d"))
    return d
