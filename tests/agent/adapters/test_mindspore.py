"""The MindSpore callback, called as `Model.train` calls it, in a process without torch.

The calls and their parameters are those of MindSpore 2.10; examples/mindspore_training.py runs the real one.
"""

import subprocess
import sys

import pytest

from lockstep.contracts.records import MISSING, Flag
from tests.agent.rings import read_ring, unaccounted_ns

FRAMEWORK = """
import sys
import types

class Tensor:
    def __init__(self, dtype, *shape):
        self.dtype, self.shape, self.ndim = dtype, shape, len(shape)
    def numel(self):
        return self.shape[0] * self.shape[1]

class Callback:
    def step_begin(self, run_context):
        raise AssertionError("not replaced")
    step_end = on_eval_step_begin = on_eval_step_end = step_begin

mindspore = types.ModuleType("mindspore")
mindspore.Tensor, mindspore.Callback = Tensor, Callback
for name in ("int64", "int32", "int16", "uint8"):
    setattr(mindspore, name, name)
sys.modules["mindspore"] = mindspore
"""

TRAINING = """
import time
from lockstep.agent.adapters.mindspore import LockstepCallback

class RunContext:
    def __init__(self, parameters):
        self.parameters = parameters
    def original_args(self):
        return self.parameters

class Checkpoint:
    _last_triggered_step = 0

def train(callback, batch, steps=3):
    saving = Checkpoint()
    parameters = {"list_callback": [saving, callback]}
    context = RunContext(parameters)
    callback.on_train_begin(context)
    for epoch in range(2):
        callback.on_train_epoch_begin(context)
        for step in range(steps):
            time.sleep(0.01)
            parameters["train_dataset_element"] = batch
            callback.on_train_step_begin(context)
            time.sleep(0.03)
            if step == 1:
                saving._last_triggered_step += 2
            callback.on_train_step_end(context)
        callback.on_eval_begin(context)
        callback.on_eval_step_begin(context)
        callback.on_eval_step_end(context)
        callback.on_eval_end(context)
        callback.on_train_epoch_end(context)
    callback.on_train_end(context)
"""
IDENTITY = {"RANK_ID": "1", "RANK_SIZE": "4", "DEVICE_ID": "1"}


def run(code, root, **identity):
    environ = {"LOCKSTEP_DIR": str(root), "LOCKSTEP_RUN": "job", **identity}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    """Train two epochs of three steps, evaluate after each, save in the second step of each."""
    root = tmp_path_factory.mktemp("shm")
    code = 'callback = LockstepCallback()\nassert isinstance(callback, Callback)\ntrain(callback, (Tensor("int32", 4, 16),))'
    run(FRAMEWORK + TRAINING + code, root, **IDENTITY)
    return read_ring(root / "job" / "1.ring")


def test_steps_end_where_the_framework_ends_them(ring):
    """Each step is one exact record of the rank that MindSpore's launcher names, and the rank ended well."""
    assert (ring.header.rank, ring.header.local_rank, ring.header.world_size) == (1, 1, 4)
    assert [record["step"] for record in ring.records] == list(range(6))
    assert [unaccounted_ns(record) for record in ring.records] == [0] * 6
    assert (ring.state, ring.failures) == (2, 0)


def test_waiting_for_data_and_the_network_are_distinguished(ring):
    """The wait before a step is data, the network's run compute."""
    for index, record in enumerate(ring.records):
        assert record["compute_ns"] >= 30_000_000
        if index != 3:  # the wait begins again after an evaluation, in the next step
            assert record["data_ns"] >= 10_000_000
    assert ring.records[1]["backward_ns"] == MISSING


def test_evaluations_and_checkpoints_are_flagged(ring):
    """A step in which another callback saved, and the one that follows an evaluation, are like no other."""
    flags = [record["flags"] for record in ring.records]
    assert flags == [Flag.WARM_UP, Flag.CHECKPOINT, 0, Flag.EVALUATION, Flag.CHECKPOINT, 0]


def test_batches_are_counted(ring):
    """Samples and tokens come from the batch's shape and type, as with torch."""
    assert {(record["samples"], record["tokens"]) for record in ring.records} == {(4, 64)}


def test_without_the_framework(tmp_path):
    """A loop of another kind may call the same methods under their old names: steps without counts."""
    code = (
        "c = LockstepCallback()\nc.begin(None)\nfor _ in range(3):\n    c.step_begin(None); c.step_end(RunContext({}))"
    )
    run(TRAINING + code, tmp_path, RANK="0")
    records = read_ring(tmp_path / "job" / "0.ring").records
    assert [(record["step"], record["samples"]) for record in records] == [(step, MISSING) for step in range(3)]


def test_without_a_rank_it_does_nothing(tmp_path):
    """A process that is no rank trains as without the callback, silently."""
    run(FRAMEWORK + TRAINING + 'train(LockstepCallback(), (Tensor("int32", 4, 16),))', tmp_path, RANK_ID="-1")
    assert list(tmp_path.iterdir()) == []
