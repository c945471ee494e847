"""Encodes messages to MessagePack and decodes them. For services only: the agent never imports msgspec.

Decoding rejects hostile input. It checks size before allocation; types and bounds (`bounds.py`) through msgspec; and
version, topic, fields that refer to each other, and lengths of columns. The rest of the program can trust a decoded
message, and can encode it again. Trace summaries are deflated: repeated keys and names are two thirds of them.
"""

import re
import zlib
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from lockstep.contracts import limits, topics
from lockstep.contracts.bounds import Length, OneOf, Range, unannotated
from lockstep.contracts.domains import count_members
from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.messages import (
    MESSAGE_VERSION,
    Acknowledgement,
    CaptureRequest,
    CaptureResult,
    CoordinatorAlive,
    GroupInfo,
    NodeAlive,
    NodeAnnouncement,
    PatternTable,
    RankStacks,
    StackRequest,
    StepBatch,
    TraceSummary,
)
from lockstep.contracts.rows import RANK, VALUE_BYTES, names_of

Message = (
    StepBatch
    | NodeAnnouncement
    | NodeAlive
    | Acknowledgement
    | CoordinatorAlive
    | CaptureRequest
    | CaptureResult
    | TraceSummary
    | StackRequest
    | RankStacks
)
M = TypeVar("M", bound=Message)

_FORMS: dict[str, type[Message]] = {
    topics.STEPS: StepBatch,
    topics.ANNOUNCE: NodeAnnouncement,
    topics.ALIVE: NodeAlive,
    topics.ACK: Acknowledgement,
    topics.COORDINATOR: CoordinatorAlive,
    topics.REQUEST: CaptureRequest,
    topics.ANSWER: CaptureResult,
    topics.SUMMARY: TraceSummary,
    topics.STACK_REQUEST: StackRequest,
    topics.STACKS: RankStacks,
}
_MAX_BYTES: dict[str, int] = {
    topics.ANNOUNCE: limits.ANNOUNCEMENT_MAX_BYTES,
    topics.ALIVE: limits.HEARTBEAT_MAX_BYTES,
    topics.ACK: limits.STATE_MESSAGE_MAX_BYTES,
    topics.COORDINATOR: limits.STATE_MESSAGE_MAX_BYTES,
    topics.REQUEST: limits.REQUEST_MAX_BYTES,
    topics.ANSWER: limits.REQUEST_MAX_BYTES,
    topics.SUMMARY: limits.SUMMARY_WIRE_MAX_BYTES,
    topics.STACK_REQUEST: limits.REQUEST_MAX_BYTES,
    topics.STACKS: limits.STACKS_MAX_BYTES,
    topics.STEPS: limits.MESSAGE_MAX_BYTES,
}
"""Largest message of each channel; decoding briefly takes a multiple of it."""


def _bounded(hint: Any) -> Any:
    """Return a type with its bounds, including those of the types inside it, in the form that msgspec enforces."""
    plain, bound = unannotated(hint)
    if is_dataclass(plain) or hasattr(plain, "_fields"):
        _bound_fields(plain)
        return plain
    origin, inside = get_origin(plain), get_args(plain)
    if origin in (Union, UnionType):
        return Union[tuple(map(_bounded, inside))]  # noqa: UP007  (made of a tuple)
    if origin is not None:
        plain = origin[tuple(map(_bounded, inside))]
    match bound:
        case Range(low, high):
            return Annotated[plain, bound, msgspec.Meta(ge=low, le=high)]
        case Length(most, least):
            return Annotated[plain, bound, msgspec.Meta(min_length=least, max_length=most)]
        case OneOf(values):
            return Annotated[Literal[values], bound]
    return plain


def _bound_fields(form: type) -> None:
    """Register a form's bounds with msgspec.

    Contracts import the standard library only, so bounds are declared without msgspec. msgspec looks for its own bounds
    in the annotations when a decoder is created; this function appends them there.
    """
    for name, hint in form.__annotations__.items():
        form.__annotations__[name] = _bounded(hint)


for _form in _FORMS.values():
    _bound_fields(_form)

_CHANNELS: dict[type, str] = {form: channel for channel, form in _FORMS.items()}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = {channel: msgspec.msgpack.Decoder(form) for channel, form in _FORMS.items()}
_DEFLATE_LEVEL = 9

_LAYOUTS_KEPT = 256  # the nodes of a job send a handful
_SEARCHED_MAX_BYTES = 64 << 10  # of a refused message, searched for the refused value
_PLACE = re.compile(
    r"(?:Expected (?P<expected>.*)|Invalid enum value .*) - at `\$(?P<path>(?:\.\w+|\[\d+\])+)`", re.DOTALL
)
_PART = re.compile(r"\.(\w+)|\[(\d+)\]")


class _Versioned(msgspec.Struct):
    """The version of any message; other fields are skipped."""

    version: int = MESSAGE_VERSION


