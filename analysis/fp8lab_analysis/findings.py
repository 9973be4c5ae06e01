"""Sentences that say what the data of a study show. Every one is computed; none is fixed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fp8lab_analysis import stats
from fp8lab_analysis.compare import GroupSummary, MatchSummary, tensor_summaries
from fp8lab_analysis.runs import Run
from fp8lab_analysis.study import Study
from fp8lab_analysis.tables import gap_text


@dataclass(frozen=True)
class Finding:
    """One sentence or two, and what kind: good, bad, fact or caution."""

    kind: str
    topic: str
    text: str


def _join(names: Sequence[str]) -> str:
    items = list(names)
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


def _gap(summary: GroupSummary) -> str:
    """The final gap with its uncertainty (over seeds, else within the run) and as a share of the
    baseline's loss."""
    shown = gap_text(summary)
    reference = summary.final_loss[summary.gap_stage].mean - summary.final_gap.mean
    if math.isfinite(reference) and reference > 0.0:
        share = 100.0 * summary.final_gap.mean / reference
        shown += f", {share:+.1f} %".replace("-", "−")
    return shown


def _candidates(summaries: Sequence[GroupSummary]) -> list[GroupSummary]:
    return [s for s in summaries if not s.group.is_baseline]


def _with_gap(summaries: Sequence[GroupSummary]) -> list[GroupSummary]:
    found = [
        s
        for s in _candidates(summaries)
        if math.isfinite(s.final_gap.mean) and s.verdict is not stats.Verdict.DIVERGED
    ]
    return sorted(found, key=lambda s: s.final_gap.mean)


def band_findings(study: Study, summaries: Sequence[GroupSummary]) -> list[Finding]:
    """Who ends inside the baseline's seed band, and who does not."""
    name = study.baseline_recipe
    judged = _with_gap(summaries)
    if not judged:
        if _candidates(summaries) and not study.pairings:
            return [
                Finding(
                    "caution",
                    "Baseline",
                    f"No run has a paired {name} run with the same seed "
                    "and configuration, so no loss gap can be given.",
                )
            ]
        return []
    findings = []
    known = [s for s in judged if math.isfinite(s.band)]
    inside = [s for s in known if s.verdict is stats.Verdict.INSIDE]
    worse = [s for s in known if s.verdict is stats.Verdict.WORSE]
    better = [s for s in known if s.verdict is stats.Verdict.BETTER]
    if known:
        seeds = max(len(g.runs) for g in study.groups if g.is_baseline)
        widths = sorted({f"{s.band:.4f}" for s in known})
        band = f"±{widths[0]}" if len(widths) == 1 else f"±{widths[0]} to ±{widths[-1]}"
        text = f"The {name} seed band is {band} nats/token ({seeds} seeds). "
        if inside:
            text += f"Inside it: {_join([s.group.label for s in inside])}. "
        if worse:
            text += f"Worse: {_join([f'{s.group.label} ({_gap(s)})' for s in worse])}. "
        if better:
            text += f"Better: {_join([f'{s.group.label} ({_gap(s)})' for s in better])}. "
        findings.append(Finding("good" if inside and not worse else "fact", "Seed band", text))
        if seeds < 3:
            findings.append(
                Finding(
                    "caution",
                    "Seed band",
                    f"A band from {seeds} seeds is itself rough; "
                    "at least three make a verdict safer.",
                )
            )
        return findings
    none = [s for s in judged if s.verdict is stats.Verdict.UNRESOLVED]
    above = [s for s in judged if s.verdict is stats.Verdict.WORSE_ONE_SEED]
    below = [s for s in judged if s.verdict is stats.Verdict.BETTER_ONE_SEED]
    short = [s for s in judged if s.verdict is stats.Verdict.TOO_SHORT]
    text = ""
    if short:
        text += f"Too few steps to judge: {_join([s.group.label for s in short])}. "
    if none:
        text += f"No measurable gap to {name}: {_join([s.group.label for s in none])}. "
    if above:
        text += f"Measurably worse: {_join([f'{s.group.label} ({_gap(s)})' for s in above])}. "
    if below:
        text += f"Measurably better: {_join([f'{s.group.label} ({_gap(s)})' for s in below])}. "
    findings.append(Finding("fact", "Gap, one seed", text))
    findings.append(
        Finding(
            "caution",
            "No seed band",
            f"With fewer than two {name} seeds the noise between "
            "seeds is unknown: a gap can exceed the noise within its run and still be smaller "
            "than a change of seed.",
        )
    )
    return findings


