"""MLX, on its default device."""

from __future__ import annotations

from importlib.metadata import version

import mlx.core

from fp8lab.conformance.adapters.mlx_like import functions

VERSION = version("mlx")
_ADAPTER = functions(mlx.core)
encode, decode, e8m0 = _ADAPTER.encode, _ADAPTER.decode, _ADAPTER.e8m0
