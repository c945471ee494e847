"""What a step holds besides its spans: batches, collectives and waits, collections, flags."""

from lockstep.accounting.quantities import BATCHES_MAX, StepQuantities
from lockstep.contracts.marks import FLOPS_UNITS, flops_argument
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, Flag
from tests.accounting.scene import BACKWARD, BATCH, DATA, STEP


def test_fields_that_were_not_measured_are_missing(scene):
    """A kind never seen, a device, and a work figure are MISSING, not 0."""
    scene.run(*DATA, *BACKWARD, *STEP)
    record = scene.records[0]
    for name in ("device_step_ns", "work", "model_flops", "recompilations", "tokens", "samples"):
        assert record[name] == MISSING
    assert all(record[f"{kind}_wait_ns"] == MISSING for kind in DOMAIN_KINDS)
    assert record["gc_count"] == 0


def test_samples_and_tokens_add_up(scene):
    """Batches of one step are summed; a step without any knows none."""
    scene.run(*DATA, ("batch", 0, 8, 128, MISSING), *DATA, ("batch", 0, 8, MISSING, MISSING), *BACKWARD, *STEP)
    scene.run(*BACKWARD, *STEP)
    assert [(record["samples"], record["tokens"]) for record in scene.records] == [(16, 128), (MISSING, MISSING)]


def test_kinds_once_seen_are_measured(scene):
    """Count, bytes, wait and shortest of a step's collectives; 0 in a step without any, shortest MISSING there."""
    scene.run(*DATA, ("backward_begin", 20))
    first, second = scene.issue(5, "dp", 100), scene.issue(5, "dp", 50)
    scene.run(("done", 2, first), ("done", 1, second), ("backward_end", 7), *STEP)
    scene.run(*DATA, *BACKWARD, *STEP)
    one, two = scene.records
    assert (one["dp_count"], one["dp_bytes"], one["dp_wait_ns"], one["dp_shortest_ns"]) == (2, 150, 3, 3)
    assert (two["dp_count"], two["dp_bytes"], two["dp_wait_ns"], two["dp_shortest_ns"]) == (0, 0, 0, MISSING)
    assert one["tp_count"] == MISSING
    assert (one["dp_bus_bytes"], two["dp_bus_bytes"]) == (225, 0)
    assert (one["dp_comm_ns"], two["dp_comm_ns"]) == (8, 0)


def test_a_collective_on_a_device_has_no_measured_wait(scene):
    """Its wait is missing rather than 0, its bytes and count are known, and the step still sums up."""
    scene.run(*DATA, BACKWARD[0])
    scene.run(("done_unknown", 0, scene.issue(15, "dp", 64)), ("wait_begin", 1), ("wait_end", 2))
    scene.run(BACKWARD[1], *STEP)
    (record,) = scene.records
    assert (record["dp_wait_ns"], record["dp_comm_ns"], record["dp_shortest_ns"]) == (MISSING, MISSING, MISSING)
    assert (record["dp_bytes"], record["dp_count"]) == (64, 1)


def test_phases_are_unknown_where_a_wait_of_theirs_is(scene):
    """What was seen of an unmeasured wait is compute's, but of which phase is not known: none of them is given."""
    scene.run(*DATA, BACKWARD[0])
    scene.run(("done_unknown", 0, scene.issue(5, "dp", 64)), ("wait_begin", 1), ("wait_end", 2))
    scene.run(("backward_end", 32), *STEP)
    (record,) = scene.records
    assert record["compute_ns"] == 65
    assert [record[f"{phase}_ns"] for phase in ("forward", "backward", "optimizer")] == [MISSING] * 3


def test_the_agents_own_time_never_exceeds_the_threads(scene):
    """What is spent in a step, and no more than the CPU time of the step."""
    for spent_ns in (0, 7, 500):
        scene.run(*DATA, ("spend", 0, spent_ns), *BACKWARD, *STEP)
    assert [record["cpu_ns"] for record in scene.records] == [39, 39, 39]
    assert [record["agent_ns"] for record in scene.records] == [0, 7, 39]


def test_cpu_time_of_another_thread_is_not_measured(scene):
    """A step that one thread began and another one ended has no CPU time, rather than a negative one."""
    scene.cpu_ns = iter((5_000, 1_000)).__next__
    scene.marks.begin()
    scene.run(*DATA, *BACKWARD, *STEP)
    assert scene.records[-1]["cpu_ns"] == MISSING


