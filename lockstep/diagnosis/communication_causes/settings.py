"""Network settings in the environment of the ranks: what differs between them, and what is known to slow a job.

Only what is given is judged: environments come from the agents or from profiler_metadata.json (ENV_VARIABLES).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lockstep.diagnosis.finding import COMMUNICATION, Finding, NotJudged
from lockstep.diagnosis.verdict import HIGH, MEDIUM

NETWORK = "network_configuration"
_PREFIXES = ("NCCL_", "RCCL_", "HCCL_", "UCX_", "GLOO_", "TORCH_NCCL_")
_OWN = ("_HOST", "_SOCKET_IFNAME", "_IB_HCA", "_IF_IP", "_WHITELIST_FILE", "_DEBUG_FILE", "_TOPO_FILE", "_PORT")
"""Names that may rightly differ between nodes end in these."""
_VALUE_CHARS = 64


@dataclass(frozen=True, slots=True)
class SettingRule:
    """`variable` with a value that `is_wrong` accepts is a finding, `why` says what it does."""

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


def find_settings(environments: Mapping[int, Mapping[str, str]]) -> list[Finding] | NotJudged:
    """Return findings on the network settings of the ranks, by rank and variable."""
    mine = {
        rank: {name: value[:_VALUE_CHARS] for name, value in each.items() if name.startswith(_PREFIXES)}
        for rank, each in environments.items()
    }
    if not environments:
        return NotJudged(rule=NETWORK, reason="the environment of the ranks is not known")
    return [*_unequal(mine), *_known_wrong(mine)]


def _unequal(environments: Mapping[int, Mapping[str, str]]) -> list[Finding]:
    """Return variables that a minority of the ranks has differently."""
    found = []
    for name in sorted({name for each in environments.values() for name in each}):
        values: dict[str, list[int]] = defaultdict(list)
        for rank in sorted(environments):
            values[environments[rank].get(name, "")].append(rank)
        if len(values) == 1 or name.endswith(_OWN):
            continue
        usual = max(values, key=lambda value: len(values[value]))
        others = tuple(sorted(rank for value, ranks in values.items() if value != usual for rank in ranks))
        told = "; ".join(f"{value or 'not set'} on {len(ranks)} ranks" for value, ranks in values.items())
        found.append(
            Finding(
                bottleneck=COMMUNICATION,
                cause=NETWORK,
                ranks=others,
                subject=name,
                evidence=(f"{name} differs between ranks: {told}",),
                confidence=MEDIUM,
            )
        )
    return found


def _known_wrong(environments: Mapping[int, Mapping[str, str]]) -> list[Finding]:
    found = []
    for rule in RULES:
        ranks = [rank for rank, each in sorted(environments.items()) if rule.is_wrong(each.get(rule.variable, ""))]
        ranks = [rank for rank in ranks if rule.variable in environments[rank]]
        if ranks:
            value = environments[ranks[0]][rule.variable]
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
