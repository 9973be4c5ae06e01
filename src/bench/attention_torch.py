"""Attention forward of cuDNN, as PyTorch calls it, beside `fp8lab bench attention`.

    python src/bench/attention_torch.py --json cudnn.json

The same shapes: causal, BF16, one document a sequence, grouped key-value heads. The call is
replayed from a CUDA graph, so that the time is the GPU's; median of --repeats.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = (  # sequences, length, heads, key-value heads, columns of a head
    (8, 2048, 12, 2, 128),
    (1, 16384, 12, 2, 128),
    (8, 2048, 28, 4, 128),
    (16, 2048, 14, 2, 64),
    (1, 16384, 16, 16, 128),
)


def milliseconds(shape: tuple[int, int, int, int, int], repeats: int) -> float:
    """Of one forward pass."""
    batch, length, heads, kv_heads, columns = shape

    def random(count: int) -> torch.Tensor:
        return torch.randn(batch, count, length, columns, device="cuda", dtype=torch.bfloat16)

    q, k, v = random(heads), random(kv_heads), random(kv_heads)
    times = []
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for _ in range(5):
            F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        for _ in range(repeats):
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    arguments = parser.parse_args()
    rows = []
    for shape in SHAPES:
        time = milliseconds(shape, arguments.repeats)
        batch, length, heads, kv_heads, columns = shape
        print(f"{batch} x {length}, {heads}/{kv_heads}, {columns}: {time:.4f} ms")
        rows.append({"shape": shape, "milliseconds": time})
    if arguments.json:
        arguments.json.write_text(json.dumps({"torch": torch.__version__, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
