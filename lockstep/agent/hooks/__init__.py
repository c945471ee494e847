"""One file per thing hooked. Each has `install(agent)`, which puts the hook in place and returns its removal.

Rules of this folder: the user's call runs outside the failure boundary and its result and exceptions pass unchanged;
ours runs inside. torch is imported in functions only. A removal restores a name only where ours is still the one there.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.agent.agent import Agent

Removal = Callable[[], None]
Hook = Callable[["Agent"], Removal]


def torch_hooks() -> list[Hook]:
    """Return every hook of a process that trains with torch, in the order of installation."""
    from lockstep.agent.hooks import (  # noqa: PLC0415  (not at start)
        backward,
        checkpoint,
        collectives,
        compilation,
        data,
        gc,
        graphs,
        optimizer,
        profilers,
        streams,
        throughput,
        waits,
    )

    return [
        data.install,
        backward.install,
        optimizer.install,
        throughput.install,
        collectives.install,
        waits.install,
        streams.install,
        graphs.install,
        checkpoint.install,
        compilation.install,
        profilers.install,
        gc.install,
    ]


def neutral_hooks() -> list[Hook]:
    """Return the hooks of a process that trains without torch and says itself where its steps end."""
    from lockstep.agent.hooks import gc  # noqa: PLC0415  (not at start)

    return [gc.install]


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
