"""Installs the agent in the script, where the launcher sets a rank only in the process that trains already.

Does nothing where the agent is not wanted, in the run that the losses are compared with.
"""

import os

import lockstep


def install(rank, ranks):
    """Name this process's rank as torchrun does, and install the agent."""
    if "LOCKSTEP_RUN" in os.environ:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank))
        lockstep.install()
