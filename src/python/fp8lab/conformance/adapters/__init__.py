"""Functions of public libraries by the names and types of `fp8lab.conformance.check`.

Each module is one library's and imports it: `fp8lab.conformance.adapters.ml_dtypes`, for example.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

LIBRARIES = ("ml_dtypes", "torch", "torchao", "onnx", "mlx")


def load(name: str) -> Any:
    """Returns what MODULE or MODULE:OBJECT names. Raises ImportError or AttributeError."""
    module, _, attribute = name.partition(":")
    found: Any = import_module(module)
    for part in filter(None, attribute.split(".")):
        found = getattr(found, part)
    return found
