"""The journal of a recording: all input of the coordinator except step records, converted to JSON and back.

Pure. Together with the step records (`recording.py`) it holds all input that determines what a coordinator reports: the
same input in the same order and at the same times gives the same incidents. The call trees of captures are omitted,
because their diagnosis is an event of its own.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import msgspec

from coordinator.decide import events as ev
from coordinator.decide.incidents import Prediction, from_json, to_json
from coordinator.decide.machine_evidence import machine_evidence_from_json
from coordinator.decide.saved_run import SavedRun, learnt_from_bytes, saved_run_from_json
from coordinator.settings.policy import Policy
from lockstep.contracts.errors import MalformedError
from lockstep.contracts.finding import Advice
from lockstep.contracts.messages import CaptureResult, NodeAlive, NodeAnnouncement, RankStacks, StepBatch, TraceSummary

NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStart:
    """A coordinator started: its policy, its configured degrees, and the state that an earlier one stored, by run."""

    policy: Policy
    domains: str
    order: str
    memories: Mapping[str, SavedRun] = field(default_factory=dict)


JournalItem = (
    CoordinatorStart
    | NodeAnnouncement
    | NodeAlive
    | CaptureResult
    | TraceSummary
    | RankStacks
    | ev.Event
    | tuple[StepBatch, ...]
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One input. `serial` orders the entries of one coordinator; `run` is set for events only."""

    serial: int
    time_ns: int
    what: JournalItem
    run: str = ""

    @property
    def unix_s(self) -> float:
        """The exact time of receipt, unix seconds: dividing integers rounds only once."""
        return self.time_ns / NS


def time_ns_of(unix_s: float) -> int:
    """Return a time in whole ns that `Entry.unix_s` converts back exactly; unix_s * 1e9 would lose 7 bits."""
    whole = int(unix_s)
    return whole * NS + round((unix_s - whole) * NS)


_MESSAGES: dict[str, type] = {
    "announcement": NodeAnnouncement,
    "alive": NodeAlive,
    "answer": CaptureResult,
    "summary": TraceSummary,
    "stacks": RankStacks,
}
_EVENTS: dict[str, type[ev.Event]] = {
    "diagnosed": ev.DiagnosedEvent,
    "fleet_history": ev.FleetHistoryEvent,
    "machine_evidence": ev.MachineEvidenceEvent,
    "predicted": ev.PredictedEvent,
    "profile_asked": ev.CaptureRequestedEvent,
    "policy": ev.PolicyChangedEvent,
    "profile_failed": ev.CaptureFailedEvent,
    "tick": ev.TickEvent,
}
_KINDS: dict[type, str] = {form: kind for kind, form in (_MESSAGES | _EVENTS).items()} | {CoordinatorStart: "start"}


def is_kept(what: object) -> bool:
    """Whether the journal stores inputs of this type."""
    return type(what) in _KINDS


class JournalWriter:
    """Converts entries to JSON, in order; remembers the context that a reader needs to begin at any of them."""

    def __init__(self) -> None:
        self._start: CoordinatorStart | None = None
        self._announced: dict[tuple[str, str], Entry] = {}

    def copy(self) -> "JournalWriter":
        """Return a copy with the same context."""
        twin = JournalWriter()
        twin._start, twin._announced = self._start, dict(self._announced)
        return twin

    def known(self) -> list[Any]:
        """Return the JSON form of the context for a reader that begins here: the start and each node's announcement."""
        start = [] if self._start is None else [Entry(-1, 0, replace(self._start, memories={}))]
        return [_row(entry) for entry in (*start, *self._announced.values())]

    def write(self, entry: Entry) -> list[Any]:
        """Return the JSON form of an entry."""
        what = entry.what
        if isinstance(what, CoordinatorStart):
            self._start, self._announced = what, {}
        if isinstance(what, NodeAnnouncement):
            self._announced[what.run, what.node] = entry
        return _row(entry)


def read_entry(row: Any, *, where: str) -> Entry:
    """Return the entry of a JSON form.

    Raises
    ------
    MalformedError
        The value is not an entry.
    """
    try:
        serial, time_ns, kind, run, body = row
        return Entry(int(serial), int(time_ns), _what_of(kind, body, where), str(run))
    except (ValueError, TypeError, KeyError, AttributeError, msgspec.ValidationError) as error:
        raise MalformedError("journal", where=where, got=repr(error), expected="what a recorder wrote") from None


def _row(entry: Entry) -> list[Any]:
    what: Any = entry.what
    kind = _KINDS[type(what)]
    if kind == "start":
        memories = {
            run: {
                "memory": memory.to_json(),
                "incidents": [to_json(each) for each in memory.incidents],
                "learnt": b64encode(memory.learnt.to_bytes()).decode() if memory.learnt else None,
            }
            for run, memory in what.memories.items()
        }
        body = {"policy": asdict(what.policy), "domains": what.domains, "order": what.order, "memories": memories}
    elif kind == "tick":
        body = None
    elif kind == "summary":
        body = msgspec.to_builtins(replace(what, tree=[], collectives={}))
    else:
        body = asdict(what)
    return [entry.serial, entry.time_ns, kind, entry.run, body]


def _what_of(kind: str, body: Any, where: str) -> JournalItem:
    if kind == "start":
        memories = {run: _memory_of(value, where) for run, value in body["memories"].items()}
        return CoordinatorStart(
            policy=policy_of(body["policy"]), domains=body["domains"], order=body["order"], memories=memories
        )
    if kind in _MESSAGES:
        message: JournalItem = msgspec.convert(body, type=_MESSAGES[kind])
        return message
    if kind == "tick":
        return ev.TickEvent(unix_s=0.0, cause_id="tick")  # the entry carries its time
    return _EVENTS[kind](**{name: _RESTORE.get(name, _as_is)(value) for name, value in body.items()})


def _memory_of(value: Mapping[str, Any], where: str) -> SavedRun:
    incidents = tuple(from_json(each, where=where) for each in value["incidents"])
    form = value["learnt"]
    learnt = None if form is None else learnt_from_bytes(b64decode(form), where=where)
    return saved_run_from_json(value["memory"], incidents, learnt)


def _as_is(value: Any) -> Any:
    return value


def policy_of(value: Mapping[str, Mapping[str, Any]]) -> Policy:
    """Return the policy of a JSON form; unknown settings are ignored, missing ones have their defaults."""
    base = Policy()
    sections = {}
    for section in fields(Policy):
        default = getattr(base, section.name)
        names = {each.name for each in fields(default)}
        given = value.get(section.name, {})
        sections[section.name] = replace(
            default, **{name: tuple(v) if isinstance(v, list) else v for name, v in given.items() if name in names}
        )
    return Policy(**sections)


_RESTORE: dict[str, Callable[[Any], Any]] = {
    "advice": lambda items: tuple(Advice(**item) for item in items),
    "evidence": tuple,
    "history": tuple,
    "machine": machine_evidence_from_json,
    "policy": policy_of,
    "prediction": lambda value: Prediction(**value),
    "ranks": tuple,
}
