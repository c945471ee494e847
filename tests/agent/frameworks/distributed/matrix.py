"""What the agent sees of real frameworks over several ranks: declared here, shown in docs/frameworks.md.

test_distributed.py asserts each cell.

May live here: the claims. May not: how they are checked (evidence.py, detection.py), what is run (scripts/).
"""

from dataclasses import dataclass, field

from tests.agent.frameworks.matrix import SEEN, Cell

SIGNALS = {
    "steps": "one record per iteration on every rank",
    "domains": "kind and ranks of every process group in use are those of the job",
    "collectives": "per kind of domain, number and bytes of a step's collectives are those that the layout implies",
    "samples": "samples per step are those trained on",
    "tokens": "the same for tokens",
    "losses": "every loss of every rank is the same, bit for bit, without the agent",
    "slow rank": "the detector names the rank that is delayed from one step on, with an onset at most 3 steps off, and no other",
}
"""Signal -> what `yes` means, in the order of the columns."""

VERSIONS = {
    "torch": "2.13.0",
    "deepspeed": "0.19.8",
    "megatron-core": "0.16.1",
    "torchtitan": "0.3.0",
    "ray": "2.60.0",
    "lightning": "2.6.6",
    "trl": "1.16.0",
    "transformers": "5.23.0",
    "accelerate": "1.15.0",
}
"""What was run."""

STEPS, ONSET_STEP = 56, 40
"""Iterations of a job, and the first one in which its slow rank is delayed."""
WORK_S, DELAY_S = 0.2, 0.6
"""Time of each step, so that other processes of the machine add little to it, and what the slow rank takes longer."""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One row: a training script and what starts it. A signal without a cell is seen.

    `ends_by_exit`: its processes end by themselves; others are killed by their framework and cannot report their end.
    """

    title: str
    script: str
    launcher: str
    arguments: tuple[str, ...] = ()
    ranks: int = 2
    slow_rank: int = 1
    cells: dict[str, Cell] = field(default_factory=dict)
    note: str = ""
    ends_by_exit: bool = True

    def cell(self, signal: str) -> Cell:
        """Return what is seen of a signal."""
        return self.cells.get(signal, SEEN)


@dataclass(frozen=True, kw_only=True)
class NotRun:
    """A framework that was tried and does not run on a CPU."""

    title: str
    reason: str


FRAMEWORKS = {
    "deepspeed_zero1": Framework(
        title="DeepSpeed, ZeRO stage 1",
        script="deepspeed_zero.py",
        launcher="deepspeed",
        arguments=("1",),
        note="Accumulates over two batches. DeepSpeed describes no group: its group of all ranks is `world`.",
    ),
    "deepspeed_zero2": Framework(
        title="DeepSpeed, ZeRO stage 2",
        script="deepspeed_zero.py",
        launcher="torchrun",
        arguments=("2",),
        note="As stage 1, with gradients reduced after every batch.",
    ),
    "deepspeed_zero3": Framework(
        title="DeepSpeed, ZeRO stage 3",
        script="deepspeed_zero.py",
        launcher="torchrun",
        arguments=("3",),
        note="As stage 2, with parameters gathered for every batch.",
    ),
    "megatron_tp2_dp2": Framework(
        title="megatron-core, TP 2 x DP 2",
        script="megatron_gpt.py",
        launcher="torchrun",
        arguments=("2", "1"),
        ranks=4,
        slow_rank=2,
        note="GPT with the distributed optimizer, three micro-batches a step; the script answers for the CPU what it asks of "
        "CUDA. Only the first tensor-parallel ranks load data, so the others count neither samples nor tokens.",
    ),
    "megatron_pp2_dp2": Framework(
        title="megatron-core, PP 2 x DP 2",
        script="megatron_gpt.py",
        launcher="torchrun",
        arguments=("1", "2"),
        ranks=4,
        slow_rank=3,
        note="The same with two stages under the 1F1B schedule; sends and receives count as `pp`.",
    ),
    "torchtitan": Framework(
        title="torchtitan",
        script="torchtitan_llama.py",
        launcher="torchrun",
        note="Llama 3 fully sharded over all ranks, whose group is `world`; it logs in every step. The script answers for the CPU "
        "what it asks of a device and of a torch after 2.13, and has it attend without FlexAttention.",
    ),
    "ray_train": Framework(
        title="Ray Train",
        script="ray_train.py",
        launcher="python",
        ends_by_exit=False,
        note="Its workers know their rank only once they run. Ray kills its workers when they have trained, so their ranks report no end.",
    ),
    "lightning_script": Framework(
        title="Lightning, script launcher",
        script="lightning_ddp.py",
        launcher="python",
        arguments=("ddp",),
    ),
    "lightning_spawn": Framework(
        title="Lightning, spawn launcher",
        script="lightning_ddp.py",
        launcher="python",
        arguments=("ddp_spawn",),
    ),
    "trl": Framework(
        title="TRL SFTTrainer",
        script="trl_sft.py",
        launcher="torchrun",
        note="Its collectives include five gathers a step for its own metrics.",
    ),
    "transformers": Framework(
        title="Hugging Face Trainer",
        script="hf_trainer.py",
        launcher="torchrun",
        note="Accumulates over two batches; gathers the number of tokens once a step.",
    ),
    "accelerate": Framework(
        title="Accelerate",
        script="accelerate_loop.py",
        launcher="torchrun",
        note="Accumulates over two batches. `accelerate launch --cpu` starts one process, hence torchrun.",
    ),
}
"""Name -> row, in the order of docs/frameworks.md."""

NOT_RUN = (
    NotRun(
        title="torchtune 0.6.1",
        reason="it imports `torchao.dtypes.nf4tensor`, which torchao 0.18.0 does not have",
    ),
)
