"""Lockstep and HolisticTraceAnalysis side by side on the same traces: `make bench-trace`.

    python -m benchmarks.trace_bench [--megabytes 50] [--large] [--peer-limit 600] [--gz] [--venv FOLDER] [--alone]

The MI300 recording next to the checkout, or a small one of the tests, is repeated up to a size (`traces_made`): 50 MB,
with --large 1 GB too. Both sides read it by turns in processes of their own, the fastest run of each counting. A peer
that has spent --peer-limit CPU seconds is ended: what it cost is then a lower bound, printed with a ">", and so are the
ratios, which are held to the targets as they are. CPU seconds are user and system; those of the imports, which a
worker pays once, stand apart. Lockstep is measured twice (`trace_ours`): doing the peer's work, and with every analysis
that it has, patterns and findings among them; both are held to the targets. The peer gets a virtual environment of its
own.

What loading and storing costs (`trace_cost`) and localising a million workers (`localisation_cost`) follow, unless
--alone. Exit status: 1 where a ratio to the peer is missed, or `trace_cost` failed; 2 where the peer could not be
installed or failed to load the trace. Seconds are shown with their budgets and fail nothing: machines differ.
"""

import argparse
import gzip
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.trace_parts import Part, parts_of
from benchmarks.traces_made import write_repeated

ROOT = Path(__file__).parent.parent
LARGEST = ROOT.parent / "shared" / "data" / "traces" / "tracelens" / "mi300_resnet_act_checkpoint.json.gz"
CARRIED = ROOT / "tests" / "trace" / "hta" / "benchmark_alexnet.json.gz"
PEER = "HolisticTraceAnalysis==0.5.0"
PACKAGES = (PEER, "pandas<3")  # pandas 3 breaks its critical path
DEFAULT_VENV = ROOT / "build" / "hta"
SMALL_MB, LARGE_MB = 50, 1000
_MB = 1e6
_LOAD_MB_PER_S = 150  # in pure Python and numpy
_WIDTH = 30
_RUNS = {SMALL_MB: 3}  # more noise than in a long run
PEER_LIMIT_S = 600
"""Twice what 25 times faster than all analyses of a GB asks for; reading one takes the peer 8 minutes or more."""
IMPORTS, UNFINISHED = "imports", "not finished"
PEER_WORK, ALL_WORK = "the peer's work", "all analyses"


class Targets(NamedTuple):
    """How many times faster and smaller than the peer, None where nothing was promised."""

    cpu: float | None
    memory: float | None


TARGETS = {SMALL_MB: Targets(10, 4), LARGE_MB: Targets(25, None)}


class Cost(NamedTuple):
    """What a process spent on a trace, and what it could not do."""

    parts: list[Part]
    failure: str = ""
    is_bound: bool = False
    """Whether it was ended at its limit: it would have cost more."""

    @property
    def cpu_s(self) -> float:
        """Return the CPU seconds of all parts but the imports."""
        return sum(each.cpu_s for each in self.parts if each.part != IMPORTS)

    @property
    def peak_mb(self) -> float:
        """Return the process's peak."""
        return max(each.peak_mb for each in self.parts)

    @property
    def has_loaded(self) -> bool:
        """Whether it got past loading."""
        return len(self.parts) > 2


