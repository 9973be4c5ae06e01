"""Codes of another format, codes with more bits than theirs, and scales that no format holds, given
to `gemm` and to the Python package: the product by a table, or a refusal."""

from __future__ import annotations

import functools
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from program import Died, fault_of, in_child, refusal_fault
from runs import Context, Outcome, case_folder
from weights import npy_bytes

Array = npt.NDArray[Any]

# Exponent and mantissa bits, bias, and which codes are no numbers (emulation/specification.md).
FORMATS: dict[str, tuple[int, int, int, str]] = {
    "e4m3fn": (4, 3, 7, "nan_only"),
    "e5m2": (5, 2, 15, "ieee"),
    "e4m3fnuz": (4, 3, 8, "unsigned_zero"),
    "e5m2fnuz": (5, 2, 16, "unsigned_zero"),
    "e3m2": (3, 2, 3, "none"),
    "e2m3": (2, 3, 1, "none"),
    "e2m1": (2, 1, 1, "none"),
}
# The types of ml_dtypes that hold them.
TYPES = {
    "e4m3fn": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e4m3fnuz": "float8_e4m3fnuz",
    "e5m2fnuz": "float8_e5m2fnuz",
    "e3m2": "float6_e3m2fn",
    "e2m3": "float6_e2m3fn",
    "e2m1": "float4_e2m1fn",
}
SCALES = ("fp32", "pow2", "e8m0", "bf16", "e4m3", "static")
STATIC = 0.5


@functools.cache
def table(name: str) -> npt.NDArray[np.float64]:
    """The value of each code."""
    exponent_bits, mantissa_bits, bias, specials = FORMATS[name]
    bits = 1 + exponent_bits + mantissa_bits
    values = np.empty(1 << bits)
    for code in range(1 << bits):
        exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
        mantissa = code & ((1 << mantissa_bits) - 1)
        fraction = mantissa / 2.0**mantissa_bits
        value = (1 + fraction) * 2.0 ** (exponent - bias)
        if exponent == 0:
            value = fraction * 2.0 ** (1 - bias)
        top = exponent == (1 << exponent_bits) - 1
        if specials == "nan_only" and top and mantissa == (1 << mantissa_bits) - 1:
            value = np.nan
        if specials == "ieee" and top:
            value = np.nan if mantissa else np.inf
        sign = code >> (bits - 1)
        if specials == "unsigned_zero" and sign and value == 0:
            value = np.nan
        values[code] = -value if sign else value
    return values


def is_bf16(value: float) -> bool:
    return bool(np.float32(value).view(np.uint32) & 0xFFFF == 0 and np.isfinite(value))


def is_power(value: float) -> bool:
    if not value > 0 or not np.isfinite(value):
        return False
    fraction, exponent = np.frexp(np.float64(value))
    return bool(fraction == 0.5 and -127 <= exponent - 1 <= 127)


def holds(scale_format: str, value: float) -> bool:
    """Whether a scale of the format has the value, from its definition."""
    if scale_format == "fp32":
        return True
    if scale_format == "static":
        return value == STATIC
    if scale_format == "pow2":
        return is_power(value)
    if np.isnan(value):
        return True
    if scale_format == "e8m0":
        return is_power(value)
    if scale_format == "bf16":
        return is_bf16(value)
    return not np.signbit(value) and value in table("e4m3fn")[:127]


def good_scale(scale_format: str, rng: random.Random) -> float:
    if scale_format == "static":
        return STATIC
    if scale_format in ("pow2", "e8m0"):
        return 2.0 ** rng.choice((-127, -126, -30, -3, 0, 1, 7, 100))
    if scale_format == "bf16":
        return rng.choice((0.0, 1.0, -1.5, 0.10009765625, 2.0**-130, 3.0))
    if scale_format == "e4m3":
        return float(rng.choice(table("e4m3fn")[:127]))
    return float(np.float32(rng.choice((0.1, 1.0, 3.7e-5, 12345.678, 1e-40, -2.0, 0.0))))


SCALE_FAULTS = (
    float("nan"), float("inf"), float("-inf"), -1.0, -0.0, 0.0, 0.3, 1e-45, 3.4e38, 449.0, 448.0,
    0.006975, 2.0**-140, 2.0**127, -2.0, 1.0000001,
)  # fmt: skip


def codes_near_zero(name: str) -> npt.NDArray[np.uint8]:
    """Codes of integers from -2 to 2, whose sums of products are exact in every accumulator."""
    values = table(name)
    return np.flatnonzero(np.isin(values, (-2.0, -1.0, 0.0, 1.0, 2.0))).astype(np.uint8)


