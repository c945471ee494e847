"""Tracks collectives and waits of the running step, from marks of issues, ends and waits."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from lockstep.accounting.events import EVENTS_MAX, UNKNOWN_NS, IssuedCollective, StepEvents, Traffic
from lockstep.accounting.state import TIME_NS, DictForm, IntegerForm, ListForm, StateForm, mapping, restore, saved
from lockstep.accounting.step_arrays import CommunicationLayout, IssuePattern, StepArrays
from lockstep.contracts.bus_bytes import bus_bytes
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import MONOTONIC_NS_MAX
from lockstep.contracts.marks import OPERATORS, ORDINAL_MASK, UNKNOWN_DOMAIN, unpack_issue
from lockstep.contracts.records import DOMAIN_KINDS

_NO_DOMAIN, _LOST_DOMAIN = -1, -2
NOT_OURS = -1
WAITS_DEEP_MAX = 64
"""Limit of nested waits; three occur in practice."""
FORMER_STEPS = 10
"""Former steps that are kept: those that a device may not have finished, and a few more."""
TRAFFIC_MAX = 4096
"""Distinct collectives whose traffic is cached: a model has a few hundred."""

_INDEX = IntegerForm(0, EVENTS_MAX)
_BY_ORDINAL = DictForm(IntegerForm(0, ORDINAL_MASK), _INDEX, EVENTS_MAX)
_EXPECTED = ListForm(_INDEX, EVENTS_MAX)


class CommunicationTracker:
    """Communication of one rank's running step; appends its collectives and waits to `events`.

    `domains` are the indices in DOMAIN_KINDS that this rank has ever used.
    """

    STATE: ClassVar[Mapping[str, StateForm]] = {
        "domains": ListForm(IntegerForm(0, len(DOMAIN_KINDS) - 1), len(DOMAIN_KINDS), set),
        "last_domain": IntegerForm(_LOST_DOMAIN, len(DOMAIN_KINDS) - 1),
        "_waits": ListForm(TIME_NS, WAITS_DEEP_MAX),
        "_other_waits": ListForm(IntegerForm(NOT_OURS, MONOTONIC_NS_MAX), WAITS_DEEP_MAX),
    }

    def __init__(self) -> None:
        self.events = StepEvents()
        self.domains: set[int] = set()
        self.last_domain = _NO_DOMAIN
        self._traffic: dict[tuple[int, int], Traffic] = {}
        self.patterns: dict[tuple[bytes, bytes], IssuePattern] = {}
        """Patterns of steps that were read as arrays, by the details and arguments of their issue marks."""
        self.layouts: dict[tuple[bytes, bytes], CommunicationLayout] = {}
        """Layouts of the same steps, by the kinds and subjects of their marks."""
        self._by_ordinal: dict[int, IssuedCollective] = {}
        self._former: deque[dict[int, IssuedCollective] | StepArrays] = deque(maxlen=FORMER_STEPS)
        self.keeps_former = False
        """Whether ends of collectives of former steps are noted, because a device may not have finished those steps."""
        self._expected: list[IssuedCollective] = []
        self.forget_waits()

    def begin_step(self, events: StepEvents) -> None:
        """Begin a step that records to `events`, and stop waiting for the ends of the former step's collectives.

        If nothing waited for an operation, its end is unknown, and it counts as done immediately.
        """
        for collective in self._expected:
            collective.done_ns = collective.issue_ns
        self._expected.clear()
        if self.keeps_former:
            self._former.append(self._by_ordinal)
            self._by_ordinal = {}
        else:
            self._by_ordinal.clear()
        self.events = events

    def forget_waits(self) -> None:
        """Forget which waits are open."""
        self._waits: list[int] = []
        self._other_waits: list[int] = []

    def lose(self) -> None:
        """Forget everything that depends on lost marks."""
        self.forget_waits()
        if self.last_domain != _NO_DOMAIN:
            self.last_domain = _LOST_DOMAIN

    def issue(self, ordinal: int, detail: int, argument: int, now_ns: int) -> bool:
        """Add a collective (`marks.pack_issue`); return False if the mark is malformed."""
        traffic = self.traffic_of(detail, argument)
        if traffic is None:
            return False
        collective = IssuedCollective(now_ns, traffic)
        self._by_ordinal[ordinal] = collective
        self.events.collectives.append(collective)
        domain = traffic.domain
        if domain != self.last_domain:
            self.last_domain = domain
            self.domains.add(domain)
        return True

    def traffic_of(self, detail: int, argument: int) -> Traffic | None:
        """Return the traffic of a collective (`marks.pack_issue`); None if the mark is malformed."""
        return self._traffic.get((detail, argument)) or self._compute_traffic(detail, argument)

    def _compute_traffic(self, detail: int, argument: int) -> Traffic | None:
        """Compute and cache the traffic of a collective that occurs for the first time."""
        issue = unpack_issue(detail, argument)
        if issue.operator >= len(OPERATORS) or issue.domain >= len(DOMAIN_KINDS) or issue.payload_bytes < 0:
            return None
        if len(self._traffic) == TRAFFIC_MAX:
            self._traffic.clear()
        moved = bus_bytes(issue.operator, issue.payload_bytes, issue.group_size)
        traffic = Traffic(issue.domain, issue.payload_bytes, moved, issue.synchronous)
        self._traffic[detail, argument] = traffic
        return traffic

    def end(self, ordinal: int, done_ns: int = UNKNOWN_NS) -> None:
        """Note when a collective was done; one of a former step counts only if `keeps_former`."""
        collective = self._by_ordinal.get(ordinal)
        if collective is not None:
            collective.done_ns = done_ns
        elif self.keeps_former:
            self._end_former(ordinal, done_ns)

    def _end_former(self, ordinal: int, done_ns: int) -> None:
        for former in self._former:
            if not isinstance(former, dict):
                if former.end(ordinal, done_ns):
                    return
            elif ordinal in former:
                former[ordinal].done_ns = done_ns
                return

    def keep_former(self, arrays: StepArrays) -> None:
        """Note that the step before was read as arrays."""
        self._former[-1] = arrays

    def set_bus_bytes(self, ordinal: int, moved_bytes: int) -> bool:
        """Set the bytes of a collective over the slowest link; return False if the mark is malformed."""
        collective = self._by_ordinal.get(ordinal)
        if collective is not None and moved_bytes >= 0:
            collective.traffic = collective.traffic._replace(bus_bytes=moved_bytes)
        return moved_bytes >= 0

    @property
    def expected_count(self) -> int:
        """Number of collectives expected to be done at the end of the next wait."""
        return len(self._expected)

    def find(self, ordinal: int) -> IssuedCollective | None:
        """Return a collective of the running step."""
        return self._by_ordinal.get(ordinal)

    def expect(self, ordinal: int) -> None:
        """Expect a collective to be done at the end of the next wait."""
        collective = self._by_ordinal.get(ordinal)
        if collective is not None:
            self._expected.append(collective)

    def note_unmeasured(self, domain: int, count: int, payload_bytes: int, bus_bytes: int) -> bool:
        """Add collectives that ran without being dispatched; return False if the mark is malformed.

        `domain` is an index in DOMAIN_KINDS, or UNKNOWN_DOMAIN.
        """
        if min(count, payload_bytes, bus_bytes) < 0 or not (domain < len(DOMAIN_KINDS) or domain == UNKNOWN_DOMAIN):
            return False
        if domain == UNKNOWN_DOMAIN:
            for each in self.domains:
                self.events.unmeasured.setdefault(each, (0, 0, 0))
            return True
        self.domains.add(domain)
        known = self.events.unmeasured.get(domain, (0, 0, 0))
        self.events.unmeasured[domain] = (known[0] + count, known[1] + payload_bytes, known[2] + bus_bytes)
        return True

    def begin_wait(self, now_ns: int) -> bool:
        """Begin a wait of the training thread; return False if waits are nested deeper than WAITS_DEEP_MAX."""
        waits = self._waits
        waits.append(now_ns)
        return len(waits) <= WAITS_DEEP_MAX

    def begin_other_wait(self, now_ns: int, *, is_ours: bool) -> bool:
        """Begin a wait of another thread: autograd's (`is_ours`), or one whose communication is not the step's."""
        self._other_waits.append(now_ns if is_ours else NOT_OURS)
        return len(self._other_waits) <= WAITS_DEEP_MAX

    def end_wait(self, now_ns: int) -> bool:
        """End the innermost wait of the training thread; return False if its collective is lost."""
        return self._note_wait(self._waits.pop(), now_ns) if self._waits else True

    def end_other_wait(self, now_ns: int) -> bool:
        """End the innermost wait of the other thread; return as `end_wait`."""
        began_ns = self._other_waits.pop() if self._other_waits else NOT_OURS
        return began_ns == NOT_OURS or self._note_wait(began_ns, now_ns)

    def _note_wait(self, began_ns: int, now_ns: int) -> bool:
        domain = ~self.last_domain
        if self.last_domain == _LOST_DOMAIN:
            return False
        if self._expected:
            domain = self._expected[-1].traffic.domain
            for collective in self._expected:
                collective.done_ns = now_ns
            self._expected.clear()
        if self.last_domain != _NO_DOMAIN:
            self.events.blocked.append((began_ns, now_ns, domain))
        return True

    # For a step whose communication is read as arrays (communication_arrays.py).

    @property
    def is_plain(self) -> bool:
        """Whether the running step is empty so far, and the domain of the last issue is known or there is none."""
        events = self.events
        held = events.collectives or events.blocked or events.unmeasured or self._expected
        return not held and self.last_domain != _LOST_DOMAIN

    @property
    def has_communicated(self) -> bool:
        """Whether a collective was ever issued."""
        return self.last_domain != _NO_DOMAIN

    @property
    def has_open_waits(self) -> bool:
        """Whether a wait is open."""
        return bool(self._waits or self._other_waits)

    def open_waits(self) -> tuple[list[int], list[int]]:
        """Return copies of the begins of open waits: of the training thread, and of the other one."""
        return self._waits.copy(), self._other_waits.copy()

    def set_waits(self, waits: list[int], other_waits: list[int]) -> None:
        """Set the open waits."""
        self._waits, self._other_waits = waits, other_waits

    def take_over(self, domains: Iterable[int], last_domain: Sequence[int]) -> None:
        """Note the domains of issued collectives, and the last one of them, if any."""
        self.domains.update(domains)
        if last_domain:
            self.last_domain = last_domain[0]

    # State.

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`."""
        indices = {id(collective): at for at, collective in enumerate(self.events.collectives)}
        return {
            **saved(self),
            "events": saved(self.events),
            "by_ordinal": _BY_ORDINAL.save({key: indices[id(value)] for key, value in self._by_ordinal.items()}),
            "expected": _EXPECTED.save([indices[id(collective)] for collective in self._expected]),
        }

    def restore(self, state: Any, *, what: str, where: str) -> None:
        """Restore a state, with new events.

        Raises
        ------
        MalformedError
            It is not such a state.
        """
        parts = mapping(state, what, where).copy()
        events, by_ordinal, expected = (parts.pop(name, None) for name in ("events", "by_ordinal", "expected"))
        restore(self, parts, what=what, where=where)
        self.events = StepEvents()
        restore(self.events, events, what=f"{what}.events", where=where)
        indices = _BY_ORDINAL.load(by_ordinal, f"{what}.by_ordinal", where)
        awaited = _EXPECTED.load(expected, f"{what}.expected", where)
        collectives = self.events.collectives
        for index in (*indices.values(), *awaited):
            if index >= len(collectives):
                raise MalformedError(
                    f"{what}: index of a collective", where=where, got=index, expected=f"below {len(collectives)}"
                )
        self._by_ordinal = {ordinal: collectives[index] for ordinal, index in indices.items()}
        self._expected = [collectives[index] for index in awaited]
