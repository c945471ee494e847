"""The instructions that one event gives rise to, in order. Pure: part of the run's state machine."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.decide.events import Instruction


class Outbox:
    """`cause_id` is the event's; every instruction carries it on."""

    def __init__(self) -> None:
        self.cause_id = ""
        self.instructions: list[Instruction] = []

    def begin(self, cause_id: str) -> None:
        """Begin with the next event."""
        self.cause_id, self.instructions = cause_id, []

    def add(self, form: "type[Instruction]", **values: Any) -> None:
        """Add an instruction of this form."""
        self.instructions.append(form(cause_id=self.cause_id, **values))
