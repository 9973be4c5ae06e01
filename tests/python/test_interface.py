"""The C interface: its header, the symbols of the library and the package's use of both agree.

Run by ctest with PYTHONPATH at the build tree's package and tests/src/interface in
FP8LAB_C_INTERFACE.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

fp8lab = pytest.importorskip("fp8lab", reason="the package fp8lab is not built")
from fp8lab import _library as library  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
HEADER = re.sub(
    r"/\*.*?\*/|^#.*?$", "", (ROOT / "src/interface/fp8lab.h").read_text(), flags=re.S | re.M
)
DECLARATION = re.compile(r"FP8LAB_EXPORT\s+([^;()]*?)\b(fp8lab_\w+)\(([^)]*)\);", re.S)
STRUCTURES = {
    "fp8lab_array": library.Array,
    "fp8lab_value": library.Value,
    "fp8lab_key": library.Key,
    "fp8lab_quantized": library.Quantized,
    "fp8lab_operand": library.Operand,
    "fp8lab_gemm_arguments": library.GemmArguments,
    "fp8lab_columns": library.Columns,
    "fp8lab_generation": library.Generation,
    "fp8lab_module": library.Module,
    "fp8lab_linear_description": library.LinearDescription,
    "fp8lab_moment": library.Moment,
    "fp8lab_linear_pass": library.LinearPass,
    "fp8lab_run_description": library.RunDescription,
    "fp8lab_run_step": library.RunStep,
    "fp8lab_run_document": library.RunDocument,
}
SCALARS = {
    "fp8lab_status": library.Status,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}


def type_of(words: str) -> Any:
    """The ctypes type of a declaration such as "const fp8lab_array* x"."""
    stars = words.count("*")
    name = next(word for word in re.findall(r"\w+", words) if word != "const")
    if name == "char":
        kind, stars = ctypes.c_char_p, stars - 1
    elif name == "void" and stars == 0:
        return None
    elif name in SCALARS:
        kind = SCALARS[name]
    elif name in STRUCTURES:
        kind = STRUCTURES[name]
    else:  # a handle
        kind, stars = ctypes.c_void_p, stars - 1
    for _ in range(stars):
        kind = ctypes.POINTER(kind)
    return kind


def declared() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    found = {}
    for result, name, arguments in DECLARATION.findall(HEADER):
        words = [] if arguments.strip() == "void" else arguments.split(",")
        types = tuple(type_of(word.rsplit(" ", 1)[0]) for word in words)
        found[name.removeprefix("fp8lab_")] = (type_of(result), types)
    return found


def test_the_package_calls_what_the_header_declares() -> None:
    found = declared()
    assert len(found) > 40
    assert found == library.FUNCTIONS


def test_the_library_exports_what_the_header_declares_and_nothing_else() -> None:
    words = ["nm", "-D", "--defined-only", str(library.find_library())]
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")
    symbols = {line.split()[-1].split("@")[0] for line in listed if line}
    assert symbols - {"FP8LAB_1"} == {f"fp8lab_{name}" for name in declared()}


def test_structures_lie_in_memory_as_in_c() -> None:
    program = os.environ.get("FP8LAB_C_INTERFACE")
    if program is None:
        pytest.skip("FP8LAB_C_INTERFACE names no program")
    words = [program, "--layout"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")
    seen = set()
    for line in filter(None, lines):
        name, size, *members = line.split()
        structure = STRUCTURES[name]
        seen.add(name)
        assert ctypes.sizeof(structure) == int(size), name
        ours = [f"{field[0]}:{getattr(structure, field[0]).offset}" for field in structure._fields_]
        assert ours == members, name
    assert seen == STRUCTURES.keys()


def test_a_library_of_another_version_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "other.c"
    source.write_text("unsigned fp8lab_interface_version(void) { return 1000; }\n")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    other = tmp_path / "libfp8lab.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", other, source], check=True)
    environment = {**os.environ, "FP8LAB_LIBRARY": str(other)}
    words = [sys.executable, "-c", "import fp8lab; fp8lab.QuantSpec"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    expected = f"has version 1000 of the C interface; accepted: {library.INTERFACE_VERSION}"
    assert expected in done.stderr
    environment["FP8LAB_LIBRARY"] = str(tmp_path / "none.so")
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert "ImportError: fp8lab cannot load" in done.stderr


X = np.ones((4, 32), np.float32)


def library_call(**factors: Any) -> Any:
    """A product whose factors are written to members of a structure, which hold a float."""
    return fp8lab.gemm(X, X, "cublaslt_h200:tensor/e4m3fn", **factors)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fp8lab.encode(X, seed=-1), "seed: -1; accepted: an integer from 0 to"),
        (lambda: fp8lab.encode(X, seed=2**64), "seed: 18446744073709551616; accepted"),
        (lambda: fp8lab.quantize(X, "e5m2", seed=-1), "seed: -1"),
        (lambda: fp8lab.gemm(X, X, "sm90_bf16", seed=2**64), "seed: 18446744073709551616"),
        (lambda: fp8lab.quantize(X, "e5m2", threads=2**40), "threads: 1099511627776; accepted"),
        (lambda: library_call(alpha=np.nan), "alpha: nan; accepted: a number from -3.40282e+38 to"),
        (lambda: library_call(alpha=10**400), "alpha: inf; accepted: a number from -3.40282e+38"),
        (lambda: library_call(beta=-np.inf, c=X), "beta: -inf; accepted: a number from"),
        (lambda: library_call(d_scale=1e39), "d_scale: 1e+39; accepted: a number from"),
        (lambda: fp8lab.QuantSpec("e4m3fn\0/row"), "contains a zero byte"),
        (lambda: fp8lab.QuantSpec(format="e4m3fn", **{"ti\0le": "row"}), "contains a zero byte"),
        (lambda: fp8lab.QuantSpec(format="e4m3fn", tile=True), "'tile' is neither a word nor"),
        (
            lambda: fp8lab.QuantSpec(format="e4m3fn", margin=2**70),
            "margin: 1180591620717411303424",
        ),
        (lambda: fp8lab.gemm(X, X, "sm90_bf16", operand_a=fp8lab.QuantSpec("bf16"), scale_a=X), ""),
        (lambda: fp8lab.quantize(X[0, 0, ...], "e5m2"), "x: shape ()"),
    ],
)
def test_what_ctypes_would_cut_is_refused(call: Any, message: str) -> None:
    with pytest.raises(fp8lab.Error) as caught:
        call()
    assert message in str(caught.value) and "\n" not in str(caught.value)


CODES = np.ones((16, 16), np.uint8)
ONE = np.ones((1, 1), np.float32)


@pytest.mark.parametrize("value", [None, 8, 1.5, b"e5m2", ["e5m2"], X], ids=lambda v: str(v)[:6])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("spec", lambda value: fp8lab.quantize(X, value)),
        ("spec", lambda value: fp8lab.dequantize(CODES, ONE, value)),
        ("spec", lambda value: fp8lab.gemm(X, X, value)),
        ("operand_a", lambda value: fp8lab.gemm(X, X, "sm90_wgmma_fp8", operand_a=value)),
        ("operand_b", lambda value: fp8lab.gemm(X, X, "sm90_wgmma_fp8", operand_b=value)),
        ("format", lambda value: fp8lab.encode(X, value)),
        ("rounding", lambda value: fp8lab.encode(X, rounding=value)),
        ("overflow", lambda value: fp8lab.encode(X, overflow=value)),
        ("format", lambda value: fp8lab.decode(CODES, value)),
        ("QuantSpec", lambda value: fp8lab.QuantSpec(value)),
        ("format of mat_a", lambda value: scaled_mm(format_a=value)),
        ("backend", lambda value: fp8lab.Model("tiny", backend=value)),
        ("kind", lambda value: fp8lab.Model("tiny", kind=value)),
        ("update_scale", lambda value: fp8lab.Model("tiny", kind="muon", update_scale=value)),
        ("name", lambda value: fp8lab.read_statistic("none", value)),
    ],
)
def test_words_of_another_type_are_type_errors(name: str, call: Any, value: Any) -> None:
    if value is None and name in ("operand_a", "operand_b", "format of mat_a"):
        return
    with pytest.raises(TypeError) as caught:
        call(value)
    assert str(caught.value).startswith(name) and "\n" not in str(caught.value)


def scaled_mm(**formats: Any) -> Any:
    return fp8lab.scaled_mm(CODES, CODES, ONE, ONE, **{"format_b": "e4m3fn", **formats})


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("QuantSpec", lambda: fp8lab.QuantSpec("e5m2", format="e5m2")),
        ("seed", lambda: fp8lab.encode(X, seed=1.5)),
        ("threads", lambda: fp8lab.quantize(X, "e5m2", threads=None)),
        ("alpha", lambda: library_call(alpha="1")),
        ("d_scale", lambda: library_call(d_scale=None)),
        ("beta1", lambda: fp8lab.Model("tiny", beta1="0.9")),
        ("momentum", lambda: fp8lab.Model("tiny", kind="muon", momentum=None)),
        ("source", lambda: fp8lab.Model(None)),
        ("recipe", lambda: fp8lab.Model("tiny", recipe=None)),
        ("path", lambda: fp8lab.read_run(None)),
        ("path", lambda: fp8lab.read_samples(8)),
    ],
)
def test_arguments_of_another_type_are_type_errors(name: str, call: Any) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value).startswith(name) and "\n" not in str(caught.value)


def test_quantizers_are_values() -> None:
    spec = fp8lab.QuantSpec("e4m3fn/1x128/pow2")
    assert spec != "e4m3fn/1x128/pow2" and spec != fp8lab.QuantSpec("e4m3fn/1x128")
    assert copy.copy(spec) == spec
    names = {name for name, value in vars(fp8lab.QuantSpec).items() if isinstance(value, property)}
    assert {"format", "tile", "scale_format", "amax_epsilon", "transform", "label"} <= names
    assert "weight_source" not in names
    assert all(getattr(fp8lab.QuantSpec, name).__doc__ for name in names)
    with pytest.raises(AttributeError):
        spec.format = "e5m2"
    with pytest.raises(ValueError, match="pickled"):
        copy.deepcopy(spec)


@pytest.mark.parametrize("recipe", ["fa3_fp8", "fp8_attention", "coat_activations_1x16"])
def test_linear_layers_refuse_recipes_of_more_than_their_products(recipe: str) -> None:
    handle = library.Handle("recipe_new", library.text(recipe))
    module, numerics = library.Module(b"layers.0.mlp.up", 0), ctypes.c_int32()
    choose = (handle, ctypes.byref(module), 1, ctypes.byref(numerics))
    with pytest.raises(fp8lab.Error, match=r"recipe .*; accepted: .* without \[attention\]"):
        library.call("recipe_choose", *choose)
    description = library.LinearDescription()
    with pytest.raises(fp8lab.Error, match="which linear layers do not"):
        library.Handle("linear_new", None, handle, ctypes.byref(description), None)
    handle = library.Handle("recipe_new", library.text("te_delayed"))
    library.call("recipe_choose", handle, *choose[1:])


def test_handles_are_freed() -> None:
    freed: list[int] = []
    kept = library._LIBRARY.fp8lab_quantizer_free
    real = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda address: freed.append(address))
    try:
        library._LIBRARY.fp8lab_quantizer_free = real
        spec = fp8lab.QuantSpec("e5m2")
    finally:
        library._LIBRARY.fp8lab_quantizer_free = kept
    address = spec._handle.address
    del spec
    gc.collect()
    assert freed == [address]
    kept(address)


def test_messages_belong_to_their_thread() -> None:
    messages: dict[str, str] = {}

    def fail(name: str) -> None:
        for _ in range(200):
            try:
                fp8lab.QuantSpec(f"e4m3fn/{name}")
            except fp8lab.Error as error:
                if f"'{name}'" not in str(error):
                    messages[name] = str(error)

    threads = [threading.Thread(target=fail, args=(f"word{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert messages == {}


def test_an_interrupt_ends_the_program_after_the_call() -> None:
    code = (
        "import fp8lab, numpy as np; x = np.ones((256, 2048), np.float32)\n"
        "fp8lab.gemm(x[:4], x[:4], 'infir2:fprop'); print('ready', flush=True)\n"
        "while True: fp8lab.gemm(x, x, 'infir2:fprop', threads=1)"
    )
    words = [sys.executable, "-c", code]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        _, error = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in error
