"""Evidence recorded next to a rank's trace: tables of its vendor, samples of its node, notes of its agent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.messages import HostSpan
from lockstep.contracts.node_samples import MAX_BYTES, SERIES_MAX, VERSION, NodeSamples, samples_path
from lockstep.diagnosis.host_causes import Collection, LoaderSamples
from lockstep.trace.ascend.communication import AscendCommunication
from lockstep.trace.ascend.kernels import Kernels
from lockstep.trace.kineto.agent_metadata import NotedLoader, read_notes
from lockstep.trace.patterns import Resource, Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All inputs of the rules besides the columns; None was not recorded, and rules that need it report that.

    `kernels` and `communication` are Ascend's tables. `noted_collections` are the agent's, on the trace's clock;
    `loader` is the agent's notes on the DataLoader; `samples` are of the hardware, on the trace's clock, for patterns.
    `host` are the node's counters of the rank; `diagnosis.cpu_share` also compares them with its peers'. `device`
    overrides the name in the trace; `ranks_per_node` identifies collectives between nodes.
    """

    kernels: Kernels | None = None
    communication: AscendCommunication | None = None
    noted_collections: Sequence[Collection] | None = None
    loader: LoaderSamples | None = None
    samples: Mapping[Resource, Samples] | None = None
    host: HostSpan | None = None
    device: str = ""
    ranks_per_node: int | None = None


NOTHING = Evidence()


def with_notes(evidence: Evidence, path: Path) -> Evidence:
    """Add the collections that the agent noted in the trace at `path`, if any."""
    if evidence.noted_collections is not None:
        return evidence
    try:
        notes = read_notes(path)
    except MalformedError:
        return evidence  # the trace itself is good
    if notes is None:
        return evidence
    return replace(
        evidence,
        noted_collections=[Collection(*each) for each in notes.collections],
        loader=None if notes.loader is None else _loader_samples(notes.loader),
    )


def _loader_samples(noted: NotedLoader) -> LoaderSamples:
    counted = noted.busy_ns is not None and bool(noted.span_ns) and noted.seen > 0
    return LoaderSamples(
        ready=np.array(noted.ready, np.int64),
        outstanding=np.array(noted.outstanding, np.int64),
        workers=noted.workers,
        cpu_ratio=min((noted.busy_ns or 0) / ((noted.span_ns or 1) * noted.seen), 1.0) if counted else None,
        blocked_ratio=noted.blocked_ratio,
    )


def with_samples(evidence: Evidence, path: Path) -> Evidence:
    """Add what the node sampled while the trace at `path` was recorded, if there is such a file.

    A file that cannot be used is ignored, since the trace itself is usable.
    """
    try:
        with samples_path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        node = msgspec.json.decode(data, type=NodeSamples) if len(data) <= MAX_BYTES else None
    except (OSError, msgspec.MsgspecError):
        return evidence
    if node is None or node.version != VERSION:
        return evidence
    samples = {
        Resource(name): Samples(
            start_ns=each.start_ns, period_ns=each.period_ns, values=np.array(each.ratios, np.float64), peak=1.0
        )
        for name, each in node.resources.items()
        if name in set(Resource) and each.period_ns > 0 and len(each.ratios) <= SERIES_MAX
    }
    return replace(evidence, samples=samples or evidence.samples, host=node.host or evidence.host)
