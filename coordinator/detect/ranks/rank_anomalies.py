# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Turns slow ranks in alarm into anomalies: cause, evidence and the numbers behind it.

Pure. A rank is explained while its alarm is young and now and then afterwards, because explaining costs more than the
alarm itself; in between the anomaly stays as it was.

Shapes: R ranks, P stages.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from coordinator.detect.anomalies import SLOW_RANK, Anomaly
from coordinator.detect.ranks.components import (
    COMPUTE,
    PARTS,
    SELF,
    SLEEPS,
    WAIT,
    Explainer,
    Explanation,
    less_work,
    longest,
    medians,
    middling,
    parts_of,
)
from coordinator.detect.ranks.groups import median_of
from coordinator.detect.state_dict import nested, part_of
from coordinator.intake.columns import COMPONENTS
from coordinator.intake.views import OFF_CPU
from lockstep.contracts.records import COMPUTE_PHASES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from coordinator.detect.ranks.components import Parts
    from coordinator.detect.ranks.slow_rank import SlowRankTest
    from coordinator.intake.timeline import StepRow
    from coordinator.settings.policy import CausePolicy
    from lockstep.contracts.domains import Domain, Topology

_FORGOTTEN_SAMPLES = 2  # the first samples, in which a job warms up, are dropped
_YOUNG_STEPS = 5  # of an alarm; until then each step may change the cause
_FILL_SHARE = (
    1 / 16
)  # of an excess in a stage that does not set the pace: a pipeline fills with one micro-batch of many
_LISTED_SHARE = 0.1  # of the component that grew most; smaller ones are not listed


