"""Where the ranks of a hung run are stuck, from the stacks of their training threads.

Pure. Stacks are merged into one tree, outermost frames first, with the ranks at each leaf (the prefix tree of STAT,
Arnold et al., IPDPS 2007). A sentence about a rank names the innermost frame of the training's own code. What a rank
waits in, if it waits, is the collective, the backward pass or the loader on its stack.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.detect.anomalies import LINK, UNKNOWN
from coordinator.detect.hangs.collective_progress import compare_issued
from coordinator.detect.hangs.ranks_text import ranks_text
from lockstep.contracts.messages import RankStacks, StackFrame
from lockstep.contracts.stacks import is_own_file

DATA, COMPUTE = "data", "compute"
TREE_LINES_MAX = 60
"""Lines of the tree as text: 1,024 ranks of a hung job have only a few leaves."""
_LINE_MAX_CHARS = 160
_FOREIGN = re.compile(r"(?:site|dist)-packages/|/lib/python3[^/]*/|^<|^$")
_INSIDE = (
    ("collective", re.compile(r"torch/distributed/distributed_c10d\.py$")),
    ("loader", re.compile(r"torch/utils/data/")),
    ("backward", re.compile(r"torch/(?:autograd/|_tensor\.py$)")),
)
_OF_DDP = re.compile(r"torch/nn/parallel/distributed\.py$")
"""DDP issues its own collectives in C++: if its frame is the innermost, the rank waits in one of them."""
_READING = re.compile(
    r"torch/utils/data/|(?:^|/)(?:ssl|socket|http/client|urllib/\w+)\.py$"
    r"|site-packages/(?:datasets|webdataset|streaming|fsspec|s3fs|gcsfs|botocore|boto3|requests|urllib3|aiohttp|huggingface_hub)/"
)


@dataclass(slots=True)
class StackNode:
    """A frame with the ranks whose training thread is in it; `children` are the frames that it called, by name."""

    name: str
    ranks: list[int] = field(default_factory=list)
    children: "dict[str, StackNode]" = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Position of one rank.

    `function` is the innermost frame of the training's own code, e.g. "train.py(88): load", or the innermost frame if
    there is none; `inside` is the operation on the stack: "all_reduce", "loader", "backward" or empty; `reads`: the
    stack is in code that loads data.
    """

    function: str
    inside: str
    is_collective: bool
    reads: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HangStacks:
    """Result of comparing the stacks of a hang. `function` is where the late ranks are, empty without their stacks.

    `cause` and `root_cause` are empty if the stacks add nothing to what was known.
    """

    function: str
    cause: str
    root_cause: str
    evidence: tuple[str, ...]
    tree: tuple[str, ...]


def training_frames(stacks: RankStacks) -> tuple[StackFrame, ...]:
    """Return the frames of the training thread, innermost first, without Lockstep's own."""
    thread = next((thread for thread in stacks.threads if thread.is_training), None)
    return () if thread is None else tuple(frame for frame in thread.frames if not is_own_file(frame[0]))


def name_of(frame: StackFrame) -> str:
    """Format a frame, e.g. "train.py(88): load"."""
    file, line, function = frame
    return f"{file.rpartition('/')[2] or '?'}({line}): {function}"


def merge(frames_of: Mapping[int, Sequence[StackFrame]]) -> StackNode:
    """Merge the stacks of all ranks into a prefix tree, in time linear in the number of frames."""
    root = StackNode("")
    for rank in sorted(frames_of):
        node = root
        node.ranks.append(rank)
        for frame in reversed(frames_of[rank]):
            name = name_of(frame)
            child = node.children.get(name)
            if child is None:
                child = node.children[name] = StackNode(name)
            node = child
            node.ranks.append(rank)
    return root


