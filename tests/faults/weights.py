"""Numbers that are none, and the smallest and largest that are some, in weights, scales and
matrices of every type. What is no finite number, and a scale that is not above 0, is refused by
name; all others are read as their formats say, by tables that are written down here."""

from __future__ import annotations

import functools
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from program import Result, fault_of, refusal_fault
from runs import SOURCE, Context, Outcome, case_folder, contents

sys.path.append(str(SOURCE / "tests/end_to_end"))
import model_files  # noqa: E402
from model_files import Stored  # noqa: E402

Floats = npt.NDArray[np.float32]

CONFIG: dict[str, Any] = model_files.CONFIG | {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 260,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
BLOCK = 16

# Codes at which reading goes wrong: NaN of several payloads, infinities, the largest and smallest.
SPECIAL: dict[str, tuple[int, ...]] = {
    "F32": (
        0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000,
        0x7F7FFFFF, 0x00000001, 0x807FFFFF, 0x80000000, 0x00800000,
    ),
    "BF16": (0x7FC0, 0x7F81, 0xFFFF, 0x7F80, 0xFF80, 0x7F7F, 0x0001, 0x807F, 0x8000, 0x0080),
    "F16": (0x7E00, 0x7C01, 0xFFFF, 0x7C00, 0xFC00, 0x7BFF, 0x0001, 0x83FF, 0x8000, 0x0400),
    "F8_E4M3": (0x7F, 0xFF, 0x7E, 0xFE, 0x01, 0x87, 0x80, 0x08),
    "F8_E5M2": (0x7C, 0xFC, 0x7D, 0x7F, 0xFE, 0x7B, 0x01, 0x83, 0x80, 0x04),
    "F8_E8M0": (0xFF, 0xFE, 0x00, 0x01, 0xF6, 0x7F),
}  # fmt: skip
SIZE = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}


def narrow_values(exponent_bits: int, mantissa_bits: int, bias: int) -> Floats:
    """Of all codes of an IEEE-like format of 8 bits."""
    values = np.empty(256, np.float64)
    for code in range(256):
        exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
        fraction = (code & ((1 << mantissa_bits) - 1)) / 2.0**mantissa_bits
        magnitude = (
            (1 + fraction) * 2.0 ** (exponent - bias) if exponent else fraction * 2.0 ** (1 - bias)
        )
        if exponent == (1 << exponent_bits) - 1:
            magnitude = np.nan if fraction else np.inf
        values[code] = -magnitude if code & 128 else magnitude
    return values.astype(np.float32)


TABLES: dict[str, Floats] = {
    "F8_E4M3": model_files.E4M3,
    "F8_E5M2": narrow_values(5, 2, 15),
    "F8_E8M0": np.array([2.0 ** (code - 127) for code in range(255)] + [np.nan], np.float32),
}


def values_of(tensor: Stored) -> Floats:
    """What the bytes mean."""
    dtype, shape, data = tensor
    if dtype in TABLES:
        found: Floats = TABLES[dtype][np.frombuffer(data, np.uint8)].reshape(shape)
        return found
    return model_files.decode(tensor)


def codes_of(values: Floats, dtype: str) -> Stored:
    """The nearest codes of narrow types; of E8M0, powers of two, in the logarithm."""
    if dtype not in TABLES:
        return model_files.stored(values, dtype)
    if dtype == "F8_E8M0":
        codes = np.clip(np.round(np.log2(values.astype(np.float64))) + 127, 0, 254)
        return dtype, values.shape, codes.astype(np.uint8).tobytes()
    table = TABLES[dtype]
    finite = np.flatnonzero(np.isfinite(table))
    order = finite[np.argsort(table[finite], kind="stable")]
    place = np.clip(np.searchsorted(table[order], values), 0, len(order) - 1)
    return dtype, values.shape, order[place].astype(np.uint8).tobytes()


