"""scaled_mm against the library's GEMM as emulation/specification.md writes it.

Run by ctest with PYTHONPATH at the build tree's package.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensor_core_model

fp8lab = pytest.importorskip("fp8lab", reason="the package fp8lab is not built")
Array = np.ndarray[Any, Any]


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def scaled_operands(m: int, n: int, k: int) -> tuple[Array, Array]:
    a = fp8lab.encode(generator(11).normal(size=(m, k)).astype(np.float32))
    b = fp8lab.encode(generator(12).normal(size=(k, n)).astype(np.float32))
    return a, b


def chain(a: Array, b: Array) -> np.float32:
    acc = np.float32(0)
    for k in range(0, len(a), 32):
        acc = tensor_core_model.wgmma_fp8(a[k : k + 32], b[k : k + 32], ("e4m3fn", "e4m3fn"), acc)
    return acc


def fma(x: np.float32, y: np.float32, z: np.float32) -> np.float32:
    """Exact product and sum of these magnitudes in long double, rounded once."""
    return np.float32(np.longdouble(x) * np.longdouble(y) + np.longdouble(z))


@pytest.mark.parametrize("mode", ["tensor", "row", "1x128", "128x128"])
def test_scaled_mm_follows_the_library(mode: str) -> None:
    m, n, k = 3, 16, 272
    a, b = scaled_operands(m, n, k)
    shapes = {
        "tensor": ((), ()),
        "row": ((m, 1), (1, n)),
        "1x128": ((m, 3), (3, n)),
        "128x128": ((m, 3), (3, 1)),
    }
    draw = generator(13)
    sa, sb = (np.asarray(draw.uniform(0.01, 2, shape), np.float32) for shape in shapes[mode])
    bias = draw.normal(size=n).astype(np.float32)
    result = fp8lab.scaled_mm(
        a, b, sa, sb, bias, out_dtype=np.float32, format_a="e4m3fn", format_b="e4m3fn"
    )
    wide_a = np.broadcast_to(sa, (m, 3))
    wide_b = np.broadcast_to(sb, (3, n))
    for i in range(m):
        for j in range(n):
            acc = np.float32(0)
            for block in range(3):
                span = slice(128 * block, 128 * block + 128)
                p, s, t = chain(a[i, span], b[span, j]), wide_a[i, block], wide_b[block, j]
                # The library's first operand is mat_b: its second scale, mat_a's, comes first.
                if mode == "1x128":
                    acc = fma(p * s, t, acc)
                elif mode == "128x128":
                    acc = fma(p, s * t, acc)
                else:
                    acc = acc + p
            s, t = wide_a[i, 0], wide_b[0, j]
            if mode == "tensor":
                acc = acc * (t * s)
            elif mode == "row":
                acc = acc * t * s
            assert result[i, j] == acc + bias[j], (i, j)


def test_scaled_mm_narrow_results() -> None:
    a, b = scaled_operands(5, 32, 64)
    one = np.array([0.3], np.float32)
    both = {"format_a": "e4m3fn", "format_b": "e4m3fn"}
    full = fp8lab.scaled_mm(a, b, one, one, out_dtype=np.float32, **both)
    half = fp8lab.scaled_mm(a, b, one, one, out_dtype=np.float16, **both)
    assert half.dtype == np.float16 and np.array_equal(half, full.astype(np.float16))
    scale = np.array([200.0], np.float32)
    codes = fp8lab.scaled_mm(a, b, one, one, scale_result=scale, **both)
    assert codes.dtype == np.uint8
    assert np.array_equal(codes, fp8lab.encode(full * scale))
    fast = fp8lab.scaled_mm(a, b, one, one, None, None, np.float32, True, **both)
    words = "sm90_wgmma_fp8/fast/fp32"
    assert np.array_equal(fast, fp8lab.gemm(a, b.T, words) * (np.float32(0.3) * np.float32(0.3)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mat_b": np.zeros((48, 16), np.uint8)}, "accepted: (M, K), (K, N)"),
        ({"mat_b": np.zeros((64, 15), np.uint8)}, "multiples of 16"),
        ({"format_a": None}, "mat_a: accepted"),
        ({"format_a": "e5m2", "format_b": "e5m2"}, "both e5m2"),
        ({"scale_a": np.ones((4, 2), np.float32)}, "scale_a is (4, 2)"),
        ({"scale_a": np.ones((3, 1), np.float32)}, "scale_a is (3, 1)"),
        ({"scale_a": 1.0}, "scale_a: accepted: a float32 array"),
        ({"out_dtype": np.float64}, "out_dtype: float64"),
        ({"bias": np.zeros(5, np.float32)}, "bias: accepted"),
        ({"scale_result": np.ones(1, np.float32), "out_dtype": np.float32}, "scale_result"),
    ],
)
def test_scaled_mm_refuses(change: dict[str, Any], message: str) -> None:
    a, b = scaled_operands(4, 16, 64)
    one = np.ones(1, np.float32)
    arguments: dict[str, Any] = {"mat_a": a, "mat_b": b, "scale_a": one, "scale_b": one}
    arguments |= {"format_a": "e4m3fn", "format_b": "e4m3fn"}
    with pytest.raises(fp8lab.Error) as caught:
        fp8lab.scaled_mm(**(arguments | change))
    assert message in str(caught.value)
