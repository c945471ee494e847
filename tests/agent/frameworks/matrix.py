"""What the agent sees in which framework: declared here, shown in docs/frameworks.md, asserted by test_frameworks.py.

May live here: the claims. May not: how they are checked (evidence.py), what is run (scripts/).
"""

from dataclasses import dataclass
from enum import Enum


class Cell(Enum):
    """What the agent makes of one signal in one framework; the value is how docs/frameworks.md writes it."""

    SEEN = "yes"
    """It happens, and the records show it, exactly, in the right steps."""
    LEARNT = "once learnt"
    """Seen after ten iterations; until then each optimizer's step ends a record, flagged as warm-up."""
    NOT_SEEN = "no"
    """It happens, and the records hold nothing of it."""
    ABSENT = "-"
    """It does not happen in this training, and no record claims it."""


SEEN, LEARNT, NOT_SEEN, ABSENT = Cell

SIGNALS = {
    "steps": "one record per iteration",
    "data": "`data_ns` holds the time spent on batches",
    "forward": "`forward_ns` holds the time spent in forward",
    "backward": "`backward_ns` holds the time spent in backward",
    "optimizer": "`optimizer_ns` holds the time spent in the optimizer",
    "collectives": "number and bytes of collectives are those that the training's layout implies",
    "gc": "garbage collections and full ones are counted, each in its step",
    "samples": "samples per step are those trained on; evaluation is left out",
    "tokens": "the same for tokens",
    "evaluation": "exactly the steps in which an evaluation ran are flagged",
    "checkpoint": "exactly the steps in which a checkpoint was written are flagged",
    "skipped": "exactly the steps whose optimizer a gradient scaler skipped are flagged",
    "recompilations": "graphs compiled per step are dynamo's own count",
}
"""Signal -> what `yes` means, in the order of the columns."""

VERSIONS = {
    "torch": "2.13.0",
    "transformers": "5.23.0",
    "accelerate": "1.15.0",
    "lightning": "2.6.6",
    "torchdata": "0.11.0",
}
"""What was run."""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One row: a training script, and what is seen of it. Signals that are not named are `ABSENT`."""

    title: str
    script: str
    cells: dict[str, Cell]
    note: str = ""
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    compares: bool = False
    """Run without the agent as well, with the same losses and the same compilations."""

    def cell(self, signal: str) -> Cell:
        """Return what is seen of a signal."""
        return self.cells.get(signal, ABSENT)


_PHASES = dict.fromkeys(("data", "forward", "backward", "optimizer"), SEEN)
_USUAL = {"steps": SEEN, **_PHASES, "gc": SEEN, "samples": SEEN, "tokens": SEEN}

FRAMEWORKS = {
    "plain": Framework(
        title="plain loop",
        script="plain_loop.py",
        cells={**_USUAL, "evaluation": SEEN, "checkpoint": SEEN},
    ),
    "accumulation": Framework(
        title="gradient accumulation",
        script="accumulation.py",
        cells=_USUAL,
        note="Three backwards per optimizer step are one step.",
    ),
    "grad_scaler": Framework(
        title="GradScaler",
        script="grad_scaler.py",
        cells={**_USUAL, "skipped": SEEN},
        note="An iteration whose gradients overflowed ends a step as well.",
    ),
    "gan": Framework(
        title="two optimizers (GAN)",
        script="gan.py",
        cells={**_USUAL, "steps": LEARNT, "tokens": ABSENT},
        note="Two backwards and two optimizer steps are one step.",
    ),
    "closure": Framework(
        title="closure (LBFGS)",
        script="closure.py",
        cells=_USUAL,
        note="The optimizer calls forward and backward; its own time is what remains.",
    ),
    "compile_aot_eager": Framework(
        title="torch.compile, aot_eager",
        script="compiled.py",
        arguments=("aot_eager", "short_batch"),
        cells={**_USUAL, "recompilations": SEEN},
        compares=True,
        note="The same losses and the same compilations, first and again, with and without the agent.",
    ),
    "compile_inductor": Framework(
        title="torch.compile, inductor",
        script="compiled.py",
        arguments=("inductor",),
        cells={**_USUAL, "recompilations": SEEN},
        compares=True,
        note="As above, with one graph.",
    ),
    "ddp": Framework(
        title="DistributedDataParallel",
        script="ddp.py",
        ranks=2,
        cells={**_USUAL, "collectives": SEEN, "checkpoint": SEEN},
        note="Two ranks over gloo; the rank that saves is the one that is flagged. DDP lays out its buckets again in the second "
        "step, which has two more collectives.",
    ),
    "fsdp2": Framework(
        title="FSDP2 (fully_shard)",
        script="fsdp2.py",
        ranks=2,
        cells={**_USUAL, "collectives": SEEN, "checkpoint": SEEN},
        note="Two ranks over gloo; saved by torch.distributed.checkpoint.",
    ),
    "transformers": Framework(
        title="Hugging Face Trainer",
        script="hf_trainer.py",
        cells={**_USUAL, "evaluation": SEEN, "checkpoint": SEEN},
        note="Accumulates over two batches; fetches a step's batches before its first forward, and one ahead.",
    ),
    "accelerate": Framework(
        title="Accelerate",
        script="accelerate_loop.py",
        cells={**_USUAL, "evaluation": SEEN, "checkpoint": SEEN},
        note="Accumulates over two batches; fetches one batch ahead, so a run's last step counts one less.",
    ),
    "lightning": Framework(
        title="Lightning",
        script="lightning_fit.py",
        cells={**_USUAL, "evaluation": SEEN, "checkpoint": SEEN},
        note="Accumulates over two batches; the second one's forward and backward run inside the optimizer's step and count as what "
        "they are.",
    ),
    "torchdata": Framework(
        title="torchdata StatefulDataLoader",
        script="stateful_loader.py",
        cells={**_USUAL, "checkpoint": SEEN},
    ),
    "data_nodes": Framework(
        title="torchdata nodes",
        script="data_nodes.py",
        cells={**_USUAL, "data": NOT_SEEN, "samples": NOT_SEEN, "tokens": NOT_SEEN},
        note='No DataLoader: loading counts as forward unless the loop calls `lockstep.phase("data")`; '
        "`lockstep.annotate` reports samples and tokens.",
    ),
}
"""Name -> row, in the order of docs/frameworks.md."""
