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
