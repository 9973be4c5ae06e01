#!/usr/bin/env python3
"""Compares HDF5 files with the tables of src/io/README.md; prints each difference.

    check_run_layout.py README.md FILE.h5...

Exit status 0: every file has exactly the documented groups, datasets, types, ranks, units and
attributes. Works for run files and study files, told apart by their schema attribute.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import h5py

FIRST_SCHEMA = "fp8lab-run-1"
SCHEMAS = (FIRST_SCHEMA, "fp8lab-run-2")
STUDY_SCHEMA = "fp8lab-study-2"
LATER = "not in `fp8lab-run-1`"  # remark of a row that files of the first schema lack
RANKS = {"N": 1, "0 or 1": 1, "sum of lengths": 1}
KINDS = {"i64": "<i8", "i32": "<i4", "u64": "<u8", "f64": "<f8", "f32": "<f4", "u8": "|u1"}


def text(value: Any) -> Any:
    """An attribute of fixed-length UTF-8 as str; everything else as it is."""
    return value.decode() if isinstance(value, bytes) else value


def rows_of(section: str, cells: int) -> list[list[str]]:
    """The first cells of every table row that begins with a path."""
    rows = [line[1:].split("|") for line in section.splitlines() if line.startswith("| `/")]
    return [[cell.strip() for cell in row[:cells]] for row in rows]


def check_dataset(dataset: Any, shape: str, kind: str, units: str) -> list[str]:
    problems = []
    rank = RANKS.get(shape, shape.count(" x ") + 1)
    if dataset.ndim != rank:
        problems.append(f"rank {dataset.ndim}, documented {shape}")
    for position, part in enumerate(shape.split(" x ")):
        if part.isdigit() and dataset.shape[position] != int(part):
            problems.append(f"extent {dataset.shape[position]}, documented {part}")
    if "str" in kind:
        size = re.search(r"\d+", kind)
        if dataset.dtype.kind != "S" or h5py.check_string_dtype(dataset.dtype).encoding != "utf-8":
            problems.append(f"type {dataset.dtype}, documented fixed-length UTF-8")
        if size and dataset.dtype.itemsize != int(size.group()):
            problems.append(f"{dataset.dtype.itemsize} bytes, documented {size.group()}")
    elif dataset.dtype.str != KINDS[kind]:
        problems.append(f"type {dataset.dtype.str}, documented {kind}")
    if units and text(dataset.attrs.get("units")) != units:
        problems.append(f"units {dataset.attrs.get('units')!r}, documented {units!r}")
    if not isinstance(dataset.attrs.get("description"), bytes):
        problems.append("no description")
    return problems


def check_te_names(dataset: Any, remark: str) -> list[str]:
    documented = re.search(r"te_name `([^`]+)`(?:, te_factor (\d+))?", remark)
    if documented is None:
        return ["unexpected te_name"] if "te_name" in dataset.attrs else []
    problems = []
    if text(dataset.attrs.get("te_name")) != documented.group(1):
        problems.append(f"te_name {dataset.attrs.get('te_name')!r}, not {documented.group(1)!r}")
    if dataset.attrs.get("te_factor") != float(documented.group(2) or 1):
        problems.append("another te_factor")
    return problems


def check_run(file: Any, readme: str) -> list[str]:
    run_part = readme.split("## Study file")[0]
    problems = []
    documented = set()
    first = file["meta"].attrs["schema"] == FIRST_SCHEMA
    for path, shape, kind, units, remark in rows_of(run_part, 5):
        path = path.strip("`")
        if first and LATER in remark:
            continue
        documented.add(path)
        if path not in file:
            problems.append(f"{path} is missing")
            continue
        found = check_dataset(file[path], shape, kind, units) + check_te_names(file[path], remark)
        if shape.startswith(("R", "E", "S", "D", "W", "L", "V", "P", "C", "sum", "0 or 1")):
            dataset = file[path]
            filtered = dataset.shuffle and dataset.compression == "gzip"
            if dataset.maxshape[0] is not None or not filtered:
                found.append("not extendable, shuffled and compressed")
        problems += [f"{path}: {problem}" for problem in found]
    file.visititems(
        lambda name, item: problems.append(f"/{name} is not documented")
        if isinstance(item, h5py.Dataset) and "/" + name not in documented
        else None
    )
    return problems + check_meta(file["meta"].attrs, run_part)


def check_meta(attributes: Any, run_part: str) -> list[str]:
    documented: dict[str, str] = {}
    for line in run_part.split("### Datasets")[0].splitlines():
        if line.startswith("| `"):
            names, kind, remark = (line.strip("| ").split(" | ") + [""])[:3]
            if attributes.get("schema") == FIRST_SCHEMA and LATER in remark:
                continue
            documented.update({name: kind for name in re.findall(r"`([^`]+)`", names)})
    documented.pop("extra.<key>")
    problems = []
    for name, kind in documented.items():
        value = attributes.get(name)
        good = {
            "str": isinstance(value, bytes),
            "u64": getattr(value, "dtype", None) == "<u8",
            "i64": getattr(value, "dtype", None) == "<i8",
            "1-D array of str": getattr(value, "ndim", 0) == 1
            and all(isinstance(entry, bytes) for entry in value),
        }
        if not good[kind]:
            problems.append(f"/meta@{name} is {value!r}, documented {kind}")
    for name in attributes:
        if name not in documented and not name.startswith("extra."):
            problems.append(f"/meta@{name} is not documented")
    return problems


def check_design(attributes: Any, study_part: str) -> list[str]:
    row = next(line for line in study_part.splitlines() if line.startswith("| `/design`"))
    documented = dict(re.findall(r"`(\w+)` \((\w+)", row))
    problems = []
    for name, kind in documented.items():
        value = attributes.get(name)
        found = getattr(value, "dtype", None)
        good = isinstance(text(value), str) if kind == "str" else found == KINDS[kind]
        if not good:
            problems.append(f"/design@{name} is {value!r}, documented {kind}")
    problems += [
        f"/design@{name} is not documented" for name in attributes if name not in documented
    ]
    return problems


def check_study(file: Any, readme: str) -> list[str]:
    study_part = readme.split("## Study file")[1]
    problems = []
    documented = set()
    for path, shape, kind in rows_of(study_part, 3):
        path = path.strip("`").split("`")[0]
        if "<" in path or path in ("/meta", "/design"):
            continue
        documented.add(path)
        if path not in file:
            problems.append(f"{path} is missing")
            continue
        problems += [f"{path}: {problem}" for problem in check_dataset(file[path], shape, kind, "")]
    problems += [
        f"/arms/{name} is not documented"
        for name in file["arms"]
        if f"/arms/{name}" not in documented
    ]
    problems += [
        f"/{name} is not documented"
        for name in file
        if name not in ("meta", "runs", "arms", "axes", "design")
    ]
    if "design" in file:
        problems += check_design(file["design"].attrs, study_part)
    for index, key in enumerate(file["meta"].attrs["axis_keys"]):
        if text(file[f"axes/{index}"].attrs["key"]) != text(key):
            problems.append(f"/axes/{index} is not {key}")
    for position, name in enumerate(file["arms/name"].asstr()[:]):
        link = file["runs"].get(name, getlink=True)
        if link.filename != file["arms/run_file"].asstr()[position] or link.path != "/":
            problems.append(f"/runs/{name} links elsewhere")
        if f"runs/{name}/meta" not in file:
            problems.append(f"/runs/{name} leads nowhere")
    return problems


def check(path: Path, readme: str) -> list[str]:
    try:
        file = h5py.File(path, "r", libver="latest", swmr=True)
    except OSError as error:
        return [str(error)]
    with file:
        schema = text(file["meta"].attrs.get("schema"))
        if schema in SCHEMAS:
            return check_run(file, readme)
        if schema == STUDY_SCHEMA:
            return check_study(file, readme)
        return [f"schema {schema!r}"]


def main() -> int:
    readme = Path(sys.argv[1]).read_text(encoding="utf-8")
    problems = [
        f"{name}: {problem}" for name in sys.argv[2:] for problem in check(Path(name), readme)
    ]
    for problem in problems:
        print(problem)
    return 1 if problems or len(sys.argv) < 3 else 0


if __name__ == "__main__":
    sys.exit(main())
