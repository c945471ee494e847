"""Kills everything but the training, and counts: `python -m benchmarks.chaos [--kills 100] [--seed 0]`.

A real mosquitto that forgets everything when it is killed, two coordinators, real exporters, and an eight-rank job
that writes real rings, with one rank slow and so an incident open all the time. Faults follow each other in an order
drawn from the seed, the next one when every coordinator has evaluated what the job had done by the end of the last one.
In the midst the broker stays away until each node has spooled what a usual node does in ten minutes: 600 batches and
4,800 records (eight ranks at one step a second); with short batches and steps that takes a minute or two.

Then the ranks finish, and what their rings state they wrote must be in each coordinator's store: evaluated once,
nothing lost, under one incident. A second, shorter run fills small spools: there, evaluated and counted lost must add
up.

Exits with 1 where anything does not hold.
"""

import argparse
import sys
from collections.abc import Sequence
from random import Random

from benchmarks.chaos.faults import FULL_SPOOL, LONG_OUTAGE, OUTAGE_BATCHES, OUTAGE_RECORDS, drawn, outage_seconds
from benchmarks.chaos.run import Chaos
from benchmarks.chaos.verdict import Ended, common_checks, lossless_checks, lossy_checks, table
from benchmarks.chaos.watch import Watch
from benchmarks.chaos.world import World, WorldPlan
from benchmarks.checks import Check, has_missed

_INCIDENT_S = 90.0
_SMALL_SPOOL_BYTES = 64 << 10


def kill_at_random(plan: WorldPlan, kills: int, *, with_outage: bool) -> Ended:
    """Inflict faults until so many processes were killed, the long outage in the midst; return what is left."""
    rng = Random(plan.seed)  # noqa: S311  (an order that can be had again)
    with World(plan) as world, Watch(world.services) as watch:
        chaos = Chaos(world, watch, rng)
        chaos.wait_for_incident(_INCIDENT_S)
        faults = drawn(rng)
        while chaos.kills < kills // 2:
            chaos.inflict(next(faults))
        if with_outage:
            chaos.inflict(LONG_OUTAGE)
        while chaos.kills < kills:
            chaos.inflict(next(faults))
        return chaos.end()


def fill_spools(plan: WorldPlan) -> Ended:
    """Keep the broker away until spools of 64 KiB have dropped messages; return what is left."""
    rng = Random(plan.seed)  # noqa: S311
    with World(plan) as world, Watch(world.services) as watch:
        chaos = Chaos(world, watch, rng)
        chaos.wait_for_incident(_INCIDENT_S)
        chaos.inflict(FULL_SPOOL)
        return chaos.end()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both parts and print what they have shown; return 1 where anything does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=2, choices=(1, 2, 4), help="of eight ranks in all (default: 2)")
    parser.add_argument("--without-outage", action="store_true", help="leave the ten minutes without a broker out")
    parser.add_argument("--without-full-spool", action="store_true", help="leave the second run out")
    given = parser.parse_args(arguments)
    away_s = outage_seconds(8 // given.nodes)
    print(
        f"seed {given.seed}, {given.nodes} nodes; ten minutes' worth is {OUTAGE_BATCHES} batches and {OUTAGE_RECORDS:,}"
        f" records a node: here {away_s:.0f} s without a broker",
        flush=True,
    )
    plan = WorldPlan(nodes=given.nodes, seed=given.seed)
    ended = kill_at_random(plan, given.kills, with_outage=not given.without_outage)
    checks = [*common_checks(ended), *lossless_checks(ended)]
    print(f"\n{table(ended.lines)}\n\n{_text(checks)}", flush=True)
    if not given.without_full_spool:
        full = fill_spools(WorldPlan(nodes=given.nodes, seed=given.seed, spool_max_bytes=_SMALL_SPOOL_BYTES))
        more = [*common_checks(full), *lossy_checks(full)]
        print(f"\n{table(full.lines)}\n\n{_text(more)}")
        checks += more
    return int(has_missed(checks))


def _text(checks: Sequence[Check]) -> str:
    return "\n".join(check.text() for check in checks)


if __name__ == "__main__":
    sys.exit(main())
