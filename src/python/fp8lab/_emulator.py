"""Loads the compiled module with OpenMP threads that sleep while they wait.

A spinning thread can take the processor from the thread that it waits for if the machine also runs
other work. An OpenMP runtime reads its wait policy from the environment once, when it is loaded. So
this module sets the policy, loads the compiled module and with it the runtime, and restores the
environment. A runtime that another package has already loaded into the process keeps its policy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_SETTINGS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "5000", "KMP_BLOCKTIME": "0"}


@contextmanager
def _sleeping_threads() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _SETTINGS}
    os.environ.update(_SETTINGS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


with _sleeping_threads():
    from fp8lab import _fp8lab as _fp8lab  # noqa: F401
    from fp8lab._fp8lab import Error as Error  # noqa: F401
    from fp8lab._fp8lab import QuantSpec as QuantSpec  # noqa: F401
    from fp8lab._fp8lab import __version__ as __version__  # noqa: F401
