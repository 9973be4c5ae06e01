"""Sentences about the results of a study, all computed from its data.

Recipes are put in an order only if the noise between seeds is known: with two or more seeds of each
recipe and, for a loss gap, of the baseline. Recipes with one seed are listed without an order, with
their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fp8lab_analysis.judge.attribution import Attribution, Part, PartGroup, attribute_gaps
from fp8lab_analysis.judge.compare import GroupSummary, MatchSummary, gap_change, match_tells
from fp8lab_analysis.judge.early_warning import alarm_text, lead_text, watched
from fp8lab_analysis.judge.inference import deviation_interval
from fp8lab_analysis.judge.phrases import counted, joined
from fp8lab_analysis.judge.verdicts import Kind, measured
from fp8lab_analysis.page.cells import equal_quality_text, gap_text, target_text
from fp8lab_analysis.page.finding import Finding
from fp8lab_analysis.page.operand_findings import (
    channel_findings,
    error_findings,
    outlier_findings,
    tensor_findings,
)
from fp8lab_analysis.page.weights_gap import weights_findings
from fp8lab_analysis.read.runs import Run
from fp8lab_analysis.read.study import Study


def _candidates(summaries: Sequence[GroupSummary]) -> list[GroupSummary]:
    return [s for s in summaries if not s.group.is_baseline]


def _with_gap(summaries: Sequence[GroupSummary]) -> list[GroupSummary]:
    """Returns the candidates that have a gap and did not diverge."""
    return [
        s
        for s in _candidates(summaries)
        if math.isfinite(s.final_gap.mean) and s.verdict.kind is not Kind.DIVERGED
    ]


def _ranked(summaries: Sequence[GroupSummary]) -> list[GroupSummary]:
    """Returns the summaries whose gaps can be put in an order, smallest first."""
    known = [s for s in _with_gap(summaries) if s.verdict.ordered]
    return sorted(known, key=lambda s: s.final_gap.mean)


def one_seed_findings(study: Study, summaries: Sequence[GroupSummary]) -> list[Finding]:
    """Lists the gaps that give no order, in the order of the study."""
    single = [s for s in _with_gap(summaries) if s.verdict.kind is Kind.NOT_ORDERED]
    if not single:
        return []
    name = study.baseline_recipe
    told = f"{name} or than one another" if len(single) > 1 else name
    text = "Nothing can be ordered" if not _ranked(summaries) else "Not in any order"
    text += (
        f": whether a gap is more than the noise between seeds takes two or more seeds of {name} "
        f"and of each recipe. The gaps to {name} as they come: "
        f"{'; '.join(map(_both_gaps, single))}. None is better or worse "
        f"than {told} by these numbers; an error in the run leaves out the noise between seeds."
    )
    return [Finding("caution", "One seed", text)]


def _both_gaps(summary: GroupSummary) -> str:
    """Returns the gaps of an arm in training and held-out loss."""
    text = f"{summary.group.label} {gap_text(summary)} nats/token of the training loss"
    if summary.judged_on == "training":
        return text
    return f"{text}, {summary.verdict.gap_text} of the {summary.judged_on} loss"


SHOWN_AS = {
    Kind.EQUIVALENT: "good",
    Kind.BETTER: "good",
    Kind.WORSE: "bad",
    Kind.INCONCLUSIVE: "caution",
    Kind.UNPAIRED: "caution",
}


def _verdict_text(summary: GroupSummary) -> str:
    """Returns the sentence of an arm's verdict, and its gap if the sentence does not contain it."""
    verdict = summary.verdict
    text = f"{summary.group.label}: {verdict.sentence}"
    if verdict.kind in (Kind.EQUIVALENT, Kind.INCONCLUSIVE):
        text += f"; gap {verdict.gap_text}"
    return text if summary.complete else f"{text}; unfinished"


