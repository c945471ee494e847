"""Polls for a rank's capture requests; the code that executes them is loaded when the first one arrives.

Most ranks never get one: until then a rank only has the reader of its control block (control.py) and the pace of its
ends. capture/capture_runner.py has the rest.
"""

from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from lockstep.agent.capture.pace import EndPace, request_number
from lockstep.agent.control import ControlReader
from lockstep.contracts.errors import PeerError
from lockstep.contracts.paths import control_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from lockstep.agent.capture.capture_runner import CaptureRunner
    from lockstep.agent.mark_buffer import MarkBuffer


class RankCapture:
    """The capture requests of one rank. Used by the training thread only; the arguments are those of CaptureRunner.

    It is created before the rank's ring is visible: a request already in the control block was meant for a former
    attempt, and any later one is for this attempt.
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        trusted: frozenset[int],
        marks: "MarkBuffer",
        *,
        is_in_flight: "Callable[[], bool]" = lambda: False,
    ) -> None:
        self._marks = marks
        self._place = (directory, rank)
        self._trusted = trusted
        self._is_in_flight = is_in_flight
        self._control = ControlReader(control_path(directory), trusted)
        self._pace = EndPace(monotonic_ns())
        self._runner: CaptureRunner | None = None
        self._store_answer: Callable[[Any], None] | None = None
        self._stale_request = 0
        """Number of the request given to a former attempt of this rank, 0 without one."""
        self._unusable = ""
        """Why the block is invalid, until there is a ring to answer in."""
        try:
            self._stale_request = request_number(self._control.poll(monotonic_ns()))
        except PeerError as error:
            self._unusable = str(error)

    def begin(self, store_answer: "Callable[[Any], None]") -> None:
        """Answer in the rank's ring from now on."""
        self._store_answer = store_answer
        if self._unusable:
            self._loaded().refuse_block(self._unusable)

    @property
    def running(self) -> bool:
        """Whether the profiler runs."""
        return self._runner is not None and self._runner.running

    def poll(self, now_ns: int) -> None:
        """Poll for a new request, unless one is being executed."""
        marks = self._marks
        self._pace.note(now_ns, (marks.backward_ends, marks.optimizer_ends, marks.step_ends))
        if not self.running:
            value = self._poll(now_ns)
            if value is not None:
                self._loaded().receive(value)

    def at_boundary(self) -> int:
        """Act if the counted end is a step boundary; return the flags of the step that begins."""
        return 0 if self._runner is None else self._runner.at_boundary()

    def abandon(self) -> None:
        """Stop a capture at the end of training."""
        if self._runner is not None:
            self._runner.abandon()

    def disown(self, why: str) -> None:
        """Give up a running capture whose thread has ended."""
        if self._runner is not None:
            self._runner.disown(why)

    def _poll(self, now_ns: int) -> Any:
        """Return new content of the control block; an invalid one is answered with the reason."""
        try:
            return self._control.poll(now_ns)
        except PeerError as error:
            self._loaded().refuse_block(str(error))
            return None

    def _loaded(self) -> "CaptureRunner":
        if self._runner is None:
            assert self._store_answer is not None
            from lockstep.agent.capture.capture_runner import CaptureRunner  # noqa: PLC0415  (most ranks are never asked)

            self._runner = CaptureRunner(
                *self._place,
                self._store_answer,
                self._trusted,
                self._marks,
                pace=self._pace,
                is_in_flight=self._is_in_flight,
                last_request=self._stale_request,
            )
        return self._runner
