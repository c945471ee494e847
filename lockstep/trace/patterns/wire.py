"""Pattern summaries as they travel: MessagePack, packed, at most WIRE_MAX_BYTES for a rank.

Call stacks share their beginnings, so they travel as one tree; names travel once; shares are whole numbers of parts
per million. What does not fit is left out, smallest beta first, and counted. A capture's summary is packed as a whole:
there they stand plain (`plain_patterns`), and what they share with the call tree is packed once.
"""

import zlib
from collections.abc import Sequence

import msgspec

from lockstep.contracts.errors import ContractVersionError, MalformedError
from lockstep.contracts.limits import SUMMARY_MAX_BYTES
from lockstep.trace.patterns.pattern import STACK_MAX, FunctionClass, Pattern, PatternSummary

WIRE_VERSION = 1

WIRE_MAX_BYTES = 10 << 10
"""Of one rank; PerfTracker sends about 30 KB (section 4.2). 10,240 ranks are 100 MB where they are localised."""

_PLAIN_MAX_BYTES = 1 << 20  # unpacked; real ones are at most 60 KB
_PACKED_HEAD = b"\x78"  # zlib's; a plain message begins with an array's mark
_PATTERNS_MAX = 4096
_NAME_MAX_CHARS = 256
_LEVEL = 9
_PPM = 1_000_000
_ABSENT = -1
_ROOT = -1


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """One pattern: caller's node or -1, name, class, then parts per million, -1 for none."""

    caller: int
    name: int
    kind: int
    beta: int
    mu: int
    sigma: int
    active_mu: int
    gap_ratio: int


class _Message(msgspec.Struct, frozen=True, array_like=True):
    version: int
    window_ns: int
    names: list[str]
    node_caller: list[int]
    node_name: list[int]
    rows: list[_Row]
    omitted_count: int
    omitted_beta: int


_KINDS = tuple(FunctionClass)
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(_Message)
_VERSION = msgspec.msgpack.Decoder(list[msgspec.Raw])


def encode_patterns(summary: PatternSummary, *, max_bytes: int = WIRE_MAX_BYTES) -> bytes:
    """Return the bytes of a summary; the functions of largest beta that fit, at least those above 1 % on real traces.

    Source of the cut: PerfTracker needs beta > 1 % only (equation 11).
    """
    low, high = 0, len(summary.patterns)
    best = _packed(summary, 0)
    while low < high:  # the size grows with the number of functions
        count = (low + high + 1) // 2
        data = _packed(summary, count)
        if len(data) <= max_bytes:
            low, best = count, data
        else:
            high = count - 1
    return best


def plain_patterns(summary: PatternSummary, count: int) -> bytes:
    """Return the bytes of the `count` functions of largest beta, not packed; the others are counted."""
    return _ENCODER.encode(_message(summary, count))


def decode_patterns(data: bytes, *, where: str) -> PatternSummary:
    """Return the summary in `data`, packed or plain; `where` is where it came from, for the error.

    Raises
    ------
    ContractVersionError
        It is of another version.
    MalformedError
        It is larger than WIRE_MAX_BYTES, plain than SUMMARY_MAX_BYTES, unpacks to more than a megabyte, or a field
        cannot be.
    """
    is_packed = data.startswith(_PACKED_HEAD)
    limit = WIRE_MAX_BYTES if is_packed else SUMMARY_MAX_BYTES
    if len(data) > limit:
        raise MalformedError("size", where=where, got=len(data), expected=f"at most {limit} bytes")
    plain = _unpacked(data, where) if is_packed else data
    try:
        message = _DECODER.decode(plain)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _check_version(plain, where)
        raise MalformedError("patterns", where=where, got=str(error), expected="a pattern summary") from error
    if message.version != WIRE_VERSION:
        raise ContractVersionError("version", where=where, got=message.version, expected=WIRE_VERSION)
    return _Reader(message, where).summary()


def _packed(summary: PatternSummary, count: int) -> bytes:
    return zlib.compress(plain_patterns(summary, count), _LEVEL)


def _message(summary: PatternSummary, count: int) -> _Message:
    kept, left_out = summary.patterns[:count], summary.patterns[count:]
    tree = _Tree()
    rows = [
        _Row(
            tree.node(each.stack),
            tree.name(each.function),
            _KINDS.index(each.kind),
            *(_ppm(value) for value in (each.beta, each.mu, each.sigma, each.active_mu, each.gap_ratio)),
        )
        for each in kept
    ]
    omitted_beta = summary.omitted_beta + sum(each.beta for each in left_out)
    return _Message(
        WIRE_VERSION,
        summary.window_ns,
        list(tree.names),
        tree.callers,
        tree.node_names,
        rows,
        summary.omitted_count + len(left_out),
        round(omitted_beta * _PPM),
    )


