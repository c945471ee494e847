"""Wrong names in jobs that combine what scenarios have one by one: `python -m benchmarks.combinations [--runs 100]`.

Each seed draws a layout and, each by chance, several kinds of noise, imbalance and interruption of
`benchmarks/scenarios`, with figures of its own. Half of the jobs are healthy; in the others one rank is slow by 6 to
50 % of own work. Nothing is tuned on them, so they show what the catalogue does not. Every wrong or missing thing is
printed with its seed; `--first-seed` draws others.

Left out are combinations that no job has: in `benchmarks/scenarios` a larger batch adds the same seconds to all ranks,
which does not fit replicas or stages of unequal work.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.scenarios.job import Fault, Imbalance, Interruptions, Noise, Scenario
from benchmarks.scenarios.model import generate
from benchmarks.scenarios.score import Score, named_by, score
from coordinator.record.backtest import backtest
from coordinator.settings.policy import Policy

STEPS = 400
LAYOUTS = (
    *("dp=4", "dp=8", "dp=16", "dp=64", "dp=128", "tp=2,dp=4", "tp=4,dp=2", "tp=8,dp=3", "tp=4,dp=4", "tp=8,dp=8"),
    *("pp=2,dp=4", "pp=4,dp=2", "tp=2,pp=2,dp=2", "tp=2,pp=4,dp=2", "tp=8,pp=2,dp=2", "tp=4,pp=4,dp=8"),
    *("cp=2,dp=4", "tp=2,cp=2,dp=2", "tp=2,cp=4,dp=16", "ep=4,dp=8", "ep=8,dp=64"),
)
_NOISE: dict[str, tuple[float, ...]] = {
    "step": (0.001, 0.002, 0.008, 0.02),
    "spread": (0.005, 0.01, 0.014, 0.02),
    "common": (0.002, 0.02, 0.04, 0.07),
    "common_memory": (0.0, 0.3, 0.7),
    "jitter": (0.1, 0.3),
    "stall_rate": (1e-4, 5e-4, 2e-3),
    "stall_memory": (0.0, 0.3),
    "wander": (0.003, 0.006),
    "contention": (0.3,),
}
_IMBALANCE: dict[str, tuple[float, ...]] = {
    "last_stage": (0.1, 0.3, 0.6),
    "sequence_sigma": (0.03, 0.12, 0.2),
    "loader_ratio": (0.05, 0.15, 0.3),
    "loader_sigma": (0.1, 0.3),
    "routing_sigma": (0.1, 0.3),
}
_INTERRUPTIONS: dict[str, tuple[float, ...]] = {
    "checkpoint_every": (15, 40, 100, 170),
    "checkpoint_seconds": (0.3, 3.0, 60.0),
    "evaluation_every": (30, 75, 160),
    "evaluation_seconds": (0.2, 2.0, 30.0),
    "warm_up_ratio": (0.2, 2.0, 8.0),
    "warm_up_fade_steps": (1.0, 8.0, 20.0),
    "restart_at": (60, 130, 250),
    "rollback_steps": (1, 20, 50),
    "collection_every": (7, 30, 55),
    "writer_every": (15, 33, 58),
    "writer_ratio": (0.2, 0.5, 1.5),
    "missing": (0.0, 0.005, 0.02),
    "missing_bursts": (5,),
    "late": (0.0, 0.02, 0.05),
}
_CHANCE = 0.25
"""Of each field to differ from its default."""


def _drawn(values: dict[str, tuple[float, ...]], rng: np.random.Generator) -> dict[str, float]:
    return {name: float(rng.choice(of)) for name, of in values.items() if rng.random() < _CHANCE}


def _whole(values: dict[str, float], defaults: Interruptions) -> Interruptions:
    """Return interruptions in which counts are whole numbers."""
    is_count = {name: name == "restart_at" or isinstance(getattr(defaults, name), int) for name in values}
    figures = {name: int(value) if is_count[name] else value for name, value in values.items()}
    return replace(defaults, **figures)  # type: ignore[arg-type]


def draw(seed: int, *, has_fault: bool) -> Scenario:
    """Return the job of a seed; the healthy one and that with a fault are the same otherwise."""
    rng = np.random.default_rng((seed, 18))
    noise = Noise(**_drawn(_NOISE, rng))  # type: ignore[arg-type]
    imbalance = Imbalance(**_drawn(_IMBALANCE, rng))  # type: ignore[arg-type]
    flagged, scales = bool(rng.random() < 0.5), bool(rng.random() < 0.5)
    interruptions = _whole(_drawn(_INTERRUPTIONS, rng), Interruptions(flagged=flagged, warm_up_scales=scales))
    job = Scenario(
        name=f"combination {seed}",
        degrees=str(rng.choice(LAYOUTS)),
        seed=int(rng.integers(1 << 31)),
        steps=STEPS,
        compute=float(rng.choice((0.1, 0.4, 2.0))),
        has_phases=bool(rng.random() < 0.5),
        noise=noise,
        imbalance=imbalance,
        interruptions=interruptions,
    )
    if not has_fault:
        return job
    fault = Fault(
        cause=str(rng.choice(("compute", "data", "host"))),
        ranks=(int(rng.integers(job.ranks)),),
        ratio=float(rng.choice((0.06, 0.10, 0.20, 0.50))),
        begin=int(rng.integers(120, 250)),
    )
    return replace(job, faults=(fault,))


def measure(scenario: Scenario) -> Score:
    """Generate one job, replay its step log, and score what was named."""
    recording = generate(scenario)
    return score(
        scenario, recording.topology, named_by(backtest(recording.log(), recording.topology, Policy()), scenario)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print every wrong or missing thing, then the sums of healthy jobs and of those with a fault."""
    parser = argparse.ArgumentParser(description="Wrong names in combinations of scenarios' features.")
    parser.add_argument("--runs", type=int, default=100, help="healthy jobs, and as many with a fault")
    parser.add_argument("--first-seed", type=int, default=0)
    parsed = parser.parse_args(arguments)
    for has_fault in (False, True):
        _print_jobs(range(parsed.first_seed, parsed.first_seed + parsed.runs), has_fault=has_fault)


def _print_jobs(seeds: range, *, has_fault: bool) -> None:
    total = Score()
    for seed in seeds:
        scenario = draw(seed, has_fault=has_fault)
        result = measure(scenario)
        total.add(result)
        for note in result.notes:
            print(f"seed {seed}, {scenario.degrees}: {note}", flush=True)
    kind = "with a slow rank" if has_fault else "without a fault"
    print(
        f"{len(seeds)} jobs {kind}: {total.alarms_in_health} pages in {total.healthy_rows:,} steps without a fault, "
        f"{total.wrong_ranks} wrong ranks and {total.wrong - total.wrong_ranks} other wrong things in all"
    )
    if total.latency_rows:
        p50, p95 = np.percentile(total.latency_rows, (50, 95))
        print(f"found {total.found} of {total.wanted}, after {p50:.0f} steps at the median and {p95:.0f} at 95 %")


if __name__ == "__main__":
    main()
