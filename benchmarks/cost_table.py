"""A table of costs, hot and cold: the former agent's, this one's as measured and scaled, and the budgets."""

from dataclasses import dataclass

_WIDTHS = (68, 12, 12, 10, 10, 9, 9, 13, 13)
_HEADINGS = (
    "us of the training thread",
    "former hot",
    "former cold",
    "raw hot",
    "raw cold",
    "hot",
    "cold",
    "budget hot",
    "budget cold",
)


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of the training thread with warm and with cold caches, ns; None where it was not measured."""

    hot_ns: float
    cold_ns: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A scaled cost, next to the former agent's, as text (us), and to `raw`, the same as measured here.

    The budget is the scaled cost's; without one it is only shown.
    """

    what: str
    cost: Cost
    budget: Cost | None = None
    former: tuple[str, str] = ("", "")
    raw: Cost | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the cost is within its budget, None without one."""
        if self.budget is None:
            return None
        pairs = (self.cost.hot_ns, self.budget.hot_ns), (self.cost.cold_ns, self.budget.cold_ns)
        return all(cost <= budget for cost, budget in pairs if cost is not None and budget is not None)

    def text(self) -> str:
        """Return the line."""
        budget = ("", "") if self.budget is None else (_us(self.budget.hot_ns), _us(self.budget.cold_ns))
        raw = ("", "") if self.raw is None else (_us(self.raw.hot_ns), _us(self.raw.cold_ns))
        cells = (self.what, *self.former, *raw, _us(self.cost.hot_ns), _us(self.cost.cold_ns), *budget)
        return f"{_line(cells)}  {self._verdict()}".rstrip()

    def _verdict(self) -> str:
        if self.budget is None or self.is_met:
            return "" if self.budget is None else "met"
        missed_hot = self.budget.hot_ns is not None and self.cost.hot_ns > self.budget.hot_ns
        return "MISSED hot" if missed_hot else "MISSED cold"


def table(rows: list[Row]) -> str:
    """Return the rows under their headings."""
    return "\n".join([_line(_HEADINGS), *(row.text() for row in rows)])


def _us(cost_ns: float | None) -> str:
    return "" if cost_ns is None else f"{cost_ns / 1000:,.1f}"


def _line(cells: tuple[str, ...]) -> str:
    first, *others = zip(cells, _WIDTHS, strict=True)
    return "".join([f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in others)])
