"""Trace summaries as they travel: every name once, numbers in columns, all of it deflated.

As plain messages, keys and all, they would be three times as large. To and from bytes: `codec`. Nothing here knows
MessagePack.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lockstep.contracts.errors import MalformedError
from lockstep.contracts.limits import SUMMARY_MAX_BYTES
from lockstep.contracts.memory_report import KeptAllocation
from lockstep.contracts.messages import MESSAGE_VERSION, CallNode, HostSpan, RankFinding, TraceSummary

_LEVEL = 9
_ROOT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSummary:
    """The envelope: whose it is, and a deflated `Body` of `body_bytes` bytes unpacked."""

    run: str
    node: str
    body_bytes: int
    body: bytes
    version: int = MESSAGE_VERSION


class Nodes(NamedTuple):
    """A call tree in columns. `up` is how many nodes before it the caller stands; a root's stands before the first.

    `held_ns` is self time beyond what the total leaves after the children: 0 wherever a summariser made the tree.
    """

    up: list[int]
    name: list[int]
    kind: list[int]
    total_ns: list[int]
    held_ns: list[int]
    calls: list[int]


class Body(NamedTuple):
    """A `TraceSummary` without its envelope; names are places in `names`.

    `by_step_ns` has one row a node, or none; where single steps are not known both are empty.
    """

    rank: int
    request_id: int
    window_ns: int
    steps: int
    trace_bytes: int
    event_count: int
    error: str
    names: list[str]
    tree: Nodes
    omitted_nodes: int
    collectives: list[tuple[int, list[int]]]
    breakdown: list[tuple[int, int]]
    path: list[tuple[int, int, int]]
    patterns: bytes
    findings: list[RankFinding]
    not_judged: dict[str, str]
    omitted: dict[str, int]
    host: HostSpan | None = None
    kept: Sequence[KeptAllocation] = ()
    step_ns: Sequence[int] = ()
    by_step_ns: Sequence[Sequence[int]] = ()


@dataclass(slots=True)
class _Names:
    """Texts by their place, in order of first use."""

    places: dict[str, int] = field(default_factory=dict)

    def __call__(self, text: str) -> int:
        return self.places.setdefault(text, len(self.places))


def packed_summary(message: TraceSummary, encode: Callable[[Body], bytes]) -> PackedSummary:
    """Return the form that travels; `encode` makes bytes of a body."""
    plain = encode(_body(message))
    return PackedSummary(
        run=message.run,
        node=message.node,
        body_bytes=len(plain),
        body=zlib.compress(plain, _LEVEL),
        version=message.version,
    )


def _body(message: TraceSummary) -> Body:
    name = _Names()
    tree = _nodes(message.tree, name)
    collectives = [(name(text), counts) for text, counts in message.collectives.items()]
    breakdown = [(name(text), ns) for text, ns in message.breakdown.items()]
    path = [(name(text), name(kind), ns) for text, kind, ns in message.path]
    return Body(
        rank=message.rank,
        request_id=message.request_id,
        window_ns=message.window_ns,
        steps=message.steps,
        trace_bytes=message.trace_bytes,
        event_count=message.event_count,
        error=message.error,
        names=list(name.places),
        tree=tree,
        omitted_nodes=message.omitted_nodes,
        collectives=collectives,
        breakdown=breakdown,
        path=path,
        patterns=message.patterns,
        findings=message.findings,
        not_judged=message.not_judged,
        omitted=message.omitted,
        host=message.host,
        kept=message.kept,
        step_ns=message.step_ns,
        by_step_ns=[each.by_step_ns for each in message.tree] if message.step_ns else (),
    )


def _nodes(tree: Sequence[CallNode], name: _Names) -> Nodes:
    left_ns = [each.total_ns for each in tree]
    for each in tree:
        if 0 <= each.parent < len(tree):
            left_ns[each.parent] -= each.total_ns
    return Nodes(
        up=[index - each.parent for index, each in enumerate(tree)],
        name=[name(each.name) for each in tree],
        kind=[name(each.kind) for each in tree],
        total_ns=[each.total_ns for each in tree],
        held_ns=[each.self_ns - left for each, left in zip(tree, left_ns, strict=True)],
        calls=[each.count for each in tree],
    )


def plain_body(packed: PackedSummary, where: str) -> bytes:
    """Return the body unpacked; never more than SUMMARY_MAX_BYTES are.

    Raises
    ------
    MalformedError
        It claims to be larger, has another size than it claims, or is no deflated data.
    """
    if not 0 < packed.body_bytes <= SUMMARY_MAX_BYTES:
        raise MalformedError("body_bytes", where=where, got=packed.body_bytes, expected=f"1 to {SUMMARY_MAX_BYTES}")
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(packed.body, packed.body_bytes)
        ended = unpacker.eof or (unpacker.decompress(unpacker.unconsumed_tail, 1) == b"" and unpacker.eof)
    except zlib.error as error:
        raise MalformedError("body", where=where, got=str(error), expected="deflated data") from error
    if len(plain) != packed.body_bytes or not ended or unpacker.unused_data:
        expected = f"{packed.body_bytes} bytes, deflated"
        raise MalformedError("body", where=where, got=f"{len(plain)} bytes or more", expected=expected)
    return plain


def unpacked_fields(packed: PackedSummary, body: Body, where: str) -> dict[str, Any]:
    """Return the fields of the `TraceSummary` that a body holds, the nodes of its tree as mappings; bounds unchecked.

    Raises
    ------
    MalformedError
        Columns of the tree differ in length, or a name or caller is none.
    """
    reader = _Reader(body.names, where)
    fields = body._asdict()
    del fields["by_step_ns"]
    return fields | {
        "run": packed.run,
        "node": packed.node,
        "tree": reader.tree(body.tree, body.by_step_ns, len(body.step_ns)),
        "collectives": {reader.name(place): counts for place, counts in body.collectives},
        "breakdown": {reader.name(place): ns for place, ns in body.breakdown},
        "path": [(reader.name(place), reader.name(kind), ns) for place, kind, ns in body.path],
        "version": packed.version,
    }


class _Reader:
    def __init__(self, names: Sequence[str], where: str) -> None:
        self._names, self._where = names, where

    def name(self, place: int) -> str:
        if not 0 <= place < len(self._names):
            raise MalformedError("name", where=self._where, got=place, expected=f"0 to {len(self._names) - 1}")
        return self._names[place]

    def tree(self, nodes: Nodes, by_step_ns: Sequence[Sequence[int]], steps: int) -> list[dict[str, Any]]:
        by_step_ns = by_step_ns if steps else [()] * len(nodes.up)
        lengths = {len(row) for row in by_step_ns} - {steps}
        if lengths:
            raise MalformedError("by_step_ns", where=self._where, got=sorted(lengths), expected=f"{steps} steps a node")
        counts = {len(column) for column in (*nodes, by_step_ns)}
        if len(counts) != 1:
            raise MalformedError("tree", where=self._where, got=sorted(counts), expected="columns of one length")
        parents = [index - up for index, up in enumerate(nodes.up)]
        self_ns = [total + held for total, held in zip(nodes.total_ns, nodes.held_ns, strict=True)]
        for index, parent in enumerate(parents):
            if not _ROOT <= parent < index:
                raise MalformedError("parent", where=self._where, got=parent, expected=f"-1 to {index - 1}")
            if parent != _ROOT:
                self_ns[parent] -= nodes.total_ns[index]
        columns = zip(parents, nodes.name, nodes.kind, nodes.total_ns, self_ns, nodes.calls, by_step_ns, strict=True)
        return [
            {
                "parent": parent,
                "name": self.name(name),
                "kind": self.name(kind),
                "total_ns": total_ns,
                "self_ns": own_ns,
                "count": calls,
                "by_step_ns": list(by_step),
            }
            for parent, name, kind, total_ns, own_ns, calls, by_step in columns
        ]
