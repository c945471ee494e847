"""Expected ranges of behaviour as data: R_f of PerfTracker's equation 6, by class of function."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf

from lockstep.trace.patterns import FunctionClass

_PAPER = "PerfTracker, section 4.3, below equation 6: production experience"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedRange:
    """What a healthy job's pattern lies in: (least, most) of beta, mu and sigma; `source` is whose figures.

    The paper prints [0, 1] for mu and sigma of every class, which by its definition of usage holds always. Here a boost
    clock may read more than its nominal peak, and that is no fault.
    """

    beta: tuple[float, float]
    mu: tuple[float, float] = (0.0, inf)
    sigma: tuple[float, float] = (0.0, inf)
    source: str

    @property
    def box(self) -> tuple[tuple[float, float], ...]:
        """The range of each dimension, in the order of the columns of a `PatternMatrix`."""
        return self.beta, self.mu, self.sigma


EXPECTED = {
    FunctionClass.HOST: ExpectedRange(beta=(0.0, 0.01), source=_PAPER),
    FunctionClass.COLLECTIVE: ExpectedRange(beta=(0.0, 0.3), source=_PAPER),
    FunctionClass.COMPUTE: ExpectedRange(beta=(0.0, 1.0), source=_PAPER),
    FunctionClass.MEMORY: ExpectedRange(
        beta=(0.0, 1.0),
        source="PerfTracker gives none; how much is copied is the model's, so copies are only compared with peers'",
    ),
}

EXPECTED_WITHOUT_DEVICE = {
    kind: ExpectedRange(
        beta=(0.0, 1.0), source="the paper's are of jobs whose host only feeds a device; here it computes"
    )
    for kind in FunctionClass
}
"""For jobs on CPUs alone: whatever they do is a host function, so only peers show what is usual."""


def expected_of(kinds: Collection[FunctionClass]) -> Mapping[FunctionClass, ExpectedRange]:
    """Return the expected ranges of a job whose functions are of these classes."""
    return EXPECTED if FunctionClass.COMPUTE in kinds else EXPECTED_WITHOUT_DEVICE
