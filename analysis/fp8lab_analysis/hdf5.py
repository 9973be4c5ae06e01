"""HDF5 files of any origin: opened also while a run writes them, refused in one line when damaged.

A file that a run has open, or that a killed run left behind, is no damaged one, but a plain
`h5py.File(path, "r")` refuses it; `h5py.File(path, "r", libver="latest", swmr=True)` opens it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

# A compressed dataset may be larger than what it takes in the file: deflate reaches 1032 to 1. An
# extent beyond that is damaged, and reading it would fill the memory with nothing.
LARGEST_COMPRESSION = 1100
SMALL_DATASET = 16 << 20  # bytes that any dataset may have
DEEPEST_GROUP = 16  # a damaged link may lead to a group above it


class InputError(Exception):
    """Bad input: one line that says what is wrong, where, and what would be accepted."""


class NothingYet(InputError):
    """A study none of whose runs has begun."""


def one_line(error: object) -> str:
    """The text of an exception without its line breaks."""
    return " ".join(str(error).split())


def damaged(path: Path, reason: str, kind: str = "run") -> InputError:
    """The refusal of a file whose content cannot be what was written."""
    return InputError(
        f"{path}: damaged {kind} file ({reason}); 'fp8lab doctor {path.parent}' tells what can be "
        "saved, and a report of the other runs takes their run.h5 as arguments"
    )


class Damage(Exception):
    """What is wrong inside a file; becomes an InputError that names the file."""


def open_hdf5(path: Path) -> h5py.File:
    """Opens `path` for reading, as an SWMR reader where a writer has it open or died with it.
    Throws InputError. The plain way comes first because an SWMR reader waits minutes for a damaged
    block to become whole."""
    if not path.exists():
        raise InputError(f"{path}: no such file (expected an fp8lab run file, *.h5)")
    if path.is_dir():
        raise InputError(f"{path}: is a directory (expected an fp8lab run file, *.h5)")
    if not path.is_file():
        raise InputError(f"{path}: is no regular file (expected an fp8lab run file, *.h5)")
    if path.stat().st_size == 0:
        raise InputError(f"{path}: is empty (expected an fp8lab run file, *.h5)")
    try:
        return h5py.File(path, "r", libver="latest")
    except Exception as error:
        reason = one_line(error)
    if "open for write" in reason or "consistency flags" in reason or "lock" in reason:
        try:
            return h5py.File(path, "r", libver="latest", swmr=True)
        except Exception as error:
            raise InputError(
                f"{path}: not readable, neither as it is nor as a file that a run has open or left "
                'behind, h5py.File(path, "r", libver="latest", swmr=True) '
                f"({one_line(error)}); 'fp8lab doctor {path.parent}' tells what can be saved"
            ) from None
    raise InputError(
        f"{path}: not a readable HDF5 file ({reason}); expected the run.h5 of a run or the "
        f"study.h5 of a study; if it was one, 'fp8lab doctor {path.parent}' tells what can be saved"
    )


def check_links(file: h5py.File) -> None:
    """Throws Damage for what leads out of the file: links other than those of a study to its
    runs, which are not followed, and rows kept in other files. Those of a stranger's file would
    put what its reader may read into the report."""
    groups: list[h5py.Group] = [file]
    while groups:
        group = groups.pop()
        for name in group:
            place = f"{group.name.rstrip('/')}/{name}"
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                if group.name == "/runs":
                    continue
                raise Damage(f"{place} is a link to another name or file, which is not followed")
            item = group[name]
            if isinstance(item, h5py.Group):
                if place.count("/") > DEEPEST_GROUP:
                    raise Damage("groups are nested in themselves")
                groups.append(item)
            elif isinstance(item, h5py.Dataset) and (item.external or item.is_virtual):
                raise Damage(f"{place} keeps its rows in another file, which is not read")


@contextmanager
def reading(path: Path, kind: str = "run") -> Iterator[h5py.File]:
    """The open file; whatever goes wrong in reading it is an InputError that names it. HDF5 raises
    nearly every type of exception on a damaged file, also when it closes it."""
    try:
        with open_hdf5(path) as file:
            check_links(file)
            yield file
    except (InputError, MemoryError):
        raise
    except Damage as error:
        raise damaged(path, one_line(error), kind) from None
    except Exception as error:
        reason = one_line(error) or type(error).__name__
        raise damaged(path, reason, kind) from None


def to_text(value: Any) -> str:
    """Attribute or element of a string dataset as str."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.ndarray):
        return ", ".join(to_text(item) for item in value.tolist())
    text = str(value)
    if any("\udc80" <= letter <= "\udcff" for letter in text):
        raise Damage(f"text that is not UTF-8: {ascii(text[:40])}")
    return text


def text_list(values: Any) -> list[str]:
    """A 1-D string attribute or dataset as a list of str."""
    return [to_text(item) for item in np.atleast_1d(np.asarray(values)).tolist()]


def read_dataset(dataset: h5py.Dataset) -> npt.NDArray[Any]:
    """A dataset, whole. Throws Damage for an extent that its stored bytes cannot fill."""
    stored = dataset.id.get_storage_size()
    size = dataset.dtype.itemsize
    for extent in dataset.shape or ():
        size *= int(extent)
    if size > SMALL_DATASET + LARGEST_COMPRESSION * stored:
        raise Damage(
            f"{dataset.name} has shape {dataset.shape}, but {stored} bytes of it are there"
        )
    return np.asarray(dataset[...])


def read_columns(
    file: h5py.File, group: str, needed: Sequence[str] = ()
) -> dict[str, npt.NDArray[Any]]:
    """Every dataset of a group, whole; empty when the file lacks the group. Throws Damage for a
    group without those of `needed`."""
    if group not in file:
        return {}
    item = file[group]
    if not isinstance(item, h5py.Group):
        raise Damage(f"/{group} is not a group")
    for name in needed:
        if not isinstance(item.get(name), h5py.Dataset):
            raise Damage(f"/{group} has no dataset {name}")
    return {name: read_dataset(item[name]) for name in item if isinstance(item[name], h5py.Dataset)}


def numbers(column: npt.NDArray[Any], name: str, kinds: str = "iuf") -> npt.NDArray[Any]:
    """The column, if it holds numbers, or with "iu" whole ones. Throws Damage."""
    if column.dtype.kind not in kinds:
        what = "numbers" if "f" in kinds else "whole numbers"
        raise Damage(f"{name} holds {column.dtype}, not {what}")
    return column


def texts(column: npt.NDArray[Any], name: str) -> list[str]:
    """The column, if it is one of text. Throws Damage."""
    if column.dtype.kind not in "SO" or column.ndim != 1:
        raise Damage(f"{name} holds {column.dtype} in shape {column.shape}, not a column of text")
    return text_list(column) if column.size else []