def verdict_findings(study: Study, summaries: Sequence[GroupSummary]) -> list[Finding]:
    """States the verdict on every arm, by kind, and the method."""
    name = study.baseline_recipe
    candidates = _candidates(summaries)
    if candidates and not study.pairings:
        text = f"No run has a paired {name} run with the same seed and configuration, so no loss "
        return [Finding("caution", "Baseline", text + "gap can be given.")]
    findings = []
    for kind, shown in SHOWN_AS.items():
        said = [_verdict_text(s) for s in candidates if s.verdict.kind is kind]
        if said:
            findings.append(Finding(shown, kind.value.capitalize(), ". ".join(said) + "."))
    judged = [s for s in candidates if s.verdict.ordered]
    if judged:
        findings.append(Finding("fact", "How it was judged", _how_judged(study, judged)))
        findings += _rough_deviations(judged)
    findings += text_findings(candidates)
    return findings


def text_findings(candidates: Sequence[GroupSummary]) -> list[Finding]:
    """States which gaps are undecided because of the noise of the held-out text."""
    with_gap = [s for s in candidates if math.isfinite(s.verdict.gap.mean)]
    known = [s for s in with_gap if s.verdict.text.is_known]
    if not known:
        return []
    numbers = sorted({s.verdict.text.documents for s in known})
    said = [
        f"{s.group.label} ± {measured(s.verdict.over_documents)}"
        + (
            f" (± {measured(s.verdict.over_both)} over both)"
            if math.isfinite(s.verdict.over_both)
            else ""
        )
        for s in known
    ]
    text = (
        f"All seeds are evaluated on one text of {joined(list(map(str, numbers)))} documents. ± "
        "over documents is what another text of such documents would change of a gap with these "
        "seeds, ± over seeds, beside the verdicts, what other seeds would change on this text; ± "
        f"over both is that of another text and other seeds: {'; '.join(said)}. "
    )
    open_ = [s.group.label for s in known if s.verdict.text_leaves_sign_open]
    if open_:
        text += (
            f"Told from zero over seeds, but not over documents: {joined(open_)}. On another text "
            "the sign may be the other one. "
        )
    reasons = sorted({s.verdict.text.unknown for s in with_gap if s.verdict.text.unknown})
    if reasons:
        unknown = [s.group.label for s in with_gap if s.verdict.text.unknown]
        text += f"Not known for {joined(unknown)} ({'; '.join(reasons)}). "
    return [Finding("caution" if open_ else "fact", "Noise of the held-out text", text.strip())]


def _how_judged(study: Study, judged: Sequence[GroupSummary]) -> str:
    """States losses, pairs, margin, level and correction of the verdicts."""
    design, arms = study.design, judged[0].verdict.arms
    losses = joined(sorted({f"{s.judged_on} loss after {s.gap_stage}" for s in judged}))
    seeds = sorted({s.verdict.seeds for s in judged})
    number = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    stated = f"stated {design.stated}" if design.stated else "not stated beforehand"
    return (
        f"{losses.capitalize()}, each run beside the {study.baseline_recipe} run of its seed "
        f"({number} seeds); a margin of {design.margin_text} of that loss and an error rate of "
        f"{100.0 * design.alpha:g} % over {counted(arms, 'arm')} and "
        f"{counted(design.looks, 'look')} ({stated}). Gaps are in percent of the "
        f"{study.baseline_recipe} loss, ± the half width of their interval: the noise of training "
        f"by seed, {_variances(judged)}. The noise of the held-out set by token and document is "
        f"not in it{_text_level(judged)}."
    )


def _text_level(judged: Sequence[GroupSummary]) -> str:
    """States where the report shows the noise of the held-out text, or why it is unknown."""
    if any(s.verdict.text.is_known for s in judged):
        return ", but beside it: “± over documents”"
    reasons = sorted({s.verdict.text.unknown for s in judged} - {""})
    return f", and not known: {'; '.join(reasons)}" if reasons else ""


def _variances(judged: Sequence[GroupSummary]) -> str:
    """States the sources of the variances of the verdicts."""
    counts = sorted({s.verdict.noise.pool for s in judged} - {0})
    own = sum(s.verdict.noise.pool == 0 for s in judged)
    said = [f"its variance moderated over {joined(list(map(str, counts)))} arms"] if counts else []
    if own:
        said.append(f"its own variance in {counted(own, 'arm')}")
    return joined(said)


