"""HOT (budget 500 ns a collective): how many bytes the tensors of an argument hold, for each form of argument."""

from collections.abc import Callable
from itertools import chain
from operator import attrgetter
from typing import Any

TENSOR, LIST, _LISTS = "Tensor", "List[Tensor]", "List[List[Tensor]]"
"""Forms of an argument, as torch writes its type."""
nbytes = attrgetter("nbytes")


def payload_counter(argument_type: str) -> Callable[[Any], int]:
    """Return what counts the bytes of an argument of a type as torch writes it: a tensor, a list, a list of lists.

    Raises
    ------
    KeyError
        Another type.
    """
    return {TENSOR: of_tensor, LIST: of_list, _LISTS: of_lists}[argument_type]


def of_tensor(tensor: Any) -> int:
    """Return the bytes of a tensor; of a sparse one, those of the dense tensor of its shape."""
    try:
        return tensor.nbytes  # type: ignore[no-any-return]
    except RuntimeError:  # sparse
        return int(tensor.numel() * tensor.element_size())


def of_list(tensors: list[Any]) -> int:
    """Return the bytes of a list of tensors."""
    try:
        if len(tensors) == 1:  # a reducer's bucket
            return tensors[0].nbytes  # type: ignore[no-any-return]
        return sum(map(nbytes, tensors))
    except RuntimeError:  # one is sparse
        return sum(map(of_tensor, tensors))


def of_lists(lists: list[list[Any]]) -> int:
    """Return the bytes of lists of tensors."""
    return of_list(list(chain.from_iterable(lists)))


def of_nothing(_argument: Any) -> int:
    """Return 0, for an operator that moves nothing."""
    return 0


def is_on_device(tensors: Any) -> bool:
    """Whether the first tensor of a tensor or of nested lists of tensors lives on a device."""
    while isinstance(tensors, list):
        if not tensors:
            return False
        tensors = tensors[0]
    return not tensors.is_cpu
