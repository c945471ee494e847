"""Training nodes without training: ranks of a data-parallel job, played by rings of marks."""

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from lockstep.contracts.facts import RankFacts, facts_to_json
from lockstep.contracts.records import DOMAIN_KINDS
from tests.support.mark_ring import MarkRing, make_header, wanted_step

STEP_NS = 50_000_000
WORK_NS = 30_000_000
EXCESS_NS = 30_000_000
JITTER_RATIO = 0.003  # of a rank's own work, as on devices of its own
NS = 1_000_000_000
FACTS = RankFacts(
    device="NVIDIA H200",
    device_kind="cuda",
    dtype="bf16",
    peak_flops_per_second=989.5e12,
    mark_writer="C extension",
    collective_kernels="C++",
)
MEASURED = dict.fromkeys(
    ("cpu_ns", "gc_count", "gc_full_count", "recompilations", "model_flops", "tokens", "work", "agent_ns"), 0
)
DOMAINS = {f"{kind}_{field}": value for kind in DOMAIN_KINDS for field, value in (("wait_ns", 0), ("bytes", 1 << 20))}


class FakeNodes:
    """Ranks that step together; `slow_rank` works longer and the others wait for it.

    `whole` ones measure every quantity of a host, in every kind of domain, and report what they run on.
    """

    def __init__(self, roots: list[Path], run: str, ranks_per_node: int, *, whole: bool = False) -> None:
        self._is_whole = whole
        self.slow_rank: int | None = None
        self.step = 0
        self._random = random.Random(7)
        world_size = len(roots) * ranks_per_node
        self._rings = [
            MarkRing(
                root / run,
                make_header(
                    node * ranks_per_node + local_rank,
                    world_size=world_size,
                    local_rank=local_rank,
                    hostname=f"host{node}",
                    attempt=1,
                ),
                now_ns=time.monotonic_ns(),
            )
            for node, root in enumerate(roots)
            for local_rank in range(ranks_per_node)
        ]
        for ring in self._rings if whole else ():
            ring.facts(facts_to_json(FACTS))

    def take_step(self, start_ns: int, end_ns: int) -> None:
        """Write every rank's marks of a step between two times of CLOCK_MONOTONIC."""
        for rank, ring in enumerate(self._rings):
            work_ns = int(WORK_NS * self._random.gauss(1, JITTER_RATIO)) + EXCESS_NS * (rank == self.slow_rank)
            work_ns = min(work_ns, end_ns - start_ns)  # of a rank that has just become slow
            values = {
                "compute_ns": work_ns,
                "dp_wait_ns": end_ns - start_ns - work_ns,
                "dp_bytes": 1 << 20,
                "samples": 8,
            }
            if self._is_whole:
                phases = {"forward_ns": work_ns, "backward_ns": 0, "optimizer_ns": 0}
                values = MEASURED | DOMAINS | phases | values
            ring.write(wanted_step(self.step, start_ns, end_ns, **values))
            ring.beat(end_ns)
        self.step += 1

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Step in a thread, at the pace of the steps' length."""
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
