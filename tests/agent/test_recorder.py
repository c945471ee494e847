"""What sequences of marks become, under a clock of the test's own."""

from threading import Thread, get_ident

import pytest

from lockstep.agent import recorder as module
from lockstep.agent.account import UNKNOWN_NS, Collective
from lockstep.agent.garbage import CollectionLog
from lockstep.agent.quantities import BATCHES_MAX
from lockstep.agent.recorder import Recorder
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, RECORD_FIELDS, RECORD_STRUCT, Flag
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
        self.recorder = Recorder(self._store, self._at_boundary, self._adopt)
        self.recorder.begin_attempt(self.now, self.beats.append)
        self.recorder.thread = get_ident()

    def _store(self, record):
        self.records.append(dict(zip(RECORD_FIELDS, RECORD_STRUCT.unpack(record), strict=True)))

    def _at_boundary(self, next_step):
        assert next_step == len(self.records)
        return self.next_flags

    def _adopt(self):
        self.adoptions += 1
        return False

    def run(self, *what):
        """Play (method, time it takes) pairs: the time passes before the method is called."""
        for name, took, *arguments in what:
            self.now += took
            owner = self.recorder if hasattr(self.recorder, name) else self.recorder.quantities
            getattr(owner, name)(*arguments)


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
BATCH = (*DATA, ("add_batch", 0, 4, 32, MISSING))
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


def test_optimizer_alone_ends_a_step_where_nothing_else_is_ever_seen(scene):
    """Without a data loader and a visible backward, each optimizer step is the only sign of a training step."""
    scene.run(*STEP, *STEP)
    assert len(scene.records) == 2
    assert scene.records[1]["backward_ns"] == MISSING


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
    scene.run(*DATA, ("add_batch", 0, 8, 128, MISSING), *DATA, ("add_batch", 0, 8, MISSING, MISSING), *BACKWARD, *STEP)
    scene.run(*BACKWARD, *STEP)
    assert [(record["samples"], record["tokens"]) for record in scene.records] == [(16, 128), (MISSING, MISSING)]


def test_kinds_once_seen_are_measured(scene):
    """Count, bytes, wait and shortest of a step's collectives; 0 in a step without any, shortest MISSING there."""
    scene.run(*DATA, ("enter_backward", 20))
    first = Collective(scene.now + 5, 3, 100, 150, synchronous=False)
    second = Collective(scene.now + 10, 3, 50, 75, synchronous=False)
    first.done_ns, second.done_ns = scene.now + 12, scene.now + 13
    scene.run(("issue", 5, first), ("issue", 5, second), ("leave_backward", 10), *STEP)
    scene.run(*DATA, *BACKWARD, *STEP)
    one, two = scene.records
    assert (one["dp_count"], one["dp_bytes"], one["dp_wait_ns"], one["dp_shortest_ns"]) == (2, 150, 3, 3)
    assert (two["dp_count"], two["dp_bytes"], two["dp_wait_ns"], two["dp_shortest_ns"]) == (0, 0, 0, MISSING)
    assert one["tp_count"] == MISSING
    assert (one["dp_bus_bytes"], two["dp_bus_bytes"]) == (225, 0)
    assert (one["dp_comm_ns"], two["dp_comm_ns"]) == (8, 0)


def test_a_collective_on_a_device_has_no_measured_wait(scene):
    """Its wait is missing rather than 0, its bytes and count are known, and the step still sums up."""
    collective = Collective(scene.now + 35, DOMAIN_KINDS.index("dp"), 64, 64, synchronous=False)
    collective.done_ns = UNKNOWN_NS
    scene.run(*DATA, BACKWARD[0])
    scene.recorder.issue(collective)
    scene.recorder.block(scene.now + 36, scene.now + 38)
    scene.run(BACKWARD[1], *STEP)
    (record,) = scene.records
    assert (record["dp_wait_ns"], record["dp_comm_ns"], record["dp_shortest_ns"]) == (MISSING, MISSING, MISSING)
    assert (record["dp_bytes"], record["dp_count"]) == (64, 1)


