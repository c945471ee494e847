"""Collects the instructions that result from one event, in order. Pure: part of the run's state machine."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.decide.events import Instruction


class Outbox:
    """Instructions of one event. `cause_id` is that of the event; every instruction inherits it."""

    def __init__(self) -> None:
        self.cause_id = ""
        self.instructions: list[Instruction] = []

    def begin(self, cause_id: str) -> None:
        """Start over for the next event."""
        self.cause_id, self.instructions = cause_id, []

    def add(self, instruction_type: "type[Instruction]", **values: Any) -> None:
        """Add an instruction of this type with these fields."""
        self.instructions.append(instruction_type(cause_id=self.cause_id, **values))
