"""Detects processes that a rank started: they inherit its variables but are not that rank.

A rank stores its pid and world size in its environment when it begins to record. Its descendants (loader and compile
workers, a separate evaluation process) do not record, with one exception: a process that trained alone may later start
the ranks of a job (`torch.multiprocessing.spawn` after a trial backward), whose world is larger than its own. A process
that does not record but trains, as shown by an optimizer step, reports that it is not monitored.
"""

import os
from collections.abc import Callable, Mapping, MutableMapping

OWNER_VARIABLE = "LOCKSTEP_AGENT_PID"
"""`PID/WORLD_SIZE` of the rank, this process or an ancestor of it."""


def note_rank(environ: MutableMapping[str, str], world_size: int) -> None:
    """Store that this process is a rank of a job of `world_size`."""
    environ[OWNER_VARIABLE] = f"{os.getpid()}/{world_size}"


def may_be_rank(environ: Mapping[str, str], world_size: int | None) -> bool:
    """Whether this process, in a process group of `world_size` (None: in none), may be a rank.

    Not if a rank started it, unless its world is larger than that one's.
    """
    pid, _, size = environ.get(OWNER_VARIABLE, "").partition("/")
    if pid in ("", str(os.getpid())):
        return True
    return size.isdecimal() and world_size is not None and world_size > int(size)


def report_training(environ: Mapping[str, str]) -> None:
    """Report, once, that this process trains and stays out because a rank started it."""
    from lockstep.agent import unwatched  # noqa: PLC0415  (helpers of a rank seldom train)

    pid = environ.get(OWNER_VARIABLE, "").partition("/")[0]
    unwatched.report_once("identity", f"a rank started it, process {pid}", environ)


def watch_for_training(environ: Mapping[str, str], guarded: Callable[[Callable[[], None]], object]) -> None:
    """Have the first step of an optimizer report, in a process that imports torch and gets no hooks of the agent.

    `guarded` calls a function and raises nothing of ours.
    """
    from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: PLC0415  (the process imported torch)

    reported: set[int] = set()  # a forked child is another process

    def report(_optimizer: object, _args: object, _kwargs: object) -> None:
        pid = os.getpid()
        if pid not in reported:
            reported.add(pid)
            guarded(lambda: report_training(environ))

    register_optimizer_step_pre_hook(report)  # for good: a hook cannot be removed where hooks are being called


def may_become_rank(environ: Mapping[str, str]) -> bool:
    """Whether this process may turn out to be a rank: not if a rank of several started it."""
    pid, _, size = environ.get(OWNER_VARIABLE, "").partition("/")
    return pid in ("", str(os.getpid())) or size == "1"
