"""Network settings of each rank: from the doctor's reports next to the traces, and from the traces.

A report belongs to a rank if the trace names its host. If no trace does, it must be the only report in the trace's
folder, or in the nearest parent folder with any.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.analysis.doctor_reports import DoctorReport, NetworkCheck
from lockstep.analysis.merge import Refusal
from lockstep.analysis.rank import RankAnalysis
from lockstep.contracts.finding import COMMUNICATION, MEDIUM, Finding, NotEvaluated
from lockstep.diagnosis.communication_causes.settings import NETWORK, find_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkEvidence:
    """By rank: variables, and versions of libraries; `partial` are ranks of which only these variables are known.

    `checks` are the doctor's own verdicts, with the ranks that they concern.
    """

    environments: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    partial: frozenset[int] = frozenset()
    versions: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    checks: Sequence[tuple[NetworkCheck, tuple[int, ...]]] = ()


def network_evidence(
    ranks: Sequence[RankAnalysis], reports: Sequence[DoctorReport], paths: Mapping[int, Path]
) -> NetworkEvidence:
    """Combine reports and traces; `paths` are the traces by rank. The doctor's facts take precedence."""
    facts = [each for each in reports if each.environment is not None]
    environments: dict[int, Mapping[str, str]] = {}
    versions: dict[int, Mapping[str, str]] = {}
    partial = set()
    for rank in ranks:
        mine = _report_of(rank, facts, paths.get(rank.rank))
        if mine is not None and mine.environment is not None:
            environments[rank.rank] = mine.environment
        elif rank.metadata.environment:
            environments[rank.rank] = rank.metadata.environment
            partial.add(rank.rank)
        known = {**(mine.versions if mine else {}), **rank.metadata.versions}
        if known:
            versions[rank.rank] = known
    checks = [check for report in reports for check in report.checks]
    return NetworkEvidence(
        environments=environments,
        partial=frozenset(partial),
        versions=versions,
        checks=[(check, _concerned(check, ranks, hosts={each.host for each in checks} - {""})) for check in checks],
    )


def _report_of(rank: RankAnalysis, facts: Sequence[DoctorReport], path: Path | None) -> DoctorReport | None:
    host = rank.metadata.host
    if host:
        return next((each for each in facts if _is_host(each.host, host)), None)
    for folder in () if path is None else (path, *path.parents):
        here = [each for each in facts if each.path.parent == folder]
        if here:
            return here[0] if len(here) == 1 else None
    return None


def _is_host(one: str, other: str) -> bool:
    """Whether two names belong to one host: they are equal, or one is the other's first label."""
    return one == other or one == other.partition(".")[0] or one.partition(".")[0] == other


def _concerned(check: NetworkCheck, ranks: Sequence[RankAnalysis], hosts: Collection[str]) -> tuple[int, ...]:
    """Return the ranks on a verdict's host: all, if no trace names its host and all verdicts are of one host."""
    all_ranks = tuple(each.rank for each in ranks)
    if not check.host or (len(hosts) == 1 and not any(each.metadata.host for each in ranks)):
        return all_ranks
    return tuple(each.rank for each in ranks if each.metadata.host and _is_host(check.host, each.metadata.host))


def evaluate_network(
    evidence: NetworkEvidence, ranks: Sequence[RankAnalysis]
) -> tuple[list[Finding], list[NotEvaluated], list[Refusal]]:
    """Return what is wrong with the settings, that there is no evidence at all, and for which ranks there is none."""
    answer = find_settings(evidence.environments, partial=evidence.partial, versions=evidence.versions)
    findings = [] if isinstance(answer, NotEvaluated) else list(answer)
    findings += [_finding(check, concerned) for check, concerned in evidence.checks if concerned]
    if isinstance(answer, NotEvaluated):
        return findings, [] if findings else [answer], []
    unknown = tuple(each.rank for each in ranks if each.rank not in evidence.environments)
    reason = "insufficient evidence: nothing records the variables of these ranks"
    return findings, [], [Refusal(rule=NETWORK, reason=reason, ranks=unknown)] if unknown else []


def _finding(check: NetworkCheck, ranks: tuple[int, ...]) -> Finding:
    where = f" on {check.host}" if check.host else ""
    return Finding(
        bottleneck=COMMUNICATION,
        cause=NETWORK,
        ranks=ranks,
        subject=check.name,
        evidence=(f"lockstep doctor{where}: {check.found}",),
        confidence=MEDIUM,
    )