def _rough_deviations(judged: Sequence[GroupSummary]) -> list[Finding]:
    """States how uncertain the deviation is from which numbers of seeds are computed."""
    few = [s.verdict for s in judged if s.verdict.kind is Kind.INCONCLUSIVE]
    few = [verdict for verdict in few if verdict.noise.df < 4.0]
    if not few:
        return []
    least = min(few, key=lambda verdict: verdict.noise.df)
    low, high = deviation_interval(1.0, least.noise.df, least.design.alpha)
    text = (
        f"Numbers of seeds come from the deviation of the gaps seen; one of {least.noise.df:.2g} "
        f"degrees of freedom may be off: the true one is {low:.2g} to {high:.2g} times it "
        f"({least.design.confidence_text}), and the seeds go with its square."
    )
    return [Finding("caution", "Seeds needed", text)]


def departure_findings(study: Study, summaries: Sequence[GroupSummary]) -> list[Finding]:
    """States where gaps first leave the seed band of the baseline."""
    left = [
        f"{s.group.label} at step {found[0]} ({found[1]}; {found[2]} of {s.seeds} seeds)"
        for s in _candidates(summaries)
        if s.seeds > 1 and (found := s.first_departure)
    ]
    if not left:
        return []
    text = (
        f"The smoothed gap to {study.baseline_recipe} goes beyond the band of its seeds, and stays "
        f"for 5 % of a stage, first: {'; '.join(left)}."
    )
    return [Finding("fact", "Leaves the seed floor", text)]


def _speed_text(summary: GroupSummary) -> str:
    """Lists the target losses of an arm and the cost of reaching them."""
    told = [f"{target_text(q)} {equal_quality_text(q)}" for q in summary.equal_quality]
    return f"{summary.group.label}: {', '.join(told)}"


def speed_findings(study: Study, summaries: Sequence[GroupSummary]) -> list[Finding]:
    """States the cost of arms until they reach the baseline's final held-out loss."""
    known = [s for s in _candidates(summaries) if s.verdict.ordered and s.equal_quality]
    on_cpu = any(run.meta.get("backend") == "cpu" for s in known for run in s.group.runs)
    if not known or on_cpu:  # wall times of the emulator are no GPU speeds
        return []
    name = study.baseline_recipe
    told = "; ".join(map(_speed_text, known))
    devices = dict.fromkeys(q.devices for s in known for q in s.equal_quality)
    text = (
        f"Until an arm has the held-out loss at the end of {name}, beside {name} itself until it "
        f"has that loss, from where the two part: {told}. Seconds are wall time on "
        f"{joined(list(devices))}"
    )
    return [Finding("fact", "Speed at equal quality", text + ".")]


def gap_findings(summaries: Sequence[GroupSummary]) -> list[Finding]:
    """States the smallest and largest gap of every variant, and the gap that a variant adds."""
    findings = []
    judged = _ranked(summaries)
    for variant in dict.fromkeys(s.group.key.variant for s in judged):
        ranked = [s for s in judged if s.group.key.variant == variant]
        best, worst = ranked[0], ranked[-1]
        topic = "Loss gap" + (f", {variant}" if variant else "")
        text = f"Of the training loss, in nats/token, smallest after {best.gap_stage}: "
        text += f"{best.group.key.recipe} ({gap_text(best)})"
        if len(ranked) > 1:
            text += f"; largest: {worst.group.key.recipe} ({gap_text(worst)})"
        findings.append(Finding("fact", topic, text + "."))
    plain = {s.group.key.recipe: s for s in judged if not s.group.key.variant}
    for variant in dict.fromkeys(s.group.key.variant for s in judged if s.group.key.variant):
        changes = [
            (s.group.key.recipe, gap_change(s, plain[s.group.key.recipe]))
            for s in judged
            if s.group.key.variant == variant and s.group.key.recipe in plain
        ]
        if changes:
            changes.sort(key=lambda item: item[1])
            listed = joined(
                [f"{recipe} {change:+.4f}".replace("-", "−") for recipe, change in changes]
            )
            text = f"Change of the final gap: {listed} nats/token."
            findings.append(Finding("fact", f"Effect of {variant}", text))
    return findings