def gap_findings(summaries: Sequence[GroupSummary]) -> list[Finding]:
    """Smallest and largest gap of every variant, and what a variant adds."""
    findings = []
    judged = _with_gap(summaries)
    for variant in dict.fromkeys(s.group.key.variant for s in judged):
        ranked = [s for s in judged if s.group.key.variant == variant]
        best, worst = ranked[0], ranked[-1]
        topic = "Loss gap" + (f", {variant}" if variant else "")
        text = f"In nats/token, smallest after {best.gap_stage}: "
        text += f"{best.group.key.recipe} ({_gap(best)})"
        if len(ranked) > 1:
            text += f"; largest: {worst.group.key.recipe} ({_gap(worst)})"
        findings.append(Finding("fact", topic, text + "."))
    plain = {s.group.key.recipe: s for s in judged if not s.group.key.variant}
    for variant in dict.fromkeys(s.group.key.variant for s in judged if s.group.key.variant):
        changes = [
            (s.group.key.recipe, s.final_gap.mean - plain[s.group.key.recipe].final_gap.mean)
            for s in judged
            if s.group.key.variant == variant and s.group.key.recipe in plain
        ]
        if changes:
            changes.sort(key=lambda item: item[1])
            listed = _join(
                [f"{recipe} {change:+.4f}".replace("-", "−") for recipe, change in changes]
            )
            findings.append(
                Finding(
                    "fact",
                    f"Effect of {variant}",
                    f"Change of the final gap: {listed} " "nats/token.",
                )
            )
    return findings


def divergence_findings(summaries: Sequence[GroupSummary]) -> list[Finding]:
    """Which recipes broke, how often and where first."""
    findings = []
    for summary in summaries:
        if summary.verdict is not stats.Verdict.DIVERGED:
            continue
        seeds = len(summary.runs)
        if seeds == 1:
            text = f"{summary.group.label} diverged in its only seed."
        else:
            low, high = stats.wilson_interval(summary.diverged_seeds, seeds)
            text = (
                f"{summary.group.label} diverged in {summary.diverged_seeds} of {seeds} seeds "
                f"(95 % interval of the rate: {100.0 * low:.0f} to {100.0 * high:.0f} %)."
            )
        events = [e for item in summary.runs for e in item.run.events if e.kind == "nan"]
        if events:
            first = min(events, key=lambda event: event.step)
            text += f" First event: step {first.step}, {first.message}."
        findings.append(Finding("bad", "Divergence", text))
    return findings


HOLDS = (
    stats.Verdict.INSIDE,
    stats.Verdict.BETTER,
    stats.Verdict.UNRESOLVED,
    stats.Verdict.BETTER_ONE_SEED,
)


UNJUDGED = (stats.Verdict.UNPAIRED, stats.Verdict.TOO_SHORT)


def _cheapest(summaries: Sequence[GroupSummary]) -> list[GroupSummary]:
    """The groups with the fewest scale bits among those that hold, ties included."""
    safe = [s for s in summaries if s.verdict in HOLDS and math.isfinite(s.scale_bits)]
    if not safe:
        return []
    least = min(s.scale_bits for s in safe)
    return [s for s in safe if s.scale_bits <= 1.001 * least]


def choice_findings(study: Study, summaries: Sequence[GroupSummary]) -> list[Finding]:
    """The cheapest scales among the recipes that stay with the baseline, variant by variant."""
    findings = []
    candidates = [s for s in _candidates(summaries) if math.isfinite(s.scale_bits)]
    for variant in dict.fromkeys(s.group.key.variant for s in candidates):
        members = [s for s in candidates if s.group.key.variant == variant]
        topic = "Cheapest that holds" + (f", {variant}" if variant else "")
        tied = _cheapest(members)
        if all(s.verdict in UNJUDGED for s in members):
            continue
        if not tied:
            closest = _with_gap(members)[:1]
            best = (
                f" Closest: {closest[0].group.key.recipe} ({_gap(closest[0])})." if closest else ""
            )
            findings.append(
                Finding(
                    "bad",
                    topic,
                    f"None of {len(members)} recipes keeps up with {study.baseline_recipe}.{best}",
                )
            )
            continue
        named = _join([f"{s.group.key.recipe} ({s.format_text})" for s in tied])
        measure = "seed band" if math.isfinite(tied[0].band) else "noise within the run"
        findings.append(
            Finding(
                "good",
                topic,
                f"{named}, at {tied[0].scale_bits:.2g} scale bits per element: "
                f"its loss gap to {study.baseline_recipe} is no larger than the {measure}.",
            )
        )
    return findings


def error_findings(summaries: Sequence[GroupSummary]) -> list[Finding]:
    """Largest and smallest quantization error, the operand and the tensors that suffer."""
    ranked = sorted(
        (s for s in summaries if math.isfinite(s.mean_sqnr_db)), key=lambda s: -s.mean_sqnr_db
    )
    if not ranked:
        return []
    best, worst = ranked[0], ranked[-1]
    text = f"Smallest: {best.group.label} (mean SQNR {best.mean_sqnr_db:.1f} dB)"
    if worst is not best:
        text += f"; largest: {worst.group.label} ({worst.mean_sqnr_db:.1f} dB)"
    operand = worst.worst_operand
    if operand is not None:
        text += (
            f". Its weakest operand is {operand.slot} ({operand.sqnr_db.mean:.1f} dB, "
            f"worst tensor {operand.worst_sqnr_db:.1f} dB)"
        )
    findings = [Finding("fact", "Quantization error", text + ".")]
    losses = [(s, o) for s in ranked if (o := s.worst_underflow) is not None]
    if losses:
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
        findings.append(Finding("fact", "Underflow", text + "."))
    return findings


