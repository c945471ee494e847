"""Limits of the roofline rules as data."""

from lockstep.diagnosis.threshold import Threshold

UTILISATION = Threshold(
    0.8,
    "ratio",
    "msprof-analyze operator_bound_ratio; the paper's case of the cube lies in (0.7156, 0.9354] (ASPLOS 2025, section "
    "5.2); Hermes, appendix B, calls it practical experience",
)
"""U_th of the classic roofline, and of the component roofline for operators that use the cube."""

VECTOR_UTILISATION = Threshold(
    0.65,
    "ratio",
    "ASPLOS 2025, section 5: 0.6624 passes the bound threshold for vector operations (Add_ReLU), 0.5907 is far from it "
    "(AvgPool); msprof-analyze has 0.7 for vector operators",
)
"""U_th of the component roofline for operators without the cube."""

TIME_RATIO = Threshold(
    0.8,
    "ratio",
    "ASPLOS 2025, section 5: 0.7769 is insufficient parallelism (Depthwise), 0.8398 high (AvgPool); msprof-analyze 0.8",
)
"""R_th: a component that is active for this share of an operator's time is not held up by the others."""

OPERATOR_SHARE = Threshold(0.01, "ratio", "msprof-analyze considers operators above 1 % of the step")
"""Share of the device's compute time below which an operator is not worth a finding."""

DEVICE_BOUND = Threshold(
    0.5,
    "ratio of the window",
    "own: below this share, not the device but the host or the network determines the step",
)

WORTH_FIXING = Threshold(
    0.05,
    "ratio of the window",
    "PerfTracker, section 4.1: 5 % is a fluctuation; applies to the sum of all operators with a cause",
)

ADVISED = Threshold(0.1, "ratio of the loss", "own: advice for operators that lose less would hardly shorten the step")

FINDINGS = Threshold(10, "count", "ASPLOS 2025, section 6.2, and msprof-analyze: the ten longest operators")

TASK_NS = Threshold(
    20_000, "ns", "msprof-analyze: tasks above 20 us, for AI CPU operators and operators without a bound"
)

FREQUENCY_DROP = Threshold(0.05, "ratio", "Hermes, section 4.2.2 (often 5 %); msprof-analyze: mean drop of 5 %")

IDLE_MHZ = Threshold(800, "MHz", "msprof-analyze freq_analysis: an idle core is clocked down to 800")

INNER_AXIS = Threshold(
    256, "count", "msprof-analyze aicore_performance: inner axes of matrix products in multiples of 256"
)

ATTENTION_AXIS = Threshold(128, "count", "msprof-analyze aicore_performance: head and sequence in multiples of 128")

PLAUSIBLE = Threshold(
    1.05,
    "ratio",
    "own: data that exceeds a data sheet's peak by more was in a cache, or was counted wrongly, or the trace was cut "
    "off",
)
