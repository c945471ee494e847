"""Loads the agent into a training process: manually (`lockstep.install()`) or by `lockstep run`.

`lockstep run` puts `site/` first on PYTHONPATH. Its sitecustomize.py calls `install` in every Python that starts.
Neither imports torch: a finder waits for training to do so. Which of these processes are ranks is known when they
train.

This module is imported at the start of every such process, so it imports only what Python has already loaded.
"""

import os
import sys

TYPE_CHECKING = False  # typing costs milliseconds here
if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from lockstep.agent.agent import Agent

SITE_DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")  # noqa: PTH100, PTH118, PTH120  (pathlib is not loaded yet)

_agent: "Agent | None" = None
_former: "list[Agent]" = []
"""Removed agents, whose collectives may still be in flight."""
_asked = False


def install() -> bool:
    """Monitor this training process from now on, or once it imports torch; return whether that will happen.

    Never raises and never imports torch. Calling it again has no effect. The ring is created when training begins,
    because launchers may set the rank late. A process that a rank started is not monitored.
    """
    return _guarded(_install)


def uninstall() -> None:
    """Remove the agent from this process and report that the rank is finished. Never raises."""
    global _agent, _asked
    _forget_finder()
    agent, _agent, _asked = _agent, None, False
    if agent is not None:
        agent.guard(agent.finish)()
        agent.guard(agent.remove)()
        _former[:] = [former for former in _former if former.has_in_flight()] + [agent]


def current() -> "Agent | None":
    """Return this process's agent for a call of the training's own, None if none was requested or after a failure.

    It is requested under `lockstep run`, by `lockstep.install()`, and by a launcher that has set a rank. A process that
    has not imported torch by its first such call trains without it: its agent has no torch hooks.
    """
    global _asked  # noqa: PLW0603  (an agent that cannot be installed is not tried again at every step)
    if _agent is None and not _asked and _is_wanted():
        _asked = True
        if "torch" in sys.modules:
            _guarded(_install)
        else:
            _forget_finder()
            _guarded(_install_neutral)
    return _agent if _agent is not None and _agent.alive else None


def loader_environment(environ: "Mapping[str, str]") -> dict[str, str]:
    """Return `environ` such that every Python started with it loads the agent."""
    paths = [SITE_DIRECTORY]
    paths += [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != SITE_DIRECTORY]
    return {**environ, "PYTHONPATH": os.pathsep.join(paths)}


def _guarded(action: "Any") -> bool:
    try:
        return bool(action())
    except Exception as error:  # noqa: BLE001  (the boundary before boundary.py may be imported)
        try:
            text = " ".join(str(error).split())[:300] or type(error).__name__
            print(f"lockstep: agent not installed: {text}", file=sys.stderr, flush=True)  # noqa: T201
            _mark_unwatched(text)
        except Exception:  # noqa: BLE001, S110  (files that are being replaced, a stderr of the training's own)
            pass
        return False


def _mark_unwatched(text: str) -> None:
    """Leave a mark for the exporter. Only importers of torch, or a training that installs manually, get here."""
    from lockstep.agent.unwatched import mark  # noqa: PLC0415  (only where something failed)

    mark("hooks", text, os.environ)


def _is_wanted() -> bool:
    if any(isinstance(finder, _TorchFinder) for finder in sys.meta_path):
        return True
    from lockstep.contracts.launchers import gives_rank  # noqa: PLC0415  (only where training asks)

    return gives_rank(os.environ)


def _install() -> bool:
    if _agent is not None:
        return _agent.alive
    if any(isinstance(finder, _TorchFinder) for finder in sys.meta_path):
        return True
    if sys.byteorder != "little":
        raise RuntimeError(f"byte order: got {sys.byteorder}, expected little")
    if "torch" in sys.modules:
        return _install_into_torch()
    sys.meta_path.insert(0, _TorchFinder())
    return True


def _install_into_torch() -> bool:
    """Install unless a rank of several started this process: hooks would cost its loader workers 50 ms each."""
    from lockstep.agent.lineage import may_become_rank, watch_for_training  # noqa: PLC0415  (only where torch is)

    if not may_become_rank(os.environ):
        watch_for_training(os.environ, _guarded)
        return False
    from lockstep.agent.hooks import torch_hooks  # noqa: PLC0415

    return _install_agent(torch_hooks())


def _install_neutral() -> bool:
    from lockstep.agent.hooks import neutral_hooks  # noqa: PLC0415  (only where training is)

    return _install_agent(neutral_hooks())


def _install_agent(hooks: "Any") -> bool:
    global _agent  # noqa: PLW0603  (one agent per process)
    import atexit  # noqa: PLC0415  (only where training is)

    from lockstep.agent.agent import Agent  # noqa: PLC0415

    has_lock: Any = getattr(sys, "_is_gil_enabled", None)
    if has_lock is not None and not has_lock():  # marks of two threads would damage each other (mark_block.py)
        raise RuntimeError("interpreter: got one that runs without its lock, expected PYTHON_GIL=1")
    if not _is_main_interpreter():  # torch cannot be imported in another one, and the rank's ring is the main one's
        raise RuntimeError("interpreter: got a subinterpreter, expected the main one")
    _agent = Agent(hooks)
    os.register_at_fork(after_in_child=_disable_in_child)
    atexit.register(_finish)
    return True


def _is_main_interpreter() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # the second up to Python 3.12
        try:
            interpreters = __import__(name)
        except ImportError:
            continue
        main, current = interpreters.get_main(), interpreters.get_current()
        return bool(main == current if name == "_xxsubinterpreters" else main[0] == current[0])
    return True


def _disable_in_child() -> None:
    _former.clear()  # the threads that they would wait for do not exist here
    if _agent is not None:
        _agent.forked()


def _finish() -> None:
    for agent in (*([] if _agent is None else [_agent]), *_former):
        agent.end()


def _forget_finder() -> None:
    for finder in [finder for finder in sys.meta_path if isinstance(finder, _TorchFinder)]:
        sys.meta_path.remove(finder)


class _TorchFinder:
    """Lets the import of torch proceed unchanged, and installs when it is complete.

    Not on the import of an inner module: torch imports those before torch.library exists.
    """

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        """Return torch's spec from the other finders, with a loader that installs afterwards."""
        if name != "torch":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                break
        else:
            return None
        _guarded(lambda: self._wrap(spec))
        return spec

    def _wrap(self, spec: "ModuleSpec") -> None:
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_then_install(module: "ModuleType") -> None:
            vars(loader).pop("exec_module", None)  # the loader is torch's again, whatever happens next
            execute(module)
            _forget_finder()
            _guarded(_install_into_torch)

        loader.exec_module = execute_then_install
