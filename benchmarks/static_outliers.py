"""How often static differences of healthy devices show an outlier, and how often a slow one among them is found.

Draws fleets of devices that differ from the first step on, measures them from their reference as the slow-rank test
does, without noise, and gives them to the outlier test with the default settings. Run with
`python -m benchmarks.static_outliers [--fleets 20000]`; `docs/detection.md` quotes it.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from coordinator.detect.error_budget import ATTEMPT_STEPS, attempt_chance
from coordinator.detect.ranks.groups import Groups
from coordinator.detect.ranks.static_differences import outlier_limit
from coordinator.settings.policy import Policy

RANKS = (4, 8, 16, 32, 128)
SPREADS = (0.0025, 0.014, 0.03)
"""Standard deviations of devices, ratios: a usual fleet, a wide one, and one of ten times the prior."""
SLOW = ((0.0025, 0.03), (0.0025, 0.04), (0.0025, 0.05), (0.014, 0.10), (0.014, 0.15), (0.014, 0.20))
"""Spreads, and by how much one device is slow from the first step on, ratio."""


def named_share(ranks: int, spread: float, fleets: int, *, slow_by: float = 0.0) -> float:
    """Return the share of fleets in which the first device, if it is slow, else any is an outlier of reported size."""
    rng, policy = np.random.default_rng(ranks), Policy()
    rate = attempt_chance("static", policy.budget.false_page_steps, ATTEMPT_STEPS)
    stage, named = Groups([0] * ranks), 0
    for values in rng.normal(0.0, spread, (fleets, ranks)):
        values[0] += slow_by
        level = values - stage.reference(values)
        limit = outlier_limit(level, 1, prior_sigma=policy.excess.static_sigma, false_rate=rate)
        named += bool((level[:1] if slow_by else level).max() > max(limit, policy.excess.floor_ratio))
    return named / fleets


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the chance of a false outlier by ranks and spread, then the recall of one slow device."""
    parser = argparse.ArgumentParser(description="False outliers among static differences, and recall.")
    parser.add_argument("--fleets", type=int, default=20_000)
    fleets = parser.parse_args(arguments).fleets
    print("false outliers of healthy fleets, %; columns: standard deviation of the devices")
    print("ranks  " + "".join(f"{f'{spread:.2%}':>9}" for spread in SPREADS))
    for ranks in RANKS:
        print(f"{ranks:>5}  " + "".join(f"{named_share(ranks, spread, fleets):>9.3%}" for spread in SPREADS))
    print("one device slow from the first step on, found, %; columns: standard deviation, and slow by")
    print("ranks  " + "".join(f"{f'{spread:.2%} {ratio:+.0%}':>13}" for spread, ratio in SLOW))
    for ranks in RANKS:
        found = (named_share(ranks, spread, fleets // 20, slow_by=ratio) for spread, ratio in SLOW)
        print(f"{ranks:>5}  " + "".join(f"{share:>13.1%}" for share in found), flush=True)


if __name__ == "__main__":
    main()
