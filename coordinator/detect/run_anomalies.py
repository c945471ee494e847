"""Turns problems of a whole run, a link or a node into anomalies.

Pure: values of the detectors in, anomalies out.
"""

from typing import TYPE_CHECKING

from coordinator.detect.anomalies import FLUCTUATION, LINK, SLOW_LINK, SLOW_RANK, UNSYNCHRONISED_GC, Anomaly
from coordinator.detect.runs.run_cause import explain_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.detect.links.link_evidence import SlowLink
    from coordinator.detect.runs.fluctuation import FluctuationTest
    from coordinator.detect.runs.unsynchronised_gc import UnsynchronisedGc
    from coordinator.settings.policy import CausePolicy

_GC = "gc"
_RANKS_NAMED = 16


def slower_run(
    test: "FluctuationTest",
    before: "Mapping[str, float]",
    now: "Mapping[str, float]",
    co_occurring: "Sequence[Anomaly]",
    policy: "CausePolicy",
    *,
    longest_growth: "Mapping[str, float]",
) -> Anomaly:
    """Describe a run that is slower than its history; `co_occurring` are the other anomalies of the same step.

    `longest_growth` is the growth of each part of the rank with most own work, seconds per step.
    """
    ratio, baseline = test.level_ratio, test.baseline_seconds or 0.0
    taken = f"{_ms(baseline + test.excess_seconds)}, {ratio:+.0%} over the run's own {_ms(baseline)}"
    share = {"share_of_steps": test.long_steps.share} if test.is_intermittent else {}
    if share:
        taken = (
            f"on average {taken}, because a longer one begins here and there, in {test.long_steps.share:.0%} of them"
        )
    few = [anomaly.excess_seconds for anomaly in co_occurring if anomaly.kind == SLOW_RANK]
    unsynchronised = [anomaly.excess_seconds for anomaly in co_occurring if anomaly.kind == UNSYNCHRONISED_GC]
    why = explain_run(
        before,
        now,
        policy,
        few_ranks_seconds=max(few, default=0.0),
        longest_growth=longest_growth,
        unsynchronised_gc_seconds=max(unsynchronised, default=0.0),
    )
    return Anomaly(
        kind=FLUCTUATION,
        cause=why.cause,
        # Waiting alone does not indicate a link: ranks without peers to compare with cause the same waiting.
        confidence="low" if why.cause == LINK else why.confidence,
        scope="job",
        ranks=(),
        domain=None,
        is_sure=test.is_sure,
        acts=not test.is_quiet,
        onset_step=test.onset_step,
        excess_ratio=ratio,
        excess_seconds=test.excess_seconds,
        lost_seconds=test.lost_seconds,
        evidence=(
            f"steps take {taken}",
            f"began at step {test.onset_step}",
            *why.evidence,
        ),
        numbers={
            "baseline_step_seconds": baseline,
            "excess_ratio": ratio,
            **share,
            **{f"{name}_seconds": value for name, value in now.items()},
            **{f"usual_{name}_seconds": value for name, value in before.items()},
            **why.numbers,
        },
    )


def unsynchronised_gc(found: "UnsynchronisedGc", ranks: "Sequence[int]") -> Anomaly:
    """Describe unsynchronised collections; `ranks` are those concerned, or some of them."""
    return Anomaly(
        kind=UNSYNCHRONISED_GC,
        cause=_GC,
        confidence="high",
        scope="job",
        ranks=(),
        domain=None,
        onset_step=found.onset_step,
        excess_ratio=found.lost_ratio,
        excess_seconds=found.lost_seconds,
        evidence=(*found.evidence, f"ranks {', '.join(map(str, ranks[:_RANKS_NAMED]))}"),
        numbers={**found.numbers, "excess_ratio": found.lost_ratio},
    )


def without_unsynchronised_gc(found: "Sequence[Anomaly]") -> list[Anomaly]:
    """Return slow ranks without those that only collect: by chance one rank collects in three consecutive steps."""
    return [anomaly for anomaly in found if anomaly.cause != _GC]


def slow_link(slow: "SlowLink") -> Anomaly:
    """Describe a slow link, node or network."""
    return Anomaly(
        kind=SLOW_LINK,
        cause=LINK,
        scope=slow.scope,
        node=slow.node,
        ranks=slow.ranks,
        domain=None if slow.domain is None else (slow.domain.kind, slow.domain.name),
        onset_step=slow.onset_step,
        excess_ratio=slow.excess_ratio,
        excess_seconds=slow.excess_seconds,
        evidence=slow.evidence,
        numbers=slow.numbers,
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
