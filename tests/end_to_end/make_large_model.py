"""Writes a model of many gigabytes for `fp8lab bench load`: every byte is drawn.

    python3 tests/end_to_end/make_large_model.py FOLDER --gigabytes 3 --dtype BF16 --shards 2
"""

from __future__ import annotations

import argparse
import json
import struct
from pathlib import Path

import numpy as np

HIDDEN, INNER = 2048, 8192
SHAPES = {
    "self_attn.q_proj.weight": (HIDDEN, HIDDEN),
    "self_attn.k_proj.weight": (HIDDEN // 4, HIDDEN),
    "self_attn.v_proj.weight": (HIDDEN // 4, HIDDEN),
    "self_attn.o_proj.weight": (HIDDEN, HIDDEN),
    "mlp.gate_proj.weight": (INNER, HIDDEN),
    "mlp.up_proj.weight": (INNER, HIDDEN),
    "mlp.down_proj.weight": (HIDDEN, INNER),
    "input_layernorm.weight": (HIDDEN,),
}


def weights(generator: np.random.Generator, shape: tuple[int, ...], dtype: str) -> bytes:
    values = generator.standard_normal(shape, dtype=np.float32) * np.float32(0.02)
    bits = values.view(np.uint32)
    return bits.tobytes() if dtype == "F32" else (bits >> 16).astype(np.uint16).tobytes()


def write_shard(path: Path, names: dict[str, tuple[int, ...]], dtype: str, seed: int) -> None:
    width = {"F32": 4, "BF16": 2}[dtype]
    header: dict[str, object] = {}
    place = 0
    for name, shape in names.items():
        end = place + width * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = np.random.default_rng(seed)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in names.values():
            file.write(weights(generator, shape, dtype))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--dtype", choices=["F32", "BF16"], default="BF16")
    parser.add_argument("--shards", type=int, default=2)
    options = parser.parse_args()
    width = {"F32": 4, "BF16": 2}[options.dtype]
    layer = width * sum(int(np.prod(shape)) for shape in SHAPES.values())
    layers = max(options.shards, round(options.gigabytes * 1e9 / layer))
    options.folder.mkdir(parents=True)
    index: dict[str, str] = {}
    for shard in range(options.shards):
        file = f"model-{shard + 1:05}-of-{options.shards:05}.safetensors"
        names = {
            f"model.layers.{i}.{name}": shape
            for i in range(shard, layers, options.shards)
            for name, shape in SHAPES.items()
        }
        write_shard(options.folder / file, names, options.dtype, shard)
        index |= dict.fromkeys(names, file)
    document = {"metadata": {}, "weight_map": index}
    (options.folder / "model.safetensors.index.json").write_text(json.dumps(document))


if __name__ == "__main__":
    main()
