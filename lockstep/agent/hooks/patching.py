"""Common to all hooks: replaces an attribute by a wrapper, and restores it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

Removal = Callable[[], None]
Hook = Callable[["Agent"], Removal]


def patch(owner: Any, name: str, wrapper: Callable[..., Any]) -> Removal:
    """Set an existing attribute and return a function that restores the former value."""
    original = getattr(owner, name)
    wrapper.__name__ = getattr(original, "__name__", name)
    wrapper.__qualname__ = getattr(original, "__qualname__", name)
    wrapper.__module__ = getattr(original, "__module__", wrapper.__module__)  # pickled by this and its name
    wrapper.__doc__ = original.__doc__
    wrapper.__wrapped__ = original  # type: ignore[attr-defined]  # signatures stay what they were
    setattr(owner, name, wrapper)

    def restore() -> None:
        if getattr(owner, name) is wrapper:
            setattr(owner, name, original)

    return restore
