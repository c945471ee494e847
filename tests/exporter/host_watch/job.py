"""Plays a rank that needs a whole core: it holds a ring, and for each line on its input it plays a capture."""

import os
import sys
import threading
import time
from pathlib import Path

from lockstep.contracts.capture import CaptureResult, result_to_json
from lockstep.contracts.paths import incoming_directory, trace_name
from lockstep.contracts.ring import RingHeader
from tests.support.mark_ring import MarkRing

CAPTURE_S = 0.5


def main(directory: Path, core: int) -> None:
    """Print that the ring is there, then work for a minute."""
    os.sched_setaffinity(0, {core})
    header = RingHeader(
        rank=0, local_rank=0, world_size=1, pid=1, attempt=1, clock_offset_ns=0, hostname="h", block_count=64
    )
    ring = MarkRing(directory, header, now_ns=time.monotonic_ns(), hold=True)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    threading.Thread(target=play_captures, args=(ring, directory), daemon=True).start()
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        ring.beat(time.monotonic_ns())


def play_captures(ring: MarkRing, directory: Path) -> None:
    """Answer as a capture of CAPTURE_S does; its trace is none."""
    for request_id, _ in enumerate(sys.stdin, 1):
        incoming = incoming_directory(directory)
        incoming.mkdir(parents=True, exist_ok=True)
        (incoming / trace_name(request_id, 0)).write_text("this is no trace")
        start_ns = time.monotonic_ns()
        answer = CaptureResult(request_id=request_id, state="running", first_step=0, steps=1, start_ns=start_ns)
        ring.answer(result_to_json(answer))
        time.sleep(CAPTURE_S)  # what the other thread does meanwhile is captured
        end_ns = time.monotonic_ns()
        done = CaptureResult(
            request_id=request_id, state="done", first_step=0, steps=1, start_ns=start_ns, end_ns=end_ns, trace_bytes=16
        )
        ring.answer(result_to_json(done))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
