"""What `lockstep run` costs processes that never train: tools, torchrun's own process, loader and compile workers.

    python -m benchmarks.loader_cost [REPETITIONS]

Prints CPU time of whole processes, the least of the repetitions: what others do on this machine only adds to it.
"""

import os
import resource
import subprocess
import sys

from lockstep.agent.bootstrap import loader_environment
from lockstep.agent.lineage import OWNER_VARIABLE

REPETITIONS = 6  # of importing torch, which takes a second


def least_cpu_ms(code: str, environ: dict[str, str], repetitions: int) -> float:
    """Return the least CPU time that Python took for `code`."""
    return min(_cpu_ms(code, environ) for _ in range(repetitions))


def _cpu_ms(code: str, environ: dict[str, str]) -> float:
    before = _children_ms()
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)
    return _children_ms() - before


def _children_ms() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (usage.ru_utime + usage.ru_stime) * 1e3


def main(repetitions: int) -> None:
    """Print the table."""
    bare = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    loaded = loader_environment(bare)
    worlds = {"bare": bare, "loaded": loaded, "started by a rank": {**loaded, OWNER_VARIABLE: "1/8"}}
    for code in ("pass", "import torch"):
        times = (f"{name} {least_cpu_ms(code, environ, repetitions):.1f}" for name, environ in worlds.items())
        print(f"{code}: {', '.join(times)} ms of CPU")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else REPETITIONS)
