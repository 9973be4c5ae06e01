"""Writes a GGUF file as a Hugging Face folder."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from fp8lab.errors import Error
from fp8lab.gguf.folder import DTYPES, convert


class _Parser(argparse.ArgumentParser):
    """Reports usage errors in one line, as the program does."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"fp8lab.gguf: {message} (--help tells more)\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="fp8lab.gguf", description=__doc__)
    parser.add_argument("file", type=Path, help="a GGUF file: llama, qwen2, qwen3 or gpt2")
    parser.add_argument("out", type=Path, help="the new folder")
    parser.add_argument(
        "--dtype", choices=list(DTYPES), default="bfloat16", help="of the weights (%(default)s)"
    )
    return parser.parse_args(arguments)


def _refused(message: str, status: int) -> int:
    print(f"fp8lab.gguf: {' '.join(message.split())}", file=sys.stderr)
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code. 0: written; 2: bad input; 1: the machine failed; 130: interrupted. If
    not 0, prints one line on standard error and leaves no folder."""
    options = _parse(arguments)
    try:
        summary = convert(options.file, options.out, options.dtype)
    except Error as error:
        return _refused(str(error), 2)
    except MemoryError:
        return _refused("out of memory", 1)
    except OSError as error:
        return _refused(f"{error.filename or options.out}: {error.strerror or error}", 1)
    except KeyboardInterrupt:
        return _refused("interrupted; nothing is written", 130)
    types = ", ".join(f"{count} {name}" for name, count in sorted(summary.types.items()))
    print(
        f"{options.out}: {summary.model_type}, {summary.parameters} parameters in "
        f"{summary.tensors} tensors as {options.dtype}, from {types}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
