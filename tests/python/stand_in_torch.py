"""A stand-in for the parts of torch that fp8lab.recorder uses, on NumPy, for tests without torch.

Tensors carry the bits of 8-bit and 16-bit types as integers. The GEMMs of libraries that are not on
the package index, and those that need a GPU, have the signatures of the real ones and Hopper's
arithmetic.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import hopper_gemm
import numpy as np

Array = np.ndarray[Any, Any]


class DType:
    def __init__(self, name: str, storage: Any) -> None:
        self.name, self.storage = name, np.dtype(storage)

    def __repr__(self) -> str:
        return f"torch.{self.name}"


uint8 = DType("uint8", np.uint8)
float32 = DType("float32", np.float32)
bfloat16 = DType("bfloat16", np.uint16)
float8_e4m3fn = DType("float8_e4m3fn", np.uint8)
float8_e5m2 = DType("float8_e5m2", np.uint8)


class Tensor:
    def __init__(self, array: Array, dtype: DType, device: str = "cuda:0") -> None:
        self.array, self.dtype, self.device = array, dtype, device
        assert array.dtype == dtype.storage

    def _with(self, array: Array, dtype: DType | None = None) -> Tensor:
        return Tensor(array, dtype or self.dtype, self.device)

    shape = property(lambda self: self.array.shape)
    ndim = property(lambda self: self.array.ndim)
    T = property(lambda self: self._with(self.array.T))

    def __getitem__(self, index: Any) -> Tensor:
        return self._with(np.asarray(self.array[index]))

    def __float__(self) -> float:
        return float(self.array.reshape(-1)[0])

    def numel(self) -> int:
        return int(self.array.size)

    def detach(self) -> Tensor:
        return self

    cpu = detach

    def clone(self) -> Tensor:
        return self._with(self.array.copy())

    def contiguous(self) -> Tensor:
        return self._with(np.ascontiguousarray(self.array))

    def flatten(self) -> Tensor:
        return self._with(self.array.reshape(-1))

    def reshape(self, *shape: int) -> Tensor:
        return self._with(self.array.reshape(shape))

    def view(self, dtype: DType) -> Tensor:
        return self._with(self.array.view(dtype.storage), dtype)

    def to(self, dtype: DType) -> Tensor:
        assert self.dtype is dtype is float32, "only scales are converted, and they are FP32"
        return self

    def numpy(self) -> Array:
        return self.array


def operand(tensor: Any) -> tuple[Array, str]:
    return tensor.array, "e5m2" if tensor.dtype is float8_e5m2 else "e4m3fn"


def tile(scales: Array, rows: int) -> str:
    if scales.size == 1:
        return "tensor"
    if scales.shape[1] == 1:
        return "row"
    return "1x128" if scales.shape[0] == rows else "128x128"


def multiply(a: Any, b: Any, scale_a: Array, scale_b: Array, fast: bool = False) -> Tensor:
    """BF16 results of codes (M, K) and (N, K)."""
    (x, format_a), (y, format_b) = operand(a), operand(b)
    scales = scale_a.reshape(-1, 1) if scale_a.size == 1 else scale_a, (
        scale_b.reshape(-1, 1) if scale_b.size == 1 else scale_b
    )
    tiles = tile(scales[0], x.shape[0]), tile(scales[1], y.shape[0])
    d = hopper_gemm.gemm(x, y, scales, tiles, (format_a, format_b), fast)
    return Tensor(hopper_gemm.to_bf16(d), bfloat16)


def _scaled_mm(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Any = None,
    scale_result: Any = None, out_dtype: Any = None, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """The order of torch._scaled_mm: mat_b is (K, N)."""
    right = scale_b.array if scale_b.ndim < 2 else scale_b.array.T
    return multiply(mat_a, mat_b.T, scale_a.array, right, use_fast_accum)


def linear(input: Tensor, weight: Tensor, bias: Any = None) -> Tensor:
    return Tensor(np.zeros((input.shape[0], weight.shape[0]), np.uint16), bfloat16)


def general_gemm(
    A: Any, B: Any, workspace: Any = None, out_dtype: Any = None, quantization_params: Any = None,
    gelu: bool = False, gelu_in: Any = None, alpha: float = 1.0, beta: Any = None,
    accumulate: bool = False, layout: str = "TN", out: Any = None, bias: Any = None,
    use_split_accumulator: bool = False, grad: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """TransformerEngine's, of quantized tensors (namespaces with the attributes of theirs)."""

    def data(tensor: Any) -> tuple[Tensor, Array]:
        if hasattr(tensor, "_rowwise_data"):
            codes, scales = tensor._rowwise_data, tensor._rowwise_scale_inv
        else:
            codes, scales = tensor._data, tensor._scale_inv
        format = float8_e5m2 if "E5M2" in tensor._fp8_dtype else float8_e4m3fn
        return codes.view(format), scales.array

    (a, scale_a), (b, scale_b) = data(A), data(B)
    return multiply(b, a, scale_b, scale_a, not use_split_accumulator), None, None, None


def fp8_gemm_nt(a: Any, b: Any, d: Tensor, c: Any = None, recipe: Any = None) -> None:
    """DeepGEMM's: pairs of codes and scales, D in place."""
    d.array[...] = multiply(a[0], b[0], a[1].array, b[1].array).array


def triton_fp8_gemm_1x128_128x128(a: Tensor, b: Tensor, a_s: Tensor, b_s: Tensor) -> Tensor:
    """torchao's: B is (K, N)."""
    return multiply(a, b.T, a_s.array, b_s.array.T)


def modules() -> dict[str, ModuleType]:
    """Modules of the libraries by their names."""
    names = {
        "torch": {"_scaled_mm": _scaled_mm, "uint8": uint8, "float32": float32},
        "torch.nn": {},
        "torch.nn.functional": {"linear": linear},
        "transformer_engine.pytorch.cpp_extensions": {"general_gemm": general_gemm},
        "transformer_engine.pytorch.module.linear": {"general_gemm": general_gemm},
        "deep_gemm": {"fp8_gemm_nt": fp8_gemm_nt},
        "torchao.prototype.blockwise_fp8_training.kernels": {
            "triton_fp8_gemm_1x128_128x128": triton_fp8_gemm_1x128_128x128
        },
    }  # fmt: skip
    found = {name: ModuleType(name) for name in names}
    for name, functions in names.items():
        vars(found[name]).update(functions)
    return found


def quantized(codes: Array, scales: Array, format: str, by_rows: bool) -> SimpleNamespace:
    """A quantized tensor of TransformerEngine."""
    kind = "_rowwise" if by_rows else ""
    data, factors = Tensor(codes, uint8), Tensor(scales, float32)
    return SimpleNamespace(
        **{f"{kind}_data": data, f"{kind}_scale_inv": factors}, _fp8_dtype=f"DType.k{format}"
    )
