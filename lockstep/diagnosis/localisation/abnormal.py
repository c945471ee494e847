"""Result of localisation: which function, on which workers, how it differs, and its cost."""

from dataclasses import dataclass
from enum import StrEnum

from lockstep.diagnosis.localisation.matrix import Function, Ranks
from lockstep.diagnosis.localisation.outlier_ranks import OutlierBy


class ReferenceKind(StrEnum):
    """What a value is compared with."""

    EXPECTED = "expected range"
    PEERS = "peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One dimension of some workers' patterns: `value` is their median, `reference` what it should be.

    `dimension` is beta, mu or sigma; `count` the number of workers that differ this way.
    """

    dimension: str
    against: ReferenceKind
    count: int
    value: float
    reference: float

    @property
    def is_high(self) -> bool:
        """Whether the value is above its reference."""
        return self.value > self.reference

    def __str__(self) -> str:
        """Return the difference with its numbers, as evidence."""
        direction = "above" if self.is_high else "below"
        workers = f"{self.count} worker{'s' if self.count > 1 else ''}"
        return f"{self.dimension} {self.value:.3g} {direction} {self.reference:.3g} ({self.against}) on {workers}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AbnormalFunction:
    """A function that behaves abnormally, and where; arrays of ranks are int64, the most lost time first.

    `unexpected` ranks are outside the expected range, `unlike` ones differ from their peers; `ranks` are both together.
    `outliers` are the ranks inside flagged communication groups of the kind `group_kind` that make the others wait, as
    shown by `outlier_by`; empty without such a group. The rank with the shortest collective need not be abnormal
    itself. `lost_s` is the function's cost in the window, on the rank where it is largest, seconds.
    """

    function: Function
    ranks: Ranks
    unexpected: Ranks
    unlike: Ranks
    outliers: Ranks
    outlier_by: OutlierBy
    group_kind: str
    differences: tuple[Difference, ...]
    lost_s: float

    @property
    def suspects(self) -> Ranks:
        """The ranks to inspect: the outliers if there are any, else all abnormal ones."""
        return self.outliers if len(self.outliers) else self.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Localisation:
    """Abnormal functions, the most lost time first.

    `compared` functions of `workers` workers were compared; `left_out` ones were relevant but exceeded the limit. If
    `has_peers` is False there was one worker, or one per role, and only expected ranges were evaluated.
    """

    abnormal: tuple[AbnormalFunction, ...]
    workers: int
    compared: int
    left_out: int
    has_peers: bool
