"""What a step holds besides its spans: batches, collectives and waits, collections, flags."""

from threading import get_ident

from lockstep.agent import running_step
from lockstep.agent.account import UNKNOWN_NS, Collective
from lockstep.agent.garbage import CollectionLog
from lockstep.agent.quantities import BATCHES_MAX
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, Flag
from tests.agent.scene import BACKWARD, BATCH, DATA, STEP


def test_fields_that_nobody_measured_are_missing(scene):
    """A kind never seen, a device, and a work figure are MISSING, not 0."""
    scene.run(*DATA, *BACKWARD, *STEP)
    record = scene.records[0]
    for name in ("device_step_ns", "work", "model_flops", "recompilations", "tokens", "samples"):
        assert record[name] == MISSING
    assert all(record[f"{kind}_wait_ns"] == MISSING for kind in DOMAIN_KINDS)
    assert record["gc_count"] == 0


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


def test_phases_are_unknown_where_a_wait_of_theirs_is(scene):
    """What was seen of an unmeasured wait is compute's, but of which phase is not known: none of them is given."""
    collective = Collective(scene.now + 35, DOMAIN_KINDS.index("dp"), 64, 64, synchronous=False)
    collective.done_ns = UNKNOWN_NS
    scene.run(*DATA, BACKWARD[0])
    scene.recorder.issue(collective)
    scene.recorder.block(scene.now + 6, scene.now + 8)
    scene.run(BACKWARD[1], *STEP)
    (record,) = scene.records
    assert record["compute_ns"] == 65
    assert [record[f"{phase}_ns"] for phase in ("forward", "backward", "optimizer")] == [MISSING] * 3


def test_the_agents_own_time_is_thread_time(scene, monkeypatch):
    """A boundary in which the thread sleeps costs its CPU time, and all of it is never more than the step's."""
    cpu = iter((0, 1_000, 1_030, 2_000, 2_050, 2_060, 2_070))
    monkeypatch.setattr(running_step, "thread_time_ns", lambda: next(cpu))
    scene.recorder.begin_attempt(scene.now, scene.beats.append)
    for spent_ns in (0, 7, 500):
        scene.run(*DATA, ("spend", 0, spent_ns), *BACKWARD, *STEP)
    assert [record["cpu_ns"] for record in scene.records] == [1_000, 1_000, 60]
    assert [record["agent_ns"] for record in scene.records] == [0, 30 + 7, 60]


def test_cpu_time_of_another_thread_is_not_measured(scene, monkeypatch):
    """A step that one thread began and another one ended has no CPU time, rather than a negative one."""
    cpu = iter((5_000, 1_000, 1_010))
    monkeypatch.setattr(running_step, "thread_time_ns", lambda: next(cpu))
    scene.recorder.begin_attempt(scene.now, scene.beats.append)
    scene.run(*DATA, *BACKWARD, *STEP)
    assert scene.records[0]["cpu_ns"] == MISSING


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
    events = [(131, get_ident(), True), (133, get_ident(), False), (134, 0, True), (139, 0, False)]
    log.events.extend((*event, None) for event in events)
    scene.run(("leave_backward", 40), *STEP, *DATA, *BACKWARD, *STEP)
    record = scene.records[0]
    assert (record["gc_ns"], record["gc_count"], scene.records[1]["gc_count"]) == (2, 1, 0)
    assert (record["forward_ns"], record["backward_ns"], record["optimizer_ns"]) == (20, 38, 5)
    assert record["compute_ns"] == 63


def test_flags_come_from_the_boundary_before(scene):
    """What the end of a step returns flags the step that begins; marks in between add to it."""
    scene.next_flags = int(Flag.PROFILED)
    scene.run(*DATA, *BACKWARD, *STEP, *DATA, ("flag", 0, int(Flag.EVALUATION)), *BACKWARD, *STEP)
    assert [record["flags"] for record in scene.records] == [Flag.WARM_UP, Flag.PROFILED | Flag.EVALUATION]


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