def tensor_findings(summaries: Sequence[GroupSummary]) -> list[Finding]:
    """Which tensors have the lowest SQNR, and whether recipes agree on it."""
    worst_of = {}
    for summary in summaries:
        tensors = [t for t in tensor_summaries(summary.group) if math.isfinite(t.sqnr_db)]
        if tensors:
            worst_of[summary.group.label] = tensors
    if not worst_of:
        return []
    label, tensors = min(worst_of.items(), key=lambda item: item[1][0].sqnr_db)
    listed = _join([f"{t.layer}/{t.slot} ({t.sqnr_db:.1f} dB)" for t in tensors[:3]])
    text = f"Lowest SQNR of the study, all in {label}: {listed}."
    kinds: dict[str, int] = {}
    for found in worst_of.values():
        module = ".".join(found[0].layer.split(".")[2:]) or found[0].layer
        name = f"{module}/{found[0].slot}"
        kinds[name] = kinds.get(name, 0) + 1
    name, count = max(kinds.items(), key=lambda item: item[1])
    if len(worst_of) > 1 and count > 1:
        text += f" The worst tensor is a {name} in {count} of {len(worst_of)} recipes."
    return [Finding("fact", "Tensors that suffer", text)]


def match_findings(study: Study, summaries: Sequence[GroupSummary]) -> list[Finding]:
    """Exact match beside the baseline's interval, at the end of the last stage that has it."""
    stages = [stage for stage in study.stages if any(stage in s.matches for s in summaries)]
    if not stages:
        return []
    stage = stages[-1]
    known = {s.group.label: s.matches[stage] for s in summaries if stage in s.matches}

    def shown(label: str, match: MatchSummary) -> str:
        low, high = match.interval
        return f"{label} {100 * match.fraction:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"

    best = max(known.items(), key=lambda item: item[1].fraction)
    worst = min(known.items(), key=lambda item: item[1].fraction)
    text = f"After {stage}: highest {shown(*best)}"
    if worst[0] != best[0]:
        text += f", lowest {shown(*worst)}"
    text += " (95 % intervals)."
    below = []
    for summary in _candidates(summaries):
        baseline = study.baseline_group(summary.group)
        reference = known.get(baseline.label) if baseline else None
        own = known.get(summary.group.label)
        if reference and own and own.interval[1] < reference.interval[0]:
            below.append(summary.group.label)
    if below:
        text += f" Interval wholly below the baseline's: {_join(below)}."
    elif len(known) > 1 and study.pairings:
        text += " No recipe's interval lies wholly below its baseline's."
    return [Finding("bad" if below else "fact", "Exact match", text)]


def _last_step(run: Run) -> str:
    """Last step of a run, and whether its loss had stopped being finite there."""
    if len(run.metrics) == 0:
        return "0"
    broken = "" if math.isfinite(run.metrics.loss[-1]) else ", loss not finite"
    return f"{int(run.metrics.step[-1])}{broken}"


def state_findings(study: Study) -> list[Finding]:
    """Unfinished runs, missing files, doubtful pairs, bit-identical results."""
    findings = [Finding("caution", "Files", note) for note in study.notes]
    unfinished = [run for run in study.runs if not run.complete]
    if unfinished:
        last = _join([f"{run.name} (step {_last_step(run)})" for run in unfinished[:6]])
        more = f" and {len(unfinished) - 6} more" if len(unfinished) > 6 else ""
        findings.append(
            Finding(
                "caution",
                "Not complete",
                f"{len(unfinished)} of {len(study.runs)} runs: "
                f"{last}{more}. Their numbers are those of their last step.",
            )
        )
    odd = [
        run.name
        for run in study.runs
        if run.path in study.pairings and study.pairings[run.path].note
    ]
    if odd:
        note = study.pairings[next(r.path for r in study.runs if r.name == odd[0])].note
        findings.append(Finding("caution", "Pairing", f"{_join(odd)}: {note}."))
    by_hash: dict[int, list[str]] = {}
    for run in study.runs:
        if run.complete and run.final_weight_hash:
            by_hash.setdefault(run.final_weight_hash, []).append(run.name)
    same = [" = ".join(names) for names in by_hash.values() if len(names) > 1]
    if same:
        findings.append(
            Finding("fact", "Same bits", f"Bit-identical final weights: {_join(same)}.")
        )
    return findings


def make_findings(study: Study, summaries: Sequence[GroupSummary]) -> list[Finding]:
    """Everything worth saying first, most important first."""
    return [
        *choice_findings(study, summaries),
        *divergence_findings(summaries),
        *band_findings(study, summaries),
        *gap_findings(summaries),
        *match_findings(study, summaries),
        *error_findings(summaries),
        *tensor_findings(summaries),
        *state_findings(study),
    ]
