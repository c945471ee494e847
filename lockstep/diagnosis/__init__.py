"""Cause, function and advice from trace summaries: `explain` is the door.

Imports contracts and trace only. `excess` compares call trees, `communication` collectives, `advice_table` is the
cause -> remedy data, `diagnose` puts them together. What stands here is imported when it is first asked for: code that
needs one rule (`lockstep.analysis`) does not pay for the remedies and the comparison of all ranks.
"""

import sys
from importlib import import_module
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.diagnosis.diagnose import diagnose  # noqa: TC004 - imported when asked for
    from lockstep.diagnosis.explain import explain  # noqa: TC004 - imported when asked for
    from lockstep.diagnosis.verdict import INSUFFICIENT, Advice, Diagnosis  # noqa: TC004 - the same

__all__ = ["INSUFFICIENT", "Advice", "Diagnosis", "diagnose", "explain"]

_VERDICT = ("INSUFFICIENT", "Advice", "Diagnosis")
_FUNCTIONS = ("diagnose", "explain")
"""Each named as its module: what the import system sets here is the module, which is not what is asked for."""


class _Door(ModuleType):
    """The package itself; `__getattr__` is not enough for names that are modules' as well."""

    def __getattribute__(self, name: str) -> Any:
        if name in _FUNCTIONS:
            return _function(name)
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        if name in _VERDICT:
            return getattr(import_module("lockstep.diagnosis.verdict"), name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def _function(name: str) -> FunctionType:
    function: FunctionType = vars(import_module(f"lockstep.diagnosis.{name}"))[name]
    return function


sys.modules[__name__].__class__ = _Door
