"""Output shapes of forward convolutions, from their backward operators, since the trace has only inputs.

Autograd gives the forward operator and its backward one the same sequence number, and the first input of
`convolution_backward` is the gradient of the output. Without a backward (inference) a trace needs recorded scalars.
"""

from collections import defaultdict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lockstep.diagnosis.roofline.formulas import convolves
from lockstep.diagnosis.roofline.launches import innermost_around
from lockstep.diagnosis.roofline.operands import parse_operands
from lockstep.trace.columns import ABSENT, OPERATOR, TraceColumns

_BACKWARD = "aten::convolution_backward"
_AUTOGRAD = "ConvolutionBackward0"

Shape = tuple[int, ...]


def convolution_outputs(columns: TraceColumns) -> dict[tuple[int, int], Shape]:
    """Return the output's shape by (name, shapes) codes of forward convolutions, where all calls of a pair agree."""
    is_operator = columns.category == columns.category_code(OPERATOR)
    forward = _numbered(columns, np.flatnonzero(is_operator & columns.named(convolves)), convolves)
    backward = _numbered(
        columns,
        np.flatnonzero(is_operator & columns.named(lambda name: name == _BACKWARD)),
        lambda name: name == _AUTOGRAD,
    )
    gradients = {number: shape for at, number in backward.items() if (shape := _gradient(columns, at)) is not None}
    found: dict[tuple[int, int], set[Shape]] = defaultdict(set)
    for at, number in forward.items():
        if number in gradients:
            found[int(columns.name[at]), int(columns.shapes[at])].add(gradients[number])
    return {pair: shapes.pop() for pair, shapes in found.items() if len(shapes) == 1}


def _numbered(columns: TraceColumns, events: NDArray[np.int64], accept: Callable[[str], bool]) -> dict[int, int]:
    """Return the sequence number of each event, its own or that of the innermost accepted operator around it."""
    holders = np.flatnonzero((columns.sequence != ABSENT) & columns.named(accept))
    around = innermost_around(columns, holders, events)
    return {
        at: int(columns.sequence[holder])
        for at, holder in zip(events.tolist(), around.tolist(), strict=True)
        if holder != ABSENT
    }


def _gradient(columns: TraceColumns, event: int) -> Shape | None:
    code = int(columns.shapes[event])
    operands = None if code == ABSENT else parse_operands(columns.shape_texts[code])
    tensor = None if operands is None else operands.tensor(0)
    return None if tensor is None else tensor.shape
