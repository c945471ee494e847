"""Settings of the agent in LOCKSTEP_* environment variables, read once; invalid ones are reported by name.

LOCKSTEP_TOKENS, LOCKSTEP_SAMPLES   auto, off, a whole number per step, or where in the batch: `1.input_ids`
LOCKSTEP_MODEL_FLOPS                auto (6 x parameters x tokens), measure, off, or FLOPs per token
LOCKSTEP_PARAMETERS                 parameters that work on a token, on this rank
LOCKSTEP_PEAK_FLOPS                 dense peak FLOP/s of the device
LOCKSTEP_DTYPE                      number format of the matrix products: fp32, tf32, fp16, bf16, fp8
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from lockstep.agent.boundary import warn
from lockstep.contracts.errors import ConfigError

AUTO, OFF, MEASURE = "auto", "off", "measure"
_COUNT_MAX = 1 << 40  # of one step; a record holds 64 bits, FLOPs included
_NUMBER_MAX = 1e21

_PATH = re.compile(r"\w+(\.\w+)*\Z")


class Quantity(NamedTuple):
    """Where tokens or samples of a step come from: a mode, a number per step, or a path into the batch."""

    mode: str = AUTO
    per_step: int | None = None
    path: tuple[str, ...] = ()


class FlopsRule(NamedTuple):
    """Where the model FLOPs of a step come from: a mode, or a number per token of this rank."""

    mode: str = AUTO
    per_token: float | None = None


class ThroughputOptions(NamedTuple):
    """The agent's settings; None is not set."""

    tokens: Quantity = Quantity()
    samples: Quantity = Quantity()
    model_flops: FlopsRule = FlopsRule()
    parameters: float | None = None
    peak_flops: float | None = None
    dtype: str | None = None


def _quantity(text: str) -> Quantity:
    if text in (AUTO, OFF):
        return Quantity(text)
    if text.isdecimal() and int(text) <= _COUNT_MAX:
        return Quantity("", int(text))
    if _PATH.match(text) and not text.isdecimal():
        return Quantity("", None, tuple(text.split(".")))
    raise ValueError("auto, off, a whole number per step, or a path into the batch like input_ids or 1.labels")


def _flops_rule(text: str) -> FlopsRule:
    if text in (AUTO, MEASURE, OFF):
        return FlopsRule(text)
    return FlopsRule("", _number(text, "auto, measure, off, or FLOPs per token"))


def _number(text: str, expected: str = "a positive number, like 7e9") -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(expected) from None
    if not math.isfinite(value) or not 0 < value <= _NUMBER_MAX:
        raise ValueError(expected)
    return value


def _dtype(text: str) -> str:
    from lockstep.contracts.peaks import DTYPES  # noqa: PLC0415  (only where it is set)

    if text not in DTYPES:
        raise ValueError(f"one of {', '.join(DTYPES)}")
    return text


_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "LOCKSTEP_TOKENS": ("tokens", _quantity),
    "LOCKSTEP_SAMPLES": ("samples", _quantity),
    "LOCKSTEP_MODEL_FLOPS": ("model_flops", _flops_rule),
    "LOCKSTEP_PARAMETERS": ("parameters", _number),
    "LOCKSTEP_PEAK_FLOPS": ("peak_flops", _number),
    "LOCKSTEP_DTYPE": ("dtype", _dtype),
}


def check_option(variable: str, text: str, *, where: str) -> str:
    """Return `text` if the agent would take it as the value of `variable`.

    Raises
    ------
    ConfigError
        It would not; the message names `where`.
    """
    try:
        _READERS[variable][1](text)
    except ValueError as error:
        raise ConfigError(f"{where}: got {text!r:.200}, expected {error}") from None
    return text


def read_options(environ: Mapping[str, str]) -> ThroughputOptions:
    """Return the settings in `environ`; one that cannot be used is named on stderr once and left at its default."""
    return _parse(tuple(environ.get(variable, "") for variable in _READERS))


@lru_cache(maxsize=1)
def _parse(texts: tuple[str, ...]) -> ThroughputOptions:
    values = {}
    for (variable, (name, read)), text in zip(_READERS.items(), texts, strict=True):
        if text:
            try:
                values[name] = read(text)
            except ValueError as error:
                warn(f"{variable}: got {text!r:.200}, expected {error}; the default is taken")
    return ThroughputOptions(**values)
