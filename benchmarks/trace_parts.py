"""What each part of reading and analysing a trace has cost a process, reported as it goes.

One line of JSON a part, so that what was done before a part that fails is known. Standard library alone: peers are
measured with it in environments of their own.
"""

import json
import time
from pathlib import Path
from typing import NamedTuple

_MB = 1e6
_KEYS = '{"part": '


class Part(NamedTuple):
    """CPU seconds, user and system, of one part, and the most memory that its process had until its end."""

    part: str
    cpu_s: float
    peak_mb: float


class Clock:
    """Reports the parts of this process; the first one begins with the process."""

    def __init__(self) -> None:
        self._since_s = 0.0

    def mark(self, part: str) -> None:
        """Print what has been done since the part before."""
        now_s = time.process_time()
        part_cost = Part(part, now_s - self._since_s, peak_mb())
        print(json.dumps(part_cost._asdict()), flush=True)
        self._since_s = now_s


def peak_mb() -> float:
    """Return the most memory that this process had; getrusage would count its parent's as well."""
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024 / _MB


def parts_of(text: str) -> list[Part]:
    """Return the parts in a process's output, whatever else it printed."""
    return [Part(**json.loads(line)) for line in text.splitlines() if line.startswith(_KEYS)]
