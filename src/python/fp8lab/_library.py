"""Loads libfp8lab.so, the C interface of fp8lab (src/interface/fp8lab.h), and calls it by ctypes.

The library lies beside this file in an installed package and in a build tree's folder `python`;
libfp8lab_cuda.so, of the wheel for GPUs, is preferred. For a package in a source tree it is the
newest of `build/*/python/fp8lab/libfp8lab.so`. The environment variable FP8LAB_LIBRARY names
another one. ctypes releases the GIL during every call.

OpenMP threads sleep while they wait: a spinning thread can take the processor from the thread that
it waits for if the machine also runs other work. An OpenMP runtime reads its wait policy from the
environment once, when it is loaded. So this module sets the policy, loads the library and with it
the runtime, and restores the environment. A runtime that another package has already loaded into
the process is used as it is.
"""

from __future__ import annotations

import ctypes
import math
import operator
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fp8lab.errors import Error, RuntimeFailure

NAME = "libfp8lab.so"
CUDA_NAME = "libfp8lab_cuda.so"
"""The library of the wheel fp8lab-cuda, which has everything that the other one has."""
VARIABLE = "FP8LAB_LIBRARY"
INTERFACE_VERSION = 2
"""FP8LAB_INTERFACE_VERSION of the header that this module is written for."""

CPU, CUDA = 1, 2
"""Devices of an array."""

_WAIT_POLICY = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "5000", "KMP_BLOCKTIME": "0"}


class Array(ctypes.Structure):
    """fp8lab_array. `make_array` and `numpy_array` make it with everything that it points to."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
    ]


class Value(ctypes.Structure):
    """fp8lab_value, made by `make_keys`."""

    _fields_ = [
        ("text", ctypes.c_char_p),
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("kind", ctypes.c_int32),
    ]

    def read(self) -> str | int | float:
        """Returns the member that `kind` names."""
        if self.kind == _TEXT:
            return str(self.text.decode())
        return float(self.real) if self.kind == _REAL else int(self.integer)


class Key(ctypes.Structure):
    """fp8lab_key, made by `make_keys`."""

    _fields_ = [("name", ctypes.c_char_p), ("value", Value)]


class Quantized(ctypes.Structure):
    """fp8lab_quantized."""

    _fields_ = [
        ("rows", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("scale_rows", ctypes.c_int64),
        ("scale_cols", ctypes.c_int64),
        ("is_codes", ctypes.c_int32),
    ]


class Operand(ctypes.Structure):
    """fp8lab_operand."""

    _fields_ = [
        ("values", ctypes.POINTER(Array)),
        ("scales", ctypes.POINTER(Array)),
        ("quantizer", ctypes.c_void_p),
    ]


class GemmArguments(ctypes.Structure):
    """fp8lab_gemm_arguments."""

    _fields_ = [
        ("a", Operand),
        ("b", Operand),
        ("bias", ctypes.POINTER(Array)),
        ("addend", ctypes.POINTER(Array)),
        ("seed", ctypes.c_uint64),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
        ("d_scale", ctypes.c_float),
    ]


class Columns(ctypes.Structure):
    """fp8lab_columns."""

    _fields_ = [
        ("names", ctypes.POINTER(ctypes.c_char_p)),
        ("arrays", ctypes.POINTER(Array)),
        ("count", ctypes.c_size_t),
    ]


class Generation(ctypes.Structure):
    """fp8lab_generation."""

    _fields_ = [
        ("sampling", ctypes.POINTER(Key)),
        ("sampling_keys", ctypes.c_size_t),
        ("max_new_tokens", ctypes.c_int64),
        ("together", ctypes.c_int64),
        ("sample", ctypes.c_uint32),
        ("end", ctypes.c_int32),
    ]


class Module(ctypes.Structure):
    """fp8lab_module."""

    _fields_ = [("name", ctypes.c_char_p), ("is_head", ctypes.c_int32)]


class LinearDescription(ctypes.Structure):
    """fp8lab_linear_description."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("activation", ctypes.c_char_p),
        ("weight", ctypes.c_char_p),
        ("in", ctypes.c_int64),
        ("out", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("index", ctypes.c_uint32),
        ("numerics", ctypes.c_int32),
        ("has_backward", ctypes.c_int32),
    ]


class Moment(ctypes.Structure):
    """fp8lab_moment."""

    _fields_ = [
        ("seed", ctypes.c_uint64),
        ("step", ctypes.c_uint32),
        ("micro_batch", ctypes.c_uint32),
        ("is_measured", ctypes.c_int32),
        ("is_training", ctypes.c_int32),
    ]


