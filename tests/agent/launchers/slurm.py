"""A Slurm cluster of this one machine: munged, slurmctld and slurmd on loopback, with a key and ports of their own.

Everything in it runs as one account, which need not be root: that of the tests, or another one that root gives it.
"""

import contextlib
import os
import pwd
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
AuthInfo=socket={directory}/munge.socket,cred_expire=5
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
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
{site}NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def own_account() -> str:
    """Return the name of the account that the tests run as."""
    return pwd.getpwuid(os.getuid()).pw_name


def as_account(account: str) -> list[str]:
    """Return the words before a command that runs it as `account`; none where it is our own."""
    if account == own_account():
        return []
    entry = pwd.getpwnam(account)
    return [program("setpriv"), f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]


@contextlib.contextmanager
def slurm_cluster(directory: Path, account: str = "", site: str = "") -> Iterator[dict[str, str]]:
    """Run the cluster; hand out the variables under which srun and sbatch use it.

    `directory` has a short path and is open to `account`, by default the tests' own; `site` is further lines of
    slurm.conf.
    """
    account = account or own_account()
    configuration = _configure(directory, account, site)
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    start = as_account(account)
    with contextlib.ExitStack() as stack:
        munge = [f"--{name}={directory}/munge.{name.partition('-')[0]}" for name in ("socket", "key-file", "pid-file", "log-file", "seed-file")]  # fmt: skip
        munged = [*start, program("munged"), "--foreground", "--force", *munge]
        stack.enter_context(running(munged, directory / "munged.log"))
        wait_until((directory / "munge.socket").exists, START_SECONDS, "munged")
        for name in ("slurmctld", "slurmd"):
            command = [*start, program(name), "-D", "-f", str(configuration)]
            stack.enter_context(running(command, directory / f"{name}.log", environment))
        wait_until(lambda: _is_idle(environment), START_SECONDS, f"slurm in {directory}")
        yield {"SLURM_CONF": str(configuration)}


def _configure(directory: Path, account: str, site: str) -> Path:
    for name in ("state", "spool"):
        (directory / name).mkdir()
    key = directory / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    path = directory / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    ports = {"controller_port": free_port(), "node_port": free_port()}
    text = _CONFIGURATION.format(host=host, directory=directory, user=account, cpus=CPUS, site=site, **ports)
    path.write_text(text)
    if account != own_account():
        for each in (directory, *directory.iterdir()):
            os.chown(each, pwd.getpwnam(account).pw_uid, pwd.getpwnam(account).pw_gid)
    return path


def _is_idle(environment: dict[str, str]) -> bool:
    command = [program("sinfo"), "--noheader", "--format", "%T"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)
    return found.stdout.split() == ["idle"]