def tree_text(root: StackNode) -> tuple[str, ...]:
    """Return the tree as indented lines, the fewest ranks first; a chain of frames with the same ranks is one line."""
    lines: list[str] = []
    waiting = [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        if len(lines) == TREE_LINES_MAX:
            lines[-1] = "..."
            break
        names = [node.name] if node.name else []
        while (only := next(iter(node.children.values()), None)) is not None and len(only.ranks) == len(node.ranks):
            node = only
            names.append(node.name)
        lines.append(_line("  " * depth + ranks_text(node.ranks), names))
        children = sorted(node.children.values(), key=lambda child: (-len(child.ranks), child.ranks))
        waiting += [(child, depth + 1) for child in children]
    return tuple(lines)


def _line(ranks: str, names: Sequence[str]) -> str:
    """Return a line of the tree with as many of its innermost frames as fit, at most three."""
    for count in (3, 2):
        left_out = "... > " if len(names) > count else ""
        line = f"{ranks}: {left_out}{' > '.join(names[-count:])}"
        if names and len(line) <= _LINE_MAX_CHARS:
            return line
    innermost = f"... > {names[-1]}" if len(names) > 1 else (names or ["no common frame"])[0]
    return f"{ranks}: {innermost}"[:_LINE_MAX_CHARS]


def place_of(frames: Sequence[StackFrame]) -> Place | None:
    """Return a rank's position, None without a frame."""
    if not frames:
        return None
    own = next((frame for frame in frames if not _FOREIGN.search(frame[0])), frames[0])
    if _OF_DDP.search(frames[0][0]):
        return Place(function=name_of(own), inside=frames[0][2].lstrip("_"), is_collective=True, reads=False)
    found = [(kind, frame) for frame in frames for kind, form in _INSIDE if form.search(frame[0])]
    kind, innermost = found[0] if found else ("", frames[0])
    # The outermost frame of a collective is the call: reduce_scatter, not its helper.
    called = next((frame for each, frame in reversed(found) if each == kind), innermost)
    return Place(
        function=name_of(own),
        inside=called[2] if kind == "collective" else kind,
        is_collective=kind == "collective",
        reads=any(_READING.search(frame[0]) for frame in frames),
    )


def explain_hang(stacks: Sequence[RankStacks], late: Sequence[int], cause: str, scope: str) -> HangStacks:
    """Explain a hang from stacks; `late` are the ranks that have not arrived, empty if none are named.

    `cause` and `scope` are the verdict's (`hang.Hang`): "link" if all ranks of a group have issued the same operations,
    "group" without that cause if they wait for each other in a cycle.
    """
    frames_of = {each.rank: frames for each in stacks if (frames := training_frames(each))}
    places = {rank: place for rank, frames in frames_of.items() if (place := place_of(frames)) is not None}
    suspects = [rank for rank in sorted(set(late)) if rank in places] if cause != LINK else []
    others = [rank for rank in sorted(places) if rank not in set(suspects)]
    evidence = _sentences(places, suspects, others)
    evidence += [
        f"rank {each.rank} has no stack: {each.reason}" for each in stacks if each.reason and each.rank in late
    ][:3]
    issued = compare_issued(stacks)
    evidence += issued.evidence
    root_cause = MISMATCH if issued.mismatched_ranks else _root_cause(places, suspects, cause, scope)
    if root_cause:
        evidence.append(_OF_ROOT_CAUSE[root_cause])
    return HangStacks(
        function=places[suspects[0]].function if suspects else "",
        cause=UNKNOWN if root_cause else _cause([places[rank] for rank in suspects]),
        root_cause=root_cause,
        evidence=tuple(evidence),
        tree=tree_text(merge(frames_of)) if frames_of else (),
    )


MISMATCH, DEADLOCK = "mismatch", "deadlock"
_OF_ROOT_CAUSE = {
    MISMATCH: "ranks of one group, which have issued as many collectives, are in different ones: they do not match",
    DEADLOCK: "ranks wait for each other in collectives of different groups: none of them can go on",
}


def _root_cause(places: Mapping[int, Place], suspects: Sequence[int], cause: str, scope: str) -> str:
    """Combine the collectives that ranks are in with what each has issued, and return the root cause."""
    if cause == LINK:  # all have issued the same number of collectives
        names = {place.inside for place in places.values() if place.is_collective}
        return MISMATCH if len(names) > 1 else ""
    is_cycle = scope == "group" and len(suspects) > 1 and all(places[rank].is_collective for rank in suspects)
    return DEADLOCK if is_cycle else ""


def _cause(places: Sequence[Place]) -> str:
    """Return the cause that the late ranks' stacks show, or an empty string."""
    if not places:
        return ""
    if any(place.reads for place in places):
        return DATA
    return LINK if all(place.is_collective for place in places) else COMPUTE


def _sentences(places: Mapping[int, Place], suspects: Sequence[int], others: Sequence[int]) -> list[str]:
    """Return one sentence for the late ranks and one for those that wait, each by its most common positions."""
    stands = _grouped({rank: places[rank].function for rank in suspects})
    waits = _grouped({rank: _waits_in(places[rank]) for rank in others})
    first = [f"{ranks_text(ranks)} stand{'s' * (len(ranks) == 1)} in {name}" for name, ranks in stands[:3]]
    rest = []
    for index, (name, ranks) in enumerate(waits[:3]):
        who = f"the {len(ranks)} others" if suspects and len(waits) == 1 and len(ranks) > 1 else ranks_text(ranks)
        rest.append(f"{who} wait{'s' * (len(ranks) == 1)} in {name}")
        if index == 2 and len(waits) > 3:  # noqa: PLR2004
            rest.append(f"others in {len(waits) - 3} more places")
    text = ", ".join((*first, *rest))
    return [text] if text else []


def _waits_in(place: Place) -> str:
    return place.inside or place.function


def _grouped(name_of_rank: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    groups: dict[str, list[int]] = {}
    for rank in sorted(name_of_rank):
        groups.setdefault(name_of_rank[rank], []).append(rank)
    return sorted(groups.items(), key=lambda group: -len(group[1]))
