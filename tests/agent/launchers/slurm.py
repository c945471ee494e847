"""A Slurm cluster of this one machine: munged, slurmctld and slurmd on loopback, with a key and ports of their own."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.servers import START_SECONDS, free_port, program, running, wait_until

CPUS = 2

_CONFIGURATION = """\
ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@contextlib.contextmanager
def slurm_cluster(directory: Path) -> Iterator[dict[str, str]]:
    """Run the cluster; hand out the variables under which srun and sbatch use it. `directory` has a short path."""
    configuration = _configure(directory)
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    with contextlib.ExitStack() as stack:
        munge = [f"--{name}={directory}/munge.{name.partition('-')[0]}" for name in ("socket", "key-file", "pid-file", "log-file", "seed-file")]  # fmt: skip
        stack.enter_context(running([program("munged"), "--foreground", "--force", *munge], directory / "munged.log"))
        wait_until((directory / "munge.socket").exists, START_SECONDS, "munged")
        for name in ("slurmctld", "slurmd"):
            command = [program(name), "-D", "-f", str(configuration)]
            stack.enter_context(running(command, directory / f"{name}.log", environment))
        wait_until(lambda: _is_idle(environment), START_SECONDS, f"slurm in {directory}")
        yield {"SLURM_CONF": str(configuration)}


def _configure(directory: Path) -> Path:
    for name in ("state", "spool"):
        (directory / name).mkdir()
    key = directory / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    path = directory / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    ports = {"controller_port": free_port(), "node_port": free_port()}
    path.write_text(_CONFIGURATION.format(host=host, directory=directory, user="root", cpus=CPUS, **ports))
    return path


def _is_idle(environment: dict[str, str]) -> bool:
    command = [program("sinfo"), "--noheader", "--format", "%T"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)
    return found.stdout.split() == ["idle"]
