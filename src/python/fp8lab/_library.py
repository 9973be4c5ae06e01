"""Loads libfp8lab.so, the C interface of fp8lab (src/interface/fp8lab.h), and calls it by ctypes.

The library lies beside this file in an installed package and in a build tree's folder `python`. For
a package in a source tree it is the newest of `build/*/python/fp8lab/libfp8lab.so`. The environment
variable FP8LAB_LIBRARY names another one. ctypes releases the GIL during every call.

OpenMP threads sleep while they wait: a spinning thread can take the processor from the thread that
it waits for if the machine also runs other work. An OpenMP runtime reads its wait policy from the
environment once, when it is loaded. So this module sets the policy, loads the library and with it
the runtime, and restores the environment. A runtime that another package has already loaded into
the process is used as it is.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp8lab.errors import Error, RuntimeFailure

NAME = "libfp8lab.so"
VARIABLE = "FP8LAB_LIBRARY"
INTERFACE_VERSION = 1
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


_STATUS = ctypes.c_int32
_TEXT = ctypes.c_char_p
_ARRAY = ctypes.POINTER(Array)
_INT32 = ctypes.POINTER(ctypes.c_int32)

FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "interface_version": (ctypes.c_uint32, ()),
    "version": (_TEXT, ()),
    "last_error": (_TEXT, ()),
    "format_bits": (_STATUS, (_TEXT, _INT32)),
    "encode": (_STATUS, (_ARRAY, _TEXT, _TEXT, _TEXT, ctypes.c_uint64, _ARRAY)),
    "decode": (_STATUS, (_ARRAY, _TEXT, _ARRAY)),
}
"""Result and argument types of every function of fp8lab.h, without the prefix fp8lab_."""


def find_library() -> Path | None:
    """Returns the library that this package uses; None if there is none."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    beside = Path(__file__).with_name(NAME)
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
            f"fp8lab needs {NAME}, which is neither in {Path(__file__).parent} nor in a build tree: "
            f"pip install the package, build it, or name the library in {VARIABLE}"
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


def call(name: str, *arguments: Any) -> Any:
    """Calls fp8lab_NAME; raises the exception of its status. Texts are passed as str."""
    words = [word.encode() if isinstance(word, str) else word for word in arguments]
    function = getattr(_LIBRARY, f"fp8lab_{name}")
    result = function(*words)
    if function.restype is not _STATUS or result == 0:
        return result
    raise _EXCEPTIONS[result](_LIBRARY.fp8lab_last_error().decode(errors="replace"))


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
        raise Error(f"{name}: a NumPy array is needed, not {type(array).__name__}")
    if not array.dtype.isnative:
        raise Error(f"{name}: {array.dtype.name} of the other byte order; accepted: native")
    return make_array(array.ctypes.data, array.dtype.name, array.shape, array.strides)


def optional_array(array: NDArray[Any] | None, name: str) -> Array | None:
    """numpy_array, or None, which the library reads as "not given"."""
    return None if array is None else numpy_array(array, name)


VERSION: str = call("version").decode()
