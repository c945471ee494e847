"""The process that reads one trace: `python -m exporter.summarise_worker PATH RUN NODE RANK REQUEST STEPS MEMORY`.

It stands at the lowest priority beside the training it describes, within MEMORY bytes of address space, and its death
costs one summary. The summary goes to standard output as on the bus; a trace that is none gives one with the error.
"""

import os
import resource
import sys
from pathlib import Path

from lockstep.contracts.codec import encode
from lockstep.contracts.errors import LocalError, MalformedError
from lockstep.contracts.messages import TraceSummary

_LOWEST_PRIORITY = 19
_ERROR_CHARS = 1024
# One thread per library: the worker must not spread over cores that training uses.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def main(arguments: list[str]) -> int:
    """Summarise the trace that the arguments name."""
    path, run, node = arguments[:3]
    rank, request_id, steps, memory_bytes = map(int, arguments[3:])
    os.environ.update(_ONE_THREAD)
    os.nice(_LOWEST_PRIORITY)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    # Behind the limits, so that they hold for what the import takes, too.
    from lockstep.analysis.capture_summary import summarise  # noqa: PLC0415

    try:
        summary = summarise(Path(path), run=run, node=node, rank=rank, request_id=request_id, steps=steps)
        data = encode(summary)
    except (MalformedError, LocalError) as error:
        data = encode(failed_summary(run, node, rank, request_id, str(error)))
    except MemoryError:
        reason = f"trace {path}: got more than {memory_bytes} bytes to work on, expected less"
        data = encode(failed_summary(run, node, rank, request_id, reason))
    sys.stdout.buffer.write(data)
    return 0


def failed_summary(run: str, node: str, rank: int, request_id: int, error: str) -> TraceSummary:
    """Return a summary that says why there is none."""
    return TraceSummary(
        run=run,
        node=node,
        rank=rank,
        request_id=request_id,
        window_ns=0,
        steps=0,
        trace_bytes=0,
        event_count=0,
        tree=[],
        error=error[:_ERROR_CHARS],
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
