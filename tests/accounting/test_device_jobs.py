"""Trainings of all kinds on a simulated device: what is measured of a step is what the device did, or it is missing."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from random import Random

import pytest

from lockstep.accounting import communication_marks
from lockstep.accounting.step_builder import StepBuilder
from lockstep.agent.device import event_queue
from lockstep.contracts.marks import KIND_MASK, MARK_STRUCT, ORDINAL_MASK, MarkKind
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, Flag
from tests.accounting.jobs import KINDS, Job
from tests.accounting.played import named
from tests.agent.device.marked import MarkedScene
from tests.agent.device.simulated import ASIDE, HOME, MS, Device
from tests.agent.mark_buffers import WRITERS

OPTIMIZERS = [object() for _ in range(4)]
ONE_ANCHOR = ("plain", "fused", "closure")
"""Jobs whose steps have one mark that may end a step."""


class DeviceTraining:
    """What a job calls, on a device of its own that `seed` decides about; `scene` records it.

    `device_ns` has, by the host's time of a mark that may end a step, when the device came to it. In a job that
    `is_gapless` the device never fails, captures nothing and is never far behind, so that every step is measured.
    """

    def __init__(self, scene, seed, *, is_gapless=False):
        self.scene = scene
        self.random = Random(seed)
        self.recorder = scene.recorder
        self.device = scene.device
        self.device_ns = {}
        self._in_flight = []
        self.is_often_synchronized = self.random.random() < 0.7
        self.is_ahead = self.random.random() < 0.2 and not is_gapless
        self.may_fail = not is_gapless
        self.captures = self.random.random() < 0.4 and self.may_fail
        self.replays = self.random.random() < 0.2

    @property
    def now_ns(self):
        return self.device.now

    def sleep(self, ns):
        """Keep the host busy, and the device."""
        self.device.host(ns)
        choice = self.random.random()
        if choice < 0.6:
            self.device.work(self.random.choice((0, 7, 30_000, 5 * MS, 40 * MS * (1 + 9 * self.is_ahead))))
        elif choice < 0.65 and self.is_often_synchronized:
            self.device.synchronize()
        elif choice < 0.67:
            self.device.capturing = self.captures and not self.device.capturing
        elif choice < 0.7 and self.replays:
            domain = self.random.randrange(len(DOMAIN_KINDS))
            self.recorder.note_unmeasured(self.random.choice((None, {domain: (2, 30, 40)})))

    def _mark(self, name, *arguments):
        self.device.host(1)  # no call is instant: two marks of one time would be one
        getattr(self.recorder, name)(*arguments)
        self.device_ns[self.device.now] = max(self.device.now, self.device.free_ns[self.device.current])

    def data_begin(self):
        self._mark("enter_data")

    def data_end(self, counts=None):
        self.device.host(1)
        self.scene.batch(counts)

    def backward_begin(self):
        self._mark("enter_backward")

    def backward_end(self):
        self._mark("leave_backward")

    def optimizer_begin(self, index):
        self._mark("enter_optimizer", OPTIMIZERS[index])

    def optimizer_end(self):
        self._mark("leave_optimizer")

    def scaler_begin(self, index, optimizer):
        self._mark("enter_scaler", OPTIMIZERS[index], OPTIMIZERS[optimizer])

    def scaler_end(self, index):
        self._mark("leave_scaler", OPTIMIZERS[index])

    def closure_begin(self):
        self._mark("enter_closure")

    def closure_end(self):
        self._mark("leave_closure")

    def phase_begin(self, phase):
        self._mark("enter_phase", phase)

    def phase_end(self, phase):
        self._mark("leave_phase", phase)

    def explicit(self):
        self._mark("begin_explicit")

    def step_end(self):
        self._mark("end_explicit")

    def issue(self, _operator, domain, _size, _payload, *, synchronous, ending="later"):
        """Issue a collective: on the current stream, on one of its own, on the communication's, or on the host."""
        self.device.host(1)
        scene, random = self.scene, self.random
        if random.random() < 0.2:
            collective = scene.issue(domain, synchronous=synchronous)
            if ending == "expect":
                self.recorder.expect(collective)
            elif ending == "unknown":
                scene.done_unknown(collective)
            else:
                self._in_flight.append(collective)
            return
        with scene.device.on(ASIDE) if random.random() < 0.2 else nullcontext():
            in_order = synchronous and random.random() < 0.8
            took_ns = random.choice((0, 9, 200_000, 3 * MS))
            scene.collective(took_ns, kind=domain, synchronous=synchronous, in_order=in_order)

    def done(self, index):
        """Note the end of a collective of the host, if one is in flight."""
        if self._in_flight:
            self.device.host(1)
            self.scene.done(self._in_flight.pop(index % len(self._in_flight)))

    def wait(self, *events):
        """Wait for communication while `events` (method, arguments) happen."""
        self.device.host(1)
        began_ns = self.recorder.begin_block()
        self.device.wait(HOME, self.random.choice((ASIDE, 2)))
        for method, *arguments in events:
            getattr(self, method)(*arguments)
        self.device.host(1)
        self.recorder.block(began_ns, self.device.now)

    def collect(self, generation, took_ns):
        self.device.host(1)
        self.scene.collect_garbage(took_ns, full=generation == 2)

    def unmeasured(self, traffic):
        self.recorder.note_unmeasured(traffic)

    def change_thread(self):
        self.scene.change_thread()

    def annotate(self, quantity, value):
        self.scene.annotate(quantity, value)

    def flag(self, flags):
        self.recorder.flag(flags)

    def spend(self, cost_ns):
        self.device.host(cost_ns)

    def compile(self, _graphs):
        self.device.lost |= self.may_fail and self.random.random() < 0.03


