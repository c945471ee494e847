"""Training nodes without training: ranks of a data-parallel job, played through the agent's own ring writer."""

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from lockstep.agent.ring import RingWriter
from lockstep.contracts.facts import RankFacts, facts_to_json
from lockstep.contracts.records import MISSING, RECORD_FIELDS, RECORD_INDEX, RECORD_STRUCT
from lockstep.contracts.ring import RingHeader

STEP_NS = 50_000_000
WORK_NS = 30_000_000
EXCESS_NS = 30_000_000
JITTER_RATIO = 0.003  # of a rank's own work, as on devices of its own
NS = 1_000_000_000
FACTS = RankFacts(device="NVIDIA H200", device_kind="cuda", dtype="bf16", peak_flops_per_second=989.5e12)


class FakeNodes:
    """Ranks that step together; `slow_rank` works longer and the others wait for it.

    `whole` ones measure every quantity there is, in every kind of domain, and say what they run on.
    """

    def __init__(self, roots: list[Path], run: str, ranks_per_node: int, *, whole: bool = False) -> None:
        self._default = 0 if whole else MISSING
        self.slow_rank: int | None = None
        self.step = 0
        offset_ns = time.time_ns() - time.monotonic_ns()
        self._random = random.Random(7)
        self._rings = [
            RingWriter(
                root / run,
                RingHeader(
                    rank=node * ranks_per_node + local_rank,
                    local_rank=local_rank,
                    world_size=len(roots) * ranks_per_node,
                    pid=os.getpid(),
                    attempt=1,
                    clock_offset_ns=offset_ns,
                    hostname=f"host{node}",
                ),
            )
            for node, root in enumerate(roots)
            for local_rank in range(ranks_per_node)
        ]
        for ring in self._rings if whole else ():
            ring.write_facts(facts_to_json(FACTS))

    def take_step(self, start_ns: int, end_ns: int) -> None:
        """Write every rank's record of a step between two times of CLOCK_MONOTONIC."""
        for rank, ring in enumerate(self._rings):
            work_ns = int(WORK_NS * self._random.gauss(1, JITTER_RATIO)) + EXCESS_NS * (rank == self.slow_rank)
            record = [self._default] * len(RECORD_FIELDS)
            values = {"step": self.step, "start_ns": start_ns, "end_ns": end_ns, "flags": 0, "compute_ns": work_ns}
            values |= {"data_ns": 0, "host_ns": 0, "gc_ns": 0, "dp_wait_ns": end_ns - start_ns - work_ns}
            values |= {"dp_count": 1, "dp_bytes": 1 << 20, "samples": 8}
            for name, value in values.items():
                record[RECORD_INDEX[name]] = value
            ring.write(RECORD_STRUCT.pack(*record))
            ring.beat(end_ns)
        self.step += 1

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Step in a thread, at the pace that the steps' length says."""
        stop = threading.Event()

        def go() -> None:
            start_ns = time.monotonic_ns()
            while not stop.is_set():
                end_ns = start_ns + STEP_NS + (EXCESS_NS if self.slow_rank is not None else 0)
                time.sleep(max(0, end_ns - time.monotonic_ns()) / NS)
                self.take_step(start_ns, end_ns)
                start_ns = end_ns

        thread = threading.Thread(target=go)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