class LinearPass(ctypes.Structure):
    """fp8lab_linear_pass."""

    _fields_ = [
        ("moment", Moment),
        ("rows", ctypes.c_int64),
        ("workspace", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("w", ctypes.c_void_p),
    ]


class RunDescription(ctypes.Structure):
    """fp8lab_run_description."""

    _fields_ = [
        ("path", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("stage", ctypes.c_char_p),
        ("config", ctypes.c_char_p),
        ("device", ctypes.c_char_p),
        ("seed", ctypes.c_uint64),
        ("steps", ctypes.c_int64),
        ("parameters", ctypes.c_int64),
    ]


class RunStep(ctypes.Structure):
    """fp8lab_run_step."""

    _fields_ = [
        ("step", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("loss", ctypes.c_double),
        ("gradient_norm", ctypes.c_double),
        ("learning_rate", ctypes.c_double),
        ("seconds", ctypes.c_double),
    ]


class RunDocument(ctypes.Structure):
    """fp8lab_run_document."""

    _fields_ = [("tokens", ctypes.c_int64), ("nats", ctypes.c_double)]


class Status(ctypes.c_int32):
    """fp8lab_status: a type of its own, unlike other results that are int32."""


_TEXT, _INTEGER, _REAL = 1, 2, 3
"""Kinds of a value."""

_status = Status
_text = ctypes.c_char_p
_handle = ctypes.c_void_p
_size = ctypes.c_size_t
_seed = ctypes.c_uint64
_int32 = ctypes.c_int32
_int64 = ctypes.c_int64
_double = ctypes.c_double


def _to(kind: Any) -> Any:
    return ctypes.POINTER(kind)


_array = _to(Array)
_floats = _to(ctypes.c_float)
_memory = ctypes.c_void_p

FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "interface_version": (ctypes.c_uint32, ()),
    "version": (_text, ()),
    "last_error": (_text, ()),
    "format_bits": (_status, (_text, _to(_int32))),
    "encode": (_status, (_array, _text, _text, _text, _seed, _array)),
    "decode": (_status, (_array, _text, _array)),
    "backend_new": (_status, (_text, _int32, _to(_handle))),
    "backend_free": (None, (_handle,)),
    "quantizer_new": (_status, (_text, _to(_handle))),
    "quantizer_from_keys": (_status, (_to(Key), _size, _to(_handle))),
    "quantizer_free": (None, (_handle,)),
    "quantizer_label": (_status, (_handle, _to(_text))),
    "quantizer_equal": (_int32, (_handle, _handle)),
    "quantizer_key": (None, (_size, _to(_text), _to(_text))),
    "quantizer_value": (_status, (_handle, _text, _to(Value))),
    "quantized_shape": (_status, (_handle, _array, _int32, _to(Quantized))),
    "quantize": (_status, (_handle, _handle, _array, _int32, _seed, _array, _array, _array)),
    "dequantize": (_status, (_handle, _handle, _array, _array, _array)),
    "statistics": (_size, ()),
    "statistic": (None, (_size, _to(_text), _to(_size), _to(_size))),
    "gemm_new": (_status, (_text, _to(_handle))),
    "gemm_free": (None, (_handle,)),
    "gemm_is_library_call": (_int32, (_handle,)),
    "gemm_result_type": (_text, (_handle,)),
    "gemm_run": (_status, (_handle, _handle, _to(GemmArguments), _array)),
    "model_new": (
        _status,
        (_text, _text, _text, _int32, _to(Key), _size, _text, _seed, _to(_handle)),
    ),
    "model_free": (None, (_handle,)),
    "model_config": (_status, (_handle, _to(_text))),
    "model_device": (_status, (_handle, _to(_text))),
    "model_steps": (_int64, (_handle,)),
    "model_vocabulary": (_int64, (_handle,)),
    "model_tensors": (_size, (_handle,)),
    "model_tensor": (_status, (_handle, _size, _to(_text), _to(_int32), _to(_to(_int64)))),
    "model_weight": (_status, (_handle, _size, _array)),
    "model_is_trained": (_int32, (_handle, _size)),
    "model_gradient": (_status, (_handle, _size, _array)),
    "model_set_weights": (_status, (_handle, _to(_text), _array, _size)),
    "model_logits": (_status, (_handle, _array, _array)),
    "model_token_losses": (_status, (_handle, _array, _array, _array)),
    "model_loss": (_status, (_handle, _array, _array, _to(_double))),
    "model_backward": (_status, (_handle, _array, _array, _to(Columns), _to(_double))),
    "model_step": (
        _status,
        (_handle, _array, _array, _to(Columns), _double, _to(_double), _to(_double)),
    ),
    "model_generate": (
        _status,
        (_handle, _to(_to(_int32)), _to(_size), _size, _to(Generation), _to(_handle)),
    ),
    "completions_free": (None, (_handle,)),
    "completion": (
        _status,
        (_handle, _size, _to(_to(_int32)), _to(_to(_double)), _to(_size), _to(_int32)),
    ),
    "model_save": (_status, (_handle, _text, _text, _text)),
    "device_new": (_status, (_int32, _int32, _int32, _to(_handle))),
    "device_free": (None, (_handle,)),
    "recipe_new": (_status, (_text, _to(_handle))),
    "recipe_free": (None, (_handle,)),
    "recipe_name": (_text, (_handle,)),
    "recipe_text": (_text, (_handle,)),
    "recipe_traits": (None, (_handle, _to(_int32), _to(_int32))),
    "match_modules": (_status, (_to(_text), _size, _to(Module), _size, _to(_int32))),
    "recipe_choose": (_status, (_handle, _to(Module), _size, _to(_int32))),
    "linear_new": (_status, (_handle, _handle, _to(LinearDescription), _memory, _to(_handle))),
    "linear_free": (None, (_handle,)),
    "linear_workspace_bytes": (_int64, (_handle,)),
    "linear_forward": (_status, (_handle, _to(LinearPass), _memory, _memory)),
    "linear_backward": (_status, (_handle, _to(LinearPass), _memory, _memory, _memory, _memory)),
    "linear_end_step": (_status, (_handle, _memory)),
    "linear_state": (None, (_handle, _size, _to(_text), _to(_int64))),
    "linear_read_state": (_status, (_handle, _size, _memory, _floats, _to(_int64))),
    "linear_write_state": (_status, (_handle, _size, _memory, _floats, _int64)),
    "linear_histories": (_size, (_handle,)),
    "linear_read_amaxes": (_status, (_handle, _memory, _floats)),
    "linear_write_amaxes": (_status, (_handle, _memory, _floats)),
    "run_new": (_status, (_to(RunDescription), _handle, _to(_handle), _size, _to(_handle))),
    "run_free": (None, (_handle,)),
    "run_add_step": (_status, (_handle, _to(RunStep))),
    "run_add_statistics": (_status, (_handle, _int64, _to(_handle), _size, _memory)),
    "run_add_evaluation": (
        _status,
        (_handle, _int64, _double, _seed, _to(RunDocument), _size),
    ),
    "run_complete": (_status, (_handle,)),
}
"""Result and argument types of every function of fp8lab.h, without the prefix fp8lab_."""


def find_library() -> Path | None:
    """Returns the library that this package uses; None if there is none."""
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()  # data are looked for beside it
    for name in (CUDA_NAME, NAME):
        beside = Path(__file__).with_name(name)
        if beside.is_file():
            return beside
    root = Path(__file__).resolve().parents[3]
    if not (root / "CMakePresets.json").is_file():
        return None
    built = [(path.stat().st_mtime, path) for path in root.glob(f"build/*/python/fp8lab/{NAME}")]
    return max(built)[1] if built else None


@contextmanager
def _sleeping_threads() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _WAIT_POLICY}
    os.environ.update(_WAIT_POLICY)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _load() -> ctypes.CDLL:
    path = find_library()
    if path is None:
        raise ImportError(
            f"fp8lab needs {NAME}, which is neither in {Path(__file__).parent} nor in a build "
            f"tree: pip install the package, build it, or name the library in {VARIABLE}"
        )
    with _sleeping_threads():
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise ImportError(f"fp8lab cannot load {path}: {error}") from None
    version = library.fp8lab_interface_version()
    if version != INTERFACE_VERSION:
        raise ImportError(
            f"{path} has version {version} of the C interface; accepted: {INTERFACE_VERSION}, that "
            "of a build of the same sources"
        )
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, f"fp8lab_{name}")
        function.restype, function.argtypes = result, arguments
    return library


