"""Groups, nodes and networks that transfer more slowly than they should."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.scenarios import model
from benchmarks.scenarios.catalogue import SCENARIOS
from benchmarks.scenarios.job import NOISY, Fault
from coordinator.detect.links.slow_link import SlowLinkTest
from coordinator.intake.timeline import StepRow
from coordinator.settings.policy import Policy
from tests.coordinator.scenarios import Scenario, generate

POLICY = Policy()
RANKS_PER_NODE = 8


def found(recording, *, moved=None):
    """Return {domain: first step found} over a recording."""
    ranks = np.arange(recording.topology.world_size)
    test = SlowLinkTest(recording.topology.domains, ranks, POLICY.link, POLICY.excess)
    first = {}
    for row in recording.rows():
        if moved is not None:
            row.moved.update({kind: value * moved[row.step] for kind, value in row.moved.items()})
        test.step(row, row.step)
        for slow in test.found(float(row.duration.max())):
            first.setdefault((slow.domain.kind, slow.domain.ranks), row.step)
    return first


class Job:
    """A generated job before a test of its links. A late record is evaluated without."""

    def __init__(self, scenario, *, seconds=1.0):
        self.recording = model.generate(scenario)
        self.seconds = seconds
        self.steps = len(self.recording.step_W)
        self.world = self.recording.topology.world_size
        self.test = self.fresh()
        self.said = {}

    def fresh(self):
        hosts = [f"n{rank // RANKS_PER_NODE}" for rank in range(self.world)]
        return SlowLinkTest(
            self.recording.topology.domains, np.arange(self.world), POLICY.link, POLICY.excess, hosts=hosts
        )

    def row(self, step):
        recording = self.recording
        here = recording.present[step] & ~recording.late[step]

        def known(values, scale=1.0):
            return np.where(here, values * scale, np.nan).astype(np.float64)

        waits = {kind: known(values[step], self.seconds) for kind, values in recording.waits.items()}
        floors = {kind: known(values[step], self.seconds) for kind, values in recording.transfers.items()}
        duration = known(np.full(self.world, recording.duration_W[step]), self.seconds)
        return StepRow(
            step=step,
            end_unix_s=0.0,
            ranks=np.arange(self.world),
            present=here,
            flags=recording.flags[step],
            duration=duration,
            self_seconds=duration,
            components={},
            waits=waits,
            transfers=waits | ({"pp": floors["pp"]} if "pp" in floors else {}),
            floors=floors,
            moved={kind: known(values) for kind, values in recording.moved.items()},
            tokens=duration,
            work=duration,
        )

    def run(self, begin=0, end=None):
        """Evaluate steps; return {what was reported: first step}."""
        for step in range(begin, self.steps if end is None else end):
            self.test.step(self.row(step), step)
            for slow in self.now(step):
                self.said.setdefault((slow.scope, slow.node, slow.ranks), (step, slow))
        return self.said

    def now(self, step):
        return self.test.found(self.recording.duration_W[step] * self.seconds)


def short(name, ranks, seed=77, *, after=15, **more):
    """Return a scenario that ends soon after its fault has begun."""
    scenario = SCENARIOS[name](ranks, seed)
    begin = scenario.faults[0].begin if scenario.faults else 85
    return replace(scenario, steps=begin + after, **more)


def wanted(job, fault):
    """Return (scope, node, ranks) of what a link fault must be called."""
    if fault.wanted == "job":
        return ("job", "", ())
    if fault.wanted == "node":
        return ("node", f"n{fault.ranks[0] // RANKS_PER_NODE}", fault.ranks)
    (group,) = (d for d in job.recording.topology.domains if d.kind in fault.kinds and fault.ranks[0] in d.ranks)
    return ("group", "", group.ranks)


LINKS = ("link tp", "link pp", "link dp", "link ep", "network of all")


@pytest.mark.parametrize(
    ("name", "ranks"), [*((name, ranks) for name in LINKS for ranks in (8, 128)), ("nic of a node", 128)]
)
def test_half_bandwidth_is_found_in_its_group_its_node_or_the_job(name, ranks):
    """Soon, with its onset, and nothing else is reported."""
    scenario = short(name, ranks)
    job = Job(scenario)
    said = job.run()
    (fault,) = scenario.faults
    assert said.keys() == {wanted(job, fault)}
    ((step, slow),) = said.values()
    assert step <= fault.begin + 4
    assert abs(slow.onset_step - fault.begin) <= 2
    assert 0.7 < slow.excess_ratio < 1.3


@pytest.mark.parametrize(
    ("name", "ranks"), [("link tp", 8), ("link pp", 128), ("link dp", 128), ("link ep", 8), ("nic of a node", 128)]
)
def test_slow_from_the_first_step_is_found_among_its_peers(name, ranks):
    """There is no past to be slower than."""
    scenario = SCENARIOS[name](ranks, 78)
    job = Job(replace(scenario, faults=(replace(scenario.faults[0], begin=0),), steps=40))
    said = job.run()
    assert said.keys() == {wanted(job, scenario.faults[0])}
    ((_, slow),) = said.values()
    assert slow.onset_step == 0
    assert "over those of groups alike, from the first step on" in " ".join(slow.evidence)


def test_half_of_the_tensor_groups_slow_from_the_first_step_are_all_found():
    """The reference of peers is a low quantile: the half that is well stays the measure."""
    scenario = SCENARIOS["link tp"](128, 79)
    half = tuple(range(0, 128, 8))
    fault = Fault(cause="link", ranks=half, ratio=1.0, wanted="group", kinds=("tp",), begin=0)
    job = Job(replace(scenario, faults=(fault,), steps=40))
    said = job.run()
    assert {ranks for _, _, ranks in said} == {tuple(range(first, first + 4)) for first in half}


@pytest.mark.parametrize("who", ["rank", "replica", "stage"])
@pytest.mark.parametrize("missing", [0.001, 0.03])
def test_slow_ranks_are_no_slow_links(who, missing):
    """Their victims wait longer; the last arriver waits as before, also under contention and with records lost."""
    stage = 32  # ranks of tp=4, pp=4, dp=8
    ranks = {"rank": (37,), "replica": tuple(r for r in range(128) if r % stage // 4 == 3), "stage": range(32, 64)}
    scenario = short("noisy", 128, noise=NOISY)
    scenario = replace(
        scenario,
        degrees="tp=4,pp=4,dp=8",
        faults=(Fault(cause="compute", ranks=tuple(ranks[who]), ratio=0.5, begin=50),),
        interruptions=replace(scenario.interruptions, missing=missing, restart_at=None),
    )
    assert Job(scenario).run() == {}


@pytest.mark.parametrize("name", ["quiet", "many pauses", "noisy", "last stage", "sequences", "experts", "batch ramp"])
@pytest.mark.parametrize("jitter", [0.03, 0.1])
def test_healthy_jobs_have_no_slow_links(name, jitter):
    """Unflagged pauses, imbalance, stalls, contention, lost and late records, and transfers that scatter."""
    scenario = short(name, 8, interruptions=replace(SCENARIOS[name](8, 1).interruptions, restart_at=None))
    assert Job(replace(scenario, noise=replace(scenario.noise, jitter=jitter))).run() == {}


def test_what_is_found_does_not_depend_on_the_time_scale():
    """A job a thousand times as fast states the same at the same steps."""
    scenario = short("nic of a node", 128)
    slow, fast = Job(scenario), Job(scenario, seconds=1e-3)
    assert [(key, step) for key, (step, _) in slow.run().items()] == [(k, step) for k, (step, _) in fast.run().items()]
    assert slow.said


def test_a_node_that_recovers_is_a_node_to_the_end():
    """Alarms of its groups end one by one, and none of them is reported as a link of its own."""
    scenario = short("nic of a node", 128, after=60)
    (fault,) = scenario.faults
    scenario = replace(scenario, faults=(replace(fault, end=fault.begin + 30),))
    job = Job(scenario)
    assert job.run().keys() == {wanted(job, fault)}
    assert job.now(job.steps - 1) == []


def test_groups_that_are_about_to_alarm_are_waited_for():
    """Eight lanes over the same two nodes are one anomaly, reported once, although one lane alarms a step later."""
    scenario = short("link dp", 8)
    begin = scenario.faults[0].begin
    fault = Fault(cause="link", ranks=tuple(range(16)), ratio=1.0, wanted="group", kinds=("dp",), begin=begin)
    job = Job(replace(scenario, degrees="tp=8,dp=2", faults=(fault,)))
    job.recording.present[begin : begin + 5] = True
    job.recording.late[begin : begin + 5] = False
    job.recording.present[begin + 1, 3] = False
    said = job.run()
    assert said.keys() == {("group", "", tuple(range(16)))}
    ((step, slow),) = said.values()
    assert step == begin + 3
    assert slow.evidence[0].startswith("8 of 8 dp groups are slow; they cross the same nodes")


def test_a_anomaly_carries_what_it_rests_on():
    """The groups, how much longer they take, their noise and the threshold."""
    job = Job(short("nic of a node", 128))
    ((_, slow),) = job.run().values()
    assert slow.domain is None
    assert slow.evidence[0].startswith("4 of 4 dp and 8 of 8 pp groups that cross node n")
    assert any("transfers of dp domain dp" in line and "over their own past" in line for line in slow.evidence)
    assert slow.numbers["threshold_ratio"] == POLICY.link.effect_ratio
    assert slow.numbers["groups"] == 12
    assert 0 < slow.numbers["noise_ratio"] < 0.1
    assert slow.transfer_seconds == pytest.approx(2 * slow.numbers["past_seconds"], rel=0.2)
    # 10 ms of pipeline and 40 ms (the first stage: 88 ms) of replica transfer are doubled.
    assert 0.04 < slow.excess_seconds < 0.11


def test_the_memory_of_a_test_goes_on_in_another():
    """After a restart of the coordinator in the middle of a fault, its alarm still stands and its past is the old."""
    scenario = short("link tp", 8, after=30)
    job = Job(scenario)
    cut = scenario.faults[0].begin + 10
    job.run(0, cut)
    before = dict(job.said)
    state = {name: values.copy() for name, values in job.test.state_dict().items()}
    job.test, job.said = job.fresh(), {}
    job.test.load_state_dict(state)
    job.run(cut)
    assert job.said.keys() == before.keys()
    ((step, slow),) = job.said.values()
    assert step == cut
    assert abs(slow.onset_step - scenario.faults[0].begin) <= 2
    assert job.now(job.steps - 1) != []


def test_the_memory_of_other_groups_is_left_alone():
    """A test that recalls it is as it was."""
    other, job = Job(short("link tp", 8)), Job(short("link dp", 128))
    other.run(0, 30)
    before = {name: values.copy() for name, values in job.test.state_dict().items()}
    job.test.load_state_dict(other.test.state_dict())
    job.test.load_state_dict({})
    for name, values in job.test.state_dict().items():
        np.testing.assert_array_equal(values, before[name])


def test_thresholds_may_change_while_a_run_goes_on():
    """What was too little to report is reported, and what was reported is too little."""
    job = Job(short("link tp", 8, after=30))
    begin = job.steps - 30
    job.test.set_policy(replace(POLICY.link, effect_ratio=3.0), POLICY.excess)
    assert job.run(0, begin + 15) == {}
    job.test.set_policy(POLICY.link, POLICY.excess)
    assert job.run(begin + 15, begin + 25) != {}
    job.test.set_policy(replace(POLICY.link, step_share=0.5), POLICY.excess)
    assert job.now(begin + 24) == []


@pytest.mark.parametrize("bytes_known", [False, True])
def test_a_link_that_turns_slow_after_a_larger_batch_is_found(bytes_known):
    """Without bytes a larger batch begins the groups' past again, and a group in alarm keeps its own."""
    scenario = short("link tp", 8, after=40)
    job, (fault,) = Job(scenario), scenario.faults
    if not bytes_known:
        job.recording.moved.clear()
    said = {}
    for step in range(job.steps):
        job.test.step(job.row(step), step, is_new_work=step in (fault.begin - 10, fault.begin + 20))
        now = {(slow.scope, slow.node, slow.ranks) for slow in job.now(step)}
        said |= dict.fromkeys(now - said.keys(), step)
        assert step < fault.begin + 5 or now == {wanted(job, fault)}
    assert said.keys() == {wanted(job, fault)}


