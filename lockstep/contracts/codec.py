"""Messages to MessagePack and back. Services only: the agent never imports msgspec.

Decoding is where hostile input ends: size before allocation, types by msgspec, version, topic, limits, the lengths of
columns. What passes is a message that the rest of the program need not doubt.
"""

from functools import lru_cache
from typing import TypeVar

import msgspec

from lockstep.contracts import limits, topics
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.messages import (
    MESSAGE_VERSION,
    OPERATIONS,
    Acknowledgement,
    CoordinatorAlive,
    HostSpan,
    NodeAlive,
    NodeAnnouncement,
    ProfileAnswer,
    ProfileRequest,
    RankProgress,
    StepBatch,
    TraceSummary,
)
from lockstep.contracts.packed_summary import Body, PackedSummary, packed_summary, plain_body, unpacked_summary
from lockstep.contracts.ring import ISSUE_SLOTS
from lockstep.contracts.rows import RANK, VALUE_BYTES, names_of

Message = (
    StepBatch
    | NodeAnnouncement
    | NodeAlive
    | Acknowledgement
    | CoordinatorAlive
    | ProfileRequest
    | ProfileAnswer
    | TraceSummary
)
M = TypeVar("M", bound=Message)

_FORMS: dict[str, type[Message | PackedSummary]] = {
    topics.STEPS: StepBatch,
    topics.ANNOUNCE: NodeAnnouncement,
    topics.ALIVE: NodeAlive,
    topics.ACK: Acknowledgement,
    topics.COORDINATOR: CoordinatorAlive,
    topics.REQUEST: ProfileRequest,
    topics.ANSWER: ProfileAnswer,
    topics.SUMMARY: PackedSummary,
}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = {channel: msgspec.msgpack.Decoder(form) for channel, form in _FORMS.items()}
_VERSION = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_BODY = msgspec.msgpack.Decoder(Body)

_LAYOUT_MAX_BYTES = 4096  # three times the names of all fields
_LAYOUTS_KEPT = 256  # the nodes of a job send a handful
_COUNT_MAX = (1 << 63) - 1  # what an array of int64 holds
_NODE_MAX_NS = 1 << 53  # 104 days; sums over all nodes of a tree stay within int64


def encode(message: Message) -> bytes:
    """Return the bytes of a message.

    Raises
    ------
    MalformedError
        It is larger than a receiver would take.
    """
    if isinstance(message, TraceSummary):
        data, limit = packed_bytes(message)[0], limits.SUMMARY_WIRE_MAX_BYTES
    else:
        data, limit = _ENCODER.encode(message), limits.MESSAGE_MAX_BYTES
    if len(data) > limit:
        where = type(message).__name__
        raise MalformedError("message size", where=where, got=len(data), expected=f"at most {limit} bytes")
    return data


def packed_bytes(summary: TraceSummary) -> tuple[bytes, int]:
    """Return the bytes of a summary, whatever their number, and the size of its body unpacked."""
    packed = packed_summary(summary, _ENCODER.encode)
    return _ENCODER.encode(packed), packed.body_bytes


def decode(topic: str, payload: bytes) -> Message:
    """Return the message that arrived on `topic`.

    Raises
    ------
    ContractVersionError
        The message is of another version.
    MalformedError
        Anything else is wrong with it; the message names the field.
    """
    return decode_parsed(topics.parse_topic(topic), topic, payload)


