"""Renders docs/launchers.md from the table of launchers and that of their variables."""

from collections.abc import Sequence

from lockstep.contracts.launchers import LAUNCHERS, NODE_AND_LOCAL_RANK
from tests.agent.launchers.table import STARTS

_HEADING = """\
# Launchers

Written by `make generate` from `tests/agent/launchers/` and `lockstep/contracts/launchers.py`; change it there.

`lockstep run` monitors training under every launcher in this table. Each row is a test that starts two ranks (if the launcher
starts several) with the real launcher, and finds every step of every rank in its ring, with rank, local rank and world size.
"""

_RANK = """\
## Which rank a process is

The agent waits in each Python process of the command until the process imports torch. It determines the rank when the process
first trains: at its first backward, optimizer step or collective. A rank that is set late therefore counts too: Ray Train sets
`RANK` and creates the process group in a running worker.

1. The rank and world size of torch's default process group, if there is one. A group of one process does not override a
   launcher that counts more.
2. Otherwise, the variables of the first launcher in this table that has set its rank (all but torchrun need a world size too).
3. Otherwise, the process is rank 0 of 1.
"""

_RULES = """\
The order follows nesting: torchrun runs inside MPI or Slurm, and mpirun inside a Slurm job, where the outer launcher's
variables count nodes. `SLURM_NTASKS` is not read: in a batch script it is the size of the job, while the script is one process.

The local rank is the launcher's. If the launcher gives none that fits the process group (`torch.multiprocessing.spawn`), the local
rank is the rank: unique on its node, but the device's index only on the first node.

`lockstep doctor` shows the rank that the environment gives, and by which variable.

### Processes that are not ranks

A process that never trains has no ring: torchrun itself, loader and compile workers, tools. Processes that a rank starts after its
first training step inherit `LOCKSTEP_AGENT_PID` and are not ranks either, even if they train, unless they join a process group in a
larger world than that rank's: a script may try a backward and then spawn its ranks. One that steps an optimizer trains, and counts
as not monitored (below). To monitor it as a run of its own, start it with `lockstep run --run NAME` and without the rank's variables.

### A process group after the first steps

A process that trains before it creates its process group is first recorded as the rank of its environment. With the first
collective in the group it becomes the rank that the group gives it: its ring is removed, and steps count from 0 in a new one. The
same happens if a group is created again with another rank or size.

## The name of the run

Set `--run NAME`, or `LOCKSTEP_RUN`, to the same name on every node. Without it, the run has the name in the last column of the first
table. A launcher's name is the same on all nodes and differs for the next job or step, so jobs that share a node stay apart.

A process without a launcher takes `NAME-PID` if another live process, or another user, has the name: eight single-device jobs are
eight runs, and an exporter follows up to 16. **Jobs of several ranks without a launcher's name** (Lightning, `multiprocessing`,
Accelerate) are all called `default`. Give each a name if two of them share a node; otherwise the ranks of the later job replace those
of the earlier one.

## Processes that are not monitored

A process that trains but cannot be monitored goes on training and prints the reason on stderr in one line. The exporter of its node
counts it in `lockstep_exporter_unwatched_processes` as long as it lives:

| `reason` | meaning |
| --- | --- |
| `identity` | a rank, world size or run name that cannot be used, or a rank started the process, which steps an optimizer |
| `refused` | the shared directory, or the run's, belongs to another user or is not a directory |
| `ring` | no space, no such directory, or no right to write |
| `hooks` | this torch lacks what the hooks need; every process that imports torch counts, because Lockstep cannot see whether it trains |
| `failure` | the agent stopped after an internal failure, or because another process took its ring |
| `steps` | for five minutes backwards have run without an optimizer step: the script updates parameters by hand, or without a `torch.optim.Optimizer`. Call `lockstep.step_end()` at the end of each step; the first call ends the count |

Without an exporter there is only the line. Python started with `-I`, `-E` or `-S`, and workers whose environment drops
`PYTHONPATH`, do not load the agent and are not counted: call `lockstep.install()` there.
"""


def render() -> str:
    """Return docs/launchers.md."""
    starts = [(each.title, f"`{each.shown}`", each.source, each.run_shown) for each in STARTS.values()]
    variables = [
        (each.name, f"`{each.rank}`", f"`{each.world_size}`", ", ".join(f"`{name}`" for name in each.local_ranks))
        for each in LAUNCHERS
    ]
    node, local = (f"`{name}`" for name in NODE_AND_LOCAL_RANK.split(" and "))
    variables.append(("Lightning", f"{node} (or `GROUP_RANK`) x `LOCAL_WORLD_SIZE` + {local}", "`WORLD_SIZE`", local))
    return "\n".join(
        [
            _HEADING,
            *_table(("launcher", "command", "rank from", "run without `--run`"), starts),
            "",
            _RANK,
            *_table(("launcher", "rank", "world size", "local rank"), variables),
            "",
            _RULES,
        ]
    )


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (heads, tuple("---" for _ in heads), *rows)]
