"""What-ifs of a monitored run, each predicted from its healthy window and then measured part by part.

Two real ranks train under `lockstep run`; the coordinator fits their specification. `lockstep whatif --run` then
forecasts another batch, more micro-batches, smaller buckets and four ranks; each is run for real, in turn with the
unchanged job. The error compares how a change lengthens the step: predicted over the predicted unchanged step, measured
over the unchanged steps before and after it. Meant for a quiet machine: the load is printed. `--only` measures some
changes, for machines that are quiet for a few minutes at a time. Run with `python -m benchmarks.whatif_changes`.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.whatif_roundtrip import TOKEN, Job
from lockstep.cli.monitored_run import read_monitored_run
from lockstep.simulator.spec import JobSpec
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
_START_SECONDS, _FIT_SECONDS, _MEASURE_SECONDS = 150, 240, 600
_WITHIN = 0.1


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A change: what the specification and what the job is given."""

    name: str
    values: Mapping[str, Any]
    variant: Mapping[str, Any]


CHANGES = (
    Changed(name="batch x 2", values={"batch": 2 * SAMPLES * RANKS}, variant={"samples": 2 * SAMPLES}),
    Changed(name="batch / 2", values={"batch": SAMPLES * RANKS // 2}, variant={"samples": SAMPLES // 2}),
    Changed(name="2 micro-batches", values={"strategy.micro_batches": 2}, variant={"micro_batches": 2}),
    Changed(name="buckets of 1 MiB", values={"strategy.bucket_bytes": 2**20}, variant={"bucket_mib": 1.0}),
    Changed(name="4 ranks", values={"strategy.dp": 4, "batch": 4 * SAMPLES}, variant={"ranks": 4}),
)
PARTS = ("forward", "backward", "optimizer", "exchange")


@dataclass(frozen=True, kw_only=True)
class MeasuredChange:
    """A step as predicted and as measured, seconds, whole (`step`) and by `PARTS`.

    `predicted_ratio` and `measured_ratio` relate it to the unchanged step, the measured one to those around it.
    """

    name: str
    predicted: Mapping[str, float]
    measured: Mapping[str, float]
    predicted_ratio: float = 1.0
    measured_ratio: float = 1.0

    @property
    def error_ratio(self) -> float:
        """By how much of the measured step the prediction was wrong, without the drift of the machine."""
        return self.predicted_ratio / self.measured_ratio - 1


@dataclass(frozen=True, kw_only=True)
class MeasuredChanges:
    """The unchanged run, all changes, what the fit left unexplained, and the load (1 min) at the beginning and end."""

    unexplained_ratio: float
    error_band_ratio: float
    unchanged: MeasuredChange
    outcomes: Sequence[MeasuredChange]
    load: tuple[float, float]

    def table(self) -> str:
        """Return the outcomes as Markdown, predicted / measured."""
        lines = [f"| ms | step | {' | '.join(PARTS)} | error |", "|---|" + "---:|" * (len(PARTS) + 2)]
        for each in (self.unchanged, *self.outcomes):
            cells = [f"{each.predicted[name] * 1e3:.1f} / {each.measured[name] * 1e3:.1f}" for name in ("step", *PARTS)]
            error = each.predicted["step"] / each.measured["step"] - 1 if each is self.unchanged else each.error_ratio
            lines.append(f"| {each.name} | {' | '.join(cells)} | {error:+.1%} |")
        within = sum(abs(each.error_ratio) <= _WITHIN for each in self.outcomes)
        lines.append(
            f"\n{within} of {len(self.outcomes)} changes within {_WITHIN:.0%}; band of the fit "
            f"{self.error_band_ratio:.0%}, unexplained {self.unexplained_ratio:.0%}; load {self.load[0]:.1f} before, "
            f"{self.load[1]:.1f} after"
        )
        return "\n".join(lines)


def main() -> None:
    """Predict and measure the changes, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", action="append", choices=[each.name for each in CHANGES], help="measure this change")
    arguments = parser.parse_args()
    changes = [each for each in CHANGES if arguments.only is None or each.name in arguments.only]
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
            result = measure_changes(stack, folder, changes)
    print(json.dumps(asdict(result)) if arguments.json else result.table())


def measure_changes(stack: Stack, folder: Path, changes: Sequence[Changed]) -> MeasuredChanges:
    """Fit the run, forecast every change, then measure each in turn with the unchanged job."""
    load = os.getloadavg()[0]
    with _training(stack, folder) as base:
        base.specify(SPECIFICATION)
        expected: Any = wait_until(base.expected, _FIT_SECONDS, "a model of the run")
        spec = read_monitored_run(stack.coordinator, BASE).spec
    blocks = _alternated([each.variant for each in changes])
    predicted = [predicted_parts(each) for each in (spec, *(spec.changed_by(change.values) for change in changes))]
    outcomes = [
        MeasuredChange(
            name=change.name,
            predicted=predicted[number],
            measured=_medians(blocks, number),
            predicted_ratio=predicted[number]["step"] / predicted[0]["step"],
            measured_ratio=measured_ratio(blocks, number),
        )
        for number, change in enumerate(changes, 1)
    ]
    return MeasuredChanges(
        unexplained_ratio=expected["unexplained_ratio"],
        error_band_ratio=expected["error_band_ratio"],
        unchanged=MeasuredChange(name="as it is", predicted=predicted[0], measured=_medians(blocks, 0)),
        outcomes=outcomes,
        load=(load, os.getloadavg()[0]),
    )


def predicted_parts(spec: JobSpec) -> dict[str, float]:
    """Return the forecast of a job without pipeline, seconds; `exchange` is what a step has beyond its computing."""
    rank = spec.compiled().classes[0]
    times = spec.schedule.micro_batches / rank.speed
    forward_s = sum(each.forward.work_s for each in rank.programs) * times
    backward_s = sum(each.backward.work_s for each in rank.programs) * times
    optimizer_s = rank.update_s / rank.speed
    step_s = spec.forecast().step_seconds
    return {
        "step": step_s,
        "forward": forward_s,
        "backward": backward_s,
        "optimizer": optimizer_s,
        "exchange": step_s - forward_s - backward_s - optimizer_s,
    }


def measured_ratio(blocks: Sequence[Mapping[str, Any]], number: int) -> float:
    """Return how much longer a change makes the step: median over its blocks, each over the mean of its neighbours."""
    steps_s: list[float] = [block["seconds"]["step"] for block in blocks]
    places = [place for place, block in enumerate(blocks) if block["variant"] == number]
    return median(steps_s[place] / fmean((steps_s[place - 1], steps_s[place + 1])) for place in places)


def _medians(blocks: Sequence[Mapping[str, Any]], number: int) -> dict[str, float]:
    own = [block["seconds"] for block in blocks if block["variant"] == number]
    return {name: median(each[name] for each in own) for name in ("step", *PARTS)}


def _command(ranks: int, *options: str) -> list[str]:
    script = Path(__file__).with_name("whatif_changes_job.py")
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(script)]
    return [sys.executable, *run, *options]


def _alternated(variants: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    ranks = max((variant.get("ranks", RANKS) for variant in variants), default=RANKS)
    command = _command(ranks, "--changes", json.dumps([dict(each) for each in variants]))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    output = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, check=True, timeout=_MEASURE_SECONDS
    ).stdout
    found: list[dict[str, Any]] = json.loads(output)
    return found


@contextlib.contextmanager
def _training(stack: Stack, folder: Path) -> Iterator[Job]:
    """Run the unchanged job under `lockstep run` until its steps are under way."""
    command = [*LOCKSTEP, "run", "--run", BASE, "--root", str(stack.shared), "--", *_command(RANKS)]
    with running(command, folder / f"{BASE}.log", os.environ | {"OMP_NUM_THREADS": "1"}):
        job = Job(stack, folder, BASE)
        wait_until(lambda: job.state()["step"] >= 0, _START_SECONDS, f"the first step of {BASE}")
        yield job


if __name__ == "__main__":
    main()
