"""What localisation need not say again: functions that are part of a cause which a rule has found on the same ranks.

The reads inside a loader that holds the training up, the compiler's frames inside a compilation, the collector itself,
the operators that are dispatched too slowly: true, but the same loss a second time, with poorer advice.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from lockstep.diagnosis.finding import Finding
from lockstep.diagnosis.host_causes.collection import GC, is_collection
from lockstep.diagnosis.host_causes.compilation import COMPILATION, DYNAMIC_SHAPES, is_compiling
from lockstep.diagnosis.host_causes.data import FETCHING, PROCESSING, READING
from lockstep.diagnosis.host_causes.dispatch import DISPATCH
from lockstep.diagnosis.host_causes.synchronisation import SYNCHRONISATION, is_synchronising
from lockstep.diagnosis.host_causes.view import LOADER_PREFIX
from lockstep.diagnosis.localisation import AbnormalFunction, Localisation
from lockstep.diagnosis.threshold import Threshold
from lockstep.trace.patterns import FunctionClass
from lockstep.trace.patterns.pattern import OUTSIDE

HELD = Threshold(0.5, "ratio", "own: a rule that tells most of what a function costs tells its cause")
_NS_PER_S = 1e9
_DISPATCHES = re.compile(r"aten::.*|(?:cu|cuda|hip)\w*Launch\w*")


def _loads(name: str) -> bool:
    return name.startswith(LOADER_PREFIX)


def _dispatches(name: str) -> bool:
    return _DISPATCHES.fullmatch(name) is not None and not is_synchronising(name)


def _collects(name: str) -> bool:
    """Whether it is a collection, or what a trace shows of one that others noted: nothing."""
    return is_collection(name) or name == OUTSIDE


_PARTS: dict[str, Callable[[str], bool]] = {
    READING: _loads,
    PROCESSING: _loads,
    FETCHING: _loads,
    COMPILATION: is_compiling,
    DYNAMIC_SHAPES: is_compiling,
    GC: _collects,
    DISPATCH: _dispatches,
    SYNCHRONISATION: is_synchronising,
}
"""By cause the names that belong to it, and all that they call."""


def without_told(localisation: Localisation, findings: Iterable[Finding]) -> Localisation:
    """Return the localisation without host functions that are part of what `findings` say of all their ranks.

    A function that costs clearly more than what is said of it is news: `HELD` of it must be told.
    """
    lost_ns: dict[str, Counter[int]] = defaultdict(Counter)
    for each in findings:
        for rank in each.ranks:
            lost_ns[each.cause][rank] += each.lost_ns or 0
    kept = tuple(each for each in localisation.abnormal if not _is_told(each, lost_ns))
    return replace(localisation, abnormal=kept)


def _is_told(abnormal: AbnormalFunction, lost_ns: Mapping[str, Counter[int]]) -> bool:
    if abnormal.function.kind is not FunctionClass.HOST:
        return False
    names = (abnormal.function.name, *abnormal.function.stack)
    causes = [cause for cause in lost_ns if cause in _PARTS and any(map(_PARTS[cause], names))]
    least_ns = max(HELD.value * abnormal.lost_s * _NS_PER_S, 1)
    ranks = abnormal.suspects.tolist()
    return any(all(lost_ns[cause][rank] >= least_ns for rank in ranks) for cause in causes)
