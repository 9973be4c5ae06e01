"""Run files of trainings in PyTorch, which `fp8lab report` and fp8lab.read_run read."""

from __future__ import annotations

import ctypes
import hashlib
import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fp8lab._library import Handle, RunDescription, RunDocument, RunStep, call, text
from fp8lab.errors import Error
from fp8lab.torch.conversion import converted
from fp8lab.torch.layer import MEASURED, SEED, Layer
from fp8lab.torch.steps import clocks_of


def _number(value: Any) -> float:
    """A number, or a tensor of one, which may require gradients."""
    return float(value.detach() if isinstance(value, torch.Tensor) else value)


def _norm(value: Any) -> float:
    """A gradient norm as files hold it: NaN if it was not measured, infinity if not finite."""
    if value is None:
        return math.nan
    norm = _number(value)
    return norm if math.isfinite(norm) else math.inf


class RunFile:
    """Writes the steps of a converted model, and the statistics of all its operands, to a run file.

        with fp8lab.torch.RunFile(model, "runs/mine/run.h5", every=10) as file:
            for batch in batches:
                loss = ...                     # forward and backward pass
                optimizer.step()
                file.step(loss, tokens=batch.size)
                fp8lab.torch.end_step(model)
            file.evaluation(held_out_loss)     # after any step, once

    Operands are measured in the first step and in every `every`th one: those of the last
    micro-batch, of weights in the first. The file holds the layers that ran in the first step. It
    is complete when the block ends without an exception.
    """

    def __init__(
        self,
        model: nn.Module,
        path: str | Path,
        *,
        every: int = 10,
        name: str = "",
        config: str = "",
        steps: int = 0,
    ) -> None:
        """`name` is that of the run, by default of its folder. `config` is TOML that a report
        shows; `steps` is how many the run will have, if that is known."""
        if every < 1:
            raise Error(f"every: {every}; accepted: at least 1")
        self._model, self._path, self._every = model, Path(path), every
        self._name = name or self._path.resolve().parent.name
        self._config, self._planned = config, steps
        self._clocks = clocks_of(model)
        self._run: Handle | None = None
        self._layers: list[Layer] = []
        self._turn = threading.Lock()
        self._began = time.monotonic()
        self._steps = self._tokens = 0
        self._has_ended = False
        self._measure(True)

    def __enter__(self) -> RunFile:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._measure(False)
        with self._turn:
            if kind is None and self._run is not None:
                call("run_complete", self._run)
            self._has_ended, self._run = True, None  # closes the file, so that it can be read

    def step(
        self,
        loss: Any,
        *,
        tokens: int = 0,
        gradient_norm: Any = None,
        learning_rate: Any = float("nan"),
    ) -> None:
        """Adds a step: its loss in nats per token, and the tokens that it trained on.

        `gradient_norm` is that of all gradients before clipping; None: not measured. A step whose
        norm is not finite counts as diverged in reports; the file has infinity for any such norm.
        """
        with self._turn:
            if self._has_ended:
                raise Error(f"{self._path}: step() after the end; accepted: within the block")
            if self._run is None:
                self._begin()
            assert self._run is not None
            self._steps += 1
            self._tokens += tokens
            seconds = time.monotonic() - self._began
            row = RunStep(
                self._steps,
                self._tokens,
                _number(loss),
                _norm(gradient_norm),
                _number(learning_rate),
                seconds,
            )
            call("run_add_step", self._run, ctypes.byref(row))
            if self._is_measured:
                handles, count = self._handles()
                stream = self._layers[0].stream() if count else 0
                call("run_add_statistics", self._run, self._steps, handles, count, stream)
            self._measure((self._steps + 1) % self._every == 0)

    def evaluation(
        self, loss: Any, *, documents: Sequence[tuple[int, float]] = (), text: str = ""
    ) -> None:
        """Adds the held-out loss of the model as it is after the last step, in nats per token.

        Reports and `fp8lab compare` judge a run by its last evaluation rather than by its training
        losses, and pair it with the evaluation of the baseline at the same step. `documents` are
        the tokens and the sum of the losses, in nats, of each document of the held-out text, in
        its order: with those of the last evaluation, reports also state the noise of the choice
        of documents. They are paired between runs whose `text`, any name of it, and numbers of
        tokens are the same. Raises Error before the first step and after the end, for a second
        evaluation of a step, negative losses, and documents whose mean is not the loss.
        """
        with self._turn:
            if self._run is None:
                raise Error("evaluation: accepted: after step(), within the block")
            rows = (RunDocument * len(documents))(*(RunDocument(*one) for one in documents))
            told = repr((text, [int(tokens) for tokens, _ in documents])).encode()
            number = int.from_bytes(hashlib.sha256(told).digest()[:8], "little")
            call(
                "run_add_evaluation",
                self._run,
                self._steps,
                _number(loss),
                number,
                rows,
                len(documents),
            )

    def _measure(self, is_measured: bool) -> None:
        self._is_measured = is_measured
        for clock in self._clocks:
            clock[MEASURED] = int(is_measured)

    def _begin(self) -> None:
        self._layers = [layer for layer in converted(self._model).values() if layer.has_run]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        recipe = max((layer.recipe for layer in self._layers), key=self._count, default=None)
        if recipe is None:
            raise Error("no converted layer has run; accepted: step() after a forward pass")
        where = next(self._model.parameters()).device
        device = torch.cuda.get_device_name(where) if where.type == "cuda" else "CPU"
        description = RunDescription(
            text(str(self._path)),
            text(self._name),
            b"train",
            text(self._config),
            text(f"{device}, torch {torch.__version__}"),
            int(self._clocks[0][SEED]),
            self._planned,
            sum(parameter.numel() for parameter in self._model.parameters()),
        )
        handles, count = self._handles()
        self._run = Handle("run_new", ctypes.byref(description), recipe.handle, handles, count)

    def _count(self, recipe: Any) -> int:
        return sum(layer.recipe is recipe for layer in self._layers)

    def _handles(self) -> tuple[Any, int]:
        pointers = [layer.address for layer in self._layers]
        return (ctypes.c_void_p * len(pointers))(*pointers), len(pointers)