def test_a_wait_for_nothing_known_is_of_the_kind_last_issued(scene):
    """A seen wait counts for the last collective's kind when none is done near it, and for nothing before one."""
    scene.run(*DATA, ("block", 0, 105, 108), *BACKWARD)
    collective = Collective(scene.now + 1, 1, 4, 4, synchronous=False)
    scene.run(("issue", 1, collective), ("block", 30, scene.now + 11, scene.now + 31), *STEP)
    assert scene.records[0]["cp_wait_ns"] == 20
    assert scene.records[0]["data_ns"] == 10


def test_collections_are_counted(scene):
    """Time and number of collections reach the record."""
    log = scene.recorder.garbage = CollectionLog()
    scene.run(*DATA, ("enter_backward", 20))
    log.events.extend([(131, get_ident(), True), (133, get_ident(), False), (134, 0, True), (139, 0, False)])
    scene.run(("leave_backward", 40), *STEP, *DATA, *BACKWARD, *STEP)
    record = scene.records[0]
    assert (record["gc_ns"], record["gc_count"], scene.records[1]["gc_count"]) == (2, 1, 0)
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


def test_a_wait_is_of_the_kind_that_was_done_at_its_end(scene):
    """Two kinds in flight: who waits for the first one waits for its kind, though the other was issued last."""
    scene.run(*DATA)
    tensor = Collective(scene.now + 1, DOMAIN_KINDS.index("tp"), 4, 4, synchronous=False)
    data = Collective(scene.now + 2, DOMAIN_KINDS.index("dp"), 4, 4, synchronous=False)
    tensor.done_ns, data.done_ns = scene.now + 29, scene.now + 90
    scene.run(("issue", 1, tensor), ("issue", 1, data), ("block", 28, scene.now + 10, scene.now + 30), *BACKWARD, *STEP)
    (record,) = scene.records
    assert (record["tp_wait_ns"], record["dp_wait_ns"]) == (20, 0)


def test_what_nobody_completes_is_done_when_it_was_waited_for(scene):
    """A collective without completion lasts from its issue to the end of the next wait, and its kind waited."""
    scene.run(*DATA)
    other = Collective(scene.now + 1, DOMAIN_KINDS.index("dp"), 4, 4, synchronous=False)
    receive = Collective(scene.now + 1, DOMAIN_KINDS.index("pp"), 4, 4, synchronous=False)
    scene.run(("issue", 1, receive), ("expect", 0, receive), ("issue", 0, other))
    scene.run(("block", 19, scene.now, scene.now + 19), *BACKWARD, *STEP)
    (record,) = scene.records
    assert (record["pp_wait_ns"], record["pp_comm_ns"], record["pp_shortest_ns"]) == (19, 19, 19)
    assert record["dp_wait_ns"] == 0


def test_what_nobody_waited_for_is_forgotten_at_the_end_of_the_step(scene):
    """It does not take a later step's wait for its own."""
    send = Collective(scene.now + 5, DOMAIN_KINDS.index("pp"), 4, 4, synchronous=False)
    scene.run(*DATA, ("issue", 5, send), ("expect", 0, send), *BACKWARD, *STEP)
    receive = Collective(scene.now, DOMAIN_KINDS.index("tp"), 4, 4, synchronous=True)
    scene.run(("issue", 0, receive), ("expect", 0, receive), ("block", 9, scene.now, scene.now + 9), *BACKWARD, *STEP)
    assert scene.records[0]["pp_shortest_ns"] == 0
    assert (scene.records[1]["pp_wait_ns"], scene.records[1]["tp_wait_ns"]) == (0, 9)


