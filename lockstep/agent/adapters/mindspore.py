"""MindSpore: a callback for `Model.train` that reports where steps end and what they hold.

    model.train(epochs, dataset, callbacks=[..., LockstepCallback()])

Put it last in the list: then work of other callbacks after a step (reading the loss, which waits for the device) counts
as compute and not as waiting for data; a step in which MindSpore's own callback saves is flagged as a checkpoint.
Forward, backward and optimizer are one network in MindSpore, and so one span here, including collectives. With
`dataset_sink_mode` the framework calls back once per sink, which then is one step.
"""

import os
import sys
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Self

from lockstep.agent import api, bootstrap
from lockstep.agent.boundary import warn
from lockstep.agent.throughput.batch import UNKNOWN, BatchCounter
from lockstep.agent.throughput.options import read_options
from lockstep.contracts.records import Flag

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_INTEGERS = ("int64", "int32", "int16", "uint8")
# The names in MindSpore's launcher of the identity that agent/identity.py reads.
_IDENTITY = {"RANK": "RANK_ID", "WORLD_SIZE": "RANK_SIZE", "LOCAL_RANK": "DEVICE_ID"}


class LockstepCallback:
    """Monitors one training. An instance is a `mindspore.Callback` if MindSpore is imported; no method ever raises.

    At the beginning of training, RANK, WORLD_SIZE and LOCAL_RANK are set in this process's environment if only
    MindSpore's own variables are set.
    """

    def __new__(cls) -> Self:
        """Return an instance that MindSpore accepts, whether it was imported before or after this module."""
        base = getattr(sys.modules.get("mindspore"), "Callback", object)
        if not issubclass(cls, base):
            cls = type(cls.__name__, (cls, base), {})  # noqa: PLW0642  (the class is known only here)
        return object.__new__(cls)

    def __init__(self) -> None:
        self._phase: AbstractContextManager[None] | None = None
        self._count: Callable[..., Any] | None = None
        self._saved_step = 0

    def on_train_begin(self, _run_context: Any) -> None:
        """Begin the wait for the first batch."""
        name_rank(os.environ)
        agent = bootstrap.current()
        if agent is not None:
            counter = agent.guard(_make_counter)()
            self._count = counter and agent.boundary.contain(counter.count, "samples and tokens of a batch")
        self._enter("data")

    def on_train_epoch_begin(self, _run_context: Any) -> None:
        """Do nothing: training waits for data between epochs as well."""

    def on_train_step_begin(self, _run_context: Any) -> None:
        """End the wait: the network starts."""
        self._enter("forward")

    def on_train_step_end(self, run_context: Any) -> None:
        """End the step, and begin the wait for the next batch."""
        self._leave()
        agent = bootstrap.current()
        if agent is not None:
            agent.guard(self._describe)(agent.marks, run_context.original_args())
        api.step_end()
        self._enter("data")

    def on_train_epoch_end(self, _run_context: Any) -> None:
        """Do nothing."""

    def on_train_end(self, _run_context: Any) -> None:
        """Stop waiting."""
        self._leave()

    def on_eval_begin(self, _run_context: Any) -> None:
        """Flag the running step, since its time includes an evaluation."""
        self._leave()
        agent = bootstrap.current()
        if agent is not None:
            agent.mark("flag")(int(Flag.EVALUATION))

    def on_eval_epoch_begin(self, _run_context: Any) -> None:
        """Do nothing."""

    def on_eval_step_begin(self, _run_context: Any) -> None:
        """Do nothing: MindSpore's own method would call `step_begin`."""

    def on_eval_step_end(self, _run_context: Any) -> None:
        """Do nothing."""

    def on_eval_epoch_end(self, _run_context: Any) -> None:
        """Do nothing."""

    def on_eval_end(self, _run_context: Any) -> None:
        """Do nothing: the wait for the next batch begins with the next step's end."""

    # What MindSpore before 1.9 calls; later ones reach these names through their own methods, replaced above.
    begin = on_train_begin
    step_begin = on_train_step_begin
    step_end = on_train_step_end
    end = on_train_end

    def _describe(self, marks: Any, parameters: Any) -> None:
        """Report the step's batch, which MindSpore does not expose in sink mode, and a saved checkpoint."""
        batch = parameters.get("train_dataset_element")
        if batch is not None and self._count is not None:
            marks.batch(*(self._count(batch, marks.step_ends) or UNKNOWN))
        # ModelCheckpoint exposes a save only in this private attribute.
        callbacks = parameters.get("list_callback") or ()
        saved_step = max((getattr(callback, "_last_triggered_step", 0) for callback in callbacks), default=0)
        if saved_step > self._saved_step:
            self._saved_step = saved_step
            marks.flag(int(Flag.CHECKPOINT))

    def _enter(self, name: str) -> None:
        self._leave()
        self._phase = api.phase(name)
        self._phase.__enter__()

    def _leave(self) -> None:
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
            self._phase = None


def name_rank(environ: MutableMapping[str, str]) -> None:
    """Set the variables that identify this rank from those of MindSpore's launcher, if they are unset."""
    if "RANK" not in environ and environ.get("RANK_ID", "").isdecimal():
        for ours, theirs in _IDENTITY.items():
            if environ.get(theirs, "").isdecimal():
                environ.setdefault(ours, environ[theirs])


def _make_counter() -> BatchCounter | None:
    mindspore: Any = sys.modules.get("mindspore")
    if mindspore is None:
        return None
    return BatchCounter(
        read_options(os.environ), mindspore.Tensor, frozenset(getattr(mindspore, name) for name in _INTEGERS), warn
    )
