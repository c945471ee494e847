"""Marks when the training thread waits for its next batch, and counts the batch's content.

Hooks `_BaseDataLoaderIter.__next__`, which every iterator of a DataLoader uses, including torchdata's stateful one.
"""

import os
from threading import get_ident
from typing import TYPE_CHECKING, Any

from lockstep.agent.boundary import warn
from lockstep.agent.capture.loader_watch import LOADER_WATCH
from lockstep.agent.hooks.patching import Removal, patch
from lockstep.agent.throughput.batch import UNKNOWN, BatchCounter
from lockstep.agent.throughput.options import read_options

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent


def install(agent: "Agent") -> Removal:
    """Patch the DataLoader's iterators."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter  # noqa: PLC0415  (training imported it)

    original = _BaseDataLoaderIter.__next__
    begin, end = agent.mark("data_begin"), agent.mark("data_end")
    count = agent.guard(_counter(agent))
    look = agent.guard(LOADER_WATCH.look)
    marks = agent.marks

    def __next__(self: Any) -> Any:  # noqa: N807  (takes this name's place)
        try:
            begin()  # inside: an exception of the training's signal handler ends the span as well
            if LOADER_WATCH.is_on and get_ident() == marks.thread:
                look(self)
            batch = original(self)
        except BaseException:
            end()
            raise
        end()
        if get_ident() == marks.thread:
            count(batch)
        return batch

    return patch(_BaseDataLoaderIter, "__next__", __next__)


def _counter(agent: "Agent") -> Any:
    """Return a function that counts a batch; a batch fetched without gradients belongs to an evaluation."""
    import torch  # noqa: PLC0415  (training imported it)

    integers = frozenset((torch.int64, torch.int32, torch.int16, torch.uint8))
    counter = BatchCounter(read_options(os.environ), torch.Tensor, integers, warn)
    marks, facts = agent.marks, agent.attempt_facts
    count_batch = agent.boundary.contain(counter.count, "samples and tokens of a batch")
    is_training = torch.is_grad_enabled

    def count(batch: Any) -> None:
        if not is_training():
            marks.batch_evaluated()
            return
        samples, tokens, work = count_batch(batch, marks.optimizer_ends + marks.step_ends) or UNKNOWN
        marks.batch(samples, tokens, work)
        if facts.flops is not None and facts.flops.is_measuring:
            facts.flops.add_batch(samples, tokens)

    return count
