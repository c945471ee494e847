"""False alarms over hundreds of thousands of healthy steps: `python -m benchmarks.marathon [--minutes 15]`.

Runs the healthy scenarios one after the other, each with a seed of its own, at 8 to 10,240 ranks, until `--steps` are
evaluated; an hour or more on one core. The state is written after every run, so that an interrupted marathon goes on
where it stopped. It belongs to one state of the detector and the scenarios: where their source has changed, it begins
again, with the seeds after those that were used, because a change may have been made for their pages.
`--minutes` stops it after so much processor time. At the end `docs/accuracy.md` gets the figures, with the date and the
95 % bound of the rate (Poisson; with no alarm the rule of three). Scenarios without the column that explains them are
left out, as in `make accuracy`.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.accuracy import Task, measure
from benchmarks.scenarios.catalogue import DEGRADED, HEALTHY
from benchmarks.scenarios.report import BEGIN, END, with_marathon
from benchmarks.scenarios.sources import digest_of_sources
from benchmarks.scenarios.table import rate_bound

_ROOT = Path(__file__).parents[1]
STATE = _ROOT / "benchmarks" / "scenarios" / "marathon.json"
PAGE = _ROOT / "docs" / "accuracy.md"
_SIZES = ((8, 25), (128, 20), (1024, 4), (10_240, 1))
"""Numbers of ranks, and how many of fifty runs have so many: pages come from few ranks with few peers rather than from
many, and a run of 10,240 ranks takes as long as a hundred of 8."""
FIRST_SEED = 3_000_000  # apart from those that anything was tuned on


@dataclass(kw_only=True)
class MarathonState:
    """What was evaluated so far, by number of ranks; `pages_of` names each page by scenario, ranks and seed."""

    sources: str
    next_run: int = 0
    updated: str = ""
    steps: dict[str, int] = field(default_factory=dict)
    pages: dict[str, int] = field(default_factory=dict)
    pages_of: list[str] = field(default_factory=list)

    @property
    def total_steps(self) -> int:
        """Steps evaluated at all sizes."""
        return sum(self.steps.values())

    @property
    def total_pages(self) -> int:
        """Pages at all sizes."""
        return sum(self.pages.values())


def load(path: Path, sources: str) -> MarathonState:
    """Return the state of a marathon of these sources; a new one where there is none or one of others.

    Raises
    ------
    SystemExit
        The file is no state of a marathon.
    """
    if not path.exists():
        return MarathonState(sources=sources)
    try:
        state = MarathonState(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise SystemExit(f"{path}: got {error}, expected the state of a marathon; delete it to begin again") from None
    if state.sources != sources:
        print(f"{path.name} is of other sources ({state.sources}, now {sources}): the marathon begins again")
        return MarathonState(sources=sources, next_run=state.next_run)
    return state


def task_of(run: int) -> Task:
    """Return the scenario, ranks and seed of a run: sizes take turns, so that every scenario comes to each of them."""
    names = [name for name in HEALTHY if name not in DEGRADED]
    sizes = _order_of_sizes()
    lap, at = divmod(run, len(names))
    return names[at], sizes[(lap + at) % len(sizes)], FIRST_SEED + run, False


def _order_of_sizes() -> list[int]:
    """Return fifty sizes, each as evenly spread as its share allows."""
    places = sorted(((place + 0.5) / count, size) for size, count in _SIZES for place in range(count))
    return [size for _, size in places]


def run_marathon(state: MarathonState, path: Path, *, steps: int, minutes: float) -> None:
    """Run healthy jobs until so many steps are evaluated, or so much processor time has passed; print every page."""
    begin = time.process_time()
    while state.total_steps < steps and time.process_time() - begin < 60 * minutes:
        task = task_of(state.next_run)
        name, ranks, seed, _ = task
        _, scores, named = measure(task)
        size, result = str(ranks), scores[0][1]
        state.steps[size] = state.steps.get(size, 0) + result.healthy_rows
        state.pages[size] = state.pages.get(size, 0) + result.alarms_in_health
        for each in named:
            state.pages_of.append(f"{name}, {ranks} ranks, seed {seed}: {each.thing} at row {each.row}, {each.cause}")
            print(f"  {state.pages_of[-1]}", flush=True)
        state.next_run += 1
        state.updated = datetime.now(UTC).date().isoformat()
        written = path.with_suffix(".tmp")
        written.write_text(json.dumps(asdict(state), indent=1) + "\n", encoding="utf-8")
        written.replace(path)


def bound_text(pages: int, steps: int) -> str:
    """Return what a count shows: the 95 % upper bound of pages in 500,000 steps."""
    return f"at most {rate_bound(pages, steps) * 500_000:,.2f} in 500,000"


def section(state: MarathonState) -> str:
    """Return the figures as the page shows them."""
    bound = bound_text(state.total_pages, state.total_steps)
    figures = f"{state.total_pages} pages in {state.total_steps:,} healthy steps, {bound} with a confidence of 95 %."
    lines = [BEGIN, "## Marathon", "", f"`make marathon`, {state.updated}, sources {state.sources}: {figures}", ""]
    lines += ["| ranks | healthy steps | pages | 95 % bound |", "|---:|---:|---:|---|"]
    for size in sorted(state.steps, key=int):
        steps, pages = state.steps[size], state.pages[size]
        lines.append(f"| {int(size):,} | {steps:,} | {pages} | {bound_text(pages, steps)} |")
    return "\n".join([*lines, "", *(f"- {each}" for each in state.pages_of), *[""] * bool(state.pages_of), END])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run on and write the page; return 1 where pages are more than one in 500,000 steps."""
    parser = argparse.ArgumentParser(description="False alarms over many healthy steps.")
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="of processor time (default: no end)")
    parser.add_argument("--state", type=Path, default=STATE, metavar="FILE")
    parser.add_argument("--write", type=Path, default=PAGE, metavar="FILE", help="page that gets the figures")
    parsed = parser.parse_args(arguments)
    state = load(parsed.state, digest_of_sources())
    run_marathon(state, parsed.state, steps=parsed.steps, minutes=parsed.minutes)
    if state.total_steps:
        page = parsed.write.read_text(encoding="utf-8") if parsed.write.exists() else ""
        parsed.write.write_text(with_marathon(page, section(state)), encoding="utf-8")
        print(f"{state.total_pages} pages in {state.total_steps:,} healthy steps: ", end="")
        print(bound_text(state.total_pages, state.total_steps))
    return int(state.total_pages * 500_000 > max(state.total_steps, 500_000))


if __name__ == "__main__":
    sys.exit(main())
