"""Model FLOPs of a step, from the FLOPs per token, sample or step that the process reports."""

import math
from collections.abc import Mapping
from typing import ClassVar

from lockstep.accounting.state import ANY_INTEGER, IntegerForm, StateForm
from lockstep.contracts.marks import FLOPS_UNITS, flops_argument, flops_of_argument
from lockstep.contracts.records import MISSING

_TOKEN, _SAMPLE, _STEP, _UNKNOWN = range(len(FLOPS_UNITS))
_FLOPS_MAX = 1 << 62
"""Limit: more than an hour of the fastest device; a record holds 64 bits."""


class ModelFlops:
    """Model FLOPs of one rank's steps; unknown until they are reported."""

    STATE: ClassVar[Mapping[str, StateForm]] = {"_unit": IntegerForm(0, _UNKNOWN), "_argument": ANY_INTEGER}

    def __init__(self) -> None:
        self._unit = _UNKNOWN
        self._argument = flops_argument(0.0)

    def set(self, unit: int, argument: int) -> bool:
        """Apply a MODEL_FLOPS mark; return False if it is malformed."""
        if unit > _UNKNOWN or not 0 <= flops_of_argument(argument) < math.inf:
            return False
        self._unit, self._argument = unit, argument
        return True

    def of_step(self, samples: int, tokens: int) -> int:
        """Return the model FLOPs of a step; MISSING if unknown."""
        count = {_TOKEN: tokens, _SAMPLE: samples, _STEP: 1}.get(self._unit, MISSING)
        factor = flops_of_argument(self._argument)
        if count == MISSING or not 0 <= factor < math.inf:  # a restored state may hold any bits
            return MISSING
        flops = factor * count
        return int(flops) if flops < _FLOPS_MAX else MISSING
