"""Opens HDF5 files of any origin, also while a run writes them; refuses damaged ones in one line.

A plain `h5py.File(path, "r")` refuses a file that a run has open or that a killed run left behind,
although it is not damaged. `h5py.File(path, "r", libver="latest", swmr=True)` opens it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from fp8lab.errors import where_looked
from fp8lab.hdf5 import lack_of_bytes, open_unclosed, truncation

DEEPEST_GROUP = 16  # limits recursion: a damaged link may lead to a parent group


class InputError(Exception):
    """Bad input. The message is one line: the fault, its place, and what is accepted."""


class NothingYet(InputError):
    """No run of the study has begun."""


def one_line(error: object) -> str:
    """Returns the text of an exception without line breaks."""
    return " ".join(str(error).split())


def damaged(path: Path, reason: str, kind: str = "run") -> InputError:
    """Returns the error for a damaged file."""
    return InputError(
        f"{path}: damaged {kind} file ({reason}); 'fp8lab doctor {path.parent}' tells what can be "
        "saved, and a report of the other runs takes their run.h5 as arguments"
    )


class Damage(Exception):
    """Damaged contents of a file; becomes an InputError that names the file."""


def open_hdf5(path: Path) -> h5py.File:
    """Opens `path` for reading, as an SWMR reader if a writer has it open or was killed. Raises
    InputError. Tries the plain way first, which does not wait for a damaged block."""
    if not path.exists():
        raise InputError(
            f"{path}: no such file{where_looked(path)} (expected an fp8lab run file, *.h5)"
        )
    if path.is_dir():
        raise InputError(f"{path}: is a directory (expected an fp8lab run file, *.h5)")
    if not path.is_file():
        raise InputError(f"{path}: is no regular file (expected an fp8lab run file, *.h5)")
    if path.stat().st_size == 0:
        raise InputError(f"{path}: is empty (expected an fp8lab run file, *.h5)")
    if reason := truncation(path):
        raise damaged(path, reason, "study" if path.name == "study.h5" else "run")
    try:
        return h5py.File(path, "r", libver="latest")
    except Exception as error:
        reason = one_line(error)
    if re.search(r"open for write|consistency flags|\block", reason):
        try:
            return open_unclosed(path)
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
    """Raises Damage for links out of the file, except those of a study to its runs (which are not
    followed), and for rows stored in other files. In an untrusted file, they could put private
    files of the reader into the report."""
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
    """Yields the open file. Converts every exception to an InputError that names the file, since
    HDF5 raises nearly every type of exception on a damaged file, also on closing it."""
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
    """Converts an attribute or an element of a string dataset to str."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.ndarray):
        return ", ".join(to_text(item) for item in value.tolist())
    text = str(value)
    if any("\udc80" <= letter <= "\udcff" for letter in text):
        raise Damage(f"text that is not UTF-8: {ascii(text[:40])}")
    return text


def text_list(values: Any) -> list[str]:
    """Converts a 1-D string attribute or dataset to a list of str."""
    return [to_text(item) for item in np.atleast_1d(np.asarray(values)).tolist()]


def read_dataset(dataset: h5py.Dataset) -> npt.NDArray[Any]:
    """Returns a whole dataset. Raises Damage if its stored bytes cannot fill its extent."""
    if reason := lack_of_bytes(dataset):
        raise Damage(f"{dataset.name} {reason}")
    return np.asarray(dataset[...])


def read_columns(
    file: h5py.File, group: str, needed: Sequence[str] = ()
) -> dict[str, npt.NDArray[Any]]:
    """Returns every dataset of a group; empty if the file lacks the group. Raises Damage if the
    group lacks one of `needed`."""
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
    """Returns the column. Raises Damage if it holds no numbers, or for "iu", no integers."""
    if column.dtype.kind not in kinds:
        what = "numbers" if "f" in kinds else "whole numbers"
        raise Damage(f"{name} holds {column.dtype}, not {what}")
    return column


def texts(column: npt.NDArray[Any], name: str) -> list[str]:
    """Returns the column. Raises Damage if it holds no text."""
    if column.dtype.kind not in "SO" or column.ndim != 1:
        raise Damage(f"{name} holds {column.dtype} in shape {column.shape}, not a column of text")
    return text_list(column) if column.size else []
