"""Ways to start a training, each a test of the real launcher and a row of docs/launchers.md."""

from dataclasses import dataclass

OPEN_MPI, SLURM = "mpirun", "srun"
_MPIRUN = "mpirun --allow-run-as-root --oversubscribe --bind-to none --mca plm isolated -n 2"
_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One way. `command` is what runs; {lockstep} is `lockstep run`, {store} a file for init_process_group.

    `shown` is the command as a user writes it, `source` what gives the rank, `run` a pattern of the run's name where none
    is given, and `run_shown` the same in words. `needs` is a Debian program.
    """

    title: str
    command: str
    shown: str
    source: str
    run: str = "default"
    run_shown: str = "`default`"
    ranks: int = 2
    needs: str = ""


STARTS: dict[str, Start] = {
    "torchrun": Start(
        title="torchrun",
        command="{lockstep} {python} -m torch.distributed.run --standalone --nproc-per-node 2 {scripts}/by_environment.py",
        shown="lockstep run -- torchrun --nproc-per-node 2 train.py",
        source="process group",
        run=_UUID,
        run_shown="the id of `--rdzv-id` or `--standalone`, else `default`; what cannot be part of a path becomes `-`",
    ),
    "accelerate": Start(
        title="Accelerate",
        command="{lockstep} {python} -m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 "
        "--mixed_precision no --dynamo_backend no {scripts}/accelerated.py",
        shown="lockstep run -- accelerate launch --num_processes 2 train.py",
        source="process group",
        run_shown="`default`",
    ),
    "lightning_subprocess": Start(
        title="Lightning, `ddp`",
        command="{lockstep} {python} {scripts}/lightning_fit.py ddp",
        shown="lockstep run -- python train.py",
        source="process group",
    ),
    "lightning_spawn": Start(
        title="Lightning, `ddp_spawn`",
        command="{lockstep} {python} {scripts}/lightning_fit.py ddp_spawn",
        shown="lockstep run -- python train.py",
        source="process group",
    ),
    "spawn_variables": Start(
        title="`torch.multiprocessing.spawn`, `RANK` set in the worker",
        command="{lockstep} {python} {scripts}/torch_spawn.py variables {store}",
        shown="lockstep run -- python train.py",
        source="process group",
    ),
    "spawn_arguments": Start(
        title="`torch.multiprocessing.spawn`, rank as an argument of `init_process_group`",
        command="{lockstep} {python} {scripts}/torch_spawn.py arguments {store}",
        shown="lockstep run -- python train.py",
        source="process group",
    ),
    "spawn_after_trial": Start(
        title="the same, after a backward in the process that spawns",
        command="{lockstep} {python} {scripts}/torch_spawn.py trial {store}",
        shown="lockstep run -- python train.py",
        source="process group",
    ),
    "fork": Start(
        title="`multiprocessing`, `fork`",
        command="{lockstep} {python} {scripts}/processes.py fork {store}",
        shown="lockstep run -- python train.py",
        source="process group",
    ),
    "spawn": Start(
        title="`multiprocessing`, `spawn`",
        command="{lockstep} {python} {scripts}/processes.py spawn {store}",
        shown="lockstep run -- python train.py",
        source="process group",
    ),
    "mpirun": Start(
        title="Open MPI, `lockstep run` around it",
        command="{lockstep} " + _MPIRUN + " {python} {scripts}/alone.py",
        shown="lockstep run -- mpirun -n 2 python train.py",
        source="`OMPI_COMM_WORLD_RANK`",
        run=r"mpi-[A-Za-z0-9._-]+",
        run_shown="`mpi-` and Open MPI's name of the job",
        needs=OPEN_MPI,
    ),
    "mpirun_inside": Start(
        title="Open MPI, `lockstep run` inside it",
        command=_MPIRUN + " {lockstep} {python} {scripts}/alone.py",
        shown="mpirun -n 2 lockstep run -- python train.py",
        source="`OMPI_COMM_WORLD_RANK`",
        run=r"mpi-[A-Za-z0-9._-]+",
        run_shown="`mpi-` and Open MPI's name of the job",
        needs=OPEN_MPI,
    ),
    "srun": Start(
        title="Slurm, `lockstep run` around it",
        command="{lockstep} srun -n 2 {python} {scripts}/alone.py",
        shown="lockstep run -- srun -n 2 python train.py",
        source="`SLURM_PROCID`",
        run=r"job-\d+\.0",
        run_shown="`job-JOB.STEP`",
        needs=SLURM,
    ),
    "srun_inside": Start(
        title="Slurm, `lockstep run` inside it",
        command="srun -n 2 {lockstep} {python} {scripts}/alone.py",
        shown="srun -n 2 lockstep run -- python train.py",
        source="`SLURM_PROCID`",
        run=r"job-\d+\.0",
        run_shown="`job-JOB.STEP`",
        needs=SLURM,
    ),
    "srun_torchrun": Start(
        title="Slurm, one torchrun on each node",
        command="srun -n 1 {lockstep} {python} -m torch.distributed.run --nproc-per-node 2 --master-port {port} "
        "{scripts}/by_environment.py",
        shown="srun lockstep run -- torchrun --nproc-per-node 2 train.py",
        source="process group",
        run=r"job-\d+\.0",
        run_shown="torchrun's id, else `job-JOB.STEP`",
        needs=SLURM,
    ),
    "srun_mpirun": Start(
        title="Slurm, mpirun in a step",
        command="srun -n 1 {lockstep} " + _MPIRUN + " {python} {scripts}/alone.py",
        shown="srun -n 1 lockstep run -- mpirun -n 2 python train.py",
        source="`OMPI_COMM_WORLD_RANK`",
        run=r"mpi-[A-Za-z0-9._-]+",
        run_shown="`mpi-` and Open MPI's name of the job",
        needs=SLURM,
    ),
    "sbatch": Start(
        title="Slurm, in a batch script without `srun`",
        command="sbatch --wait --ntasks 2 --output {output} --wrap '{lockstep} {python} {scripts}/alone.py'",
        shown="lockstep run -- python train.py",
        source="none: rank 0 of 1",
        run=r"job-\d+",
        run_shown="`job-JOB`",
        ranks=1,
        needs=SLURM,
    ),
    "single": Start(
        title="one process, no launcher",
        command="{lockstep} {python} {scripts}/alone.py",
        shown="lockstep run -- python train.py",
        source="none: rank 0 of 1",
        run_shown="`default`, or `default-PID` while another process of its own has that",
        ranks=1,
    ),
}
"""Name -> row, in the order of docs/launchers.md."""