def _ppm(value: float | None) -> int:
    return _ABSENT if value is None else round(value * _PPM)


class _Tree:
    """Names and stacks by number, in order of first use."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.callers: list[int] = []
        self.node_names: list[int] = []
        self._nodes: dict[tuple[int, int], int] = {}

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names))

    def node(self, stack: Sequence[str]) -> int:
        node = _ROOT
        for text in stack:
            key = node, self.name(text)
            if key not in self._nodes:
                self._nodes[key] = len(self.callers)
                self.callers.append(key[0])
                self.node_names.append(key[1])
            node = self._nodes[key]
        return node


def _unpacked(data: bytes, where: str) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data, _PLAIN_MAX_BYTES)
    except zlib.error as error:
        raise MalformedError("patterns", where=where, got=str(error), expected="packed bytes") from error
    if not unpacker.eof or unpacker.unused_data:
        expected = f"one packed message of at most {_PLAIN_MAX_BYTES} bytes"
        raise MalformedError(
            "packed patterns", where=where, got=f"{len(plain)} bytes, not at their end", expected=expected
        )
    return plain


def _check_version(plain: bytes, where: str) -> None:
    """Raise "another version" rather than "bad field" where the first field has another version."""
    try:
        version = msgspec.msgpack.decode(_VERSION.decode(plain)[0], type=int)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError):
        return
    if version != WIRE_VERSION:
        raise ContractVersionError("version", where=where, got=version, expected=WIRE_VERSION)


class _Reader:
    """A decoded message to a summary, every number checked."""

    def __init__(self, message: _Message, where: str) -> None:
        self._message, self._where = message, where
        self._check(message.window_ns > 0, "window_ns", message.window_ns, "more than 0")
        self._check(len(message.rows) <= _PATTERNS_MAX, "number of patterns", len(message.rows), f"<= {_PATTERNS_MAX}")
        longest = max(map(len, message.names), default=0)
        self._check(longest <= _NAME_MAX_CHARS, "length of a name", longest, f"at most {_NAME_MAX_CHARS}")
        nodes = len(message.node_caller)
        self._check(
            nodes == len(message.node_name), "nodes", (nodes, len(message.node_name)), "as many names as callers"
        )
        self._check(message.omitted_count >= 0, "omitted_count", message.omitted_count, "0 or more")
        self._check(message.omitted_beta >= 0, "omitted_beta", message.omitted_beta, "0 or more")
        self._depth: list[int] = []
        for node, (caller, name) in enumerate(zip(message.node_caller, message.node_name, strict=True)):
            self._check(_ROOT <= caller < node, f"caller of node {node}", caller, "an earlier node")
            self._name(name)
            depth = 1 if caller == _ROOT else self._depth[caller] + 1
            self._check(depth <= STACK_MAX, "depth of a stack", depth, f"at most {STACK_MAX}")
            self._depth.append(depth)

    def summary(self) -> PatternSummary:
        message = self._message
        return PatternSummary(
            window_ns=message.window_ns,
            patterns=tuple(map(self._pattern, message.rows)),
            omitted_count=message.omitted_count,
            omitted_beta=message.omitted_beta / _PPM,
        )

    def _pattern(self, row: _Row) -> Pattern:
        self._check(_ROOT <= row.caller < len(self._depth), "caller of a pattern", row.caller, "a node")
        self._check(0 <= row.kind < len(_KINDS), "class of a pattern", row.kind, f"below {len(_KINDS)}")
        self._check(0 <= row.beta <= _PPM, "beta", row.beta, f"0 to {_PPM}")
        shares = (row.mu, row.sigma, row.active_mu, row.gap_ratio)
        mu, sigma, active_mu, gap_ratio = map(self._share, shares)
        return Pattern(
            function=self._name(row.name),
            stack=self._stack(row.caller),
            kind=_KINDS[row.kind],
            beta=row.beta / _PPM,
            mu=mu,
            sigma=sigma,
            active_mu=active_mu,
            gap_ratio=gap_ratio,
        )

    def _share(self, ppm: int) -> float | None:
        self._check(_ABSENT <= ppm <= 2 * _PPM, "share of a peak", ppm, f"{_ABSENT} to {2 * _PPM}")
        return None if ppm == _ABSENT else ppm / _PPM

    def _stack(self, node: int) -> tuple[str, ...]:
        names = []
        while node != _ROOT:
            names.append(self._message.names[self._message.node_name[node]])
            node = self._message.node_caller[node]
        return tuple(reversed(names))

    def _name(self, name: int) -> str:
        self._check(0 <= name < len(self._message.names), "number of a name", name, f"below {len(self._message.names)}")
        return self._message.names[name]

    def _check(self, holds: bool, what: str, got: object, expected: str) -> None:  # noqa: FBT001  (a condition)
        if not holds:
            raise MalformedError(what, where=self._where, got=got, expected=expected)
