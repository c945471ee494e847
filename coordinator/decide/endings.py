"""Classifies the end of a run from the endings of its ranks' processes: cancelled or crashed, and by which rank.

Pure. Ranks end together in any case: a launcher ends the rest of a job, and peers fail once a rank is gone. So the rank
that ended first decides, and the way in which it ended. A termination signal or a keyboard interrupt is a request of a
person or a scheduler; an exception, an exit code or a crash is not. SIGKILL counts as a request if it hit all ranks at
once.
"""

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.contracts.messages import EXCEPTION, EXIT_CODE, SIGNAL, VANISHED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstep.contracts.messages import RankEnding

REQUESTS = frozenset((signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))
"""Signals by which people, shells and schedulers ask a process to end; their default action leaves no exit code."""
INTERRUPTS = frozenset(("KeyboardInterrupt", "SignalException"))
"""Exceptions with which Python and the processes of torchrun end on such a signal."""
TOGETHER_S = 5.0
"""Processes killed by one command are gone within this time on all nodes, by their own clocks."""
TEARDOWN_S = 2.0
"""Time from the end of a process until it is observed. Meanwhile the kernel reclaims its memory, and collectives of
its peers fail. Launchers that kill the rest of a job give it longer to end by itself."""
FAULTS = frozenset(
    (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS)
)
"""Signals that a process causes itself, independent of its peers."""
COLLECTIVE_ERRORS = frozenset(
    (
        *("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError"),
        *("ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "TimeoutError"),
    )
)
"""Exceptions that collectives raise when a peer is gone; other code raises them as well."""
_SHELL_SIGNAL = 128  # shells, and many trainers, exit with this plus the signal's number
_NS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The rank that ended first and how."""

    rank: int
    ending: "RankEnding"

    @property
    def what(self) -> str:
        """What ended it, in short: the exception's type, the signal's name, "exit 3"."""
        ending = self.ending
        if ending.is_out_of_memory:
            return "out of memory"
        if ending.kind == EXCEPTION:
            return ending.exception or "exception"
        if ending.kind == EXIT_CODE:
            return f"exit {ending.code}"
        return _signal_name(ending.code) if ending.kind == SIGNAL else "process gone"


def crash_of(endings: "Mapping[int, RankEnding]", *, are_all_over: bool) -> Crash | None:
    """Return the rank that ended the run; None if the run was cancelled.

    `endings` holds the ranks that did not end well and must not be empty; `are_all_over` is false while any rank still
    runs. Among ranks that an exporter saw end at the same time, those that were not asked to end count as first: a
    launcher asks the others.
    """
    order = sorted(endings, key=lambda rank: (endings[rank].unix_ns, is_request(endings[rank]), rank))
    first = endings[order[0]]
    if are_all_over and (is_request(first) or _are_killed_together(endings)):
        return None
    rank = order[0]
    if first.kind == EXCEPTION and first.exception in COLLECTIVE_ERRORS:
        rank = next((each for each in order if _came_before(endings[each], first)), rank)
    return Crash(rank=rank, ending=endings[rank])


def is_request(ending: "RankEnding") -> bool:
    """Whether a process ended because it was asked to."""
    if ending.kind == EXCEPTION:
        return ending.exception in INTERRUPTS
    if ending.kind == EXIT_CODE:
        return ending.code - _SHELL_SIGNAL in REQUESTS
    return ending.kind == SIGNAL and ending.code in REQUESTS


def is_stopped(endings: "Mapping[int, RankEnding]") -> bool:
    """Whether a run that hung was ended from outside: one of its processes was, before any other failed.

    Ranks of a hang end one after another, some only when the collective they wait in has lost a peer. The time of an
    exception is exact, whereas the exporter observes the end of a peer killed before it only later.
    """
    outside = [each for each in endings.values() if _is_from_outside(each)]
    own = [each for each in endings.values() if not _is_from_outside(each)]
    if not outside or not own:
        return bool(outside)
    first = min(own, key=lambda each: each.unix_ns)
    slack_s = TEARDOWN_S if first.kind == EXCEPTION else 0.0
    return (min(map(_earliest_ns, outside)) - first.unix_ns) * _NS <= slack_s


def _is_from_outside(ending: "RankEnding") -> bool:
    """Whether something other than the process itself or the kernel's out-of-memory killer ended it."""
    is_killed = ending.kind == SIGNAL and ending.code == signal.SIGKILL and not ending.is_out_of_memory
    return is_request(ending) or is_killed or ending.kind == VANISHED


def _came_before(ending: "RankEnding", first: "RankEnding") -> bool:
    """Whether a process was gone before `first` failed in a collective, so that it caused that failure."""
    if ending.kind not in (SIGNAL, EXIT_CODE) or is_request(ending):
        return False
    after_s = (_earliest_ns(ending) - first.unix_ns) * _NS
    is_own = ending.is_out_of_memory or (ending.kind == SIGNAL and ending.code in FAULTS)
    return after_s <= (TOGETHER_S if is_own else TEARDOWN_S)


def _earliest_ns(ending: "RankEnding") -> int:
    """Return the earliest time at which a process may have ended: the exporter of a busy node observes it late."""
    return ending.alive_unix_ns or ending.unix_ns


def _are_killed_together(endings: "Mapping[int, RankEnding]") -> bool:
    """Whether one action ended all: killed by one command, vanished with their container, or the same exit code.

    Frameworks that run their ranks as servers (Ray) end them like that after a successful training, bypassing Python's
    exit functions. A program that ends itself with such a code has failed, on all ranks for the same reason.
    """
    apart_ns = max(map(_earliest_ns, endings.values())) - min(ending.unix_ns for ending in endings.values())
    if apart_ns * _NS > TOGETHER_S or any(e.is_out_of_memory for e in endings.values()):
        return False
    ways = {(ending.kind, ending.code) for ending in endings.values()}
    if ways <= {(SIGNAL, int(signal.SIGKILL)), (VANISHED, 0)}:
        return len(endings) > 1 or (VANISHED, 0) not in ways
    is_own = any(ending.is_orderly for ending in endings.values())
    return len(endings) > 1 and len(ways) == 1 and endings[min(endings)].kind == EXIT_CODE and not is_own


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"