_LIBRARY = _load()

_EXCEPTIONS = {1: RuntimeFailure, 2: Error, 3: MemoryError, 4: RuntimeError}
"""Exceptions by fp8lab_status."""


def text(words: str) -> bytes:
    """Returns a text as the library takes it. Raises Error for one with a zero byte, which would
    end it."""
    if "\0" in words:
        raise Error(f"{words!r} contains a zero byte; accepted: a text without one")
    return words.encode(errors="surrogateescape")


def call(name: str, *arguments: Any) -> Any:
    """Calls fp8lab_NAME; raises the exception of its status. Texts are passed as str."""
    words = [text(word) if isinstance(word, str) else word for word in arguments]
    function = getattr(_LIBRARY, f"fp8lab_{name}")
    try:
        result = function(*words)
    except ctypes.ArgumentError as error:
        raise TypeError(f"{name}: {error}") from None
    if not isinstance(result, Status):
        return result
    if result.value != 0:
        raise _EXCEPTIONS[result.value](_LIBRARY.fp8lab_last_error().decode(errors="replace"))
    return None


class Handle:
    """Owns a handle, made by fp8lab_MAKER; it is freed with this object."""

    def __init__(self, maker: str, *arguments: Any) -> None:
        self._as_parameter_ = ctypes.c_void_p()  # what ctypes passes for this object
        call(maker, *arguments, ctypes.byref(self._as_parameter_))
        kind = _FREED_AS.get(maker, maker.split("_")[0])
        free = getattr(_LIBRARY, f"fp8lab_{kind}_free")
        weakref.finalize(self, free, self._as_parameter_)

    @property
    def address(self) -> int | None:
        return self._as_parameter_.value