def test_a_gan_is_one_step_once_it_is_learnt(scene):
    """Two optimizers that step in turn end a step each, flagged, until ten repeats; then one for both."""
    first, second = object(), object()
    one = (*DATA, *BACKWARD, ("enter_optimizer", 2, first), ("leave_optimizer", 5))
    other = (*BACKWARD, ("enter_optimizer", 2, second), ("leave_optimizer", 5))
    scene.run(*(one + other) * 10)
    assert len(scene.records) == 20
    assert {record["flags"] for record in scene.records[1:]} == {Flag.WARM_UP}
    scene.run(*(one + other) * 5)
    assert len(scene.records) == 25
    assert [(record["flags"], record["backward_ns"]) for record in scene.records[20:]] == [(0, 80)] * 5


def test_several_steps_of_one_optimizer_are_one_step_once_learnt(scene):
    """An optimizer called per parameter group ends a step at its last call, not at the first."""
    again = (("enter_optimizer", 1, OPTIMIZER), ("leave_optimizer", 5))
    iteration = (*DATA, *BACKWARD, *STEP, *again, *again)
    scene.run(*iteration * 13)
    assert len(scene.records) == 13
    assert [record["optimizer_ns"] for record in scene.records[11:]] == [15, 15]
    assert scene.records[-1]["end_ns"] == scene.now


def test_a_skipped_optimizer_ends_a_flagged_step(scene):
    """A scaler that met an overflow calls no optimizer: the iteration is a step, and says so."""
    scaler = object()
    enter, leave = ("enter_scaler", 2, scaler, OPTIMIZER), ("leave_scaler", 5, scaler)
    inner = (("enter_optimizer", 1, OPTIMIZER), ("leave_optimizer", 3))
    for skipped in (False, True, False):
        scene.run(*DATA, *BACKWARD, enter, *(() if skipped else inner), leave)
    assert [record["flags"] for record in scene.records] == [Flag.WARM_UP, Flag.SKIPPED_OPTIMIZER, 0]
    assert [record["optimizer_ns"] for record in scene.records] == [9, 5, 9]


def test_steps_end_where_the_training_says_so(scene):
    """After the first explicit end no optimizer ends a step, and each explicit one does."""
    scene.run(("end_explicit", 10), *DATA, *BACKWARD, *STEP, *DATA, *BACKWARD, *STEP, ("end_explicit", 7))
    assert [record["step"] for record in scene.records] == [0, 1]
    assert (scene.records[1]["backward_ns"], scene.records[1]["end_ns"]) == (80, scene.now)


def test_named_phases_fill_the_account(scene):
    """Phases that the training names are spans; an outer one wins."""
    scene.run(("enter_phase", 1, 0), ("leave_phase", 9, 0), ("enter_phase", 1, 1), ("enter_phase", 1, 2))
    scene.run(("leave_phase", 5, 2), ("leave_phase", 6, 1), ("enter_phase", 1, 2), ("leave_phase", 8, 2))
    scene.run(("end_explicit", 3))
    (record,) = scene.records
    assert (record["data_ns"], record["forward_ns"], record["backward_ns"]) == (9, 12, 8)
    assert (record["compute_ns"], record["host_ns"]) == (20, 6)


def test_annotations_replace_what_is_counted(scene):
    """A quantity that the training annotates adds up, and its automatic count is dropped from then on."""
    scene.recorder.flops = lambda samples, tokens: samples + tokens
    scene.run(*DATA, ("add_batch", 0, 8, 128, 9), ("annotate", 0, "tokens", 5), ("annotate", 0, "tokens", 6))
    scene.run(("add_batch", 0, 8, 128, 9), *BACKWARD, *STEP)
    scene.run(*DATA, ("add_batch", 0, 8, 128, MISSING), ("annotate", 0, "flops", 77), *BACKWARD, *STEP)
    first, second = scene.records
    assert (first["samples"], first["tokens"], first["work"], first["model_flops"]) == (16, 11, 18, 27)
    assert (second["samples"], second["tokens"], second["work"], second["model_flops"]) == (8, MISSING, MISSING, 77)


