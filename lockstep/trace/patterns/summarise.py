# ruff: noqa: N803, N806  (names of arrays end in their shape, see the legend below)
"""Computes behaviour patterns from a trace and samples of its hardware: PerfTracker, section 4.2, equations 1 to 5.

Shape suffixes: E executions of the chosen functions, C chosen functions.
"""

from collections.abc import Mapping

import numpy as np

from lockstep.contracts.errors import LocalError
from lockstep.trace.columns import TraceColumns
from lockstep.trace.patterns.critical_duration import Numerics, critical_durations, uses
from lockstep.trace.patterns.functions import crosses_nodes, resources_of
from lockstep.trace.patterns.path import FunctionsOnPath, functions_on_path
from lockstep.trace.patterns.pattern import BETA_MIN, FunctionClass, Pattern, PatternSummary
from lockstep.trace.patterns.samples import Numbers, Resource, Samples, UsageSamples

_BEHAVIOUR = ("mu", "sigma", "active_mu", "gap_ratio")


def summarise_patterns(
    columns: TraceColumns,
    window_ns: tuple[int, int],
    *,
    thread: int,
    samples: Mapping[Resource, Samples] | None = None,
    ranks_per_node: int | None = None,
) -> PatternSummary:
    """Return the behaviour patterns of one rank over a window, (start, end) on the clock of the trace.

    `thread` is the code of the training thread. `samples` are on the same clock; functions whose resource has none
    have no mu and sigma, and neither have executions too short to hold a sample. `ranks_per_node` separates collectives
    inside a node from those between nodes. The beta of all functions, omitted ones included, sum to 1 where no two
    functions of one class run at the same time.

    Raises
    ------
    LocalError
        The window is empty.
    MalformedError
        Samples that cannot be (`UsageSamples`), or a window longer than any capture.
    """
    length_ns = window_ns[1] - window_ns[0]
    if length_ns <= 0:
        raise LocalError(f"window of patterns: got {window_ns}, expected a start before its end")
    path = functions_on_path(columns, window_ns, thread)
    chosen = np.flatnonzero(path.exposed_ns >= BETA_MIN * length_ns)
    chosen = chosen[np.lexsort((chosen, -path.exposed_ns[chosen]))]
    behaviour = _behaviour(columns, path, chosen, window_ns[0], samples=samples or {}, ranks_per_node=ranks_per_node)
    patterns = tuple(
        Pattern(
            function=path.functions[function][1],
            stack=path.callers(function),
            kind=path.functions[function][0],
            beta=int(path.exposed_ns[function]) / length_ns,
            **{name: None if np.isnan(value) else float(value) for name, value in zip(_BEHAVIOUR, row, strict=True)},
        )
        for function, row in zip(chosen.tolist(), behaviour, strict=True)
    )
    return PatternSummary(
        window_ns=length_ns,
        patterns=patterns,
        omitted_count=int(np.count_nonzero(path.exposed_ns)) - len(chosen),
        omitted_beta=int(path.exposed_ns.sum() - path.exposed_ns[chosen].sum()) / length_ns,
    )


def _behaviour(
    columns: TraceColumns,
    path: FunctionsOnPath,
    chosen: Numbers,
    begin_ns: int,
    *,
    samples: Mapping[Resource, Samples],
    ranks_per_node: int | None,
) -> Numerics:
    """Return `_BEHAVIOUR` of each chosen function, shape (n_chosen, 4), NaN where it is unknown."""
    found = np.full((len(chosen), len(_BEHAVIOUR)), np.nan)
    if not samples or not len(chosen):
        return found
    place = np.full(len(path.functions), -1, np.int64)
    place[chosen] = np.arange(len(chosen))
    place_E = place[path.executions.function]
    resource_C = [_resource(columns, path, function, samples, ranks_per_node) for function in chosen.tolist()]
    for resource, readings in samples.items():
        mine_C = np.array([each is resource for each in resource_C], np.bool_)
        mine_E = np.flatnonzero((place_E >= 0) & mine_C[place_E])
        usage = UsageSamples(readings, where=f"samples of {resource}")
        bounds = usage.within(path.executions.start_ns[mine_E] + begin_ns, path.executions.end_ns[mine_E] + begin_ns)
        found[mine_C] = _weighted(usage, *bounds, place_E[mine_E], len(chosen))[mine_C]
    return found


def _weighted(usage: UsageSamples, first_E: Numbers, stop_E: Numbers, place_E: Numbers, places: int) -> Numerics:
    """Return the means over executions, weighted by |L(e)| (equations 4 and 5, both sums over one function and worker).

    The mean of busy samples is weighted by their number.
    """
    found = critical_durations(usage, first_E, stop_E)
    of = uses(usage, found)
    length_E = (found.stop - found.first).astype(np.float64)
    busy_E = length_E * (1 - np.nan_to_num(of.gap_ratio))
    weighted = (of.mean, length_E), (of.deviation, length_E), (of.active_mean, busy_E), (of.gap_ratio, length_E)
    return np.stack([_means(place_E, values_E, weight_E, places) for values_E, weight_E in weighted], axis=1)


def _means(place_E: Numbers, values_E: Numerics, weight_E: Numerics, places: int) -> Numerics:
    total = np.bincount(place_E, weight_E, places)
    means: Numerics = np.full(places, np.nan)
    np.divide(np.bincount(place_E, np.nan_to_num(values_E) * weight_E, places), total, out=means, where=total > 0)
    return means


def _resource(
    columns: TraceColumns,
    path: FunctionsOnPath,
    function: int,
    samples: Mapping[Resource, Samples],
    ranks_per_node: int | None,
) -> Resource | None:
    """Return which of the sampled resources a function is measured by, if any."""
    kind = path.functions[function][0]
    crosses = None
    if kind is FunctionClass.COLLECTIVE:
        events = path.executions.event[path.executions.function == function].tolist()
        answers = {crosses_nodes(columns, event, ranks_per_node) for event in events}
        crosses = True if True in answers else None if None in answers else False
    return next((each for each in resources_of(kind, crosses=crosses) if each in samples), None)
