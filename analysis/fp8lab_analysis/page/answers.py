"""The answers on the first screen of a report: may I use it, what did it cost, why did that arm
break. findings.py has the other sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fp8lab_analysis.judge.breaks import Break, Condition, condition, find_break
from fp8lab_analysis.judge.compare import GroupSummary, measured_stage
from fp8lab_analysis.judge.early_warning import detector_text, place_text, warning_before
from fp8lab_analysis.judge.phrases import counted, joined, plus_minus
from fp8lab_analysis.judge.speed import device_text
from fp8lab_analysis.judge.verdicts import Kind, measured
from fp8lab_analysis.read.study import Study

MOST_NAMED = 6  # most arms named in a sentence; the tables list all
MOST_BREAKS = 3


@dataclass(frozen=True)
class Answer:
    """A question and the sentences of its answer, each with a kind: good, bad, fact or caution."""

    question: str
    sentences: list[tuple[str, str]]


def _listed(items: Sequence[str]) -> str:
    shown = list(items[:MOST_NAMED])
    if len(items) > len(shown):
        shown.append(f"{len(items) - len(shown)} more")
    return ", ".join(shown)


def _candidates(summaries: Sequence[GroupSummary]) -> list[GroupSummary]:
    return [s for s in summaries if not s.group.is_baseline]


def _mean_gap(summary: GroupSummary) -> str:
    """The gap without its interval, which belongs to another test than the claim of equivalence."""
    gap = summary.verdict.gap.mean
    return ("+" if gap > 0.0 else "") + measured(gap) + _few_documents(summary)


def _few_documents(summary: GroupSummary) -> str:
    few = summary.verdict.few_documents
    return f", {few}" if few else ""


def _gap(summary: GroupSummary) -> str:
    return f"{summary.group.label} ({summary.verdict.gap_text}{_few_documents(summary)})"


def _open_runs(study: Study, summaries: Sequence[GroupSummary]) -> str:
    """Counts of incomplete and missing runs as text; empty if there are none."""
    # Diverged runs may stop early.
    alive = [s for s in summaries if s.verdict.kind is not Kind.DIVERGED]
    unfinished = sum(not run.complete for s in alive for run in s.group.runs)
    counts = ((unfinished, "not complete"), (study.missing, "not there"))
    return ", ".join(f"{counted(count, 'run')} {what}" for count, what in counts if count)


def _seeds_to_settle(unsure: Sequence[GroupSummary]) -> str:
    """States how many seeds would settle the verdicts, one number if they agree; empty if one of
    them is not known."""
    need = [s.verdict.seeds_to_settle for s in unsure]
    if None in need:
        return ""
    told = [f"about {need[0]} seeds would settle it"]
    if len(set(need)) > 1:
        told = [f"about {n} seeds would settle {s.group.label}" for n, s in zip(need, unsure)]
    return f"; {_listed(told)} if the gap is as seen"


def _rests_on(holds: Sequence[GroupSummary]) -> str:
    """States the steps and tokens of the verdicts, and whether they are too few."""
    extents = list(dict.fromkeys(s.verdict.extent for s in holds if s.verdict.extent.text))
    told = [f"{e.text} ({e.caveat})" if e.caveat else e.text for e in extents]
    return f", after {_listed(told)}" if told else ""


def may_i_use_it(study: Study, summaries: Sequence[GroupSummary]) -> Answer:
    """States which arms hold, which do not, and which are undecided."""
    candidates, name = _candidates(summaries), study.baseline_recipe
    margin, kinds = study.design.margin_text, {s.group.label: s.verdict.kind for s in candidates}
    said: list[tuple[str, str]] = []
    so_far = [s for s in candidates if s.verdict.holds]
    holds = [s for s in so_far if s.complete]
    if holds:
        gaps = _listed([f"{s.group.label} ({_mean_gap(s)})" for s in holds])
        level = f"{study.design.confidence_text}, one-sided"
        shown = f"shown to be not worse than {name} by {margin} ({level})"
        kind = "caution" if any(s.verdict.shortness for s in holds) else "good"
        said.append((kind, f"Yes, {gaps}: {shown}{_rests_on(holds)}."))
    worse = [s for s in candidates if s.verdict.kind is Kind.WORSE and not s.verdict.holds]
    broken = [_gap(s) for s in candidates if s.verdict.kind is Kind.DIVERGED]
    if worse:
        said.append(("bad", f"No, {_listed([_gap(s) for s in worse])}: worse than {name}."))
    if broken:
        said.append(("bad", f"No, {_listed(broken)}."))
    unsure = [s for s in candidates if s.verdict.kind is Kind.INCONCLUSIVE and not s.verdict.holds]
    if unsure:
        seeds = _seeds_to_settle(unsure)
        gaps = _listed([_gap(s) for s in unsure])
        seen = f"neither shown to be within {margin} nor told from no gap"
        said.append(("caution", f"Not known yet, {gaps}: {seen}{seeds}."))
    unfinished = [s for s in so_far if not s.complete]
    if unfinished:
        gaps = _listed([f"{s.group.label} ({_mean_gap(s)})" for s in unfinished])
        seen = f"not worse than {name} by {margin} so far, but not all of its runs are complete"
        said.append(("caution", f"Not known yet, {gaps}: {seen}."))
    single = [s for s in candidates if kinds[s.group.label] is Kind.NOT_ORDERED]
    if single:
        said.append(
            (
                "caution",
                f"Not known: one seed of {_listed([s.group.label for s in single])}, so that the "
                f"noise between seeds is unknown. Seen: {_seen_text(study, single)}.",
            )
        )
    unpaired = [s.group.label for s in candidates if kinds[s.group.label] is Kind.UNPAIRED]
    if unpaired:
        said.append(("caution", f"Not known, {_listed(unpaired)}: no {name} run to compare with."))
    if not candidates:
        said.append(("fact", f"The runs are all {name}: there is nothing to compare."))
    if candidates and (open_runs := _open_runs(study, summaries)):
        said.append(("caution", f"Not the last word: {open_runs}."))
    return Answer("May I use it?", said)


def _seen_text(study: Study, single: Sequence[GroupSummary]) -> str:
    """The gaps of arms without a verdict, and how many of these gaps are inside the margin."""
    gaps = sorted((s.verdict.gap.mean, _mean_gap(s)) for s in single)
    losses = joined(sorted({s.judged_on for s in single}))
    of, margin = f"of the {losses} loss of {study.baseline_recipe}", study.design.margin_text
    inside = sum(abs(gap) <= study.design.margin for gap, _ in gaps)
    if len(gaps) == 1:
        where = "inside" if inside else "beyond"
        return f"a gap of {gaps[0][1]} {of}, {where} the margin of {margin}"
    low, high = gaps[0][1], gaps[-1][1]
    span = f"gaps of {low}" + (f" to {high}" if high != low else "")
    return f"{span} {of}, {inside} of {len(gaps)} inside the margin of {margin}"


def _by_value(items: Sequence[tuple[str, float]], show: Callable[[float], str]) -> str:
    """Groups names by their shared value, in ascending order of the values."""
    shared: dict[str, list[str]] = {}
    for label, value in sorted(items, key=lambda item: item[1]):
        shared.setdefault(show(value), []).append(label)
    return "; ".join(f"{text} {_listed(labels)}" for text, labels in shared.items())


def what_did_it_cost(study: Study, summaries: Sequence[GroupSummary]) -> Answer:
    """States scale bits and measured speed, compared with the baseline's."""
    said = []
    known = [s for s in summaries if math.isfinite(s.scale_bits)]
    alive = [s for s in known if s.verdict.kind is not Kind.DIVERGED]
    told = [
        _by_value(list(dict.fromkeys((s.group.key.recipe, s.scale_bits) for s in those)), text)
        for those, text in (
            (alive, "{:.2g}".format),
            ([s for s in known if s not in alive], "of what diverged {:.2g}".format),
        )
    ]
    if known:
        said.append(("fact", f"Bits of scale per element: {'; '.join(filter(None, told))}."))
    stage = measured_stage(study)
    emulated = any(run.meta.get("backend") == "cpu" for run in study.runs)  # no GPU speed
    speeds = {
        s.group.label: s.tokens_per_second[stage]
        for s in summaries
        if stage
        and not emulated
        and math.isfinite(s.tokens_per_second[stage].mean)
        and s.verdict.kind is not Kind.DIVERGED
    }
    devices = sorted({device_text(run) for run in study.runs})
    if speeds:
        listed = _listed([f"{label} {plus_minus(v, '{:.0f}')}" for label, v in speeds.items()])
        text = f"Tokens per second in {stage}: {listed}; measured on {'; '.join(devices)}"
        said.append(("fact", text + "."))
    if not said:
        said.append(("fact", "No run logged the bits of its scales, or a speed on a GPU."))
    return Answer("What did it cost?", said)


