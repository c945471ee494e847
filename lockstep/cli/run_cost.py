"""The cost of a run: device hours of its tokens, and money at a given price."""

import argparse
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from lockstep.contracts.errors import ConfigError

if TYPE_CHECKING:
    from lockstep.simulator.forecast import Forecast

_BILLION = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """`tokens` of a run, a billion unless given, and the `price` of a device hour, None if not given."""

    tokens: float = _BILLION
    price: float | None = None

    def device_hours(self, found: "Forecast") -> float:
        """Return the device hours of the run's tokens."""
        return found.device_hours_per_billion_tokens * self.tokens / _BILLION

    def money(self, found: "Forecast") -> float | None:
        """Return the price of the run's device hours, in the currency of the price."""
        return None if self.price is None else self.price * self.device_hours(found)

    def text(self, found: "Forecast") -> str:
        """Return device hours, and money if there is a price."""
        money = self.money(found)
        return f"{self.device_hours(found):,.4g} h" + ("" if money is None else f" ({money:,.2f})")

    @property
    def title(self) -> str:
        """Return what the numbers refer to."""
        tokens = "a billion tokens" if self.tokens == _BILLION else f"{self.tokens:.4g} tokens"
        priced = "" if self.price is None else f", and their price at {self.price:g} an hour"
        return f"device hours of {tokens}{priced}"

    def as_dict(self, found: "Forecast") -> dict[str, Any]:
        """Return the cost as JSON values."""
        return {"tokens": self.tokens, "device_hours": self.device_hours(found), "price": self.money(found)}


def add_cost_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `cost_of` reads."""
    parser.add_argument(
        "--tokens", type=float, default=_BILLION, metavar="N", help="tokens of the whole run, e.g. 15e12, for its cost"
    )
    parser.add_argument("--price", type=float, metavar="P", help="price of a device hour, in any currency")


def cost_of(arguments: argparse.Namespace) -> RunCost:
    """Return the cost that the options describe.

    Raises
    ------
    ConfigError
        A number is not above 0.
    """
    for name in ("tokens", "price"):
        value = getattr(arguments, name)
        if value is not None and not (isfinite(value) and value > 0):
            raise ConfigError(f"--{name}: got {value}, expected a number above 0")
    return RunCost(tokens=arguments.tokens, price=arguments.price)