@functools.cache
def base_tensors(dtype: str, scale_type: str, tile: str) -> dict[str, Stored]:
    """A model; with a narrow `dtype` its linear weights are codes with scales beside them."""
    if dtype not in TABLES:
        return model_files.random_tensors(CONFIG, dtype)
    tensors: dict[str, Stored] = {}
    for name, tensor in model_files.random_tensors(CONFIG, "F32").items():
        tensors[name] = tensor
        if not name.endswith("_proj.weight"):
            continue
        rows, cols = tensor[1]
        shape = {
            "block": (-(-rows // BLOCK), -(-cols // BLOCK)), "row": (rows, 1), "tensor": (1,)
        }[tile]  # fmt: skip
        scales = np.exp2(np.arange(np.prod(shape)) % 5 - 11.0).astype(np.float32).reshape(shape)
        suffix = "_scale_inv" if tile == "block" else "_scale"
        tensors[name + suffix] = codes_of(scales, scale_type)
        tensors[name] = codes_of(values_of(tensor) * 256, dtype)
    return tensors


def quantization(dtype: str, tile: str) -> dict[str, Any]:
    if dtype not in TABLES:
        return {}
    how: dict[str, Any] = {"quant_method": "fp8"}
    if tile == "block":
        how["weight_block_size"] = [BLOCK, BLOCK]
    return {"quantization_config": how}


def means(tensors: dict[str, Stored]) -> tuple[dict[str, Floats], list[str]]:
    """The weights, each scale * code rounded once, and the tensors that hold no finite number."""
    bad: list[str] = []
    weights: dict[str, Floats] = {}
    with np.errstate(over="ignore", invalid="ignore"):
        for name, tensor in tensors.items():
            values = values_of(tensor)
            is_scale = "_scale" in name
            if not np.isfinite(values).all() or (is_scale and not (values > 0).all()):
                bad.append(name)
            if is_scale:
                continue
            for suffix in ("_scale_inv", "_scale"):
                if name + suffix not in tensors:
                    continue
                scale = values_of(tensors[name + suffix])
                if suffix == "_scale_inv":
                    scale = np.repeat(np.repeat(scale, BLOCK, 0), BLOCK, 1)
                    scale = scale[: values.shape[0], : values.shape[1]]
                values = (values * scale).astype(np.float32)
                if not np.isfinite(values).all():
                    bad.append(name)
            weights[name] = values
    return weights, bad


def disturb(tensors: dict[str, Stored], rng: random.Random) -> str:
    """Puts special codes into one tensor, or two; says which."""
    notes = []
    for _ in range(rng.choice((1, 1, 2))):
        scales = [name for name in tensors if "_scale" in name]
        pool = scales if scales and rng.random() < 0.5 else list(tensors)
        name = rng.choice(pool)
        dtype, shape, data = tensors[name]
        changed = bytearray(data)
        size = SIZE[dtype]
        code = rng.choice(SPECIAL[dtype])
        place = rng.choice((0, len(data) // size - 1, rng.randrange(len(data) // size)))
        changed[place * size : place * size + size] = code.to_bytes(size, "little")
        tensors[name] = (dtype, shape, bytes(changed))
        notes.append(f"{name} {dtype} element {place} = {code:#x}")
    return ", ".join(notes)


@dataclass(frozen=True)
class Way:
    """A command that reads a model folder; `answer` is what has to be the same for equal weights:
    what it prints, of linear weights alone where it reads no others, or writes."""

    words: tuple[str, ...]
    answer: str = "out"


TRAINED = """
[[stages]]
name = "cpt"
kind = "cpt"
steps = 1
batch_sequences = 1
micro_batch_sequences = 1
sequence_length = 16
[stages.data]
kind = "jsonl"
path = "d.jsonl"
"""
JSON = ("--json", "--threads", "1")
EVAL = ("eval", "model", "--sequence-length", "16", *JSON)
WAYS = (
    Way(("export", "model", "out", "--dtype", "f32"), "weights"),
    Way(("export", "model", "out", "--dtype", "f32"), "weights"),
    Way(("quantize", "model", "--recipe", "infir2", "--json", "--threads", "1"), "linear"),
    Way((*EVAL, "--data", "d.jsonl", "--form", "running_text")),
    Way(("generate", "model", "--prompts", "p.jsonl", "--max-new-tokens", "2", *JSON)),
    Way(("train", "--config", "t.toml", "--out", "run", "--threads", "1"), "run"),
    Way(("train", "--config", "t.toml", "--dry-run", "--threads", "1"), "accepted"),
)


def write_model(folder: Path, tensors: dict[str, Stored], config: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "d.jsonl").write_text('{"text": "one two three four"}\n' * 4)
    (folder / "p.jsonl").write_text('{"prompt": [5, 6, 7]}\n')
    start = 'name = "t"\nseed = 3\nrecipe = "infir2"\ninit_from = "model"\n'
    (folder / "t.toml").write_text(start + TRAINED)
    model_files.write_folder(folder / "model", tensors, config)


def answer(folder: Path, way: Way, result: Result) -> object:
    if way.answer == "accepted":
        return result.code
    if way.answer == "weights":
        return read_weights(folder / "out")
    if way.answer == "run":
        return contents(folder / "run/run.h5") | {"ended": str(result.code).encode()}
    return result.out


def read_weights(folder: Path) -> dict[str, bytes]:
    return {name: tensor[2] for name, tensor in model_files.read_folder(folder).items()}


def model_folder(context: Context, rng: random.Random) -> Outcome:
    dtype = rng.choice(("F32", "BF16", "F16", "F8_E4M3", "F8_E4M3", "F8_E4M3", "F8_E5M2"))
    tile = rng.choice(("block", "row", "tensor"))
    scale_type = rng.choice(("F32", "BF16", "F16", "F8_E8M0"))
    tensors = dict(base_tensors(dtype, scale_type, tile))
    config = CONFIG | quantization(dtype, tile)
    changed = disturb(tensors, rng)
    way = rng.choice(WAYS)
    folder = case_folder(context, "weights")
    write_model(folder, tensors, config)
    result = context.program.run(folder, *way.words)
    weights, bad = means(tensors)
    note = f"{dtype} {tile} {scale_type}: {changed}; {result.said()}"
    if fault_of(result):
        return Outcome("crashed", f"{fault_of(result)}; {note}")
    if way.answer == "linear":
        bad = [name for name in bad if "_proj.weight" in name]
    if bad:
        named = [name for name in bad if f"'{name}'" in result.err]
        problem = refusal_fault(result, named[0] if named else bad[0]) if result.code else "taken"
        verdict = "wrong" if result.code == 0 else "crashed" if problem else "refused"
        return Outcome(verdict, f"{problem}; {note}")
    if way.answer == "weights":
        if result.code != 0:
            return Outcome("crashed", f"refuses finite weights; {note}")
        expected = {name: values.astype("<f4").tobytes() for name, values in weights.items()}
        found = read_weights(folder / "out")
        wrong = [name for name in found if found[name] != expected.get(name)]
        return Outcome("wrong" if wrong or found.keys() != expected.keys() else "right", note)
    # The same weights as F32, in a folder without scales.
    plain = {name: model_files.stored(values, "F32") for name, values in weights.items()}
    beside = case_folder(context, "weights-plain")
    write_model(beside, plain, CONFIG)
    again = context.program.run(beside, *way.words)
    if result.code != again.code:
        return Outcome("wrong", f"as F32 {again.said()}; {note}")
    if result.code not in (0, 5):
        return Outcome("refused" if not refusal_fault(result, "", (1, 2)) else "crashed", note)
    same = answer(folder, way, result) == answer(beside, way, again)
    return Outcome("right" if same else "wrong", note)


# --- matrices -------------------------------------------------------------------------------------


def npy_bytes(array: npt.NDArray[Any]) -> bytes:
    order = {"float32": "<f4", "uint16": "<u2", "uint8": "|u1"}[array.dtype.name]
    header = f"{{'descr': '{order}', 'fortran_order': False, 'shape': {array.shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + array.tobytes()


def saturated_codes(values: Floats, dtype: str) -> npt.NDArray[np.uint8]:
    """To nearest, ties to even, infinity and what is too large to the largest finite number; NaN
    becomes the positive code of all ones."""
    table = TABLES[dtype][:128].astype(np.float64)
    top = int(np.flatnonzero(np.isfinite(table))[-1])
    magnitude = np.abs(np.where(np.isnan(values), np.float32(0), values)).astype(np.float64)
    number = np.minimum(magnitude, table[top])
    above = np.clip(np.searchsorted(table[: top + 1], number), 1, top)
    low, high = number - table[above - 1], table[above] - number
    even = np.where(above % 2 == 0, above, above - 1)
    code = np.where(low < high, above - 1, np.where(high < low, above, even))
    code = code | np.where(np.signbit(values), 128, 0)
    return np.where(np.isnan(values), 0x7F, code).astype(np.uint8)


def matrix(context: Context, rng: random.Random) -> Outcome:
    """`quantize` of a matrix with special numbers, cast without a scale: codes by the table."""
    bf16 = rng.random() < 0.5
    generator = np.random.default_rng(rng.randrange(2**32))
    size = rng.choice((1, 5, 32, 77))
    values = (generator.standard_normal((3, size)) * rng.choice((1e-3, 1.0, 200.0, 1e5))).astype(
        np.float32
    )
    bits = values.view(np.uint32)
    for _ in range(rng.randrange(1, 6)):
        kind = "BF16" if bf16 else "F32"
        code = rng.choice(SPECIAL[kind]) << (16 if bf16 else 0)
        bits[rng.randrange(3), rng.randrange(size)] = code
    array: npt.NDArray[Any] = values
    if bf16:
        bits &= np.uint32(0xFFFF0000)
        array = (bits >> 16).astype(np.uint16)
    name, words = rng.choice((("F8_E4M3", "e4m3fn"), ("F8_E5M2", "e5m2")))
    folder = case_folder(context, "matrix")
    folder.mkdir(parents=True)
    (folder / "x.npy").write_bytes(npy_bytes(array))
    run = ("quantize", "x.npy", "--spec", words, "--out", "c.npy", "--dequantized", "d.npy")
    result = context.program.run(folder, *run, "--threads", "1")
    note = f"{array.dtype} {array.shape} to {words}; {result.said()}"
    if result.code != 0 or fault_of(result):
        return Outcome("crashed", f"{fault_of(result)}; {note}")
    codes, back = np.load(folder / "c.npy"), np.load(folder / "d.npy")
    wanted = saturated_codes(values, name)
    if not np.array_equal(codes, wanted):
        place = tuple(int(i) for i in np.argwhere(codes != wanted)[0])
        return Outcome(
            "wrong",
            f"{place}: {values[place]} is {codes[place]:#x}, {wanted[place]:#x} due; {note}",
        )
    due = TABLES[name][wanted]
    same = np.array_equal(np.isnan(back), np.isnan(due)) and np.array_equal(
        np.nan_to_num(back).view(np.uint32), np.nan_to_num(due).view(np.uint32)
    )
    return Outcome("right" if same else "wrong", note)


def weights(context: Context, rng: random.Random) -> Outcome:
    return (model_folder if rng.random() < 0.75 else matrix)(context, rng)
