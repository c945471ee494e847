"""What is done to the services. Each fault ends with everything running again; kills are SIGKILL."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from benchmarks.chaos.world import BATCH_S, World

OUTAGE_BATCHES = 600
"""Batches that an exporter of default settings spools in ten minutes: one a second."""
OUTAGE_RECORDS = 600 * 8
"""Records of a node of eight ranks at one step a second in the same time."""
_STEP_S = 0.053
_FULL_S = 12.0
"""A spool of 64 KiB holds five seconds of batches."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`inflict` returns how many processes it killed."""

    name: str
    inflict: Callable[[World, Random], int]


def _broker(world: World, rng: Random) -> int:
    world.kill_broker()
    time.sleep(rng.uniform(0.2, 5.0))
    world.start_broker()
    return 1


def _coordinator(world: World, rng: Random) -> int:
    coordinator = rng.choice(world.coordinators)
    coordinator.kill()
    time.sleep(rng.uniform(0.0, 1.0))
    coordinator.start()
    coordinator.wait_ready()
    return 1


def _both_coordinators(world: World, rng: Random) -> int:
    for coordinator in rng.sample(world.coordinators, 2):
        coordinator.kill()
        time.sleep(rng.uniform(0.0, 0.5))
    for coordinator in rng.sample(world.coordinators, 2):
        coordinator.start()
    for coordinator in world.coordinators:
        coordinator.wait_ready()
    return 2


def _no_subscriber(world: World, rng: Random) -> int:
    for coordinator in world.coordinators:
        coordinator.stop()
    time.sleep(rng.uniform(3.0, 6.0))
    for coordinator in world.coordinators:
        coordinator.start()
    for coordinator in world.coordinators:
        coordinator.wait_ready()
    return 0


def _exporter(world: World, rng: Random) -> int:
    exporter = rng.choice(world.exporters)
    exporter.kill()
    time.sleep(rng.uniform(0.0, 2.0))
    exporter.start()
    exporter.wait_ready()
    return 1


def _every_exporter(world: World, rng: Random) -> int:
    for exporter in world.exporters:
        exporter.kill()
        time.sleep(rng.uniform(0.0, 0.3))
    for exporter in world.exporters:
        exporter.start()
    for exporter in world.exporters:
        exporter.wait_ready()
    return len(world.exporters)


def _suspended(world: World, rng: Random) -> int:
    coordinator = rng.choice(world.coordinators)
    coordinator.suspend()
    time.sleep(rng.uniform(1.0, 5.0))
    coordinator.resume()
    return 0


def _broker_and_coordinator(world: World, rng: Random) -> int:
    coordinator = rng.choice(world.coordinators)
    world.kill_broker()
    coordinator.kill()
    time.sleep(rng.uniform(0.2, 1.0))
    coordinator.start()
    world.start_broker()
    coordinator.wait_ready()
    return 2


def _broker_and_exporter(world: World, rng: Random) -> int:
    exporter = rng.choice(world.exporters)
    world.kill_broker()
    exporter.kill()
    exporter.start()
    time.sleep(rng.uniform(0.2, 1.0))
    world.start_broker()
    exporter.wait_ready()
    return 2


def outage_seconds(ranks_per_node: int) -> float:
    """Return how long the broker must be away for each node to spool what a usual one does in ten minutes."""
    records_per_second = ranks_per_node / _STEP_S
    return max(OUTAGE_BATCHES * BATCH_S, OUTAGE_RECORDS / records_per_second)


def _long_outage(world: World, _rng: Random) -> int:
    world.kill_broker()
    time.sleep(outage_seconds(world.plan.ranks_per_node))
    world.start_broker()
    return 1


def _full_spool(world: World, rng: Random) -> int:
    """Let spools overflow without a broker; meanwhile an exporter is killed, and a coordinator is away."""
    exporter, coordinator = rng.choice(world.exporters), rng.choice(world.coordinators)
    world.kill_broker()
    coordinator.kill()
    time.sleep(_FULL_S)
    exporter.kill()
    exporter.start()
    exporter.wait_ready()
    time.sleep(_FULL_S)
    coordinator.start()
    world.start_broker()
    coordinator.wait_ready()
    return 3


FULL_SPOOL = Fault("small spools overflow", _full_spool)
LONG_OUTAGE = Fault("broker away, 10 minutes' worth", _long_outage)
_WEIGHTED = (
    (Fault("broker killed", _broker), 4),
    (Fault("coordinator killed", _coordinator), 5),
    (Fault("both coordinators killed", _both_coordinators), 2),
    (Fault("no subscriber", _no_subscriber), 1),
    (Fault("exporter killed", _exporter), 5),
    (Fault("every exporter killed", _every_exporter), 1),
    (Fault("coordinator suspended", _suspended), 2),
    (Fault("broker and coordinator killed", _broker_and_coordinator), 2),
    (Fault("broker and exporter killed", _broker_and_exporter), 2),
)
FAULTS = tuple(fault for fault, _ in _WEIGHTED)


def drawn(rng: Random) -> Iterator[Fault]:
    """Yield faults without end: each once in an order of chance, then by weight."""
    yield from rng.sample(FAULTS, len(FAULTS))
    while True:
        yield rng.choices(FAULTS, [weight for _, weight in _WEIGHTED])[0]
