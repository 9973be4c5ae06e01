"""Flight recorder: writes a few of the scaled GEMMs of a running program, for `fp8lab replay`.

    from fp8lab import recorder
    with recorder.Recorder("FOLDER"):        # or .start() and .stop() of such an object
        train()

Needs torch, no compiled code; works when copied alone. Calls inside compiled graphs are not seen.
A file has the first `window` rows of A and B, the whole K, and their part of D.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections import Counter, defaultdict, deque
from pathlib import Path
from typing import Any

FORMATS = {"float8_e4m3fn": "e4m3fn", "float8_e5m2": "e5m2", "float8_e4m3fnuz": "e4m3fnuz",
           "float8_e5m2fnuz": "e5m2fnuz", "float4_e2m1fn_x2": "e2m1"}  # fmt: skip
STORED = {"uint8": "U8", "float32": "F32", "bfloat16": "BF16", "float16": "F16"}
WORDS = ("api", "m", "n", "k", "a", "b", "tile_a", "tile_b", "out", "fast")
Operand = tuple[Any, Any, str]  # codes (rows, K), scales (tile rows, tile columns), format
Call = dict[str, Any]
Gemm = tuple[Operand, Operand, Any, bool]  # A, B, D, fast accumulation


def dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def tile_of(scales: Any, rows: int, k: int) -> str:
    """Returns the tiling that a matrix of scales fits, in the order in which torch asks."""
    widths = [("tensor", 1, 1), ("row", rows, 1), ("1x128", rows, -(-k // 128)),
              ("128x128", -(-rows // 128), -(-k // 128)), ("1x32", rows, -(-k // 32)),
              ("1x16", rows, -(-k // 16))]  # fmt: skip
    fits = (name for name, high, wide in widths if tuple(scales.shape) == (high, wide))
    return next(fits, f"unknown, scales {tuple(scales.shape)}")


def as_operand(codes: Any, scales: Any, format: str = "") -> Operand:
    if scales.numel() == 1 or scales.ndim < 2:
        scales = scales.reshape(-1, 1)
    return codes, scales, format or FORMATS.get(dtype_name(codes), dtype_name(codes))


def from_scaled_mm(call: Call, result: Any) -> Gemm:
    """torch._scaled_mm and torch.nn.functional.scaled_mm: mat_a (M, K), mat_b (K, N)."""
    scale_a, scale_b = call["scale_a"], call["scale_b"]
    swizzled = "SWIZZLE_32" in f"{call.get('swizzle_a')} {call.get('swizzle_b')}"
    if swizzled or isinstance(scale_a, (list, tuple)):
        raise ValueError("scales of two levels or swizzled scales")
    mat_a, mat_b = list(call.values())[:2]  # torch._scaled_mm names them input and mat2
    b = as_operand(mat_b.T, scale_b.T if scale_b.ndim == 2 else scale_b)
    return as_operand(mat_a, scale_a), b, result, bool(call.get("use_fast_accum", False))


def from_general_gemm(call: Call, result: Any) -> Gemm:
    """TransformerEngine, column-major: D (rows of B, rows of A) = B A^T for the layout TN."""
    if (layout := call.get("layout", "TN")) != "TN":
        raise ValueError(f"layout {layout}")
    operands = []
    for tensor in (call["B"], call["A"]):
        prefix = "_rowwise" if hasattr(tensor, "_rowwise_data") else ""
        codes, scales = getattr(tensor, f"{prefix}_data"), getattr(tensor, f"{prefix}_scale_inv")
        is_e5m2 = "e5m2" in str(getattr(tensor, "_fp8_dtype", "")).lower()
        operands.append(as_operand(codes, scales, "e5m2" if is_e5m2 else "e4m3fn"))
    d = result[0] if isinstance(result, (list, tuple)) else result
    return operands[0], operands[1], d, not call.get("use_split_accumulator", False)


def from_deep_gemm(call: Call, result: Any) -> Gemm:
    """DeepGEMM, NT: pairs (codes, scales) of A (M, K) and B (N, K), D written in place."""
    a, b, d = list(call.values())[:3]
    return as_operand(*a), as_operand(*b), d, False


def from_blockwise(call: Call, result: Any) -> Gemm:
    """torchao's blockwise GEMM: A (M, K) with 1x128 and B (K, N) with 128x128 scales."""
    a, b, scale_a, scale_b = list(call.values())[:4]
    return as_operand(a, scale_a), as_operand(b.T, scale_b.T), result, False


TORCHAO, TE = "torchao.prototype.blockwise_fp8_training.kernels", "transformer_engine.pytorch."
TE_MODULES = "cpp_extensions module.linear module.layernorm_linear module.layernorm_mlp".split()
TARGETS: tuple[tuple[str, str, Any, str], ...] = (  # the words: names of positional arguments
    ("torch", "_scaled_mm", from_scaled_mm,
     "input mat2 scale_a scale_b bias scale_result out_dtype use_fast_accum"),
    ("torch.nn.functional", "scaled_mm", from_scaled_mm, ""),
    *((TE + name, "general_gemm", from_general_gemm, "") for name in TE_MODULES),
    (TORCHAO, "triton_fp8_gemm_1x128_128x128", from_blockwise, "a b a_s b_s"),
    ("deep_gemm", "fp8_gemm_nt", from_deep_gemm, "a b d c"),
    ("torch.nn.functional", "linear", None, "input weight bias"),  # counted: not in FP8
)  # fmt: skip


