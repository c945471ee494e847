"""Causes that the nodes report: those count that a suspect has beyond its peers, or that most ranks of a slow job share."""

from dataclasses import replace

import pytest

from lockstep.contracts.finding import Finding
from lockstep.contracts.messages import HostSpan
from lockstep.diagnosis.root_cause import causes_beyond_peers, causes_of_many
from tests.diagnosis.summaries import STEPS, summary

STEP_NS = 200e6
EXCESS_NS = 100e6
_GREW = ("link", "data", "unknown")


def found_on_rank(cause, lost_ms, *, bottleneck="cpu", subject="", confidence="high"):
    """Return a finding that costs so many ms a step."""
    return Finding(
        bottleneck=bottleneck,
        cause=cause,
        ranks=(),
        subject=subject,
        evidence=(f"{cause} costs {lost_ms}",),
        confidence=confidence,
        lost_ns=None if lost_ms is None else round(lost_ms * STEPS * 1e6),
    )


def rank(number, *findings):
    return replace(summary(number, ("train", 100)), findings=list(findings))


def _crowded(number, waiting_ms, *findings):
    """Return a rank that waits so long of its step of 100 ms for a CPU."""
    return replace(rank(number, *findings), host=HostSpan(span_ns=10**9, run_queue_wait_ns=waiting_ms * 10**7))


def beyond(suspects, peers, *, cause="compute", excess_ns=EXCESS_NS):
    return causes_beyond_peers(cause, suspects, peers, excess_ns=excess_ns)


def test_a_cause_of_the_suspect_alone_explains_it():
    """What the suspect pays and its peers do not is reported with its rank, its evidence and its cost a step."""
    (found,) = beyond([rank(2, found_on_rank("gc", 80, subject="sweep"))], [rank(0), rank(1)])
    assert (found.cause, found.bottleneck, found.subject, found.ranks) == ("gc", "cpu", "sweep", (2,))
    assert found.lost_ns == 80_000_000
    assert found.evidence == ("gc costs 80",)


def test_what_peers_pay_as_well_is_no_cause():
    """A loader that holds up every rank alike is not why one of them is slower."""
    assert (
        beyond([rank(2, found_on_rank("data_reading", 90))], [rank(0, found_on_rank("data_reading", 85)), rank(1)])
        != []
    )
    peers = [rank(each, found_on_rank("data_reading", 85)) for each in (0, 1)]
    assert beyond([rank(2, found_on_rank("data_reading", 90))], peers) == []


def test_only_what_goes_beyond_the_peers_is_its_cost():
    """The cost is what is left when the peers' median is taken off."""
    peers = [rank(each, found_on_rank("gc", lost_ms)) for each, lost_ms in enumerate((10, 20, 30))]
    (found,) = beyond([rank(7, found_on_rank("gc", 80))], peers)
    assert found.lost_ns == 60_000_000


@pytest.mark.parametrize(("lost_ms", "explains"), [(29, False), (31, True)])
def test_a_cause_must_explain_enough_of_the_excess(lost_ms, explains):
    """Less than 0.3 of the measured excess is no answer."""
    assert bool(beyond([rank(2, found_on_rank("gc", lost_ms))], [rank(0)])) is explains


@pytest.mark.parametrize(("lost_ms", "explains"), [(9, False), (11, True)])
def test_without_a_measured_excess_a_cause_must_cost_a_tenth_of_the_step(lost_ms, explains):
    """An excess that is over, or not known, is no licence to name whatever differs by chance."""
    assert bool(beyond([rank(2, found_on_rank("gc", lost_ms))], [rank(0)], excess_ns=0.0)) is explains


def test_findings_of_one_cause_are_paid_together():
    """Three places that each synchronise a little make one cause; the dearest speaks."""
    places = [
        found_on_rank("synchronisation", lost_ms, subject=name) for name, lost_ms in (("a", 15), ("b", 20), ("c", 10))
    ]
    (found,) = beyond([rank(2, *places)], [rank(0)])
    assert (found.subject, found.lost_ns) == ("b", 45_000_000)


def test_what_the_detectors_measured_goes_first():
    """Of an incident of data the loader's cause is first, of one of compute that of the host, whatever costs more."""
    suspect = rank(
        2,
        found_on_rank("data_processing", 50, bottleneck="io"),
        found_on_rank("synchronisation", 60),
        found_on_rank("gc", 70),
    )
    first = {cause: beyond([suspect], [rank(0)], cause=cause)[0].cause for cause in ("data", "compute", "gc")}
    assert first == {"data": "data_processing", "compute": "synchronisation", "gc": "gc"}


def test_a_crowded_cpu_goes_before_what_it_prolongs():
    """Strangers on a core make the loader slow as well: where they hold most of the excess they are the reason."""
    reading = found_on_rank("data_reading", 90, bottleneck="io")
    first = {
        waiting_ms: beyond([_crowded(2, waiting_ms, reading)], [_crowded(0, 5)], cause="data")[0].cause
        for waiting_ms in (85, 50)
    }
    assert first == {85: "cpu_contention", 50: "data_reading"}


