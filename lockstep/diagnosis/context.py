"""What remedies depend on beside a finding's subject: advice that is followed already, or cannot be, helps nobody."""

from dataclasses import replace

from lockstep.diagnosis.finding import Finding
from lockstep.trace.columns import TraceColumns

COMPILED = "compiled code"
_COMPILED_PREFIXES = ("Torch-Compiled Region", "## Call CompiledFxGraph", "triton_")


def context_of(columns: TraceColumns) -> tuple[str, ...]:
    """Return what a trace shows of its training: its vendor, and `COMPILED` where torch.compile made its kernels."""
    is_compiled = columns.named(lambda name: name.startswith(_COMPILED_PREFIXES)).any()
    vendor = (f"vendor {columns.about.vendor}",) if columns.about.vendor else ()
    return (*vendor, COMPILED) if is_compiled else vendor


def with_context(finding: Finding, context: tuple[str, ...]) -> Finding:
    """Return the finding with what its trace shows."""
    return replace(finding, context=(*finding.context, *context))