def operand(rng: random.Random, name: str, rows: int, k: int) -> tuple[Array, str, bool]:
    """Codes, most of them of the format; how they were disturbed; whether to refuse them."""
    known = codes_near_zero(name)
    codes = np.array([[rng.choice(known) for _ in range(k)] for _ in range(rows)], np.uint8)
    bits = 1 + sum(FORMATS[name][:2])
    if rng.random() < 0.35:
        place = rng.randrange(rows), rng.randrange(k)
        if bits < 8:
            codes[place] = rng.choice((1 << bits, 0xFF, 0x80, rng.randrange(1 << bits, 256)))
            return codes, f"code {codes[place]:#x} at {place}", True
        strange = np.flatnonzero(~np.isfinite(table(name)))
        codes[place] = rng.choice(strange)
        return codes, f"code {codes[place]:#x} at {place}", False
    return codes, "", False


def scales_of(
    rng: random.Random, scale_format: str, shape: tuple[int, int]
) -> tuple[Array, str, bool]:
    scales = np.array(
        [[good_scale(scale_format, rng) for _ in range(shape[1])] for _ in range(shape[0])],
        np.float32,
    )
    if rng.random() < 0.5:
        place = rng.randrange(shape[0]), rng.randrange(shape[1])
        scales[place] = rng.choice(SCALE_FAULTS)
        note = f"scale {scales[place]} at {place}"
        return scales, note, not holds(scale_format, float(scales[place]))
    return scales, "", False


def spec_of(name: str, tile: str, scale_format: str) -> str:
    last = f"static:{STATIC}" if scale_format == "static" else scale_format
    return f"{name}/{tile}/{last}"


def expected_product(a: Array, name: str, scales: Array, b: Array) -> Array:
    """scale * (A B^T), rounded once: the sums of small integers are exact."""
    with np.errstate(invalid="ignore", over="ignore"):
        sums = table(name)[a] @ table("e4m3fn")[b].T
        product: Array = scales.astype(np.float32) * sums.astype(np.float32)
    return product.astype(np.float32)


def same_numbers(found: Array, due: Array) -> bool:
    """Zeros may differ in sign."""
    return found.shape == due.shape and bool(
        np.array_equal(np.nan_to_num(found, nan=0.125), np.nan_to_num(due, nan=0.125))
        and np.array_equal(np.isnan(found), np.isnan(due))
    )


Problem = tuple[str, str, Array, Array, Array, str, bool]


def problem_of(rng: random.Random) -> Problem:
    """A product: format, spec of A, A, its scales, B, what is wrong, whether to refuse it."""
    name = rng.choice(("e4m3fn", "e5m2", "e2m1", "e3m2", "e2m3"))
    scale_format = rng.choice(SCALES)
    tile = "tensor" if scale_format == "static" else rng.choice(("tensor", "row", "1x128"))
    rows, columns, k = rng.randint(1, 3), rng.randint(1, 3), rng.choice((1, 32, 128))
    a, note, refused = operand(rng, name, rows, k)
    scales, more, too = scales_of(rng, scale_format, (1 if tile == "tensor" else rows, 1))
    b = operand_without_fault(rng, columns, k)
    spec = spec_of(name, tile, scale_format)
    return name, spec, a, scales, b, f"{spec} {note} {more}", refused or too


def operand_without_fault(rng: random.Random, rows: int, k: int) -> Array:
    known = codes_near_zero("e4m3fn")
    return np.array([[rng.choice(known) for _ in range(k)] for _ in range(rows)], np.uint8)


ACCUMULATOR = "sm90_wgmma_fp8/promote:128/fp32"


def command(context: Context, rng: random.Random) -> Outcome:
    """`fp8lab gemm` with codes and scales from files."""
    name, spec, a, scales, b, note, refused = problem_of(rng)
    folder = case_folder(context, "codes")
    folder.mkdir(parents=True)
    given = scales
    how = rng.random()
    if how < 0.1:
        given, refused, note = scales[:, :0], True, f"no scales; {note}"
    elif how < 0.2:
        given = np.concatenate([scales, scales], axis=1)
        refused, note = True, f"two scales a row; {note}"
    for file, array in (("a", a), ("b", b), ("s", given)):
        (folder / f"{file}.npy").write_bytes(npy_bytes(array))
    words: list[object] = ["gemm", "--a", "a.npy", "--b", "b.npy", "--scale-a", "s.npy"]
    words += ["--spec", ACCUMULATOR, "--operand-a", spec, "--out", "d.npy", "--threads", "1"]
    result = context.program.run(folder, *words)
    note = f"{note}; {result.said()}"
    if fault_of(result):
        return Outcome("crashed", f"{fault_of(result)}; {note}")
    if result.code != 0:
        bad = refusal_fault(result)
        if not refused:
            bad = bad or "refuses what the operand holds"
        return Outcome("crashed" if bad else "refused", f"{bad}; {note}")
    if refused:
        return Outcome("wrong", f"taken; {note}")
    same = same_numbers(np.load(folder / "d.npy"), expected_product(a, name, scales, b))
    return Outcome("right" if same else "wrong", note)