def divergence_findings(summaries: Sequence[GroupSummary]) -> list[Finding]:
    """States which recipes broke, how often and where first."""
    findings = []
    for summary in summaries:
        if summary.verdict.kind is not Kind.DIVERGED:
            continue
        sentence = summary.verdict.sentence
        text = f"{summary.group.label} {sentence[0].lower()}{sentence[1:]}."
        events = [e for item in summary.runs for e in item.run.events if e.kind == "nan"]
        if events:
            first = min(events, key=lambda event: event.step)
            text += f" First event: step {first.step}, {first.message}."
        findings.append(Finding("bad", "Diverged", text))
    return findings


def warning_findings(study: Study, summaries: Sequence[GroupSummary]) -> list[Finding]:
    """States leads and false alarms of the detectors of all watched runs."""
    by_group = [(s.group.label, watched(study, s)) for s in summaries]
    leads = [text for label, runs in by_group if (text := lead_text(label, runs))]
    alarms = [text for label, runs in by_group if (text := alarm_text(label, runs))]
    quiet = sum(item.trouble is None for _, runs in by_group for item in runs)
    findings = []
    if leads:
        findings.append(Finding("fact", "Early warning", ". ".join(leads) + "."))
    if alarms:
        text = f"The loss did not go wrong although a detector warned: {'; '.join(alarms)}."
        findings.append(Finding("caution", "Warned, but nothing broke", text))
    elif quiet:
        runs = "run" if quiet == 1 else "runs"
        text = f"No detector warned in the {quiet} watched {runs} whose loss did not go wrong."
        findings.append(Finding("good", "False alarms", text))
    return findings


UNJUDGED = (Kind.UNPAIRED, Kind.NOT_ORDERED)


def _cheapest(summaries: Sequence[GroupSummary]) -> list[GroupSummary]:
    """Returns the groups with the fewest scale bits among those that hold, including ties."""
    safe = [s for s in summaries if s.verdict.holds and math.isfinite(s.scale_bits)]
    if not safe:
        return []
    least = min(s.scale_bits for s in safe)
    return [s for s in safe if s.scale_bits <= 1.001 * least]


def choice_findings(study: Study, summaries: Sequence[GroupSummary]) -> list[Finding]:
    """States the cheapest scales among the recipes that are shown to hold, for each variant."""
    findings = []
    candidates = [s for s in _candidates(summaries) if math.isfinite(s.scale_bits)]
    for variant in dict.fromkeys(s.group.key.variant for s in candidates):
        members = [s for s in candidates if s.group.key.variant == variant]
        topic = "Cheapest that holds" + (f", {variant}" if variant else "")
        open_ = [s.group.key.recipe for s in members if s.verdict.kind in UNJUDGED]
        left_out = f" Not judged: {joined(open_)}." if open_ else ""
        undecided = [
            s.group.key.recipe
            for s in members
            if s.verdict.kind is Kind.INCONCLUSIVE and not s.verdict.holds
        ]
        if undecided:
            left_out += f" Not decided: {joined(undecided)}."
        tied = _cheapest(members)
        if tied:
            named = joined([f"{s.group.key.recipe} ({s.format_text})" for s in tied])
            text = (
                f"{named}, at {tied[0].scale_bits:.2g} scale bits per element: shown to be not "
                f"worse than {study.baseline_recipe} by {study.design.margin_text}."
            )
            findings.append(Finding("good", topic, text + left_out))
        elif undecided:
            text = f"None of {len(members)} recipes is shown to hold yet."
            findings.append(Finding("caution", topic, text + left_out))
        elif not open_:
            text = f"None of {len(members)} recipes keeps up with {study.baseline_recipe}."
            if not any(s.verdict.has_pairs for s in members):
                text = f"Diverged: {joined([s.group.key.recipe for s in members])}."
            closest = _ranked(members)[:1]
            text += "".join(f" Closest: {s.group.key.recipe} ({gap_text(s)})." for s in closest)
            findings.append(Finding("bad", topic, text))
    return findings