class RankAnomalies:
    """State of the anomalies by rank, and of what each stage's steps usually consist of."""

    def __init__(
        self, topology: "Topology", ranks: "NDArray[np.int64]", test: "SlowRankTest", hosts: "Sequence[str]"
    ) -> None:
        self._ranks = ranks
        self._hosts = hosts
        self._test = test
        self._explainer = Explainer(
            test.stage_groups, test.replica_groups if test.has_replicas else None, test.place_effects.places
        )
        self._domains = topology.domains
        self._domains_of: dict[int, list[Domain]] = {}  # of ranks that were named
        self._found: dict[int, Anomaly] = {}
        self._step = 0
        self._since: dict[int, int] = {}  # step in which each rank in alarm was first in alarm
        self._has_looked = False  # whether the last step updated explanations
        self._samples = 0
        self.typical: Parts = {}
        """Seconds of each part in a healthy step, array of shape (P,) by part."""
        self._longest: dict[str, float] = {}  # the same of the rank with most own work in a step
        self._pace = 0
        self._former: dict[int, tuple[Parts, dict[str, float], int]] = {}  # all three, by the pace that the run left

    def set_pace(self, pace: int) -> None:
        """Continue with what steps of this pace consist of; the first sample of a new one replaces the former's."""
        if pace == self._pace:
            return
        left = {self._pace: (self.typical, self._longest, self._samples)}
        new = dict(self.typical), dict(self._longest), _FORGOTTEN_SAMPLES
        self.typical, self._longest, self._samples = self._former.get(pace, new)
        self._pace, self._former = pace, left

    def learn(self, row: "StepRow", policy: "CausePolicy") -> None:
        """Learn what steps consist of while nothing is wrong, stage by stage."""
        self._samples += 1
        rate = max(policy.typical_rate, 1 / max(self._samples - _FORGOTTEN_SAMPLES, 1))
        test = self._test
        suspicious = test.ranks.suspicious
        parts = less_work(parts_of(row), test.shift_R)
        for name, value in longest(parts).items():
            before = self._longest.get(name, value)
            self._longest[name] = before + rate * (value - before)
        for name, value_R in parts.items():
            healthy_R = value_R
            if len(suspicious):
                healthy_R = value_R.copy()
                healthy_R[suspicious] = np.nan
            now_P = test.stage_groups.median(healthy_R)
            now_P[test.stages.suspicious] = np.nan
            before_P = self.typical.get(name, now_P)
            moved_P = np.where(np.isnan(before_P), now_P, before_P + rate * (now_P - before_P))
            self.typical[name] = np.where(np.isnan(moved_P), before_P, moved_P)

    def before_and_now(self, rows: "Sequence[StepRow]") -> tuple[dict[str, float], dict[str, float]]:
        """Return the seconds of each part in the median stage's usual step, and in the last ones (`rows`)."""
        now = less_work(medians(rows), self._test.shift_R)
        return middling(self.typical), middling({k: self._test.stage_groups.median(v) for k, v in now.items()})

    def longest_growth(self, rows: "Sequence[StepRow]") -> dict[str, float]:
        """Return the growth in seconds of each part of the rank with most own work, which may change per step."""
        each = [longest(less_work(parts_of(row), self._test.shift_R)) for row in rows]
        shared = set(self._longest).intersection(*each)
        return {name: median_of(np.array([one[name] for one in each])) - self._longest[name] for name in shared}

    def find(self, rows: "Sequence[StepRow]", policy: "CausePolicy") -> list[Anomaly]:
        """Return an anomaly for each rank in alarm; `rows` are the last steps, the newest last."""
        if not self._test.is_alarmed:
            self._found.clear()
            self._since.clear()
            return []
        self._step += 1
        columns = self._test.slow_columns.tolist()
        if self._has_looked or columns != list(self._since):
            self._since = {column: self._since.get(column, self._step) for column in columns}
            self._found = {column: self._found[column] for column in columns if column in self._found}
        self._has_looked = any(self._is_due(since, policy) for since in set(self._since.values()))
        if self._has_looked:
            self._look(list(rows)[-policy.steps :], self._test.slow_R, policy)
        if not self._test.has_quiet:
            return [each if each.acts else replace(each, acts=True) for each in self._found.values()]
        return [self._as_of_now(column, anomaly) for column, anomaly in self._found.items()]

    def _is_due(self, since: int, policy: "CausePolicy") -> bool:
        """Whether to explain a rank again that has been in alarm since step `since`."""
        age = self._step - since
        return age < _YOUNG_STEPS or age % policy.typical_every == 0

    def _as_of_now(self, column: int, anomaly: Anomaly) -> Anomaly:
        """Return the anomaly, marked if the rank works as fast as its peers again and only its alarm has not ended."""
        test, series, _ = self._test.verdict_of(column)
        acts = not test.is_quiet(series)
        return anomaly if anomaly.acts == acts else replace(anomaly, acts=acts)

    def _look(self, rows: "Sequence[StepRow]", slow_R: "NDArray[np.bool_]", policy: "CausePolicy") -> None:
        own = less_work(medians(rows), self._test.shift_R)
        waits = _mean_waits(rows[-1])
        shares_R, slow_parts = self._test.ranks.alarm_N, self._test.slow_parts
        differs_R = self._test.place_effects.differs_R
        explained = self._explainer.explain(
            own, slow_R, shares_R, self.typical, policy, differs_R=differs_R, slow_parts=slow_parts
        )
        lost_R = _lost_seconds(rows, slow_R)
        self._note_domains(self._ranks[list(explained)].tolist())
        for column, explanation in explained.items():
            if self._is_due(self._since[column], policy):
                found = self._anomaly(column, explanation, waits)
                lost = None if lost_R is None else max(float(lost_R[column]), _FILL_SHARE * found.excess_seconds)
                self._found[column] = replace(found, lost_seconds=lost)

    def _note_domains(self, ranks: "Sequence[int]") -> None:
        """Find the domains of ranks named for the first time: one pass over all domains, no memory for other ranks."""
        new = set(ranks).difference(self._domains_of)
        if not new:
            return
        self._domains_of |= {rank: [] for rank in new}
        for domain in self._domains:
            for rank in new.intersection(domain.ranks):
                self._domains_of[rank].append(domain)

    def _anomaly(self, column: int, explanation: Explanation, waits: "Mapping[str, float]") -> Anomaly:
        rank = int(self._ranks[column])
        test, series, part = self._test.verdict_of(column)
        ratio, onset = test.level_and_onset(series)
        usual_s = float(self._test.scale_P[self._test.stage_groups.group_of(column)])
        sigma_ratio, limit_ratio = test.noise_of(series)
        # It holds back the domain of the kind in which most waiting occurs.
        domain = max(self._domains_of.get(rank, ()), key=lambda d: waits.get(d.kind, 0.0), default=None)
        found = self.anomaly_of(
            column,
            explanation,
            onset_step=onset,
            excess_ratio=ratio,
            excess_seconds=_excess_seconds(explanation, ratio * usual_s),
            numbers={
                "sigma_ratio": sigma_ratio,
                "gate_ratio": limit_ratio,
                **test.rule_of(series),
                **{f"{name}_seconds": value for name, value in explanation.own.items()},
                **{f"peers_{name}_seconds": value for name, value in explanation.peers.items()},
            },
        )
        return replace(found, domain=None if domain is None else (domain.kind, domain.name), part=part)

    def anomaly_of(
        self,
        column: int,
        explanation: Explanation,
        *,
        onset_step: int,
        excess_ratio: float,
        excess_seconds: float,
        numbers: "Mapping[str, float]",
    ) -> Anomaly:
        """Return the anomaly of one slow rank, without a domain; `numbers` are added to its ratio."""
        rank = int(self._ranks[column])
        return Anomaly(
            kind=SLOW_RANK,
            cause=explanation.cause,
            confidence=explanation.confidence,
            scope="rank",
            ranks=(rank,),
            node=self._hosts[column] if self._hosts else "",
            domain=None,
            onset_step=onset_step,
            excess_ratio=excess_ratio,
            excess_seconds=excess_seconds,
            evidence=tuple(_evidence_of(rank, explanation)),
            numbers={"excess_ratio": excess_ratio, **numbers},
        )

    def explain(self, row: "StepRow", columns: "Sequence[int]", policy: "CausePolicy") -> dict[int, Explanation]:
        """Explain why these ranks are slow in this one step, by column."""
        slow_R = np.zeros(len(self._ranks), dtype=bool)
        slow_R[list(columns)] = True
        own = less_work(parts_of(row), self._test.shift_R)
        differs_R = self._test.place_effects.differs_R
        return self._explainer.explain(
            own, slow_R, slow_R, self.typical, policy, differs_R=differs_R, slow_parts=lambda _: ()
        )

    def state_dict(self) -> "dict[str, NDArray[np.generic]]":
        """Return the learnt state, arrays by name."""
        own = _arrays(self.typical, self._longest, self._samples)
        for usual in self._former.values():
            own |= nested({"former": _arrays(*usual)})
        return own | {"paces": np.array([self._pace, *self._former])}

    def load_state_dict(self, state: "Mapping[str, NDArray[np.generic]]") -> None:
        """Restore the result of `state_dict`; arrays that do not fit are ignored."""
        count = self._test.stage_groups.count
        typical, most, self._samples = _usual(state, count)
        self.typical |= typical
        self._longest |= most
        if "paces" in state and state["paces"].shape in ((1,), (2,)):
            self._pace, *former = state["paces"].astype(np.int64).tolist()
            self._former = {pace: _usual(part_of(state, "former"), count) for pace in former}


