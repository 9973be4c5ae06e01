#!/usr/bin/env python3
"""Compares `fp8lab gemm` with torch._scaled_mm on a Hopper GPU, bit for bit.

    python tests/gpu/compare_torch.py PROGRAM [--json FILE]

PROGRAM is the fp8lab executable. Modes: one scale a tensor and one a row, with and without fast
accumulation; e4m3 by e4m3 and e4m3 by e5m2; K small enough that the library does not split it
(numerics.md section 6.3). torch computes D^T = B A^T with the column-major library, whose first
operand is therefore B: scales of rows enter in the order (sum * sB) * sA, and so do ours when the
operands are exchanged. Exit status 3 when a bit differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

SHAPES = [
    (128, 128, 128),
    (256, 512, 1024),
    (1024, 1024, 1024),
    (2048, 1536, 4096),
    (4096, 64, 896),
]
FORMATS = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def quantize(x: torch.Tensor, name: str, rows: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and decode scales, one a row or one in all."""
    info = torch.finfo(FORMATS[name])
    amax = x.abs().amax(dim=1, keepdim=True) if rows else x.abs().amax().reshape(1, 1)
    scale = (amax / info.max).float()
    return (x / scale).clamp(info.min, info.max).to(FORMATS[name]), scale


def ours(program: str, folder: Path, backend: str, spec: str, operands: list[str]) -> np.ndarray:
    command = [program, "gemm", "--a", "b.npy", "--b", "a.npy", "--scale-a", "sb.npy"]
    command += ["--scale-b", "sa.npy", "--spec", spec, "--operand-a", operands[1]]
    command += ["--operand-b", operands[0], "--out", "d.npy", "--backend", backend]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return np.ascontiguousarray(np.load(folder / "d.npy").T)


def compare(
    program: str, shape: tuple[int, int, int], rows: bool, fast: bool, format_b: str
) -> dict:
    m, n, k = shape
    generator = torch.Generator(device="cuda").manual_seed(m * 7 + n * 3 + k)
    a = torch.randn(m, k, generator=generator, device="cuda")
    b = torch.randn(n, k, generator=generator, device="cuda")
    (qa, sa), (qb, sb) = quantize(a, "e4m3fn", rows), quantize(b, format_b, rows)
    theirs = (
        torch._scaled_mm(
            qa,
            qb.t(),
            scale_a=sa if rows else sa.reshape(()),
            scale_b=sb.t() if rows else sb.reshape(()),
            out_dtype=torch.bfloat16,
            use_fast_accum=fast,
        )
        .float()
        .cpu()
        .numpy()
    )
    tile = "row" if rows else "tensor"
    spec = f"sm90_wgmma_fp8/{'fast' if fast else 'promote:128'}/bf16"
    result: dict = {"shape": shape, "tile": tile, "fast": fast, "b": format_b}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, tensor in (
            ("a", qa.view(torch.uint8)),
            ("b", qb.view(torch.uint8)),
            ("sa", sa),
            ("sb", sb),
        ):
            np.save(folder / f"{file}.npy", tensor.cpu().numpy())
        for backend in ("cpu", "cuda"):
            d = ours(
                program, folder, backend, spec, [f"e4m3fn/{tile}/fp32", f"{format_b}/{tile}/fp32"]
            )
            result[backend] = int((d.view(np.uint32) != theirs.view(np.uint32)).sum())
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    program = str(Path(arguments.program).resolve())
    results = []
    for shape in SHAPES:
        for rows in (False, True):
            for fast in (False, True):
                for format_b in ("e4m3fn", "e5m2"):
                    try:
                        result = compare(program, shape, rows, fast, format_b)
                    except (RuntimeError, ValueError) as problem:  # torch refuses the combination
                        result = {
                            "shape": shape,
                            "tile": "row" if rows else "tensor",
                            "fast": fast,
                            "b": format_b,
                            "refused": str(problem).splitlines()[0],
                        }
                    results.append(result)
                    print(result, flush=True)
    compared = [r for r in results if "refused" not in r]
    wrong = [r for r in compared if r["cpu"] or r["cuda"]]
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {len(compared)} products, {len(wrong)} with differences"
    )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1))
    return 3 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