def _match_text(label: str, match: MatchSummary) -> str:
    low, high = match.interval
    return f"{label} {100 * match.fraction:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


def match_findings(study: Study, summaries: Sequence[GroupSummary]) -> list[Finding]:
    """Compares exact match with the baseline's interval, at the end of the last measured stage."""
    stages = [stage for stage in study.stages if any(stage in s.matches for s in summaries)]
    if not stages:
        return []
    stage = stages[-1]
    asked = [s for s in summaries if stage in s.matches]
    if not match_tells(asked, stage):
        count = sum(s.matches[stage].asked for s in asked)
        right = "none" if asked[0].matches[stage].fraction == 0.0 else "all"
        text = f"After {stage}: {right} of {count} answers right in any recipe: it tells nothing."
        return [Finding("caution", "Exact match", text)]
    alive = [s for s in asked if s.verdict.kind is not Kind.DIVERGED]
    known = {s.group.label: s.matches[stage] for s in alive if s.seeds > 1}
    broken = [_match_text(s.group.label, s.matches[stage]) for s in asked if s not in alive]
    single = [_match_text(s.group.label, s.matches[stage]) for s in alive if s.seeds == 1]
    text = f"After {stage}: "
    if known:
        best = max(known.items(), key=lambda item: item[1].fraction)
        worst = min(known.items(), key=lambda item: item[1].fraction)
        text += f"highest {_match_text(*best)}"
        text += f", lowest {_match_text(*worst)}" if worst[0] != best[0] else ""
        text += "; " if single else ""
    if single:
        text += f"one seed each and in no order: {', '.join(single)}"
    if broken:
        text += f"{'; ' if known or single else ''}of what diverged: {', '.join(broken)}"
    text += " (95 % intervals of the questions, not of the seeds)."
    below = []
    for summary in _candidates(summaries):
        baseline = study.baseline_group(summary.group)
        reference = known.get(baseline.label) if baseline else None
        own = known.get(summary.group.label)
        if reference and own and own.interval[1] < reference.interval[0]:
            below.append(summary.group.label)
    if below:
        text += f" Interval wholly below the baseline's: {joined(below)}."
    elif len(known) > 1 and study.pairings:
        text += " No recipe's interval lies wholly below its baseline's."
    return [Finding("bad" if below else "fact", "Exact match", text)]


def _last_step(run: Run) -> str:
    """States the last step of a run, and whether its loss was not finite."""
    if len(run.metrics) == 0:
        return "0"
    fine = math.isfinite(run.metrics.loss[-1]) or bool(run.without_loss[-1])
    broken = "" if fine else ", loss not finite"
    return f"{int(run.metrics.step[-1])}{broken}"


def _listed_steps(steps: Sequence[int]) -> str:
    shown = ", ".join(str(step) for step in steps[:5])
    return f"step{'s' if len(steps) > 1 else ''} {shown}" + (", ..." if len(steps) > 5 else "")


def _share_text(part: Part) -> str:
    """States how much of the gap a source removes if it is exact."""
    found = part.left_out
    assert found is not None
    return f"{part.name} {measured(found.spread.mean, found.half_width)}"


def _group_text(group: PartGroup, ordered: bool) -> str:
    """States the change of the gap for each source of the group if it is exact; largest first if
    the noise is known."""
    parts = [part for part in group.parts if part.left_out is not None and part.left_out.known]
    if ordered:
        parts.sort(key=lambda p: -p.left_out.spread.mean if p.left_out else 0.0)
    text = f"by {group.name}: {', '.join(map(_share_text, parts))}"
    rest = group.remainder
    if rest is not None and rest.known:
        text += f", remainder {measured(rest.spread.mean, rest.half_width)}"
    return text if parts else ""


