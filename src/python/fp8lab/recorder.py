"""Flight recorder: writes a few of the scaled GEMMs of a running program, for `fp8lab replay`.

    from fp8lab import recorder
    with recorder.record("FOLDER"):          # or recorder.start("FOLDER") ... .stop()
        train()

It needs torch and no compiled code; the file can be copied alone. It replaces the functions of
TARGETS in their modules by ones that call them and look at arguments and result. Calls inside
torch.compile graphs and C++ are not seen. One file of at most `window` rows and columns a GEMM; the
whole K is kept, since each element of D depends on one row of A and one of B.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FORMATS = {"float8_e4m3fn": "e4m3fn", "float8_e5m2": "e5m2", "float8_e4m3fnuz": "e4m3fnuz",
           "float8_e5m2fnuz": "e5m2fnuz", "float4_e2m1fn_x2": "e2m1"}  # fmt: skip
STORED = {"uint8": "U8", "float32": "F32", "bfloat16": "BF16", "float16": "F16"}
Operand = tuple[Any, Any, str]  # codes (rows, K), scales in the layout of the call, format


def dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def tile_of(scales: Any, rows: int, k: int) -> str:
    """Returns the tiling that a matrix of scales fits, in the order in which torch asks."""
    widths = [("tensor", 1, 1), ("row", rows, 1), ("1x128", rows, -(-k // 128)),
              ("128x128", -(-rows // 128), -(-k // 128)), ("1x32", rows, -(-k // 32)),
              ("1x16", rows, -(-k // 16))]  # fmt: skip
    fits = [name for name, high, wide in widths if tuple(scales.shape) == (high, wide)]
    return fits[0] if fits else f"unknown, scales {tuple(scales.shape)}"


def as_operand(codes: Any, scales: Any) -> Operand:
    """Codes (rows, K) of a torch type with their scales, a single one as a 1x1 matrix."""
    if scales.numel() == 1 or scales.ndim < 2:
        scales = scales.reshape(-1, 1)
    return codes, scales, FORMATS.get(dtype_name(codes), dtype_name(codes))


def from_scaled_mm(call: dict[str, Any], result: Any) -> tuple[Operand, Operand, Any]:
    """torch._scaled_mm and torch.nn.functional.scaled_mm: mat_a (M, K), mat_b (K, N)."""
    scale_a, scale_b = call["scale_a"], call["scale_b"]
    if isinstance(scale_a, (list, tuple)):
        raise ValueError("scales of two levels or swizzled scales")
    scale_b = scale_b if scale_b.ndim < 2 else scale_b.T
    return as_operand(call["mat_a"], scale_a), as_operand(call["mat_b"].T, scale_b), result


def from_general_gemm(call: dict[str, Any], result: Any) -> tuple[Operand, Operand, Any]:
    """TransformerEngine, column-major: D (rows of B, rows of A) = B A^T for the layout TN."""
    if call.get("layout", "TN") != "TN":
        raise ValueError(f"layout {call['layout']}")

    def operand(tensor: Any) -> Operand:
        codes = getattr(tensor, "_data", None)
        scales = getattr(tensor, "_scale_inv", None)
        if codes is None:
            codes, scales = tensor._rowwise_data, tensor._rowwise_scale_inv
        words = str(getattr(tensor, "_fp8_dtype", "e4m3")).lower()
        return codes, as_operand(codes, scales)[1], "e5m2" if "e5m2" in words else "e4m3fn"

    out = result[0] if isinstance(result, (list, tuple)) else result
    return operand(call["B"]), operand(call["A"]), out


def from_deep_gemm(call: dict[str, Any], result: Any) -> tuple[Operand, Operand, Any]:
    """DeepGEMM, NT: pairs (codes, scales) of A (M, K) and B (N, K), D written in place."""
    values = list(call.values())
    (a, scale_a), (b, scale_b), d = values[:3]
    return as_operand(a, scale_a), as_operand(b, scale_b), d


def from_blockwise(call: dict[str, Any], result: Any) -> tuple[Operand, Operand, Any]:
    """torchao's blockwise GEMM: A (M, K) with 1x128 and B (K, N) with 128x128 scales."""
    a, b, scale_a, scale_b = list(call.values())[:4]
    return as_operand(a, scale_a), as_operand(b.T, scale_b.T), result


