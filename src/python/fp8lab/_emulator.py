"""Loads the compiled module, with threads that sleep while they wait.

An OpenMP runtime reads its wait policy from the environment once, when it is loaded. A thread
that spins on takes the processor of the thread that it waits for wherever other work runs on the
machine. So the policy is set while the module, and with it the runtime, is loaded; the
environment is then what it was. A runtime that the process had loaded before (`import` of another
package that links the same library) keeps the policy that it has.
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
