"""From the first slow step to the page: steps and seconds, with every real part on loopback at 1 s intervals.

Prints, per fault, the step at which the slowness began, the step at which it was found, and when the pager had it.
Budget (DESIGN): 3 steps + one scrape + one evaluation. Run with `python -m benchmarks.page_latency`.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.support.servers import wait_until
from tests.support.stack import Stack, fault_begin, full_stack

CASES = (("compute", 2), ("data", 1), ("gc", 3))
BUDGET_STEPS = 3
SCRAPE_SECONDS = 1.0
EVALUATION_SECONDS = 1.0


def measure(stack: Stack, fault: str, rank: int, repeat: int) -> dict[str, Any]:
    """Return the latency of one fault, in steps and seconds."""
    run = f"{fault}-{repeat}"
    with stack.job(run, fault, rank) as log:
        delivered, alert = wait_until(
            lambda: stack.pager.alerts(alertname="LockstepSlowDeviceFound", run=run), 120, f"page for {run}"
        )[0]
        incident = next(i for i in stack.incidents(run) if i["kind"] == "slow_rank")
        begin = fault_begin(log)
        assert begin is not None
        step_seconds = stack.run(run)["recent_step_seconds"]
    steps = incident["detected_step"] - begin[0] + 1
    return {
        "fault": fault,
        "right": (alert["labels"]["rank"], alert["labels"]["cause"]) == (str(rank), fault),
        "slow_steps_until_found": steps,
        "slow_step_seconds": step_seconds,
        "opened_seconds": incident["opened_unix_ns"] / 1e9 - begin[1],
        "page_seconds": delivered - begin[1],
        "budget_seconds": BUDGET_STEPS * step_seconds + SCRAPE_SECONDS + EVALUATION_SECONDS,
    }


def main() -> None:
    """Measure and print every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, full_stack(Path(directory)) as stack:
        rows = [measure(stack, fault, rank, n) for n in range(arguments.repeats) for fault, rank in CASES]
    if arguments.json:
        print(json.dumps(rows))
        return
    print(
        f"{'fault':8} {'right':5} {'slow steps':>10} {'incident s':>10} {'page s':>7}   budget: {BUDGET_STEPS} steps, s"
    )
    for row in rows:
        print(
            f"{row['fault']:8} {row['right']!s:5} {row['slow_steps_until_found']:>10} {row['opened_seconds']:>10.2f} "
            f"{row['page_seconds']:>7.2f}   {row['budget_seconds']:.2f}"
        )


if __name__ == "__main__":
    main()
