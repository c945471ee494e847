"""HOT (budget 2,000 ns a step without collectives): what is known of a step at its end becomes its record.

May live here: the order of fields, what is missing. May not: torch, clocks, I/O.
"""

import struct

from lockstep.contracts.records import DOMAIN_KINDS, MISSING, RECORD_FIELDS, RECORD_INDEX, RECORD_STRUCT
from tests.accounting.oracle.account import (
    BACKWARD,
    FORWARD,
    KIND_COUNT,
    OPTIMIZER,
    UNKNOWN_NS,
    Marks,
    Shares,
    account,
)

_EMPTY_RECORD = RECORD_STRUCT.pack(*[MISSING] * len(RECORD_FIELDS))
_DOMAINS_AT = RECORD_INDEX["tp_wait_ns"]
_DOMAIN_WIDTH = RECORD_INDEX["cp_wait_ns"] - _DOMAINS_AT
_STEP = struct.Struct(f"<{_DOMAINS_AT}q")
_DOMAIN = struct.Struct(f"<{_DOMAIN_WIDTH}q")
_FIELD_BYTES = 8
_NO_KINDS: frozenset[int] = frozenset()

assert _DOMAINS_AT + _DOMAIN_WIDTH * len(DOMAIN_KINDS) == len(RECORD_FIELDS)


class Draft:
    """A running step: its marks, and beside them what is counted. MISSING is not known.

    `kinds` are the domain kinds this rank has ever used: a step without any of them has a wait of 0 there, not none.
    `has_backward` says whether this rank's backward is ever seen; without it forward and backward cannot be told.
    """

    __slots__ = (
        "agent_ns",
        "cpu_ns",
        "device_comm_ns",
        "device_step_ns",
        "end_ns",
        "flags",
        "flops",
        "gc_full_count",
        "has_backward",
        "host_lead_ns",
        "kinds",
        "marks",
        "recompilations",
        "samples",
        "start_ns",
        "step",
        "tokens",
        "work",
    )

    def __init__(self, step: int, start_ns: int, flags: int) -> None:
        self.step = step
        self.start_ns = start_ns
        self.end_ns = start_ns
        self.flags = flags
        self.marks = Marks()
        self.kinds: frozenset[int] | set[int] = _NO_KINDS
        self.has_backward = False
        self.gc_full_count = self.agent_ns = self.cpu_ns = 0
        self.samples = self.tokens = self.work = self.flops = self.recompilations = MISSING
        self.device_step_ns = self.device_comm_ns = self.host_lead_ns = MISSING


def make_record(draft: Draft) -> bytearray:
    """Return the record of a complete step as it lies in the ring (RECORD_STRUCT)."""
    marks = draft.marks
    shares = account(draft.start_ns, draft.end_ns, marks)
    record = bytearray(_EMPTY_RECORD)
    if draft.kinds:
        _write_domains(record, draft, shares)
    phases = shares.phases_ns
    has_backward = draft.has_backward
    cpu_ns, agent_ns = draft.cpu_ns, draft.agent_ns
    if cpu_ns < 0:  # the step ended on another thread than it began on
        cpu_ns = MISSING
    elif agent_ns > cpu_ns:  # what is wall time in it holds time off the CPU
        agent_ns = cpu_ns
    _STEP.pack_into(
        record,
        0,
        draft.step,
        draft.start_ns,
        draft.end_ns,
        draft.flags,
        shares.data_ns,
        shares.compute_ns,
        shares.host_ns,
        shares.gc_ns,
        len(marks.gcs),
        draft.gc_full_count,
        phases[FORWARD] if has_backward else MISSING,
        phases[BACKWARD] if has_backward else MISSING,
        phases[OPTIMIZER],
        cpu_ns,
        draft.device_step_ns,
        draft.device_comm_ns,
        draft.host_lead_ns,
        draft.tokens,
        draft.samples,
        draft.work,
        draft.flops,
        draft.recompilations,
        agent_ns,
    )
    return record


def _write_domains(record: bytearray, draft: Draft, shares: Shares) -> None:
    """Fill the fields of every domain kind in use."""
    waits, flight = shares.waits_ns, shares.comm_ns
    payload = [0] * KIND_COUNT
    bus = [0] * KIND_COUNT
    count = [0] * KIND_COUNT
    shortest = [MISSING] * KIND_COUNT
    for collective in (*draft.marks.collectives, *draft.marks.aside):
        kind = collective.kind
        count[kind] += 1
        payload[kind] += collective.payload_bytes
        bus[kind] += collective.bus_bytes
        if collective.done_ns > 0:
            took = collective.done_ns - collective.issue_ns
            if took < shortest[kind] or shortest[kind] == MISSING:
                shortest[kind] = took
        elif collective.done_ns == UNKNOWN_NS:
            _forget_wait(shares, kind)
        elif draft.device_step_ns != MISSING:  # on a device waits are seen without it, what is hidden is not
            flight[kind] = MISSING
    for kind, traffic in draft.marks.unmeasured.items():
        count[kind] += traffic[0]
        payload[kind] += traffic[1]
        bus[kind] += traffic[2]
        _forget_wait(shares, kind)
    for kind in draft.kinds:
        _DOMAIN.pack_into(
            record,
            _FIELD_BYTES * (_DOMAINS_AT + _DOMAIN_WIDTH * kind),
            waits[kind],
            flight[kind],
            payload[kind],
            bus[kind],
            count[kind],
            shortest[kind],
        )


def _forget_wait(shares: Shares, kind: int) -> None:
    """Note that what was waited for a kind is not known.

    What little was seen of it stays part of the rank's own work, so that the parts still sum to the step; of which
    phase, is not known.
    """
    if shares.waits_ns[kind] != MISSING:
        if shares.waits_ns[kind]:
            shares.compute_ns += shares.waits_ns[kind]
            shares.phases_ns = [MISSING] * len(shares.phases_ns)
        shares.waits_ns[kind] = shares.comm_ns[kind] = MISSING
