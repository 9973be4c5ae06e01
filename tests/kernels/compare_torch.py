#!/usr/bin/env python3
"""Compares `fp8lab gemm` with PyTorch's scaled products on a Hopper GPU, bit for bit.

    python tests/kernels/compare_torch.py PROGRAM [--json FILE]

PROGRAM is the fp8lab executable; it multiplies with the emulator, with our kernels and with our
call of cuBLASLt. Modes of torch: one scale a tensor and one a row (torch._scaled_mm, with and
without fast accumulation; e4m3 by e4m3 and e4m3 by e5m2), and blocks of 1x128 and 128x128
(torch.nn.functional.scaled_mm). K is small enough that the library does not split it.

torch computes D^T = B A^T with the column-major library, whose first operand is therefore B: scales
of rows enter in the order (sum * sB) * sA, those of two operands of 1x128 in the order
(sum * sA) * sB + previous sums, and so do ours when the operands are exchanged. Exit status 3 when
a bit differs or a mode was refused for every shape.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

SHAPES = [
    (128, 128, 128),
    (256, 512, 1024),
    (1024, 1024, 1024),
    (2048, 1536, 4096),
    (4096, 64, 896),
]
FORMATS = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
TILES = {"tensor": (0, 0), "row": (1, 0), "1x128": (1, 128), "128x128": (128, 128)}
IMPLEMENTATIONS = {
    "cpu": ["--backend", "cpu"],
    "cuda": ["--backend", "cuda"],
    "cublaslt": ["--backend", "cuda", "--implementation", "cublaslt"],
}


@dataclass(frozen=True)
class Mode:
    """How A (M, K) and B (N, K) are scaled and multiplied."""

    a: str
    b: str
    fast: bool = False
    format_b: str = "e4m3fn"


MODES = [
    Mode(tile, tile, fast, format_b)
    for tile in ("tensor", "row")
    for fast in (False, True)
    for format_b in FORMATS
] + [
    Mode(a, b, format_b=format_b)
    for a, b in (("1x128", "1x128"), ("1x128", "128x128"), ("128x128", "1x128"))
    for format_b in FORMATS
]


def quantize(x: torch.Tensor, name: str, tile: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes, and decode scales with one row for each row of tiles."""
    info = torch.finfo(FORMATS[name])
    rows, k = x.shape
    height, width = TILES[tile][0] or rows, TILES[tile][1] or k
    high, wide = -(-rows // height), -(-k // width)
    padded = F.pad(x, (0, wide * width - k, 0, high * height - rows))
    scale = padded.abs().reshape(high, height, wide, width).amax(dim=(1, 3)) / info.max
    factors = scale.repeat_interleave(height, 0).repeat_interleave(width, 1)[:rows, :k]
    return (x / factors).clamp(info.min, info.max).to(FORMATS[name]), scale


def library_scales(scale: torch.Tensor, tile: str) -> torch.Tensor:
    """Scales of blocks as torch wants them: 1x128 with the rows side by side, 128x128 transposed
    with the blocks along K side by side and filled up to a multiple of four."""
    if tile == "1x128":
        return scale.t().contiguous().t()
    return F.pad(scale, (0, -scale.shape[1] % 4)).t()


def theirs(
    mode: Mode, qa: torch.Tensor, sa: torch.Tensor, qb: torch.Tensor, sb: torch.Tensor
) -> torch.Tensor:
    """torch's product; RuntimeError or ValueError where it refuses."""
    if mode.a in ("tensor", "row"):
        return torch._scaled_mm(
            qa,
            qb.t(),
            scale_a=sa if mode.a == "row" else sa.reshape(()),
            scale_b=sb.t() if mode.b == "row" else sb.reshape(()),
            out_dtype=torch.bfloat16,
            use_fast_accum=mode.fast,
        )
    recipes = {"1x128": F.ScalingType.BlockWise1x128, "128x128": F.ScalingType.BlockWise128x128}
    return F.scaled_mm(
        qa,
        qb.t(),
        library_scales(sa, mode.a),
        recipes[mode.a],
        library_scales(sb, mode.b),
        recipes[mode.b],
        output_dtype=torch.bfloat16,
        use_fast_accum=mode.fast,
    )


def ours(program: str, folder: Path, mode: Mode, implementation: str) -> np.ndarray:
    """fp8lab's product; RuntimeError with its message where it fails."""
    spec = f"sm90_wgmma_fp8/{'fast' if mode.fast else 'promote:128'}/bf16"
    command = [program, "gemm", "--a", "b.npy", "--b", "a.npy", "--scale-a", "sb.npy"]
    command += ["--scale-b", "sa.npy", "--spec", spec, "--out", "d.npy"]
    command += ["--operand-a", f"{mode.format_b}/{mode.b}/fp32"]
    command += ["--operand-b", f"e4m3fn/{mode.a}/fp32", *IMPLEMENTATIONS[implementation]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{implementation}: {done.stderr.strip()}")
    return np.ascontiguousarray(np.load(folder / "d.npy").T)


def compare(program: str, shape: tuple[int, int, int], mode: Mode) -> dict:
    m, n, k = shape
    generator = torch.Generator(device="cuda").manual_seed(m * 7 + n * 3 + k)
    # Every block of 128 of K and every row has a size of its own: a wrong scale cannot pass.
    a = torch.randn(m, k, generator=generator, device="cuda")
    b = torch.randn(n, k, generator=generator, device="cuda")
    for x in (a, b):
        x *= torch.exp2(torch.randint(-6, 7, (len(x), 1), generator=generator, device="cuda"))
        sizes = torch.randint(-6, 7, (-(-k // 128),), generator=generator, device="cuda")
        x *= torch.exp2(sizes.repeat_interleave(128)[:k])
    (qa, sa), (qb, sb) = quantize(a, "e4m3fn", mode.a), quantize(b, mode.format_b, mode.b)
    result: dict = {"shape": shape, **asdict(mode)}
    try:
        expected = theirs(mode, qa, sa, qb, sb).float().cpu().numpy()
    except (RuntimeError, ValueError) as problem:  # torch refuses the combination
        result["refused"] = str(problem).splitlines()[0]
        return result
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, tensor in (
            ("a", qa.view(torch.uint8)),
            ("b", qb.view(torch.uint8)),
            ("sa", sa),
            ("sb", sb),
        ):
            np.save(folder / f"{file}.npy", tensor.cpu().numpy())
        for implementation in IMPLEMENTATIONS:
            try:
                d = ours(program, folder, mode, implementation)
            except RuntimeError as problem:
                result[implementation] = str(problem)
            else:
                result[implementation] = int((d.view(np.uint32) != expected.view(np.uint32)).sum())
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    program = str(Path(arguments.program).resolve())
    results = []
    with ThreadPoolExecutor(8) as pool:  # most of the time goes into starting programs
        for result in pool.map(
            lambda job: compare(program, *job), [(s, m) for m in MODES for s in SHAPES]
        ):
            results.append(result)
            print(result, flush=True)
    compared = [r for r in results if "refused" not in r]
    wrong = [r for r in compared if any(r[name] for name in IMPLEMENTATIONS)]
    tiles_compared = {(r["a"], r["b"]) for r in compared}
    missing = {(mode.a, mode.b) for mode in MODES} - tiles_compared
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {len(compared)} products, "
        f"{len(wrong)} with differences, {len(results) - len(compared)} refused by torch"
    )
    for a, b in sorted(missing):
        print(f"torch refused every product of {a} by {b}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(results, indent=1))
    return 3 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
