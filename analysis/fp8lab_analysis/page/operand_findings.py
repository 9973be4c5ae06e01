"""Sentences about the logged operands: error, underflow, damaged tensors, largest channels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fp8lab_analysis.judge.channels import persistence_sentence
from fp8lab_analysis.judge.compare import GroupSummary
from fp8lab_analysis.judge.operands import TensorSummary, tensor_summaries
from fp8lab_analysis.judge.outliers import Damage, Outlier, find_outliers, sqnr_there, worst_damage
from fp8lab_analysis.judge.phrases import joined
from fp8lab_analysis.judge.verdicts import Kind
from fp8lab_analysis.page.finding import Finding
from fp8lab_analysis.read.study import Study


def _error_text(summary: GroupSummary) -> str:
    """States the mean SQNR of a recipe and its weakest operand."""
    text = f"{summary.group.label} {summary.mean_sqnr_db:.1f} dB{_left_out(summary)}"
    operand = summary.worst_operand
    return text + (f" ({operand.slot} {operand.sqnr_db.mean:.1f})" if operand else "")


def _left_out(summary: GroupSummary) -> str:
    """States the tensors that a mean excludes (all zero or exact); empty if there are none."""
    zero, exact, logged = summary.unlike_others
    parts = [f"{n} {what}" for n, what in ((zero, "all zero"), (exact, "exact")) if n]
    return f" [left out: {' and '.join(parts)} of {logged} logged tensors]" if parts else ""


def _underflow_text(summary: GroupSummary) -> str:
    operand = summary.worst_underflow
    assert operand is not None
    return f"{summary.group.label} {100.0 * operand.underflow.mean:.3g} % of {operand.slot}"


def error_findings(summaries: Sequence[GroupSummary]) -> list[Finding]:
    """States quantization error and underflow of every recipe, ordered if the seeds allow it."""
    known = [s for s in summaries if math.isfinite(s.mean_sqnr_db)]
    alive = [s for s in known if s.verdict.kind is not Kind.DIVERGED]  # only these can be ordered
    losses = [s for s in alive if s.worst_underflow is not None]
    findings = _ranked_error([s for s in alive if s.seeds > 1])
    single = [s for s in alive if s.seeds == 1]
    if single:
        text = "Mean SQNR (and the weakest operand), one seed each and in no order: "
        text += "; ".join(map(_error_text, single)) + "."
        findings.append(Finding("fact", "Quantization error", text))
    broken = [s for s in known if s.verdict.kind is Kind.DIVERGED]
    if broken:
        text = "Of what diverged, before and after it, and in no order: "
        text += "; ".join(map(_error_text, broken)) + "."
        findings.append(Finding("caution", "Quantization error, diverged", text))
    findings += _ranked_underflow([s for s in losses if s.seeds > 1])
    single = [s for s in losses if s.seeds == 1]
    if single:
        text = "Flushed to zero where most is, one seed each and in no order: "
        text += "; ".join(map(_underflow_text, single)) + "."
        findings.append(Finding("fact", "Underflow", text))
    return findings


def _ranked_error(summaries: Sequence[GroupSummary]) -> list[Finding]:
    """States the largest and smallest quantization error, and the weakest operand."""
    if not summaries:
        return []
    best = max(summaries, key=lambda s: s.mean_sqnr_db)
    worst = min(summaries, key=lambda s: s.mean_sqnr_db)
    text = f"Smallest: {best.group.label} (mean SQNR {best.mean_sqnr_db:.1f} dB){_left_out(best)}"
    if worst is not best:
        text += f"; largest: {worst.group.label} ({worst.mean_sqnr_db:.1f} dB){_left_out(worst)}"
    operand = worst.worst_operand
    if operand is not None:
        text += (
            f". Its weakest operand is {operand.slot} ({operand.sqnr_db.mean:.1f} dB, "
            f"worst tensor of one seed {operand.worst_sqnr_db:.1f} dB)"
        )
    return [Finding("fact", "Quantization error", text + ".")]


def _ranked_underflow(summaries: Sequence[GroupSummary]) -> list[Finding]:
    """Names the recipes with the most and least underflow in their worst operand."""
    losses = [(s, o) for s in summaries if (o := s.worst_underflow) is not None]
    if not losses:
        return []
    low = min(losses, key=lambda item: item[1].underflow.mean)
    high = max(losses, key=lambda item: item[1].underflow.mean)
    text = (
        f"{high[0].group.label} flushes {100.0 * high[1].underflow.mean:.2g} % of "
        f"{high[1].slot} to zero"
    )
    if high[0] is not low[0]:
        text += (
            f"; at best ({low[0].group.label}) the worst operand loses "
            f"{100.0 * low[1].underflow.mean:.2g} % ({low[1].slot})"
        )
    return [Finding("fact", "Underflow", text + ".")]


def _tensor_name(tensor: TensorSummary) -> str:
    return f"{tensor.layer}/{tensor.slot} ({tensor.sqnr_db:.1f} dB)"


def tensor_findings(summaries: Sequence[GroupSummary]) -> list[Finding]:
    """Names the tensors with the lowest SQNR, and states whether recipes agree on them."""
    worst_of: dict[str, list[TensorSummary]] = {}
    for summary in summaries:
        tensors = [t for t in tensor_summaries(summary.group) if math.isfinite(t.sqnr_db)]
        if tensors:
            worst_of[summary.group.label] = tensors
    broken = {s.group.label for s in summaries if s.verdict.kind is Kind.DIVERGED} & set(worst_of)
    several = {s.group.label for s in summaries if s.seeds > 1} & set(worst_of) - broken
    text = ""
    if several:
        label = min(several, key=lambda name: worst_of[name][0].sqnr_db)
        listed = joined([_tensor_name(tensor) for tensor in worst_of[label][:3]])
        whole = len(several) == len(worst_of)
        where = "study" if whole else "recipes with several seeds that did not diverge"
        where = "recipes with several seeds" if not broken and not whole else where
        text = f"Lowest SQNR of the {where}, means over seeds, all in {label}: {listed}. "
    if broken:
        listed = "; ".join(f"{n} {_tensor_name(worst_of[n][0])}" for n in worst_of if n in broken)
        text += f"Lowest SQNR within each recipe that diverged: {listed}. "
    single = [name for name in worst_of if name not in several | broken]
    if single:
        listed = "; ".join(f"{name} {_tensor_name(worst_of[name][0])}" for name in single)
        text += f"Lowest SQNR within each recipe of one seed: {listed}. "
    kinds: dict[str, int] = {}
    for found in worst_of.values():
        module = ".".join(found[0].layer.split(".")[2:]) or found[0].layer
        name = f"{module}/{found[0].slot}"
        kinds[name] = kinds.get(name, 0) + 1
    name, count = max(kinds.items(), key=lambda item: item[1], default=("", 0))
    if count > 1:
        text += f"The worst tensor is a {name} in {count} of {len(worst_of)} recipes."
    return [Finding("fact", "Tensors that suffer", text.strip())] if text else []


MOST_OUTLIERS = 5  # most tensors named in addition to the largest


def _outlier_text(outlier: Outlier) -> str:
    """States layer, channel and ratio of a tensor."""
    channel = "a channel" if outlier.channel is None else f"channel {outlier.channel}"
    if outlier.share < 1.0:
        channel += f" (the largest at {100.0 * outlier.share:.0f} % of the logged steps)"
    text = f"{outlier.layer}/fprop.x: {channel} is {outlier.ratio:.0f} × the median one"
    if math.isfinite(outlier.other_ratio):
        text += f" (layers without outliers {outlier.other_ratio:.3g} ×)"
    return text + (f", kurtosis {outlier.kurtosis:.3g}" if math.isfinite(outlier.kurtosis) else "")


def _damage_text(damage: Damage) -> str:
    """States a recipe's error in the outlier layer and, in parentheses, in other layers."""

    def beside(value: str, other: str, known: bool) -> str:
        return f"{value} ({other})" if known else value

    elsewhere = math.isfinite(damage.other_flushed)
    flushed = f"{100.0 * damage.flushed:.2g} % of {damage.slot} flushed to zero"
    text = f"{damage.label} " + beside(flushed, f"{100.0 * damage.other_flushed:.2g} %", elsewhere)
    if math.isfinite(damage.sqnr_db):
        elsewhere = math.isfinite(damage.other_sqnr_db)
        text += ", " + beside(f"{damage.sqnr_db:.1f} dB", f"{damage.other_sqnr_db:.1f}", elsewhere)
    return text


