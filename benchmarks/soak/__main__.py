"""Soaks a real coordinator behind a real mosquitto: `python -m benchmarks.soak [--nodes 1250] [--ladder]`.

Every node has a connection, a stream and a spool of its own and follows the delivery protocol; each sends a batch of
eight ranks a second. From a step on one rank computes 10 % longer. Some nodes drop their connection every 10 to 30 s.
At the end what nodes sent is compared with what the coordinator has evaluated, lost and stored. `--ladder` repeats it,
for a shorter time, with 2,500, 5,000 and 12,500 nodes until the coordinator falls behind, and prints what shows it.

Exits with 1 where a budget is missed. CPU is read from /proc; the coordinator's holds a scrape every 5 s.
"""

import argparse
import os
import resource
import sys
from collections.abc import Sequence

from benchmarks.checks import has_missed
from benchmarks.soak.run import Options, soak
from benchmarks.soak.verdict import Soaked, checks_of, keeps_up, ladder_head, ladder_line

LADDER = (2500, 5000, 12_500)
_NODES_PER_PROCESS = 4500
_DESCRIPTORS = 1 << 16
_SECONDS_PER_MINUTE = 60


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak and print; return 1 where a budget is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--ladder", action="store_true", help="then more nodes, until the coordinator falls behind")
    parser.add_argument("--ladder-minutes", type=float, default=3.0, help="for each of them (default: 3)")
    parser.add_argument("--flapping", type=int, default=20, help="nodes that drop their connection (default: 20)")
    parser.add_argument("--fault-step", type=int, default=60)
    parser.add_argument("--outage-seconds", type=float, default=0.0, help="kill the broker for so long in the midst")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    _raise_descriptors()

    def options(nodes: int, minutes: float) -> Options:
        steps = round(minutes * _SECONDS_PER_MINUTE)
        return Options(
            nodes=nodes,
            steps=steps,
            fault_step=given.fault_step,
            flapping=min(given.flapping, nodes),
            seed=given.seed,
            outage_s=given.outage_seconds,
            processes=min(os.cpu_count() or 1, -(-nodes // _NODES_PER_PROCESS)),
        )

    first = soak(options(given.nodes, given.minutes))
    checks = checks_of(first)
    print(f"{given.nodes:,} nodes, {given.nodes * 8:,} ranks, {first.plan.steps:,} steps")
    print("\n".join(check.text() for check in checks), flush=True)
    if given.ladder:
        _climb([first], [options(nodes, given.ladder_minutes) for nodes in LADDER])
    return int(has_missed(checks))


def _climb(seen: list[Soaked], rungs: Sequence[Options]) -> None:
    """Soak with more and more nodes until the coordinator falls behind."""
    print(f"\n{ladder_head()}\n{ladder_line(seen[0])}", flush=True)
    for rung in rungs:
        if not keeps_up(seen[-1]):
            break
        seen.append(soak(rung))
        print(ladder_line(seen[-1]), flush=True)


def _raise_descriptors() -> None:
    """Let this process and its children open a connection for each node."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(hard, _DESCRIPTORS)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
    except (ValueError, OSError):  # not root
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
