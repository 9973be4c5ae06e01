"""Opens HDF5 files that a writer has open, left behind, or that were cut short. Needs h5py, not the
shared library. The package and the analysis read run files by these functions.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py

# A compressed dataset can be larger than its bytes in the file: deflate reaches 1032 to 1. A larger
# extent is damaged, and reading it would exhaust the memory.
LARGEST_COMPRESSION = 1100
SMALL_DATASET = 16 << 20  # bytes; a dataset up to this size is always accepted
SIGNATURE = b"\x89HDF\r\n\x1a\n"
SUPERBLOCK = 48  # bytes of one of version 2 or 3
READ_ATTEMPTS = 28  # as in src/io/hdf5/hdf5.cpp


def truncation(path: Path) -> str:
    """Returns how much is there of a file that is shorter than its superblock (version 2 or 3)
    says; empty for a whole one. An SWMR reader takes the missing rows for zeros. A run makes its
    file longer before it says so, and the size is taken after the superblock was read: no run in
    progress is told to be cut."""
    try:
        with path.open("rb") as file:
            start = file.read(SUPERBLOCK)
            size = os.fstat(file.fileno()).st_size
    except OSError:
        return ""  # opening it says more
    if not start.startswith(SIGNATURE) or start[8:10] not in (b"\x02\x08", b"\x03\x08"):
        return ""  # another version, or addresses that are not of 8 bytes
    end = int.from_bytes(start[28:36], "little") if len(start) == SUPERBLOCK else SUPERBLOCK
    return f"truncated: {size} of {end} bytes are there" if size < end else ""


def open_unclosed(path: Path) -> Any:
    """Opens a file that a run has open or left behind, as an SWMR reader. HDF5 waits before it
    reads a damaged block again, each time twice as long, and its 100 attempts never end; 28 take
    half a second. h5py has no name for their number, the library that it is linked with has."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_libver_bounds(h5py.h5f.LIBVER_LATEST, h5py.h5f.LIBVER_LATEST)
    with suppress(OSError, AttributeError):  # of an h5py that is linked in another way
        set_attempts = ctypes.CDLL(h5py.h5p.__file__).H5Pset_metadata_read_attempts
        set_attempts.argtypes = [ctypes.c_int64, ctypes.c_uint]
        set_attempts(access.id, READ_ATTEMPTS)
    flags = h5py.h5f.ACC_RDONLY | h5py.h5f.ACC_SWMR_READ
    return h5py.File(h5py.h5f.open(os.fsencode(path), flags, fapl=access))


def lack_of_bytes(dataset: Any) -> str:
    """Returns what is wrong with a dataset whose stored bytes cannot fill its extent, behind its
    name; else empty."""
    stored = dataset.id.get_storage_size()
    size = dataset.dtype.itemsize
    for extent in dataset.shape or ():
        size *= int(extent)
    if size <= SMALL_DATASET + LARGEST_COMPRESSION * stored:
        return ""
    return f"has shape {dataset.shape}, but {stored} bytes of it are there"
