"""A what-if round trip on the live demonstration: four real ranks, fitted, broken, predicted, repaired, compared.

The job's specification is put over HTTP; the coordinator fits its model to a healthy window by itself. Then one rank
becomes slow, the incident's predicted gain is read, the fault is repaired, and the steps before and after are compared
with the prediction. Every part is real. Run with `python -m benchmarks.whatif_roundtrip`.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support.policy_file import policy_file
from tests.support.servers import running, wait_until
from tests.support.stack import LOCKSTEP, Stack, full_stack

RUN = "whatif"
RANKS = 4
RANK = 2
CORES = len(os.sched_getaffinity(0))
SPECIFICATION = f"""\
# The demonstration's model as it is; its device is one core of the fastest kind: the fit shows the share it reaches.
name: demonstration
model: {{type: gpt, layers: 2, hidden: 64, heads: 4, sequence: 64, vocabulary: 15, precision: full}}
strategy: {{dp: 4, bucket_bytes: 1.0e+6}}
cluster:
  device: {{name: core, flops_per_second: 2.0e+11, memory_bytes_per_second: 4.0e+10, memory_bytes: 4.0e+9}}
  levels: [{{name: loopback, fanout: 4, cores: {CORES}, bytes_per_second: 1.0e+9, launch_s: 1.0e-4}}]
