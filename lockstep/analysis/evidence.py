"""What the trace of a rank comes with: tables of its vendor, samples of its node, what its agent noted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.contracts.errors import MalformedError
from lockstep.diagnosis.host_causes import Collection, HostSamples, LoaderWorkers, QueueSamples
from lockstep.trace.ascend.communication import AscendCommunication
from lockstep.trace.ascend.kernels import Kernels
from lockstep.trace.kineto.notes import read_notes
from lockstep.trace.patterns import Resource, Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything beside the columns that the rules can use; None is not recorded, and rules that need it say so.

    `kernels` and `communication` are Ascend's tables. `noted_collections` are the agent's, on the trace's clock;
    `host_samples`, `loader_workers` and `queues` the node's; `samples` of the hardware, on the trace's clock, for
    patterns. `device` overrides the name that the trace has; `ranks_per_node` tells collectives between nodes.
    """

    kernels: Kernels | None = None
    communication: AscendCommunication | None = None
    noted_collections: Sequence[Collection] | None = None
    host_samples: HostSamples | None = None
    loader_workers: LoaderWorkers | None = None
    queues: QueueSamples | None = None
    samples: Mapping[Resource, Samples] | None = None
    device: str = ""
    ranks_per_node: int | None = None


NOTHING = Evidence()


def with_notes(evidence: Evidence, path: Path) -> Evidence:
    """Return the evidence with the collections that the agent noted in the trace at `path`, if it wrote any."""
    if evidence.noted_collections is not None:
        return evidence
    try:
        notes = read_notes(path)
    except MalformedError:
        return evidence  # the trace itself is good
    if notes is None:
        return evidence
    return replace(evidence, noted_collections=[Collection(*each) for each in notes.collections])
