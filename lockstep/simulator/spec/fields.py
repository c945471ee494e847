"""Every field of a specification: what it may hold, what it means, and its default.

This table is the only place that knows the fields; those of its sections are in `model_fields`, `strategy_fields` and
`machine`. The checker (`check`), the JSON schema and the table in docs/simulator.md (`schema`) are made from it.
"""

from types import MappingProxyType

from lockstep.simulator.spec.field import SECTION, TEXT, VARIANTS, Field, count
from lockstep.simulator.spec.machine import CALIBRATION, CLUSTER
from lockstep.simulator.spec.model_fields import MODELS
from lockstep.simulator.spec.strategy_fields import STRATEGY

SPECIFICATION = Field(
    kind=SECTION,
    help="what a job is and runs on",
    fields={
        "name": Field(kind=TEXT, help="name of the job, for people; the file's if empty", default=""),
        "model": Field(kind=VARIANTS, help="the model", variants=MODELS),
        "batch": count("samples of a step, over all ranks", 100_000_000),
        "strategy": Field(
            kind=SECTION, help="how the model is spread over the ranks", fields=STRATEGY, default=MappingProxyType({})
        ),
        "cluster": Field(kind=SECTION, help="the machine", fields=CLUSTER),
        "calibration": Field(
            kind=SECTION,
            help="what measured steps have taught about the machine",
            fields=CALIBRATION,
            nullable=True,
            default=None,
        ),
    },
)
"""The whole file."""