_VERSIONED = msgspec.msgpack.Decoder(_Versioned)


def channel_of(message: Message) -> str:
    """Return the channel that a message is published on."""
    return _CHANNELS[type(message)]


def encode(message: Message) -> bytes:
    """Return the bytes of a message.

    Raises
    ------
    MalformedError
        It is larger than a receiver accepts, or contains a value without an encoding: an integer of more than 64 bits,
        half of a surrogate pair.
    """
    data = packed_bytes(message)[0] if isinstance(message, TraceSummary) else _encoded(message)
    _at_most("message size", type(message).__name__, len(data), _MAX_BYTES[_CHANNELS[type(message)]])
    return data


def packed_bytes(summary: TraceSummary) -> tuple[bytes, int]:
    """Return a summary's bytes, whatever their size, and its size before compression.

    Raises
    ------
    MalformedError
        It contains a value without an encoding.
    """
    plain = _encoded(summary)
    return zlib.compress(plain, _DEFLATE_LEVEL), len(plain)


def _encoded(value: Message) -> bytes:
    try:
        return _ENCODER.encode(value)
    except (OverflowError, UnicodeEncodeError) as error:
        where = type(value).__name__
        raise MalformedError("message", where=where, got=str(error), expected="64-bit integers and Unicode") from error


def decode(topic: str, payload: bytes) -> Message:
    """Return the message that arrived on `topic`.

    Raises
    ------
    ContractVersionError
        The message has another version.
    MalformedError
        The message is invalid in another way; the error names the field.
    """
    return decode_parsed(topics.parse_topic(topic), topic, payload)


def decode_parsed(parsed: topics.Topic, topic: str, payload: bytes) -> Message:
    """Return the message that arrived on `topic`, already parsed as `parsed`.

    Raises
    ------
    MalformedError
        As for `decode`.
    """
    if parsed.channel not in _DECODERS:
        raise MalformedError("channel", where=topic, got=parsed.channel, expected=tuple(_DECODERS))
    if len(payload) > _MAX_BYTES[parsed.channel]:
        _at_most("message size", topic, len(payload), _MAX_BYTES[parsed.channel])
    if parsed.channel == topics.SUMMARY:
        payload = _inflated(topic, payload)
    try:
        message: Message = _DECODERS[parsed.channel].decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        version = _version_of(payload)
        if version != MESSAGE_VERSION:
            raise ContractVersionError("version", where=topic, got=version, expected=MESSAGE_VERSION) from error
        small = payload[:_SEARCHED_MAX_BYTES]
        raise _malformed(error, topic, parsed.channel, lambda: msgspec.msgpack.decode(small)) from error
    if message.version != MESSAGE_VERSION:
        raise ContractVersionError("version", where=topic, got=message.version, expected=MESSAGE_VERSION)
    _check_names(topic, parsed, message)
    _check_content(topic, message)
    return message


def _check_content(topic: str, message: Message) -> None:
    """Refuse a message whose fields contradict each other."""
    if isinstance(message, StepBatch):  # first: thousands of them arrive per second
        _check_batch(topic, message)
    elif isinstance(message, TraceSummary):
        _check_tree(topic, message)
        if message.patterns is not None:
            _check_patterns(topic, message.patterns)
    elif isinstance(message, NodeAnnouncement):
        _check_announcement(topic, message)
    elif isinstance(message, CaptureResult) and message.rank < 0:
        raise MalformedError("rank", where=topic, got=message.rank, expected="whose result it is")


def _check_names(topic: str, parsed: topics.Topic, message: Message) -> None:
    """Refuse a message whose run, node or coordinator differs from its topic's."""
    if isinstance(message, CoordinatorAlive):
        if message.coordinator != parsed.node:
            raise MalformedError("coordinator", where=topic, got=message.coordinator, expected=parsed.node)
        return
    if message.node != parsed.node:
        raise MalformedError("node", where=topic, got=message.node, expected=parsed.node)
    if not isinstance(message, NodeAlive | Acknowledgement) and message.run != parsed.run:
        raise MalformedError("run", where=topic, got=message.run, expected=parsed.run)


def decode_as(form: type[M], topic: str, payload: bytes) -> M:
    """Decode, and refuse a topic that carries a different form.

    Raises
    ------
    MalformedError
        As for `decode`.
    """
    message = decode(topic, payload)
    if not isinstance(message, form):
        raise MalformedError("message", where=topic, got=type(message).__name__, expected=form.__name__)
    return message


def _inflated(topic: str, payload: bytes) -> bytes:
    """Decompress a summary, up to SUMMARY_MAX_BYTES."""
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(payload, limits.SUMMARY_MAX_BYTES + 1)
    except zlib.error as error:
        raise MalformedError("summary", where=topic, got=str(error), expected="deflated data") from error
    if not unpacker.eof or unpacker.unused_data or len(plain) > limits.SUMMARY_MAX_BYTES:
        expected = f"deflated data of up to {limits.SUMMARY_MAX_BYTES} bytes, and nothing behind it"
        raise MalformedError("summary", where=topic, got=f"{len(plain)} bytes and more", expected=expected)
    return plain