_FREED_AS = {"model_generate": "completions"}


def backend(name: str, threads: int) -> Handle:
    """Returns a new backend."""
    return Handle("backend_new", name, integer(threads, "threads", 31))


def integer(value: Any, name: str, bits: int) -> int:
    """Returns `value` as an int. Raises Error, with the argument's name, for an int of more than
    `bits` bits: 64 for a seed, which is not negative, else 31 or 63 and a sign. Raises TypeError
    for what is no integer."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: {type(value).__name__}; accepted: an integer") from None
    least = 0 if bits == 64 else -(2**bits)
    if least <= number < 2**bits:
        return number
    raise Error(f"{name}: {number}; accepted: an integer from {least} to {2**bits - 1}")


def words(value: Any, name: str, accepted: str = "a text") -> str:
    """Returns `value`. Raises TypeError, with the argument's name, for what is no text."""
    if isinstance(value, str):
        return value
    raise TypeError(f"{name}: {type(value).__name__}; accepted: {accepted}")


def path(value: Any, name: str) -> str:
    """Returns the text of a path. Raises TypeError, with the argument's name, for what is none."""
    if isinstance(value, (str, bytes, os.PathLike)):
        return os.fsdecode(value)
    raise TypeError(f"{name}: {type(value).__name__}; accepted: a text or a path")


def real(value: Any, name: str) -> float:
    """Returns `value` as a float, an integer beyond floats as infinity. Raises TypeError, with the
    argument's name, for what is no number."""
    try:
        if not isinstance(value, (str, bytes, bytearray)):
            return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{name}: {type(value).__name__}; accepted: a number")


def number(value: Any, name: str, least: float, most: float) -> float:
    """Returns `value` as a float. Raises Error, with the argument's name, unless it is from `least`
    to `most`: NaN never is."""
    found = real(value, name)
    if least <= found <= most:
        return found
    raise Error(f"{name}: {found}; accepted: a number from {least:g} to {most:g}")


def make_keys(keys: Mapping[str, Any]) -> Any:
    """Returns an array of Key. The library refuses values that are neither texts nor numbers."""
    made = (Key * len(keys))()
    for key, (name, value) in zip(made, keys.items()):
        key.name = text(name)
        if isinstance(value, str):
            key.value.kind, key.value.text = _TEXT, text(value)
        elif hasattr(value, "__index__") and not isinstance(value, bool):
            key.value.kind, key.value.integer = _INTEGER, integer(value, name, 63)
        elif hasattr(value, "__float__") and not isinstance(value, bool):
            key.value.kind, key.value.real = _REAL, float(value)
    return made


def make_array(
    data: int,
    dtype: str,
    shape: Sequence[int],
    strides: Sequence[int] | None = None,
    device: int = CPU,
    device_index: int = 0,
) -> Array:
    """Returns the descriptor of an array at address `data`, which must outlive it. `strides` are in
    bytes; without them the array is row-major without gaps."""
    extents = ctypes.c_int64 * len(shape)
    steps = None if strides is None else extents(*strides)
    return Array(data, dtype.encode(), extents(*shape), steps, len(shape), device, device_index)


def numpy_array(array: Any, name: str) -> Array:
    """Returns the descriptor of a NumPy array. Raises Error, with the argument's `name`, for other
    objects and for the other byte order."""
    if not isinstance(array, np.ndarray):
        tensor = " (x.numpy() of a tensor)" if hasattr(array, "numpy") else ""
        raise Error(f"{name}: a NumPy array is needed, not {type(array).__name__}{tensor}")
    if not array.dtype.isnative:
        raise Error(f"{name}: {array.dtype.name} of the other byte order; accepted: native")
    return make_array(array.ctypes.data, array.dtype.name, array.shape, array.strides)


def optional_array(array: Any, name: str) -> Array | None:
    """numpy_array, or None, which the library reads as "not given"."""
    return None if array is None else numpy_array(array, name)


def pointer_to(array: Array | None) -> Any:
    """Returns a pointer for a member of a structure, which keeps the array."""
    return None if array is None else ctypes.pointer(array)


VERSION: str = call("version").decode()