def test_marks_and_collectives_cost_what_the_attempt_begins_with(scene):
    """No one measures each mark; a step's cost is the number of its marks and collectives, and what was spent besides."""
    scene.marks.mark_cost_ns, scene.marks.collective_cost_ns = 1, 10
    scene.marks.begin()
    scene.run(*DATA, ("done", 0, scene.issue(1, "dp", 8)), ("spend", 0, 3), *BACKWARD, *STEP)
    assert scene.records[-1]["agent_ns"] == 9 + 10 + 3


def test_a_wait_for_nothing_known_is_of_the_kind_last_issued(scene):
    """A seen wait counts for the last collective's kind when none is done near it, and for nothing before one."""
    scene.run(*DATA, ("wait_begin", 1), ("wait_end", 3), *BACKWARD)
    scene.issue(1, "cp", 4)
    scene.run(("wait_begin", 10), ("wait_end", 20), *STEP)
    assert scene.records[0]["cp_wait_ns"] == 20
    assert scene.records[0]["data_ns"] == 10


def test_collections_are_counted(scene):
    """Time and number of collections reach the record."""
    scene.run(*DATA, ("backward_begin", 20), ("collect", 1, "start", {"generation": 2}))
    scene.run(("collect", 2, "stop", {"generation": 2}), ("backward_end", 37), *STEP, *DATA, *BACKWARD, *STEP)
    record = scene.records[0]
    assert (record["gc_ns"], record["gc_count"], scene.records[1]["gc_count"]) == (2, 1, 0)
    assert record["gc_full_count"] == 1
    assert (record["forward_ns"], record["backward_ns"], record["optimizer_ns"]) == (20, 38, 5)
    assert record["compute_ns"] == 63


def test_flags_of_a_boundary_are_the_following_steps(scene):
    """What is flagged at a step's end is the step that begins; marks in between add to it."""
    scene.run(*DATA, *BACKWARD, *STEP, ("flag", 0, int(Flag.PROFILED)))
    scene.run(*DATA, ("flag", 0, int(Flag.EVALUATION)), *BACKWARD, *STEP)
    assert [record["flags"] for record in scene.records] == [Flag.WARM_UP, Flag.PROFILED | Flag.EVALUATION]


def test_a_wait_is_of_the_kind_that_was_done_at_its_end(scene):
    """Two kinds in flight: who waits for the first one waits for its kind, though the other was issued last."""
    scene.run(*DATA)
    tensor, data = scene.issue(1, "tp", 4), scene.issue(1, "dp", 4)
    scene.run(("wait_begin", 8), ("done", 19, tensor), ("wait_end", 1), ("done", 15, data), ("backward_begin", 5))
    scene.run(BACKWARD[1], *STEP)
    (record,) = scene.records
    assert (record["tp_wait_ns"], record["dp_wait_ns"]) == (20, 0)


def test_what_nothing_completes_is_done_when_it_was_waited_for(scene):
    """A collective without completion lasts from its issue to the end of the next wait, and its kind waited."""
    scene.run(*DATA)
    scene.run(("expect", 0, scene.issue(1, "pp", 4)))
    scene.issue(0, "dp", 4)
    scene.run(("wait_begin", 0), ("wait_end", 19), *BACKWARD, *STEP)
    (record,) = scene.records
    assert (record["pp_wait_ns"], record["pp_comm_ns"], record["pp_shortest_ns"]) == (19, 19, 19)
    assert record["dp_wait_ns"] == 0


def test_what_no_one_waited_for_is_forgotten_at_the_end_of_the_step(scene):
    """It does not take a later step's wait for its own."""
    scene.run(*DATA)
    scene.run(("expect", 0, scene.issue(5, "pp", 4)), *BACKWARD, *STEP)
    scene.run(("expect", 0, scene.issue(0, "tp", 4, synchronous=True)), ("wait_begin", 0), ("wait_end", 9))
    scene.run(*BACKWARD, *STEP)
    assert scene.records[0]["pp_shortest_ns"] == 0
    assert (scene.records[1]["pp_wait_ns"], scene.records[1]["tp_wait_ns"]) == (0, 9)