def outlier_findings(summaries: Sequence[GroupSummary]) -> list[Finding]:
    """States the tensor with the largest outlier channel, each recipe's error in it, and the other
    outlier tensors."""
    found = find_outliers(summaries)
    if not found:
        return []
    outlying = {outlier.layer for outlier in found}
    known = {
        outlier.layer: [worst_damage(s, outlier.layer, outlying) for s in summaries]
        for outlier in found
    }
    first = known[found[0].layer]
    text = f"{_outlier_text(found[0])}."
    suffering = [_damage_text(d) for d in first if d is not None and d.suffers]
    fine = [_damage_text(d) for d in first if d is not None and not d.suffers]
    if suffering or fine:
        text += " In parentheses the median of the layers without outliers."
    if suffering:
        text += f" Suffers there: {'; '.join(suffering)}."
    if fine:
        text += f" Does not: {'; '.join(fine)}."
    plain = [
        f"{s.group.label} {value:.1f} dB"
        for s, damage in zip(summaries, first)
        if damage is None and math.isfinite(value := sqnr_there(s.group, found[0].layer))
    ]
    if plain:
        text += f" Not quantized: {'; '.join(plain)}."
    others = []
    for outlier in found[1 : 1 + MOST_OUTLIERS]:
        names = [d.label for d in known[outlier.layer] if d is not None and d.suffers]
        suffer = f", suffers: {joined(names)}" if names else ""
        others.append(f"{outlier.layer} ({outlier.ratio:.0f} ×{suffer})")
    if others:
        more = len(found) - 1 - len(others)
        text += f" Also {joined(others)}" + (f", and {more} more." if more else ".")
    hurts = any(d is not None and d.suffers for damages in known.values() for d in damages)
    return [Finding("caution" if hurts else "fact", "Outlier channels", text)]


def channel_findings(study: Study, summaries: Sequence[GroupSummary]) -> list[Finding]:
    """States whether the largest channels remain the same from one stage to the next."""
    text = persistence_sentence(study, summaries)
    return [Finding("fact", "Top channels", text)] if text else []