def test_a_crowded_cpu_is_held_against_the_excess_of_its_own_capture():
    """Strangers come and go: where fewer were captured than measured, what was captured is what they must hold."""
    reading = {2: 50, 0: 10, 1: 10}
    waiting = {2: (5, 80), 0: (60, 25), 1: (60, 25)}
    """In collectives and for a CPU, ms of 100: 55 beyond the peers were captured, 100 were measured."""
    crowded = {
        number: replace(
            _crowded(number, cpu_ms, found_on_rank("data_reading", reading[number], bottleneck="io")),
            tree=summary(number, ("train", 100 - standing_ms, ("wait for collectives", standing_ms))).tree,
        )
        for number, (standing_ms, cpu_ms) in waiting.items()
    }
    causes = beyond([crowded[2]], [crowded[0], crowded[1]], cause="data")
    assert [each.cause for each in causes] == ["cpu_contention", "data_reading"]


@pytest.mark.parametrize(
    ("standing_ms", "waiting_ms", "explains"),
    [
        pytest.param(70, 20, True, id="20 of 25 captured"),
        pytest.param(90, 9, False, id="less than ranks differ by in a capture"),
        pytest.param(30, 15, False, id="15 of 65 captured"),
    ],
)
def test_a_capture_of_fewer_strangers_than_were_measured(standing_ms, waiting_ms, explains):
    """Of a second a step at the onset a hundredth was captured: a cause explains what its own capture shows."""
    suspect, peer = (
        replace(
            _crowded(number, cpu_ms),
            tree=summary(number, ("train", 100 - held_ms, ("wait for collectives", held_ms))).tree,
        )
        for number, held_ms, cpu_ms in ((2, standing_ms, waiting_ms), (0, 95, 0))
    )
    causes = beyond([suspect], [peer], cause="unknown", excess_ns=1e9)
    assert [each.cause for each in causes] == ["cpu_contention"] * explains


def test_a_cause_of_unknown_cost_counts_only_where_no_peer_has_it():
    """Nothing can be taken off what no one measured."""
    suspect = rank(2, found_on_rank("environment", None))
    assert [each.cause for each in beyond([suspect], [rank(0)])] == ["environment"]
    assert beyond([suspect], [rank(0, found_on_rank("environment", None)), rank(1)]) == []


def test_suspects_of_one_cause_are_reported_together():
    """Two ranks of a slow host have one cause; the higher cost is reported."""
    (found,) = beyond([rank(5, found_on_rank("gc", 50)), rank(4, found_on_rank("gc", 90))], [rank(0)])
    assert (found.ranks, found.lost_ns) == ((4, 5), 90_000_000)


def test_a_job_has_the_causes_that_most_ranks_share():
    """Three of four ranks with a cause are most of them, two are not; the cost is their median."""
    many = [rank(each, found_on_rank("small_packets", 40 + each, bottleneck="communication")) for each in range(3)]
    few = [replace(each, findings=[*each.findings, found_on_rank("gc", 90)]) for each in many[:2]]
    (found,) = causes_of_many([*few, many[2], rank(3)], step_ns=STEP_NS, cause="link")
    assert (found.cause, found.ranks, found.lost_ns) == ("small_packets", (0, 1, 2), 41_000_000)


def test_a_job_has_no_cause_that_costs_next_to_nothing():
    """Below 2 % of the step a cause slows no one down."""
    cheap = [rank(each, found_on_rank("gc", 3.9)) for each in range(4)]
    dear = [rank(each, found_on_rank("gc", 4.1)) for each in range(4)]
    assert causes_of_many(cheap, step_ns=STEP_NS) == []
    assert [each.cause for each in causes_of_many(dear, step_ns=STEP_NS)] == ["gc"]


def test_of_a_job_only_what_grew_can_be_the_cause():
    """Where waiting grew it is the collectives, though the host costs as much and more: that it did before."""
    both = [found_on_rank("small_packets", 40, bottleneck="communication"), found_on_rank("synchronisation", 60)]
    ranks = [rank(each, *both) for each in range(4)]
    causes = {cause: [each.cause for each in causes_of_many(ranks, step_ns=STEP_NS, cause=cause)] for cause in _GREW}
    assert causes == {"link": ["small_packets"], "data": [], "unknown": ["synchronisation", "small_packets"]}


@pytest.mark.parametrize(("cause", "reason"), [("off_cpu", []), ("compute", []), ("gc", ["gc"]), ("unknown", ["gc"])])
def test_collections_of_every_step_are_the_reason_only_where_they_grew(cause, reason):
    """The job collected as long before; what grew was time off the CPU."""
    ranks = [rank(each, found_on_rank("gc", 58.5)) for each in range(2)]
    assert [each.cause for each in causes_of_many(ranks, step_ns=STEP_NS, cause=cause)] == reason


def test_nothing_captured_has_no_cause():
    """Without summaries there is no answer and no failure."""
    assert beyond([], []) == []
    assert causes_of_many([], step_ns=0.0) == []
