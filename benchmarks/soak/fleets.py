"""The processes that play the nodes, and what they report together."""

import multiprocessing
from typing import TYPE_CHECKING

from benchmarks.soak.nodes import FleetCounts, FleetPlan, play

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

_JOIN_S = 5.0


class Fleets:
    """Construction starts the processes; `end` ends them."""

    def __init__(self, plans: "Sequence[FleetPlan]") -> None:
        context = multiprocessing.get_context("spawn")
        self._counts = [FleetCounts() for _ in plans]
        self._late_s_max = 0.0
        self._ends: list[Connection] = []
        self._processes = []
        for plan in plans:
            ours, theirs = context.Pipe()
            process = context.Process(target=play, args=(plan, theirs), daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self._processes.append(process)

    def read(self) -> FleetCounts:
        """Take the latest reports and return their sum; `steps` is that of the slowest process.

        Raises
        ------
        RuntimeError
            One of the processes ended.
        """
        for place, end in enumerate(self._ends):
            try:
                while end.poll():
                    self._counts[place] = FleetCounts(**end.recv())
                    self._late_s_max = max(self._late_s_max, self._counts[place].late_s_max)
            except (EOFError, ConnectionResetError):
                raise RuntimeError(f"process {place} of the nodes ended: {self._processes[place]}") from None
        every = self._counts
        whole = FleetCounts(steps=min(each.steps for each in every), late_s_max=self._late_s_max)
        for name in ("records", "frames", "frames_resent", "connections", "drops", "refused", "orders", "connected"):
            setattr(whole, name, sum(getattr(each, name) for each in every))
        whole.uncommitted = sum(each.uncommitted for each in every)
        whole.cpu_s = sum(each.cpu_s for each in every)
        for each in every:
            for error, count in each.errors.items():
                whole.errors[error] = whole.errors.get(error, 0) + count
        return whole

    def command(self, word: str) -> None:
        """Send a command to all."""
        for end in self._ends:
            end.send(word)

    def end(self) -> None:
        """Let the processes sign off and end."""
        self.command("stop")
        for process in self._processes:
            process.join(_JOIN_S)
            if process.is_alive():
                process.kill()
                process.join()
