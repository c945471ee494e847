"""One chaos run: faults in, figures out."""

import sys
import time
from collections.abc import Callable
from random import Random

from benchmarks.chaos.faults import Fault
from benchmarks.chaos.verdict import Ended, Line
from benchmarks.chaos.watch import Watch
from benchmarks.chaos.world import World, evaluated_step
from benchmarks.services import Service, total

_POLL_S = 0.2
_RECOVER_S = 240.0
_QUIET_S = 120.0
_QUIET_LOOKS = 10
_SETTLE_S = (1.0, 2.0)
"""Between a recovery and the next fault, by chance: the watch looks once a second."""
_PREFIX = "lockstep_coordinator"
_COME_AGAIN = ("duplicate", "gap", "ahead")


class Chaos:
    """Inflicts faults on a world and notes what each took."""

    def __init__(self, world: World, watch: Watch, rng: Random) -> None:
        self.lines: dict[str, Line] = {}
        self.kills = 0
        self._world, self._watch, self._rng = world, watch, rng

    def wait_for_incident(self, seconds: float) -> None:
        """Wait until every coordinator has an open incident.

        Raises
        ------
        TimeoutError
            One has none.
        """
        if not _within(seconds, lambda: all(_has_incident(each) for each in self._world.coordinators)):
            raise TimeoutError(f"incident of the slow rank: not in every coordinator within {seconds:g} s")

    def inflict(self, fault: Fault) -> None:
        """Inflict a fault and wait until all is well again."""
        world, line = self._world, self.lines.setdefault(fault.name, Line())
        before = self._counted()
        killed = fault.inflict(world, self._rng)
        begin_s, step = time.monotonic(), world.job_step()
        is_well = _within(_RECOVER_S, lambda: self._has_evaluated(step))
        recovery_s = time.monotonic() - begin_s if is_well else float("inf")
        time.sleep(self._rng.uniform(*_SETTLE_S))
        resent, lost, twice = (after - was for was, after in zip(before, self._counted(), strict=True))
        self.kills += killed
        line.times += 1
        line.recovery_s = max(line.recovery_s, recovery_s)
        line.resent, line.lost, line.twice = line.resent + resent, line.lost + lost, line.twice + twice
        print(
            f"  {self.kills:>3} kills, step {world.job_step():>6}: {fault.name}, recovered in {recovery_s:.1f} s,"
            f" {resent} resent, {lost} lost, {twice} twice",
            file=sys.stderr,
            flush=True,
        )

    def end(self) -> Ended:
        """Let the job finish and every record arrive, end the services, and return what is left."""
        world = self._world
        world.finish_job()
        looks = 0
        deadline_s = time.monotonic() + _QUIET_S
        while looks < _QUIET_LOOKS and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            looks = looks + 1 if self._is_quiet() else 0
        for service in world.services:
            service.stop()
        return Ended(
            heads=world.heads(),
            stored={each.name: world.stored(each) for each in world.coordinators},
            slow_rank=world.plan.slow_rank,
            orders=world.orders(),
            falls=self._watch.falls,
            is_quiet=looks == _QUIET_LOOKS,
            lines=self.lines,
        )

    def _has_evaluated(self, step: int) -> bool:
        return all(evaluated_step(each) >= step for each in self._world.coordinators)

    def _is_quiet(self) -> bool:
        spooled = [each.scrape() for each in self._world.exporters]
        settled = [each.scrape() for each in self._world.coordinators]
        return (
            all(page is not None and not total(page, "lockstep_exporter_spool_bytes") for page in spooled)
            and all(page is not None and not total(page, f"{_PREFIX}_unsettled_frames") for page in settled)
            and self._has_evaluated(self._world.job_step())
        )

    def _counted(self) -> tuple[int, int, int]:
        """Return messages that came again, records lost or refused, and records that came twice, so far."""
        again = sum(self._watch.total(f"{_PREFIX}_frames_total", f'"{verdict}"') for verdict in _COME_AGAIN)
        refused = self._watch.total(f"{_PREFIX}_records_rejected_total")
        twice = self._watch.total(f"{_PREFIX}_records_rejected_total", '"duplicate"')
        lost = self._watch.total(f"{_PREFIX}_records_lost_total") + refused - twice
        return int(again), int(lost), int(twice)


def _has_incident(coordinator: Service) -> bool:
    return total(coordinator.scrape() or {}, "lockstep_run_incidents_open") > 0


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Wait for a condition; return whether it came in time."""
    deadline_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
