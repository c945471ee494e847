"""The table of a run's states and transitions; docs/states.md is generated from it.

May live here: names and the table. `state.py` decides when a trigger is applied.
"""

from enum import StrEnum

from lockstep.contracts.errors import LocalError


class State(StrEnum):
    """`metrics.RUN_STATES`."""

    WARMING = "warming"
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    PROFILING = "profiling"
    DIAGNOSED = "diagnosed"
    RECOVERING = "recovering"
    HUNG = "hung"
    LOST = "lost"
    CRASHED = "crashed"
    CANCELLED = "cancelled"
    FINISHED = "finished"


class Trigger(StrEnum):
    """Why a state is left."""

    WARMED = "noise is learnt"
    REMEMBERED = "noise is learnt, an incident is open from before"
    FOUND = "a new incident"
    ASKED = "a capture is requested"
    EXPLAINED = "every open incident is diagnosed"
    MORE = "the capture is over, another incident waits"
    QUIET = "no anomaly is left"
    RELAPSED = "a known incident is back"
    SETTLED = "quiet for long enough"
    BLOCKED = "no step for longer than any pause"
    SILENT = "no step for too long"
    RESUMED = "steps come again"
    RESTARTED = "a new attempt"
    CRASHED = "a rank ended before the others"
    CANCELLED = "all ranks were stopped"
    FINISHED = "every rank ended well"


OVER = frozenset((State.FINISHED, State.CANCELLED, State.CRASHED))
"""States of a run whose processes have ended, or wait in vain for one that has ended."""

LIVE = (State.WARMING, State.HEALTHY, State.SUSPECT, State.PROFILING, State.DIAGNOSED, State.RECOVERING)
"""States of a run that makes steps."""

TRANSITIONS: dict[tuple[State, Trigger], State] = {
    (State.WARMING, Trigger.WARMED): State.HEALTHY,
    (State.WARMING, Trigger.REMEMBERED): State.RECOVERING,
    (State.HEALTHY, Trigger.FOUND): State.SUSPECT,
    (State.SUSPECT, Trigger.ASKED): State.PROFILING,
    (State.SUSPECT, Trigger.EXPLAINED): State.DIAGNOSED,
    (State.SUSPECT, Trigger.QUIET): State.RECOVERING,
    (State.PROFILING, Trigger.EXPLAINED): State.DIAGNOSED,
    (State.PROFILING, Trigger.MORE): State.SUSPECT,
    (State.DIAGNOSED, Trigger.FOUND): State.SUSPECT,
    (State.DIAGNOSED, Trigger.QUIET): State.RECOVERING,
    (State.RECOVERING, Trigger.FOUND): State.SUSPECT,
    (State.RECOVERING, Trigger.RELAPSED): State.DIAGNOSED,
    (State.RECOVERING, Trigger.SETTLED): State.HEALTHY,
    (State.HUNG, Trigger.RESUMED): State.RECOVERING,
    (State.LOST, Trigger.RESUMED): State.RECOVERING,
    **{(state, Trigger.BLOCKED): State.HUNG for state in (*LIVE, State.LOST)},
    **{(state, Trigger.SILENT): State.LOST for state in (*LIVE, State.HUNG)},
    **{(state, Trigger.CRASHED): State.CRASHED for state in (*LIVE, State.HUNG, State.LOST)},
    **{(state, Trigger.CANCELLED): State.CANCELLED for state in (*LIVE, State.HUNG, State.LOST)},
    **{(state, Trigger.FINISHED): State.FINISHED for state in (*LIVE, State.HUNG, State.LOST)},
    **{(state, Trigger.RESTARTED): State.WARMING for state in State},
}


class TransitionError(LocalError):
    """Our bug: a state has no transition for a trigger. Carries run, state and trigger; nothing was changed."""

    def __init__(self, run: str, state: State, trigger: Trigger) -> None:
        super().__init__(f"state of run {run}: got {trigger.name} in {state.name}, expected one of {_triggers(state)}")
        self.run = run
        self.state = state
        self.trigger = trigger


def _triggers(state: State) -> list[str]:
    return [trigger.name for known, trigger in TRANSITIONS if known == state]
