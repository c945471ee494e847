"""What a summary costs a host whose cores are all busy, and how long it takes there.

`python -m benchmarks.summary_priority TRACE`. As many busy processes as cores, next to them the exporter's worker: with
and without its pauses, in the group of the busy ones and in one of its own (a session, where the kernel groups by
sessions; control groups do the same). Its first trace pays for what it imports, as every trace did when each had a
process. Shares are of processor time that both have had, so that others on the machine change them little; seconds
are of this machine as busy as it is.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

_BUSY = "while True: pass"
_SERVE = (
    "import sys, exporter.capturing.summarise_worker as w;"
    " w.niceness_of = lambda _: int(sys.argv[2]); sys.exit(w.main([sys.argv[1], *sys.argv[3:]]))"
)
_MEMORY = str(4 << 30)
_WAYS = (
    ("as it is", 5, (0.02, 0.25, 6.0), False),
    ("as it is, another group", 5, (0.02, 0.25, 6.0), True),
    ("its budget spent", 5, (0.02, 0.25, 0.0), False),
    ("the same, another group", 5, (0.02, 0.25, 0.0), True),
    ("lowest priority, no pauses", 19, (1.0, 1.0, 0.0), False),
    ("the same, another group", 19, (1.0, 1.0, 0.0), True),
)


def main() -> int:
    """Print a line for each way and trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    options = parser.parse_args()
    cores = os.cpu_count() or 1
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(cores)]
    try:
        print(f"{options.trace.stat().st_size / 1e6:.1f} MB, {cores} busy processes on {cores} cores")
        for name, priority, share, apart in _WAYS:
            _measure(name, (str(priority), *map(str, share)), options.trace, busy, apart=apart)
    finally:
        for each in busy:
            each.kill()
            each.wait()
    return 0


def _measure(name: str, way: tuple[str, ...], trace: Path, busy: list[subprocess.Popen[bytes]], *, apart: bool) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-P", "-c", _SERVE, _MEMORY, *way]
    worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=apart)
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        for which in ("first", "second"):
            began_s, theirs_s, own_s = time.monotonic(), sum(map(_cpu_s, busy)), _cpu_s(worker)
            worker.stdin.write(json.dumps([str(trace), "run", "node", 0, 1, 3]).encode() + b"\n")
            worker.stdin.flush()
            code, size, complaint = json.loads(worker.stdout.readline())
            worker.stdout.read(size)
            assert code == 0, complaint
            took_s, cpu_s = time.monotonic() - began_s, _cpu_s(worker) - own_s
            lost_ratio = cpu_s / (cpu_s + sum(map(_cpu_s, busy)) - theirs_s)
            print(
                f"{name:28} {which:6} trace: {took_s:6.1f} s, {cpu_s:.2f} s of a core,"
                f" {cpu_s / took_s:.2%} of one meanwhile, {lost_ratio:.2%} of what the busy ones would have had",
                flush=True,
            )
    finally:
        worker.stdin.close()  # ends it
        worker.wait()


def _cpu_s(process: subprocess.Popen[bytes]) -> float:
    """Return the processor seconds of a process and of those that it has waited for."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
