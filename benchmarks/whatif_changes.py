"""What-ifs of a monitored run, each predicted from its healthy window and then measured as a job of its own.

Two real ranks train under `lockstep run`; the coordinator fits their specification. `lockstep whatif --run` then
forecasts another batch, more micro-batches, smaller buckets and four ranks; each is run for real and its step measured.
Meant for a quiet machine: the load is printed. Run with `python -m benchmarks.whatif_changes`.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.whatif_roundtrip import TOKEN, Job
from lockstep.cli.monitored_run import read_monitored_run
from tests.support.policy_file import policy_file
from tests.support.servers import running, wait_until
from tests.support.stack import LOCKSTEP, Stack, full_stack

BASE = "whatif-base"
SAMPLES, RANKS = 8, 2
CORES = len(os.sched_getaffinity(0))
SPECIFICATION = f"""\
# Peaks are upper limits, as a fit only lowers them; more ranks than cores share them.
name: whatif changes
model:
  {{type: gpt, layers: 4, hidden: 256, heads: 4, sequence: 128, vocabulary: 512, fused_attention: true,
    precision: full}}
strategy: {{dp: {RANKS}}}
cluster:
  device: {{name: core, flops_per_second: 2.0e+11, memory_bytes_per_second: 4.0e+10, memory_bytes: 8.0e+9}}
  levels: [{{name: loopback, fanout: 4, cores: {CORES}, bytes_per_second: 2.0e+9,
    launch_s: 1.0e-4}}]
batch: {SAMPLES * RANKS}
"""
_START_SECONDS, _FIT_SECONDS = 150, 240
_WITHIN = 0.1


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A change: what the specification and what the job is given."""

    name: str
    values: Mapping[str, Any]
    options: tuple[str, ...] = ()
    ranks: int = RANKS


CHANGES = (
    Changed(name="batch x 2", values={"batch": 2 * SAMPLES * RANKS}, options=("--samples", str(2 * SAMPLES))),
    Changed(name="batch / 2", values={"batch": SAMPLES * RANKS // 2}, options=("--samples", str(SAMPLES // 2))),
    Changed(name="2 micro-batches", values={"strategy.micro_batches": 2}, options=("--micro-batches", "2")),
    Changed(name="buckets of 1 MiB", values={"strategy.bucket_bytes": 2**20}, options=("--bucket-mib", "1")),
    Changed(name="4 ranks", values={"strategy.dp": 4, "batch": 4 * SAMPLES}, ranks=4),
)


@dataclass(frozen=True, kw_only=True)
class MeasuredChange:
    """Seconds of a step as predicted and as measured, and the load of the machine (1 min) while it was measured."""

    name: str
    predicted_seconds: float
    measured_seconds: float
    load: float

    @property
    def error_ratio(self) -> float:
        """By how much of the measured step the prediction was wrong."""
        return self.predicted_seconds / self.measured_seconds - 1


@dataclass(kw_only=True)
class MeasuredChanges:
    """All outcomes, the first that of the unchanged run, and what the fit left unexplained."""

    unexplained_ratio: float
    error_band_ratio: float
    outcomes: list[MeasuredChange] = field(default_factory=list)

    def table(self) -> str:
        """Return the outcomes as Markdown."""
        lines = ["| change | predicted | measured | error | load |", "|---|---:|---:|---:|---:|"]
        lines += [
            f"| {each.name} | {each.predicted_seconds * 1e3:.1f} ms | {each.measured_seconds * 1e3:.1f} ms "
            f"| {each.error_ratio:+.1%} | {each.load:.1f} |"
            for each in self.outcomes
        ]
        within = sum(abs(each.error_ratio) <= _WITHIN for each in self.outcomes[1:])
        lines.append(
            f"\n{within} of {len(self.outcomes) - 1} changes within {_WITHIN:.0%}; band of the fit "
            f"{self.error_band_ratio:.0%}, unexplained {self.unexplained_ratio:.0%}"
        )
        return "\n".join(lines)


def main() -> None:
    """Predict and measure every change, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "token").write_text(TOKEN)
        with full_stack(
            folder,
            {
                "api_token_file": str(folder / "token"),
                "policy_file": policy_file(folder, {"profile.enabled": "false"}),
            },
        ) as stack:
            result = measure_changes(stack, folder)
    print(json.dumps(asdict(result)) if arguments.json else result.table())


def measure_changes(stack: Stack, folder: Path) -> MeasuredChanges:
    """Fit the base, forecast every change, then run each and measure its step."""
    with _training(stack, folder, BASE, RANKS, ()) as base:
        base.specify(SPECIFICATION)
        expected: Any = wait_until(base.expected, _FIT_SECONDS, "a model of the run")
        spec = read_monitored_run(stack.coordinator, BASE).spec
        measured_s = base.step_seconds()
    result = MeasuredChanges(
        unexplained_ratio=expected["unexplained_ratio"],
        error_band_ratio=expected["error_band_ratio"],
        outcomes=[_measured("as it is", spec.forecast().step_seconds, measured_s)],
    )
    for number, change in enumerate(CHANGES):
        predicted_s = spec.changed_by(change.values).forecast().step_seconds
        with _training(stack, folder, f"whatif-{number}", change.ranks, change.options) as job:
            result.outcomes.append(_measured(change.name, predicted_s, job.step_seconds()))
    return result


def _measured(name: str, predicted_s: float, measured_s: float) -> MeasuredChange:
    return MeasuredChange(
        name=name, predicted_seconds=predicted_s, measured_seconds=measured_s, load=os.getloadavg()[0]
    )


@contextlib.contextmanager
def _training(stack: Stack, folder: Path, run: str, ranks: int, options: tuple[str, ...]) -> Iterator[Job]:
    """Run the job under `lockstep run` until its steps are under way."""
    script = Path(__file__).with_name("whatif_changes_job.py")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(script), *options]
    command = [*LOCKSTEP, "run", "--run", run, "--root", str(stack.shared), "--", sys.executable, *torchrun]
    with running(command, folder / f"{run}.log", os.environ | {"OMP_NUM_THREADS": "1"}):
        job = Job(stack, folder, run)
        wait_until(lambda: job.state()["step"] >= 0, _START_SECONDS, f"the first step of {run}")
        yield job


if __name__ == "__main__":
    main()
