"""What can go wrong between ranks of one node, each error naming the ranks it is about."""

from collections.abc import Iterable

from lockstep.contracts.errors import LocalError, PeerError


class PeerLostError(PeerError):
    """Ranks ended, or left the group, before they did their part of an exchange.

    `lost` are the ranks to look at: those that ended without a word, and those that a rank which left because of others
    named. `silent` are ranks still there that had not come either when the loss was seen.
    """

    def __init__(self, lost: Iterable[int], *, silent: Iterable[int], where: str) -> None:
        self.lost = tuple(sorted(lost))
        self.silent = tuple(sorted(silent))
        super().__init__(
            f"ranks in {where}: got an end because of {_named(self.lost)}, nothing yet from {_named(self.silent)}, "
            "expected every rank to take part"
        )


class PeerSilentError(PeerError):
    """Ranks did not come within the time given; they may be late, stopped, or never have been started."""

    def __init__(self, silent: Iterable[int], *, where: str, timeout_s: float) -> None:
        self.silent = tuple(sorted(silent))
        self.timeout_s = timeout_s
        super().__init__(
            f"ranks in {where}: got nothing from {_named(self.silent)} in {timeout_s:g} s, "
            "expected every rank to take part"
        )


class MismatchError(LocalError):
    """Ranks of one group call different things at the same time."""


class GroupClosedError(LocalError):
    """The group was closed, or an earlier exchange failed and closed it."""


def _named(ranks: tuple[int, ...]) -> str:
    return ", ".join(f"rank {rank}" for rank in ranks) or "no rank"
