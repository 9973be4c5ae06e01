"""Run files (HDF5): complete, running, or left by a killed writer.

With h5py itself the latter two take `h5py.File(path, "r", libver="latest", swmr=True)`, which opens
complete ones as well; a plain `h5py.File(path, "r")` refuses them.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp8lab import _fp8lab


@dataclass(frozen=True)
class Run:
    """A run file without the statistics of its tensors and the samples."""

    meta: dict[str, Any]
    """Names, hashes, seeds, device, configuration and recipe text."""
    metrics: dict[str, NDArray[Any]]
    """One row an optimizer step: step, stage, tokens, loss (nats/token), grad_norm, ...

    The loss of a step without a token to learn is NaN; /events has a row `no_targets` for it.
    """
    eval: dict[str, NDArray[Any]]
    """One row an evaluation: step, stage, loss, exact_match (-1: not taken), ..."""
    scores: dict[str, Any]
    """step, stage, name, value and count (of tokens, problems or questions) a further number."""
    events: dict[str, Any]
    """step, kind and message."""
    tensors: dict[str, Any]
    """layer, slot, format and scale_bits_per_element a logged operand; step: the logged steps."""
    complete: bool
    final_weight_hash: int
    """XXH3-64 of the weights of a complete run, else 0."""


class Sample(NamedTuple):
    """A captured tensor."""

    step: int
    name: str
    values: NDArray[np.float32]


def read_run(path: str | PathLike[str]) -> Run:
    """Reads a run file, also of a run that goes on or was killed. Raises Error when `path` is none.

    (h5py refuses the file of such a run with a plain `h5py.File(path, "r")`; to look into it with
    h5py open `h5py.File(path, "r", libver="latest", swmr=True)`.)
    """
    return Run(**_fp8lab.read_run(path))


def read_statistic(path: str | PathLike[str], name: str) -> NDArray[np.float64]:
    """One statistic, (logged steps, tensors) or (logged steps, tensors, width).

    Steps and tensors are those of `Run.tensors`. Raises Error for a name that is not one of
    `statistic_names()`.
    """
    return _fp8lab.read_statistic(path, name)


def read_samples(path: str | PathLike[str]) -> list[Sample]:
    """The captured tensors of a run file."""
    return [Sample(*sample) for sample in _fp8lab.read_samples(path)]


def statistic_names() -> list[str]:
    """Names of the statistics that a run file holds of each logged operand."""
    return _fp8lab.statistic_names()
