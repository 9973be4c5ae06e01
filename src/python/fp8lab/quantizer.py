"""`QuantSpec`: how a matrix is quantized."""

from __future__ import annotations

import ctypes
from typing import Any, overload

from fp8lab._library import Handle, Value, call, make_keys


class QuantSpec:
    """The quantizer of one matrix.

    `QuantSpec("e4m3fn/1x128/pow2")` takes the words of the command line: a format, then in any
    order a tile (`tensor`, `row`, `RxC`), a scale format (`fp32`, `pow2`, `e8m0`, `bf16`, `e4m3`,
    `nv_two_level`) or both at once (`mx32`, `nv16`), a scale rounding (`ceil`, `enc_floor`,
    `ocp_floor`, `rceil`, `even`, `scale_rounding:nearest`), a scale arithmetic (`enc_div`,
    `dec_div_recip`, `dec_div`), `mae` or `mse`, `delayed` or `static:NUMBER`, a rounding
    (`ties_down`, `ties_positive`, `toward_zero`, `stochastic`, `stochastic:N` with N random bits),
    a transform, and further keys of a recipe's slot table, such as `amax_epsilon:1e-4`,
    `via:fp16`, `outer_scale:row`. A format alone is a cast without a scale. The default scale
    rounding is `enc_floor` for `pow2` and `rceil` for `e8m0`, so that no element saturates, and
    `ocp_floor` for `mx32`. `label` is the spec in these words; QuantSpec(label) is an equal spec.

    `QuantSpec("infir2:fprop.x")` is the quantizer of a recipe's operand.

    The keywords are the keys of a recipe's slot table (`fp8lab help recipe` lists them), with the
    same defaults. Each is also a property. A format of at most 8 bits is scaled by its current amax
    unless `scale_source` is given. A key without effect is an error.
    """

    # The most used keys; the library has the whole table, from which the properties are made.
    format: str
    tile: str
    scale_format: str
    scale_rounding: str
    scale_arithmetic: str
    scale_source: str
    static_scale: float
    rounding: str
    overflow: str
    amax_epsilon: float
    margin: int

    @overload
    def __init__(self, words: str, /) -> None:
        ...

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
    ) -> None:
        ...

    def __init__(self, *words: Any, **keys: Any) -> None:
        if words and (keys or len(words) > 1 or not isinstance(words[0], str)):
            raise TypeError("QuantSpec takes one text, or keywords")
        if words:
            self._handle = Handle("quantizer_new", words[0])
        else:
            self._handle = Handle("quantizer_from_keys", make_keys(keys), len(keys))

    @property
    def label(self) -> str:
        """The spec in words."""
        label = ctypes.c_char_p()
        call("quantizer_label", self._handle, ctypes.byref(label))
        return (label.value or b"").decode()

    def __repr__(self) -> str:
        return f"QuantSpec('{self.label}')"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QuantSpec):
            return NotImplemented
        return bool(call("quantizer_equal", self._handle, other._handle))


def _property_of(name: str, meaning: str) -> property:
    def value_of(spec: QuantSpec) -> str | int | float:
        value = Value()
        call("quantizer_value", spec._handle, name, ctypes.byref(value))
        return value.read()

    return property(value_of, doc=meaning)


def _add_properties() -> None:
    index, name, meaning = 0, ctypes.c_char_p(), ctypes.c_char_p()
    while True:
        call("quantizer_key", index, ctypes.byref(name), ctypes.byref(meaning))
        if name.value is None:
            return
        word = name.value.decode()
        setattr(QuantSpec, word, _property_of(word, (meaning.value or b"").decode()))
        index += 1


_add_properties()
