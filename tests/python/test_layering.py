"""Folders are layers: fails on an include, or an import of the analysis, that points upwards."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = (".hpp", ".cpp", ".cu", ".cuh", ".h")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)

SPEC = {"emulation/base", "emulation/numerics", "emulation/spec"}
OPS = {*SPEC, "emulation/ops"}
BACKEND = {*OPS, "emulation"}  # the file emulation/backend.hpp
CPU = {*BACKEND, "emulation/reference", "emulation/cpu", "emulation/cpu/simd"}
DEVICE = {*BACKEND, "kernels/plan", "kernels/runtime", "kernels/ptx", "kernels/pointwise"}
PARTS = {"kernels/gemm", "kernels/library", "kernels/quantize", "kernels/transform"}
MODEL = {*BACKEND, "src/io", "src/architecture", "src/config", "src/data"}
TRAIN = {*MODEL, "src/model", "src/error_sources", "src/objectives", "src/evaluation"}
TOOLS = {*CPU, "emulation/cpu/gemm", "kernels", *PARTS, "kernels/runtime", "kernels/probes"}

# layer: the layers that it may include besides itself
ALLOWED: dict[str, set[str]] = {
    "emulation/base": set(),
    "emulation/numerics": set(),
    "emulation/spec": SPEC,
    "emulation/ops": OPS,
    "emulation": OPS,
    "emulation/reference": {*BACKEND, "emulation/reference/truth"},
    "emulation/reference/truth": {*BACKEND, "emulation/reference"},
    "emulation/recording": BACKEND,
    "emulation/cases": BACKEND,
    "emulation/cpu/simd": OPS,
    "emulation/cpu": CPU,
    **{
        f"emulation/cpu/{folder}": CPU
        for folder in ("attention", "gemm", "optimizer", "pointwise", "quantize")
    },
    "kernels/plan": OPS,
    "kernels/runtime": BACKEND,
    "kernels/ptx": set(),
    "kernels/pointwise": DEVICE,
    "kernels/quantize": {*DEVICE, "kernels/transform"},
    "kernels/transform": {*DEVICE, "kernels/quantize"},
    "kernels/gemm": {*DEVICE, "kernels/quantize"},
    "kernels/library": DEVICE,
    "kernels/attention": {*DEVICE, "kernels/quantize"},
    "kernels/optimizer": DEVICE,
    "kernels/probes": {*DEVICE, "kernels/gemm"},
    "kernels": {*DEVICE, *PARTS},
    "src/io": BACKEND,
    # The shape of a model and its parts; computes nothing.
    "src/architecture": SPEC,
    "src/config": {*BACKEND, "src/io", "src/architecture"},
    "src/data": {*BACKEND, "src/io", "src/architecture", "src/config"},
    "src/model": MODEL,
    # Files of models that nothing trains.
    "src/model_files": {*MODEL, "src/model"},
    "src/objectives": {*MODEL, "src/model"},
    "src/evaluation": {*MODEL, "src/model", "src/objectives"},
    # What a backend rounds is decoded by the scalar model.
    "src/error_sources": {*MODEL, "src/model", "emulation/recording", "emulation/reference"},
    # Plans are made by running the step against a recording.
    "src/train": {*TRAIN, "emulation/recording"},
    # Gradients in double precision are the truth path's, products the CPU's, on every backend.
    "src/diagnosis": {
        *TRAIN,
        "emulation/recording",
        "emulation/reference",
        "emulation/cpu/gemm",
        "src/train",
    },
    # A model under one recipe after another; which histories are missing is diagnosis.
    "src/assessment": {*TRAIN, "emulation/recording", "src/train", "src/diagnosis"},
    "src/study": {*TRAIN, "src/train"},
    # The factory and the tools that compare backends are the only ones that name a backend.
    "src/backend": {*TOOLS, "src/io", "src/config"},
    # An element of a GEMM is computed again by the scalar model.
    "src/replay": {*TRAIN, "emulation/recording", "emulation/reference", "src/train"},
    "src/validate": {*TOOLS, *TRAIN, "emulation/cases", "src/train", "src/replay", "src/backend"},
    # The phases of a step are timed where an observer sees them begin.
    "src/bench": {
        *TOOLS,
        "emulation/recording",
        "src/io",
        "src/config",
        "src/backend",
        "src/train",
    },
}
PROGRAM = "src/cli"  # with src/main.cpp and the C interface; may include everything
SOURCE_FOLDERS = ("emulation", "kernels", "src")


def layer_of(path: str) -> str | None:
    """Layer of a path relative to the repository; None for what is not ours."""
    parts = path.split("/")
    if parts[0] == "src":
        return f"src/{parts[1]}" if len(parts) > 2 and parts[1] != "interface" else PROGRAM
    if parts[0] in SOURCE_FOLDERS:
        # A folder without a layer of its own is a part of the one that it stands in.
        while len(parts) > 3 and "/".join(parts[:-1]) not in ALLOWED:
            parts = parts[:-1]
        return "/".join(parts[:-1])
    if parts[0] in ("tests", "experiments", "analysis"):
        return "/".join(parts[:2])
    return None


def without_comments(text: str) -> str:
    """Text with comments blanked, so that an include in a comment does not count."""
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


def violations(root: Path) -> tuple[list[str], int]:
    """(upward includes as "file includes header: why", number of includes of ours seen)."""
    found: list[str] = []
    seen = 0
    for folder in SOURCE_FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            name = path.relative_to(root).as_posix()
            layer = layer_of(name)
            for bracket, header in INCLUDE.findall(without_comments(path.read_text())):
                target = layer_of(header)
                if bracket == '"' and (target is None or ".." in header):
                    found.append(f"{name} includes {header}: not a path from the repository root")
                if target is None:
                    continue
                seen += 1
                if layer == PROGRAM and not target.startswith("tests"):
                    continue
                if layer is None or layer not in ALLOWED:
                    found.append(f"{name}: folder {layer} has no layer; give it one in this test")
                elif target != layer and target not in ALLOWED[layer]:
                    found.append(f"{name} includes {header}: {layer} may not use {target}")
    return found, seen


def test_no_include_points_upwards() -> None:
    found, seen = violations(ROOT)
    assert seen > 100, "the includes were not found"
    assert found == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("emulation/numerics/codec.hpp", '#include "emulation/base/error.hpp"'),
        ("emulation/spec/recipe.cpp", '#include "emulation/cpu/cpu_backend.hpp"'),
        ("emulation/cpu/simd/gemm.cpp", '#include "src/io/hash.hpp"'),
        ("emulation/cases/gemm.cpp", '#include "emulation/cpu/cpu_backend.hpp"'),
        ("emulation/cpu/gemm/gemm.cpp", '  #  include "kernels/block.cuh"'),
        ("kernels/gemm/gemm.cu", '#include "src/config/config.hpp"'),
        ("src/io/hdf5/run_log.cpp", '#include "src/model/linear/linear.hpp"'),
        ("src/architecture/parts.cpp", '#include "src/config/config.hpp"'),
        ("src/model/linear/linear.cpp", '#include "src/train/trainer.hpp"'),
        ("src/model/linear/linear.cpp", '#include "emulation/cpu/cpu_backend.hpp"'),
        ("src/train/trainer.cpp", '#include "src/backend/factory.hpp"'),
        ("src/train/trainer.cpp", '#include "kernels/cuda_backend.hpp"'),
        ("src/error_sources/switches.cpp", '#include "src/train/trainer.hpp"'),
        ("src/study/study.cpp", '#include "src/cli/command.hpp"'),
        ("src/cli/commands/train.cpp", '#include "tests/bit_compare.hpp"'),
        ("src/data/dataset.cpp", '#include "../io/hash.hpp"'),
        ("src/data/dataset.cpp", '#include "tokenizer.hpp"'),
        ("src/brand_new/file.cpp", '#include "src/io/hash.hpp"'),
    ],
)
def test_planted_violation_is_caught(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(f"#pragma once\n#include <vector>\n{line}\n")
    found, _ = violations(tmp_path)
    assert len(found) == 1 and found[0].startswith(file)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("emulation/spec/recipe.cpp", '#include "emulation/numerics/format.hpp"'),
        ("src/train/trainer.cpp", '#include "src/model/transformer.hpp"'),
        ("src/train/trainer.cpp", '// #include "src/cli/command.hpp"'),
        ("src/backend/factory.cpp", '#include "emulation/cpu/cpu_backend.hpp"'),
        ("src/cli/commands/train.cpp", '#include "src/backend/factory.hpp"'),
        ("src/main.cpp", '#include "src/cli/command.hpp"'),
        ("kernels/gemm/gemm.cu", "#include <cuda/ptx>"),
    ],
)
def test_downward_include_is_accepted(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(f"{line}\n")
    assert violations(tmp_path)[0] == []


# Folder of the analysis package: the folders that it may import besides itself. What stands beside
# the folders are programs; they may import everything, and no folder imports them.
ANALYSIS = {
    "read": set[str](),
    "judge": {"read"},
    "draw": {"read", "judge"},
    "page": {"read", "judge", "draw"},
}
PACKAGE = "fp8lab_analysis"
# What the folders may import of the package fp8lab: how files are opened, and where missing ones
# were looked for, needs no library.
OF_FP8LAB = {"read": {"fp8lab.hdf5", "fp8lab.errors"}}


def imported(tree: ast.AST) -> set[str]:
    """Absolute names that a module imports anywhere, in functions too: "fp8lab_analysis.read.runs"
    and, for `from fp8lab_analysis import report`, "fp8lab_analysis.report"."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def upward_imports(package: Path) -> tuple[list[str], int]:
    """(imports against ANALYSIS as "file imports name", number of imports of the package seen)."""
    found: list[str] = []
    seen = 0
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        folder = name.split("/")[0] if "/" in name else None
        if folder is not None and folder not in ANALYSIS:
            found.append(f"{name}: folder {folder} has no layer; give it one in this test")
            continue
        for module in sorted(imported(ast.parse(path.read_text(encoding="utf-8")))):
            parts = module.split(".")
            if parts[0] == "":
                found.append(f"{name} imports {module}: not a path from the package's root")
            allowed = OF_FP8LAB.get(folder or "", set())
            if parts[0] == "fp8lab" and ".".join(parts[:2]) not in allowed:
                found.append(f"{name} imports {module}")
            if parts[0] != PACKAGE:
                continue
            seen += 1
            if folder is not None and parts[1] not in {folder, *ANALYSIS[folder]}:
                found.append(f"{name} imports {module}")
    return found, seen


