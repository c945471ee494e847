"""MindSpore under Lockstep: a small network trained on the CPU, with the callback that reports where steps end.

    pip install . mindspore    # in a checkout of Lockstep
    RANK=0 LOCKSTEP_DIR=/dev/shm/lockstep python examples/mindspore_training.py

Under MindSpore's launcher the callback finds the rank by itself. The steps are then in the ring of rank 0, where the
exporter reads them; this example prints them.
"""

import os
import tempfile
import time
from pathlib import Path

import mindspore
import numpy as np
from mindspore import nn
from mindspore.dataset import GeneratorDataset
from mindspore.train import CheckpointConfig, ModelCheckpoint

from lockstep.agent.adapters.mindspore import LockstepCallback
from lockstep.agent.identity import read_identity
from lockstep.contracts import ring
from lockstep.contracts.records import MISSING, RECORD_FIELDS, RECORD_STRUCT

SHOWN = ("step", "flags", "data_ns", "compute_ns", "host_ns", "gc_ns", "samples", "tokens")
BATCHES = 8
SLOW_BATCH = 5
SLOW_SECONDS = 1.0  # MindSpore fetches ahead: a shorter delay is hidden


class Batches:
    """Token sequences and their classes; one batch of each pass comes late."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return one sample."""
        if index // 4 == SLOW_BATCH:
            time.sleep(SLOW_SECONDS / 4)
        tokens = np.random.default_rng(index).integers(0, 50, 16)
        return tokens.astype(np.int32), np.array(tokens[0] % 5, np.int32)

    def __len__(self) -> int:
        """Return the number of samples."""
        return 4 * BATCHES


def main() -> None:
    """Train for two epochs, evaluate after each, save every third step."""
    network = nn.SequentialCell(nn.Embedding(50, 8), nn.Flatten(), nn.Dense(128, 32), nn.ReLU(), nn.Dense(32, 5))
    model = mindspore.Model(
        network,
        loss_fn=nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
        optimizer=nn.Adam(network.trainable_params()),
        metrics={"accuracy"},
    )
    batches = GeneratorDataset(Batches(), ["tokens", "target"], shuffle=False, num_parallel_workers=1).batch(4)
    with tempfile.TemporaryDirectory() as directory:
        saving = ModelCheckpoint(directory=directory, config=CheckpointConfig(save_checkpoint_steps=3))
        model.fit(2, batches, batches, callbacks=[saving, LockstepCallback()], dataset_sink_mode=False)
    identity = read_identity(os.environ)
    show(identity.directory / f"{identity.rank}.ring")


def show(path: Path) -> None:
    """Print what the agent recorded."""
    data = path.read_bytes()
    header = ring.unpack_header(data, where=str(path), file_bytes=len(data))
    head = memoryview(data).cast("Q")[ring.WORD_HEAD]
    print(" ".join(f"{name:>11}" for name in SHOWN))
    for index in range(min(head, header.slot_count)):
        offset = ring.SLOTS_OFFSET + index * ring.SLOT_BYTES
        slot = ring.unpack_slot(data[offset : offset + ring.SLOT_BYTES])
        if slot is None:
            continue
        record = dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(slot[1]), strict=True))
        print(" ".join(f"{'-' if record[name] == MISSING else record[name]:>11}" for name in SHOWN))


if __name__ == "__main__":
    main()
