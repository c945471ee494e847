"""Derives a diagnosis from the summaries of a suspect and its peers. Pure: no I/O, no clock."""

from dataclasses import dataclass, replace

from lockstep.contracts.finding import HIGH, LOW, MEDIUM, Advice
from lockstep.contracts.messages import TraceSummary
from lockstep.diagnosis import evidence
from lockstep.diagnosis.advice import advise
from lockstep.diagnosis.communication import compare_collectives
from lockstep.diagnosis.excess import HOLDING_RATIO, ExcessTree, Scope, compare
from lockstep.diagnosis.frames import is_frame, is_operation, is_own, is_user_frame
from lockstep.diagnosis.verdict import INSUFFICIENT, Diagnosis
from lockstep.trace.names import COMMUNICATION_KIND, DATA_KIND, GC_KIND
from lockstep.trace.patterns.pattern import OUTSIDE
from lockstep.trace.tree import ROOT
from lockstep.trace.waiting import WAIT_NAME

EXPLAINING_RATIO = 0.3
"""Smallest share of the measured excess that the capture must explain: captures of a few steps on busy machines differ
by a quarter without a fault."""

LOOP_RATIO = 0.9
"""A frame with this share of the window is the training loop; naming it explains little unless it does the work
itself."""

AUTOMATIC_GC = "automatic garbage collection"
_SCOPES = {
    "data": Scope(only=frozenset({DATA_KIND})),
    "gc": Scope(only=frozenset({GC_KIND}), named=frozenset({evidence.COLLECT})),
}
_WORK = Scope(without=frozenset({DATA_KIND, GC_KIND, COMMUNICATION_KIND}))
_ANY = Scope(without=frozenset({COMMUNICATION_KIND}), outside=True)
UNKNOWN, COMPUTE = "unknown", "compute"


@dataclass(frozen=True, slots=True)
class _Case:
    cause: str
    suspect: TraceSummary
    peers: list[TraceSummary]
    step_seconds: float
    excess_seconds: float

    @property
    def excess_ns(self) -> float:
        return self.excess_seconds * 1e9


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the excess was found: the walked nodes, and the node that is the answer."""

    walked: list[int]
    answer: int
    notes: list[str]
    certain: bool = True


def diagnose(
    *,
    cause: str,
    suspect: TraceSummary | None,
    peers: list[TraceSummary],
    step_seconds: float,
    excess_seconds: float,
) -> Diagnosis:
    """Return where the suspect spends the time by which it is slower than its peers, and what to do.

    `cause` is one of `metrics.CAUSES`, `unknown` if it was not measured: then the call trees decide (`cause_of`).
    `step_seconds` is the job's step, `excess_seconds` the suspect's excess of self time over its peers per step, as
    measured outside the capture (0 or less: unknown). Summaries with an error count as absent. Without enough evidence
    the result is `INSUFFICIENT` or of low confidence, never a guess.
    """
    usable = [peer for peer in peers if peer.tree or peer.collectives]
    if suspect is None or not (suspect.tree or suspect.collectives):
        why = suspect.error or "its capture holds no host events" if suspect else "no capture of the suspect arrived"
        return _undecided(cause, [why], step_seconds, excess_seconds)
    case = _Case(cause, suspect, usable, step_seconds, excess_seconds)
    notes = [f"the capture of rank {peer.rank} could not be used: {peer.error}" for peer in peers if peer.error]
    found = _from_collectives(case) if cause == "link" else _from_calls(case)
    return Diagnosis(
        function=found.function,
        operator=found.operator,
        path=found.path,
        evidence=[*found.evidence, *notes],
        advice=found.advice,
        confidence=found.confidence,
        held_ns=found.held_ns,
    )


def cause_of(suspect: TraceSummary, peers: list[TraceSummary]) -> str:
    """Return the main part of the suspect's excess: data, gc, else compute; unknown without peers."""
    usable = [peer for peer in peers if peer.tree]
    if not usable or not suspect.tree:
        return UNKNOWN
    whole_ns = compare(suspect, usable, _ANY).explained_ns
    shares = {cause: compare(suspect, usable, scope).explained_ns for cause, scope in _SCOPES.items()}
    likely = max(shares, key=lambda cause: shares[cause])
    return likely if shares[likely] >= HOLDING_RATIO * whole_ns > 0 else COMPUTE


def _from_calls(case: _Case) -> Diagnosis:
    scope = _SCOPES.get(case.cause, _WORK)
    if not case.peers and scope is _WORK:
        return _undecided(
            case.cause,
            [f"no healthy peer of rank {case.suspect.rank} was captured to compare its work with"],
            case.step_seconds,
            case.excess_seconds,
        )
    tree = compare(case.suspect, case.peers, scope)
    walked = tree.walk(case.excess_ns)
    if case.cause == "gc" and not (walked and _is_collection(tree, walked[-1])):
        return _automatic_gc(case, tree)
    if walked and tree.held_ns[walked[-1]] >= EXPLAINING_RATIO * case.excess_ns:
        return _verdict(case, tree, _place(case.cause, tree, walked))
    return (_unrecorded(case) if scope is _WORK else None) or _unexplained(case, tree, walked)