@dataclass(frozen=True)
class Played:
    """A job that was played: its records, its blocks, and when the device came to ends."""

    records: list
    blocks: list
    device_ns: dict

    @cached_property
    def host_records(self):
        """The records of the marks without a device; half of the tests compare none."""
        return host_records_of(self.blocks)


def without_device(blocks):
    """Return the blocks without the marks of a device."""
    for block in blocks:
        marks = MARK_STRUCT.iter_unpack(block.marks)
        kept = [mark for mark in marks if not MarkKind(mark[1] & KIND_MASK).name.startswith("DEVICE_")]
        yield replace(block, marks=b"".join(MARK_STRUCT.pack(*mark) for mark in kept))


def host_records_of(blocks):
    """Return the records of the blocks as those of a rank without a device; its positions have gaps, as its marks do."""
    builder, position, records = StepBuilder(), 0, []
    for block in without_device(blocks):
        records += [named(step.record) for step in builder.add(replace(block, position=position))]
        position += block.count
    return records


def play(seed, device=None, *, kinds=KINDS, writer="Python", is_gapless=False, issued=0, position=0):
    """Play a job to its end, after which the device is done with everything.

    `issued` collectives and `position` marks came before it in the attempt.
    """
    scene = MarkedScene(device or Device(), writer=writer, issued=issued, position=position)
    job = Job(None, Random(seed))
    job.kind = kinds[seed % len(kinds)]
    job.raises = job.raises and not is_gapless  # a batch that is never there hides which optimizers end a step
    training = job.training = DeviceTraining(scene, seed, is_gapless=is_gapless)
    job.run(40)
    if not scene.device.capturing:
        training.device.now = max(training.device.now, *training.device.free_ns)
    scene.recorder.finish()
    scene.check()
    return Played(scene.records, scene.ring.blocks(), training.device_ns)


@cache
def plain(seed):
    """Return the job of a seed as a writer in Python records it; who uses it changes nothing of it."""
    return play(seed)


HOST_FIELDS = (
    *("step", "gc_count", "gc_full_count", "cpu_ns", "samples", "tokens", "work", "model_flops", "recompilations"),
    *(f"{kind}_{name}" for kind in DOMAIN_KINDS for name in ("count", "bytes", "bus_bytes")),
)
"""What a device has no part in."""
WAITS = tuple(f"{kind}_wait_ns" for kind in DOMAIN_KINDS)


def assert_host_fields(played):
    """Hold that a device changes nothing of what it has no part in, nor which flags the training caused."""
    for ours, theirs in zip(played.records, played.host_records, strict=True):
        assert {name: ours[name] for name in HOST_FIELDS} == {name: theirs[name] for name in HOST_FIELDS}
        assert ours["flags"] | Flag.WARM_UP == theirs["flags"] | Flag.WARM_UP


def assert_device_lengths(played, tolerance_ns=0):
    """Hold that a step which was measured took the device what it took it; return how many were."""
    ends = [record["end_ns"] for record in played.host_records]
    measured = 0
    for (began_ns, end_ns), record in zip(pairwise(ends), played.records[1:], strict=True):
        if record["device_step_ns"] != MISSING:
            length_ns = played.device_ns[end_ns] - played.device_ns[began_ns]
            assert abs(record["device_step_ns"] - length_ns) <= tolerance_ns
            measured += 1
    return measured


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("seed", range(150))
def test_jobs_of_all_kinds(writer, seed):
    """Streams, waits, captures, replays, losses, hosts ahead and hosts that wait."""
    played = plain(seed) if writer == "Python" else play(seed, writer=writer)
    assert_host_fields(played)
    assert_device_lengths(played)