def test_a_slow_tensor_group_is_named_alone():
    """The last arriver of the slow group waits longer than it ever did; every other group is as before."""
    scenario = Scenario(degrees="tp=2,dp=4").with_fault("tp", 2, 3, seconds=0.03, begin=60)
    first = found(generate(scenario))
    assert first.keys() == {("tp", (2, 3))}
    assert 62 <= first["tp", (2, 3)] <= 63


def test_a_slow_rank_is_not_a_slow_link():
    """Its peers wait for it, but it is the last arriver itself and waits for the transfer only."""
    scenario = Scenario(degrees="tp=2,dp=4").with_fault("compute", 3, seconds=0.2, begin=60)
    assert found(generate(scenario)) == {}


def test_a_group_with_a_missing_member_says_nothing():
    """Without the last arriver's record the least wait is somebody's waiting."""
    recording = generate(Scenario(degrees="tp=2,dp=4").with_fault("compute", 3, seconds=0.2, begin=60))
    recording.present[60:, 3] = False
    assert found(recording) == {}


def test_a_large_group_is_evaluated_without_a_few_of_its_members():
    """Of 32 ranks another one is missing in every step, as always in large groups."""
    recording = generate(Scenario(degrees="dp=32").with_fault("dp", *range(32), seconds=0.05, begin=60))
    for step in range(len(recording.present)):
        recording.present[step, step * 7 % 32] = False
    first = found(recording)
    assert 62 <= first["dp", tuple(range(32))] <= 64


