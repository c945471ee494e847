"""The limits of both rules, each with its source."""

from lockstep.diagnosis.threshold import Threshold

_EQUATION_11 = "PerfTracker, equation 11"
_MEASURED = "reference/detection.md, section 7, and benchmarks/localisation_accuracy.py"

MATTERING_BETA = Threshold(0.01, "ratio of the window", _EQUATION_11)

PRINTED_DISTANCE = Threshold(0.4, "ratio, sum over normalised dimensions", "PerfTracker, equation 10")
PRINTED_PEERS = Threshold(100, "count", "PerfTracker, equation 9")
PRINTED_SPREADS = Threshold(5, "MAD", _EQUATION_11)

REFERENCE_SHARE = Threshold(
    0.3, "ratio of the role's workers", f"{_MEASURED}: slow is one-sided, up to 70 % may be slow"
)
LEAST_LENGTH = Threshold(
    5.8,
    "robust deviations",
    "1 pattern in 4.6 million healthy ones of spreads 3 to 15 %; 5.5: 8; 6.5 finds 61 % of a "
    "device that is 15 % slower, 5.8 finds 83 %",
)
LENGTH_OVER_EXTREME = Threshold(
    1.2,
    "robust deviations",
    "above sqrt(2 ln n), the extreme of n Gaussian values: for three dimensions and a reference below the middle; a "
    "million workers then give as few false ones as a thousand",
)
OUTLIER_LENGTH = Threshold(6.5, "robust deviations", f"{_MEASURED}: few members, so their spread is a guess")
SPREAD_FLOOR_RATIO = Threshold(0.01, "ratio of the value", f"{_MEASURED}: a spread of 0 makes noise of everything")
SPREAD_FLOOR = Threshold(0.005, "ratio", _MEASURED)
EFFECT_RATIO = Threshold(0.05, "ratio of the value", "below 5 % of a function no one acts; detection's floor")
EFFECT_BETA = Threshold(0.005, "ratio of the window", _MEASURED)
EFFECT_USE = Threshold(0.03, "ratio of the peak", _MEASURED)

FEW_WORKERS = Threshold(16, "count", "below it the spread of the reference is a guess from fewer than 5 workers")
FEW_SPREAD_FLOOR_RATIO = Threshold(
    0.03, "ratio of the value", "with few workers: healthy ones of the recorded 4-rank jobs differ by so much"
)
ROLE_SHARE = Threshold(
    0.01, "ratio of all workers", "a pipeline stage of the deepest published jobs (64); fewer run a kernel by accident"
)

GROUP_SHARE = Threshold(0.5, "ratio of a group's workers", "who waits for a slow member is slow too: most of its group")
GROUP_MEMBERS = Threshold(3, "count", "of two none is the outlier")