def _unrecorded(case: _Case) -> Diagnosis | None:
    """Return a diagnosis if the excess is in no recorded call, else None: recorded calls take precedence."""
    tree = compare(case.suspect, case.peers, replace(_WORK, outside=True))
    walked = tree.walk(case.excess_ns)
    if not walked or tree.nodes[walked[-1]].name != OUTSIDE:
        return None
    if tree.held_ns[walked[-1]] < EXPLAINING_RATIO * case.excess_ns:
        return None
    why = "garbage collection and Python without stacks leave no call"
    return _verdict(case, tree, _Place(walked, walked[-1], [why], certain=False))


def _place(cause: str, tree: ExcessTree, walked: list[int]) -> _Place:
    """Choose the answer among the walked nodes: the deepest user frame, else the deepest frame, else the last node."""
    if cause == "data":
        return _place_in_loader(tree, walked)
    notes = []
    if cause == "gc" and not any(tree.nodes[index].name == evidence.COLLECT for index in walked):
        notes = ["these are Python's own collections, started by what is allocated there"]
    for suits in (is_user_frame, is_frame):
        frames = [index for index in walked if suits(tree.nodes[index]) and not is_own(tree.nodes[index].name)]
        if frames:
            return _Place(walked, frames[-1], notes)
    return _Place(walked, walked[-1], [*notes, "the captures hold no Python frames there"])


def _place_in_loader(tree: ExcessTree, walked: list[int]) -> _Place:
    loader = next((place for place, index in enumerate(walked) if tree.nodes[index].kind == DATA_KIND), None)
    if loader is None:
        return _Place(walked, walked[-1], [], certain=False)
    frames = [index for index in walked[loader:] if is_user_frame(tree.nodes[index])]
    if frames:
        return _Place(walked, frames[-1], [])
    name = tree.nodes[walked[loader]].name
    note = (
        "the time is spent in the loader's worker processes, which a capture of the trainer does not see"
        if "MultiProcessing" in name
        else "no single function of the dataset holds it"
    )
    return _Place(walked, walked[loader], [note], certain=False)


def _verdict(case: _Case, tree: ExcessTree, place: _Place) -> Diagnosis:
    walked, answer = _with_operation(tree, place.walked), place.answer
    last, held_ns = walked[-1], tree.held_ns[answer]
    below = walked[walked.index(answer) + 1 :]
    operations = [index for index in below if is_operation(tree.nodes[index])]
    if case.cause == "gc":  # totals are those of the collections below each node, not of the node
        sentences = [evidence.collections(case.suspect, case.peers)]
    else:
        shown = [answer, *operations[-1:]]
        sentences = [evidence.compared(tree, index, case.suspect, case.peers) for index in shown]
    sentences += evidence.called_from([tree.nodes[index].name for index in walked[: walked.index(answer) + 1]])
    sentences.append(evidence.share(held_ns, case.excess_ns, case.suspect))
    scattered = _is_scattered(case, tree, last)
    if scattered:
        sentences.append(evidence.spread(tree, last))
    sentences += [*place.notes, *evidence.waited_for(case.suspect, case.peers)]
    function = tree.nodes[answer].name
    operator = tree.nodes[operations[-1]].name if operations else ""
    path = [tree.nodes[index].name for index in walked]
    return Diagnosis(
        function=function,
        operator=operator,
        path=path,
        evidence=sentences,
        advice=_advice(case, function, operator, path, held_ns),
        confidence=_confidence(case, held_ns, certain=place.certain, scattered=scattered),
        held_ns=round(min(held_ns, case.excess_ns) if case.excess_ns > 0 else held_ns),
    )


def _with_operation(tree: ExcessTree, walked: list[int]) -> list[int]:
    """Extend the walk to the operation with most of the remaining excess, if one has half of it."""
    longer = list(walked)
    while callees := tree.children.get(longer[-1]):
        at = max(callees, key=lambda index: tree.held_ns[index])
        node = tree.nodes[at]
        if 2 * tree.held_ns[at] < tree.held_ns[walked[-1]] or not is_operation(node) or is_own(node.name):
            break
        longer.append(at)
    return longer


def _is_scattered(case: _Case, tree: ExcessTree, last: int) -> bool:
    """Whether the walk ended in the training loop although its callees, not its own lines, have the excess."""
    below_ns = sum(tree.held_ns[child] for child in tree.children.get(last, []))
    whole = tree.nodes[last].total_ns >= LOOP_RATIO * case.suspect.window_ns
    return whole and below_ns > (1 - HOLDING_RATIO) * tree.held_ns[last]


