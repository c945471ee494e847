from collections.abc import Callable
from types import MethodType
from typing import Any

from lockstep.agent.mark_buffer import MarkBuffer as PythonMarkBuffer

class MarkBuffer(PythonMarkBuffer):
    def channel(self) -> object: ...

class Waiting:
    def __init__(
        self,
        call: Callable[..., Any],
        buffer: PythonMarkBuffer,
        works_for_backward: Callable[[], object],
        method_type: type[MethodType],
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class CollectiveKernel:
    def __init__(
        self,
        buffer: PythonMarkBuffer,
        *,
        handle: object,
        redispatch: Callable[..., Any],
        raw_repr: Callable[[Any], int],
        has: Callable[[Any, Any], bool],
        after_key: object,
        host_key: object,
        unbox_group: Callable[[Any], Any],
        unbox_work: Callable[[Any], Any],
        known: dict[int, Any],
        captures: dict[int, Any],
        issue_any: Callable[[int, Any], int | None],
        complete: Callable[[int, bool, Any, Any], bool],
        absorbs: Callable[[Callable[..., Any], Exception], bool],
        group_index: int,
        payload_index: int,
        async_index: int,
        bits: int,
        synchronous_bits: int,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