def test_bus_bytes_that_the_operator_does_not_show(scene):
    """What a training states that a collective moved goes before what its operator makes of the payload."""
    scene.run(*DATA)
    scene.run(("issue_bus", 0, scene.issue(1, "dp", 4), 99), *BACKWARD, *STEP)
    assert (scene.records[0]["dp_bytes"], scene.records[0]["dp_bus_bytes"]) == (4, 99)


def test_annotations_replace_what_is_counted(scene):
    """A quantity that the training annotates adds up, and its automatic count is dropped from then on."""
    scene.run(("model_flops", 0, FLOPS_UNITS.index("token"), flops_argument(2.5)))
    scene.run(*DATA, ("batch", 0, 8, 128, 9), ("annotate", 0, 1, 5), ("annotate", 0, 1, 6))
    scene.run(*DATA, ("batch", 0, 8, 128, 9), *BACKWARD, *STEP)
    scene.run(*DATA, ("batch", 0, 8, 128, MISSING), ("annotate", 0, 3, 77), *BACKWARD, *STEP)
    first, second = scene.records
    assert (first["samples"], first["tokens"], first["work"], first["model_flops"]) == (16, 11, 18, 27)
    assert (second["samples"], second["tokens"], second["work"], second["model_flops"]) == (8, MISSING, MISSING, 77)


def test_model_flops_hold_from_the_running_step_on(scene):
    """Per token, per sample or per step, as the process knows them last; not known, and beyond a record, is MISSING."""
    for unit, flops in (("token", 2.0), ("sample", 5.0), ("step", 7.0), ("unknown", 0.0), ("token", 2.0**60)):
        scene.run(("model_flops", 0, FLOPS_UNITS.index(unit), flops_argument(flops)), *BATCH, *BACKWARD, *STEP)
    scene.run(*BATCH, *BACKWARD, *STEP)
    assert [record["model_flops"] for record in scene.records] == [64, 20, 7, MISSING, MISSING, MISSING]


def test_compilations_are_counted_by_step(scene):
    """The difference between two step ends is the step's, read from counters that a training may clear."""
    scene.marks.compilations = counters = {"stats": {"unique_graphs": 0}}
    for compiled in (3, 3, 5, 1):
        counters["stats"]["unique_graphs"] = compiled
        scene.run(*DATA, *BACKWARD, *STEP)
    assert [record["recompilations"] for record in scene.records] == [3, 0, 2, 1]


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


def test_a_million_evaluation_batches_are_not_held(scene):
    """A long evaluation costs no memory, and is taken out of the step's samples all the same."""
    plain = (*BATCH, *BACKWARD, *STEP)
    scene.run(*plain * 3)
    scene.run(*BATCH * 5000, *plain, *plain)
    assert [record["samples"] for record in scene.records] == [4] * 5
    assert [bool(record["flags"] & Flag.EVALUATION) for record in scene.records] == [False] * 3 + [True, False]
    quantities = StepQuantities()
    for _ in range(5000):
        quantities.add_batch((4, 32, MISSING))
    assert len(quantities._batches) <= BATCHES_MAX


def test_a_step_of_many_batches_holds_them_all(scene):
    """More batches of one step than are kept apart, each with its backward, are all counted."""
    scene.run(*BATCH, *BACKWARD, *STEP, *(BATCH + BACKWARD) * (2 * BATCHES_MAX), *STEP)
    assert scene.records[1]["samples"] == 4 * 2 * BATCHES_MAX


def test_a_thread_that_takes_over_begins_the_running_step_again(scene):
    """What the former thread left in it is dropped, and the step is a warm-up."""
    scene.run(*DATA, *BACKWARD, *STEP, *DATA, *BACKWARD, ("change_thread", 5), *DATA, *BACKWARD, *STEP)
    first, second = scene.records
    assert (second["data_ns"], second["backward_ns"], second["flags"]) == (10, 40, Flag.WARM_UP)
    assert second["start_ns"] == first["end_ns"]


def test_optimizers_that_autograds_own_thread_steps_end_the_step_with_the_backward(scene):
    """On a device they are fused into a backward that another thread carries out."""
    scene.run(*DATA, ("backward_begin", 20))
    scene.claim = 2
    scene.run_elsewhere(("optimizer_begin", 2, object()), ("optimizer_end", 3))
    scene.run(("backward_end", 10))
    (record,) = scene.records
    assert (record["backward_ns"], record["end_ns"]) == (15, scene.now)
