"""Summarises a trace file: the large nodes of the call tree and the collectives."""

from pathlib import Path

from lockstep.contracts import limits
from lockstep.contracts.errors import LocalError, MalformedError
from lockstep.contracts.messages import CallNode, TraceSummary
from lockstep.trace.calls import build_calls, collectives
from lockstep.trace.columns import TraceColumns
from lockstep.trace.kineto.load import load_trace
from lockstep.trace.reduced_tree import largest_nodes, reduced, work_ns
from lockstep.trace.span_table import compiled_build
from lockstep.trace.tree import ROOT, CallTree

NODE_MIN_RATIO = 0.005
"""Share of the window below which a node's work is left out: a straggler worth an alert is 5 % slower, and the
diagnosis asks for a node with most of that; 0.5 % is a tenth of it, and leaves 25 to 200 nodes of every trace at
hand."""

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
"""Frames that start a program; evaluated by name alone, so that all ranks lose the same ones."""


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
    every, launchers = _nodes(calls), _launchers(calls)
    least_ns = NODE_MIN_RATIO * (calls.window_ns[1] - calls.window_ns[0])
    work = {index: ns for index, ns in enumerate(work_ns(every)) if index not in launchers}
    nodes = reduced(every, {index for index, ns in work.items() if ns >= least_ns > 0}, least_ns=least_ns)
    nodes = largest_nodes(nodes, limits.SUMMARY_NODES_MAX)
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


def _nodes(calls: CallTree) -> list[CallNode]:
    steps_ns = [list(each) for each in zip(*calls.step_totals_ns(), strict=True)] or [[] for _ in range(len(calls))]
    return [
        CallNode(parent=parent, name=name, kind=kind, total_ns=total_ns, self_ns=0, count=count, by_step_ns=by_step_ns)
        for parent, name, kind, total_ns, count, by_step_ns in zip(
            calls.parent, calls.name, calls.kind, calls.total_ns, calls.count, steps_ns, strict=True
        )
    ]


def _launchers(calls: CallTree) -> set[int]:
    launchers: set[int] = set()
    for index, (parent, name) in enumerate(zip(calls.parent, calls.name, strict=True)):
        if (parent == ROOT or parent in launchers) and name.startswith(_LAUNCHERS):
            launchers.add(index)
    return launchers


def _largest(found: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the collectives with most time."""
    return dict(sorted(found.items(), key=lambda item: -item[1][1])[:_COLLECTIVES_MAX])
