"""When the training thread waits for its next batch, and what the batch holds.

Hooks `_BaseDataLoaderIter.__next__`, which every iterator of a DataLoader goes through, torchdata's stateful one too.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockstep.agent.hooks import Removal, patch
from lockstep.contracts.records import MISSING, Flag

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

SEARCH_DEPTH = 2
_TOKEN_DIMENSIONS = 2  # batch x sequence


def install(agent: "Agent") -> Removal:
    """Patch the DataLoader's iterators."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter  # noqa: PLC0415  (training imported it)

    original = _BaseDataLoaderIter.__next__
    enter = agent.guard(agent.recorder.enter_data)
    leave = agent.guard(agent.recorder.leave_data)
    count = agent.guard(_counter(agent))

    def __next__(self: Any) -> Any:  # noqa: N807  (takes this name's place)
        enter()
        try:
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
    tensor_type = torch.Tensor
    recorder = agent.recorder

    def count(batch: Any) -> None:
        if not torch.is_grad_enabled():
            recorder.flag(int(Flag.EVALUATION))
            return
        tensor = first_tensor(batch, tensor_type, SEARCH_DEPTH)
        if tensor is not None and tensor.ndim:
            is_text = tensor.ndim == _TOKEN_DIMENSIONS and tensor.dtype in integers
            recorder.count_batch(tensor.shape[0], tensor.numel() if is_text else MISSING)

    return count


def first_tensor(value: Any, tensor_type: type, depth: int) -> Any | None:
    """Return the first tensor in `value` or in its items down to `depth`, or None."""
    if isinstance(value, tensor_type):
        return value
    if depth == 0 or isinstance(value, str | bytes):
        return None
    if isinstance(value, Mapping):
        items: Any = value.values()
    elif isinstance(value, list | tuple):
        items = value
    else:
        return None
    for item in items:
        found = first_tensor(item, tensor_type, depth - 1)
        if found is not None:
            return found
    return None