batch: 32
"""
TOKEN = "round-trip"  # noqa: S105  (of a coordinator that lives as long as this script)
_START_SECONDS, _FIT_SECONDS, _FIND_SECONDS, _STEPS_SECONDS = 150, 120, 90, 90
_SETTLE_STEPS = 5  # after a change: records on their way, and a step that is half of each
_MEDIAN_STEPS = 10  # the run's recent step is the median of so many (`recent_steps` of the policy)
_MEDIANS = 5  # of disjoint steps


@dataclass(frozen=True, kw_only=True)
class RoundTrip:
    """Seconds of a step as expected, predicted and measured; gains are shares of the faulty step."""

    expected_step_seconds: float
    error_band_ratio: float
    healthy_step_seconds: float
    faulty_step_seconds: float
    repaired_step_seconds: float
    predicted_faulty_seconds: float
    predicted_repaired_seconds: float
    predicted_gain_ratio: float
    unexplained_ratio: float
    fitted: dict[str, Any]

    @property
    def measured_gain_ratio(self) -> float:
        """What the repair gave back."""
        return 1 - self.repaired_step_seconds / self.faulty_step_seconds

    @property
    def error_ratio(self) -> float:
        """By how many shares of a step the prediction was wrong."""
        return self.predicted_gain_ratio - self.measured_gain_ratio


class Job:
    """The training under `lockstep run`, and its fault."""

    def __init__(self, stack: Stack, folder: Path, run: str = RUN) -> None:
        self.stack = stack
        self.run = run
        self._broken = folder / "broken"

    def break_rank(self) -> None:
        """Let the fault begin."""
        self._broken.touch()

    def repair(self) -> None:
        """Let the fault end."""
        self._broken.unlink()

    def specify(self, text: str) -> None:
        """Specify the job."""
        url = f"{self.stack.coordinator}/api/v1/runs/{self.run}/spec"
        headers = {"Authorization": f"Bearer {TOKEN}"}
        request = urllib.request.Request(url, text.encode(), headers, method="PUT")  # noqa: S310  (our own loopback)
        with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310
            assert reply.status == 200

    def state(self) -> dict[str, Any]:
        """Return the run as the API shows it; `step` is -1 before the first."""
        return self.stack.run(self.run) or {"step": -1}

    def expected(self) -> dict[str, Any] | None:
        """Return what is expected once that is known."""
        found: dict[str, Any] = self.state().get("expected", {})
        if found.get("state") == "refused":
            raise RuntimeError(f"no model: {found['reason']}")
        return found if found.get("state") == "known" else None

    def step_seconds(self) -> float:
        """Return the median of the next steps, as the expected step is one: a few late steps do not change it."""
        due = int(self.state()["step"]) + _SETTLE_STEPS + _MEDIAN_STEPS
        medians_s: list[float] = []

        def is_done() -> bool:
            nonlocal due
            state = self.state()
            if state["step"] >= due:
                due = state["step"] + _MEDIAN_STEPS
                medians_s.append(state["recent_step_seconds"])
            return len(medians_s) >= _MEDIANS

        wait_until(is_done, _STEPS_SECONDS, f"{_MEDIANS} medians of {_MEDIAN_STEPS} steps")
        return statistics.median(medians_s)

    def incident(self) -> dict[str, Any] | None:
        """Return the open incident of the slow rank once its gain is predicted."""
        incidents = self.stack.incidents(self.run)
        return next((each for each in incidents if each["ranks"] == [RANK] and each["prediction"]), None)


@contextlib.contextmanager
def job(folder: Path, *, fault_ms: float) -> Iterator[Job]:
    """Start everything; the fault is not there yet."""
    (folder / "token").write_text(TOKEN)
    policy = policy_file(folder, {"profile.enabled": "false"})  # a capture would be measured
    settings = {"api_token_file": str(folder / "token"), "policy_file": policy}
    script = Path(__file__).with_name("whatif_job.py")
    fault = ["--fault", "compute", "--rank", str(RANK), "--fault-ms", str(fault_ms), "--steps", "1000000"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), str(script)]
    with full_stack(folder, settings) as stack:
        command = [*LOCKSTEP, "run", "--run", RUN, "--root", str(stack.shared), "--", sys.executable, *torchrun]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with running([*command, str(folder), *fault], folder / "job.log", environment):
            yield Job(stack, folder)


def round_trip(training: Job) -> RoundTrip:
    """Fit, break, predict, repair; return what was predicted and what came."""
    wait_until(lambda: training.state()["step"] >= 0, _START_SECONDS, "the first step")
    training.specify(SPECIFICATION)
    expected: Any = wait_until(training.expected, _FIT_SECONDS, "a model of the run")
    healthy_s = training.step_seconds()
    training.break_rank()
    wait_until(training.incident, _FIND_SECONDS, "the slow rank with its predicted gain")
    faulty_s = training.step_seconds()
    found: Any = training.incident()  # the last prediction before the repair: by then the excess is known well
    training.repair()
    repaired_s = training.step_seconds()
    prediction = found["prediction"]
    return RoundTrip(
        expected_step_seconds=expected["step_seconds"],
        error_band_ratio=expected["error_band_ratio"],
        unexplained_ratio=expected["unexplained_ratio"],
        fitted=expected["calibration"] | {name: expected[name] for name in ("floor_seconds", "spread_seconds")},
        healthy_step_seconds=healthy_s,
        faulty_step_seconds=faulty_s,
        repaired_step_seconds=repaired_s,
        predicted_faulty_seconds=prediction["faulty_step_seconds"],
        predicted_repaired_seconds=prediction["repaired_step_seconds"],
        predicted_gain_ratio=found["predicted_gain"]["ratio"],
    )


def table(made: RoundTrip) -> str:
    """Return the round trip as Markdown."""
    rows = [
        ("healthy step", made.expected_step_seconds, made.healthy_step_seconds),
        ("step with the slow rank", made.predicted_faulty_seconds, made.faulty_step_seconds),
        ("step after the repair", made.predicted_repaired_seconds, made.repaired_step_seconds),
    ]
    lines = ["| | model | measured |", "|---|---:|---:|"]
    lines += [f"| {what} | {model_s * 1e3:.1f} ms | {seen_s * 1e3:.1f} ms |" for what, model_s, seen_s in rows]
    lines.append(f"| gain of the repair | {made.predicted_gain_ratio:.1%} | {made.measured_gain_ratio:.1%} |")
    lines.append(
        f"\nband of the expected step: {made.error_band_ratio:.0%}, of it unexplained: {made.unexplained_ratio:.0%}"
    )
    lines.append(
        "fitted: "
        + ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in made.fitted.items()
        )
    )
    return "\n".join(lines)


def main() -> None:
    """Make the round trip and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault-ms", type=float, default=100.0, help="what the slow rank does longer in a step")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, job(Path(folder), fault_ms=arguments.fault_ms) as training:
        made = round_trip(training)
    print(
        json.dumps(asdict(made) | {"measured_gain_ratio": made.measured_gain_ratio}) if arguments.json else table(made)
    )


if __name__ == "__main__":
    main()
