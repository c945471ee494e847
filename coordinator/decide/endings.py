"""How a run ended, from how the processes of its ranks ended: cancelled, or crashed, and by which rank.

Pure. Ranks end together in any case: a launcher ends what is left of a job, and peers fail once a rank is gone. So what
counts is which rank ended first, and of what. A signal that asks to end, and a keyboard interrupt, are the wish of a
person or a scheduler; an exception, an exit code and a crash are not. SIGKILL is a wish where it met all ranks at once.
"""

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.contracts.messages import EXCEPTION, EXIT_CODE, SIGNAL, VANISHED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstep.contracts.messages import RankEnding

REQUESTS = frozenset((signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))
"""Signals by which people, shells and schedulers ask a process to end; its default action leaves no exit code."""
INTERRUPTS = frozenset(("KeyboardInterrupt", "SignalException"))
"""Exceptions by which Python, and torchrun's processes, end on such a signal."""
TOGETHER_S = 5.0
"""Processes that one command kills are gone within as much, on all nodes, by their own clocks."""
TEARDOWN_S = 2.0
"""From the end of a process to the moment at which it is seen: the kernel takes the memory back in between, and
collectives of peers fail meanwhile. Launchers that kill what is left of a job give it longer to end by itself."""
FAULTS = frozenset(
    (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS)
)
"""Signals that a process brings on itself, whatever its peers do."""
COLLECTIVE_ERRORS = frozenset(
    (
        *("RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError"),
        *("ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "TimeoutError"),
    )
)
"""Exceptions that collectives raise where a peer is gone, and other things too."""
_SHELL_SIGNAL = 128  # a shell's, and many a trainer's, exit code for a signal
_NS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The rank that ended first and how."""

    rank: int
    ending: "RankEnding"

    @property
    def what(self) -> str:
        """What ended it, in a word: the type of the exception, the name of the signal, "exit 3"."""
        ending = self.ending
        if ending.is_out_of_memory:
            return "out of memory"
        if ending.kind == EXCEPTION:
            return ending.exception or "exception"
        if ending.kind == EXIT_CODE:
            return f"exit {ending.code}"
        return _signal_name(ending.code) if ending.kind == SIGNAL else "process gone"


def crash_of(endings: "Mapping[int, RankEnding]", *, are_all_over: bool) -> Crash | None:
    """Return the rank that ended the run, None if the run was cancelled.

    `endings`, not empty, are those of ranks that did not end well; `are_all_over` unless some rank still runs. Of ranks
    that an exporter saw end at one time, those that were not asked to came first: a launcher asks the others.
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
    """Whether a run that hung was ended from outside: one of its processes was before any other failed.

    Ranks of a hang end one after the other, some once the collective that they wait in has lost a peer. When an
    exception was raised is exact; the exporter sees the end of the peer that was killed before it later.
    """
    outside = [each for each in endings.values() if _is_from_outside(each)]
    own = [each for each in endings.values() if not _is_from_outside(each)]
    if not outside or not own:
        return bool(outside)
    first = min(own, key=lambda each: each.unix_ns)
    slack_s = TEARDOWN_S if first.kind == EXCEPTION else 0.0
    return (min(map(_earliest_ns, outside)) - first.unix_ns) * _NS <= slack_s


def _is_from_outside(ending: "RankEnding") -> bool:
    """Whether something other than the process itself, and than the kernel for want of memory, has ended it."""
    is_killed = ending.kind == SIGNAL and ending.code == signal.SIGKILL and not ending.is_out_of_memory
    return is_request(ending) or is_killed or ending.kind == VANISHED


def _came_before(ending: "RankEnding", first: "RankEnding") -> bool:
    """Whether a process was gone before a collective of `first` failed, which then followed from it."""
    if ending.kind not in (SIGNAL, EXIT_CODE) or is_request(ending):
        return False
    after_s = (_earliest_ns(ending) - first.unix_ns) * _NS
    is_own = ending.is_out_of_memory or (ending.kind == SIGNAL and ending.code in FAULTS)
    return after_s <= (TOGETHER_S if is_own else TEARDOWN_S)


def _earliest_ns(ending: "RankEnding") -> int:
    """Return when a process may have ended: the exporter of a busy node sees it late."""
    return ending.alive_unix_ns or ending.unix_ns


def _are_killed_together(endings: "Mapping[int, RankEnding]") -> bool:
    """Whether all were ended by one hand: killed by one command, vanished with their container, or with one exit code.

    Frameworks that hold their ranks as servers (Ray) end them so after a training that went well, past Python's exit
    functions. A program that ends itself with such a code has failed, on all ranks for one reason.
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
    except ValueError:  # real-time ones have no name
        return f"signal {number}"
