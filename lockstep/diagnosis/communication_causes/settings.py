"""Network settings in the ranks' environments: differences between ranks, and values known to slow a job.

Only available environments are checked: those in facts that `lockstep doctor` wrote, and those that a profiler recorded
(ENV_VARIABLES of profiler_metadata.json, metadata of a Kineto trace). The same holds for library versions.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from lockstep.contracts.finding import COMMUNICATION, HIGH, MEDIUM, Finding, NotEvaluated
from lockstep.trace.kineto.metadata import NETWORK_PREFIXES

NETWORK = "network_configuration"
_OWN = ("_HOST", "_SOCKET_IFNAME", "_IB_HCA", "_IF_IP", "_WHITELIST_FILE", "_DEBUG_FILE", "_TOPO_FILE", "_PORT")
"""Suffixes of names that may differ between nodes."""
_VALUE_CHARS = 64


@dataclass(frozen=True, slots=True)
class SettingRule:
    """A finding for each value of `variable` that `is_wrong` accepts; `why` states its effect."""

    variable: str
    is_wrong: Callable[[str], bool]
    why: str
    source: str


def _is(*values: str) -> Callable[[str], bool]:
    return lambda value: value.strip().lower() in values


def _outside(low: int, high: int, multiple: int = 1) -> Callable[[str], bool]:
    def is_wrong(value: str) -> bool:
        text = value.strip()
        return not (text.isdecimal() and len(text) < 10 and low <= int(text) <= high and int(text) % multiple == 0)  # noqa: PLR2004  (digits of an int32)

    return is_wrong


_NCCL = "NCCL user guide, environment variables"
_HCCL = "CANN, HCCL environment variables"
RULES = (
    SettingRule("NCCL_P2P_DISABLE", _is("1"), "GPUs of one node talk through host memory", _NCCL),
    SettingRule("NCCL_SHM_DISABLE", _is("1"), "GPUs of one node talk through the network", _NCCL),
    SettingRule("NCCL_IB_DISABLE", _is("1"), "nodes talk over TCP sockets instead of InfiniBand or RoCE", _NCCL),
    SettingRule("NCCL_NET_GDR_LEVEL", _is("0", "loc"), "network cards do not reach the GPUs' memory directly", _NCCL),
    SettingRule("NCCL_NVLS_ENABLE", _is("0"), "switches do not reduce, which NVLink SHARP would", _NCCL),
    SettingRule("NCCL_DEBUG", _is("trace"), "every call is logged", _NCCL),
    SettingRule("HCCL_RDMA_TC", _outside(0, 255, 4), "the traffic class is none (0 to 255, a multiple of 4)", _HCCL),
    SettingRule("HCCL_RDMA_SL", _outside(0, 7), "the service level is none (0 to 7)", _HCCL),
    SettingRule("HCCL_RDMA_TIMEOUT", _outside(5, 24), "the retransmission timeout is none (5 to 24)", _HCCL),
    SettingRule("HCCL_RDMA_RETRY_CNT", _outside(1, 7), "the number of retransmissions is none (1 to 7)", _HCCL),
    SettingRule("HCCL_INTRA_PCIE_ENABLE", _is("1"), "NPUs of one node talk over PCIe", _HCCL),
)


def find_settings(
    environments: Mapping[int, Mapping[str, str]],
    *,
    partial: Collection[int] = (),
    versions: Mapping[int, Mapping[str, str]] | None = None,
) -> list[Finding] | NotEvaluated:
    """Return findings on the network settings of the ranks, by rank and variable; an empty value counts as not set.

    For ranks in `partial` only the given variables are known, for all others every variable is. `versions` are those of
    the communication libraries, by rank and name.
    """
    differing = _unequal_versions(versions or {})
    if not environments:
        reason = "insufficient evidence: no trace and no doctor's facts next to them give the variables of the ranks"
        return differing or NotEvaluated(rule=NETWORK, reason=reason)
    known = {
        rank: {name: value.strip()[:_VALUE_CHARS] for name, value in each.items() if name.startswith(NETWORK_PREFIXES)}
        for rank, each in environments.items()
    }
    return [*differing, *_unequal(known, frozenset(partial)), *_known_wrong(known)]


def _unequal(environments: Mapping[int, Mapping[str, str]], partial: frozenset[int]) -> list[Finding]:
    """Return variables with a different value on a minority of the ranks."""
    found = []
    for name in sorted({name for each in environments.values() for name in each}):
        reported = {
            rank: each.get(name, "")
            for rank, each in sorted(environments.items())
            if name in each or rank not in partial
        }
        if not name.endswith(_OWN):
            found += _differing(name, reported)
    return found


def _unequal_versions(versions: Mapping[int, Mapping[str, str]]) -> list[Finding]:
    names = sorted({name for each in versions.values() for name in each})
    found = []
    for name in names:
        reported = {rank: each[name][:_VALUE_CHARS] for rank, each in sorted(versions.items()) if each.get(name)}
        found += _differing(f"{name} version", reported)
    return found


def _differing(subject: str, reported: Mapping[int, str]) -> list[Finding]:
    """Return a finding if ranks differ; values are by rank, in order, empty if not set."""
    values: dict[str, list[int]] = defaultdict(list)
    for rank, value in reported.items():
        values[value].append(rank)
    if len(values) < 2:  # noqa: PLR2004  (all alike, or no one)
        return []
    usual = max(values, key=lambda value: len(values[value]))
    shown = "; ".join(f"{value or 'not set'} on {len(ranks)} ranks" for value, ranks in values.items())
    return [
        Finding(
            bottleneck=COMMUNICATION,
            cause=NETWORK,
            ranks=tuple(rank for rank, value in reported.items() if value != usual),
            subject=subject,
            evidence=(f"{subject} differs between ranks: {shown}",),
            confidence=MEDIUM,
        )
    ]


def _known_wrong(environments: Mapping[int, Mapping[str, str]]) -> list[Finding]:
    found = []
    for rule in RULES:
        reported = {rank: value for rank, each in sorted(environments.items()) if (value := each.get(rule.variable))}
        ranks = [rank for rank, value in reported.items() if rule.is_wrong(value)]
        if ranks:
            value = reported[ranks[0]]
            found.append(
                Finding(
                    bottleneck=COMMUNICATION,
                    cause=NETWORK,
                    ranks=tuple(ranks),
                    subject=rule.variable,
                    evidence=(f"{rule.variable}={value} on {len(ranks)} ranks: {rule.why} ({rule.source})",),
                    confidence=HIGH,
                )
            )
    return found
