"""The context of a finding that remedies depend on, so that advice already followed or not applicable is left out."""

from dataclasses import replace

import numpy as np

from lockstep.contracts.finding import Finding
from lockstep.trace.columns import ABSENT, ANNOTATION, OPERATOR, TraceColumns, WorkKind
from lockstep.trace.intervals import merged
from lockstep.trace.launches import launches_of

COMPILED = "compiled code"
UNFUSED_ATTENTION = "attention in single operators"
SMALL_OPTIMIZER = "optimizer in small kernels"
"""Terms used in `remedies.toml` (`when` and `unless`)."""

SMALL_OPTIMIZER_KERNELS = 100
"""Kernels of one optimizer step: a fused one launches one per few hundred tensors, a foreach one a few dozen; own."""
_COMPILED_PREFIXES = ("Torch-Compiled Region", "## Call CompiledFxGraph", "triton_")
_OPTIMIZER_PREFIX = "Optimizer.step#"
_FUSED_OPTIMIZER = "aten::_fused_"
_PRODUCTS = ("aten::bmm", "aten::baddbmm")
_SOFTMAX = ("aten::_softmax", "aten::_safe_softmax")


def context_of(columns: TraceColumns) -> tuple[str, ...]:
    """Return the context shown by a trace: its vendor, and which of this module's terms apply."""
    vendor = (f"vendor {columns.metadata.vendor}",) if columns.metadata.vendor else ()
    is_compiled = columns.named(lambda name: name.startswith(_COMPILED_PREFIXES)).any()
    shown = {
        COMPILED: bool(is_compiled),
        UNFUSED_ATTENTION: _attends_in_parts(columns),
        SMALL_OPTIMIZER: _optimizes_in_parts(columns),
    }
    return (*vendor, *(word for word, holds in shown.items() if holds))


def with_context(finding: Finding, context: tuple[str, ...]) -> Finding:
    """Return the finding with the context of its trace."""
    return replace(finding, context=(*finding.context, *context))


def _attends_in_parts(columns: TraceColumns) -> bool:
    """Whether one thread runs a batched product, then a softmax, then a batched product."""
    operators = columns.category == columns.category_code(OPERATOR)
    softmax = columns.named(lambda name: name in _SOFTMAX)
    parts = np.flatnonzero(operators & (softmax | columns.named(lambda name: name in _PRODUCTS)))
    parts = parts[np.lexsort((columns.start_ns[parts], columns.thread[parts]))]
    is_softmax, thread = softmax[parts], columns.thread[parts]
    follows = (thread[:-2] == thread[2:]) & ~is_softmax[:-2] & is_softmax[1:-1] & ~is_softmax[2:]
    return bool(follows.any())


def _optimizes_in_parts(columns: TraceColumns) -> bool:
    """Whether an optimizer step launches at least `SMALL_OPTIMIZER_KERNELS` kernels."""
    if columns.named(lambda name: name.startswith(_FUSED_OPTIMIZER)).any():
        return False
    steps = columns.named(lambda name: name.startswith(_OPTIMIZER_PREFIX))
    steps &= (columns.category == columns.category_code(ANNOTATION)) & ~columns.on_device & (columns.duration_ns > 0)
    spans = merged(columns.start_ns[steps], columns.end_ns[steps])
    if not len(spans.start_ns):
        return False
    launch = launches_of(columns)[columns.on_device & (columns.work == WorkKind.COMPUTE)]
    launched_ns = columns.start_ns[launch[launch != ABSENT]]
    at = np.searchsorted(spans.start_ns, launched_ns, side="right") - 1
    inside = (at >= 0) & (launched_ns < spans.end_ns[at])
    return bool(np.count_nonzero(inside) >= SMALL_OPTIMIZER_KERNELS * len(spans.start_ns))
