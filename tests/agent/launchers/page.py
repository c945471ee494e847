"""Renders docs/launchers.md from the table of launchers and that of their variables."""

from collections.abc import Sequence

from lockstep.contracts.launchers import LAUNCHERS, NODE_AND_LOCAL_RANK
from tests.agent.launchers.table import STARTS

_HEADING = """\
# Launchers

Written by `make generate` from `tests/agent/launchers/` and `lockstep/contracts/launchers.py`; change it there.

`lockstep run` monitors a training whatever starts it. Each row is a test that starts two ranks (where the launcher starts
several) with the real launcher on this machine, and finds every step of every rank in its ring, with rank, local rank and
world size.
"""

_RANK = """\
## Which rank a process is

The agent waits in each Python of the command until it imports torch, and reads who it is when it first trains: at its
first backward, optimizer step or collective. So a rank that is set late counts as well: Ray Train sets `RANK` and creates the
process group in a worker that runs already.

1. The rank and world size of torch's default process group, if there is one. A group of one process does not overrule a
   launcher that counts more.
2. Else the variables of the first launcher in this table that has set its rank (all but the first need a world size too).
3. Else the process is rank 0 of 1.
"""

_RULES = """\
The order is that of nesting: torchrun runs inside MPI or Slurm, and mpirun in a job of Slurm. There the outer launcher's
variables count nodes. `SLURM_NTASKS` is not read: in a batch script it is the size of the job, while the script is one process.

The local rank is the launcher's. Where it gives none that fits the process group (`torch.multiprocessing.spawn`), it is the rank:
unique on its node, but not the device's index on any node but the first.

`lockstep doctor` shows which rank the environment gives, and by which variable.

### Who is no rank

A process that never trains has no ring: torchrun itself, loader and compile workers, tools. What a rank starts after it began to
train inherits `LOCKSTEP_AGENT_PID` and is no rank either, even if it trains, unless it joins a process group in a larger world than
that rank's: a script may make a trial backward and then spawn its ranks.

### A process group after the first steps

A process that trains before it creates its process group is first recorded as the rank of its environment. With the
first collective in the group it becomes the rank that the group gives it: its ring so far is removed, and its steps count from 0 in
a new one. Groups that are created again with another rank or size do the same.

## The name of the run

`--run NAME`, or `LOCKSTEP_RUN`, on every node the same. Without it, the last column of the first table. A name of the launcher's is
the same on all nodes and another one for the next job or step, so jobs that share a node do not meet.

A process without a launcher takes `NAME-PID` where another living process has the name already, or another user: eight trainings on
one device each are eight runs, of which an exporter follows 16. **Jobs of several ranks without a launcher's name** (Lightning,
`multiprocessing`, Accelerate) are all called `default`: give each a name where two of them share a node, or the ranks of the later one
replace those of the earlier one.

## What is not watched

A process that trains and cannot be watched goes on training, prints why on stderr in one line, and is counted by the exporter of its
node in `lockstep_exporter_unwatched_processes` as long as it lives:

| `reason` | what |
| --- | --- |
| `identity` | a rank, world size or run name that cannot be used |
| `refused` | the shared directory, or the run's, is another user's or no directory |
| `ring` | no space, no such directory, no right to write |
| `hooks` | this torch lacks what the hooks need; any process that imports torch counts, because no one can see whether it trains |
| `failure` | the agent stopped after a failure of its own, or because another process took its ring |
| `steps` | backwards have run for five minutes, and no optimizer stepped: parameters are updated by hand, or by what is no `torch.optim.Optimizer`. Call `lockstep.step_end()` where a step ends; the count goes back with the first one |

Without an exporter there is the line only. Python started with `-I`, `-E` or `-S`, and workers whose environment drops
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