def test_compilations_are_counted_by_step(scene):
    """The difference between two step ends is the step's."""
    compiled = iter((3, 3, 5))
    scene.recorder.compilations = lambda: next(compiled)
    for _ in range(3):
        scene.run(*DATA, *BACKWARD, *STEP)
    assert [record["recompilations"] for record in scene.records] == [3, 0, 2]


def test_batches_without_backward_are_an_evaluation(scene):
    """A step with many batches more than backwards is flagged, once; a prefetched batch is none; twice is the new usual."""
    plain = (*BATCH, *BACKWARD, *STEP)
    scene.run(*plain, *plain, *BATCH, *plain, *BATCH * 5, *plain, *plain)
    assert [record["flags"] for record in scene.records] == [Flag.WARM_UP, 0, 0, Flag.EVALUATION, 0]
    scene.run(*BATCH * 5, *plain, *plain)
    assert [record["flags"] for record in scene.records[5:]] == [Flag.EVALUATION, 0]
    assert [record["samples"] for record in scene.records] == [4, 4, 8, 4, 4, 4, 4]
    scene.run(*(BATCH * 4 + plain) * 3)
    assert [record["flags"] for record in scene.records[7:]] == [Flag.EVALUATION, 0, 0]


def test_backwards_of_a_compiler_are_no_evaluation_after_them(scene):
    """The first step's batches came before anybody looked, and tracing a model runs backwards of its own, once."""
    plain = (*BATCH, *BATCH, *BACKWARD, *BACKWARD, *STEP)
    scene.run(*BACKWARD, *BACKWARD, *STEP, *plain, *BACKWARD, *BACKWARD, *plain, *plain)
    assert [record["flags"] for record in scene.records] == [Flag.WARM_UP, 0, 0, 0]


def test_closure_is_forward_and_backward(scene):
    """What an optimizer calls to evaluate the model is forward and backward, as often as it does; the rest is its own."""
    evaluation = (("enter_closure", 3), *BACKWARD, ("leave_closure", 1))
    scene.run(*DATA, ("enter_optimizer", 2, OPTIMIZER), *evaluation, *evaluation, ("leave_optimizer", 5))
    (record,) = scene.records
    assert (record["forward_ns"], record["backward_ns"], record["optimizer_ns"]) == (42, 80, 11)


def test_a_million_evaluation_batches_are_not_kept(scene):
    """A long evaluation costs no memory, and is taken out of the step's samples all the same."""
    plain = (*BATCH, *BACKWARD, *STEP)
    scene.run(*plain * 3)
    quantities = scene.recorder.quantities
    for _ in range(5000):
        quantities.add_batch(4, 32, MISSING)
    assert len(quantities._batches) <= BATCHES_MAX
    scene.run(*plain, *plain)
    assert [record["samples"] for record in scene.records] == [4] * 5
    assert [bool(record["flags"] & Flag.EVALUATION) for record in scene.records] == [False] * 3 + [True, False]


def test_a_step_of_many_batches_holds_them_all(scene):
    """More batches of one step than are kept apart, each with its backward, are all counted."""
    scene.run(*BATCH, *BACKWARD, *STEP, *(BATCH + BACKWARD) * (2 * BATCHES_MAX), *STEP)
    assert scene.records[1]["samples"] == 4 * 2 * BATCHES_MAX


def test_flags_are_noted_before_the_step_ends(scene):
    """What is said of a running step is told at once, and taken back when the next one begins."""
    noted, issued = [], []
    scene.recorder.begin_attempt(
        scene.now, scene.beats.append, lambda slot, now_ns: issued.append((slot, now_ns)), noted.append
    )
    scene.recorder.flag(int(Flag.CHECKPOINT))
    collective = Collective(scene.now, 0, 8, 8, synchronous=False)
    scene.recorder.issue(collective, 3)
    scene.recorder.end_explicit()
    scene.recorder.end_explicit()
    assert noted == [int(Flag.CHECKPOINT | Flag.WARM_UP), 0]
    assert issued == [(3, scene.now)]
