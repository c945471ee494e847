"""Messages to MessagePack and back. Services only: the agent never imports msgspec.

Decoding is where hostile input ends: size before allocation, types by msgspec, version, topic, limits, the lengths of
columns. What passes is a message that the rest of the program need not doubt.
"""

from typing import TypeVar

import msgspec

from lockstep.contracts import limits, topics
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.messages import (
    MESSAGE_VERSION,
    OPERATIONS,
    NodeAlive,
    NodeAnnouncement,
    ProfileAnswer,
    ProfileRequest,
    RankProgress,
    StepBatch,
    TraceSummary,
)
from lockstep.contracts.ring import ISSUE_SLOTS

Message = StepBatch | NodeAnnouncement | NodeAlive | ProfileRequest | ProfileAnswer | TraceSummary
M = TypeVar("M", bound=Message)

_FORMS: dict[str, type[Message]] = {
    topics.STEPS: StepBatch,
    topics.ANNOUNCE: NodeAnnouncement,
    topics.ALIVE: NodeAlive,
    topics.REQUEST: ProfileRequest,
    topics.ANSWER: ProfileAnswer,
    topics.SUMMARY: TraceSummary,
}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = {channel: msgspec.msgpack.Decoder(form) for channel, form in _FORMS.items()}
_VERSION = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])

_RANK_BYTES = 4
_VALUE_BYTES = 8
_COUNT_MAX = (1 << 63) - 1  # what an array of int64 holds


def encode(message: Message) -> bytes:
    """Return the bytes of a message.

    Raises
    ------
    MalformedError
        It is larger than a receiver would take.
    """
    data = _ENCODER.encode(message)
    if len(data) > limits.MESSAGE_MAX_BYTES:
        raise MalformedError(
            "message size",
            where=type(message).__name__,
            got=len(data),
            expected=f"at most {limits.MESSAGE_MAX_BYTES} bytes",
        )
    return data


def decode(topic: str, payload: bytes) -> Message:
    """Return the message that arrived on `topic`.

    Raises
    ------
    ContractVersionError
        The message is of another version.
    MalformedError
        Anything else is wrong with it; the message names the field.
    """
    parsed = topics.parse_topic(topic)
    if len(payload) > limits.MESSAGE_MAX_BYTES:
        raise MalformedError(
            "message size",
            where=topic,
            got=len(payload),
            expected=f"at most {limits.MESSAGE_MAX_BYTES} bytes",
        )
    try:
        message: Message = _DECODERS[parsed.channel].decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _check_version(topic, payload)
        raise MalformedError("message", where=topic, got=str(error), expected=parsed.channel) from error
    if message.version != MESSAGE_VERSION:
        raise ContractVersionError("version", where=topic, got=message.version, expected=MESSAGE_VERSION)
    if message.node != parsed.node:
        raise MalformedError("node", where=topic, got=message.node, expected=parsed.node)
    if not isinstance(message, NodeAlive) and message.run != parsed.run:
        raise MalformedError("run", where=topic, got=message.run, expected=parsed.run)
    _check_limits(topic, message)
    return message


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


def _check_version(topic: str, payload: bytes) -> None:
    """Say "another version" rather than "bad field" when that is what a payload's own version says."""
    try:
        raw = _VERSION.decode(payload).get("version")
        version = msgspec.msgpack.decode(raw, type=int) if raw is not None else MESSAGE_VERSION
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    if version != MESSAGE_VERSION:
        raise ContractVersionError("version", where=topic, got=version, expected=MESSAGE_VERSION)


def _check_limits(topic: str, message: Message) -> None:
    match message:
        case StepBatch():
            _at_most("count", topic, message.count, limits.BATCH_RECORDS_MAX)
            _exactly("ranks bytes", topic, len(message.ranks), message.count * _RANK_BYTES)
            expected_bytes = message.count * _VALUE_BYTES
            for name, column in message.columns.items():
                if len(column) != expected_bytes:  # text is made only for who reads it: a batch has 46
                    _exactly(f"column {name!r:.64} bytes", topic, len(column), expected_bytes)
        case NodeAnnouncement():
            _check_announcement(topic, message)
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
        case _:
            pass


def _check_announcement(topic: str, message: NodeAnnouncement) -> None:
    _at_most("ranks", topic, len(message.ranks), limits.RANKS_PER_NODE_MAX)
    _at_most("groups", topic, len(message.groups), limits.GROUPS_PER_NODE_MAX)
    for info in message.ranks:
        _at_most("world_size", topic, info.world_size, limits.WORLD_SIZE_MAX)
        if not 0 <= info.rank < info.world_size:
            raise MalformedError("rank", where=topic, got=info.rank, expected=f"0 to {info.world_size - 1}")
        if info.progress is not None:
            _check_progress(topic, info.progress, len(message.groups), info.world_size)


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