def _arrays(typical: "Parts", most: "Mapping[str, float]", samples: int) -> "dict[str, NDArray[np.generic]]":
    arrays: dict[str, NDArray[np.generic]] = {f"longest.{name}": np.array([value]) for name, value in most.items()}
    return {**typical, **arrays, "samples": np.array([samples])}


def _usual(state: "Mapping[str, NDArray[np.generic]]", stages: int) -> "tuple[Parts, dict[str, float], int]":
    """Return what a step usually consists of, by stage and on the rank with most own work, and the samples of it."""
    known = {name: value for name, value in state.items() if name in PARTS and value.shape == (stages,)}
    most = {name: value for name, value in part_of(state, "longest").items() if name in PARTS and value.shape == (1,)}
    typical: Parts = {name: value.astype(np.float64) for name, value in known.items()}
    samples = state.get("samples", np.zeros(1))
    return typical, {name: float(value[0]) for name, value in most.items()}, int(samples.ravel()[:1].sum())


def _lost_seconds(rows: "Sequence[StepRow]", slow_R: "NDArray[np.bool_]") -> "NDArray[np.floating] | None":
    """Return how much shorter a step would be without each rank: its work beyond the slowest healthy rank's, mean.

    None if no rank is healthy.
    """
    outliers = []
    for row in rows:
        highest = np.fmax.reduce(row.self_seconds[~slow_R], initial=-np.inf)
        if np.isfinite(highest):
            outliers.append(np.maximum(np.nan_to_num(row.self_seconds - highest), 0.0))
    return np.mean(outliers, axis=0) if outliers else None