def _check_tree(topic: str, summary: TraceSummary) -> None:
    """Refuse a call tree in which a callee precedes its caller, or whose steps are not the summary's."""
    steps = len(summary.step_ns)
    for index, node in enumerate(summary.tree):
        if node.parent >= index:
            raise MalformedError("parent", where=topic, got=node.parent, expected=f"-1 to {index - 1}")
        if len(node.by_step_ns) != steps:
            got = len(node.by_step_ns)
            raise MalformedError(
                "by_step_ns", where=topic, got=got, expected=f"{steps}, as many as the summary's steps"
            )


def _check_patterns(topic: str, patterns: PatternTable) -> None:
    """Refuse callers that follow their callees or are deeper than a stack, and rows that refer to missing callers."""
    depths: list[int] = []
    for index, caller in enumerate(patterns.callers):
        if caller.parent >= index:
            raise MalformedError("patterns.parent", where=topic, got=caller.parent, expected=f"-1 to {index - 1}")
        depths.append(1 if caller.parent < 0 else depths[caller.parent] + 1)
        _at_most("depth of patterns", topic, depths[-1], limits.PATTERN_DEPTH_MAX)
    for row in patterns.rows:
        if row.caller >= len(depths):
            raise MalformedError("patterns.caller", where=topic, got=row.caller, expected=f"-1 to {len(depths) - 1}")


def _malformed(error: Exception, where: str, what: str, whole: Callable[[], Any]) -> MalformedError:
    """Convert msgspec's error to ours, with the field and value that it refused if they can be found in the message."""
    place = _PLACE.match(str(error))
    if place is None:  # not about one field, or not a message at all
        return MalformedError(what, where=where, got=str(error), expected=f"a message of channel {what}")
    path = place["path"]
    try:
        got = whole()
        for name, index in _PART.findall(path):
            got = got[name] if name else got[int(index)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
        got = error  # too large to search, or broken after the field
    field = path.removeprefix(".") if path.startswith(".") else what + path
    return MalformedError(field, where=where, got=repr(got), expected=place["expected"] or "a known value")


def _version_of(payload: bytes) -> int:
    """Return the version in a payload of another form; the current one if it names none."""
    try:
        return _VERSIONED.decode(payload).version
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return MESSAGE_VERSION


def _check_batch(topic: str, batch: StepBatch) -> None:
    """Refuse a batch whose records do not match its layout and count."""
    width = _width_of(batch.layout)
    if not width:
        raise MalformedError("layout", where=topic, got=batch.layout, expected=f"{RANK!r} and other names, each once")
    if len(batch.records) != batch.count * width * VALUE_BYTES:
        expected = batch.count * width * VALUE_BYTES
        raise MalformedError("records bytes", where=topic, got=len(batch.records), expected=expected)


@lru_cache(_LAYOUTS_KEPT)
def _width_of(layout: str) -> int:
    """Return the number of values in a record, or 0 for an impossible layout."""
    names = names_of(layout)
    return len(names) if names[0] == RANK and len(set(names)) == len(names) else 0


def _check_announcement(topic: str, message: NodeAnnouncement) -> None:
    """Refuse an announcement whose parts contradict each other, or whose groups are too large to unpack."""
    worlds = [info.world_size for info in message.ranks]
    _check_groups(topic, message.groups, max(worlds, default=0))
    if len({info.rank for info in message.ranks}) < len(message.ranks):
        got = [info.rank for info in message.ranks]
        raise MalformedError("ranks", where=topic, got=got, expected="each rank once")
    for info in message.ranks:
        _at_most("rank", topic, info.rank, info.world_size - 1)
        if info.progress is not None:
            for issue in info.progress.issues:
                _at_most("group", topic, issue.group, len(message.groups) - 1)
                if issue.peer >= info.world_size:
                    raise MalformedError("peer", where=topic, got=issue.peer, expected=f"-1 to {info.world_size - 1}")


def _check_groups(topic: str, groups: list[GroupInfo], world_size: int) -> None:
    """Check groups by their spans and members, without building lists of ranks: short ranges can stand for millions."""
    spans = members = 0
    for group in groups:
        spans += len(group.ranks)
        members += count_members(group.ranks, where=topic, limit=world_size)
    _at_most("spans of all groups", topic, spans, limits.SPANS_PER_NODE_MAX)
    _at_most("members of all groups", topic, members, limits.MEMBERS_PER_NODE_MAX)


def _at_most(what: str, where: str, got: int, limit: int) -> None:
    if not 0 <= got <= limit:
        raise MalformedError(what, where=where, got=got, expected=f"0 to {limit}")