def decode_parsed(parsed: topics.Topic, topic: str, payload: bytes) -> Message:
    """Return the message that arrived on `topic`, whose parts are `parsed`.

    Raises
    ------
    MalformedError
        As `decode`.
    """
    if len(payload) > limits.MESSAGE_MAX_BYTES:
        raise MalformedError(
            "message size",
            where=topic,
            got=len(payload),
            expected=f"at most {limits.MESSAGE_MAX_BYTES} bytes",
        )
    if parsed.channel not in _DECODERS:
        raise MalformedError("channel", where=topic, got=parsed.channel, expected=tuple(_DECODERS))
    try:
        message: Message | PackedSummary = _DECODERS[parsed.channel].decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        version = _version_of(payload)
        if version != MESSAGE_VERSION:
            raise ContractVersionError("version", where=topic, got=version, expected=MESSAGE_VERSION) from error
        raise MalformedError("message", where=topic, got=str(error), expected=parsed.channel) from error
    if message.version != MESSAGE_VERSION:
        raise ContractVersionError("version", where=topic, got=message.version, expected=MESSAGE_VERSION)
    _check_names(topic, parsed, message)
    if isinstance(message, StepBatch):  # first: thousands of them come in a second
        _check_batch(topic, message)
        return message
    if isinstance(message, PackedSummary):
        message = _unpacked(topic, payload, message)
    _check_limits(topic, message)
    return message


def _check_names(topic: str, parsed: topics.Topic, message: Message | PackedSummary) -> None:
    """Refuse a message that names another run, node or coordinator than its topic."""
    if isinstance(message, CoordinatorAlive):
        if message.coordinator != parsed.node:
            raise MalformedError("coordinator", where=topic, got=message.coordinator, expected=parsed.node)
        return
    if message.node != parsed.node:
        raise MalformedError("node", where=topic, got=message.node, expected=parsed.node)
    if not isinstance(message, NodeAlive | Acknowledgement) and message.run != parsed.run:
        raise MalformedError("run", where=topic, got=message.run, expected=parsed.run)


def decode_as(form: type[M], topic: str, payload: bytes) -> M:
    """Decode, and refuse a topic that carries another form.

    Raises
    ------
    MalformedError
        As `decode`.
    """
    message = decode(topic, payload)
    if not isinstance(message, form):
        raise MalformedError("message", where=topic, got=type(message).__name__, expected=form.__name__)
    return message


def _unpacked(topic: str, payload: bytes, packed: PackedSummary) -> TraceSummary:
    """Return the summary inside its envelope.

    Raises
    ------
    MalformedError
        It is larger than its limits, packed or unpacked, or its body is none.
    """
    _at_most("summary size", topic, len(payload), limits.SUMMARY_WIRE_MAX_BYTES)
    try:
        body = _BODY.decode(plain_body(packed, topic))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError("summary", where=topic, got=str(error), expected="the body of a summary") from error
    return unpacked_summary(packed, body, topic)


def _version_of(payload: bytes) -> int:
    """Return the version that a payload of another form names, this one if it names none."""
    try:
        raw = _VERSION.decode(payload).get("version")
        return MESSAGE_VERSION if raw is None else msgspec.msgpack.decode(raw, type=int)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return MESSAGE_VERSION


def _check_batch(topic: str, batch: StepBatch) -> None:
    """Check a step batch; plain comparisons first, for thousands come in a second."""
    count, layout = batch.count, batch.layout
    if not 0 <= count <= limits.BATCH_RECORDS_MAX:
        _at_most("count", topic, count, limits.BATCH_RECORDS_MAX)
    width = _width_of(layout) if len(layout) <= _LAYOUT_MAX_BYTES else 0
    if not width:
        expected = f"{RANK!r} and other names, each once, in {_LAYOUT_MAX_BYTES} bytes"
        raise MalformedError("layout", where=topic, got=layout, expected=expected)
    if len(batch.records) != count * width * VALUE_BYTES:
        _exactly("records bytes", topic, len(batch.records), count * width * VALUE_BYTES)


@lru_cache(_LAYOUTS_KEPT)
def _width_of(layout: str) -> int:
    """Return how many values a record has, 0 for a layout that cannot be."""
    names = names_of(layout)
    return len(names) if names[0] == RANK and len(set(names)) == len(names) else 0


