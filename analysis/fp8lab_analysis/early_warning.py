"""What the detectors of a run said before its loss went wrong: leads, misses and false alarms.

A run writes the scores of its detectors into /warnings (src/train/early_warning.hpp); from a score
of 1 on a detector warns. A loss goes wrong at the earlier of two steps that are defined elsewhere:
where the run breaks (`breaks.find_break`) and where its gap leaves the seed band for good
(`stats.first_departure`, known where the baseline has two or more seeds). The lead of a detector is
that step minus the one of its first warning in the run. A warning in a run whose loss does not go
wrong is a false alarm.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from fp8lab_analysis import stats
from fp8lab_analysis.breaks import find_break
from fp8lab_analysis.compare import GroupSummary, RunComparison
from fp8lab_analysis.runs import DetectorScore, Run
from fp8lab_analysis.study import Study

DETECTORS = (
    "outlier_channels",
    "swiglu_alignment",
    "kurtosis",
    "scale_drift",
    "amax_lag",
    "gradient_norm",
)


@dataclass(frozen=True)
class Trouble:
    """Where the loss of a run goes wrong."""

    step: int
    stage: str
    how: str  # what the loss did
    broke: int | None = None  # step at which the run breaks, where that comes later


@dataclass(frozen=True)
class Warned:
    """The first warning of every detector of one run, beside what came of it."""

    run: Run
    trouble: Trouble | None
    first: dict[str, DetectorScore]

    def lead(self, detector: str) -> int | None:
        """Steps from its first warning to the trouble; below zero: it came too late."""
        if self.trouble is None or detector not in self.first:
            return None
        return self.trouble.step - self.first[detector].step

    @property
    def earliest(self) -> DetectorScore | None:
        """The first warning that came before the trouble; without trouble the first of all."""
        early = [
            score
            for score in self.first.values()
            if self.trouble is None or score.step < self.trouble.step
        ]
        return min(early, key=lambda score: score.step) if early else None


@dataclass(frozen=True)
class DetectorSummary:
    """One detector in the watched runs of one group."""

    detector: str
    troubled: int  # runs whose loss went wrong
    leads: list[int]  # of those in which it warned before
    late: int  # in which it warned only then
    quiet: int  # runs whose loss did not go wrong
    false_alarms: int  # of those in which it warned

    @property
    def lead(self) -> stats.Spread:
        """The leads over the runs that it warned in."""
        return stats.spread_over_seeds([float(lead) for lead in self.leads])


def warning_before(run: Run, step: int) -> DetectorScore | None:
    """The first warning of a run, where it came before a step."""
    early = [score for score in run.warnings if score.warns and score.step < step]
    return min(early, key=lambda score: score.step) if early else None


def find_trouble(study: Study, item: RunComparison) -> Trouble | None:
    """Where the loss of a run first goes wrong; None where it does not."""
    found = []
    broken = find_break(item.run, study.stages)
    if broken is not None:
        found.append(Trouble(broken.step, broken.stage, broken.how))
    found += [
        Trouble(stage.first_departure, stage.stage, "left the band of the baseline's seeds")
        for stage in item.stages.values()
        if stage.first_departure is not None
    ]
    if not found:
        return None
    first = min(found, key=lambda trouble: trouble.step)
    later = broken is not None and broken.step > first.step
    return dataclasses.replace(first, broke=broken.step) if later and broken else first


def warned(study: Study, item: RunComparison) -> Warned:
    """The first warnings of a run."""
    first: dict[str, DetectorScore] = {}
    for score in item.run.warnings:
        if score.warns:
            first.setdefault(score.detector, score)
    return Warned(item.run, find_trouble(study, item), first)


def watched(study: Study, summary: GroupSummary) -> list[Warned]:
    """The runs of a group that wrote down scores."""
    return [warned(study, item) for item in summary.runs if item.run.warnings]


def detector_summaries(study: Study, summary: GroupSummary) -> list[DetectorSummary]:
    """Every detector that had a score in the runs of a group."""
    runs = watched(study, summary)
    known = {score.detector for item in runs for score in item.run.warnings}
    order = [*DETECTORS, *sorted(known - set(DETECTORS))]
    troubled = [item for item in runs if item.trouble is not None]
    quiet = [item for item in runs if item.trouble is None]

    def summarise(name: str) -> DetectorSummary:
        leads = [lead for item in troubled if (lead := item.lead(name)) is not None]
        return DetectorSummary(
            detector=name,
            troubled=len(troubled),
            leads=[lead for lead in leads if lead > 0],
            late=sum(lead <= 0 for lead in leads),
            quiet=len(quiet),
            false_alarms=sum(name in item.first for item in quiet),
        )

    return [summarise(name) for name in order if name in known]


def place_text(score: DetectorScore) -> str:
    """Where a detector has its value; empty for one of the whole step."""
    channel = f", channel {score.channel}" if score.channel >= 0 else ""
    return f", most in {score.place}{channel}" if score.place else ""


def detector_text(detector: str) -> str:
    """A detector's name in a sentence."""
    return detector.replace("_", " ")


def lead_text(label: str, runs: Sequence[Warned]) -> str:
    """Which detector warned first before the losses of a group went wrong: the run with the
    shortest lead speaks for it. Empty where no loss did."""
    troubled = [(item, item.trouble, item.earliest) for item in runs if item.trouble is not None]
    if not troubled:
        return ""
    told = [(t.step - e.step, item, t, e) for item, t, e in troubled if e is not None]
    if not told:
        item, trouble, _ = min(troubled, key=lambda found: found[1].step)
        return (
            f"{label}: nothing warned before the loss {trouble.how} at step {trouble.step} "
            f"({trouble.stage}, seed {item.run.seed})"
        )
    lead, item, trouble, score = min(told, key=lambda found: found[0])
    place = place_text(score)
    text = f"{label}: {detector_text(score.detector)} warned at step {score.step}, "
    if trouble.broke is not None:
        text += (
            f"{trouble.broke - score.step} steps before the loss broke (step {trouble.broke}) and "
        )
    text += (
        f"{lead} steps before it {trouble.how} (step {trouble.step}; {trouble.stage}, seed "
        f"{item.run.seed}{place})"
    )
    if len(troubled) > 1:
        text += f"; something warned before in {len(told)} of {len(troubled)} such runs"
    return text


def alarm_text(label: str, runs: Sequence[Warned]) -> str:
    """The false alarms of a group; empty where there are none."""
    quiet = [item for item in runs if item.trouble is None]
    told = []
    for name in dict.fromkeys(detector for item in quiet for detector in item.first):
        steps = [item.first[name].step for item in quiet if name in item.first]
        number = f"{len(steps)} of {len(quiet)}"
        told.append(f"{detector_text(name)} in {number} runs (first at step {min(steps)})")
    return f"{label}: {', '.join(told)}" if told else ""
