"""Every field of a specification: its values, meaning and default.

This table is the only definition of the fields; those of its sections are in `model_fields`, `strategy_fields` and
`machine`. The checker (`check`), the JSON schema and the table in docs/simulator.md (`schema`) are derived from it.
"""

from lockstep.simulator.spec.field import NOTHING, VARIANTS, Field, count, optional, section, text
from lockstep.simulator.spec.machine import CALIBRATION, CLUSTER
from lockstep.simulator.spec.model_fields import MODELS
from lockstep.simulator.spec.strategy_fields import STRATEGY

SPECIFICATION = section(
    "a job and the machine on which it runs",
    {
        "name": text("name of the job, for display; the name of the file if empty", ""),
        "model": Field(kind=VARIANTS, help="the model", variants=MODELS),
        "batch": count("samples of a step, over all ranks", 100_000_000),
        "strategy": section("how the model is distributed over the ranks", STRATEGY, NOTHING),
        "cluster": section("the machine", CLUSTER),
        "calibration": optional(section("parameters of the machine fitted to measured steps", CALIBRATION)),
    },
)
"""The whole file."""