def _condition_text(found: Condition) -> str:
    """Names the conspicuous operands of a logged step."""
    parts = []
    if found.weakest is not None:
        parts.append(f"lowest SQNR {found.weakest.value:.1f} dB ({found.weakest.name})")
    for suspect, word in ((found.flushed, "flushed to zero"), (found.saturated, "saturated")):
        if suspect is not None and suspect.value > 0.0:
            parts.append(f"{100.0 * suspect.value:.3g} % of {suspect.name} {word}")
    if found.outlying is not None:
        ratio = f"{found.outlying.value:.3g}"
        parts.append(f"largest channel {ratio} × the median one ({found.outlying.name})")
    return "; ".join(parts)


def break_text(label: str, found: Break) -> str:
    """States where an arm broke, what was not finite first, and the state of its operands
    before."""
    text = f"{label}, seed {found.run.seed}: the {found.loss} {found.how} at step {found.step}"
    text += f" ({found.stage})"
    if found.event is not None:
        text += f"; first seen at step {found.event.step}: {found.event.message}"
    if found.run.warnings:
        text += f". {_warning_text(found)}"
    if found.before is not None and (seen := _condition_text(found.before)):
        text += f". At step {found.before.step}, logged before it: {seen}"
    return text + "."


def _warning_text(found: Break) -> str:
    """Names the detector that warned first before a break, its lead, and the tensor."""
    score = warning_before(found.run, found.step)
    if score is None:
        return "No detector warned before"
    steps = counted(found.step - score.step, "step")
    return (
        f"The detector of {detector_text(score.detector)} warned at step {score.step}, {steps} "
        f"before the loss broke{place_text(score)}"
    )


