"""What every hook is made of: an attribute replaced by a wrapper, and the removal that puts it back."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

Removal = Callable[[], None]
Hook = Callable[["Agent"], Removal]


def patch(owner: Any, name: str, wrapper: Callable[..., Any]) -> Removal:
    """Set an attribute that exists and return what puts the former value back."""
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
