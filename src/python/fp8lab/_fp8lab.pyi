"""The compiled module; the package `fp8lab` documents its public functions."""

from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fp8lab.errors import Error as Error
from fp8lab.errors import RuntimeFailure as RuntimeFailure

__version__: str

class QuantSpec:
    """The quantizer of one matrix.

    `QuantSpec("e4m3fn/1x128/pow2")` takes the words of the command line: a format, then in any
    order a tile (`tensor`, `row`, `RxC`), a scale format (`fp32`, `pow2`, `e8m0`, `bf16`, `e4m3`,
    `nv_two_level`) or both at once (`mx32`, `nv16`), a scale rounding (`ceil`, `enc_floor`,
    `ocp_floor`, `rceil`, `even`, `scale_rounding:nearest`), a scale arithmetic (`enc_div`,
    `dec_div_recip`, `dec_div`), `mae` or `mse`, `delayed` or `static:NUMBER`, a rounding
    (`ties_down`, `ties_positive`, `toward_zero`, `stochastic`), a transform, and further keys of a
    recipe's slot table, such as `amax_epsilon:1e-4`. A format alone is a cast without a scale. The
    default scale rounding is `enc_floor` for `pow2` and `rceil` for `e8m0`, so that no element
    saturates, and `ocp_floor` for `mx32`. `label` is the spec in these words; QuantSpec(label) is
    an equal spec.

    `QuantSpec("infir2:fprop.x")` is the quantizer of a recipe's operand.

    The keywords are the keys of a recipe's slot table (`fp8lab help recipe` lists them), with the
    same defaults. Each is also a property. A format of at most 8 bits is scaled by its current amax
    unless `scale_source` is given. A key without effect is an error.
    """

    @overload
    def __init__(self, words: str, /) -> None: ...
    @overload
    def __init__(
        self,
        *,
        format: str,
        tile: str = ...,
        scale_format: str = ...,
        scale_rounding: str = ...,
        scale_arithmetic: str = ...,
        scale_source: str = ...,
        static_scale: float = ...,
        rounding: str = ...,
        overflow: str = ...,
        amax_epsilon: float = ...,
        margin: int = ...,
        **keys: str | float,
    ) -> None: ...
    @property
    def label(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def tile(self) -> str: ...
    @property
    def scale_format(self) -> str: ...
    @property
    def scale_rounding(self) -> str: ...
    @property
    def scale_arithmetic(self) -> str: ...
    @property
    def scale_source(self) -> str: ...
    @property
    def static_scale(self) -> float: ...
    @property
    def rounding(self) -> str: ...
    @property
    def overflow(self) -> str: ...
    @property
    def amax_epsilon(self) -> float: ...
    @property
    def margin(self) -> int: ...

def encode(x: Any, format: str, rounding: str, overflow: str, seed: int, /) -> NDArray[Any]: ...
def decode(codes: Any, format: str, /) -> NDArray[np.float32]: ...
def quantize(
    x: Any, spec: QuantSpec, transpose: bool, seed: int, statistics: bool, threads: int, /
) -> tuple[NDArray[Any], NDArray[np.float32] | None, dict[str, Any] | None]: ...
def dequantize(
    codes: Any, scales: Any, spec: QuantSpec, threads: int, /
) -> NDArray[np.float32]: ...
def gemm(
    a: Any,
    b: Any,
    spec: str,
    operand_a: QuantSpec | None,
    operand_b: QuantSpec | None,
    scale_a: Any,
    scale_b: Any,
    bias: Any,
    accumulate: Any,
    seed: int,
    threads: int,
    /,
) -> NDArray[np.float32]: ...
def library_gemm(
    a: Any,
    b: Any,
    spec: str,
    operand_a: QuantSpec | None,
    operand_b: QuantSpec | None,
    scale_a: Any,
    scale_b: Any,
    bias: Any,
    alpha: float,
    beta: float,
    c: Any,
    d_scale: float,
    seed: int,
    threads: int,
    /,
) -> NDArray[Any]: ...
def is_library_call(spec: str, /) -> bool: ...
class Model:
    def __init__(
        self,
        source: str,
        recipe: str,
        backend: str,
        optimizer: dict[str, float | str],
        seed: int,
        threads: int,
        /,
    ) -> None: ...
    @property
    def config(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def steps(self) -> int: ...
    def parameters(self) -> dict[str, NDArray[np.float32]]: ...
    def gradients(self) -> dict[str, NDArray[np.float32]]: ...
    def set_parameters(self, weights: dict[str, NDArray[Any]], /) -> None: ...
    def logits(self, tokens: NDArray[np.int32], /) -> NDArray[np.float32]: ...
    def loss(self, tokens: NDArray[np.int32], targets: NDArray[np.int32], /) -> float: ...
    def token_losses(
        self, tokens: NDArray[np.int32], targets: NDArray[np.int32], /
    ) -> NDArray[np.float32]: ...
    def generate(
        self, prompts: list[list[int]], options: dict[str, Any], /
    ) -> list[tuple[list[int], list[float], bool]]: ...
    def backward(self, tokens: NDArray[np.int32], targets: NDArray[np.int32], /) -> float: ...
    def step(
        self, tokens: NDArray[np.int32], targets: NDArray[np.int32], learning_rate: float, /
    ) -> tuple[float, float]: ...
    def save(self, folder: str, dtype: str, recipe: str, /) -> None: ...

