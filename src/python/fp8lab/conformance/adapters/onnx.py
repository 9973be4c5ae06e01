"""ONNX: the reference implementation of the operator Cast."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from fp8lab.conformance.pack import Array

VERSION = version("onnx")

_NAMES = {
    "e4m3fn": "FLOAT8E4M3FN",
    "e5m2": "FLOAT8E5M2",
    "e4m3fnuz": "FLOAT8E4M3FNUZ",
    "e5m2fnuz": "FLOAT8E5M2FNUZ",
    "e2m1": "FLOAT4E2M1",
    "e8m0": "FLOAT8E8M0",
    "bf16": "BFLOAT16",
    "fp16": "FLOAT16",
}
_TYPES = {
    ours: getattr(TensorProto, theirs)
    for ours, theirs in _NAMES.items()
    if hasattr(TensorProto, theirs)
}


def _cast(x: Array, source: int, target: int, **attributes: Any) -> Array:
    """Runs a model of one Cast."""
    node = helper.make_node("Cast", ["x"], ["y"], to=target, **attributes)
    graph = helper.make_graph(
        [node],
        "cast",
        [helper.make_tensor_value_info("x", source, x.shape)],
        [helper.make_tensor_value_info("y", target, x.shape)],
    )
    opset = helper.make_opsetid("", onnx.defs.onnx_opset_version())
    with np.errstate(all="ignore"):
        result: Array = ReferenceEvaluator(helper.make_model(graph, opset_imports=[opset])).run(
            None, {"x": x}
        )[0]
    return result


def _known(format: str) -> bool:
    return format in _TYPES


def encode(x: Array, format: str, rounding: str, overflow: str, random_bits: Array | None) -> Any:
    """Casts from float32 with the attributes saturate and, for e8m0, round_mode."""
    modes = {"toward_positive": "up", "toward_zero": "down"}
    if not _known(format) or (rounding not in modes if format == "e8m0" else rounding != "nearest"):
        return NotImplemented
    attributes: dict[str, Any] = {}
    if format not in ("bf16", "fp16", "e2m1"):
        attributes["saturate"] = int(overflow == "saturate")
    if format == "e8m0":
        attributes["round_mode"] = modes[rounding]
    codes = _cast(x, TensorProto.FLOAT, _TYPES[format], **attributes)
    return codes.view(np.uint16 if codes.itemsize == 2 else np.uint8)


def decode(codes: Array, format: str) -> Any:
    """Casts codes to float32."""
    if not _known(format):
        return NotImplemented
    typed = codes.view(helper.tensor_dtype_to_np_dtype(_TYPES[format]))
    return _cast(typed, _TYPES[format], TensorProto.FLOAT).astype(np.float32)


def through(x: Array, format: str, through: str, overflow: str) -> Any:
    """Two casts, by way of the 16-bit type."""
    if not _known(format) or format == "e8m0":
        return NotImplemented
    between = _cast(x, TensorProto.FLOAT, _TYPES[through])
    attributes = {} if format == "e2m1" else {"saturate": int(overflow == "saturate")}
    codes = _cast(between, _TYPES[through], _TYPES[format], **attributes)
    return codes.view(np.uint8)
