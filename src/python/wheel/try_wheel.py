"""Installs a wheel into bare virtual environments and uses it there.

    try_wheel.py build/dist/WHEEL --python python3.11 python3.13 --with numpy==1.24.4 --with torch

For each interpreter and each set of further packages (`--with`, repeated): seconds from the start
of `pip install` to the first loss, of a model in Python and of a training run of the program; a
digest of codes, products and gradients, which must be the same everywhere; and with torch the
OpenMP runtimes in the process, of which there must be one, for both orders of import.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

USE = """
import hashlib, sys
import numpy as np
import fp8lab
x = np.random.RandomState(0).randn(64, 512).astype(np.float32)
model = fp8lab.Model(sys.argv[1], recipe="infir2", seed=1)
loss, gradients = model.gradients(np.arange(64).reshape(1, 64) % model.config["vocab_size"])
digest = hashlib.sha256()
for spec in ("e4m3fn/1x128/pow2", "e2m1/nv16", "e5m2/row"):
    q = fp8lab.quantize(x, spec)
    digest.update(q.codes.tobytes() + q.scales.tobytes())
for spec in ("infir2:fprop", "sm90_wgmma_fp8/fast/fp32", "sm90_bf16"):
    digest.update(fp8lab.gemm(x, x, spec).tobytes())
for gradient in gradients.values():
    digest.update(gradient.tobytes())
print(fp8lab.__version__, np.__version__, f"{loss:.6f}", digest.hexdigest()[:16])
"""
TOGETHER = """
import {first}
import {second}
import numpy as np, torch, fp8lab
x = np.random.RandomState(0).randn(256, 1024).astype(np.float32)
before = torch.from_numpy(x) @ torch.from_numpy(x).T
d = fp8lab.gemm(x, x, "infir2:fprop")
after = torch.from_numpy(x) @ torch.from_numpy(x).T
assert torch.equal(before, after)
assert torch.nn.functional.cosine_similarity(
    torch.from_numpy(d).flatten(), before.flatten(), dim=0) > 0.99
maps = {{line.split()[-1] for line in open("/proc/self/maps") if "omp" in line.split()[-1]}}
print("{first} before {second}:", *sorted(maps))
assert len(maps) == 1, maps
"""
MODEL = """
vocab_size = 64
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 16
qkv_bias = false
qk_norm = true
initializer_range = 0.02
"""


class Tried(NamedTuple):
    python: str
    packages: str
    python_loss: float
    """Seconds from the start of pip install to the first loss in Python."""
    program_loss: float
    """The same to the first loss of a training run of the program."""
    line: str


def first_loss_of_program(program: Path, folder: Path) -> None:
    """Runs the default training run until it prints a loss."""
    words = [str(program), "train", "--preset", "quickstart", "--out", str(folder / "run")]
    environment = {**os.environ, "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        seen = ""
        for line in process.stdout:
            seen += line
            if "loss" in line and any(word[:1].isdigit() for word in line.split()):
                process.terminate()
                process.wait()
                return
    raise SystemExit(f"try_wheel.py: {program}: no loss in\n{seen}")


def try_in(python: str, wheel: Path, packages: list[str]) -> Tried:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model.toml").write_text(MODEL)
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        interpreter = folder / "venv/bin/python"
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("PYTHON")
        }
        began = time.monotonic()
        install = [str(interpreter), "-m", "pip", "install", "-q", str(wheel), *packages]
        subprocess.run(install, check=True, env=environment)

        def say(code: str, *words: object) -> str:
            call = [str(word) for word in (interpreter, "-c", code, *words)]
            done = subprocess.run(call, env=environment, cwd=folder, capture_output=True, text=True)
            if done.returncode != 0:
                raise SystemExit(f"try_wheel.py: {python} {packages}:\n{done.stderr}")
            return done.stdout.strip()

        line = say(USE, folder / "model.toml")
        in_python = time.monotonic() - began
        started = time.monotonic()
        first_loss_of_program(folder / "venv/bin/fp8lab", folder)
        in_program = in_python + time.monotonic() - started
        if any(package.startswith("torch") for package in packages):
            print(say(TOGETHER.format(first="torch", second="fp8lab.arithmetic")))
            print(say(TOGETHER.format(first="fp8lab.arithmetic", second="torch")))
        return Tried(python, " ".join(packages) or "-", in_python, in_program, line)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tries a wheel in bare virtual environments.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters")
    parser.add_argument(
        "--with",
        dest="packages",
        action="append",
        nargs="+",
        default=[],
        help="further packages of an environment; may be repeated",
    )
    arguments = parser.parse_args()
    tried = [
        try_in(python, arguments.wheel.resolve(), packages)
        for python in arguments.python
        for packages in arguments.packages or [[]]
    ]
    print("| Python | packages | Python, s | program, s | version, NumPy, loss, digest |")
    print("|---|---|---|---|---|")
    for one in tried:
        times = f"{one.python_loss:.1f} | {one.program_loss:.1f}"
        print(f"| {one.python} | {one.packages} | {times} | {one.line} |")
    digests = {one.line.split()[-1] for one in tried}
    if len(digests) != 1:
        raise SystemExit(f"try_wheel.py: the digests differ: {digests}")


if __name__ == "__main__":
    main()
