"""By how much a rank's memory grows with the agent in it, its ring included: `python -m benchmarks.agent_memory`.

Anonymous and file memory of its own, as it is, with what the interpreter's tables grow by: CPython 3.11 doubles that of
interned names at 87,381 of them, which adds 1.9 MiB at once; torch alone leaves room for 1,360 names.
"""

import os
import statistics
import subprocess
import sys
import tempfile

MEMORY_PROGRAM = """
import gc, os, re, sys, torch
def private_kib():
    gc.collect()
    with open("/proc/self/smaps_rollup") as file:
        sizes = re.findall(r"(?:Private_Clean|Private_Dirty|Shared_Dirty): +(\\d+)", file.read())
    return sum(int(size) for size in sizes)
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
def train(steps):
    for _ in range(steps):
        weight.sum().backward()
        optimizer.step()
train(300)
before = private_kib()
if sys.argv[1] == "on":
    import lockstep
    assert lockstep.install()
train(1500)
ring = os.path.join(os.environ["LOCKSTEP_DIR"], os.environ["LOCKSTEP_RUN"], "0.ring")
print(private_kib() - before + (os.stat(ring).st_blocks // 2 if sys.argv[1] == "on" else 0))
"""


def measure_memory(directory: str, processes: int) -> int:
    """Return by how many bytes more a rank grows with the agent than without, ring included: medians of processes."""
    environ = {**os.environ, "LOCKSTEP_DIR": directory, "LOCKSTEP_RUN": "memory"}
    environ.pop("LOCKSTEP_AGENT_PID", None)
    grown_kib: dict[str, list[int]] = {"on": [], "off": []}
    for _ in range(processes):
        for agent, grown in grown_kib.items():
            command = [sys.executable, "-c", MEMORY_PROGRAM, agent]
            done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
            grown.append(int(done.stdout))
    return int(statistics.median(grown_kib["on"]) - statistics.median(grown_kib["off"])) << 10


def main() -> None:
    """Print the growth."""
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:  # where rings lie
        print(f"memory of a rank: {measure_memory(directory, 3) / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
