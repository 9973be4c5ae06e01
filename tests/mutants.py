"""Breaks the code on purpose and checks that a test notices.

Usage: python3 tests/mutants.py BUILD_DIRECTORY [NAME...]

Copies the source tree, applies one textual change at a time, rebuilds the named tests in
BUILD_DIRECTORY (configured by this script) and expects at least one of them to fail. Prints one
line per mutant and exits with 1 if any survives. Slow: not part of the ci tier.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ["emulation", "src", "kernels", "tests", "experiments", "analysis", ".cmake"]


@dataclass(frozen=True)
class Mutant:
    """One deliberate fault: `old` occurs exactly once in `file`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = [
    Mutant(
        "rounding instead of truncation at alignment",
        "emulation/numerics/mma.hpp",
        "shift_right(terms[i].significand, grid - terms[i].unit, model.alignment));",
        "shift_right(terms[i].significand, grid - terms[i].unit, Alignment::nearest_even));",
        ("test_golden", "test_mma"),
    ),
    Mutant(
        "zero products raise the exponent",
        "emulation/numerics/mma.hpp",
        "if (term.significand == 0 && !model.zero_products_count) continue;",
        "",
        ("test_golden", "test_mma"),
    ),
    Mutant(
        "dropped K tail in the fast GEMM",
        "emulation/cpu/gemm.cpp",
        "const std::int64_t length = std::min(step, range.end - begin);",
        "const std::int64_t length = std::min(step, (range.end - begin) / 32 * 32);",
        ("test_gemm",),
    ),
    Mutant(
        "missing promotion in the fast GEMM",
        "emulation/cpu/gemm.cpp",
        "const std::int64_t step = plan.promoted ? plan.chunk : range.end - range.begin;",
        "const std::int64_t step = range.end - range.begin;",
        ("test_gemm",),
    ),
    Mutant(
        "unmasked prompt token",
        "src/data/dataset.cpp",
        "static_cast<std::int64_t>(from) + 1 >= document.prompt_length;",
        "static_cast<std::int64_t>(from) + 2 >= document.prompt_length;",
        ("test_data",),
    ),
    Mutant(
        "attention across packed documents",
        "emulation/cpu/attention_tiles.hpp",
        "return {document_start[token(b, i)], i + 1};",
        "return {0, i + 1};",
        ("test_attention", "test_model_gradients"),
    ),
]


def run(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def copy_tree(target: Path) -> None:
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, target / folder, dirs_exist_ok=True)
    shutil.copy(ROOT / "CMakeLists.txt", target / "CMakeLists.txt")


def survives(mutant: Mutant, source: Path, build: Path) -> bool:
    """True when the build or the tests do not notice."""
    path = source / mutant.file
    original = path.read_text()
    if original.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: the text to change is not unique in {mutant.file}")
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        if not run("cmake", "--build", str(build), "--target", *mutant.tests):
            raise SystemExit(f"{mutant.name}: does not compile")
        return all(run(str(build / "tests" / test)) for test in mutant.tests)
    finally:
        path.write_text(original)


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    build = Path(sys.argv[1]).resolve()
    source = build / "source"
    copy_tree(source)
    if not run("cmake", "-S", str(source), "-B", str(build), "-G", "Ninja", "-DFP8LAB_CUDA=OFF"):
        raise SystemExit("cmake failed")
    chosen = [mutant for mutant in MUTANTS if not sys.argv[2:] or mutant.name in sys.argv[2:]]
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    if not run("cmake", "--build", str(build), "--target", *tests):
        raise SystemExit("the unchanged code does not build")
    for test in tests:
        if not run(str(build / "tests" / test)):
            raise SystemExit(f"{test} fails on the unchanged code")
    survivors = 0
    for mutant in chosen:
        survived = survives(mutant, source, build)
        survivors += survived
        print(f"{'SURVIVED' if survived else 'killed':8} {mutant.name}", flush=True)
    print(f"{len(chosen) - survivors} killed, {survivors} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