def test_a_healthy_upper_bound_ends_an_alarm():
    """A link that recovers is well although one rank of its group is missing for good."""
    recording = generate(Scenario(degrees="dp=4").with_fault("dp", *range(4), seconds=0.05, begin=60, end=80))
    recording.present[70:, 1] = False
    ranks = np.arange(4)
    test = SlowLinkTest(recording.topology.domains, ranks, POLICY.link, POLICY.excess)
    told = []
    for row in recording.rows():
        test.step(row, row.step)
        told.append(len(test.found(0.5)))
    assert told[65] == 1
    assert told[75] == 1
    assert told[-1] == 0


def test_a_job_without_groups_has_no_slow_link():
    """A training announces its groups as it forms them, and may fail before; a warning fails the test."""
    recording = generate(Scenario(degrees="dp=4", steps=20))
    test = SlowLinkTest([], np.arange(4), POLICY.link, POLICY.excess)
    for row in recording.rows():
        test.step(row, row.step)
        assert test.found(1.0) == []


def test_of_transfers_that_were_hidden_no_endless_multiple_is_stated():
    """They took no time that a step shows, so the ratio is of a tenth of what would matter to a step."""
    recording = generate(Scenario(degrees="dp=4", steps=80))
    ranks = np.arange(recording.topology.world_size)
    test = SlowLinkTest(recording.topology.domains, ranks, POLICY.link, POLICY.excess)
    for row in recording.rows():
        row.transfers["dp"] = np.full(len(ranks), 0.0 if row.step < 60 else 0.2) * row.duration
        test.step(row, row.step)
    (slow,) = test.found(float(row.duration.max()))
    worth_s = POLICY.link.step_share / POLICY.link.effect_ratio * float(row.duration.max())
    assert slow.excess_ratio == pytest.approx(slow.excess_seconds / (0.1 * worth_s), rel=0.1)
    assert "hidden before" in slow.evidence[-1]


def test_steps_without_transfers_show_nothing():
    """In an evaluation step by step nothing is reduced: transfers that come back afterwards take what they took."""
    recording = generate(Scenario(degrees="dp=4", steps=200))
    evaluated = np.arange(200) % 80 >= 50
    for waits in recording.waits.values():
        waits[evaluated] *= 0.01
    assert found(recording, moved=np.where(evaluated, 0.0, 1.0)) == {}


def test_more_bytes_are_no_slower_link():
    """Twice the time for twice the bytes is the same link."""
    recording = generate(Scenario(degrees="dp=4").with_fault("dp", *range(4), seconds=0.05, begin=60))
    assert found(recording) != {}
    assert found(recording, moved=np.where(np.arange(120) < 60, 1.0, 2.0)) == {}
