"""Packs finished steps as their records (contracts/records.py): order of fields, and missing values."""

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from lockstep.accounting.breakdown import DOMAIN_COUNT, StepBreakdown, attribute
from lockstep.accounting.breakdown_arrays import LargeStep, attribute_steps
from lockstep.accounting.domain_totals import DomainTotals, total
from lockstep.accounting.events import BACKWARD, FORWARD, OPTIMIZER, PHASE_COUNT, StepEvents
from lockstep.accounting.step_arrays import StepArrays
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, RECORD_FIELDS, RECORD_INDEX, RECORD_STRUCT, Flag

_DOMAINS_AT = RECORD_INDEX["tp_wait_ns"]
_DOMAIN_FIELDS = RECORD_INDEX["cp_wait_ns"] - _DOMAINS_AT
_NO_DOMAINS = (MISSING,) * (_DOMAIN_FIELDS * DOMAIN_COUNT)
_MEASURES = RECORD_INDEX["flags"] + 1

assert _DOMAINS_AT + _DOMAIN_FIELDS * len(DOMAIN_KINDS) == len(RECORD_FIELDS)


@dataclass(slots=True, kw_only=True)
class FinishedStep:
    """A step that has ended; times and costs in ns, counts MISSING if unknown.

    `arrays` is the communication of a large step, which is then not in `events`. `domains` are those that this rank has
    used so far: a step without communication in one of them has a wait of 0 there, not a missing one. `is_incomplete`
    is true if some of its marks are lost: only its limits are known. `has_backward` is true if this rank ever shows
    backwards; without them forward and backward cannot be separated. `quantities` are by ANNOTATED.
    """

    step: int
    start_ns: int
    end_ns: int
    flags: int
    is_incomplete: bool = False
    events: StepEvents = field(default_factory=StepEvents)
    arrays: StepArrays | None = None
    domains: frozenset[int] = frozenset()
    has_backward: bool = False
    full_collections: int = 0
    cpu_ns: int = MISSING
    quantities: dict[str, int] = field(default_factory=dict)
    recompilations: int = MISSING
    agent_ns: int = 0
    device_step_ns: int = MISSING
    device_comm_ns: int = MISSING
    host_lead_ns: int = MISSING


@dataclass(frozen=True, slots=True)
class BuiltStep:
    """A step's record (RECORD_STRUCT). For an incomplete step, i.e. with lost marks, it holds the limits only."""

    record: bytes
    is_incomplete: bool = False


EndedStep = FinishedStep | BuiltStep
"""A step that has ended: its record is still to be built, except where a restart has restored it."""


def built_steps(ended: Sequence[EndedStep]) -> list[BuiltStep]:
    """Return the records of steps of any ranks, in order; they cost less at once than one by one (breakdown_arrays.py).

    If the counts of a step are implausible (beyond 64 bits), its record holds only its limits.
    """
    large = [
        LargeStep(step.start_ns, step.end_ns, step.events, step.arrays)
        for step in ended
        if isinstance(step, FinishedStep) and step.arrays is not None and not step.is_incomplete
    ]
    accounts = iter(attribute_steps(large))
    return [_built(step, accounts) if isinstance(step, FinishedStep) else step for step in ended]


def _built(step: FinishedStep, accounts: Iterator[tuple[StepBreakdown, DomainTotals]]) -> BuiltStep:
    """Return the record of a step; `accounts` are those of the steps with arrays."""
    if not step.is_incomplete:
        if step.arrays is None:
            account = attribute(step.start_ns, step.end_ns, step.events), total(step.events)
        else:
            account = next(accounts)
        with suppress(struct.error):
            return BuiltStep(_pack_record(step, *account))
    return BuiltStep(_pack_incomplete_record(step), is_incomplete=True)


def _pack_record(step: FinishedStep, breakdown: StepBreakdown, totals: DomainTotals) -> bytes:
    """Return a step's record (RECORD_STRUCT).

    Raises
    ------
    struct.error
        A value exceeds 64 bits.
    """
    domains = _domain_fields(step, breakdown, totals) if step.domains else _NO_DOMAINS  # first: it moves waits
    cpu_ns = step.cpu_ns if step.cpu_ns >= 0 else MISSING  # the difference between two threads is meaningless
    # The agent's cost is an estimate of thread time, which the thread's own clock bounds.
    agent_ns = step.agent_ns if cpu_ns == MISSING else min(step.agent_ns, cpu_ns)
    phase_ns, quantities = breakdown.phase_ns, step.quantities
    return RECORD_STRUCT.pack(
        step.step,
        step.start_ns,
        step.end_ns,
        step.flags,
        breakdown.data_ns,
        breakdown.compute_ns,
        breakdown.host_ns,
        breakdown.collection_ns,
        len(step.events.collections),
        step.full_collections,
        phase_ns[FORWARD] if step.has_backward else MISSING,
        phase_ns[BACKWARD] if step.has_backward else MISSING,
        phase_ns[OPTIMIZER],
        cpu_ns,
        step.device_step_ns,
        step.device_comm_ns,
        step.host_lead_ns,
        quantities.get("tokens", MISSING),
        quantities.get("samples", MISSING),
        quantities.get("work", MISSING),
        quantities.get("flops", MISSING),
        step.recompilations,
        agent_ns,
        *domains,
    )


def _pack_incomplete_record(step: FinishedStep) -> bytes:
    """Return the record of a step of which only the limits are known: no measures, and excluded from baselines."""
    measures = (MISSING,) * (len(RECORD_FIELDS) - _MEASURES)
    return RECORD_STRUCT.pack(step.step, step.start_ns, step.end_ns, step.flags | Flag.WARM_UP, *measures)


def _domain_fields(step: FinishedStep, breakdown: StepBreakdown, totals: DomainTotals) -> tuple[int, ...]:
    """Return the fields of all domains; MISSING for domains never used."""
    if step.device_step_ns != MISSING:  # on a device, waits are observed even without an end, but hidden time is not
        for domain in totals.in_flight:
            breakdown.in_flight_ns[domain] = MISSING
    for domain, unmeasured in step.events.unmeasured.items():
        totals.add(domain, *unmeasured)
    for domain in totals.unknown | step.events.unmeasured.keys():
        _hide_wait(breakdown, domain)
    columns = zip(
        breakdown.wait_ns,
        breakdown.in_flight_ns,
        totals.payload_bytes,
        totals.bus_bytes,
        totals.count,
        totals.shortest_ns,
        strict=True,
    )
    return tuple(
        value
        for domain, fields in enumerate(columns)
        for value in (fields if domain in step.domains else (MISSING,) * _DOMAIN_FIELDS)
    )


def _hide_wait(breakdown: StepBreakdown, domain: int) -> None:
    """Set the wait for a domain to MISSING, because the end of one of its collectives is unknown.

    The parts still sum to the step: the observed part of the wait becomes own work of unknown phase.
    """
    seen_ns = breakdown.wait_ns[domain]
    breakdown.wait_ns[domain] = breakdown.in_flight_ns[domain] = MISSING
    if seen_ns not in (0, MISSING):
        breakdown.compute_ns += seen_ns
        breakdown.phase_ns = [MISSING] * PHASE_COUNT