def why_did_it_break(study: Study, summaries: Sequence[GroupSummary]) -> Answer:
    """Describes the breaks of diverged arms and the operands of worse arms; if there are neither,
    the operands with the most underflow."""
    breaks = [
        (summary.group.label, found)
        for summary in summaries
        for run in summary.group.runs
        if (found := find_break(run, study.stages)) is not None
    ]
    firsts = {label: found for label, found in reversed(breaks)}  # the first seed of each arm
    said = [("bad", break_text(label, firsts[label])) for label in list(firsts)[::-1][:MOST_BREAKS]]
    if len(firsts) > MOST_BREAKS:
        said.append(("bad", f"{len(firsts) - MOST_BREAKS} more arms broke: see the findings."))
    if not firsts:
        said.append(("good", "No arm broke: every loss stayed finite and did not run away."))
    said += [("bad", _lossy(s)) for s in summaries if s.verdict.kind is Kind.WORSE][:MOST_BREAKS]
    if len(said) == 1 and not firsts:
        flushed = [
            f"{s.group.label} {100.0 * operand.underflow.mean:.3g} % of {operand.slot}"
            for s in summaries
            if (operand := s.worst_underflow) is not None
        ]
        if flushed:
            said.append(("fact", f"Flushed to zero where most is: {_listed(flushed)}."))
    return Answer("Why did that arm break?", said)


def _lossy(summary: GroupSummary) -> str:
    """Describes the operands of a worse arm at its last logged step."""
    run = summary.group.runs[0]
    text = f"{summary.group.label} did not break, but is worse"
    if run.tensors.step.size == 0:
        return f"{text}; it logged no operands."
    found = condition(run, run.tensors.step.size - 1)
    return f"{text}. At step {found.step}: {_condition_text(found)}."


def make_answers(study: Study, summaries: Sequence[GroupSummary]) -> list[Answer]:
    """Returns the three answers, in the order of the questions."""
    return [
        may_i_use_it(study, summaries),
        what_did_it_cost(study, summaries),
        why_did_it_break(study, summaries),
    ]
