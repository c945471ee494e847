"""Loaded by every Python that `lockstep run` starts, since this folder is first on PYTHONPATH.

The agent is installed once torch arrives. The sitecustomize that this one shadows, if there is one, is loaded as if
this one were not there.
"""

# ruff: noqa: INP001  (a folder on PYTHONPATH is no package)

import os
import sys


def _install() -> None:
    """Install the agent; the interpreter that trains need not have lockstep installed."""
    try:
        here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  (pathlib is not loaded yet)
        root = os.path.dirname(os.path.dirname(os.path.dirname(here)))  # noqa: PTH120
        try:
            import lockstep.agent.bootstrap  # noqa: PLC0415
        except ModuleNotFoundError:
            sys.path.append(root)  # at the end: what the interpreter has wins
            import lockstep.agent.bootstrap  # noqa: PLC0415
        lockstep.agent.bootstrap.install()
    except Exception as error:  # noqa: BLE001  (part of the agent's failure boundary: Python must start)
        sys.stderr.write(f"lockstep: agent not installed: {error}\n")


def _load_shadowed() -> None:
    """Run the next sitecustomize on sys.path under its own name; its errors are its own."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    if not any(
        os.path.isfile(os.path.join(path, "sitecustomize.py"))  # noqa: PTH113, PTH118
        or os.path.isdir(os.path.join(path, "sitecustomize"))  # noqa: PTH112, PTH118
        for path in sys.path
        if os.path.abspath(path) != here  # noqa: PTH100
    ):
        return
    from importlib.machinery import PathFinder  # noqa: PLC0415
    from importlib.util import module_from_spec  # noqa: PLC0415  (20 ms, so only where something is shadowed)

    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path) != here])  # noqa: PTH100
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_install()
_load_shadowed()