def _mean_waits(row: "StepRow") -> dict[str, float]:
    """Return the mean wait of a step by domain kind, seconds."""
    waits = {kind: value[~np.isnan(value)] for kind, value in row.waits.items()}
    return {kind: float(value.mean()) for kind, value in waits.items() if len(value)}


def _excess_seconds(explanation: Explanation, otherwise: float) -> float:
    """Return the rank's excess over its peers as used in the evidence: a median over steps.

    The scale of a single step would be wrong except in a quiet job: right after a capture it can be four times as long.
    """
    own, peers = explanation.own, explanation.peers
    return max(own[SELF] - peers[SELF], 0.0) if SELF in own and SELF in peers else otherwise


def _evidence_of(rank: int, explanation: Explanation) -> list[str]:
    """Return the evidence that a rank is slow, as sentences."""
    own, peers = explanation.own, explanation.peers
    lines = []
    if SELF in own:
        lines.append(f"rank {rank} works {_ms(own[SELF])} a step by itself, its peers {_ms(peers[SELF])}")
    if WAIT in own:
        lines.append(f"it waits {_ms(own[WAIT])} a step for others, its peers {_ms(peers[WAIT])}")
    grown = {name: own[name] - peers[name] for name in own}
    if explanation.component in SLEEPS and grown.get(OFF_CPU, 0.0) > _LISTED_SHARE * max(grown[SELF], 0.0):
        lines.append(_off_cpu_text(own, peers))
    lines += _part_lines(COMPONENTS, grown, explanation)
    if explanation.component == COMPUTE:
        lines += _part_lines(COMPUTE_PHASES, grown, explanation)
    return lines


def _part_lines(names: "Sequence[str]", grown: "Mapping[str, float]", explanation: Explanation) -> list[str]:
    """Return a line for each part that is a large share of the growth, the largest first."""
    known = sorted((name for name in names if name in grown), key=lambda name: -grown[name])
    listed = [name for name in known if grown[name] > _LISTED_SHARE * grown[known[0]]]
    own, peers = explanation.own, explanation.peers
    where = {COMPUTE: f", the excess in {explanation.phase}"} if explanation.phase else {}
    return [f"{name}: {_ms(own[name])} a step, peers {_ms(peers[name])}{where.get(name, '')}" for name in listed]


def _off_cpu_text(own: "Mapping[str, float]", peers: "Mapping[str, float]") -> str:
    """Explain that a training thread was off the CPU, seconds per step by part."""
    return (
        f"the training thread was off the CPU for {_ms(own[OFF_CPU])} of {_ms(own[SELF])} of own work (peers "
        f"{_ms(peers[OFF_CPU])} of {_ms(peers[SELF])}): sleeping, blocked on I/O or a lock, or descheduled"
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
