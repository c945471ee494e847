"""One module per hooked feature. Each has `install(agent)`, which installs the hook and returns its removal.

Rules of this folder: the user's call runs outside the failure boundary, and its result and exceptions pass unchanged;
our code runs inside. torch is imported in functions only. A removal restores a name only if our hook is still there.
"""

from lockstep.agent.hooks.patching import Hook


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
    """Return the hooks of a process that trains without torch and reports the ends of its steps itself."""
    from lockstep.agent.hooks import gc  # noqa: PLC0415  (not at start)

    return [gc.install]