Reader = Callable[[dict[str, Any], Any], tuple[Operand, Operand, Any]]
TARGETS: tuple[tuple[str, str, Reader | None], ...] = (
    ("torch", "_scaled_mm", from_scaled_mm),
    ("torch.nn.functional", "scaled_mm", from_scaled_mm),
    ("transformer_engine.pytorch.cpp_extensions", "general_gemm", from_general_gemm),
    ("transformer_engine.pytorch.module.linear", "general_gemm", from_general_gemm),
    ("transformer_engine.pytorch.module.layernorm_linear", "general_gemm", from_general_gemm),
    ("torchao.prototype.blockwise_fp8_training.kernels",
     "triton_fp8_gemm_1x128_128x128", from_blockwise),
    ("deep_gemm", "fp8_gemm_nt", from_deep_gemm),
    ("deep_gemm", "gemm_fp8_fp8_bf16_nt", from_deep_gemm),
    ("torch.nn.functional", "linear", None),  # counted: what did not run in FP8
)  # fmt: skip
POSITIONS = {"_scaled_mm": "mat_a mat_b scale_a scale_b bias scale_result out_dtype use_fast_accum"}


class Recorder:
    """Samples the first GEMM of every kind and then each `every`-th, at most `limit` files."""

    def __init__(self, folder: str | Path, every: int = 1000, limit: int = 20, window: int = 256):
        self.folder, self.every, self.limit, self.window = Path(folder), every, limit, window
        self.folder.mkdir(parents=True, exist_ok=True)
        self.calls: Counter[tuple[str, ...]] = Counter()
        self.earlier: dict[Any, deque[list[float]]] = defaultdict(lambda: deque(maxlen=4))
        self.files, self.step_number, self.inside = 0, 0, False
        self.in_step: Counter[Any] = Counter()
        self.originals: list[tuple[Any, str, Any]] = []

    def start(self) -> Recorder:
        """Replaces the functions of the modules that are loaded, and of torch."""
        for module_name, name, reader in TARGETS:
            module = sys.modules.get(module_name)
            if module is None and module_name.startswith("torch."):
                module = importlib.import_module(module_name)
            original = getattr(module, name, None)
            if original is not None:
                self.originals.append((module, name, original))
                setattr(module, name, self.hook(f"{module_name}.{name}", original, reader))
        return self

    def stop(self) -> None:
        """Restores the functions and writes calls.json, the table of all calls."""
        for module, name, original in reversed(self.originals):
            setattr(module, name, original)
        self.originals.clear()
        words = ("api", "m", "n", "k", "a", "b", "tile_a", "tile_b", "out", "fast")
        rows = [dict(zip(words, key, strict=False)) | {"calls": n} for key, n in self.calls.items()]
        (self.folder / "calls.json").write_text(json.dumps(rows, indent=1) + "\n")

    def step(self) -> None:
        """Marks the end of a training step, so that the scales of steps before can be compared."""
        self.step_number += 1
        self.in_step.clear()

    def hook(self, api: str, original: Any, reader: Reader | None) -> Any:
        words = POSITIONS.get(api.rsplit(".", 1)[-1])
        names = words.split() if words else None
        if names is None:
            try:
                names = list(inspect.signature(original).parameters)
            except (TypeError, ValueError):  # torch.nn.functional.linear has none
                names = ["input", "weight", "bias"]

        def hooked(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not self.inside:  # a hooked function may call another one
                self.inside = True
                try:
                    self.see(api, dict(zip(names, args, strict=False)) | kwargs, result, reader)
                finally:
                    self.inside = False
            return result

        return hooked

    def see(self, api: str, call: dict[str, Any], result: Any, reader: Reader | None) -> None:
        """Counts a call, and writes it if it is its turn. What cannot be read is counted so."""
        if reader is None:
            x, weight = call["input"], call["weight"]
            m, types = x.numel() // max(x.shape[-1], 1), (dtype_name(x), dtype_name(weight))
            key = (api, str(m), str(weight.shape[0]), str(x.shape[-1]), *types, "-", "-",
                   dtype_name(result), "-")  # fmt: skip
            self.calls[key] += 1
            return
        try:
            (a, scale_a, format_a), (b, scale_b, format_b), d = reader(call, result)
            k = a.shape[1] * (2 if format_a == "e2m1" else 1)
            tiles = tile_of(scale_a, a.shape[0], k), tile_of(scale_b, b.shape[0], k)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            self.calls[(api, *("?",) * 5, f"not read: {error}", "?", "?", "?")] += 1
            return
        fast = bool(call.get("use_fast_accum", not call.get("use_split_accumulator", True)))
        shape = (str(a.shape[0]), str(b.shape[0]), str(k))
        key = (api, *shape, format_a, format_b, *tiles, dtype_name(d), str(fast).lower())
        turn = self.calls[key] % self.every == 0 and self.files < self.limit
        self.calls[key] += 1
        site = (key, self.in_step[key])
        self.in_step[key] += 1
        now = [float(scale_a.flatten()[0]), float(scale_b.flatten()[0])]
        if turn and "unknown" not in "".join(tiles):
            about = {**dict(zip(("api", "m", "n", "k", "format_a", "format_b", "tile_a", "tile_b",
                                 "out", "fast"), key, strict=True)), "device": str(d.device),
                     "step": str(self.step_number), "call": str(self.calls[key]),
                     "earlier_scales": json.dumps(list(self.earlier[site]))}  # fmt: skip
            self.write(about, (a, b), (scale_a, scale_b), d, call)
        self.earlier[site].append(now)

    def write(self, about: dict[str, str], codes: Any, scales: Any, d: Any, call: Any) -> None:
        """Writes a safetensors file: codes as U8, FP32 scales, the window of D, and `about`."""
        import torch

        size, tensors = self.window, {}
        for name, code, scale in zip("ab", codes, scales, strict=True):
            code = code.detach()[:size].contiguous().view(torch.uint8)
            if about[f"format_{name}"] == "e2m1":
                code = torch.stack([code & 15, code >> 4], dim=-1).flatten(1)
            tensors[name], tensors[f"scale_{name}"] = code, scale.detach().to(torch.float32)
        tensors["d"] = d.detach()[:size, :size]
        if FORMATS.get(about["out"]):
            tensors["d"] = tensors["d"].contiguous().view(torch.uint8)
        for name, value in (("bias", call.get("bias")), ("d_scale", call.get("scale_result"))):
            if value is not None and getattr(value, "numel", lambda: 0)():
                tensors[name] = value.detach().flatten()[:size].to(torch.float32)
        header: dict[str, Any] = {"__metadata__": {"fp8lab": "gemm-1", **about}}
        parts: list[bytes] = []
        for name, tensor in tensors.items():
            data = tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            start = sum(map(len, parts))
            header[name] = {"dtype": STORED[dtype_name(tensor)], "shape": list(tensor.shape),
                            "data_offsets": [start, start + len(data)]}  # fmt: skip
            parts.append(data)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path = self.folder / f"{self.files:04}_{about['api'].rsplit('.', 1)[-1]}.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
        self.files += 1


def start(folder: str | Path, **options: int) -> Recorder:
    """Starts to record into a folder; `stop()` of the result ends it."""
    return Recorder(folder, **options).start()


@contextmanager
def record(folder: str | Path, **options: int) -> Iterator[Recorder]:
    """Records the calls inside a `with` block."""
    recorder = start(folder, **options)
    try:
        yield recorder
    finally:
        recorder.stop()
