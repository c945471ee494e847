"""When the training thread waits for its next batch, and what the batch holds.

Hooks `_BaseDataLoaderIter.__next__`, which every iterator of a DataLoader goes through, torchdata's stateful one too.
"""

import os
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from lockstep.agent.boundary import say
from lockstep.agent.hooks import Removal, patch
from lockstep.agent.throughput.batch import BatchCounter
from lockstep.agent.throughput.options import read_options
from lockstep.contracts.records import Flag

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent


def install(agent: "Agent") -> Removal:
    """Patch the DataLoader's iterators."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter  # noqa: PLC0415  (training imported it)

    original = _BaseDataLoaderIter.__next__
    enter = agent.guard_mark(agent.recorder.enter_data)
    leave = agent.guard_mark(agent.recorder.leave_data)
    count = agent.guard(_counter(agent))

    def __next__(self: Any) -> Any:  # noqa: N807  (takes this name's place)
        try:
            enter()  # inside: what a signal handler of the training raises there ends the span as well
            batch = original(self)
        except BaseException:
            leave()
            raise
        if leave():
            count(batch)
        return batch

    return patch(_BaseDataLoaderIter, "__next__", __next__)


def _counter(agent: "Agent") -> Any:
    """Return a function that counts a batch; a batch fetched without gradients is evaluation's."""
    import torch  # noqa: PLC0415  (training imported it)

    integers = frozenset((torch.int64, torch.int32, torch.int16, torch.uint8))
    counter = BatchCounter(read_options(os.environ), torch.Tensor, integers, say)
    recorder = agent.recorder
    is_training = torch.is_grad_enabled
    evaluation = int(Flag.EVALUATION)

    def count(batch: Any) -> None:
        if not is_training():
            recorder.flag(evaluation)
            return
        began_ns = monotonic_ns()
        recorder.quantities.add_batch(*counter.count(batch, recorder.step))
        recorder.spend(monotonic_ns() - began_ns)

    return count
