"""`scaled_mm`: torch._scaled_mm as computed by cuBLASLt on an H200."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp8lab.arithmetic import encode, gemm
from fp8lab.errors import Error
from fp8lab.quantizer import QuantSpec

_BLOCK = 128
_GROUP, _SQUARE = f"1x{_BLOCK}", f"{_BLOCK}x{_BLOCK}"
_MODES = (
    ("tensor", "tensor"),
    ("row", "row"),
    (_GROUP, _GROUP),
    (_GROUP, _SQUARE),
    (_SQUARE, _GROUP),
)
_INPUTS = {"float8_e4m3fn": "e4m3fn", "float8_e5m2": "e5m2"}
_OUTPUTS = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3fn",
    "float8_e5m2": "e5m2",
}


def _format(name: str, matrix: NDArray[Any], said: str | None) -> str:
    if said is not None and not isinstance(said, str):
        raise TypeError(f"format of {name}: {type(said).__name__}; accepted: e4m3fn or e5m2")
    known = isinstance(matrix, np.ndarray) and matrix.dtype.name
    if known == "uint8" and said in _INPUTS.values():
        format = str(said)
    elif known in _INPUTS and said in (None, _INPUTS[known]):
        format = _INPUTS[known]
    else:
        raise Error(
            f"{name}: accepted: arrays of ml_dtypes.float8_e4m3fn or float8_e5m2, or uint8 codes "
            f"whose format, e4m3fn or e5m2, is said"
        )
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise Error(f"{name}: shape {matrix.shape}; accepted: two dimensions, not empty")
    return format


def _tiles(scale: NDArray[Any], rows: int, k: int) -> set[str]:
    """Returns the tilings of a (rows, K) operand that fit a scale (tile rows, tile columns)."""
    blocks = -(-k // _BLOCK)
    shapes = {
        "tensor": (1, 1),
        "row": (rows, 1),
        _GROUP: (rows, blocks),
        _SQUARE: (-(-rows // _BLOCK), blocks),
    }
    return {tile for tile, shape in shapes.items() if scale.shape == shape}


def _scale(name: str, scale: NDArray[Any]) -> NDArray[np.float32]:
    if not isinstance(scale, np.ndarray) or scale.dtype != np.float32:
        raise Error(f"{name}: accepted: a float32 array")
    return scale.reshape(1, 1) if scale.size == 1 else scale


def _choose_tiles(
    scale_a: NDArray[Any], scale_b: NDArray[Any], m: int, n: int, k: int, fast: bool
) -> tuple[str, str]:
    """Returns the first mode that fits the shapes (emulation/specification.md, "Calls of
    cuBLASLt")."""
    for tile_a, tile_b in _MODES:
        if tile_a in _tiles(scale_a, m, k) and tile_b in _tiles(scale_b, n, k):
            if fast and tile_a not in ("tensor", "row"):
                raise Error("use_fast_accum: accepted with one scale a tensor or a vector only")
            return tile_a, tile_b
    raise Error(
        f"scale_a is {scale_a.shape} and scale_b {scale_b.T.shape} for M = {m}, N = {n}, K = {k}; "
        f"accepted: one number each; (M, 1) and (1, N); (M, K/{_BLOCK}) and (K/{_BLOCK}, N); "
        f"blocks of {_SQUARE} on one side"
    )


def scaled_mm(
    mat_a: NDArray[Any],
    mat_b: NDArray[Any],
    scale_a: NDArray[np.float32],
    scale_b: NDArray[np.float32],
    bias: NDArray[Any] | None = None,
    scale_result: NDArray[np.float32] | None = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
    *,
    format_a: str | None = None,
    format_b: str | None = None,
) -> NDArray[Any]:
    """Returns mat_a (M, K) times mat_b (K, N); arguments are in the order of torch._scaled_mm.

    Operands are ml_dtypes.float8_e4m3fn or float8_e5m2, or uint8 codes whose `format_a` or
    `format_b` is "e4m3fn" or "e5m2"; at most one is e5m2. K and N must be multiples of 16. Scales
    are decode scales: one number each; (M, 1) and (1, N); (M, K/128) and (K/128, N); or (K/128,
    N/128) blocks on one side; the first of these that fits the shapes. `bias` (N,) is added after
    scaling. The result has `out_dtype` (float32, float16, ml_dtypes.bfloat16, float8_e4m3fn or
    float8_e5m2; default: the type of mat_a). FP8 results require single scales, are multiplied by
    `scale_result` (1 if None) and saturate.

    The arithmetic is that of cuBLASLt 13.1 measured on an H200 without split-K. (The library uses
    split-K for small outputs with large K.) The library is column-major: it computes the transpose
    with mat_b as its first operand, which determines the order of the scale products.
    """
    format_a, format_b = _format("mat_a", mat_a, format_a), _format("mat_b", mat_b, format_b)
    (m, k), (k_b, n) = mat_a.shape, mat_b.shape
    if k != k_b:
        raise Error(f"mat_a is {mat_a.shape} and mat_b is {mat_b.shape}; accepted: (M, K), (K, N)")
    if k % 16 or n % 16:
        raise Error(f"K = {k} and N = {n}; accepted: multiples of 16")
    if format_a == format_b == "e5m2":
        raise Error("mat_a and mat_b are both e5m2; accepted: at most one")
    scale_a, scale_b = _scale("scale_a", scale_a), _scale("scale_b", scale_b).T
    tile_a, tile_b = _choose_tiles(scale_a, scale_b, m, n, k, use_fast_accum)
    out = np.dtype(mat_a.dtype if out_dtype is None else out_dtype)
    target = format_a if out_dtype is None else _output(out)
    is_fp8 = target in _INPUTS.values()
    if is_fp8 and tile_a != "tensor":
        raise Error(f"out_dtype: {target} needs one scale a tensor")
    if target == "e5m2" and "e5m2" not in (format_a, format_b):
        raise Error("out_dtype: float8_e5m2 needs an operand of that type")
    if scale_result is not None and not is_fp8:
        raise Error("scale_result: accepted with an FP8 out_dtype only")
    value = gemm(
        mat_b.T,
        mat_a,
        f"sm90_wgmma_fp8/{'fast' if use_fast_accum else f'promote:{_BLOCK}'}/fp32",
        operand_a=QuantSpec(format=format_b, tile=tile_b),
        operand_b=QuantSpec(format=format_a, tile=tile_a),
        scale_a=scale_b,
        scale_b=scale_a,
    ).T
    with np.errstate(all="ignore"):
        if bias is not None:
            value = value + _bias(bias, n)
        if scale_result is not None:
            value = value * _one_number("scale_result", scale_result)
    codes = encode(value, target, overflow="saturate" if is_fp8 else "special")
    return codes.view(out)


def _output(out: np.dtype[Any]) -> str:
    if out.name not in _OUTPUTS:
        raise Error(f"out_dtype: {out.name}; accepted: {', '.join(_OUTPUTS)}")
    return _OUTPUTS[out.name]


def _one_number(name: str, scale: NDArray[Any]) -> np.float32:
    scale = _scale(name, scale)
    if scale.size != 1:
        raise Error(f"{name}: accepted: one number")
    return np.float32(scale.item())


def _bias(bias: Any, n: int) -> NDArray[np.float32]:
    names = ("float32", "float16", "bfloat16")
    if not isinstance(bias, np.ndarray) or bias.dtype.name not in names or bias.shape != (n,):
        raise Error(f"bias: accepted: float32, float16 or bfloat16 of shape ({n},)")
    return bias.astype(np.float32)