def measured(command: Sequence[str], limit_s: int | None = None) -> Cost:
    """Run a process that reports its parts, and return them; those that it did not reach cost nothing.

    One that has spent `limit_s` CPU seconds is ended, and what it has spent on its last part is a part as well.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, cwd=ROOT, env=environment)
        if limit_s is not None:
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (limit_s, resource.RLIM_INFINITY))
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        parts, stderr = parts_of(out.read()), errors.read().strip().splitlines()
    if process.returncode == -signal.SIGXCPU:
        spent_s = usage.ru_utime + usage.ru_stime - sum(each.cpu_s for each in parts)
        parts.append(Part(UNFINISHED, spent_s, usage.ru_maxrss * 1024 / _MB))
        return Cost(parts, f"ended at its limit of {limit_s} s", is_bound=True)
    failure = stderr[-1] if stderr else f"exit status {process.returncode}"
    return Cost(parts, failure if process.returncode else "")


def best(costs: Sequence[Cost]) -> Cost:
    """Return the run that got furthest, of those the fastest."""
    return min(costs, key=lambda cost: (-len(cost.parts), cost.cpu_s))


def install_peer(folder: Path) -> Path:
    """Return the interpreter of an environment with the peer, made if need be; SystemExit 2 if there cannot be one."""
    python = folder / "bin" / "python"
    asked = "from importlib.metadata import version; print(version('HolisticTraceAnalysis'))"
    if python.exists() and _run(python, "-c", asked).stdout.strip() == PEER.rpartition("=")[2]:
        return python
    print(f"installing {' '.join(PACKAGES)} into {folder}", flush=True)
    for arguments in (
        (sys.executable, "-m", "venv", folder),
        (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES),
    ):
        done = _run(*arguments)
        if done.returncode:
            output = done.stderr.strip().splitlines() or ["it printed nothing"]
            print(f"no comparison: {PEER} cannot be installed into {folder}: {output[-1]}", file=sys.stderr)
            raise SystemExit(2)
    return python


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(each) for each in arguments], capture_output=True, text=True, check=False)


def compare(path: Path, python: Path, runs: int, limit_s: int) -> dict[str, Cost]:
    """Return the best of a number of runs of the peer, of its work done here, and of all analyses here.

    `limit_s` is the peer's alone.
    """
    ours = [sys.executable, "-m", "benchmarks.trace_ours"]
    commands = {
        PEER: [str(python), "-m", "benchmarks.trace_hta", str(path)],
        PEER_WORK: [*ours, "peer", str(path)],
        ALL_WORK: [*ours, "all", str(path)],
    }
    limits_s = {PEER: limit_s}
    costs = [{name: measured(each, limits_s.get(name)) for name, each in commands.items()} for _ in range(runs)]
    return {name: best([each[name] for each in costs]) for name in commands}


def report(costs: dict[str, Cost], raw_bytes: int, targets: Targets) -> bool:
    """Print what was measured with the targets; return whether every one was met."""
    print(f"{'':{_WIDTH}}{'CPU s':>8}{'imports':>9}{'peak MB':>9}   parts")
    for name, cost in costs.items():
        imports_s = sum(each.cpu_s for each in cost.parts if each.part == IMPORTS)
        parts = ", ".join(f"{each.part} {each.cpu_s:.2f}" for each in cost.parts if each.part != IMPORTS)
        more = ">" if cost.is_bound else ""
        cpu_s, peak_mb = f"{more}{cost.cpu_s:.2f}", f"{more}{cost.peak_mb:.0f}"
        print(f"{name:{_WIDTH}}{cpu_s:>8}{imports_s:>9.2f}{peak_mb:>9}   {parts}")
        if cost.failure:
            print(f"{'':{_WIDTH}}did not finish: {cost.failure}")
    peer = costs[PEER]
    print(f"{'':{_WIDTH}}{'target':>8}{'measured':>10}")
    met = []
    for work in (PEER_WORK, ALL_WORK):
        cpu, memory = peer.cpu_s / costs[work].cpu_s, peer.peak_mb / costs[work].peak_mb
        met.append(_ratio(f"times faster, {work}", targets.cpu, cpu, is_bound=peer.is_bound))
        met.append(_ratio(f"times smaller, {work}", targets.memory, memory, is_bound=peer.is_bound))
    load_s = next(each.cpu_s for each in costs[PEER_WORK].parts if each.part == "load")
    print(f"{'loading, MB/s of a core':{_WIDTH}}{_LOAD_MB_PER_S:>8}{raw_bytes / _MB / load_s:>10.0f}", flush=True)
    return all(met)


def _ratio(what: str, target: float | None, ratio: float, *, is_bound: bool) -> bool:
    is_met = target is None or ratio >= target
    asked, shown = "" if target is None else f"{target:g}", f"{'>' if is_bound else ''}{ratio:.1f}"
    print(f"{what:{_WIDTH}}{asked:>8}{shown:>10}{'' if is_met else '   MISSED'}")
    return is_met


def side_by_side(recording: Path, megabytes: int, folder: Path, python: Path, *, packed: bool, limit_s: int) -> int:
    """Make a trace, compare on it, remove it; return the exit status."""
    path = folder / "trace.json"
    copies = write_repeated(recording, path, int(megabytes * _MB))
    raw_bytes = path.stat().st_size
    if packed:
        path = _packed(path)
    print(f"\n{recording.name}, {copies} times: {raw_bytes / _MB:.1f} MB of JSON{', in gzip' if packed else ''}")
    costs = compare(path, python, _RUNS.get(megabytes, 1), limit_s)
    path.unlink()
    failures = [f"{name}: {cost.failure}" for name, cost in costs.items() if not (cost.has_loaded or cost.is_bound)]
    if failures:
        print(f"no comparison: {'; '.join(failures)}", file=sys.stderr)
        return 2
    return int(not report(costs, raw_bytes, TARGETS.get(megabytes, Targets(None, None))))


def _packed(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    with path.open("rb") as raw, gzip.open(packed, "wb", compresslevel=1) as file:
        shutil.copyfileobj(raw, file, 1 << 20)
    path.unlink()
    return packed


def others() -> int:
    """Print what loading, storing and localising cost; return the exit status, in which seconds do not count."""
    print("\nloading and storing: benchmarks.trace_cost", flush=True)
    status = _shown("benchmarks.trace_cost")
    print("\nlocalising: benchmarks.localisation_cost (exact against a plain loop, and Algorithm 1: see the tests)")
    sys.stdout.flush()
    if _shown("benchmarks.localisation_cost", "--workers", "1000000"):
        print("over budget; `make bench-localisation` fails for it")
    return status


def _shown(module: str, *arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, check=False).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    """Print everything; return the exit status."""
    parser = argparse.ArgumentParser(description="Trace analysis compared with its peer.")
    parser.add_argument("--megabytes", type=int, default=SMALL_MB, help="targets are known of 50 and 1000")
    parser.add_argument(
        "--large", action="store_true", help="1 GB too: up to the peer's limit, and 6 GB of memory for it"
    )
    parser.add_argument("--peer-limit", type=int, default=PEER_LIMIT_S, help="CPU seconds after which it is ended")
    parser.add_argument("--gz", action="store_true", help="let both read gzip")
    parser.add_argument("--venv", type=Path, default=DEFAULT_VENV, help="the peer's environment")
    parser.add_argument("--alone", action="store_true", help="the comparison only")
    parsed = parser.parse_args(arguments)
    recording = LARGEST if LARGEST.exists() else CARRIED
    sizes = [parsed.megabytes, *([LARGE_MB] if parsed.large else [])]
    try:
        python = install_peer(parsed.venv)
    except SystemExit as failed:
        status = int(str(failed.code))
    else:
        with tempfile.TemporaryDirectory() as name:
            asked = {"packed": parsed.gz, "limit_s": parsed.peer_limit}
            status = max(side_by_side(recording, size, Path(name), python, **asked) for size in sizes)
    return status if parsed.alone else max(status, others())


if __name__ == "__main__":
    sys.exit(main())
