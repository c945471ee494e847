"""What sequences of marks become, under a clock of the test's own."""

from threading import Thread, get_ident

import pytest

from lockstep.agent import recorder as module
from lockstep.agent.account import UNKNOWN_NS, Collective
from lockstep.agent.recorder import Recorder
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, RECORD_FIELDS, Flag
from tests.agent.rings import unaccounted_ns


class Scene:
    """A recorder, its clock, and the records that came out."""

    def __init__(self, monkeypatch):
        self.now = 100
        self.records = []
        self.next_flags = 0
        self.beats = []
        monkeypatch.setattr(module, "monotonic_ns", lambda: self.now)
        monkeypatch.setattr(module, "thread_time_ns", lambda: self.now // 2)
        self.adoptions = 0
        self.recorder = Recorder(self._on_step, self._adopt)
        self.recorder.begin_attempt(self.now, self.beats.append)
        self.recorder.thread = get_ident()

    def _on_step(self, record, next_step):
        self.records.append(dict(zip(RECORD_FIELDS, record, strict=True)))
        assert next_step == len(self.records)
        return self.next_flags

    def _adopt(self):
        self.adoptions += 1
        return False

    def run(self, *what):
        """Play (method, time it takes) pairs: the time passes before the method is called."""
        for name, took, *arguments in what:
            self.now += took
            getattr(self.recorder, name)(*arguments)


@pytest.fixture
def scene(monkeypatch):
    scene = Scene(monkeypatch)
    yield scene
    for record in scene.records:
        assert unaccounted_ns(record) == 0
    for former, latter in zip(scene.records, scene.records[1:], strict=False):
        assert latter["start_ns"] == former["end_ns"]


OPTIMIZER = object()
DATA = (("enter_data", 1), ("leave_data", 10))
BACKWARD = (("enter_backward", 20), ("leave_backward", 40))
STEP = (("enter_optimizer", 2, OPTIMIZER), ("leave_optimizer", 5))


def test_plain_step(scene):
    """Data, forward up to backward, backward, optimizer; what is between is host."""
    scene.run(*DATA, *BACKWARD, *STEP)
    (record,) = scene.records
    assert (record["start_ns"], record["end_ns"]) == (100, 178)
    assert record["data_ns"] == 10
    assert (record["forward_ns"], record["backward_ns"], record["optimizer_ns"]) == (20, 40, 5)
    assert record["compute_ns"] == 65
    assert record["host_ns"] == 3
    assert record["cpu_ns"] == 39
    assert record["flags"] == Flag.WARM_UP


def test_fields_that_nobody_measured_are_missing(scene):
    """A kind never seen, a device, and a work figure are MISSING, not 0."""
    scene.run(*DATA, *BACKWARD, *STEP)
    record = scene.records[0]
    for name in ("device_step_ns", "work", "model_flops", "recompilations", "tokens", "samples"):
        assert record[name] == MISSING
    assert all(record[f"{kind}_wait_ns"] == MISSING for kind in DOMAIN_KINDS)
    assert record["gc_count"] == 0


def test_accumulation_is_one_step(scene):
    """Several batches and backwards until the optimizer steps are one step; each forward begins where its own does."""
    scene.run(*DATA, *BACKWARD, *DATA, *BACKWARD, *STEP)
    (record,) = scene.records
    assert record["data_ns"] == 20
    assert (record["forward_ns"], record["backward_ns"]) == (40, 80)


def test_second_optimizer_without_training_between_ends_no_step(scene):
    """DeepSpeed steps once per parameter group: one step, and the rest of the time is the next step's."""
    scene.run(*DATA, *BACKWARD, *STEP, ("enter_optimizer", 0, object()), ("leave_optimizer", 5))
    assert len(scene.records) == 1
    scene.run(*DATA, *BACKWARD, *STEP)
    assert scene.records[1]["optimizer_ns"] == 10


def test_nested_optimizers_and_backwards_count_once(scene):
    """A container around optimizers and torch.autograd.backward inside Tensor.backward are one span each."""
    inner = (("enter_optimizer", 1, object()), ("leave_optimizer", 3))
    scene.run(
        *DATA,
        ("enter_backward", 20),
        ("enter_backward", 1),
        ("leave_backward", 30),
        ("leave_backward", 1),
        ("enter_optimizer", 1, OPTIMIZER),
        *inner,
        *inner,
        ("leave_optimizer", 1),
    )
    (record,) = scene.records
    assert (record["backward_ns"], record["optimizer_ns"]) == (32, 9)


def test_backward_inside_optimizer_is_a_backward(scene):
    """A closure's backward splits the optimizer's span."""
    scene.run(*DATA, ("enter_optimizer", 1, OPTIMIZER), *BACKWARD, ("leave_optimizer", 7))
    (record,) = scene.records
    assert (record["optimizer_ns"], record["backward_ns"]) == (20 + 7, 40)


def test_optimizers_fused_into_backward_end_the_step_with_it(scene):
    """Optimizers that step inside backward belong to it, and the step ends where it does."""
    scene.run(*DATA, ("enter_backward", 20), *STEP, *STEP, ("leave_backward", 10))
    (record,) = scene.records
    assert record["backward_ns"] == 24
    assert record["end_ns"] == scene.now


def test_optimizer_that_raised_does_not_hide_later_steps(scene):
    """An optimizer step that raised never left; the next one of the same optimizer starts over."""
    scene.run(*DATA, *BACKWARD, ("enter_optimizer", 1, OPTIMIZER))
    scene.run(*DATA, *BACKWARD, *STEP)
    assert len(scene.records) == 1
    scene.run(*DATA, *BACKWARD, *STEP)
    assert len(scene.records) == 2
    assert scene.records[1]["optimizer_ns"] == 5


def test_samples_and_tokens_add_up(scene):
    """Batches of one step are summed; a step without any knows none."""
    scene.run(*DATA, ("count_batch", 0, 8, 128), *DATA, ("count_batch", 0, 8, MISSING), *BACKWARD, *STEP)
    scene.run(*BACKWARD, *STEP)
    assert [(record["samples"], record["tokens"]) for record in scene.records] == [(16, 128), (MISSING, MISSING)]


def test_kinds_once_seen_are_measured(scene):
    """Count, bytes, wait and shortest of a step's collectives; 0 in a step without any, shortest MISSING there."""
    scene.run(*DATA, ("enter_backward", 20))
    first = Collective(scene.now + 5, 3, 100, synchronous=False)
    second = Collective(scene.now + 10, 3, 50, synchronous=False)
    first.done_ns, second.done_ns = scene.now + 12, scene.now + 13
    scene.run(("issue", 5, first), ("issue", 5, second), ("leave_backward", 10), *STEP)
    scene.run(*DATA, *BACKWARD, *STEP)
    one, two = scene.records
    assert (one["dp_count"], one["dp_bytes"], one["dp_wait_ns"], one["dp_shortest_ns"]) == (2, 150, 3, 3)
    assert (two["dp_count"], two["dp_bytes"], two["dp_wait_ns"], two["dp_shortest_ns"]) == (0, 0, 0, MISSING)
    assert one["tp_count"] == MISSING
    assert one["dp_last_arrival_ns"] == MISSING


def test_a_collective_on_a_device_has_no_measured_wait(scene):
    """Its wait is missing rather than 0, its bytes and count are known, and the step still sums up."""
    collective = Collective(scene.now + 35, DOMAIN_KINDS.index("dp"), 64, synchronous=False)
    collective.done_ns = UNKNOWN_NS
    scene.run(*DATA, BACKWARD[0])
    scene.recorder.issue(collective)
    scene.recorder.block(scene.now + 36, scene.now + 38)
    scene.run(BACKWARD[1], *STEP)
    (record,) = scene.records
    assert (record["dp_wait_ns"], record["dp_shortest_ns"]) == (MISSING, MISSING)
    assert (record["dp_bytes"], record["dp_count"]) == (64, 1)


def test_wait_is_of_the_kind_last_issued(scene):
    """A seen wait counts for the last collective's kind, and for nothing before there was one."""
    scene.run(*DATA, ("block", 0, 105, 108), *BACKWARD)
    collective = Collective(scene.now + 1, 1, 4, synchronous=False)
    scene.run(("issue", 1, collective), ("block", 30, scene.now + 11, scene.now + 31), *STEP)
    assert scene.records[0]["cp_wait_ns"] == 20
    assert scene.records[0]["data_ns"] == 10


def test_collections_are_counted(scene):
    """Time and number of collections reach the record."""
    scene.run(*DATA, ("enter_backward", 20), ("collected", 5, 131, 133), ("leave_backward", 35), *STEP)
    record = scene.records[0]
    assert (record["gc_ns"], record["gc_count"]) == (2, 1)
    assert (record["backward_ns"], record["compute_ns"]) == (40, 63)


def test_flags_come_from_the_boundary_before(scene):
    """What the end of a step returns flags the step that begins; marks in between add to it."""
    scene.next_flags = int(Flag.PROFILED)
    scene.run(*DATA, *BACKWARD, *STEP, *DATA, ("flag", 0, int(Flag.EVALUATION)), *BACKWARD, *STEP)
    assert [record["flags"] for record in scene.records] == [Flag.WARM_UP, Flag.PROFILED | Flag.EVALUATION]


def test_other_threads_are_ignored(scene):
    """Marks of a thread that is not the training thread leave nothing behind, and adoption is asked for."""
    thread = Thread(target=scene.run, args=(*DATA, *BACKWARD, *STEP))
    thread.start()
    thread.join()
    assert scene.records == []
    assert scene.adoptions == 2
    scene.run(*DATA, *BACKWARD, *STEP)
    assert scene.records[0]["data_ns"] == 10


def test_inert_recorder_records_nothing(scene):
    """Thread 0 is nobody."""
    scene.recorder.thread = 0
    scene.run(*DATA, *BACKWARD, *STEP)
    assert scene.records == []
    assert not scene.recorder.records_here()


def test_signs_of_life(scene):
    """Data, backward, collectives and step ends beat."""
    scene.run(*DATA, *BACKWARD, *STEP)
    assert scene.beats == [111, 131, 178]