@pytest.mark.parametrize("seed", range(60))
def test_coarse_times_and_drift(seed):
    """Lengths are as exact as the driver's times, each rounded by itself, and no step is given up for that."""
    rate, grain = ((1.0003, 7), (0.9996, 512), (1.0, 1000))[seed % 3]
    played = play(seed, Device(rate=rate, grain=grain), kinds=ONE_ANCHOR, is_gapless=True)
    assert_host_fields(played)
    longest_ns = max(record["device_step_ns"] for record in played.records)
    measured = assert_device_lengths(played, tolerance_ns=abs(rate - 1) * longest_ns + grain)
    assert measured == len(played.records) - 1


@pytest.mark.parametrize("seed", range(60))
def test_a_host_that_no_event_is_left_for(monkeypatch, seed):
    """What finds no event is missing; what is measured all the same is what it is with events for everything."""
    whole = play(seed, kinds=ONE_ANCHOR)
    for name, value in (("EVENTS_MAX", 24), ("RESERVE", 1000), ("RARE_MAX", 2), ("READ_FROM", 8)):
        monkeypatch.setattr(event_queue, name, value)
    for name, value in (("READ_EVERY", 4), ("READ_COUNT", 8)):
        monkeypatch.setattr(event_queue, name, value)
    played = play(seed, kinds=ONE_ANCHOR)
    assert_host_fields(played)
    assert_device_lengths(played)
    for ours, theirs in zip(played.records, whole.records, strict=True):
        if ours["device_comm_ns"] != MISSING:  # then no wait is missing, which could be another domain's
            assert [ours[name] for name in WAITS] == [theirs[name] for name in WAITS]


@pytest.mark.parametrize("seed", range(100))
def test_communication_that_is_read_at_once(monkeypatch, seed):
    """It gives the records that it gives mark by mark."""
    monkeypatch.setattr(communication_marks, "ARRAYS_FROM", 1 << 40)
    expected = play(seed).records
    monkeypatch.setattr(communication_marks, "ARRAYS_FROM", 1)
    for ours, theirs in zip(play(seed).records, expected, strict=True):
        assert ours == theirs


BOTH_WAYS = pytest.mark.parametrize("arrays_from", [1, 1 << 40], ids=["at once", "mark by mark"])


@BOTH_WAYS
@pytest.mark.parametrize("seed", range(6))
def test_ordinals_that_begin_again_at_0(monkeypatch, seed, arrays_from):
    """An attempt of 2^32 collectives or marks gives the records of a shorter one."""
    monkeypatch.setattr(communication_marks, "ARRAYS_FROM", arrays_from)
    expected = play(seed).records
    assert play(seed, issued=ORDINAL_MASK - 40 * seed).records == expected
    assert play(seed, position=ORDINAL_MASK - 300 * seed).records == expected


def ended_a_step_later(issued):
    """Return the records of steps whose collectives each end in the step after, before the device has come there."""
    scene = MarkedScene(issued=issued)
    former = []
    for count in (3, 3, 0, 2, 3):
        scene.device.host(1)
        present = [scene.issue(0, synchronous=False) for _ in range(count)]
        scene.device.host(MS // 4)
        for collective in former:
            scene.done(collective)
        former = present
        scene.step()
    scene.finish()
    scene.check()
    return scene.records


@BOTH_WAYS
def test_a_collective_that_ends_in_a_later_step(monkeypatch, arrays_from):
    """Its end counts wherever in the steps ordinals begin again at 0."""
    monkeypatch.setattr(communication_marks, "ARRAYS_FROM", arrays_from)
    expected = ended_a_step_later(0)
    assert sum(record["device_comm_ns"] > 0 for record in expected) == 3
    for before in range(12):
        assert ended_a_step_later(ORDINAL_MASK - before) == expected


def test_the_jobs_are_what_they_claim():
    """Among them is every case that is compared."""
    records = [record for seed in range(60) for record in plain(seed).records]
    for name in ("gc_ns", "dp_wait_ns", "dp_comm_ns", "dp_shortest_ns", "device_comm_ns", "host_lead_ns", "data_ns"):
        assert any(record[name] > 0 for record in records), name
    measured = [record for record in records if record["device_step_ns"] != MISSING]
    assert 0.5 < len(measured) / len(records) < 0.99
    for flags in (0, Flag.WARM_UP):
        assert any(record["flags"] == flags for record in measured)
    assert any(record["dp_wait_ns"] == MISSING < record["dp_count"] for record in records)
