"""On a simulated device the marks of a step give the record that today's agent writes for the same training."""

from contextlib import nullcontext
from functools import partial
from random import Random

import pytest

from lockstep.agent.device import event_queue
from lockstep.contracts.records import DOMAIN_KINDS, MISSING, Flag
from tests.accounting.jobs import Job
from tests.accounting.oracle import timeline
from tests.accounting.recorded import RecordedScene
from tests.agent.device.marked import MarkedScene
from tests.agent.device.simulated import ASIDE, HOME, MS, Device

OPTIMIZERS = [object() for _ in range(4)]
ONE_ANCHOR = ("plain", "fused", "closure")
"""Jobs whose steps have one mark that may end a step. Steps of others are read earlier than today's, at any such mark,
and their distances are sums of what a driver rounds."""


class DeviceTwin:
    """What tests/accounting's jobs call, on a device of its own that `seed` decides about; `scene` records it.

    `is_read_alike` says that steps are read when today's are, so that it may matter; `is_gapless` that all are.
    """

    def __init__(self, scene, seed, *, is_read_alike=True, is_gapless=False):
        self.scene = scene
        self.random = Random(seed)
        self.recorder = scene.recorder
        self.device = scene.device
        self._in_flight = []
        self.is_often_synchronized = self.random.random() < 0.7
        self.is_ahead = self.random.random() < 0.2 and not is_gapless
        self.may_fail = is_read_alike and not is_gapless
        self.captures = self.random.random() < 0.4 and self.may_fail
        self.is_read_alike = is_read_alike
        self.replays = self.random.random() < 0.2
        # A domain is 0 and not missing from the record on that is built after it was first seen, today's at a later end.
        self.recorder.note_unmeasured(dict.fromkeys(range(len(DOMAIN_KINDS)), (0, 0, 0)))

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
            if ending == "expect" or (ending == "later" and not self.is_read_alike):
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

    def capture(self, _flags, _took_ns=0):
        self.device.synchronize()


def records_of(scene_type, monkeypatch, seed, device=None, *, kinds=None, is_gapless=False, is_steady=False):
    """Return the records of one job; one that `is_steady` has no spans inside others, which have events for nothing."""
    with monkeypatch.context() as patched:
        device = device or Device()
        scene = RecordedScene(patched, device) if scene_type is RecordedScene else scene_type(device)
        job = Job(None, Random(seed))
        if kinds is not None:
            job.kind = kinds[seed % len(kinds)]
        job.raises = job.raises and not is_gapless  # a batch that is never there hides which optimizers end a step
        if is_steady:
            job.steady(job.kind)
        twin = job.twin = DeviceTwin(scene, seed, is_read_alike=job.kind in ONE_ANCHOR, is_gapless=is_gapless)
        job.run(40)
        if not scene.device.capturing:
            twin.device.now = max(twin.device.now, *twin.device.free_ns)
        scene.recorder.finish()
        return scene.records


def assert_same(ours, theirs):
    for our, their in zip(ours, theirs, strict=False):
        assert our == their
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("seed", range(300))
def test_jobs_of_all_kinds(monkeypatch, seed):
    """Streams, waits, captures, replays, losses, hosts ahead and hosts that wait: equal in every field."""
    theirs = records_of(RecordedScene, monkeypatch, seed)
    assert_same(records_of(MarkedScene, monkeypatch, seed), theirs)


@pytest.mark.parametrize("seed", range(60))
def test_coarse_times_and_drift(monkeypatch, seed):
    """Distances are read from where today's are, so they are rounded alike, and the clocks drift alike."""
    rate, grain = ((1.0003, 7), (0.9996, 512), (1.0, 1000))[seed % 3]
    theirs, ours = (
        records_of(kind, monkeypatch, seed, Device(rate=rate, grain=grain), kinds=ONE_ANCHOR, is_gapless=True)
        for kind in (RecordedScene, MarkedScene)
    )
    assert_same(ours, theirs)


@pytest.mark.parametrize("seed", range(60))
def test_a_host_that_no_event_is_left_for(monkeypatch, seed):
    """The same collectives and waits find no event, and the same steps are given up for it."""
    for module in (timeline, event_queue):
        for name, value in (("EVENTS_MAX", 24), ("RESERVE", 1000), ("RARE_MAX", 2), ("READ_FROM", 8)):
            monkeypatch.setattr(module, name, value)
        for name, value in (("READ_EVERY", 4), ("READ_COUNT", 8)):
            monkeypatch.setattr(module, name, value)
    theirs = records_of(RecordedScene, monkeypatch, seed, kinds=ONE_ANCHOR, is_steady=True)
    assert_same(records_of(MarkedScene, monkeypatch, seed, kinds=ONE_ANCHOR, is_steady=True), theirs)


@pytest.mark.parametrize("seed", range(12))
def test_the_extension_gives_the_same(monkeypatch, seed):
    """The chain from C to the record."""
    theirs = records_of(RecordedScene, monkeypatch, seed)
    assert_same(records_of(partial(MarkedScene, writer="C"), monkeypatch, seed), theirs)


def test_the_jobs_are_what_they_claim(monkeypatch):
    """Among them is every case that is compared."""
    records = [record for seed in range(60) for record in records_of(MarkedScene, monkeypatch, seed)]
    for name in ("gc_ns", "dp_wait_ns", "dp_comm_ns", "dp_shortest_ns", "device_comm_ns", "host_lead_ns", "data_ns"):
        assert any(record[name] > 0 for record in records), name
    measured = [record for record in records if record["device_step_ns"] != MISSING]
    assert 0.5 < len(measured) / len(records) < 0.99
    for flags in (0, Flag.WARM_UP):
        assert any(record["flags"] == flags for record in measured)
    assert any(record["dp_wait_ns"] == MISSING < record["dp_count"] for record in measured)
