"""From a trace file to what travels: the large nodes of the call tree and the collectives."""

from dataclasses import replace
from pathlib import Path

from lockstep.contracts import limits
from lockstep.contracts.errors import LocalError, MalformedError
from lockstep.contracts.messages import CallNode, TraceSummary
from lockstep.trace.calls import build_calls, collectives
from lockstep.trace.columns import TraceColumns
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.span_table import compiled_build
from lockstep.trace.tree import ROOT, CallTree

NODE_MIN_RATIO = 0.005
"""Share of the window below which a node is left out: a straggler worth an alert is 5 % slower, and the diagnosis asks
for a node with most of that; 0.5 % is a tenth of it, and leaves 25 to 125 nodes of every trace at hand."""

AIM_BYTES = 16 << 10
"""Of the call tree before it is deflated, which makes a third of it."""

NODE_BYTES = 112
"""A `CallNode` with its keys, without its name."""

_COLLECTIVES_MAX = 32  # names; more are names that a generator made
_LAUNCHERS = (
    "runpy.py",
    "<frozen runpy>",
    "<frozen importlib",
    "torch/distributed/run.py",
    "torch/distributed/launcher/",
    "torch/distributed/elastic/",
    "<built-in function exec>",
    "<built-in method exec",
)
"""Frames that start a program; judged by name alone, so that all ranks lose the same ones."""


def summarise_trace(
    path: Path,
    *,
    run: str,
    node: str,
    rank: int,
    request_id: int,
    steps: int,
    max_bytes: int = limits.TRACE_MAX_BYTES,
) -> TraceSummary:
    """Return the summary of a rank's trace file, which stays as it is.

    `steps` is what the capture covers by its own account; step marks in the trace overrule it. A file that cannot be
    used gives a summary with `error` set and an empty tree, for the reader who asked for it: it raises nothing.

    Raises
    ------
    LocalError
        `steps` is not positive.
    """
    try:
        columns = load_trace(path, max_bytes=max_bytes)
    except MalformedError as error:
        return empty_summary(run=run, node=node, rank=rank, request_id=request_id, steps=steps, error=str(error))
    return summarise_columns(columns, run=run, node=node, rank=rank, request_id=request_id, steps=steps)


def empty_summary(*, run: str, node: str, rank: int, request_id: int, steps: int, error: str) -> TraceSummary:
    """Return the summary of a trace that cannot be used."""
    return TraceSummary(
        run=run,
        node=node,
        rank=rank,
        request_id=request_id,
        window_ns=0,
        steps=steps,
        trace_bytes=0,
        event_count=0,
        tree=[],
        error=error,
    )


def summarise_columns(
    columns: TraceColumns, *, run: str, node: str, rank: int, request_id: int, steps: int
) -> TraceSummary:
    """Return the summary of a rank's trace that is loaded.

    Of marked steps the first ones are known by themselves (`CallTree.step_totals_ns`).

    Raises
    ------
    LocalError
        `steps` is not positive.
    """
    if steps < 1:
        raise LocalError(f"steps of a summary: got {steps}, expected at least 1")
    calls = build_calls(columns, compiled_build())
    kept = _kept_nodes(calls)
    nodes = _renumbered(calls, kept)
    return TraceSummary(
        run=run,
        node=node,
        rank=rank,
        request_id=request_id,
        window_ns=calls.window_ns[1] - calls.window_ns[0],
        steps=calls.steps or steps,
        trace_bytes=columns.trace_bytes,
        event_count=columns.event_count,
        tree=nodes,
        omitted_nodes=len(calls) - len(nodes),
        collectives=_largest(collectives(columns, calls.window_ns)),
        step_ns=calls.step_lengths_ns(),
    )


def _kept_nodes(calls: CallTree) -> list[int]:
    """Return the places of the nodes worth sending, a parent before its children.

    Frames that only launch are taken off the roots. A node that is kept has all its callers; the time of those that
    are not stays in their caller's self time.
    """
    launchers = _launchers(calls)
    budget_bytes = AIM_BYTES
    kept: list[int] = []
    minimum_ns = NODE_MIN_RATIO * (calls.window_ns[1] - calls.window_ns[0])
    # A caller's total is never below its callee's and its index is lower, so this order meets callers first.
    for index in sorted(range(len(calls)), key=lambda index: (-calls.total_ns[index], index)):
        budget_bytes -= NODE_BYTES + len(calls.name[index].encode())
        if calls.total_ns[index] < minimum_ns or budget_bytes < 0 or len(kept) == limits.SUMMARY_NODES_MAX:
            break
        if index not in launchers:
            kept.append(index)
    return sorted(kept)


def largest_nodes(nodes: list[CallNode], count: int) -> list[CallNode]:
    """Return the `count` nodes with most time, callers before callees; the time of the others stays in their callers.

    A caller's total is never below its callee's, so a node that is kept has all its callers.
    """
    if count >= len(nodes):
        return nodes
    chosen = sorted(sorted(range(len(nodes)), key=lambda index: (-nodes[index].total_ns, index))[:count])
    place = {index: at for at, index in enumerate(chosen)}
    self_ns = {index: nodes[index].self_ns for index in chosen}
    for index, node in enumerate(nodes):
        if index not in place and node.parent in place:
            self_ns[node.parent] += node.total_ns
    return [
        replace(nodes[index], parent=place.get(nodes[index].parent, ROOT), self_ns=self_ns[index]) for index in chosen
    ]


def _launchers(calls: CallTree) -> set[int]:
    launchers: set[int] = set()
    for index, (parent, name) in enumerate(zip(calls.parent, calls.name, strict=True)):
        if (parent == ROOT or parent in launchers) and name.startswith(_LAUNCHERS):
            launchers.add(index)
    return launchers


def _renumbered(calls: CallTree, kept: list[int]) -> list[CallNode]:
    position = {index: place for place, index in enumerate(kept)}
    self_ns = {index: calls.total_ns[index] for index in kept}
    for index in kept:
        if calls.parent[index] in position:
            self_ns[calls.parent[index]] -= calls.total_ns[index]
    by_step_ns = calls.step_totals_ns()
    return [
        CallNode(
            parent=position.get(calls.parent[index], ROOT),
            name=calls.name[index],
            kind=calls.kind[index],
            total_ns=calls.total_ns[index],
            self_ns=self_ns[index],
            count=calls.count[index],
            by_step_ns=[each[index] for each in by_step_ns],
        )
        for index in kept
    ]


def _largest(found: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the collectives with most time."""
    return dict(sorted(found.items(), key=lambda item: -item[1][1])[:_COLLECTIVES_MAX])