def _confidence(case: _Case, held_ns: float, *, certain: bool, scattered: bool) -> str:
    if not case.peers or scattered:
        return LOW
    if not certain or held_ns < HOLDING_RATIO * case.excess_ns:
        return MEDIUM
    return HIGH


def _is_collection(tree: ExcessTree, index: int) -> bool:
    return tree.nodes[index].kind == GC_KIND or tree.nodes[index].name == evidence.COLLECT


def _automatic_gc(case: _Case, tree: ExcessTree) -> Diagnosis:
    """Diagnose Python's automatic collections, which start wherever an allocation crosses the threshold."""
    recorded_ns, unrecorded_ns = tree.explained_ns, _unrecorded_ns(case)
    held_ns = max(recorded_ns, unrecorded_ns)
    if held_ns <= 0 or held_ns < EXPLAINING_RATIO * case.excess_ns:
        return _unexplained(case, tree, [])
    return Diagnosis(
        function=AUTOMATIC_GC,
        operator="",
        path=[],
        evidence=[
            evidence.collections(case.suspect, case.peers)
            if recorded_ns >= unrecorded_ns
            else "collections were measured; the captures record none, and the excess in no call",
            evidence.share(held_ns, case.excess_ns, case.suspect),
            *evidence.waited_for(case.suspect, case.peers),
        ],
        advice=_advice(case, AUTOMATIC_GC, "", [], held_ns),
        confidence=_confidence(case, held_ns, certain=recorded_ns >= unrecorded_ns, scattered=False),
        held_ns=round(min(held_ns, case.excess_ns) if case.excess_ns > 0 else held_ns),
    )


def _unrecorded_ns(case: _Case) -> float:
    """Return the time in no recorded call: collections leave no other trace in captures without stacks, ns."""
    if not case.peers or case.excess_seconds <= 0:
        return 0.0
    tree = compare(case.suspect, case.peers, _ANY)
    return sum(tree.held_ns[root] for root in tree.children.get(ROOT, []) if tree.nodes[root].name == OUTSIDE)


def _from_collectives(case: _Case) -> Diagnosis:
    shared = compare_collectives(case.suspect, case.peers)
    if not shared:
        return _undecided(
            case.cause,
            [f"no collective was captured on both rank {case.suspect.rank} and a peer"],
            case.step_seconds,
            case.excess_seconds,
        )
    worst = shared[0]
    gain_case = case if worst.slow_link else replace(case, excess_seconds=0.0)  # no slow link: no gain to promise
    others = (worst.name, WAIT_NAME)
    operators = [node for node in case.suspect.tree if node.kind == COMMUNICATION_KIND and node.name not in others]
    operator = max(operators, key=lambda node: node.total_ns).name if operators else ""
    conclusion = (
        f"even the shortest is longer: the link of rank {case.suspect.rank} is slow"
        if worst.slow_link
        else "the shortest are alike: the time is waiting, not transfer"
    )
    return Diagnosis(
        function=worst.name,
        operator=operator,
        path=[worst.name],
        evidence=[*(each.sentence(case.suspect, case.peers) for each in shared), conclusion],
        advice=_advice(gain_case, worst.name, operator, [], None),
        confidence=MEDIUM if worst.slow_link else LOW,
    )


def _unexplained(case: _Case, tree: ExcessTree, walked: list[int]) -> Diagnosis:
    held_ns = tree.explained_ns
    longer = f"rank {case.suspect.rank} works {evidence.ms(held_ns)} a step longer in its captured calls"
    sentences = [
        f"{longer}; {evidence.ms(case.excess_ns)} were measured",
        evidence.spread(tree, walked[-1] if walked else ROOT),
        *evidence.waited_for(case.suspect, case.peers),
    ]
    return _undecided(case.cause, sentences, case.step_seconds, case.excess_seconds)


def _undecided(cause: str, sentences: list[str], step_seconds: float, excess_seconds: float) -> Diagnosis:
    advice = advise(
        cause=cause,
        function="",
        operator="",
        path=[],
        step_seconds=step_seconds,
        excess_seconds=excess_seconds,
        explained_seconds=None,
    )
    return Diagnosis(function=INSUFFICIENT, operator="", path=[], evidence=sentences, advice=advice, confidence=LOW)


def _advice(case: _Case, function: str, operator: str, path: list[str], held_ns: float | None) -> list[Advice]:
    explained_seconds = None if held_ns is None else held_ns / 1e9
    if explained_seconds is not None and case.excess_seconds > 0:
        explained_seconds = min(explained_seconds, case.excess_seconds)
    return advise(
        cause=case.cause,
        function=function,
        operator=operator,
        path=path,
        step_seconds=case.step_seconds,
        excess_seconds=case.excess_seconds,
        explained_seconds=explained_seconds,
    )