# --- the Python package ---------------------------------------------------------------------------


def package_of(program: Path) -> Path | None:
    """The package with its library in the build tree of a program, where there is one."""
    folder = program.parent.parent / "python"
    return folder if list((folder / "fp8lab").glob("libfp8lab.so")) else None


def typed(codes: Array, name: str, rng: random.Random) -> tuple[Array, str, bool]:
    """The codes as another array of the same bytes; whether they have to be refused."""
    try:
        import ml_dtypes
    except ImportError:
        ml_dtypes = None
    choices: list[tuple[Any, bool]] = [(np.uint8, False)] * 3
    choices += [(np.int8, True), (np.bool_, True)]
    if ml_dtypes is not None:
        choices += [
            (getattr(ml_dtypes, type_name), other != name)
            for other, type_name in TYPES.items()
            if hasattr(ml_dtypes, type_name)
        ]
    chosen, refused = rng.choice(choices)
    return codes.view(chosen), f"as {np.dtype(chosen).name}", refused


Answer = tuple[str, Any]


def call(package: Path, function: str, arguments: tuple[Any, ...], keys: dict[str, Any]) -> Answer:
    """What a function of the package returns, or how it ends."""

    def work() -> Answer:
        # One that the readers of token files have imported has no library beside it.
        for module in [key for key in sys.modules if key.split(".")[0] == "fp8lab"]:
            del sys.modules[module]
        sys.path.insert(0, str(package))
        import fp8lab

        try:
            with np.errstate(all="ignore"):
                return "value", np.asarray(getattr(fp8lab, function)(*arguments, **keys))
        except fp8lab.Error as error:
            return ("refused" if len(str(error).split("\n")) == 1 else "crashed"), str(error)
        except Exception as error:
            return "crashed", f"{type(error).__name__}: {error}"

    try:
        answer: Answer = in_child(work)
        return answer
    except Died as died:
        return "crashed", str(died)


def python(context: Context, rng: random.Random) -> Outcome:
    """decode, dequantize and gemm with arrays of every type."""
    package = package_of(context.program.path)
    assert package is not None
    function = rng.choice(("decode", "dequantize", "gemm"))
    if function == "decode":
        name = rng.choice(list(FORMATS))
        shape = (2, 3)
        limit = table(name).size
        codes = np.array([[rng.randrange(limit) for _ in range(3)] for _ in range(2)], np.uint8)
        high = limit < 256 and rng.random() < 0.4
        if high:
            codes[rng.randrange(shape[0]), rng.randrange(shape[1])] = rng.randrange(limit, 256)
        due = table(name)[np.minimum(codes, limit - 1)].astype(np.float32)
        given, note, wrong_type = typed(codes, name, rng)
        verdict, found = call(package, "decode", (given, name), {})
        note = f"decode {name} {codes.tolist()} {note}"
        refused = wrong_type or high
    else:
        name, spec, a, scales, b, note, refused = problem_of(rng)
        given, more, wrong_type = typed(a, name, rng)
        note, refused = f"{function} {note} {more}", refused or wrong_type
        if function == "gemm":
            due = np.zeros(0) if refused else expected_product(a, name, scales, b)
            keys = {"operand_a": spec, "scale_a": scales, "threads": 1}
            verdict, found = call(package, "gemm", (given, b, ACCUMULATOR), keys)
        else:
            with np.errstate(all="ignore"):
                values = table(name)[np.minimum(a, table(name).size - 1)].astype(np.float32)
                due = (scales * values).astype(np.float32)
            verdict, found = call(package, "dequantize", (given, scales, spec), {"threads": 1})
    if verdict != "value":
        if verdict == "refused" and not refused:
            return Outcome("crashed", f"refuses what the format holds: {found}; {note}")
        return Outcome(verdict, f"{found}; {note}")
    if refused:
        return Outcome("wrong", f"taken as {np.asarray(found).tolist()}; {note}")
    same = same_numbers(np.asarray(found), due)
    return Outcome(
        "right" if same else "wrong", f"{np.asarray(found).tolist()}, {due.tolist()} due; {note}"
    )


def codes(context: Context, rng: random.Random) -> Outcome:
    with_package = package_of(context.program.path) is not None
    return (python if with_package and rng.random() < 0.6 else command)(context, rng)