def attribution_findings(attributions: Sequence[Attribution]) -> list[Finding]:
    """States the change of each gap with one source exact, and the significant sources."""
    findings = []
    for found in attributions:
        lists = "; ".join(
            text for group in found.groups if (text := _group_text(group, found.ordered))
        )
        gap = measured(found.whole.spread.mean, found.whole.half_width)
        text = f"{found.label}, gap {gap} of the baseline's {found.judged_on} loss"
        if found.floor is not None and found.floor.known:
            text += f" ({measured(found.floor.spread.mean)} with every source exact)"
        text += f". What it loses when a source becomes exact, {lists}." if lists else "."
        if found.ordered:
            told = [
                part.name
                for group in found.groups
                for part in group.parts
                if part.left_out is not None and part.left_out.told_from_zero
            ]
            text += f" Told from none over {found.seeds} seeds: {joined(told) or 'no source'}."
        else:
            text += " One seed: no order follows, and none is told from the noise."
        if found.diverged:
            text += f" Diverged, and so without a number: {joined(found.diverged)}."
        if found.lacking:
            text += (
                f" Without a run of every seed, and so without a number: {joined(found.lacking)}."
            )
        findings.append(Finding("fact" if found.ordered else "caution", "Sources of the gap", text))
    return findings


def left_out_findings(study: Study) -> list[Finding]:
    """Lists rows that averages exclude, and the notes on the files."""
    findings = [
        Finding("caution", "Files", f"{run.name} is {note}.")
        for run in study.runs
        for note in run.notes
    ]
    for group in study.groups:
        logs = [run.tensors for run in group.runs]
        entries = sum(int(log.without_history.sum()) for log in logs)
        if entries:
            rows = {int(s) for log in logs for s in log.step[log.without_history.any(axis=1)]}
            text = (
                f"{group.label}: {entries} of {sum(log.without_history.size for log in logs)} "
                f"logged operands, at {_listed_steps(sorted(rows))}, were scaled before delayed "
                "scaling knew any amax. They enter no average and no figure."
            )
            findings.append(Finding("caution", "Without history", text))
    for run in study.runs:
        steps = [int(step) for step in run.metrics.step[run.without_targets]]
        if steps:
            text = f"{run.name}: no token to learn at {_listed_steps(steps)}, hence no loss there."
            findings.append(Finding("caution", "Without targets", text))
        left = [int(step) for step in run.metrics.step[run.left_out]]
        if left:
            text = f"{run.name}: the fallback left out {_listed_steps(left)}, not finite."
            findings.append(Finding("caution", "Left out", text))
    return findings


def state_findings(study: Study) -> list[Finding]:
    """Lists unfinished runs, missing files and bit-identical results."""
    findings = [Finding("caution", "Files", note) for note in study.notes]
    unfinished = [run for run in study.runs if not run.complete]
    if unfinished:
        last = joined([f"{run.name} (step {_last_step(run)})" for run in unfinished[:6]])
        more = f" and {len(unfinished) - 6} more" if len(unfinished) > 6 else ""
        findings.append(
            Finding(
                "caution",
                "Not complete",
                f"{len(unfinished)} of {len(study.runs)} runs: "
                f"{last}{more}. Their numbers are those of their last step.",
            )
        )
    by_hash: dict[int, list[str]] = {}
    for run in study.runs:
        if run.complete and run.final_weight_hash:
            by_hash.setdefault(run.final_weight_hash, []).append(run.name)
    same = [" = ".join(names) for names in by_hash.values() if len(names) > 1]
    if same:
        findings.append(
            Finding("fact", "Same bits", f"Bit-identical final weights: {joined(same)}.")
        )
    return findings


def make_findings(study: Study, summaries: Sequence[GroupSummary]) -> list[Finding]:
    """Returns all findings, most important first."""
    return [
        *one_seed_findings(study, summaries),
        *choice_findings(study, summaries),
        *verdict_findings(study, summaries),
        *divergence_findings(summaries),
        *warning_findings(study, summaries),
        *weights_findings(study, summaries),
        *attribution_findings(attribute_gaps(study, summaries)),
        *speed_findings(study, summaries),
        *departure_findings(study, summaries),
        *gap_findings(summaries),
        *match_findings(study, summaries),
        *error_findings(summaries),
        *tensor_findings(summaries),
        *outlier_findings(summaries),
        *channel_findings(study, summaries),
        *left_out_findings(study),
        *state_findings(study),
    ]
