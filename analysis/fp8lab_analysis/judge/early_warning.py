"""Evaluates the detectors of runs: leads before the loss goes wrong, misses and false alarms.

A run writes the scores of its detectors to /warnings (src/train/watch/early_warning.hpp). A
detector warns if its score is at least 1. A loss goes wrong at the earlier of two steps: the step
at which the run breaks (`breaks.find_break`), and the step at which its gap leaves the seed band
(`stats.first_departure`; known if the baseline has two or more seeds). The lead of a detector is
this step minus the step of its first warning in the run. A warning in a run whose loss does not go
wrong is a false alarm. """

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from fp8lab_analysis.judge import stats
from fp8lab_analysis.judge.breaks import find_break
from fp8lab_analysis.judge.compare import GroupSummary, RunComparison
from fp8lab_analysis.read.runs import DetectorScore, Run
from fp8lab_analysis.read.study import Study

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
    """The step at which the loss of a run goes wrong."""

    step: int
    stage: str
    how: str  # behaviour of the loss
    broke: int | None = None  # step at which the run breaks, if later


@dataclass(frozen=True)
class Warned:
    """The first warning of every detector of one run, and the trouble, if any."""

    run: Run
    trouble: Trouble | None
    first: dict[str, DetectorScore]

    def lead(self, detector: str) -> int | None:
        """Returns the steps from its first warning to the trouble; negative if it came too late."""
        if self.trouble is None or detector not in self.first:
            return None
        return self.trouble.step - self.first[detector].step

    @property
    def earliest(self) -> DetectorScore | None:
        """The first warning before the trouble; without trouble, the first of all."""
        early = [
            score
            for score in self.first.values()
            if self.trouble is None or score.step < self.trouble.step
        ]
        return min(early, key=lambda score: score.step) if early else None


@dataclass(frozen=True)
class DetectorSummary:
    """Results of one detector in the watched runs of one group."""

    detector: str
    troubled: int  # number of runs whose loss went wrong
    leads: list[int]  # leads in troubled runs with an early warning
    late: int  # number of troubled runs with a late first warning
    quiet: int  # number of runs whose loss did not go wrong
    false_alarms: int  # number of quiet runs with a warning

    @property
    def lead(self) -> stats.Spread:
        """Spread of the leads over the runs with an early warning."""
        return stats.spread_over_seeds([float(lead) for lead in self.leads])


def warning_before(run: Run, step: int) -> DetectorScore | None:
    """Returns the first warning of a run if it came before `step`."""
    early = [score for score in run.warnings if score.warns and score.step < step]
    return min(early, key=lambda score: score.step) if early else None


def find_trouble(study: Study, item: RunComparison) -> Trouble | None:
    """Returns where the loss of a run first goes wrong; None if it does not."""
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
    """Returns the first warnings of a run."""
    first: dict[str, DetectorScore] = {}
    for score in item.run.warnings:
        if score.warns:
            first.setdefault(score.detector, score)
    return Warned(item.run, find_trouble(study, item), first)


def watched(study: Study, summary: GroupSummary) -> list[Warned]:
    """Returns the runs of a group with logged scores."""
    return [warned(study, item) for item in summary.runs if item.run.warnings]


def detector_summaries(study: Study, summary: GroupSummary) -> list[DetectorSummary]:
    """Returns the results of every detector with a score in the runs of a group."""
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
    """Returns the place of a detector's value; empty if it belongs to the whole step."""
    channel = f", channel {score.channel}" if score.channel >= 0 else ""
    return f", most in {score.place}{channel}" if score.place else ""


def detector_text(detector: str) -> str:
    """Returns a detector's name for a sentence."""
    return detector.replace("_", " ")


def lead_text(label: str, runs: Sequence[Warned]) -> str:
    """Names the detector that warned first before the losses of a group went wrong, for the run
    with the shortest lead. Empty if no loss went wrong."""
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
    """Describes the false alarms of a group; empty if there are none."""
    quiet = [item for item in runs if item.trouble is None]
    told = []
    for name in dict.fromkeys(detector for item in quiet for detector in item.first):
        steps = [item.first[name].step for item in quiet if name in item.first]
        number = f"{len(steps)} of {len(quiet)}"
        told.append(f"{detector_text(name)} in {number} runs (first at step {min(steps)})")
    return f"{label}: {', '.join(told)}" if told else ""
