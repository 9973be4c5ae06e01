"""Pairs the held-out losses of an arm and its baselines by document, to compute the noise of the
text. Checks for every document that both were evaluated on the same text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fp8lab_analysis.judge.speed import held_out_curve
from fp8lab_analysis.judge.stats import Array
from fp8lab_analysis.judge.text_noise import TextNoise, text_noise
from fp8lab_analysis.read.runs import DocumentLosses, Run

Pair = tuple[Run, Run]  # a run and the baseline of its seed


def last_common_step(run: Run, baseline: Run, stage: str) -> int | None:
    """Step of the last common evaluation of a stage; None without one."""
    common = np.intersect1d(held_out_curve(run, stage)[0], held_out_curve(baseline, stage)[0])
    return int(common[-1]) if common.size else None


def kept(run: Run, stage: str, step: int, in_bf16: bool = False) -> DocumentLosses | None:
    """Returns the losses by document of one evaluation; None if the run file has none."""
    for losses in run.documents:
        here = (losses.step, run.stage_name(losses.stage), losses.in_bf16)
        if here == (step, stage, in_bf16):
            return losses
    return None


def sums_of(losses: Sequence[DocumentLosses]) -> Array:
    """Returns the sums by document, (evaluations, documents). Raises ValueError with a sentence if
    the evaluations are not of the same text and documents."""
    first = losses[0]
    for other in losses[1:]:
        if other.text != first.text:
            raise ValueError("runs evaluated on other texts")
        for name in ("source", "document", "tokens"):
            if not np.array_equal(getattr(other, name), getattr(first, name)):
                raise ValueError("runs whose documents differ")
    return np.array([one.nats for one in losses])


def _sums_after(
    pairs: Sequence[Pair], stage: str, columns: Sequence[tuple[int, bool]]
) -> list[Array] | TextNoise:
    """Returns sums (seeds, documents) at the last common evaluation of a stage for each of
    `columns`: run (0) or baseline (1), and whether the loss is that in bf16. If they are unknown,
    returns TextNoise with the reason."""
    found: list[DocumentLosses] = []
    for pair in pairs:
        step = last_common_step(*pair, stage)
        for which, in_bf16 in columns:
            losses = kept(pair[which], stage, step, in_bf16) if step is not None else None
            if losses is None:
                return TextNoise(unknown="run files without losses by document at that step")
            found.append(losses)
    if not found:
        return TextNoise(unknown="no pairs")
    try:
        sums = sums_of(found)
    except ValueError as error:
        return TextNoise(unknown=str(error))
    return [sums[place :: len(columns)] for place in range(len(columns))]


def text_noise_after(pairs: Sequence[Pair], stage: str) -> TextNoise:
    """Returns the noise of the held-out text in the mean relative gap of `pairs`, at the last
    common evaluation of a stage."""
    found = _sums_after(pairs, stage, [(0, False), (1, False)])
    if isinstance(found, TextNoise):
        return found
    ours, theirs = found
    return text_noise(ours - theirs, theirs)


def noise_of_parts_after(pairs: Sequence[Pair], stage: str) -> tuple[TextNoise, TextNoise]:
    """Returns the noise of the two parts of the gap, arithmetic and weights (weights_gap.py)."""
    found = _sums_after(pairs, stage, [(0, False), (0, True), (1, False)])
    if isinstance(found, TextNoise):
        return found, found
    ours, in_bf16, theirs = found
    return text_noise(ours - in_bf16, theirs), text_noise(in_bf16 - theirs, theirs)