def _check_limits(topic: str, message: Message) -> None:
    match message:
        case NodeAnnouncement():
            _check_announcement(topic, message)
        case NodeAlive():
            _check_alive(topic, message)
        case ProfileRequest():
            _at_most("ranks", topic, len(message.ranks), limits.PROFILE_RANKS_MAX)
            _at_most("steps", topic, message.steps, limits.PROFILE_STEPS_MAX)
            _at_most("trace_max_bytes", topic, message.trace_max_bytes, limits.TRACE_MAX_BYTES)
        case TraceSummary():
            _at_most("tree", topic, len(message.tree), limits.SUMMARY_NODES_MAX)
            _at_most("summary size", topic, sum(len(n.name) for n in message.tree), limits.SUMMARY_MAX_BYTES)
            for index, node in enumerate(message.tree):
                if not -1 <= node.parent < index:
                    raise MalformedError("parent", where=topic, got=node.parent, expected=f"-1 to {index - 1}")
                _at_most("total_ns", topic, node.total_ns, _NODE_MAX_NS)
                _at_most("self_ns", topic, abs(node.self_ns), _NODE_MAX_NS)
            if message.host is not None:
                _check_host(topic, message.host)
        case _:
            pass


def _check_host(topic: str, host: HostSpan) -> None:
    _at_most("span_ns", topic, host.span_ns, _COUNT_MAX)
    for what in ("on_cpu_ns", "run_queue_wait_ns", "throttled_ns", "cores"):
        value = getattr(host, what)
        if value is not None:
            _at_most(what, topic, value, _COUNT_MAX)
    _at_most("busiest", topic, len(host.busiest), limits.HOST_COMMANDS_MAX)
    for command, cores in [("others", host.others_cores or 0.0), *host.busiest]:
        _at_most("command length", topic, len(command), limits.NAME_MAX_BYTES)
        if not 0 <= cores <= limits.HOST_CORES_MAX:
            raise MalformedError("cores", where=topic, got=cores, expected=f"0 to {limits.HOST_CORES_MAX}")


def _check_announcement(topic: str, message: NodeAnnouncement) -> None:
    _at_most("ranks", topic, len(message.ranks), limits.RANKS_PER_NODE_MAX)
    _at_most("groups", topic, len(message.groups), limits.GROUPS_PER_NODE_MAX)
    for info in message.ranks:
        _at_most("world_size", topic, info.world_size, limits.WORLD_SIZE_MAX)
        if not 0 <= info.rank < info.world_size:
            raise MalformedError("rank", where=topic, got=info.rank, expected=f"0 to {info.world_size - 1}")
        if info.progress is not None:
            _check_progress(topic, info.progress, len(message.groups), info.world_size)


def _check_alive(topic: str, message: NodeAlive) -> None:
    _at_most("runs", topic, len(message.runs), limits.RUNS_PER_NODE_MAX)
    for heartbeat in message.runs:
        _at_most("revision", topic, heartbeat.revision, _COUNT_MAX)
        _at_most("alive_unix_ns", topic, len(heartbeat.alive_unix_ns), limits.RANKS_PER_NODE_MAX)
        for alive_unix_ns in heartbeat.alive_unix_ns:
            _at_most("alive_unix_ns", topic, alive_unix_ns, _COUNT_MAX)


def _check_progress(topic: str, progress: RankProgress, group_count: int, world_size: int) -> None:
    _at_most("issues", topic, len(progress.issues), ISSUE_SLOTS)
    for issue in progress.issues:
        if not 0 <= issue.group < group_count:
            raise MalformedError("group", where=topic, got=issue.group, expected=f"0 to {group_count - 1}")
        if issue.operation not in OPERATIONS:
            raise MalformedError("operation", where=topic, got=f"{issue.operation:.64}", expected=OPERATIONS)
        if not -1 <= issue.peer < world_size:
            raise MalformedError("peer", where=topic, got=issue.peer, expected=f"-1 to {world_size - 1}")
        _at_most("issued", topic, issue.issued, _COUNT_MAX)
        _at_most("last_unix_ns", topic, issue.last_unix_ns, _COUNT_MAX)


def _at_most(what: str, where: str, got: int, limit: int) -> None:
    if not 0 <= got <= limit:
        raise MalformedError(what, where=where, got=got, expected=f"0 to {limit}")


def _exactly(what: str, where: str, got: int, expected: int) -> None:
    if got != expected:
        raise MalformedError(what, where=where, got=got, expected=expected)