def test_no_import_of_the_analysis_points_upwards() -> None:
    package = ROOT / "analysis" / PACKAGE
    found, seen = upward_imports(package)
    assert seen > 300, "the imports were not found"
    assert found == []
    assert {path.name for path in package.iterdir() if path.is_dir()} - {"__pycache__"} == {
        *ANALYSIS
    }


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("read/study.py", "from fp8lab_analysis.judge.verdicts import Kind"),
        ("read/study.py", "from fp8lab_analysis.judge import stats"),
        ("read/study.py", "from fp8lab.model import Model"),
        ("judge/plan.py", "from fp8lab.hdf5 import open_unclosed"),
        ("judge/plan.py", "import fp8lab_analysis.page.cells"),
        ("judge/plan.py", "def late():\n    from fp8lab_analysis.draw import style"),
        ("draw/style.py", "from fp8lab_analysis.page import tables"),
        ("page/tables.py", "from fp8lab_analysis import report"),
        ("page/tables.py", "from fp8lab_analysis.report import Parser"),
        ("page/tables.py", "from . import cells"),
        ("brand_new/file.py", "import math"),
    ],
)
def test_planted_upward_import_is_caught(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(f"{line}\n")
    found, _ = upward_imports(tmp_path)
    assert len(found) == 1 and found[0].startswith(file)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("page/tables.py", "from fp8lab_analysis.draw import style"),
        ("judge/plan.py", "from fp8lab_analysis.read.study import Study"),
        ("judge/plan.py", "from fp8lab_analysis.judge import stats"),
        ("laws.py", "from fp8lab_analysis.report import Parser"),
        ("read/runs.py", "import numpy as np"),
    ],
)
def test_downward_import_is_accepted(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{line}\n")
    assert upward_imports(tmp_path)[0] == []


# Names of the standard library by the header that declares them. Which headers include others
# differs from one version of the library to the next: what one compiler accepts another does not.
DECLARED = {
    "algorithm": r"(any_of|all_of|none_of|find|find_if|sort|stable_sort|max_element|min_element"
    r"|transform|copy|copy_if|copy_n|fill|fill_n|remove_if|count|count_if|equal|mismatch|reverse"
    r"|rotate|unique|lower_bound|upper_bound|nth_element|clamp|max|min|for_each|replace_if) ?[(<]",
    "numeric": r"(accumulate|iota|inner_product|partial_sum|reduce|gcd|lcm) ?[(<]",
    "array": r"array<",
    "chrono": r"chrono::",
    "cmath": r"(sqrt|exp2|log2|fabs|isnan|isfinite|ldexp|frexp|ilogb|pow|floor|ceil)\(",
    "cstdint": r"u?int(8|16|32|64)_t",
    "cstring": r"(memcpy|memset|memcmp|strlen)\(",
    "fstream": r"[io]?fstream",
    "functional": r"function<",
    "iterator": r"(back_inserter|make_move_iterator|istreambuf_iterator)",
    "limits": r"numeric_limits<",
    "map": r"map<",
    "memory": r"(make_unique|make_shared|unique_ptr|shared_ptr)<",
    "mutex": r"(mutex|lock_guard|unique_lock)\b",
    "optional": r"(optional|nullopt)\b",
    "set": r"set<",
    "sstream": r"[io]?stringstream",
    "thread": r"(thread|this_thread)\b",
    "utility": r"exchange\(",
    "variant": r"variant<",
}


def undeclared(texts: dict[str, str]) -> list[str]:
    """Uses of the standard library in files whose header neither they nor our headers include."""
    included = {
        name: {header for _, header in INCLUDE.findall(without_comments(text))}
        for name, text in texts.items()
    }

    def reached(name: str, seen: set[str]) -> set[str]:
        for header in included.get(name, set()) - seen:
            seen.add(header)
            reached(header, seen)
        return seen

    found = []
    for name, text in texts.items():
        headers = reached(name, set())
        for header, names in DECLARED.items():
            use = re.search(rf"\bstd::{names}", without_comments(text))
            if use and header not in headers:
                found.append(f"{name}: {use.group(0)} without <{header}>")
        # A folder that is compiled as one has what a neighbour includes.
        use = re.search(r"\bfmt::\w+", without_comments(text))
        if use and not any(header.startswith("fmt/") for header in headers):
            found.append(f"{name}: {use.group(0)} without a header of fmt")
    return found


def test_what_is_used_of_the_standard_library_is_included() -> None:
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for folder in (*SOURCE_FOLDERS, "tests")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".hpp", ".cpp")
    }
    assert len(texts) > 400
    assert undeclared(texts) == []


def test_a_planted_use_without_its_header_is_found() -> None:
    texts = {
        "a.hpp": "#pragma once\n#include <algorithm>\n",
        "b.cpp": '#include "a.hpp"\nbool b = std::any_of(x, y, z);\n',
        "c.cpp": "#include <vector>\nbool c = std::any_of(x, y, z);  // <algorithm>\n",
        "d.cpp": "// #include <cstdint>\nstd::int64_t d = 0;\n",
        "e.cpp": '#include <fmt/core.h>\nauto e = fmt::format("");\n',
        "f.cpp": '#include "a.hpp"\nauto f = fmt::format("");\n',
    }
    assert undeclared(texts) == [
        "c.cpp: std::any_of( without <algorithm>",
        "d.cpp: std::int64_t without <cstdint>",
        "f.cpp: fmt::format without a header of fmt",
    ]
