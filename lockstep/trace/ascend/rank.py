"""Loads one rank's events from whichever of its files contains them."""

from lockstep.contracts import limits
from lockstep.contracts.errors import MalformedError
from lockstep.trace.ascend.database_kernels import load_database_kernels
from lockstep.trace.ascend.database_trace import load_database_trace
from lockstep.trace.ascend.discover import AscendOutput
from lockstep.trace.ascend.kernels import Kernels, load_kernels
from lockstep.trace.ascend.load import load_trace_view
from lockstep.trace.columns import TraceColumns


def load_rank_trace(output: AscendOutput, *, max_bytes: int = limits.TRACE_MAX_BYTES) -> TraceColumns:
    """Return the events of trace_view.json, or of the database where there is no such file.

    Raises
    ------
    MalformedError
        There is neither, or it is refused.
    """
    if output.trace_view is not None:
        return load_trace_view(output.trace_view, output.settings, max_bytes=max_bytes)
    if output.database is not None:
        return load_database_trace(output.database, output.settings)
    raise MalformedError(
        "trace", where=str(output.path), got=", ".join(output.files), expected="trace_view or database"
    )


def load_rank_kernels(output: AscendOutput) -> Kernels:
    """Return the kernels of kernel_details.csv or op_summary, or of the database where there is no such file.

    Raises
    ------
    MalformedError
        There is neither, or it is refused.
    """
    if output.kernel_details is not None:
        return load_kernels(output.kernel_details)
    if output.database is not None:
        return load_database_kernels(output.database)
    raise MalformedError("kernels", where=str(output.path), got=", ".join(output.files), expected="kernel_details.csv")
