"""The C++ kernels in front of torch's collectives, and the Python functions that they call (_collectives.cpp).

They call Python at the first collective of an attempt, of a group and of a pair of ranks, and at each collective of
tensors on a device. Everything else happens in C++ without the interpreter lock.
"""

import atexit
import os
from typing import TYPE_CHECKING, Any
from weakref import ref

from lockstep.agent.hooks.device_collectives import complete_on_device, issue_on_device
from lockstep.agent.hooks.patching import Removal
from lockstep.contracts.errors import LocalError
from lockstep.contracts.marks import OPERATOR_INDEX
from lockstep.contracts.ring import OTHER_SLOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lockstep.agent.agent import Agent
    from lockstep.agent.hooks.collective_operators import CollectiveOperator

_NONE = -1


def install(agent: "Agent", module: Any, operators: "Sequence[CollectiveOperator]") -> Removal:
    """Put the kernels of `module` in front of `operators`, and return what takes them off again."""
    answers = _Answers(agent, module)
    described = [
        (
            operator.name,
            OPERATOR_INDEX[operator.name],
            len(operator.arguments),
            operator.group_index,
            *(
                _NONE if index is None else index
                for index in (operator.payload_index, operator.async_index, operator.peer_index)
            ),
            operator.is_pair,
            operator.is_send,
        )
        for operator in operators
    ]
    module.install(answers, described, OTHER_SLOT)
    agent.is_in_flight = module.is_in_flight
    # A forked child is inert in C++ from its first instruction; here it asks again whether it is a rank.
    after_fork = ref(answers)
    os.register_at_fork(after_in_child=lambda: _ask_again(after_fork))
    atexit.register(module.set_mode, False)  # the interpreter can be asked nothing after this

    def remove() -> None:
        atexit.unregister(module.set_mode)
        answers.is_installed = False
        module.uninstall()

    return remove


def _ask_again(answers: "ref[_Answers]") -> None:
    installed = answers()
    if installed is not None and installed.is_installed:
        installed.module.set_mode(True)


class _Answers:
    """The functions that the kernels call, each behind the failure boundary, which returns None after a failure."""

    def __init__(self, agent: "Agent", module: Any) -> None:
        self.module = module
        self.is_installed = True
        self._agent = agent
        self._endings: dict[int, ref[Any]] = {}
        self.wake: Callable[[], None] = agent.guard(self._wake)
        self.meet = agent.guard(self._meet)
        self.meet_peer = agent.guard(agent.groups.pair_slot)
        self.issue_on_device = agent.guard(self._issue_on_device)
        self.complete_on_device = agent.guard(self._complete_on_device)
        self.fail = agent.guard(self._fail)

    def _wake(self) -> None:
        """Set where to leave marks from now on, if anywhere: no attempt is known to the kernels, or it has ended."""
        agent = self._agent
        marks: Any = agent.marks  # of the C extension: native.py loads no kernels without it
        if not marks.thread:
            agent.wake()
        if marks.thread:
            self.module.attach(marks.channel())
        else:
            self.module.set_mode(agent.alive)

    def _meet(self, group: Any, address: int) -> tuple[int, bool]:
        """Return the call site of a group and whether it stays that until the group ends."""
        groups = self._agent.groups
        site, stays = groups.of(group).site, id(group) in groups.known
        if stays:
            self._endings[address] = ref(group, lambda _group: self._forget(address))
        return site, stays

    def _forget(self, address: int) -> None:
        self.module.forget(address)
        self._endings.pop(address, None)

    def _issue_on_device(self, call_site: int, payload_bytes: int) -> int | None:
        return issue_on_device(self._agent, call_site, payload_bytes)

    def _complete_on_device(self, ordinal: int, in_order: bool) -> None:  # noqa: FBT001  (C++ passes no names)
        complete_on_device(self._agent, ordinal, in_order=in_order)

    def _fail(self, message: str) -> None:
        raise LocalError(f"C++ kernels: {message}")
