"""What becomes of runs that end in each way: the table of docs/endings.md.

    python -m benchmarks.run_endings

Real torchrun, exporter, broker and coordinator (tests/end_to_end/test_run_endings.py). Exit code 1 when a row is not as
it should be.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.end_to_end.test_run_endings import ROWS, expected, outcomes


def main() -> int:
    """Run every row and print what was found."""
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(outcomes(Path(directory)))
    print("| the training ends by | state of its run | incident | known after |")
    print("| --- | --- | --- | --- |")
    wrong = 0
    for row, each in zip(ROWS, found, strict=True):
        incident = "; ".join(f"rank {ranks[0]}: {what}" for _, ranks, what, _ in each.incidents) or "none"
        print(f"| {row.way} | {each.state} | {incident} | {each.seconds:.1f} s |")
        wrong += (each.state, [incident[:3] for incident in each.incidents]) != expected(row)
    if wrong:
        print(f"{wrong} rows are not as they should be", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