class Recorder:
    """Samples the first GEMM of every kind and then each `every`-th, at most `limit` files."""

    def __init__(self, folder: str | Path, every: int = 1000, limit: int = 20, window: int = 256):
        self.folder, self.every, self.limit, self.window = Path(folder), every, limit, window
        self.folder.mkdir(parents=True, exist_ok=True)
        self.calls, self.in_step = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
        self.earlier: dict[Any, deque[tuple[Any, Any]]] = defaultdict(lambda: deque(maxlen=4))
        self.files, self.step_number, self.inside = 0, 0, False
        self.originals: list[tuple[Any, str, Any]] = []

    def start(self) -> Recorder:
        """Replaces the functions in the modules that are loaded, and in torch's."""
        __import__("torch.nn.functional")
        for module_name, name, reader, words in TARGETS:
            original = getattr(module := sys.modules.get(module_name), name, None)
            if original is not None:
                names = words.split() or list(inspect.signature(original).parameters)
                self.originals.append((module, name, original))
                setattr(module, name, self.hook(f"{module_name}.{name}", original, reader, names))
        return self

    def stop(self, *error: object) -> None:
        """Restores the functions and writes calls.json, the table of all calls."""
        while self.originals:
            setattr(*self.originals.pop())
        rows = [dict(zip(WORDS, key, strict=True)) | {"calls": n} for key, n in self.calls.items()]
        (self.folder / "calls.json").write_text(json.dumps(rows, indent=1) + "\n")

    __enter__, __exit__ = start, stop

    def step(self) -> None:
        """Marks the end of a training step: the n-th call of a kind is the same GEMM in each."""
        self.step_number += 1
        self.in_step.clear()

    def hook(self, api: str, original: Any, reader: Any, names: list[str]) -> Any:
        def hooked(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not self.inside:  # looking at tensors may call hooked functions
                self.inside = True
                try:  # what cannot be read or written must not disturb the program
                    call = dict(zip(names, args, strict=False)) | kwargs
                    self.see(api, {n: call[n] for n in names if n in call} | call, result, reader)
                except Exception as error:
                    self.calls[(api, *("?",) * 5, f"not read: {error}", "?", "?", "?")] += 1
                    self.limit = 0 if isinstance(error, OSError) else self.limit  # a full disk
                finally:
                    self.inside = False
            return result

        return hooked

    def see(self, api: str, call: Call, result: Any, reader: Any) -> None:
        """Counts a call, and writes it if it is its turn. Throws what its reader does."""
        if reader is None:
            x, w = call["input"], call["weight"]
            shape = (str(x.numel() // max(x.shape[-1], 1)), str(w.shape[0]), str(x.shape[-1]))
            types = (dtype_name(x), dtype_name(w), "-", "-", dtype_name(result), "-")
            return self.calls.update([(api, *shape, *types)])
        (a, scale_a, format_a), (b, scale_b, format_b), d, fast = reader(call, result)
        k = a.shape[1] * (2 if format_a == "e2m1" else 1)  # two codes in a byte
        tiles = tile_of(scale_a, a.shape[0], k), tile_of(scale_b, b.shape[0], k)
        key = (api, str(a.shape[0]), str(b.shape[0]), str(k), format_a, format_b, *tiles,
               dtype_name(d), str(fast).lower())  # fmt: skip
        turn = self.calls[key] % self.every == 0 and self.files < self.limit
        earlier = self.earlier[key, self.in_step[key]]
        self.in_step[key] += 1
        if turn and not any(tile.startswith("unknown") for tile in tiles):
            about = dict(zip(WORDS, key, strict=True)) | {
                "format_a": format_a, "format_b": format_b, "device": str(d.device),
                "step": str(self.step_number),
                "earlier_scales": json.dumps([[float(x), float(y)] for x, y in earlier]),
            }  # fmt: skip
            self.write(about, (a, b), (scale_a, scale_b), d, call)
        self.calls[key] += 1
        if scale_a.numel() == scale_b.numel() == 1:  # copies: the program may overwrite them
            earlier.append((scale_a.detach().clone(), scale_b.detach().clone()))

    def write(self, about: dict[str, str], codes: Any, scales: Any, d: Any, call: Call) -> None:
        """Writes a safetensors file: codes as U8, FP32 scales, the window of D, and `about`."""
        torch, size, tensors, data = sys.modules["torch"], self.window, {}, b""
        for name, code, scale in zip("ab", codes, scales, strict=True):
            code = code.detach()[:size].contiguous().view(torch.uint8)
            if about[f"format_{name}"] == "e2m1":
                code = torch.stack([code & 15, code >> 4], dim=-1).flatten(1)
            tensors[name], tensors[f"scale_{name}"] = code, scale.detach().to(torch.float32)
        d = d.detach()[:size, :size].contiguous()
        tensors["d"] = d.view(torch.uint8) if about["out"] in FORMATS else d
        for name, value in (("bias", call.get("bias")), ("d_scale", call.get("scale_result"))):
            if value is not None and value.numel() > 0:
                tensors[name] = value.detach().flatten()[:size].to(torch.float32)
        header: dict[str, Any] = {"__metadata__": {"fp8lab": "gemm-1", **about}}
        for name, tensor in tensors.items():
            first = len(data)
            data += tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            header[name] = {"dtype": STORED[dtype_name(tensor)], "shape": list(tensor.shape),
                            "data_offsets": [first, len(data)]}  # fmt: skip
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path = self.folder / f"{self.files:04}_{about['api'].rsplit('.', 1)[-1]}.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        self.files += 1
