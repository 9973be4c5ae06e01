"""Writes the folder: under a temporary name, renamed when it is complete."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp8lab.errors import Error
from fp8lab.gguf.families import Weight, family_of, read_config, weights_of
from fp8lab.gguf.source import Floats, Source
from fp8lab.gguf.tokenizer import json_bytes, read_tokenizer

DTYPES = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}


class Summary(NamedTuple):
    """Contents of the written folder."""

    model_type: str
    tensors: int
    parameters: int
    types: dict[str, int]
    """Number of tensors of the GGUF file by type."""


def bfloat16_bits(values: Floats) -> NDArray[np.uint16]:
    """Rounds finite values to nearest bfloat16, ties to even; overflow gives infinity."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype("<u2")


def _pieces(source: Source, weight: Weight) -> Iterator[Floats]:
    tensor = source.tensors[weight.origin]
    if weight.transposed:
        yield tensor.whole().T
    else:
        yield from tensor.rows(weight.order)


def _encoded(values: Floats, dtype: str, where: str) -> bytes:
    if dtype == "float32":
        return np.ascontiguousarray(values, "<f4").tobytes()
    bits = bfloat16_bits(values)
    if ((bits & 0x7F80) == 0x7F80).any():
        raise Error(f"{where}: holds values beyond bfloat16; accepted: --dtype float32")
    return bits.tobytes()


def _write_weights(path: Path, source: Source, weights: list[Weight], dtype: str) -> None:
    """Writes a safetensors file. Holds at most one tensor as floats, or a part of a large one."""
    name, width = DTYPES[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for weight in weights:
        begin, end = end, end + width * int(np.prod(weight.shape))
        header[weight.name] = {
            "dtype": name,
            "shape": list(weight.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for weight in weights:
            where = f"{source.path}: {weight.origin}"
            for values in _pieces(source, weight):
                file.write(_encoded(values, dtype, where))
        if file.tell() != 8 + len(text) + end:
            raise Error(f"{source.path}: its tensors are not as long as their shapes say")
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Creates a folder next to `out`; renames it to `out` on success, removes it on an error or
    SIGTERM."""
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise Error(f"{out}: exists; accepted: a new folder")
    absolute = out.absolute()
    absolute.parent.mkdir(parents=True, exist_ok=True)
    temporary = absolute.with_name(f".{absolute.name}.tmp-{os.getpid()}")

    def terminate(number: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        temporary.mkdir()
        yield temporary
        temporary.replace(absolute)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        signal.signal(signal.SIGTERM, before)


def convert(path: Path, out: Path, dtype: str = "bfloat16") -> Summary:
    """Writes the model of the GGUF file `path` to the new folder `out`: config.json,
    model.safetensors, tokenizer.json, tokenizer_config.json, generation_config.json. Weights are
    rounded to `dtype`, "bfloat16" (to nearest even) or "float32" (no rounding). Raises Error for
    bad input, and then creates no `out`."""
    source = Source(path)
    family = family_of(source)
    config = read_config(source, family)
    weights = weights_of(source, family, config)
    context = config.get("max_position_embeddings") or config["n_positions"]
    tokenizer = read_tokenizer(source, context)
    if tokenizer.size > config["vocab_size"]:
        raise Error(
            f"{path}: the tokenizer has the id {tokenizer.size - 1}, but token_embd.weight has "
            f"{config['vocab_size']} rows"
        )
    config.update(tokenizer.ids, torch_dtype=dtype, use_cache=True)
    with _new_folder(out) as folder:
        _write_weights(folder / "model.safetensors", source, weights, dtype)
        (folder / "config.json").write_bytes(json_bytes(config))
        (folder / "tokenizer.json").write_text(tokenizer.json_text, encoding="utf-8")
        (folder / "tokenizer_config.json").write_bytes(json_bytes(tokenizer.config))
        (folder / "generation_config.json").write_bytes(json_bytes(tokenizer.ids))
    types: dict[str, int] = {}
    for tensor in source.tensors.values():
        types[tensor.type] = types.get(tensor.type, 0) + 1
    parameters = sum(int(np.prod(weight.shape)) for weight in weights)
    return Summary(family.model_type, len(weights), parameters, types)
